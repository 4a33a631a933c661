/* sqlite_recover.c: RECOVER of the outbox and of the table of parked work: rows that nobody will
 * move on, because their owner is gone, their answer never came, their route was closed or the clock
 * was set back.
 *
 * What always holds: rows are read first, at most a batch of each kind, and written by seq when the
 * reading is over. The statements say INDEXED BY, so that ANALYZE cannot turn a look into a scan.
 * The same reading without writing tells whether there is anything to do at all. */
#include "store/sqlite.h"

#define RELEASE_MAX "1000" /* as in sqlite_outbox.c: followers are due a microsecond apart */

struct recover {
    struct sqlite_conn *c;
    struct op *op;
    uint64_t lanes, fresh;
    uint32_t limit, n;
    int64_t seq[BATCH_MAX];
};

static sqlite3_stmt *expired_rows(struct recover *k) {
    static const char *const sql[] = {
        [TABLE_OUTBOX] = "SELECT seq FROM outbox_events INDEXED BY ix_expired WHERE status = "
                         "'sending' AND (?1 >> slot) & 1"
                         " AND ((?2 >> slot) & 1 OR lease_until IS NULL OR lease_until <= ?3 OR "
                         "lease_until > ?4)"
                         " ORDER BY lease_until",
        [TABLE_WORK] = "SELECT seq FROM consign_work INDEXED BY consign_ix_work_expired WHERE "
                       "status = 'sending'"
                       " AND (?1 >> slot) & 1 AND ((?2 >> slot) & 1 OR lease_until IS NULL OR "
                       "lease_until <= ?3"
                       " OR lease_until > ?4) AND consumer_name = ?5 ORDER BY lease_until",
    };
    sqlite3_stmt *s = sqlite_prepare(k->c, sql[k->op->recover.table], &k->op->result);

    if (!s)
        return NULL;
    sqlite3_bind_int64(s, 1, (int64_t)k->lanes);
    sqlite3_bind_int64(s, 2, (int64_t)k->fresh);
    sqlite3_bind_int64(s, 3, k->c->now);
    sqlite3_bind_int64(s, 4, sqlite_from_now(k->c, k->op->recover.longest_lease));
    if (k->op->recover.table == TABLE_WORK)
        sqlite_bind_bytes(s, 5, bytes_of(k->op->recover.consumer));
    return s;
}

static sqlite3_stmt *unknown_rows(struct recover *k) {
    static const char sql[] =
        "SELECT seq FROM outbox_events INDEXED BY ix_unknown WHERE status = 'unknown' AND (?1 >> "
        "slot) & 1"
        " AND (next_attempt_at <= ?2 OR next_attempt_at > ?3) ORDER BY next_attempt_at";
    sqlite3_stmt *s = sqlite_prepare(k->c, sql, &k->op->result);

    if (!s)
        return NULL;
    sqlite3_bind_int64(s, 1, (int64_t)k->lanes);
    sqlite3_bind_int64(s, 2, k->c->now);
    sqlite3_bind_int64(s, 3, sqlite_from_now(k->c, k->op->recover.longest_backoff));
    return s;
}

/* Rows that are not due only because the clock was set back: nobody planned an instant that is not
 * after the row was written, nor one for a row that was claimed and never failed. They are looked
 * for in fresh lanes, and up to the instant at which this connection saw the step. Work is never
 * planned: what was not tried is due. */
static sqlite3_stmt *drawn_rows(struct recover *k) {
    static const char *const sql[] = {
        [TABLE_OUTBOX] =
            "SELECT seq FROM outbox_events INDEXED BY ix_dispatch WHERE status = 'pending'"
            " AND next_attempt_at > ?2 AND next_attempt_at <= ?3 AND tries = 0 AND (?1 >> slot) & 1"
            " AND (attempts > 0 OR next_attempt_at <= created_at + " RELEASE_MAX
            ") ORDER BY next_attempt_at",
        [TABLE_WORK] =
            "SELECT seq FROM consign_work INDEXED BY consign_ix_work_new WHERE status = 'pending'"
            " AND tries = 0 AND consumer_name = ?4 AND next_attempt_at > ?2"
            " AND next_attempt_at <= ?3 AND (?1 >> slot) & 1 ORDER BY next_attempt_at",
    };
    enum work_table table = k->op->recover.table;
    bool all = table == TABLE_WORK || k->fresh, seen = k->c->now < k->c->newest;
    sqlite3_stmt *s = sqlite_prepare(k->c, sql[table], &k->op->result);

    if (!s)
        return NULL;
    sqlite3_bind_int64(s, 1, (int64_t)(table == TABLE_WORK || seen ? k->lanes : k->fresh));
    sqlite3_bind_int64(s, 2, k->c->now);
    sqlite3_bind_int64(s, 3, all ? CSN_USEC_NEVER : seen ? k->c->newest : k->c->now);
    if (table == TABLE_WORK)
        sqlite_bind_bytes(s, 4, bytes_of(k->op->recover.consumer));
    return s;
}

