/* test_order.c: what a policy makes of a version, and what is left of a gap. */
#include "core/order.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

static struct order_machine machine(const char *name) {
    struct order_machine m;

    assert_true(order_machine_parse(name, order_machine_moves(name), &m));
    return m;
}

static struct order_entity at(uint64_t version, int32_t state) {
    return (struct order_entity){.there = true, .version = version, .state = state};
}

static const struct order_entity nothing = {.state = STATE_NONE};

/* ---- machines ---- */

static void built_in_machines_parse(void **state) {
    static const char *const name[] = {"payment", "reservation", "task"};
    static const uint32_t states[] = {5, 4, 4};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(name); i++)
        assert_int_equal(machine(name[i]).states, states[i]);
    assert_null(order_machine_moves("order"));
}

static void what_is_no_machine_is_refused(void **state) {
    static const char *const bad[] = {"",       "a",       "a >",      "a > ;",      "> b",
                                      "a > a",  "a b",     "a > b; c", "a > b;; ",   ";",
                                      "a >> b", "a > b >", " ",        "a > b; > c", "a ; b"};
    char many[400];
    struct order_machine m;
    struct text t;

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        if (order_machine_parse("m", bad[i], &m))
            fail_msg("\"%s\" is taken", bad[i]);
    text_init(&t, many, sizeof many);
    text_add(&t, "s0 >");
    for (int i = 1; i <= MACHINE_STATES_MAX; i++)
        text_add(&t, " s%d", i);
    assert_false(order_machine_parse("m", many, &m));
    assert_false(order_machine_parse(
        "m", "a > 0123456789012345678901234567890123456789012345678901234567890123", &m));
    assert_true(order_machine_parse("m", "a>b c ;  b > c;", &m));
    assert_int_equal(m.states, 3);
    assert_int_equal(m.next[0], 6);
}

/* ---- deciding ---- */

static void without_a_policy_everything_runs(void **state) {
    struct order_entity e = at(9, STATE_NONE);
    struct order_rule none = {.policy = POLICY_NONE};

    (void)state;
    assert_int_equal(order_decide(NULL, &e, 3), ORDER_RUN);
    assert_int_equal(order_decide(&none, &e, 3), ORDER_RUN);
}

static void a_snapshot_takes_newer_versions_only(void **state) {
    struct order_rule r = {.policy = POLICY_SNAPSHOT};
    struct order_entity e = at(2, STATE_NONE);

    (void)state;
    assert_int_equal(order_decide(&r, &nothing, 0), ORDER_RUN);
    assert_int_equal(order_decide(&r, &e, 1), ORDER_LATE);
    assert_int_equal(order_decide(&r, &e, 2), ORDER_LATE);
    assert_int_equal(order_decide(&r, &e, 3), ORDER_RUN);
    assert_int_equal(order_decide(&r, &e, UINT64_C(1) << 62), ORDER_RUN);
}

static void a_command_is_classified(void **state) {
    enum { PENDING, RESERVED, CONFIRMED, RELEASED };
    static const struct {
        int32_t now, to;
        uint64_t version; /* the entity is at 5 */
        enum order_says says;
    } c[] = {
        {STATE_NONE, PENDING, 6, ORDER_RUN},        {STATE_NONE, RESERVED, 6, ORDER_RUN},
        {STATE_NONE, CONFIRMED, 6, ORDER_EARLY},    {PENDING, RESERVED, 6, ORDER_RUN},
        {PENDING, RELEASED, 6, ORDER_EARLY},        {RESERVED, CONFIRMED, 6, ORDER_RUN},
        {RESERVED, RELEASED, 6, ORDER_RUN},         {CONFIRMED, RELEASED, 6, ORDER_CONFLICT},
        {RELEASED, CONFIRMED, 6, ORDER_CONFLICT},   {RELEASED, RESERVED, 6, ORDER_CONFLICT},
        {CONFIRMED, CONFIRMED, 6, ORDER_DUPLICATE}, {CONFIRMED, CONFIRMED, 5, ORDER_DUPLICATE},
        {CONFIRMED, RELEASED, 5, ORDER_CONFLICT},   {CONFIRMED, RELEASED, 4, ORDER_LATE},
        {CONFIRMED, CONFIRMED, 4, ORDER_LATE},      {STATE_STRANGE, RESERVED, 6, ORDER_CONFLICT},
        {STATE_STRANGE, RESERVED, 4, ORDER_LATE},   {STATE_NONE, RESERVED, 5, ORDER_CONFLICT},
    };
    struct order_machine m = machine("reservation");

    (void)state;
    assert_int_equal(order_state_find(&m, bytes_of("已释放")), RELEASED);
    for (size_t i = 0; i < ARRAY_LEN(c); i++) {
        struct order_rule r = {.policy = POLICY_COMMAND, .machine = &m, .to = c[i].to};
        struct order_entity e = at(5, c[i].now);
        enum order_says got = order_decide(&r, &e, c[i].version);

        if (got != c[i].says)
            fail_msg("case %zu: %d, not %d", i, (int)got, (int)c[i].says);
    }
}

