/* suite_broker.c: the embedded broker: DECLARE, PUBLISH, RECEIVE, ACK. The subscription is "c";
 * its partitions are lanes of "sub/c". */
#include "test/contract/suite.h"

#include <stdio.h>

enum { PARTS = 8, ALL_PARTS = 255 };

static void subscribe(struct suite *s) {
    declare(s, "c", "*", PARTS);
    hold_parts(s, "sub/c", ALL_PARTS);
}

/* n events, each of a key of its own. */
static void publish_keys(struct suite *s, uint32_t n) {
    struct batch *b = new_batch(s);
    char id[16];

    for (uint32_t i = 0; i < n; i++) {
        snprintf(id, sizeof(id), "e%u", i);
        add_message(s, b, id, id, 1, "{}");
    }
    publish(s, b);
}

static uint64_t part_of(struct suite *s, const char *id) {
    return UINT64_C(1) << queue(s, "c", id).part;
}

/* ---- PUBLISH ---- */

static void a_message_goes_to_every_binding_that_matches(void **state) {
    struct suite *s = *state;
    struct op *op;

    declare(s, "all", "*", 4);
    declare(s, "list", "Stock*,OrderCreated", 2);
    declare(s, "none", "OrderCreate", 2);
    declare(s, "glob", "Order?reated", 1);
    op = publish_op(s, one_message(s, "e1", "k", 1, "{\"a\":1}"));
    run(s, op);
    assert_int_equal(op->publish.item[0].out, PUB_CONFIRMED);
    assert_int_equal(s->w->queue_count(s->w, "all", true), 1);
    assert_int_equal(s->w->queue_count(s->w, "list", true), 1);
    assert_int_equal(s->w->queue_count(s->w, "glob", true), 1);
    assert_int_equal(s->w->queue_count(s->w, "none", false), 0);
    assert_string_equal(queue(s, "list", "e1").payload, "{\"a\":1}");
    assert_true(queue(s, "all", "e1").part < 4);
    assert_true(queue(s, "list", "e1").part < 2);
    assert_int_equal(queue(s, "glob", "e1").part, 0);
    near(s, queue(s, "all", "e1").published_at, s->w->now(s->w));
}

static void the_place_of_the_first_copy_comes_back(void **state) {
    struct suite *s = *state;
    struct op *op;
    struct queue_row row;

    subscribe(s);
    publish_keys(s, 3);
    op = publish_op(s, one_message(s, "x", "k", 1, "{}"));
    run(s, op);
    row = queue(s, "c", "x");
    assert_int_equal(op->publish.item[0].pos, row.pos);
    assert_int_equal(op->publish.item[0].part, row.part);
    assert_int_equal(row.deliveries, 0);
    assert_int_equal(row.acked_at, 0);
}

static void a_key_has_one_partition(void **state) {
    struct suite *s = *state;
    uint64_t used = 0;
    char id[16], key[16];

    subscribe(s);
    for (int i = 0; i < 32; i++) {
        int64_t part;

        snprintf(key, sizeof(key), "key-%d", i);
        for (uint64_t v = 1; v <= 2; v++) {
            snprintf(id, sizeof(id), "e%d-%d", i, (int)v);
            publish(s, one_message(s, id, key, v, "{}"));
        }
        part = queue(s, "c", id).part;
        id[strlen(id) - 1] = '1';
        assert_int_equal(queue(s, "c", id).part, part);
        used |= UINT64_C(1) << part;
    }
    assert_true(__builtin_popcountll(used) >= PARTS / 2);
}

static void w43_what_no_binding_takes_is_returned(void **state) {
    struct suite *s = *state;
    struct batch *b = new_batch(s);
    struct op *op;

    declare(s, "c", "OrderCreated", 1);
    add_message(s, b, "e1", "k", 1, "{}")->event_type = bytes_of("Nobody");
    add_message(s, b, "e2", "other", 2, "{}");
    op = publish_op(s, b);
    run(s, op);
    assert_int_equal(op->publish.item[0].out, PUB_RETURNED);
    assert_int_equal(op->publish.item[0].code, 3002);
    assert_int_equal(op->publish.item[1].out, PUB_CONFIRMED);
    assert_int_equal(s->w->queue_count(s->w, "c", false), 1);
}

