/* test_schema.c: applying, comparing, refusing what is newer, the laboratory's marker, the audit
 * chain, the named statements. */
#include "store/db.h"
#include "store/store.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

static char file[64], url[80];
static csn_error error;
static char lines_buffer[4096];

static void with_db(unsigned flags, const char *sql) {
    struct db *d = NULL;
    if (db_open(url, flags, &d, &error) != CSN_OK || db_script(d, sql, &error) != CSN_OK)
        fail_msg("%s: %s", sql, error.text);
    db_close(d);
}

static int64_t number(const char *sql) {
    struct db *d = NULL;
    int64_t n = -1;
    bool row = false;
    if (db_open(url, DB_READ_ONLY | DB_ANY_SCHEMA, &d, &error) != CSN_OK ||
        db_int(d, sql, NULL, 0, &n, &row, &error) != CSN_OK)
        fail_msg("%s: %s", sql, error.text);
    db_close(d);
    return n;
}

static csn_status check(void) {
    struct text lines;
    text_init(&lines, lines_buffer, sizeof lines_buffer);
    return schema_check(url, &lines, &error);
}

static void applied(void) {
    if (schema_apply(url, &error) != CSN_OK)
        fail_msg("%s", error.text);
}

static void test_apply_is_idempotent(void **state) {
    (void)state;
    applied();
    assert_int_equal(check(), CSN_OK);
    assert_string_equal(lines_buffer, "");
    with_db(
        0,
        "INSERT INTO outbox_events(event_id, aggregate_id, aggregate_version, event_type, payload) "
        "VALUES ('a', '1', 1, 'T', '{}')");
    char store[33];
    struct db *d = NULL;
    struct stmt *s = NULL;
    bool row = false;
    assert_int_equal(db_open(url, 0, &d, &error), CSN_OK);
    assert_int_equal(
        db_prepare(d, "SELECT value FROM consign_meta WHERE key = 'store'", &s, &error), CSN_OK);
    assert_int_equal(stmt_next(s, &row, &error), CSN_OK);
    assert_true(copy_text(store, sizeof store, stmt_text(s, 0)));
    applied(); /* beside an open connection, too */
    stmt_reset(s);
    assert_int_equal(stmt_next(s, &row, &error), CSN_OK);
    assert_string_equal(stmt_text(s, 0), store);
    stmt_close(s);
    db_close(d);
    assert_int_equal(number("SELECT count(*) FROM outbox_events WHERE status = 'pending'"), 1);
    assert_int_equal(check(), CSN_OK);
    assert_int_equal(schema_check(url, NULL, &error), CSN_OK);
}

/* What a later version adds comes beside what there is; an older program may go on with it. */
static void test_upgrade(void **state) {
    (void)state;
    applied();
    with_db(0, "DROP TABLE consign_requests; DROP TABLE consign_in_hand; DROP TABLE "
               "consign_suspects; UPDATE consign_meta SET value = '1' WHERE key = 'schema'");
    with_db(DB_ANY_SCHEMA, "INSERT INTO outbox_events(event_id, aggregate_id, aggregate_version, "
                           "event_type, payload) VALUES ('a', '1', 1, 'T', '{}')");
    assert_int_equal(check(), CSN_REJECTED);
    assert_int_equal(error.code, 2004);
    assert_non_null(strstr(lines_buffer, "missing table consign_requests\n"));
    applied();
    assert_int_equal(check(), CSN_OK);
    assert_int_equal(number("SELECT value FROM consign_meta WHERE key = 'schema'"), 2);
    assert_int_equal(number("SELECT max(value) FROM consign_meta WHERE key LIKE 'min_%'"), 1);
    assert_int_equal(number("SELECT count(*) FROM outbox_events"), 1);
}

static void test_differences(void **state) {
    (void)state;
    applied();
    with_db(0, "ALTER TABLE outbox_events ADD COLUMN mine TEXT; CREATE TABLE my_own (x); CREATE "
               "INDEX my_ix ON my_own(x)");
    assert_int_equal(check(), CSN_OK); /* what the user added is none */

    with_db(0, "DROP INDEX ix_key; DROP TABLE consign_versions");
    assert_int_equal(check(), CSN_REJECTED);
    assert_int_equal(error.code, 2004);
    assert_string_equal(lines_buffer, "missing table consign_versions\nmissing index ix_key\n");
    applied(); /* makes what is missing */
    assert_int_equal(check(), CSN_OK);

    with_db(0, "ALTER TABLE consumer_inbox DROP COLUMN error");
    assert_int_equal(check(), CSN_REJECTED);
    assert_int_equal(error.code, 2011);
    assert_string_equal(lines_buffer, "missing column consumer_inbox.error\n");
    assert_int_equal(schema_apply(url, &error), CSN_REJECTED);
    assert_int_equal(error.code, 2011);
}

static void test_empty_and_none(void **state) {
    (void)state;
    assert_int_equal(check(), CSN_INVALID);
    assert_int_equal(error.code, 2001);
    with_db(DB_CREATE | DB_ANY_SCHEMA, "CREATE TABLE t (x)");
    assert_int_equal(check(), CSN_REJECTED);
    assert_int_equal(error.code, 2004);
    assert_non_null(strstr(lines_buffer, "missing table outbox_events\n"));
}

