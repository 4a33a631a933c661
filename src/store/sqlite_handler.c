/* sqlite_handler.c: runs the handler of a subscription inside a transaction that somebody else
 * began, and keeps the statements of SQL handlers.
 *
 * They are prepared under an authorizer that lets them read anything and write the tables of the
 * application and new outbox rows, nothing else. What fails for the message or the handler is a
 * verdict; what fails for the store ends the op. */
#include "store/sqlite_inbox.h"
#include "store/sqlite_tx.h"
#include <stdio.h>
#include <stdlib.h>

enum { KEPT_STATEMENTS = 256, ROWS_COUNTED = 1000000, OPCODES_A_LOOK = 20000 };

/* ---- statements of handlers ---- */

struct kept {
    const struct step *step;
    uint64_t hash; /* of its text: an address may be used again by another handler */
    sqlite3_stmt *stmt;
};

struct handler_statements {
    struct kept kept[KEPT_STATEMENTS];
    uint32_t next;                /* to be replaced when all are taken */
    struct csn_delivery delivery; /* in the hand of an application */
};

static void free_statements(void *arg) {
    struct handler_statements *all = arg;
    for (uint32_t i = 0; all && i < KEPT_STATEMENTS; i++)
        sqlite3_finalize(all->kept[i].stmt);
    free(all);
}

static bool is_ours(const char *table) {
    return strncmp(table, "consign_", 8) == 0 || strncmp(table, "sqlite_", 7) == 0 ||
           strcmp(table, "consumer_inbox") == 0;
}

/* Called while a statement of a handler is prepared. Everything that is not named is denied. */
static int authorize(void *arg, int action, const char *one, const char *two, const char *database,
                     const char *trigger) {
    (void)arg;
    (void)two;
    (void)database;
    (void)trigger;
    switch (action) {
    case SQLITE_SELECT:
    case SQLITE_READ:
    case SQLITE_FUNCTION:
    case SQLITE_RECURSIVE:
        return SQLITE_OK;
    case SQLITE_INSERT:
        return is_ours(one) ? SQLITE_DENY : SQLITE_OK;
    case SQLITE_UPDATE:
    case SQLITE_DELETE:
        return is_ours(one) || strcmp(one, "outbox_events") == 0 ? SQLITE_DENY : SQLITE_OK;
    default:
        return SQLITE_DENY;
    }
}

/* Looks whether the op's deadline is over, now and then while a handler's statement runs. */
static int too_long(void *arg) {
    const struct sqlite_conn *c = arg;
    return c->deadline > 0 && sqlite_steady() >= c->deadline;
}

/* The text with ?1, ?2, … for its binds, to be freed; NULL: out of memory. A bind takes at least
 * two bytes, its number at most three. */
static char *numbered(const struct step *s) {
    size_t size = strlen(s->text) + s->binds * 4 + 1;
    char *sql = malloc(size);
    struct text t;
    size_t from = 0;
    if (!sql)
        return NULL;
    text_init(&t, sql, size);
    for (uint32_t i = 0; i < s->binds; i++) {
        text_add_bytes(&t, (csn_bytes){s->text + from, s->bind[i].offset - from});
        text_add(&t, "?%u", i + 1);
        from = s->bind[i].offset + s->bind[i].size;
    }
    text_add_bytes(&t, bytes_of(s->text + from));
    return sql;
}

/* What a failed statement of a handler means. One that the message or the handler is to blame for
 * is CSN_REJECTED; one that took the whole batch with it is CSN_AGAIN with the same code: the inbox
 * finds out whose it is by smaller batches. */
