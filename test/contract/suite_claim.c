/* suite_claim.c: CLAIM of the outbox: order, limits, the fence of the lanes, keys that are
 * blocked, steps of the clock; and the release of what waits behind a key. */
#include "test/contract/suite.h"

#include <pthread.h>
#include <stdio.h>

/* ---- order and content ---- */

static void m21_rows_come_in_index_order(void **state) {
    struct suite *s = *state;
    struct world_event e[5] = {{.id = "e1", .aggregate_id = "k1", .due_in = -1 * SECOND},
                               {.id = "e2", .aggregate_id = "k2", .due_in = -3 * SECOND},
                               {.id = "e3", .aggregate_id = "k3", .due_in = -2 * SECOND},
                               {.id = "e4", .aggregate_id = "k4", .due_in = -5 * SECOND},
                               {.id = "e5", .aggregate_id = "k5", .due_in = -5 * SECOND}};

    for (size_t i = 0; i < ARRAY_LEN(e); i++) {
        e[i].aggregate_type = "order";
        e[i].event_type = "OrderCreated";
        e[i].payload = "{}";
        e[i].version = 1;
    }
    assert_null(s->w->insert(s->w, e, ARRAY_LEN(e), true));
    expect_ids(claim(s, 10)->batch, "e4 e5 e2 e3 e1");
}

static void rows_that_are_not_due_stay(void **state) {
    struct suite *s = *state;
    struct op *op;

    put_due(s, "now", "k1", 1, 0);
    put_due(s, "later", "k2", 1, MINUTE);
    op = claim(s, 10);
    expect_ids(op->batch, "now");
    assert_false(op->claim.more);
    expect_status(s, "later", "pending");
    s->w->advance(s->w, MINUTE + SECOND);
    expect_ids(claim(s, 10)->batch, "later");
}

static void an_empty_claim_leaves_nothing_behind(void **state) {
    struct suite *s = *state;
    struct op *op = claim(s, 10);

    assert_int_equal(op->batch->n, 0);
    assert_false(op->claim.more);
    assert_int_equal(op->claim.parked, 0);
    assert_int_equal(op->claim.lost, 0);
    put(s, "e1", "k1", 1);
    expect_ids(claim(s, 10)->batch, "e1");
}

static void a_claim_writes_its_columns(void **state) {
    struct suite *s = *state;
    struct outbox_row before, row;
    struct op *op;

    put(s, "e1", "k1", 1);
    before = outbox(s, "e1");
    op = claim(s, 10);
    row = outbox(s, "e1");
    assert_string_equal(row.status, "sending");
    assert_string_equal(row.token, op->claim.token);
    assert_int_equal(row.attempts, 1);
    assert_int_equal(row.lease_until - row.claimed_at, 30 * SECOND);
    near(s, row.claimed_at, s->w->now(s->w));
    assert_int_equal(row.next_attempt_at, before.next_attempt_at);
    assert_int_equal(row.created_at, before.created_at);
    assert_int_equal(row.failures, 0);
    assert_int_equal(row.tries, 0);
}

static void a_claim_brings_the_whole_message(void **state) {
    struct suite *s = *state;
    struct world_event e = {"e1",
                            "order",
                            "k-1",
                            "OrderCreated",
                            "{\"n\": 1, \"t\": \"中文\"}",
                            7,
                            3,
                            "{\"h\":\"1\"}",
                            "00-aa-bb-01",
                            "corr-1",
                            "cause-1",
                            "tenant-1",
                            0,
                            MINUTE,
                            5};
    const struct message *m;

    put_event(s, &e);
    s->w->advance(s->w, 20 * SECOND);
    m = message_of(claim(s, 10)->batch, "e1");
    assert_true(text_is(m->aggregate_type, "order") && text_is(m->aggregate_id, "k-1"));
    assert_true(text_is(m->event_type, "OrderCreated") && text_is(m->payload, e.payload));
    assert_true(text_is(m->headers, e.headers) && text_is(m->traceparent, e.traceparent));
    assert_true(text_is(m->correlation_id, "corr-1") && text_is(m->causation_id, "cause-1"));
    assert_true(text_is(m->tenant, "tenant-1"));
    assert_int_equal(m->version, 7);
    assert_int_equal(m->prev_version, 0);
    assert_int_equal(m->schema_version, 3);
    assert_int_equal(m->priority, 5);
    assert_int_equal(m->seq, outbox(s, "e1").seq);
    assert_int_equal(m->attempts, 1);
    assert_int_equal(m->failures, 0);
    assert_int_equal(m->tries, 0);
    assert_int_equal(m->failing_for, 0);
    near(s, m->age, 20 * SECOND);
    near(s, m->expires_in, 40 * SECOND);
}

