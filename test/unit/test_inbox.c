/* test_inbox.c: the inbox and the lanes in states set up by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/inbox.h"
#include "ports.h"
#include <stdlib.h>

enum { SEC = 1000000, LEASE = 30 * SEC };

struct bench {
    struct test_port apply, out, heart;
    struct lanes lanes;
    struct counters counters;
    struct notes notes;
    struct prng chance;
    struct inbox inbox;
    csn_usec now;
};

static struct bench *make_with(bool at_most_once) {
    struct bench *t = calloc(1, sizeof *t);
    assert_non_null(t);
    port_make(&t->apply);
    port_make(&t->out);
    port_make(&t->heart);
    t->now = 100 * SEC;
    prng_seed(&t->chance, 1);
    lanes_init(&t->lanes, &t->heart.port, "sub/stock", 8, LEASE, "boot", "node");
    t->lanes.held = 0xff;
    t->lanes.counters = &t->counters;
    t->lanes.notes = &t->notes;
    t->inbox = (struct inbox){.consumer = "stock",
                              .store = "stock",
                              .lanes = &t->lanes,
                              .part_mask = 0x0f,
                              .at_most_once = at_most_once,
                              .declared = true,
                              .apply = &t->apply.port,
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
                              .retry = {.base = SEC,
                                        .max = 600 * SEC,
                                        .jitter = JITTER_EQUAL,
                                        .failures = 3,
                                        .age = (csn_usec)86400 * SEC}};
    assert_int_equal(inbox_init(&t->inbox, NULL), CSN_OK);
    return t;
}

static struct bench *make(void) {
    return make_with(false);
}

static void drop(struct bench *t) {
    inbox_free(&t->inbox);
    free(t);
}

static void step(struct bench *t) {
    inbox_step(&t->inbox, t->now);
}

/* Answers a RECEIVE or a CLAIM of the work table with one message per letter of keys; ids count up.
 */
static void answer(struct op *op, const char *keys) {
    static const char *const ids[] = {"e0", "e1", "e2", "e3", "e4", "e5"};
    for (uint32_t i = 0; keys[i]; i++)
        op->batch->msg[i] = (struct message){.id = bytes_of(ids[i]),
                                             .aggregate_id = {&keys[i], 1},
                                             .version = i + 1,
                                             .seq = i + 1,
                                             .lane = (uint32_t)(keys[i] - 'a') % 8,
                                             .expires_in = CSN_USEC_NEVER};
    op->batch->n = (uint32_t)strlen(keys);
    port_finish(op, CSN_OK);
}

static void nothing_to_work_on(struct bench *t) {
    answer(port_take(&t->apply, OP_CLAIM), "");
    port_finish(port_take(&t->apply, OP_RECOVER), CSN_OK);
}

static struct op *receive(struct bench *t, const char *keys) {
    step(t);
    nothing_to_work_on(t);
    answer(port_take(&t->out, OP_RECEIVE), keys);
    step(t);
    return port_take(&t->apply, OP_APPLY);
}

static void verdict(struct op *apply, uint32_t i, csn_verdict v) {
    apply->apply.item[i].out = APPLY_VERDICT;
    apply->apply.item[i].verdict = v;
}

static void it_receives_its_own_partitions_under_their_epochs(void **state) {
    (void)state;
    struct bench *t = make();
    step(t);
    struct op *op = port_take(&t->out, OP_RECEIVE);
    assert_int_equal(op->receive.lanes, 0x0f);
    assert_memory_equal(op->receive.epoch, t->lanes.epoch, sizeof t->lanes.epoch);
    assert_true(op->receive.again); /* an earlier life may hold deliveries */
    drop(t);
}

