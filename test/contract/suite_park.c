/* suite_park.c: PARK, and the work table: CLAIM, RENEW, RECOVER, SETTLE (give-back) of parked
 * deliveries. */
#include "test/contract/suite.h"

#include <stdio.h>

static struct key_row key(struct suite *s, const char *id) {
    struct key_row row;

    if (!s->w->key(s->w, "c", "order", id, &row))
        world_fail("key %s is not parked", id);
    return row;
}

static void expect_no_key(struct suite *s, const char *id) {
    struct key_row row;

    assert_false(s->w->key(s->w, "c", "order", id, &row));
}

static struct dead_row only_dead(struct suite *s, const char *id) {
    struct dead_row row;

    assert_int_equal(s->w->dead(s->w, "c", id, &row, 1), 1);
    return row;
}

static struct op *park_retry(struct suite *s, const char *id, const char *k, uint64_t version,
                             csn_usec retry_in) {
    struct op *op =
        park_op(s, "c", one_message(s, id, k, version, SAYS("done")), PARK_RETRY, CSN_RETRY);

    op->park.item[0].retry_in = retry_in;
    run(s, op);
    assert_int_equal(op->park.item[0].result, CSN_OK);
    return op;
}

static void park_behind(struct suite *s, const char *id, const char *k, uint64_t version) {
    park(s, "c", one_message(s, id, k, version, SAYS("done")), PARK_BEHIND, CSN_RETRY);
}

/* ---- from the broker ---- */

static void a_retry_is_kept_until_it_is_due(void **state) {
    struct suite *s = *state;
    struct batch *b = one_message(s, "e1", "k", 7, SAYS("done"));
    struct op *op;
    struct work_row row;
    struct attempt_row a;

    b->msg[0].lane = 5;
    b->msg[0].seq = 99;
    op = park_op(s, "c", b, PARK_RETRY, CSN_RETRY);
    op->park.item[0].retry_in = MINUTE;
    run(s, op);
    assert_int_equal(op->park.item[0].result, CSN_OK);
    assert_string_equal(inbox(s, "c", "e1").state, "waiting");
    assert_int_equal(strlen(inbox(s, "c", "e1").digest), 64);
    row = work(s, "c", "e1");
    assert_string_equal(row.status, "pending");
    assert_string_equal(row.token, "");
    assert_int_equal(row.waits_for, 0);
    assert_int_equal(row.version, 7);
    assert_int_equal(row.slot, 5);
    assert_int_equal(row.broker_pos, 99);
    assert_int_equal(row.failures, 1);
    assert_int_equal(row.tries, 1);
    assert_string_equal(row.last_error, "the evidence");
    assert_string_equal(row.payload, SAYS("done"));
    near(s, row.last_failed_at, s->w->now(s->w));
    assert_int_equal(row.first_failed_at, row.last_failed_at);
    assert_int_equal(row.next_attempt_at - row.last_failed_at, MINUTE);
    assert_int_equal(key(s, "k").head_version, 7);
    a = only_attempt(s, "e1");
    assert_string_equal(a.side, "inbox");
    assert_string_equal(a.kind, "parked");
    assert_string_equal(a.consumer, "c");
    assert_string_equal(a.error, "the evidence");
    assert_int_equal(a.code, 4008);
    assert_int_equal(a.at, row.last_failed_at);
}

static void an_unknown_outcome_counts_a_try_only(void **state) {
    struct suite *s = *state;
    struct op *op = park_op(s, "c", one_message(s, "e1", "k", 1, SAYS("done")), PARK_RETRY,
                            CSN_OUTCOME_UNKNOWN);

    op->park.item[0].failure = 0;
    op->park.item[0].retry_in = MINUTE;
    run(s, op);
    assert_int_equal(work(s, "c", "e1").failures, 0);
    assert_int_equal(work(s, "c", "e1").tries, 1);
    assert_int_equal(work(s, "c", "e1").first_failed_at, 0);
}

