/* sqlite_park.c: PARK on SQLite, and the rows of parked keys.
 *
 * What always holds: of one key only the parked row that comes first by (aggregate_version, seq) is
 * pending or sending; whoever removes it makes the next one pending in the same transaction, and
 * whoever parks one before it sends it back to waiting. consign_keys has a row exactly while its
 * key has parked rows. A dead letter has everything that the delivery had, and does not hold its
 * key. */
#include "store/sqlite_inbox.h"
#include "base/digest.h"

csn_bytes sqlite_inbox_id(csn_bytes id, char buffer[DIGEST_ID_SIZE]) {
    const unsigned char *s = id.data;
    bool plain = id.size > 0 && id.size <= ID_MAX;
    for (size_t i = 0; plain && i < id.size; i++)
        plain = s[i] > 0x20 && s[i] < 0x7f;
    if (plain)
        return id;
    memcpy(buffer, "sha256:", 7);
    sha256_text(id, buffer + 7);
    return bytes_of(buffer);
}

/* ---- parked rows of a key ---- */

csn_status sqlite_parked_head(struct sqlite_conn *c, const char *consumer, const struct message *m,
                              bool *ret_parked, int64_t *ret_head, csn_error *err) {
    sqlite3_stmt *s = sqlite_ask(
        c,
        "SELECT head_version FROM consign_keys WHERE consumer_name = ?1 AND "
        "aggregate_type = ?2 AND aggregate_id = ?3",
        SQL_VALUES(sql_str(consumer), sql_bytes(m->aggregate_type), sql_bytes(m->aggregate_id)),
        ret_parked, err);
    csn_status st = s ? CSN_OK : err->status;
    if (st == CSN_OK && *ret_parked)
        *ret_head = sqlite3_column_int64(s, 0);
    sqlite3_reset(s);
    return st;
}

static csn_status delete_key(struct sqlite_conn *c, const char *consumer, const struct message *m,
                             csn_error *err) {
    return sqlite_do(
        c,
        "DELETE FROM consign_keys WHERE consumer_name = ?1 AND "
        "aggregate_type = ?2 AND aggregate_id = ?3",
        SQL_VALUES(sql_str(consumer), sql_bytes(m->aggregate_type), sql_bytes(m->aggregate_id)),
        err);
}

static csn_status move_head(struct sqlite_conn *c, const char *consumer, const struct message *m,
                            int64_t version, csn_error *err) {
    return sqlite_do(c,
                     "UPDATE consign_keys SET head_version = ?4 WHERE consumer_name = ?1 AND "
                     "aggregate_type = ?2 AND aggregate_id = ?3",
                     SQL_VALUES(sql_str(consumer), sql_bytes(m->aggregate_type),
                                sql_bytes(m->aggregate_id), sql_int(version)),
                     err);
}

static csn_status make_due(struct sqlite_conn *c, int64_t seq, csn_error *err) {
    return sqlite_do(
        c,
        "UPDATE consign_work SET status = 'pending', waits_for = 0, next_attempt_at = ?2 "
        "WHERE seq = ?1 AND status <> 'sending'",
        SQL_VALUES(sql_int(seq), sql_int(c->now)), err);
}

/* A parked row of the key was deleted: the next one is the head and due now; with the last one the
 * key goes. */
static csn_status release_key(struct sqlite_conn *c, const char *consumer, const struct message *m,
                              csn_error *err) {
    bool row = false;
    sqlite3_stmt *s = sqlite_ask(
        c,
        "SELECT seq, aggregate_version FROM consign_work WHERE consumer_name = ?1 AND "
        "aggregate_type = ?2 AND aggregate_id = ?3 AND kind = 'delivery' "
        "ORDER BY aggregate_version, seq LIMIT 1",
        SQL_VALUES(sql_str(consumer), sql_bytes(m->aggregate_type), sql_bytes(m->aggregate_id)),
        &row, err);
    csn_status st = s ? CSN_OK : err->status;
    int64_t seq = row ? sqlite3_column_int64(s, 0) : 0,
            version = row ? sqlite3_column_int64(s, 1) : 0;
    sqlite3_reset(s);
    if (st == CSN_OK && !row)
        return delete_key(c, consumer, m, err);
    if (st == CSN_OK)
        st = move_head(c, consumer, m, version, err);
    return st == CSN_OK ? make_due(c, seq, err) : st;
}