static void ack_comes_after_the_commit_and_only_then(void **state) {
    (void)state;
    struct bench *t = make();
    struct op *apply = receive(t, "ab");
    verdict(apply, 0, CSN_DONE);
    verdict(apply, 1, CSN_REFUSED);
    assert_false(port_has(&t->out, OP_ACK));
    port_finish(apply, CSN_OK);
    step(t);
    struct op *ack = port_take(&t->out, OP_ACK);
    assert_int_equal(ack->ack.n, 2);
    ack->ack.acked = 2;
    port_finish(ack, CSN_OK);
    step(t);
    assert_int_equal(t->counters.handled, 1);
    assert_int_equal(t->counters.refused, 1);
    assert_int_equal(t->counters.acked, 2);
    assert_true(port_has(&t->out, OP_RECEIVE));
    drop(t);
}

static void a_failed_commit_acks_nothing_and_is_tried_again(void **state) {
    (void)state;
    struct bench *t = make();
    struct op *apply = receive(t, "ab");
    port_finish(apply, CSN_AGAIN);
    step(t);
    assert_int_equal(t->out.n, 0);
    t->now += SEC;
    step(t);
    apply = port_take(&t->apply, OP_APPLY);
    assert_int_equal(apply->apply.n, 2);
    t->now += LEASE; /* and when the delivery lease is over it is let go */
    port_finish(apply, CSN_AGAIN);
    step(t);
    assert_false(port_has(&t->out, OP_ACK));
    t->now += 2 * SEC;
    step(t);
    assert_true(port_take(&t->out, OP_RECEIVE)->receive.again);
    drop(t);
}

static void an_unknown_commit_is_applied_again_and_the_inbox_decides(void **state) {
    (void)state;
    struct bench *t = make();
    struct op *apply = receive(t, "a");
    port_finish(apply, CSN_UNKNOWN);
    step(t);
    assert_false(port_has(&t->out, OP_ACK));
    t->now += SEC;
    step(t);
    apply = port_take(&t->apply, OP_APPLY);
    apply->apply.item[0].out = APPLY_SEEN;
    port_finish(apply, CSN_OK);
    step(t);
    assert_int_equal(port_take(&t->out, OP_ACK)->ack.n, 1);
    assert_int_equal(t->counters.handled, 0);
    assert_int_equal(t->counters.apply_unknown, 1);
    drop(t);
}

static void a_retry_is_parked_with_its_followers_before_the_ack(void **state) {
    (void)state;
    struct bench *t = make();
    struct op *apply = receive(t, "aab");
    verdict(apply, 0, CSN_RETRY);
    apply->apply.item[1].out = APPLY_BEHIND;
    verdict(apply, 2, CSN_DONE);
    port_finish(apply, CSN_OK);
    step(t);
    assert_false(port_has(&t->out, OP_ACK));
    struct op *park = port_take(&t->apply, OP_PARK);
    assert_int_equal(park->park.n, 2);
    assert_int_equal(park->park.item[0].to, PARK_RETRY);
    assert_int_equal(park->park.item[0].failure, 1);
    assert_true(park->park.item[0].retry_in >= SEC / 2);
    assert_int_equal(park->park.item[1].to, PARK_BEHIND);
    port_finish(park, CSN_OK);
    step(t);
    assert_int_equal(port_take(&t->out, OP_ACK)->ack.n, 3);
    drop(t);
}

static void what_is_behind_a_dead_one_is_applied_again(void **state) {
    (void)state;
    struct bench *t = make();
    struct op *apply = receive(t, "aa");
    verdict(apply, 0, CSN_POISON);
    apply->apply.item[1].out = APPLY_BEHIND;
    port_finish(apply, CSN_OK);
    step(t);
    struct op *park = port_take(&t->apply, OP_PARK);
    assert_int_equal(park->park.n, 1);
    assert_int_equal(park->park.item[0].to, PARK_DEAD);
    port_finish(park, CSN_OK);
    step(t);
    apply = port_take(&t->apply, OP_APPLY);
    assert_int_equal(apply->apply.n, 1);
    assert_int_equal(apply->apply.item[0].msg, 1);
    verdict(apply, 0, CSN_DONE);
    port_finish(apply, CSN_OK);
    step(t);
    assert_int_equal(port_take(&t->out, OP_ACK)->ack.n, 2);
    assert_int_equal(t->counters.dead, 1);
    drop(t);
}

