/* sqlite_apply.c: APPLY and PARK on SQLite, and the statements of SQL handlers.
 *
 * APPLY is two savepoints deep. "csn_batch" is round the whole batch: its RELEASE fails when a
 * handler ended or swapped the transaction, which is CSN_FATAL, CSN-4011. "csn_event" is round each
 * message: inbox row (the dedupe), dead letters, its key, handler, inbox row finished; then it is
 * released, or rolled back first when the verdict does not commit.
 *
 * What always holds: an inbox row is done or refused exactly when its effect is in the same commit.
 * Of one key only the parked row that comes first by (aggregate_version, seq) is pending or
 * sending; whoever removes it makes the next one pending in the same transaction, and whoever parks
 * one before it sends it back to waiting. consign_keys has a row exactly while its key has parked
 * rows.
 *
 * The inbox row is inserted as done, because that is how nearly all end: nobody sees it before the
 * commit, and the index of open rows is not touched. Statements of handlers are prepared under an
 * authorizer that lets them read anything and write the tables of the application and new outbox
 * rows, nothing else. */
#include "base/digest.h"
#include "base/failpoint.h"
#include "store/run.h"
#include "store/sqlite.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

enum { KEPT_STATEMENTS = 256, DIGEST_ID_SIZE = 72, ROWS_COUNTED = 1000000, OPCODES_A_LOOK = 20000 };

/* ---- small things ---- */

/* Steps once. *ret_row: a row is there to be read, and the statement must be reset. */
static csn_status step(struct sqlite_conn *c, sqlite3_stmt *s, bool *ret_row, csn_error *err) {
    int rc = sqlite3_step(s);
    *ret_row = rc == SQLITE_ROW;
    if (rc == SQLITE_ROW || rc == SQLITE_DONE)
        return CSN_OK;
    csn_status st = sqlite_failed(c, "inbox", err);
    sqlite3_reset(s);
    return st;
}

static int64_t changed(struct sqlite_conn *c) {
    return sqlite3_changes64(c->db);
}

static void bind_str(sqlite3_stmt *s, int at, const char *text) {
    if (text)
        sqlite3_bind_text(s, at, text, -1, SQLITE_STATIC);
    else
        sqlite3_bind_null(s, at);
}

static void bind_text(sqlite3_stmt *s, int at, const char *text) {
    bind_str(s, at, text && text[0] ? text : NULL);
}

/* Binds (consumer, aggregate_type, aggregate_id) as ?1 ?2 ?3. */
static void bind_key(sqlite3_stmt *s, const char *consumer, const struct message *m) {
    bind_str(s, 1, consumer);
    sqlite_bind_bytes(s, 2, m->aggregate_type);
    sqlite_bind_bytes(s, 3, m->aggregate_id);
}

/* The id under which the inbox keeps an event: its own, or the digest of one that is too long or
 * not printable ASCII. */
static csn_bytes inbox_id(csn_bytes id, char buffer[DIGEST_ID_SIZE]) {
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

static csn_status savepoint(struct sqlite_conn *c, const char *sql, csn_error *err) {
    sqlite3_stmt *s = sqlite_prepare(c, sql, err);
    if (!s)
        return err->status;
    int rc = sqlite3_step(s);
    csn_status st = CSN_OK;
    if (rc == SQLITE_ERROR) /* no such savepoint */
        st = error_set(err, CSN_FATAL, ERR_HANDLER_TX, "apply: the handler ended the transaction");
    else if (rc != SQLITE_DONE)
        st = sqlite_failed(c, "savepoint", err);
    sqlite3_reset(s);
    return st;
}

/* ---- statements of handlers ---- */

struct kept {
    const struct step *step;
    uint64_t hash; /* of its text: an address may be used again by another handler */
    sqlite3_stmt *stmt;
};

struct handler_statements {
    struct kept kept[KEPT_STATEMENTS];
    uint32_t next; /* to be replaced when all are taken */
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

static csn_status statement_for(struct sqlite_conn *c, const struct step *s, sqlite3_stmt **ret,
                                csn_error *err) {
    if (!c->apply) {
        c->apply = calloc(1, sizeof(struct handler_statements));
        c->apply_free = free_statements;
    }
    struct handler_statements *all = c->apply;
    if (!all)
        return error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "handler: out of memory");
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
    *ret_rows = sqlite3_stmt_readonly(stmt) ? rows : changed(c);
    if (rc != SQLITE_DONE && rc != SQLITE_ROW)
        st = statement_error(c, err);
    sqlite3_progress_handler(c->db, 0, NULL, NULL);
    sqlite3_reset(stmt);
    sqlite3_clear_bindings(stmt);
    return st;
}

/* The next version of an aggregate; its first one follows what the application itself wrote. */
static csn_status next_version(struct sqlite_conn *c, const struct result_event *e, int64_t *ret,
                               csn_error *err) {
    bool row = false;
    sqlite3_stmt *s = sqlite_prepare(c,
                                     "INSERT INTO consign_versions(aggregate_type, aggregate_id, "
                                     "version) VALUES (?1, ?2, 1 + coalesce("
                                     "(SELECT max(aggregate_version) FROM outbox_events WHERE "
                                     "aggregate_type = ?1 AND aggregate_id = ?2), 0)) "
                                     "ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE SET "
                                     "version = version + 1 RETURNING version",
                                     err);
    if (!s)
        return err->status;
    bind_str(s, 1, e->aggregate_type);
    sqlite_bind_bytes(s, 2, e->aggregate_id);
    csn_status st = step(c, s, &row, err);
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
    sqlite3_stmt *s = sqlite_prepare(
        c,
        "INSERT INTO outbox_events(event_id, aggregate_id, aggregate_version, event_type, payload, "
        "aggregate_type, "
        "next_attempt_at, created_at, tenant, traceparent, correlation_id, causation_id) "
        "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, ?8, ?9, ?10, ?11)",
        err);
    if (!s)
        return err->status;
    bind_str(s, 1, e->event_id);
    sqlite_bind_bytes(s, 2, e->aggregate_id);
    sqlite3_bind_int64(s, 3, version);
    bind_str(s, 4, e->event_type);
    sqlite_bind_bytes(s, 5, e->payload);
    bind_str(s, 6, e->aggregate_type);
    sqlite3_bind_int64(s, 7, c->now);
    sqlite_bind_optional(s, 8, e->tenant);
    sqlite_bind_optional(s, 9, e->traceparent);
    sqlite_bind_optional(s, 10, e->correlation_id);
    sqlite_bind_optional(s, 11, e->causation_id);
    st = sqlite_run(c, s, err);
    /* The payload is JSON by construction; SQLite's json_valid() says no when it has no memory. */
    if (st == CSN_REJECTED && strstr(sqlite3_errmsg(c->db), "csn_payload_json"))
        st = error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "emit: out of memory");
    return st;
}