static void early_waits_for_its_predecessor(void **state) {
    struct suite *s = *state;
    struct op *op =
        park_op(s, "c", one_message(s, "e1", "k", 4, SAYS("done")), PARK_EARLY, CSN_EARLY);

    op->park.item[0].retry_in = MINUTE;
    run(s, op);
    assert_string_equal(work(s, "c", "e1").status, "pending");
    assert_int_equal(work(s, "c", "e1").waits_for, WAITS_EARLY);
    assert_int_equal(work(s, "c", "e1").failures, 0);
    near(s, work(s, "c", "e1").next_attempt_at, s->w->now(s->w) + MINUTE);
    assert_int_equal(key(s, "k").head_version, 4);
    assert_string_equal(inbox(s, "c", "e1").state, "waiting");
    s->w->advance(s->w, MINUTE + SECOND);
    expect_ids(claim_work(s, "c", 10)->batch, "e1");
}

static void behind_waits_for_its_key(void **state) {
    struct suite *s = *state;
    struct work_row row;

    park_retry(s, "e1", "k", 1, MINUTE);
    park_behind(s, "e2", "k", 2);
    row = work(s, "c", "e2");
    assert_string_equal(row.status, "waiting");
    assert_int_equal(row.waits_for, WAITS_KEY);
    assert_int_equal(row.failures, 0);
    assert_int_equal(row.tries, 0);
    assert_string_equal(inbox(s, "c", "e2").state, "waiting");
    assert_int_equal(key(s, "k").head_version, 1);
    s->w->advance(s->w, HOUR);
    expect_ids(claim_work(s, "c", 10)->batch, "e1");
}

static void behind_nobody_becomes_the_head(void **state) {
    struct suite *s = *state;
    struct op *op;

    park_behind(s, "e2", "k", 2);
    assert_string_equal(work(s, "c", "e2").status, "pending");
    assert_int_equal(work(s, "c", "e2").waits_for, 0);
    near(s, work(s, "c", "e2").next_attempt_at, s->w->now(s->w));
    assert_int_equal(key(s, "k").head_version, 2);
    op = claim_work(s, "c", 10);
    expect_ids(op->batch, "e2");
    run(s, apply_work_op(s, op));
    assert_int_equal(s->w->effects(s->w, "c", "e2"), 1);
    expect_no_key(s, "k");
}

static void behind_a_dead_one_the_batch_goes_on(void **state) {
    struct suite *s = *state;
    struct batch *b = new_batch(s);
    struct op *op;

    add_message(s, b, "e1", "k", 1, SAYS("poison"));
    add_message(s, b, "e2", "k", 2, SAYS("done"));
    add_message(s, b, "e3", "k", 3, SAYS("done"));
    op = park_op(s, "c", b, PARK_BEHIND, CSN_RETRY);
    op->park.item[0].to = PARK_DEAD;
    op->park.item[0].verdict = CSN_POISON;
    run(s, op);
    assert_string_equal(work(s, "c", "e2").status, "pending");
    assert_string_equal(work(s, "c", "e3").status, "waiting");
    for (int i = 0; i < 2; i++)
        run(s, apply_work_op(s, claim_work(s, "c", 10)));
    assert_int_equal(s->w->effects(s->w, "c", "e2") + s->w->effects(s->w, "c", "e3"), 2);
    expect_no_key(s, "k");
}

static void a_lower_version_becomes_the_head(void **state) {
    struct suite *s = *state;

    park_retry(s, "e5", "k", 5, HOUR);
    park_retry(s, "e3", "k", 3, MINUTE);
    assert_int_equal(key(s, "k").head_version, 3);
    park_behind(s, "e9", "k", 9);
    assert_int_equal(key(s, "k").head_version, 3);
}

static void parked_again_behind_a_lower_one_it_waits(void **state) {
    struct suite *s = *state;
    struct op *taken, *op;

    park_retry(s, "e5", "k", 5, 0);
    taken = claim_work(s, "c", 10);
    expect_ids(taken->batch, "e5");
    park_retry(s, "e3", "k", 3, MINUTE);
    op = park_work_op(s, taken, PARK_EARLY, CSN_EARLY);
    op->park.item[0].retry_in = SECOND;
    run(s, op);
    assert_string_equal(work(s, "c", "e5").status, "waiting");
    assert_int_equal(work(s, "c", "e5").waits_for, WAITS_KEY);
    assert_int_equal(key(s, "k").head_version, 3);
    s->w->advance(s->w, HOUR);
    for (int i = 3; i <= 5; i += 2) {
        taken = claim_work(s, "c", 10);
        expect_ids(taken->batch, i == 3 ? "e3" : "e5");
        run(s, apply_work_op(s, taken));
    }
    expect_no_key(s, "k");
}

