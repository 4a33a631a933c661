/* schema.c: brings a store to the version of this program and compares the two.
 *
 * What is expected is never written twice: the DDL is run in an empty database in memory, and the
 * two catalogues are compared. A table, a column or an index of ours that is missing is a
 * difference; whatever the user added is none. schema_apply makes what is missing in one
 * transaction and touches no row; a table that lacks a column is reported, not rewritten. A store
 * whose consign_meta asks for a newer reader or writer is left alone. */
#include "store/embedded.h"
#include "store/store.h"
#include <stdio.h>
#include <stdlib.h>

#define SCHEMA_VERSION   2 /* of the last migration */
#define VERSION_TEXT(n)  VERSION_TEXT_(n)
#define VERSION_TEXT_(n) #n

const char *schema_text(const char *store) {
    char name[64];
    snprintf(name, sizeof name, "schema.%s", store ? store : "");
    return named_sql(name);
}

/* *ret: the number in consign_meta; 0 when the key, or the table, is not there. */
static csn_status meta_number(struct db *d, const char *key, int64_t *ret, csn_error *err) {
    bool row = false;
    int64_t there = 0;
    *ret = 0;
    csn_status st = db_int(
        d, "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'consign_meta'",
        NULL, 0, &there, &row, err);
    if (st != CSN_OK || there == 0)
        return st;
    return db_int(d, "SELECT CAST(value AS INTEGER) FROM consign_meta WHERE key = ?1", &key, 1, ret,
                  &row, err);
}

/* Newer than this program? The reader's number counts for every use, the writer's for those that
 * write. */
static csn_status not_newer(struct db *d, bool writes, csn_error *err) {
    int64_t reader = 0, writer = 0;
    csn_status st = meta_number(d, "min_reader", &reader, err);
    if (st == CSN_OK && writes)
        st = meta_number(d, "min_writer", &writer, err);
    if (st == CSN_OK && (reader > SCHEMA_VERSION || writer > SCHEMA_VERSION))
        st = error_set(err, CSN_REJECTED, ERR_STORE_SCHEMA_NEW,
                       "schema: this program knows version %d, the store asks for %lld",
                       SCHEMA_VERSION, (long long)(reader > writer ? reader : writer));
    return st;
}

csn_status schema_fits(struct db *d, bool writes, csn_error *err) {
    int64_t version = 0;
    csn_status st = meta_number(d, "schema", &version, err);
    if (st == CSN_OK && version < 1)
        return error_set(err, CSN_REJECTED, ERR_STORE_SCHEMA_OLD,
                         "schema: the store has no consign tables");
    if (st == CSN_OK && version < SCHEMA_VERSION)
        return error_set(err, CSN_REJECTED, ERR_STORE_SCHEMA_OLD,
                         "schema: version %lld is older than %d", (long long)version,
                         SCHEMA_VERSION);
    return st == CSN_OK ? not_newer(d, writes, err) : st;
}

/* What a fresh store looks like. */
static csn_status expected_open(struct db **ret, csn_error *err) {
    struct db *d = NULL;
    csn_status st = db_memory(&d, err);
    if (st == CSN_OK)
        st = db_script(d, schema_text("sqlite"), err);
    if (st != CSN_OK) {
        db_close(d);
        return st;
    }
    *ret = d;
    return CSN_OK;
}

static csn_status has_object(struct db *d, const char *type, const char *name, bool *ret,
                             csn_error *err) {
    int64_t n = 0;
    bool row = false;
    csn_status st = db_int(d, "SELECT count(*) FROM sqlite_schema WHERE type = ?1 AND name = ?2",
                           (const char *[]){type, name}, 2, &n, &row, err);
    *ret = n > 0;
    return st;
}

struct difference {
    struct text *lines; /* may be NULL */
    uint32_t objects, columns;
    char first[200]; /* of the columns if there is one, else of the objects */
};

static void differs(struct difference *diff, bool column, const char *what, const char *of,
                    const char *name) {
    char line[160];
    snprintf(line, sizeof line, "missing %s %s%s%s", what, of, of[0] ? "." : "", name);
    if (diff->lines)
        text_add(diff->lines, "%s\n", line);
    if (column ? diff->columns == 0 : diff->objects + diff->columns == 0)
        snprintf(diff->first, sizeof diff->first, "%s", line);
    *(column ? &diff->columns : &diff->objects) += 1;
}

static csn_status compare_columns(struct db *want, struct db *have, const char *table,
                                  struct difference *diff, csn_error *err) {
    struct stmt *s = NULL;
    bool row = false;
    csn_status st = db_prepare(want, "SELECT name FROM pragma_table_xinfo(?1)", &s, err);
    if (st != CSN_OK)
        return st;
    stmt_bind_text(s, 1, table);
    while ((st = stmt_next(s, &row, err)) == CSN_OK && row) {
        int64_t n = 0;
        bool any = false;
        const char *column = stmt_text(s, 0);
        st = db_int(have,
                    "SELECT count(*) FROM pragma_table_xinfo(?1) WHERE name = ?2 COLLATE NOCASE",
                    (const char *[]){table, column}, 2, &n, &any, err);
        if (st != CSN_OK)
            break;
        if (n == 0)
            differs(diff, true, "column", table, column);
    }
    stmt_close(s);
    return st;
}

