/* test_engine.c: what one machine does is news for another: a watch that found rows brings a claim
 * at once, a publish brings a delivery at once, and nothing of it waits for a timer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "core/engine.h"
#include "ports.h"

enum { SEC = 1000000, LEASE = 30 * SEC };

struct bench {
    struct test_port heart, relay, watch, in, out, apply;
    struct engine_store store;
    struct engine_broker broker;
    struct engine_subscription sub;
    struct engine_route route;
    struct engine_setup setup;
    struct engine *engine;
    csn_usec now;
};

static csn_verdict done(const struct message *m, void *arg) {
    (void)m;
    (void)arg;
    return CSN_DONE;
}

static void step(struct bench *t) {
    engine_step(t->engine, t->now);
}

/* Finishes the LEASE of each set of lanes, so that all are held. */
static void lease_all(struct bench *t) {
    for (int i = 0; i < 2; i++) {
        struct op *op = port_take(&t->heart, OP_LEASE);
        op->lease.held = op->lease.fresh = op->lease.want;
        port_finish(op, CSN_OK);
    }
}

static void make(struct bench *t) {
    static const struct handler handler = {.function = done};
    *t = (struct bench){.now = 100 * SEC};
    port_make(&t->heart);
    port_make(&t->relay);
    port_make(&t->watch);
    port_make(&t->in);
    port_make(&t->out);
    port_make(&t->apply);
    t->store = (struct engine_store){.name = "orders",
                                     .heart = &t->heart.port,
                                     .relay = &t->relay.port,
                                     .watch = &t->watch.port,
                                     .lanes = 1};
    t->broker = (struct engine_broker){.name = "local",
                                       .in = &t->in.port,
                                       .out = &t->out.port,
                                       .heart = &t->heart.port,
                                       .watch = &t->watch.port,
                                       .confirm_timeout = 5 * SEC};
    t->sub = (struct engine_subscription){
        .consumer = "stock",
        .match = "*",
        .partitions = 4,
        .handler = &handler,
        .retry = {.base = SEC, .max = 60 * SEC, .failures = 3, .age = LEASE},
        .workers = 1,
        .apply = {&t->apply.port}};
    t->route = (struct engine_route){.name = "all", .match = "*", .broker = 0};
    t->setup = (struct engine_setup){.store = &t->store,
                                     .broker = &t->broker,
                                     .subscription = &t->sub,
                                     .route = &t->route,
                                     .stores = 1,
                                     .brokers = 1,
                                     .subscriptions = 1,
                                     .routes = 1,
                                     .label = "node",
                                     .seed = {1, 2, 3, 4},
                                     .batch_rows = 10,
                                     .batch_bytes = 1 << 20,
                                     .probe_min = 1000,
                                     .probe_max = 50000,
                                     .lease = LEASE,
                                     .lock_wait = SEC,
                                     .stop_timeout = SEC,
                                     .retry = t->sub.retry};
    assert_int_equal(engine_new(&t->setup, t->now, &t->engine, NULL), CSN_OK);
    step(t);
    lease_all(t);
    port_finish(port_take(&t->in, OP_DECLARE), CSN_OK);
    step(t);
    port_finish(port_take(&t->relay, OP_RECOVER), CSN_OK);
    port_finish(port_take(&t->out, OP_RECEIVE), CSN_OK);
    port_finish(port_take(&t->apply, OP_CLAIM), CSN_OK);
    port_finish(port_take(&t->apply, OP_RECOVER), CSN_OK);
    step(t);
    port_finish(port_take(&t->relay, OP_CLAIM), CSN_OK);
    t->now += SEC / 2;
    step(t);
    /* The first look covers what was idle then; the next one covers everything. */
    while (port_has(&t->relay, OP_CLAIM) || t->watch.in[0]->watch.n < 4) {
        if (port_has(&t->relay, OP_CLAIM))
            port_finish(port_take(&t->relay, OP_CLAIM), CSN_OK);
        if (port_has(&t->watch, OP_WATCH))
            port_finish(port_take(&t->watch, OP_WATCH), CSN_OK);
        if (port_has(&t->out, OP_RECEIVE))
            port_finish(port_take(&t->out, OP_RECEIVE), CSN_OK);
        t->now += SEC / 10;
        assert_true(t->now < 105 * SEC);
        step(t);
    }
    assert_false(port_has(&t->relay, OP_CLAIM));
    assert_false(port_has(&t->out, OP_RECEIVE));
}

static void drop(struct bench *t) {
    engine_free(t->engine);
}

static struct op *found(struct bench *t, enum watch_kind kind) {
    struct op *op = port_take(&t->watch, OP_WATCH);
    for (uint32_t i = 0; i < op->watch.n; i++)
        op->watch.item[i].found = op->watch.item[i].kind == kind;
    port_finish(op, CSN_OK);
    step(t);
    return op;
}

/* The relay and a subscription are another process's: their lanes are left to it, the binding is
 * declared all the same, and the stop has nothing to wait for. */