/* ---- parked rows of a key ---- */

/* The key's head, if it is parked. */
static csn_status parked_head(struct sqlite_conn *c, const char *consumer, const struct message *m,
                              bool *ret_parked, int64_t *ret_head, csn_error *err) {
    sqlite3_stmt *s =
        sqlite_prepare(c,
                       "SELECT head_version FROM consign_keys WHERE consumer_name = ?1 AND "
                       "aggregate_type = ?2 AND aggregate_id = ?3",
                       err);
    if (!s)
        return err->status;
    bind_key(s, consumer, m);
    csn_status st = step(c, s, ret_parked, err);
    if (st == CSN_OK && *ret_parked)
        *ret_head = sqlite3_column_int64(s, 0);
    sqlite3_reset(s);
    return st;
}

static csn_status delete_key(struct sqlite_conn *c, const char *consumer, const struct message *m,
                             csn_error *err) {
    sqlite3_stmt *s = sqlite_prepare(c,
                                     "DELETE FROM consign_keys WHERE consumer_name = ?1 AND "
                                     "aggregate_type = ?2 AND aggregate_id = ?3",
                                     err);
    if (!s)
        return err->status;
    bind_key(s, consumer, m);
    return sqlite_run(c, s, err);
}

static csn_status move_head(struct sqlite_conn *c, const char *consumer, const struct message *m,
                            int64_t version, csn_error *err) {
    sqlite3_stmt *s =
        sqlite_prepare(c,
                       "UPDATE consign_keys SET head_version = ?4 WHERE consumer_name = ?1 AND "
                       "aggregate_type = ?2 AND aggregate_id = ?3",
                       err);
    if (!s)
        return err->status;
    bind_key(s, consumer, m);
    sqlite3_bind_int64(s, 4, version);
    return sqlite_run(c, s, err);
}

static csn_status make_due(struct sqlite_conn *c, int64_t seq, csn_error *err) {
    sqlite3_stmt *s = sqlite_prepare(
        c,
        "UPDATE consign_work SET status = 'pending', waits_for = 0, next_attempt_at = ?2 "
        "WHERE seq = ?1 AND status <> 'sending'",
        err);
    if (!s)
        return err->status;
    sqlite3_bind_int64(s, 1, seq);
    sqlite3_bind_int64(s, 2, c->now);
    return sqlite_run(c, s, err);
}

/* A parked row of the key was deleted: the next one is the head and due now; with the last one the
 * key goes. */
static csn_status release_key(struct sqlite_conn *c, const char *consumer, const struct message *m,
                              csn_error *err) {
    bool row = false;
    sqlite3_stmt *s = sqlite_prepare(
        c,
        "SELECT seq, aggregate_version FROM consign_work WHERE consumer_name = ?1 AND "
        "aggregate_type = ?2 AND aggregate_id = ?3 AND kind = 'delivery' "
        "ORDER BY aggregate_version, seq LIMIT 1",
        err);
    if (!s)
        return err->status;
    bind_key(s, consumer, m);
    csn_status st = step(c, s, &row, err);
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
    sqlite3_stmt *s = sqlite_prepare(
        c, "DELETE FROM consign_work WHERE seq = ?1 AND status = 'sending' AND claim_token = ?2",
        err);
    if (!s)
        return err->status;
    sqlite3_bind_int64(s, 1, (int64_t)m->seq);
    bind_str(s, 2, token);
    csn_status st = sqlite_run(c, s, err);
    *ret_mine = st == CSN_OK && changed(c) == 1;
    return st;
}

