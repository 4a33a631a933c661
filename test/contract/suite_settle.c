/* suite_settle.c: SETTLE, RENEW and RECOVER of the outbox: what each outcome writes, whom the
 * token keeps out, what comes back when an owner is gone. */
#include "test/contract/suite.h"

#include <stdio.h>

static struct op *claimed(struct suite *s, const char *id) {
    struct op *op;

    put(s, id, id, 1);
    op = claim(s, 1);
    expect_ids(op->batch, id);
    return op;
}

/* One claimed row, one item to fill in. */
static struct op *settling(struct suite *s, const char *id, uint8_t to) {
    return settle_op(s, claimed(s, id), to);
}

static void evidence(struct op *op, int32_t code, const char *text) {
    op->settle.item[0].code = code;
    copy_text(op->settle.item[0].text, sizeof(op->settle.item[0].text), text);
}

static void run_settled(struct suite *s, struct op *op) {
    run(s, op);
    for (uint32_t i = 0; i < op->settle.n; i++)
        assert_int_equal(op->settle.item[i].result, CSN_OK);
    assert_int_equal(op->settle.stale, 0);
}

static void expect_free(const struct outbox_row *row, const char *status) {
    assert_string_equal(row->status, status);
    assert_string_equal(row->token, "");
    assert_int_equal(row->lease_until, 0);
}

/* ---- outcomes ---- */

static void sent_writes_its_columns(void **state) {
    struct suite *s = *state;
    struct op *op = settling(s, "e1", SETTLE_PENDING);
    struct outbox_row row;
    struct attempt_row none;

    op->settle.item[0].attempt = 1;
    op->settle.item[0].retry_in = 1;
    run_settled(s, op);
    assert_int_equal(outbox(s, "e1").tries, 1);
    s->w->advance(s->w, SECOND);
    op = settle_op(s, claim(s, 1), SETTLE_SENT);
    op->settle.member = 42;
    op->settle.item[0].published_ago = 7000;
    op->settle.item[0].part = 3;
    op->settle.item[0].pos = 123456789012;
    run_settled(s, op);
    row = outbox(s, "e1");
    expect_free(&row, "sent");
    near(s, row.sent_at, s->w->now(s->w));
    assert_int_equal(row.sent_at - row.published_at, 7000);
    assert_int_equal(row.sent_by, 42);
    assert_int_equal(row.broker_part, 3);
    assert_int_equal(row.broker_pos, 123456789012);
    assert_int_equal(row.tries, 0);
    assert_int_equal(row.attempts, 2);
    assert_int_equal(s->w->attempts(s->w, "e1", &none, 1), 0);
}

static void a_temporary_fault_backs_off(void **state) {
    struct suite *s = *state;
    struct op *op = settling(s, "e1", SETTLE_PENDING);
    struct outbox_row before = outbox(s, "e1"), row;
    struct attempt_row a;

    op->settle.item[0].failure = op->settle.item[0].attempt = 1;
    op->settle.item[0].retry_in = 90 * SECOND;
    evidence(op, 3003, "broker says no");
    run_settled(s, op);
    row = outbox(s, "e1");
    expect_free(&row, "pending");
    assert_int_equal(row.failures, 1);
    assert_int_equal(row.tries, 1);
    assert_string_equal(row.last_error, "broker says no");
    near(s, row.last_failed_at, s->w->now(s->w));
    assert_int_equal(row.first_failed_at, row.last_failed_at);
    assert_int_equal(row.next_attempt_at - row.last_failed_at, 90 * SECOND);
    a = only_attempt(s, "e1");
    assert_string_equal(a.side, "outbox");
    assert_string_equal(a.kind, "nacked");
    assert_string_equal(a.error, "broker says no");
    assert_int_equal(a.code, 3003);
    assert_int_equal(a.attempt, 1);
    assert_int_equal(a.at, row.last_failed_at);
    assert_int_equal(a.planned_at, before.next_attempt_at);
    assert_int_equal(a.started_at, before.claimed_at);
}

static void the_first_fault_is_remembered(void **state) {
    struct suite *s = *state;
    struct op *op = settling(s, "e1", SETTLE_PENDING);
    struct outbox_row row;

    op->settle.item[0].failure = 1;
    op->settle.item[0].retry_in = SECOND;
    evidence(op, 3003, "first");
    run_settled(s, op);
    s->w->advance(s->w, MINUTE);
    op = settle_op(s, claim(s, 1), SETTLE_PENDING);
    op->settle.item[0].failure = op->settle.item[0].attempt = 1;
    op->settle.item[0].retry_in = SECOND;
    evidence(op, 3002, "second");
    run_settled(s, op);
    row = outbox(s, "e1");
    assert_int_equal(row.failures, 2);
    assert_int_equal(row.tries, 1);
    assert_string_equal(row.last_error, "second");
    near(s, row.last_failed_at - row.first_failed_at, MINUTE);
    assert_string_equal(last_attempt(s, "e1", 2).kind, "returned");
    assert_int_equal(last_attempt(s, "e1", 2).attempt, 2);
}