static sqlite3_stmt *route_rows(struct recover *k, csn_bytes route) {
    static const char sql[] =
        "SELECT seq FROM outbox_events INDEXED BY ix_waiting_route WHERE status = 'waiting'"
        " AND waits_for = 2 AND route = ?2 AND (?1 >> slot) & 1 ORDER BY seq";
    sqlite3_stmt *s = sqlite_prepare(k->c, sql, &k->op->result);

    if (!s)
        return NULL;
    sqlite3_bind_int64(s, 1, (int64_t)k->lanes);
    sqlite_bind_bytes(s, 2, route);
    return s;
}

/* Puts at most limit more rows into seq[]. */
static csn_status collect(struct recover *k, sqlite3_stmt *s, uint32_t limit) {
    int rc = SQLITE_ROW;

    if (!s)
        return k->op->result.status;
    limit += k->n;
    while (k->n < limit && (rc = sqlite3_step(s)) == SQLITE_ROW)
        k->seq[k->n++] = sqlite3_column_int64(s, 0);
    if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        return sqlite_failed(k->c, "recover", &k->op->result);
    sqlite3_reset(s);
    return CSN_OK;
}

/* Runs a statement whose ?1 is seq over what was collected. */
static csn_status for_each(struct recover *k, const char *sql) {
    sqlite3_stmt *s = k->n > 0 ? sqlite_prepare(k->c, sql, &k->op->result) : NULL;
    csn_status status = CSN_OK;

    if (k->n > 0 && !s)
        return k->op->result.status;
    for (uint32_t i = 0; i < k->n && status == CSN_OK; i++) {
        sqlite3_bind_int64(s, 1, k->seq[i]);
        if (sqlite3_bind_parameter_count(s) > 1)
            sqlite3_bind_int64(s, 2, k->c->now);
        status = sqlite_run(k->c, s, &k->op->result);
    }
    return status;
}

/* 3007 is ERR_OWNER_GONE. */
#define GONE                                                                                       \
    "'unanswered', attempts, NULL, next_attempt_at, claimed_at, 3007, 'unknown (owner gone)'"

static csn_status recover_expired(struct recover *k) {
    static const char *const evidence[] = {
        [TABLE_OUTBOX] = "INSERT INTO consign_attempts(event_id, side, consumer_name, at, kind, "
                         "attempt, member, planned_at,"
                         " started_at, code, error) SELECT event_id, 'outbox', NULL, ?2, " GONE
                         " FROM outbox_events WHERE seq = ?1",
        [TABLE_WORK] =
            "INSERT INTO consign_attempts(event_id, side, consumer_name, at, kind, attempt, "
            "member, planned_at,"
            " started_at, code, error) SELECT event_id, 'inbox', consumer_name, ?2, " GONE
            " FROM consign_work WHERE seq = ?1",
    };
    static const char *const back[] = {
        [TABLE_OUTBOX] = "UPDATE outbox_events SET status = 'pending', claim_token = NULL, "
                         "lease_until = NULL WHERE seq = ?1",
        [TABLE_WORK] = "UPDATE consign_work SET status = 'pending', claim_token = NULL, "
                       "lease_until = NULL WHERE seq = ?1",
    };
    enum work_table table = k->op->recover.table;
    csn_status s;

    _Static_assert(ERR_OWNER_GONE == 3007, "the code in GONE");
    k->n = 0;
    s = collect(k, expired_rows(k), k->limit);
    if (s == CSN_OK)
        s = for_each(k, evidence[table]);
    if (s == CSN_OK)
        s = for_each(k, back[table]);
    k->op->recover.expired = k->n;
    return s;
}

/* A due instant that lies too far ahead (a clock step) is drawn to now, so that the claim finds the
 * row. */