static csn_status end_work(struct sqlite_conn *c, const char *consumer, const struct message *m,
                           const char *token, bool *ret_mine, csn_error *err) {
    csn_status st = delete_work(c, m, token, ret_mine, err);
    return st == CSN_OK && *ret_mine ? release_key(c, consumer, m, err) : st;
}

/* ---- APPLY ---- */

struct apply {
    struct sqlite_conn *c;
    struct op *op;
    csn_error *err;
    const char *consumer;
    bool broker;      /* source */
    struct message m; /* the one at hand, under its inbox id */
    char digest[65];
    struct apply_item *item;
    bool parked;                 /* its key has parked rows */
    int64_t head;                /* the lowest version of them */
    uint32_t stopped_n;          /* keys that ended without commit in this batch */
    uint32_t stopped[BATCH_MAX]; /* indexes of their messages */
    uint64_t stopped_hash[BATCH_MAX];
};

static uint64_t key_hash(const struct message *m) {
    return bytes_hash(m->aggregate_id, bytes_hash(m->aggregate_type, 0));
}

static bool key_stopped(const struct apply *a) {
    uint64_t hash = key_hash(&a->m);
    for (uint32_t i = 0; i < a->stopped_n; i++) {
        const struct message *m = &a->op->batch->msg[a->stopped[i]];
        if (a->stopped_hash[i] == hash && bytes_equal(m->aggregate_id, a->m.aggregate_id) &&
            bytes_equal(m->aggregate_type, a->m.aggregate_type))
            return true;
    }
    return false;
}

static void stop_key(struct apply *a) {
    if (key_stopped(a))
        return;
    a->stopped[a->stopped_n] = a->item->msg;
    a->stopped_hash[a->stopped_n++] = key_hash(&a->m);
}

static void say(struct apply_item *item, int32_t code, const char *text) {
    const struct error_row *row = error_find(code);
    item->code = code;
    copy_text(item->text, sizeof item->text, text ? text : row ? row->title[0] : "");
}

/* What a known inbox row means for this delivery. A row without a digest was not written by us: the
 * id decides. */
static void known(struct apply *a, const char *state, const char *digest) {
    if (digest && strcmp(digest, a->digest) != 0) {
        a->item->out = APPLY_MISMATCH;
        say(a->item, ERR_IDENTITY_CONFLICT, NULL);
    } else if (strcmp(state, "waiting") == 0)
        a->item->out = APPLY_WAITS;
    else if (strcmp(state, "dead") == 0 || strcmp(state, "conflict") == 0)
        a->item->out = APPLY_ASIDE;
    else
        a->item->out = APPLY_SEEN;
}

static void bind_inbox(sqlite3_stmt *s, struct sqlite_conn *c, const char *consumer,
                       const struct message *m, const char *digest, bool broker) {
    bind_str(s, 1, consumer);
    sqlite_bind_bytes(s, 2, m->id);
    sqlite3_bind_int64(s, 3, c->now);
    bind_str(s, 4, digest);
    sqlite_bind_bytes(s, 5, m->aggregate_type);
    sqlite_bind_bytes(s, 6, m->aggregate_id);
    sqlite3_bind_int64(s, 7, (int64_t)m->version);
    sqlite_bind_bytes(s, 8, m->event_type);
    if (broker) {
        sqlite3_bind_int64(s, 9, m->lane);
        sqlite3_bind_int64(s, 10, (int64_t)m->seq);
    }
}

/* The dedupe: one statement inserts the row, or counts the duplicate and says what the row is. */
static csn_status insert_inbox(struct apply *a, bool *ret_new) {
    bool row = false;
    sqlite3_stmt *s = sqlite_prepare(
        a->c,
        "INSERT INTO consumer_inbox(consumer_name, event_id, processed_at, state, verdict, "
        "received_at, digest, "
        "aggregate_type, aggregate_id, entity_version, event_type, broker_part, broker_pos) "
        "VALUES (?1, ?2, ?3, 'done', 'done', ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) "
        "ON CONFLICT (consumer_name, event_id) DO UPDATE SET duplicates = duplicates + 1, "
        "last_duplicate_at = ?3 "
        "RETURNING duplicates, state, digest",
        a->err);
    if (!s)
        return a->err->status;
    bind_inbox(s, a->c, a->consumer, &a->m, a->digest, true);
    csn_status st = step(a->c, s, &row, a->err);
    if (st == CSN_OK && row) {
        *ret_new = sqlite3_column_int64(s, 0) == 0;
        if (!*ret_new)
            known(a, (const char *)sqlite3_column_text(s, 1),
                  (const char *)sqlite3_column_text(s, 2));
    }
    sqlite3_reset(s);
    return st;
}

