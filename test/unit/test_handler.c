/* test_handler.c: the form of a handler file: what a good one becomes, and where each mistake is
 * shown. */
#include "core/handler.h"
#include "core/template.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static char report_buffer[16384];

static csn_status parse(const char *file, struct sql_handler *h, csn_error *err) {
    struct text report;
    memset(report_buffer, 0, sizeof report_buffer);
    text_init(&report, report_buffer, sizeof report_buffer);
    memset(h, 0, sizeof *h);
    return sql_handler_parse("h.sql", bytes_of(file), h, &report, err);
}

static const char good[] =
    "\xef\xbb\xbf/* any words -- verdict is no directive here */\n"
    "-- a remark\n"
    "-- handler reserve\n"
    "UPDATE stock SET available = available - :payload.qty\n"
    "  WHERE sku = :payload.sku AND \"a:event_id\" = ':event_id; ''x' AND t::text > 1 -- :nope ;\n"
    "    AND available >= :payload.qty; -- a remark after it\n"
    "-- expect rows 1 else goto reject\n"
    "\n"
    "INSERT INTO journal(id, 品名) VALUES (:event_id, '已预占');\r\n"
    "-- expect rows >= 1\n"
    "-- emit InventoryReserved for stock :payload.sku payload {\"order\": :aggregate_id, "
    "\"t\":[1,null], \"q\"::payload.qty, "
    "\"s\": \"of :payload.sku!\"}\n"
    "-- verdict done \"took :payload.qty of :payload.sku\"\n"
    "-- label reject\n"
    "-- verdict refused\n";

static void test_good(void **state) {
    (void)state;
    struct sql_handler h;
    csn_error err = {0};
    assert_int_equal(parse(good, &h, &err), CSN_OK);
    assert_string_equal(report_buffer, "");
    assert_string_equal(h.name, "reserve");
    assert_string_equal(h.path, "h.sql");
    assert_int_equal(h.steps, 5);

    const struct step *s = h.step;
    assert_int_equal(s->kind, STEP_SQL);
    assert_int_equal(s->line, 4);
    assert_int_equal(s->binds, 3);
    assert_string_equal(s->bind[0].name, "payload.qty");
    assert_string_equal(s->bind[1].name, "payload.sku");
    for (uint32_t i = 0; i < s->binds; i++)
        assert_memory_equal(s->text + s->bind[i].offset + 1, s->bind[i].name, s->bind[i].size - 1);
    assert_true(s->expects);
    assert_false(s->at_least);
    assert_int_equal(s->rows, 1);
    assert_int_equal(s->otherwise, 4);

    assert_true(s[1].expects && s[1].at_least);
    assert_int_equal(s[1].otherwise, -1);
    assert_int_equal(s[1].line, 9);
    assert_int_equal(s[1].binds, 1);

    assert_int_equal(s[2].kind, STEP_EMIT);
    assert_string_equal(s[2].event_type, "InventoryReserved");
    assert_string_equal(s[2].aggregate_type, "stock");
    assert_string_equal(s[2].key->name, "payload.sku");
    assert_int_equal(s[2].binds, 3);
    assert_string_equal(s[2].bind[2].name, "payload.sku");

    assert_int_equal(s[3].verdict, CSN_DONE);
    assert_string_equal(s[3].text, "took :payload.qty of :payload.sku");
    assert_int_equal(s[3].binds, 2);
    assert_int_equal(s[4].verdict, CSN_REFUSED);
    assert_null(s[4].text);
    sql_handler_free(&h);
    sql_handler_free(&h); /* twice is once */
}

struct mistake {
    const char *file, *place, *says; /* place: "h.sql:line:column:" */
};

#define HEAD "-- handler a\n"
#define END  "-- verdict done\n"

