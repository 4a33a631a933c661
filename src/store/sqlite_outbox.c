/* sqlite_outbox.c: CLAIM, SETTLE, RENEW of the outbox and of the table of parked work. RECOVER is
 * in sqlite_recover.c. See docs/protocol.md.
 *
 * Claim: the due rows are read in index order, each with a look at the row before it in its key,
 * and only when the reading is over are they written: a cursor over an index that is being changed
 * would be saved and sought again at every row. Whether a row may go is known while reading, since
 * what this claim takes is known here.
 *
 *   ix_dispatch ─▶ due row ─▶ ix_key: row before it? ─ none, ended, or taken by this claim ─▶ taken: sending
 *                                                    └ anything else ─▶ parked: waiting
 *
 * Every write is one prepared statement by seq. Tried and dropped: one statement for the batch
 * with json_each (no faster, and single rows cannot be told apart); UPDATE … RETURNING (a fifth
 * slower than reading, then writing by seq); to skip the look at the row before when the key was
 * just taken (a row that is not due may lie between the two). The statements say INDEXED BY: a
 * plan of theirs that changes with ANALYZE would scan a million sent rows. */
#include "store/sqlite.h"
#include <stdlib.h>

enum { HASH_SIZE = 2048 /* more than twice BATCH_MAX */, CHUNK = 254 };
#define RELEASE_MAX "1000"

static csn_status failed(struct sqlite_conn *c, const char *doing, struct op *op) {
    return sqlite_failed(c, doing, &op->result);
}

/* ---- claim: reading ---- */

#define COLUMNS                                                                                    \
    "seq, event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version, " \
    "payload, headers,"                                                                            \
    " traceparent, correlation_id, causation_id, tenant, slot, attempts, failures, tries, "        \
    "priority, created_at,"                                                                        \
    " first_failed_at, expires_at, "

enum column {
    COL_SEQ,
    COL_ID,
    COL_TYPE,
    COL_KEY,
    COL_VERSION,
    COL_EVENT_TYPE,
    COL_SCHEMA,
    COL_PAYLOAD,
    COL_HEADERS,
    COL_TRACE,
    COL_CORR,
    COL_CAUSE,
    COL_TENANT,
    COL_SLOT,
    COL_ATTEMPTS,
    COL_FAILURES,
    COL_TRIES,
    COL_PRIORITY,
    COL_CREATED,
    COL_FIRST_FAILED,
    COL_EXPIRES,
    COL_ROUTE,
    COL_PREV
};

struct claim_sql {
    const char *due;     /* ?1 now, ?2 lanes, ?3 consumer */
    const char *stepped; /* ?1 now + longest backoff */
    const char *take;    /* ?1 token, ?2 lease_until, ?3 now, ?4 seq */
};

static const struct claim_sql claim_sql[] = {
    [TABLE_OUTBOX] =
        {
            "SELECT " COLUMNS
            "route, 0 FROM outbox_events INDEXED BY ix_dispatch WHERE status = 'pending'"
            " AND next_attempt_at <= ?1 AND (?2 >> slot) & 1 ORDER BY next_attempt_at, seq",
            "SELECT " COLUMNS "route, 0 FROM outbox_events INDEXED BY ix_stepped WHERE status = "
            "'pending' AND tries > 0"
            " AND next_attempt_at > ?1 AND (?2 >> slot) & 1 ORDER BY next_attempt_at, seq",
            "UPDATE outbox_events SET status = 'sending', claim_token = ?1, lease_until = ?2, "
            "claimed_at = ?3,"
            " attempts = attempts + 1 WHERE seq = ?4",
        },
    [TABLE_WORK] =
        {
            "SELECT " COLUMNS "NULL, prev_version FROM consign_work INDEXED BY consign_ix_work_due "
            "WHERE status = 'pending'"
            " AND consumer_name = ?3 AND next_attempt_at <= ?1 AND (?2 >> slot) & 1 ORDER BY "
            "next_attempt_at, seq",
            "SELECT " COLUMNS "NULL, prev_version FROM consign_work INDEXED BY consign_ix_work_due "
            "WHERE status = 'pending'"
            " AND consumer_name = ?3 AND next_attempt_at > ?1 AND tries > 0 AND (?2 >> slot) & 1 "
            "ORDER BY next_attempt_at, seq",
            "UPDATE consign_work SET status = 'sending', claim_token = ?1, lease_until = ?2, "
            "claimed_at = ?3,"
            " attempts = attempts + 1 WHERE seq = ?4",
        },
};