/* A row that the inbox has finished and that is parked all the same is not run again. */
static csn_status work_is_mine(struct apply *a, bool *ret_mine, bool *ret_finished) {
    bool row = false;
    sqlite3_stmt *s = sqlite_prepare(
        a->c,
        "SELECT i.state FROM consign_work w LEFT JOIN consumer_inbox i ON i.consumer_name = "
        "w.consumer_name AND "
        "i.event_id = w.event_id WHERE w.seq = ?1 AND w.status = 'sending' AND w.claim_token = ?2",
        a->err);
    if (!s)
        return a->err->status;
    sqlite3_bind_int64(s, 1, (int64_t)a->m.seq);
    bind_str(s, 2, a->op->apply.token);
    csn_status st = step(a->c, s, &row, a->err);
    const char *state = row ? (const char *)sqlite3_column_text(s, 0) : NULL;
    *ret_mine = row;
    *ret_finished = state && (strcmp(state, "done") == 0 || strcmp(state, "refused") == 0);
    sqlite3_reset(s);
    return st;
}

static csn_status has_dead_letter(struct apply *a, bool *ret) {
    sqlite3_stmt *s = sqlite_prepare(
        a->c, "SELECT 1 FROM consign_dead_letters WHERE consumer_name = ?1 AND event_id = ?2",
        a->err);
    if (!s)
        return a->err->status;
    bind_str(s, 1, a->consumer);
    sqlite_bind_bytes(s, 2, a->m.id);
    csn_status st = step(a->c, s, ret, a->err);
    sqlite3_reset(s);
    return st;
}

static csn_status set_inbox_dead(struct apply *a) {
    sqlite3_stmt *s =
        sqlite_prepare(a->c,
                       "UPDATE consumer_inbox SET state = 'dead', verdict = NULL, attempts = 0 "
                       "WHERE consumer_name = ?1 AND event_id = ?2",
                       a->err);
    if (!s)
        return a->err->status;
    bind_str(s, 1, a->consumer);
    sqlite_bind_bytes(s, 2, a->m.id);
    return sqlite_run(a->c, s, a->err);
}

static bool commits(csn_verdict v) {
    return v == CSN_DONE || v == CSN_REFUSED || v == CSN_DUPLICATE || v == CSN_LATE;
}

/* What the handler said, for those who see the event again: {"text":…,"events":…}, to be freed;
 * NULL: nothing to say. A text that is not UTF-8 is left out. */
static csn_status result_json(const struct apply_item *item, uint32_t emitted, char **ret,
                              csn_error *err) {
    *ret = NULL;
    if (!item->text[0] && !emitted)
        return CSN_OK;
    json_t *o = json_object();
    if (item->text[0])
        json_object_set_new(o, "text", json_string(item->text));
    if (emitted)
        json_object_set_new(o, "events", json_integer(emitted));
    *ret = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    return *ret ? CSN_OK : error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "apply: out of memory");
}

/* The inbox row of a delivery from the broker stands as done already. */
static csn_status finish_new(struct apply *a, const char *result) {
    if (a->item->verdict == CSN_DONE && !result)
        return CSN_OK;
    sqlite3_stmt *s =
        sqlite_prepare(a->c,
                       "UPDATE consumer_inbox SET state = ?3, verdict = ?4, result = ?5 "
                       "WHERE consumer_name = ?1 AND event_id = ?2",
                       a->err);
    if (!s)
        return a->err->status;
    bind_str(s, 1, a->consumer);
    sqlite_bind_bytes(s, 2, a->m.id);
    bind_str(s, 3, a->item->verdict == CSN_REFUSED ? "refused" : "done");
    bind_str(s, 4, verdict_name(a->item->verdict));
    bind_str(s, 5, result);
    return sqlite_run(a->c, s, a->err);
}

/* The inbox row of a parked one waits, unless somebody took it away. */
static csn_status finish_parked(struct apply *a, const char *result) {
    bool mine = false;
    sqlite3_stmt *s =
        sqlite_prepare(a->c,
                       "INSERT INTO consumer_inbox(consumer_name, event_id, processed_at, "
                       "received_at, digest, aggregate_type, "
                       "aggregate_id, entity_version, event_type, broker_part, broker_pos, state, "
                       "verdict, result) "
                       "VALUES (?1, ?2, ?3, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13) "
                       "ON CONFLICT (consumer_name, event_id) DO UPDATE SET processed_at = ?3, "
                       "state = ?11, verdict = ?12, result = ?13, "
                       "error = NULL, attempts = attempts + 1",
                       a->err);
    if (!s)
        return a->err->status;
    bind_inbox(s, a->c, a->consumer, &a->m, a->digest, false);
    bind_str(s, 11, a->item->verdict == CSN_REFUSED ? "refused" : "done");
    bind_str(s, 12, verdict_name(a->item->verdict));
    bind_str(s, 13, result);
    csn_status st = sqlite_run(a->c, s, a->err);
    if (st == CSN_OK)
        st = end_work(a->c, a->consumer, &a->m, a->op->apply.token, &mine, a->err);
    if (st == CSN_OK && !mine)
        st = error_set(a->err, CSN_FATAL, ERR_HANDLER_TX,
                       "apply: the work row went away under the handler");
    return st;
}

