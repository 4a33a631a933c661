/* test_db.c: the plain way to ask a store: values go in and come out as they are, errors have their
 * codes, transactions hold. */
#include "store/db.h"
#include "store/store.h"
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[64];
static csn_error error;

/* Texts of this test; each is used up before the second one after it is made. */
static const char *url(const char *name) {
    static char text[2][128];
    static int at;
    at = !at;
    snprintf(text[at], sizeof text[at], "sqlite:%s/%s", folder, name);
    return text[at];
}

static const char *path(const char *name) {
    return url(name) + strlen("sqlite:");
}

static void run(struct db *d, const char *sql) {
    if (db_script(d, sql, &error) != CSN_OK)
        fail_msg("%s: %s", sql, error.text);
}

static int64_t number(struct db *d, const char *sql) {
    int64_t n = -1;
    bool row = false;
    if (db_int(d, sql, NULL, 0, &n, &row, &error) != CSN_OK || !row)
        fail_msg("%s: %s", sql, error.text);
    return n;
}

static struct db *fresh(const char *name) {
    struct db *d = NULL;
    unlink(path(name));
    if (db_open(url(name), DB_CREATE | DB_ANY_SCHEMA, &d, &error) != CSN_OK)
        fail_msg("%s", error.text);
    return d;
}

static void test_values(void **state) {
    (void)state;
    struct db *d = fresh("values.db");
    struct stmt *s = NULL;
    bool row = false;
    const unsigned char raw[] = {0xff, 0, 1}, half[] = {0xe4, 0xb8}, over[] = {0xc0, 0x80},
                        zero[] = {'a', 0, 'b'};
    run(d, "CREATE TABLE t (i, t, n, b, e, h, o, z)");
    assert_int_equal(
        db_prepare(d, "INSERT INTO t VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)", &s, &error), CSN_OK);
    stmt_bind_int(s, 1, INT64_MIN);
    stmt_bind_text(s, 2, "中文");
    stmt_bind_null(s, 3);
    stmt_bind_bytes(s, 4, (csn_bytes){raw, sizeof raw});
    stmt_bind_bytes(s, 5, (csn_bytes){NULL, 0});
    stmt_bind_bytes(s, 6, (csn_bytes){half, sizeof half});
    stmt_bind_bytes(s, 7, (csn_bytes){over, sizeof over});
    stmt_bind_bytes(s, 8, (csn_bytes){zero, sizeof zero});
    assert_int_equal(stmt_next(s, &row, &error), CSN_OK);
    assert_false(row);
    assert_int_equal(stmt_next(s, &row, &error), CSN_OK); /* done stays done: it is not run again */
    assert_int_equal(db_changes(d), 1);
    stmt_close(s);

    assert_int_equal(
        db_prepare(d, "SELECT i, t, n, b, e, z, typeof(b), typeof(e), typeof(h), typeof(o) FROM t",
                   &s, &error),
        CSN_OK);
    assert_int_equal(stmt_columns(s), 10);
    assert_string_equal(stmt_column(s, 1), "t");
    assert_int_equal(stmt_next(s, &row, &error), CSN_OK);
    assert_true(row);
    assert_true(stmt_int(s, 0) == INT64_MIN);
    assert_string_equal(stmt_text(s, 1), "中文");
    assert_true(stmt_is_null(s, 2) && !stmt_is_null(s, 4));
    assert_string_equal(stmt_text(s, 2), "");
    assert_true(bytes_equal(stmt_bytes(s, 3), (csn_bytes){raw, sizeof raw}));
    assert_int_equal(stmt_bytes(s, 4).size, 0);
    assert_true(bytes_equal(stmt_bytes(s, 5), (csn_bytes){zero, sizeof zero}));
    assert_string_equal(stmt_text(s, 6), "blob");
    assert_string_equal(stmt_text(s, 7), "text");
    assert_string_equal(stmt_text(s, 8), "blob");
    assert_string_equal(stmt_text(s, 9), "blob");
    assert_int_equal(stmt_next(s, &row, &error), CSN_OK);
    assert_false(row);
    stmt_reset(s);
    assert_int_equal(stmt_next(s, &row, &error), CSN_OK);
    assert_true(row);
    stmt_close(s);
    stmt_close(NULL);
    db_close(d);
}

static void test_transactions(void **state) {
    (void)state;
    struct db *a = fresh("tx.db"), *b = NULL;
    run(a, "PRAGMA journal_mode = WAL; CREATE TABLE t (x)");
    assert_int_equal(db_open(url("tx.db"), DB_READ_ONLY | DB_ANY_SCHEMA, &b, &error), CSN_OK);
    assert_int_equal(db_begin(a, &error), CSN_OK);
    run(a, "INSERT INTO t VALUES (1)");
    assert_int_equal(number(b, "SELECT count(*) FROM t"), 0);
    assert_int_equal(db_commit(a, &error), CSN_OK);
    assert_int_equal(number(b, "SELECT count(*) FROM t"), 1);
    assert_int_equal(db_begin(a, &error), CSN_OK);
    run(a, "INSERT INTO t VALUES (2)");
    db_rollback(a);
    db_rollback(a); /* nothing to roll back is fine */
    assert_int_equal(number(b, "SELECT count(*) FROM t"), 1);
    assert_int_equal(db_begin(a, &error), CSN_OK);
    run(a, "INSERT INTO t VALUES (3)");
    db_close(a); /* rolls back */
    assert_int_equal(number(b, "SELECT count(*) FROM t"), 1);
    assert_int_not_equal(db_script(b, "INSERT INTO t VALUES (4)", &error), CSN_OK);
    assert_int_equal(error.code, 2006);
    db_close(b);
}