static void a_failed_payment_is_tried_again_by_a_newer_version(void **state) {
    struct order_machine m = machine("payment");
    int32_t failed = order_state_find(&m, bytes_of("FAILED"));
    int32_t success = order_state_find(&m, bytes_of("SUCCESS"));
    struct order_rule again = {.policy = POLICY_COMMAND,
                               .machine = &m,
                               .to = order_state_find(&m, bytes_of("PROCESSING"))};
    struct order_entity e = at(3, failed);

    (void)state;
    assert_int_equal(order_decide(&again, &e, 4), ORDER_RUN);
    e.state = success;
    assert_int_equal(order_decide(&again, &e, 4), ORDER_CONFLICT);
    again.to = failed; /* a close that comes after the success does not undo it */
    assert_int_equal(order_decide(&again, &e, 4), ORDER_CONFLICT);
}

static void an_answer_says_what_is_in_the_way(void **state) {
    struct order_machine m = machine("reservation");
    struct order_rule r = {.policy = POLICY_COMMAND, .machine = &m, .to = 3};
    struct message v3 = {.version = 3, .prev_version = 2};
    struct order_entity e = at(5, 2);
    struct apply_item item;

    (void)state;
    order_answer(&r, &e, bytes_of("E-5"), &v3, ORDER_LATE, &item);
    assert_int_equal(item.verdict, CSN_LATE);
    assert_int_equal(item.code, ERR_ORDER_LATE);
    assert_string_equal(item.text, "version 5 is ahead (E-5)");
    order_answer(&r, &e, bytes_of(""), &v3, ORDER_CONFLICT, &item);
    assert_int_equal(item.verdict, CSN_CONFLICT);
    assert_non_null(strstr(item.text, "reservation: 已确认 > 已释放 is no legal move"));
    order_answer(&r, &nothing, bytes_of(""), &v3, ORDER_EARLY, &item);
    assert_int_equal(item.verdict, CSN_EARLY);
    assert_non_null(strstr(item.text, ", version 2"));
    r.to = 2;
    order_answer(&r, &e, bytes_of(""), &v3, ORDER_DUPLICATE, &item);
    assert_int_equal(item.verdict, CSN_DUPLICATE);
    assert_int_equal(item.code, 0);
    r = (struct order_rule){.policy = POLICY_SNAPSHOT};
    order_answer(&r, &e, bytes_of("E-5"), &v3, ORDER_LATE, &item);
    assert_string_equal(item.text, "version 5 is ahead (E-5)");
}

/* ---- afterwards ---- */

static void only_what_was_done_moves_the_state(void **state) {
    struct order_machine m = machine("reservation");
    struct order_rule r = {.policy = POLICY_COMMAND, .machine = &m, .to = 1};
    struct order_entity e = nothing;

    (void)state;
    assert_true(order_advance(&r, &e, 1, CSN_REFUSED));
    assert_int_equal(e.version, 1);
    assert_int_equal(e.state, STATE_NONE);
    assert_true(order_advance(&r, &e, 2, CSN_DONE));
    assert_int_equal(e.state, 1);
    r.to = 3;
    assert_false(order_advance(&r, &e, 2, CSN_DONE));
    assert_false(order_advance(&r, &e, 1, CSN_LATE));
    assert_true(order_advance(NULL, &e, 7, CSN_DONE));
    assert_int_equal(e.version, 7);
    assert_int_equal(e.state, 1);
}

static void a_gap_opens_where_a_known_version_is_missing(void **state) {
    struct order_entity e = at(3, STATE_NONE);
    struct order_gap g;

    (void)state;
    assert_false(order_gap_opens(&e, &(struct message){.version = 4, .prev_version = 3}, &g));
    assert_false(order_gap_opens(&e, &(struct message){.version = 9, .prev_version = 3}, &g));
    assert_false(order_gap_opens(&e, &(struct message){.version = 9, .prev_version = 0}, &g));
    assert_false(order_gap_opens(&e, &(struct message){.version = 2, .prev_version = 1}, &g));
    assert_false(order_gap_opens(&e, &(struct message){.version = 5, .prev_version = 5}, &g));
    assert_true(order_gap_opens(&e, &(struct message){.version = 6, .prev_version = 5}, &g));
    assert_int_equal(g.after, 3);
    assert_int_equal(g.missing, 5);
    assert_int_equal(g.before, 6);
    assert_true(order_gap_opens(&nothing, &(struct message){.version = 2, .prev_version = 1}, &g));
    assert_int_equal(g.after, 0);
}