static void w43_without_any_binding_all_is_returned(void **state) {
    struct suite *s = *state;
    struct op *op = publish_op(s, one_message(s, "e1", "k", 1, "{}"));

    run(s, op);
    assert_int_equal(op->publish.item[0].out, PUB_RETURNED);
}

static void versions_of_a_group_keep_their_order(void **state) {
    struct suite *s = *state;
    struct batch *b = new_batch(s), *c = new_batch(s);
    struct op *op[2];

    subscribe(s);
    add_message(s, b, "v1", "k", 1, "{}");
    add_message(s, b, "v2", "k", 2, "{}")->prev_version = 1;
    add_message(s, c, "v3", "k", 3, "{}")->prev_version = 2;
    op[0] = publish_op(s, b);
    op[1] = publish_op(s, c);
    group(s, port_of(s, ROLE_QUEUE_IN), op, 2);
    assert_int_equal(op[0]->result.status, CSN_OK);
    assert_int_equal(op[1]->result.status, CSN_OK);
    assert_true(queue(s, "c", "v1").pos < queue(s, "c", "v2").pos);
    assert_true(queue(s, "c", "v2").pos < queue(s, "c", "v3").pos);
    assert_int_equal(queue(s, "c", "v3").prev_version, 2);
    expect_ids(receive(s, "c", ALL_PARTS, 10)->batch, "v1 v2 v3");
}

static void w54_a_message_the_table_refuses_does_not_hurt_the_others(void **state) {
    struct suite *s = *state;
    struct batch *b = new_batch(s);
    struct op *op;

    need(s, WORLD_REFUSE);
    declare(s, "c", "*", 1);
    declare(s, "d", "*", 1);
    s->w->refuse(s->w, "Refused");
    add_message(s, b, "e1", "k1", 1, "{}");
    add_message(s, b, "e2", "k2", 1, "{}")->event_type = bytes_of("Refused");
    add_message(s, b, "e3", "k3", 1, "{}");
    op = publish_op(s, b);
    run(s, op);
    assert_int_equal(op->publish.item[0].out, PUB_CONFIRMED);
    assert_int_equal(op->publish.item[1].out, PUB_REJECTED);
    assert_int_equal(op->publish.item[1].code, 3004);
    assert_true(op->publish.item[1].text[0] != 0);
    assert_int_equal(op->publish.item[2].out, PUB_CONFIRMED);
    assert_int_equal(s->w->queue_count(s->w, "c", false), 2);
    assert_int_equal(s->w->queue_count(s->w, "d", false), 2);
}

/* What follows e1 of the same key in the same op is not sent, whatever it is. */
static void expect_unsent_after(struct suite *s, const char *type, enum publish_out out) {
    struct batch *b = new_batch(s);
    struct op *op;

    add_message(s, b, "e0", "k", 1, "{}");
    add_message(s, b, "e1", "k", 2, "{}")->event_type = bytes_of(type);
    add_message(s, b, "e2", "k", 3, "{}");
    add_message(s, b, "o1", "other", 1, "{}");
    add_message(s, b, "e3", "k", 4, "{}");
    op = publish_op(s, b);
    run(s, op);
    assert_int_equal(op->publish.item[0].out, PUB_CONFIRMED);
    assert_int_equal(op->publish.item[1].out, out);
    assert_int_equal(op->publish.item[2].out, PUB_UNSENT);
    assert_int_equal(op->publish.item[3].out, PUB_CONFIRMED);
    assert_int_equal(op->publish.item[4].out, PUB_UNSENT);
    assert_int_equal(s->w->queue_count(s->w, "c", false), 2);
}

static void i10_a_key_does_not_overtake_what_was_returned(void **state) {
    struct suite *s = *state;

    declare(s, "c", "Order*", 1);
    expect_unsent_after(s, "Nobody", PUB_RETURNED);
}

