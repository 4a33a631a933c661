/* suite_apply.c: APPLY: verdicts, duplicates, conflicts, keys that are parked, the work table as a
 * source, the fence round the batch. The handler leaves one effect per event that it commits. */
#include "test/contract/suite.h"

#include <pthread.h>
#include <stdio.h>

static int64_t effects(struct suite *s, const char *id) {
    return s->w->effects(s->w, "c", id);
}

static uint32_t results(struct suite *s, const char *id) {
    struct result_row row;

    return s->w->results(s->w, id, &row, 1);
}

static struct apply_item *apply_one(struct suite *s, const char *id, const char *payload) {
    return apply(s, "c", one_message(s, id, "k", 1, payload))->apply.item;
}

static void expect_out(const struct op *op, uint32_t i, enum apply_out out) {
    if (op->apply.item[i].out != out)
        world_fail("item %u: out %d, not %d (verdict %d, CSN-%d %s)", i, op->apply.item[i].out,
                   (int)out, (int)op->apply.item[i].verdict, (int)op->apply.item[i].code,
                   op->apply.item[i].text);
}

/* ---- verdicts ---- */

static void i7_done_writes_inbox_and_effect(void **state) {
    struct suite *s = *state;
    struct batch *b = one_message(s, "e1", "k", 3, SAYS("done"));
    struct inbox_row row;
    struct op *op;

    b->msg[0].lane = 5;
    b->msg[0].seq = 99;
    op = apply(s, "c", b);
    expect_out(op, 0, APPLY_VERDICT);
    assert_int_equal(op->apply.item[0].verdict, CSN_DONE);
    row = inbox(s, "c", "e1");
    assert_string_equal(row.state, "done");
    assert_string_equal(row.verdict, "done");
    assert_int_equal(strlen(row.digest), 64);
    assert_string_equal(row.aggregate_type, "order");
    assert_string_equal(row.aggregate_id, "k");
    assert_string_equal(row.event_type, "OrderCreated");
    assert_int_equal(row.entity_version, 3);
    assert_int_equal(row.attempts, 1);
    assert_int_equal(row.duplicates, 0);
    assert_int_equal(row.broker_part, 5);
    assert_int_equal(row.broker_pos, 99);
    near(s, row.received_at, s->w->now(s->w));
    near(s, row.processed_at, s->w->now(s->w));
    assert_int_equal(effects(s, "e1"), 1);
    assert_int_equal(op->apply.emitted, 0);
}

static void committed(struct suite *s, const char *payload, csn_verdict verdict, const char *st) {
    struct op *op = apply(s, "c", one_message(s, "e1", "k", 1, payload));

    expect_out(op, 0, APPLY_VERDICT);
    assert_int_equal(op->apply.item[0].verdict, verdict);
    assert_string_equal(inbox(s, "c", "e1").state, st);
    assert_string_equal(inbox(s, "c", "e1").verdict, verdict_name(verdict));
    assert_int_equal(effects(s, "e1"), 1);
    assert_int_equal(results(s, "e1"), 1);
    assert_int_equal(op->apply.emitted, 1);
    assert_int_equal(apply_one(s, "e1", payload)->out, APPLY_SEEN);
    assert_int_equal(effects(s, "e1"), 1);
    assert_int_equal(results(s, "e1"), 1);
}

static void a_refusal_commits(void **state) {
    committed(*state, SAYS_EMIT("refused"), CSN_REFUSED, "refused");
}

static void a_duplicate_commits(void **state) {
    committed(*state, SAYS_EMIT("duplicate"), CSN_DUPLICATE, "done");
}

static void late_commits(void **state) {
    committed(*state, SAYS_EMIT("late"), CSN_LATE, "done");
}

static void w84_done_emits_once(void **state) {
    committed(*state, SAYS_EMIT("done"), CSN_DONE, "done");
}

static void w85_rolled_back(struct suite *s, const char *payload, csn_verdict verdict,
                            int32_t code) {
    for (int i = 0; i < 2; i++) {
        struct op *op = apply(s, "c", one_message(s, "e1", "k", 1, payload));

        expect_out(op, 0, APPLY_VERDICT);
        assert_int_equal(op->apply.item[0].verdict, verdict);
        assert_int_equal(op->apply.item[0].code, code);
        expect_no_inbox(s, "c", "e1");
        assert_int_equal(effects(s, "e1"), 0);
        assert_int_equal(results(s, "e1"), 0);
        assert_int_equal(op->apply.emitted, 0);
    }
}

static void w85_early_leaves_nothing(void **state) {
    w85_rolled_back(*state, SAYS_EMIT("early"), CSN_EARLY, 4010);
}

static void w85_conflict_leaves_nothing(void **state) {
    w85_rolled_back(*state, SAYS_EMIT("conflict"), CSN_CONFLICT, 4007);
}

static void w85_poison_leaves_nothing(void **state) {
    w85_rolled_back(*state, SAYS_EMIT("poison"), CSN_POISON, 4006);
}