static void a_redelivery_leaves_the_parked_row_as_it_is(void **state) {
    struct suite *s = *state;
    struct work_row before, row;
    struct op *op;

    park_retry(s, "e1", "k", 1, HOUR);
    before = work(s, "c", "e1");
    op = park_op(s, "c", one_message(s, "e1", "k", 1, SAYS("done")), PARK_RETRY, CSN_RETRY);
    op->park.item[0].retry_in = SECOND;
    run(s, op);
    row = work(s, "c", "e1");
    assert_memory_equal(&row, &before, sizeof(row));
    assert_string_equal(inbox(s, "c", "e1").state, "waiting");
}

/* ---- dead letters ---- */

static void dead(struct suite *s, csn_verdict verdict, const char *class_) {
    struct batch *b = one_message(s, "e1", "k", 7, SAYS("done"));
    struct op *op;
    struct dead_row row;

    b->msg[0].headers = bytes_of("{\"h\":\"1\"}");
    b->msg[0].attempts = 3;
    b->msg[0].failures = 2;
    b->msg[0].lane = 5;
    b->msg[0].seq = 99;
    op = park(s, "c", b, PARK_DEAD, verdict);
    assert_int_equal(op->park.item[0].result, CSN_OK);
    assert_string_equal(inbox(s, "c", "e1").state, "dead");
    row = only_dead(s, "e1");
    assert_string_equal(row.class_, class_);
    assert_string_equal(row.error, "the evidence");
    assert_string_equal(row.payload, SAYS("done"));
    assert_string_equal(row.headers, "{\"h\":\"1\"}");
    assert_string_equal(row.event_type, "OrderCreated");
    assert_string_equal(row.aggregate_id, "k");
    assert_string_equal(row.state, "open");
    assert_int_equal(row.code, 4008);
    assert_int_equal(row.version, 7);
    assert_int_equal(row.attempts, 3);
    assert_int_equal(row.failures, 3);
    assert_int_equal(row.broker_part, 5);
    assert_int_equal(row.broker_pos, 99);
    near(s, row.dead_at, s->w->now(s->w));
    assert_true(row.first_failed_at > 0 && row.first_failed_at <= row.last_failed_at);
    expect_no_work(s, "c", "e1");
    expect_no_key(s, "k");
}

static void i12_poison_keeps_everything(void **state) {
    dead(*state, CSN_POISON, "poison");
}

static void i12_a_spent_budget_keeps_everything(void **state) {
    dead(*state, CSN_RETRY, "budget");
}

static void i12_an_unknown_outcome_ends_as_budget(void **state) {
    dead(*state, CSN_OUTCOME_UNKNOWN, "budget");
}

static void a_new_conflict_is_set_aside(void **state) {
    struct suite *s = *state;

    park(s, "c", one_message(s, "e1", "k", 1, SAYS("conflict")), PARK_CONFLICT, CSN_CONFLICT);
    assert_string_equal(inbox(s, "c", "e1").state, "conflict");
    assert_string_equal(only_dead(s, "e1").class_, "conflict");
    expect_no_work(s, "c", "e1");
    expect_no_key(s, "k");
}

static void w87_a_conflict_leaves_the_finished_one_alone(void **state) {
    struct suite *s = *state;
    struct inbox_row before, row;

    apply(s, "c", one_message(s, "e1", "k", 1, SAYS("done")));
    before = inbox(s, "c", "e1");
    park(s, "c", one_message(s, "e1", "k", 1, SAYS("refused")), PARK_CONFLICT, CSN_CONFLICT);
    row = inbox(s, "c", "e1");
    assert_string_equal(row.state, "done");
    assert_string_equal(row.verdict, "done");
    assert_string_equal(row.digest, before.digest);
    assert_string_equal(row.error, "the evidence");
    assert_string_equal(only_dead(s, "e1").payload, SAYS("refused"));
    assert_int_equal(s->w->effects(s->w, "c", "e1"), 1);
}