static void i10_a_key_does_not_overtake_what_was_rejected(void **state) {
    struct suite *s = *state;

    need(s, WORLD_REFUSE);
    declare(s, "c", "*", 1);
    s->w->refuse(s->w, "Refused");
    expect_unsent_after(s, "Refused", PUB_REJECTED);
}

static void the_same_event_may_be_published_again(void **state) {
    struct suite *s = *state;

    subscribe(s);
    publish(s, one_message(s, "e1", "k", 1, "{}"));
    publish(s, one_message(s, "e1", "k", 1, "{}"));
    assert_int_equal(s->w->queue_count(s->w, "c", true), 2);
    expect_ids(receive(s, "c", ALL_PARTS, 10)->batch, "e1 e1");
}

static void only_the_items_that_are_asked_for_are_published(void **state) {
    struct suite *s = *state;
    struct batch *b = new_batch(s);
    struct op *op;

    subscribe(s);
    add_message(s, b, "e1", "k1", 1, "{}");
    add_message(s, b, "e2", "k2", 1, "{}");
    op = publish_op(s, b);
    op->publish.n = 1;
    op->publish.item[0].msg = 1;
    run(s, op);
    assert_int_equal(s->w->queue_count(s->w, "c", false), 1);
    assert_int_equal(queue(s, "c", "e2").version, 1);
}

/* ---- DECLARE ---- */

static void a_binding_may_be_declared_again(void **state) {
    struct suite *s = *state;

    declare(s, "c", "Other", 2);
    declare(s, "c", "OrderCreated", 2);
    publish(s, one_message(s, "e1", "k", 1, "{}"));
    assert_int_equal(queue(s, "c", "e1").routing_version, 1);
    declare(s, "c", "OrderCreated", 2);
    publish(s, one_message(s, "e2", "k", 2, "{}"));
    assert_int_equal(queue(s, "c", "e2").routing_version, 1);
}

static void w97_partitions_do_not_change_under_messages(void **state) {
    struct suite *s = *state;
    struct op *op;

    subscribe(s);
    publish(s, one_message(s, "e1", "k", 1, "{}"));
    op = declare_op(s, "c", "Other", 2);
    assert_int_equal(answer(s, port_of(s, ROLE_QUEUE_IN), op), CSN_REJECTED);
    assert_int_equal(op->result.code, 3006);
    publish(s, one_message(s, "e2", "k", 2, "{}"));
    assert_int_equal(queue(s, "c", "e2").part, queue(s, "c", "e1").part);
    run(s, ack_op(s, receive(s, "c", ALL_PARTS, 10)));
    declare(s, "c", "*", 2);
    publish(s, one_message(s, "e3", "k", 3, "{}"));
    assert_true(queue(s, "c", "e3").part < 2);
    assert_int_equal(queue(s, "c", "e3").routing_version, 2);
}

static void other_subscriptions_do_not_hinder_a_change(void **state) {
    struct suite *s = *state;

    declare(s, "c", "Other", 2);
    declare(s, "d", "*", 2);
    publish(s, one_message(s, "e1", "k", 1, "{}"));
    declare(s, "c", "Other", 4);
}

/* ---- RECEIVE ---- */

static void a_delivery_writes_its_columns(void **state) {
    struct suite *s = *state;
    struct queue_row row;
    struct op *op;

    subscribe(s);
    publish(s, one_message(s, "e1", "k", 1, "{}"));
    op = receive(s, "c", ALL_PARTS, 10);
    row = queue(s, "c", "e1");
    assert_string_equal(row.token, op->receive.token);
    assert_int_equal(row.epoch, (int64_t)s->part_epoch[row.part]);
    assert_int_equal(row.deliveries, 1);
    assert_int_equal(row.lease_until - row.delivered_at, 30 * SECOND);
    near(s, row.delivered_at, s->w->now(s->w));
    assert_int_equal(row.acked_at, 0);
    assert_int_equal(op->receive.lost, 0);
}

