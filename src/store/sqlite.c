/* sqlite.c: the frame of the SQLite driver: a connection, its statements, its errors, and the
 * commit group.
 *
 *   failpoints ─▶ look without a lock ─▶ BEGIN IMMEDIATE ─▶ now := clock ─▶ one verb per op ─▶ COMMIT ─▶ failpoints
 *                       │ nothing to do       │ busy: sleep 0.2-0.4 ms at random, until the deadline
 *                       ▼                     ▼
 *                   answered                AGAIN, nothing happened
 *
 * What always holds: a group is one transaction. An error of any verb rolls the whole group back,
 * every op of it gets that result, and its outputs are empty. Only an I/O error of COMMIT itself
 * is UNKNOWN, because the frames may be in the log; a connection that saw an I/O error is never
 * used again. `now` is read after the lock is held, so that instants in the tables have the order
 * of the commits.
 *
 * Tried and dropped: SQLite's busy handler; it backs off for up to 100 ms and so starves beside
 * writers that commit all the time. A deferred BEGIN; its first write fails at once when somebody
 * else has written since (no busy handler helps then). */
#include "store/sqlite_inbox.h"
#include "base/failpoint.h"
#include "store/store.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum {
    PATH_SIZE = 1024,
    OPEN_WAIT = 2000000, /* for a lock while a connection is made */
    SLEEP_MIN_NS = 200000,
    SLEEP_SPREAD_NS = 200000,
    HEART_MIN_NS = 50000,
    HEART_SPREAD_NS = 50000,
    STEP_MAX = 1000000000, /* seconds */
    SET_BACK = 1000000     /* less than this is the clock's usual adjusting */
};

/* ---- clocks ---- */