static const struct mistake mistakes[] = {
    {"", "h.sql:1:1:", "must begin with"},
    {"-- verdict done\n", "h.sql:1:1:", "must begin with"},
    {"-- handler a b\n" END, "h.sql:1:12:", "write a name"},
    {HEAD "-- handler b\n" END, "h.sql:2:1:", "one handler"},
    {HEAD "UPDATE t SET a = :evnt_id;\n" END,
     "h.sql:2:18:", "no value is named :evnt_id; did you mean event_id?"},
    {HEAD "UPDATE t SET a = :paylod.x;\n" END, "h.sql:2:18:", "did you mean payload?"},
    {HEAD "UPDATE t SET a = ?;\n" END, "h.sql:2:18:", "by name"},
    {HEAD "UPDATE t SET a = $1;\n" END, "h.sql:2:18:", "by name"},
    {HEAD "UPDATE t SET a = 1\n" END, "h.sql:2:1:", "no ; at the end of a line"},
    {HEAD "UPDATE t SET a = 1;\nUPDATE t", "h.sql:3:1:", "no ; at the end of a line"},
    {HEAD "UPDATE t SET a = 'x;\n" END, "h.sql:2:18:", "not closed"},
    {HEAD "/* x\n" END, "h.sql:2:1:", "not closed"},
    {HEAD "UPDATE t SET a = 1; UPDATE u SET b = 1;\n" END, "h.sql:2:21:", "nothing may follow"},
    {HEAD ";\n" END, "h.sql:2:1:", "no statement before"},
    {HEAD "commit;\n" END, "h.sql:2:1:", "COMMIT is refused"},
    {HEAD "/* x */ Begin;\n" END, "h.sql:2:9:", "BEGIN is refused"},
    {HEAD "ROLLBACK TO x;\n" END, "h.sql:2:1:", "ROLLBACK is refused"},
    {HEAD "SAVEPOINT x;\n" END, "h.sql:2:1:", "SAVEPOINT is refused"},
    {HEAD "RELEASE x;\n" END, "h.sql:2:1:", "RELEASE is refused"},
    {HEAD "ATTACH 'x' AS y;\n" END, "h.sql:2:1:", "ATTACH is refused"},
    {HEAD "DETACH y;\n" END, "h.sql:2:1:", "DETACH is refused"},
    {HEAD "PRAGMA foreign_keys = 0;\n" END, "h.sql:2:1:", "PRAGMA is refused"},
    {HEAD "VACUUM;\n" END, "h.sql:2:1:", "VACUUM is refused"},
    {HEAD "DROP TABLE t;\n" END, "h.sql:2:1:", "DROP is refused"},
    {HEAD "-- expect rows 1\n" END, "h.sql:2:1:", "right after a statement"},
    {HEAD "UPDATE t SET a = 1;\n-- expect rows 1\n-- expect rows 1\n" END,
     "h.sql:4:1:", "right after a statement"},
    {HEAD "UPDATE t SET a = 1;\n-- expect rows one\n" END, "h.sql:3:11:", "write: -- expect"},
    {HEAD "UPDATE t SET a = 1;\n-- expect 1\n" END, "h.sql:3:11:", "write: -- expect"},
    {HEAD "UPDATE t SET a = 1;\n-- expect rows 1 else reject\n" END,
     "h.sql:3:11:", "write: -- expect"},
    {HEAD "UPDATE t SET a = 1;\n-- expect rows 1 else goto rejct\n" END "-- label reject\n" END,
     "h.sql:3:28:", "no label is named rejct; did you mean reject?"},
    {HEAD "-- label back\nUPDATE t SET a = 1;\n-- expect rows 1 else goto back\n" END,
     "h.sql:4:28:", "forwards only"},
    {HEAD "-- label x\n-- label x\n" END, "h.sql:3:10:", "there already"},
    {HEAD "-- label a b\n" END, "h.sql:2:10:", "write: -- label"},
    {HEAD "-- verdict don\n", "h.sql:2:12:", "no verdict is named don; did you mean done?"},
    {HEAD "-- verdict\n", "h.sql:2:11:", "write: -- verdict"},
    {HEAD "-- verdict done because\n", "h.sql:2:17:", "write: -- verdict"},
    {HEAD "-- verdict done \"it is :nothing\"\n", "h.sql:2:24:", "no value is named :nothing"},
    {HEAD "UPDATE t SET a = 1;\n", "h.sql:2:1:", "without a verdict"},
    {HEAD "-- emit A for b :event_id payload {}\n", "h.sql:2:1:", "without a verdict"},
    {HEAD "UPDATE t SET a = 1;\n-- expect rows 1 else goto x\n" END "-- label x\n",
     "h.sql:5:10:", "without a verdict"},
    {HEAD END "UPDATE t SET a = 1;\n" END, "h.sql:3:1:", "no path leads"},
    {HEAD "-- emit A b :event_id payload {}\n" END, "h.sql:2:9:", "write: -- emit"},
    {HEAD "-- emit A for b event_id payload {}\n" END, "h.sql:2:9:", "write: -- emit"},
    {HEAD "-- emit A for b :event_ payload {}\n" END, "h.sql:2:17:", "no value is named"},
    {HEAD "-- emit A for b :event_id payload {\"a\": tru}\n" END, "h.sql:2:41:", "not JSON"},
    {HEAD "-- emit A for b :event_id payload\n" END, "h.sql:2:34:", "not JSON"},
    {HEAD "-- emit A for b :event_id payload {\"a\": :payload.}\n" END, "h.sql:2:49:", "not JSON"},
    {HEAD "-- emit A for b :event_id payload {} x\n" END, "h.sql:2:38:", "not JSON"},
    {HEAD "-- emit A for b :event_id payload {:event_id: 1}\n" END, "h.sql:2:36:", "not JSON"},
    {HEAD "-- emit A for b :event_id payload {\"a:nope\": 1}\n" END,
     "h.sql:2:38:", "no value is named :nope"},
    {HEAD "-- expcet rows 1\n" END, "h.sql:2:4:", "looks like a mistyped expect"},
    {HEAD "\tUPDATE 库存 SET a = :x;\n" END, "h.sql:2:20:", "no value is named :x"},
};

