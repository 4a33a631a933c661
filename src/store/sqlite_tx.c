/* sqlite_tx.c: the calls of consign.h on a SQLite connection: the caller's, or the one that a
 * handler is given.
 *
 * Statements are prepared for each call and finalized in it: a connection of the caller's must keep
 * nothing of ours, for it may be closed at any time. No statement here begins or ends a
 * transaction. */
#include "consign/sqlite.h"
#include "base/digest.h"
#include "store/sqlite_tx.h"

static const struct csn_tx_ops caller_ops, handler_ops;

static sqlite3 *db_of(const csn_tx *tx) {
    return tx->ops == &handler_ops ? ((const struct sqlite_hand *)tx->conn)->db : tx->conn;
}

/* ---- statements ---- */

static csn_status bind(sqlite3_stmt *s, const struct sqlite_value *v, size_t n) {
    int rc = SQLITE_OK;
    for (int i = 0; i < (int)n && rc == SQLITE_OK; i++) {
        if (v[i].null)
            continue;
        rc = v[i].text ? sqlite3_bind_text64(s, i + 1, v[i].bytes.size ? v[i].bytes.data : "",
                                             v[i].bytes.size, SQLITE_STATIC, SQLITE_UTF8)
                       : sqlite3_bind_int64(s, i + 1, v[i].integer);
    }
    return rc == SQLITE_OK ? CSN_OK : CSN_NOMEM;
}

/* At its first row (*ret_row) or at its end; NULL with err filled. To be finalized by the caller. */
static sqlite3_stmt *ask(const csn_tx *tx, const char *sql, const struct sqlite_value *values,
                         size_t n, bool *ret_row, csn_error *err) {
    sqlite3 *db = db_of(tx);
    sqlite3_stmt *s = NULL;
    int rc = sqlite3_prepare_v2(db, sql, -1, &s, NULL);
    if (rc == SQLITE_OK && bind(s, values, n) == CSN_OK)
        rc = sqlite3_step(s);
    *ret_row = rc == SQLITE_ROW;
    if (rc == SQLITE_ROW || rc == SQLITE_DONE)
        return s;
    sqlite_error(db, "sqlite", err);
    sqlite3_finalize(s);
    return NULL;
}

/* One that returns no row. */
static csn_status run(const csn_tx *tx, const char *sql, const struct sqlite_value *values,
                      size_t n, csn_error *err) {
    bool row = false;
    sqlite3_stmt *s = ask(tx, sql, values, n, &row, err);
    if (!s)
        return err->status;
    sqlite3_finalize(s);
    return CSN_OK;
}

static void take_text(sqlite3_stmt *s, int col, char *ret, size_t size) {
    csn_bytes b = {sqlite3_column_text(s, col), (size_t)sqlite3_column_bytes(s, col)};
    (void)copy_bytes_text(ret, size, b.data ? b : (csn_bytes){"", 0});
}

/* ---- the verbs ---- */

static bool inside(const csn_tx *tx) {
    return !sqlite3_get_autocommit(db_of(tx));
}

static csn_status publish(csn_tx *tx, const csn_event *e, csn_error *err) {
    csn_usec now = sqlite_clock();
    csn_status s = run(
        tx,
        "INSERT INTO outbox_events(event_id, aggregate_id, aggregate_version, event_type, "
        "schema_version, payload, aggregate_type, next_attempt_at, created_at, expires_at, "
        "priority, tenant, headers, traceparent, correlation_id, causation_id) "
        "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)",
        SQL_VALUES(sql_str(e->event_id), sql_str(e->aggregate_id),
                   sql_int((int64_t)e->aggregate_version), sql_str(e->event_type),
                   sql_int(e->schema_version), sql_bytes(e->payload), sql_str(e->aggregate_type),
                   sql_int(now), sql_maybe(e->expires_in > 0, sqlite_after(now, e->expires_in)),
                   sql_int(e->priority), sql_str(e->tenant), sql_some(e->headers),
                   sql_str(e->traceparent), sql_str(e->correlation_id), sql_str(e->causation_id)),
        err);
    if (s == CSN_REJECTED && strstr(err->text, "outbox_events.event_id"))
        error_set(err, s, ERR_EVENT_TWICE, "outbox_events has %s already", e->event_id);
    return s;
}