static void a_row_that_is_given_back_keeps_its_place(void **state) {
    struct suite *s = *state;
    struct outbox_row before, row;
    struct op *op;

    put_due(s, "e1", "k", 1, -MINUTE);
    before = outbox(s, "e1");
    op = settle_op(s, claim(s, 1), SETTLE_PENDING);
    evidence(op, 0, "given back");
    run_settled(s, op);
    row = outbox(s, "e1");
    expect_free(&row, "pending");
    assert_int_equal(row.next_attempt_at, before.next_attempt_at);
    assert_int_equal(row.failures, 0);
    assert_int_equal(row.tries, 0);
    assert_int_equal(row.attempts, 1);
    assert_string_equal(row.last_error, "");
    assert_int_equal(row.first_failed_at, 0);
    assert_string_equal(only_attempt(s, "e1").kind, "released");
    expect_ids(claim(s, 1)->batch, "e1");
}

static void w40_no_answer_is_unknown(void **state) {
    struct suite *s = *state;
    struct op *op = settling(s, "e1", SETTLE_UNKNOWN);
    struct outbox_row row;
    struct attempt_row a;

    op->settle.item[0].attempt = 1;
    op->settle.item[0].retry_in = MINUTE;
    evidence(op, 3005, "no answer");
    run_settled(s, op);
    row = outbox(s, "e1");
    expect_free(&row, "unknown");
    assert_int_equal(row.tries, 1);
    assert_int_equal(row.failures, 0);
    assert_int_equal(row.first_failed_at, 0);
    a = only_attempt(s, "e1");
    assert_string_equal(a.kind, "unanswered");
    assert_int_equal(row.next_attempt_at - a.at, MINUTE);
}

static void a_closed_route_makes_rows_wait(void **state) {
    struct suite *s = *state;
    struct op *op = settling(s, "e1", SETTLE_WAITING);
    struct outbox_row row;

    op->settle.item[0].waits_for = WAITS_ROUTE;
    op->settle.route = "eu";
    evidence(op, 3001, "eu is closed");
    run_settled(s, op);
    row = outbox(s, "e1");
    expect_free(&row, "waiting");
    assert_int_equal(row.waits_for, WAITS_ROUTE);
    assert_string_equal(row.route, "eu");
    assert_int_equal(row.failures, 0);
    assert_string_equal(only_attempt(s, "e1").kind, "waiting");
}

static void a_row_may_go_back_behind_its_key(void **state) {
    struct suite *s = *state;
    struct op *both, *op;
    struct outbox_row row;

    put(s, "v1", "k", 1);
    put(s, "v2", "k", 2);
    both = claim(s, 10);
    op = settle_op(s, both, SETTLE_FAILED);
    op->settle.item[1].to = SETTLE_WAITING;
    op->settle.item[1].waits_for = WAITS_KEY;
    run_settled(s, op);
    row = outbox(s, "v2");
    expect_free(&row, "waiting");
    assert_int_equal(row.waits_for, WAITS_KEY);
    assert_string_equal(row.route, "");
}

static void nobody_waits_for_a_row_that_has_ended(void **state) {
    struct suite *s = *state;
    struct op *first, *second, *op;
    struct outbox_row row;

    put(s, "v1", "k", 1);
    put(s, "v2", "k", 2);
    first = claim(s, 10);
    expect_ids(first->batch, "v1 v2");
    op = settle_op(s, first, SETTLE_SENT);
    op->settle.n = 1;
    run_settled(s, op);
    second = settle_op(s, first, SETTLE_WAITING);
    second->settle.item++;
    second->settle.n = 1;
    second->settle.item[0].waits_for = WAITS_KEY;
    run_settled(s, second);
    row = outbox(s, "v2");
    expect_free(&row, "pending");
    assert_int_equal(row.waits_for, 0);
    expect_ids(claim(s, 10)->batch, "v2");
}

static void the_first_of_a_key_never_waits_for_it(void **state) {
    struct suite *s = *state;
    struct op *op = settling(s, "e1", SETTLE_WAITING);

    op->settle.item[0].waits_for = WAITS_KEY;
    run_settled(s, op);
    expect_status(s, "e1", "pending");
    expect_ids(claim(s, 10)->batch, "e1");
}