static void test_mistakes(void **state) {
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(mistakes); i++) {
        const struct mistake *m = &mistakes[i];
        struct sql_handler h;
        csn_error err = {0};
        csn_status st = parse(m->file, &h, &err);
        const char *line_end = strchr(report_buffer, '\n');
        bool fits = st == CSN_INVALID && err.code == 4001 && err.status == CSN_INVALID &&
                    line_end && strncmp(report_buffer, m->place, strlen(m->place)) == 0 &&
                    strstr(report_buffer, m->says) && strstr(report_buffer, m->says) < line_end &&
                    strncmp(err.text, m->place, strlen(m->place)) == 0;
        if (!fits)
            fail_msg("file:\n%s\nexpected %s %s\nstatus %d code %d said:\n%s", m->file, m->place,
                     m->says, st, err.code, report_buffer);
        /* one mistake in the file, one in the report */
        size_t lines = 0;
        for (const char *s = report_buffer; *s; s++)
            lines += *s == '\n';
        if (lines != 3)
            fail_msg("file:\n%s\nsaid more than one mistake:\n%s", m->file, report_buffer);
        assert_null(h.step);
    }
}

static void test_caret(void **state) {
    (void)state;
    struct sql_handler h;
    csn_error err = {0};
    assert_int_equal(parse(HEAD "\tUPDATE 库存 SET a = :x;\n" END, &h, &err), CSN_INVALID);
    /* a tab for a tab, two columns for a wide character */
    assert_string_equal(report_buffer, "h.sql:2:20: no value is named :x\n"
                                       "  \tUPDATE 库存 SET a = :x;\n"
                                       "  \t                    ^\n");
}

static void test_all_at_once(void **state) {
    (void)state;
    struct sql_handler h;
    csn_error err = {0};
    assert_int_equal(
        parse("UPDATE t SET a = :x, b = :y;\n-- expect rows\nCOMMIT;\n-- verdict dne\n", &h, &err),
        CSN_INVALID);
    const char *place[] = {
        "h.sql:1:1:", "h.sql:1:18:", "h.sql:1:26:", "h.sql:2:", "h.sql:3:1:", "h.sql:4:12:"};
    const char *at = report_buffer;
    for (size_t i = 0; i < ARRAY_LEN(place); i++) {
        at = strstr(at, place[i]);
        assert_non_null(at);
    }
}

