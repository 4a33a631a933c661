/* test_ops.c: what operators may do and what they are told, from rows put in by SQL and checked by
 * SQL. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/dead.h"
#include "cli/event.h"
#include "cli/event_change.h"
#include "cli/lanes.h"
#include "cli/reconcile.h"
#include "cli/status.h"
#include "ops_world.h"

static int set_up(void **state) {
    *state = world_new();
    return 0;
}

static int tear_down(void **state) {
    world_free(*state);
    return 0;
}

/* ---- changes ---- */

static csn_status act(struct world *w, enum change_verb verb, const char *id, bool dry_run,
                      struct change *ret, csn_error *err) {
    struct db *d = NULL;
    *ret = (struct change){.verb = verb,
                           .event_id = id,
                           .reason = "because",
                           .actor = "tester@node",
                           .dry_run = dry_run};
    csn_status st = db_open(w->config.store[0].url, dry_run ? DB_READ_ONLY : 0, &d, err);
    if (st == CSN_OK)
        st = change_apply(d, ret, err);
    db_close(d);
    return st;
}

static const struct {
    const char *status;
    const char *to[CHANGE_NR]; /* retry cancel hold release; NULL: illegal */
} moves[] = {
    {"pending", {NULL, "cancelled", "held", NULL}},
    {"sending", {NULL, NULL, NULL, NULL}},
    {"sent", {NULL, NULL, NULL, NULL}},
    {"unknown", {NULL, "cancelled", "held", NULL}},
    {"waiting", {NULL, "cancelled", "held", NULL}},
    {"failed", {"pending", "cancelled", "held", NULL}},
    {"held", {NULL, "cancelled", "held", "pending"}},
    {"cancelled", {NULL, "cancelled", NULL, NULL}},
    {"hand-made", {NULL, NULL, NULL, NULL}},
};

/* Every verb on every state: the move of the table, or CSN-8003 that names the state, and then no
 * byte is different. */
static void each_move_is_the_tables_or_is_refused(void **state) {
    struct world *w = *state;
    struct change c;
    uint8_t before[32], after[32];
    char id[40];
    for (size_t i = 0; i < ARRAY_LEN(moves); i++)
        for (int v = 0; v < CHANGE_NR; v++) {
            csn_error err = {0};
            const char *to = moves[i].to[v];
            snprintf(id, sizeof id, "E-%zu-%d", i, v);
            put_event(w->db[0], id, "OrderCreated", id, 1, moves[i].status);
            world_digest(w, before);
            csn_status st = act(w, (enum change_verb)v, id, true, &c, &err);
            world_digest(w, after);
            assert_memory_equal(before, after, sizeof before);
            assert_int_equal(st, to ? CSN_OK : CSN_REJECTED);
            st = act(w, (enum change_verb)v, id, false, &c, &err);
            char text[200];
            snprintf(text, sizeof text, "SELECT status FROM outbox_events WHERE event_id = '%s'",
                     id);
            assert_true(says(w->db[0], text, to ? to : moves[i].status));
            if (to) {
                assert_int_equal(st, CSN_OK);
                assert_int_equal(c.changed, strcmp(to, moves[i].status) != 0);
                continue;
            }
            world_digest(w, after);
            assert_memory_equal(before, after, sizeof before);
            assert_int_equal(st, CSN_REJECTED);
            assert_int_equal(err.code, ERR_ILLEGAL_MOVE);
            assert_non_null(strstr(err.text, moves[i].status));
            assert_true(strlen(change_fits(moves[i].status)) > 0);
        }
}

static void an_act_is_audited_once_and_repeating_it_does_nothing(void **state) {
    struct world *w = *state;
    struct change c;
    csn_error err = {0};
    put_event(w->db[0], "E-1", "OrderCreated", "9001", 1, "failed");
    sql(w->db[0], "UPDATE outbox_events SET failures = 8, tries = 3, first_failed_at = 5, "
                  "last_error = 'nack', next_attempt_at = 7");
    for (int i = 0; i < 2; i++) {
        assert_int_equal(act(w, CHANGE_RETRY, "E-1", false, &c, &err), CSN_OK);
        assert_int_equal(c.changed, i == 0);
    }
    assert_int_equal(ask(w->db[0], "SELECT count(*) FROM outbox_events WHERE status = 'pending' "
                                   "AND tries = 0 AND failures = 0"
                                   " AND first_failed_at IS NULL AND last_error = 'nack' AND "
                                   "next_attempt_at > 1700000000000000"),
                     1);
    assert_int_equal(
        ask(w->db[0],
            "SELECT count(*) FROM consign_audit WHERE action = 'event.retry' AND target = 'E-1' AND"
            " reason = 'because' AND actor = 'tester@node' AND json_extract(before, '$.failures') "
            "= 8"
            " AND json_extract(after, '$.status') = 'pending'"),
        1);
    assert_int_equal(act(w, CHANGE_HOLD, "E-1", false, &c, &err), CSN_OK);
    assert_int_equal(act(w, CHANGE_RELEASE, "E-1", false, &c, &err), CSN_OK);
    assert_int_equal(act(w, CHANGE_RELEASE, "E-1", false, &c, &err), CSN_OK);
    assert_false(c.changed);
    assert_int_equal(act(w, CHANGE_RETRY, "E-1", false, &c, &err),
                     CSN_REJECTED); /* the last act was another one */
    assert_int_equal(ask(w->db[0], "SELECT count(*) FROM consign_audit"), 3);
    int64_t bad = 0;
    struct db *d = NULL;
    assert_int_equal(db_open(w->config.store[0].url, DB_READ_ONLY, &d, &err), CSN_OK);
    assert_int_equal(audit_verify(d, &bad, &err), CSN_OK);
    db_close(d);
}

