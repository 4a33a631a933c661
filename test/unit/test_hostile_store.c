/* test_hostile_store.c: rows, files and handlers as nobody should make them; each once did harm on
 * SQLite. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "core/handler.h"
#include "store/db.h"
#include "store/sqlite.h"
#include "store/store.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { ROWS = 8 };
#define SECOND ((csn_usec)1000000)

struct bench {
    char file[80], url[100];
    struct db *d;
    void *relay, *apply, *in, *out, *heart;
    struct batch batch;
    struct message msg[ROWS];
    uint64_t epoch[LANE_MAX];
    struct op op;
};

static csn_error error;

static void remove_files(const struct bench *b) {
    static const char *const ends[] = {"", "-wal", "-shm", ".moved", ".moved-wal", ".moved-shm"};
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        char path[100];
        snprintf(path, sizeof path, "%s%s", b->file, ends[i]);
        unlink(path);
    }
}

static void *connection(struct bench *b, enum role role) {
    void *conn = NULL;
    if (sqlite_driver.open(b->url, role, &conn, &error) != CSN_OK)
        fail_msg("%s", error.text);
    return conn;
}

static int begin(void **state) {
    const char *dir = getenv("TMPDIR");
    struct bench *b = calloc(1, sizeof *b);
    assert_non_null(b);
    *state = b;
    snprintf(b->file, sizeof b->file, "%s/csn-test-hostile-%d.db",
             dir && strlen(dir) < 40 ? dir : "/tmp", (int)getpid());
    snprintf(b->url, sizeof b->url, "sqlite:%s", b->file);
    remove_files(b);
    if (schema_apply(b->url, &error) != CSN_OK || db_open(b->url, 0, &b->d, &error) != CSN_OK)
        fail_msg("%s", error.text);
    b->relay = connection(b, ROLE_RELAY);
    b->apply = connection(b, ROLE_APPLY);
    b->in = connection(b, ROLE_QUEUE_IN);
    b->out = connection(b, ROLE_QUEUE_OUT);
    b->heart = connection(b, ROLE_HEART);
    b->batch = (struct batch){.msg = b->msg, .cap = ROWS};
    arena_init(&b->batch.arena, (size_t)4 << 20);
    return 0;
}

static int end(void **state) {
    struct bench *b = *state;
    sqlite_driver.close(b->relay);
    sqlite_driver.close(b->apply);
    sqlite_driver.close(b->in);
    sqlite_driver.close(b->out);
    sqlite_driver.close(b->heart);
    db_close(b->d);
    arena_free(&b->batch.arena);
    remove_files(b);
    free(b);
    return 0;
}

static csn_status script(struct bench *b, const char *sql) {
    return db_script(b->d, sql, &error);
}

static csn_status run(struct bench *b, void *conn, csn_usec deadline) {
    b->op.batch = &b->batch;
    b->op.deadline = sqlite_steady() + deadline;
    sqlite_driver.run(conn, &b->op);
    return b->op.result.status;
}

static csn_status lease(struct bench *b, const char *name) {
    b->op = (struct op){
        .kind = OP_LEASE,
        .lease = {.want = 1, .lease = 30 * SECOND, .longest = 120 * SECOND, .boot = "boot"}};
    copy_text(b->op.lease.name, NAME_MAX_, name);
    csn_status s = run(b, b->heart, SECOND);
    memcpy(b->epoch, b->op.lease.epoch, sizeof b->epoch);
    return s;
}

/* ---- instants at the ends of the calendar ---- */

static csn_usec number(struct bench *b, const char *sql) {
    int64_t value = -1;
    bool row = false;
    assert_int_equal(db_int(b->d, sql, NULL, 0, &value, &row, &error), CSN_OK);
    assert_true(row);
    return value;
}

/* Whoever writes "never" as the largest number there is gets just that, also one commit and one
 * clock reading later. */