static void w68_the_same_letter_may_come_twice(void **state) {
    struct suite *s = *state;

    park(s, "c", one_message(s, "e1", "k", 1, SAYS("conflict")), PARK_CONFLICT, CSN_CONFLICT);
    park(s, "c", one_message(s, "e1", "k", 1, SAYS("conflict")), PARK_CONFLICT, CSN_CONFLICT);
    only_dead(s, "e1");
    park(s, "c", one_message(s, "e2", "k", 2, SAYS("poison")), PARK_DEAD, CSN_POISON);
    park(s, "c", one_message(s, "e2", "k", 2, SAYS("poison")), PARK_DEAD, CSN_POISON);
    only_dead(s, "e2");
}

static void w94_a_dead_letter_does_not_hold_its_key(void **state) {
    struct suite *s = *state;
    struct op *op;

    park(s, "c", one_message(s, "e1", "k", 1, SAYS("poison")), PARK_DEAD, CSN_POISON);
    op = apply(s, "c", one_message(s, "e2", "k", 2, SAYS("done")));
    assert_int_equal(op->apply.item[0].out, APPLY_VERDICT);
    assert_int_equal(s->w->effects(s->w, "c", "e2"), 1);
}

static void a_batch_may_hold_every_kind(void **state) {
    struct suite *s = *state;
    struct batch *b = new_batch(s);
    struct op *op;

    add_message(s, b, "retry", "k1", 1, SAYS("done"));
    add_message(s, b, "behind", "k1", 2, SAYS("done"));
    add_message(s, b, "early", "k2", 2, SAYS("done"));
    add_message(s, b, "dead", "k3", 1, SAYS("done"));
    add_message(s, b, "conflict", "k4", 1, SAYS("done"));
    op = park_op(s, "c", b, PARK_RETRY, CSN_RETRY);
    for (uint32_t i = 0; i < 5; i++)
        op->park.item[i].to =
            (uint8_t[]){PARK_RETRY, PARK_BEHIND, PARK_EARLY, PARK_DEAD, PARK_CONFLICT}[i];
    op->park.item[3].verdict = CSN_POISON;
    op->park.item[4].verdict = CSN_CONFLICT;
    run(s, op);
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(op->park.item[i].result, CSN_OK);
    assert_string_equal(work(s, "c", "behind").status, "waiting");
    assert_string_equal(inbox(s, "c", "early").state, "waiting");
    assert_string_equal(inbox(s, "c", "dead").state, "dead");
    assert_string_equal(inbox(s, "c", "conflict").state, "conflict");
}

/* ---- from the work table ---- */

static void faults_of_parked_work_add_up(void **state) {
    struct suite *s = *state;
    struct op *taken, *op;
    struct work_row row;

    park_retry(s, "e1", "k", 1, SECOND);
    for (uint32_t n = 2; n <= 4; n++) {
        s->w->advance(s->w, 10 * SECOND);
        taken = claim_work(s, "c", 10);
        expect_ids(taken->batch, "e1");
        assert_int_equal(taken->batch->msg[0].failures, n - 1);
        assert_int_equal(taken->batch->msg[0].tries, n - 1);
        near(s, taken->batch->msg[0].failing_for, (csn_usec)(n - 1) * 10 * SECOND);
        op = park_work_op(s, taken, PARK_RETRY, CSN_RETRY);
        op->park.item[0].retry_in = SECOND;
        run(s, op);
        assert_int_equal(op->park.item[0].result, CSN_OK);
        row = work(s, "c", "e1");
        assert_string_equal(row.status, "pending");
        assert_string_equal(row.token, "");
        assert_int_equal(row.lease_until, 0);
        assert_int_equal(row.failures, n);
        assert_int_equal(row.tries, n);
        assert_int_equal(row.next_attempt_at - row.last_failed_at, SECOND);
        near(s, row.last_failed_at - row.first_failed_at, (csn_usec)(n - 1) * 10 * SECOND);
        last_attempt(s, "e1", n);
    }
    assert_int_equal(key(s, "k").head_version, 1);
}