static void an_event_that_is_not_there_is_not_found(void **state) {
    struct world *w = *state;
    struct change c;
    csn_error err = {0};
    assert_int_equal(act(w, CHANGE_CANCEL, "E-none", false, &c, &err), CSN_REJECTED);
    assert_int_equal(err.code, ERR_NOT_FOUND);
}

static void add_followers(struct world *w, int from, int to, const char *key) {
    char text[700];
    snprintf(text, sizeof text,
             "WITH RECURSIVE n(i) AS (SELECT %d UNION ALL SELECT i + 1 FROM n WHERE i < %d) INSERT "
             "INTO outbox_events(event_id,"
             " aggregate_type, aggregate_id, aggregate_version, event_type, payload, status, "
             "waits_for) SELECT '%s-' || i, 'order',"
             " '%s', i, 'OrderCreated', '{}', 'waiting', 1 FROM n",
             from, to, key, key);
    sql(w->db[0], text);
}

/* The head goes, then the row behind it: a thousand followers at a time, lowest first. Another key
 * is not touched. */
static void cancelling_a_head_releases_its_followers_in_two_steps(void **state) {
    struct world *w = *state;
    struct change c;
    csn_error err = {0};
    put_event(w->db[0], "K-1", "OrderCreated", "K", 1, "failed");
    add_followers(w, 2, 1501, "K");
    put_event(w->db[0], "L-1", "OrderCreated", "L", 1, "failed");
    add_followers(w, 2, 5, "L");
    assert_int_equal(act(w, CHANGE_CANCEL, "K-1", true, &c, &err), CSN_OK);
    assert_int_equal(c.released, 1000);
    assert_int_equal(ask(w->db[0], "SELECT count(*) FROM outbox_events WHERE status = 'pending'"),
                     0);
    assert_int_equal(act(w, CHANGE_CANCEL, "K-1", false, &c, &err), CSN_OK);
    assert_int_equal(c.released, 1000);
    assert_int_equal(
        ask(w->db[0],
            "SELECT count(*) FROM outbox_events WHERE status = 'pending' AND waits_for = 0"),
        1000);
    assert_int_equal(
        ask(w->db[0], "SELECT max(aggregate_version) FROM outbox_events WHERE status = 'pending'"),
        1001);
    assert_int_equal(ask(w->db[0], "SELECT min(aggregate_version) FROM outbox_events WHERE status "
                                   "= 'waiting' AND aggregate_id = 'K'"),
                     1002);
    assert_int_equal(act(w, CHANGE_CANCEL, "K-2", false, &c, &err), CSN_OK);
    assert_int_equal(c.released, 500);
    assert_int_equal(
        ask(w->db[0],
            "SELECT count(*) FROM outbox_events WHERE status = 'waiting' AND aggregate_id = 'K'"),
        0);
    assert_int_equal(
        ask(w->db[0],
            "SELECT count(*) FROM outbox_events WHERE status = 'waiting' AND aggregate_id = 'L'"),
        4);
}

/* A row in the middle ends while its head has not: what is behind it still waits for the head. */
static void cancelling_behind_a_blocked_head_releases_nobody(void **state) {
    struct world *w = *state;
    struct change c;
    csn_error err = {0};
    put_event(w->db[0], "K-1", "OrderCreated", "K", 1, "failed");
    add_followers(w, 2, 4, "K");
    assert_int_equal(act(w, CHANGE_CANCEL, "K-2", false, &c, &err), CSN_OK);
    assert_int_equal(c.released, 0);
    assert_int_equal(ask(w->db[0], "SELECT count(*) FROM outbox_events WHERE status = 'waiting'"),
                     2);
    assert_int_equal(act(w, CHANGE_CANCEL, "K-3", false, &c, &err), CSN_OK);
    assert_int_equal(c.released, 0); /* its neighbour is cancelled, the one before that is failed */
    assert_int_equal(act(w, CHANGE_CANCEL, "K-1", false, &c, &err), CSN_OK);
    assert_int_equal(c.released, 1);
    assert_true(
        says(w->db[0], "SELECT status FROM outbox_events WHERE event_id = 'K-4'", "pending"));
}

static void a_locked_store_is_told_and_nothing_happens(void **state) {
    struct world *w = *state;
    struct change c;
    csn_error err = {0};
    put_event(w->db[0], "E-1", "OrderCreated", "9001", 1, "failed");
    sql(w->db[0], "BEGIN IMMEDIATE");
    assert_int_equal(act(w, CHANGE_RETRY, "E-1", false, &c, &err), CSN_AGAIN);
    assert_int_equal(err.code, ERR_STORE_LOCKED);
    sql(w->db[0], "ROLLBACK");
    assert_true(says(w->db[0], "SELECT status FROM outbox_events", "failed"));
}