static void what_expires_at_the_end_of_time_does_not_expire(void **state) {
    struct bench *b = *state;
    static const struct binding binding = {.subscription = "c", .match = "*", .partitions = 1};
    struct publish_item item = {.msg = 0};
    assert_int_equal(
        script(b, "INSERT INTO outbox_events(event_id, aggregate_id, aggregate_version, "
                  "event_type, payload,"
                  " expires_at, created_at, first_failed_at) VALUES ('e', 'k', 1, 'T', '{}',"
                  " 9223372036854775807, -9223372036854775807 - 1, -9223372036854775807 - 1)"),
        CSN_OK);
    assert_int_equal(lease(b, "outbox"), CSN_OK);
    b->op = (struct op){.kind = OP_CLAIM,
                        .claim = {.lane_name = "outbox",
                                  .lanes = 1,
                                  .epoch = b->epoch,
                                  .boot = "boot",
                                  .token = "t",
                                  .limit = ROWS,
                                  .park_limit = ROWS,
                                  .bytes = 1 << 20,
                                  .lease = 30 * SECOND,
                                  .longest_backoff = 60 * SECOND}};
    assert_int_equal(run(b, b->relay, SECOND), CSN_OK);
    assert_int_equal(b->batch.n, 1);
    assert_true(b->msg[0].expires_in > (csn_usec)1 << 61);
    assert_true(b->msg[0].age > 0 && b->msg[0].failing_for > 0);
    b->op = (struct op){.kind = OP_DECLARE, .declare = {.binding = &binding, .n = 1}};
    assert_int_equal(run(b, b->in, SECOND), CSN_OK);
    usleep(2000);
    b->op = (struct op){.kind = OP_PUBLISH, .publish = {.item = &item, .n = 1}};
    assert_int_equal(run(b, b->in, SECOND), CSN_OK);
    assert_int_equal(item.out, PUB_CONFIRMED);
    assert_true(number(b, "SELECT expires_at FROM consign_queue") > (csn_usec)1 << 61);
    assert_int_equal(lease(b, "sub/c"), CSN_OK);
    b->op = (struct op){.kind = OP_RECEIVE,
                        .receive = {.consumer = "c",
                                    .lane_name = "sub/c",
                                    .boot = "boot",
                                    .token = "t",
                                    .lanes = 1,
                                    .epoch = b->epoch,
                                    .limit = ROWS,
                                    .bytes = 1 << 20,
                                    .lease = 30 * SECOND,
                                    .longest_lease = 120 * SECOND}};
    assert_int_equal(run(b, b->out, SECOND), CSN_OK);
    assert_int_equal(b->batch.n, 1);
    assert_true(b->msg[0].expires_in > 0);
}

/* ---- a key whose rows are due in the wrong order ---- */

/* Written backwards, in one statement: all due at once, the last version with the lowest seq. When
 * the head ends, a claim takes what fits, not one row. */
static void followers_written_backwards_leave_together(void **state) {
    struct bench *b = *state;
    struct settle_item item = {.msg = 0, .to = SETTLE_SENT, .part = -1, .pos = -1};
    assert_int_equal(script(b, "INSERT INTO outbox_events(event_id, aggregate_id, "
                               "aggregate_version, event_type, payload)"
                               " SELECT 'e' || (8 - value), 'k', 8 - value, 'T', '{}' FROM "
                               "json_each('[1,2,3,4,5,6,7]')"),
                     CSN_OK);
    assert_int_equal(lease(b, "outbox"), CSN_OK);
    const struct op claim = {.kind = OP_CLAIM,
                             .claim = {.lane_name = "outbox",
                                       .lanes = 1,
                                       .epoch = b->epoch,
                                       .boot = "boot",
                                       .token = "t",
                                       .limit = ROWS,
                                       .park_limit = 100,
                                       .bytes = 1 << 20,
                                       .lease = 30 * SECOND,
                                       .longest_backoff = 60 * SECOND}};
    b->op = claim;
    assert_int_equal(run(b, b->relay, SECOND), CSN_OK);
    assert_int_equal(b->batch.n, 1);
    assert_int_equal(b->op.claim.parked, 6);
    b->op = (struct op){.kind = OP_SETTLE, .settle = {.token = "t", .item = &item, .n = 1}};
    assert_int_equal(run(b, b->relay, SECOND), CSN_OK);
    assert_int_equal(b->op.settle.released, 6);
    b->op = claim;
    assert_int_equal(run(b, b->relay, SECOND), CSN_OK);
    assert_int_equal(b->batch.n, 6);
    assert_int_equal(b->op.claim.parked, 0);
    for (uint32_t i = 0; i < 6; i++)
        assert_int_equal(b->msg[i].version, i + 2);
}

