/* test_trace.c: the facts of an event, from rows put in by SQL. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cli/trace.h"
#include "ops_world.h"

static int set_up(void **state) {
    *state = world_new();
    return 0;
}

static int tear_down(void **state) {
    world_free(*state);
    return 0;
}

static json_t *trace(struct world *w, const char *id, bool *ret_found) {
    struct legs l;
    legs_open(&l, &w->config, NULL, DB_READ_ONLY);
    json_t *d = trace_collect(&l, id, ret_found);
    legs_close(&l);
    return d;
}

/* "written claimed …", in order. */
static bool kinds_are(const json_t *d, const char *expected) {
    char line[1000];
    struct text t;
    size_t i;
    json_t *f;
    text_init(&t, line, sizeof line);
    json_array_foreach(json_object_get(d, "facts"), i, f)
        text_add(&t, "%s%s", i ? " " : "", row_text(f, "kind"));
    if (strcmp(line, expected) != 0)
        print_error("facts: %s\n", line);
    return strcmp(line, expected) == 0;
}

static const json_t *fact_of(const json_t *d, const char *kind, int nth) {
    size_t i;
    json_t *f;
    json_array_foreach(json_object_get(d, "facts"), i, f) {
        if (strcmp(row_text(f, "kind"), kind) == 0 && nth-- == 0)
            return f;
    }
    fail_msg("no fact %s", kind);
    return NULL;
}

static void sent_and_handled(struct world *w) {
    put_event(w->db[0], "E-1", "OrderCreated", "9001", 1, "sent");
    sql(w->db[0], "INSERT INTO consign_members(boot, label, started_at, heartbeat_at, lease_until) "
                  "VALUES ('b', 'node-a', 1, 1, 1)");
    sql(w->db[0], "UPDATE outbox_events SET attempts = 2, claimed_at = created_at + 5000000, "
                  "published_at = created_at + 6000000,"
                  " sent_at = created_at + 7000000, sent_by = 1, broker_part = 3, broker_pos = 17 "
                  "WHERE event_id = 'E-1'");
    sql(w->db[0], "INSERT INTO consign_attempts(event_id, side, at, kind, attempt, member, "
                  "planned_at, started_at, code, error)"
                  " SELECT event_id, 'outbox', created_at + 2000000, 'unanswered', 1, 1, "
                  "created_at, created_at + 1000000, 3005, 'no answer'"
                  " FROM outbox_events");
    sql(w->db[0],
        "INSERT INTO consign_queue(pos, subscription, part, event_id, aggregate_type, "
        "aggregate_id, aggregate_version,"
        " event_type, schema_version, payload, created_at, published_at, deliveries, acked_at)"
        " SELECT 17, 'stock', 3, event_id, aggregate_type, aggregate_id, 1, event_type, 1, "
        "payload, created_at,"
        " created_at + 6500000, 1, created_at + 9000000 FROM outbox_events");
    sql(w->db[1], "INSERT INTO consumer_inbox(consumer_name, event_id, processed_at, state, "
                  "verdict, received_at, duplicates,"
                  " last_duplicate_at, broker_part, broker_pos) VALUES ('stock', 'E-1', "
                  "1700000000000000 + 8000000, 'done', 'done',"
                  " 1700000000000000 + 7500000, 2, 1700000000000000 + 20000000, 3, 17)");
}

/* A busy relay marks a row when its consumer is long done with it. */
static void what_was_marked_late_was_confirmed_before(void **state) {
    struct world *w = *state;
    bool found = false;
    sent_and_handled(w);
    sql(w->db[0], "UPDATE outbox_events SET sent_at = created_at + 12000000, published_at = "
                  "created_at + 11000000");
    json_t *d = trace(w, "E-1", &found);
    assert_true(kinds_are(d, "written claimed unanswered claimed published published confirmed "
                             "received handled duplicate"));
    assert_string_equal(row_text(fact_of(d, "confirmed", 0), "at"), "2023-11-14T22:13:26.500Z");
    assert_string_equal(row_text(fact_of(d, "confirmed", 0), "marked_at"),
                        "2023-11-14T22:13:32.000Z");
    json_decref(d);
}