static void an_event_is_located_or_it_is_said_why_not(void **state) {
    struct world *w = *state;
    struct legs l;
    struct leg *g = NULL;
    csn_error err = {0};
    put_event(w->db[0], "E-1", "OrderCreated", "9001", 1, "failed");
    put_event(w->db[0], "E-2", "OrderCreated", "9002", 1, "failed");
    put_event(w->db[1], "E-2", "OrderCreated", "9002", 1, "failed");
    legs_open(&l, &w->config, NULL, DB_READ_ONLY);
    assert_int_equal(kit_locate(&l, "E-1", &g, &err), CSN_OK);
    assert_string_equal(g->name, "orders");
    assert_int_equal(kit_locate(&l, "E-2", &g, &err), CSN_INVALID);
    assert_int_equal(err.code, ERR_USAGE);
    assert_int_equal(kit_locate(&l, "E-3", &g, &err), CSN_REJECTED);
    assert_int_equal(err.code, ERR_NOT_FOUND);
    legs_close(&l);
    add_lost_store(w);
    legs_open(&l, &w->config, NULL, DB_READ_ONLY);
    assert_int_equal(kit_locate(&l, "E-1", &g, &err), CSN_OK);
    assert_int_not_equal(kit_locate(&l, "E-3", &g, &err), CSN_OK);
    assert_int_equal(err.code, ERR_STORE_OPEN); /* it may be in the store that cannot be read */
    legs_close(&l);
}

/* ---- lists ---- */

static void lists_are_bounded_and_say_their_window(void **state) {
    struct world *w = *state;
    struct legs l;
    for (int i = 1; i <= 5; i++) {
        char id[20];
        snprintf(id, sizeof id, "F-%d", i);
        put_event(w->db[0], id, "OrderCreated", id, 1,
                  i < 4    ? "failed"
                  : i == 4 ? "sent"
                           : "my-own");
    }
    legs_open(&l, &w->config, NULL, DB_READ_ONLY);
    json_t *o = event_list_collect(&l, "failed", 2);
    assert_int_equal(json_array_size(json_object_get(o, "items")), 2);
    assert_string_equal(row_text(json_object_get(o, "total"), "value"), "3");
    assert_true(json_is_true(json_object_get(json_object_get(o, "total"), "exact")));
    assert_string_equal(row_text(json_object_get(o, "window"), "from"), "2023-11-14T22:13:20.000Z");
    json_decref(o);
    o = event_list_collect(&l, "strange", 10);
    assert_string_equal(row_text(json_array_get(json_object_get(o, "items"), 0), "event_id"),
                        "F-5");
    json_decref(o);
    o = event_list_collect(&l, "sent", 10);
    assert_int_equal(json_array_size(json_object_get(o, "items")), 1);
    assert_true(json_is_false(
        json_object_get(json_object_get(o, "total"), "exact"))); /* a window, not the table */
    json_decref(o);
    o = event_list_collect(&l, "held", 10);
    assert_true(json_is_array(json_object_get(o, "items")));
    assert_string_equal(row_text(json_object_get(o, "total"), "value"), "0");
    json_decref(o);
    o = event_list_collect(&l, NULL, 3);
    assert_int_equal(json_array_size(json_object_get(o, "items")), 3);
    json_decref(o);
    legs_close(&l);
    assert_false(event_list_status("my-own"));
}

static size_t found(struct world *w, const char *text, int64_t window) {
    struct legs l;
    legs_open(&l, &w->config, NULL, DB_READ_ONLY);
    json_t *o = event_find_collect(&l, text, 50, window);
    size_t n = json_array_size(json_object_get(o, "items"));
    assert_true(json_array_size(json_object_get(json_object_get(o, "searched"), "whole")) == 4);
    json_decref(o);
    legs_close(&l);
    return n;
}

static void events_are_found_by_every_name_they_have(void **state) {
    struct world *w = *state;
    put_event(w->db[0], "E-1", "OrderCreated", "9001", 1, "sent");
    sql(w->db[0], "UPDATE outbox_events SET traceparent = "
                  "'00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01',"
                  " correlation_id = 'C-7', causation_id = 'cause'");
    put_event(w->db[0], "E-2", "OrderCreated", "9001", 2, "sent");
    sql(w->db[1], "INSERT INTO consumer_inbox(consumer_name, event_id, state) VALUES ('stock', "
                  "'E-1', 'done')");
    assert_int_equal(found(w, "E-1", 100), 2); /* its row, and the inbox row */
    assert_int_equal(found(w, "9001", 100), 2);
    assert_int_equal(found(w, "C-7", 100), 1);
    assert_int_equal(found(w, "cause", 100), 1);
    assert_int_equal(found(w, "0af7651916cd43dd8448eb211c80319c", 100), 1);
    assert_int_equal(found(w, "C-7", 1), 0); /* outside of the window, which the answer states */
    assert_int_equal(found(w, "nothing", 100), 0);
}

static void put_letter(struct world *w, const char *id, const char *class, int code) {
    char text[500];
    snprintf(text, sizeof text,
             "INSERT INTO consign_dead_letters(consumer_name, event_id, class, code, error, "
             "aggregate_type, aggregate_id,"
             " aggregate_version, event_type, schema_version, payload, attempts, failures, "
             "first_failed_at, last_failed_at, dead_at)"
             " VALUES ('stock', '%s', '%s', %d, 'bad', 'order', '1', 1, 'OrderCreated', 1, "
             "'{\"card\":\"4111\"}', 1, 1, 5, 6, 7)",
             id, class, code);
    sql(w->db[1], text);
}

