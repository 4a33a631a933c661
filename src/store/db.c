/* db.c: db.h on SQLite.
 *
 * A db is one connection with a busy handler of our own (SQLite's starves beside committing
 * writers): it sleeps a short random time and gives up after LOCK_WAIT. A mistake in a bind is kept
 * in the statement and reported by the next stmt_next, so that binding needs no check at each line.
 * A statement always belongs to one db; sqlite3_close_v2 lets them end in any order. */
#include "store/db.h"
#include "base/prng.h"
#include "store/embedded.h"
#include "store/sqlite.h"
#include "store/store.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { PATH_SIZE = 1024, LOCK_WAIT_MS = 5000, SLEEP_MIN_US = 200, SLEEP_SPREAD_US = 200 };

struct db {
    struct sqlite_conn conn; /* db and chance are used, and the mapping of its errors */
    struct prng chance;
    struct timespec waiting_since;
    char product[32];
};

struct stmt {
    struct db *db;
    sqlite3_stmt *s;
    int bind_failed; /* SQLite code of the first bind that failed; 0 none */
    bool done;
};

const char *named_sql(const char *name) {
    for (const struct embedded_sql *e = embedded_sql; name && e->name; e++)
        if (strcmp(e->name, name) == 0)
            return e->text;
    return NULL;
}

/* The handler counts real time, not calls: a sleep may take much longer than it was asked for. */
static int busy(void *arg, int calls) {
    struct db *d = arg;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (calls == 0)
        d->waiting_since = now;
    int64_t waited = (now.tv_sec - d->waiting_since.tv_sec) * 1000 +
                     (now.tv_nsec - d->waiting_since.tv_nsec) / 1000000;
    if (waited >= LOCK_WAIT_MS)
        return 0;
    long us = SLEEP_MIN_US + (long)prng_below(&d->chance, SLEEP_SPREAD_US);
    nanosleep(&(struct timespec){0, us * 1000}, NULL);
    return 1;
}

static csn_status failed(struct db *d, const char *doing, csn_error *err) {
    return sqlite_failed(&d->conn, doing, err);
}

/* A database is made readable for its owner only; its -wal and -shm take over the mode. */
static csn_status create_file(const char *path, csn_error *err) {
    int fd = open(path, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0)
        close(fd);
    else if (errno != EEXIST) {
        int e = errno;
        error_set(err, CSN_INVALID, ERR_STORE_OPEN, "%s: %s", path, strerror(e));
        if (err)
            err->native = e;
        return CSN_INVALID;
    }
    return CSN_OK;
}

/* sqlite3_open_v2 looks at the file only when it is first read: a header that is no database's
 * shows here. */
static csn_status settings(struct db *d, csn_error *err) {
    sqlite3 *db = d->conn.db;
    sqlite3_extended_result_codes(db, 1);
    sqlite3_busy_handler(db, busy, d);
    sqlite3_db_config(db, SQLITE_DBCONFIG_DEFENSIVE, 1, (int *)NULL);
    /* The schema stays trusted: SQLite 3.40 counts json_valid(), which the tables check with, as
     * unsafe otherwise. */
    sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_FKEY, 1, (int *)NULL);
    int rc = sqlite3_exec(db, "PRAGMA synchronous = FULL; SELECT count(*) FROM sqlite_schema", NULL,
                          NULL, NULL);
    return rc == SQLITE_OK ? CSN_OK : failed(d, "open", err);
}

static csn_status open_path(const char *path, int flags, struct db **ret, csn_error *err) {
    struct db *d = calloc(1, sizeof *d);
    if (!d)
        return error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "open: out of memory");
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    prng_seed(&d->chance, (uint64_t)now.tv_nsec ^ (uint64_t)getpid() << 32);
    snprintf(d->product, sizeof d->product, "sqlite %s", sqlite3_libversion());
    d->conn.wake_fd = -1;
    int rc = sqlite3_open_v2(path, &d->conn.db, flags | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE,
                             NULL);
    csn_status st = CSN_OK;
    if ((rc & 0xff) == SQLITE_CANTOPEN)
        st = error_set(err, CSN_INVALID, ERR_STORE_OPEN, "%s: %s", path,
                       strerror(sqlite3_system_errno(d->conn.db)));
    else if (rc != SQLITE_OK)
        st = d->conn.db ? failed(d, "open", err)
                        : error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "open: out of memory");
    else
        st = settings(d, err);
    if (st != CSN_OK) {
        db_close(d);
        return st;
    }
    *ret = d;
    return CSN_OK;
}