static void w85_retry_leaves_nothing(void **state) {
    w85_rolled_back(*state, SAYS_EMIT("retry"), CSN_RETRY, 4008);
}

static void w85_unknown_leaves_nothing(void **state) {
    w85_rolled_back(*state, SAYS_EMIT("unknown"), CSN_OUTCOME_UNKNOWN, 4009);
}

static void w91_a_statement_that_fails_is_a_retry(void **state) {
    struct suite *s = *state;
    struct batch *b = new_batch(s);
    struct op *op;

    need(s, WORLD_SQL_HANDLER);
    add_message(s, b, "e1", "k1", 1, SAYS_EMIT("done"));
    add_message(s, b, "e2", "k2", 1, SAYS_EMIT("break"));
    add_message(s, b, "e3", "k3", 1, SAYS_EMIT("done"));
    op = apply(s, "c", b);
    assert_int_equal(op->apply.item[0].verdict, CSN_DONE);
    expect_out(op, 1, APPLY_VERDICT);
    assert_int_equal(op->apply.item[1].verdict, CSN_RETRY);
    assert_int_equal(op->apply.item[1].code, 4002);
    assert_non_null(strstr(op->apply.item[1].text, "not_broken"));
    assert_int_equal(op->apply.item[2].verdict, CSN_DONE);
    expect_no_inbox(s, "c", "e2");
    assert_int_equal(effects(s, "e1") + effects(s, "e3"), 2);
    assert_int_equal(op->apply.emitted, 2);
}

static void a_payload_without_the_field_is_poison(void **state) {
    struct suite *s = *state;
    struct apply_item *it;

    need(s, WORLD_SQL_HANDLER);
    it = apply_one(s, "e1", "{\"emit\":0}");
    assert_int_equal(it->out, APPLY_VERDICT);
    assert_int_equal(it->verdict, CSN_POISON);
    assert_int_equal(it->code, 4003);
    it = apply_one(s, "e2", "{\"emit\":");
    assert_int_equal(it->verdict, CSN_POISON);
    assert_int_equal(it->code, 4004);
    expect_no_inbox(s, "c", "e1");
    expect_no_inbox(s, "c", "e2");
}

static csn_verdict refuse_all(const struct message *m, void *arg) {
    ++*(int *)arg;
    return bytes_is(m->id, "e2") ? CSN_RETRY : CSN_REFUSED;
}

static void a_handler_may_be_a_function(void **state) {
    struct suite *s = *state;
    struct batch *b = new_batch(s);
    int calls = 0;
    struct handler h = {.function = refuse_all, .arg = &calls};
    struct op *op;

    need(s, WORLD_FUNCTION);
    add_message(s, b, "e1", "k1", 1, "{}");
    add_message(s, b, "e2", "k2", 1, "{}");
    op = apply_op(s, "c", b);
    op->apply.handler = &h;
    run(s, op);
    assert_int_equal(calls, 2);
    assert_int_equal(op->apply.item[0].verdict, CSN_REFUSED);
    assert_string_equal(inbox(s, "c", "e1").state, "refused");
    assert_int_equal(op->apply.item[1].verdict, CSN_RETRY);
    expect_no_inbox(s, "c", "e2");
}

static void an_expired_item_is_late_without_running(void **state) {
    struct suite *s = *state;
    struct batch *b = one_message(s, "e1", "k", 1, SAYS_EMIT("done"));
    struct op *op;

    for (int i = 0; i < 2; i++) {
        op = apply_op(s, "c", b);
        op->apply.item[0].expired = true;
        run(s, op);
        expect_out(op, 0, i == 0 ? APPLY_VERDICT : APPLY_SEEN);
        assert_string_equal(inbox(s, "c", "e1").state, "done");
        assert_string_equal(inbox(s, "c", "e1").verdict, "late");
        assert_int_equal(effects(s, "e1"), 0);
        assert_int_equal(results(s, "e1"), 0);
        if (i == 0) {
            assert_int_equal(op->apply.item[0].verdict, CSN_LATE);
            assert_int_equal(op->apply.item[0].code, 3009);
        }
    }
}

static void an_expired_item_that_was_done_is_seen(void **state) {
    struct suite *s = *state;
    struct op *op;

    apply_one(s, "e1", SAYS("done"));
    op = apply_op(s, "c", one_message(s, "e1", "k", 1, SAYS("done")));
    op->apply.item[0].expired = true;
    run(s, op);
    expect_out(op, 0, APPLY_SEEN);
    assert_string_equal(inbox(s, "c", "e1").verdict, "done");
    assert_int_equal(effects(s, "e1"), 1);
}

/* ---- result events ---- */