static void dead_letters_are_grouped_and_their_payload_is_masked(void **state) {
    struct world *w = *state;
    struct legs l;
    put_letter(w, "E-1", "poison", 4003);
    put_letter(w, "E-2", "poison", 4003);
    put_letter(w, "E-3", "conflict", 4005);
    legs_open(&l, &w->config, NULL, DB_READ_ONLY);
    json_t *o = dead_list_collect(&l, "open", NULL, NULL, 2);
    assert_int_equal(json_array_size(json_object_get(o, "items")), 2);
    assert_int_equal(json_array_size(json_object_get(o, "groups")), 2);
    assert_string_equal(row_text(json_array_get(json_object_get(o, "groups"), 0), "letters"), "2");
    assert_string_equal(row_text(json_array_get(json_object_get(o, "groups"), 0), "code"),
                        "CSN-4003");
    char *dump = json_dumps(o, 0);
    assert_null(strstr(dump, "4111"));
    free(dump);
    json_decref(o);
    o = dead_list_collect(&l, "open", "stock", "conflict", 50);
    assert_int_equal(json_array_size(json_object_get(o, "items")), 1);
    json_decref(o);
    o = dead_list_collect(&l, "open", "other", NULL, 50);
    assert_int_equal(json_array_size(json_object_get(o, "items")), 0);
    json_decref(o);
    legs_close(&l);
}

static void showing_a_payload_is_audited(void **state) {
    struct world *w = *state;
    json_t *payload = NULL;
    csn_error err = {0};
    put_letter(w, "E-1", "poison", 4003);
    assert_int_equal(kit_reveal(w->config.store[1].url, "dead.payload", KIT_INT(1), "dead.payload",
                                "E-1", "call 42", &payload, &err),
                     CSN_OK);
    assert_string_equal(json_string_value(payload), "{\"card\":\"4111\"}");
    json_decref(payload);
    payload = NULL;
    assert_int_equal(ask(w->db[1], "SELECT count(*) FROM consign_audit WHERE action = "
                                   "'dead.payload' AND target = 'E-1' AND"
                                   " reason = 'call 42'"),
                     1);
    assert_int_equal(kit_reveal(w->config.store[1].url, "dead.payload", KIT_INT(9), "dead.payload",
                                "E-9", NULL, &payload, &err),
                     CSN_REJECTED);
    assert_null(payload);
    assert_int_equal(ask(w->db[1], "SELECT count(*) FROM consign_audit"), 1);
}

/* ---- status, lanes ---- */

static bool needs(const json_t *o, const char *what) {
    size_t i;
    json_t *n;
    json_array_foreach(json_object_get(o, "needs"), i, n) {
        if (strcmp(row_text(n, "what"), what) == 0)
            return true;
    }
    return false;
}

static json_t *status(struct world *w) {
    struct legs l;
    legs_open(&l, &w->config, NULL, DB_READ_ONLY);
    json_t *o = status_collect(&l);
    legs_close(&l);
    return o;
}

static void dispatcher_is_alive(struct world *w) {
    for (int i = 0; i < 2; i++)
        sql(w->db[i], "INSERT INTO consign_members(boot, label, started_at, heartbeat_at, "
                      "lease_until, counters) VALUES ('b', 'node-a', 1,"
                      " 1, 9000000000000000, '{\"sent\":\"5\"}'), ('old', 'node-a', 1, 1, 2, "
                      "'{\"sent\":\"7\",\"claims\":\"1\"}');"
                      "INSERT INTO consign_lanes(name, lane, owner, epoch, lease_until, taken_at) "
                      "VALUES ('outbox', 0, 'b', 3,"
                      " 9000000000000000, 5)");
    sql(w->db[0], "INSERT INTO consign_lanes(name, lane, owner, epoch, lease_until, taken_at) "
                  "VALUES ('sub/stock', 0, 'b', 1,"
                  " 9000000000000000, 5), ('sub/stock', 1, NULL, 4, NULL, 5), ('sub/orders', 0, "
                  "'gone', 1, 7, 5)");
}

static void a_quiet_house_is_healthy(void **state) {
    struct world *w = *state;
    dispatcher_is_alive(w);
    json_t *o = status(w);
    assert_true(json_is_true(json_object_get(o, "healthy")));
    assert_string_equal(row_text(json_object_get(o, "counters"), "sent"), "24");
    assert_int_equal(json_array_size(json_object_get(o, "channels")), 4);
    assert_int_equal(row_int(json_array_get(json_object_get(o, "stores"), 0), "members_alive"), 1);
    json_decref(o);
}