static void facts_of_a_whole_life_are_in_order(void **state) {
    struct world *w = *state;
    bool found = false;
    sent_and_handled(w);
    json_t *d = trace(w, "E-1", &found);
    assert_true(found);
    assert_true(kinds_are(d, "written claimed unanswered claimed published published confirmed "
                             "received handled duplicate"));
    assert_string_equal(row_text(fact_of(d, "written", 0), "at"), "2023-11-14T22:13:20.000Z");
    assert_string_equal(row_text(fact_of(d, "written", 0), "seq"), "1");
    assert_int_equal(row_int(fact_of(d, "claimed", 0), "attempt"), 1);
    assert_int_equal(row_int(fact_of(d, "claimed", 1), "attempt"), 2);
    assert_string_equal(row_text(fact_of(d, "unanswered", 0), "code"), "CSN-3005");
    assert_string_equal(row_text(fact_of(d, "published", 1), "source"), "queue");
    assert_string_equal(row_text(fact_of(d, "confirmed", 0), "by"), "node-a");
    assert_string_equal(row_text(fact_of(d, "confirmed", 0), "broker_pos"), "17");
    assert_string_equal(row_text(fact_of(d, "handled", 0), "verdict"), "done");
    assert_string_equal(row_text(fact_of(d, "handled", 0), "store"), "stock");
    assert_int_equal(row_int(fact_of(d, "duplicate", 0), "count"), 2);
    json_decref(d);
}

static void a_store_that_cannot_be_read_is_stated(void **state) {
    struct world *w = *state;
    bool found = false;
    sent_and_handled(w);
    add_lost_store(w);
    json_t *d = trace(w, "E-1", &found);
    assert_true(found);
    assert_string_equal(row_text(fact_of(d, "missing", 0), "store"), "gone");
    assert_string_equal(row_text(fact_of(d, "missing", 0), "evidence"), "store");
    assert_true(json_is_null(json_object_get(fact_of(d, "missing", 0), "at")));
    json_decref(d);
    d = trace(w, "E-none", &found);
    assert_false(found);
    assert_true(kinds_are(d, "missing missing"));
    json_decref(d);
}

/* The consumer's own store is away: nothing is said about its inbox but that it could not be looked
 * at. */
static void a_consumer_store_that_is_away_hides_its_inbox(void **state) {
    struct world *w = *state;
    bool found = false;
    sent_and_handled(w);
    copy_text(w->config.store[1].url, URL_MAX_, "sqlite:/none/stock.db");
    json_t *d = trace(w, "E-1", &found);
    assert_true(
        kinds_are(d, "written claimed unanswered claimed published published confirmed missing"));
    assert_string_equal(row_text(fact_of(d, "missing", 0), "store"), "stock");
    assert_string_equal(row_text(fact_of(d, "missing", 0), "evidence"), "store");
    json_decref(d);
}

static void no_inbox_row_says_where_the_copy_is(void **state) {
    static const struct {
        const char *change, *queue;
    } cases[] = {
        {"UPDATE consign_queue SET acked_at = NULL", "waiting"},
        {"UPDATE consign_queue SET token = 't', delivered_at = 1, lease_until = 9000000000000000",
         "leased"},
        {"UPDATE consign_queue SET lease_until = 1", "waiting"},
        {"UPDATE consign_queue SET acked_at = 2", "acked"},
        {"DELETE FROM consign_queue", "none"},
    };
    struct world *w = *state;
    bool found = false;
    sent_and_handled(w);
    sql(w->db[1], "DELETE FROM consumer_inbox");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        sql(w->db[0], cases[i].change);
        json_t *d = trace(w, "E-1", &found);
        assert_string_equal(row_text(fact_of(d, "missing", 0), "evidence"), "inbox");
        assert_string_equal(row_text(fact_of(d, "missing", 0), "consumer_name"), "stock");
        assert_string_equal(row_text(fact_of(d, "missing", 0), "queue"), cases[i].queue);
        json_decref(d);
    }
}

static void open_states_say_why_there_is_no_confirm(void **state) {
    static const char *const status[] = {"pending", "sending", "unknown", "failed", "held", "odd"};
    struct world *w = *state;
    bool found = false;
    char text[200], last[400] = "";
    put_event(w->db[0], "E-1", "OrderCreated", "9001", 1, "pending");
    for (size_t i = 0; i < ARRAY_LEN(status); i++) {
        snprintf(text, sizeof text, "UPDATE outbox_events SET status = '%s'", status[i]);
        sql(w->db[0], text);
        json_t *d = trace(w, "E-1", &found);
        const json_t *f = fact_of(d, "missing", 0);
        assert_string_equal(row_text(f, "evidence"), "confirmed");
        assert_string_not_equal(row_text(f, "text"), last); /* each has words of its own */
        copy_text(last, sizeof last, row_text(f, "text"));
        assert_string_equal(row_text(fact_of(d, "missing", 1), "evidence"), "inbox");
        json_decref(d);
    }
    sql(w->db[0], "UPDATE outbox_events SET status = 'pending', attempts = 16");
    json_t *tried = trace(w, "E-1", &found); /* a broker that refuses is no missing dispatcher */
    assert_non_null(strstr(row_text(fact_of(tried, "missing", 0), "text"), "16 attempts"));
    json_decref(tried);
    sql(w->db[0], "UPDATE outbox_events SET status = 'cancelled'");
    json_t *d = trace(w, "E-1", &found);
    assert_true(kinds_are(d, "written"));
    json_decref(d);
}