/* The work row that this claim holds. *ret_mine: it was, and is gone now. */
static csn_status delete_work(struct sqlite_conn *c, const struct message *m, const char *token,
                              bool *ret_mine, csn_error *err) {
    csn_status st = sqlite_do(
        c, "DELETE FROM consign_work WHERE seq = ?1 AND status = 'sending' AND claim_token = ?2",
        SQL_VALUES(sql_int((int64_t)m->seq), sql_str(token)), err);
    *ret_mine = st == CSN_OK && sqlite_changed(c) == 1;
    return st;
}

csn_status sqlite_end_work(struct sqlite_conn *c, const char *consumer, const struct message *m,
                           const char *token, bool *ret_mine, csn_error *err) {
    csn_status st = delete_work(c, m, token, ret_mine, err);
    return st == CSN_OK && *ret_mine ? release_key(c, consumer, m, err) : st;
}

/* ---- PARK ---- */

struct park {
    struct sqlite_conn *c;
    csn_error *err;
    const char *consumer, *token;
    csn_usec taken_at; /* of the delivery, by the store's clock */
    bool broker;       /* source */
    struct message m;
    struct park_item *item;
    int64_t seq; /* of the work row */
};

static bool ran(const struct park *p) {
    return p->item->to != PARK_BEHIND;
}

/* Is a row of this key parked that comes before (version, seq)? */
static csn_status has_earlier(struct park *p, bool *ret) {
    return sqlite_there(
        p->c,
        "SELECT 1 FROM consign_work WHERE consumer_name = ?1 AND aggregate_type = ?2 AND "
        "aggregate_id = ?3 AND (aggregate_version, seq) < (?4, ?5) LIMIT 1",
        SQL_VALUES(sql_str(p->consumer), sql_bytes(p->m.aggregate_type),
                   sql_bytes(p->m.aggregate_id), sql_int((int64_t)p->m.version), sql_int(p->seq)),
        ret, p->err);
}

/* This row is the head now: those that were, wait. One that is being worked on is left alone; when
 * it is parked again it will wait. */
static csn_status later_wait(struct park *p) {
    return sqlite_do(
        p->c,
        "UPDATE consign_work SET status = 'waiting', waits_for = 1 WHERE consumer_name = ?1 "
        "AND aggregate_type = ?2 AND aggregate_id = ?3 AND status = 'pending' AND "
        "(aggregate_version, seq) > (?4, ?5)",
        SQL_VALUES(sql_str(p->consumer), sql_bytes(p->m.aggregate_type),
                   sql_bytes(p->m.aggregate_id), sql_int((int64_t)p->m.version), sql_int(p->seq)),
        p->err);
}

/* The inbox row is made, or waits (again). *ret_open: it does; false: the event is finished, there
 * is nothing to park. */
static csn_status inbox_waits(struct park *p, bool *ret_open) {
    char digest[65];
    message_digest(&p->m, digest);
    csn_status st = sqlite_do(
        p->c,
        "INSERT INTO consumer_inbox(consumer_name, event_id, processed_at, received_at, digest, "
        "aggregate_type, "
        "aggregate_id, entity_version, event_type, broker_part, broker_pos, state, verdict, error, "
        "attempts) "
        "VALUES (?1, ?2, ?3, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, 'waiting', ?11, ?12, ?13) "
        "ON CONFLICT (consumer_name, event_id) DO UPDATE SET state = 'waiting', verdict = "
        "coalesce(?11, verdict), "
        "error = coalesce(?12, error), attempts = attempts + ?13 WHERE state IN ('waiting', "
        "'processing')",
        SQL_VALUES(INBOX_VALUES(p->c, p->consumer, &p->m, digest, p->broker),
                   sql_str(ran(p) ? verdict_name(p->item->verdict) : NULL),
                   sql_some(bytes_of(p->item->text)), sql_int(ran(p))),
        p->err);
    *ret_open = st == CSN_OK && sqlite_changed(p->c) == 1;
    return st;
}

