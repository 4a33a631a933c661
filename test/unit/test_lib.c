/* test_lib.c: the library as a program sees it: publishing in a transaction of its own, requests,
 * versions, hostile arguments; a service with functions as handlers, and functions that kill their
 * process. */
#include "base/error.h"
#include "host/clock.h"
#include "store/store.h"
#include <consign/consign.h>
#include <consign/sqlite.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

struct place {
    char dir[64], path[128], url[160], config[128];
    sqlite3 *db;
    csn_tx tx;
    csn_error err;
};

/* ---- kit ---- */

static void sql(struct place *p, const char *text) {
    char *why = NULL;
    if (sqlite3_exec(p->db, text, NULL, NULL, &why) != SQLITE_OK)
        fail_msg("%s: %s", text, why);
}

static int64_t number(struct place *p, const char *text) {
    sqlite3_stmt *s = NULL;
    if (sqlite3_prepare_v2(p->db, text, -1, &s, NULL) != SQLITE_OK)
        fail_msg("%s: %s", text, sqlite3_errmsg(p->db));
    int64_t n = sqlite3_step(s) == SQLITE_ROW ? sqlite3_column_int64(s, 0) : -1;
    sqlite3_finalize(s);
    return n;
}

static void is_text(struct place *p, const char *text, const char *expected) {
    sqlite3_stmt *s = NULL;
    assert_int_equal(sqlite3_prepare_v2(p->db, text, -1, &s, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(s), SQLITE_ROW);
    const char *got = (const char *)sqlite3_column_text(s, 0);
    assert_string_equal(got ? got : "NULL", expected);
    sqlite3_finalize(s);
}

static const char config_text[] = "stores: { shop: { url: sqlite:shop.db } }\n"
                                  "brokers: { local: { type: embedded, store: shop } }\n"
                                  "subscriptions:\n"
                                  "  stock:\n"
                                  "    from: { broker: local }\n"
                                  "    store: shop\n"
                                  "    match: Order*\n"
                                  "    handler: application\n"
                                  "    retry: { base: 1ms, max: 10ms, failures: 2 }\n"
                                  "relay: { probe: { min: 1ms, max: 10ms } }\n"
                                  "log: { level: error }\n";

static int set_up(void **state) {
    struct place *p = calloc(1, sizeof *p);
    snprintf(p->dir, sizeof p->dir, "/tmp/consign-lib-XXXXXX");
    assert_non_null(mkdtemp(p->dir));
    snprintf(p->path, sizeof p->path, "%s/shop.db", p->dir);
    snprintf(p->url, sizeof p->url, "sqlite:%s", p->path);
    snprintf(p->config, sizeof p->config, "%s/consign.yaml", p->dir);
    assert_int_equal(schema_apply(p->url, &p->err), CSN_OK);
    FILE *f = fopen(p->config, "w");
    assert_non_null(f);
    fputs(config_text, f);
    fclose(f);
    assert_int_equal(sqlite3_open(p->path, &p->db), SQLITE_OK);
    sqlite3_busy_timeout(p->db, 60000);
    sql(p, "CREATE TABLE effects (event_id TEXT PRIMARY KEY, payload TEXT)");
    p->tx = csn_sqlite_tx(p->db);
    *state = p;
    return 0;
}

static int tear_down(void **state) {
    static const char *const suffix[] = {"", "-wal", "-shm"};
    struct place *p = *state;
    char path[160];
    sqlite3_close(p->db);
    for (size_t i = 0; i < ARRAY_LEN(suffix); i++) {
        snprintf(path, sizeof path, "%s%s", p->path, suffix[i]);
        unlink(path);
    }
    unlink(p->config);
    rmdir(p->dir);
    free(p);
    return 0;
}

static csn_event event(const char *key, const char *type, const char *payload) {
    return (csn_event){.size = sizeof(csn_event),
                       .aggregate_type = "order",
                       .aggregate_id = key,
                       .event_type = type,
                       .payload = {payload, strlen(payload)}};
}

static void publish(struct place *p, const csn_event *e, char id[CSN_ID_SIZE]) {
    if (csn_publish(&p->tx, e, id, CSN_ID_SIZE, &p->err) != CSN_OK)
        fail_msg("%s", p->err.text);
}

/* ---- sending ---- */

static void an_event_shares_the_fate_of_its_transaction(void **state) {
    struct place *p = *state;
    csn_event e = event("9001", "OrderCreated", "{\"qty\":1}");
    char id[CSN_ID_SIZE], second[CSN_ID_SIZE];
    sql(p, "BEGIN IMMEDIATE");
    publish(p, &e, id);
    sql(p, "ROLLBACK");
    assert_int_equal(csn_lookup(&p->tx, id, &p->err), CSN_REJECTED);
    assert_int_equal(p->err.code, ERR_NOT_FOUND);
    assert_int_equal(number(p, "SELECT count(*) FROM outbox_events"), 0);
    sql(p, "BEGIN IMMEDIATE");
    publish(p, &e, id);
    publish(p, &e, second);
    assert_int_equal(sqlite3_get_autocommit(p->db), 0); /* the caller's transaction is as it was */
    sql(p, "COMMIT");
    assert_string_not_equal(id, second);
    assert_int_equal(id[14], '7');
    assert_int_equal(csn_lookup(&p->tx, id, &p->err), CSN_OK);
    assert_int_equal(number(p, "SELECT sum(aggregate_version) FROM outbox_events"), 1 + 2);
}

static void every_member_gets_to_its_column(void **state) {
    struct place *p = *state;
    csn_event e = event("9001", "OrderCreated", "{\"a\" : 1}");
    e.event_id = "E-1";
    e.aggregate_version = 7;
    e.schema_version = 3;
    e.priority = -2;
    e.headers = (csn_bytes){"{\"h\":1}", 7};
    e.correlation_id = "co";
    e.causation_id = "ca";
    e.traceparent = "tp";
    e.tenant = "te";
    e.expires_in = 60000000;
    sql(p, "BEGIN IMMEDIATE");
    assert_int_equal(csn_publish(&p->tx, &e, NULL, 0, NULL), CSN_OK);
    sql(p, "COMMIT");
    is_text(
        p,
        "SELECT concat.t FROM (SELECT event_id || aggregate_type || aggregate_id || "
        "aggregate_version || event_type || schema_version || payload || priority || headers || "
        "correlation_id || causation_id || traceparent || tenant || status AS t FROM "
        "outbox_events) AS concat",
        "E-1order90017OrderCreated3{\"a\" : 1}-2{\"h\":1}cocatptepending");
    assert_int_equal(number(p, "SELECT expires_at - created_at FROM outbox_events"), 60000000);
    assert_int_equal(number(p, "SELECT next_attempt_at = created_at FROM outbox_events"), 1);
}

static void a_wrong_argument_is_named_and_nothing_is_written(void **state) {
    struct place *p = *state;
    char long_text[600], id[CSN_ID_SIZE];
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    csn_event e[16];
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(e); i++)
        e[i] = event("k", "T", "{}");
    e[n++].event_type = NULL;
    e[n++].event_type = "";
    e[n++].event_type = long_text;
    e[n++].aggregate_type = long_text;
    e[n++].aggregate_id = NULL;
    e[n++].aggregate_id = "";
    e[n++].aggregate_id = long_text;
    e[n++].event_id = "";
    e[n++].event_id = "with blank";
    e[n++].event_id = long_text;
    e[n++].size = 8;
    e[n++].payload = (csn_bytes){NULL, 2};
    e[n++].payload = (csn_bytes){"x", 262145};
    e[n++].tenant = long_text;
    e[n++].expires_in = -1;
    e[n++].aggregate_version = UINT64_MAX;
    sql(p, "BEGIN IMMEDIATE");
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(csn_publish(&p->tx, &e[i], id, sizeof id, &p->err), CSN_INVALID);
        assert_int_equal(p->err.code, ERR_ARGUMENT);
        assert_int_equal(p->err.status, CSN_INVALID);
    }
    e[0] = event("k", "T", "{}");
    assert_int_equal(csn_publish(&p->tx, &e[0], id, 36, &p->err), CSN_INVALID);
    assert_int_equal(csn_publish(&p->tx, NULL, id, sizeof id, &p->err), CSN_INVALID);
    assert_int_equal(csn_publish(NULL, &e[0], id, sizeof id, &p->err), CSN_INVALID);
    csn_tx none = csn_sqlite_tx(NULL);
    assert_int_equal(csn_publish(&none, &e[0], id, sizeof id, &p->err), CSN_INVALID);
    sql(p, "COMMIT");
    assert_int_equal(number(p, "SELECT count(*) FROM outbox_events"), 0);
}