static void w53_failed_keeps_its_evidence(void **state) {
    struct suite *s = *state;
    struct op *op = settling(s, "e1", SETTLE_FAILED);
    struct outbox_row row;

    op->settle.item[0].failure = 1;
    evidence(op, 3004, "too large");
    run_settled(s, op);
    row = outbox(s, "e1");
    expect_free(&row, "failed");
    assert_int_equal(row.failures, 1);
    assert_string_equal(row.last_error, "too large");
    assert_int_not_equal(row.first_failed_at, 0);
    assert_int_equal(row.first_failed_at, row.last_failed_at);
    assert_string_equal(only_attempt(s, "e1").kind, "failed");
    assert_int_equal(only_attempt(s, "e1").code, 3004);
    assert_int_equal(claim(s, 10)->batch->n, 0);
}

static void failed_writes_the_error_without_counting_it(void **state) {
    struct suite *s = *state;
    struct op *op = settling(s, "e1", SETTLE_FAILED);

    evidence(op, 3003, "budget");
    run_settled(s, op);
    assert_int_equal(outbox(s, "e1").failures, 0);
    assert_string_equal(outbox(s, "e1").last_error, "budget");
    assert_int_not_equal(outbox(s, "e1").last_failed_at, 0);
}

static void expired_is_cancelled(void **state) {
    struct suite *s = *state;
    struct op *op = settling(s, "e1", SETTLE_CANCELLED);
    struct outbox_row row;

    evidence(op, 3009, "expired");
    run_settled(s, op);
    row = outbox(s, "e1");
    expect_free(&row, "cancelled");
    assert_string_equal(only_attempt(s, "e1").kind, "expired");
}

static void w44_each_item_has_its_own_outcome(void **state) {
    struct suite *s = *state;
    struct op *all, *op;

    put(s, "a", "a", 1);
    put(s, "b", "b", 1);
    put(s, "c", "c", 1);
    put(s, "d", "d", 1);
    all = claim(s, 10);
    op = settle_op(s, all, SETTLE_SENT);
    op->settle.item[1].to = SETTLE_FAILED;
    op->settle.item[2].to = SETTLE_PENDING;
    op->settle.item[2].retry_in = HOUR;
    op->settle.n = 3;
    run_settled(s, op);
    expect_status(s, "a", "sent");
    expect_status(s, "b", "failed");
    expect_status(s, "c", "pending");
    expect_status(s, "d", "sending");
}

static void a_text_at_its_limit_is_kept(void **state) {
    struct suite *s = *state;
    struct op *op = settling(s, "e1", SETTLE_FAILED);
    char *text = op->settle.item[0].text;

    memset(text, 'x', ERROR_TEXT_MAX - 1);
    run_settled(s, op);
    assert_int_equal(strlen(only_attempt(s, "e1").error), ERROR_TEXT_MAX - 1);
    assert_int_equal(strlen(outbox(s, "e1").last_error), ERROR_TEXT_MAX - 1);
}

/* ---- the token ---- */

/* A's claim, then B takes the lanes, recovers and claims the row. Returns A's claim. */
static struct op *taken_over(struct suite *s, struct op **ret_b) {
    struct op *a = claimed(s, "e1"), *op;

    put(s, "follower", "e1", 2);
    claim(s, 1);
    s->w->advance(s->w, 11 * MINUTE);
    op = lease_op(s, BOOT_B, "outbox", s->lanes);
    run(s, op);
    assert_true(op->lease.held == s->lanes);
    memcpy(s->epoch, op->lease.epoch, sizeof(s->epoch));
    op = recover_op(s, s->lanes);
    copy_text(op->recover.boot, sizeof(op->recover.boot), BOOT_B);
    run(s, op);
    assert_int_equal(op->recover.expired, 1);
    op = claim_op(s, 1);
    copy_text(op->claim.boot, sizeof(op->claim.boot), BOOT_B);
    run(s, op);
    expect_ids(op->batch, "e1");
    assert_int_equal(op->batch->msg[0].attempts, 2);
    *ret_b = op;
    return a;
}

static void expect_stale(struct suite *s, struct op *op) {
    run(s, op);
    assert_int_equal(op->settle.item[0].result, CSN_STALE);
    assert_int_equal(op->settle.stale, 1);
    assert_int_equal(op->settle.released, 0);
}