static csn_status is_parked(struct park *p, bool *ret) {
    return sqlite_there(p->c,
                        "SELECT 1 FROM consign_work WHERE kind = 'delivery' AND "
                        "consumer_name = ?1 AND event_id = ?2",
                        SQL_VALUES(sql_str(p->consumer), sql_bytes(p->m.id)), ret, p->err);
}

static csn_status insert_work(struct park *p) {
    const struct message *m = &p->m;
    csn_status st = sqlite_do(
        p->c,
        "INSERT INTO consign_work(consumer_name, event_id, aggregate_type, aggregate_id, "
        "aggregate_version, prev_version, "
        "event_type, schema_version, payload, headers, status, waits_for, next_attempt_at, "
        "created_at, slot, expires_at, "
        "priority, tenant, traceparent, correlation_id, causation_id, broker_part, broker_pos) "
        "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, 'waiting', 1, ?11, ?11, ?12, ?13, ?14, "
        "?15, ?16, ?17, ?18, "
        "?12, ?19)",
        SQL_VALUES(
            sql_str(p->consumer), sql_bytes(m->id), sql_bytes(m->aggregate_type),
            sql_bytes(m->aggregate_id), sql_int((int64_t)m->version),
            sql_int((int64_t)m->prev_version), sql_bytes(m->event_type), sql_int(m->schema_version),
            sql_bytes(m->payload), sql_some(m->headers), sql_int(p->c->now), sql_int(m->lane),
            sql_maybe(m->expires_in != CSN_USEC_NEVER, sqlite_after(p->taken_at, m->expires_in)),
            sql_int(m->priority), sql_some(m->tenant), sql_some(m->traceparent),
            sql_some(m->correlation_id), sql_some(m->causation_id), sql_int((int64_t)m->seq)),
        p->err);
    p->seq = sqlite3_last_insert_rowid(p->c->db);
    return st;
}

/* Gives the row its place: pending when nothing of its key comes before it, waiting otherwise; and
 * counts what happened. */
static csn_status place_work(struct park *p, bool first) {
    const struct park_item *item = p->item;
    enum waits_for waits_for = !first                   ? WAITS_KEY
                               : item->to == PARK_EARLY ? WAITS_EARLY
                                                        : WAITS_NONE;
    return sqlite_do(
        p->c,
        "UPDATE consign_work SET status = ?2, waits_for = ?3, next_attempt_at = ?4, "
        "claim_token = NULL, lease_until = NULL, "
        "failures = failures + ?5, tries = tries + ?6, last_error = CASE WHEN ?5 "
        "THEN ?7 ELSE last_error END, "
        "last_failed_at = CASE WHEN ?5 THEN ?8 ELSE last_failed_at END, "
        "first_failed_at = CASE WHEN ?5 THEN coalesce(first_failed_at, ?8) ELSE "
        "first_failed_at END "
        "WHERE seq = ?1",
        SQL_VALUES(sql_int(p->seq), sql_str(first ? "pending" : "waiting"), sql_int(waits_for),
                   sql_int(p->c->now + (ran(p) ? item->retry_in : 0)), sql_int(item->failure),
                   sql_int(item->attempt), sql_some(bytes_of(item->text)), sql_int(p->c->now)),
        p->err);
}

static csn_status park_key(struct park *p) {
    return sqlite_do(
        p->c,
        "INSERT INTO consign_keys(consumer_name, aggregate_type, aggregate_id, head_version, "
        "parked_at) "
        "VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (consumer_name, aggregate_type, aggregate_id) "
        "DO UPDATE SET head_version = min(head_version, ?4)",
        SQL_VALUES(sql_str(p->consumer), sql_bytes(p->m.aggregate_type),
                   sql_bytes(p->m.aggregate_id), sql_int((int64_t)p->m.version),
                   sql_int(p->c->now)),
        p->err);
}