static void a_gap_is_filled_from_either_side(void **state) {
    struct order_gap g = {.after = 1, .missing = 5, .before = 6};
    struct order_fill f = order_gap_fill(&g, &(struct message){.version = 5, .prev_version = 4});

    (void)state;
    assert_false(f.has_upper);
    assert_true(f.has_lower);
    assert_int_equal(f.lower.after, 1);
    assert_int_equal(f.lower.missing, 4);
    assert_int_equal(f.lower.before, 5);
    f = order_gap_fill(&g, &(struct message){.version = 2, .prev_version = 1});
    assert_true(f.has_upper);
    assert_int_equal(f.upper.after, 2);
    assert_int_equal(f.upper.missing, 5);
    assert_int_equal(f.upper.before, 6);
    assert_false(f.has_lower);
    f = order_gap_fill(&g, &(struct message){.version = 3, .prev_version = 2});
    assert_true(f.has_upper && f.has_lower);
    f = order_gap_fill(&g, &(struct message){.version = 5, .prev_version = 1});
    assert_false(f.has_upper || f.has_lower);
}

/* Whatever the order in which a row of versions comes: once all are there no gap is open, and
 * before, the open ones cover exactly what is missing. */
struct walk {
    struct order_entity e;
    struct order_gap gap[8];
    uint32_t gaps;
};

static void arrive(struct walk *w, uint64_t version, uint64_t prev) {
    struct message m = {.version = version, .prev_version = prev};
    struct order_gap g;

    for (uint32_t i = 0; i < w->gaps; i++) {
        if (w->gap[i].after >= version || w->gap[i].before <= version)
            continue;
        struct order_fill f = order_gap_fill(&w->gap[i], &m);

        w->gap[i] = w->gap[--w->gaps];
        if (f.has_lower)
            w->gap[w->gaps++] = f.lower;
        if (f.has_upper)
            w->gap[w->gaps++] = f.upper;
        break;
    }
    if (order_gap_opens(&w->e, &m, &g))
        w->gap[w->gaps++] = g;
    (void)order_advance(NULL, &w->e, version, CSN_DONE);
}

static bool covered(const struct walk *w, uint64_t version) {
    for (uint32_t i = 0; i < w->gaps; i++)
        if (w->gap[i].after < version && version < w->gap[i].before)
            return true;
    return false;
}

static void permute(uint64_t *v, uint32_t n, uint32_t from) {
    struct walk w = {.e = nothing};

    for (uint32_t i = from; i < n; i++) {
        uint64_t spare = v[from];

        v[from] = v[i];
        v[i] = spare;
        permute(v, n, from + 1);
        v[i] = v[from];
        v[from] = spare;
    }
    if (from < n)
        return;
    for (uint32_t i = 0; i < n; i++) {
        arrive(&w, v[i], v[i] - 1);
        for (uint32_t k = i + 1; k < n; k++)
            if (v[k] < w.e.version && !covered(&w, v[k]))
                fail_msg("version %u is missing and in no gap", (unsigned)v[k]);
        for (uint32_t k = 0; k <= i; k++)
            if (covered(&w, v[k]))
                fail_msg("version %u is there and in a gap", (unsigned)v[k]);
    }
    assert_int_equal(w.gaps, 0);
}

static void every_order_of_six_versions_closes_all_gaps(void **state) {
    uint64_t v[] = {1, 2, 3, 4, 5, 6};

    (void)state;
    permute(v, ARRAY_LEN(v), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(built_in_machines_parse),
        cmocka_unit_test(what_is_no_machine_is_refused),
        cmocka_unit_test(without_a_policy_everything_runs),
        cmocka_unit_test(a_snapshot_takes_newer_versions_only),
        cmocka_unit_test(a_command_is_classified),
        cmocka_unit_test(a_failed_payment_is_tried_again_by_a_newer_version),
        cmocka_unit_test(an_answer_says_what_is_in_the_way),
        cmocka_unit_test(only_what_was_done_moves_the_state),
        cmocka_unit_test(a_gap_opens_where_a_known_version_is_missing),
        cmocka_unit_test(a_gap_is_filled_from_either_side),
        cmocka_unit_test(every_order_of_six_versions_closes_all_gaps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
