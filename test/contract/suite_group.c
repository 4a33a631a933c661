/* suite_group.c: what a commit group promises: all or nothing, or nobody knows; a store that is
 * locked or full; and what the tables refuse from a producer. */
#include "test/contract/suite.h"

#include <stdio.h>

/* ---- atomicity ---- */

static void a_group_whose_last_op_fails_leaves_nothing(void **state) {
    struct suite *s = *state;
    struct op *op[2];

    declare(s, "c", "*", 2);
    publish(s, one_message(s, "e1", "k", 1, "{}"));
    op[0] = publish_op(s, one_message(s, "e2", "k", 2, "{}"));
    op[1] = declare_op(s, "c", "*", 3);
    group(s, port_of(s, ROLE_QUEUE_IN), op, 2);
    assert_int_equal(op[0]->result.status, CSN_REJECTED);
    assert_int_equal(op[1]->result.status, CSN_REJECTED);
    assert_int_equal(s->w->queue_count(s->w, "c", false), 1);
}

static void a_group_runs_in_order_of_submission(void **state) {
    struct suite *s = *state;
    struct op *op[3], *taken;

    put(s, "v1", "k", 1);
    taken = claim(s, 1);
    put(s, "v2", "k", 2);
    op[0] = settle_op(s, taken, SETTLE_PENDING);
    op[1] = claim_op(s, 10);
    op[2] = renew_op(s, op[1]);
    copy_text(op[2]->renew.token, sizeof(op[2]->renew.token), op[1]->claim.token);
    group(s, port_of(s, ROLE_RELAY), op, 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(op[i]->result.status, CSN_OK);
    expect_ids(op[1]->batch, "v1 v2");
    assert_int_equal(op[2]->renew.renewed, 2);
}

/* ---- a connection that dies in the middle ---- */

static void cut_on(struct suite *s, struct op *op, enum world_cut cut) {
    struct port *p = port_of(s, role_of(op));

    need(s, WORLD_CUT);
    s->w->cut(s->w, p, cut);
    assert_int_equal(answer(s, p, op), CSN_UNKNOWN);
}

static void w22_a_claim_cut_before_commit(void **state) {
    struct suite *s = *state;

    put(s, "e1", "k", 1);
    cut_on(s, claim_op(s, 10), CUT_BEFORE_COMMIT);
    expect_status(s, "e1", "pending");
    assert_int_equal(outbox(s, "e1").attempts, 0);
    expect_ids(claim(s, 10)->batch, "e1");
}

static void w21_a_claim_cut_after_commit_is_found_by_its_token(void **state) {
    struct suite *s = *state;
    struct op *op = claim_op(s, 10);

    put(s, "e1", "k", 1);
    cut_on(s, op, CUT_AFTER_COMMIT);
    expect_status(s, "e1", "sending");
    assert_string_equal(outbox(s, "e1").token, op->claim.token);
    assert_int_equal(claim(s, 10)->batch->n, 0);
    s->w->advance(s->w, MINUTE);
    run(s, recover_op(s, 0));
    expect_ids(claim(s, 10)->batch, "e1");
}

static void w61_a_mark_cut_before_commit(void **state) {
    struct suite *s = *state;
    struct op *taken, *op;

    put(s, "v1", "k", 1);
    taken = claim(s, 1);
    put(s, "v2", "k", 2);
    claim(s, 1);
    cut_on(s, settle_op(s, taken, SETTLE_SENT), CUT_BEFORE_COMMIT);
    expect_status(s, "v1", "sending");
    expect_status(s, "v2", "waiting");
    run(s, op = settle_op(s, taken, SETTLE_SENT));
    assert_int_equal(op->settle.item[0].result, CSN_OK);
    assert_int_equal(op->settle.released, 1);
}

static void w61_a_mark_cut_after_commit(void **state) {
    struct suite *s = *state;
    struct op *taken, *op;

    put(s, "v1", "k", 1);
    taken = claim(s, 1);
    put(s, "v2", "k", 2);
    claim(s, 1);
    cut_on(s, settle_op(s, taken, SETTLE_SENT), CUT_AFTER_COMMIT);
    expect_status(s, "v1", "sent");
    expect_status(s, "v2", "pending");
    run(s, op = settle_op(s, taken, SETTLE_SENT));
    assert_int_equal(op->settle.item[0].result, CSN_STALE);
    expect_status(s, "v1", "sent");
}

static void a_group_of_two_is_cut_as_one(struct suite *s, enum world_cut cut, const char *first,
                                         const char *second) {
    struct op *op[2];
    struct port *p = port_of(s, ROLE_RELAY);

    need(s, WORLD_CUT);
    put(s, "e1", "k1", 1);
    op[0] = settle_op(s, claim(s, 1), SETTLE_SENT);
    put(s, "e2", "k2", 1);
    op[1] = claim_op(s, 10);
    s->w->cut(s->w, p, cut);
    group(s, p, op, 2);
    assert_int_equal(op[0]->result.status, CSN_UNKNOWN);
    assert_int_equal(op[1]->result.status, CSN_UNKNOWN);
    expect_status(s, "e1", first);
    expect_status(s, "e2", second);
}

static void settle_and_claim_cut_before_commit(void **state) {
    a_group_of_two_is_cut_as_one(*state, CUT_BEFORE_COMMIT, "sending", "pending");
}

static void settle_and_claim_cut_after_commit(void **state) {
    a_group_of_two_is_cut_as_one(*state, CUT_AFTER_COMMIT, "sent", "sending");
}

static void a_recovery_cut_before_commit(void **state) {
    struct suite *s = *state;

    put(s, "e1", "k", 1);
    claim(s, 1);
    s->w->advance(s->w, MINUTE);
    cut_on(s, recover_op(s, 0), CUT_BEFORE_COMMIT);
    expect_status(s, "e1", "sending");
    run(s, recover_op(s, 0));
    only_attempt(s, "e1");
}

static void w60_a_publish_cut_before_commit(void **state) {
    struct suite *s = *state;

    declare(s, "c", "*", 1);
    cut_on(s, publish_op(s, one_message(s, "e1", "k", 1, "{}")), CUT_BEFORE_COMMIT);
    assert_int_equal(s->w->queue_count(s->w, "c", false), 0);
}

static void w49_a_publish_cut_after_commit_is_there(void **state) {
    struct suite *s = *state;
    struct batch *b = new_batch(s);

    declare(s, "c", "*", 1);
    add_message(s, b, "v1", "k", 1, "{}");
    add_message(s, b, "v2", "k", 2, "{}");
    cut_on(s, publish_op(s, b), CUT_AFTER_COMMIT);
    assert_int_equal(s->w->queue_count(s->w, "c", true), 2);
    assert_true(queue(s, "c", "v1").pos < queue(s, "c", "v2").pos);
}

static void w78_an_apply_cut_before_commit_leaves_no_trace(void **state) {
    struct suite *s = *state;
    struct result_row none;

    cut_on(s, apply_op(s, "c", one_message(s, "e1", "k", 1, SAYS_EMIT("done"))), CUT_BEFORE_COMMIT);
    expect_no_inbox(s, "c", "e1");
    assert_int_equal(s->w->effects(s->w, "c", "e1"), 0);
    assert_int_equal(s->w->results(s->w, "e1", &none, 1), 0);
    assert_int_equal(apply(s, "c", one_message(s, "e1", "k", 1, SAYS("done")))->apply.item[0].out,
                     APPLY_VERDICT);
    assert_int_equal(s->w->effects(s->w, "c", "e1"), 1);
}

static void w79_an_apply_cut_after_commit_is_seen(void **state) {
    struct suite *s = *state;
    struct result_row row;

    cut_on(s, apply_op(s, "c", one_message(s, "e1", "k", 1, SAYS_EMIT("done"))), CUT_AFTER_COMMIT);
    assert_string_equal(inbox(s, "c", "e1").state, "done");
    assert_int_equal(
        apply(s, "c", one_message(s, "e1", "k", 1, SAYS_EMIT("done")))->apply.item[0].out,
        APPLY_SEEN);
    assert_int_equal(s->w->effects(s->w, "c", "e1"), 1);
    assert_int_equal(s->w->results(s->w, "e1", &row, 1), 1);
}

static void cut_try(struct suite *s, enum world_cut cut) {
    struct op *op = apply_op(s, "c", one_message(s, "e1", "k", 1, SAYS_EMIT("done")));

    op->kind = OP_TRY;
    cut_on(s, op, cut);
}

static void a_try_cut_before_commit_leaves_no_trace(void **state) {
    struct suite *s = *state;

    cut_try(s, CUT_BEFORE_COMMIT);
    assert_int_equal(s->w->effects(s->w, "c", "e1"), 0);
}

static void a_try_cut_after_commit_is_not_known(void **state) {
    struct suite *s = *state;

    cut_try(s, CUT_AFTER_COMMIT);
    assert_int_equal(s->w->effects(s->w, "c", "e1"), 1);
    expect_no_inbox(s, "c", "e1");
}

static void w103_a_park_cut_before_commit(void **state) {
    struct suite *s = *state;
    struct dead_row none;

    cut_on(s, park_op(s, "c", one_message(s, "e1", "k", 1, SAYS("done")), PARK_DEAD, CSN_POISON),
           CUT_BEFORE_COMMIT);
    expect_no_inbox(s, "c", "e1");
    assert_int_equal(s->w->dead(s->w, "c", "e1", &none, 1), 0);
}

static void w103_a_park_cut_after_commit(void **state) {
    struct suite *s = *state;
    struct dead_row row;

    cut_on(s, park_op(s, "c", one_message(s, "e1", "k", 1, SAYS("done")), PARK_DEAD, CSN_POISON),
           CUT_AFTER_COMMIT);
    assert_string_equal(inbox(s, "c", "e1").state, "dead");
    assert_int_equal(s->w->dead(s->w, "c", "e1", &row, 1), 1);
    assert_int_equal(apply(s, "c", one_message(s, "e1", "k", 1, SAYS("done")))->apply.item[0].out,
                     APPLY_ASIDE);
}

static struct op *delivered(struct suite *s) {
    declare(s, "c", "*", 1);
    hold_parts(s, "sub/c", 1);
    publish(s, one_message(s, "e1", "k", 1, "{}"));
    return receive(s, "c", 1, 10);
}

static void w89_an_ack_cut_before_commit_is_delivered_again(void **state) {
    struct suite *s = *state;

    cut_on(s, ack_op(s, delivered(s)), CUT_BEFORE_COMMIT);
    assert_int_equal(queue(s, "c", "e1").acked_at, 0);
    s->w->advance(s->w, MINUTE);
    expect_ids(receive(s, "c", 1, 10)->batch, "e1");
}

static void w89_an_ack_cut_after_commit_is_durable(void **state) {
    struct suite *s = *state;

    cut_on(s, ack_op(s, delivered(s)), CUT_AFTER_COMMIT);
    assert_int_not_equal(queue(s, "c", "e1").acked_at, 0);
    s->w->advance(s->w, MINUTE);
    assert_int_equal(receive(s, "c", 1, 10)->batch->n, 0);
}

static void w32_a_lane_taken_without_an_answer_is_taken(void **state) {
    struct suite *s = *state;
    struct op *op = lease_op(s, BOOT_A, "sub/x", 1);

    cut_on(s, op, CUT_AFTER_COMMIT);
    assert_string_equal(lane(s, "sub/x", 0).owner, BOOT_A);
    run(s, op = lease_op(s, BOOT_A, "sub/x", 1));
    assert_true(op->lease.held == 1);
    assert_int_equal(op->lease.epoch[0], lane(s, "sub/x", 0).epoch);
    run(s, op = lease_op(s, BOOT_B, "sub/x", 1));
    assert_true(op->lease.held == 0);
}

/* ---- a store that is locked or full ---- */

static void expect_again_while_locked(struct suite *s, struct op *op) {
    csn_usec began = s->w->clock(s->w);

    op->deadline = began + SECOND / 5;
    s->w->lock(s->w, true);
    assert_int_equal(answer(s, port_of(s, role_of(op)), op), CSN_AGAIN);
    s->w->lock(s->w, false);
    assert_int_equal(op->result.code, 2008);
    assert_true(s->w->clock(s->w) - began < 10 * SECOND);
}

static void a_locked_store_is_again_for_every_verb(void **state) {
    struct suite *s = *state;
    struct op *taken, *got;
    struct outbox_row before, row;
    struct member_row member;

    need(s, WORLD_LOCK);
    declare(s, "c", "*", 1);
    hold_parts(s, "sub/c", 1);
    publish(s, one_message(s, "e1", "k", 1, "{}"));
    got = receive(s, "c", 1, 10);
    put(s, "e1", "k1", 1);
    taken = claim(s, 1);
    put(s, "e2", "k2", 1);
    before = outbox(s, "e1");
    expect_again_while_locked(s, claim_op(s, 10));
    expect_again_while_locked(s, settle_op(s, taken, SETTLE_SENT));
    expect_again_while_locked(s, renew_op(s, taken));
    expect_again_while_locked(s, recover_op(s, s->lanes));
    expect_again_while_locked(s, lease_op(s, BOOT_B, "sub/x", 1));
    expect_again_while_locked(s, publish_op(s, one_message(s, "e9", "k", 1, "{}")));
    expect_again_while_locked(s, ack_op(s, got));
    expect_again_while_locked(s, apply_op(s, "c", one_message(s, "e9", "k", 1, SAYS("done"))));
    expect_again_while_locked(
        s, park_op(s, "c", one_message(s, "e9", "k", 1, "{}"), PARK_RETRY, CSN_RETRY));
    row = outbox(s, "e1");
    assert_memory_equal(&row, &before, sizeof(row));
    expect_status(s, "e2", "pending");
    assert_false(s->w->member(s->w, BOOT_B, &member));
    assert_int_equal(s->w->queue_count(s->w, "c", true), 1);
    expect_no_inbox(s, "c", "e9");
    run(s, settle_op(s, taken, SETTLE_SENT));
    expect_ids(claim(s, 10)->batch, "e2");
}

static void w17_a_full_store_is_again(void **state) {
    struct suite *s = *state;
    struct batch *b = new_batch(s);
    struct port *p;
    struct op *op;
    char id[12];

    need(s, WORLD_FULL);
    p = port_of(s, ROLE_APPLY);
    for (uint32_t i = 0; i < 500; i++) {
        snprintf(id, sizeof(id), "e%u", i);
        add_message(s, b, id, id, 1, SAYS_EMIT("done"));
    }
    s->w->fill(s->w, p, true);
    op = apply_op(s, "c", b);
    assert_int_equal(answer(s, p, op), CSN_AGAIN);
    assert_int_equal(op->result.code, 2007);
    expect_no_inbox(s, "c", "e0");
    assert_int_equal(s->w->effects(s->w, "c", "e0"), 0);
    s->w->fill(s->w, p, false);
    run(s, op = apply_op(s, "c", b));
    assert_int_equal(op->apply.emitted, 500);
    assert_int_equal(s->w->effects(s->w, "c", "e499"), 1);
}

/* ---- what producers may put in ---- */

static const struct world_event good = {.id = "e1",
                                        .aggregate_type = "order",
                                        .aggregate_id = "k",
                                        .event_type = "OrderCreated",
                                        .payload = "{}",
                                        .version = 1};

static void refused(struct suite *s, const struct world_event *e, const char *constraint) {
    const char *text = s->w->insert(s->w, e, 1, true);

    if (!text || !strstr(text, constraint))
        world_fail("%s did not refuse: %s", constraint, text ? text : "(accepted)");
    assert_int_equal(s->w->outbox_count(s->w, NULL, -1), 0);
}

static char *filled(struct suite *s, size_t size) {
    char *text = keep(s, size + 1);

    memset(text, 'x', size);
    return text;
}

static void m30_ids_are_1_to_36_visible_ascii(void **state) {
    struct suite *s = *state;
    struct world_event e = good;
    const char *bad[] = {"", "a b", "中文", "tab\t", filled(s, OUTBOX_ID_MAX + 1)};

    need(s, WORLD_CONSTRAINTS);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        e.id = bad[i];
        refused(s, &e, "csn_event_id");
    }
    e.id = filled(s, OUTBOX_ID_MAX);
    put_event(s, &e);
}