static void each_trouble_is_a_need(void **state) {
    static const struct {
        int db;
        const char *change, *what;
    } cases[] = {
        {0, "UPDATE outbox_events SET status = 'failed'", "failed"},
        {0, "UPDATE outbox_events SET status = 'my-own'", "strange_status"},
        {0, "UPDATE outbox_events SET status = 'pending'", "late"},
        {0, "UPDATE outbox_events SET status = 'waiting', waits_for = 1", "waits_for_nobody"},
        {0,
         "UPDATE outbox_events SET status = 'sent'; INSERT INTO consign_queue(subscription, part, "
         "event_id, aggregate_type,"
         " aggregate_id, aggregate_version, event_type, schema_version, payload, created_at, "
         "published_at) VALUES ('orders', 0, 'E-1',"
         " '', 'x', 1, 'InventoryReserved', 1, '{}', 1, 1)",
         "no_consumer"},
        {0, "UPDATE consign_queue SET subscription = 'stock'", "consumer_late"},
        {0,
         "DELETE FROM consign_queue; UPDATE consign_lanes SET lease_until = 3; UPDATE "
         "outbox_events SET status = 'pending',"
         " next_attempt_at = (unixepoch() - 1) * 1000000",
         "no_dispatcher"},
        {1,
         "INSERT INTO consumer_inbox(consumer_name, event_id, state) VALUES ('stock', 'E-8', "
         "'conflict')",
         "conflict"},
        {1,
         "INSERT INTO consign_dead_letters(consumer_name, event_id, class, aggregate_type, "
         "aggregate_id, aggregate_version, event_type,"
         " schema_version, payload, attempts, failures, first_failed_at, last_failed_at, dead_at) "
         "VALUES ('stock', 'E-8', 'poison', '',"
         " '1', 1, 'T', 1, '{}', 1, 1, 1, 1, 1)",
         "dead_letters"},
    };
    struct world *w = *state;
    dispatcher_is_alive(w);
    put_event(w->db[0], "E-1", "OrderCreated", "9001", 1, "sent");
    json_t *o = status(w);
    assert_true(json_is_true(json_object_get(o, "healthy")));
    json_decref(o);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        sql(w->db[cases[i].db], cases[i].change);
        o = status(w);
        if (!needs(o, cases[i].what))
            fail_msg("no need %s", cases[i].what);
        assert_true(json_is_false(json_object_get(o, "healthy")));
        json_decref(o);
    }
    add_lost_store(w);
    o = status(w);
    assert_true(needs(o, "store_not_readable"));
    json_decref(o);
}

#define COPY(consumer)                                                                             \
    "INSERT INTO consign_queue(subscription, part, event_id, aggregate_type, aggregate_id, "       \
    "aggregate_version, event_type, schema_version, payload, created_at, published_at) VALUES "    \
    "('" consumer "', 0, 'E-1', '', 'x', 1, 'T', 1, '{}', 1, unixepoch() * 1000000);"
#define PARKED(consumer, id, status)                                                               \
    "INSERT INTO consign_work(consumer_name, event_id, aggregate_type, aggregate_id, "             \
    "aggregate_version, event_type, payload, status, next_attempt_at, created_at) VALUES "         \
    "('" consumer "', '" id "', '', 'x', 1, 'T', '{}', '" status "', 1, 1);"

/* What is said of a need, or that there is none. */
static void expect_need(struct world *w, const char *what, const char *const parts[3]) {
    json_t *o = status(w), *n;
    const char *text = NULL;
    size_t i;
    json_array_foreach(json_object_get(o, "needs"), i, n) {
        if (strcmp(row_text(n, "what"), what) == 0)
            text = row_text(n, "text");
    }
    if (!text != !parts)
        fail_msg("%s: %s", what, text ? text : "not said");
    for (int k = 0; parts && k < 3; k++)
        if (!strstr(text, parts[k]))
            fail_msg("no \"%s\" in: %s", parts[k], text);
    assert_true(!parts || json_is_false(json_object_get(o, "healthy")));
    json_decref(o);
}

/* Nothing is published until the old copies are acknowledged. */
static void other_partitions_than_the_binding_has_are_named(void **state) {
    struct world *w = *state;
    dispatcher_is_alive(w);
    sql(w->db[0], "INSERT INTO consign_bindings(subscription, match, partitions, declared_at) "
                  "VALUES ('stock', 'OrderCreated', 4, 1)");
    expect_need(w, "partitions_differ", NULL);
    sql(w->db[0], COPY("stock"));
    expect_need(w, "partitions_differ", (const char *const[]){"stock", "4", "8"});
    w->config.subscription[0].partitions = 4;
    expect_need(w, "partitions_differ", NULL);
}

/* Its binding takes a copy of every event that matches, and nobody acknowledges them. */
static void a_subscription_that_was_removed_is_named(void **state) {
    struct world *w = *state;
    dispatcher_is_alive(w);
    sql(w->db[0], "INSERT INTO consign_bindings(subscription, match, partitions, declared_at) "
                  "VALUES ('stock', 'OrderCreated', 8, 1)");
    expect_need(w, "binding_left", NULL);
    sql(w->db[0], "INSERT INTO consign_bindings(subscription, match, partitions, declared_at) "
                  "VALUES ('audit', '*', 8, 1)");
    sql(w->db[0], COPY("audit") COPY("audit") COPY("audit"));
    sql(w->db[1], PARKED("audit", "E-7", "pending") PARKED("audit", "E-8", "waiting"));
    expect_need(w, "binding_left", (const char *const[]){"audit", "3", "2"});
}