static void a_delivery_brings_the_whole_message(void **state) {
    struct suite *s = *state;
    struct batch *b = one_message(s, "e1", "k", 7, "{\"t\": \"中文\"}");
    struct message *m = b->msg;
    const struct message *got;

    m->schema_version = 3;
    m->prev_version = 5;
    m->priority = 4;
    m->age = MINUTE;
    m->expires_in = HOUR;
    m->headers = bytes_of("{\"h\":\"1\"}");
    m->traceparent = bytes_of("00-aa-bb-01");
    m->correlation_id = bytes_of("corr");
    m->causation_id = bytes_of("cause");
    m->tenant = bytes_of("tenant");
    subscribe(s);
    publish(s, b);
    got = message_of(receive(s, "c", ALL_PARTS, 10)->batch, "e1");
    assert_true(text_is(got->aggregate_type, "order") && text_is(got->aggregate_id, "k"));
    assert_true(text_is(got->event_type, "OrderCreated") && bytes_equal(got->payload, m->payload));
    assert_true(text_is(got->headers, "{\"h\":\"1\"}") && text_is(got->traceparent, "00-aa-bb-01"));
    assert_true(text_is(got->correlation_id, "corr") && text_is(got->causation_id, "cause"));
    assert_true(text_is(got->tenant, "tenant"));
    assert_int_equal(got->version, 7);
    assert_int_equal(got->prev_version, 5);
    assert_int_equal(got->schema_version, 3);
    assert_int_equal(got->priority, 4);
    assert_int_equal(got->seq, queue(s, "c", "e1").pos);
    assert_int_equal(got->lane, queue(s, "c", "e1").part);
    assert_int_equal(got->attempts, 1);
    assert_false(got->redelivered);
    near(s, got->age, MINUTE);
    near(s, got->expires_in, HOUR);
}

static void time_in_hand_is_no_time_to_live(void **state) {
    struct suite *s = *state;
    struct batch *b = one_message(s, "e1", "k", 7, "{}");
    struct op *op = publish_op(s, b);
    const struct message *got;

    b->msg->age = MINUTE;
    b->msg->expires_in = HOUR;
    op->publish.ago = 10 * SECOND;
    subscribe(s);
    run(s, op);
    got = message_of(receive(s, "c", ALL_PARTS, 10)->batch, "e1");
    near(s, got->age, MINUTE + 10 * SECOND);
    near(s, got->expires_in, HOUR - 10 * SECOND);
}

static void deliveries_come_in_order_and_within_limits(void **state) {
    struct suite *s = *state;
    struct op *op;

    declare(s, "c", "*", 1);
    hold_parts(s, "sub/c", 1);
    publish_keys(s, 5);
    op = receive(s, "c", 1, 2);
    expect_ids(op->batch, "e0 e1");
    assert_true(op->receive.more);
    run(s, ack_op(s, op));
    op = receive(s, "c", 1, 10);
    expect_ids(op->batch, "e2 e3 e4");
    assert_false(op->receive.more);
}

static void deliveries_of_all_partitions_are_ordered_by_position(void **state) {
    struct suite *s = *state;
    struct op *op;

    subscribe(s);
    publish_keys(s, 40);
    op = receive(s, "c", ALL_PARTS, 100);
    assert_int_equal(op->batch->n, 40);
    for (uint32_t i = 1; i < op->batch->n; i++)
        assert_true(op->batch->msg[i].seq > op->batch->msg[i - 1].seq);
}

static void deliveries_are_limited_by_bytes(void **state) {
    struct suite *s = *state;
    struct batch *b = new_batch(s);
    char payload[1001];
    struct op *op;

    memset(payload, 'x', 1000);
    payload[0] = payload[999] = '"';
    payload[1000] = 0;
    declare(s, "c", "*", 1);
    hold_parts(s, "sub/c", 1);
    for (int i = 0; i < 3; i++)
        add_message(s, b, (const char *[]){"a", "b", "c"}[i], "k", (uint64_t)i + 1, payload);
    publish(s, b);
    op = receive_op(s, "c", 1, 10);
    op->receive.bytes = 2500;
    run(s, op);
    expect_ids(op->batch, "a b");
    assert_true(op->receive.more);
    run(s, ack_op(s, op));
    op = receive_op(s, "c", 1, 10);
    op->receive.bytes = 1;
    run(s, op);
    expect_ids(op->batch, "c");
}