static void a_result_event_hands_its_context_on(void **state) {
    struct suite *s = *state;
    struct batch *b = one_message(s, "e1", "k", 1, SAYS_EMIT("done"));
    struct result_row row;

    b->msg[0].correlation_id = bytes_of("corr");
    b->msg[0].traceparent = bytes_of("00-aa-bb-01");
    apply(s, "c", b);
    assert_int_equal(s->w->results(s->w, "e1", &row, 1), 1);
    assert_string_equal(row.event_type, "ScriptDone");
    assert_string_equal(row.aggregate_type, "script");
    assert_string_equal(row.aggregate_id, "k");
    assert_string_equal(row.correlation_id, "corr");
    assert_string_equal(row.traceparent, "00-aa-bb-01");
    assert_true(strlen(row.id) >= 1 && strlen(row.id) <= OUTBOX_ID_MAX);
    assert_int_equal(row.version, 1);
    assert_non_null(strstr(row.payload, "\"e1\""));
    expect_ids(claim(s, 10)->batch, row.id);
}

static void w10_result_events_draw_versions(void **state) {
    struct suite *s = *state;
    struct batch *b = new_batch(s);
    struct result_row first, second, third;

    add_message(s, b, "e1", "k", 1, SAYS_EMIT("done"));
    add_message(s, b, "e2", "k", 2, SAYS_EMIT("done"));
    add_message(s, b, "e3", "other", 1, SAYS_EMIT("done"));
    assert_int_equal(apply(s, "c", b)->apply.emitted, 3);
    s->w->results(s->w, "e1", &first, 1);
    s->w->results(s->w, "e2", &second, 1);
    s->w->results(s->w, "e3", &third, 1);
    assert_int_equal(first.version, 1);
    assert_int_equal(second.version, 2);
    assert_int_equal(third.version, 1);
    assert_string_not_equal(first.id, second.id);
}

static void a_rolled_back_version_is_drawn_again(void **state) {
    struct suite *s = *state;
    struct result_row row;

    apply(s, "c", one_message(s, "e1", "k", 1, SAYS_EMIT("retry")));
    apply(s, "c", one_message(s, "e1", "k", 1, SAYS_EMIT("done")));
    assert_int_equal(s->w->results(s->w, "e1", &row, 1), 1);
    assert_int_equal(row.version, 1);
}

/* ---- duplicates ---- */

static void w68_the_effect_comes_once(void **state) {
    struct suite *s = *state;
    struct inbox_row row;

    apply_one(s, "e1", SAYS("done"));
    for (int i = 1; i <= 3; i++) {
        assert_int_equal(apply_one(s, "e1", SAYS("done"))->out, APPLY_SEEN);
        row = inbox(s, "c", "e1");
        assert_int_equal(row.duplicates, i);
        assert_string_equal(row.state, "done");
        assert_int_equal(row.attempts, 1);
        near(s, row.last_duplicate_at, s->w->now(s->w));
    }
    assert_int_equal(effects(s, "e1"), 1);
}

static void w68_twice_in_one_batch(void **state) {
    struct suite *s = *state;
    struct batch *b = new_batch(s);
    struct op *op;

    add_message(s, b, "e1", "k", 1, SAYS("done"));
    add_message(s, b, "e1", "k", 1, SAYS("done"));
    op = apply(s, "c", b);
    expect_out(op, 0, APPLY_VERDICT);
    expect_out(op, 1, APPLY_SEEN);
    assert_int_equal(effects(s, "e1"), 1);
}

static void consumers_do_not_know_each_other(void **state) {
    struct suite *s = *state;

    apply_one(s, "e1", SAYS("done"));
    assert_int_equal(apply(s, "d", one_message(s, "e1", "k", 1, SAYS("done")))->apply.item[0].out,
                     APPLY_VERDICT);
    assert_int_equal(s->w->effects(s->w, "d", "e1"), 1);
    assert_int_equal(inbox(s, "c", "e1").duplicates, 0);
}

static void w14_ids_are_compared_byte_by_byte(void **state) {
    struct suite *s = *state;

    apply_one(s, "e1", SAYS("done"));
    assert_int_equal(apply_one(s, "E1", SAYS("done"))->out, APPLY_VERDICT);
    assert_int_equal(apply_one(s, "e1 ", SAYS("done"))->out, APPLY_VERDICT);
    assert_int_equal(apply_one(s, "e", SAYS("done"))->out, APPLY_VERDICT);
}

static void m30_an_id_of_128_bytes_is_kept_whole(void **state) {
    struct suite *s = *state;
    char id[ID_MAX + 1];

    memset(id, 'i', ID_MAX);
    id[ID_MAX] = 0;
    assert_int_equal(apply_one(s, id, SAYS("done"))->out, APPLY_VERDICT);
    assert_int_equal(apply_one(s, id, SAYS("done"))->out, APPLY_SEEN);
    id[ID_MAX - 1] = 'j';
    assert_int_equal(apply_one(s, id, SAYS("done"))->out, APPLY_VERDICT);
}