static csn_status park_evidence(struct park *p) {
    return sqlite_do(p->c,
                     "INSERT INTO consign_attempts(event_id, side, consumer_name, at, kind, "
                     "attempt, planned_at, started_at, code, error) "
                     "VALUES (?1, 'inbox', ?2, ?3, 'parked', ?4, (SELECT next_attempt_at FROM "
                     "consign_work WHERE seq = ?5), "
                     "(SELECT claimed_at FROM consign_work WHERE seq = ?5), ?6, ?7)",
                     SQL_VALUES(sql_bytes(p->m.id), sql_str(p->consumer), sql_int(p->c->now),
                                sql_int(p->m.attempts), sql_int(p->seq),
                                sql_maybe(p->item->code, p->item->code),
                                sql_some(bytes_of(p->item->text))),
                     p->err);
}

/* The work row is there and mine; its place is to be found. */
static csn_status park_placed(struct park *p) {
    bool earlier = false;
    csn_status st = has_earlier(p, &earlier);
    if (st == CSN_OK)
        st = park_evidence(p);
    if (st == CSN_OK)
        st = place_work(p, !earlier);
    if (st == CSN_OK && !earlier)
        st = later_wait(p);
    return st == CSN_OK ? park_key(p) : st;
}

static csn_status park_delivery(struct park *p) {
    bool there = false, open = false;
    csn_status st = is_parked(p, &there);
    if (st == CSN_OK && !there)
        st = inbox_waits(p, &open);
    if (st != CSN_OK || there || !open)
        return st;
    st = insert_work(p);
    return st == CSN_OK ? park_placed(p) : st;
}

/* Is the work row still under the token of this claim? */
static csn_status check_mine(struct park *p, bool *ret) {
    return sqlite_there(
        p->c,
        "SELECT 1 FROM consign_work WHERE seq = ?1 AND status = 'sending' AND claim_token = ?2",
        SQL_VALUES(sql_int((int64_t)p->m.seq), sql_str(p->token)), ret, p->err);
}

static csn_status park_again(struct park *p) {
    bool mine = false, open = false;
    p->seq = (int64_t)p->m.seq;
    csn_status st = check_mine(p, &mine);
    if (st == CSN_OK && !mine) {
        p->item->result = CSN_STALE;
        return CSN_OK;
    }
    if (st == CSN_OK)
        st = park_placed(p);
    return st == CSN_OK ? inbox_waits(p, &open) : st;
}

static const char *letter_class(const struct park_item *item) {
    if (item->to == PARK_CONFLICT)
        return "conflict";
    if (item->verdict == CSN_RETRY || item->verdict == CSN_OUTCOME_UNKNOWN)
        return "budget";
    return verdict_name(item->verdict);
}

/* Everything the delivery had. The same letter written twice (an answer was lost) stays one. */
static csn_status insert_letter(struct park *p) {
    const struct message *m = &p->m;
    return sqlite_do(
        p->c,
        "INSERT INTO consign_dead_letters(consumer_name, event_id, class, code, error, "
        "aggregate_type, aggregate_id, "
        "aggregate_version, event_type, schema_version, payload, headers, tenant, traceparent, "
        "correlation_id, "
        "causation_id, attempts, failures, first_failed_at, last_failed_at, dead_at, broker_part, "
        "broker_pos) "
        "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, "
        "coalesce((SELECT first_failed_at FROM consign_work WHERE seq = ?22), ?19), ?20, ?20, "
        "coalesce(?21, (SELECT broker_part FROM consign_work WHERE seq = ?22)), "
        "coalesce(?23, (SELECT broker_pos FROM consign_work WHERE seq = ?22))) "
        "ON CONFLICT (consumer_name, event_id, class) DO UPDATE SET code = excluded.code, error = "
        "excluded.error, "
        "failures = excluded.failures, last_failed_at = excluded.last_failed_at, dead_at = "
        "excluded.dead_at, "
        "state = 'open'",
        SQL_VALUES(sql_str(p->consumer), sql_bytes(m->id), sql_str(letter_class(p->item)),
                   sql_maybe(p->item->code, p->item->code), sql_some(bytes_of(p->item->text)),
                   sql_bytes(m->aggregate_type), sql_bytes(m->aggregate_id),
                   sql_int((int64_t)m->version), sql_bytes(m->event_type),
                   sql_int(m->schema_version), sql_bytes(m->payload), sql_some(m->headers),
                   sql_some(m->tenant), sql_some(m->traceparent), sql_some(m->correlation_id),
                   sql_some(m->causation_id), sql_int(m->attempts),
                   sql_int((int64_t)m->failures + p->item->failure),
                   sql_int(sqlite_between(m->failing_for, p->c->now)), sql_int(p->c->now),
                   sql_maybe(p->broker, m->lane), sql_maybe(!p->broker, (int64_t)m->seq),
                   sql_maybe(p->broker, (int64_t)m->seq)),
        p->err);
}

