/* alloc.c: what the SQLite driver does when memory runs out. Every verb is run with its n-th
 * allocation failing, once or from then on, for n = 1, 2, … until a run needs no more than n - 1;
 * after the first 48 in steps of n / 12, unless CONSIGN_TEST_ALLOC is "all". Allocations of our
 * own code (wrapped at link), of SQLite and of jansson (by their hooks) count alike. Before each
 * run the connection forgets its statements, so that each is prepared.
 *
 *   run with the n-th allocation failing ─▶ not OK: not one byte of any table differs, and the same connection (after
 *                                        │          CSN_FATAL: a new one) can do it now
 *                                        └▶ OK: the answer is true, row by row
 *
 * What a run changed is put back from a copy in memory. Leaks are found by the sanitizer at the
 * end. */
#include "test/contract/suite.h"
#include "test/contract/world_sqlite.h"

#include "store/sqlite.h"
#include "store/store.h"

#include <jansson.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

enum { ALLOCATIONS_MAX = 200000, EVENTS = 6 };

/* ---- the allocator; the linker's --wrap needs functions without a context ---- */

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);

static struct {
    uint32_t seen, fail_at; /* fail_at 0: count only */
    bool armed, for_ever, fired;
} memory;

static bool fails(void) {
    if (!memory.armed)
        return false;
    memory.seen++;
    if (memory.fail_at == 0 || memory.seen < memory.fail_at ||
        (memory.seen > memory.fail_at && !memory.for_ever))
        return false;
    memory.fired = true;
    return true;
}

void *__wrap_malloc(size_t size) {
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size) {
    return fails() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t size) {
    return fails() ? NULL : __real_realloc(p, size);
}

static void *sql_malloc(int size) {
    return malloc((size_t)size);
}

static void *sql_realloc(void *p, int size) {
    return realloc(p, (size_t)size);
}

static int sql_size(void *p) {
    return p ? (int)malloc_usable_size(p) : 0;
}

static int sql_roundup(int size) {
    return (size + 7) & ~7;
}

static int sql_init(void *arg) {
    (void)arg;
    return SQLITE_OK;
}

static void sql_shutdown(void *arg) {
    (void)arg;
}

static void *json_malloc(size_t size) {
    return malloc(size);
}

static void hook_libraries(void) {
    static const sqlite3_mem_methods methods = {sql_malloc,  free,     sql_realloc,  sql_size,
                                                sql_roundup, sql_init, sql_shutdown, NULL};

    assert_int_equal(sqlite3_config(SQLITE_CONFIG_MALLOC, &methods), SQLITE_OK);
    json_set_alloc_funcs(json_malloc, free);
}

static void arm(uint32_t fail_at, bool for_ever) {
    memory.seen = 0;
    memory.fail_at = fail_at;
    memory.for_ever = for_ever;
    memory.fired = false;
    memory.armed = true;
}

static bool disarm(void) {
    memory.armed = false;
    return memory.fired;
}

/* ---- the database: copied, put back, compared ---- */

struct bench {
    struct suite *s;
    struct sqlite_conn *conn;
    sqlite3 *file, *copy;
    uint64_t was; /* digest of the copy */
    uint32_t runs, refused, fatal, tolerated;
};

static void copy_database(sqlite3 *to, sqlite3 *from) {
    sqlite3_backup *b = sqlite3_backup_init(to, "main", from, "main");

    assert_non_null(b);
    assert_int_equal(sqlite3_backup_step(b, -1), SQLITE_DONE);
    assert_int_equal(sqlite3_backup_finish(b), SQLITE_OK);
}

