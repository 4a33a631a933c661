/* test_fields.c: notes of the core become fields of a log line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "host/fields.h"

/* "key:type:value|…", to compare at once. */
static void shown(const char *text, char *ret, size_t size) {
    struct fields f;
    struct text t;
    text_init(&t, ret, size);
    fields_of(text, &f);
    for (const struct log_field *p = f.field; p->type != LOG_END; p++) {
        text_add(&t, "%s%s=", t.used ? "|" : "", p->key);
        if (p->type == LOG_INT) {
            text_add(&t, "#%lld", (long long)p->num);
        } else if (p->type == LOG_STR) {
            text_add(&t, "%s", p->str);
        } else {
            text_add_bytes(&t, p->bytes);
        }
    }
    assert_false(t.full);
}

static void notes_come_apart(void **state) {
    (void)state;
    static const struct {
        const char *text, *fields;
    } row[] = {
        {"store=orders rows=3", "store=orders|rows=#3"},
        {"error=\"disk is full\"", "error=disk is full"},
        {"a=1 error=\"say \"no\" twice\" b=-2", "a=#1|error=say \"no\" twice|b=#-2"},
        {"error=\"ends with a quote\"\"", "error=ends with a quote\""},
        {"error=\"never closed", "error=never closed"},
        {"token=0012 id=12345678901234567890", "token=0012|id=12345678901234567890"},
        {"why=two words without quotes n=0", "why=two words without quotes|n=#0"},
        {"empty= next=\"\" last=-", "empty=|next=|last=-"},
        {"just a sentence", "text=just a sentence"},
        {"", ""},
    };
    for (size_t i = 0; i < ARRAY_LEN(row); i++) {
        char got[400];
        shown(row[i].text, got, sizeof got);
        assert_string_equal(got, row[i].fields);
    }
}

static void too_much_is_kept_as_text(void **state) {
    (void)state;
    char text[2000], got[4000];
    struct text t;
    text_init(&t, text, sizeof text);
    for (int i = 0; i < 40; i++) {
        text_add(&t, "a_rather_long_key_%d=%d ", i, i);
    }
    shown(text, got, sizeof got);
    assert_non_null(strstr(got, "a_rather_long_key_0=#0|"));
    assert_non_null(strstr(got, "|text=a_rather_long_key_"));
    assert_non_null(strstr(got, "a_rather_long_key_39=39"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(notes_come_apart),
        cmocka_unit_test(too_much_is_kept_as_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