/* The predecessor that the key's head waits for may be this one. */
static csn_status wake_early(struct apply *a) {
    if (!a->parked || a->head <= (int64_t)a->m.version)
        return CSN_OK;
    sqlite3_stmt *s = sqlite_prepare(
        a->c,
        "UPDATE consign_work SET next_attempt_at = ?5 WHERE consumer_name = ?1 AND aggregate_type "
        "= ?2 AND "
        "aggregate_id = ?3 AND aggregate_version = ?4 AND status = 'pending' AND waits_for = 3",
        a->err);
    if (!s)
        return a->err->status;
    bind_key(s, a->consumer, &a->m);
    sqlite3_bind_int64(s, 4, a->head);
    sqlite3_bind_int64(s, 5, a->c->now);
    return sqlite_run(a->c, s, a->err);
}

static csn_status finish(struct apply *a, uint32_t emitted) {
    char *result = NULL;
    csn_status st = result_json(a->item, emitted, &result, a->err);
    if (st == CSN_OK)
        st = a->broker ? finish_new(a, result) : finish_parked(a, result);
    free(result);
    if (st == CSN_OK && a->broker)
        st = wake_early(a);
    a->op->apply.emitted += emitted;
    return st;
}

static csn_status call_function(struct apply *a, const struct handler *h) {
    csn_verdict v = h->function(&a->m, h->arg);
    static const int32_t code[] = {[CSN_EARLY] = ERR_HANDLER_EARLY,
                                   [CSN_CONFLICT] = ERR_HANDLER_CONFLICT,
                                   [CSN_POISON] = ERR_HANDLER_POISON,
                                   [CSN_RETRY] = ERR_HANDLER_RETRY,
                                   [CSN_OUTCOME_UNKNOWN] = ERR_HANDLER_UNKNOWN};
    if (v < 0 || (size_t)v >= ARRAY_LEN(code))
        return error_set(a->err, CSN_FATAL, ERR_BUG, "apply: the handler gave the verdict %d", v);
    if (sqlite3_get_autocommit(a->c->db))
        return error_set(a->err, CSN_FATAL, ERR_HANDLER_TX,
                         "apply: the handler ended the transaction");
    a->item->verdict = v;
    say(a->item, code[v], NULL);
    return CSN_OK;
}

static csn_status call_sql(struct apply *a, const struct sql_handler *h, uint32_t *ret_emitted) {
    struct handler_store store = {.conn = a->c, .sql = handler_sql, .emit = handler_emit};
    struct handler_outcome out;
    csn_status st = handler_run(h, &store, a->consumer, &a->m, &out, a->err);
    if (st != CSN_OK)
        return st;
    a->item->verdict = out.verdict;
    a->item->code = out.code;
    copy_text(a->item->text, sizeof a->item->text, out.text);
    *ret_emitted = out.emitted;
    return CSN_OK;
}

static csn_status decide(struct apply *a, uint32_t *ret_emitted) {
    const struct handler *h = a->op->apply.handler;
    if (a->item->expired) {
        a->item->verdict = CSN_LATE;
        say(a->item, ERR_EXPIRED, NULL);
        return CSN_OK;
    }
    return h->function ? call_function(a, h) : call_sql(a, h->sql, ret_emitted);
}

static csn_status failpoint(enum failpoint f, csn_error *err) {
    csn_status st = failpoint_hit(f);
    return st == CSN_OK ? st : error_set(err, st, 0, "failpoint %s", failpoint_name(f));
}

/* Runs the handler. *ret_keep: what was written stays. */
static csn_status handle(struct apply *a, bool *ret_keep) {
    uint32_t emitted = 0;
    csn_status st = failpoint(FAIL_APPLY_INSERTED, a->err);
    if (st == CSN_OK)
        st = decide(a, &emitted);
    if (st == CSN_OK)
        st = failpoint(FAIL_APPLY_HANDLED, a->err);
    if (st != CSN_OK)
        return st;
    a->item->out = APPLY_VERDICT;
    *ret_keep = commits(a->item->verdict);
    if (*ret_keep)
        return finish(a, emitted);
    stop_key(a);
    return CSN_OK;
}

static csn_status behind(struct apply *a, bool *ret_keep) {
    a->item->out = APPLY_BEHIND;
    say(a->item, ERR_KEY_BLOCKED, NULL);
    *ret_keep = false;
    return CSN_OK;
}

static csn_status apply_delivery(struct apply *a, bool *ret_keep) {
    bool new = false, dead = false;
    csn_status st = insert_inbox(a, &new);
    if (st != CSN_OK || !new)
        return st;
    st = has_dead_letter(a, &dead);
    if (st == CSN_OK && dead) {
        a->item->out = APPLY_ASIDE;
        return set_inbox_dead(a);
    }
    if (st == CSN_OK)
        st = parked_head(a->c, a->consumer, &a->m, &a->parked, &a->head, a->err);
    if (st != CSN_OK)
        return st;
    if (key_stopped(a) || (a->parked && a->head <= (int64_t)a->m.version))
        return behind(a, ret_keep);
    return handle(a, ret_keep);
}

static csn_status apply_parked(struct apply *a, bool *ret_keep) {
    bool mine = false, finished = false;
    csn_status st = work_is_mine(a, &mine, &finished);
    if (st != CSN_OK)
        return st;
    if (!mine) {
        a->item->out = APPLY_FENCED;
        return CSN_OK;
    }
    if (finished) {
        a->item->out = APPLY_SEEN;
        return end_work(a->c, a->consumer, &a->m, a->op->apply.token, &mine, a->err);
    }
    return key_stopped(a) ? behind(a, ret_keep) : handle(a, ret_keep);
}