static uint64_t digest_table(sqlite3 *db, const char *table, uint64_t seed) {
    char sql[160];
    sqlite3_stmt *st;

    snprintf(sql, sizeof(sql), "SELECT * FROM \"%s\"", table);
    assert_int_equal(sqlite3_prepare_v2(db, sql, -1, &st, NULL), SQLITE_OK);
    while (sqlite3_step(st) == SQLITE_ROW) {
        for (int i = 0; i < sqlite3_column_count(st); i++) {
            const void *data = sqlite3_column_blob(st, i);
            csn_bytes b = {data, (size_t)sqlite3_column_bytes(st, i)};
            seed = bytes_hash(b, seed + (uint64_t)sqlite3_column_type(st, i));
        }
    }
    sqlite3_finalize(st);
    return seed;
}

static uint64_t digest(sqlite3 *db) {
    sqlite3_stmt *st;
    uint64_t sum = 1;

    assert_int_equal(
        sqlite3_prepare_v2(db, "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name",
                           -1, &st, NULL),
        SQLITE_OK);
    while (sqlite3_step(st) == SQLITE_ROW)
        sum = digest_table(db, (const char *)sqlite3_column_text(st, 0), sum);
    sqlite3_finalize(st);
    return sum;
}

static void remember(struct bench *b) {
    copy_database(b->copy, b->file);
    b->was = digest(b->file);
}

static void put_back(struct bench *b) {
    copy_database(b->file, b->copy);
    assert_true(digest(b->file) == b->was);
}

/* ---- the verbs ---- */

struct verb {
    const char *name;
    enum role role;
    void (*before)(struct suite *s);               /* once, with all the memory there is */
    struct op *(*make)(struct suite *s);           /* a new op with the same content each time */
    void (*check)(struct suite *s, struct op *op); /* after CSN_OK: the answer is true */
};

static void events(struct suite *s) {
    char id[16];

    for (int i = 0; i < EVENTS; i++) {
        snprintf(id, sizeof(id), "e%d", i);
        put(s, id, id, 1);
    }
    put(s, "head", "k", 1);
    put(s, "next", "k", 2);
    s->w->set_status(s->w, "head", "failed", 0);
}

static struct op *make_lease(struct suite *s) {
    struct op *op = lease_op(s, BOOT_B, "sub/x", 7);

    op->lease.counters = memcpy(keep(s, 3), "{}", 3);
    return op;
}

static void check_lease(struct suite *s, struct op *op) {
    assert_true(op->lease.held == 7 && op->lease.fresh == 7);
    for (uint32_t i = 0; i < 3; i++)
        assert_string_equal(lane(s, "sub/x", i).owner, BOOT_B);
}

static struct op *make_claim(struct suite *s) {
    return claim_op(s, 100);
}

static void check_claim(struct suite *s, struct op *op) {
    assert_int_equal(op->batch->n, EVENTS);
    assert_int_equal(op->claim.parked, 1);
    expect_status(s, "next", "waiting");
    for (uint32_t i = 0; i < op->batch->n; i++) {
        char id[ID_MAX];
        copy_bytes_text(id, sizeof(id), op->batch->msg[i].id);
        assert_string_equal(outbox(s, id).token, op->claim.token);
        assert_true(text_is(op->batch->msg[i].payload, "{}"));
    }
}

/* Claimed rows for the verbs that follow a claim; the batch outlives the sweep. */
static void claimed_before(struct suite *s) {
    events(s);
    put(s, "v1", "key", 1);
    put(s, "v2", "key", 2);
    s->w->set_status(s->w, "v2", "waiting", WAITS_KEY);
    s->kept_claim = claim(s, 100);
}

static struct op *make_settle(struct suite *s) {
    struct op *op = settle_op(s, s->kept_claim, SETTLE_SENT);

    op->settle.item[0].to = SETTLE_PENDING;
    op->settle.item[0].failure = op->settle.item[0].attempt = 1;
    op->settle.item[0].retry_in = SECOND;
    op->settle.item[0].code = 3003;
    copy_text(op->settle.item[0].text, ERROR_TEXT_MAX, "no");
    return op;
}

