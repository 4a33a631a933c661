/* test_base_tables.c: errors, messages, counters, digest: tables that people and programs read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/digest.h"
#include "base/error.h"
#include "base/message.h"
#include "core/metrics.h"

static void digests_are_sha256(void **state) {
    (void)state;
    char text[65];
    sha256_text(bytes_of(""), text);
    assert_string_equal(text, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    sha256_text(bytes_of("abc"), text);
    assert_string_equal(text, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    static char many[1000000];
    memset(many, 'a', sizeof many);
    sha256_text((csn_bytes){many, sizeof many}, text);
    assert_string_equal(text, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void digests_do_not_depend_on_the_cut(void **state) {
    (void)state;
    char data[200];
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = (char)i;
    }
    for (size_t n = 0; n <= sizeof data; n++) {
        uint8_t once[32], parts[32];
        struct sha256 s;
        sha256_init(&s);
        sha256_add(&s, (csn_bytes){data, n});
        sha256_end(&s, once);
        sha256_init(&s);
        for (size_t i = 0; i < n; i++) {
            sha256_add(&s, (csn_bytes){data + i, 1});
        }
        sha256_end(&s, parts);
        assert_memory_equal(once, parts, 32);
    }
}

static void derived_ids_are_uuids_of_version_8(void **state) {
    (void)state;
    uint8_t d[32];
    for (int i = 0; i < 32; i++) {
        d[i] = (uint8_t)(0xf0 + i);
    }
    char id[37];
    sha256_uuid(d, id);
    assert_string_equal(id, "f0f1f2f3-f4f5-86f7-b8f9-fafbfcfdfeff");
}

static void errors_are_sorted_and_whole(void **state) {
    (void)state;
    int32_t last = 0;
    for (size_t i = 0; error_at(i); i++) {
        const struct error_row *e = error_at(i);
        assert_true(e->number > last);
        assert_in_range(e->number, 1001, 9999);
        last = e->number;
        assert_ptr_equal(error_find(e->number), e);
        assert_in_range(e->exit_code, 64, 78);
        for (int l = 0; l < LANG_NR; l++) {
            assert_true(strlen(e->title[l]) > 3);
            assert_true(strlen(e->help[l]) > 3);
        }
    }
    assert_true(last > 0);
    assert_null(error_find(1));
}

static void errors_are_filled_and_prefixed(void **state) {
    (void)state;
    csn_error e;
    assert_int_equal(error_set(&e, CSN_AGAIN, ERR_STORE_FULL, "%s is full", "disk"), CSN_AGAIN);
    assert_int_equal(error_prefix(&e, "claim"), CSN_AGAIN);
    assert_string_equal(e.text, "claim: disk is full");
    assert_int_equal(e.code, 2007);
    for (int i = 0; i < 100; i++) {
        error_prefix(&e, "认领");
    }
    assert_in_range(strlen(e.text), sizeof e.text - 8, sizeof e.text - 1);
    assert_int_equal(error_set(&e, CSN_FATAL, 9001, "again: %s", e.text), CSN_FATAL);
    assert_memory_equal(e.text, "again: ", 7);
    assert_int_equal(error_set(NULL, CSN_REJECTED, 0, "nobody listens"), CSN_REJECTED);
    error_clear(&e);
    assert_int_equal(e.status, CSN_OK);
    assert_string_equal(status_name(CSN_AGAIN), "again");
    assert_string_equal(status_name(99), "?");
}

/* "%-5s: %lu" becomes "s lu": what printf takes from its arguments, in order. Stars take one, too.
 * A percent sign that starts no conversion is a '!': such a row is plain text, never a format, and
 * must have no conversion. */
static void conversions(const char *format, char *ret, size_t size) {
    struct text t;
    text_init(&t, ret, size);
    for (const char *p = strchr(format, '%'); p; p = strchr(p, '%')) {
        p++;
        for (; *p && strchr("-+#0123456789.*lhzjt", *p); p++) {
            if (strchr("*lhzjt", *p)) {
                text_add(&t, "%c", *p);
            }
        }
        bool known = *p && strchr("diouxXcsfgep", *p);
        if (*p == '%') {
            p++;
        } else {
            text_add(&t, "%c ", known ? *p : '!');
        }
    }
    assert_false(t.full);
}