static void what_is_not_written_is_empty(void **state) {
    struct suite *s = *state;
    struct world_event e = {.id = "e1", .aggregate_id = "k1", .event_type = "T", .payload = "[]"};
    const struct message *m;

    put_event(s, &e);
    m = message_of(claim(s, 1)->batch, "e1");
    assert_int_equal(m->aggregate_type.size, 0);
    assert_int_equal(m->headers.size, 0);
    assert_int_equal(m->traceparent.size, 0);
    assert_int_equal(m->correlation_id.size, 0);
    assert_int_equal(m->causation_id.size, 0);
    assert_int_equal(m->tenant.size, 0);
    assert_int_equal(m->route.size, 0);
    assert_int_equal(m->version, 0);
    assert_int_equal(m->schema_version, 1);
    assert_true(m->expires_in == CSN_USEC_NEVER);
}

static void an_expired_event_says_so(void **state) {
    struct suite *s = *state;
    struct world_event e = {
        .id = "e1", .aggregate_id = "k1", .event_type = "T", .payload = "1", .expires_in = MINUTE};

    put_event(s, &e);
    s->w->advance(s->w, 3 * MINUTE);
    assert_true(message_of(claim(s, 1)->batch, "e1")->expires_in <= 0);
}

static void counts_and_failing_time_come_along(void **state) {
    struct suite *s = *state;
    struct op *set;
    const struct message *m;

    put(s, "e1", "k1", 1);
    set = settle_op(s, claim(s, 1), SETTLE_PENDING);
    set->settle.item[0].failure = set->settle.item[0].attempt = 1;
    set->settle.item[0].retry_in = SECOND;
    run(s, set);
    s->w->advance(s->w, 2 * MINUTE);
    m = message_of(claim(s, 1)->batch, "e1");
    assert_int_equal(m->attempts, 2);
    assert_int_equal(m->failures, 1);
    assert_int_equal(m->tries, 1);
    near(s, m->failing_for, 2 * MINUTE);
}

/* ---- limits ---- */

static void the_limit_of_rows_holds(void **state) {
    struct suite *s = *state;
    struct op *op;

    for (int i = 0; i < 5; i++) {
        char id[8];
        snprintf(id, sizeof(id), "e%d", i);
        put(s, id, id, 1);
    }
    op = claim(s, 2);
    expect_ids(op->batch, "e0 e1");
    assert_true(op->claim.more);
    op = claim(s, 2);
    expect_ids(op->batch, "e2 e3");
    assert_true(op->claim.more);
    op = claim(s, 2);
    expect_ids(op->batch, "e4");
    assert_false(op->claim.more);
}

static void put_sized(struct suite *s, const char *id, size_t size) {
    char *payload = keep(s, size + 1);
    struct world_event e = {.id = id, .aggregate_id = id, .event_type = "T", .payload = payload};

    memset(payload, 'x', size);
    payload[0] = payload[size - 1] = '"';
    put_event(s, &e);
}

static void the_limit_of_bytes_holds(void **state) {
    struct suite *s = *state;
    struct op *op;

    put_sized(s, "a", 1000);
    put_sized(s, "b", 1000);
    put_sized(s, "c", 1000);
    op = claim_op(s, 10);
    op->claim.bytes = 2500;
    run(s, op);
    expect_ids(op->batch, "a b");
    assert_true(op->claim.more);
    expect_status(s, "c", "pending");
    assert_int_equal(outbox(s, "c").attempts, 0);
}