static void parked_followers_without_a_head_are_named(void **state) {
    struct world *w = *state;
    dispatcher_is_alive(w);
    sql(w->db[1], PARKED("stock", "E-7", "pending") PARKED("stock", "E-8", "waiting"));
    expect_need(w, "parked_for_nobody", NULL);
    sql(w->db[1], "DELETE FROM consign_work WHERE status = 'pending'");
    expect_need(w, "parked_for_nobody", (const char *const[]){"stock", "1", "head"});
}

static void a_strange_status_is_named_and_left_alone(void **state) {
    struct world *w = *state;
    put_event(w->db[0], "E-1", "OrderCreated", "9001", 1, "SENT!");
    json_t *o = status(w);
    assert_true(needs(o, "strange_status"));
    assert_non_null(
        strstr(row_text(json_array_get(json_object_get(o, "needs"), 0), "text"), "SENT!"));
    assert_true(says(w->db[0], "SELECT status FROM outbox_events", "SENT!"));
    json_decref(o);
}

static void blocked_keys_have_their_head_and_their_number(void **state) {
    struct world *w = *state;
    dispatcher_is_alive(w);
    put_event(w->db[0], "K-1", "OrderCreated", "K", 1, "failed");
    add_followers(w, 2, 8, "K");
    put_event(w->db[0], "L-1", "OrderCreated", "L", 1, "held");
    add_followers(w, 2, 3, "L");
    json_t *o = status(w);
    const json_t *b = json_object_get(o, "blocked");
    assert_int_equal(json_array_size(b), 2);
    assert_string_equal(row_text(json_array_get(b, 0), "head"), "K-1");
    assert_string_equal(row_text(json_array_get(b, 0), "head_status"), "failed");
    assert_string_equal(row_text(json_object_get(json_array_get(b, 0), "followers"), "value"), "7");
    assert_string_equal(row_text(json_array_get(b, 1), "head"), "L-1");
    assert_false(needs(o, "waits_for_nobody"));
    json_decref(o);
}

static void counts_stop_at_ten_thousand(void **state) {
    struct world *w = *state;
    put_event(w->db[0], "K-1", "OrderCreated", "K", 1, "failed");
    add_followers(w, 2, 10002, "K");
    json_t *o = status(w);
    const json_t *n = json_object_get(json_array_get(json_object_get(o, "channels"), 0), "waiting");
    assert_string_equal(row_text(n, "value"), "10000");
    assert_true(json_is_false(json_object_get(n, "exact")));
    json_decref(o);
}

static void lanes_tell_owner_epoch_and_lease(void **state) {
    struct world *w = *state;
    struct legs l;
    dispatcher_is_alive(w);
    legs_open(&l, &w->config, "orders", DB_READ_ONLY);
    json_t *o = lanes_collect(&l);
    const json_t *items = json_object_get(o, "items");
    assert_int_equal(json_array_size(items), 4);
    assert_string_equal(row_text(json_array_get(items, 0), "name"), "outbox");
    assert_string_equal(row_text(json_array_get(items, 0), "state"), "held");
    assert_string_equal(row_text(json_array_get(items, 0), "label"), "node-a");
    assert_string_equal(row_text(json_array_get(items, 0), "epoch"), "3");
    assert_string_equal(row_text(json_array_get(items, 1), "state"), "lease_over"); /* sub/orders */
    assert_string_equal(row_text(json_array_get(items, 3), "state"), "free");
    json_decref(o);
    legs_close(&l);
}

/* ---- reconcile ---- */

static csn_status compare(struct world *w, bool dry_run, struct reconcile *ret) {
    struct legs l;
    csn_error err = {0};
    *ret = (struct reconcile){.reason = "books",
                              .actor = "tester@node",
                              .grace = w->config.reconcile.grace,
                              .dry_run = dry_run};
    legs_open(&l, &w->config, NULL, DB_READ_ONLY);
    csn_status st = reconcile_outbox(&l, ret, &err);
    legs_close(&l);
    json_decref(ret->items);
    json_decref(ret->legs);
    return st;
}

/* Six sent events: consumed, waiting in the queue, acknowledged and lost, without a copy, too
 * young, of no consumer. */
static void put_books(struct world *w) {
    static const char *const ids[] = {"consumed", "queued", "lost", "copyless", "young"};
    for (size_t i = 0; i < ARRAY_LEN(ids); i++)
        put_event(w->db[0], ids[i], "OrderCreated", ids[i], 1, "sent");
    put_event(w->db[0], "nobodys", "OrderShipped", "n", 1, "sent");
    sql(w->db[0], "UPDATE outbox_events SET sent_at = created_at + 1000000, published_at = "
                  "created_at + 900000, broker_part = 1,"
                  " broker_pos = seq");
    sql(w->db[0],
        "UPDATE outbox_events SET sent_at = unixepoch() * 1000000 WHERE event_id = 'young'");
    sql(w->db[0],
        "INSERT INTO consign_queue(subscription, part, event_id, aggregate_type, aggregate_id, "
        "aggregate_version, event_type,"
        " schema_version, payload, created_at, published_at, acked_at) SELECT 'stock', 1, "
        "event_id, 'order', aggregate_id, 1,"
        " event_type, 1, payload, 1, 1, iif(event_id = 'queued', NULL, 2) FROM outbox_events"
        " WHERE event_id IN ('consumed', 'queued', 'lost')");
    sql(w->db[1], "INSERT INTO consumer_inbox(consumer_name, event_id, state) VALUES ('stock', "
                  "'consumed', 'done')");
}

