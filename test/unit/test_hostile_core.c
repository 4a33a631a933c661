/* test_hostile_core.c: states that a careful reader tried to break the machines with; each once
 * did. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/inbox.h"
#include "core/relay.h"
#include "ports.h"
#include <stdlib.h>

enum { SEC = 1000000, LEASE = 30 * SEC, PARTITIONS = 4 };

struct bench {
    struct test_port store, heart, out, a, b;
    struct lanes outbox, parts;
    struct counters counters;
    struct notes notes;
    struct prng chance;
    struct destination dest[2];
    struct relay_route route[2];
    struct relay relay;
    struct inbox inbox;
    csn_usec now;
};

static void make_lanes(struct bench *t, struct lanes *l, const char *name, uint32_t n) {
    lanes_init(l, &t->heart.port, name, n, LEASE, "boot", "node");
    l->held = l->all;
    l->counters = &t->counters;
    l->notes = &t->notes;
}

static struct bench *make(void) {
    struct bench *t = calloc(1, sizeof *t);
    assert_non_null(t);
    port_make(&t->store);
    port_make(&t->heart);
    port_make(&t->out);
    port_make(&t->a);
    port_make(&t->b);
    t->now = 100 * SEC;
    prng_seed(&t->chance, 1);
    make_lanes(t, &t->outbox, "outbox", 1);
    make_lanes(t, &t->parts, "sub/stock", PARTITIONS);
    t->dest[0] = (struct destination){
        .name = "a", .port = &t->a.port, .confirm_timeout = SEC, .declared = true};
    t->dest[1] = (struct destination){
        .name = "b", .port = &t->b.port, .confirm_timeout = SEC, .declared = true};
    t->route[0] = (struct relay_route){.name = "ra", .match = "A*", .to = 0};
    t->route[1] = (struct relay_route){.name = "rb", .match = "*", .to = 1};
    const struct retry_policy retry = {.base = SEC,
                                       .max = 600 * SEC,
                                       .jitter = JITTER_EQUAL,
                                       .failures = 3,
                                       .age = (csn_usec)86400 * SEC};
    t->relay = (struct relay){.store = "orders",
                              .lanes = &t->outbox,
                              .port = &t->store.port,
                              .dest = t->dest,
                              .dests = 2,
                              .route = t->route,
                              .routes = 2,
                              .counters = &t->counters,
                              .notes = &t->notes,
                              .chance = &t->chance,
                              .rows = 50,
                              .bytes = 1 << 20,
                              .lease = LEASE,
                              .lock_wait = SEC,
                              .pause_min = 1000,
                              .pause_max = 50000,
                              .boot = "boot",
                              .retry = retry};
    t->inbox = (struct inbox){.consumer = "stock",
                              .store = "stock",
                              .lanes = &t->parts,
                              .part_mask = 0x5,
                              .declared = true,
                              .apply = &t->store.port,
                              .out = &t->out.port,
                              .counters = &t->counters,
                              .notes = &t->notes,
                              .chance = &t->chance,
                              .rows = 50,
                              .bytes = 1 << 20,
                              .lease = LEASE,
                              .lock_wait = SEC,
                              .pause_min = 1000,
                              .pause_max = 50000,
                              .boot = "boot",
                              .retry = retry};
    assert_int_equal(relay_init(&t->relay, NULL), CSN_OK);
    assert_int_equal(inbox_init(&t->inbox, NULL), CSN_OK);
    return t;
}

static void drop(struct bench *t) {
    relay_free(&t->relay);
    inbox_free(&t->inbox);
    free(t);
}

static void nothing(struct op *op) {
    if (op->batch)
        op->batch->n = 0;
    port_finish(op, CSN_OK);
}

/* ---- the inbox ---- */

