/* test_sqlite_apply.c: APPLY and PARK on a SQLite file, one connection that works and one that
 * looks. */
#include "core/handler.h"
#include "store/db.h"
#include "store/sqlite.h"
#include "store/store.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

enum { ROWS = 8 };
#define SECOND ((csn_usec)1000000)

struct bench {
    char file[64], url[80];
    void *conn;
    struct db *d;
    struct sql_handler sql;
    struct handler handler;
    struct batch batch;
    struct message msg[ROWS];
    struct apply_item apply[ROWS];
    struct park_item park[ROWS];
    struct op op;
};

static csn_error error;

/* ---- the bench ---- */

static void remove_files(struct bench *b) {
    static const char *const ends[] = {"", "-wal", "-shm"};
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        char path[80];
        snprintf(path, sizeof path, "%s%s", b->file, ends[i]);
        unlink(path);
    }
}

static void script(struct bench *b, const char *sql) {
    if (db_script(b->d, sql, &error) != CSN_OK)
        fail_msg("%s: %s", sql, error.text);
}

/* The first column of all rows, with commas; NULL as "-". */
static const char *look(struct bench *b, const char *sql) {
    static char buffer[1024];
    struct text t;
    struct stmt *s = NULL;
    bool row = false;
    text_init(&t, buffer, sizeof buffer);
    if (db_prepare(b->d, sql, &s, &error) != CSN_OK)
        fail_msg("%s: %s", sql, error.text);
    while (stmt_next(s, &row, &error) == CSN_OK && row)
        text_add(&t, "%s%s", t.used ? "," : "", stmt_is_null(s, 0) ? "-" : stmt_text(s, 0));
    stmt_close(s);
    return buffer;
}

#define LOOK(b, sql, is) assert_string_equal(look((b), (sql)), (is))

static void use_sql(struct bench *b, const char *file) {
    char report[2048] = "";
    struct text t;
    text_init(&t, report, sizeof report);
    sql_handler_free(&b->sql);
    if (sql_handler_parse("h.sql", bytes_of(file), &b->sql, &t, &error) != CSN_OK)
        fail_msg("%s", report);
    b->handler = (struct handler){.sql = &b->sql};
}

static const char by_payload[] = "-- handler h\n"
                                 "INSERT INTO effect(event_id, n) VALUES (:event_id, :payload.n);\n"
                                 "-- verdict done\n";

static int begin(void **state) {
    struct bench *b = calloc(1, sizeof *b);
    assert_non_null(b);
    *state = b;
    snprintf(b->file, sizeof b->file, "/tmp/csn-test-apply-%d.db", (int)getpid());
    snprintf(b->url, sizeof b->url, "sqlite:%s", b->file);
    remove_files(b);
    if (schema_apply(b->url, &error) != CSN_OK || db_open(b->url, 0, &b->d, &error) != CSN_OK ||
        sqlite_driver.open(b->url, ROLE_APPLY, &b->conn, &error) != CSN_OK)
        fail_msg("%s", error.text);
    script(b,
           "CREATE TABLE effect (event_id TEXT PRIMARY KEY, n INTEGER CHECK (n > 0), text TEXT)");
    use_sql(b, by_payload);
    b->batch = (struct batch){.msg = b->msg, .cap = ROWS};
    return 0;
}

static int end(void **state) {
    struct bench *b = *state;
    sqlite_driver.close(b->conn);
    db_close(b->d);
    sql_handler_free(&b->sql);
    remove_files(b);
    free(b);
    return 0;
}

static void empty(struct bench *b) {
    b->batch.n = 0;
}

static void add(struct bench *b, const char *id, const char *key, uint64_t version,
                const char *payload) {
    uint32_t i = b->batch.n++;
    b->msg[i] = (struct message){.id = bytes_of(id),
                                 .aggregate_type = bytes_of("order"),
                                 .aggregate_id = bytes_of(key),
                                 .event_type = bytes_of("T"),
                                 .payload = bytes_of(payload),
                                 .version = version,
                                 .seq = 100 + i,
                                 .schema_version = 1,
                                 .lane = 2,
                                 .attempts = 1,
                                 .expires_in = CSN_USEC_NEVER};
}

static csn_status run(struct bench *b) {
    b->op.next = NULL;
    b->op.batch = &b->batch;
    b->op.deadline = sqlite_steady() + 10 * SECOND;
    sqlite_driver.run(b->conn, &b->op);
    return b->op.result.status;
}

/* Applies the batch as it stands; source work when token is not NULL. */
static csn_status apply_from(struct bench *b, const char *token) {
    b->op = (struct op){.kind = OP_APPLY};
    copy_text(b->op.apply.consumer, NAME_MAX_, "c");
    copy_text(b->op.apply.token, TOKEN_SIZE, token ? token : "");
    b->op.apply.source = token ? SOURCE_WORK : SOURCE_BROKER;
    b->op.apply.handler = &b->handler;
    b->op.apply.item = b->apply;
    b->op.apply.n = b->batch.n;
    for (uint32_t i = 0; i < b->batch.n; i++)
        b->apply[i] = (struct apply_item){.msg = i, .out = 99};
    return run(b);
}