static void what_nobody_has_is_sent_again(void **state) {
    struct world *w = *state;
    struct reconcile r;
    uint8_t before[32], after[32];
    put_books(w);
    world_digest(w, before);
    assert_int_equal(compare(w, true, &r), CSN_OK);
    world_digest(w, after);
    assert_memory_equal(before, after, sizeof before);
    assert_int_equal(r.differences, 2);
    assert_int_equal(r.resent, 0);
    assert_int_equal(r.compared, 4);
    assert_int_equal(r.not_compared, 0);
    assert_int_equal(compare(w, false, &r), CSN_OK);
    assert_int_equal(r.differences, 2);
    assert_int_equal(r.resent, 2);
    assert_true(says(w->db[0],
                     "SELECT group_concat(event_id) FROM (SELECT event_id FROM outbox_events WHERE "
                     "status = 'pending' AND"
                     " sent_at IS NULL ORDER BY seq)",
                     "lost,copyless"));
    assert_int_equal(
        ask(w->db[0],
            "SELECT count(*) FROM consign_attempts WHERE kind = 'resent' AND side = 'outbox' AND"
            " event_id IN ('lost', 'copyless') AND started_at = 1700000001000000"),
        2);
    assert_int_equal(ask(w->db[0], "SELECT count(*) FROM consign_audit WHERE action = "
                                   "'reconcile.outbox' AND reason = 'books' AND"
                                   " json_extract(after, '$.resent') = 2 AND "
                                   "length(json_extract(after, '$.rows_sha256')) = 64"),
                     1);
    assert_int_equal(compare(w, false, &r), CSN_OK); /* they are on their way now */
    assert_int_equal(r.differences, 0);
    assert_int_equal(ask(w->db[0], "SELECT count(*) FROM consign_audit"), 1);
}

static void a_leg_that_cannot_be_read_is_not_called_equal(void **state) {
    struct world *w = *state;
    struct reconcile r;
    put_books(w);
    copy_text(w->config.store[1].url, URL_MAX_, "sqlite:/none/stock.db");
    assert_int_equal(compare(w, false, &r), CSN_OK);
    assert_int_equal(r.differences, 0);
    assert_true(r.not_compared > 0);
    assert_int_equal(ask(w->db[0], "SELECT count(*) FROM outbox_events WHERE status <> 'sent'"), 0);
    assert_int_equal(ask(w->db[0], "SELECT count(*) FROM consign_audit"), 0);
}

/* A subscription that was declared later was never meant to have them. */
static void what_was_sent_before_a_subscription_is_not_sent_again(void **state) {
    struct world *w = *state;
    struct reconcile r;
    put_books(w);
    sql(w->db[0], "INSERT INTO consign_bindings(subscription, match, partitions, declared_at) "
                  "VALUES ('stock', 'OrderCreated', 8,"
                  " 1700000100000000)");
    assert_int_equal(compare(w, false, &r), CSN_OK);
    assert_int_equal(r.before, 2);
    assert_int_equal(r.differences, 0);
    sql(w->db[0], "UPDATE consign_bindings SET declared_at = 1600000000000000");
    assert_int_equal(compare(w, false, &r), CSN_OK);
    assert_int_equal(r.differences, 2);
}

static void reading_changes_nothing(void **state) {
    struct world *w = *state;
    struct legs l;
    uint8_t before[32], after[32];
    put_books(w);
    put_letter(w, "E-1", "poison", 4003);
    dispatcher_is_alive(w);
    world_digest(w, before);
    legs_open(&l, &w->config, NULL, DB_READ_ONLY);
    json_decref(status_collect(&l));
    json_decref(lanes_collect(&l));
    json_decref(event_list_collect(&l, "sent", 10));
    json_decref(event_find_collect(&l, "lost", 10, 100));
    json_decref(dead_list_collect(&l, "open", NULL, NULL, 10));
    legs_close(&l);
    world_digest(w, after);
    assert_memory_equal(before, after, sizeof before);
}

/* ---- the commands themselves ---- */