static void keys_are_1_to_128_bytes(void **state) {
    struct suite *s = *state;
    struct world_event e = good;

    need(s, WORLD_CONSTRAINTS);
    e.aggregate_id = "";
    refused(s, &e, "csn_aggregate_id");
    e.aggregate_id = filled(s, 129);
    refused(s, &e, "csn_aggregate_id");
    e = good;
    e.aggregate_type = filled(s, 81);
    refused(s, &e, "csn_aggregate_type");
    e.aggregate_type = filled(s, 80);
    e.aggregate_id = filled(s, 128);
    put_event(s, &e);
    expect_ids(claim(s, 1)->batch, "e1");
}

static void types_and_versions_have_limits(void **state) {
    struct suite *s = *state;
    struct world_event e = good;

    need(s, WORLD_CONSTRAINTS);
    e.event_type = "";
    refused(s, &e, "csn_event_type");
    e.event_type = filled(s, 81);
    refused(s, &e, "csn_event_type");
    e = good;
    e.version = -1;
    refused(s, &e, "csn_aggregate_version");
    e = good;
    e.schema_version = -1;
    refused(s, &e, "csn_schema_version");
}

static void w13_payloads_are_json_of_at_most_256_kib(void **state) {
    struct suite *s = *state;
    struct world_event e = good;
    char *large = filled(s, 262145);
    const struct message *m;

    need(s, WORLD_CONSTRAINTS);
    e.payload = "{\"a\":";
    refused(s, &e, "csn_payload_json");
    e.payload = "";
    refused(s, &e, "csn_payload_json");
    large[0] = large[262144] = '"';
    e.payload = large;
    refused(s, &e, "csn_payload_size");
    large[262144] = 0;
    large[262143] = '"';
    put_event(s, &e);
    m = message_of(claim(s, 1)->batch, "e1");
    assert_int_equal(m->payload.size, 262144);
    assert_memory_equal(m->payload.data, large, 262144);
}

