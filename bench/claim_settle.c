/* claim_settle.c: what the driver costs above SQLite itself. Two loops drain the same table of
 * pending events, in turns, five rounds of eight turns: a bare one (prepared statements and nothing else), and
 * the driver's group of SETTLE and CLAIM with its fence, its look at the row before in each key
 * and its whole message. Both have the same batch, one commit per batch, WAL and synchronous=FULL.
 *
 *   bench-claim-settle [FOLDER [EVENTS [BATCH]]]      prints events per second: min, median, max of both, and the ratio
 */
#include "bench/frame.h"
#include "store/sqlite.h"
#include "store/store.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { TURNS = 8 }; /* in a round */

struct bench {
    char path[600], url[620];
    uint32_t events, batch;
    uint64_t commits, statements; /* of the last drain */
    double wall, cpu;             /* when it began, the connection being open */
};

static void begin(struct bench *b) {
    b->wall = wall_now();
    b->cpu = cpu_now();
}

/* ---- the bare loop: at most 60 lines ---- */

static sqlite3_stmt *bare_prepare(sqlite3 *db, const char *sql) {
    sqlite3_stmt *s = NULL;
    if (sqlite3_prepare_v2(db, sql, -1, &s, NULL) != SQLITE_OK)
        die("bare", sqlite3_errmsg(db));
    return s;
}

static uint64_t bare_statements;

static void bare_do(sqlite3 *db, sqlite3_stmt *s) {
    bare_statements++;
    if (sqlite3_step(s) != SQLITE_DONE)
        die("bare", sqlite3_errmsg(db));
    sqlite3_reset(s);
}

static uint32_t bare_drain(struct bench *b, int64_t *seq, char *payload) {
    sqlite3 *db = NULL;
    uint32_t n = 0, sent = 0;
    int64_t now = sqlite_clock();
    if (sqlite3_open(b->path, &db) != SQLITE_OK)
        die("bare", "cannot open");
    sqlite3_exec(db, "PRAGMA synchronous = FULL", NULL, NULL, NULL);
    sqlite3_stmt *start = bare_prepare(db, "BEGIN IMMEDIATE"), *commit = bare_prepare(db, "COMMIT");
    sqlite3_stmt *due =
        bare_prepare(db, "SELECT seq, payload FROM outbox_events WHERE status = 'pending'"
                         " AND next_attempt_at <= ?1 ORDER BY next_attempt_at, seq LIMIT ?2");
    sqlite3_stmt *take = bare_prepare(
        db, "UPDATE outbox_events SET status = 'sending', claim_token = 'token', lease_until = ?1,"
            " claimed_at = ?2, attempts = attempts + 1 WHERE seq = ?3");
    sqlite3_stmt *done = bare_prepare(
        db, "UPDATE outbox_events SET status = 'sent', sent_at = ?1, claim_token = NULL,"
            " lease_until = NULL WHERE seq = ?2 AND status = 'sending'"
            " AND claim_token = 'token'");
    sqlite3_bind_int64(due, 1, now);
    sqlite3_bind_int64(due, 2, b->batch);
    sqlite3_bind_int64(take, 1, now + 30000000);
    sqlite3_bind_int64(take, 2, now);
    sqlite3_bind_int64(done, 1, now);
    begin(b);
    do {
        bare_do(db, start);
        for (uint32_t i = 0; i < n; i++, sent++) {
            sqlite3_bind_int64(done, 2, seq[i]);
            bare_do(db, done);
        }
        for (n = 0; sqlite3_step(due) == SQLITE_ROW; n++) {
            seq[n] = sqlite3_column_int64(due, 0);
            memcpy(payload, sqlite3_column_text(due, 1), (size_t)sqlite3_column_bytes(due, 1));
        }
        sqlite3_reset(due);
        for (uint32_t i = 0; i < n; i++) {
            sqlite3_bind_int64(take, 3, seq[i]);
            bare_do(db, take);
        }
        bare_do(db, commit);
        bare_statements++; /* the SELECT */
        b->commits++;
    } while (n > 0);
    b->statements = bare_statements;
    bare_statements = 0;
    sqlite3_stmt *const all[] = {start, commit, due, take, done};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        sqlite3_finalize(all[i]);
    sqlite3_close(db);
    return sent;
}

/* ---- the driver ---- */

struct driven {
    void *conn;
    struct op lease, claim, settle;
    struct batch batch;
    struct settle_item item[BATCH_MAX];
};

static void run(struct driven *d, struct op *group) {
    for (struct op *op = group; op; op = op->next)
        op->deadline = sqlite_steady() + 5000000;
    sqlite_driver.run(d->conn, group);
    if (group->result.status != CSN_OK)
        die("driver", group->result.text);
}