/* An inbox row that ended keeps its state, and so does one that waits while another delivery under
 * its id is set aside. */
static csn_status inbox_aside(struct park *p) {
    char digest[65];
    message_digest(&p->m, digest);
    return sqlite_do(
        p->c,
        "INSERT INTO consumer_inbox(consumer_name, event_id, processed_at, received_at, digest, "
        "aggregate_type, "
        "aggregate_id, entity_version, event_type, broker_part, broker_pos, state, verdict, error) "
        "VALUES (?1, ?2, ?3, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13) "
        "ON CONFLICT (consumer_name, event_id) DO UPDATE SET error = ?13, "
        "state = iif(state IN ('done', 'refused') OR (state = 'waiting' AND ?14), state, ?11), "
        "verdict = iif(state IN ('done', 'refused') OR (state = 'waiting' AND ?14), verdict, ?12), "
        "attempts = attempts + (?14 = 0)",
        SQL_VALUES(
            INBOX_VALUES(p->c, p->consumer, &p->m, digest, p->broker),
            sql_str(p->item->to == PARK_CONFLICT ? "conflict" : "dead"),
            sql_str(verdict_name(p->item->to == PARK_CONFLICT ? CSN_CONFLICT : p->item->verdict)),
            sql_some(bytes_of(p->item->text)), sql_int(p->broker)),
        p->err);
}

static csn_status set_aside(struct park *p) {
    bool mine = true;
    csn_status st = p->broker ? CSN_OK : check_mine(p, &mine);
    if (st == CSN_OK && !mine) {
        p->item->result = CSN_STALE;
        return CSN_OK;
    }
    if (st == CSN_OK)
        st = insert_letter(p);
    if (st == CSN_OK)
        st = inbox_aside(p);
    if (st == CSN_OK)
        st = sqlite_hand_forgive(p->c, p->consumer, p->m.id, p->err);
    if (st == CSN_OK && !p->broker)
        st = sqlite_end_work(p->c, p->consumer, &p->m, p->token, &mine, p->err);
    return st;
}

static csn_status park_one(struct park *p) {
    p->item->result = CSN_OK;
    p->seq = 0;
    if (p->item->to == PARK_DEAD || p->item->to == PARK_CONFLICT)
        return set_aside(p);
    return p->broker ? park_delivery(p) : park_again(p);
}

csn_status sqlite_park(struct sqlite_conn *c, struct op *op) {
    char id[DIGEST_ID_SIZE];
    struct park p = {.c = c,
                     .err = &op->result,
                     .consumer = op->park.consumer,
                     .token = op->park.token,
                     .taken_at = c->now - op->park.ago,
                     .broker = op->park.source == SOURCE_BROKER};
    csn_status st = CSN_OK;
    for (uint32_t i = 0; i < op->park.n && st == CSN_OK; i++) {
        p.item = &op->park.item[i];
        p.m = op->batch->msg[p.item->msg];
        p.m.id = sqlite_inbox_id(p.m.id, id);
        st = park_one(&p);
    }
    return st == CSN_OK ? sqlite_failpoint(FAIL_PARK_UPDATED, &op->result) : st;
}
