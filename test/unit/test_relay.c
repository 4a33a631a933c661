/* test_relay.c: the relay in states set up by hand: an op is finished by the test, the machine
 * steps, what it submits is compared. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/relay.h"
#include "ports.h"
#include <stdio.h>
#include <stdlib.h>

enum { SEC = 1000000, LEASE = 30 * SEC, CONFIRM = 5 * SEC };

struct bench {
    struct test_port store, heart, a, b;
    struct lanes lanes;
    struct counters counters;
    struct notes notes;
    struct prng chance;
    struct destination dest[2];
    struct relay_route route[2];
    struct relay relay;
    csn_usec now;
};

static struct bench *make(uint32_t dests) {
    struct bench *t = calloc(1, sizeof *t);
    assert_non_null(t);
    port_make(&t->store);
    port_make(&t->heart);
    port_make(&t->a);
    port_make(&t->b);
    t->now = 100 * SEC;
    prng_seed(&t->chance, 1);
    lanes_init(&t->lanes, &t->heart.port, "outbox", 1, LEASE, "boot", "node");
    t->lanes.held = 1;
    t->lanes.epoch[0] = 7;
    t->lanes.member = 3;
    t->lanes.counters = &t->counters;
    t->lanes.notes = &t->notes;
    t->dest[0] = (struct destination){
        .name = "a", .port = &t->a.port, .confirm_timeout = CONFIRM, .declared = true};
    t->dest[1] = (struct destination){
        .name = "b", .port = &t->b.port, .confirm_timeout = CONFIRM, .declared = true};
    t->route[0] = (struct relay_route){.name = "ra", .match = dests == 1 ? "*" : "A*", .to = 0};
    t->route[1] = (struct relay_route){.name = "rb", .match = "*", .to = 1};
    t->relay = (struct relay){.store = "orders",
                              .lanes = &t->lanes,
                              .port = &t->store.port,
                              .dest = t->dest,
                              .dests = dests,
                              .route = t->route,
                              .routes = dests,
                              .counters = &t->counters,
                              .notes = &t->notes,
                              .chance = &t->chance,
                              .rows = 50,
                              .bytes = 1 << 20,
                              .lease = LEASE,
                              .lock_wait = 2 * SEC,
                              .pause_min = 1000,
                              .pause_max = 50000,
                              .boot = "boot",
                              .retry = {.base = SEC,
                                        .max = 600 * SEC,
                                        .jitter = JITTER_EQUAL,
                                        .failures = 3,
                                        .age = (csn_usec)86400 * SEC}};
    t->relay.recover_at = INT64_MAX / 2; /* recovery has tests of its own */
    assert_int_equal(relay_init(&t->relay, NULL), CSN_OK);
    return t;
}

static void drop(struct bench *t) {
    relay_free(&t->relay);
    free(t);
}

static void step(struct bench *t) {
    relay_step(&t->relay, t->now);
}

static csn_bytes text(struct arena *a, const char *s) {
    return arena_copy(a, bytes_of(s));
}

/* Answers the pending claim with rows "key:version:type", space-separated. */
static struct op *answer_claim(struct bench *t, const char *const *rows, uint32_t n) {
    struct op *op = port_take(&t->store, OP_CLAIM);
    struct batch *b = op->batch;
    for (uint32_t i = 0; i < n; i++) {
        char key[32], type[32], id[64];
        unsigned version;
        assert_int_equal(sscanf(rows[i], "%31[^:]:%u:%31s", key, &version, type), 3);
        snprintf(id, sizeof id, "%s-%u", key, version);
        b->msg[i] = (struct message){.id = text(&b->arena, id),
                                     .aggregate_id = text(&b->arena, key),
                                     .event_type = text(&b->arena, type),
                                     .version = version,
                                     .seq = i + 1,
                                     .expires_in = CSN_USEC_NEVER,
                                     .attempts = 1};
    }
    b->n = n;
    port_finish(op, CSN_OK);
    step(t);
    return op;
}