/* Rows that were parked when there were more partitions belong to somebody, too. */
static void rows_parked_under_more_partitions_have_an_owner(void **state) {
    (void)state;
    struct bench *t = make();
    inbox_step(&t->inbox, t->now);
    struct op *claim = port_take(&t->store, OP_CLAIM), *recover = port_take(&t->store, OP_RECOVER);
    assert_int_equal(claim->claim.lanes & 0xff,
                     0x55); /* 0 and 2 of four, and what eight made of them */
    assert_int_equal(recover->recover.lanes, claim->claim.lanes);
    assert_int_equal(inbox_slots(&t->inbox), claim->claim.lanes);
    assert_int_equal(port_take(&t->out, OP_RECEIVE)->receive.lanes, 0x5);
    t->inbox.part_mask = 0xa;
    assert_int_equal(inbox_slots(&t->inbox) & claim->claim.lanes, 0);
    assert_true((inbox_slots(&t->inbox) | claim->claim.lanes) == UINT64_MAX);
    drop(t);
}

/* A clock that was set back hides rows from the watch, never from a claim: so one is made now and
 * then. */
static void an_idle_inbox_looks_for_itself_now_and_then(void **state) {
    (void)state;
    struct bench *t = make();
    inbox_step(&t->inbox, t->now);
    nothing(port_take(&t->store, OP_CLAIM));
    nothing(port_take(&t->store, OP_RECOVER));
    nothing(port_take(&t->out, OP_RECEIVE));
    inbox_step(&t->inbox, t->now);
    t->now += SEC; /* no rest any more */
    inbox_step(&t->inbox, t->now);
    assert_int_equal(t->store.n + t->out.n, 0);
    csn_usec at = inbox_deadline(&t->inbox, t->now);
    assert_true(at > t->now && at <= t->now + LEASE);
    t->now = at;
    inbox_step(&t->inbox, t->now);
    assert_true(port_has(&t->store, OP_CLAIM));
    assert_true(port_has(&t->out, OP_RECEIVE));
    drop(t);
}

/* ---- the relay ---- */

static void found_nothing(struct bench *t) {
    relay_step(&t->relay, t->now);
    nothing(port_take(&t->store, OP_RECOVER));
    nothing(port_take(&t->store, OP_CLAIM));
    relay_step(&t->relay, t->now);
    assert_int_equal(t->store.n, 0);
}

static void an_idle_relay_looks_for_itself_now_and_then(void **state) {
    (void)state;
    struct bench *t = make();
    found_nothing(t);
    t->now = t->relay.recover_at;
    relay_step(&t->relay, t->now);
    nothing(port_take(&t->store, OP_RECOVER));
    relay_step(&t->relay, t->now);
    relay_step(&t->relay, t->now += SEC);
    assert_true(port_has(&t->store, OP_CLAIM));
    drop(t);
}

/* A destination whose rest is over while nothing is due must not wake the engine a thousand times a
 * second. */
static void a_rest_that_is_over_wakes_nobody(void **state) {
    (void)state;
    struct bench *t = make();
    found_nothing(t);
    t->dest[0].breaker = (struct breaker){
        .state = BREAKER_OPEN, .faults = 1, .open_until = t->now - 1, .opened_at = t->now - SEC};
    t->now += SEC;
    relay_step(&t->relay, t->now);
    assert_true(relay_deadline(&t->relay, t->now) > t->now + SEC);
    drop(t);
}

/* Ten rows probe a destination. The next ten are not let go before those have said something. */
static void a_probe_releases_its_rows_once(void **state) {
    (void)state;
    struct bench *t = make();
    found_nothing(t);
    t->dest[0].breaker = (struct breaker){
        .state = BREAKER_OPEN, .faults = 1, .open_until = t->now, .opened_at = t->now - SEC};
    t->now = t->relay.recover_at;
    relay_step(&t->relay, t->now);
    struct op *op = port_take(&t->store, OP_RECOVER);
    assert_string_equal(op->recover.open_routes, "ra,rb");
    assert_int_equal(op->recover.limit, PROBE_ROWS);
    op->recover.released = PROBE_ROWS;
    op->recover.more = true;
    port_finish(op, CSN_OK);
    relay_step(&t->relay, t->now);
    assert_true(port_has(&t->store, OP_CLAIM));
    assert_false(port_has(&t->store, OP_RECOVER));
    drop(t);
}

/* The watch and the recovery may see different lanes as mine: what one finds and the other must not
 * touch is no reason to spin. */
