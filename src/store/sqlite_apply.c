/* sqlite_apply.c: APPLY on SQLite: inbox row, handler and result events in one transaction; and TRY,
 * which is the handler and its result events alone.
 *
 * Two savepoints deep. "csn_batch" is round the whole batch when functions run: its RELEASE fails when
 * one ended or swapped the transaction, which is CSN_FATAL, CSN-4011. "csn_event" is round each message: inbox
 * row (the dedupe), dead letters, its key, handler, inbox row finished; then it is released, or
 * rolled back first when the verdict does not commit.
 *
 * What always holds: an inbox row is done or refused exactly when its effect is in the same commit.
 * It is inserted as done, because that is how nearly all end: nobody sees it before the commit, and
 * the index of open rows is not touched. */
#include "store/sqlite_inbox.h"
#include <jansson.h>
#include <stdlib.h>

csn_status sqlite_savepoint(struct sqlite_conn *c, const char *sql, csn_error *err) {
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

/* What a known inbox row means for this delivery. A row without a digest was not written by us: the
 * id decides. */
static void known(struct apply *a, const char *state, const char *digest) {
    if (digest && strcmp(digest, a->digest) != 0) {
        a->item->out = APPLY_MISMATCH;
        sqlite_say(a->item, ERR_IDENTITY_CONFLICT, NULL);
    } else if (strcmp(state, "waiting") == 0)
        a->item->out = APPLY_WAITS;
    else if (strcmp(state, "dead") == 0 || strcmp(state, "conflict") == 0)
        a->item->out = APPLY_ASIDE;
    else
        a->item->out = APPLY_SEEN;
}

/* The dedupe: one statement inserts the row, or counts the duplicate and says what the row is. */
static csn_status insert_inbox(struct apply *a, bool *ret_new) {
    bool row = false;
    sqlite3_stmt *s = sqlite_ask(
        a->c,
        "INSERT INTO consumer_inbox(consumer_name, event_id, processed_at, state, verdict, "
        "received_at, digest, "
        "aggregate_type, aggregate_id, entity_version, event_type, broker_part, broker_pos) "
        "VALUES (?1, ?2, ?3, 'done', 'done', ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) "
        "ON CONFLICT (consumer_name, event_id) DO UPDATE SET duplicates = duplicates + 1, "
        "last_duplicate_at = ?3 "
        "RETURNING duplicates, state, digest",
        SQL_VALUES(INBOX_VALUES(a->c, a->consumer, &a->m, a->digest, true)), &row, a->err);
    csn_status st = s ? CSN_OK : a->err->status;
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
    sqlite3_stmt *s = sqlite_ask(
        a->c,
        "SELECT i.state FROM consign_work w LEFT JOIN consumer_inbox i ON i.consumer_name = "
        "w.consumer_name AND "
        "i.event_id = w.event_id WHERE w.seq = ?1 AND w.status = 'sending' AND w.claim_token = ?2",
        SQL_VALUES(sql_int((int64_t)a->m.seq), sql_str(a->op->apply.token)), &row, a->err);
    csn_status st = s ? CSN_OK : a->err->status;
    const char *state = row ? (const char *)sqlite3_column_text(s, 0) : NULL;
    *ret_mine = row;
    *ret_finished = state && (strcmp(state, "done") == 0 || strcmp(state, "refused") == 0);
    sqlite3_reset(s);
    return st;
}

static csn_status has_dead_letter(struct apply *a, bool *ret) {
    return sqlite_there(
        a->c, "SELECT 1 FROM consign_dead_letters WHERE consumer_name = ?1 AND event_id = ?2",
        SQL_VALUES(sql_str(a->consumer), sql_bytes(a->m.id)), ret, a->err);
}

static csn_status set_inbox_dead(struct apply *a) {
    return sqlite_do(a->c,
                     "UPDATE consumer_inbox SET state = 'dead', verdict = NULL, attempts = 0 "
                     "WHERE consumer_name = ?1 AND event_id = ?2",
                     SQL_VALUES(sql_str(a->consumer), sql_bytes(a->m.id)), a->err);
}

static bool commits(csn_verdict v) {
    return v == CSN_DONE || v == CSN_REFUSED || v == CSN_DUPLICATE || v == CSN_LATE;
}

/* A summary that is JSON is kept as that, any other as text. */
static void add_summary(json_t *o, const char *summary) {
    json_t *value = json_loads(summary, JSON_DECODE_ANY, NULL);
    json_object_set_new(o, value ? "result" : "text", value ? value : json_string(summary));
}

/* What the handler said, for those who see the event again: {"text":…,"result":…,"events":…}, to be
 * freed; NULL: nothing to say. A text that is not UTF-8 is left out. */
static csn_status result_json(const struct apply_item *item, const char *summary, uint32_t emitted,
                              char **ret, csn_error *err) {
    *ret = NULL;
    if (!item->text[0] && !emitted && !summary)
        return CSN_OK;
    json_t *o = json_object();
    if (item->text[0])
        json_object_set_new(o, "text", json_string(item->text));
    if (summary)
        add_summary(o, summary);
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
    return sqlite_do(a->c,
                     "UPDATE consumer_inbox SET state = ?3, verdict = ?4, result = ?5 "
                     "WHERE consumer_name = ?1 AND event_id = ?2",
                     SQL_VALUES(sql_str(a->consumer), sql_bytes(a->m.id),
                                sql_str(a->item->verdict == CSN_REFUSED ? "refused" : "done"),
                                sql_str(verdict_name(a->item->verdict)), sql_str(result)),
                     a->err);
}

/* The inbox row of a parked one waits, unless somebody took it away. */
static csn_status finish_parked(struct apply *a, const char *result) {
    bool mine = false;
    csn_status st =
        sqlite_do(a->c,
                  "INSERT INTO consumer_inbox(consumer_name, event_id, processed_at, "
                  "received_at, digest, aggregate_type, "
                  "aggregate_id, entity_version, event_type, broker_part, broker_pos, state, "
                  "verdict, result) "
                  "VALUES (?1, ?2, ?3, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13) "
                  "ON CONFLICT (consumer_name, event_id) DO UPDATE SET processed_at = ?3, "
                  "state = ?11, verdict = ?12, result = ?13, "
                  "error = NULL, attempts = attempts + 1",
                  SQL_VALUES(INBOX_VALUES(a->c, a->consumer, &a->m, a->digest, false),
                             sql_str(a->item->verdict == CSN_REFUSED ? "refused" : "done"),
                             sql_str(verdict_name(a->item->verdict)), sql_str(result)),
                  a->err);
    if (st == CSN_OK)
        st = sqlite_end_work(a->c, a->consumer, &a->m, a->op->apply.token, &mine, a->err);
    if (st == CSN_OK && !mine)
        st = error_set(a->err, CSN_FATAL, ERR_HANDLER_TX,
                       "apply: the work row went away under the handler");
    return st;
}

/* The predecessor that the key's head waits for may be this one. */
static csn_status wake_early(struct apply *a) {
    if (!a->parked || a->head <= (int64_t)a->m.version)
        return CSN_OK;
    return sqlite_do(
        a->c,
        "UPDATE consign_work SET next_attempt_at = ?5 WHERE consumer_name = ?1 AND aggregate_type "
        "= ?2 AND "
        "aggregate_id = ?3 AND aggregate_version = ?4 AND status = 'pending' AND waits_for = 3",
        SQL_VALUES(sql_str(a->consumer), sql_bytes(a->m.aggregate_type),
                   sql_bytes(a->m.aggregate_id), sql_int(a->head), sql_int(a->c->now)),
        a->err);
}

static csn_status finish(struct apply *a, uint32_t emitted) {
    char *result = NULL;
    const char *summary = a->op->apply.handler->application ? sqlite_summary(a->c) : NULL;
    csn_status st = result_json(a->item, summary, emitted, &result, a->err);
    if (st == CSN_OK)
        st = a->broker ? finish_new(a, result) : finish_parked(a, result);
    free(result);
    if (st == CSN_OK && a->broker)
        st = wake_early(a);
    a->op->apply.emitted += emitted;
    return st;
}

/* What the policy of the event's type says before anything runs: *ret_run, or the answer stands in
 * the item. */
static csn_status ask_policy(struct apply *a, const struct order_rule *r, struct sqlite_entity *e,
                             bool *ret_run) {
    csn_status st = sqlite_entity_read(a->c, a->consumer, &a->m, r, e, a->err);
    if (st != CSN_OK)
        return st;
    enum order_says says = order_decide(r, &e->entity, a->m.version);
    *ret_run = says == ORDER_RUN || a->item->expired;
    if (!*ret_run)
        order_answer(r, &e->entity, bytes_of(e->ahead), &a->m, says, a->item);
    return CSN_OK;
}

static csn_status run_handler(struct apply *a, uint32_t *ret_emitted) {
    csn_status st = sqlite_failpoint(FAIL_APPLY_INSERTED, a->err);
    if (st == CSN_OK)
        st = sqlite_handle(a->c, a->op, &a->m, a->item, ret_emitted);
    return st == CSN_OK ? sqlite_failpoint(FAIL_APPLY_HANDLED, a->err) : st;
}

/* Asks the policy, runs the handler. *ret_keep: what was written stays. */
static csn_status handle(struct apply *a, bool *ret_keep) {
    const struct order *order = a->op->apply.order;
    const struct order_rule *rule = order ? order_rule_for(order, a->m.event_type) : NULL;
    struct sqlite_entity entity;
    uint32_t emitted = 0;
    bool run = true;
    csn_status st = order ? ask_policy(a, rule, &entity, &run) : CSN_OK;
    if (st == CSN_OK && run)
        st = run_handler(a, &emitted);
    if (st != CSN_OK)
        return st;
    a->item->out = APPLY_VERDICT;
    *ret_keep = commits(a->item->verdict);
    if (*ret_keep && order)
        st = sqlite_entity_write(a->c, a->consumer, &a->m, rule, &entity, a->item->verdict, a->err);
    if (*ret_keep && st == CSN_OK)
        return finish(a, emitted);
    stop_key(a);
    return st;
}

static csn_status behind(struct apply *a, bool *ret_keep) {
    a->item->out = APPLY_BEHIND;
    sqlite_say(a->item, ERR_KEY_BLOCKED, NULL);
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
        st = sqlite_parked_head(a->c, a->consumer, &a->m, &a->parked, &a->head, a->err);
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
        return sqlite_end_work(a->c, a->consumer, &a->m, a->op->apply.token, &mine, a->err);
    }
    return key_stopped(a) ? behind(a, ret_keep) : handle(a, ret_keep);
}