static void a_spent_budget_is_a_dead_letter_and_a_mismatch_a_conflict(void **state) {
    (void)state;
    struct bench *t = make();
    step(t);
    nothing_to_work_on(t);
    struct op *op = port_take(&t->out, OP_RECEIVE);
    answer(op, "ab");
    op->batch->msg[0].failures = 2; /* of 3 */
    step(t);
    struct op *apply = port_take(&t->apply, OP_APPLY);
    verdict(apply, 0, CSN_RETRY);
    apply->apply.item[1].out = APPLY_MISMATCH;
    port_finish(apply, CSN_OK);
    step(t);
    struct op *park = port_take(&t->apply, OP_PARK);
    assert_int_equal(park->park.item[0].to, PARK_DEAD);
    assert_int_equal(park->park.item[0].verdict, CSN_RETRY);
    assert_int_equal(park->park.item[1].to, PARK_CONFLICT);
    assert_int_equal(park->park.item[1].code, ERR_IDENTITY_CONFLICT);
    drop(t);
}

static void only_the_contiguous_prefix_of_a_partition_is_acked(void **state) {
    (void)state;
    struct bench *t = make();
    struct op *apply = receive(t, "aba");
    apply->apply.item[0].out = APPLY_FENCED; /* not done */
    verdict(apply, 1, CSN_DONE);
    verdict(apply, 2, CSN_DONE);
    port_finish(apply, CSN_OK);
    step(t);
    struct op *ack = port_take(&t->out, OP_ACK);
    assert_int_equal(ack->ack.n, 1);
    assert_int_equal(ack->ack.msg[0], 1);
    drop(t);
}

static void parked_work_is_applied_without_an_ack(void **state) {
    (void)state;
    struct bench *t = make();
    step(t);
    answer(port_take(&t->out, OP_RECEIVE), "");
    port_finish(port_take(&t->apply, OP_RECOVER), CSN_OK);
    struct op *work = port_take(&t->apply, OP_CLAIM);
    assert_int_equal(work->claim.table, TABLE_WORK);
    assert_string_equal(work->claim.consumer, "stock");
    answer(work, "a");
    step(t);
    struct op *apply = port_take(&t->apply, OP_APPLY);
    assert_int_equal(apply->apply.source, SOURCE_WORK);
    assert_string_equal(apply->apply.token, work->claim.token);
    verdict(apply, 0, CSN_DONE);
    port_finish(apply, CSN_OK);
    step(t);
    assert_false(port_has(&t->out, OP_ACK));
    drop(t);
}

static void out_of_time(struct op *apply) {
    port_finish(apply, CSN_AGAIN);
    apply->result.code = ERR_HANDLER_SQL;
}

/* A batch that never fits into its time would be tried for ever; smaller ones get on. */
static void a_batch_that_runs_out_of_time_is_halved_and_grows_back(void **state) {
    (void)state;
    struct bench *t = make();
    struct op *apply = receive(t, "abcd");
    out_of_time(apply);
    step(t);
    t->now += SEC;
    step(t);
    apply = port_take(&t->apply, OP_APPLY);
    assert_int_equal(apply->apply.n, 2);
    assert_int_equal(apply->apply.item[1].msg, 1);
    verdict(apply, 0, CSN_DONE);
    verdict(apply, 1, CSN_DONE);
    port_finish(apply, CSN_OK);
    step(t);
    assert_false(port_has(&t->out, OP_ACK));
    apply = port_take(&t->apply, OP_APPLY);
    assert_int_equal(apply->apply.n, 2);
    assert_int_equal(apply->apply.item[0].msg, 2);
    verdict(apply, 0, CSN_DONE);
    verdict(apply, 1, CSN_DONE);
    port_finish(apply, CSN_OK);
    step(t);
    assert_int_equal(port_take(&t->out, OP_ACK)->ack.n, 4);
    assert_true(t->inbox.most >= 4);
    drop(t);
}