static void a_member_of_a_later_version_must_be_unused(void **state) {
    struct place *p = *state;
    struct {
        csn_event e;
        uint64_t more;
    } later = {event("k", "T", "{}"), 0};
    later.e.size = sizeof later;
    sql(p, "BEGIN IMMEDIATE");
    assert_int_equal(csn_publish(&p->tx, &later.e, NULL, 0, &p->err), CSN_OK);
    later.more = 1;
    assert_int_equal(csn_publish(&p->tx, &later.e, NULL, 0, &p->err), CSN_INVALID);
    sql(p, "COMMIT");
}

static void what_the_table_refuses_says_why(void **state) {
    struct place *p = *state;
    csn_event e = event("k", "T", "{}");
    e.event_id = "twice";
    assert_int_equal(csn_publish(&p->tx, &e, NULL, 0, &p->err), CSN_INVALID);
    assert_int_equal(p->err.code, ERR_NO_TRANSACTION);
    sql(p, "BEGIN IMMEDIATE");
    publish(p, &e, NULL);
    assert_int_equal(csn_publish(&p->tx, &e, NULL, 0, &p->err), CSN_REJECTED);
    assert_int_equal(p->err.code, ERR_EVENT_TWICE);
    e = event("k", "T", "{not json");
    assert_int_equal(csn_publish(&p->tx, &e, NULL, 0, &p->err), CSN_REJECTED);
    assert_non_null(strstr(p->err.text, "csn_payload_json"));
    sql(p, "COMMIT"); /* a refusal leaves the transaction usable */
    assert_int_equal(number(p, "SELECT count(*) FROM outbox_events"), 1);
}