struct parked { /* rows that go to waiting, in the batch's arena */
    struct parked *next;
    uint32_t n;
    int64_t seq[CHUNK];
};

struct claim {
    struct sqlite_conn *c;
    struct op *op;
    sqlite3_stmt *before; /* TABLE_OUTBOX */
    struct parked *parked;
    uint64_t lanes;
    uint32_t limit, keys;
    size_t bytes;
    bool repeats;             /* some key has more than one row */
    uint16_t seen[HASH_SIZE]; /* by seq: message + 1 */
    uint16_t key[HASH_SIZE];  /* by key: its first message + 1 */
    uint16_t rank[BATCH_MAX]; /* of a message: number of its key in the order of the claim */
};

static uint32_t hash_of_seq(uint64_t seq) {
    return (uint32_t)(seq * UINT64_C(0x9e3779b97f4a7c15) >> 53); /* 11 bits: HASH_SIZE */
}

static bool is_taken(const struct claim *k, int64_t seq) {
    for (uint32_t at = hash_of_seq((uint64_t)seq); k->seen[at]; at = (at + 1) % HASH_SIZE)
        if (k->op->batch->msg[k->seen[at] - 1].seq == (uint64_t)seq)
            return true;
    return false;
}

/* Remembers message n, its seq and its key. */
static void remember(struct claim *k, uint32_t n) {
    const struct message *msg = k->op->batch->msg, *m = &msg[n];
    uint32_t at = hash_of_seq(m->seq);

    while (k->seen[at])
        at = (at + 1) % HASH_SIZE;
    k->seen[at] = (uint16_t)(n + 1);
    at = (uint32_t)(bytes_hash(m->aggregate_id, bytes_hash(m->aggregate_type, 0)) % HASH_SIZE);
    while (k->key[at]) {
        const struct message *first = &msg[k->key[at] - 1];
        if (bytes_equal(first->aggregate_id, m->aggregate_id) &&
            bytes_equal(first->aggregate_type, m->aggregate_type))
            break;
        at = (at + 1) % HASH_SIZE;
    }
    k->repeats |= k->key[at] != 0;
    if (k->key[at] == 0) {
        k->key[at] = (uint16_t)(n + 1);
        k->rank[n] = (uint16_t)k->keys++;
    } else {
        k->rank[n] = k->rank[k->key[at] - 1];
    }
}

static csn_bytes column(sqlite3_stmt *row, enum column col, struct arena *a, csn_status *status) {
    if (sqlite3_column_type(row, (int)col) == SQLITE_NULL)
        return (csn_bytes){"", 0};
    return sqlite_column(row, (int)col, a, status);
}

static csn_status fill(struct message *m, sqlite3_stmt *row, struct arena *a, csn_usec now) {
    csn_status s = CSN_OK;
    bool expires = sqlite3_column_type(row, COL_EXPIRES) != SQLITE_NULL;
    bool failing = sqlite3_column_type(row, COL_FIRST_FAILED) != SQLITE_NULL;

    *m = (struct message){
        .id = column(row, COL_ID, a, &s),
        .aggregate_type = column(row, COL_TYPE, a, &s),
        .aggregate_id = column(row, COL_KEY, a, &s),
        .event_type = column(row, COL_EVENT_TYPE, a, &s),
        .payload = column(row, COL_PAYLOAD, a, &s),
        .headers = column(row, COL_HEADERS, a, &s),
        .traceparent = column(row, COL_TRACE, a, &s),
        .correlation_id = column(row, COL_CORR, a, &s),
        .causation_id = column(row, COL_CAUSE, a, &s),
        .tenant = column(row, COL_TENANT, a, &s),
        .route = column(row, COL_ROUTE, a, &s),
        .version = (uint64_t)sqlite3_column_int64(row, COL_VERSION),
        .prev_version = (uint64_t)sqlite3_column_int64(row, COL_PREV),
        .seq = (uint64_t)sqlite3_column_int64(row, COL_SEQ),
        .schema_version = (uint32_t)sqlite3_column_int64(row, COL_SCHEMA),
        .lane = (uint32_t)sqlite3_column_int64(row, COL_SLOT),
        .attempts = (uint32_t)sqlite3_column_int64(row, COL_ATTEMPTS) + 1,
        .failures = (uint32_t)sqlite3_column_int64(row, COL_FAILURES),
        .tries = (uint32_t)sqlite3_column_int64(row, COL_TRIES),
        .priority = sqlite3_column_int(row, COL_PRIORITY),
        .age = sqlite_between(sqlite3_column_int64(row, COL_CREATED), now),
        .failing_for =
            failing ? sqlite_between(sqlite3_column_int64(row, COL_FIRST_FAILED), now) : 0,
        .expires_in =
            expires ? sqlite_between(now, sqlite3_column_int64(row, COL_EXPIRES)) : CSN_USEC_NEVER,
    };
    m->redelivered = m->attempts > 1;
    return s;
}