static void w62_stale(struct suite *s, uint8_t to) {
    struct op *b, *a = taken_over(s, &b), *op = settle_op(s, a, to);
    struct outbox_row before = outbox(s, "e1"), row;
    struct attempt_row list[8];
    uint32_t attempts = s->w->attempts(s->w, "e1", list, 8);

    op->settle.item[0].failure = op->settle.item[0].attempt = 1;
    op->settle.item[0].retry_in = HOUR;
    op->settle.item[0].waits_for = to == SETTLE_WAITING ? WAITS_ROUTE : WAITS_NONE;
    op->settle.route = "r";
    evidence(op, 3003, "too late");
    expect_stale(s, op);
    row = outbox(s, "e1");
    assert_memory_equal(&row, &before, sizeof(row));
    assert_string_equal(row.token, b->claim.token);
    assert_int_equal(s->w->attempts(s->w, "e1", list, 8), attempts);
    expect_status(s, "follower", "waiting");
    run_settled(s, settle_op(s, b, SETTLE_SENT));
    expect_stale(s, settle_op(s, a, to));
    expect_status(s, "e1", "sent");
}

static void w62_stale_mark_after_takeover(void **state) {
    w62_stale(*state, SETTLE_SENT);
}

static void w63_stale_fail_after_takeover(void **state) {
    w62_stale(*state, SETTLE_FAILED);
}

static void w63_stale_release_after_takeover(void **state) {
    w62_stale(*state, SETTLE_PENDING);
}

static void w63_stale_unknown_after_takeover(void **state) {
    w62_stale(*state, SETTLE_UNKNOWN);
}

static void w63_stale_wait_after_takeover(void **state) {
    w62_stale(*state, SETTLE_WAITING);
}

static void w63_stale_cancel_after_takeover(void **state) {
    w62_stale(*state, SETTLE_CANCELLED);
}

static void w65_one_stale_row_does_not_hurt_the_others(void **state) {
    struct suite *s = *state;
    struct op *all, *op;

    put(s, "a", "a", 1);
    put(s, "b", "b", 1);
    put(s, "c", "c", 1);
    all = claim(s, 10);
    s->w->set_token(s->w, "b", "somebody else's");
    op = settle_op(s, all, SETTLE_SENT);
    run(s, op);
    assert_int_equal(op->settle.item[0].result, CSN_OK);
    assert_int_equal(op->settle.item[1].result, CSN_STALE);
    assert_int_equal(op->settle.item[2].result, CSN_OK);
    assert_int_equal(op->settle.stale, 1);
    expect_status(s, "a", "sent");
    expect_status(s, "b", "sending");
    expect_status(s, "c", "sent");
}

static void w61_a_second_mark_is_stale_and_changes_nothing(void **state) {
    struct suite *s = *state;
    struct op *op = claimed(s, "e1");
    struct outbox_row before, row;

    run_settled(s, settle_op(s, op, SETTLE_SENT));
    before = outbox(s, "e1");
    expect_stale(s, settle_op(s, op, SETTLE_FAILED));
    row = outbox(s, "e1");
    assert_memory_equal(&row, &before, sizeof(row));
}

static void w64_a_late_answer_does_not_meet_a_replay(void **state) {
    struct suite *s = *state;
    struct op *old = claimed(s, "e1"), *fresh;

    run_settled(s, settle_op(s, old, SETTLE_FAILED));
    s->w->set_status(s->w, "e1", "pending", 0);
    expect_stale(s, settle_op(s, old, SETTLE_SENT));
    fresh = claim(s, 1);
    assert_string_not_equal(fresh->claim.token, old->claim.token);
    expect_stale(s, settle_op(s, old, SETTLE_SENT));
    expect_status(s, "e1", "sending");
    run_settled(s, settle_op(s, fresh, SETTLE_SENT));
}

static void w110_a_row_that_is_not_sending_is_not_marked(void **state) {
    struct suite *s = *state;
    static const char *const status[] = {"pending", "unknown", "waiting",
                                         "failed",  "held",    "cancelled"};
    struct op *op = claimed(s, "e1");

    for (size_t i = 0; i < ARRAY_LEN(status); i++) {
        s->w->set_status(s->w, "e1", status[i], 0);
        s->w->set_token(s->w, "e1", op->claim.token); /* a replay that forgot to clear it */
        expect_stale(s, settle_op(s, op, SETTLE_SENT));
        expect_stale(s, settle_op(s, op, SETTLE_FAILED));
        expect_status(s, "e1", status[i]);
    }
}

static void w67_a_row_that_was_purged_is_stale(void **state) {
    struct suite *s = *state;
    struct op *op;

    need(s, WORLD_PURGE);
    op = claimed(s, "e1");
    s->w->purge_sent(s->w, "e1");
    expect_stale(s, settle_op(s, op, SETTLE_SENT));
    assert_int_equal(s->w->outbox_count(s->w, NULL, -1), 0);
}

/* ---- RENEW ---- */