static void one_that_runs_out_of_time_alone_is_tried_again_by_policy(void **state) {
    (void)state;
    struct bench *t = make();
    struct op *apply = receive(t, "a");
    out_of_time(apply);
    step(t);
    struct op *park = port_take(&t->apply, OP_PARK);
    assert_int_equal(park->park.n, 1);
    assert_int_equal(park->park.item[0].to, PARK_RETRY);
    assert_int_equal(park->park.item[0].failure, 1);
    assert_int_equal(park->park.item[0].code, ERR_HANDLER_SQL);
    drop(t);
}

/* Whether the head is parked is not known: it must be asked for before its followers are applied.
 */
static void an_unknown_park_comes_before_the_rest_of_the_batch(void **state) {
    (void)state;
    struct bench *t = make();
    struct op *apply = receive(t, "aab");
    out_of_time(apply);
    step(t);
    t->now += SEC;
    step(t);
    apply = port_take(&t->apply, OP_APPLY);
    assert_int_equal(apply->apply.n, 1);
    verdict(apply, 0, CSN_RETRY);
    port_finish(apply, CSN_OK);
    step(t);
    port_finish(port_take(&t->apply, OP_PARK), CSN_UNKNOWN);
    step(t);
    t->now += SEC;
    step(t);
    apply = port_take(&t->apply, OP_APPLY);
    assert_int_equal(apply->apply.item[0].msg, 0);
    if (apply->apply.n > 1)
        assert_int_equal(apply->apply.item[1].msg, 1);
    drop(t);
}

static void a_handler_that_swaps_the_transaction_stops_the_subscription(void **state) {
    (void)state;
    struct bench *t = make();
    struct op *apply = receive(t, "a");
    error_set(&apply->result, CSN_FATAL, ERR_HANDLER_TX, "handler ended the transaction");
    apply->state = OP_FINISHED;
    step(t);
    t->now += 10 * SEC;
    step(t);
    assert_int_equal(t->inbox.state, INBOX_BROKEN);
    assert_false(port_has(&t->out, OP_ACK));
    assert_false(port_has(&t->apply, OP_APPLY));
    drop(t);
}

static void expired_deliveries_are_marked_for_the_store(void **state) {
    (void)state;
    struct bench *t = make();
    step(t);
    nothing_to_work_on(t);
    struct op *op = port_take(&t->out, OP_RECEIVE);
    answer(op, "ab");
    op->batch->msg[0].expires_in = SEC;
    t->now += SEC;
    step(t);
    struct op *apply = port_take(&t->apply, OP_APPLY);
    assert_true(apply->apply.item[0].expired);
    assert_false(apply->apply.item[1].expired);
    drop(t);
}

/* ---- at most once ---- */

static struct bench *make_once(void) {
    return make_with(true);
}

/* The ACK of a batch that was received; nothing may have been tried. */
static struct op *receive_once(struct bench *t, const char *keys) {
    step(t);
    assert_int_equal(t->apply.n, 0); /* parks nothing, so no work rows either */
    answer(port_take(&t->out, OP_RECEIVE), keys);
    step(t);
    assert_int_equal(t->apply.n, 0);
    return port_take(&t->out, OP_ACK);
}

static struct op *tried_once(struct bench *t, const char *keys) {
    struct op *ack = receive_once(t, keys);
    ack->ack.acked = ack->ack.n;
    port_finish(ack, CSN_OK);
    step(t);
    return port_take(&t->apply, OP_TRY);
}

static void at_most_once_acks_all_of_it_first(void **state) {
    (void)state;
    struct bench *t = make_once();
    struct op *op = tried_once(t, "aab");
    assert_int_equal(op->apply.n, 3);
    verdict(op, 0, CSN_DONE);
    verdict(op, 1, CSN_RETRY);
    verdict(op, 2, CSN_REFUSED);
    port_finish(op, CSN_OK);
    step(t);
    assert_false(port_has(&t->apply, OP_PARK));
    assert_false(port_has(&t->out, OP_ACK));
    assert_int_equal(t->counters.acked, 3);
    assert_int_equal(t->counters.handled, 1);
    assert_int_equal(t->counters.refused, 1);
    assert_int_equal(t->counters.lost, 1);
    assert_true(port_has(&t->out, OP_RECEIVE));
    drop(t);
}

