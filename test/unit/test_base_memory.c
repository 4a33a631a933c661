/* test_base_memory.c: arena, bytes, text, and what is cut where. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/bytes.h"
#include "base/prng.h"

static void arena_pieces_are_aligned_and_do_not_overlap(void **state) {
    (void)state;
    struct arena a;
    arena_init(&a, 1 << 20);
    unsigned char *piece[200];
    for (size_t i = 0; i < ARRAY_LEN(piece); i++) {
        piece[i] = arena_take(&a, i);
        assert_non_null(piece[i]);
        assert_int_equal((uintptr_t)piece[i] % 16, 0);
        memset(piece[i], (int)i, i);
    }
    for (size_t i = 0; i < ARRAY_LEN(piece); i++) {
        for (size_t at = 0; at < i; at++) {
            assert_int_equal(piece[i][at], i);
        }
    }
    arena_free(&a);
    assert_int_equal(a.held, 0);
}

static void arena_keeps_its_limit(void **state) {
    (void)state;
    struct arena a;
    arena_init(&a, 64 * 1024);
    size_t taken = 0;
    while (arena_take(&a, 1000)) {
        taken++;
        assert_true(a.held <= a.limit);
        assert_true(taken < 100);
    }
    assert_true(taken >= 56);
    assert_null(arena_take(&a, 1000));
    arena_free(&a);
}

static void arena_takes_one_piece_beyond_its_limit(void **state) {
    (void)state;
    struct arena a;
    arena_init(&a, 10000);
    assert_non_null(arena_take(&a, 100));
    char *large = arena_take(&a, 300000);
    assert_non_null(large);
    memset(large, 1, 300000);
    assert_null(arena_take(&a, 300000));
    assert_non_null(arena_take(&a, 100));
    arena_reset(&a);
    assert_true(a.held <= a.limit);
    assert_non_null(arena_take(&a, 300000));
    assert_null(arena_take(&a, SIZE_MAX));
    assert_null(arena_take(&a, SIZE_MAX - 8));
    arena_free(&a);
}

static void arena_reset_keeps_one_block(void **state) {
    (void)state;
    struct arena a;
    arena_init(&a, 1 << 20);
    for (int i = 0; i < 100; i++) {
        assert_non_null(arena_take(&a, 3000));
    }
    arena_reset(&a);
    assert_int_equal(a.used, 0);
    size_t held = a.held;
    assert_true(held > 0);
    assert_non_null(arena_take(&a, 3000));
    assert_int_equal(a.held, held);
    arena_free(&a);
}

static void arena_copies_end_with_nul(void **state) {
    (void)state;
    struct arena a;
    arena_init(&a, 4096);
    csn_bytes c = arena_copy(&a, bytes_of("order 1"));
    assert_string_equal(c.data, "order 1");
    assert_int_equal(c.size, 7);
    c = arena_copy(&a, (csn_bytes){NULL, 0});
    assert_string_equal(c.data, "");
    static char big[5000];
    c = arena_copy(&a, (csn_bytes){big, sizeof big});
    assert_non_null(c.data);
    c = arena_copy(&a, (csn_bytes){big, sizeof big});
    assert_null(c.data);
    arena_free(&a);
}

static void comparing_and_hashing(void **state) {
    (void)state;
    assert_true(bytes_equal(bytes_of(NULL), bytes_of("")));
    assert_true(bytes_is(bytes_of("a"), "a"));
    assert_false(bytes_is(bytes_of("a"), "ab"));
    assert_true(bytes_compare(bytes_of("a"), bytes_of("ab")) < 0);
    assert_true(bytes_compare(bytes_of("\xff"), bytes_of("a")) > 0);
    assert_int_equal(bytes_compare(bytes_of("x"), bytes_of("x")), 0);
    /* Partitions of stored messages hang on these numbers: they must never change. */
    assert_true(bytes_hash(bytes_of(""), 0) == UINT64_C(0xefd01f60ba992926));
    assert_true(bytes_hash(bytes_of("order-1"), 0) == UINT64_C(0x491b422e3af0d9a5));
    assert_true(bytes_hash(bytes_of("order-1"), 7) != bytes_hash(bytes_of("order-1"), 0));
}

static void the_hash_spreads_over_eight(void **state) {
    (void)state;
    unsigned count[8] = {0};
    for (int i = 0; i < 8000; i++) {
        char key[32];
        snprintf(key, sizeof key, "order-%d", i);
        count[bytes_hash(bytes_of(key), 0) % 8]++;
    }
    for (int i = 0; i < 8; i++) {
        assert_in_range(count[i], 850, 1150);
    }
}