static csn_status add_parked(struct claim *k, int64_t seq) {
    if (!k->parked || k->parked->n == CHUNK) {
        struct parked *p = arena_take(&k->op->batch->arena, sizeof *p);
        if (!p)
            return error_set(&k->op->result, CSN_NOMEM, ERR_NO_MEMORY, "claim: out of memory");
        p->next = k->parked;
        p->n = 0;
        k->parked = p;
    }
    k->parked->seq[k->parked->n++] = seq;
    k->op->claim.parked++;
    return CSN_OK;
}

/* A cancelled row is looked past: cancelling a follower must not open the way round a head that
 * failed. */
static const char before_sql[] =
    "SELECT seq, aggregate_version, status = 'sent' FROM outbox_events INDEXED BY ix_key"
    " WHERE aggregate_type = ?1 AND aggregate_id = ?2 AND (aggregate_version, seq) < (?3, ?4)"
    " AND status <> 'cancelled' ORDER BY aggregate_version DESC, seq DESC LIMIT 1";

struct row_before {
    bool there, sent;
    int64_t seq;
    uint64_t version; /* 0 when there is none */
};

/* What stands before (type, id, version, seq) in its key. */
static csn_status row_before(struct sqlite_conn *c, sqlite3_stmt *s, csn_bytes type, csn_bytes id,
                             int64_t version, int64_t seq, struct row_before *ret, struct op *op) {
    int rc;

    *ret = (struct row_before){.there = false};
    sqlite_bind_bytes(s, 1, type);
    sqlite_bind_bytes(s, 2, id);
    sqlite3_bind_int64(s, 3, version);
    sqlite3_bind_int64(s, 4, seq);
    rc = sqlite3_step(s);
    if (rc == SQLITE_ROW)
        *ret = (struct row_before){true, sqlite3_column_int(s, 2) != 0, sqlite3_column_int64(s, 0),
                                   (uint64_t)sqlite3_column_int64(s, 1)};
    else if (rc != SQLITE_DONE)
        return failed(c, "row before", op);
    sqlite3_reset(s);
    return CSN_OK;
}

static csn_status may_go(struct claim *k, sqlite3_stmt *row, bool *ret, uint64_t *ret_version) {
    csn_bytes type = {sqlite3_column_text(row, COL_TYPE),
                      (size_t)sqlite3_column_bytes(row, COL_TYPE)};
    csn_bytes id = {sqlite3_column_text(row, COL_KEY), (size_t)sqlite3_column_bytes(row, COL_KEY)};
    struct row_before before;
    csn_status s = row_before(k->c, k->before, type, id, sqlite3_column_int64(row, COL_VERSION),
                              sqlite3_column_int64(row, COL_SEQ), &before, k->op);

    *ret = !before.there || before.sent || is_taken(k, before.seq);
    *ret_version = before.version;
    return s;
}

/* An attempt that nobody answered may have arrived, and what a person sends again has arrived. */
static csn_status maybe_sent(struct claim *k, struct message *m) {
    if (k->op->claim.table != TABLE_OUTBOX || m->expires_in == CSN_USEC_NEVER || m->attempts == 1)
        return CSN_OK;
    return sqlite_there(k->c,
                        "SELECT 1 FROM consign_attempts WHERE event_id = ?1 AND side = 'outbox' "
                        "AND kind IN ('unanswered', 'resent')",
                        SQL_VALUES(sql_bytes(m->id)), &m->maybe_sent, &k->op->result);
}