static void one_row_is_taken_however_large(void **state) {
    struct suite *s = *state;
    struct op *op;

    put_sized(s, "a", 1000);
    put_sized(s, "b", 1000);
    op = claim_op(s, 10);
    op->claim.bytes = 10;
    run(s, op);
    expect_ids(op->batch, "a");
    assert_int_equal(op->batch->msg[0].payload.size, 1000);
    assert_true(op->claim.more);
}

static void many(struct suite *s, const char *key, int64_t from, int64_t to) {
    struct world_event *e = keep(s, (size_t)(to - from + 1) * sizeof(*e));
    char(*id)[24] = keep(s, (size_t)(to - from + 1) * sizeof(*id));

    for (int64_t v = from; v <= to; v++) {
        snprintf(id[v - from], sizeof(*id), "%.8s-%lld", key, (long long)v);
        e[v - from] = (struct world_event){.id = id[v - from],
                                           .aggregate_type = "order",
                                           .aggregate_id = key,
                                           .event_type = "OrderCreated",
                                           .payload = "{}",
                                           .version = v};
    }
    assert_null(s->w->insert(s->w, e, (uint32_t)(to - from + 1), true));
}

static void the_limit_of_parked_rows_holds(void **state) {
    struct suite *s = *state;
    static const uint32_t parked[] = {4, 4, 2};

    many(s, "k", 1, 11);
    s->w->set_status(s->w, "k-1", "failed", 0);
    for (size_t i = 0; i < ARRAY_LEN(parked); i++) {
        struct op *op = claim_op(s, 10);
        op->claim.park_limit = 4;
        run(s, op);
        assert_int_equal(op->batch->n, 0);
        assert_int_equal(op->claim.parked, parked[i]);
        assert_int_equal(op->claim.more, parked[i] == 4);
    }
    assert_int_equal(s->w->outbox_count(s->w, "waiting", WAITS_KEY), 10);
}

static void parked_rows_do_not_spend_the_limit(void **state) {
    struct suite *s = *state;
    struct op *op;

    many(s, "k", 1, 6);
    s->w->set_status(s->w, "k-1", "failed", 0);
    put(s, "other", "o", 1);
    op = claim(s, 1);
    expect_ids(op->batch, "other");
    assert_int_equal(op->claim.parked, 5);
}

/* ---- the fence ---- */

static void expect_all_lost(struct suite *s, struct op *op) {
    run(s, op);
    assert_int_equal(op->batch->n, 0);
    assert_true(op->claim.lost == s->lanes);
    expect_status(s, "e1", "pending");
    assert_int_equal(outbox(s, "e1").attempts, 0);
}

static void w32_a_claim_with_an_old_epoch_takes_nothing(void **state) {
    struct suite *s = *state;

    put(s, "e1", "k1", 1);
    for (uint32_t i = 0; i < s->w->outbox_lanes; i++)
        s->epoch[i]--;
    expect_all_lost(s, claim_op(s, 10));
    for (uint32_t i = 0; i < s->w->outbox_lanes; i++)
        s->epoch[i] += 2;
    expect_all_lost(s, claim_op(s, 10));
}

static void w33_a_claim_of_another_boot_takes_nothing(void **state) {
    struct suite *s = *state;
    struct op *op;

    put(s, "e1", "k1", 1);
    op = claim_op(s, 10);
    copy_text(op->claim.boot, sizeof(op->claim.boot), BOOT_B);
    expect_all_lost(s, op);
}

static void w29_a_claim_after_the_lease_takes_nothing(void **state) {
    struct suite *s = *state;

    put(s, "e1", "k1", 1);
    s->w->advance(s->w, 11 * MINUTE);
    expect_all_lost(s, claim_op(s, 10));
}

static void a_claim_of_dropped_lanes_takes_nothing(void **state) {
    struct suite *s = *state;
    struct op *op = lease_op(s, BOOT_A, "outbox", 0);

    op->lease.drop = s->lanes;
    run(s, op);
    put(s, "e1", "k1", 1);
    expect_all_lost(s, claim_op(s, 10));
}

static void a_claim_of_unknown_lanes_takes_nothing(void **state) {
    struct suite *s = *state;
    struct op *op;

    put(s, "e1", "k1", 1);
    op = claim_op(s, 10);
    copy_text(op->claim.lane_name, sizeof(op->claim.lane_name), "nobody");
    expect_all_lost(s, op);
}