static void what_is_another_process_s_is_only_declared(void **state) {
    (void)state;
    struct bench t;
    csn_usec since;
    make(&t);
    engine_free(t.engine);
    t.store.lanes = 0;
    t.store.relay = NULL;
    t.setup.subscriptions = 0;
    t.setup.bound = 1;
    assert_int_equal(engine_new(&t.setup, t.now, &t.engine, NULL), CSN_OK);
    step(&t);
    struct op *op = port_take(&t.in, OP_DECLARE);
    assert_int_equal(op->declare.n, 1);
    assert_string_equal(op->declare.binding[0].subscription, "stock");
    port_finish(op, CSN_OK);
    op = port_take(&t.heart, OP_LEASE);
    assert_string_equal(op->lease.name, "outbox");
    assert_int_equal(op->lease.want, 0);
    op->lease.held = 0;
    port_finish(op, CSN_OK);
    assert_false(port_has(&t.heart, OP_LEASE));
    step(&t);
    assert_true(engine_ready(t.engine));
    assert_false(port_has(&t.out, OP_RECEIVE));
    assert_false(port_has(&t.apply, OP_CLAIM));
    since = t.now;
    engine_stop(t.engine, t.now);
    step(&t);
    op = port_take(&t.heart, OP_LEASE);
    assert_true(op->lease.leave);
    port_finish(op, CSN_OK);
    step(&t);
    assert_true(engine_stopped(t.engine, since));
    drop(&t);
}

static void due_rows_are_claimed_at_once(void **state) {
    (void)state;
    struct bench t;
    make(&t);
    found(&t, WATCH_OUTBOX);
    assert_true(port_has(&t.relay, OP_CLAIM));
    drop(&t);
}

static void expired_rows_are_recovered_at_once(void **state) {
    (void)state;
    struct bench t;
    make(&t);
    found(&t, WATCH_RECOVER);
    assert_true(port_has(&t.relay, OP_RECOVER));
    drop(&t);
}

static void deliveries_are_received_at_once(void **state) {
    (void)state;
    struct bench t;
    make(&t);
    found(&t, WATCH_QUEUE);
    assert_true(port_has(&t.out, OP_RECEIVE));
    drop(&t);
}

static void parked_work_is_claimed_at_once(void **state) {
    (void)state;
    struct bench t;
    make(&t);
    found(&t, WATCH_WORK);
    assert_true(port_has(&t.apply, OP_CLAIM));
    drop(&t);
}

static void a_publish_wakes_the_consumer(void **state) {
    (void)state;
    struct bench t;
    make(&t);
    found(&t, WATCH_OUTBOX);
    struct op *claim = port_take(&t.relay, OP_CLAIM);
    claim->batch->msg[0] = (struct message){.id = bytes_of("e"),
                                            .aggregate_id = bytes_of("k"),
                                            .event_type = bytes_of("T"),
                                            .version = 1,
                                            .expires_in = CSN_USEC_NEVER};
    claim->batch->n = 1;
    port_finish(claim, CSN_OK);
    step(&t);
    struct op *publish = port_take(&t.in, OP_PUBLISH);
    publish->publish.item[0].out = PUB_CONFIRMED;
    port_finish(publish, CSN_OK);
    step(&t);
    assert_true(port_has(&t.out, OP_RECEIVE));
    drop(&t);
}

/* ---- what changes while it runs ---- */

/* n messages of keys of their own in the batch of an op. */
static void fill(struct op *op, uint32_t n) {
    static char key[100][8];
    for (uint32_t i = 0; i < n; i++) {
        snprintf(key[i], sizeof key[i], "k%u", i);
        op->batch->msg[i] = (struct message){.id = bytes_of(key[i]),
                                             .aggregate_id = bytes_of(key[i]),
                                             .event_type = bytes_of("T"),
                                             .version = 1,
                                             .expires_in = CSN_USEC_NEVER};
    }
    op->batch->n = n;
}

/* Asks for deliveries and hands n over; the APPLY of them. */
static struct op *deliver(struct bench *t, uint32_t n) {
    if (!port_has(&t->out, OP_RECEIVE))
        found(t, WATCH_QUEUE);
    struct op *receive = port_take(&t->out, OP_RECEIVE);
    assert_true(receive->receive.limit >= n);
    fill(receive, n);
    port_finish(receive, CSN_OK);
    step(t);
    return port_take(&t->apply, OP_APPLY);
}

static void apply_done(struct bench *t, struct op *apply) {
    for (uint32_t i = 0; i < apply->apply.n; i++) {
        apply->apply.item[i].out = APPLY_VERDICT;
        apply->apply.item[i].verdict = CSN_DONE;
    }
    port_finish(apply, CSN_OK);
    step(t);
    port_finish(port_take(&t->out, OP_ACK), CSN_OK);
    step(t);
}

/* The next CLAIM of the outbox, answered with nothing. */
static struct op *next_claim(struct bench *t) {
    for (int i = 0; i < 20 && !port_has(&t->relay, OP_CLAIM); i++) {
        t->now += SEC;
        step(t);
        if (!port_has(&t->relay, OP_CLAIM) && port_has(&t->watch, OP_WATCH))
            found(t, WATCH_OUTBOX);
    }
    struct op *claim = port_take(&t->relay, OP_CLAIM);
    claim->batch->n = 0;
    port_finish(claim, CSN_OK);
    return claim;
}