/* Takes or parks one row; sets more when that was the last. */
static csn_status consider(struct claim *k, sqlite3_stmt *row) {
    struct op *op = k->op;
    struct batch *b = op->batch;
    size_t size = (size_t)sqlite3_column_bytes(row, COL_PAYLOAD);
    uint64_t prev = 0;
    bool go = true;
    csn_status s = op->claim.table == TABLE_OUTBOX ? may_go(k, row, &go, &prev) : CSN_OK;

    if (s == CSN_OK && !go) {
        if (op->claim.parked < op->claim.park_limit)
            s = add_parked(k, sqlite3_column_int64(row, COL_SEQ));
        op->claim.more = op->claim.parked >= op->claim.park_limit;
        return s;
    }
    if (s != CSN_OK || (b->n > 0 && k->bytes + size > op->claim.bytes)) {
        op->claim.more = true;
        return s;
    }
    if (fill(&b->msg[b->n], row, &b->arena, k->c->now) != CSN_OK) {
        op->claim.more = true; /* what there was room for is a batch, too */
        return b->n > 0 ? CSN_OK
                        : error_set(&op->result, CSN_NOMEM, ERR_NO_MEMORY, "claim: out of memory");
    }
    if (op->claim.table == TABLE_OUTBOX)
        b->msg[b->n].prev_version = prev;
    s = maybe_sent(k, &b->msg[b->n]);
    if (s != CSN_OK)
        return s;
    remember(k, b->n++);
    k->bytes += size;
    op->claim.more = b->n == k->limit;
    return CSN_OK;
}

static sqlite3_stmt *due_rows(struct claim *k, bool stepped) {
    const struct op *op = k->op;
    const struct claim_sql *sql = &claim_sql[op->claim.table];
    sqlite3_stmt *s = sqlite_prepare(k->c, stepped ? sql->stepped : sql->due, &k->op->result);
    csn_usec far = sqlite_from_now(k->c, op->claim.longest_backoff);

    if (!s)
        return NULL;
    sqlite3_bind_int64(s, 1, stepped ? far : k->c->now);
    sqlite3_bind_int64(s, 2, (int64_t)k->lanes);
    if (op->claim.table == TABLE_WORK)
        sqlite_bind_bytes(s, 3, bytes_of(op->claim.consumer));
    return s;
}

static csn_status read_due(struct claim *k, bool stepped) {
    sqlite3_stmt *row = due_rows(k, stepped);
    csn_status s = CSN_OK;
    int rc = SQLITE_ROW;

    if (!row)
        return k->op->result.status;
    while (s == CSN_OK && !k->op->claim.more && (rc = sqlite3_step(row)) == SQLITE_ROW)
        s = consider(k, row);
    if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        s = failed(k->c, "claim", k->op);
    sqlite3_reset(row);
    return s;
}

/* ---- claim: writing ---- */

static csn_status write_taken(struct claim *k) {
    const struct op *op = k->op;
    sqlite3_stmt *s = sqlite_prepare(k->c, claim_sql[op->claim.table].take, &k->op->result);
    csn_status status = CSN_OK;

    if (!s)
        return k->op->result.status;
    sqlite_bind_bytes(s, 1, bytes_of(op->claim.token));
    sqlite3_bind_int64(s, 2, k->c->now + op->claim.lease);
    sqlite3_bind_int64(s, 3, k->c->now);
    for (uint32_t i = 0; i < op->batch->n && status == CSN_OK; i++) {
        sqlite3_bind_int64(s, 4, (int64_t)op->batch->msg[i].seq);
        status = sqlite_run(k->c, s, &k->op->result);
    }
    return status;
}

static csn_status write_parked(struct claim *k) {
    static const char sql[] =
        "UPDATE outbox_events SET status = 'waiting', waits_for = 1 WHERE seq = ?1";
    sqlite3_stmt *s = k->parked ? sqlite_prepare(k->c, sql, &k->op->result) : NULL;
    csn_status status = CSN_OK;

    if (k->parked && !s)
        return k->op->result.status;
    for (struct parked *p = k->parked; p && status == CSN_OK; p = p->next)
        for (uint32_t i = 0; i < p->n && status == CSN_OK; i++) {
            sqlite3_bind_int64(s, 1, p->seq[i]);
            status = sqlite_run(k->c, s, &k->op->result);
        }
    return status;
}

struct place {
    uint64_t version, seq;
    uint32_t rank, msg;
};

static int by_place(const void *a, const void *b) {
    const struct place *x = a, *y = b;

    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    if (x->version != y->version)
        return x->version < y->version ? -1 : 1;
    return x->seq < y->seq ? -1 : x->seq > y->seq;
}