static void no_parking_without_the_lane(void **state) {
    struct suite *s = *state;
    struct op *op;

    put(s, "v1", "k", 1);
    s->w->set_status(s->w, "v1", "failed", 0);
    put(s, "e1", "k", 2);
    op = claim_op(s, 10);
    copy_text(op->claim.boot, sizeof(op->claim.boot), BOOT_B);
    expect_all_lost(s, op);
    assert_int_equal(op->claim.parked, 0);
}

static void w20_two_relays_claim_one_after_the_other(void **state) {
    struct suite *s = *state;
    struct port *other = another_port(s, ROLE_RELAY);
    struct op *first, *second = claim_op(s, 10);

    many(s, "k", 1, 3);
    first = claim(s, 10);
    run_on(s, other, second);
    expect_ids(first->batch, "k-1 k-2 k-3");
    assert_int_equal(second->batch->n, 0);
    assert_string_equal(outbox(s, "k-2").token, first->claim.token);
}

struct racer {
    struct suite *s;
    struct port *port;
    struct op *op[40];
};

static void *race(void *arg) {
    struct racer *r = arg;

    for (size_t i = 0; i < ARRAY_LEN(r->op); i++) {
        r->port->submit(r->port, r->op[i]);
        r->port->flush(r->port);
        if (r->port->reap(r->port) != r->op[i])
            return NULL;
    }
    return r;
}

static void w20_two_relays_claim_at_once(void **state) {
    struct suite *s = *state;
    struct racer r[2] = {{.s = s}, {.s = s}};
    pthread_t thread[2];
    uint32_t taken = 0;

    need(s, WORLD_THREADS);
    for (int i = 0; i < 200; i++) {
        char id[12];
        snprintf(id, sizeof(id), "e%d", i);
        put(s, id, id, 1);
    }
    for (size_t i = 0; i < 2; i++) {
        r[i].port = another_port(s, ROLE_RELAY);
        for (size_t k = 0; k < ARRAY_LEN(r[i].op); k++)
            r[i].op[k] = claim_op(s, 4);
    }
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, race, &r[i]), 0);
    for (size_t i = 0; i < 2; i++) {
        void *finished;
        pthread_join(thread[i], &finished);
        assert_ptr_equal(finished, &r[i]);
        for (size_t k = 0; k < ARRAY_LEN(r[i].op); k++) {
            const struct batch *b = r[i].op[k]->batch;
            assert_int_equal(r[i].op[k]->result.status, CSN_OK);
            for (uint32_t m = 0; m < b->n; m++)
                assert_int_equal(b->msg[m].attempts, 1);
            taken += b->n;
        }
    }
    assert_int_equal(taken, 200);
    assert_int_equal(s->w->outbox_count(s->w, "sending", -1), 200);
}

/* ---- keys ---- */

static void w25_blocked(struct suite *s, const char *head_status, int waits_for) {
    struct op *op;

    put(s, "head", "k", 1);
    put(s, "next", "k", 2);
    put(s, "other", "o", 1);
    s->w->set_status(s->w, "head", head_status, waits_for);
    op = claim(s, 10);
    expect_ids(op->batch, "other");
    assert_int_equal(op->claim.parked, 1);
    expect_status(s, "head", head_status);
    expect_status(s, "next", "waiting");
    assert_int_equal(outbox(s, "next").waits_for, WAITS_KEY);
    assert_int_equal(outbox(s, "next").attempts, 0);
    assert_string_equal(outbox(s, "next").token, "");
    assert_int_equal(claim(s, 10)->batch->n, 0);
}

static void w25_behind_a_failed_head(void **state) {
    w25_blocked(*state, "failed", 0);
}

static void w25_behind_an_unknown_head(void **state) {
    w25_blocked(*state, "unknown", 0);
}

static void w25_behind_a_head_that_waits_for_its_route(void **state) {
    w25_blocked(*state, "waiting", WAITS_ROUTE);
}

static void w25_behind_a_held_head(void **state) {
    w25_blocked(*state, "held", 0);
}