static void test_limits(void **state) {
    (void)state;
    struct sql_handler h;
    csn_error err = {0};
    size_t size = HANDLER_FILE_MAX + 1;
    char *big = malloc(size + 1);
    assert_non_null(big);
    memset(big, '\n', size);
    big[size] = 0;
    assert_int_equal(parse(big, &h, &err), CSN_INVALID);
    assert_non_null(strstr(report_buffer, "larger than 262144"));

    struct text t;
    text_init(&t, big, size);
    text_add(&t, HEAD);
    for (int i = 0; i < HANDLER_STEPS_MAX + 5; i++)
        text_add(&t, "UPDATE t SET a = 1;\n-- expect rows 1\n");
    text_add(&t, END);
    assert_int_equal(parse(big, &h, &err), CSN_INVALID);
    assert_non_null(strstr(report_buffer, "h.sql:402:1: more than 200 steps"));

    text_init(&t, big, size);
    text_add(&t, HEAD "UPDATE t SET a = ");
    for (int i = 0; i < HANDLER_BINDS_MAX + 1; i++)
        text_add(&t, ":event_id,");
    text_add(&t, "1;\n" END);
    assert_int_equal(parse(big, &h, &err), CSN_INVALID);
    assert_non_null(strstr(report_buffer, "more than 64 binds"));

    text_init(&t, big, size);
    text_add(&t, HEAD);
    for (int i = 0; i < 60; i++)
        text_add(&t, "-- label\n");
    text_add(&t, END);
    assert_int_equal(parse(big, &h, &err), CSN_INVALID);
    assert_non_null(strstr(report_buffer, "\n10 more mistake(s) not shown\n"));
    free(big);

    struct text report;
    text_init(&report, report_buffer, sizeof report_buffer);
    assert_int_equal(sql_handler_parse("h.sql",
                                       (csn_bytes){HEAD "\0" END, sizeof HEAD + sizeof END - 1}, &h,
                                       &report, &err),
                     CSN_INVALID);
    assert_non_null(strstr(report_buffer, "zero byte"));
}

static void test_no_report(void **state) {
    (void)state;
    struct sql_handler h;
    assert_int_equal(sql_handler_parse("h.sql", bytes_of("-- verdict x\n"), &h, NULL, NULL),
                     CSN_INVALID);
}

static void test_verdicts(void **state) {
    (void)state;
    for (csn_verdict v = CSN_DONE; v <= CSN_OUTCOME_UNKNOWN; v++)
        assert_int_equal(verdict_find(verdict_name(v)), v);
    assert_string_equal(verdict_name(CSN_OUTCOME_UNKNOWN), "unknown");
    assert_string_equal(verdict_name(99), "?");
    assert_int_equal(verdict_find("nothing"), -1);
    assert_int_equal(verdict_find(NULL), -1);
}

static void count(void *arg, size_t offset, size_t size) {
    (void)offset;
    (void)size;
    ++*(int *)arg;
}

static void test_template(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int binds; /* -1: not JSON */
    } row[] = {
        {"1", 0},
        {"-0.5e+10", 0},
        {":a", 1},
        {" [ :a , \":b\" ] ", 2},
        {"{\"a\":true}", 0},
        {"\"::a\"", 0},
        {"\"\\u00e9\"", 0},
        {"\"12:30\"", 0},
        {"{\"k:a\"::b.c}", 2},
        {"01", -1},
        {"[1,]", -1},
        {"{\"a\" 1}", -1},
        {"\"\\x\"", -1},
        {"\"\\u12g4\"", -1},
        {"\"a", -1},
        {"nul", -1},
        {"", -1},
        {":", -1},
        {"[::a]", -1},
        {"1 2", -1},
        {"\"a\nb\"", -1},
        {"1.", -1},
        {"1e", -1},
        {"-", -1},
        {"{\"a\":}", -1},
    };
    for (size_t i = 0; i < ARRAY_LEN(row); i++) {
        int n = 0;
        size_t at = 0;
        bool good_ = template_scan(bytes_of(row[i].text), count, &n, &at);
        if (good_ != (row[i].binds >= 0) || (good_ && n != row[i].binds))
            fail_msg("%s: %d, %d binds", row[i].text, good_, n);
    }
    char deep[80];
    size_t at = 0;
    int n = 0;
    memset(deep, '[', 32);
    memset(deep + 32, ']', 32);
    assert_true(template_scan((csn_bytes){deep, 64}, count, &n, &at));
    memset(deep, '[', 33);
    memset(deep + 33, ']', 33);
    assert_false(template_scan((csn_bytes){deep, 66}, count, &n, &at));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),      cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_caret),     cmocka_unit_test(test_limits),
        cmocka_unit_test(test_no_report), cmocka_unit_test(test_all_at_once),
        cmocka_unit_test(test_verdicts),  cmocka_unit_test(test_template),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
