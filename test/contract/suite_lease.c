/* suite_lease.c: LEASE (lanes, epochs, members) and WATCH. Process A holds "outbox" from the
 * start; the lane tests use a name of their own. */
#include "test/contract/suite.h"

#define NAME "sub/x"

static struct op *lease(struct suite *s, const char *boot, uint64_t want) {
    struct op *op = lease_op(s, boot, NAME, want);

    run(s, op);
    return op;
}

static struct member_row member(struct suite *s, const char *boot) {
    struct member_row row;

    if (!s->w->member(s->w, boot, &row))
        world_fail("no member %s", boot);
    return row;
}

/* ---- lanes ---- */

static void a_free_lane_is_taken(void **state) {
    struct suite *s = *state;
    struct op *op = lease(s, BOOT_A, 5);
    struct lane_row row = lane(s, NAME, 2);

    assert_true(op->lease.held == 5 && op->lease.fresh == 5);
    assert_int_equal(op->lease.epoch[0], 1);
    assert_int_equal(op->lease.epoch[2], 1);
    assert_string_equal(row.owner, BOOT_A);
    assert_int_equal(row.epoch, 1);
    near(s, row.taken_at, s->w->now(s->w));
    assert_int_equal(row.lease_until - row.taken_at, 10 * MINUTE);
    assert_false(s->w->lane(s->w, NAME, 1, &row));
}

static void a_held_lane_is_renewed(void **state) {
    struct suite *s = *state;
    struct lane_row row;
    struct op *op;

    lease(s, BOOT_A, 1);
    s->w->advance(s->w, 9 * MINUTE);
    op = lease(s, BOOT_A, 1);
    assert_true(op->lease.held == 1 && op->lease.fresh == 0);
    assert_int_equal(op->lease.epoch[0], 1);
    row = lane(s, NAME, 0);
    assert_int_equal(row.epoch, 1);
    near(s, row.lease_until, s->w->now(s->w) + 10 * MINUTE);
    near(s, row.lease_until - row.taken_at, 19 * MINUTE);
}

static void w39_a_held_lane_is_not_given_to_another(void **state) {
    struct suite *s = *state;
    struct lane_row before, row;
    struct op *op;

    lease(s, BOOT_A, 1);
    before = lane(s, NAME, 0);
    op = lease(s, BOOT_B, 3);
    assert_true(op->lease.held == 2 && op->lease.fresh == 2);
    row = lane(s, NAME, 0);
    assert_memory_equal(&row, &before, sizeof(row));
    assert_string_equal(lane(s, NAME, 1).owner, BOOT_B);
}

static void w22_a_lane_whose_lease_is_over_is_taken(void **state) {
    struct suite *s = *state;
    struct op *op;

    lease(s, BOOT_A, 1);
    s->w->advance(s->w, 10 * MINUTE + SECOND);
    op = lease(s, BOOT_B, 1);
    assert_true(op->lease.held == 1 && op->lease.fresh == 1);
    assert_int_equal(op->lease.epoch[0], 2);
    assert_string_equal(lane(s, NAME, 0).owner, BOOT_B);
    near(s, lane(s, NAME, 0).taken_at, s->w->now(s->w));
    op = lease(s, BOOT_A, 1);
    assert_true(op->lease.held == 0 && op->lease.fresh == 0);
    assert_int_equal(lane(s, NAME, 0).epoch, 2);
}

static void w29_my_own_lane_is_taken_again_after_its_lease(void **state) {
    struct suite *s = *state;
    struct op *op;

    lease(s, BOOT_A, 1);
    s->w->advance(s->w, 10 * MINUTE + SECOND);
    op = lease(s, BOOT_A, 1);
    assert_true(op->lease.held == 1 && op->lease.fresh == 1);
    assert_int_equal(op->lease.epoch[0], 2);
    assert_int_equal(lane(s, NAME, 0).epoch, 2);
}

static void w31_a_lease_longer_than_the_longest_is_over(void **state) {
    struct suite *s = *state;
    struct op *op;

    lease(s, BOOT_A, 1);
    s->w->advance(s->w, -HOUR);
    op = lease(s, BOOT_B, 1);
    assert_true(op->lease.held == 1 && op->lease.fresh == 1);
    assert_int_equal(op->lease.epoch[0], 2);
    s->w->advance(s->w, -HOUR);
    op = lease(s, BOOT_B, 1);
    assert_true(op->lease.fresh == 1);
    assert_int_equal(op->lease.epoch[0], 3);
}