/* Keys in the order of the claim, rows of a key in its order. */
static csn_status put_in_order(struct claim *k) {
    struct batch *b = k->op->batch;
    struct place *place = k->repeats ? arena_take(&b->arena, b->n * sizeof *place) : NULL;
    struct message *copy = k->repeats ? arena_take(&b->arena, b->n * sizeof *copy) : NULL;

    if (!k->repeats)
        return CSN_OK;
    if (!place || !copy)
        return error_set(&k->op->result, CSN_NOMEM, ERR_NO_MEMORY, "claim: out of memory");
    for (uint32_t i = 0; i < b->n; i++)
        place[i] = (struct place){b->msg[i].version, b->msg[i].seq, k->rank[i], i};
    qsort(place, b->n, sizeof *place, by_place);
    memcpy(copy, b->msg, b->n * sizeof *copy);
    for (uint32_t i = 0; i < b->n; i++)
        b->msg[i] = copy[place[i].msg];
    return CSN_OK;
}

static csn_status begin_claim(struct claim *k, struct sqlite_conn *c, struct op *op) {
    csn_status s = CSN_OK;

    memset(k, 0, sizeof *k);
    k->c = c;
    k->op = op;
    k->lanes = op->claim.lanes;
    k->limit = op->claim.limit < op->batch->cap ? op->claim.limit : op->batch->cap;
    k->limit = k->limit < BATCH_MAX ? k->limit : BATCH_MAX;
    op->batch->n = op->claim.parked = 0;
    op->claim.lost = 0;
    op->claim.more = k->limit == 0;
    if (op->claim.lane_name[0]) {
        k->lanes = sqlite_fence(c, op->claim.lane_name, k->lanes, op->claim.epoch, op->claim.boot,
                                &s, &op->result);
        op->claim.lost = op->claim.lanes & ~k->lanes;
    }
    if (s == CSN_OK && op->claim.table == TABLE_OUTBOX) {
        k->before = sqlite_prepare(c, before_sql, &op->result);
        s = k->before ? CSN_OK : op->result.status;
    }
    return s;
}

csn_status sqlite_claim(struct sqlite_conn *c, struct op *op) {
    struct claim k;
    csn_status s = begin_claim(&k, c, op);

    if (s == CSN_OK && k.lanes)
        s = read_due(&k, false);
    if (s == CSN_OK && k.lanes && !op->claim.more)
        s = read_due(&k, true);
    if (s == CSN_OK && op->batch->n > 0)
        s = write_taken(&k);
    if (s == CSN_OK)
        s = write_parked(&k);
    return s == CSN_OK ? put_in_order(&k) : s;
}

csn_status sqlite_claim_idle(struct sqlite_conn *c, struct op *op, bool *ret) {
    struct claim k;
    bool any = false;
    csn_status s = begin_claim(&k, c, op);

    if (s == CSN_OK && k.lanes)
        s = sqlite_any(c, due_rows(&k, false), &any, &op->result);
    if (s == CSN_OK && k.lanes && !any)
        s = sqlite_any(c, due_rows(&k, true), &any, &op->result);
    *ret = !any;
    return s;
}

/* ---- settle ---- */

struct settle {
    struct sqlite_conn *c;
    struct op *op;
    sqlite3_stmt *sent; /* prepared and bound once, for nearly every row goes through it */
};

static const struct message *message_of_item(const struct settle *k,
                                             const struct settle_item *item) {
    return &k->op->batch->msg[item->msg];
}

static const char *kind_of(const struct settle_item *item) {
    static const char *const kinds[] = {
        [SETTLE_SENT] = "confirmed",     [SETTLE_PENDING] = "released",
        [SETTLE_UNKNOWN] = "unanswered", [SETTLE_WAITING] = "waiting",
        [SETTLE_FAILED] = "failed",      [SETTLE_CANCELLED] = "expired"};

    if (item->to != SETTLE_PENDING)
        return kinds[item->to];
    if (item->code == ERR_BROKER_UNROUTABLE)
        return "returned";
    return item->failure || item->code == ERR_BROKER_NACK ? "nacked" : "released";
}

/* Before the row is written, for what was planned is in it; under the same fence, so that a stale
 * row leaves no evidence. */
