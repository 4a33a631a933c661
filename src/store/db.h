/* db.h: a plain way to ask any store by its URL: prepare, bind, next, column. The command line,
 * the laboratory, the acceptance tests and the oracles speak to stores through it, and later the
 * flows do, so that another store needs no rewrite of theirs. The hot verbs do not pass through
 * here. One thread at a time per db. Parameters are numbered from 1 (?1, ?2), columns from 0. */
#ifndef CSN_STORE_DB_H
#define CSN_STORE_DB_H

#include "base/error.h"

struct db;
struct stmt;

enum {
    DB_READ_ONLY = 1, /* refuses to write */
    DB_CREATE = 2,    /* make the database when it is missing */
    DB_ANY_SCHEMA = 4 /* do not check that consign's tables are there and of a version we know */
};

csn_status db_open(const char *url, unsigned flags, struct db **ret, csn_error *err) MUST_USE;
csn_status
db_memory(struct db **ret,
          csn_error *err) MUST_USE; /* an empty database in memory, for comparisons and tests */
void db_close(struct db *d);        /* NULL is fine; an open transaction is rolled back */
const char *db_product(const struct db *d); /* "sqlite 3.40.1" */

csn_status db_script(struct db *d, const char *sql,
                     csn_error *err) MUST_USE; /* any number of statements, no parameters */
csn_status db_begin(struct db *d, csn_error *err) MUST_USE;  /* a write transaction */
csn_status db_commit(struct db *d, csn_error *err) MUST_USE; /* CSN_UNKNOWN: look it up */
void db_rollback(struct db *d);
int64_t db_changes(const struct db *d); /* rows of the last INSERT, UPDATE, DELETE */
csn_usec db_now(struct db *d);          /* the store's own clock */

/* sql is a statement, or "@name" of a statement in src/store/sql. */
csn_status db_prepare(struct db *d, const char *sql, struct stmt **ret, csn_error *err) MUST_USE;
void stmt_bind_int(struct stmt *s, int at, int64_t value);
void stmt_bind_text(struct stmt *s, int at, const char *text); /* NULL binds NULL; copied */
void stmt_bind_bytes(struct stmt *s, int at,
                     csn_bytes value); /* as text where it is UTF-8, else as a blob; copied */
void stmt_bind_null(struct stmt *s, int at);
csn_status stmt_next(struct stmt *s, bool *ret_row,
                     csn_error *err) MUST_USE; /* first call runs it; false: no more rows */
void stmt_reset(struct stmt *s);               /* to run it again; bindings stay */
int stmt_columns(const struct stmt *s);
const char *stmt_column(const struct stmt *s, int col); /* name */
bool stmt_is_null(const struct stmt *s, int col);
int64_t stmt_int(const struct stmt *s, int col);
const char *stmt_text(const struct stmt *s,
                      int col); /* NULL is ""; valid until the next call on s */
csn_bytes stmt_bytes(const struct stmt *s, int col);
void stmt_close(struct stmt *s); /* NULL is fine */

/* One value at once; *ret is untouched when there is no row (ret_row false). args: n texts, bound
 * in order. */
csn_status db_int(struct db *d, const char *sql, const char *const *args, int n, int64_t *ret,
                  bool *ret_row, csn_error *err) MUST_USE;

#endif