/* Calls for each object of ours, tables first; make: create what is missing instead of reporting
 * it. */
static csn_status compare(struct db *want, struct db *have, bool make, struct difference *diff,
                          csn_error *err) {
    struct stmt *s = NULL;
    bool row = false;
    csn_status st =
        db_prepare(want,
                   "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL "
                   "AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY type = 'index', rowid",
                   &s, err);
    if (st != CSN_OK)
        return st;
    while ((st = stmt_next(s, &row, err)) == CSN_OK && row) {
        char type[16], name[64];
        bool there = false;
        copy_text(type, sizeof type, stmt_text(s, 0));
        copy_text(name, sizeof name, stmt_text(s, 1));
        st = has_object(have, type, name, &there, err);
        if (st == CSN_OK && there && strcmp(type, "table") == 0)
            st = compare_columns(want, have, name, diff, err);
        else if (st == CSN_OK && !there && make && diff->columns == 0)
            st = db_script(have, stmt_text(s, 2), err);
        else if (st == CSN_OK && !there)
            differs(diff, false, type, "", name);
        if (st != CSN_OK)
            break;
    }
    stmt_close(s);
    return st;
}

static csn_status verdict(const struct difference *diff, csn_error *err) {
    if (diff->columns)
        return error_set(err, CSN_REJECTED, ERR_STORE_COLUMN, "schema: %s", diff->first);
    if (diff->objects)
        return error_set(err, CSN_REJECTED, ERR_STORE_SCHEMA_OLD, "schema: %s", diff->first);
    return CSN_OK;
}

csn_status schema_check(const char *url, struct text *lines, csn_error *err) {
    struct db *have = NULL, *want = NULL;
    struct difference diff = {.lines = lines};
    csn_status st = db_open(url, DB_READ_ONLY | DB_ANY_SCHEMA, &have, err);
    if (st == CSN_OK)
        st = not_newer(have, true, err);
    if (st == CSN_OK)
        st = expected_open(&want, err);
    if (st == CSN_OK)
        st = compare(want, have, false, &diff, err);
    if (st == CSN_OK)
        st = verdict(&diff, err);
    if (st == CSN_OK)
        st = schema_fits(have, true, err);
    db_close(want);
    db_close(have);
    return st;
}

static csn_status apply_in(struct db *have, struct db *want, csn_error *err) {
    struct difference diff = {0};
    csn_status st = compare(want, have, true, &diff, err);
    if (st == CSN_OK)
        st = verdict(&diff, err);
    if (st == CSN_OK)
        st = db_script(
            have,
            "INSERT OR IGNORE INTO consign_meta(key, value) VALUES ('schema', '1'), "
            "('min_reader', '1'), "
            "('min_writer', '1'), ('store', lower(hex(randomblob(16))));"
            "UPDATE consign_meta SET value = '" VERSION_TEXT(
                SCHEMA_VERSION) "' WHERE "
                                "key = 'schema' AND CAST(value AS INTEGER) < " VERSION_TEXT(
                                    SCHEMA_VERSION),
            err);
    return st;
}

csn_status schema_apply(const char *url, csn_error *err) {
    struct db *have = NULL, *want = NULL;
    csn_status st = db_open(url, DB_CREATE | DB_ANY_SCHEMA, &have, err);
    if (st == CSN_OK)
        st = not_newer(have, true, err);
    if (st == CSN_OK)
        st = expected_open(&want, err);
    if (st == CSN_OK) /* kept in the file; cannot be changed inside a transaction */
        st = db_script(have, "PRAGMA journal_mode = WAL", err);
    if (st == CSN_OK && (st = db_begin(have, err)) == CSN_OK) {
        st = apply_in(have, want, err);
        if (st == CSN_OK)
            st = db_commit(have, err);
        else
            db_rollback(have);
    }
    db_close(want);
    db_close(have);
    return st;
}

csn_status lab_marker_set(const char *url, csn_error *err) {
    struct db *d = NULL;
    csn_status st = db_open(url, 0, &d, err);
    if (st == CSN_OK)
        st = db_script(
            d,
            "INSERT INTO consign_meta(key, value) VALUES ('lab', '1') ON CONFLICT (key) DO NOTHING",
            err);
    db_close(d);
    return st;
}

csn_status lab_marker_there(const char *url, bool *ret, csn_error *err) {
    struct db *d = NULL;
    int64_t number = 0;
    csn_status st = db_open(url, DB_READ_ONLY | DB_ANY_SCHEMA, &d, err);
    if (st == CSN_OK)
        st = meta_number(d, "lab", &number, err);
    if (st == CSN_OK)
        *ret = number == 1;
    db_close(d);
    return st;
}