static void test_lock(void **state) {
    (void)state;
    struct db *a = fresh("lock.db"), *b = NULL;
    run(a, "PRAGMA journal_mode = WAL; CREATE TABLE t (x)");
    assert_int_equal(db_open(url("lock.db"), DB_ANY_SCHEMA, &b, &error), CSN_OK);
    assert_int_equal(db_begin(a, &error), CSN_OK);
    csn_usec before = db_now(b);
    assert_int_equal(db_begin(b, &error), CSN_AGAIN);
    csn_usec waited = db_now(b) - before;
    assert_int_equal(error.code, 2008);
    assert_in_range(waited, 4900000, 9000000);
    db_rollback(a);
    assert_int_equal(db_begin(b, &error), CSN_OK);
    db_close(b);
    db_close(a);
}

static void test_open_errors(void **state) {
    (void)state;
    struct db *d = NULL;
    assert_int_equal(db_open("postgres://x", 0, &d, &error), CSN_INVALID);
    assert_int_equal(error.code, 2012);
    assert_int_equal(db_open(url("none.db"), DB_ANY_SCHEMA, &d, &error), CSN_INVALID);
    assert_int_equal(error.code, 2001);
    assert_int_not_equal(access(path("none.db"), F_OK), 0);
    assert_int_equal(db_open(url("no/such/folder.db"), DB_CREATE | DB_ANY_SCHEMA, &d, &error),
                     CSN_INVALID);
    assert_int_equal(error.code, 2001);

    FILE *f = fopen(path("words.db"), "w");
    assert_non_null(f);
    for (int i = 0; i < 100; i++)
        fprintf(f, "this is no database at all\n");
    fclose(f);
    assert_int_not_equal(db_open(url("words.db"), DB_ANY_SCHEMA, &d, &error), CSN_OK);
    assert_int_equal(error.code, 2002);
    assert_null(d);

    struct db *empty = fresh("empty.db");
    assert_int_equal(db_open(url("empty.db"), 0, &d, &error), CSN_REJECTED);
    assert_int_equal(error.code, 2004);
    assert_null(d);
    db_close(empty);
    db_close(NULL);
}

static void test_mode(void **state) {
    (void)state;
    struct stat st;
    struct db *d = fresh("mode.db");
    run(d, "PRAGMA journal_mode = WAL; CREATE TABLE t (x)");
    assert_int_equal(stat(path("mode.db"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(stat(path("mode.db-wal"), &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(strncmp(db_product(d), "sqlite 3.", 9), 0);
    db_close(d);
}

static void test_mistakes(void **state) {
    (void)state;
    struct db *d = fresh("mistakes.db");
    struct stmt *s = NULL;
    bool row = false;
    run(d, "CREATE TABLE t (x UNIQUE); INSERT INTO t VALUES (1)");
    assert_int_equal(db_prepare(d, "SELEC 1", &s, &error), CSN_INVALID);
    assert_int_equal(error.code, 2010);
    assert_int_equal(db_prepare(d, "SELECT 1; SELECT 2", &s, &error), CSN_INVALID);
    assert_int_equal(db_prepare(d, "", &s, &error), CSN_INVALID);
    assert_int_equal(db_prepare(d, "@no.such", &s, &error), CSN_INVALID);
    assert_null(s);
    assert_int_equal(db_prepare(d, "INSERT INTO t VALUES (?1)", &s, &error), CSN_OK);
    stmt_bind_int(s, 1, 1);
    assert_int_equal(stmt_next(s, &row, &error), CSN_REJECTED);
    stmt_reset(s);
    stmt_bind_int(s, 2, 1); /* there is no second parameter: kept until it is run */
    assert_int_equal(stmt_next(s, &row, &error), CSN_INVALID);
    stmt_close(s);
    int64_t n = 7;
    assert_int_equal(
        db_int(d, "SELECT x FROM t WHERE x = ?1", (const char *[]){"9"}, 1, &n, &row, &error),
        CSN_OK);
    assert_false(row);
    assert_int_equal(n, 7);
    db_close(d);
}

static void test_memory(void **state) {
    (void)state;
    struct db *d = NULL;
    assert_int_equal(db_memory(&d, &error), CSN_OK);
    run(d, "CREATE TABLE t (x)");
    assert_int_equal(number(d, "SELECT count(*) FROM t"), 0);
    db_close(d);
}

static int make_folder(void **state) {
    (void)state;
    copy_text(folder, sizeof folder, "/tmp/csn-test-db-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    static const char *const names[] = {"values", "tx",   "lock",    "words",
                                        "empty",  "mode", "mistakes"};
    static const char *const ends[] = {".db", ".db-wal", ".db-shm"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        for (size_t j = 0; j < ARRAY_LEN(ends); j++) {
            char name[32];
            snprintf(name, sizeof name, "%s%s", names[i], ends[j]);
            unlink(path(name));
        }
    }
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),      cmocka_unit_test(test_transactions),
        cmocka_unit_test(test_lock),        cmocka_unit_test(test_mode),
        cmocka_unit_test(test_open_errors), cmocka_unit_test(test_mistakes),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