static void a_dropped_lane_is_free_and_keeps_its_epoch(void **state) {
    struct suite *s = *state;
    struct lane_row row;
    struct op *op;

    lease(s, BOOT_A, 3);
    op = lease_op(s, BOOT_A, NAME, 1);
    op->lease.drop = 2;
    run(s, op);
    assert_true(op->lease.held == 1 && op->lease.fresh == 0);
    row = lane(s, NAME, 1);
    assert_string_equal(row.owner, "");
    assert_int_equal(row.lease_until, 0);
    assert_int_equal(row.epoch, 1);
    op = lease(s, BOOT_B, 2);
    assert_true(op->lease.held == 2 && op->lease.fresh == 2);
    assert_int_equal(op->lease.epoch[1], 2);
}

static void w92_nobody_drops_the_lane_of_another(void **state) {
    struct suite *s = *state;
    struct lane_row before, row;
    struct op *op;

    lease(s, BOOT_A, 1);
    before = lane(s, NAME, 0);
    op = lease_op(s, BOOT_B, NAME, 0);
    op->lease.drop = 1;
    run(s, op);
    row = lane(s, NAME, 0);
    assert_memory_equal(&row, &before, sizeof(row));
}

static void w32_epochs_only_grow(void **state) {
    struct suite *s = *state;
    int64_t last = 0;

    for (int i = 0; i < 6; i++) {
        const char *boot = i % 2 ? BOOT_B : BOOT_A;
        struct op *op = lease(s, boot, 1);

        assert_int_equal(op->lease.epoch[0], last + 1);
        last = (int64_t)op->lease.epoch[0];
        if (i % 3 == 0) {
            s->w->advance(s->w, 11 * MINUTE);
        } else {
            op = lease_op(s, boot, NAME, 0);
            op->lease.drop = 1;
            run(s, op);
        }
    }
}

static void all_lanes_and_names_are_apart(void **state) {
    struct suite *s = *state;
    struct op *op = lease(s, BOOT_A, UINT64_MAX);

    assert_true(op->lease.held == UINT64_MAX && op->lease.fresh == UINT64_MAX);
    assert_int_equal(op->lease.epoch[63], 1);
    op = lease_op(s, BOOT_B, "sub/y", UINT64_C(1) << 63);
    run(s, op);
    assert_true(op->lease.held == UINT64_C(1) << 63);
    assert_string_equal(lane(s, NAME, 63).owner, BOOT_A);
    assert_string_equal(lane(s, "sub/y", 63).owner, BOOT_B);
}

/* ---- members ---- */

static void w33_members_are_counted_by_boot(void **state) {
    struct suite *s = *state;
    struct op *a = lease(s, BOOT_A, 1), *b = lease(s, BOOT_B, 2);
    struct member_row row = member(s, BOOT_B);

    assert_int_equal(a->lease.members, 1);
    assert_int_equal(b->lease.members, 2);
    assert_true(a->lease.member > 0);
    assert_int_not_equal(a->lease.member, b->lease.member);
    assert_int_equal(row.member, b->lease.member);
    assert_string_equal(row.label, "node");
    assert_string_equal(row.counters, "{}");
    assert_int_equal(row.ended_at, 0);
    assert_int_equal(row.lease_until - row.heartbeat_at, 10 * MINUTE);
    assert_int_equal(lease(s, BOOT_A, 1)->lease.member, a->lease.member);
}

static void a_member_that_is_silent_is_not_counted(void **state) {
    struct suite *s = *state;

    lease(s, BOOT_A, 1);
    s->w->advance(s->w, 11 * MINUTE);
    assert_int_equal(lease(s, BOOT_B, 2)->lease.members, 1);
    assert_int_equal(lease(s, BOOT_A, 1)->lease.members, 2);
}

static void a_member_that_left_is_not_counted(void **state) {
    struct suite *s = *state;
    struct op *op;

    lease(s, BOOT_A, 1);
    op = lease_op(s, BOOT_A, NAME, 0);
    op->lease.drop = 1;
    op->lease.leave = true;
    run(s, op);
    near(s, member(s, BOOT_A).ended_at, s->w->now(s->w));
    assert_string_equal(lane(s, NAME, 0).owner, "");
    assert_int_equal(lease(s, BOOT_B, 1)->lease.members, 1);
}

static void the_heartbeat_carries_counters(void **state) {
    struct suite *s = *state;
    char counters[] = "{\"claims\":\"7\"}";
    struct op *op = lease_op(s, BOOT_A, NAME, 1);
    csn_usec started = member(s, BOOT_A).started_at;

    op->lease.counters = counters;
    run(s, op);
    assert_string_equal(member(s, BOOT_A).counters, counters);
    lease(s, BOOT_A, 1);
    assert_string_equal(member(s, BOOT_A).counters, counters);
    assert_int_equal(member(s, BOOT_A).started_at, started);
    near(s, member(s, BOOT_A).heartbeat_at, s->w->now(s->w));
}

/* ---- WATCH ---- */

