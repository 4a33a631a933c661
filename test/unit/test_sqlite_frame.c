/* test_sqlite_frame.c: the frame of the SQLite driver: what open refuses and with which code, that
 * waiting has an end, that a group is all or nothing, and what a failing disk makes of it. The
 * verbs themselves are in test/contract. */
#include "base/failpoint.h"
#include "core/route.h"
#include "store/sqlite.h"
#include "store/store.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define SECOND INT64_C(1000000)
#define BOOT   "boot-a"

struct place {
    char folder[64], path[96], url[112];
};

static void sql(const char *path, const char *text) {
    sqlite3 *db = NULL;
    char *error = NULL;

    assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
    sqlite3_exec(db, text, NULL, NULL, &error);
    if (error)
        fail_msg("%s", error);
    sqlite3_close(db);
}

static int64_t number(const char *path, const char *text) {
    sqlite3 *db = NULL;
    sqlite3_stmt *s = NULL;
    int64_t n;

    assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_prepare_v2(db, text, -1, &s, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_step(s), SQLITE_ROW);
    n = sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    sqlite3_close(db);
    return n;
}

static int set_up(void **state) {
    struct place *p = calloc(1, sizeof *p);
    csn_error err = {0};

    assert_non_null(p);
    copy_text(p->folder, sizeof p->folder, "/tmp/consign-frame-XXXXXX");
    assert_non_null(mkdtemp(p->folder));
    snprintf(p->path, sizeof p->path, "%s/a.db", p->folder);
    snprintf(p->url, sizeof p->url, "sqlite:%s", p->path);
    assert_int_equal(schema_apply(p->url, &err), CSN_OK);
    *state = p;
    return 0;
}

static int tear_down(void **state) {
    static const char *const ends[] = {"", "-wal", "-shm", "-journal"};
    struct place *p = *state;
    char path[128];

    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        snprintf(path, sizeof path, "%s%s", p->path, ends[i]);
        unlink(path);
    }
    rmdir(p->folder);
    free(p);
    return 0;
}

/* ---- ops ---- */

struct work { /* one relay: its connection, its lane, a claim and a settle */
    struct sqlite_conn *c;
    struct op lease, claim, settle;
    struct batch batch;
    struct message msg[20];
    struct settle_item item[20];
};

static csn_status run_until(struct sqlite_conn *c, struct op *first, struct op *second,
                            csn_usec deadline) {
    first->next = second;
    if (second)
        second->next = NULL;
    for (struct op *op = first; op; op = op->next)
        op->deadline = deadline;
    sqlite_driver.run(c, first);
    if (second) /* a group has one result */
        assert_int_equal(first->result.status, second->result.status);
    return first->result.status;
}

static csn_status run(struct sqlite_conn *c, struct op *first, struct op *second) {
    return run_until(c, first, second, sqlite_steady() + 5 * SECOND);
}

static struct sqlite_conn *open_as(const struct place *p, enum role role) {
    void *conn = NULL;
    csn_error err = {0};

    if (sqlite_driver.open(p->url, role, &conn, &err) != CSN_OK)
        fail_msg("%s", err.text);
    return conn;
}

static void work_open(struct work *w, const struct place *p) {
    memset(w, 0, sizeof *w);
    w->c = open_as(p, ROLE_RELAY);
    arena_init(&w->batch.arena, 1 << 20);
    w->batch.msg = w->msg;
    w->batch.cap = ARRAY_LEN(w->msg);
    w->lease.kind = OP_LEASE;
    copy_text(w->lease.lease.name, NAME_MAX_, "outbox");
    copy_text(w->lease.lease.boot, TOKEN_SIZE, BOOT);
    w->lease.lease.want = 1;
    w->lease.lease.lease = 60 * SECOND;
    w->lease.lease.longest = 240 * SECOND;
    assert_int_equal(run(w->c, &w->lease, NULL), CSN_OK);
    assert_int_equal(w->lease.lease.held, 1);
    w->claim.kind = OP_CLAIM;
    w->claim.batch = &w->batch;
    copy_text(w->claim.claim.lane_name, NAME_MAX_, "outbox");
    copy_text(w->claim.claim.boot, TOKEN_SIZE, BOOT);
    copy_text(w->claim.claim.token, TOKEN_SIZE, "token-1");
    w->claim.claim.lanes = 1;
    w->claim.claim.epoch = w->lease.lease.epoch;
    w->claim.claim.limit = 20;
    w->claim.claim.park_limit = 20;
    w->claim.claim.bytes = 1 << 20;
    w->claim.claim.lease = w->claim.claim.longest_backoff = 60 * SECOND;
}