static void messages_take_the_same_arguments_in_both_languages(void **state) {
    (void)state;
    for (int i = 0; i < MSG_NR; i++) {
        char en[256], zh[256];
        const char *first = message_in((enum message_id)i, LANG_EN);
        const char *second = message_in((enum message_id)i, LANG_ZH);
        assert_true(*first != '\0' && *second != '\0');
        conversions(first, en, sizeof en);
        conversions(second, zh, sizeof zh);
        bool mixed = strchr(en, '!') && strspn(en, "! ") != strlen(en);
        if (strcmp(en, zh) != 0 || mixed) {
            fail_msg("\"%s\" takes %s, \"%s\" takes %s", first, en, second, zh);
        }
    }
}

static void errors_hold_no_conversions(void **state) {
    (void)state;
    for (size_t i = 0; error_at(i); i++) {
        for (int l = 0; l < LANG_NR; l++) {
            assert_null(strchr(error_at(i)->title[l], '%'));
            assert_null(strchr(error_at(i)->help[l], '%'));
        }
    }
}

static void the_language_is_found(void **state) {
    (void)state;
    enum language l = LANG_EN;
    assert_true(language_find("zh_CN.UTF-8", &l));
    assert_int_equal(l, LANG_ZH);
    assert_true(language_find("C", &l));
    assert_int_equal(l, LANG_EN);
    assert_true(language_find("zh-CN", &l));
    assert_true(language_find("en_US.UTF-8", &l));
    assert_int_equal(l, LANG_EN);
    assert_false(language_find("fr", &l));
    assert_false(language_find(NULL, &l));
    assert_false(language_find("", &l));
    char said[200];
    struct text t;
    text_init(&t, said, sizeof said);
    message_language(LANG_ZH);
    message_add(&t, MSG_DAEMON_CONNECTIONS, "orders", 5u, "heart 1");
    message_language(LANG_EN);
    assert_string_equal(said, "存储 orders：5 个连接（heart 1）");
    assert_string_equal(message((enum message_id)MSG_NR), "");
}

static void counters_are_json_however_short_the_buffer(void **state) {
    (void)state;
    struct counters c;
    memset(&c, 0, sizeof c);
    char out[8192];
    assert_int_equal(counters_json(&c, out, sizeof out), 2);
    assert_string_equal(out, "{}");
    c.claims = 1;
    c.breaker_opened = UINT64_MAX;
    const char whole[] = "{\"claims\":\"1\",\"breaker_opened\":\"18446744073709551615\"}";
    assert_int_equal(counters_json(&c, out, sizeof out), sizeof whole - 1);
    assert_string_equal(out, whole);
    for (size_t size = 3; size < sizeof whole; size++) {
        size_t n = counters_json(&c, out, size);
        assert_true(n < size && out[n] == '\0');
        assert_int_equal(out[n - 1], '}');
        assert_true(strcmp(out, "{}") == 0 || strcmp(out, "{\"claims\":\"1\"}") == 0);
    }
    assert_int_equal(counters_json(&c, out, 2), 0);
    memset(&c, 0xff, sizeof c);
    assert_true(counters_json(&c, out, sizeof out) > 0);
    assert_non_null(strstr(out, "breaker_opened"));
    for (size_t i = 0; counter_name(i); i++) {
        assert_true(strlen(counter_help(i)) > 5);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digests_are_sha256),
        cmocka_unit_test(digests_do_not_depend_on_the_cut),
        cmocka_unit_test(derived_ids_are_uuids_of_version_8),
        cmocka_unit_test(errors_are_sorted_and_whole),
        cmocka_unit_test(errors_are_filled_and_prefixed),
        cmocka_unit_test(messages_take_the_same_arguments_in_both_languages),
        cmocka_unit_test(errors_hold_no_conversions),
        cmocka_unit_test(the_language_is_found),
        cmocka_unit_test(counters_are_json_however_short_the_buffer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