static void without_a_whole_ack_nothing_is_tried(void **state) {
    (void)state;
    static const struct {
        csn_status status;
        uint32_t acked, lost, maybe;
    } row[] = {{CSN_AGAIN, 0, 0, 0},
               {CSN_UNKNOWN, 0, 0, 2},
               {CSN_FATAL, 0, 0, 2},
               {CSN_OK, 1, 1, 0},
               {CSN_OK, 0, 0, 0}};
    for (size_t i = 0; i < ARRAY_LEN(row); i++) {
        struct bench *t = make_once();
        struct op *ack = receive_once(t, "ab");
        ack->ack.acked = row[i].acked;
        port_finish(ack, row[i].status);
        for (int k = 0; k < 5; k++, t->now += SEC)
            step(t);
        assert_false(port_has(&t->apply, OP_TRY));
        assert_int_equal(t->counters.lost, row[i].lost);
        assert_int_equal(t->counters.maybe_lost, row[i].maybe);
        assert_true(port_take(&t->out, OP_RECEIVE)->receive.again); /* what was not acked */
        drop(t);
    }
}

static void a_try_whose_outcome_is_unknown_is_not_repeated(void **state) {
    (void)state;
    struct bench *t = make_once();
    t->inbox.most = 2;
    struct op *op = tried_once(t, "abc");
    assert_int_equal(op->apply.n, 2);
    port_finish(op, CSN_UNKNOWN);
    step(t);
    t->now += SEC;
    step(t);
    op = port_take(&t->apply, OP_TRY); /* the rest is */
    assert_int_equal(op->apply.n, 1);
    assert_int_equal(op->apply.item[0].msg, 2);
    assert_int_equal(t->counters.maybe_lost, 2);
    port_finish(op, CSN_UNKNOWN);
    step(t);
    t->now += SEC;
    step(t);
    assert_false(port_has(&t->apply, OP_TRY));
    assert_int_equal(t->counters.maybe_lost, 3);
    assert_true(port_has(&t->out, OP_RECEIVE));
    drop(t);
}

static void a_try_that_surely_did_nothing_is_repeated_while_its_time_lasts(void **state) {
    (void)state;
    struct bench *t = make_once();
    struct op *op = tried_once(t, "ab");
    port_finish(op, CSN_AGAIN);
    step(t);
    t->now += SEC;
    step(t);
    op = port_take(&t->apply, OP_TRY);
    assert_int_equal(op->apply.n, 2);
    t->now += LEASE;
    port_finish(op, CSN_AGAIN);
    step(t);
    t->now += SEC;
    step(t);
    assert_false(port_has(&t->apply, OP_TRY));
    assert_int_equal(t->counters.lost, 2);
    drop(t);
}

static void at_most_once_stops_with_what_it_has_in_hand(void **state) {
    (void)state;
    struct bench *t = make_once();
    struct op *ack = receive_once(t, "ab");
    inbox_stop(&t->inbox);
    ack->ack.acked = 2;
    port_finish(ack, CSN_OK);
    step(t);
    assert_false(inbox_idle(&t->inbox));
    struct op *op = port_take(&t->apply, OP_TRY);
    port_finish(op, CSN_AGAIN); /* the store cannot, and the stop does not wait for it */
    step(t);
    assert_true(inbox_idle(&t->inbox));
    assert_int_equal(t->counters.lost, 2);
    drop(t);
}

/* ---- lanes ---- */

static struct op *ask(struct bench *t) {
    lanes_step(&t->lanes, t->now);
    return port_take(&t->heart, OP_LEASE);
}