static void headers_are_json(void **state) {
    struct suite *s = *state;
    struct world_event e = good;

    need(s, WORLD_CONSTRAINTS);
    e.headers = "h=1";
    refused(s, &e, "csn_headers");
}

static void w08_an_id_is_there_once(void **state) {
    struct suite *s = *state;
    struct world_event two[2] = {good, good};

    need(s, WORLD_CONSTRAINTS);
    two[1].version = 2;
    assert_non_null(s->w->insert(s->w, two, 2, true));
    assert_int_equal(s->w->outbox_count(s->w, NULL, -1), 0);
    two[1].id = "E1";
    assert_null(s->w->insert(s->w, two, 2, true));
}

static void w01_what_is_rolled_back_never_was(void **state) {
    struct suite *s = *state;

    assert_null(s->w->insert(s->w, &good, 1, false));
    assert_int_equal(s->w->outbox_count(s->w, NULL, -1), 0);
    assert_int_equal(claim(s, 10)->batch->n, 0);
    put_event(s, &good);
    expect_ids(claim(s, 10)->batch, "e1");
}

static void an_odd_status_is_left_alone(void **state) {
    struct suite *s = *state;
    struct op *op;

    need(s, WORLD_ODD_STATUS);
    put(s, "e1", "k", 1);
    s->w->set_status(s->w, "e1", "PENDING", 0);
    assert_int_equal(claim(s, 10)->batch->n, 0);
    s->w->advance(s->w, MINUTE);
    run(s, op = recover_op(s, s->lanes));
    assert_int_equal(op->recover.expired + op->recover.resent + op->recover.released, 0);
    expect_status(s, "e1", "PENDING");
}