static struct op *take_publish(struct test_port *p, uint32_t n) {
    struct op *op = port_take(p, OP_PUBLISH);
    assert_int_equal(op->publish.n, n);
    return op;
}

static void say(struct op *op, enum publish_out out) {
    for (uint32_t i = 0; i < op->publish.n; i++) {
        op->publish.item[i].out = (uint8_t)out;
        op->publish.item[i].pos = 100 + i;
    }
    port_finish(op, CSN_OK);
}

static const struct settle_item *item_of(const struct op *settle, uint32_t msg) {
    for (uint32_t i = 0; i < settle->settle.n; i++)
        if (settle->settle.item[i].msg == msg)
            return &settle->settle.item[i];
    fail_msg("message %u is not settled", msg);
    return NULL;
}

static void a_claim_is_fenced_and_has_a_fresh_token(void **state) {
    (void)state;
    struct bench *t = make(1);
    step(t);
    struct op *op = port_take(&t->store, OP_CLAIM);
    char first[TOKEN_SIZE];
    copy_text(first, sizeof first, op->claim.token);
    assert_int_equal(op->claim.lanes, 1);
    assert_int_equal(op->claim.epoch[0], 7);
    assert_int_equal(strlen(first), 36);
    port_finish(op, CSN_OK);
    step(t);
    assert_false(port_has(&t->store, OP_CLAIM)); /* nothing found: it waits to be told */
    relay_found(&t->relay, true, false);
    t->now += SEC;
    step(t);
    op = port_take(&t->store, OP_CLAIM);
    assert_string_not_equal(first, op->claim.token);
    port_finish(op, CSN_OK);
    step(t);
    drop(t);
}

static void no_lane_no_claim(void **state) {
    (void)state;
    struct bench *t = make(1);
    t->lanes.held = 0;
    step(t);
    assert_int_equal(t->store.n, 0);
    drop(t);
}

static void confirmed_rows_are_settled_with_the_next_claim_in_one_group(void **state) {
    (void)state;
    struct bench *t = make(1);
    step(t);
    answer_claim(t, (const char *[]){"k1:1:A", "k2:1:A"}, 2);
    struct op *pub = take_publish(&t->a, 2);
    assert_int_equal(pub->deadline, t->now + CONFIRM);
    say(pub, PUB_CONFIRMED);
    t->now += SEC;
    step(t);
    assert_int_equal(t->store.n, 2);
    assert_int_equal(t->store.group[0], t->store.group[1]);
    struct op *settle = port_take(&t->store, OP_SETTLE);
    assert_int_equal(settle->settle.n, 2);
    assert_int_equal(settle->settle.member, 3);
    assert_int_equal(item_of(settle, 0)->to, SETTLE_SENT);
    assert_int_equal(item_of(settle, 1)->pos, 101);
    assert_int_equal(item_of(settle, 1)->published_ago, SEC);
    port_finish(settle, CSN_OK);
    answer_claim(t, NULL, 0);
    assert_int_equal(t->counters.sent, 2);
    assert_true(relay_idle(&t->relay));
    drop(t);
}

static void a_streaming_broker_gets_a_keys_events_one_after_the_other(void **state) {
    (void)state;
    struct bench *t = make(1);
    step(t);
    answer_claim(t, (const char *[]){"k1:1:A", "k1:2:A", "k2:1:A", "k1:3:A"}, 4);
    struct op *pub = take_publish(&t->a, 2); /* k1:1 and k2:1 */
    assert_int_equal(pub->publish.item[0].msg, 0);
    assert_int_equal(pub->publish.item[1].msg, 2);
    say(pub, PUB_CONFIRMED);
    step(t);
    pub = take_publish(&t->a, 1);
    assert_int_equal(pub->publish.item[0].msg, 1);
    say(pub, PUB_NACKED);
    step(t);
    assert_false(port_has(&t->a, OP_PUBLISH)); /* k1:3 does not overtake k1:2 */
    struct op *settle = port_take(&t->store, OP_SETTLE);
    assert_int_equal(item_of(settle, 1)->to, SETTLE_PENDING);
    assert_int_equal(item_of(settle, 1)->failure, 1);
    assert_int_equal(item_of(settle, 3)->to, SETTLE_WAITING);
    assert_int_equal(item_of(settle, 3)->waits_for, WAITS_KEY);
    drop(t);
}

