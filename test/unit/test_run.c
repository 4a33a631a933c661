/* test_run.c: what a handler makes of an event, against a store that only writes down what it is
 * asked. */
#include "store/run.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* A store that answers with given counts of rows and keeps a log, one line for each call. */
struct log_store {
    char log[4096];
    struct text out;
    int64_t rows[8];
    uint32_t calls;
    csn_status fail; /* of the fail_at-th statement */
    uint32_t fail_at;
    char ids[8][TOKEN_SIZE];
    uint32_t events;
};

static void log_value(struct text *t, const struct value *v) {
    if (v->kind == VALUE_NULL)
        text_add(t, " NULL");
    else if (v->kind == VALUE_INT)
        text_add(t, " %lld", (long long)v->integer);
    else if (v->kind == VALUE_REAL)
        text_add(t, " %.3f", v->real);
    else
        text_add(t, " '%.*s'", (int)v->text.size, (const char *)v->text.data);
}

static csn_status log_sql(void *conn, const struct step *s, const struct value *values,
                          int64_t *ret_rows, csn_error *err) {
    struct log_store *l = conn;
    uint32_t call = l->calls++;
    text_add(&l->out, "sql %u:", s->line);
    for (uint32_t i = 0; i < s->binds; i++)
        log_value(&l->out, &values[i]);
    text_add(&l->out, "\n");
    if (l->fail && call == l->fail_at)
        return error_set(err, l->fail, 2010, "it failed");
    *ret_rows = l->rows[call];
    return CSN_OK;
}

static csn_status log_emit(void *conn, const struct result_event *e, csn_error *err) {
    struct log_store *l = conn;
    (void)err;
    copy_text(l->ids[l->events++], TOKEN_SIZE, e->event_id);
    text_add(&l->out, "emit %s %s %.*s %.*s because %.*s\n", e->event_type, e->aggregate_type,
             (int)e->aggregate_id.size, (const char *)e->aggregate_id.data, (int)e->payload.size,
             (const char *)e->payload.data, (int)e->causation_id.size,
             (const char *)e->causation_id.data);
    return CSN_OK;
}

static struct handler_outcome out;
static csn_error error;

static csn_status run_message(const char *file, struct log_store *l, const struct message *m) {
    struct sql_handler h;
    char buffer[2048] = "";
    struct text report;
    text_init(&report, buffer, sizeof buffer);
    text_init(&l->out, l->log, sizeof l->log);
    if (sql_handler_parse("h.sql", bytes_of(file), &h, &report, &error) != CSN_OK)
        fail_msg("%s", buffer);
    struct handler_store store = {.conn = l, .sql = log_sql, .emit = log_emit};
    csn_status st = handler_run(&h, &store, "stock", m, &out, &error);
    sql_handler_free(&h);
    return st;
}

static struct message message_of(const char *payload) {
    return (struct message){.id = bytes_of("e-1"),
                            .aggregate_type = bytes_of("order"),
                            .aggregate_id = bytes_of("7"),
                            .event_type = bytes_of("OrderCreated"),
                            .payload = bytes_of(payload),
                            .version = 3,
                            .schema_version = 2,
                            .correlation_id = bytes_of("c-1")};
}

static csn_status run(const char *file, struct log_store *l, const char *payload) {
    struct message m = message_of(payload);
    return run_message(file, l, &m);
}

#define HEAD "-- handler h\n"

static void test_binds(void **state) {
    (void)state;
    struct log_store l = {.rows = {1}};
    assert_int_equal(
        run(HEAD
            "INSERT INTO t VALUES (:event_id, :aggregate_type, :aggregate_id, :aggregate_version, "
            ":event_type, :schema_version, :tenant, :correlation_id, :consumer_name, :payload.n, "
            ":payload.o.a.1, :payload.s, :payload.t, :payload.f, :payload.none, :payload.o, "
            ":payload.r);\n"
            "-- verdict done\n",
            &l,
            "{\"n\": 9007199254740993, \"o\": {\"a\": [1, \"二\"]}, \"s\": \"x\", \"t\": true, "
            "\"f\": false, "
            "\"none\": null, \"r\": 19.9}"),
        CSN_OK);
    assert_string_equal(l.log, "sql 2: 'e-1' 'order' '7' 3 'OrderCreated' 2 NULL 'c-1' 'stock' "
                               "9007199254740993 '二' 'x' 1 0 "
                               "NULL '{\"a\":[1,\"二\"]}' 19.900\n");
    assert_int_equal(out.verdict, CSN_DONE);
    assert_int_equal(out.code, 0);
    assert_string_equal(out.text, "");
}