static struct op *look(struct suite *s, uint8_t kind, const char *consumer, uint64_t lanes) {
    struct op *op = watch_op(s, 1);

    op->watch.item[0].kind = kind;
    op->watch.item[0].consumer = consumer;
    op->watch.item[0].lanes = lanes;
    run(s, op);
    return op;
}

static void watch_sees_due_rows(void **state) {
    struct suite *s = *state;
    struct op *op = look(s, WATCH_OUTBOX, NULL, s->lanes);

    assert_false(op->watch.item[0].found);
    assert_true(op->watch.next_in == CSN_USEC_NEVER);
    put_due(s, "later", "k", 1, 3 * MINUTE);
    put_due(s, "much-later", "l", 1, HOUR);
    op = look(s, WATCH_OUTBOX, NULL, s->lanes);
    assert_false(op->watch.item[0].found);
    near(s, op->watch.next_in, 3 * MINUTE);
    put(s, "now", "m", 1);
    assert_true(look(s, WATCH_OUTBOX, NULL, s->lanes)->watch.item[0].found);
    claim(s, 10);
    assert_false(look(s, WATCH_OUTBOX, NULL, s->lanes)->watch.item[0].found);
    s->w->advance(s->w, 3 * MINUTE + SECOND);
    assert_true(look(s, WATCH_OUTBOX, NULL, s->lanes)->watch.item[0].found);
}

static void watch_sees_leases_that_are_over(void **state) {
    struct suite *s = *state;
    struct op *op;

    put(s, "e1", "k", 1);
    claim(s, 1);
    op = look(s, WATCH_RECOVER, NULL, s->lanes);
    assert_false(op->watch.item[0].found);
    near(s, op->watch.next_in, 30 * SECOND);
    s->w->advance(s->w, 31 * SECOND);
    assert_true(look(s, WATCH_RECOVER, NULL, s->lanes)->watch.item[0].found);
    run(s, recover_op(s, 0));
    assert_false(look(s, WATCH_RECOVER, NULL, s->lanes)->watch.item[0].found);
}

static void watch_sees_unknown_rows_that_are_due(void **state) {
    struct suite *s = *state;
    struct op *op;

    put(s, "e1", "k", 1);
    op = settle_op(s, claim(s, 1), SETTLE_UNKNOWN);
    op->settle.item[0].retry_in = 2 * MINUTE;
    run(s, op);
    op = look(s, WATCH_RECOVER, NULL, s->lanes);
    assert_false(op->watch.item[0].found);
    near(s, op->watch.next_in, 2 * MINUTE);
    assert_false(look(s, WATCH_OUTBOX, NULL, s->lanes)->watch.item[0].found);
    s->w->advance(s->w, 2 * MINUTE + SECOND);
    assert_true(look(s, WATCH_RECOVER, NULL, s->lanes)->watch.item[0].found);
}

static void watch_sees_parked_work(void **state) {
    struct suite *s = *state;
    struct op *op =
        park_op(s, "c", one_message(s, "e1", "k", 1, SAYS("done")), PARK_RETRY, CSN_RETRY);
    uint32_t slot;

    op->park.item[0].retry_in = MINUTE;
    run(s, op);
    slot = (uint32_t)work(s, "c", "e1").slot;
    op = look(s, WATCH_WORK, "c", UINT64_MAX);
    assert_false(op->watch.item[0].found);
    near(s, op->watch.next_in, MINUTE);
    assert_true(look(s, WATCH_WORK, "other", UINT64_MAX)->watch.next_in == CSN_USEC_NEVER);
    s->w->advance(s->w, MINUTE + SECOND);
    assert_true(look(s, WATCH_WORK, "c", UINT64_C(1) << slot)->watch.item[0].found);
    assert_false(look(s, WATCH_WORK, "other", UINT64_MAX)->watch.item[0].found);
    assert_false(look(s, WATCH_WORK, "c", ~(UINT64_C(1) << slot))->watch.item[0].found);
    claim_work(s, "c", 10);
    op = look(s, WATCH_WORK, "c", UINT64_MAX);
    assert_false(op->watch.item[0].found);
    near(s, op->watch.next_in, 30 * SECOND);
    s->w->advance(s->w, 31 * SECOND);
    assert_true(look(s, WATCH_WORK, "c", UINT64_MAX)->watch.item[0].found);
}