static void test_newer(void **state) {
    (void)state;
    struct db *d = NULL;
    applied();
    with_db(0, "UPDATE consign_meta SET value = '3' WHERE key IN ('schema', 'min_writer')");
    assert_int_equal(db_open(url, 0, &d, &error), CSN_REJECTED);
    assert_int_equal(error.code, 2005);
    assert_int_equal(db_open(url, DB_READ_ONLY, &d, &error), CSN_OK); /* reading is allowed still */
    db_close(d);
    assert_int_equal(check(), CSN_REJECTED);
    assert_int_equal(error.code, 2005);
    with_db(DB_ANY_SCHEMA, "DROP TABLE consign_versions");
    assert_int_equal(schema_apply(url, &error), CSN_REJECTED);
    assert_int_equal(error.code, 2005);
    assert_int_equal(number("SELECT count(*) FROM sqlite_schema WHERE name = 'consign_versions'"),
                     0); /* not touched */
    with_db(DB_ANY_SCHEMA, "UPDATE consign_meta SET value = '3' WHERE key = 'min_reader'");
    d = NULL;
    assert_int_equal(db_open(url, DB_READ_ONLY, &d, &error), CSN_REJECTED);
    assert_null(d);
}

static void test_text(void **state) {
    (void)state;
    assert_non_null(schema_text("sqlite"));
    assert_non_null(strstr(schema_text("sqlite"), "CREATE TABLE outbox_events"));
    assert_null(schema_text("nothing"));
    assert_null(schema_text(NULL));
    assert_null(named_sql("no.such"));
    assert_null(named_sql(NULL));
}

static void test_marker(void **state) {
    (void)state;
    bool there = true;
    applied();
    assert_int_equal(lab_marker_there(url, &there, &error), CSN_OK);
    assert_false(there);
    assert_int_equal(lab_marker_set(url, &error), CSN_OK);
    assert_int_equal(lab_marker_set(url, &error), CSN_OK);
    assert_int_equal(lab_marker_there(url, &there, &error), CSN_OK);
    assert_true(there);
    unlink(file);
    assert_int_not_equal(lab_marker_set(url, &error), CSN_OK);
    with_db(DB_CREATE | DB_ANY_SCHEMA, "CREATE TABLE t (x)");
    assert_int_equal(lab_marker_there(url, &there, &error), CSN_OK);
    assert_false(there);
}

static void append(struct db *d, const char *action, const char *reason) {
    if (audit_append(d, "ann", action, "event e-1", reason, NULL, "{\"status\":\"pending\"}",
                     &error) != CSN_OK)
        fail_msg("%s", error.text);
}

/* Runs sql on a chain of three, says which row is found. 0: the chain holds. */
static int64_t chain_after(const char *sql) {
    struct db *d = NULL;
    int64_t seq = 0;
    unlink(file);
    applied();
    assert_int_equal(db_open(url, 0, &d, &error), CSN_OK);
    assert_int_equal(audit_verify(d, &seq, &error), CSN_OK); /* an empty chain holds */
    assert_int_equal(db_begin(d, &error), CSN_OK);
    append(d, "event retry", "first");
    append(d, "event retry", NULL);
    append(d, "event cancel", "third");
    assert_int_equal(db_commit(d, &error), CSN_OK);
    assert_int_equal(db_begin(d, &error), CSN_OK);
    append(d, "event cancel", "rolled back");
    db_rollback(d);
    assert_int_equal(audit_verify(d, &seq, &error), CSN_OK);
    if (db_script(d, sql, &error) != CSN_OK)
        fail_msg("%s: %s", sql, error.text);
    csn_status st = audit_verify(d, &seq, &error);
    db_close(d);
    assert_true(st == CSN_OK || (st == CSN_REJECTED && error.code == 6002 && seq > 0));
    return st == CSN_OK ? 0 : seq;
}

static void test_audit(void **state) {
    (void)state;
    static const struct {
        const char *sql;
        int64_t seq;
    } row[] = {
        {"SELECT 1", 0},
        {"UPDATE consign_audit SET actor = 'bob' WHERE seq = 2", 2},
        {"UPDATE consign_audit SET reason = '' WHERE seq = 2", 2}, /* '' is not NULL */
        {"UPDATE consign_audit SET at = at + 1 WHERE seq = 1", 1},
        {"UPDATE consign_audit SET action = target, target = action WHERE seq = 3", 3},
        {"UPDATE consign_audit SET after = NULL WHERE seq = 3", 3},
        {"DELETE FROM consign_audit WHERE seq = 1", 1},
        {"DELETE FROM consign_audit WHERE seq = 2", 2},
        {"DELETE FROM consign_audit WHERE seq = 3", 3},
        {"DELETE FROM consign_audit", 1},
        {"INSERT INTO consign_audit(prev_hash, at, actor, action, target, hash) SELECT hash, 1, "
         "'eve', 'x', 'y', 'z' "
         "FROM consign_audit WHERE seq = 3",
         4},
    };
    for (size_t i = 0; i < ARRAY_LEN(row); i++) {
        int64_t seq = chain_after(row[i].sql);
        if (seq != row[i].seq)
            fail_msg("%s: row %lld is found, not %lld", row[i].sql, (long long)seq,
                     (long long)row[i].seq);
    }
}

static void remove_files(void) {
    static const char *const ends[] = {"", "-wal", "-shm", "-journal"};
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        char path[80];
        snprintf(path, sizeof path, "%s%s", file, ends[i]);
        unlink(path);
    }
}

static int begin(void **state) {
    (void)state;
    snprintf(file, sizeof file, "/tmp/csn-test-schema-%d.db", (int)getpid());
    snprintf(url, sizeof url, "sqlite:%s", file);
    remove_files();
    return 0;
}

static int end(void **state) {
    (void)state;
    remove_files();
    return 0;
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_apply_is_idempotent),
        TEST(test_upgrade),
        TEST(test_differences),
        TEST(test_empty_and_none),
        TEST(test_newer),
        TEST(test_text),
        TEST(test_marker),
        TEST(test_audit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