static csn_status statement_error(struct sqlite_conn *c, csn_error *err) {
    int rc = sqlite3_errcode(c->db) & 0xff;
    bool gone = sqlite3_get_autocommit(c->db);
    if (rc == SQLITE_INTERRUPT)
        return error_set(err, CSN_AGAIN, ERR_HANDLER_SQL, "handler: a statement ran too long");
    if (gone && rc == SQLITE_CONSTRAINT) /* RAISE(ROLLBACK) of a trigger, OR ROLLBACK */
        return error_set(err, CSN_AGAIN, ERR_HANDLER_SQL,
                         "handler: the statement rolled everything back: %s",
                         sqlite3_errmsg(c->db));
    if (gone && (rc == SQLITE_ERROR || rc == SQLITE_MISMATCH))
        return error_set(err, CSN_FATAL, ERR_HANDLER_TX,
                         "handler: the transaction was rolled back: %s", sqlite3_errmsg(c->db));
    switch (rc) {
    case SQLITE_CONSTRAINT:
    case SQLITE_MISMATCH:
    case SQLITE_TOOBIG:
    case SQLITE_RANGE:
    case SQLITE_ERROR:
    case SQLITE_AUTH:
        return error_set(err, CSN_REJECTED, ERR_HANDLER_SQL, "%s", sqlite3_errmsg(c->db));
    default:
        return sqlite_failed(c, "handler", err);
    }
}

static csn_status prepare_kept(struct sqlite_conn *c, const struct step *s, struct kept *k,
                               csn_error *err) {
    char *sql = numbered(s);
    csn_status st = CSN_OK;
    if (!sql)
        return error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "handler: out of memory");
    sqlite3_finalize(k->stmt);
    *k = (struct kept){0};
    sqlite3_set_authorizer(c->db, authorize, NULL);
    if (sqlite3_prepare_v3(c->db, sql, -1, SQLITE_PREPARE_PERSISTENT, &k->stmt, NULL) != SQLITE_OK)
        st = statement_error(c, err);
    else if (!k->stmt || sqlite3_bind_parameter_count(k->stmt) != (int)s->binds)
        st = error_set(err, CSN_REJECTED, ERR_HANDLER_SQL,
                       "the statement has values that are not bound");
    sqlite3_set_authorizer(c->db, NULL, NULL);
    free(sql);
    k->step = s;
    k->hash = bytes_hash(bytes_of(s->text), 0);
    if (st != CSN_OK) {
        sqlite3_finalize(k->stmt);
        *k = (struct kept){0};
    }
    return st;
}

/* What is kept for handlers on this connection; NULL with err filled: out of memory. */
static struct handler_statements *kept_of(struct sqlite_conn *c, csn_error *err) {
    if (!c->apply) {
        c->apply = calloc(1, sizeof(struct handler_statements));
        c->apply_free = free_statements;
    }
    if (!c->apply)
        error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "handler: out of memory");
    return c->apply;
}

static csn_status statement_for(struct sqlite_conn *c, const struct step *s, sqlite3_stmt **ret,
                                csn_error *err) {
    struct handler_statements *all = kept_of(c, err);
    if (!all)
        return err->status;
    uint64_t hash = bytes_hash(bytes_of(s->text), 0);
    for (uint32_t i = 0; i < KEPT_STATEMENTS && all->kept[i].stmt; i++) {
        if (all->kept[i].step == s && all->kept[i].hash == hash) {
            *ret = all->kept[i].stmt;
            return CSN_OK;
        }
    }
    struct kept *k = &all->kept[all->next];
    csn_status st = prepare_kept(c, s, k, err);
    if (st != CSN_OK)
        return st;
    all->next = (all->next + 1) % KEPT_STATEMENTS;
    *ret = k->stmt;
    return CSN_OK;
}

static void bind_value(sqlite3_stmt *s, int at, const struct value *v) {
    switch (v->kind) {
    case VALUE_INT:
        sqlite3_bind_int64(s, at, v->integer);
        break;
    case VALUE_REAL:
        sqlite3_bind_double(s, at, v->real);
        break;
    case VALUE_TEXT:
        sqlite_bind_bytes(s, at, v->text);
        break;
    default:
        sqlite3_bind_null(s, at);
    }
}

/* Rows are those that came back of a reading statement, and those that were changed by a writing
 * one. */