static void apply(struct bench *b) {
    if (apply_from(b, NULL) != CSN_OK)
        fail_msg("apply: %s", b->op.result.text);
}

/* Parks message i; several calls make one op. */
static void park_item(struct bench *b, uint32_t i, enum park_to to, csn_verdict verdict) {
    b->park[b->op.park.n++] = (struct park_item){.msg = i,
                                                 .to = (uint8_t)to,
                                                 .failure = verdict == CSN_RETRY,
                                                 .attempt = to != PARK_BEHIND,
                                                 .verdict = verdict,
                                                 .retry_in = 60 * SECOND,
                                                 .code = 4008,
                                                 .text = "because"};
}

static void park_begin(struct bench *b, const char *token) {
    b->op = (struct op){.kind = OP_PARK};
    copy_text(b->op.park.consumer, NAME_MAX_, "c");
    copy_text(b->op.park.token, TOKEN_SIZE, token ? token : "");
    b->op.park.source = token ? SOURCE_WORK : SOURCE_BROKER;
    b->op.park.item = b->park;
}

static void park_run(struct bench *b) {
    if (run(b) != CSN_OK)
        fail_msg("park: %s", b->op.result.text);
}

static void park_one(struct bench *b, const char *id, uint64_t version, enum park_to to,
                     csn_verdict verdict) {
    empty(b);
    add(b, id, "k", version, "{\"n\":1}");
    park_begin(b, NULL);
    park_item(b, 0, to, verdict);
    park_run(b);
}

/* The work row of this event as a claim under token "t" would have it, as the only message of the
 * batch. */
static void claim(struct bench *b, const char *id, const char *payload) {
    char sql[300];
    int64_t seq = 0, version = 0;
    bool row = false;
    snprintf(
        sql, sizeof sql,
        "UPDATE consign_work SET status = 'sending', claim_token = 't', attempts = attempts + 1 "
        "WHERE event_id = '%s' AND status = 'pending'",
        id);
    script(b, sql);
    assert_int_equal(db_changes(b->d), 1);
    assert_int_equal(db_int(b->d, "SELECT seq FROM consign_work WHERE event_id = ?1", &id, 1, &seq,
                            &row, &error),
                     CSN_OK);
    assert_int_equal(db_int(b->d, "SELECT aggregate_version FROM consign_work WHERE event_id = ?1",
                            &id, 1, &version, &row, &error),
                     CSN_OK);
    empty(b);
    add(b, id, "k", (uint64_t)version, payload);
    b->msg[0].seq = (uint64_t)seq;
}

#define WORK                                                                                       \
    "SELECT event_id || ' ' || status || ' ' || waits_for FROM consign_work ORDER BY "             \
    "aggregate_version, seq"

/* ---- apply ---- */

static void test_done_and_duplicates(void **state) {
    struct bench *b = *state;
    add(b, "a", "k", 1, "{\"n\":1}");
    add(b, "a", "k", 1, "{\"n\":1}"); /* twice in one batch */
    apply(b);
    assert_int_equal(b->apply[0].out, APPLY_VERDICT);
    assert_int_equal(b->apply[1].out, APPLY_SEEN);
    LOOK(b, "SELECT event_id || n FROM effect", "a1");
    apply(b);
    assert_int_equal(b->apply[0].out, APPLY_SEEN);
    LOOK(b,
         "SELECT state || verdict || duplicates || attempts || coalesce(result, '-') FROM "
         "consumer_inbox",
         "donedone31-");
    LOOK(b, "SELECT last_duplicate_at >= received_at FROM consumer_inbox", "1");
    LOOK(b,
         "SELECT broker_part || ' ' || broker_pos || ' ' || entity_version || aggregate_type FROM "
         "consumer_inbox",
         "2 100 1order");
}

static void test_verdict_matrix(void **state) {
    struct bench *b = *state;
    static const struct {
        const char *verdict, *state; /* NULL: rolled back */
    } row[] = {{"done", "done"}, {"refused", "refused"}, {"duplicate", "done"},
               {"late", "done"}, {"early", NULL},        {"conflict", NULL},
               {"poison", NULL}, {"retry", NULL},        {"unknown", NULL}};
    for (size_t i = 0; i < ARRAY_LEN(row); i++) {
        char file[400], expected[100];
        script(b, "DELETE FROM effect; DELETE FROM consumer_inbox; DELETE FROM outbox_events");
        snprintf(file, sizeof file,
                 "-- handler h\nINSERT INTO effect(event_id, n) VALUES (:event_id, 1);\n"
                 "-- emit R for stock :aggregate_id payload {}\n-- verdict %s \"said :event_id\"\n",
                 row[i].verdict);
        use_sql(b, file);
        empty(b);
        add(b, "a", "k", 1, "{}");
        apply(b);
        assert_int_equal(b->apply[0].out, APPLY_VERDICT);
        assert_int_equal(b->apply[0].verdict, verdict_find(row[i].verdict));
        assert_string_equal(b->apply[0].text, "said a");
        assert_int_equal(b->op.apply.emitted, row[i].state != NULL);
        LOOK(b, "SELECT count(*) FROM effect", row[i].state ? "1" : "0");
        LOOK(b, "SELECT count(*) FROM outbox_events", row[i].state ? "1" : "0");
        snprintf(expected, sizeof expected, "%s %s {\"text\":\"said a\",\"events\":1}",
                 row[i].state ? row[i].state : "", row[i].verdict);
        LOOK(b, "SELECT state || ' ' || verdict || ' ' || result FROM consumer_inbox",
             row[i].state ? expected : "");
    }
}