static const char two_ways[] =
    HEAD "UPDATE stock SET n = n - :payload.qty;\n"
         "-- expect rows 1 else goto reject\n"
         "-- emit Reserved for stock :payload.sku payload {\"q\": :payload.qty}\n"
         "-- verdict done \"took :payload.qty\"\n"
         "-- label reject\n"
         "-- emit Rejected for stock :payload.sku payload {}\n"
         "-- verdict refused\n";

static void test_paths(void **state) {
    (void)state;
    struct log_store yes = {.rows = {1}}, no = {.rows = {0}}, again = {.rows = {1}};
    assert_int_equal(run(two_ways, &yes, "{\"sku\":\"A\",\"qty\":2}"), CSN_OK);
    assert_string_equal(yes.log, "sql 2: 2\nemit Reserved stock A {\"q\": 2} because e-1\n");
    assert_int_equal(out.verdict, CSN_DONE);
    assert_string_equal(out.text, "took 2");
    assert_int_equal(out.emitted, 1);

    assert_int_equal(run(two_ways, &no, "{\"sku\":\"A\",\"qty\":2}"), CSN_OK);
    assert_string_equal(no.log, "sql 2: 2\nemit Rejected stock A {} because e-1\n");
    assert_int_equal(out.verdict, CSN_REFUSED);

    /* the same try has the same id, another path another one */
    assert_int_equal(run(two_ways, &again, "{\"sku\":\"A\",\"qty\":2}"), CSN_OK);
    assert_string_equal(yes.ids[0], again.ids[0]);
    assert_string_not_equal(yes.ids[0], no.ids[0]);
    assert_int_equal(strlen(yes.ids[0]), 36);
    assert_int_equal(yes.ids[0][14], '8');
}

static void test_expectations(void **state) {
    (void)state;
    static const struct {
        const char *expect;
        int64_t rows;
        csn_verdict verdict;
    } row[] = {
        {"rows 1", 1, CSN_DONE},     {"rows 1", 2, CSN_RETRY},   {"rows 0", 0, CSN_DONE},
        {"rows 0", 1, CSN_RETRY},    {"rows >= 2", 2, CSN_DONE}, {"rows >= 2", 9, CSN_DONE},
        {"rows >= 2", 1, CSN_RETRY},
    };
    for (size_t i = 0; i < ARRAY_LEN(row); i++) {
        char file[200];
        struct log_store l = {.rows = {row[i].rows}};
        snprintf(file, sizeof file, HEAD "UPDATE t SET a = 1;\n-- expect %s\n-- verdict done\n",
                 row[i].expect);
        assert_int_equal(run(file, &l, "{}"), CSN_OK);
        assert_int_equal(out.verdict, row[i].verdict);
        assert_int_equal(out.code, row[i].verdict == CSN_RETRY ? 4008 : 0);
    }
    assert_string_equal(out.text, "h:2: rows >= 2 expected, 1 found");
}

static void test_poison(void **state) {
    (void)state;
    static const struct {
        const char *payload;
        int32_t code;
        const char *says;
    } row[] = {
        {"{\"qty\":1}", 4003, "the payload lacks sku"},
        {"{\"qty\":1,\"sku\":null}", 4003, "is empty: payload.sku"},
        {"[]", 4003, "the payload lacks qty"},
        {"", 4004, "not JSON"},
        {"{\"qty\":1", 4004, "not JSON"},
        {"{\"qty\":18446744073709551616}", 4004, "beyond 64 bits"},
    };
    for (size_t i = 0; i < ARRAY_LEN(row); i++) {
        struct log_store l = {.rows = {1}};
        assert_int_equal(run(two_ways, &l, row[i].payload), CSN_OK);
        if (out.verdict != CSN_POISON || out.code != row[i].code || !strstr(out.text, row[i].says))
            fail_msg("%s: verdict %d code %d %s", row[i].payload, out.verdict, out.code, out.text);
        assert_int_equal(out.emitted, 0);
    }
}