static csn_status write_evidence(const struct settle *k, const struct settle_item *item) {
    static const char *const sql[] = {
        [TABLE_OUTBOX] = "INSERT INTO consign_attempts(event_id, side, consumer_name, at, kind, "
                         "attempt, member, planned_at,"
                         " started_at, code, error) SELECT event_id, 'outbox', NULL, ?1, ?2, "
                         "attempts, ?3, next_attempt_at,"
                         " claimed_at, ?4, ?5 FROM outbox_events WHERE seq = ?6 AND event_id = ?7 "
                         "AND status = 'sending'"
                         " AND claim_token = ?8",
        [TABLE_WORK] = "INSERT INTO consign_attempts(event_id, side, consumer_name, at, kind, "
                       "attempt, member, planned_at,"
                       " started_at, code, error) SELECT event_id, 'inbox', consumer_name, ?1, ?2, "
                       "attempts, ?3,"
                       " next_attempt_at, claimed_at, ?4, ?5 FROM consign_work WHERE seq = ?6 AND "
                       "event_id = ?7"
                       " AND status = 'sending' AND claim_token = ?8",
    };
    const struct message *m = message_of_item(k, item);
    sqlite3_stmt *s = sqlite_prepare(k->c, sql[k->op->settle.table], &k->op->result);

    if (!s)
        return k->op->result.status;
    sqlite3_bind_int64(s, 1, k->c->now);
    sqlite_bind_bytes(s, 2, bytes_of(kind_of(item)));
    sqlite3_bind_int64(s, 3, k->op->settle.member);
    if (item->code)
        sqlite3_bind_int64(s, 4, item->code);
    sqlite_bind_bytes(s, 5, bytes_of(item->text));
    sqlite3_bind_int64(s, 6, (int64_t)m->seq);
    sqlite_bind_bytes(s, 7, m->id);
    sqlite_bind_bytes(s, 8, bytes_of(k->op->settle.token));
    return sqlite_run(k->c, s, &k->op->result);
}

static csn_status prepare_sent(struct settle *k) {
    static const char sql[] =
        "UPDATE outbox_events SET status = 'sent', sent_at = ?1, published_at = ?2, sent_by = ?3, "
        "broker_part = ?4,"
        " broker_pos = ?5, tries = 0, claim_token = NULL, lease_until = NULL"
        " WHERE seq = ?6 AND event_id = ?7 AND status = 'sending' AND claim_token = ?8";

    k->sent = sqlite_prepare(k->c, sql, &k->op->result);
    if (!k->sent)
        return k->op->result.status;
    sqlite3_bind_int64(k->sent, 1, k->c->now);
    sqlite3_bind_int64(k->sent, 3, k->op->settle.member);
    sqlite_bind_bytes(k->sent, 8, bytes_of(k->op->settle.token));
    return CSN_OK;
}

static void bind_place(sqlite3_stmt *s, int at, int64_t place) {
    if (place >= 0)
        sqlite3_bind_int64(s, at, place);
    else
        sqlite3_bind_null(s, at);
}

static csn_status settle_sent(struct settle *k, const struct settle_item *item) {
    const struct message *m = message_of_item(k, item);
    csn_status s = k->sent ? CSN_OK : prepare_sent(k);

    if (s != CSN_OK)
        return s;
    sqlite3_bind_int64(k->sent, 2, k->c->now - item->published_ago);
    bind_place(k->sent, 4, item->part);
    bind_place(k->sent, 5, item->pos);
    sqlite3_bind_int64(k->sent, 6, (int64_t)m->seq);
    sqlite_bind_bytes(k->sent, 7, m->id);
    return sqlite_run(k->c, k->sent, &k->op->result);
}

/* A row that is to wait for its key although nothing before it is open would wait for ever. */
static csn_status key_is_free(struct settle *k, const struct message *m, bool *ret) {
    sqlite3_stmt *stmt = sqlite_prepare(k->c, before_sql, &k->op->result);
    struct row_before before;
    csn_status s;

    if (!stmt)
        return k->op->result.status;
    s = row_before(k->c, stmt, m->aggregate_type, m->aggregate_id, (int64_t)m->version,
                   (int64_t)m->seq, &before, k->op);
    *ret = !before.there || before.sent;
    return s;
}

struct target {
    const char *status;
    uint8_t waits_for;
    csn_usec due; /* CSN_USEC_NEVER: as it is */
};

static csn_status target_of(struct settle *k, const struct settle_item *item, struct target *ret) {
    static const char *const names[] = {[SETTLE_PENDING] = "pending",
                                        [SETTLE_UNKNOWN] = "unknown",
                                        [SETTLE_WAITING] = "waiting",
                                        [SETTLE_FAILED] = "failed",
                                        [SETTLE_CANCELLED] = "cancelled"};
    bool later = item->to == SETTLE_PENDING || item->to == SETTLE_UNKNOWN, is_free = false;
    csn_status s = CSN_OK;

    *ret = (struct target){names[item->to], 0,
                           later && item->retry_in ? k->c->now + item->retry_in : CSN_USEC_NEVER};
    if (item->to != SETTLE_WAITING)
        return s;
    if (item->waits_for == WAITS_KEY)
        s = key_is_free(k, message_of_item(k, item), &is_free);
    if (is_free)
        *ret = (struct target){names[SETTLE_PENDING], 0, k->c->now};
    else
        ret->waits_for = item->waits_for;
    return s;
}