static void an_atomic_broker_gets_a_key_in_one_op(void **state) {
    (void)state;
    struct bench *t = make(1);
    t->a.port.flags = PORT_ATOMIC_PUBLISH;
    step(t);
    answer_claim(t, (const char *[]){"k1:1:A", "k1:2:A", "k1:3:A"}, 3);
    struct op *pub = take_publish(&t->a, 3);
    pub->publish.item[0].out = PUB_CONFIRMED;
    pub->publish.item[1].out = PUB_RETURNED;
    pub->publish.item[2].out = PUB_UNSENT;
    port_finish(pub, CSN_OK);
    step(t);
    struct op *settle = port_take(&t->store, OP_SETTLE);
    assert_int_equal(item_of(settle, 0)->to, SETTLE_SENT);
    assert_int_equal(item_of(settle, 1)->to, SETTLE_PENDING);
    assert_int_equal(item_of(settle, 1)->code, ERR_BROKER_UNROUTABLE);
    assert_int_equal(item_of(settle, 2)->to, SETTLE_WAITING);
    drop(t);
}

static void no_answer_by_the_deadline_is_unknown_and_the_late_one_is_not_used(void **state) {
    (void)state;
    struct bench *t = make(1);
    step(t);
    answer_claim(t, (const char *[]){"k1:1:A"}, 1);
    struct op *pub = take_publish(&t->a, 1);
    t->now += CONFIRM;
    step(t);
    struct op *settle = port_take(&t->store, OP_SETTLE);
    assert_int_equal(item_of(settle, 0)->to, SETTLE_UNKNOWN);
    assert_int_equal(item_of(settle, 0)->failure, 0);
    assert_int_equal(item_of(settle, 0)->attempt, 1);
    assert_true(item_of(settle, 0)->retry_in >= SEC / 2);
    port_finish(settle, CSN_OK);
    step(t);
    say(pub, PUB_CONFIRMED);
    step(t);
    assert_int_equal(t->counters.late_results, 1);
    assert_int_equal(t->counters.sent, 0);
    assert_int_equal(t->counters.unknown, 1);
    drop(t);
}

static void a_permanent_fault_fails_at_once_a_temporary_one_when_the_budget_is_spent(void **state) {
    (void)state;
    struct bench *t = make(1);
    step(t);
    answer_claim(t, (const char *[]){"k1:1:A", "k2:1:A", "k3:1:A"}, 3);
    t->relay.flight[0].batch.msg[2].failures = 2; /* of 3 */
    struct op *pub = take_publish(&t->a, 3);
    pub->publish.item[0].out = PUB_REJECTED;
    pub->publish.item[1].out = PUB_NACKED;
    pub->publish.item[2].out = PUB_NACKED;
    port_finish(pub, CSN_OK);
    step(t);
    struct op *settle = port_take(&t->store, OP_SETTLE);
    assert_int_equal(item_of(settle, 0)->to, SETTLE_FAILED);
    assert_int_equal(item_of(settle, 1)->to, SETTLE_PENDING);
    assert_int_equal(item_of(settle, 2)->to, SETTLE_FAILED);
    assert_int_equal(item_of(settle, 2)->failure, 1);
    drop(t);
}