static void a_recovery_in_vain_rests(void **state) {
    (void)state;
    struct bench *t = make();
    found_nothing(t);
    uint32_t asked = 0;
    for (int i = 0; i < 1000; i++) {
        t->now += 100;
        if (relay_wants_watch(&t->relay, t->now))
            relay_found(&t->relay, false, true);
        relay_step(&t->relay, t->now);
        if (!port_has(&t->store, OP_RECOVER))
            continue;
        asked++;
        assert_false(relay_wants_watch(&t->relay, t->now)); /* it would only say the same again */
        nothing(port_take(&t->store, OP_RECOVER));
        relay_step(&t->relay, t->now);
        if (port_has(&t->store, OP_CLAIM))
            nothing(port_take(&t->store, OP_CLAIM));
        relay_step(&t->relay, t->now);
        assert_true(relay_deadline(&t->relay, t->now) > t->now);
    }
    assert_in_range(asked, 1, 3); /* in 100 ms, with a rest of 50 ms */
    drop(t);
}

/* What an op points to belongs to the driver, and lanes go on while it is pending: the fence judges
 * what was believed then. */
static void a_pending_op_keeps_its_epochs(void **state) {
    (void)state;
    struct bench *t = make();
    t->outbox.epoch[0] = 7;
    t->parts.epoch[2] = 8;
    relay_step(&t->relay, t->now);
    inbox_step(&t->inbox, t->now);
    t->outbox.epoch[0] = t->parts.epoch[2] = 9;
    assert_int_equal(port_take(&t->store, OP_RECOVER)->recover.epoch[0], 7);
    assert_int_equal(port_take(&t->store, OP_CLAIM)->claim.epoch[0], 7);
    assert_int_equal(port_take(&t->out, OP_RECEIVE)->receive.epoch[2], 8);
    drop(t);
}

/* ---- lanes ---- */

static void make_heart_beat(struct bench *t, struct lanes *l, uint64_t held, uint64_t fresh) {
    struct op *op = port_take(&t->heart, OP_LEASE);
    op->lease.held = held;
    op->lease.fresh = fresh;
    port_finish(op, CSN_OK);
    lanes_step(l, t->now);
}

/* A stop that comes while a lease is being asked for gives the lanes up at once, not at the next
 * beat. */
static void a_stop_during_a_heartbeat_is_not_late(void **state) {
    (void)state;
    struct bench *t = make();
    lanes_step(&t->parts, t->now);
    lanes_stop(&t->parts);
    make_heart_beat(t, &t->parts, 0xf, 0xf);
    struct op *op = port_take(&t->heart, OP_LEASE);
    assert_int_equal(op->lease.drop, 0xf);
    drop(t);
}

/* The answer of the first LEASE was lost, and the second one renewed: the lanes are new to this
 * process all the same. */
static void lanes_taken_by_a_lost_answer_are_recovered(void **state) {
    (void)state;
    struct bench *t = make();
    t->outbox.held = 0;
    lanes_step(&t->outbox, t->now);
    port_finish(port_take(&t->heart, OP_LEASE), CSN_UNKNOWN);
    lanes_step(&t->outbox, t->now);
    lanes_step(&t->outbox, t->now += SEC);
    make_heart_beat(t, &t->outbox, 1, 0);
    assert_int_equal(t->outbox.held, 1);
    assert_int_equal(t->outbox.fresh, 1);
    t->outbox.fresh = 0;
    lanes_step(&t->outbox, t->now += 10 * SEC);
    make_heart_beat(t, &t->outbox, 1, 0);
    assert_int_equal(t->outbox.fresh, 0);
    drop(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_parked_under_more_partitions_have_an_owner),
        cmocka_unit_test(an_idle_inbox_looks_for_itself_now_and_then),
        cmocka_unit_test(an_idle_relay_looks_for_itself_now_and_then),
        cmocka_unit_test(a_rest_that_is_over_wakes_nobody),
        cmocka_unit_test(a_probe_releases_its_rows_once),
        cmocka_unit_test(a_recovery_in_vain_rests),
        cmocka_unit_test(a_pending_op_keeps_its_epochs),
        cmocka_unit_test(a_stop_during_a_heartbeat_is_not_late),
        cmocka_unit_test(lanes_taken_by_a_lost_answer_are_recovered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