static void test_result_events(void **state) {
    struct bench *b = *state;
    script(b, "INSERT INTO outbox_events(event_id, aggregate_type, aggregate_id, "
              "aggregate_version, event_type, payload) "
              "VALUES ('mine', 'stock', 'A', 41, 'T', '{}')");
    use_sql(b, "-- handler h\n-- emit R for stock :payload.sku payload {\"q\": :payload.q}\n"
               "-- emit R for stock :payload.sku payload {}\n-- verdict done\n");
    add(b, "a", "k", 1, "{\"sku\":\"A\",\"q\":7}");
    add(b, "b", "k", 2, "{\"sku\":\"B\",\"q\":8}");
    b->msg[0].correlation_id = bytes_of("c");
    b->msg[0].traceparent = bytes_of("tp");
    apply(b);
    assert_int_equal(b->op.apply.emitted, 4);
    LOOK(b,
         "SELECT aggregate_id || aggregate_version || payload || causation_id || "
         "coalesce(correlation_id || traceparent, '-') "
         "FROM outbox_events WHERE event_type = 'R' ORDER BY seq",
         "A42{\"q\": 7}actp,A43{}actp,B1{\"q\": 8}b-,B2{}b-");
    LOOK(b,
         "SELECT DISTINCT status || attempts || length(event_id) FROM outbox_events WHERE "
         "event_type = 'R'",
         "pending036");
    LOOK(b, "SELECT count(DISTINCT event_id) FROM outbox_events", "5");
}

static void test_mismatch(void **state) {
    struct bench *b = *state;
    add(b, "a", "k", 1, "{\"n\":1}");
    apply(b);
    empty(b);
    add(b, "a", "k", 1, "{\"n\":2}");
    apply(b);
    assert_int_equal(b->apply[0].out, APPLY_MISMATCH);
    assert_int_equal(b->apply[0].code, 4005);
    LOOK(b, "SELECT n FROM effect", "1");
    park_begin(b, NULL);
    park_item(b, 0, PARK_CONFLICT, CSN_CONFLICT);
    park_run(b);
    LOOK(b, "SELECT state || error FROM consumer_inbox",
         "donebecause"); /* what was finished stays finished */
    LOOK(b, "SELECT class || payload || state FROM consign_dead_letters", "conflict{\"n\":2}open");
    script(b,
           "UPDATE consumer_inbox SET digest = NULL"); /* a row of somebody else: the id decides */
    apply(b);
    assert_int_equal(b->apply[0].out, APPLY_SEEN);
}

static void test_bad_row_in_a_batch(void **state) {
    struct bench *b = *state;
    add(b, "a", "k1", 1, "{\"n\":1}");
    add(b, "b", "k2", 1, "{\"n\":0}"); /* the CHECK of the table */
    add(b, "c", "k2", 2, "{\"n\":1}"); /* behind it */
    add(b, "d", "k3", 1, "{}");        /* poison */
    add(b, "e", "k4", 1, "{\"n\":");   /* poison */
    add(b, "f", "k5", 1, "{\"n\":5}");
    apply(b);
    assert_int_equal(b->apply[0].verdict, CSN_DONE);
    assert_int_equal(b->apply[1].verdict, CSN_RETRY);
    assert_int_equal(b->apply[1].code, 4002);
    assert_non_null(strstr(b->apply[1].text, "CHECK constraint failed"));
    assert_int_equal(b->apply[2].out, APPLY_BEHIND);
    assert_int_equal(b->apply[3].verdict, CSN_POISON);
    assert_int_equal(b->apply[3].code, 4003);
    assert_int_equal(b->apply[4].code, 4004);
    assert_int_equal(b->apply[5].verdict, CSN_DONE);
    LOOK(b, "SELECT event_id FROM effect ORDER BY 1", "a,f");
    LOOK(b, "SELECT event_id FROM consumer_inbox ORDER BY 1", "a,f");
}