static void w63_a_stale_park_changes_nothing(void **state) {
    struct suite *s = *state;
    struct op *taken, *op;
    struct work_row before, row;
    uint8_t to[] = {PARK_RETRY, PARK_EARLY, PARK_BEHIND, PARK_DEAD, PARK_CONFLICT};

    park_retry(s, "e1", "k", 1, SECOND);
    s->w->advance(s->w, 10 * SECOND);
    taken = claim_work(s, "c", 10);
    before = work(s, "c", "e1");
    for (size_t i = 0; i < ARRAY_LEN(to); i++) {
        struct dead_row none;

        op = park_work_op(s, taken, to[i], CSN_POISON);
        new_token(s, op->park.token);
        run(s, op);
        assert_int_equal(op->park.item[0].result, CSN_STALE);
        row = work(s, "c", "e1");
        assert_memory_equal(&row, &before, sizeof(row));
        assert_string_equal(inbox(s, "c", "e1").state, "waiting");
        assert_int_equal(s->w->dead(s->w, "c", "e1", &none, 1), 0);
        only_attempt(s, "e1");
    }
}

static void parked_work_that_dies_releases_its_key(void **state) {
    struct suite *s = *state;
    struct op *taken, *op;

    park_retry(s, "e1", "k", 1, SECOND);
    park_behind(s, "e3", "k", 3);
    park_behind(s, "e2", "k", 2);
    s->w->advance(s->w, 10 * SECOND);
    taken = claim_work(s, "c", 10);
    op = park_work_op(s, taken, PARK_DEAD, CSN_RETRY);
    run(s, op);
    assert_int_equal(op->park.item[0].result, CSN_OK);
    expect_no_work(s, "c", "e1");
    assert_string_equal(inbox(s, "c", "e1").state, "dead");
    assert_string_equal(only_dead(s, "e1").class_, "budget");
    assert_int_equal(only_dead(s, "e1").failures, 2);
    assert_string_equal(work(s, "c", "e2").status, "pending");
    assert_string_equal(work(s, "c", "e3").status, "waiting");
    assert_int_equal(key(s, "k").head_version, 2);
    taken = claim_work(s, "c", 10);
    expect_ids(taken->batch, "e2");
    run(s, park_work_op(s, taken, PARK_CONFLICT, CSN_CONFLICT));
    assert_string_equal(inbox(s, "c", "e2").state, "conflict");
    taken = claim_work(s, "c", 10);
    expect_ids(taken->batch, "e3");
    run(s, park_work_op(s, taken, PARK_DEAD, CSN_POISON));
    expect_no_key(s, "k");
}

static void ties_of_parked_versions_go_by_arrival(void **state) {
    struct suite *s = *state;
    struct op *taken;

    park_retry(s, "e1", "k", 1, SECOND);
    park_behind(s, "first", "k", 2);
    park_behind(s, "second", "k", 2);
    s->w->advance(s->w, 10 * SECOND);
    run(s, apply_work_op(s, claim_work(s, "c", 10)));
    taken = claim_work(s, "c", 10);
    expect_ids(taken->batch, "first");
    run(s, apply_work_op(s, taken));
    expect_ids(claim_work(s, "c", 10)->batch, "second");
}

/* ---- CLAIM, RENEW, RECOVER, SETTLE of the work table ---- */

static void parked_work_is_claimed_when_due(void **state) {
    struct suite *s = *state;
    struct op *op;
    struct work_row row;

    park_retry(s, "late", "k1", 1, 3 * SECOND);
    park_retry(s, "soon", "k2", 1, SECOND);
    park_retry(s, "never", "k3", 1, HOUR / 10);
    assert_int_equal(claim_work(s, "c", 10)->batch->n, 0);
    s->w->advance(s->w, 4 * SECOND);
    assert_int_equal(claim_work(s, "other", 10)->batch->n, 0);
    op = claim_work(s, "c", 10);
    expect_ids(op->batch, "soon late");
    row = work(s, "c", "soon");
    assert_string_equal(row.status, "sending");
    assert_string_equal(row.token, op->claim.token);
    assert_int_equal(row.lease_until - row.claimed_at, 30 * SECOND);
    assert_int_equal(row.attempts, (int64_t)op->batch->msg[0].attempts);
    assert_int_equal(op->claim.lost, 0);
}