static void w68_an_unacked_delivery_comes_again_after_its_lease(void **state) {
    struct suite *s = *state;
    struct op *first, *again;

    subscribe(s);
    publish(s, one_message(s, "e1", "k", 1, "{}"));
    first = receive(s, "c", ALL_PARTS, 10);
    assert_int_equal(receive(s, "c", ALL_PARTS, 10)->batch->n, 0);
    s->w->advance(s->w, 31 * SECOND);
    again = receive(s, "c", ALL_PARTS, 10);
    expect_ids(again->batch, "e1");
    assert_true(again->batch->msg[0].redelivered);
    assert_int_equal(again->batch->msg[0].attempts, 2);
    assert_int_equal(queue(s, "c", "e1").deliveries, 2);
    assert_string_not_equal(again->receive.token, first->receive.token);
}

static void what_i_hold_may_be_delivered_once_more(void **state) {
    struct suite *s = *state;
    struct op *first, *again;

    subscribe(s);
    publish_keys(s, 3);
    first = receive(s, "c", ALL_PARTS, 10);
    again = receive_op(s, "c", ALL_PARTS, 10);
    again->receive.again = true;
    run(s, again);
    expect_ids(again->batch, "e0 e1 e2");
    assert_true(again->batch->msg[0].redelivered);
    assert_string_equal(queue(s, "c", "e1").token, again->receive.token);
    run(s, first = ack_op(s, first));
    assert_int_equal(first->ack.acked, 0);
}

static void w69_nothing_passes_a_row_under_a_live_lease(void **state) {
    struct suite *s = *state;
    struct op *first, *op;

    declare(s, "c", "*", 2);
    hold_parts(s, "sub/c", 3);
    publish_keys(s, 12);
    first = receive(s, "c", part_of(s, "e0"), 1);
    expect_ids(first->batch, "e0");
    op = receive(s, "c", 3, 100);
    assert_true(op->batch->n > 0 && op->batch->n < 12);
    for (uint32_t i = 0; i < op->batch->n; i++)
        assert_int_not_equal(op->batch->msg[i].lane, first->batch->msg[0].lane);
    run(s, ack_op(s, first));
    op = receive(s, "c", 3, 100);
    assert_true(op->batch->n > 0);
    for (uint32_t i = 0; i < op->batch->n; i++)
        assert_int_equal(op->batch->msg[i].lane, first->batch->msg[0].lane);
}

static void w69_what_expired_comes_before_what_follows(void **state) {
    struct suite *s = *state;

    declare(s, "c", "*", 1);
    hold_parts(s, "sub/c", 1);
    publish_keys(s, 3);
    expect_ids(receive(s, "c", 1, 1)->batch, "e0");
    s->w->advance(s->w, 31 * SECOND);
    expect_ids(receive(s, "c", 1, 2)->batch, "e0 e1");
}

static void w31_a_delivery_lease_too_far_ahead_is_over(void **state) {
    struct suite *s = *state;

    subscribe(s);
    publish(s, one_message(s, "e1", "k", 1, "{}"));
    receive(s, "c", ALL_PARTS, 10);
    s->w->advance(s->w, -HOUR);
    expect_ids(receive(s, "c", ALL_PARTS, 10)->batch, "e1");
}

static void w92_receive_is_fenced_by_lanes(void **state) {
    struct suite *s = *state;
    struct op *op;
    uint64_t gone;

    subscribe(s);
    publish_keys(s, 40);
    gone = part_of(s, "e0");
    op = lease_op(s, BOOT_A, "sub/c", 0);
    op->lease.drop = gone;
    run(s, op);
    op = receive(s, "c", ALL_PARTS, 100);
    assert_true(op->receive.lost == gone);
    assert_true(op->batch->n > 0 && op->batch->n < 40);
    for (uint32_t i = 0; i < op->batch->n; i++)
        assert_true((gone >> op->batch->msg[i].lane & 1) == 0);
    assert_string_equal(queue(s, "c", "e0").token, "");
    assert_int_equal(queue(s, "c", "e0").deliveries, 0);
}