static void work_close(struct work *w) {
    sqlite_driver.close(w->c);
    arena_free(&w->batch.arena);
}

/* A settle of what the claim brought, as sent. */
static struct op *settle_of(struct work *w) {
    w->settle = (struct op){.kind = OP_SETTLE, .batch = &w->batch};
    copy_text(w->settle.settle.token, TOKEN_SIZE, w->claim.claim.token);
    w->settle.settle.item = w->item;
    w->settle.settle.n = w->batch.n;
    for (uint32_t i = 0; i < w->batch.n; i++)
        w->item[i] = (struct settle_item){.msg = i, .to = SETTLE_SENT, .part = -1, .pos = -1};
    return &w->settle;
}

static void put(const struct place *p, int n) {
    char text[400];

    snprintf(text, sizeof text,
             "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d) INSERT "
             "INTO outbox_events(event_id,"
             " aggregate_id, aggregate_version, event_type, payload) SELECT 'e' || i, 'k' || i, 1, "
             "'T', '{}' FROM n",
             n);
    sql(p->path, text);
}

/* ---- open ---- */

static csn_error refused(const char *url) {
    void *conn = NULL;
    csn_error err = {0};
    csn_status s = sqlite_driver.open(url, ROLE_RELAY, &conn, &err);

    assert_int_not_equal(s, CSN_OK);
    assert_int_equal(s, err.status);
    assert_null(conn);
    return err;
}

static void a_url_of_another_kind_is_refused(void **state) {
    char path[8];
    csn_error err = {0};

    (void)state;
    assert_int_equal(refused("postgres:x").code, ERR_STORE_URL);
    assert_int_equal(refused("sqlite:").code, ERR_STORE_URL);
    assert_ptr_equal(driver_for(store_drivers, "sqlite:x.db", &err), &sqlite_driver);
    assert_null(driver_for(store_drivers, "sqlite3:x.db", &err));
    assert_int_equal(err.code, ERR_STORE_URL);
    assert_true(sqlite_url_path("sqlite:1234567", path, sizeof path));
    assert_string_equal(path, "1234567");
    assert_false(sqlite_url_path("sqlite:12345678", path, sizeof path));
}

static void a_missing_file_is_not_made(void **state) {
    struct place *p = *state;
    csn_error err;

    unlink(p->path);
    err = refused(p->url);
    assert_int_equal(err.code, ERR_STORE_OPEN);
    assert_int_equal(err.status, CSN_INVALID);
    assert_int_not_equal(access(p->path, F_OK), 0);
}

static void a_file_that_is_no_database_is_left_alone(void **state) {
    struct place *p = *state;
    FILE *f = fopen(p->path, "w");
    char text[64] = "";

    assert_non_null(f);
    fprintf(f, "This is the shopping list of a cat, and it is longer than a header.");
    fclose(f);
    assert_int_equal(refused(p->url).code, ERR_STORE_NOT_DB);
    f = fopen(p->path, "r");
    assert_non_null(f);
    assert_non_null(fgets(text, sizeof text, f));
    assert_memory_equal(text, "This is the shopping", 20);
    fclose(f);
}

static void an_empty_store_is_old(void **state) {
    struct place *p = *state;

    unlink(p->path);
    FILE *f = fopen(p->path, "w");
    assert_non_null(f);
    fclose(f);
    assert_int_equal(refused(p->url).code, ERR_STORE_SCHEMA_OLD);
}