static void lanes_are_believed_until_the_own_deadline_only(void **state) {
    (void)state;
    struct bench *t = make();
    t->lanes.held = 0;
    struct op *op = ask(t);
    assert_int_equal(op->lease.want, 0xff);
    op->lease.held = op->lease.fresh = 0xff;
    op->lease.epoch[3] = 9;
    port_finish(op, CSN_OK);
    t->now += SEC; /* the answer took a second: the lease counts from the question */
    lanes_step(&t->lanes, t->now);
    assert_int_equal(t->lanes.held, 0xff);
    assert_int_equal(t->lanes.fresh, 0xff);
    assert_int_equal(t->lanes.epoch[3], 9);
    assert_true(t->lanes.held_until < t->now - SEC + LEASE);
    t->now = t->lanes.held_until;
    lanes_step(&t->lanes, t->now);
    assert_int_equal(t->lanes.held, 0); /* nobody said so: the process itself gives up */
    assert_int_equal(t->counters.lanes_lost, 8);
    drop(t);
}

static void a_failed_renewal_is_tried_again_soon_and_the_lanes_stay(void **state) {
    (void)state;
    struct bench *t = make();
    t->lanes.held_until = t->now + LEASE;
    port_finish(ask(t), CSN_AGAIN);
    lanes_step(&t->lanes, t->now);
    assert_int_equal(t->lanes.held, 0xff);
    assert_true(lanes_deadline(&t->lanes) <= t->now + SEC);
    drop(t);
}

static void a_stop_drops_the_lanes_once(void **state) {
    (void)state;
    struct bench *t = make();
    t->lanes.asked = true;
    t->lanes.held_until = t->now + LEASE;
    lanes_stop(&t->lanes);
    struct op *op = ask(t);
    assert_int_equal(op->lease.drop, 0xff);
    assert_int_equal(op->lease.want, 0);
    port_finish(op, CSN_OK);
    lanes_step(&t->lanes, t->now);
    assert_true(t->lanes.dropped);
    t->now += LEASE;
    lanes_step(&t->lanes, t->now);
    assert_int_equal(t->heart.n, 0);
    drop(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_receives_its_own_partitions_under_their_epochs),
        cmocka_unit_test(ack_comes_after_the_commit_and_only_then),
        cmocka_unit_test(a_failed_commit_acks_nothing_and_is_tried_again),
        cmocka_unit_test(an_unknown_commit_is_applied_again_and_the_inbox_decides),
        cmocka_unit_test(a_retry_is_parked_with_its_followers_before_the_ack),
        cmocka_unit_test(what_is_behind_a_dead_one_is_applied_again),
        cmocka_unit_test(a_spent_budget_is_a_dead_letter_and_a_mismatch_a_conflict),
        cmocka_unit_test(only_the_contiguous_prefix_of_a_partition_is_acked),
        cmocka_unit_test(parked_work_is_applied_without_an_ack),
        cmocka_unit_test(a_batch_that_runs_out_of_time_is_halved_and_grows_back),
        cmocka_unit_test(one_that_runs_out_of_time_alone_is_tried_again_by_policy),
        cmocka_unit_test(an_unknown_park_comes_before_the_rest_of_the_batch),
        cmocka_unit_test(a_handler_that_swaps_the_transaction_stops_the_subscription),
        cmocka_unit_test(expired_deliveries_are_marked_for_the_store),
        cmocka_unit_test(at_most_once_acks_all_of_it_first),
        cmocka_unit_test(without_a_whole_ack_nothing_is_tried),
        cmocka_unit_test(a_try_whose_outcome_is_unknown_is_not_repeated),
        cmocka_unit_test(a_try_that_surely_did_nothing_is_repeated_while_its_time_lasts),
        cmocka_unit_test(at_most_once_stops_with_what_it_has_in_hand),
        cmocka_unit_test(lanes_are_believed_until_the_own_deadline_only),
        cmocka_unit_test(a_failed_renewal_is_tried_again_soon_and_the_lanes_stay),
        cmocka_unit_test(a_stop_drops_the_lanes_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