static void watch_sees_deliveries(void **state) {
    struct suite *s = *state;
    struct op *op;
    uint64_t part;

    declare(s, "c", "*", 4);
    hold_parts(s, "sub/c", 15);
    assert_false(look(s, WATCH_QUEUE, "c", 15)->watch.item[0].found);
    publish(s, one_message(s, "e1", "k", 1, "{}"));
    part = UINT64_C(1) << queue(s, "c", "e1").part;
    assert_true(look(s, WATCH_QUEUE, "c", part)->watch.item[0].found);
    assert_false(look(s, WATCH_QUEUE, "c", 15 & ~part)->watch.item[0].found);
    assert_false(look(s, WATCH_QUEUE, "other", 15)->watch.item[0].found);
    op = receive(s, "c", 15, 10);
    assert_false(look(s, WATCH_QUEUE, "c", 15)->watch.item[0].found);
    s->w->advance(s->w, 31 * SECOND);
    assert_true(look(s, WATCH_QUEUE, "c", 15)->watch.item[0].found);
    run(s, ack_op(s, op));
    assert_false(look(s, WATCH_QUEUE, "c", 15)->watch.item[0].found);
}

static void watch_answers_for_each_item(void **state) {
    struct suite *s = *state;
    struct op *op = watch_op(s, 3);

    put(s, "e1", "k", 1);
    op->watch.item[0].kind = WATCH_RECOVER;
    op->watch.item[1].kind = WATCH_OUTBOX;
    op->watch.item[2].kind = WATCH_WORK;
    op->watch.item[2].consumer = "c";
    op->watch.wait = HOUR;
    run(s, op);
    assert_false(op->watch.item[0].found);
    assert_true(op->watch.item[1].found);
    assert_false(op->watch.item[2].found);
}

static void watch_waits_no_longer_than_it_may(void **state) {
    struct suite *s = *state;
    struct op *op = watch_op(s, 1);
    csn_usec began = s->w->clock(s->w), took;

    need(s, WORLD_REAL_TIME);
    op->watch.item[0].kind = WATCH_OUTBOX;
    op->watch.wait = SECOND / 5;
    run(s, op);
    took = s->w->clock(s->w) - began;
    assert_false(op->watch.item[0].found);
    assert_true(took >= SECOND / 5 && took < 10 * SECOND);
}

/* A quiet store is looked at again and again in one WATCH: what another connection writes ends it
 * with the next look, and what becomes due by time alone, too. */
static void a_long_watch_sees_what_comes(void **state) {
    struct suite *s = *state;
    struct op *op = watch_op(s, 1);
    csn_usec began = s->w->clock(s->w);
    struct world_event e = {
        .id = "later", .aggregate_id = "k", .event_type = "T", .payload = "1", .due_in = SECOND};

    need(s, WORLD_REAL_TIME);
    put_event(s, &e);
    op->watch.item[0].kind = WATCH_OUTBOX;
    op->watch.wait = SECOND / 20;
    op->watch.longest = 20 * SECOND;
    run(s, op);
    assert_true(op->watch.item[0].found);
    assert_true(s->w->clock(s->w) - began < 10 * SECOND);
}

static void w18_a_wake_ends_the_wait(void **state) {
    struct suite *s = *state;
    struct op *op = watch_op(s, 1);
    csn_usec began = s->w->clock(s->w);

    need(s, WORLD_WAKE);
    op->watch.item[0].kind = WATCH_OUTBOX;
    op->watch.wait = 20 * SECOND;
    s->w->wake_soon(s->w, port_of(s, ROLE_WATCH));
    run(s, op);
    assert_false(op->watch.item[0].found);
    assert_true(s->w->clock(s->w) - began < 10 * SECOND);
}

const struct CMUnitTest suite_lease[] = {TEST(a_free_lane_is_taken),
                                         TEST(a_held_lane_is_renewed),
                                         TEST(w39_a_held_lane_is_not_given_to_another),
                                         TEST(w22_a_lane_whose_lease_is_over_is_taken),
                                         TEST(w29_my_own_lane_is_taken_again_after_its_lease),
                                         TEST(w31_a_lease_longer_than_the_longest_is_over),
                                         TEST(a_dropped_lane_is_free_and_keeps_its_epoch),
                                         TEST(w92_nobody_drops_the_lane_of_another),
                                         TEST(w32_epochs_only_grow),
                                         TEST(all_lanes_and_names_are_apart),
                                         TEST(w33_members_are_counted_by_boot),
                                         TEST(a_member_that_is_silent_is_not_counted),
                                         TEST(a_member_that_left_is_not_counted),
                                         TEST(the_heartbeat_carries_counters),
                                         TEST(watch_sees_due_rows),
                                         TEST(watch_sees_leases_that_are_over),
                                         TEST(watch_sees_unknown_rows_that_are_due),
                                         TEST(watch_sees_parked_work),
                                         TEST(watch_sees_deliveries),
                                         TEST(watch_answers_for_each_item),
                                         TEST(watch_waits_no_longer_than_it_may),
                                         TEST(a_long_watch_sees_what_comes),
                                         TEST(w18_a_wake_ends_the_wait),
                                         TEST_END};