static void test_expired(void **state) {
    struct bench *b = *state;
    add(b, "a", "k", 1, "{\"n\":1}");
    b->op = (struct op){.kind = OP_APPLY};
    copy_text(b->op.apply.consumer, NAME_MAX_, "c");
    b->op.apply.handler = &b->handler;
    b->op.apply.item = b->apply;
    b->op.apply.n = 1;
    b->apply[0] = (struct apply_item){.expired = true};
    assert_int_equal(run(b), CSN_OK);
    assert_int_equal(b->apply[0].verdict, CSN_LATE);
    assert_int_equal(b->apply[0].code, 3009);
    LOOK(b, "SELECT count(*) FROM effect", "0");
    LOOK(b, "SELECT state || verdict FROM consumer_inbox", "donelate");
}

static void test_strange_ids(void **state) {
    struct bench *b = *state;
    char longest[ID_MAX + 1], longer[ID_MAX + 2];
    memset(longest, 'x', ID_MAX);
    memset(longer, 'x', ID_MAX + 1);
    longest[ID_MAX] = longer[ID_MAX + 1] = 0;
    const char *id[] = {longest, longer, "编号", "a b", ""};
    for (uint32_t i = 0; i < ARRAY_LEN(id); i++)
        add(b, id[i], "k", i + 1, "{\"n\":1}");
    apply(b);
    for (uint32_t i = 0; i < ARRAY_LEN(id); i++)
        assert_int_equal(b->apply[i].verdict, CSN_DONE);
    LOOK(b, "SELECT length(event_id) FROM consumer_inbox ORDER BY entity_version",
         "128,71,71,71,71");
    LOOK(b, "SELECT count(DISTINCT event_id) FROM consumer_inbox WHERE event_id LIKE 'sha256:%'",
         "4");
    apply(b);
    for (uint32_t i = 0; i < ARRAY_LEN(id); i++)
        assert_int_equal(b->apply[i].out, APPLY_SEEN);
}

/* ---- handlers that misbehave ---- */

static csn_verdict swap_transaction(const struct message *m, void *arg) {
    struct sqlite_conn *c = arg;
    (void)m;
    assert_int_equal(sqlite3_exec(c->db, "COMMIT; BEGIN", NULL, NULL, NULL), SQLITE_OK);
    return CSN_DONE;
}

static csn_verdict end_transaction(const struct message *m, void *arg) {
    struct sqlite_conn *c = arg;
    (void)m;
    assert_int_equal(sqlite3_exec(c->db, "ROLLBACK", NULL, NULL, NULL), SQLITE_OK);
    return CSN_DONE;
}

static csn_verdict release_savepoint(const struct message *m, void *arg) {
    struct sqlite_conn *c = arg;
    (void)m;
    assert_int_equal(sqlite3_exec(c->db, "RELEASE csn_batch", NULL, NULL, NULL), SQLITE_OK);
    return CSN_DONE;
}

static void test_swapped_transaction(void **state) {
    struct bench *b = *state;
    handler_function *const bad[] = {end_transaction, swap_transaction, release_savepoint};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        b->handler = (struct handler){.function = bad[i], .arg = b->conn};
        empty(b);
        add(b, "a", "k", 1, "{}");
        script(b, "DELETE FROM consumer_inbox");
        assert_int_equal(apply_from(b, NULL), CSN_FATAL);
        assert_int_equal(b->op.result.code, 4011);
        assert_int_equal(b->apply[0].out, APPLY_NONE);
        sqlite_driver.close(b->conn); /* FATAL: the connection is not used again */
        assert_int_equal(sqlite_driver.open(b->url, ROLE_APPLY, &b->conn, &error), CSN_OK);
    }
}

static void test_rollback_clause(void **state) {
    struct bench *b = *state;
    use_sql(b, "-- handler h\nINSERT OR ROLLBACK INTO effect(event_id, n) VALUES (:event_id, "
               "0);\n-- verdict done\n");
    add(b, "a", "k", 1, "{}");
    assert_int_equal(apply_from(b, NULL), CSN_AGAIN); /* the inbox finds out whose it is */
    assert_int_equal(b->op.result.code, 4002);
    assert_int_equal(b->apply[0].out, APPLY_NONE);
    LOOK(b, "SELECT count(*) FROM consumer_inbox", "0");
    use_sql(b, by_payload); /* the connection is as good as before */
    empty(b);
    add(b, "a", "k", 1, "{\"n\":1}");
    apply(b);
    LOOK(b, "SELECT count(*) FROM effect", "1");
}

/* A trigger of the application that says RAISE(ROLLBACK) must not stop the subscription for good.
 */
static void test_rollback_in_a_trigger(void **state) {
    struct bench *b = *state;
    script(b, "CREATE TRIGGER no BEFORE INSERT ON effect WHEN new.n = 7 BEGIN"
              " SELECT RAISE(ROLLBACK, 'not seven'); END");
    add(b, "a", "k", 1, "{\"n\":1}");
    add(b, "b", "l", 1, "{\"n\":7}");
    assert_int_equal(apply_from(b, NULL), CSN_AGAIN);
    assert_int_equal(b->op.result.code, 4002);
    assert_non_null(strstr(b->op.result.text, "not seven"));
    LOOK(b, "SELECT count(*) FROM consumer_inbox", "0");
}