static void w26_renew_lengthens_the_rows_of_its_token(void **state) {
    struct suite *s = *state;
    struct op *a, *b, *op;
    csn_usec before;

    put(s, "a1", "a1", 1);
    put(s, "a2", "a2", 1);
    a = claim(s, 10);
    b = claimed(s, "b1");
    before = outbox(s, "b1").lease_until;
    op = renew_op(s, a);
    run(s, op);
    assert_int_equal(op->renew.renewed, 2);
    near(s, outbox(s, "a1").lease_until, s->w->now(s->w) + 5 * MINUTE);
    assert_int_equal(outbox(s, "a1").lease_until, outbox(s, "a2").lease_until);
    assert_int_equal(outbox(s, "b1").lease_until, before);
    assert_string_equal(outbox(s, "b1").token, b->claim.token);
}

static void w28_renew_counts_only_what_is_still_mine(void **state) {
    struct suite *s = *state;
    struct op *a, *op;

    put(s, "a1", "a1", 1);
    put(s, "a2", "a2", 1);
    a = claim(s, 10);
    s->w->set_token(s->w, "a2", "somebody else's");
    op = renew_op(s, a);
    run(s, op);
    assert_int_equal(op->renew.renewed, 1);
    run(s, op = settle_op(s, a, SETTLE_SENT));
    op = renew_op(s, a);
    run(s, op);
    assert_int_equal(op->renew.renewed, 0);
    assert_int_equal(outbox(s, "a1").lease_until, 0);
}

static void w26_a_renewed_row_is_not_recovered(void **state) {
    struct suite *s = *state;
    struct op *op;

    run(s, renew_op(s, claimed(s, "e1")));
    s->w->advance(s->w, MINUTE);
    op = recover_op(s, 0);
    run(s, op);
    assert_int_equal(op->recover.expired, 0);
    expect_status(s, "e1", "sending");
}

/* ---- RECOVER ---- */

static void w22_rows_of_a_dead_owner_come_back(void **state) {
    struct suite *s = *state;
    struct outbox_row before, row;
    struct attempt_row a;
    struct op *op;

    claimed(s, "e1");
    s->w->advance(s->w, 20 * SECOND);
    claimed(s, "young");
    s->w->advance(s->w, 11 * SECOND);
    before = outbox(s, "e1");
    op = recover_op(s, 0);
    run(s, op);
    assert_int_equal(op->recover.expired, 1);
    assert_int_equal(op->recover.resent, 0);
    assert_int_equal(op->recover.released, 0);
    assert_false(op->recover.more);
    row = outbox(s, "e1");
    expect_free(&row, "pending");
    assert_int_equal(row.next_attempt_at, before.next_attempt_at);
    assert_int_equal(row.attempts, 1);
    assert_int_equal(row.failures, 0);
    assert_int_equal(row.tries, 0);
    a = only_attempt(s, "e1");
    assert_string_equal(a.side, "outbox");
    assert_string_equal(a.kind, "unanswered");
    assert_string_equal(a.error, "unknown (owner gone)");
    assert_int_equal(a.attempt, 1);
    assert_int_equal(a.started_at, before.claimed_at);
    expect_status(s, "young", "sending");
    assert_int_equal(claim(s, 1)->batch->msg[0].attempts, 2);
}

/* An attempt without an answer may have arrived: whoever finds the event expired is told. */
static void w22_what_may_have_arrived_says_so(void **state) {
    struct suite *s = *state;
    struct world_event e[] = {
        {.id = "e1", .aggregate_id = "k1", .event_type = "T", .payload = "1", .expires_in = HOUR},
        {.id = "e2", .aggregate_id = "k2", .event_type = "T", .payload = "1", .expires_in = HOUR}};
    struct op *op, *settle;

    put_event(s, &e[0]);
    put_event(s, &e[1]);
    op = claim(s, 2);
    assert_false(message_of(op->batch, "e1")->maybe_sent);
    settle = settle_op(s, op, SETTLE_PENDING);
    for (uint32_t i = 0; i < 2; i++) {
        bool unknown = text_is(op->batch->msg[settle->settle.item[i].msg].id, "e1");
        settle->settle.item[i].to = unknown ? SETTLE_UNKNOWN : SETTLE_PENDING;
        settle->settle.item[i].attempt = 1;
        settle->settle.item[i].retry_in = SECOND;
        settle->settle.item[i].code = unknown ? 3005 : 3003;
        copy_text(settle->settle.item[i].text, ERROR_TEXT_MAX, "as the code says");
    }
    run(s, settle);
    s->w->advance(s->w, 2 * SECOND);
    run(s, recover_op(s, 0));
    op = claim(s, 2);
    assert_true(message_of(op->batch, "e1")->maybe_sent);
    assert_false(message_of(op->batch, "e2")->maybe_sent); /* it was told no */
    s->w->advance(s->w, 31 * SECOND);                      /* and its owner is gone */
    run(s, recover_op(s, 0));
    assert_true(message_of(claim(s, 2)->batch, "e2")->maybe_sent);
}