static csn_status settle_otherwise(struct settle *k, const struct settle_item *item) {
    static const char outbox[] =
        "UPDATE outbox_events SET status = ?1, waits_for = ?2, route = coalesce(?3, route),"
        " next_attempt_at = coalesce(?4, next_attempt_at), failures = failures + ?5, tries = tries "
        "+ ?6,"
        " last_error = iif(?7, coalesce(?8, last_error), last_error), last_failed_at = iif(?7, ?9, "
        "last_failed_at),"
        " first_failed_at = iif(?7, coalesce(first_failed_at, ?9), first_failed_at), claim_token = "
        "NULL, lease_until = NULL"
        " WHERE seq = ?10 AND event_id = ?11 AND status = 'sending' AND claim_token = ?12";
    static const char work[] =
        "UPDATE consign_work SET status = ?1, waits_for = ?2, next_attempt_at = coalesce(?4, "
        "next_attempt_at),"
        " failures = failures + ?5, tries = tries + ?6, last_error = iif(?7, coalesce(?8, "
        "last_error), last_error),"
        " last_failed_at = iif(?7, ?9, last_failed_at),"
        " first_failed_at = iif(?7, coalesce(first_failed_at, ?9), first_failed_at), claim_token = "
        "NULL, lease_until = NULL"
        " WHERE seq = ?10 AND event_id = ?11 AND status = 'sending' AND claim_token = ?12";
    const struct message *m = message_of_item(k, item);
    bool route = item->to == SETTLE_WAITING && item->waits_for == WAITS_ROUTE;
    struct target to;
    csn_status status = target_of(k, item, &to);
    sqlite3_stmt *s = status == CSN_OK
                          ? sqlite_prepare(k->c, k->op->settle.table == TABLE_WORK ? work : outbox,
                                           &k->op->result)
                          : NULL;

    if (!s)
        return k->op->result.status;
    sqlite_bind_bytes(s, 1, bytes_of(to.status));
    sqlite3_bind_int64(s, 2, to.waits_for);
    sqlite_bind_optional(s, 3, bytes_of(route ? k->op->settle.route : NULL));
    if (to.due != CSN_USEC_NEVER)
        sqlite3_bind_int64(s, 4, to.due);
    sqlite3_bind_int64(s, 5, item->failure);
    sqlite3_bind_int64(s, 6, item->attempt);
    sqlite3_bind_int64(s, 7, item->failure || item->to == SETTLE_FAILED);
    sqlite_bind_optional(s, 8, bytes_of(item->text));
    sqlite3_bind_int64(s, 9, k->c->now);
    sqlite3_bind_int64(s, 10, (int64_t)m->seq);
    sqlite_bind_bytes(s, 11, m->id);
    sqlite_bind_bytes(s, 12, bytes_of(k->op->settle.token));
    return sqlite_run(k->c, s, &k->op->result);
}

static csn_status settle_item(struct settle *k, struct settle_item *item) {
    bool work = k->op->settle.table == TABLE_WORK;
    csn_status s = CSN_OK;

    if (item->to > SETTLE_CANCELLED || (work && item->to != SETTLE_PENDING))
        return error_set(&k->op->result, CSN_INVALID, ERR_BUG, "settle: no such move");
    if (item->text[0])
        s = write_evidence(k, item);
    if (s == CSN_OK)
        s = item->to == SETTLE_SENT ? settle_sent(k, item) : settle_otherwise(k, item);
    if (s != CSN_OK)
        return s;
    item->result = sqlite3_changes(k->c->db) > 0 ? CSN_OK : CSN_STALE;
    k->op->settle.stale += item->result == CSN_STALE;
    return CSN_OK;
}

/* ---- settle: release of followers ---- */

/* They become due in the order of their versions, a microsecond apart: a claim that met them in
 * another order would send one and put all others back to waiting, again and again. They were due
 * already, and none becomes due later than it was, but for these microseconds: RECOVER tells them
 * from planned rows by it when the clock was set back. */