static void test_denied(void **state) {
    struct bench *b = *state;
    static const char *const sql[] = {
        "UPDATE consumer_inbox SET state = 'done'",
        "DELETE FROM Consumer_Inbox",
        "INSERT INTO consign_work(seq) VALUES (1)",
        "UPDATE outbox_events SET status = 'sent'",
        "DELETE FROM outbox_events",
        "DELETE FROM sqlite_sequence",
        "SELECT load_extension('x')",
        "WITH x AS (SELECT 1) DELETE FROM consign_keys",
        "INSERT INTO effect VALUES (1, 2, 3, 4)",
        "SELECT * FROM no_such_table",
        "SELECT 1 FROM pragma_table_info('effect')",
    };
    for (size_t i = 0; i < ARRAY_LEN(sql); i++) {
        char file[300];
        snprintf(file, sizeof file, "-- handler h\n%s;\n-- verdict done\n", sql[i]);
        use_sql(b, file);
        empty(b);
        add(b, "a", "k", 1, "{}");
        apply(b);
        if (b->apply[0].verdict != CSN_RETRY || b->apply[0].code != 4002)
            fail_msg("%s: verdict %d code %d %s", sql[i], b->apply[0].verdict, b->apply[0].code,
                     b->apply[0].text);
    }
    LOOK(b, "SELECT count(*) FROM consumer_inbox", "0");
    use_sql(b, "-- handler h\nINSERT INTO outbox_events(event_id, aggregate_id, aggregate_version, "
               "event_type, payload) "
               "VALUES ('own', 'x', 1, 'T', '{}');\n-- verdict done\n");
    apply(b);
    assert_int_equal(b->apply[0].verdict, CSN_DONE);
    /* the authorizer is the handler's only */
    script(b, "CREATE TABLE another (x)");
}

static void test_rows_read(void **state) {
    struct bench *b = *state;
    use_sql(
        b,
        "-- handler h\nSELECT 1 FROM effect WHERE n > :payload.n;\n-- expect rows >= 2 else goto "
        "few\n"
        "DELETE FROM effect WHERE n > :payload.n RETURNING n;\n-- expect rows 2\n-- verdict done\n"
        "-- label few\n-- verdict refused\n");
    add(b, "a", "k", 1, "{\"n\":1}");
    apply(b);
    assert_int_equal(b->apply[0].verdict, CSN_REFUSED);
    script(b, "INSERT INTO effect(event_id, n) VALUES ('x', 2), ('y', 3), ('z', 1)");
    empty(b);
    add(b, "b", "k", 2, "{\"n\":1}");
    apply(b);
    assert_int_equal(b->apply[0].verdict, CSN_DONE);
    LOOK(b, "SELECT event_id FROM effect", "z");
}

/* Statements are kept by address and text: another text at the same address is another statement.
 */
static void test_handler_changes(void **state) {
    struct bench *b = *state;
    for (int i = 1; i <= 600; i++) { /* more than are kept */
        char sql[100], id[16];
        snprintf(sql, sizeof sql, "INSERT INTO effect(event_id, n) VALUES ('e%d', %d)", i, i);
        snprintf(id, sizeof id, "e%d", i);
        b->sql.step[0].text = sql;
        b->sql.step[0].binds = 0;
        empty(b);
        add(b, id, "k", (uint64_t)i, "{}");
        apply(b);
        assert_int_equal(b->apply[0].verdict, CSN_DONE);
    }
    LOOK(b, "SELECT count(*) || ' ' || sum(n) FROM effect WHERE event_id = 'e' || n", "600 180300");
}

static void test_endless_statement(void **state) {
    struct bench *b = *state;
    static const char *const sql[] = {
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n",
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) UPDATE effect SET n = "
        "(SELECT max(x) FROM n)"};
    script(b, "INSERT INTO effect(event_id, n) VALUES ('x', 1)");
    for (size_t i = 0; i < ARRAY_LEN(sql); i++) {
        char file[300];
        snprintf(file, sizeof file, "-- handler h\n%s;\n-- verdict done\n", sql[i]);
        use_sql(b, file);
        empty(b);
        add(b, "a", "k", 1, "{}");
        b->op = (struct op){
            .kind = OP_APPLY, .batch = &b->batch, .deadline = sqlite_steady() + SECOND / 5};
        copy_text(b->op.apply.consumer, NAME_MAX_, "c");
        b->op.apply.handler = &b->handler;
        b->op.apply.item = b->apply;
        b->op.apply.n = 1;
        b->apply[0] = (struct apply_item){0};
        sqlite_driver.run(b->conn, &b->op);
        if (b->op.result.status == CSN_OK)
            assert_int_equal(b->apply[0].verdict, CSN_RETRY);
        else
            assert_int_equal(b->op.result.status, CSN_AGAIN);
        LOOK(b, "SELECT count(*) FROM consumer_inbox", "0");
        LOOK(b, "SELECT n FROM effect", "1");
    }
    use_sql(b, by_payload); /* the connection still works */
    empty(b);
    add(b, "b", "k", 1, "{\"n\":1}");
    apply(b);
    assert_int_equal(b->apply[0].verdict, CSN_DONE);
}