static void parked_work_brings_the_whole_message(void **state) {
    struct suite *s = *state;
    struct batch *b = one_message(s, "e1", "k", 7, SAYS("done"));
    struct message *m = b->msg;
    const struct message *got;
    struct op *op;

    m->schema_version = 3;
    m->prev_version = 6;
    m->lane = 5;
    m->priority = 4;
    m->age = MINUTE;
    m->expires_in = HOUR;
    m->headers = bytes_of("{\"h\":\"1\"}");
    m->traceparent = bytes_of("00-aa-bb-01");
    m->correlation_id = bytes_of("corr");
    m->causation_id = bytes_of("cause");
    m->tenant = bytes_of("tenant");
    op = park_op(s, "c", b, PARK_RETRY, CSN_RETRY);
    op->park.item[0].retry_in = 1;
    op->park.ago = 10 * SECOND;
    run(s, op);
    s->w->advance(s->w, SECOND);
    got = message_of(claim_work(s, "c", 10)->batch, "e1");
    assert_true(text_is(got->aggregate_type, "order") && text_is(got->aggregate_id, "k"));
    assert_true(text_is(got->event_type, "OrderCreated") && text_is(got->payload, SAYS("done")));
    assert_true(text_is(got->headers, "{\"h\":\"1\"}") && text_is(got->traceparent, "00-aa-bb-01"));
    assert_true(text_is(got->correlation_id, "corr") && text_is(got->causation_id, "cause"));
    assert_true(text_is(got->tenant, "tenant"));
    assert_int_equal(got->version, 7);
    assert_int_equal(got->prev_version, 6);
    assert_int_equal(got->schema_version, 3);
    assert_int_equal(got->priority, 4);
    assert_int_equal(got->lane, 5);
    near(s, got->expires_in, HOUR - 11 * SECOND);
}

static void the_limit_of_parked_work_holds(void **state) {
    struct suite *s = *state;
    struct op *op;

    park_retry(s, "e1", "k1", 1, 1);
    park_retry(s, "e2", "k2", 1, 2);
    park_retry(s, "e3", "k3", 1, 3);
    s->w->advance(s->w, SECOND);
    op = claim_work(s, "c", 2);
    expect_ids(op->batch, "e1 e2");
    assert_true(op->claim.more);
    op = claim_work(s, "c", 2);
    expect_ids(op->batch, "e3");
    assert_false(op->claim.more);
}

static void only_the_slots_asked_for_are_claimed(void **state) {
    struct suite *s = *state;
    struct batch *b = new_batch(s);
    struct op *op;

    add_message(s, b, "e1", "k1", 1, SAYS("done"))->lane = 3;
    add_message(s, b, "e2", "k2", 1, SAYS("done"))->lane = 4;
    op = park_op(s, "c", b, PARK_RETRY, CSN_RETRY);
    op->park.item[0].retry_in = op->park.item[1].retry_in = 1;
    run(s, op);
    s->w->advance(s->w, SECOND);
    op = claim_work_op(s, "c", 10);
    op->claim.lanes = UINT64_C(1) << 4;
    run(s, op);
    expect_ids(op->batch, "e2");
}

static struct op *recover_work(struct suite *s) {
    struct op *op = recover_op(s, 0);

    op->recover.table = TABLE_WORK;
    op->recover.lane_name[0] = 0;
    op->recover.lanes = UINT64_MAX;
    op->recover.epoch = NULL;
    copy_text(op->recover.consumer, sizeof(op->recover.consumer), "c");
    run(s, op);
    return op;
}

static void w22_parked_work_of_a_dead_worker_comes_back(void **state) {
    struct suite *s = *state;

    park_retry(s, "e1", "k", 1, SECOND);
    s->w->advance(s->w, 2 * SECOND);
    claim_work(s, "c", 10);
    assert_int_equal(recover_work(s)->recover.expired, 0);
    s->w->advance(s->w, 31 * SECOND);
    assert_int_equal(recover_work(s)->recover.expired, 1);
    assert_string_equal(work(s, "c", "e1").status, "pending");
    assert_string_equal(work(s, "c", "e1").token, "");
    assert_string_equal(last_attempt(s, "e1", 2).side, "inbox");
    assert_string_equal(last_attempt(s, "e1", 2).kind, "unanswered");
    expect_ids(claim_work(s, "c", 10)->batch, "e1");
}