static void w25_behind_a_status_nobody_knows(void **state) {
    need(*state, WORLD_ODD_STATUS);
    w25_blocked(*state, "odd", 0);
}

static void w25_behind_a_sending_head(void **state) {
    struct suite *s = *state;

    put(s, "head", "k", 1);
    expect_ids(claim(s, 10)->batch, "head");
    put(s, "next", "k", 2);
    assert_int_equal(claim(s, 10)->claim.parked, 1);
    expect_status(s, "next", "waiting");
}

static void w25_behind_a_head_that_is_not_due(void **state) {
    struct suite *s = *state;

    put_due(s, "head", "k", 1, MINUTE);
    put(s, "next", "k", 2);
    assert_int_equal(claim(s, 10)->claim.parked, 1);
    expect_status(s, "next", "waiting");
    expect_status(s, "head", "pending");
}

static void w25_behind_a_head_that_comes_later_in_the_index(void **state) {
    struct suite *s = *state;
    struct op *op;

    put_due(s, "next", "k", 2, -MINUTE);
    put_due(s, "head", "k", 1, -SECOND);
    op = claim(s, 10);
    expect_ids(op->batch, "head");
    assert_int_equal(op->claim.parked, 1);
    settle(s, op, SETTLE_SENT);
    op = claim(s, 10);
    expect_ids(op->batch, "next");
    assert_int_equal(op->batch->msg[0].prev_version, 1);
}

static void w25_behind_a_head_past_the_limit(void **state) {
    struct suite *s = *state;
    struct op *op;

    put(s, "other", "o", 1);
    put(s, "head", "k", 1);
    put(s, "next", "k", 2);
    expect_ids(claim(s, 1)->batch, "other");
    expect_status(s, "head", "pending");
    op = claim(s, 1);
    expect_ids(op->batch, "head");
    op = claim(s, 1);
    assert_int_equal(op->batch->n, 0);
    expect_status(s, "next", "waiting");
}

static void an_ended_head_blocks_nobody(void **state) {
    struct suite *s = *state;
    struct op *op;

    put(s, "a1", "a", 4);
    put(s, "a2", "a", 6);
    put(s, "b1", "b", 1);
    put(s, "b2", "b", 2);
    s->w->set_status(s->w, "a1", "sent", 0);
    s->w->set_status(s->w, "b1", "cancelled", 0);
    op = claim(s, 10);
    expect_ids(op->batch, "a2 b2");
    assert_int_equal(op->batch->msg[0].prev_version, 4);
    assert_int_equal(op->batch->msg[1].prev_version, 0); /* a cancelled row was never on its way */
    assert_int_equal(op->claim.parked, 0);
}

/* Cancelling a follower must not open the way round a head that failed. */
static void a_cancelled_row_is_looked_past(void **state) {
    struct suite *s = *state;

    put(s, "v1", "k", 1);
    put(s, "v2", "k", 2);
    put(s, "v3", "k", 3);
    put(s, "v4", "k", 4);
    s->w->set_status(s->w, "v1", "failed", 0);
    s->w->set_status(s->w, "v2", "cancelled", 0);
    s->w->set_status(s->w, "v3", "cancelled", 0);
    assert_int_equal(claim(s, 10)->claim.parked, 1);
    expect_status(s, "v4", "waiting");
    put(s, "w1", "l", 7);
    put(s, "w2", "l", 8);
    put(s, "w3", "l", 9);
    s->w->set_status(s->w, "w1", "sent", 0);
    s->w->set_status(s->w, "w2", "cancelled", 0);
    struct op *op = claim(s, 10);
    expect_ids(op->batch, "w3");
    assert_int_equal(op->batch->msg[0].prev_version, 7);
}

static void only_the_row_right_before_counts(void **state) {
    struct suite *s = *state;

    put(s, "v1", "k", 1);
    put(s, "v2", "k", 2);
    put(s, "v3", "k", 3);
    s->w->set_status(s->w, "v1", "sent", 0);
    s->w->set_status(s->w, "v2", "failed", 0);
    assert_int_equal(claim(s, 10)->claim.parked, 1);
    expect_status(s, "v3", "waiting");
}

