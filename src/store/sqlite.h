/* sqlite.h: what the files of the SQLite driver share. A group is one transaction: sqlite.c begins
 * it, calls one function per op in order, commits. A verb function runs inside that transaction
 * and returns CSN_OK, or the status that ends the whole group (everything is rolled back then, and
 * every op of the group gets that result). */
#ifndef CSN_STORE_SQLITE_H
#define CSN_STORE_SQLITE_H

#include "base/error.h"
#include "core/driver.h"
#include <sqlite3.h>

enum {
    SQLITE_STATEMENTS_MAX =
        128 /* a power of two: the cache is a hash table, never more than three quarters full */
};

struct sqlite_conn {
    sqlite3 *db;
    enum role role;
    csn_usec
        now; /* the store's clock, read once after the write lock was taken (or the read began) */
    csn_usec read_at;  /* monotonic: when it was read */
    csn_usec newest;   /* what it would have shown when it was set back; 0: never seen. Rows up to
                          this instant were written by the old clock */
    csn_usec deadline; /* monotonic: the busy handler gives up then */
    csn_usec given;    /* from the begin of the group to that */
    int wake_fd;       /* eventfd: wake() */
    uint64_t chance;   /* for the busy handler's sleep */
    bool broken;       /* an I/O error: this connection answers CSN_FATAL from now on */
    void *apply;       /* of sqlite_handler.c; given to apply_free at close */
    void (*apply_free)(void *apply);
    char holder[TOKEN_SIZE]; /* in consign_in_hand; empty: nothing was ever in hand */
    uint32_t in_hand; /* items of an APPLY that run, from the first; sqlite_hand.c says how many */
    uint32_t deaths;  /* of the process, in the hand of which the first of them was */
    sqlite3_stmt *rollback; /* prepared at open: it must not need memory */
    sqlite3_stmt
        *part[LANE_MAX]; /* RECEIVE: one cursor for each partition, prepared when first needed */
    uint32_t cached;
    struct {
        const char *sql;
        sqlite3_stmt *stmt;
    } cache[SQLITE_STATEMENTS_MAX]; /* keyed by the address of the literal */
};

/* Prepared once per connection, reset and unbound here; NULL with err filled on failure. sql must
 * be a string literal. */
sqlite3_stmt *sqlite_prepare(struct sqlite_conn *c, const char *sql, csn_error *err);
/* Steps a statement that returns no row and resets it. */
csn_status sqlite_run(struct sqlite_conn *c, sqlite3_stmt *s, csn_error *err);

/* Prepare, bind in order, step: in one call. The bytes are borrowed until the statement is reset. */
struct sqlite_value {
    bool null, text;
    int64_t integer;
    csn_bytes bytes;
};
static inline struct sqlite_value sql_int(int64_t v) {
    return (struct sqlite_value){.integer = v};
}
static inline struct sqlite_value sql_maybe(bool there, int64_t v) { /* NULL unless there */
    return (struct sqlite_value){.null = !there, .integer = v};
}
static inline struct sqlite_value sql_bytes(csn_bytes b) { /* text; empty is '' */
    return (struct sqlite_value){.text = true, .bytes = b};
}
static inline struct sqlite_value sql_some(csn_bytes b) { /* empty is NULL */
    return (struct sqlite_value){.text = true, .null = b.size == 0, .bytes = b};
}
static inline struct sqlite_value sql_str(const char *s) { /* NULL is NULL */
    return (struct sqlite_value){.text = true, .null = !s, .bytes = bytes_of(s)};
}
#define SQL_VALUES(...)                                                                            \
    (const struct sqlite_value[]){__VA_ARGS__},                                                    \
        sizeof((const struct sqlite_value[]){__VA_ARGS__}) / sizeof(struct sqlite_value)

/* A statement that returns no row. */
csn_status sqlite_do(struct sqlite_conn *c, const char *sql, const struct sqlite_value *values,
                     size_t n, csn_error *err);
/* One that may: at its first row (*ret_row) or at its end, to be reset by the caller; NULL with err
 * filled on failure. */
sqlite3_stmt *sqlite_ask(struct sqlite_conn *c, const char *sql, const struct sqlite_value *values,
                         size_t n, bool *ret_row, csn_error *err);
/* Whether there is a row. */
csn_status sqlite_there(struct sqlite_conn *c, const char *sql, const struct sqlite_value *values,
                        size_t n, bool *ret, csn_error *err);
