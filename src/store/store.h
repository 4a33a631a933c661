/* store.h: the drivers that are built in, and the schema. */
#ifndef CSN_STORE_STORE_H
#define CSN_STORE_STORE_H

#include "core/driver.h"
#include "store/db.h"

extern const struct store_driver *const store_drivers[]; /* to the first NULL */

/* "sqlite:PATH": copies PATH; false: another scheme, no path, or longer than size - 1. */
bool sqlite_url_path(const char *url, char *path, size_t size);

/* The DDL as text, for `consign schema print`; NULL: no such store kind. */
const char *schema_text(const char *store);
/* Brings a store to this version (DB_ANY_SCHEMA is implied); idempotent; never touches rows. */
csn_status schema_apply(const char *url, csn_error *err) MUST_USE;
/* CSN_OK: fits. CSN_REJECTED: CSN-2004, 2005 or 2011 in err. lines (NULL is fine): one text per
 * difference, newline-separated. */
csn_status schema_check(const char *url, struct text *lines, csn_error *err) MUST_USE;
/* The version numbers only, of an open store: CSN_OK, or CSN_REJECTED with CSN-2004 or 2005. */
csn_status schema_fits(struct db *d, bool writes, csn_error *err) MUST_USE;

/* The laboratory's marker. */
csn_status lab_marker_set(const char *url, csn_error *err) MUST_USE;
csn_status lab_marker_there(const char *url, bool *ret, csn_error *err) MUST_USE;

/* Appends one act to the audit chain, inside the caller's transaction. before and after are short
 * JSON texts or NULL. */
csn_status audit_append(struct db *d, const char *actor, const char *action, const char *target,
                        const char *reason, const char *before, const char *after,
                        csn_error *err) MUST_USE;
/* CSN_OK: the chain holds. CSN_REJECTED: *ret_seq is the first row that does not. */
csn_status audit_verify(struct db *d, int64_t *ret_seq, csn_error *err) MUST_USE;

/* Adds the statements that an open connection of the SQLite driver runs from now on to *counter;
 * NULL: no more. */
void sqlite_count_statements(void *conn, uint64_t *counter);

/* The text of a named statement of src/store/sql ("event.show"), or NULL. */
const char *named_sql(const char *name);

#endif