static csn_status handler_sql(void *conn, const struct step *s, const struct value *values,
                              int64_t *ret_rows, csn_error *err) {
    struct sqlite_conn *c = conn;
    sqlite3_stmt *stmt = NULL;
    int64_t rows = 0;
    int rc;
    csn_status st = statement_for(c, s, &stmt, err);
    if (st != CSN_OK)
        return st;
    for (uint32_t i = 0; i < s->binds; i++)
        bind_value(stmt, (int)i + 1, &values[i]);
    sqlite3_progress_handler(c->db, OPCODES_A_LOOK, too_long, c);
    while ((rc = sqlite3_step(stmt)) == SQLITE_ROW && rows < ROWS_COUNTED)
        rows++;
    *ret_rows = sqlite3_stmt_readonly(stmt) ? rows : sqlite_changed(c);
    if (rc != SQLITE_DONE && rc != SQLITE_ROW)
        st = statement_error(c, err);
    sqlite3_progress_handler(c->db, 0, NULL, NULL);
    sqlite3_reset(stmt);
    sqlite3_clear_bindings(stmt);
    return st;
}

static csn_status next_version(struct sqlite_conn *c, const struct result_event *e, int64_t *ret,
                               csn_error *err) {
    bool row = false;
    sqlite3_stmt *s =
        sqlite_ask(c, SQL_NEXT_VERSION,
                   SQL_VALUES(sql_str(e->aggregate_type), sql_bytes(e->aggregate_id)), &row, err);
    csn_status st = s ? CSN_OK : err->status;
    if (st == CSN_OK && row)
        *ret = sqlite3_column_int64(s, 0);
    sqlite3_reset(s);
    return st;
}

static csn_status handler_emit(void *conn, const struct result_event *e, csn_error *err) {
    struct sqlite_conn *c = conn;
    int64_t version = 0;
    csn_status st = next_version(c, e, &version, err);
    if (st != CSN_OK)
        return st;
    st = sqlite_do(
        c,
        "INSERT INTO outbox_events(event_id, aggregate_id, aggregate_version, event_type, payload, "
        "aggregate_type, "
        "next_attempt_at, created_at, tenant, traceparent, correlation_id, causation_id) "
        "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, ?8, ?9, ?10, ?11)",
        SQL_VALUES(sql_str(e->event_id), sql_bytes(e->aggregate_id), sql_int(version),
                   sql_str(e->event_type), sql_bytes(e->payload), sql_str(e->aggregate_type),
                   sql_int(c->now), sql_some(e->tenant), sql_some(e->traceparent),
                   sql_some(e->correlation_id), sql_some(e->causation_id)),
        err);
    /* The payload is JSON by construction; SQLite's json_valid() says no when it has no memory. */
    if (st == CSN_REJECTED && strstr(sqlite3_errmsg(c->db), "csn_payload_json"))
        st = error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "emit: out of memory");
    return st;
}

/* ---- the handler of a subscription ---- */

void sqlite_say(struct apply_item *item, int32_t code, const char *text) {
    const struct error_row *row = error_find(code);
    item->code = code;
    copy_text(item->text, sizeof item->text, text ? text : row ? row->title[0] : "");
}

static const int32_t verdict_code[] = {[CSN_EARLY] = ERR_HANDLER_EARLY,
                                       [CSN_CONFLICT] = ERR_HANDLER_CONFLICT,
                                       [CSN_POISON] = ERR_HANDLER_POISON,
                                       [CSN_RETRY] = ERR_HANDLER_RETRY,
                                       [CSN_OUTCOME_UNKNOWN] = ERR_HANDLER_UNKNOWN};

/* A handler that was compiled in; tests and the simulator have them. */
static csn_status call_function(struct sqlite_conn *c, const struct handler *h,
                                const struct message *m, struct apply_item *item, csn_error *err) {
    csn_verdict v = h->function(m, h->arg);
    if (v < 0 || (size_t)v >= ARRAY_LEN(verdict_code))
        return error_set(err, CSN_FATAL, ERR_BUG, "apply: the handler gave the verdict %d", v);
    if (sqlite3_get_autocommit(c->db))
        return error_set(err, CSN_FATAL, ERR_HANDLER_TX,
                         "apply: the handler ended the transaction");
    item->verdict = v;
    sqlite_say(item, verdict_code[v], NULL);
    return CSN_OK;
}