static void a_newer_store_is_refused(void **state) {
    struct place *p = *state;

    sql(p->path, "UPDATE consign_meta SET value = '99' WHERE key = 'min_writer'");
    assert_int_equal(refused(p->url).code, ERR_STORE_SCHEMA_NEW);
}

static void a_missing_column_is_named(void **state) {
    struct place *p = *state;
    csn_error err;

    sql(p->path, "ALTER TABLE outbox_events DROP COLUMN correlation_id");
    err = refused(p->url);
    assert_int_equal(err.code, ERR_STORE_COLUMN);
    assert_non_null(strstr(err.text, "correlation_id"));
}

static void a_missing_index_is_refused(void **state) {
    struct place *p = *state;

    sql(p->path, "DROP INDEX ix_dispatch");
    assert_int_equal(refused(p->url).code, ERR_STORE_SCHEMA_OLD);
}

static void a_column_of_the_user_is_no_fault(void **state) {
    struct place *p = *state;

    sql(p->path, "ALTER TABLE outbox_events ADD COLUMN mine TEXT");
    sqlite_driver.close(open_as(p, ROLE_RELAY));
}

/* As root no file is read-only: a child without rights looks. */
static void a_read_only_file_is_refused(void **state) {
    struct place *p = *state;
    int status = 0;
    pid_t child;

    sql(p->path, "PRAGMA journal_mode = DELETE"); /* a log cannot be joined by who may only read */
    assert_int_equal(chmod(p->path, 0444), 0);
    assert_int_equal(chmod(p->folder, 0555), 0);
    child = fork();
    if (child == 0) {
        void *conn = NULL;
        csn_error err = {0};
        if (getuid() == 0 && setresuid(65534, 65534, 65534) != 0)
            _exit(2);
        _exit(sqlite_driver.open(p->url, ROLE_RELAY, &conn, &err) == CSN_INVALID &&
                      err.code == ERR_STORE_READ_ONLY
                  ? 0
                  : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(chmod(p->folder, 0755), 0);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void the_settings_hold(void **state) {
    struct place *p = *state;
    static const char *const pragma[] = {"PRAGMA synchronous", "PRAGMA foreign_keys",
                                         "PRAGMA cache_size", "PRAGMA query_only"};
    static const int want[] = {2, 1, -128, 1};
    struct sqlite_conn *c = open_as(p, ROLE_WATCH);

    for (size_t i = 0; i < ARRAY_LEN(pragma); i++) {
        sqlite3_stmt *s = NULL;
        assert_int_equal(sqlite3_prepare_v2(c->db, pragma[i], -1, &s, NULL), SQLITE_OK);
        assert_int_equal(sqlite3_step(s), SQLITE_ROW);
        assert_int_equal(sqlite3_column_int(s, 0), want[i]);
        sqlite3_finalize(s);
    }
    sqlite_driver.close(c);
    sqlite_driver.close(NULL);
}

/* ---- locks and time ---- */

static sqlite3 *lock(const struct place *p) {
    sqlite3 *db = NULL;

    assert_int_equal(sqlite3_open_v2(p->path, &db, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    return db;
}

static void waiting_for_a_lock_ends_at_the_deadline(void **state) {
    struct place *p = *state;
    struct work w;
    sqlite3 *other;
    csn_usec began;

    work_open(&w, p);
    put(p, 3);
    other = lock(p);
    began = sqlite_steady();
    assert_int_equal(run_until(w.c, &w.claim, NULL, began + SECOND / 5), CSN_AGAIN);
    assert_int_equal(w.claim.result.code, ERR_STORE_LOCKED);
    assert_int_equal(w.batch.n, 0);
    assert_true(sqlite_steady() - began >= SECOND / 5);
    assert_true(sqlite_steady() - began < 2 * SECOND);
    sqlite3_close(other);
    assert_int_equal(run(w.c, &w.claim, NULL), CSN_OK);
    assert_int_equal(w.batch.n, 3);
    work_close(&w);
}

static void a_store_that_is_locked_can_be_opened(void **state) {
    struct place *p = *state;
    sqlite3 *other = lock(p);

    sqlite_driver.close(open_as(p, ROLE_RELAY));
    sqlite3_close(other);
}

static void a_lock_that_ends_in_time_is_waited_for(void **state) {
    struct place *p = *state;
    struct work w;
    int pipe_fd[2], status;
    char byte;
    pid_t child;

    work_open(&w, p);
    put(p, 3);
    assert_int_equal(pipe(pipe_fd), 0);
    child = fork();
    if (child == 0) {
        sqlite3 *other = lock(p);
        bool told = write(pipe_fd[1], "x", 1) == 1;
        usleep(100000);
        _exit(told && sqlite3_exec(other, "COMMIT", NULL, NULL, NULL) == SQLITE_OK ? 0 : 1);
    }
    assert_int_equal(read(pipe_fd[0], &byte, 1), 1);
    assert_int_equal(run(w.c, &w.claim, NULL), CSN_OK);
    assert_int_equal(w.batch.n, 3);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    close(pipe_fd[0]);
    close(pipe_fd[1]);
    work_close(&w);
}

static void a_deadline_that_is_past_begins_nothing(void **state) {
    struct place *p = *state;
    struct work w;

    work_open(&w, p);
    put(p, 1);
    assert_int_equal(run_until(w.c, &w.claim, NULL, sqlite_steady() - 1), CSN_AGAIN);
    assert_int_equal(number(p->path, "SELECT count(*) FROM outbox_events WHERE status = 'pending'"),
                     1);
    work_close(&w);
}

/* What finds nothing must not take the lock that a producer waits for; what finds something must.
 */
static void an_idle_group_takes_no_lock(void **state) {
    struct place *p = *state;
    struct work w;
    struct op recover = {.kind = OP_RECOVER};
    sqlite3 *other;

    work_open(&w, p);
    copy_text(recover.recover.lane_name, NAME_MAX_, "outbox");
    copy_text(recover.recover.boot, TOKEN_SIZE, BOOT);
    recover.recover.lanes = 1;
    recover.recover.epoch = w.lease.lease.epoch;
    recover.recover.longest_lease = recover.recover.longest_backoff = 240 * SECOND;
    recover.recover.limit = 100;
    other = lock(p);
    assert_int_equal(run(w.c, &recover, &w.claim), CSN_OK);
    assert_int_equal(w.claim.claim.lost, 0);
    w.claim.claim.lanes = 3; /* the second is nobody's */
    assert_int_equal(run(w.c, &w.claim, NULL), CSN_OK);
    assert_int_equal(w.claim.claim.lost, 2);
    sqlite3_exec(
        other,
        "INSERT INTO outbox_events(event_id, aggregate_id, aggregate_version, event_type, payload)"
        " VALUES ('e', 'k', 1, 'T', '{}'); COMMIT; BEGIN IMMEDIATE",
        NULL, NULL, NULL);
    assert_int_equal(run_until(w.c, &w.claim, NULL, sqlite_steady() + SECOND / 10), CSN_AGAIN);
    sqlite3_close(other);
    work_close(&w);
}

/* ---- all or nothing ---- */

static void a_group_that_fails_leaves_nothing(void **state) {
    struct place *p = *state;
    struct work w;
    struct op bad = {.kind = OP_SETTLE};
    struct settle_item item = {.to = SETTLE_CANCELLED + 1};

    work_open(&w, p);
    put(p, 5);
    bad.batch = &w.batch;
    bad.settle.item = &item;
    bad.settle.n = 1;
    assert_int_equal(run(w.c, &w.claim, &bad), CSN_INVALID);
    assert_int_equal(w.batch.n, 0);
    assert_false(w.claim.claim.more);
    assert_int_equal(
        number(p->path,
               "SELECT count(*) FROM outbox_events WHERE status = 'pending' AND attempts = 0"),
        5);
    assert_int_equal(run(w.c, &w.claim, NULL), CSN_OK);
    assert_int_equal(w.batch.n, 5);
    work_close(&w);
}

static void operations_that_do_not_belong_together_are_refused(void **state) {
    struct place *p = *state;
    struct work w;
    struct op watch = {.kind = OP_WATCH}, none = {.kind = OP_NONE};

    work_open(&w, p);
    put(p, 1);
    assert_int_equal(run(w.c, &w.claim, &watch), CSN_INVALID);
    assert_int_equal(run(w.c, &w.claim, &none), CSN_INVALID);
    assert_int_equal(number(p->path, "SELECT count(*) FROM outbox_events WHERE status = 'pending'"),
                     1);
    work_close(&w);
}

static void a_full_disk_changes_nothing(void **state) {
    struct place *p = *state;
    struct work w;
    char text[200];

    work_open(&w, p);
    put(p, 20);
    assert_int_equal(run(w.c, &w.claim, NULL), CSN_OK);
    settle_of(&w);
    for (uint32_t i = 0; i < w.batch.n;
         i++) { /* evidence needs room that a mark as sent does not need */
        w.item[i].to = SETTLE_FAILED;
        memset(w.item[i].text, 'x', sizeof w.item[i].text - 1);
    }
    assert_int_equal(sqlite3_exec(w.c->db, "PRAGMA max_page_count = 1", NULL, NULL, NULL),
                     SQLITE_OK);
    assert_int_equal(run(w.c, &w.settle, NULL), CSN_AGAIN);
    assert_int_equal(w.settle.result.code, ERR_STORE_FULL);
    assert_true(sqlite3_get_autocommit(w.c->db));
    assert_int_equal(number(p->path, "SELECT count(*) FROM outbox_events WHERE status = 'sending'"),
                     20);
    assert_int_equal(number(p->path, "SELECT count(*) FROM consign_attempts"), 0);
    snprintf(text, sizeof text, "PRAGMA max_page_count = %d", 1 << 30);
    assert_int_equal(sqlite3_exec(w.c->db, text, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(run(w.c, &w.settle, NULL), CSN_OK);
    assert_int_equal(number(p->path, "SELECT count(*) FROM outbox_events WHERE status = 'failed'"),
                     20);
    work_close(&w);
}

/* ---- a disk that fails ---- */

static int failing_sync(sqlite3_file *file, int flags) {
    (void)file;
    (void)flags;
    return SQLITE_IOERR_FSYNC;
}

/* COMMIT wrote the frames and could not make them durable: nobody knows. The connection is of no
 * more use. */
static void an_error_in_commit_is_unknown(void **state) {
    struct place *p = *state;
    struct work w;
    sqlite3_file *log = NULL;
    sqlite3_io_methods methods;

    work_open(&w, p);
    put(p, 2);
    assert_int_equal(run(w.c, &w.claim, NULL), CSN_OK);
    assert_int_equal(sqlite3_file_control(w.c->db, "main", SQLITE_FCNTL_JOURNAL_POINTER, &log),
                     SQLITE_OK);
    const sqlite3_io_methods *before = log->pMethods;
    methods = *before;
    methods.xSync = failing_sync;
    log->pMethods = &methods;
    assert_int_equal(run(w.c, settle_of(&w), NULL), CSN_UNKNOWN);
    assert_int_equal(w.settle.result.code, ERR_STORE_COMMIT_UNKNOWN);
    log->pMethods = before;
    assert_int_equal(run(w.c, &w.settle, NULL), CSN_FATAL);
    assert_int_equal(w.settle.result.code, ERR_STORE_IO);
    sqlite_driver.close(w.c);
    w.c = open_as(p, ROLE_RELAY); /* the store itself is well */
    assert_int_equal(run(w.c, &w.settle, NULL), CSN_OK);
    assert_int_equal(number(p->path, "SELECT count(*) FROM outbox_events WHERE status = 'sent'"),
                     2);
    work_close(&w);
}

/* ---- failpoints and the clock ---- */

static void arm(const char *spec) {
    csn_error err = {0};

    assert_int_equal(failpoint_arm(spec, &err), CSN_OK);
}

static void failpoints_do_what_they_say(void **state) {
    struct place *p = *state;
    struct work w;
    uint64_t before;

    work_open(&w, p);
    put(p, 2);
    arm("store.claim=error");
    assert_int_equal(run(w.c, &w.claim, NULL), CSN_AGAIN);
    assert_int_equal(number(p->path, "SELECT count(*) FROM outbox_events WHERE status = 'pending'"),
                     2);
    arm("claim.committed=unknown");
    assert_int_equal(run(w.c, &w.claim, NULL), CSN_UNKNOWN);
    assert_int_equal(w.batch.n, 0);
    assert_int_equal(number(p->path, "SELECT count(*) FROM outbox_events WHERE status = 'sending'"),
                     2);
    arm("");
    before = failpoint_hits(FAIL_CLAIM_UPDATED);
    assert_int_equal(run(w.c, &w.claim, NULL), CSN_OK); /* empty: not a hit */
    assert_int_equal(failpoint_hits(FAIL_CLAIM_UPDATED), before);
    work_close(&w);
}

static void the_clock_steps_only_when_armed(void **state) {
    csn_usec now = sqlite_clock();

    (void)state;
    setenv("CONSIGN_CLOCK_STEP", "-3600", 1);
    assert_true(sqlite_clock() >= now);
    arm("store.claim=error@1000000");
    assert_true(sqlite_clock() < now - 3500 * SECOND);
    arm("");
    unsetenv("CONSIGN_CLOCK_STEP");
}

/* A row of the old clock is drawn once this connection saw the step, without a fresh lane; a
 * planned row is not, and nothing is looked for when the clock has caught up. */
static void a_clock_set_back_is_seen(void **state) {
    struct place *p = *state;
    struct work w;
    struct op recover = {.kind = OP_RECOVER};

    work_open(&w, p);
    copy_text(recover.recover.lane_name, NAME_MAX_, "outbox");
    copy_text(recover.recover.boot, TOKEN_SIZE, BOOT);
    recover.recover.lanes = 1;
    recover.recover.epoch = w.lease.lease.epoch;
    recover.recover.limit = 1;
    recover.recover.longest_lease = recover.recover.longest_backoff = 7200 * SECOND;
    put(p, 2);
    sql(p->path, "UPDATE outbox_events SET next_attempt_at = next_attempt_at + 1000000 WHERE "
                 "event_id = 'e2'");
    setenv("CONSIGN_CLOCK_STEP", "-600", 1);
    arm("store.claim=error@1000000");
    w.lease.lease.longest = 3600 * SECOND;
    assert_int_equal(run(w.c, &w.lease, NULL), CSN_OK);
    assert_int_equal(run(w.c, &recover, NULL), CSN_OK);
    assert_int_equal(recover.recover.drawn, 1);
    assert_true(recover.recover.more);
    assert_int_equal(run(w.c, &recover, NULL), CSN_OK);
    assert_int_equal(recover.recover.drawn, 0);
    assert_int_equal(run(w.c, &w.claim, NULL), CSN_OK);
    assert_int_equal(w.batch.n, 1);
    unsetenv("CONSIGN_CLOCK_STEP");
    arm("");
    sql(p->path, "UPDATE outbox_events SET status = 'pending', next_attempt_at = created_at + "
                 "100000000, attempts = 1");
    assert_int_equal(run(w.c, &w.lease, NULL), CSN_OK);
    assert_int_equal(run(w.c, &recover, NULL), CSN_OK);
    assert_int_equal(recover.recover.drawn, 0);
    work_close(&w);
}

static void the_clock_follows_a_file(void **state) {
    struct place *p = *state;
    char path[128];
    FILE *f;
    csn_usec now = sqlite_clock();

    snprintf(path, sizeof path, "%s-wal", p->path);
    setenv("CONSIGN_CLOCK_STEP_FILE", path, 1);
    arm("store.claim=error@1000000");
    unlink(path);
    assert_true(sqlite_clock() < now + 60 * SECOND);
    f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "7200\n");
    fclose(f);
    assert_true(sqlite_clock() > now + 7000 * SECOND);
    arm("");
    unsetenv("CONSIGN_CLOCK_STEP_FILE");
}

/* ---- statements ---- */

static void a_statement_is_prepared_once(void **state) {
    struct place *p = *state;
    static const char text[] = "SELECT 1";
    struct sqlite_conn *c = open_as(p, ROLE_RELAY);
    csn_error err = {0};
    sqlite3_stmt *s = sqlite_prepare(c, text, &err);

    assert_non_null(s);
    assert_int_equal(sqlite3_step(s), SQLITE_ROW);
    assert_ptr_equal(sqlite_prepare(c, text, &err), s);
    assert_false(sqlite3_stmt_busy(s));
    assert_null(sqlite_prepare(c, "SELECT nothing FROM nowhere", &err));
    assert_int_equal(err.code, ERR_STORE_SQL);
    sqlite_driver.close(c);
}

static void too_many_statements_are_refused(void **state) {
    struct place *p = *state;
    static char text[SQLITE_STATEMENTS_MAX][16];
    struct sqlite_conn *c = open_as(p, ROLE_RELAY);
    csn_error err = {0};
    int n = 0;

    for (; n < SQLITE_STATEMENTS_MAX; n++) {
        snprintf(text[n], sizeof text[n], "SELECT %d", n);
        if (!sqlite_prepare(c, text[n], &err))
            break;
    }
    assert_int_equal(n, SQLITE_STATEMENTS_MAX * 3 / 4);
    assert_int_equal(err.code, ERR_BUG);
    assert_non_null(sqlite_prepare(c, text[0], &err)); /* those that are there still work */
    sqlite_driver.close(c);
}

/* These numbers are for ever: rows lie in the partitions that they name. */
static void partitions_are_stable(void **state) {
    static const struct {
        const char *type, *id;
        uint32_t of8, of64;
    } want[] = {
        {"order", "1", 2, 18}, {"order", "2", 6, 38}, {"stock", "1", 6, 62}, {"", "", 0, 56}};

    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(want); i++) {
        assert_int_equal(route_partition(bytes_of(want[i].type), bytes_of(want[i].id), 8),
                         want[i].of8);
        assert_int_equal(route_partition(bytes_of(want[i].type), bytes_of(want[i].id), 64),
                         want[i].of64);
    }
    assert_int_equal(route_partition(bytes_of("a"), bytes_of("b"), 0), 0);
    uint32_t count[8] = {0};
    for (int i = 0; i < 8000; i++) {
        char id[12];
        snprintf(id, sizeof id, "%d", i);
        count[route_partition(bytes_of("order"), bytes_of(id), 8)]++;
    }
    for (size_t i = 0; i < ARRAY_LEN(count); i++)
        assert_in_range(count[i], 850, 1150);
    assert_int_not_equal(route_partition(bytes_of("ab"), bytes_of("c"), UINT32_MAX),
                         route_partition(bytes_of("a"), bytes_of("bc"), UINT32_MAX));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_url_of_another_kind_is_refused),
        TEST(a_missing_file_is_not_made),
        TEST(a_file_that_is_no_database_is_left_alone),
        TEST(an_empty_store_is_old),
        TEST(a_newer_store_is_refused),
        TEST(a_missing_column_is_named),
        TEST(a_missing_index_is_refused),
        TEST(a_column_of_the_user_is_no_fault),
        TEST(a_read_only_file_is_refused),
        TEST(the_settings_hold),
        TEST(waiting_for_a_lock_ends_at_the_deadline),
        TEST(a_store_that_is_locked_can_be_opened),
        TEST(a_lock_that_ends_in_time_is_waited_for),
        TEST(a_deadline_that_is_past_begins_nothing),
        TEST(an_idle_group_takes_no_lock),
        TEST(a_group_that_fails_leaves_nothing),
        TEST(operations_that_do_not_belong_together_are_refused),
        TEST(a_full_disk_changes_nothing),
        TEST(an_error_in_commit_is_unknown),
        TEST(failpoints_do_what_they_say),
        TEST(the_clock_steps_only_when_armed),
        TEST(a_clock_set_back_is_seen),
        TEST(the_clock_follows_a_file),
        TEST(a_statement_is_prepared_once),
        TEST(too_many_statements_are_refused),
        TEST(partitions_are_stable),
    };

    return cmocka_run_group_tests_name("sqlite frame", tests, NULL, NULL);
}