struct racer {
    struct port *port;
    struct op *op[30];
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

static void w80_two_connections_one_id(void **state) {
    struct suite *s = *state;
    struct racer r[2];
    pthread_t thread[2];
    char id[12];

    need(s, WORLD_THREADS);
    for (size_t t = 0; t < 2; t++) {
        r[t].port = another_port(s, ROLE_APPLY);
        for (size_t i = 0; i < ARRAY_LEN(r[t].op); i++) {
            snprintf(id, sizeof(id), "e%zu", i);
            r[t].op[i] = apply_op(s, "c", one_message(s, id, id, 1, SAYS_EMIT("done")));
        }
    }
    for (size_t t = 0; t < 2; t++)
        assert_int_equal(pthread_create(&thread[t], NULL, race, &r[t]), 0);
    for (size_t t = 0; t < 2; t++) {
        void *finished;
        pthread_join(thread[t], &finished);
        assert_ptr_equal(finished, &r[t]);
    }
    for (size_t i = 0; i < ARRAY_LEN(r[0].op); i++) {
        snprintf(id, sizeof(id), "e%zu", i);
        assert_int_equal(r[0].op[i]->result.status, CSN_OK);
        assert_int_equal(r[1].op[i]->result.status, CSN_OK);
        assert_int_equal(r[0].op[i]->apply.item[0].out + r[1].op[i]->apply.item[0].out,
                         APPLY_VERDICT + APPLY_SEEN);
        assert_int_equal(effects(s, id), 1);
        assert_int_equal(results(s, id), 1);
        assert_int_equal(inbox(s, "c", id).duplicates, 1);
    }
}

static void w80_two_connections_one_after_the_other(void **state) {
    struct suite *s = *state;
    struct op *op = apply_op(s, "c", one_message(s, "e1", "k", 1, SAYS("done")));

    apply_one(s, "e1", SAYS("done"));
    run_on(s, another_port(s, ROLE_APPLY), op);
    expect_out(op, 0, APPLY_SEEN);
    assert_int_equal(effects(s, "e1"), 1);
}

/* ---- conflicts, and what is set aside ---- */

static void w75_another_content_is_a_mismatch(void **state) {
    struct suite *s = *state;
    struct batch *b;

    apply_one(s, "e1", SAYS("done"));
    assert_int_equal(apply_one(s, "e1", SAYS("refused"))->out, APPLY_MISMATCH);
    b = one_message(s, "e1", "k2", 1, SAYS("done"));
    assert_int_equal(apply(s, "c", b)->apply.item[0].out, APPLY_MISMATCH);
    b = one_message(s, "e1", "k", 1, SAYS("done"));
    b->msg[0].event_type = bytes_of("Other");
    assert_int_equal(apply(s, "c", b)->apply.item[0].out, APPLY_MISMATCH);
    b = one_message(s, "e1", "k", 1, SAYS("done"));
    b->msg[0].schema_version = 2;
    assert_int_equal(apply(s, "c", b)->apply.item[0].out, APPLY_MISMATCH);
    assert_string_equal(inbox(s, "c", "e1").state, "done");
    assert_int_equal(inbox(s, "c", "e1").duplicates, 4);
    assert_int_equal(effects(s, "e1"), 1);
    assert_int_equal(apply_one(s, "e1", SAYS("done"))->out, APPLY_SEEN);
}

static void where_it_came_from_is_no_content(void **state) {
    struct suite *s = *state;
    struct batch *b = one_message(s, "e1", "k", 1, SAYS("done"));

    apply_one(s, "e1", SAYS("done"));
    b->msg[0].seq = 77;
    b->msg[0].lane = 3;
    b->msg[0].attempts = 9;
    b->msg[0].traceparent = bytes_of("00-cc-dd-01");
    assert_int_equal(apply(s, "c", b)->apply.item[0].out, APPLY_SEEN);
}

static void what_is_parked_waits(void **state) {
    struct suite *s = *state;
    struct op *op =
        park_op(s, "c", one_message(s, "e1", "k", 1, SAYS("done")), PARK_RETRY, CSN_RETRY);

    op->park.item[0].retry_in = MINUTE;
    run(s, op);
    assert_int_equal(apply_one(s, "e1", SAYS("done"))->out, APPLY_WAITS);
    assert_int_equal(inbox(s, "c", "e1").duplicates, 1);
    assert_string_equal(inbox(s, "c", "e1").state, "waiting");
    assert_int_equal(effects(s, "e1"), 0);
}

static void what_is_dead_is_aside(void **state) {
    struct suite *s = *state;

    park(s, "c", one_message(s, "e1", "k", 1, SAYS("done")), PARK_DEAD, CSN_POISON);
    assert_int_equal(apply_one(s, "e1", SAYS("done"))->out, APPLY_ASIDE);
    assert_string_equal(inbox(s, "c", "e1").state, "dead");
    assert_int_equal(effects(s, "e1"), 0);
}

static void what_is_in_conflict_is_aside(void **state) {
    struct suite *s = *state;

    park(s, "c", one_message(s, "e1", "k", 1, SAYS("done")), PARK_CONFLICT, CSN_CONFLICT);
    assert_int_equal(apply_one(s, "e1", SAYS("done"))->out, APPLY_ASIDE);
    assert_string_equal(inbox(s, "c", "e1").state, "conflict");
    assert_int_equal(effects(s, "e1"), 0);
}

static void w88_a_purged_inbox_does_not_run_a_dead_letter_again(void **state) {
    struct suite *s = *state;

    park(s, "c", one_message(s, "e1", "k", 1, SAYS("done")), PARK_DEAD, CSN_POISON);
    s->w->purge_inbox(s->w, "c", "e1");
    assert_int_equal(apply_one(s, "e1", SAYS("done"))->out, APPLY_ASIDE);
    assert_int_equal(effects(s, "e1"), 0);
    assert_string_equal(inbox(s, "c", "e1").state, "dead");
    assert_int_equal(apply_one(s, "e1", SAYS("done"))->out, APPLY_ASIDE);
    assert_int_equal(apply(s, "d", one_message(s, "e1", "k", 1, SAYS("done")))->apply.item[0].out,
                     APPLY_VERDICT);
}

/* ---- keys ---- */

static void behind_in_the_batch(struct suite *s, const char *payload) {
    struct batch *b = new_batch(s);
    struct op *op;

    add_message(s, b, "a1", "a", 1, payload);
    add_message(s, b, "b1", "b", 1, SAYS("done"));
    add_message(s, b, "a2", "a", 2, SAYS("done"));
    add_message(s, b, "a3", "a", 3, SAYS("done"));
    op = apply(s, "c", b);
    expect_out(op, 0, APPLY_VERDICT);
    expect_out(op, 1, APPLY_VERDICT);
    expect_out(op, 2, APPLY_BEHIND);
    expect_out(op, 3, APPLY_BEHIND);
    expect_no_inbox(s, "c", "a2");
    expect_no_inbox(s, "c", "a3");
    assert_int_equal(effects(s, "a1") + effects(s, "a2") + effects(s, "a3"), 0);
    assert_int_equal(effects(s, "b1"), 1);
}

static void w94_behind_a_retry_in_the_batch(void **state) {
    behind_in_the_batch(*state, SAYS("retry"));
}

static void w94_behind_an_early_one_in_the_batch(void **state) {
    behind_in_the_batch(*state, SAYS("early"));
}

static void w94_behind_an_unknown_one_in_the_batch(void **state) {
    behind_in_the_batch(*state, SAYS("unknown"));
}

static void w94_behind_poison_in_the_batch(void **state) {
    behind_in_the_batch(*state, SAYS("poison"));
}

static void w94_behind_a_conflict_in_the_batch(void **state) {
    behind_in_the_batch(*state, SAYS("conflict"));
}

static void w94_behind_what_is_parked(void **state) {
    struct suite *s = *state;
    struct batch *b = new_batch(s);
    struct op *op;

    op = park_op(s, "c", one_message(s, "a5", "a", 5, SAYS("done")), PARK_RETRY, CSN_RETRY);
    op->park.item[0].retry_in = HOUR;
    run(s, op);
    add_message(s, b, "a6", "a", 6, SAYS("done"));
    add_message(s, b, "b6", "b", 6, SAYS("done"));
    op = apply(s, "c", b);
    expect_out(op, 0, APPLY_BEHIND);
    expect_out(op, 1, APPLY_VERDICT);
    expect_no_inbox(s, "c", "a6");
    assert_int_equal(effects(s, "a6"), 0);
    assert_int_equal(apply(s, "d", one_message(s, "a6", "a", 6, SAYS("done")))->apply.item[0].out,
                     APPLY_VERDICT);
}

/* Of equal versions the one that came first goes first, here as in a batch. */
static void w94_behind_what_is_parked_with_the_same_version(void **state) {
    struct suite *s = *state;
    struct op *op =
        park_op(s, "c", one_message(s, "a5", "a", 5, SAYS("done")), PARK_RETRY, CSN_RETRY);

    op->park.item[0].retry_in = HOUR;
    run(s, op);
    assert_int_equal(apply(s, "c", one_message(s, "a5b", "a", 5, SAYS("done")))->apply.item[0].out,
                     APPLY_BEHIND);
    assert_int_equal(effects(s, "a5b"), 0);
    expect_no_inbox(s, "c", "a5b");
}

static void w10_an_equal_version_stays_behind_what_is_parked(void **state) {
    struct suite *s = *state;
    struct op *op =
        park_op(s, "c", one_message(s, "a5", "a", 5, SAYS("done")), PARK_RETRY, CSN_RETRY);

    op->park.item[0].retry_in = HOUR;
    run(s, op);
    op = apply(s, "c", one_message(s, "a5b", "a", 5, SAYS("done")));
    expect_out(op, 0, APPLY_BEHIND);
    expect_no_inbox(s, "c", "a5b");
    assert_int_equal(effects(s, "a5b"), 0);
}

static void w93_what_comes_before_the_parked_head_is_applied(void **state) {
    struct suite *s = *state;
    struct op *op =
        park_op(s, "c", one_message(s, "a5", "a", 5, SAYS("done")), PARK_RETRY, CSN_RETRY);
    csn_usec next;

    op->park.item[0].retry_in = HOUR;
    run(s, op);
    next = work(s, "c", "a5").next_attempt_at;
    assert_int_equal(apply(s, "c", one_message(s, "a4", "a", 4, SAYS("done")))->apply.item[0].out,
                     APPLY_VERDICT);
    assert_int_equal(effects(s, "a4"), 1);
    assert_int_equal(work(s, "c", "a5").next_attempt_at, next);
}

static void w93_the_predecessor_wakes_what_came_early(void **state) {
    struct suite *s = *state;
    struct op *op =
        park_op(s, "c", one_message(s, "a5", "a", 5, SAYS("done")), PARK_EARLY, CSN_EARLY);
    struct work_row row;

    op->park.item[0].retry_in = HOUR;
    run(s, op);
    assert_int_equal(claim_work(s, "c", 10)->batch->n, 0);
    apply(s, "c", one_message(s, "a4", "a", 4, SAYS("done")));
    row = work(s, "c", "a5");
    assert_string_equal(row.status, "pending");
    near(s, row.next_attempt_at, s->w->now(s->w));
    op = claim_work(s, "c", 10);
    expect_ids(op->batch, "a5");
    run(s, op = apply_work_op(s, op));
    assert_int_equal(effects(s, "a5"), 1);
}

static void w93_another_key_wakes_nobody(void **state) {
    struct suite *s = *state;
    struct op *op =
        park_op(s, "c", one_message(s, "a5", "a", 5, SAYS("done")), PARK_EARLY, CSN_EARLY);

    op->park.item[0].retry_in = HOUR;
    run(s, op);
    apply(s, "c", one_message(s, "b4", "b", 4, SAYS("done")));
    apply(s, "d", one_message(s, "a4", "a", 4, SAYS("done")));
    apply(s, "c", one_message(s, "a3", "a", 3, SAYS("retry")));
    assert_int_equal(claim_work(s, "c", 10)->batch->n, 0);
}

/* ---- the work table as a source ---- */

static void park_three(struct suite *s) {
    struct batch *b = new_batch(s);
    struct op *op;

    add_message(s, b, "a1", "a", 1, SAYS_EMIT("done"));
    add_message(s, b, "a2", "a", 2, SAYS("done"));
    add_message(s, b, "a3", "a", 3, SAYS("done"));
    op = park_op(s, "c", b, PARK_BEHIND, CSN_RETRY);
    op->park.item[0].to = PARK_RETRY;
    op->park.item[0].retry_in = 1;
    run(s, op);
    s->w->advance(s->w, SECOND);
}

static void what_was_parked_is_applied_in_order(void **state) {
    struct suite *s = *state;
    static const char *const ids[] = {"a1", "a2", "a3"};
    struct key_row key;

    park_three(s);
    for (int i = 0; i < 3; i++) {
        struct op *taken = claim_work(s, "c", 10), *op;

        expect_ids(taken->batch, ids[i]);
        assert_true(s->w->key(s->w, "c", "order", "a", &key));
        assert_int_equal(key.head_version, i + 1);
        op = apply_work_op(s, taken);
        run(s, op);
        expect_out(op, 0, APPLY_VERDICT);
        assert_int_equal(effects(s, ids[i]), 1);
        assert_string_equal(inbox(s, "c", ids[i]).state, "done");
        expect_no_work(s, "c", ids[i]);
        if (i < 2) {
            assert_string_equal(work(s, "c", ids[i + 1]).status, "pending");
            assert_int_equal(work(s, "c", ids[i + 1]).waits_for, 0);
            near(s, work(s, "c", ids[i + 1]).next_attempt_at, s->w->now(s->w));
        }
    }
    assert_false(s->w->key(s->w, "c", "order", "a", &key));
    assert_int_equal(results(s, "a1"), 1);
    assert_int_equal(apply(s, "c", one_message(s, "a4", "a", 4, SAYS("done")))->apply.item[0].out,
                     APPLY_VERDICT);
}

static void a_parked_event_that_is_refused_goes_on_too(void **state) {
    struct suite *s = *state;
    struct batch *b = one_message(s, "a1", "a", 1, SAYS("refused"));
    struct op *op = park_op(s, "c", b, PARK_RETRY, CSN_RETRY);
    struct key_row key;

    op->park.item[0].retry_in = 1;
    run(s, op);
    s->w->advance(s->w, SECOND);
    run(s, apply_work_op(s, claim_work(s, "c", 10)));
    assert_string_equal(inbox(s, "c", "a1").state, "refused");
    expect_no_work(s, "c", "a1");
    assert_false(s->w->key(s->w, "c", "order", "a", &key));
}

static void a_parked_event_without_success_stays(void **state) {
    struct suite *s = *state;
    struct op *op, *taken;

    op = park_op(s, "c", one_message(s, "a1", "a", 1, SAYS_EMIT("retry")), PARK_RETRY, CSN_RETRY);
    op->park.item[0].retry_in = 1;
    run(s, op);
    s->w->advance(s->w, SECOND);
    taken = claim_work(s, "c", 10);
    run(s, op = apply_work_op(s, taken));
    assert_int_equal(op->apply.item[0].verdict, CSN_RETRY);
    assert_string_equal(work(s, "c", "a1").status, "sending");
    assert_string_equal(work(s, "c", "a1").token, taken->claim.token);
    assert_string_equal(inbox(s, "c", "a1").state, "waiting");
    assert_int_equal(effects(s, "a1"), 0);
    assert_int_equal(results(s, "a1"), 0);
}

static void w86_a_stale_worker_is_fenced(void **state) {
    struct suite *s = *state;
    struct op *stale, *fresh, *op;

    park_three(s);
    stale = claim_work(s, "c", 10);
    s->w->advance(s->w, 31 * SECOND);
    op = recover_op(s, 0);
    op->recover.table = TABLE_WORK;
    op->recover.lane_name[0] = 0;
    op->recover.lanes = UINT64_MAX;
    op->recover.epoch = NULL;
    copy_text(op->recover.consumer, sizeof(op->recover.consumer), "c");
    run(s, op);
    assert_int_equal(op->recover.expired, 1);
    run(s, op = apply_work_op(s, stale));
    expect_out(op, 0, APPLY_FENCED);
    fresh = claim_work(s, "c", 10);
    expect_ids(fresh->batch, "a1");
    assert_int_equal(fresh->batch->msg[0].attempts, stale->batch->msg[0].attempts + 1);
    run(s, op = apply_work_op(s, stale));
    expect_out(op, 0, APPLY_FENCED);
    assert_int_equal(effects(s, "a1"), 0);
    assert_string_equal(work(s, "c", "a1").token, fresh->claim.token);
    run(s, op = apply_work_op(s, fresh));
    expect_out(op, 0, APPLY_VERDICT);
    run(s, op = apply_work_op(s, stale));
    expect_out(op, 0, APPLY_FENCED);
    assert_int_equal(effects(s, "a1"), 1);
}

/* ---- the fence round the batch, and a store in trouble ---- */

static void w83_a_handler_that_swaps_the_transaction_is_fatal(void **state) {
    struct suite *s = *state;
    struct port *p;
    struct op *op;

    need(s, WORLD_SWAP);
    p = another_port(s, ROLE_APPLY);
    op = apply_op(s, "c", one_message(s, "e1", "k", 1, SAYS("done")));
    op->apply.handler = s->w->handler_swap(s->w, p);
    assert_int_equal(answer(s, p, op), CSN_FATAL);
    assert_int_equal(op->result.code, 4011);
}

static void a_batch_keeps_the_order_of_its_keys(void **state) {
    struct suite *s = *state;
    struct batch *b = new_batch(s);
    struct op *op;
    char id[12];

    for (uint32_t i = 0; i < 200; i++) {
        snprintf(id, sizeof(id), "e%u", i);
        add_message(s, b, id, i % 2 ? "odd" : "even", i, i == 100 ? SAYS("retry") : SAYS("done"));
    }
    op = apply(s, "c", b);
    for (uint32_t i = 0; i < 200; i++) {
        bool behind = i > 100 && i % 2 == 0;

        snprintf(id, sizeof(id), "e%u", i);
        expect_out(op, i, behind ? APPLY_BEHIND : APPLY_VERDICT);
        assert_int_equal(effects(s, id), behind || i == 100 ? 0 : 1);
    }
}

/* ---- try: at most once ---- */

static struct op *try_op(struct suite *s, struct batch *b) {
    struct op *op = apply_op(s, "c", b);
    op->kind = OP_TRY;
    return op;
}

static void a_try_leaves_its_effect_and_no_inbox_row(void **state) {
    struct suite *s = *state;
    struct op *op = try_op(s, one_message(s, "e1", "k", 1, SAYS_EMIT("done")));

    run(s, op);
    expect_out(op, 0, APPLY_VERDICT);
    assert_int_equal(op->apply.item[0].verdict, CSN_DONE);
    assert_int_equal(op->apply.emitted, 1);
    assert_int_equal(effects(s, "e1"), 1);
    assert_int_equal(results(s, "e1"), 1);
    expect_no_inbox(s, "c", "e1");
}

static void a_try_that_does_not_commit_leaves_nothing_and_its_neighbours_stay(void **state) {
    struct suite *s = *state;
    struct batch *b = new_batch(s);
    struct dead_row none;

    add_message(s, b, "e1", "k", 1, SAYS_EMIT("done"));
    add_message(s, b, "e2", "k", 2, SAYS_EMIT("retry"));
    add_message(s, b, "e3", "k", 3, SAYS_EMIT("poison"));
    add_message(s, b, "e4", "k", 4, SAYS_EMIT("refused"));
    struct op *op = try_op(s, b);
    run(s, op);
    assert_int_equal(op->apply.item[0].verdict, CSN_DONE);
    assert_int_equal(op->apply.item[1].verdict, CSN_RETRY);
    assert_int_equal(op->apply.item[1].code, 4008);
    assert_int_equal(op->apply.item[2].verdict, CSN_POISON);
    assert_int_equal(op->apply.item[3].verdict, CSN_REFUSED); /* nothing holds a key here */
    assert_int_equal(op->apply.emitted, 2);
    assert_int_equal(effects(s, "e1") + effects(s, "e4"), 2);
    assert_int_equal(effects(s, "e2") + effects(s, "e3"), 0);
    assert_int_equal(results(s, "e2") + results(s, "e3"), 0);
    assert_int_equal(s->w->dead(s->w, "c", "e3", &none, 1), 0);
    expect_no_inbox(s, "c", "e2");
}

static void a_try_of_an_expired_one_does_not_run_it(void **state) {
    struct suite *s = *state;
    struct op *op = try_op(s, one_message(s, "e1", "k", 1, SAYS_EMIT("done")));

    op->apply.item[0].expired = true;
    run(s, op);
    assert_int_equal(op->apply.item[0].verdict, CSN_LATE);
    assert_int_equal(op->apply.item[0].code, 3009);
    assert_int_equal(effects(s, "e1"), 0);
}

static void a_try_knows_nothing_of_an_earlier_one(void **state) {
    struct suite *s = *state;

    for (int i = 1; i <= 2; i++) {
        struct op *op = try_op(s, one_message(s, i == 1 ? "e1" : "e2", "k", 1, SAYS("done")));
        run(s, op);
        expect_out(op, 0, APPLY_VERDICT);
    }
    apply_one(s, "e3", SAYS("retry"));
    assert_int_equal(effects(s, "e1") + effects(s, "e2"), 2);
}

const struct CMUnitTest suite_apply[] = {
    TEST(i7_done_writes_inbox_and_effect),
    TEST(a_refusal_commits),
    TEST(a_duplicate_commits),
    TEST(late_commits),
    TEST(w84_done_emits_once),
    TEST(w85_early_leaves_nothing),
    TEST(w85_conflict_leaves_nothing),
    TEST(w85_poison_leaves_nothing),
    TEST(w85_retry_leaves_nothing),
    TEST(w85_unknown_leaves_nothing),
    TEST(w91_a_statement_that_fails_is_a_retry),
    TEST(a_payload_without_the_field_is_poison),
    TEST(a_handler_may_be_a_function),
    TEST(an_expired_item_is_late_without_running),
    TEST(an_expired_item_that_was_done_is_seen),
    TEST(a_result_event_hands_its_context_on),
    TEST(w10_result_events_draw_versions),
    TEST(a_rolled_back_version_is_drawn_again),
    TEST(w68_the_effect_comes_once),
    TEST(w68_twice_in_one_batch),
    TEST(consumers_do_not_know_each_other),
    TEST(w14_ids_are_compared_byte_by_byte),
    TEST(m30_an_id_of_128_bytes_is_kept_whole),
    TEST(w80_two_connections_one_id),
    TEST(w80_two_connections_one_after_the_other),
    TEST(w75_another_content_is_a_mismatch),
    TEST(where_it_came_from_is_no_content),
    TEST(what_is_parked_waits),
    TEST(what_is_dead_is_aside),
    TEST(what_is_in_conflict_is_aside),
    TEST(w88_a_purged_inbox_does_not_run_a_dead_letter_again),
    TEST(w94_behind_a_retry_in_the_batch),
    TEST(w94_behind_an_early_one_in_the_batch),
    TEST(w94_behind_an_unknown_one_in_the_batch),
    TEST(w94_behind_poison_in_the_batch),
    TEST(w94_behind_a_conflict_in_the_batch),
    TEST(w94_behind_what_is_parked),
    TEST(w94_behind_what_is_parked_with_the_same_version),
    TEST(w10_an_equal_version_stays_behind_what_is_parked),
    TEST(w93_what_comes_before_the_parked_head_is_applied),
    TEST(w93_the_predecessor_wakes_what_came_early),
    TEST(w93_another_key_wakes_nobody),
    TEST(what_was_parked_is_applied_in_order),
    TEST(a_parked_event_that_is_refused_goes_on_too),
    TEST(a_parked_event_without_success_stays),
    TEST(w86_a_stale_worker_is_fenced),
    TEST(w83_a_handler_that_swaps_the_transaction_is_fatal),
    TEST(a_batch_keeps_the_order_of_its_keys),
    TEST(a_try_leaves_its_effect_and_no_inbox_row),
    TEST(a_try_that_does_not_commit_leaves_nothing_and_its_neighbours_stay),
    TEST(a_try_of_an_expired_one_does_not_run_it),
    TEST(a_try_knows_nothing_of_an_earlier_one),
    TEST_END};