static void a_key_may_be_in_a_claim_many_times(void **state) {
    struct suite *s = *state;
    struct op *op;

    put(s, "a1", "a", 1);
    put(s, "b1", "b", 1);
    put(s, "a2", "a", 2);
    put(s, "b2", "b", 2);
    put(s, "a3", "a", 3);
    op = claim(s, 10);
    assert_int_equal(op->batch->n, 5);
    assert_int_equal(op->claim.parked, 0);
    for (uint32_t i = 0; i < 5; i++) {
        const struct message *m = &op->batch->msg[i];
        assert_int_equal(m->prev_version, m->version - 1);
        for (uint32_t k = i + 1; k < 5; k++)
            if (bytes_equal(op->batch->msg[k].aggregate_id, m->aggregate_id))
                assert_true(op->batch->msg[k].version > m->version);
    }
    assert_true(text_is(op->batch->msg[0].id, "a1"));
}

static void types_tell_keys_apart(void **state) {
    struct suite *s = *state;
    struct world_event e = {.id = "head",
                            .aggregate_type = "stock",
                            .aggregate_id = "7",
                            .event_type = "T",
                            .payload = "1",
                            .version = 1};
    struct op *op;

    put_event(s, &e);
    s->w->set_status(s->w, "head", "failed", 0);
    put(s, "next", "7", 2);
    op = claim(s, 10);
    expect_ids(op->batch, "next");
    assert_int_equal(op->batch->msg[0].prev_version, 0);
}

static void w10_equal_versions_are_ordered_by_seq(void **state) {
    struct suite *s = *state;
    struct op *op;

    put(s, "first", "k", 5);
    put(s, "second", "k", 5);
    op = claim(s, 10);
    expect_ids(op->batch, "first second");
    assert_int_equal(op->batch->msg[1].prev_version, 5);
    settle(s, op, SETTLE_FAILED);
    put(s, "third", "k", 5);
    assert_int_equal(claim(s, 10)->claim.parked, 1);
    expect_status(s, "third", "waiting");
}

static void w11_a_lower_version_that_comes_later_is_not_lost(void **state) {
    struct suite *s = *state;
    struct op *op;

    put(s, "v2", "k", 2);
    settle(s, claim(s, 10), SETTLE_SENT);
    put(s, "v1", "k", 1);
    put(s, "v3", "k", 3);
    op = claim(s, 10);
    expect_ids(op->batch, "v1 v3");
    assert_int_equal(message_of(op->batch, "v1")->prev_version, 0);
    assert_int_equal(message_of(op->batch, "v3")->prev_version, 2);
}

static void a_version_put_in_between_waits_for_the_one_before(void **state) {
    struct suite *s = *state;
    struct op *op;

    put(s, "v1", "k", 1);
    op = claim(s, 1);
    put(s, "v3", "k", 3);
    assert_int_equal(claim(s, 1)->claim.parked, 1);
    put(s, "v2", "k", 2);
    assert_int_equal(claim(s, 1)->claim.parked, 1);
    settle(s, op, SETTLE_SENT);
    expect_status(s, "v3", "pending");
    op = claim(s, 10); /* v3 was due first: the release puts them in order */
    expect_ids(op->batch, "v2 v3");
    assert_int_equal(op->batch->msg[1].prev_version, 2);
}

/* ---- steps of the clock ---- */

static void w31_a_retry_beyond_the_longest_backoff_is_due(void **state) {
    struct suite *s = *state;
    struct op *set;

    put(s, "stepped", "a", 1);
    put_due(s, "planned", "b", 1, HOUR);
    set = settle_op(s, claim(s, 1), SETTLE_PENDING);
    set->settle.item[0].attempt = 1;
    set->settle.item[0].retry_in = MINUTE;
    run(s, set);
    s->w->advance(s->w, -HOUR);
    expect_ids(claim(s, 10)->batch, "stepped");
    expect_status(s, "planned", "pending");
}