static void a_waiting_row_names_its_head(void **state) {
    struct world *w = *state;
    bool found = false;
    put_event(w->db[0], "E-1", "OrderCreated", "9001", 1, "failed");
    put_event(w->db[0], "E-2", "OrderCreated", "9001", 2, "cancelled");
    put_event(w->db[0], "E-3", "OrderCreated", "9001", 3, "waiting");
    put_event(w->db[0], "E-4", "OrderCreated", "9001", 4, "waiting");
    sql(w->db[0], "UPDATE outbox_events SET waits_for = 1 WHERE status = 'waiting'");
    json_t *d = trace(w, "E-4", &found);
    const json_t *f = fact_of(d, "waiting", 0);
    assert_string_equal(row_text(f, "head"), "E-1");
    assert_string_equal(row_text(f, "head_status"), "failed");
    assert_string_equal(row_text(f, "waits_for"), "key");
    assert_non_null(strstr(row_text(fact_of(d, "missing", 0), "text"), "E-1"));
    json_decref(d);
}

/* However many wait: the head is looked for before the first of them. */
static void the_head_is_found_over_many_followers(void **state) {
    struct world *w = *state;
    bool found = false;
    put_event(w->db[0], "E-1", "OrderCreated", "9001", 1, "held");
    sql(w->db[0],
        "WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < 30000) INSERT"
        " INTO outbox_events(event_id, aggregate_type, aggregate_id, aggregate_version, event_type,"
        " payload, status, waits_for) SELECT 'W-' || i, 'order', '9001', i, 'OrderCreated', '{}',"
        " 'waiting', 1 FROM n");
    json_t *d = trace(w, "W-30000", &found);
    assert_string_equal(row_text(fact_of(d, "waiting", 0), "head"), "E-1");
    json_decref(d);
}

static void dead_letters_parking_and_acts_are_facts(void **state) {
    struct world *w = *state;
    bool found = false;
    sent_and_handled(w);
    sql(w->db[1], "UPDATE consumer_inbox SET state = 'dead', verdict = 'poison', duplicates = 0");
    sql(w->db[1],
        "INSERT INTO consign_attempts(event_id, side, consumer_name, at, kind, attempt, code, "
        "error) VALUES"
        " ('E-1', 'inbox', 'stock', 1700000000000000 + 8100000, 'parked', 1, 4008, 'later')");
    sql(w->db[1], "INSERT INTO consign_dead_letters(consumer_name, event_id, class, code, error, "
                  "aggregate_type, aggregate_id,"
                  " aggregate_version, event_type, schema_version, payload, attempts, failures, "
                  "first_failed_at, last_failed_at, dead_at)"
                  " VALUES ('stock', 'E-1', 'poison', 4003, 'no /qty', 'order', '9001', 1, "
                  "'OrderCreated', 1, '{}', 1, 1, 1, 1,"
                  " 1700000000000000 + 8200000), ('stock', 'E-1', 'conflict', 4005, 'other', "
                  "'order', '9001', 1, 'OrderCreated', 1, '{}',"
                  " 1, 1, 1, 1, 1700000000000000 + 8300000)");
    sql(w->db[0],
        "INSERT INTO consign_audit(prev_hash, at, actor, action, target, reason, hash) VALUES"
        " ('', 1700000000000000 + 100, 'ann', 'event.hold', 'E-1', 'wait', 'h'),"
        " ('h', 1700000000000000 + 200, 'ann', 'event.release', 'E-1', 'go', 'i'),"
        " ('i', 1700000000000000 + 300, 'ann', 'event.payload', 'E-1', 'look', 'j')");
    json_t *d = trace(w, "E-1", &found);
    assert_true(kinds_are(d, "written held released claimed unanswered claimed published published "
                             "confirmed received parked dead conflict"));
    assert_string_equal(row_text(fact_of(d, "held", 0), "by"), "ann");
    assert_string_equal(row_text(fact_of(d, "held", 0), "reason"), "wait");
    assert_string_equal(row_text(fact_of(d, "dead", 0), "code"), "CSN-4003");
    assert_string_equal(row_text(fact_of(d, "parked", 0), "consumer_name"), "stock");
    json_decref(d);
}