static void driven_open(struct driven *d, const struct bench *b) {
    csn_error err = {0};

    if (sqlite_driver.open(b->url, ROLE_RELAY, &d->conn, &err) != CSN_OK)
        die("driver", err.text);
    d->lease = (struct op){
        .kind = OP_LEASE,
        .lease = {
            .name = "outbox", .boot = "bench", .want = 1, .lease = 60000000, .longest = 240000000}};
    run(d, &d->lease);
    d->claim = (struct op){.kind = OP_CLAIM,
                           .batch = &d->batch,
                           .claim = {.lane_name = "outbox",
                                     .boot = "bench",
                                     .token = "token",
                                     .lanes = 1,
                                     .epoch = d->lease.lease.epoch,
                                     .limit = b->batch,
                                     .park_limit = b->batch,
                                     .bytes = 64 << 20,
                                     .lease = 30000000,
                                     .longest_backoff = 60000000}};
    d->settle = (struct op){.kind = OP_SETTLE,
                            .next = &d->claim,
                            .batch = &d->batch,
                            .settle = {.token = "token", .member = 1, .item = d->item}};
    arena_init(&d->batch.arena, 128 << 20);
    d->batch.cap = b->batch;
    d->batch.msg = calloc(b->batch, sizeof *d->batch.msg);
    if (!d->batch.msg)
        die("driver", "out of memory");
}

static uint32_t driven_drain(struct bench *b) {
    struct driven *d = calloc(1, sizeof *d);
    struct batch before = {
        0}; /* SETTLE is of the batch that CLAIM replaces in the same group: it needs its own */
    uint32_t sent = 0;

    if (!d)
        die("driver", "out of memory");
    driven_open(d, b);
    sqlite_count_statements(d->conn, &b->statements);
    before.msg = calloc(b->batch, sizeof *before.msg);
    if (!before.msg)
        die("driver", "out of memory");
    before.cap = b->batch;
    arena_init(&before.arena, 128 << 20);
    d->settle.batch = &before;
    begin(b);
    for (bool first = true; first || before.n > 0; first = false) {
        arena_reset(&d->batch.arena);
        d->settle.settle.n = before.n;
        run(d, &d->settle);
        b->commits++;
        sent += before.n - d->settle.settle.stale;
        struct batch swap = before;
        before = d->batch;
        d->batch = swap;
        for (uint32_t i = 0; i < before.n; i++)
            d->item[i] = (struct settle_item){
                .msg = i, .to = SETTLE_SENT, .published_ago = 100, .part = 0, .pos = i};
    }
    sqlite_driver.close(d->conn);
    arena_free(&d->batch.arena);
    arena_free(&before.arena);
    free(d->batch.msg);
    free(before.msg);
    free(d);
    return sent;
}

/* ---- rounds ---- */

static void fill(const struct bench *b) {
    csn_error err = {0};
    struct db *db = NULL;
    char sql[700];

    remove_store(b->path);
    snprintf(sql, sizeof sql,
             "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < %u - 1) "
             "INSERT INTO"
             " outbox_events(event_id, aggregate_type, aggregate_id, aggregate_version, "
             "event_type, payload)"
             " SELECT printf('0190a2b4-%%04x-7000-8000-%%012x', i >> 16, i), 'order', 'customer-' "
             "|| (i * 7919 %% %u),"
             " i, 'OrderCreated', '{\"note\": \"' || printf('%%.*c', 280, 'x') || '\"}' FROM n;"
             " PRAGMA wal_checkpoint(TRUNCATE)",
             b->events, b->events / 4 + 1);
    if (schema_apply(b->url, &err) != CSN_OK || db_open(b->url, 0, &db, &err) != CSN_OK ||
        db_script(db, sql, &err) != CSN_OK)
        die("fill", err.text);
    db_close(db);
}

static void drain(void *arg, int side, struct turn *ret) {
    static char payload[1 << 20];
    static int64_t seq[BATCH_MAX];
    struct bench *b = arg;

    fill(b);
    b->commits = b->statements = 0;
    uint32_t sent = side == 1 ? driven_drain(b) : bare_drain(b, seq, payload);
    *ret = (struct turn){wall_now() - b->wall, cpu_now() - b->cpu, sent, b->commits, b->statements};
    if (sent != b->events)
        die(side == 1 ? "driver" : "bare", "not every event was sent");
}

int main(int argc, char **argv) {
    struct bench b = {.events = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 40000,
                      .batch = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 200};
    const char *folder = argc > 1 ? argv[1] : ".";
    char conditions[160];

    b.events /= TURNS;
    if (b.events < 1 || b.events > 10000000 || b.batch < 1 || b.batch > BATCH_MAX ||
        strlen(folder) > 500)
        die("usage", "bench-claim-settle [FOLDER [EVENTS, at least 8 [BATCH, at most 1000]]]");
    snprintf(b.path, sizeof b.path, "%s/bench-claim-settle-%d.db", folder, (int)getpid());
    snprintf(b.url, sizeof b.url, "sqlite:%s", b.path);
    snprintf(conditions, sizeof conditions,
             "%d x %u events a round, batch %u, one commit per batch, synchronous=FULL", TURNS,
             b.events, b.batch);
    struct pair p = {.name = "claim-settle",
                     .conditions = conditions,
                     .side = {{.name = "bare loop"}, {.name = "claim + settle"}}};
    play(&p, TURNS, drain, &b);
    remove_store(b.path);
    report(&p);
    return 0;
}