/* The same of a statement that is bound; NULL: it could not be prepared. */
csn_status sqlite_any(struct sqlite_conn *c, sqlite3_stmt *s, bool *ret, csn_error *err);
/* Rows of the last statement that wrote. */
static inline int64_t sqlite_changed(struct sqlite_conn *c) {
    return sqlite3_changes64(c->db);
}

/* Maps the last error of the connection: BUSY/LOCKED → AGAIN 2008, FULL → AGAIN 2007, READONLY →
 * AGAIN 2006, IOERR → FATAL 2009, CORRUPT/NOTADB → FATAL 2002, CONSTRAINT → REJECTED 2010, NOMEM →
 * NOMEM, else → INVALID 2010. */
csn_status sqlite_failed(struct sqlite_conn *c, const char *doing, csn_error *err);
csn_status sqlite_error(sqlite3 *db, const char *doing, csn_error *err); /* of any connection */
csn_usec sqlite_clock(void); /* CLOCK_REALTIME, plus CONSIGN_CLOCK_STEP seconds (a test's seam) when
                                failpoints are armed */

/* Sums of instants that people may have put in: they end at the ends of the calendar, and do not
 * wrap. */
static inline csn_usec sqlite_after(csn_usec at, csn_usec in) {
    csn_usec sum;
    return __builtin_add_overflow(at, in, &sum) ? (in < 0 ? INT64_MIN : INT64_MAX) : sum;
}
static inline csn_usec sqlite_between(csn_usec from, csn_usec to) {
    csn_usec left;
    return __builtin_sub_overflow(to, from, &left) ? (from > 0 ? INT64_MIN : INT64_MAX) : left;
}

void sqlite_bind_bytes(sqlite3_stmt *s, int at,
                       csn_bytes b); /* text; empty is '' ; static lifetime */
void sqlite_bind_optional(sqlite3_stmt *s, int at, csn_bytes b); /* the same, empty is NULL */
csn_bytes sqlite_column(sqlite3_stmt *s, int col, struct arena *a,
                        csn_status *status); /* copied; NOMEM into *status */

/* verbs */
csn_status sqlite_lease(struct sqlite_conn *c, struct op *op);
csn_status sqlite_watch(struct sqlite_conn *c, struct op *op); /* outside a transaction */
void sqlite_end_reading(struct sqlite_conn *c); /* a read transaction that a failure left open */
csn_status sqlite_claim(struct sqlite_conn *c, struct op *op);
csn_status sqlite_settle(struct sqlite_conn *c, struct op *op);
csn_status sqlite_renew(struct sqlite_conn *c, struct op *op);
csn_status sqlite_recover(struct sqlite_conn *c, struct op *op);
csn_status sqlite_apply(struct sqlite_conn *c, struct op *op);
csn_status sqlite_try(struct sqlite_conn *c, struct op *op);
csn_status sqlite_park(struct sqlite_conn *c, struct op *op);
csn_status sqlite_declare(struct sqlite_conn *c, struct op *op);
csn_status sqlite_publish(struct sqlite_conn *c, struct op *op);
csn_status sqlite_receive(struct sqlite_conn *c, struct op *op);
csn_status sqlite_ack(struct sqlite_conn *c, struct op *op);

/* Checks the lanes of a claim, receive or recovery: returns those of the set that are mine with
 * these epochs and a live lease. */
uint64_t sqlite_fence(struct sqlite_conn *c, const char *name, uint64_t lanes,
                      const uint64_t *epoch, const char *boot, csn_status *status, csn_error *err);

/* True when the op would find nothing to do: the group is then answered without the write lock.
 * Fills the outputs of such an op. Runs inside a read transaction. CLAIM, RECOVER and RECEIVE have
 * one. */
csn_status sqlite_claim_idle(struct sqlite_conn *c, struct op *op, bool *ret);
csn_status sqlite_recover_idle(struct sqlite_conn *c, struct op *op, bool *ret);
csn_status sqlite_receive_idle(struct sqlite_conn *c, struct op *op, bool *ret);

/* now + in, CSN_USEC_NEVER at most. */
static inline csn_usec sqlite_from_now(const struct sqlite_conn *c, csn_usec in) {
    return in < CSN_USEC_NEVER - c->now ? c->now + in : CSN_USEC_NEVER;
}

csn_usec sqlite_steady(void); /* the clock of op->deadline */

extern const struct store_driver sqlite_driver;

#endif