static void a_parked_delivery_is_not_called_handled(void **state) {
    struct world *w = *state;
    bool found = false;
    sent_and_handled(w);
    sql(w->db[1], "UPDATE consumer_inbox SET state = 'waiting', verdict = 'retry', duplicates = 0");
    sql(w->db[1], "INSERT INTO consign_work(consumer_name, event_id, aggregate_type, aggregate_id, "
                  "aggregate_version, event_type,"
                  " payload, next_attempt_at, created_at, failures, waits_for) VALUES ('stock', "
                  "'E-1', 'order', '9001', 1, 'OrderCreated',"
                  " '{}', 9000000000000000, 1700000000000000 + 7500000, 3, 0)");
    json_t *d = trace(w, "E-1", &found);
    assert_true(kinds_are(d, "written claimed unanswered claimed published published confirmed "
                             "received parked missing"));
    assert_string_equal(row_text(fact_of(d, "missing", 0), "evidence"), "handled");
    json_decref(d);
}

/* An event of another program, known by its inbox row only. */
static void an_event_without_an_outbox_row_is_traced(void **state) {
    struct world *w = *state;
    bool found = false;
    sql(w->db[1], "INSERT INTO consumer_inbox(consumer_name, event_id, state, event_type) VALUES "
                  "('old-name', 'X-9', 'done', 'Foreign')");
    json_t *d = trace(w, "X-9", &found);
    assert_true(found);
    assert_true(kinds_are(d, "received handled missing missing"));
    assert_string_equal(row_text(fact_of(d, "missing", 0), "evidence"), "outbox");
    assert_string_equal(row_text(fact_of(d, "missing", 1), "evidence"), "consumer");
    assert_true(json_is_null(json_object_get(d, "event")));
    json_decref(d);
}

static void result_events_are_listed_once(void **state) {
    struct world *w = *state;
    bool found = false;
    uint8_t raw[32];
    char id[37], text[400];
    struct sha256 sha;
    sent_and_handled(w);
    sha256_init(&sha);
    sha256_add(&sha, (csn_bytes){"stock\0E-1\0004", 11});
    sha256_end(&sha, raw);
    sha256_uuid(raw, id);
    snprintf(text, sizeof text,
             "INSERT INTO outbox_events(event_id, aggregate_id, aggregate_version, event_type, "
             "payload, causation_id)"
             " VALUES ('%s', 'A', 1, 'InventoryReserved', '{}', 'E-1'),"
             " ('other', 'A', 2, 'Noted', '{}', 'E-1'), ('else', 'A', 3, 'Noted', '{}', 'E-2')",
             id);
    sql(w->db[1], text);
    json_t *d = trace(w, "E-1", &found);
    const json_t *r = json_object_get(d, "results");
    assert_int_equal(json_array_size(r), 2);
    assert_string_equal(row_text(json_array_get(r, 0), "event_id"), id);
    assert_string_equal(row_text(json_array_get(r, 1), "event_id"), "other");
    assert_string_equal(row_text(json_array_get(r, 1), "store"), "stock");
    json_decref(d);
}

static void a_trace_changes_nothing(void **state) {
    struct world *w = *state;
    uint8_t before[32], after[32];
    bool found = false;
    sent_and_handled(w);
    world_digest(w, before);
    json_decref(trace(w, "E-1", &found));
    world_digest(w, after);
    assert_memory_equal(before, after, sizeof before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_was_marked_late_was_confirmed_before, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(facts_of_a_whole_life_are_in_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_store_that_cannot_be_read_is_stated, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_consumer_store_that_is_away_hides_its_inbox, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(no_inbox_row_says_where_the_copy_is, set_up, tear_down),
        cmocka_unit_test_setup_teardown(open_states_say_why_there_is_no_confirm, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_waiting_row_names_its_head, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_head_is_found_over_many_followers, set_up, tear_down),
        cmocka_unit_test_setup_teardown(dead_letters_parking_and_acts_are_facts, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_parked_delivery_is_not_called_handled, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_event_without_an_outbox_row_is_traced, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(result_events_are_listed_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_trace_changes_nothing, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