/* ---- handlers ---- */

/* A batch that runs out of time while it only reads says so as one that writes does: no message of
 * it is blamed. */
static void slow_reading(struct bench *b, const char *statement) {
    char file[400], report[1024] = "";
    struct text t;
    struct sql_handler sql = {0};
    struct apply_item item[2] = {{.msg = 0}, {.msg = 1}};
    snprintf(file, sizeof file, "-- handler h\n%s;\n-- verdict done\n", statement);
    text_init(&t, report, sizeof report);
    if (sql_handler_parse("h.sql", bytes_of(file), &sql, &t, &error) != CSN_OK)
        fail_msg("%s", report);
    const struct handler handler = {.sql = &sql};
    for (uint32_t i = 0; i < 2; i++)
        b->msg[i] = (struct message){.id = bytes_of(i ? "b" : "a"),
                                     .aggregate_id = bytes_of(i ? "b" : "a"),
                                     .version = 1,
                                     .event_type = bytes_of("T"),
                                     .payload = bytes_of("{}"),
                                     .schema_version = 1,
                                     .seq = 1 + i,
                                     .attempts = 1,
                                     .expires_in = CSN_USEC_NEVER};
    b->batch.n = 2;
    b->op = (struct op){
        .kind = OP_APPLY,
        .apply = {
            .consumer = "c", .handler = &handler, .source = SOURCE_BROKER, .item = item, .n = 2}};
    assert_int_equal(run(b, b->apply, SECOND / 10), CSN_AGAIN);
    assert_int_equal(b->op.result.code, ERR_HANDLER_SQL);
    assert_int_equal(item[0].out, APPLY_NONE);
    assert_int_equal(number(b, "SELECT count(*) FROM consumer_inbox"), 0);
    sql_handler_free(&sql);
}

static void a_batch_that_runs_out_of_time_blames_nobody(void **state) {
    struct bench *b = *state;
    assert_int_equal(script(b, "CREATE TABLE effect(n INTEGER)"), CSN_OK);
    slow_reading(
        b, "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT max(n) FROM c");
    slow_reading(b, "INSERT INTO effect(n) WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 "
                    "FROM c) SELECT max(n) FROM c");
}

static csn_verdict has_its_time(const struct message *m, void *arg) {
    const struct sqlite_conn *c = arg;
    (void)m;
    return c->deadline - sqlite_steady() > SECOND ? CSN_DONE : CSN_POISON;
}

static void *hold_the_lock(void *arg) {
    struct bench *b = arg;
    usleep(1300000);
    return db_commit(b->d, &error) == CSN_OK ? arg : NULL;
}

/* A handler that got the lock late has its time all the same: it would be blamed for what others
 * did. */
static void the_wait_for_the_lock_is_not_the_handlers(void **state) {
    struct bench *b = *state;
    const struct handler handler = {.function = has_its_time, .arg = b->apply};
    struct apply_item item = {.msg = 0};
    pthread_t other;
    void *done = NULL;
    b->msg[0] = (struct message){.id = bytes_of("a"),
                                 .aggregate_id = bytes_of("a"),
                                 .version = 1,
                                 .event_type = bytes_of("T"),
                                 .payload = bytes_of("{}"),
                                 .schema_version = 1,
                                 .seq = 1,
                                 .expires_in = CSN_USEC_NEVER};
    b->batch.n = 1;
    b->op = (struct op){
        .kind = OP_APPLY,
        .apply = {
            .consumer = "c", .handler = &handler, .source = SOURCE_BROKER, .item = &item, .n = 1}};
    assert_int_equal(db_begin(b->d, &error), CSN_OK);
    assert_int_equal(pthread_create(&other, NULL, hold_the_lock, b), 0);
    assert_int_equal(run(b, b->apply, 2 * SECOND), CSN_OK);
    assert_int_equal(pthread_join(other, &done), 0);
    assert_non_null(done);
    assert_int_equal(item.verdict, CSN_DONE);
}

/* ---- files ---- */