static void a_destination_that_cannot_be_reached_burns_no_budget_and_is_probed(void **state) {
    (void)state;
    struct bench *t = make(1);
    step(t);
    answer_claim(t, (const char *[]){"k1:1:A", "k2:1:A"}, 2);
    port_finish(take_publish(&t->a, 2), CSN_AGAIN);
    step(t);
    struct op *settle = port_take(&t->store, OP_SETTLE);
    assert_false(port_has(&t->store, OP_CLAIM)); /* every destination rests: nothing is claimed */
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(item_of(settle, i)->to, SETTLE_PENDING);
        assert_int_equal(item_of(settle, i)->failure, 0);
        assert_int_equal(item_of(settle, i)->attempt, 0);
        assert_int_equal(item_of(settle, i)->retry_in, 0);
    }
    port_finish(settle, CSN_OK);
    step(t);
    assert_false(port_has(&t->store, OP_CLAIM));
    t->now += 2 * SEC;
    step(t);
    struct op *claim = port_take(&t->store, OP_CLAIM);
    assert_int_equal(claim->claim.limit, PROBE_ROWS);
    port_finish(claim, CSN_OK);
    step(t);
    drop(t);
}

static void a_closed_destination_does_not_hold_up_the_open_one(void **state) {
    (void)state;
    struct bench *t = make(2);
    breaker_bad(&t->dest[0].breaker, &t->relay.retry, &t->chance, t->now);
    step(t);
    answer_claim(t, (const char *[]){"k1:1:A", "k2:1:B", "k1:2:B"}, 3);
    assert_false(port_has(&t->a, OP_PUBLISH));
    say(take_publish(&t->b, 1), PUB_CONFIRMED); /* k2 only: k1:2 must not overtake k1:1 */
    step(t);
    struct op *settle = port_take(&t->store, OP_SETTLE);
    assert_int_equal(item_of(settle, 0)->to, SETTLE_WAITING);
    assert_int_equal(item_of(settle, 0)->waits_for, WAITS_ROUTE);
    assert_string_equal(settle->settle.route, "ra");
    assert_int_equal(item_of(settle, 1)->to, SETTLE_SENT);
    assert_int_equal(item_of(settle, 2)->to, SETTLE_WAITING);
    assert_int_equal(item_of(settle, 2)->waits_for, WAITS_KEY);
    drop(t);
}

static void nothing_is_published_after_the_lease_could_be_over(void **state) {
    (void)state;
    struct bench *t = make(1);
    step(t);
    t->now += LEASE; /* the process was stopped between the claim and its answer */
    answer_claim(t, (const char *[]){"k1:1:A"}, 1);
    assert_false(port_has(&t->a, OP_PUBLISH));
    struct op *settle = port_take(&t->store, OP_SETTLE);
    assert_int_equal(item_of(settle, 0)->to, SETTLE_PENDING);
    assert_int_equal(item_of(settle, 0)->attempt, 0);
    drop(t);
}

static void a_lease_that_would_end_too_soon_is_renewed_before_the_next_wave(void **state) {
    (void)state;
    struct bench *t = make(1);
    step(t);
    answer_claim(t, (const char *[]){"k1:1:A", "k1:2:A"}, 2);
    struct op *pub = take_publish(&t->a, 1);
    t->now += 4 * SEC;
    say(pub, PUB_CONFIRMED);
    t->relay.flight[0].lease_end = t->now + SEC;
    step(t);
    struct op *renew = port_take(&t->store, OP_RENEW);
    assert_string_equal(renew->renew.token, t->relay.flight[0].token);
    assert_false(port_has(&t->a, OP_PUBLISH));
    renew->renew.renewed = 2;
    port_finish(renew, CSN_OK);
    step(t);
    take_publish(&t->a, 1);
    drop(t);
}

static void what_a_failed_renewal_does_not_cover_is_given_back(void **state) {
    (void)state;
    struct bench *t = make(1);
    step(t);
    answer_claim(t, (const char *[]){"k1:1:A", "k1:2:A"}, 2);
    say(take_publish(&t->a, 1), PUB_CONFIRMED);
    t->relay.flight[0].lease_end = t->now + SEC;
    step(t);
    port_finish(port_take(&t->store, OP_RENEW), CSN_AGAIN);
    step(t);
    assert_false(port_has(&t->a, OP_PUBLISH));
    struct op *settle = port_take(&t->store, OP_SETTLE);
    assert_int_equal(item_of(settle, 0)->to, SETTLE_SENT);
    assert_int_equal(item_of(settle, 1)->to, SETTLE_PENDING);
    assert_int_equal(item_of(settle, 1)->attempt, 0);
    drop(t);
}