/* One message inside its savepoint. */
static csn_status apply_one(struct apply *a) {
    bool keep = true;
    csn_status st = savepoint(a->c, "SAVEPOINT csn_event", a->err);
    if (st == CSN_OK)
        st = a->broker ? apply_delivery(a, &keep) : apply_parked(a, &keep);
    if (st == CSN_OK && !keep)
        st = savepoint(a->c, "ROLLBACK TO csn_event", a->err);
    return st == CSN_OK ? savepoint(a->c, "RELEASE csn_event", a->err) : st;
}

static void begin_item(struct apply *a, uint32_t i, char id[DIGEST_ID_SIZE]) {
    a->item = &a->op->apply.item[i];
    a->item->out = APPLY_NONE;
    a->item->verdict = CSN_DONE;
    a->item->code = 0;
    a->item->text[0] = 0;
    a->m = a->op->batch->msg[a->item->msg];
    a->m.id = inbox_id(a->m.id, id);
    a->parked = false;
    message_digest(&a->m, a->digest);
}

csn_status sqlite_apply(struct sqlite_conn *c, struct op *op) {
    char id[DIGEST_ID_SIZE];
    if (op->apply.n > BATCH_MAX)
        return error_set(&op->result, CSN_INVALID, ERR_BUG, "apply: %u messages", op->apply.n);
    struct apply a;
    a.c = c;
    a.op = op;
    a.err = &op->result;
    a.consumer = op->apply.consumer;
    a.broker = op->apply.source == SOURCE_BROKER;
    a.stopped_n = 0;
    op->apply.emitted = 0;
    csn_status st = savepoint(c, "SAVEPOINT csn_batch", a.err);
    /* The wait for the lock is over, and was not the handlers'. */
    c->deadline = sqlite_after(sqlite_steady(), c->given);
    for (uint32_t i = 0; i < op->apply.n && st == CSN_OK; i++) {
        begin_item(&a, i, id);
        st = apply_one(&a);
    }
    if (st == CSN_OK)
        st = savepoint(c, "RELEASE csn_batch", a.err);
    for (uint32_t i = 0; i < op->apply.n && st != CSN_OK; i++)
        op->apply.item[i].out = APPLY_NONE;
    return st;
}

/* ---- PARK ---- */

struct park {
    struct sqlite_conn *c;
    csn_error *err;
    const char *consumer, *token;
    bool broker; /* source */
    struct message m;
    struct park_item *item;
    int64_t seq; /* of the work row */
};

static bool ran(const struct park *p) {
    return p->item->to != PARK_BEHIND;
}

/* Is a row of this key parked that comes before (version, seq)? */
static csn_status has_earlier(struct park *p, bool *ret) {
    sqlite3_stmt *s = sqlite_prepare(
        p->c,
        "SELECT 1 FROM consign_work WHERE consumer_name = ?1 AND aggregate_type = ?2 AND "
        "aggregate_id = ?3 AND (aggregate_version, seq) < (?4, ?5) LIMIT 1",
        p->err);
    if (!s)
        return p->err->status;
    bind_key(s, p->consumer, &p->m);
    sqlite3_bind_int64(s, 4, (int64_t)p->m.version);
    sqlite3_bind_int64(s, 5, p->seq);
    csn_status st = step(p->c, s, ret, p->err);
    sqlite3_reset(s);
    return st;
}

/* This row is the head now: those that were, wait. One that is being worked on is left alone; when
 * it is parked again it will wait. */
static csn_status later_wait(struct park *p) {
    sqlite3_stmt *s = sqlite_prepare(
        p->c,
        "UPDATE consign_work SET status = 'waiting', waits_for = 1 WHERE consumer_name = ?1 "
        "AND aggregate_type = ?2 AND aggregate_id = ?3 AND status = 'pending' AND "
        "(aggregate_version, seq) > (?4, ?5)",
        p->err);
    if (!s)
        return p->err->status;
    bind_key(s, p->consumer, &p->m);
    sqlite3_bind_int64(s, 4, (int64_t)p->m.version);
    sqlite3_bind_int64(s, 5, p->seq);
    return sqlite_run(p->c, s, p->err);
}

/* The inbox row is made, or waits (again). *ret_open: it does; false: the event is finished, there
 * is nothing to park. */
static csn_status inbox_waits(struct park *p, bool *ret_open) {
    char digest[65];
    message_digest(&p->m, digest);
    sqlite3_stmt *s = sqlite_prepare(
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
        p->err);
    if (!s)
        return p->err->status;
    bind_inbox(s, p->c, p->consumer, &p->m, digest, p->broker);
    bind_str(s, 11, ran(p) ? verdict_name(p->item->verdict) : NULL);
    bind_text(s, 12, p->item->text);
    sqlite3_bind_int64(s, 13, ran(p));
    csn_status st = sqlite_run(p->c, s, p->err);
    *ret_open = st == CSN_OK && changed(p->c) == 1;
    return st;
}