/* ---- park ---- */

static void test_park_and_release_in_order(void **state) {
    struct bench *b = *state;
    add(b, "a1", "k", 1, "{\"n\":1}");
    add(b, "a2", "k", 2, "{\"n\":1}");
    add(b, "a3", "k", 3, "{\"n\":1}");
    b->msg[0].headers = bytes_of("{}");
    b->msg[0].tenant = bytes_of("t");
    b->msg[0].expires_in = 100 * SECOND;
    park_begin(b, NULL);
    park_item(b, 0, PARK_RETRY, CSN_RETRY);
    park_item(b, 1, PARK_BEHIND, CSN_EARLY);
    park_item(b, 2, PARK_BEHIND, CSN_EARLY);
    park_run(b);
    LOOK(b, WORK, "a1 pending 0,a2 waiting 1,a3 waiting 1");
    LOOK(b, "SELECT head_version FROM consign_keys", "1");
    LOOK(b, "SELECT state FROM consumer_inbox ORDER BY event_id", "waiting,waiting,waiting");
    LOOK(b,
         "SELECT failures || ' ' || tries || ' ' || last_error || ' ' || (next_attempt_at - "
         "created_at) || headers || tenant || "
         "slot || broker_part || ' ' || broker_pos || ' ' || (expires_at - created_at) FROM "
         "consign_work WHERE event_id = 'a1'",
         "1 1 because 60000000{}t22 100 100000000");
    LOOK(b,
         "SELECT event_id || side || kind || attempt || code || error FROM consign_attempts WHERE "
         "event_id = 'a1'",
         "a1inboxparked14008because");
    park_run(b); /* the answer was lost: the same again changes nothing */
    LOOK(b, "SELECT count(*) FROM consign_work", "3");
    LOOK(b, "SELECT count(*) FROM consign_attempts", "3");

    empty(b); /* what comes later of the key, and what has come already */
    add(b, "a4", "k", 4, "{\"n\":1}");
    add(b, "a2", "k", 2, "{\"n\":1}");
    add(b, "b1", "other", 1, "{\"n\":1}");
    apply(b);
    assert_int_equal(b->apply[0].out, APPLY_BEHIND);
    assert_int_equal(b->apply[1].out, APPLY_WAITS);
    assert_int_equal(b->apply[2].verdict, CSN_DONE);

    claim(b, "a1", "{\"n\":1}");
    assert_int_equal(apply_from(b, "t"), CSN_OK);
    assert_int_equal(b->apply[0].verdict, CSN_DONE);
    LOOK(b, WORK, "a2 pending 0,a3 waiting 1");
    LOOK(b,
         "SELECT next_attempt_at <= (SELECT max(processed_at) FROM consumer_inbox) FROM "
         "consign_work WHERE event_id = 'a2'",
         "1");
    LOOK(b, "SELECT head_version FROM consign_keys", "2");
    LOOK(b,
         "SELECT state || attempts || coalesce(error, '-') FROM consumer_inbox WHERE event_id = "
         "'a1'",
         "done2-");
    claim(b, "a2", "{\"n\":1}");
    assert_int_equal(apply_from(b, "t"), CSN_OK);
    claim(b, "a3", "{\"n\":1}");
    assert_int_equal(apply_from(b, "t"), CSN_OK);
    LOOK(b, "SELECT count(*) FROM consign_work", "0");
    LOOK(b, "SELECT count(*) FROM consign_keys", "0");
    LOOK(b, "SELECT event_id FROM effect ORDER BY rowid", "b1,a1,a2,a3");
}

static void test_work_is_fenced(void **state) {
    struct bench *b = *state;
    park_one(b, "a", 1, PARK_RETRY, CSN_RETRY);
    claim(b, "a", "{\"n\":1}");
    assert_int_equal(apply_from(b, "another"), CSN_OK);
    assert_int_equal(b->apply[0].out, APPLY_FENCED);
    for (int to = PARK_RETRY; to <= PARK_CONFLICT; to++) {
        park_begin(b, "another");
        park_item(b, 0, (enum park_to)to, CSN_RETRY);
        park_run(b);
        assert_int_equal(b->park[0].result, CSN_STALE);
    }
    LOOK(b, WORK, "a sending 0");
    LOOK(b, "SELECT count(*) FROM consign_attempts", "1");
    LOOK(b, "SELECT count(*) FROM consign_dead_letters", "0");
    LOOK(b, "SELECT state || attempts FROM consumer_inbox", "waiting1");
    LOOK(b, "SELECT count(*) FROM effect", "0");
}