static void w31_a_new_head_ahead_of_a_clock_set_back_is_due(void **state) {
    struct suite *s = *state;

    park_retry(s, "backs-off", "k", 1, MINUTE);
    park_behind(s, "head", "l", 1);
    s->w->advance(s->w, -HOUR);
    assert_int_equal(recover_work(s)->recover.drawn, 1);
    assert_int_equal(recover_work(s)->recover.drawn, 0);
    near(s, work(s, "c", "head").next_attempt_at, s->w->now(s->w));
}

static void w26_parked_work_is_renewed(void **state) {
    struct suite *s = *state;
    struct op *op;

    park_retry(s, "e1", "k", 1, SECOND);
    s->w->advance(s->w, 2 * SECOND);
    op = renew_op(s, claim_work(s, "c", 10));
    run(s, op);
    assert_int_equal(op->renew.renewed, 1);
    near(s, work(s, "c", "e1").lease_until, s->w->now(s->w) + 5 * MINUTE);
    s->w->advance(s->w, MINUTE);
    assert_int_equal(recover_work(s)->recover.expired, 0);
}

static void parked_work_may_be_given_back(void **state) {
    struct suite *s = *state;
    struct work_row before, row;
    struct op *taken, *op;

    park_retry(s, "e1", "k", 1, SECOND);
    s->w->advance(s->w, 2 * SECOND);
    before = work(s, "c", "e1");
    taken = claim_work(s, "c", 10);
    op = settle_op(s, taken, SETTLE_PENDING);
    run(s, op);
    assert_int_equal(op->settle.item[0].result, CSN_OK);
    row = work(s, "c", "e1");
    assert_string_equal(row.status, "pending");
    assert_string_equal(row.token, "");
    assert_int_equal(row.next_attempt_at, before.next_attempt_at);
    assert_int_equal(row.failures, before.failures);
    assert_int_equal(row.tries, before.tries);
    run(s, op = settle_op(s, taken, SETTLE_PENDING));
    assert_int_equal(op->settle.item[0].result, CSN_STALE);
    expect_ids(claim_work(s, "c", 10)->batch, "e1");
}

static void w31_parked_work_beyond_the_longest_backoff_is_due(void **state) {
    struct suite *s = *state;

    park_retry(s, "e1", "k", 1, MINUTE);
    s->w->advance(s->w, -HOUR);
    expect_ids(claim_work(s, "c", 10)->batch, "e1");
}

const struct CMUnitTest suite_park[] = {TEST(a_retry_is_kept_until_it_is_due),
                                        TEST(an_unknown_outcome_counts_a_try_only),
                                        TEST(early_waits_for_its_predecessor),
                                        TEST(behind_waits_for_its_key),
                                        TEST(behind_nobody_becomes_the_head),
                                        TEST(behind_a_dead_one_the_batch_goes_on),
                                        TEST(a_lower_version_becomes_the_head),
                                        TEST(parked_again_behind_a_lower_one_it_waits),
                                        TEST(a_redelivery_leaves_the_parked_row_as_it_is),
                                        TEST(i12_poison_keeps_everything),
                                        TEST(i12_a_spent_budget_keeps_everything),
                                        TEST(i12_an_unknown_outcome_ends_as_budget),
                                        TEST(a_new_conflict_is_set_aside),
                                        TEST(w87_a_conflict_leaves_the_finished_one_alone),
                                        TEST(w68_the_same_letter_may_come_twice),
                                        TEST(w94_a_dead_letter_does_not_hold_its_key),
                                        TEST(a_batch_may_hold_every_kind),
                                        TEST(faults_of_parked_work_add_up),
                                        TEST(w63_a_stale_park_changes_nothing),
                                        TEST(parked_work_that_dies_releases_its_key),
                                        TEST(ties_of_parked_versions_go_by_arrival),
                                        TEST(parked_work_is_claimed_when_due),
                                        TEST(parked_work_brings_the_whole_message),
                                        TEST(the_limit_of_parked_work_holds),
                                        TEST(only_the_slots_asked_for_are_claimed),
                                        TEST(w22_parked_work_of_a_dead_worker_comes_back),
                                        TEST(w26_parked_work_is_renewed),
                                        TEST(w31_a_new_head_ahead_of_a_clock_set_back_is_due),
                                        TEST(parked_work_may_be_given_back),
                                        TEST(w31_parked_work_beyond_the_longest_backoff_is_due),
                                        TEST_END};