static csn_status recover_unknown(struct recover *k) {
    static const char sql[] =
        "UPDATE outbox_events SET status = 'pending', next_attempt_at = min(next_attempt_at, ?2)"
        " WHERE seq = ?1";
    csn_status s;

    k->n = 0;
    s = collect(k, unknown_rows(k), k->limit);
    if (s == CSN_OK)
        s = for_each(k, sql);
    k->op->recover.resent = k->n;
    return s;
}

static csn_status recover_drawn(struct recover *k) {
    static const char *const sql[] = {
        [TABLE_OUTBOX] = "UPDATE outbox_events SET next_attempt_at = ?2 WHERE seq = ?1",
        [TABLE_WORK] = "UPDATE consign_work SET next_attempt_at = ?2 WHERE seq = ?1",
    };
    csn_status s;

    k->n = 0;
    s = collect(k, drawn_rows(k), k->limit);
    if (s == CSN_OK)
        s = for_each(k, sql[k->op->recover.table]);
    k->op->recover.drawn = k->n;
    return s;
}

static bool next_route(const char **at, csn_bytes *ret) {
    size_t n = strcspn(*at, ",");

    *ret = (csn_bytes){*at, n};
    *at += n + ((*at)[n] == ',');
    return n > 0;
}

static csn_status recover_routes(struct recover *k) {
    static const char sql[] =
        "UPDATE outbox_events SET status = 'pending', waits_for = 0 WHERE seq = ?1";
    const char *at = k->op->recover.open_routes;
    csn_bytes route;
    csn_status s = CSN_OK;

    k->n = 0;
    while (s == CSN_OK && k->n < k->limit && next_route(&at, &route))
        s = collect(k, route_rows(k, route), k->limit - k->n);
    if (s == CSN_OK)
        s = for_each(k, sql);
    k->op->recover.released = k->n;
    return s;
}

static csn_status begin_recover(struct recover *k, struct sqlite_conn *c, struct op *op) {
    csn_status s = CSN_OK;

    k->c = c;
    k->op = op;
    k->n = 0;
    k->limit = op->recover.limit < BATCH_MAX ? op->recover.limit : BATCH_MAX;
    k->lanes = op->recover.lanes;
    op->recover.expired = op->recover.resent = op->recover.released = op->recover.drawn = 0;
    op->recover.more = false;
    if (op->recover.lane_name[0])
        k->lanes = sqlite_fence(c, op->recover.lane_name, k->lanes, op->recover.epoch,
                                op->recover.boot, &s, &op->result);
    k->fresh = op->recover.table == TABLE_OUTBOX ? op->recover.fresh & k->lanes : 0;
    return s;
}

csn_status sqlite_recover(struct sqlite_conn *c, struct op *op) {
    struct recover k;
    csn_status s = begin_recover(&k, c, op);

    if (s == CSN_OK && k.lanes)
        s = recover_expired(&k);
    if (s == CSN_OK && k.lanes && op->recover.table == TABLE_OUTBOX)
        s = recover_unknown(&k);
    if (s == CSN_OK && k.lanes && op->recover.table == TABLE_OUTBOX)
        s = recover_routes(&k);
    if (s == CSN_OK && k.lanes)
        s = recover_drawn(&k);
    op->recover.more =
        k.limit > 0 && (op->recover.expired == k.limit || op->recover.resent == k.limit ||
                        op->recover.released == k.limit || op->recover.drawn == k.limit);
    return s;
}

csn_status sqlite_recover_idle(struct sqlite_conn *c, struct op *op, bool *ret) {
    struct recover k;
    bool any = false, outbox = op->recover.table == TABLE_OUTBOX;
    const char *at = op->recover.open_routes;
    csn_bytes route;
    csn_status s = begin_recover(&k, c, op);

    if (s == CSN_OK && k.lanes)
        s = sqlite_any(c, expired_rows(&k), &any, &op->result);
    if (s == CSN_OK && k.lanes && !any)
        s = sqlite_any(c, drawn_rows(&k), &any, &op->result);
    if (s == CSN_OK && k.lanes && outbox && !any)
        s = sqlite_any(c, unknown_rows(&k), &any, &op->result);
    while (s == CSN_OK && k.lanes && outbox && !any && next_route(&at, &route))
        s = sqlite_any(c, route_rows(&k, route), &any, &op->result);
    *ret = !any;
    return s;
}