static csn_status is_parked(struct park *p, bool *ret) {
    sqlite3_stmt *s = sqlite_prepare(p->c,
                                     "SELECT 1 FROM consign_work WHERE kind = 'delivery' AND "
                                     "consumer_name = ?1 AND event_id = ?2",
                                     p->err);
    if (!s)
        return p->err->status;
    bind_str(s, 1, p->consumer);
    sqlite_bind_bytes(s, 2, p->m.id);
    csn_status st = step(p->c, s, ret, p->err);
    sqlite3_reset(s);
    return st;
}

static csn_status insert_work(struct park *p) {
    const struct message *m = &p->m;
    sqlite3_stmt *s = sqlite_prepare(
        p->c,
        "INSERT INTO consign_work(consumer_name, event_id, aggregate_type, aggregate_id, "
        "aggregate_version, prev_version, "
        "event_type, schema_version, payload, headers, status, waits_for, next_attempt_at, "
        "created_at, slot, expires_at, "
        "priority, tenant, traceparent, correlation_id, causation_id, broker_part, broker_pos) "
        "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, 'waiting', 1, ?11, ?11, ?12, ?13, ?14, "
        "?15, ?16, ?17, ?18, "
        "?12, ?19)",
        p->err);
    if (!s)
        return p->err->status;
    bind_str(s, 1, p->consumer);
    sqlite_bind_bytes(s, 2, m->id);
    sqlite_bind_bytes(s, 3, m->aggregate_type);
    sqlite_bind_bytes(s, 4, m->aggregate_id);
    sqlite3_bind_int64(s, 5, (int64_t)m->version);
    sqlite3_bind_int64(s, 6, (int64_t)m->prev_version);
    sqlite_bind_bytes(s, 7, m->event_type);
    sqlite3_bind_int64(s, 8, m->schema_version);
    sqlite_bind_bytes(s, 9, m->payload);
    sqlite_bind_optional(s, 10, m->headers);
    sqlite3_bind_int64(s, 11, p->c->now);
    sqlite3_bind_int64(s, 12, m->lane);
    if (m->expires_in != CSN_USEC_NEVER)
        sqlite3_bind_int64(s, 13, sqlite_after(p->c->now, m->expires_in));
    sqlite3_bind_int64(s, 14, m->priority);
    sqlite_bind_optional(s, 15, m->tenant);
    sqlite_bind_optional(s, 16, m->traceparent);
    sqlite_bind_optional(s, 17, m->correlation_id);
    sqlite_bind_optional(s, 18, m->causation_id);
    sqlite3_bind_int64(s, 19, (int64_t)m->seq);
    csn_status st = sqlite_run(p->c, s, p->err);
    p->seq = sqlite3_last_insert_rowid(p->c->db);
    return st;
}

/* Gives the row its place: pending when nothing of its key comes before it, waiting otherwise; and
 * counts what happened. */
static csn_status place_work(struct park *p, bool first) {
    const struct park_item *item = p->item;
    sqlite3_stmt *s =
        sqlite_prepare(p->c,
                       "UPDATE consign_work SET status = ?2, waits_for = ?3, next_attempt_at = ?4, "
                       "claim_token = NULL, lease_until = NULL, "
                       "failures = failures + ?5, tries = tries + ?6, last_error = CASE WHEN ?5 "
                       "THEN ?7 ELSE last_error END, "
                       "last_failed_at = CASE WHEN ?5 THEN ?8 ELSE last_failed_at END, "
                       "first_failed_at = CASE WHEN ?5 THEN coalesce(first_failed_at, ?8) ELSE "
                       "first_failed_at END "
                       "WHERE seq = ?1",
                       p->err);
    if (!s)
        return p->err->status;
    csn_usec retry_in = ran(p) ? item->retry_in : 0;
    sqlite3_bind_int64(s, 1, p->seq);
    bind_str(s, 2, first ? "pending" : "waiting");
    sqlite3_bind_int64(s, 3,
                       !first                   ? WAITS_KEY
                       : item->to == PARK_EARLY ? WAITS_EARLY
                                                : WAITS_NONE);
    sqlite3_bind_int64(s, 4, p->c->now + retry_in);
    sqlite3_bind_int64(s, 5, item->failure);
    sqlite3_bind_int64(s, 6, item->attempt);
    bind_text(s, 7, item->text);
    sqlite3_bind_int64(s, 8, p->c->now);
    return sqlite_run(p->c, s, p->err);
}

static csn_status park_key(struct park *p) {
    sqlite3_stmt *s = sqlite_prepare(
        p->c,
        "INSERT INTO consign_keys(consumer_name, aggregate_type, aggregate_id, head_version, "
        "parked_at) "
        "VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (consumer_name, aggregate_type, aggregate_id) "
        "DO UPDATE SET head_version = min(head_version, ?4)",
        p->err);
    if (!s)
        return p->err->status;
    bind_key(s, p->consumer, &p->m);
    sqlite3_bind_int64(s, 4, (int64_t)p->m.version);
    sqlite3_bind_int64(s, 5, p->c->now);
    return sqlite_run(p->c, s, p->err);
}