static void batches_grow_and_shrink(void **state) {
    (void)state;
    struct bench t;
    make(&t);
    t.setup.batch_rows = 60;
    t.setup.batch_bytes = 8 << 20;
    engine_reload(t.engine, &t.setup);
    found(&t, WATCH_OUTBOX);
    struct op *claim = port_take(&t.relay, OP_CLAIM);
    assert_int_equal(claim->claim.limit, 60);
    assert_int_equal(claim->claim.bytes, 8 << 20);
    assert_true(claim->batch->cap >= 60 && claim->batch->arena.limit >= 16 << 20);
    fill(claim, 60);
    port_finish(claim, CSN_OK);
    step(&t);
    struct op *publish = port_take(&t.in, OP_PUBLISH);
    assert_int_equal(publish->publish.n, 60);
    for (uint32_t i = 0; i < 60; i++)
        publish->publish.item[i].out = PUB_CONFIRMED;
    port_finish(publish, CSN_OK);
    step(&t);
    struct op *settle = port_take(&t.relay, OP_SETTLE);
    assert_int_equal(settle->settle.n, 60);
    port_finish(settle, CSN_OK);
    t.setup.batch_rows = 5;
    engine_reload(t.engine, &t.setup);
    step(&t);
    assert_int_equal(next_claim(&t)->claim.limit, 60); /* asked for together with the settle */
    assert_int_equal(next_claim(&t)->claim.limit, 5);
    drop(&t);
}

/* There is room for more only when nothing is being applied: until then the old number holds. */
static void a_busy_consumer_grows_when_it_can(void **state) {
    (void)state;
    struct bench t;
    make(&t);
    struct op *apply = deliver(&t, 10);
    t.setup.batch_rows = 60;
    engine_reload(t.engine, &t.setup);
    found(&t, WATCH_WORK);
    struct op *work = port_take(&t.apply, OP_CLAIM);
    assert_int_equal(work->claim.limit, 10);
    work->batch->n = 0;
    port_finish(work, CSN_OK);
    port_finish(port_take(&t.apply, OP_RECOVER), CSN_OK);
    apply_done(&t, apply);
    apply_done(&t, deliver(&t, 10));
    apply = deliver(&t, 60);
    assert_int_equal(apply->apply.n, 60);
    apply_done(&t, apply);
    drop(&t);
}

static void a_handler_is_exchanged_between_two_batches(void **state) {
    (void)state;
    static const struct handler other = {.function = done};
    struct bench t;
    make(&t);
    const struct handler *first = t.sub.handler;
    struct op *apply = deliver(&t, 3);
    assert_ptr_equal(apply->apply.handler, first);
    t.sub.handler = &other;
    t.sub.retry.failures = 77;
    engine_reload(t.engine, &t.setup);
    assert_true(engine_uses(t.engine, first)); /* the store still has it */
    assert_true(engine_uses(t.engine, &other));
    apply_done(&t, apply);
    assert_false(engine_uses(t.engine, first));
    apply = deliver(&t, 3);
    assert_ptr_equal(apply->apply.handler, &other);
    apply->apply.item[0].out = APPLY_VERDICT; /* and its faults are counted by the new policy */
    apply->apply.item[0].verdict = CSN_RETRY;
    apply->batch->msg[0].failures = 70;
    for (uint32_t i = 1; i < apply->apply.n; i++)
        apply->apply.item[i] = (struct apply_item){
            .msg = apply->apply.item[i].msg, .out = APPLY_VERDICT, .verdict = CSN_DONE};
    port_finish(apply, CSN_OK);
    step(&t);
    struct op *park = port_take(&t.apply, OP_PARK);
    assert_int_equal(park->park.item[0].to, PARK_RETRY);
    drop(&t);
}

static void looks_follow_the_new_pauses(void **state) {
    (void)state;
    struct bench t;
    make(&t);
    t.setup.probe_min = t.setup.probe_max = 7 * SEC;
    engine_reload(t.engine, &t.setup);
    for (int i = 0; i < 3; i++) {
        port_finish(port_take(&t.watch, OP_WATCH), CSN_OK);
        step(&t);
        t.now += 8 * SEC;
        step(&t);
    }
    assert_int_equal(port_take(&t.watch, OP_WATCH)->watch.wait, 7 * SEC);
    drop(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_another_process_s_is_only_declared),
        cmocka_unit_test(due_rows_are_claimed_at_once),
        cmocka_unit_test(expired_rows_are_recovered_at_once),
        cmocka_unit_test(deliveries_are_received_at_once),
        cmocka_unit_test(parked_work_is_claimed_at_once),
        cmocka_unit_test(a_publish_wakes_the_consumer),
        cmocka_unit_test(batches_grow_and_shrink),
        cmocka_unit_test(a_busy_consumer_grows_when_it_can),
        cmocka_unit_test(a_handler_is_exchanged_between_two_batches),
        cmocka_unit_test(looks_follow_the_new_pauses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