/* Only the last of a key's run lets the next chunk go: were each to, chunks would lie over each other,
 * and a claim would find later ones before earlier ones. */
static void w24_followers_are_released_one_chunk_at_a_time(void **state) {
    enum { FOLLOWERS = 2500, CHUNK = 1000 };
    struct suite *s = *state;
    struct op *op, *settle;
    int parked = 0;

    put(s, "head", "k", 1);
    op = claim(s, 1);
    settle = settle_op(s, op, SETTLE_SENT);
    for (int i = 0; i < FOLLOWERS; i++) {
        char id[16];
        snprintf(id, sizeof id, "f%d", i);
        put(s, id, "k", 2 + i);
    }
    for (int i = 0; i < FOLLOWERS && parked < FOLLOWERS; i++) {
        op = claim(s, 1000);
        assert_int_equal(op->batch->n, 0);
        parked += (int)op->claim.parked;
    }
    run(s, settle);
    assert_int_equal(settle->settle.released, CHUNK);
    for (int n = 0; n < FOLLOWERS; n += (int)op->batch->n) {
        op = claim(s, 200);
        assert_true(op->batch->n > 0);
        assert_int_equal(op->claim.parked, 0);
        assert_int_equal(op->batch->msg[0].version, n + 2);
        settle = settle_op(s, op, SETTLE_SENT);
        run(s, settle);
        assert_true(settle->settle.released <= CHUNK);
    }
}

static void w102_claims_are_counted_through_crashes(void **state) {
    struct suite *s = *state;
    struct op *op;

    claimed(s, "e1");
    for (uint32_t i = 2; i <= 4; i++) {
        s->w->advance(s->w, 31 * SECOND);
        op = recover_op(s, 0);
        run(s, op);
        assert_int_equal(op->recover.expired, 1);
        assert_int_equal(claim(s, 1)->batch->msg[0].attempts, i);
    }
    assert_int_equal(last_attempt(s, "e1", 3).attempt, 3);
}

static void w31_a_lease_too_far_ahead_is_over(void **state) {
    struct suite *s = *state;
    struct op *op;

    claimed(s, "e1");
    s->w->advance(s->w, -HOUR);
    op = recover_op(s, 0);
    run(s, op);
    assert_int_equal(op->recover.expired, 1);
    expect_status(s, "e1", "pending");
}

static void rows_of_fresh_lanes_come_back_at_once(void **state) {
    struct suite *s = *state;
    struct op *op;

    claimed(s, "e1");
    op = recover_op(s, 0);
    run(s, op);
    assert_int_equal(op->recover.expired, 0);
    op = recover_op(s, s->lanes);
    run(s, op);
    assert_int_equal(op->recover.expired, 1);
    expect_status(s, "e1", "pending");
    assert_string_equal(only_attempt(s, "e1").kind, "unanswered");
}

static void unknown_rows_become_due(void **state) {
    struct suite *s = *state;
    struct op *op = settling(s, "soon", SETTLE_UNKNOWN);
    struct outbox_row row;

    op->settle.item[0].attempt = 1;
    op->settle.item[0].retry_in = MINUTE;
    run_settled(s, op);
    op = settling(s, "late", SETTLE_UNKNOWN);
    op->settle.item[0].retry_in = 5 * MINUTE;
    run_settled(s, op);
    s->w->advance(s->w, MINUTE + SECOND);
    op = recover_op(s, 0);
    run(s, op);
    assert_int_equal(op->recover.resent, 1);
    assert_int_equal(op->recover.expired, 0);
    row = outbox(s, "soon");
    expect_free(&row, "pending");
    assert_int_equal(row.tries, 1);
    expect_status(s, "late", "unknown");
    expect_ids(claim(s, 10)->batch, "soon");
}

static void w31_an_unknown_row_too_far_ahead_is_due(void **state) {
    struct suite *s = *state;
    struct op *op = settling(s, "e1", SETTLE_UNKNOWN);

    op->settle.item[0].attempt = 1;
    op->settle.item[0].retry_in = MINUTE;
    run_settled(s, op);
    s->w->advance(s->w, -HOUR);
    op = recover_op(s, 0);
    run(s, op);
    assert_int_equal(op->recover.resent, 1);
    expect_ids(claim(s, 10)->batch, "e1");
}