/* A file that is renamed under a running daemon takes all writes with it: they are refused, and the
 * connection says it is gone. */
static void a_file_that_was_moved_is_not_written(void **state) {
    struct bench *b = *state;
    char moved[100];
    assert_int_equal(lease(b, "outbox"), CSN_OK);
    snprintf(moved, sizeof moved, "%s.moved", b->file);
    assert_int_equal(rename(b->file, moved), 0);
    assert_int_equal(lease(b, "outbox"), CSN_AGAIN);
    assert_int_equal(b->op.result.code, ERR_STORE_OPEN);
    assert_int_equal(rename(moved, b->file), 0);
    assert_int_equal(lease(b, "outbox"), CSN_OK);
}

/* ---- rows ---- */

/* SQLite has one lane: a row in another one would lie there for ever, and nobody would look. */
static void an_event_is_in_the_lane_that_there_is(void **state) {
    struct bench *b = *state;
    assert_int_equal(script(b, "INSERT INTO outbox_events(event_id, aggregate_id, "
                               "aggregate_version, event_type, payload, slot)"
                               " VALUES ('s', 'k', 1, 'T', '{}', 1)"),
                     CSN_REJECTED);
    assert_non_null(strstr(error.text, "csn_slot"));
    assert_int_equal(script(b, "INSERT INTO outbox_events(event_id, aggregate_id, "
                               "aggregate_version, event_type, payload, slot)"
                               " VALUES ('s', 'k', 1, 'T', '{}', 0)"),
                     CSN_OK);
}

/* A row that does not fit into a claim would be claimed for ever, and nothing behind it. */
static void the_context_of_an_event_has_a_size(void **state) {
    struct bench *b = *state;
    static const char *const columns[] = {"tenant", "traceparent", "correlation_id", "causation_id",
                                          "route"};
    for (size_t i = 0; i < ARRAY_LEN(columns); i++)
        for (int large = 0; large < 2; large++) {
            char sql[300];
            snprintf(sql, sizeof sql,
                     "INSERT INTO outbox_events(event_id, aggregate_id, aggregate_version, "
                     "event_type, payload, %s)"
                     " VALUES ('%s%d', 'k', 1, 'T', '{}', hex(zeroblob(%d)))",
                     columns[i], columns[i], large, 256 + large);
            assert_int_equal(script(b, sql), large ? CSN_REJECTED : CSN_OK);
            assert_true(!large || strstr(error.text, "csn_context"));
        }
    /* length() of a text ends at its first NUL; the bytes behind it are copied all the same */
    assert_int_equal(
        script(b, "INSERT INTO outbox_events(event_id, aggregate_id, aggregate_version, "
                  "event_type, payload, headers)"
                  " VALUES ('h', 'k', 1, 'T', '{}', '{}' || char(0) || hex(zeroblob(10000)))"),
        CSN_REJECTED);
    assert_int_equal(script(b, "INSERT INTO outbox_events(event_id, aggregate_id, "
                               "aggregate_version, event_type, payload)"
                               " VALUES ('t', 'k', 1, 'T' || char(0) || hex(zeroblob(200)), '{}')"),
                     CSN_REJECTED);
    assert_int_equal(
        script(b, "INSERT INTO outbox_events(event_id, aggregate_id, aggregate_version, "
                  "event_type, payload, tenant)"
                  " VALUES ('n', 'k', 1, 'T', '{}', 'a' || char(0) || hex(zeroblob(300)))"),
        CSN_REJECTED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_expires_at_the_end_of_time_does_not_expire, begin,
                                        end),
        cmocka_unit_test_setup_teardown(followers_written_backwards_leave_together, begin, end),
        cmocka_unit_test_setup_teardown(a_batch_that_runs_out_of_time_blames_nobody, begin, end),
        cmocka_unit_test_setup_teardown(the_wait_for_the_lock_is_not_the_handlers, begin, end),
        cmocka_unit_test_setup_teardown(a_file_that_was_moved_is_not_written, begin, end),
        cmocka_unit_test_setup_teardown(the_context_of_an_event_has_a_size, begin, end),
        cmocka_unit_test_setup_teardown(an_event_is_in_the_lane_that_there_is, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