static void check_settle(struct suite *s, struct op *op) {
    for (uint32_t i = 0; i < op->settle.n; i++)
        assert_int_equal(op->settle.item[i].result, CSN_OK);
    assert_int_equal(op->settle.released, 1);
    assert_int_equal(s->w->outbox_count(s->w, "sent", -1), op->settle.n - 1);
    assert_int_equal(outbox(s, "e0").failures, 1);
    assert_string_equal(only_attempt(s, "e0").kind, "nacked");
    expect_status(s, "v2", "pending");
}

static struct op *make_renew(struct suite *s) {
    return renew_op(s, s->kept_claim);
}

static void check_renew(struct suite *s, struct op *op) {
    (void)s;
    assert_int_equal(op->renew.renewed, EVENTS + 1);
}

static struct op *make_recover(struct suite *s) {
    return recover_op(s, s->lanes);
}

static void check_recover(struct suite *s, struct op *op) {
    assert_int_equal(op->recover.expired, EVENTS + 1);
    assert_int_equal(s->w->outbox_count(s->w, "sending", -1), 0);
    only_attempt(s, "e3");
}

static struct op *make_watch(struct suite *s) {
    struct op *op = watch_op(s, 3);

    op->watch.item[0].kind = WATCH_RECOVER;
    op->watch.item[1].kind = WATCH_OUTBOX;
    op->watch.item[2].kind = WATCH_QUEUE;
    op->watch.item[2].consumer = "c";
    return op;
}

static void check_watch(struct suite *s, struct op *op) {
    (void)s;
    assert_true(op->watch.item[1].found);
    assert_false(op->watch.item[0].found || op->watch.item[2].found);
}

static struct op *make_declare(struct suite *s) {
    return declare_op(s, "c", "*", 1);
}

static void check_declare(struct suite *s, struct op *op) {
    (void)op;
    publish(s, one_message(s, "probe", "k", 1, "{}"));
    assert_int_equal(s->w->queue_count(s->w, "c", true), 1);
}

static struct batch *deliveries(struct suite *s) {
    struct batch *b = new_batch(s);
    char id[16];

    for (uint32_t i = 0; i < EVENTS; i++) {
        snprintf(id, sizeof(id), "e%u", i);
        add_message(s, b, id, id, 1, SAYS_EMIT("done"));
    }
    return b;
}

static void bound(struct suite *s) {
    declare(s, "c", "*", 1);
    declare(s, "d", "*", 1);
    hold_parts(s, "sub/c", 1);
}

static struct op *make_publish(struct suite *s) {
    return publish_op(s, deliveries(s));
}

static void check_publish(struct suite *s, struct op *op) {
    for (uint32_t i = 0; i < op->publish.n; i++)
        assert_int_equal(op->publish.item[i].out, PUB_CONFIRMED);
    assert_int_equal(s->w->queue_count(s->w, "c", true), EVENTS);
    assert_int_equal(s->w->queue_count(s->w, "d", true), EVENTS);
}

static void published(struct suite *s) {
    bound(s);
    publish(s, deliveries(s));
}

static struct op *make_receive(struct suite *s) {
    return receive_op(s, "c", 1, 100);
}

static void check_receive(struct suite *s, struct op *op) {
    expect_ids(op->batch, "e0 e1 e2 e3 e4 e5");
    for (uint32_t i = 0; i < op->batch->n; i++)
        assert_true(text_is(op->batch->msg[i].payload, SAYS_EMIT("done")));
    assert_string_equal(queue(s, "c", "e5").token, op->receive.token);
}

static void received(struct suite *s) {
    published(s);
    s->kept_claim = receive(s, "c", 1, 100);
}

static struct op *make_ack(struct suite *s) {
    return ack_op(s, s->kept_claim);
}

static void check_ack(struct suite *s, struct op *op) {
    assert_int_equal(op->ack.acked, EVENTS);
    assert_int_equal(s->w->queue_count(s->w, "c", true), 0);
}

static struct op *make_apply(struct suite *s) {
    return apply_op(s, "c", deliveries(s));
}