static void copies_never_cut_a_character(void **state) {
    (void)state;
    char to[8];
    assert_true(copy_text(to, sizeof to, "seven77"));
    assert_false(copy_text(to, sizeof to, "eight888"));
    assert_string_equal(to, "eight88");
    assert_false(copy_text(to, sizeof to, "存储开"));
    assert_string_equal(to, "存储");
    assert_false(copy_text(to, 3, "存储"));
    assert_string_equal(to, "");
    assert_false(copy_text(to, 1, "x"));
    assert_string_equal(to, "");
    assert_true(copy_text(to, sizeof to, NULL));
    assert_string_equal(to, "");
    assert_false(copy_bytes_text(to, 4, (csn_bytes){"\x80\x80\x80\x80\x80\x80", 6}));
    assert_int_equal(strlen(to), 3);
}

static void text_is_cut_and_says_so(void **state) {
    (void)state;
    for (size_t size = 1; size < 40; size++) {
        char buffer[40];
        struct text t;
        memset(buffer, 'x', sizeof buffer);
        text_init(&t, buffer, size);
        text_add(&t, "%s=%d ", "行", 12);
        text_add_bytes(&t, bytes_of("认领"));
        text_add(&t, "%s", "éé");
        const char whole[] = "行=12 认领éé";
        assert_int_equal(strlen(buffer), t.used);
        assert_true(t.used < size);
        assert_memory_equal(buffer, whole, t.used);
        assert_int_equal(t.full, size <= strlen(whole));
        assert_true(t.used == strlen(whole) || ((unsigned char)whole[t.used] & 0xc0) != 0x80);
    }
}

static bool glob(const char *globs, const char *text) {
    return glob_list_matches(globs, bytes_of(text));
}

static void globs_match_the_whole_text(void **state) {
    (void)state;
    assert_true(glob("*", "OrderCreated"));
    assert_true(glob("*", ""));
    assert_true(glob("OrderCreated,Stock*", "StockLow"));
    assert_true(glob("OrderCreated , Stock*", "OrderCreated"));
    assert_true(glob("Order*ed", "OrderChangedAndMoved"));
    assert_true(glob("?rder*", "Order"));
    assert_true(glob("订?", "订单"));
    assert_true(glob("a*b*c", "aXbXbXc"));
    assert_false(glob("Order", "OrderCreated"));
    assert_false(glob("Order*X", "OrderCreated"));
    assert_false(glob("", "OrderCreated"));
    assert_false(glob("", ""));
    assert_false(glob(NULL, "a"));
    assert_false(glob(",,", "a"));
    assert_false(glob("ordercreated", "OrderCreated"));
    assert_false(glob("*a*a*a*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"));
}

static void chance_is_even_and_repeatable(void **state) {
    (void)state;
    struct prng p, q;
    prng_seed(&p, 1);
    prng_seed(&q, 1);
    unsigned count[10] = {0};
    for (int i = 0; i < 10000; i++) {
        uint64_t x = prng_below(&p, 10);
        assert_true(x == prng_below(&q, 10));
        count[x]++;
    }
    for (int i = 0; i < 10; i++) {
        assert_in_range(count[i], 850, 1150);
    }
    assert_int_equal(prng_below(&p, 1), 0);
    prng_seed_full(&p, (uint64_t[]){0, 0, 0, 0});
    assert_true(prng_next(&p) != prng_next(&p));
}

/* Reference values of xoshiro256** for the state 1, 2, 3, 4. */
static void chance_is_the_published_algorithm(void **state) {
    (void)state;
    static const uint64_t expected[] = {11520, 0, 1509978240, UINT64_C(1215971899390074240)};
    struct prng p;
    prng_seed_full(&p, (uint64_t[]){1, 2, 3, 4});
    for (size_t i = 0; i < ARRAY_LEN(expected); i++) {
        assert_true(prng_next(&p) == expected[i]);
    }
}

static void tokens_are_uuids(void **state) {
    (void)state;
    struct prng p;
    prng_seed(&p, 5);
    char last[37] = "";
    for (int i = 0; i < 100; i++) {
        char token[37];
        prng_token(&p, token);
        assert_int_equal(strlen(token), 36);
        assert_int_equal(token[14], '4');
        assert_non_null(strchr("89ab", token[19]));
        assert_int_equal(strspn(token, "0123456789abcdef-"), 36);
        assert_string_not_equal(token, last);
        memcpy(last, token, sizeof last);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arena_pieces_are_aligned_and_do_not_overlap),
        cmocka_unit_test(arena_keeps_its_limit),
        cmocka_unit_test(arena_takes_one_piece_beyond_its_limit),
        cmocka_unit_test(arena_reset_keeps_one_block),
        cmocka_unit_test(arena_copies_end_with_nul),
        cmocka_unit_test(comparing_and_hashing),
        cmocka_unit_test(the_hash_spreads_over_eight),
        cmocka_unit_test(copies_never_cut_a_character),
        cmocka_unit_test(text_is_cut_and_says_so),
        cmocka_unit_test(globs_match_the_whole_text),
        cmocka_unit_test(chance_is_even_and_repeatable),
        cmocka_unit_test(chance_is_the_published_algorithm),
        cmocka_unit_test(tokens_are_uuids),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