/* The transaction is gone: SQLite did that when it had no room or could not read, or the function
 * did. */
static csn_status transaction_gone(struct sqlite_conn *c, csn_error *err) {
    switch (sqlite3_errcode(c->db) & 0xff) {
    case SQLITE_FULL:
    case SQLITE_IOERR:
    case SQLITE_NOMEM:
    case SQLITE_CORRUPT:
    case SQLITE_INTERRUPT:
        return sqlite_failed(c, "handler", err);
    default:
        return error_set(err, CSN_FATAL, ERR_HANDLER_TX,
                         "apply: the handler ended the transaction");
    }
}

static void reset_left(sqlite3 *db) {
    for (sqlite3_stmt *s = sqlite3_next_stmt(db, NULL); s; s = sqlite3_next_stmt(db, s))
        if (sqlite3_stmt_busy(s))
            sqlite3_reset(s);
}

static void say_verdict(struct apply_item *item, csn_verdict v, const char *text) {
    char why[ERROR_TEXT_MAX];
    bool known = v >= 0 && (size_t)v < ARRAY_LEN(verdict_code);
    if (!known)
        snprintf(why, sizeof why, "the handler gave the verdict %d, which there is not", (int)v);
    item->verdict = known ? v : CSN_RETRY;
    sqlite_say(item, verdict_code[item->verdict], !known ? why : text[0] ? text : NULL);
}

/* The function of an application. Its statements are its own; that it left the transaction alone is
 * found out here and by the savepoints. */
static csn_status call_application(struct sqlite_conn *c, struct op *op, const struct message *m,
                                   struct apply_item *item, uint32_t *ret_emitted) {
    const struct handler *h = op->apply.handler;
    struct handler_statements *all = kept_of(c, &op->result);
    csn_error why = {.status = CSN_OK};
    if (!all)
        return op->result.status;
    if (op->kind == OP_APPLY && c->deaths >= DEATHS_MAX) {
        item->verdict = CSN_POISON;
        sqlite_say(item, ERR_HANDLER_DIED, NULL);
        return CSN_OK;
    }
    delivery_init(&all->delivery, m, op->apply.consumer);
    struct sqlite_hand hand = {c->db, &all->delivery};
    csn_tx tx = sqlite_hand_tx(&hand);
    csn_verdict v = h->application(&tx, &all->delivery, h->arg, &why);
    reset_left(c->db);
    if (sqlite3_get_autocommit(c->db))
        return transaction_gone(c, &op->result);
    why.text[sizeof why.text - 1] = '\0';
    say_verdict(item, v, why.text);
    *ret_emitted = all->delivery.published;
    return CSN_OK;
}

const char *sqlite_summary(const struct sqlite_conn *c) {
    const struct handler_statements *all = c->apply;
    return all && all->delivery.summary_size ? all->delivery.summary : NULL;
}

static csn_status call_sql(struct sqlite_conn *c, struct op *op, const struct message *m,
                           struct apply_item *item, uint32_t *ret_emitted) {
    struct handler_store store = {.conn = c, .sql = handler_sql, .emit = handler_emit};
    struct handler_outcome out;
    csn_status st =
        handler_run(op->apply.handler->sql, &store, op->apply.consumer, m, &out, &op->result);
    if (st != CSN_OK)
        return st;
    item->verdict = out.verdict;
    item->code = out.code;
    copy_text(item->text, sizeof item->text, out.text);
    *ret_emitted = out.emitted;
    return CSN_OK;
}

csn_status sqlite_handle(struct sqlite_conn *c, struct op *op, const struct message *m,
                         struct apply_item *item, uint32_t *ret_emitted) {
    const struct handler *h = op->apply.handler;
    if (item->expired) {
        item->verdict = CSN_LATE;
        sqlite_say(item, ERR_EXPIRED, NULL);
        return CSN_OK;
    }
    if (h->application)
        return call_application(c, op, m, item, ret_emitted);
    return h->function ? call_function(c, h, m, item, &op->result)
                       : call_sql(c, op, m, item, ret_emitted);
}