csn_usec sqlite_steady(void) {
    struct timespec t;

    clock_gettime(CLOCK_BOOTTIME, &t);
    return (csn_usec)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static csn_usec step_of(const char *text) {
    long long seconds = text ? strtoll(text, NULL, 10) : 0;

    return seconds > STEP_MAX || seconds < -STEP_MAX ? 0 : (csn_usec)seconds * 1000000;
}

static csn_usec step_of_file(const char *path) {
    char text[32];
    FILE *f = path ? fopen(path, "re") : NULL;
    bool there = f && fgets(text, sizeof text, f);

    if (f)
        fclose(f);
    return there ? step_of(text) : 0;
}

csn_usec sqlite_clock(void) {
    struct timespec t;
    csn_usec step = 0;

    clock_gettime(CLOCK_REALTIME, &t);
    if (failpoint_armed())
        step =
            step_of(getenv("CONSIGN_CLOCK_STEP")) + step_of_file(getenv("CONSIGN_CLOCK_STEP_FILE"));
    return (csn_usec)t.tv_sec * 1000000 + t.tv_nsec / 1000 + step;
}

/* Sees a clock that was set back since this connection read it last. */
static void read_clock(struct sqlite_conn *c) {
    csn_usec at = sqlite_steady(), expected = sqlite_after(c->now, at - c->read_at);
    bool first = c->read_at == 0;

    c->now = sqlite_clock();
    c->read_at = at;
    if (!first && sqlite_between(c->now, expected) > SET_BACK && expected > c->newest)
        c->newest = expected;
}

/* splitmix64: the sleeps of two processes must differ, and nothing more is asked of them. */
static uint64_t chance(struct sqlite_conn *c) {
    uint64_t z = c->chance += 0x9e3779b97f4a7c15;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

/* Who looks more often gets the lock sooner: a heart, whose renewals must not be
 * late. Beside eight writers that never rest a LEASE takes 2 ms on average instead of 5. */
static long sleep_ns(struct sqlite_conn *c) {
    return c->role == ROLE_HEART ? HEART_MIN_NS + (long)(chance(c) % HEART_SPREAD_NS)
                                 : SLEEP_MIN_NS + (long)(chance(c) % SLEEP_SPREAD_NS);
}

static int busy(void *arg, int calls) {
    struct sqlite_conn *c = arg;

    (void)calls;
    if (sqlite_steady() >= c->deadline)
        return 0;
    nanosleep(&(struct timespec){0, sleep_ns(c)}, NULL);
    return 1;
}

/* ---- errors ---- */

static const struct {
    int code; /* primary, or extended where it differs from its primary */
    csn_status status;
    int32_t number;
} failures[] = {
    {SQLITE_IOERR_NOMEM, CSN_NOMEM, ERR_NO_MEMORY},
    {SQLITE_BUSY, CSN_AGAIN, ERR_STORE_LOCKED},
    {SQLITE_LOCKED, CSN_AGAIN, ERR_STORE_LOCKED},
    {SQLITE_PROTOCOL, CSN_AGAIN, ERR_STORE_LOCKED},
    {SQLITE_FULL, CSN_AGAIN, ERR_STORE_FULL},
    {SQLITE_READONLY, CSN_AGAIN, ERR_STORE_READ_ONLY},
    {SQLITE_CANTOPEN, CSN_AGAIN, ERR_STORE_OPEN},
    {SQLITE_IOERR, CSN_FATAL, ERR_STORE_IO},
    {SQLITE_CORRUPT, CSN_FATAL, ERR_STORE_NOT_DB},
    {SQLITE_NOTADB, CSN_FATAL, ERR_STORE_NOT_DB},
    {SQLITE_CONSTRAINT, CSN_REJECTED, ERR_STORE_SQL},
    {SQLITE_TOOBIG, CSN_REJECTED, ERR_STORE_SQL},
    {SQLITE_MISMATCH, CSN_REJECTED, ERR_STORE_SQL},
    {SQLITE_NOMEM, CSN_NOMEM, ERR_NO_MEMORY},
};

csn_status sqlite_failed(struct sqlite_conn *c, const char *doing, csn_error *err) {
    return sqlite_error(c->db, doing, err);
}

csn_status sqlite_error(sqlite3 *db, const char *doing, csn_error *err) {
    int code = sqlite3_extended_errcode(db);
    csn_status status = CSN_INVALID;
    int32_t number = ERR_STORE_SQL;

    for (size_t i = 0; i < ARRAY_LEN(failures); i++)
        if (failures[i].code == code || failures[i].code == (code & 0xff)) {
            status = failures[i].status;
            number = failures[i].number;
            break;
        }
    error_set(err, status, number, "%s: %s", doing, sqlite3_errmsg(db));
    if (err)
        err->native = code;
    return status;
}

/* ---- statements ---- */

static sqlite3_stmt *make(struct sqlite_conn *c, const char *sql, csn_error *err) {
    sqlite3_stmt *s = NULL;

    if (sqlite3_prepare_v3(c->db, sql, -1, SQLITE_PREPARE_PERSISTENT, &s, NULL) != SQLITE_OK)
        sqlite_failed(c, "prepare", err);
    return s;
}

sqlite3_stmt *sqlite_prepare(struct sqlite_conn *c, const char *sql, csn_error *err) {
    size_t at = ((uintptr_t)sql * UINT64_C(0x9e3779b97f4a7c15) >> 32) % SQLITE_STATEMENTS_MAX;

    while (c->cache[at].sql && c->cache[at].sql != sql)
        at = (at + 1) % SQLITE_STATEMENTS_MAX;
    if (!c->cache[at].sql) {
        if (c->cached >= SQLITE_STATEMENTS_MAX * 3 / 4) {
            error_set(err, CSN_INVALID, ERR_BUG, "too many statements");
            return NULL;
        }
        sqlite3_stmt *s = make(c, sql, err);
        if (!s)
            return NULL;
        c->cache[at].sql = sql;
        c->cache[at].stmt = s;
        c->cached++;
        return s;
    }
    sqlite3_reset(c->cache[at].stmt);
    sqlite3_clear_bindings(c->cache[at].stmt);
    return c->cache[at].stmt;
}

csn_status sqlite_run(struct sqlite_conn *c, sqlite3_stmt *s, csn_error *err) {
    int rc = sqlite3_step(s);
    csn_status status = CSN_OK;

    if (rc != SQLITE_DONE && rc != SQLITE_ROW)
        status = sqlite_failed(c, "step", err);
    sqlite3_reset(s);
    return status;
}

static sqlite3_stmt *prepare_bound(struct sqlite_conn *c, const char *sql,
                                   const struct sqlite_value *v, size_t n, csn_error *err) {
    sqlite3_stmt *s = sqlite_prepare(c, sql, err);

    for (int i = 0; s && i < (int)n; i++) {
        if (v[i].null)
            continue; /* prepared unbound */
        if (v[i].text)
            sqlite_bind_bytes(s, i + 1, v[i].bytes);
        else
            sqlite3_bind_int64(s, i + 1, v[i].integer);
    }
    return s;
}

csn_status sqlite_do(struct sqlite_conn *c, const char *sql, const struct sqlite_value *values,
                     size_t n, csn_error *err) {
    sqlite3_stmt *s = prepare_bound(c, sql, values, n, err);

    return s ? sqlite_run(c, s, err) : err->status;
}

sqlite3_stmt *sqlite_ask(struct sqlite_conn *c, const char *sql, const struct sqlite_value *values,
                         size_t n, bool *ret_row, csn_error *err) {
    sqlite3_stmt *s = prepare_bound(c, sql, values, n, err);
    int rc = s ? sqlite3_step(s) : SQLITE_ERROR;

    *ret_row = rc == SQLITE_ROW;
    if (!s || rc == SQLITE_ROW || rc == SQLITE_DONE)
        return s;
    sqlite_failed(c, "step", err);
    sqlite3_reset(s);
    return NULL;
}

csn_status sqlite_there(struct sqlite_conn *c, const char *sql, const struct sqlite_value *values,
                        size_t n, bool *ret, csn_error *err) {
    return sqlite_any(c, prepare_bound(c, sql, values, n, err), ret, err);
}

csn_status sqlite_any(struct sqlite_conn *c, sqlite3_stmt *s, bool *ret, csn_error *err) {
    int rc = s ? sqlite3_step(s) : SQLITE_ERROR;
    csn_status status = CSN_OK;

    if (!s)
        return err->status;
    *ret = rc == SQLITE_ROW;
    if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        status = sqlite_failed(c, "look", err);
    sqlite3_reset(s);
    return status;
}

void sqlite_bind_bytes(sqlite3_stmt *s, int at, csn_bytes b) {
    sqlite3_bind_text64(s, at, b.size ? b.data : "", b.size, SQLITE_STATIC, SQLITE_UTF8);
}

void sqlite_bind_optional(sqlite3_stmt *s, int at, csn_bytes b) {
    if (b.size)
        sqlite_bind_bytes(s, at, b);
    else
        sqlite3_bind_null(s, at);
}

csn_bytes sqlite_column(sqlite3_stmt *s, int col, struct arena *a, csn_status *status) {
    const void *data = sqlite3_column_blob(s, col);
    csn_bytes b = arena_copy(a, (csn_bytes){data, (size_t)sqlite3_column_bytes(s, col)});

    if (!b.data || (!data && sqlite3_errcode(sqlite3_db_handle(s)) == SQLITE_NOMEM))
        *status = CSN_NOMEM;
    return b;
}

/* ---- open and close ---- */

static void close_conn(void *conn) {
    struct sqlite_conn *c = conn;

    if (!c)
        return;
    sqlite_hand_close(c);
    if (c->apply && c->apply_free)
        c->apply_free(c->apply);
    for (size_t i = 0; i < SQLITE_STATEMENTS_MAX; i++)
        sqlite3_finalize(c->cache[i].stmt);
    for (size_t i = 0; i < LANE_MAX; i++)
        sqlite3_finalize(c->part[i]);
    sqlite3_finalize(c->rollback);
    sqlite3_close_v2(c->db);
    if (c->wake_fd >= 0)
        close(c->wake_fd);
    free(c);
}

static csn_status set_up(struct sqlite_conn *c, csn_error *err) {
    /* 128 KiB of cache, for there are many connections; only a relay, which looks up a key for each
     * row, gets more (a seventh less processor time). Pages of a running transaction may exceed it
     * rather than be written twice: a group is bounded. */
    static const char common[] =
        "PRAGMA synchronous = FULL; PRAGMA cache_size = -128; PRAGMA cache_spill = 0;"
        " PRAGMA temp_store = MEMORY";
    static const char *const special[ROLE_NR] = {
        [ROLE_RELAY] = "PRAGMA cache_size = -1024", [ROLE_WATCH] = "PRAGMA query_only = 1"};
    const char *mode;
    sqlite3_stmt *s;
    csn_status status = CSN_OK;

    sqlite3_busy_handler(c->db, busy, c);
    sqlite3_db_config(c->db, SQLITE_DBCONFIG_DEFENSIVE, 1, (int *)NULL);
    /* The schema stays trusted: SQLite 3.40 counts json_valid(), which the tables check with, as
     * unsafe otherwise. */
    sqlite3_db_config(c->db, SQLITE_DBCONFIG_ENABLE_FKEY, 1, (int *)NULL);
    sqlite3_db_config(c->db, SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 0, (int *)NULL);
    if (sqlite3_exec(c->db, common, NULL, NULL, NULL) != SQLITE_OK)
        return sqlite_failed(c, "open", err);
    s = make(c, "PRAGMA journal_mode = WAL", err);
    if (!s || sqlite3_step(s) != SQLITE_ROW)
        status = sqlite_failed(c, "open", err);
    mode = status == CSN_OK ? (const char *)sqlite3_column_text(s, 0) : NULL;
    if (status == CSN_OK && (!mode || strcmp(mode, "wal") != 0))
        status = error_set(err, CSN_INVALID, ERR_STORE_OPEN,
                           "open: this file cannot have a write-ahead log");
    sqlite3_finalize(s);
    if (status == CSN_OK && special[c->role] &&
        sqlite3_exec(c->db, special[c->role], NULL, NULL, NULL) != SQLITE_OK)
        status = sqlite_failed(c, "open", err);
    if (status == CSN_OK && !(c->rollback = make(c, "ROLLBACK", err)))
        status = err ? err->status : CSN_NOMEM;
    return status;
}

static csn_status open_file(struct sqlite_conn *c, const char *path, csn_error *err) {
    int rc = sqlite3_open_v2(
        path, &c->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE, NULL);

    if (!c->db)
        return error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "open: out of memory");
    if ((rc & 0xff) == SQLITE_CANTOPEN) {
        int e = sqlite3_system_errno(c->db);
        error_set(err, CSN_INVALID, ERR_STORE_OPEN, "%s: %s", path,
                  e ? strerror(e) : sqlite3_errmsg(c->db));
        if (err)
            err->native = e;
        return CSN_INVALID;
    }
    if (rc != SQLITE_OK)
        return sqlite_failed(c, "open", err);
    if (sqlite3_db_readonly(c->db, "main") == 1)
        return error_set(err, CSN_INVALID, ERR_STORE_READ_ONLY, "%s: read-only", path);
    return CSN_OK;
}

/* The file is opened before the catalogue is compared, so that one that is not there is not called
 * old. */
static csn_status open_conn(const char *url, enum role role, void **ret_conn, csn_error *err) {
    char path[PATH_SIZE];
    struct sqlite_conn *c;
    csn_status status;

    if (!sqlite_url_path(url, path, sizeof path))
        return error_set(err, CSN_INVALID, ERR_STORE_URL, "%s: use sqlite:PATH",
                         url ? url : "(none)");
    c = calloc(1, sizeof *c);
    if (!c)
        return error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "open: out of memory");
    c->role = role;
    c->wake_fd = -1;
    c->chance = (uint64_t)sqlite_steady() ^ (uint64_t)getpid() << 40 ^ (uint64_t)(uintptr_t)c;
    c->deadline = sqlite_steady() + OPEN_WAIT;
    status = open_file(c, path, err);
    if (status == CSN_OK)
        status = schema_check(url, NULL, err);
    if (status == CSN_OK)
        status = set_up(c, err);
    if (status == CSN_OK && (c->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0)
        status = error_set(err, CSN_AGAIN, ERR_STORE_OPEN, "open: eventfd: %s", strerror(errno));
    if (status != CSN_OK) {
        close_conn(c);
        return status;
    }
    *ret_conn = c;
    return CSN_OK;
}

static void wake(void *conn) {
    const struct sqlite_conn *c = conn;
    uint64_t one = 1;
    ssize_t n;

    do
        n = write(c->wake_fd, &one, sizeof one);
    while (n < 0 && errno == EINTR); /* EAGAIN: it is awake many times over */
}

/* ---- a group ---- */

enum { NO_PLACE = -1 };

struct verb {
    csn_status (*run)(struct sqlite_conn *c, struct op *op);
    csn_status (*idle)(struct sqlite_conn *c, struct op *op, bool *ret);
    int before, updated,
        after; /* enum failpoint; NO_PLACE: none, or it belongs to the verb itself */
};

static const struct verb verbs[OP_KIND_NR] = {
    [OP_LEASE] = {sqlite_lease, NULL, FAIL_STORE_LEASE, NO_PLACE, FAIL_LEASE_TAKEN},
    [OP_CLAIM] = {sqlite_claim, sqlite_claim_idle, FAIL_STORE_CLAIM, FAIL_CLAIM_UPDATED,
                  FAIL_CLAIM_COMMITTED},
    [OP_SETTLE] = {sqlite_settle, NULL, FAIL_STORE_SETTLE, FAIL_SETTLE_UPDATED,
                   FAIL_SETTLE_COMMITTED},
    [OP_RENEW] = {sqlite_renew, NULL, NO_PLACE, NO_PLACE, NO_PLACE},
    [OP_RECOVER] = {sqlite_recover, sqlite_recover_idle, FAIL_STORE_RECOVER, FAIL_RECOVER_UPDATED,
                    NO_PLACE},
    [OP_APPLY] = {sqlite_apply, NULL, NO_PLACE, NO_PLACE, FAIL_INBOX_COMMITTED},
    [OP_TRY] = {sqlite_try, NULL, FAIL_INBOX_ACKED, FAIL_TRY_HANDLED, FAIL_TRY_COMMITTED},
    [OP_PARK] = {sqlite_park, NULL, NO_PLACE, NO_PLACE, FAIL_PARK_COMMITTED},
    [OP_DECLARE] = {sqlite_declare, NULL, NO_PLACE, NO_PLACE, NO_PLACE},
    [OP_PUBLISH] = {sqlite_publish, NULL, FAIL_BROKER_PUBLISH, NO_PLACE, FAIL_BROKER_STORED},
    [OP_RECEIVE] = {sqlite_receive, sqlite_receive_idle, FAIL_BROKER_RECEIVE, NO_PLACE, NO_PLACE},
    [OP_ACK] = {sqlite_ack, NULL, FAIL_BROKER_ACK, NO_PLACE, FAIL_ACK_COMMITTED},
};

/* The places "rows are …" are hit only when there are rows: @n counts what a test can see. */
static bool changed_rows(const struct op *op) {
    if (op->kind == OP_CLAIM)
        return op->batch->n > 0 || op->claim.parked > 0;
    if (op->kind == OP_RECOVER)
        return op->recover.expired > 0 || op->recover.resent > 0 || op->recover.released > 0 ||
               op->recover.drawn > 0;
    return true;
}

static csn_status hit(int at, csn_error *err) {
    enum failpoint place = (enum failpoint)at;
    csn_status s = at == NO_PLACE ? CSN_OK : failpoint_hit(place);

    if (s == CSN_AGAIN)
        return error_set(err, s, ERR_STORE_UNREACHABLE, "failpoint %s", failpoint_name(place));
    return s == CSN_OK ? s
                       : error_set(err, CSN_UNKNOWN, ERR_STORE_COMMIT_UNKNOWN, "failpoint %s",
                                   failpoint_name(place));
}

/* What was not committed, or is not known to be, is not in the outputs either. */
static void forget(struct op *op) {
    switch (op->kind) {
    case OP_LEASE:
        op->lease.held = op->lease.fresh = 0;
        break;
    case OP_CLAIM:
        op->batch->n = op->claim.parked = 0;
        op->claim.lost = 0;
        op->claim.more = false;
        break;
    case OP_SETTLE:
        op->settle.stale = op->settle.released = 0;
        break;
    case OP_RENEW:
        op->renew.renewed = 0;
        break;
    case OP_RECOVER:
        op->recover.expired = op->recover.resent = op->recover.released = op->recover.drawn = 0;
        op->recover.more = false;
        break;
    case OP_APPLY:
    case OP_TRY:
        for (uint32_t i = 0; i < op->apply.n; i++)
            op->apply.item[i].out = APPLY_NONE;
        op->apply.emitted = 0;
        break;
    case OP_PUBLISH:
        for (uint32_t i = 0; i < op->publish.n; i++)
            op->publish.item[i].out = PUB_NONE;
        break;
    case OP_RECEIVE:
        op->batch->n = 0;
        op->receive.lost = 0;
        op->receive.more = false;
        break;
    case OP_ACK:
        op->ack.acked = 0;
        break;
    default:
        break;
    }
}

static void answer(struct op *group, const csn_error *result) {
    for (struct op *op = group; op; op = op->next) {
        if (result->status != CSN_OK)
            forget(op);
        op->result = *result;
    }
}

static csn_status simple(struct sqlite_conn *c, const char *sql, csn_error *err) {
    sqlite3_stmt *s = sqlite_prepare(c, sql, err);

    return s ? sqlite_run(c, s, err) : err->status;
}

/* A statement that a verb left in the middle would keep the read lock and make SQLite refuse the
 * next COMMIT or schema change. */
static void reset_all(struct sqlite_conn *c) {
    for (sqlite3_stmt *s = sqlite3_next_stmt(c->db, NULL); s; s = sqlite3_next_stmt(c->db, s))
        if (sqlite3_stmt_busy(s))
            sqlite3_reset(s);
}

/* It may fail for lack of memory: whoever reads next tries again. */
void sqlite_end_reading(struct sqlite_conn *c) {
    if (!sqlite3_get_autocommit(c->db))
        sqlite3_step(c->rollback);
    sqlite3_reset(c->rollback);
}

/* FULL, IOERR, NOMEM may have rolled back already. */
static void roll_back(struct sqlite_conn *c) {
    reset_all(c);
    if (!sqlite3_get_autocommit(c->db))
        sqlite3_step(c->rollback); /* may report a page that it could not read again: SQLite drops
                                      its cache then */
    sqlite3_reset(c->rollback);
    c->broken |= !sqlite3_get_autocommit(c->db);
}

static csn_status commit(struct sqlite_conn *c, csn_error *err) {
    csn_status s;

    if (sqlite3_get_autocommit(c->db))
        return error_set(err, CSN_FATAL, ERR_BUG, "commit: the transaction is gone");
    s = simple(c, "COMMIT", err);
    if (s == CSN_FATAL && err->code == ERR_STORE_IO) {
        c->broken = true;
        err->status = s = CSN_UNKNOWN;
        err->code = ERR_STORE_COMMIT_UNKNOWN;
    }
    return s;
}

static csn_status look(struct sqlite_conn *c, struct op *group, bool *ret_idle, csn_error *err) {
    csn_status s = simple(c, "BEGIN", err);

    *ret_idle = true;
    read_clock(c);
    for (struct op *op = group; op && s == CSN_OK && *ret_idle; op = op->next) {
        s = verbs[op->kind].idle(c, op, ret_idle);
        if (s != CSN_OK)
            *err = op->result;
    }
    if (s == CSN_OK)
        s = simple(c, "COMMIT", err);
    return s;
}

static bool may_be_idle(const struct op *group) {
    for (; group; group = group->next)
        if (!verbs[group->kind].idle)
            return false;
    return true;
}

static csn_status write_group(struct sqlite_conn *c, struct op *group, csn_error *err) {
    csn_status s = simple(c, "BEGIN IMMEDIATE", err);

    read_clock(c);
    for (struct op *op = group; op && s == CSN_OK; op = op->next) {
        op->result = (csn_error){.status = CSN_OK};
        s = verbs[op->kind].run(c, op);
        if (s != CSN_OK) {
            *err = op->result;
            err->status = s;
        } else if (verbs[op->kind].updated != NO_PLACE && changed_rows(op)) {
            s = hit(verbs[op->kind].updated, err);
        }
    }
    return s == CSN_OK ? commit(c, err) : s;
}

static csn_status before(const struct op *group, csn_error *err) {
    csn_status s = CSN_OK;

    for (; group && s == CSN_OK; group = group->next)
        s = hit(verbs[group->kind].before, err);
    return s;
}

static csn_status after(const struct op *group, csn_error *err) {
    csn_status worst = CSN_OK;

    for (; group; group = group->next)
        if (verbs[group->kind].after != NO_PLACE && changed_rows(group) &&
            hit(verbs[group->kind].after, err) != CSN_OK)
            worst = CSN_UNKNOWN;
    return worst;
}

/* Functions of an application may kill this process: what they are about to get is written down
 * first, in a commit that the process, but not the machine, must survive. */
static csn_status take_in_hand(struct sqlite_conn *c, const struct op *group, csn_error *err) {
    csn_status s = CSN_OK;

    while (group && !sqlite_hand_wanted(group))
        group = group->next;
    if (!group)
        return s;
    s = simple(c, "PRAGMA synchronous = OFF", err);
    if (s == CSN_OK)
        s = simple(c, "BEGIN IMMEDIATE", err);
    read_clock(c);
    if (s == CSN_OK)
        s = sqlite_hand_take(c, group, err);
    if (s == CSN_OK)
        s = commit(c, err);
    if (!sqlite3_get_autocommit(c->db))
        roll_back(c);
    csn_status back = simple(c, "PRAGMA synchronous = FULL", s == CSN_OK ? err : &(csn_error){0});
    c->broken |= back != CSN_OK;
    return s == CSN_OK ? back : s == CSN_UNKNOWN ? CSN_FATAL : s;
}

static csn_status run_writes(struct sqlite_conn *c, struct op *group, csn_error *err) {
    bool idle = false;
    csn_status s = before(group, err);

    if (s == CSN_OK && may_be_idle(group))
        s = look(c, group, &idle, err);
    if (s == CSN_OK && idle)
        return CSN_OK;
    if (s == CSN_OK)
        s = take_in_hand(c, group, err);
    if (s == CSN_OK)
        s = write_group(c, group, err);
    if (s == CSN_OK)
        return after(group, err);
    roll_back(c);
    if (c->broken && s != CSN_UNKNOWN)
        s = CSN_FATAL; /* nothing was committed, but the lock may be held until this connection is
                          closed */
    c->broken |= s == CSN_FATAL;
    return s;
}

/* Somebody renamed or removed the file: nobody would find again what was written now. */
static bool has_moved(const struct sqlite_conn *c) {
    int moved = 0;

    return sqlite3_file_control(c->db, "main", SQLITE_FCNTL_HAS_MOVED, &moved) == SQLITE_OK &&
           moved;
}

/* Nothing was begun: the reason that a group is not run at all, or CSN_OK. */
static csn_status refuse(const struct sqlite_conn *c, const struct op *group, csn_error *err) {
    if (c->broken)
        return error_set(err, CSN_FATAL, ERR_STORE_IO, "this connection saw an input/output error");
    for (const struct op *op = group; op; op = op->next)
        if (op->kind == OP_WATCH ? group->next != NULL : !verbs[op->kind].run)
            return error_set(err, CSN_INVALID, ERR_BUG, "this operation cannot be in this group");
    if (sqlite_steady() >= c->deadline)
        return error_set(err, CSN_AGAIN, ERR_STORE_LOCKED, "out of time");
    if (has_moved(c))
        return error_set(err, CSN_AGAIN, ERR_STORE_OPEN, "the file was moved, removed or replaced");
    return CSN_OK;
}

static void run(void *conn, struct op *group) {
    struct sqlite_conn *c = conn;
    csn_error err = {.status = CSN_OK};
    csn_status s;

    if (!group)
        return;
    c->deadline = CSN_USEC_NEVER;
    for (const struct op *op = group; op; op = op->next)
        c->deadline = op->deadline < c->deadline ? op->deadline : c->deadline;
    c->given = sqlite_between(sqlite_steady(), c->deadline);
    s = refuse(c, group, &err);
    if (s == CSN_OK && group->kind == OP_WATCH) {
        group->result = err;
        s = sqlite_watch(c, group);
        err = group->result;
        reset_all(c);
        sqlite_end_reading(c);
        c->broken |= s == CSN_FATAL;
    } else if (s == CSN_OK) {
        s = run_writes(c, group, &err);
    }
    err.status = s;
    if (s == CSN_OK)
        error_clear(&err);
    answer(group, &err);
}

const struct store_driver sqlite_driver = {
    .version = CSN_VERSION,
    .scheme = "sqlite",
    .ops = 1u << OP_LEASE | 1u << OP_WATCH | 1u << OP_CLAIM | 1u << OP_SETTLE | 1u << OP_RENEW |
           1u << OP_RECOVER | 1u << OP_APPLY | 1u << OP_PARK | 1u << OP_TRY | 1u << OP_DECLARE |
           1u << OP_PUBLISH | 1u << OP_RECEIVE | 1u << OP_ACK,
    .open = open_conn,
    .run = run,
    .wake = wake,
    .close = close_conn,
    .migrate = schema_apply,
    .marked = lab_marker_there,
};