static void a_retry_within_the_longest_backoff_is_not_due(void **state) {
    struct suite *s = *state;
    struct op *set;

    put(s, "e1", "a", 1);
    set = settle_op(s, claim(s, 1), SETTLE_PENDING);
    set->settle.item[0].attempt = 1;
    set->settle.item[0].retry_in = 9 * MINUTE;
    run(s, set);
    assert_int_equal(claim(s, 10)->batch->n, 0);
    s->w->advance(s->w, 9 * MINUTE + SECOND);
    expect_ids(claim(s, 10)->batch, "e1");
}

/* ---- release ---- */

static void the_end_of_a_head_releases_a_thousand(void **state) {
    struct suite *s = *state;
    struct op *head, *op;

    many(s, "k", 1, 2501);
    head = claim(s, 1);
    for (int i = 0; i < 3; i++)
        claim(s, 1);
    assert_int_equal(s->w->outbox_count(s->w, "waiting", WAITS_KEY), 2500);
    op = settle(s, head, SETTLE_SENT);
    assert_int_equal(op->settle.released, 1000);
    assert_int_equal(s->w->outbox_count(s->w, "pending", -1), 1000);
    expect_status(s, "k-2", "pending");
    expect_status(s, "k-1001", "pending");
    expect_status(s, "k-1002", "waiting");
    assert_int_equal(outbox(s, "k-2").waits_for, 0);
}

static void what_waits_is_sent_in_order_to_the_last(void **state) {
    struct suite *s = *state;
    uint64_t last = 0;
    int rounds = 0;

    many(s, "k", 1, 2501);
    for (; rounds < 200 && last < 2501; rounds++) {
        struct op *op = claim(s, rounds % 2 ? 300 : 1);
        for (uint32_t i = 0; i < op->batch->n; i++) {
            assert_int_equal(op->batch->msg[i].version, last + 1);
            assert_int_equal(op->batch->msg[i].prev_version, last);
            last++;
        }
        settle(s, op, SETTLE_SENT);
    }
    assert_int_equal(last, 2501);
    assert_int_equal(s->w->outbox_count(s->w, "sent", -1), 2501);
}

static void w94_followers_stay_behind(struct suite *s, uint8_t to, const char *status) {
    struct op *head, *op;

    put(s, "v1", "k", 1);
    head = claim(s, 10);
    put(s, "v2", "k", 2);
    claim(s, 10);
    expect_status(s, "v2", "waiting");
    op = settle_op(s, head, to);
    op->settle.item[0].retry_in = HOUR;
    run(s, op);
    assert_int_equal(op->settle.released, 0);
    expect_status(s, "v1", status);
    expect_status(s, "v2", "waiting");
    assert_int_equal(claim(s, 10)->batch->n, 0);
    expect_status(s, "v2", "waiting");
}

static void w94_behind_a_head_that_failed(void **state) {
    w94_followers_stay_behind(*state, SETTLE_FAILED, "failed");
}

static void w94_behind_a_head_that_is_unknown(void **state) {
    w94_followers_stay_behind(*state, SETTLE_UNKNOWN, "unknown");
}

static void w94_behind_a_head_that_backs_off(void **state) {
    w94_followers_stay_behind(*state, SETTLE_PENDING, "pending");
}

static void a_cancelled_head_releases(void **state) {
    struct suite *s = *state;
    struct op *head, *op;

    put(s, "v1", "k", 1);
    head = claim(s, 10);
    put(s, "v2", "k", 2);
    claim(s, 10);
    op = settle(s, head, SETTLE_CANCELLED);
    assert_int_equal(op->settle.released, 1);
    op = claim(s, 10);
    expect_ids(op->batch, "v2");
    assert_int_equal(op->batch->msg[0].prev_version, 0); /* what was cancelled leaves no gap */
}

static void a_release_is_for_its_own_key(void **state) {
    struct suite *s = *state;
    struct op *head, *op;

    put(s, "a1", "a", 1);
    put(s, "b1", "b", 1);
    head = claim(s, 1);
    claim(s, 1);
    put(s, "a2", "a", 2);
    put(s, "b2", "b", 2);
    claim(s, 10);
    op = settle(s, head, SETTLE_SENT);
    assert_int_equal(op->settle.released, 1);
    expect_status(s, "a2", "pending");
    expect_status(s, "b2", "waiting");
}