static void test_template(void **state) {
    (void)state;
    struct log_store l = {0};
    assert_int_equal(
        run(HEAD
            "-- emit E for a :payload.n payload {\"a\": :payload.s, \"b\": "
            "\"<:payload.s|:payload.t|:payload.none|:tenant>\", "
            "\"c\"::payload.o, \"d\": :payload.none, \"e\": :tenant, \"f\": :payload.t, \"g\": "
            ":payload.r, \"h\": "
            ":aggregate_version, \"i:payload.n\": [:payload.n, :payload.w], \"j\": :payload.big}\n"
            "-- emit P for a :event_id payload :payload\n-- verdict done\n",
            &l,
            "{\"s\":\"q\\\"\\\\\\n\\u0001é\",\"o\":{\"x\":[1.5,{}],\"y\":\"z\\\"\"},\"none\":null,"
            "\"t\":true,\"r\":19.9,\"n\":12, "
            "\"w\": 5.0, \"big\": -9223372036854775808}"),
        CSN_OK);
    assert_string_equal(l.log,
                        "emit E a 12 {\"a\": \"q\\\"\\\\\\u000a\\u0001é\", \"b\": "
                        "\"<q\\\"\\\\\\u000a\\u0001é|true||>\", \"c\":{\"x\":[1.5,{}],"
                        "\"y\":\"z\\\"\"}, \"d\": null, \"e\": null, \"f\": true, \"g\": 19.9, "
                        "\"h\": 3, \"i12\": [12, 5.0], "
                        "\"j\": -9223372036854775808} because e-1\n"
                        "emit P a e-1 "
                        "{\"s\":\"q\\\"\\\\\\n\\u0001é\",\"o\":{\"x\":[1.5,{}],\"y\":\"z\\\"\"},"
                        "\"none\":null,\"t\":true,\"r\":19.9,"
                        "\"n\":12, \"w\": 5.0, \"big\": -9223372036854775808} because e-1\n");
}

static void test_failures(void **state) {
    (void)state;
    struct log_store own = {.fail = CSN_REJECTED}, full = {.fail = CSN_AGAIN},
                     bad = {.fail = CSN_FATAL};
    const char *file = HEAD "UPDATE t SET a = 1;\n-- verdict done\n";
    assert_int_equal(run(file, &own, "{}"), CSN_OK);
    assert_int_equal(out.verdict, CSN_RETRY);
    assert_int_equal(out.code, 4002);
    assert_string_equal(out.text, "h:2: it failed");
    assert_int_equal(run(file, &full, "{}"), CSN_AGAIN);
    assert_int_equal(error.status, CSN_AGAIN);
    assert_int_equal(run(file, &bad, "{}"), CSN_FATAL);
}

static void test_verdicts(void **state) {
    (void)state;
    static const struct {
        const char *name;
        csn_verdict verdict;
        int32_t code;
    } row[] = {
        {"done", CSN_DONE, 0},
        {"refused", CSN_REFUSED, 0},
        {"duplicate", CSN_DUPLICATE, 0},
        {"late", CSN_LATE, 0},
        {"early", CSN_EARLY, 4010},
        {"conflict", CSN_CONFLICT, 4007},
        {"poison", CSN_POISON, 4006},
        {"retry", CSN_RETRY, 4008},
        {"unknown", CSN_OUTCOME_UNKNOWN, 4009},
    };
    for (size_t i = 0; i < ARRAY_LEN(row); i++) {
        char file[100];
        struct log_store l = {0};
        snprintf(file, sizeof file, HEAD "-- verdict %s\n", row[i].name);
        assert_int_equal(run(file, &l, "{}"), CSN_OK);
        assert_int_equal(out.verdict, row[i].verdict);
        assert_int_equal(out.code, row[i].code);
        assert_int_equal(out.text[0] != 0, row[i].code != 0);
    }
}

static void test_digest(void **state) {
    (void)state;
    char base[65], other[65];
    struct message m = message_of("{}");
    message_digest(&m, base);
    assert_int_equal(strlen(base), 64);
    struct message change[] = {m, m, m, m, m};
    change[0].event_type = bytes_of("OrderCreate");
    change[1].schema_version = 3;
    change[2].aggregate_type = bytes_of("orde");
    change[2].aggregate_id = bytes_of("r7"); /* the same bytes in a row */
    change[3].payload = bytes_of("{} ");
    change[4].aggregate_id = bytes_of("8");
    for (size_t i = 0; i < ARRAY_LEN(change); i++) {
        message_digest(&change[i], other);
        assert_string_not_equal(base, other);
    }
    m.id = bytes_of("another"); /* what the transport may change is no part of it */
    m.attempts = 5;
    m.lane = 3;
    message_digest(&m, other);
    assert_string_equal(base, other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_binds),        cmocka_unit_test(test_paths),
        cmocka_unit_test(test_expectations), cmocka_unit_test(test_poison),
        cmocka_unit_test(test_template),     cmocka_unit_test(test_failures),
        cmocka_unit_test(test_verdicts),     cmocka_unit_test(test_digest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