/* One message inside its savepoint. */
static csn_status apply_one(struct apply *a) {
    bool keep = true;
    csn_status st = sqlite_savepoint(a->c, "SAVEPOINT csn_event", a->err);
    if (st == CSN_OK)
        st = a->broker ? apply_delivery(a, &keep) : apply_parked(a, &keep);
    if (st == CSN_OK && !keep)
        st = sqlite_savepoint(a->c, "ROLLBACK TO csn_event", a->err);
    return st == CSN_OK ? sqlite_savepoint(a->c, "RELEASE csn_event", a->err) : st;
}

static void begin_item(struct apply *a, uint32_t i, char id[DIGEST_ID_SIZE]) {
    a->item = &a->op->apply.item[i];
    a->item->out = APPLY_NONE;
    a->item->verdict = CSN_DONE;
    a->item->code = 0;
    a->item->text[0] = 0;
    a->m = a->op->batch->msg[a->item->msg];
    a->m.id = sqlite_inbox_id(a->m.id, id);
    a->parked = false;
    message_digest(&a->m, a->digest);
}

/* The process lives: what it had in hand did not kill it. One that was not run for its deaths stays
 * under suspicion until it is set aside. */
static csn_status let_go(struct apply *a) {
    struct sqlite_conn *c = a->c;
    csn_status st = sqlite_hand_give(c, a->consumer, a->err);
    bool alone = c->deaths > 0 && c->deaths < DEATHS_MAX;
    return st == CSN_OK && alone ? sqlite_hand_forgive(c, a->consumer, a->m.id, a->err) : st;
}

