/* sqlite_hand.c: which events an application's function has in hand, so that one that kills its
 * process does not take its neighbours along for ever.
 *
 *   before a batch runs     consign_in_hand := its ids             a commit of its own, not synced: it must
 *                                                                  outlive the process, not the machine
 *   in the batch's commit   the row is deleted
 *   a row is left behind    its ids become suspects, deaths + 1    by whoever gets these events next
 *   a suspect               runs alone, in a batch of one; at the third death it is poison, not run
 *
 * What always holds: a function runs only for events that such a row names. A holder that lives and
 * was only overtaken is taken for dead; that costs its events a batch of their own and one death of
 * three. */
#include "base/error.h"
#include "store/sqlite_inbox.h"
#include <jansson.h>
#include <stdlib.h>

enum { HOLDERS_MAX = 64, STALE_AFTER = 7 /* days */ };

bool sqlite_hand_wanted(const struct op *op) {
    return op->kind == OP_APPLY && op->apply.handler->application;
}

/* The hold of one connection, made when it is first needed. */
static const char *holder(struct sqlite_conn *c) {
    if (!c->holder[0]) {
        struct prng chance;
        prng_seed_full(&chance, (const uint64_t[4]){c->chance, (uint64_t)sqlite_steady(),
                                                    (uint64_t)(uintptr_t)c, (uint64_t)c->now});
        prng_token(&chance, c->holder);
    }
    return c->holder;
}

/* ---- what others left behind ---- */

struct left {
    char holder[TOKEN_SIZE];
    json_t *events;
};

static csn_status read_left(struct sqlite_conn *c, const struct op *op, struct left *left,
                            uint32_t *ret_n, csn_error *err) {
    bool row = false;
    sqlite3_stmt *s = sqlite_ask(
        c, "SELECT holder, events FROM consign_in_hand WHERE consumer_name = ?1 AND holder <> ?2",
        SQL_VALUES(sql_str(op->apply.consumer), sql_str(holder(c))), &row, err);
    int rc = row ? SQLITE_ROW : SQLITE_DONE;
    if (!s)
        return err->status;
    for (; rc == SQLITE_ROW && *ret_n < HOLDERS_MAX; rc = sqlite3_step(s)) {
        struct left *l = &left[*ret_n];
        const char *text = (const char *)sqlite3_column_text(s, 1);
        copy_text(l->holder, sizeof l->holder, (const char *)sqlite3_column_text(s, 0));
        l->events = text ? json_loads(text, 0, NULL) : NULL;
        if (l->events)
            ++*ret_n;
    }
    csn_status st = rc == SQLITE_ROW || rc == SQLITE_DONE ? CSN_OK : sqlite_failed(c, "hand", err);
    sqlite3_reset(s);
    return st;
}

static csn_status suspect(struct sqlite_conn *c, const struct op *op, csn_bytes id,
                          csn_error *err) {
    return sqlite_do(c,
                     "INSERT INTO consign_suspects(consumer_name, event_id, deaths, last_at) "
                     "VALUES (?1, ?2, 1, ?3) ON CONFLICT (consumer_name, event_id) DO UPDATE SET "
                     "deaths = deaths + 1, last_at = ?3",
                     SQL_VALUES(sql_str(op->apply.consumer), sql_bytes(id), sql_int(c->now)), err);
}

/* Takes out of the list what is in this batch; *ret_some: there was some. */
static csn_status accuse(struct sqlite_conn *c, const struct op *op, struct left *l, bool *ret_some,
                         csn_error *err) {
    char buffer[DIGEST_ID_SIZE];
    csn_status st = CSN_OK;
    for (uint32_t i = 0; i < op->apply.n && st == CSN_OK; i++) {
        csn_bytes id = sqlite_inbox_id(op->batch->msg[op->apply.item[i].msg].id, buffer);
        for (size_t k = json_array_size(l->events); k-- > 0 && st == CSN_OK;) {
            if (!bytes_is(id, json_string_value(json_array_get(l->events, k))))
                continue;
            json_array_remove(l->events, k);
            *ret_some = true;
            st = suspect(c, op, id, err);
        }
    }
    return st;
}

static csn_status write_left(struct sqlite_conn *c, const struct op *op, const struct left *l,
                             csn_error *err) {
    char *text = json_dumps(l->events, JSON_COMPACT);
    if (!text)
        return error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "hand: out of memory");
    csn_status st =
        json_array_size(l->events) == 0
            ? sqlite_do(c, "DELETE FROM consign_in_hand WHERE consumer_name = ?1 AND holder = ?2",
                        SQL_VALUES(sql_str(op->apply.consumer), sql_str(l->holder)), err)
            : sqlite_do(c,
                        "UPDATE consign_in_hand SET events = ?3 WHERE consumer_name = ?1 AND "
                        "holder = ?2",
                        SQL_VALUES(sql_str(op->apply.consumer), sql_str(l->holder), sql_str(text)),
                        err);
    free(text);
    return st;
}