static void test_retry_again(void **state) {
    struct bench *b = *state;
    park_one(b, "a", 1, PARK_RETRY, CSN_RETRY);
    LOOK(b, "SELECT first_failed_at = last_failed_at FROM consign_work", "1");
    script(b, "UPDATE consign_work SET first_failed_at = 5");
    claim(b, "a", "{\"n\":1}");
    park_begin(b, "t");
    park_item(b, 0, PARK_RETRY, CSN_OUTCOME_UNKNOWN);
    park_run(b);
    assert_int_equal(b->park[0].result, CSN_OK);
    LOOK(b,
         "SELECT status || failures || tries || first_failed_at || coalesce(claim_token, '-') FROM "
         "consign_work",
         "pending125-");
    LOOK(b, "SELECT state || verdict || attempts FROM consumer_inbox", "waitingunknown2");
    LOOK(b, "SELECT count(*) FROM consign_keys", "1");
    claim(b, "a", "{\"n\":1}");
    b->msg[0].failures = 1;
    b->msg[0].attempts = 2;
    park_begin(b, "t");
    park_item(b, 0, PARK_DEAD, CSN_RETRY);
    park_run(b);
    LOOK(b,
         "SELECT class || attempts || failures || first_failed_at || broker_part || broker_pos "
         "FROM consign_dead_letters",
         "budget2252100");
    LOOK(b, "SELECT state FROM consumer_inbox", "dead");
    LOOK(b, "SELECT count(*) FROM consign_work", "0");
    LOOK(b, "SELECT count(*) FROM consign_keys", "0");
}

static void test_early(void **state) {
    struct bench *b = *state;
    park_one(b, "a3", 3, PARK_EARLY, CSN_EARLY);
    LOOK(b, WORK, "a3 pending 3");
    LOOK(b, "SELECT next_attempt_at > created_at FROM consign_work", "1");
    empty(b); /* its predecessor is not behind it: it is applied, and wakes it */
    add(b, "a2", "k", 2, "{\"n\":1}");
    apply(b);
    assert_int_equal(b->apply[0].verdict, CSN_DONE);
    LOOK(b, "SELECT next_attempt_at - created_at < 60000000 FROM consign_work", "1");
    LOOK(b, "SELECT status FROM consign_work", "pending");
}

/* A row that comes before the head becomes the head, and the others wait again, but for one that is
 * being worked on. */
static void test_earlier_row_is_the_head(void **state) {
    struct bench *b = *state;
    park_one(b, "a3", 3, PARK_EARLY, CSN_EARLY);
    park_one(b, "a2", 2, PARK_RETRY, CSN_RETRY);
    LOOK(b, WORK, "a2 pending 0,a3 waiting 1");
    LOOK(b, "SELECT head_version FROM consign_keys", "2");
    claim(b, "a2", "{\"n\":1}");
    park_one(b, "a1", 1, PARK_RETRY, CSN_RETRY);
    LOOK(b, WORK, "a1 pending 0,a2 sending 0,a3 waiting 1");
    empty(b);
    add(b, "a2", "k", 2, "{\"n\":1}");
    int64_t seq = 0;
    bool row = false;
    assert_int_equal(db_int(b->d, "SELECT seq FROM consign_work WHERE event_id = 'a2'", NULL, 0,
                            &seq, &row, &error),
                     CSN_OK);
    b->msg[0].seq = (uint64_t)seq;
    park_begin(b, "t");
    park_item(b, 0, PARK_RETRY, CSN_RETRY);
    park_run(b);
    LOOK(b, WORK, "a1 pending 0,a2 waiting 1,a3 waiting 1");
    LOOK(b, "SELECT head_version FROM consign_keys", "1");
}

static void test_behind_without_a_head(void **state) {
    struct bench *b = *state;
    park_one(b, "a2", 2, PARK_BEHIND, CSN_EARLY); /* the head was set aside meanwhile */
    LOOK(b, WORK, "a2 pending 0");
    LOOK(b, "SELECT next_attempt_at = created_at FROM consign_work", "1");
    LOOK(b, "SELECT attempts FROM consumer_inbox", "0"); /* the handler did not run */
}

static void test_dead_letters(void **state) {
    struct bench *b = *state;
    park_one(b, "a1", 1, PARK_DEAD, CSN_POISON);
    LOOK(b,
         "SELECT class || code || error || payload || attempts || failures || state FROM "
         "consign_dead_letters",
         "poison4008because{\"n\":1}10open");
    LOOK(b, "SELECT state || verdict || error FROM consumer_inbox", "deadpoisonbecause");
    park_run(b); /* the answer was lost */
    LOOK(b, "SELECT count(*) FROM consign_dead_letters", "1");
    empty(b);
    add(b, "a1", "k", 1, "{\"n\":1}");
    add(b, "a2", "k", 2, "{\"n\":1}"); /* a dead letter does not hold its key */
    apply(b);
    assert_int_equal(b->apply[0].out, APPLY_ASIDE);
    assert_int_equal(b->apply[1].verdict, CSN_DONE);
    script(b, "DELETE FROM consumer_inbox"); /* purged: the letter still counts */
    apply(b);
    assert_int_equal(b->apply[0].out, APPLY_ASIDE);
    LOOK(b, "SELECT state FROM consumer_inbox WHERE event_id = 'a1'", "dead");
    LOOK(b, "SELECT event_id FROM effect", "a2");
}