static void a_locked_database_is_again(void **state) {
    struct place *p = *state;
    csn_event e = event("k", "T", "{}");
    sqlite3 *other = NULL;
    assert_int_equal(sqlite3_open(p->path, &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_busy_timeout(p->db, 10);
    sql(p, "BEGIN");
    assert_int_equal(csn_publish(&p->tx, &e, NULL, 0, &p->err), CSN_AGAIN);
    assert_int_equal(p->err.code, ERR_STORE_LOCKED);
    sql(p, "ROLLBACK");
    sqlite3_close(other);
}

static void versions_follow_what_was_written(void **state) {
    struct place *p = *state;
    uint64_t v = 0;
    csn_event e = event("k", "T", "{}");
    e.aggregate_version = 41;
    sql(p, "BEGIN IMMEDIATE");
    publish(p, &e, NULL);
    assert_int_equal(csn_next_version(&p->tx, "order", "k", &v, &p->err), CSN_OK);
    assert_int_equal(v, 42);
    assert_int_equal(csn_next_version(&p->tx, "order", "k", &v, &p->err), CSN_OK);
    assert_int_equal(v, 43);
    assert_int_equal(csn_next_version(&p->tx, NULL, "k", &v, &p->err), CSN_OK);
    assert_int_equal(v, 1);
    sql(p, "ROLLBACK");
    assert_int_equal(csn_next_version(&p->tx, "order", "k", &v, &p->err), CSN_INVALID);
    sql(p, "BEGIN IMMEDIATE");
    assert_int_equal(csn_next_version(&p->tx, "order", "k", &v, &p->err), CSN_OK);
    assert_int_equal(v, 1);
    sql(p, "COMMIT");
}

/* ---- requests ---- */

static csn_status ask(struct place *p, const char *key, const char *parameters, char *answer,
                      size_t size, int32_t *repeated) {
    return csn_request_begin(&p->tx, "place order", key,
                             (csn_bytes){parameters, strlen(parameters)}, answer, size, repeated,
                             &p->err);
}

static void a_repeated_request_gets_the_first_answer(void **state) {
    struct place *p = *state;
    char answer[64];
    int32_t repeated = 7;
    sql(p, "BEGIN IMMEDIATE");
    assert_int_equal(ask(p, "key-1", "A 5", answer, sizeof answer, &repeated), CSN_OK);
    assert_int_equal(repeated, 0);
    sql(p, "ROLLBACK"); /* died before its commit: the same as never asked */
    sql(p, "BEGIN IMMEDIATE");
    assert_int_equal(ask(p, "key-1", "A 5", answer, sizeof answer, &repeated), CSN_OK);
    assert_int_equal(repeated, 0);
    assert_int_equal(csn_request_answer(&p->tx, "place order", "key-1", "9001", &p->err), CSN_OK);
    assert_int_equal(csn_request_answer(&p->tx, "place order", "key-1", "9002", &p->err),
                     CSN_INVALID);
    assert_int_equal(csn_request_answer(&p->tx, "place order", "other", "9001", &p->err),
                     CSN_INVALID);
    sql(p, "COMMIT");
    sql(p, "BEGIN IMMEDIATE");
    assert_int_equal(ask(p, "key-1", "A 5", answer, sizeof answer, &repeated), CSN_OK);
    assert_int_equal(repeated, 1);
    assert_string_equal(answer, "9001");
    assert_int_equal(ask(p, "key-1", "A 6", answer, sizeof answer, &repeated), CSN_REJECTED);
    assert_int_equal(p->err.code, ERR_REQUEST_CONFLICT);
    assert_int_equal(ask(p, "key-1", "A 5", answer, 4, &repeated), CSN_REJECTED);
    assert_int_equal(p->err.code, ERR_ARGUMENT);
    sql(p, "COMMIT");
    assert_int_equal(ask(p, "key-1", "A 5", answer, sizeof answer, &repeated), CSN_INVALID);
}

/* ---- opening ---- */

static const struct csn_driver *const *drivers(void) {
    static const struct csn_driver *list[2];
    list[0] = csn_sqlite_driver();
    return list;
}

static csn_verdict nothing(csn_tx *tx, csn_delivery *d, void *arg, csn_error *err) {
    (void)tx;
    (void)d;
    (void)arg;
    (void)err;
    return CSN_DONE;
}

static void an_open_is_checked(void **state) {
    struct place *p = *state;
    csn *c = NULL;
    const struct csn_driver *none[] = {NULL};
    assert_int_equal(csn_open(p->config, none, &c, &p->err), CSN_INVALID);
    assert_int_equal(csn_open("/nowhere/consign.yaml", drivers(), &c, &p->err), CSN_INVALID);
    assert_int_equal(p->err.code, ERR_CONFIG_NONE);
    assert_int_equal(csn_open(p->config, drivers(), NULL, &p->err), CSN_INVALID);
    struct store_driver other = *(const struct store_driver *)(const void *)csn_sqlite_driver();
    other.version = "0.0.1";
    const struct csn_driver *wrong[] = {(const struct csn_driver *)&other, NULL};
    assert_int_equal(csn_open(p->config, wrong, &c, &p->err), CSN_INVALID);
    assert_int_equal(p->err.code, ERR_LIBRARY_VERSION);
    assert_null(c);
    FILE *f = fopen(p->config, "a");
    fputs("nonsense: 1\n", f);
    fclose(f);
    assert_int_equal(csn_open(p->config, drivers(), &c, &p->err), CSN_INVALID);
    assert_non_null(strstr(p->err.text, "consign.yaml:12"));
}

static void calls_have_their_order(void **state) {
    struct place *p = *state;
    csn *c = NULL;
    csn_subscription s = {sizeof s, "stock", nothing, NULL};
    assert_int_equal(csn_open(p->config, drivers(), &c, &p->err), CSN_OK);
    assert_int_equal(csn_fd(c), -1);
    assert_int_equal(csn_step(c, &p->err), CSN_INVALID);
    assert_int_equal(csn_start(c, &p->err), CSN_INVALID); /* nothing is to be run */
    s.consumer = "nobody";
    assert_int_equal(csn_subscribe(c, &s, &p->err), CSN_INVALID);
    s = (csn_subscription){sizeof s, "stock", NULL, NULL};
    assert_int_equal(csn_subscribe(c, &s, &p->err), CSN_INVALID);
    s.handler = nothing;
    assert_int_equal(csn_subscribe(c, &s, &p->err), CSN_OK);
    assert_int_equal(csn_subscribe(c, &s, &p->err), CSN_INVALID);
    assert_int_equal(csn_start(c, &p->err), CSN_OK);
    assert_int_equal(csn_subscribe(c, &s, &p->err), CSN_INVALID);
    assert_int_equal(csn_serve(c, &p->err), CSN_INVALID);
    assert_int_equal(csn_start(c, &p->err), CSN_INVALID);
    csn_close(c); /* stops what runs */
    csn_close(NULL);
    assert_int_equal(number(p, "SELECT count(*) FROM consign_members WHERE ended_at IS NULL"), 0);
}

/* ---- receiving ---- */

static csn *start(struct place *p, csn_handler *h, void *arg) {
    csn *c = NULL;
    csn_subscription s = {sizeof s, "stock", h, arg};
    if (csn_open(p->config, drivers(), &c, &p->err) != CSN_OK ||
        csn_subscribe(c, &s, &p->err) != CSN_OK || csn_serve(c, &p->err) != CSN_OK ||
        csn_start(c, &p->err) != CSN_OK)
        fail_msg("%s", p->err.text);
    return c;
}

/* Steps until the statement gives this number; a minute at most. */
static void run_until(struct place *p, csn *c, const char *text, int64_t expected) {
    csn_usec until = clock_now() + 60000000;
    while (number(p, text) != expected) {
        struct pollfd fd = {.fd = csn_fd(c), .events = POLLIN};
        if (clock_now() > until)
            fail_msg("%s is %lld", text, (long long)number(p, text));
        (void)poll(&fd, 1, (int)(csn_timeout(c) / 1000) + 1);
        assert_int_equal(csn_step(c, &p->err), CSN_OK);
    }
}

static void write_events(struct place *p, int n, const char *type) {
    sql(p, "BEGIN IMMEDIATE");
    for (int i = 0; i < n; i++) {
        char key[16], id[32];
        snprintf(key, sizeof key, "k%d", i);
        snprintf(id, sizeof id, "%s-%d", type, i);
        csn_event e = event(key, type, "{\"n\":1}");
        e.event_id = id;
        e.correlation_id = "co";
        e.tenant = "te";
        publish(p, &e, NULL);
    }
    sql(p, "COMMIT");
}

static void effect(csn_tx *tx, const csn_event *e) {
    sqlite3_stmt *s = NULL;
    assert_int_equal(
        sqlite3_prepare_v2(csn_sqlite_db(tx), "INSERT INTO effects VALUES (?1, ?2)", -1, &s, NULL),
        SQLITE_OK);
    sqlite3_bind_text(s, 1, e->event_id, -1, SQLITE_STATIC);
    sqlite3_bind_text(s, 2, e->payload.data, (int)e->payload.size, SQLITE_STATIC);
    assert_int_equal(sqlite3_step(s), SQLITE_DONE);
    sqlite3_finalize(s);
}

static csn_verdict reserve(csn_tx *tx, csn_delivery *d, void *arg, csn_error *err) {
    const csn_event *e = csn_delivery_event(d);
    csn_event result = {.size = sizeof result,
                        .aggregate_type = "stock",
                        .aggregate_id = "A",
                        .event_type = "Reserved",
                        .payload = {"{}", 2}};
    (void)arg;
    assert_string_equal(csn_delivery_consumer(d), "stock");
    assert_true(csn_delivery_attempt(d) >= 1);
    assert_string_equal(e->event_type, "OrderCreated");
    assert_string_equal(e->tenant, "te");
    effect(tx, e);
    assert_int_equal(csn_publish(tx, &result, NULL, 0, err), CSN_OK);
    csn_delivery_result(d, (csn_bytes){"{\"left\":5}", 10});
    return CSN_DONE;
}

static void effect_result_and_summary_commit_together(void **state) {
    struct place *p = *state;
    char summary[64];
    csn *c = start(p, reserve, NULL);
    write_events(p, 50, "OrderCreated");
    run_until(p, c, "SELECT count(*) FROM consumer_inbox WHERE state = 'done'", 50);
    assert_int_equal(number(p, "SELECT count(*) FROM effects"), 50);
    assert_int_equal(number(p, "SELECT count(DISTINCT aggregate_version) FROM outbox_events WHERE "
                               "event_type = 'Reserved' AND correlation_id = 'co' AND tenant = "
                               "'te' AND causation_id LIKE 'OrderCreated-%'"),
                     50);
    assert_int_equal(
        csn_result(&p->tx, "stock", "OrderCreated-7", summary, sizeof summary, &p->err), CSN_OK);
    assert_string_equal(summary, "{\"left\":5}");
    assert_int_equal(csn_result(&p->tx, "stock", "nobody", summary, sizeof summary, &p->err),
                     CSN_REJECTED);
    assert_int_equal(csn_result(&p->tx, "stock", "OrderCreated-7", summary, 3, &p->err),
                     CSN_REJECTED);
    csn_close(c);
    assert_int_equal(number(p, "SELECT count(*) FROM consign_in_hand"), 0);
}

/* The verdict is told by the number in the key. */
static csn_verdict judge(csn_tx *tx, csn_delivery *d, void *arg, csn_error *err) {
    const csn_event *e = csn_delivery_event(d);
    int n = e->aggregate_id[1] - '0';
    (void)arg;
    effect(tx, e);
    snprintf(err->text, sizeof err->text, "verdict %d", n);
    return n;
}

static void each_verdict_has_its_consequence(void **state) {
    struct place *p = *state;
    csn *c = start(p, judge, NULL);
    write_events(p, 10, "OrderJudged"); /* k9 is a verdict that there is not */
    run_until(p, c, "SELECT count(*) FROM consumer_inbox WHERE state IN ('done', 'refused')", 4);
    run_until(p, c, "SELECT count(*) FROM consign_dead_letters", 4); /* 5, 6, and 7 and 9 in time */
    csn_close(c);
    is_text(p, "SELECT group_concat(event_id, ' ') FROM (SELECT event_id FROM effects ORDER BY 1)",
            "OrderJudged-0 OrderJudged-1 OrderJudged-2 OrderJudged-3");
    is_text(p, "SELECT state || verdict FROM consumer_inbox WHERE event_id = 'OrderJudged-1'",
            "refusedrefused");
    is_text(p, "SELECT state || error FROM consumer_inbox WHERE event_id = 'OrderJudged-5'",
            "conflictverdict 5");
    is_text(p, "SELECT state || verdict FROM consumer_inbox WHERE event_id = 'OrderJudged-4'",
            "waitingearly");
    assert_int_equal(number(p, "SELECT count(*) FROM consign_dead_letters WHERE error LIKE "
                               "'%which there is not%'"),
                     1);
}

static csn_verdict commit_it(csn_tx *tx, csn_delivery *d, void *arg, csn_error *err) {
    (void)arg;
    (void)err;
    effect(tx, csn_delivery_event(d));
    sqlite3_exec(csn_sqlite_db(tx), "COMMIT", NULL, NULL, NULL);
    return CSN_DONE;
}

static void a_handler_that_commits_stops_its_subscription(void **state) {
    struct place *p = *state;
    csn *c = start(p, commit_it, NULL);
    write_events(p, 1, "OrderCreated");
    run_until(p, c, "SELECT count(*) FROM effects", 1);
    for (int i = 0; i < 20; i++) {
        usleep(10000);
        assert_int_equal(csn_step(c, &p->err), CSN_OK);
    }
    csn_close(c);
    assert_int_equal(number(p, "SELECT count(*) FROM effects"), 1);
}

static void *stop_later(void *arg) {
    usleep(50000);
    csn_stop(arg);
    return NULL;
}

static void another_thread_may_stop_it(void **state) {
    struct place *p = *state;
    csn *c = NULL;
    csn_subscription s = {sizeof s, "stock", nothing, NULL};
    pthread_t t;
    assert_int_equal(csn_open(p->config, drivers(), &c, &p->err), CSN_OK);
    assert_int_equal(csn_subscribe(c, &s, &p->err), CSN_OK);
    assert_int_equal(pthread_create(&t, NULL, stop_later, c), 0);
    assert_int_equal(csn_run(c, &p->err), CSN_OK);
    assert_int_equal(csn_done(c), 1);
    assert_int_equal(csn_step(c, &p->err), CSN_OK);
    pthread_join(t, NULL);
    csn_close(c);
}

static void without_csn_serve_nothing_is_relayed(void **state) {
    struct place *p = *state;
    csn *c = NULL;
    csn_subscription s = {sizeof s, "stock", nothing, NULL};
    write_events(p, 1, "OrderCreated");
    assert_int_equal(csn_open(p->config, drivers(), &c, &p->err), CSN_OK);
    assert_int_equal(csn_subscribe(c, &s, &p->err), CSN_OK);
    assert_int_equal(csn_start(c, &p->err), CSN_OK);
    run_until(p, c, "SELECT count(*) FROM consign_bindings", 1);
    run_until(p, c,
              "SELECT count(*) FROM consign_lanes WHERE name = 'sub/stock' AND owner NOT NULL", 8);
    assert_int_equal(number(p, "SELECT count(*) FROM consign_lanes WHERE name = 'outbox' AND owner "
                               "NOT NULL"),
                     0);
    csn_close(c);
    assert_int_equal(number(p, "SELECT count(*) FROM outbox_events WHERE status = 'pending'"), 1);
}

static void a_store_that_cannot_be_used_is_the_reason(void **state) {
    struct place *p = *state;
    csn *c = NULL;
    csn_subscription s = {sizeof s, "stock", nothing, NULL};
    sql(p, "UPDATE consign_meta SET value = '99' WHERE key IN ('min_reader', 'min_writer')");
    assert_int_equal(csn_open(p->config, drivers(), &c, &p->err), CSN_OK);
    assert_int_equal(csn_subscribe(c, &s, &p->err), CSN_OK);
    assert_int_not_equal(csn_run(c, &p->err), CSN_OK);
    assert_int_equal(p->err.code, ERR_STORE_SCHEMA_NEW);
    csn_close(c);
}

/* ---- functions that kill their process ---- */

static csn_verdict kill_or_not(csn_tx *tx, csn_delivery *d, void *arg, csn_error *err) {
    const csn_event *e = csn_delivery_event(d);
    (void)arg;
    (void)err;
    if (strcmp(e->event_id, "OrderCreated-5") == 0)
        kill(getpid(), SIGKILL);
    effect(tx, e);
    return CSN_DONE;
}

/* One life of the program: until 19 neighbours and the letter are there, or its death. Runs in a
 * child that was made before anything was opened in it. */
static int live(struct place *p) {
    csn *c = start(p, kill_or_not, NULL);
    run_until(p, c,
              "SELECT (SELECT count(*) FROM effects) + (SELECT count(*) FROM consign_dead_letters)",
              20);
    csn_close(c);
    return 0;
}

static int one_life(struct place *p) {
    int status = 0;
    sqlite3_close(p->db); /* SQLite's locks do not cross a fork */
    pid_t child = fork();
    if (child == 0) {
        assert_int_equal(sqlite3_open(p->path, &p->db), SQLITE_OK);
        sqlite3_busy_timeout(p->db, 60000);
        p->tx = csn_sqlite_tx(p->db);
        _exit(live(p));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(sqlite3_open(p->path, &p->db), SQLITE_OK);
    sqlite3_busy_timeout(p->db, 60000);
    p->tx = csn_sqlite_tx(p->db);
    return status;
}

/* What a supervisor would do: start it again. Leases of the dead end at once here. */
static void let_go_of_leases(struct place *p) {
    sql(p, "UPDATE consign_lanes SET lease_until = 0; UPDATE consign_queue SET lease_until = 0; "
           "UPDATE outbox_events SET lease_until = 0 WHERE status = 'sending'; UPDATE consign_work "
           "SET lease_until = 0 WHERE status = 'sending'");
}

static void the_third_death_sets_aside_and_neighbours_go_on(void **state) {
    struct place *p = *state;
    int deaths = 0;
    write_events(p, 20, "OrderCreated");
    for (int lives = 0; lives < 6; lives++) {
        int status = one_life(p);
        if (WIFEXITED(status)) {
            assert_int_equal(WEXITSTATUS(status), 0);
            break;
        }
        assert_int_equal(WTERMSIG(status), SIGKILL);
        deaths++;
        assert_int_equal(number(p, "SELECT count(*) FROM consign_in_hand"), 1);
        let_go_of_leases(p);
    }
    assert_int_equal(deaths, 3);
    assert_int_equal(number(p, "SELECT count(*) FROM effects"), 19);
    is_text(p, "SELECT event_id || class || code FROM consign_dead_letters",
            "OrderCreated-5poison4012");
    assert_int_equal(number(p, "SELECT count(*) FROM consign_suspects"), 0);
    assert_int_equal(number(p, "SELECT count(*) FROM consign_in_hand"), 0);
    assert_int_equal(number(p, "SELECT count(*) FROM consumer_inbox WHERE state = 'done'"), 19);
}

int main(void) {
#define TEST(t) cmocka_unit_test_setup_teardown(t, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(an_event_shares_the_fate_of_its_transaction),
        TEST(every_member_gets_to_its_column),
        TEST(a_wrong_argument_is_named_and_nothing_is_written),
        TEST(a_member_of_a_later_version_must_be_unused),
        TEST(what_the_table_refuses_says_why),
        TEST(a_locked_database_is_again),
        TEST(versions_follow_what_was_written),
        TEST(a_repeated_request_gets_the_first_answer),
        TEST(an_open_is_checked),
        TEST(calls_have_their_order),
        TEST(effect_result_and_summary_commit_together),
        TEST(each_verdict_has_its_consequence),
        TEST(a_handler_that_commits_stops_its_subscription),
        TEST(another_thread_may_stop_it),
        TEST(without_csn_serve_nothing_is_relayed),
        TEST(a_store_that_cannot_be_used_is_the_reason),
        TEST(the_third_death_sets_aside_and_neighbours_go_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