/* Not due only because the clock was set back; "planned" is meant so, "again" was due once. */
static void w31_rows_ahead_of_a_clock_set_back_are_due(void **state) {
    struct suite *s = *state;
    struct op *op = settling(s, "again", SETTLE_PENDING);

    run_settled(s, op);
    put(s, "fresh", "a", 1);
    put_due(s, "planned", "b", 1, MINUTE);
    s->w->advance(s->w, -HOUR);
    expect_ids(claim(s, 10)->batch, "");
    op = recover_op(s, s->lanes);
    op->recover.limit = 1;
    run(s, op);
    assert_int_equal(op->recover.drawn, 1);
    assert_true(op->recover.more);
    op = recover_op(s, s->lanes);
    run(s, op);
    assert_int_equal(op->recover.drawn, 1);
    assert_false(op->recover.more);
    near(s, outbox(s, "fresh").next_attempt_at, s->w->now(s->w));
    near(s, outbox(s, "planned").next_attempt_at, s->w->now(s->w) + HOUR + MINUTE);
    expect_ids(claim(s, 10)->batch, "again fresh");
}

static void w31_followers_ahead_of_a_clock_set_back_are_due(void **state) {
    struct suite *s = *state;
    struct op *op, *head;

    put(s, "v1", "a", 1);
    head = claim(s, 1);
    put(s, "v2", "a", 2);
    put(s, "v3", "a", 3);
    expect_ids(claim(s, 10)->batch, "");
    s->w->advance(s->w, MINUTE);
    settle(s, head, SETTLE_SENT);
    s->w->advance(s->w, -HOUR);
    op = recover_op(s, s->lanes);
    run(s, op);
    assert_int_equal(op->recover.drawn, 2);
    expect_ids(claim(s, 10)->batch, "v2 v3");
}

static void a_recovery_draws_nothing_that_is_planned(void **state) {
    struct suite *s = *state;
    struct op *op;

    put_due(s, "planned", "a", 1, MINUTE);
    op = recover_op(s, s->lanes);
    run(s, op);
    assert_int_equal(op->recover.drawn, 0);
    expect_ids(claim(s, 10)->batch, "");
}

static void wait_for_route(struct suite *s, const char *id, const char *route) {
    struct op *op = settling(s, id, SETTLE_WAITING);

    op->settle.item[0].waits_for = WAITS_ROUTE;
    op->settle.route = route;
    run_settled(s, op);
}

static void w35_open_routes_give_their_rows_back(void **state) {
    struct suite *s = *state;
    struct op *op;
    struct outbox_row row;

    wait_for_route(s, "a", "r1");
    wait_for_route(s, "b", "r10");
    wait_for_route(s, "c", "r2");
    op = recover_op(s, 0);
    run(s, op);
    assert_int_equal(op->recover.released, 0);
    op = recover_op(s, 0);
    copy_text(op->recover.open_routes, sizeof(op->recover.open_routes), "r1,r2");
    run(s, op);
    assert_int_equal(op->recover.released, 2);
    row = outbox(s, "a");
    expect_free(&row, "pending");
    assert_int_equal(row.waits_for, 0);
    expect_status(s, "b", "waiting");
    expect_status(s, "c", "pending");
    expect_ids(claim(s, 10)->batch, "a c");
}

static void routes_give_back_the_oldest_first(void **state) {
    struct suite *s = *state;
    struct op *op;

    wait_for_route(s, "a", "r1");
    wait_for_route(s, "b", "r1");
    wait_for_route(s, "c", "r1");
    op = recover_op(s, 0);
    op->recover.limit = 2;
    copy_text(op->recover.open_routes, sizeof(op->recover.open_routes), "r1");
    run(s, op);
    assert_int_equal(op->recover.released, 2);
    assert_true(op->recover.more);
    expect_status(s, "a", "pending");
    expect_status(s, "b", "pending");
    expect_status(s, "c", "waiting");
}

static void rows_that_wait_for_their_key_are_not_recovered(void **state) {
    struct suite *s = *state;
    struct op *op;

    put(s, "v1", "k", 1);
    put(s, "v2", "k", 2);
    s->w->set_status(s->w, "v1", "failed", 0);
    claim(s, 10);
    op = recover_op(s, s->lanes);
    copy_text(op->recover.open_routes, sizeof(op->recover.open_routes), "r1,");
    run(s, op);
    assert_int_equal(op->recover.released, 0);
    expect_status(s, "v2", "waiting");
}

static void a_recovery_is_bounded(void **state) {
    struct suite *s = *state;
    static const uint32_t came[] = {2, 2, 1};
    struct op *op;

    for (int i = 0; i < 5; i++) {
        char id[8];
        snprintf(id, sizeof(id), "e%d", i);
        claimed(s, id);
    }
    s->w->advance(s->w, MINUTE);
    for (size_t i = 0; i < ARRAY_LEN(came); i++) {
        op = recover_op(s, 0);
        op->recover.limit = 2;
        run(s, op);
        assert_int_equal(op->recover.expired, came[i]);
        assert_int_equal(op->recover.more, came[i] == 2);
    }
}