/* Memory is never the message's fault: no verdict but the script's own. */
static void check_apply(struct suite *s, struct op *op) {
    struct result_row row;
    char id[16];

    for (uint32_t i = 0; i < op->apply.n; i++) {
        const struct apply_item *it = &op->apply.item[i];

        snprintf(id, sizeof(id), "e%u", i);
        if (it->out != APPLY_VERDICT || it->verdict != CSN_DONE)
            world_fail("allocation %u: item %u: out %d, %s, CSN-%d %s", memory.fail_at, i, it->out,
                       verdict_name(it->verdict), (int)it->code, it->text);
        assert_string_equal(inbox(s, "c", id).state, "done");
        assert_int_equal(strlen(inbox(s, "c", id).digest), 64);
        assert_int_equal(s->w->effects(s->w, "c", id), 1);
        assert_int_equal(s->w->results(s->w, id, &row, 1), 1);
        assert_non_null(strstr(row.payload, id));
    }
    assert_int_equal(op->apply.emitted, EVENTS);
}

static struct op *make_park(struct suite *s) {
    struct op *op = park_op(s, "c", deliveries(s), PARK_RETRY, CSN_RETRY);

    op->park.item[1].to = PARK_DEAD;
    op->park.item[2].to = PARK_CONFLICT;
    op->park.item[3].to = PARK_BEHIND;
    return op;
}

static void check_park(struct suite *s, struct op *op) {
    struct dead_row row;

    for (uint32_t i = 0; i < op->park.n; i++)
        assert_int_equal(op->park.item[i].result, CSN_OK);
    assert_string_equal(work(s, "c", "e0").payload, SAYS_EMIT("done"));
    assert_int_equal(s->w->dead(s->w, "c", "e1", &row, 1), 1);
    assert_string_equal(row.payload, SAYS_EMIT("done"));
    assert_int_equal(s->w->dead(s->w, "c", "e2", &row, 1), 1);
    assert_string_equal(inbox(s, "c", "e3").state, "waiting");
}

static void parked(struct suite *s) {
    struct op *op = park_op(s, "c", deliveries(s), PARK_RETRY, CSN_RETRY);

    for (uint32_t i = 0; i < op->park.n; i++)
        op->park.item[i].retry_in = 1;
    run(s, op);
    park(s, "c", one_message(s, "x2", "e0", 2, SAYS("done")), PARK_BEHIND, CSN_RETRY);
    s->w->advance(s->w, SECOND);
    s->kept_claim = claim_work(s, "c", 100);
    assert_int_equal(s->kept_claim->batch->n, EVENTS);
}

static struct op *make_apply_work(struct suite *s) {
    return apply_work_op(s, s->kept_claim);
}

static void check_apply_work(struct suite *s, struct op *op) {
    check_apply(s, op);
    for (uint32_t i = 0; i < op->apply.n; i++) {
        char id[ID_MAX];
        copy_bytes_text(id, sizeof(id), op->batch->msg[i].id);
        expect_no_work(s, "c", id);
    }
    assert_string_equal(work(s, "c", "x2").status, "pending");
}

static struct op *make_park_work(struct suite *s) {
    struct op *op = park_work_op(s, s->kept_claim, PARK_RETRY, CSN_RETRY);

    op->park.item[0].to = PARK_DEAD;
    return op;
}

static void check_park_work(struct suite *s, struct op *op) {
    for (uint32_t i = 0; i < op->park.n; i++)
        assert_int_equal(op->park.item[i].result, CSN_OK);
    assert_string_equal(inbox(s, "c", "e0").state, "dead");
    assert_string_equal(work(s, "c", "x2").status, "pending");
    assert_int_equal(work(s, "c", "e1").failures, 2);
}