csn_status db_memory(struct db **ret, csn_error *err) {
    return open_path(":memory:", SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_MEMORY,
                     ret, err);
}

csn_status db_open(const char *url, unsigned flags, struct db **ret, csn_error *err) {
    char path[PATH_SIZE];
    if (!sqlite_url_path(url, path, sizeof path))
        return error_set(err, CSN_INVALID, ERR_STORE_URL, "%s: use sqlite:PATH",
                         url ? url : "(none)");
    bool writes = !(flags & DB_READ_ONLY);
    csn_status st = flags & DB_CREATE && writes ? create_file(path, err) : CSN_OK;
    struct db *d = NULL;
    if (st == CSN_OK)
        st = open_path(path, writes ? SQLITE_OPEN_READWRITE : SQLITE_OPEN_READONLY, &d, err);
    if (st == CSN_OK && writes && sqlite3_db_readonly(d->conn.db, "main") == 1)
        st = error_set(err, CSN_INVALID, ERR_STORE_READ_ONLY, "%s: read-only", path);
    if (st == CSN_OK && !(flags & DB_ANY_SCHEMA))
        st = schema_fits(d, writes, err);
    if (st != CSN_OK) {
        db_close(d);
        return st;
    }
    *ret = d;
    return CSN_OK;
}

void db_close(struct db *d) {
    if (!d)
        return;
    if (d->conn.db && !sqlite3_get_autocommit(d->conn.db))
        db_rollback(d);
    sqlite3_close_v2(d->conn.db);
    free(d);
}

const char *db_product(const struct db *d) {
    return d->product;
}

csn_status db_script(struct db *d, const char *sql, csn_error *err) {
    return sqlite3_exec(d->conn.db, sql, NULL, NULL, NULL) == SQLITE_OK ? CSN_OK
                                                                        : failed(d, "script", err);
}

csn_status db_begin(struct db *d, csn_error *err) {
    if (sqlite3_exec(d->conn.db, "BEGIN IMMEDIATE", NULL, NULL, NULL) == SQLITE_OK)
        return CSN_OK;
    return failed(d, "begin", err);
}

/* After an I/O error in COMMIT the frames may or may not be in the log: that is unknown, not
 * failed. */
csn_status db_commit(struct db *d, csn_error *err) {
    int rc = sqlite3_exec(d->conn.db, "COMMIT", NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        return CSN_OK;
    csn_status st = failed(d, "commit", err);
    if ((rc & 0xff) == SQLITE_IOERR)
        st = error_set(err, CSN_UNKNOWN, ERR_STORE_COMMIT_UNKNOWN, "commit: %s",
                       sqlite3_errmsg(d->conn.db));
    db_rollback(d);
    return st;
}

void db_rollback(struct db *d) {
    if (!sqlite3_get_autocommit(d->conn.db))
        sqlite3_exec(d->conn.db, "ROLLBACK", NULL, NULL, NULL);
}

int64_t db_changes(const struct db *d) {
    return sqlite3_changes64(d->conn.db);
}

csn_usec db_now(struct db *d) {
    (void)d; /* SQLite's clock is this host's */
    return sqlite_clock();
}

static bool only_blank(const char *s) {
    return s[strspn(s, " \t\r\n;")] == 0;
}

csn_status db_prepare(struct db *d, const char *sql, struct stmt **ret, csn_error *err) {
    const char *text = sql[0] == '@' ? named_sql(sql + 1) : sql;
    if (!text)
        return error_set(err, CSN_INVALID, ERR_BUG, "no statement is named %s", sql);
    struct stmt *s = calloc(1, sizeof *s);
    if (!s)
        return error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "prepare: out of memory");
    const char *tail = "";
    csn_status st = CSN_OK;
    if (sqlite3_prepare_v2(d->conn.db, text, -1, &s->s, &tail) != SQLITE_OK)
        st = failed(d, "prepare", err);
    else if (!s->s || !only_blank(tail))
        st = error_set(err, CSN_INVALID, ERR_STORE_SQL, "prepare: not one statement: %.80s", text);
    if (st != CSN_OK) {
        stmt_close(s);
        return st;
    }
    s->db = d;
    *ret = s;
    return CSN_OK;
}

static void bound(struct stmt *s, int rc) {
    if (rc != SQLITE_OK && s->bind_failed == 0)
        s->bind_failed = rc;
}

void stmt_bind_int(struct stmt *s, int at, int64_t value) {
    bound(s, sqlite3_bind_int64(s->s, at, value));
}