static void w29_a_recovery_without_the_lanes_changes_nothing(void **state) {
    struct suite *s = *state;
    struct op *op = settling(s, "unknown", SETTLE_UNKNOWN);

    op->settle.item[0].retry_in = 1;
    run_settled(s, op);
    wait_for_route(s, "route", "r1");
    claimed(s, "sending");
    s->w->advance(s->w, MINUTE);
    op = recover_op(s, s->lanes);
    copy_text(op->recover.open_routes, sizeof(op->recover.open_routes), "r1");
    copy_text(op->recover.boot, sizeof(op->recover.boot), BOOT_B);
    run(s, op);
    assert_int_equal(op->recover.expired + op->recover.resent + op->recover.released, 0);
    expect_status(s, "unknown", "unknown");
    expect_status(s, "route", "waiting");
    expect_status(s, "sending", "sending");
    s->epoch[0]++;
    op = recover_op(s, 1);
    op->recover.lanes = 1;
    run(s, op);
    assert_int_equal(op->recover.expired + op->recover.resent + op->recover.released, 0);
}

static void w22_order_holds_through_a_recovery(void **state) {
    struct suite *s = *state;
    struct op *op;

    put(s, "v1", "k", 1);
    put(s, "v2", "k", 2);
    expect_ids(claim(s, 10)->batch, "v1 v2");
    put(s, "v3", "k", 3);
    claim(s, 10);
    expect_status(s, "v3", "waiting");
    s->w->advance(s->w, MINUTE);
    run(s, recover_op(s, 0));
    op = claim(s, 10);
    expect_ids(op->batch, "v1 v2");
    settle(s, op, SETTLE_SENT);
    expect_ids(claim(s, 10)->batch, "v3");
}

const struct CMUnitTest suite_settle[] = {TEST(sent_writes_its_columns),
                                          TEST(a_temporary_fault_backs_off),
                                          TEST(the_first_fault_is_remembered),
                                          TEST(a_row_that_is_given_back_keeps_its_place),
                                          TEST(w40_no_answer_is_unknown),
                                          TEST(a_closed_route_makes_rows_wait),
                                          TEST(a_row_may_go_back_behind_its_key),
                                          TEST(nobody_waits_for_a_row_that_has_ended),
                                          TEST(the_first_of_a_key_never_waits_for_it),
                                          TEST(w53_failed_keeps_its_evidence),
                                          TEST(failed_writes_the_error_without_counting_it),
                                          TEST(expired_is_cancelled),
                                          TEST(w44_each_item_has_its_own_outcome),
                                          TEST(a_text_at_its_limit_is_kept),
                                          TEST(w62_stale_mark_after_takeover),
                                          TEST(w63_stale_fail_after_takeover),
                                          TEST(w63_stale_release_after_takeover),
                                          TEST(w63_stale_unknown_after_takeover),
                                          TEST(w63_stale_wait_after_takeover),
                                          TEST(w63_stale_cancel_after_takeover),
                                          TEST(w65_one_stale_row_does_not_hurt_the_others),
                                          TEST(w61_a_second_mark_is_stale_and_changes_nothing),
                                          TEST(w64_a_late_answer_does_not_meet_a_replay),
                                          TEST(w110_a_row_that_is_not_sending_is_not_marked),
                                          TEST(w67_a_row_that_was_purged_is_stale),
                                          TEST(w26_renew_lengthens_the_rows_of_its_token),
                                          TEST(w28_renew_counts_only_what_is_still_mine),
                                          TEST(w26_a_renewed_row_is_not_recovered),
                                          TEST(w22_rows_of_a_dead_owner_come_back),
                                          TEST(w22_what_may_have_arrived_says_so),
                                          TEST(w24_followers_are_released_one_chunk_at_a_time),
                                          TEST(w102_claims_are_counted_through_crashes),
                                          TEST(w31_a_lease_too_far_ahead_is_over),
                                          TEST(rows_of_fresh_lanes_come_back_at_once),
                                          TEST(unknown_rows_become_due),
                                          TEST(w31_an_unknown_row_too_far_ahead_is_due),
                                          TEST(w31_rows_ahead_of_a_clock_set_back_are_due),
                                          TEST(w31_followers_ahead_of_a_clock_set_back_are_due),
                                          TEST(a_recovery_draws_nothing_that_is_planned),
                                          TEST(w35_open_routes_give_their_rows_back),
                                          TEST(routes_give_back_the_oldest_first),
                                          TEST(rows_that_wait_for_their_key_are_not_recovered),
                                          TEST(a_recovery_is_bounded),
                                          TEST(w29_a_recovery_without_the_lanes_changes_nothing),
                                          TEST(w22_order_holds_through_a_recovery),
                                          TEST_END};