static void stale_rows_are_counted_and_an_unsure_settle_is_repeated(void **state) {
    (void)state;
    struct bench *t = make(1);
    step(t);
    answer_claim(t, (const char *[]){"k1:1:A"}, 1);
    say(take_publish(&t->a, 1), PUB_CONFIRMED);
    step(t);
    struct op *settle = port_take(&t->store, OP_SETTLE);
    port_finish(port_take(&t->store, OP_CLAIM), CSN_UNKNOWN);
    port_finish(settle, CSN_UNKNOWN);
    step(t);
    assert_int_equal(t->relay.unsure, 1); /* the claim of the same group may have committed, too */
    t->now += SEC;
    step(t);
    settle = port_take(&t->store, OP_SETTLE);
    settle->settle.stale = 1;
    settle->settle.item[0].result = CSN_STALE;
    port_finish(settle, CSN_OK);
    step(t);
    assert_int_equal(t->counters.stale_writes, 0); /* perhaps our own commit made it stale */
    assert_false(port_has(&t->store, OP_CLAIM));   /* first the unsure lane is recovered */
    struct op *recover = port_take(&t->store, OP_RECOVER);
    assert_int_equal(recover->recover.fresh, 1);
    port_finish(recover, CSN_OK);
    step(t);
    assert_int_equal(t->relay.unsure, 0);
    answer_claim(t, (const char *[]){"k2:1:A"}, 1);
    say(take_publish(&t->a, 1), PUB_CONFIRMED);
    step(t);
    settle = port_take(&t->store, OP_SETTLE);
    settle->settle.stale = 1;
    settle->settle.item[0].result = CSN_STALE;
    port_finish(settle, CSN_OK);
    step(t);
    assert_int_equal(t->counters.stale_writes, 1);
    drop(t);
}

static void a_fresh_lane_is_recovered_before_anything_is_claimed(void **state) {
    (void)state;
    struct bench *t = make(1);
    t->lanes.fresh = 1;
    step(t);
    assert_false(port_has(&t->store, OP_CLAIM));
    struct op *recover = port_take(&t->store, OP_RECOVER);
    assert_int_equal(recover->recover.fresh, 1);
    assert_string_equal(recover->recover.open_routes, "ra");
    recover->recover.more = true;
    recover->recover.expired = 1000;
    port_finish(recover, CSN_OK);
    step(t);
    assert_false(port_has(&t->store, OP_CLAIM)); /* there is more of it */
    recover = port_take(&t->store, OP_RECOVER);
    port_finish(recover, CSN_OK);
    step(t);
    assert_true(port_has(&t->store, OP_CLAIM));
    drop(t);
}

static void a_stop_gives_back_what_was_not_published(void **state) {
    (void)state;
    struct bench *t = make(1);
    step(t);
    relay_stop(&t->relay);
    answer_claim(t, (const char *[]){"k1:1:A"}, 1);
    assert_false(port_has(&t->a, OP_PUBLISH));
    struct op *settle = port_take(&t->store, OP_SETTLE);
    assert_int_equal(item_of(settle, 0)->to, SETTLE_PENDING);
    assert_false(port_has(&t->store, OP_CLAIM));
    port_finish(settle, CSN_OK);
    step(t);
    assert_true(relay_idle(&t->relay));
    drop(t);
}