static csn_status next_version(csn_tx *tx, const char *type, const char *id, uint64_t *ret,
                               csn_error *err) {
    bool row = false;
    sqlite3_stmt *s = ask(tx, SQL_NEXT_VERSION, SQL_VALUES(sql_str(type), sql_str(id)), &row, err);
    if (!s)
        return err->status;
    *ret = (uint64_t)sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    return CSN_OK;
}

static csn_status lookup(csn_tx *tx, const char *event_id, bool *ret_there, csn_error *err) {
    sqlite3_stmt *s = ask(tx, "SELECT 1 FROM outbox_events WHERE event_id = ?1",
                          SQL_VALUES(sql_str(event_id)), ret_there, err);
    if (!s)
        return err->status;
    sqlite3_finalize(s);
    return CSN_OK;
}

static csn_status request_take(csn_tx *tx, const char *scope, const char *key, const char *digest,
                               bool *ret_new, char ret_digest[65], char *answer, csn_error *err) {
    sqlite3_stmt *s =
        ask(tx,
            "INSERT INTO consign_requests(scope, request_key, digest, created_at) "
            "VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING RETURNING 1",
            SQL_VALUES(sql_str(scope), sql_str(key), sql_str(digest), sql_int(sqlite_clock())),
            ret_new, err);
    bool row = false;
    sqlite3_finalize(s);
    if (!s || *ret_new)
        return s ? CSN_OK : err->status;
    s = ask(tx, "SELECT digest, answer FROM consign_requests WHERE scope = ?1 AND request_key = ?2",
            SQL_VALUES(sql_str(scope), sql_str(key)), &row, err);
    if (!s)
        return err->status;
    take_text(s, 0, ret_digest, 65);
    take_text(s, 1, answer, ANSWER_MAX + 1);
    sqlite3_finalize(s);
    return CSN_OK;
}

static csn_status request_answer(csn_tx *tx, const char *scope, const char *key, const char *answer,
                                 bool *ret_there, csn_error *err) {
    sqlite3_stmt *s =
        ask(tx,
            "UPDATE consign_requests SET answer = ?3 WHERE scope = ?1 AND "
            "request_key = ?2 AND answer IS NULL RETURNING 1",
            SQL_VALUES(sql_str(scope), sql_str(key), sql_str(answer)), ret_there, err);
    if (!s)
        return err->status;
    sqlite3_finalize(s);
    return CSN_OK;
}

/* The inbox keeps {"result": summary} when the summary is JSON, else {"text": summary}. */
static csn_status result(csn_tx *tx, const char *consumer, const char *event_id, bool *ret_finished,
                         char *summary, csn_error *err) {
    sqlite3_stmt *s =
        ask(tx,
            "SELECT coalesce(result -> 'result', result ->> 'text', '') FROM consumer_inbox WHERE "
            "consumer_name = ?1 AND event_id = ?2 AND state IN ('done', 'refused')",
            SQL_VALUES(sql_str(consumer), sql_str(event_id)), ret_finished, err);
    if (!s)
        return err->status;
    if (*ret_finished)
        take_text(s, 0, summary, SUMMARY_MAX + 1);
    sqlite3_finalize(s);
    return CSN_OK;
}

static struct csn_delivery *of_handler(const csn_tx *tx) {
    return ((const struct sqlite_hand *)tx->conn)->delivery;
}

static struct csn_delivery *of_nobody(const csn_tx *tx) {
    (void)tx;
    return NULL;
}

#define VERBS                                                                                      \
    .inside = inside, .publish = publish, .next_version = next_version, .lookup = lookup,          \
    .request_take = request_take, .request_answer = request_answer, .result = result
static const struct csn_tx_ops caller_ops = {VERBS, .delivery = of_nobody};
static const struct csn_tx_ops handler_ops = {VERBS, .delivery = of_handler};

/* ---- the border ---- */

csn_tx sqlite_hand_tx(struct sqlite_hand *h) {
    return (csn_tx){&handler_ops, h};
}

csn_tx csn_sqlite_tx(sqlite3 *db) {
    return (csn_tx){&caller_ops, db};
}

sqlite3 *csn_sqlite_db(const csn_tx *tx) {
    return tx && tx->conn && (tx->ops == &caller_ops || tx->ops == &handler_ops) ? db_of(tx) : NULL;
}

const struct csn_driver *csn_sqlite_driver(void) {
    return (const struct csn_driver *)&sqlite_driver;
}