static const struct verb verbs[] = {
    {"lease", ROLE_HEART, NULL, make_lease, check_lease},
    {"claim", ROLE_RELAY, events, make_claim, check_claim},
    {"settle", ROLE_RELAY, claimed_before, make_settle, check_settle},
    {"renew", ROLE_RELAY, claimed_before, make_renew, check_renew},
    {"recover", ROLE_RELAY, claimed_before, make_recover, check_recover},
    {"watch", ROLE_WATCH, events, make_watch, check_watch},
    {"declare", ROLE_QUEUE_IN, NULL, make_declare, check_declare},
    {"publish", ROLE_QUEUE_IN, bound, make_publish, check_publish},
    {"receive", ROLE_QUEUE_OUT, published, make_receive, check_receive},
    {"ack", ROLE_QUEUE_OUT, received, make_ack, check_ack},
    {"apply", ROLE_APPLY, NULL, make_apply, check_apply},
    {"park", ROLE_APPLY, NULL, make_park, check_park},
    {"apply-work", ROLE_APPLY, parked, make_apply_work, check_apply_work},
    {"park-work", ROLE_APPLY, parked, make_park_work, check_park_work},
};

/* ---- the sweep ---- */

static void connect(struct bench *b, const struct verb *v) {
    csn_error err = {0};
    void *conn;

    if (sqlite_driver.open(world_sqlite_url(b->s->w), v->role, &conn, &err) != CSN_OK)
        world_fail("open: %s", err.text);
    b->conn = conn;
}

static void forget_statements(struct sqlite_conn *c) {
    for (size_t i = 0; i < ARRAY_LEN(c->cache); i++) {
        sqlite3_finalize(c->cache[i].stmt);
        c->cache[i].stmt = NULL;
        c->cache[i].sql = NULL;
    }
    for (size_t i = 0; i < ARRAY_LEN(c->part); i++) {
        sqlite3_finalize(c->part[i]);
        c->part[i] = NULL;
    }
    c->cached = 0;
    if (c->apply)
        c->apply_free(c->apply);
    c->apply = NULL;
}

static void expect_refused(struct bench *b, const struct verb *v, uint32_t n, const struct op *op) {
    csn_status got = op->result.status;

    if (got != CSN_NOMEM && got != CSN_AGAIN && got != CSN_FATAL)
        world_fail("%s, allocation %u: status %d, CSN-%d %s", v->name, n, (int)got,
                   (int)op->result.code, op->result.text);
    if (digest(b->file) != b->was)
        world_fail("%s, allocation %u: status %d, but rows changed", v->name, n, (int)got);
    b->refused++;
}

static void run_again(struct bench *b, const struct verb *v, uint32_t n) {
    struct op *op = v->make(b->s);

    op->state = OP_PENDING;
    sqlite_driver.run(b->conn, op);
    if (op->result.status != CSN_OK)
        world_fail("%s cannot be done after allocation %u failed%s: %s", v->name, n,
                   memory.for_ever ? " and all after it" : "", op->result.text);
    v->check(b->s, op);
}

/* One run with the n-th allocation failing; false when it needs fewer than n. */
static bool run_with(struct bench *b, const struct verb *v, uint32_t n, bool for_ever) {
    struct kept *mark = b->s->kept;
    struct op *op = v->make(b->s);
    bool fired;

    forget_statements(b->conn);
    op->state = OP_PENDING;
    arm(n, for_ever);
    sqlite_driver.run(b->conn, op);
    fired = disarm();
    b->runs++;
    if (op->result.status == CSN_OK) {
        v->check(b->s, op);
        b->tolerated += fired;
    } else if (!fired) {
        world_fail("%s fails with all the memory there is: %s", v->name, op->result.text);
    } else {
        expect_refused(b, v, n, op);
        if (op->result.status == CSN_FATAL) {
            b->fatal++;
            assert_int_equal(op->result.code, 9002); /* and never the handler's */
            sqlite_driver.close(b->conn);
            connect(b, v);
        }
        run_again(b, v, n);
    }
    release(b->s, mark);
    put_back(b);
    return fired;
}