static void test_dead_head_releases(void **state) {
    struct bench *b = *state;
    park_one(b, "a1", 1, PARK_RETRY, CSN_RETRY);
    park_one(b, "a2", 2, PARK_BEHIND, CSN_EARLY);
    claim(b, "a1", "{\"n\":1}");
    park_begin(b, "t");
    park_item(b, 0, PARK_CONFLICT, CSN_CONFLICT);
    park_run(b);
    LOOK(b, WORK, "a2 pending 0");
    LOOK(b, "SELECT head_version FROM consign_keys", "2");
    LOOK(b, "SELECT state FROM consumer_inbox ORDER BY event_id", "conflict,waiting");
}

/* Another content under the id of a parked event is set aside; the parked one still waits for its
 * turn. */
static void test_conflict_with_a_parked_one(void **state) {
    struct bench *b = *state;
    park_one(b, "a1", 1, PARK_RETRY, CSN_RETRY);
    empty(b);
    add(b, "a1", "k", 1, "{\"n\":2}");
    apply(b);
    assert_int_equal(b->apply[0].out, APPLY_MISMATCH);
    park_begin(b, NULL);
    park_item(b, 0, PARK_CONFLICT, CSN_CONFLICT);
    park_run(b);
    LOOK(b, "SELECT state FROM consumer_inbox", "waiting");
    claim(b, "a1", "{\"n\":1}");
    assert_int_equal(apply_from(b, "t"), CSN_OK);
    LOOK(b, "SELECT n FROM effect", "1");
}

/* A parked row whose event the inbox has finished is not run a second time. */
static void test_finished_and_parked(void **state) {
    struct bench *b = *state;
    park_one(b, "a1", 1, PARK_RETRY, CSN_RETRY);
    script(b, "UPDATE consumer_inbox SET state = 'done'");
    claim(b, "a1", "{\"n\":1}");
    assert_int_equal(apply_from(b, "t"), CSN_OK);
    assert_int_equal(b->apply[0].out, APPLY_SEEN);
    LOOK(b, "SELECT count(*) FROM effect", "0");
    LOOK(b, "SELECT count(*) FROM consign_work", "0");
    LOOK(b, "SELECT count(*) FROM consign_keys", "0");
    park_one(b, "a1", 1, PARK_RETRY, CSN_RETRY); /* nor parked again */
    LOOK(b, "SELECT count(*) FROM consign_work", "0");
}

/* A full disk ends the whole op: nothing of the batch is there. */
static void test_full(void **state) {
    struct bench *b = *state;
    struct sqlite_conn *c = b->conn;
    char payload[100000];
    for (uint32_t i = 0; i < 4; i++) {
        static char id[4][4];
        snprintf(id[i], sizeof id[i], "e%u", i);
        add(b, id[i], "k", i, "{\"n\":1}");
    }
    struct text t;
    text_init(&t, payload, sizeof payload);
    text_add(&t, "{\"n\":1,\"s\":\"%090000d\"}", 0);
    b->msg[3].payload = (csn_bytes){payload, t.used};
    use_sql(b, "-- handler h\nINSERT INTO effect(event_id, n, text) VALUES (:event_id, 1, "
               ":payload);\n-- verdict done\n");
    assert_int_equal(sqlite3_exec(c->db, "PRAGMA max_page_count = 1", NULL, NULL, NULL),
                     SQLITE_OK); /* no more than there are */
    assert_int_equal(apply_from(b, NULL), CSN_AGAIN);
    assert_int_equal(b->op.result.code, 2007);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(b->apply[i].out, APPLY_NONE);
    LOOK(b, "SELECT count(*) FROM consumer_inbox", "0");
    assert_int_equal(sqlite3_exec(c->db, "PRAGMA max_page_count = 100000", NULL, NULL, NULL),
                     SQLITE_OK);
    apply(b);
    LOOK(b, "SELECT count(*) FROM effect", "4");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_done_and_duplicates),
        TEST(test_verdict_matrix),
        TEST(test_result_events),
        TEST(test_mismatch),
        TEST(test_bad_row_in_a_batch),
        TEST(test_expired),
        TEST(test_strange_ids),
        TEST(test_swapped_transaction),
        TEST(test_rollback_clause),
        TEST(test_rollback_in_a_trigger),
        TEST(test_denied),
        TEST(test_rows_read),
        TEST(test_handler_changes),
        TEST(test_endless_statement),
        TEST(test_park_and_release_in_order),
        TEST(test_work_is_fenced),
        TEST(test_retry_again),
        TEST(test_early),
        TEST(test_earlier_row_is_the_head),
        TEST(test_behind_without_a_head),
        TEST(test_dead_letters),
        TEST(test_dead_head_releases),
        TEST(test_conflict_with_a_parked_one),
        TEST(test_finished_and_parked),
        TEST(test_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