static void rows_that_wait_for_a_route_are_not_released_by_a_key(void **state) {
    struct suite *s = *state;
    struct op *head;

    put(s, "v1", "k", 1);
    head = claim(s, 1);
    put(s, "v2", "k", 2);
    s->w->set_status(s->w, "v2", "waiting", WAITS_ROUTE);
    assert_int_equal(settle(s, head, SETTLE_SENT)->settle.released, 0);
    expect_status(s, "v2", "waiting");
}

static void settle_and_claim_share_a_group(void **state) {
    struct suite *s = *state;
    struct op *op[2], *head;

    put(s, "v1", "k", 1);
    head = claim(s, 1);
    put(s, "v2", "k", 2);
    claim(s, 1);
    op[0] = settle_op(s, head, SETTLE_SENT);
    op[1] = claim_op(s, 10);
    group(s, port_of(s, ROLE_RELAY), op, 2);
    assert_int_equal(op[0]->result.status, CSN_OK);
    assert_int_equal(op[1]->result.status, CSN_OK);
    expect_ids(op[1]->batch, "v2");
}

const struct CMUnitTest suite_claim[] = {TEST(m21_rows_come_in_index_order),
                                         TEST(rows_that_are_not_due_stay),
                                         TEST(an_empty_claim_leaves_nothing_behind),
                                         TEST(a_claim_writes_its_columns),
                                         TEST(a_claim_brings_the_whole_message),
                                         TEST(what_is_not_written_is_empty),
                                         TEST(an_expired_event_says_so),
                                         TEST(counts_and_failing_time_come_along),
                                         TEST(the_limit_of_rows_holds),
                                         TEST(the_limit_of_bytes_holds),
                                         TEST(one_row_is_taken_however_large),
                                         TEST(the_limit_of_parked_rows_holds),
                                         TEST(parked_rows_do_not_spend_the_limit),
                                         TEST(w32_a_claim_with_an_old_epoch_takes_nothing),
                                         TEST(w33_a_claim_of_another_boot_takes_nothing),
                                         TEST(w29_a_claim_after_the_lease_takes_nothing),
                                         TEST(a_claim_of_dropped_lanes_takes_nothing),
                                         TEST(a_claim_of_unknown_lanes_takes_nothing),
                                         TEST(no_parking_without_the_lane),
                                         TEST(w20_two_relays_claim_one_after_the_other),
                                         TEST(w20_two_relays_claim_at_once),
                                         TEST(w25_behind_a_failed_head),
                                         TEST(w25_behind_an_unknown_head),
                                         TEST(w25_behind_a_head_that_waits_for_its_route),
                                         TEST(w25_behind_a_held_head),
                                         TEST(w25_behind_a_status_nobody_knows),
                                         TEST(w25_behind_a_sending_head),
                                         TEST(w25_behind_a_head_that_is_not_due),
                                         TEST(w25_behind_a_head_that_comes_later_in_the_index),
                                         TEST(w25_behind_a_head_past_the_limit),
                                         TEST(an_ended_head_blocks_nobody),
                                         TEST(a_cancelled_row_is_looked_past),
                                         TEST(only_the_row_right_before_counts),
                                         TEST(a_key_may_be_in_a_claim_many_times),
                                         TEST(types_tell_keys_apart),
                                         TEST(w10_equal_versions_are_ordered_by_seq),
                                         TEST(w11_a_lower_version_that_comes_later_is_not_lost),
                                         TEST(a_version_put_in_between_waits_for_the_one_before),
                                         TEST(w31_a_retry_beyond_the_longest_backoff_is_due),
                                         TEST(a_retry_within_the_longest_backoff_is_not_due),
                                         TEST(the_end_of_a_head_releases_a_thousand),
                                         TEST(what_waits_is_sent_in_order_to_the_last),
                                         TEST(w94_behind_a_head_that_failed),
                                         TEST(w94_behind_a_head_that_is_unknown),
                                         TEST(w94_behind_a_head_that_backs_off),
                                         TEST(a_cancelled_head_releases),
                                         TEST(a_release_is_for_its_own_key),
                                         TEST(rows_that_wait_for_a_route_are_not_released_by_a_key),
                                         TEST(settle_and_claim_share_a_group),
                                         TEST_END};