static uint32_t next(uint32_t n) {
    const char *all = getenv("CONSIGN_TEST_ALLOC");

    return n + (n <= 48 || (all && strcmp(all, "all") == 0) ? 1 : n / 12);
}

static void sweep(struct bench *b, const struct verb *v, bool for_ever) {
    uint32_t n = 1;

    while (run_with(b, v, n, for_ever))
        if ((n = next(n)) > ALLOCATIONS_MAX)
            world_fail("%s does not end", v->name);
    assert_true(n > 1);
}

static void bench_open(struct bench *b, struct suite *s) {
    *b = (struct bench){.s = s};
    assert_int_equal(sqlite3_open(world_sqlite_url(s->w) + strlen("sqlite:"), &b->file), SQLITE_OK);
    assert_int_equal(sqlite3_open(":memory:", &b->copy), SQLITE_OK);
    assert_int_equal(sqlite3_busy_timeout(b->file, 10000), SQLITE_OK);
}

static void bench_close(struct bench *b) {
    assert_int_equal(sqlite3_close(b->file), SQLITE_OK);
    assert_int_equal(sqlite3_close(b->copy), SQLITE_OK);
}

static void sweep_verb(void **state, const struct verb *v) {
    struct suite *s = *state;
    struct bench b;

    if (v->before)
        v->before(s);
    bench_open(&b, s);
    remember(&b);
    connect(&b, v);
    sweep(&b, v, false);
    sweep(&b, v, true);
    sqlite_driver.close(b.conn);
    bench_close(&b);
    print_message("%-10s %5u runs: %u refused, %u of them for good, %u done all the same\n",
                  v->name, b.runs, b.refused, b.fatal, b.tolerated);
}

#define SWEEP(name, i)                                                                             \
    static void name(void **state) {                                                               \
        sweep_verb(state, &verbs[i]);                                                              \
    }
SWEEP(lease_without_memory, 0)
SWEEP(claim_without_memory, 1)
SWEEP(settle_without_memory, 2)
SWEEP(renew_without_memory, 3)
SWEEP(recover_without_memory, 4)
SWEEP(watch_without_memory, 5)
SWEEP(declare_without_memory, 6)
SWEEP(publish_without_memory, 7)
SWEEP(receive_without_memory, 8)
SWEEP(ack_without_memory, 9)
SWEEP(apply_without_memory, 10)
SWEEP(park_without_memory, 11)
SWEEP(apply_of_parked_work_without_memory, 12)
SWEEP(park_of_parked_work_without_memory, 13)

static void open_without_memory(void **state) {
    struct suite *s = *state;

    for (int for_ever = 0; for_ever < 2; for_ever++) {
        bool fired = true;

        for (uint32_t n = 1; fired; n = next(n)) {
            csn_error err = {0};
            void *conn = s;
            csn_status got;

            assert_true(n < ALLOCATIONS_MAX);
            arm(n, for_ever);
            got = sqlite_driver.open(world_sqlite_url(s->w), ROLE_RELAY, &conn, &err);
            fired = disarm();
            if (got == CSN_OK) {
                sqlite_driver.close(conn);
            } else if (!fired || conn != s || (got != CSN_NOMEM && got != CSN_AGAIN) ||
                       !err.text[0]) {
                world_fail("allocation %u: status %d, CSN-%d %s", n, (int)got, (int)err.code,
                           err.text);
            }
        }
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        TEST(lease_without_memory),
        TEST(claim_without_memory),
        TEST(settle_without_memory),
        TEST(renew_without_memory),
        TEST(recover_without_memory),
        TEST(watch_without_memory),
        TEST(declare_without_memory),
        TEST(publish_without_memory),
        TEST(receive_without_memory),
        TEST(ack_without_memory),
        TEST(apply_without_memory),
        TEST(park_without_memory),
        TEST(apply_of_parked_work_without_memory),
        TEST(park_of_parked_work_without_memory),
        TEST(open_without_memory),
    };

    hook_libraries();
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL) != 0;
}