/* Functions could end the transaction and begin another; SQL handlers are not let. A savepoint keeps
 * the first content of every page that is changed under it, so one round the batch has its price. */
static bool may_swap(const struct op *op) {
    return !op->apply.handler->sql;
}

/* The savepoint round the batch, one() for each message in it. */
static csn_status each(struct sqlite_conn *c, struct op *op, csn_status (*one)(struct apply *a)) {
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
    csn_status st = CSN_OK;
    if (may_swap(op))
        st = sqlite_savepoint(c, "SAVEPOINT csn_batch", a.err);
    /* The wait for the lock is over, and was not the handlers'. */
    c->deadline = sqlite_after(sqlite_steady(), c->given);
    uint32_t n = sqlite_hand_wanted(op) ? c->in_hand : op->apply.n;
    for (uint32_t i = 0; i < n && st == CSN_OK; i++) {
        begin_item(&a, i, id);
        st = one(&a);
    }
    for (uint32_t i = n; i < op->apply.n; i++)
        op->apply.item[i].out = APPLY_NONE;
    if (st == CSN_OK && sqlite_hand_wanted(op))
        st = let_go(&a);
    if (st == CSN_OK && may_swap(op))
        st = sqlite_savepoint(c, "RELEASE csn_batch", a.err);
    for (uint32_t i = 0; i < op->apply.n && st != CSN_OK; i++)
        op->apply.item[i].out = APPLY_NONE;
    return st;
}

csn_status sqlite_apply(struct sqlite_conn *c, struct op *op) {
    return each(c, op, apply_one);
}

/* At most once: the handler alone, no row of ours. */
static csn_status try_one(struct apply *a) {
    uint32_t emitted = 0;
    csn_status st = sqlite_savepoint(a->c, "SAVEPOINT csn_event", a->err);
    if (st == CSN_OK)
        st = sqlite_handle(a->c, a->op, &a->m, a->item, &emitted);
    if (st != CSN_OK)
        return st;
    a->item->out = APPLY_VERDICT;
    if (commits(a->item->verdict))
        a->op->apply.emitted += emitted;
    else
        st = sqlite_savepoint(a->c, "ROLLBACK TO csn_event", a->err);
    return st == CSN_OK ? sqlite_savepoint(a->c, "RELEASE csn_event", a->err) : st;
}

csn_status sqlite_try(struct sqlite_conn *c, struct op *op) {
    return each(c, op, try_one);
}
