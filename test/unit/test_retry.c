/* test_retry.c: pauses, budgets and breakers as properties: for any policy and any count they stay
 * within their bounds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/retry.h"

enum { SEC = 1000000 };

static void a_pause_stays_within_base_and_max(void **state) {
    (void)state;
    struct prng chance;
    prng_seed(&chance, 7);
    for (int i = 0; i < 20000; i++) {
        struct retry_policy p = {.base = 1000 + (csn_usec)prng_below(&chance, 10 * SEC),
                                 .jitter = (uint8_t)(i % 3),
                                 .jitter_percent = 25,
                                 .failures = 8,
                                 .age = SEC};
        p.max = p.base + (csn_usec)prng_below(&chance, (uint64_t)3600 * SEC);
        uint32_t tries = (uint32_t)prng_below(&chance, i % 2 ? 20 : UINT32_MAX);
        csn_usec pause = retry_backoff(&p, tries, &chance);
        assert_true(pause >= 1000);
        assert_true(pause <= retry_longest(&p));
    }
}

static void a_pause_doubles_and_saturates(void **state) {
    (void)state;
    struct prng chance;
    prng_seed(&chance, 1);
    struct retry_policy p = {
        .base = SEC, .max = 60 * (csn_usec)SEC, .jitter = JITTER_PERCENT, .jitter_percent = 0};
    assert_int_equal(retry_backoff(&p, 0, &chance), SEC);
    assert_int_equal(retry_backoff(&p, 3, &chance), 8 * SEC);
    assert_int_equal(retry_backoff(&p, 6, &chance), 60 * SEC);
    p.max = INT64_MAX;
    assert_true(retry_backoff(&p, 200, &chance) > 0);
}

static void full_jitter_spreads_over_the_whole_range(void **state) {
    (void)state;
    struct prng chance;
    prng_seed(&chance, 3);
    struct retry_policy p = {.base = SEC, .max = SEC, .jitter = JITTER_FULL};
    int low = 0, high = 0;
    for (int i = 0; i < 1000; i++) {
        csn_usec pause = retry_backoff(&p, 0, &chance);
        low += pause < SEC / 4;
        high += pause > SEC / 4 * 3;
    }
    assert_true(low > 150 && high > 150);
}

static void the_budget_is_spent_by_failures_or_by_age(void **state) {
    (void)state;
    struct retry_policy p = {.failures = 3, .age = 100};
    assert_false(retry_spent(&p, 0, 0));
    assert_false(retry_spent(&p, 1, 99));
    assert_true(retry_spent(&p, 2, 0));
    assert_true(retry_spent(&p, 0, 100));
}

static void a_breaker_rests_probes_and_closes(void **state) {
    (void)state;
    struct prng chance;
    prng_seed(&chance, 3);
    struct retry_policy p = {.base = SEC, .max = 60 * (csn_usec)SEC, .jitter = JITTER_PERCENT};
    struct breaker b = {0};
    assert_true(breaker_allows(&b, 0));
    breaker_bad(&b, &p, &chance, 100);
    assert_false(breaker_allows(&b, 100 + SEC - 1));
    assert_true(breaker_allows(&b, 100 + SEC));
    assert_int_equal(b.state, BREAKER_PROBING);
    breaker_bad(&b, &p, &chance, 200 + SEC);
    assert_int_equal(b.opened_at, 100); /* one outage, counted from its first fault */
    assert_false(breaker_allows(&b, 200 + 3 * SEC - 1));
    assert_true(breaker_allows(&b, 200 + 3 * SEC));
    breaker_good(&b);
    assert_true(breaker_allows(&b, 0));
    assert_int_equal(b.faults, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pause_stays_within_base_and_max),
        cmocka_unit_test(a_pause_doubles_and_saturates),
        cmocka_unit_test(full_jitter_spreads_over_the_whole_range),
        cmocka_unit_test(the_budget_is_spent_by_failures_or_by_age),
        cmocka_unit_test(a_breaker_rests_probes_and_closes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