static csn_status release_behind(struct settle *k, const struct message *m) {
    static const char next[] =
        "SELECT status = 'waiting' AND waits_for = 1 FROM outbox_events INDEXED BY ix_key"
        " WHERE aggregate_type = ?1 AND aggregate_id = ?2 AND (aggregate_version, seq) > (?3, ?4)"
        " AND status <> 'cancelled' ORDER BY aggregate_version, seq LIMIT 1";
    static const char release[] =
        "UPDATE outbox_events SET status = 'pending', waits_for = 0,"
        " next_attempt_at = min(f.due, ?5 - " RELEASE_MAX ") + f.place"
        " FROM (SELECT seq AS follower, row_number() OVER (ORDER BY aggregate_version, seq) AS "
        "place, min(next_attempt_at) OVER () AS due"
        " FROM (SELECT seq, aggregate_version, next_attempt_at FROM outbox_events"
        " INDEXED BY ix_waiting WHERE status = 'waiting' AND waits_for = 1 AND aggregate_type = ?1 "
        "AND aggregate_id = ?2"
        " AND (aggregate_version, seq) > (?3, ?4) ORDER BY aggregate_version, seq "
        "LIMIT " RELEASE_MAX ")) AS f"
        " WHERE seq = f.follower";
    bool waits = false;
    sqlite3_stmt *s =
        sqlite_ask(k->c, next,
                   SQL_VALUES(sql_bytes(m->aggregate_type), sql_bytes(m->aggregate_id),
                              sql_int((int64_t)m->version), sql_int((int64_t)m->seq)),
                   &waits, &k->op->result);
    csn_status status;

    if (!s)
        return k->op->result.status;
    waits = waits && sqlite3_column_int(s, 0) != 0;
    sqlite3_reset(s);
    if (!waits)
        return CSN_OK;
    s = sqlite_prepare(k->c, release, &k->op->result);
    if (!s)
        return k->op->result.status;
    sqlite_bind_bytes(s, 1, m->aggregate_type);
    sqlite_bind_bytes(s, 2, m->aggregate_id);
    sqlite3_bind_int64(s, 3, (int64_t)m->version);
    sqlite3_bind_int64(s, 4, (int64_t)m->seq);
    sqlite3_bind_int64(s, 5, k->c->now);
    status = sqlite_run(k->c, s, &k->op->result);
    if (status == CSN_OK)
        k->op->settle.released += (uint32_t)sqlite3_changes(k->c->db);
    return status;
}

/* After all items are written: an item may have begun to wait behind one that ended later in the
 * same list. When nothing at all waits, which is nearly always, one look is all it costs. */
static csn_status release_followers(struct settle *k) {
    static const char sql[] =
        "SELECT 1 FROM outbox_events INDEXED BY ix_waiting WHERE status = 'waiting' LIMIT 1";
    const struct op *op = k->op;
    bool any = false;
    csn_status s =
        sqlite_any(k->c, sqlite_prepare(k->c, sql, &k->op->result), &any, &k->op->result);

    for (uint32_t i = 0; any && i < op->settle.n && s == CSN_OK; i++) {
        const struct settle_item *item = &op->settle.item[i];
        bool ended = item->to == SETTLE_SENT || item->to == SETTLE_CANCELLED;
        if (ended && item->result == CSN_OK)
            s = release_behind(k, message_of_item(k, item));
    }
    return s;
}

csn_status sqlite_settle(struct sqlite_conn *c, struct op *op) {
    struct settle k = {.c = c, .op = op};
    csn_status s = CSN_OK;

    op->settle.stale = op->settle.released = 0;
    for (uint32_t i = 0; i < op->settle.n && s == CSN_OK; i++)
        s = settle_item(&k, &op->settle.item[i]);
    return s == CSN_OK && op->settle.table == TABLE_OUTBOX ? release_followers(&k) : s;
}

/* ---- renew ---- */

csn_status sqlite_renew(struct sqlite_conn *c, struct op *op) {
    static const char *const sql[] = {
        [TABLE_OUTBOX] = "UPDATE outbox_events INDEXED BY ix_expired SET lease_until = ?1 WHERE "
                         "status = 'sending'"
                         " AND claim_token = ?2",
        [TABLE_WORK] = "UPDATE consign_work INDEXED BY consign_ix_work_expired SET lease_until = "
                       "?1 WHERE status = 'sending'"
                       " AND claim_token = ?2",
    };
    sqlite3_stmt *s = sqlite_prepare(c, sql[op->renew.table], &op->result);
    csn_status status;

    if (!s)
        return op->result.status;
    sqlite3_bind_int64(s, 1, c->now + op->renew.lease);
    sqlite_bind_bytes(s, 2, bytes_of(op->renew.token));
    status = sqlite_run(c, s, &op->result);
    op->renew.renewed = status == CSN_OK ? (uint32_t)sqlite3_changes(c->db) : 0;
    return status;
}