static void w92_receive_of_another_boot_gets_nothing(void **state) {
    struct suite *s = *state;
    struct op *op;

    subscribe(s);
    publish(s, one_message(s, "e1", "k", 1, "{}"));
    op = receive_op(s, "c", ALL_PARTS, 10);
    copy_text(op->receive.boot, sizeof(op->receive.boot), BOOT_B);
    run(s, op);
    assert_int_equal(op->batch->n, 0);
    assert_true(op->receive.lost == ALL_PARTS);
    assert_int_equal(queue(s, "c", "e1").deliveries, 0);
}

static void w72_a_new_owner_gets_what_the_old_one_had(void **state) {
    struct suite *s = *state;
    struct op *old, *op;

    subscribe(s);
    publish(s, one_message(s, "e1", "k", 1, "{}"));
    op = receive_op(s, "c", ALL_PARTS, 10);
    op->receive.lease = op->receive.longest_lease = HOUR;
    run(s, op);
    old = op;
    s->w->advance(s->w, 11 * MINUTE);
    op = lease_op(s, BOOT_B, "sub/c", ALL_PARTS);
    run(s, op);
    assert_true(op->lease.held == ALL_PARTS);
    memcpy(s->part_epoch, op->lease.epoch, sizeof(s->part_epoch));
    op = receive_op(s, "c", ALL_PARTS, 10);
    op->receive.longest_lease = HOUR;
    copy_text(op->receive.boot, sizeof(op->receive.boot), BOOT_B);
    run(s, op);
    expect_ids(op->batch, "e1");
    run(s, old = ack_op(s, old));
    assert_int_equal(old->ack.acked, 0);
    assert_int_equal(queue(s, "c", "e1").acked_at, 0);
}

static void only_the_subscription_and_lanes_asked_for_are_delivered(void **state) {
    struct suite *s = *state;
    struct op *op;

    declare(s, "d", "*", PARTS);
    subscribe(s);
    publish_keys(s, 20);
    op = receive(s, "c", part_of(s, "e3"), 100);
    assert_true(op->batch->n > 0 && op->batch->n < 20);
    for (uint32_t i = 0; i < op->batch->n; i++)
        assert_int_equal(op->batch->msg[i].lane, queue(s, "c", "e3").part);
    assert_int_equal(queue(s, "d", "e3").deliveries, 0);
}

/* ---- ACK ---- */

static void w74_acked_is_never_delivered_again(void **state) {
    struct suite *s = *state;
    struct op *op, *ack;

    subscribe(s);
    publish_keys(s, 3);
    op = receive(s, "c", ALL_PARTS, 10);
    ack = ack_op(s, op);
    run(s, ack);
    assert_int_equal(ack->ack.acked, 3);
    near(s, queue(s, "c", "e1").acked_at, s->w->now(s->w));
    s->w->advance(s->w, HOUR);
    hold_parts(s, "sub/c", ALL_PARTS);
    op = receive_op(s, "c", ALL_PARTS, 10);
    op->receive.again = true;
    run(s, op);
    assert_int_equal(op->batch->n, 0);
    assert_int_equal(s->w->queue_count(s->w, "c", true), 0);
}

static void what_is_not_in_the_ack_stays(void **state) {
    struct suite *s = *state;
    struct op *ack;
    uint32_t *msg = keep(s, 2 * sizeof(*msg));

    subscribe(s);
    publish_keys(s, 3);
    ack = ack_op(s, receive(s, "c", ALL_PARTS, 10));
    msg[0] = 2;
    msg[1] = 0;
    ack->ack.msg = msg;
    ack->ack.n = 2;
    run(s, ack);
    assert_int_equal(ack->ack.acked, 2);
    assert_int_not_equal(queue(s, "c", "e0").acked_at, 0);
    assert_int_equal(queue(s, "c", "e1").acked_at, 0);
    s->w->advance(s->w, 31 * SECOND);
    expect_ids(receive(s, "c", ALL_PARTS, 10)->batch, "e1");
}