void stmt_bind_text(struct stmt *s, int at, const char *text) {
    bound(s, sqlite3_bind_text(s->s, at, text, -1, SQLITE_TRANSIENT));
}

/* Length of the UTF-8 sequence that p begins, 0 when it is none; over-long forms and surrogates are
 * none. */
static size_t utf8_length(const unsigned char *p, size_t left) {
    static const struct {
        unsigned char mask, mark;
        uint32_t least;
    } form[] = {{0x80, 0x00, 0}, {0xe0, 0xc0, 0x80}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}};
    for (size_t n = 0; n < ARRAY_LEN(form) && n < left; n++) {
        if ((p[0] & form[n].mask) != form[n].mark)
            continue;
        uint32_t c = p[0] & (unsigned char)~form[n].mask;
        for (size_t i = 1; i <= n; i++) {
            if ((p[i] & 0xc0) != 0x80)
                return 0;
            c = c << 6 | (p[i] & 0x3f);
        }
        return c >= form[n].least && c <= 0x10ffff && (c < 0xd800 || c > 0xdfff) ? n + 1 : 0;
    }
    return 0;
}

static bool is_utf8(csn_bytes b) {
    const unsigned char *p = b.data;
    for (size_t i = 0; i < b.size;) {
        size_t n = utf8_length(p + i, b.size - i);
        if (n == 0)
            return false;
        i += n;
    }
    return true;
}

void stmt_bind_bytes(struct stmt *s, int at, csn_bytes value) {
    const void *data = value.size ? value.data : "";
    if (is_utf8(value))
        bound(s, sqlite3_bind_text64(s->s, at, data, value.size, SQLITE_TRANSIENT, SQLITE_UTF8));
    else
        bound(s, sqlite3_bind_blob64(s->s, at, data, value.size, SQLITE_TRANSIENT));
}

void stmt_bind_null(struct stmt *s, int at) {
    bound(s, sqlite3_bind_null(s->s, at));
}

csn_status stmt_next(struct stmt *s, bool *ret_row, csn_error *err) {
    *ret_row = false;
    if (s->bind_failed == SQLITE_NOMEM)
        return error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "bind: out of memory");
    if (s->bind_failed)
        return error_set(err, CSN_INVALID, ERR_STORE_SQL, "bind: %s",
                         sqlite3_errstr(s->bind_failed));
    if (s->done)
        return CSN_OK;
    int rc = sqlite3_step(s->s);
    *ret_row = rc == SQLITE_ROW;
    s->done = rc != SQLITE_ROW;
    if (rc == SQLITE_ROW)
        return CSN_OK;
    csn_status st = rc == SQLITE_DONE ? CSN_OK : failed(s->db, "step", err);
    sqlite3_reset(s->s); /* lets go of the read lock at once */
    return st;
}

void stmt_reset(struct stmt *s) {
    sqlite3_reset(s->s);
    s->done = false;
}

int stmt_columns(const struct stmt *s) {
    return sqlite3_column_count(s->s);
}

const char *stmt_column(const struct stmt *s, int col) {
    const char *name = sqlite3_column_name(s->s, col);
    return name ? name : "";
}

bool stmt_is_null(const struct stmt *s, int col) {
    return sqlite3_column_type(s->s, col) == SQLITE_NULL;
}

int64_t stmt_int(const struct stmt *s, int col) {
    return sqlite3_column_int64(s->s, col);
}

const char *stmt_text(const struct stmt *s, int col) {
    const char *text = (const char *)sqlite3_column_text(s->s, col);
    return text ? text : "";
}

csn_bytes stmt_bytes(const struct stmt *s, int col) {
    bool blob = sqlite3_column_type(s->s, col) == SQLITE_BLOB;
    const void *data = blob ? sqlite3_column_blob(s->s, col) : sqlite3_column_text(s->s, col);
    return (csn_bytes){data, (size_t)sqlite3_column_bytes(s->s, col)};
}

void stmt_close(struct stmt *s) {
    if (!s)
        return;
    sqlite3_finalize(s->s);
    free(s);
}

csn_status db_int(struct db *d, const char *sql, const char *const *args, int n, int64_t *ret,
                  bool *ret_row, csn_error *err) {
    struct stmt *s = NULL;
    *ret_row = false;
    csn_status st = db_prepare(d, sql, &s, err);
    if (st != CSN_OK)
        return st;
    for (int i = 0; i < n; i++)
        stmt_bind_text(s, i + 1, args[i]);
    st = stmt_next(s, ret_row, err);
    if (st == CSN_OK && *ret_row)
        *ret = stmt_int(s, 0);
    stmt_close(s);
    return st;
}