static csn_status park_evidence(struct park *p) {
    sqlite3_stmt *s =
        sqlite_prepare(p->c,
                       "INSERT INTO consign_attempts(event_id, side, consumer_name, at, kind, "
                       "attempt, planned_at, started_at, code, error) "
                       "VALUES (?1, 'inbox', ?2, ?3, 'parked', ?4, (SELECT next_attempt_at FROM "
                       "consign_work WHERE seq = ?5), "
                       "(SELECT claimed_at FROM consign_work WHERE seq = ?5), ?6, ?7)",
                       p->err);
    if (!s)
        return p->err->status;
    sqlite_bind_bytes(s, 1, p->m.id);
    bind_str(s, 2, p->consumer);
    sqlite3_bind_int64(s, 3, p->c->now);
    sqlite3_bind_int64(s, 4, p->m.attempts);
    sqlite3_bind_int64(s, 5, p->seq);
    if (p->item->code)
        sqlite3_bind_int64(s, 6, p->item->code);
    bind_text(s, 7, p->item->text);
    return sqlite_run(p->c, s, p->err);
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
    sqlite3_stmt *s = sqlite_prepare(
        p->c,
        "SELECT 1 FROM consign_work WHERE seq = ?1 AND status = 'sending' AND claim_token = ?2",
        p->err);
    if (!s)
        return p->err->status;
    sqlite3_bind_int64(s, 1, (int64_t)p->m.seq);
    bind_str(s, 2, p->token);
    csn_status st = step(p->c, s, ret, p->err);
    sqlite3_reset(s);
    return st;
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
    sqlite3_stmt *s = sqlite_prepare(
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
        p->err);
    if (!s)
        return p->err->status;
    bind_str(s, 1, p->consumer);
    sqlite_bind_bytes(s, 2, m->id);
    bind_str(s, 3, letter_class(p->item));
    if (p->item->code)
        sqlite3_bind_int64(s, 4, p->item->code);
    bind_text(s, 5, p->item->text);
    sqlite_bind_bytes(s, 6, m->aggregate_type);
    sqlite_bind_bytes(s, 7, m->aggregate_id);
    sqlite3_bind_int64(s, 8, (int64_t)m->version);
    sqlite_bind_bytes(s, 9, m->event_type);
    sqlite3_bind_int64(s, 10, m->schema_version);
    sqlite_bind_bytes(s, 11, m->payload);
    sqlite_bind_optional(s, 12, m->headers);
    sqlite_bind_optional(s, 13, m->tenant);
    sqlite_bind_optional(s, 14, m->traceparent);
    sqlite_bind_optional(s, 15, m->correlation_id);
    sqlite_bind_optional(s, 16, m->causation_id);
    sqlite3_bind_int64(s, 17, m->attempts);
    sqlite3_bind_int64(s, 18, (int64_t)m->failures + p->item->failure);
    sqlite3_bind_int64(s, 19, sqlite_between(m->failing_for, p->c->now));
    sqlite3_bind_int64(s, 20, p->c->now);
    if (p->broker) {
        sqlite3_bind_int64(s, 21, m->lane);
        sqlite3_bind_int64(s, 23, (int64_t)m->seq);
    } else
        sqlite3_bind_int64(s, 22, (int64_t)m->seq);
    return sqlite_run(p->c, s, p->err);
}

/* An inbox row that ended keeps its state, and so does one that waits while another delivery under
 * its id is set aside. */
static csn_status inbox_aside(struct park *p) {
    char digest[65];
    message_digest(&p->m, digest);
    sqlite3_stmt *s = sqlite_prepare(
        p->c,
        "INSERT INTO consumer_inbox(consumer_name, event_id, processed_at, received_at, digest, "
        "aggregate_type, "
        "aggregate_id, entity_version, event_type, broker_part, broker_pos, state, verdict, error) "
        "VALUES (?1, ?2, ?3, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13) "
        "ON CONFLICT (consumer_name, event_id) DO UPDATE SET error = ?13, "
        "state = iif(state IN ('done', 'refused') OR (state = 'waiting' AND ?14), state, ?11), "
        "verdict = iif(state IN ('done', 'refused') OR (state = 'waiting' AND ?14), verdict, ?12), "
        "attempts = attempts + (?14 = 0)",
        p->err);
    if (!s)
        return p->err->status;
    bind_inbox(s, p->c, p->consumer, &p->m, digest, p->broker);
    bind_str(s, 11, p->item->to == PARK_CONFLICT ? "conflict" : "dead");
    bind_str(s, 12, verdict_name(p->item->to == PARK_CONFLICT ? CSN_CONFLICT : p->item->verdict));
    bind_text(s, 13, p->item->text);
    sqlite3_bind_int64(s, 14, p->broker);
    return sqlite_run(p->c, s, p->err);
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
    if (st == CSN_OK && !p->broker)
        st = end_work(p->c, p->consumer, &p->m, p->token, &mine, p->err);
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
                     .broker = op->park.source == SOURCE_BROKER};
    csn_status st = CSN_OK;
    for (uint32_t i = 0; i < op->park.n && st == CSN_OK; i++) {
        p.item = &op->park.item[i];
        p.m = op->batch->msg[p.item->msg];
        p.m.id = inbox_id(p.m.id, id);
        st = park_one(&p);
    }
    return st == CSN_OK ? failpoint(FAIL_PARK_UPDATED, &op->result) : st;
}