static void a_foreign_token_acks_nothing(void **state) {
    struct suite *s = *state;
    struct op *op, *ack;

    subscribe(s);
    publish(s, one_message(s, "e1", "k", 1, "{}"));
    op = receive(s, "c", ALL_PARTS, 10);
    ack = ack_op(s, op);
    new_token(s, ack->ack.token);
    run(s, ack);
    assert_int_equal(ack->ack.acked, 0);
    ack = ack_op(s, op);
    copy_text(ack->ack.consumer, sizeof(ack->ack.consumer), "other");
    run(s, ack);
    assert_int_equal(ack->ack.acked, 0);
    assert_int_equal(queue(s, "c", "e1").acked_at, 0);
}

static void w89_a_second_ack_is_no_error(void **state) {
    struct suite *s = *state;
    struct op *op, *ack;
    csn_usec acked_at;

    subscribe(s);
    publish(s, one_message(s, "e1", "k", 1, "{}"));
    op = receive(s, "c", ALL_PARTS, 10);
    run(s, ack_op(s, op));
    acked_at = queue(s, "c", "e1").acked_at;
    ack = ack_op(s, op);
    run(s, ack);
    assert_int_not_equal(queue(s, "c", "e1").acked_at, 0);
    assert_true(queue(s, "c", "e1").acked_at >= acked_at);
    assert_int_equal(s->w->queue_count(s->w, "c", true), 0);
}

static void ack_and_receive_share_a_group(void **state) {
    struct suite *s = *state;
    struct op *op[2];

    declare(s, "c", "*", 1);
    hold_parts(s, "sub/c", 1);
    publish_keys(s, 4);
    op[0] = ack_op(s, receive(s, "c", 1, 2));
    op[1] = receive_op(s, "c", 1, 2);
    group(s, port_of(s, ROLE_QUEUE_OUT), op, 2);
    assert_int_equal(op[0]->result.status, CSN_OK);
    assert_int_equal(op[1]->result.status, CSN_OK);
    assert_int_equal(op[0]->ack.acked, 2);
    expect_ids(op[1]->batch, "e2 e3");
}

const struct CMUnitTest suite_broker[] = {
    TEST(a_message_goes_to_every_binding_that_matches),
    TEST(the_place_of_the_first_copy_comes_back),
    TEST(a_key_has_one_partition),
    TEST(w43_what_no_binding_takes_is_returned),
    TEST(w43_without_any_binding_all_is_returned),
    TEST(versions_of_a_group_keep_their_order),
    TEST(w54_a_message_the_table_refuses_does_not_hurt_the_others),
    TEST(i10_a_key_does_not_overtake_what_was_returned),
    TEST(i10_a_key_does_not_overtake_what_was_rejected),
    TEST(the_same_event_may_be_published_again),
    TEST(only_the_items_that_are_asked_for_are_published),
    TEST(a_binding_may_be_declared_again),
    TEST(w97_partitions_do_not_change_under_messages),
    TEST(other_subscriptions_do_not_hinder_a_change),
    TEST(a_delivery_writes_its_columns),
    TEST(a_delivery_brings_the_whole_message),
    TEST(time_in_hand_is_no_time_to_live),
    TEST(deliveries_come_in_order_and_within_limits),
    TEST(deliveries_of_all_partitions_are_ordered_by_position),
    TEST(deliveries_are_limited_by_bytes),
    TEST(w68_an_unacked_delivery_comes_again_after_its_lease),
    TEST(what_i_hold_may_be_delivered_once_more),
    TEST(w69_nothing_passes_a_row_under_a_live_lease),
    TEST(w69_what_expired_comes_before_what_follows),
    TEST(w31_a_delivery_lease_too_far_ahead_is_over),
    TEST(w92_receive_is_fenced_by_lanes),
    TEST(w92_receive_of_another_boot_gets_nothing),
    TEST(w72_a_new_owner_gets_what_the_old_one_had),
    TEST(only_the_subscription_and_lanes_asked_for_are_delivered),
    TEST(w74_acked_is_never_delivered_again),
    TEST(what_is_not_in_the_ack_stays),
    TEST(a_foreign_token_acks_nothing),
    TEST(w89_a_second_ack_is_no_error),
    TEST(ack_and_receive_share_a_group),
    TEST_END};