/* Events that never came again (cancelled by a person, say) leave rows that nobody would end. */
static csn_status sweep(struct sqlite_conn *c, const struct op *op, csn_error *err) {
    return sqlite_do(c, "DELETE FROM consign_in_hand WHERE consumer_name = ?1 AND since < ?2",
                     SQL_VALUES(sql_str(op->apply.consumer),
                                sql_int(c->now - (csn_usec)STALE_AFTER * 86400 * 1000000)),
                     err);
}

static csn_status accuse_all(struct sqlite_conn *c, const struct op *op, csn_error *err) {
    struct left left[HOLDERS_MAX];
    uint32_t n = 0;
    csn_status st = read_left(c, op, left, &n, err);
    for (uint32_t i = 0; i < n; i++) {
        bool some = false;
        if (st == CSN_OK)
            st = accuse(c, op, &left[i], &some, err);
        if (st == CSN_OK && some)
            st = write_left(c, op, &left[i], err);
        json_decref(left[i].events);
    }
    return st == CSN_OK && n > 0 ? sweep(c, op, err) : st;
}

/* ---- what is taken ---- */

static csn_status deaths_of(struct sqlite_conn *c, const struct op *op, uint32_t i, uint32_t *ret,
                            csn_error *err) {
    char buffer[DIGEST_ID_SIZE];
    bool row = false;
    sqlite3_stmt *s = sqlite_ask(
        c, "SELECT deaths FROM consign_suspects WHERE consumer_name = ?1 AND event_id = ?2",
        SQL_VALUES(sql_str(op->apply.consumer),
                   sql_bytes(sqlite_inbox_id(op->batch->msg[op->apply.item[i].msg].id, buffer))),
        &row, err);
    if (!s)
        return err->status;
    *ret = row ? (uint32_t)sqlite3_column_int(s, 0) : 0;
    sqlite3_reset(s);
    return CSN_OK;
}

/* A suspect is alone; what comes before the first one is a batch. */
static csn_status how_many(struct sqlite_conn *c, const struct op *op, csn_error *err) {
    bool any = false;
    csn_status st =
        sqlite_there(c, "SELECT 1 FROM consign_suspects WHERE consumer_name = ?1 LIMIT 1",
                     SQL_VALUES(sql_str(op->apply.consumer)), &any, err);
    c->in_hand = op->apply.n;
    c->deaths = 0;
    for (uint32_t i = 0; any && i < op->apply.n && st == CSN_OK; i++) {
        uint32_t deaths = 0;
        st = deaths_of(c, op, i, &deaths, err);
        if (deaths == 0)
            continue;
        c->in_hand = i ? i : 1;
        c->deaths = i ? 0 : deaths;
        break;
    }
    return st;
}

static csn_status write_mine(struct sqlite_conn *c, const struct op *op, csn_error *err) {
    char buffer[DIGEST_ID_SIZE];
    json_t *list = json_array();
    for (uint32_t i = 0; i < c->in_hand; i++) {
        csn_bytes id = sqlite_inbox_id(op->batch->msg[op->apply.item[i].msg].id, buffer);
        json_array_append_new(list, json_stringn(id.data, id.size));
    }
    char *text = json_dumps(list, JSON_COMPACT);
    bool whole = text && json_array_size(list) == c->in_hand;
    json_decref(list);
    csn_status st =
        whole ? sqlite_do(c,
                          "INSERT INTO consign_in_hand(consumer_name, holder, since, events) "
                          "VALUES (?1, ?2, ?3, ?4) ON CONFLICT (consumer_name, holder) DO UPDATE "
                          "SET since = ?3, events = ?4",
                          SQL_VALUES(sql_str(op->apply.consumer), sql_str(holder(c)),
                                     sql_int(c->now), sql_str(text)),
                          err)
              : error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "hand: out of memory");
    free(text);
    return st;
}

csn_status sqlite_hand_take(struct sqlite_conn *c, const struct op *op, csn_error *err) {
    csn_status st = accuse_all(c, op, err);
    if (st == CSN_OK)
        st = how_many(c, op, err);
    return st == CSN_OK ? write_mine(c, op, err) : st;
}

/* ---- what is let go ---- */

csn_status sqlite_hand_forgive(struct sqlite_conn *c, const char *consumer, csn_bytes id,
                               csn_error *err) {
    return sqlite_do(c, "DELETE FROM consign_suspects WHERE consumer_name = ?1 AND event_id = ?2",
                     SQL_VALUES(sql_str(consumer), sql_bytes(id)), err);
}

csn_status sqlite_hand_give(struct sqlite_conn *c, const char *consumer, csn_error *err) {
    return sqlite_do(c, "DELETE FROM consign_in_hand WHERE consumer_name = ?1 AND holder = ?2",
                     SQL_VALUES(sql_str(consumer), sql_str(holder(c))), err);
}

void sqlite_hand_close(struct sqlite_conn *c) {
    csn_error err;
    if (c->holder[0] && !c->broken)
        (void)sqlite_do(c, "DELETE FROM consign_in_hand WHERE holder = ?1",
                        SQL_VALUES(sql_str(c->holder)), &err);
}