const struct CMUnitTest suite_group[] = {TEST(a_group_whose_last_op_fails_leaves_nothing),
                                         TEST(a_group_runs_in_order_of_submission),
                                         TEST(w22_a_claim_cut_before_commit),
                                         TEST(w21_a_claim_cut_after_commit_is_found_by_its_token),
                                         TEST(w61_a_mark_cut_before_commit),
                                         TEST(w61_a_mark_cut_after_commit),
                                         TEST(settle_and_claim_cut_before_commit),
                                         TEST(settle_and_claim_cut_after_commit),
                                         TEST(a_recovery_cut_before_commit),
                                         TEST(w60_a_publish_cut_before_commit),
                                         TEST(w49_a_publish_cut_after_commit_is_there),
                                         TEST(w78_an_apply_cut_before_commit_leaves_no_trace),
                                         TEST(w79_an_apply_cut_after_commit_is_seen),
                                         TEST(a_try_cut_before_commit_leaves_no_trace),
                                         TEST(a_try_cut_after_commit_is_not_known),
                                         TEST(w103_a_park_cut_before_commit),
                                         TEST(w103_a_park_cut_after_commit),
                                         TEST(w89_an_ack_cut_before_commit_is_delivered_again),
                                         TEST(w89_an_ack_cut_after_commit_is_durable),
                                         TEST(w32_a_lane_taken_without_an_answer_is_taken),
                                         TEST(a_locked_store_is_again_for_every_verb),
                                         TEST(w17_a_full_store_is_again),
                                         TEST(m30_ids_are_1_to_36_visible_ascii),
                                         TEST(keys_are_1_to_128_bytes),
                                         TEST(types_and_versions_have_limits),
                                         TEST(w13_payloads_are_json_of_at_most_256_kib),
                                         TEST(headers_are_json),
                                         TEST(w08_an_id_is_there_once),
                                         TEST(w01_what_is_rolled_back_never_was),
                                         TEST(an_odd_status_is_left_alone),
                                         TEST_END};
