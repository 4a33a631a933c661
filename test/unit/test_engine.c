/* test_engine.c: what one machine does is news for another: a watch that found rows brings a claim
 * at once, a publish brings a delivery at once, and nothing of it waits for a timer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/engine.h"
#include "ports.h"

enum { SEC = 1000000, LEASE = 30 * SEC };

struct bench {
    struct test_port heart, relay, watch, in, out, apply;
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
    struct engine_store store = {.name = "orders",
                                 .heart = &t->heart.port,
                                 .relay = &t->relay.port,
                                 .watch = &t->watch.port,
                                 .lanes = 1};
    struct engine_broker broker = {.name = "local",
                                   .in = &t->in.port,
                                   .out = &t->out.port,
                                   .heart = &t->heart.port,
                                   .watch = &t->watch.port,
                                   .confirm_timeout = 5 * SEC};
    struct engine_subscription sub = {.consumer = "stock",
                                      .match = "*",
                                      .partitions = 4,
                                      .handler = &handler,
                                      .workers = 1,
                                      .apply = {&t->apply.port}};
    struct engine_route route = {.name = "all", .match = "*", .broker = 0};
    sub.retry = (struct retry_policy){.base = SEC, .max = 60 * SEC, .failures = 3, .age = LEASE};
    struct engine_setup setup = {.store = &store,
                                 .broker = &broker,
                                 .subscription = &sub,
                                 .route = &route,
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
                                 .retry = sub.retry};
    assert_int_equal(engine_new(&setup, t->now, &t->engine, NULL), CSN_OK);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(due_rows_are_claimed_at_once),
        cmocka_unit_test(expired_rows_are_recovered_at_once),
        cmocka_unit_test(deliveries_are_received_at_once),
        cmocka_unit_test(parked_work_is_claimed_at_once),
        cmocka_unit_test(a_publish_wakes_the_consumer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