/* A claim of n events of one key, of which those before `alive` have expired. */
static struct op *settle_expired(struct bench *t, uint32_t n, uint32_t alive) {
    step(t);
    struct op *claim = port_take(&t->store, OP_CLAIM);
    struct batch *b = claim->batch;
    for (uint32_t i = 0; i < n; i++)
        b->msg[i] = (struct message){.id = bytes_of(i ? "b" : "a"),
                                     .aggregate_id = bytes_of("k"),
                                     .event_type = bytes_of("A"),
                                     .version = i + 1,
                                     .expires_in = i >= alive ? CSN_USEC_NEVER : 0};
    b->n = n;
    port_finish(claim, CSN_OK);
    step(t);
    return port_take(&t->store, OP_SETTLE);
}

/* Were it published before that is committed, and the store's clock set back, the expired one could
 * be alive again and come after it. */
static void behind_an_expired_one_a_key_goes_on_when_that_is_cancelled(void **state) {
    (void)state;
    struct bench *t = make(1);
    struct op *settle = settle_expired(t, 3, 1);
    assert_int_equal(t->relay.counters->published, 0);
    assert_int_equal(item_of(settle, 0)->to, SETTLE_CANCELLED);
    assert_int_equal(item_of(settle, 0)->code, ERR_EXPIRED);
    for (uint32_t i = 1; i < 3; i++) {
        assert_int_equal(item_of(settle, i)->to, SETTLE_WAITING);
        assert_int_equal(item_of(settle, i)->waits_for, WAITS_KEY);
    }
    drop(t);
}

static void what_has_expired_together_is_cancelled_together(void **state) {
    (void)state;
    struct bench *t = make(1);
    struct op *settle = settle_expired(t, 3, 3);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(item_of(settle, i)->to, SETTLE_CANCELLED);
    drop(t);
}

/* A copy of it may be under way: cancelled, it would let those behind it pass that copy. */
static void what_may_have_arrived_is_sent_again_and_not_cancelled(void **state) {
    (void)state;
    struct bench *t = make(1);
    step(t);
    struct op *claim = port_take(&t->store, OP_CLAIM);
    claim->batch->msg[0] = (struct message){.id = bytes_of("a"),
                                            .aggregate_id = bytes_of("k"),
                                            .event_type = bytes_of("A"),
                                            .version = 1,
                                            .expires_in = -5 * SEC,
                                            .maybe_sent = true};
    claim->batch->n = 1;
    port_finish(claim, CSN_OK);
    step(t);
    assert_int_equal(take_publish(&t->a, 1)->publish.n, 1);
    drop(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_claim_is_fenced_and_has_a_fresh_token),
        cmocka_unit_test(no_lane_no_claim),
        cmocka_unit_test(confirmed_rows_are_settled_with_the_next_claim_in_one_group),
        cmocka_unit_test(a_streaming_broker_gets_a_keys_events_one_after_the_other),
        cmocka_unit_test(an_atomic_broker_gets_a_key_in_one_op),
        cmocka_unit_test(no_answer_by_the_deadline_is_unknown_and_the_late_one_is_not_used),
        cmocka_unit_test(a_permanent_fault_fails_at_once_a_temporary_one_when_the_budget_is_spent),
        cmocka_unit_test(a_destination_that_cannot_be_reached_burns_no_budget_and_is_probed),
        cmocka_unit_test(a_closed_destination_does_not_hold_up_the_open_one),
        cmocka_unit_test(nothing_is_published_after_the_lease_could_be_over),
        cmocka_unit_test(a_lease_that_would_end_too_soon_is_renewed_before_the_next_wave),
        cmocka_unit_test(what_a_failed_renewal_does_not_cover_is_given_back),
        cmocka_unit_test(stale_rows_are_counted_and_an_unsure_settle_is_repeated),
        cmocka_unit_test(a_fresh_lane_is_recovered_before_anything_is_claimed),
        cmocka_unit_test(a_stop_gives_back_what_was_not_published),
        cmocka_unit_test(behind_an_expired_one_a_key_goes_on_when_that_is_cancelled),
        cmocka_unit_test(what_has_expired_together_is_cancelled_together),
        cmocka_unit_test(what_may_have_arrived_is_sent_again_and_not_cancelled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