static void write_config(struct world *w) {
    char path[192];
    snprintf(path, sizeof path, "%s/consign.yaml", w->dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(
        f,
        "stores:\n  orders: { url: \"sqlite:orders.db\" }\n  stock: { url: \"sqlite:stock.db\" }\n"
        "brokers:\n  local: { type: embedded, store: orders }\n");
    assert_int_equal(fclose(f), 0);
}

static void remove_config(struct world *w) {
    char path[192];
    snprintf(path, sizeof path, "%s/consign.yaml", w->dir);
    assert_int_equal(unlink(path), 0);
}

/* Runs a command; what it said on both streams is kept, cut to the buffers. */
static int consign(struct world *w, const char *words, char said[4000], char talked[4000]) {
    char config[192], line[400], *argv[24] = {"consign", "-c", config}, *rest = line, *word;
    int argc = 3;
    snprintf(config, sizeof config, "%s/consign.yaml", w->dir);
    copy_text(line, sizeof line, words);
    while (argc < 23 && (word = strsep(&rest, " ")) != NULL)
        argv[argc++] = word;
    struct out o = {.to = tmpfile(), .err = tmpfile(), .format = OUT_TABLE};
    assert_non_null(o.to);
    assert_non_null(o.err);
    int code = command_main(argc, argv, &o);
    rewind(o.to);
    rewind(o.err);
    said[fread(said, 1, 3999, o.to)] = 0;
    talked[fread(talked, 1, 3999, o.err)] = 0;
    (void)fclose(o.to);
    (void)fclose(o.err);
    return code;
}

static void commands_end_with_the_code_that_fits(void **state) {
    static const struct {
        const char *words;
        int code;
        const char *said, *talked; /* a part of it; "": nothing at all */
    } cases[] = {
        {"--lang en event retry E-1", 64, "", "CSN-8004"},
        {"--lang en event retry E-1 --reason x --dry-run", 0, "would be done", ""},
        {"--lang en event retry E-1 --reason x", 0, "failed → pending", ""},
        {"--lang en event retry E-1 --reason x", 0, "done already", ""},
        {"--lang en event release E-1 --reason x", 65, "", "event hold, event cancel"},
        {"--lang zh event release E-1 --reason x", 65, "", "不能执行 release"},
        {"--lang en event cancel E-9 --reason x -o json", 66, "", "\"code\":\"CSN-8002\""},
        {"--lang en event trace E-9", 66, "", "CSN-8002"},
        {"--lang en event trace E-1 -o json", 0, "{\"v\":1,\"kind\":\"trace\",\"event_id\":\"E-1\"",
         ""},
        {"--lang en event list --status failed --json", 0, "\"items\":[]", ""},
        {"--lang en event list --status wrong", 64, "", "strange"},
        {"--lang en event find nothing", 1, "nothing found", ""},
        {"--lang en event show E-1", 0, "masked", ""},
        {"--lang en dead show 5", 66, "", "CSN-8002"},
        {"--lang en dead list", 0, "0 shown", ""},
        {"--lang en lanes --store none", 64, "", "none"},
        {"--lang en lanes", 0, "no lane was ever taken", ""},
        {"--lang en status", 1, "no dispatcher is alive", ""},
        {"--lang en reconcile run outbox", 64, "", "CSN-8004"},
        {"--lang en reconcile run inbox --dry-run", 64, "", "CSN-8001"},
        {"--lang en reconcile run outbox --dry-run", 0, "no differences", ""},
    };
    struct world *w = *state;
    char said[4000], talked[4000];
    write_config(w);
    put_event(w->db[0], "E-1", "OrderCreated", "9001", 1, "failed");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        int code = consign(w, cases[i].words, said, talked);
        bool right = *cases[i].said ? strstr(said, cases[i].said) != NULL : !*said;
        right = right && (*cases[i].talked ? strstr(talked, cases[i].talked) != NULL : !*talked);
        if (code != cases[i].code || !right)
            fail_msg("%s: %d\n%s%s", cases[i].words, code, said, talked);
    }
    remove_config(w);
}

/* What stands in a row is shown, but never obeyed by a terminal. */
static void a_terminal_sees_no_escapes_of_the_data(void **state) {
    struct world *w = *state;
    char said[4000], talked[4000];
    write_config(w);
    put_event(w->db[0], "E-1", "OrderCreated", "9001", 1, "failed");
    sql(w->db[0],
        "UPDATE outbox_events SET last_error = char(27) || '[2Jgone' || char(155) || char(8238)");
    static const char *const words[] = {"event list", "event trace E-1", "event show E-1",
                                        "event find E-1"};
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        assert_int_equal(consign(w, words[i], said, talked), 0);
        assert_null(strchr(said, 27));
        assert_null(strstr(said, "\xc2\x9b"));
        assert_null(strstr(said, "\xe2\x80\xae"));
    }
    remove_config(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(each_move_is_the_tables_or_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_act_is_audited_once_and_repeating_it_does_nothing,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_event_that_is_not_there_is_not_found, set_up, tear_down),
        cmocka_unit_test_setup_teardown(cancelling_a_head_releases_its_followers_in_two_steps,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(cancelling_behind_a_blocked_head_releases_nobody, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_locked_store_is_told_and_nothing_happens, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(an_event_is_located_or_it_is_said_why_not, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(lists_are_bounded_and_say_their_window, set_up, tear_down),
        cmocka_unit_test_setup_teardown(events_are_found_by_every_name_they_have, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(dead_letters_are_grouped_and_their_payload_is_masked,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(showing_a_payload_is_audited, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_quiet_house_is_healthy, set_up, tear_down),
        cmocka_unit_test_setup_teardown(each_trouble_is_a_need, set_up, tear_down),
        cmocka_unit_test_setup_teardown(other_partitions_than_the_binding_has_are_named, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_subscription_that_was_removed_is_named, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(parked_followers_without_a_head_are_named, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_strange_status_is_named_and_left_alone, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(blocked_keys_have_their_head_and_their_number, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(counts_stop_at_ten_thousand, set_up, tear_down),
        cmocka_unit_test_setup_teardown(lanes_tell_owner_epoch_and_lease, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_nobody_has_is_sent_again, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_leg_that_cannot_be_read_is_not_called_equal, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(what_was_sent_before_a_subscription_is_not_sent_again,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(reading_changes_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(commands_end_with_the_code_that_fits, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_terminal_sees_no_escapes_of_the_data, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
