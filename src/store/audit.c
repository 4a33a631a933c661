/* audit.c: every act of an operator, in a chain.
 *
 * hash = SHA-256 over the previous row's hash and all columns of the row, each written as
 * "length:bytes" ("-" for NULL), so that no two rows share one form. The first row has the previous
 * hash ''. Numbers follow each other without a gap, and SQLite's own count of the numbers given
 * (sqlite_sequence) says how many there must be: a row that was changed, taken out, put in or cut
 * off the end shows. */
#include "base/digest.h"
#include "store/store.h"
#include <inttypes.h>
#include <stdio.h>

enum { COLUMNS = 7 }; /* at actor action target reason before after */

static void add_field(struct sha256 *sha, const char *text) {
    char length[24] = "-";
    if (text)
        snprintf(length, sizeof length, "%zu:", strlen(text));
    sha256_add(sha, bytes_of(length));
    sha256_add(sha, bytes_of(text));
}

static void row_hash(const char *prev, int64_t seq, const char *const column[COLUMNS],
                     char ret[65]) {
    static const char digit[] = "0123456789abcdef";
    struct sha256 sha;
    uint8_t raw[32];
    char number[24];
    snprintf(number, sizeof number, "%" PRId64, seq);
    sha256_init(&sha);
    add_field(&sha, prev);
    add_field(&sha, number);
    for (int i = 0; i < COLUMNS; i++)
        add_field(&sha, column[i]);
    sha256_end(&sha, raw);
    for (int i = 0; i < 32; i++) {
        ret[2 * i] = digit[raw[i] >> 4];
        ret[2 * i + 1] = digit[raw[i] & 15];
    }
    ret[64] = 0;
}

/* How many numbers were given so far. */
static csn_status numbers(struct db *d, int64_t *ret, csn_error *err) {
    bool row = false;
    *ret = 0;
    return db_int(d, "SELECT seq FROM sqlite_sequence WHERE name = 'consign_audit'", NULL, 0, ret,
                  &row, err);
}

static csn_status last_hash(struct db *d, char ret[65], csn_error *err) {
    struct stmt *s = NULL;
    bool row = false;
    csn_status st =
        db_prepare(d, "SELECT hash FROM consign_audit ORDER BY seq DESC LIMIT 1", &s, err);
    if (st == CSN_OK)
        st = stmt_next(s, &row, err);
    copy_text(ret, 65, st == CSN_OK && row ? stmt_text(s, 0) : "");
    stmt_close(s);
    return st;
}

csn_status audit_append(struct db *d, const char *actor, const char *action, const char *target,
                        const char *reason, const char *before, const char *after, csn_error *err) {
    char prev[65], hash[65], at[24];
    int64_t seq = 0;
    bool row = false;
    struct stmt *s = NULL;
    csn_status st = numbers(d, &seq, err);
    if (st == CSN_OK)
        st = last_hash(d, prev, err);
    if (st == CSN_OK)
        st = db_prepare(d,
                        "INSERT INTO consign_audit(seq, prev_hash, at, actor, action, target, "
                        "reason, before, after, hash) "
                        "VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
                        &s, err);
    if (st != CSN_OK)
        return st;
    snprintf(at, sizeof at, "%" PRId64, db_now(d));
    const char *const column[COLUMNS] = {at, actor, action, target, reason, before, after};
    row_hash(prev, ++seq, column, hash);
    stmt_bind_int(s, 1, seq);
    stmt_bind_text(s, 2, prev);
    for (int i = 0; i < COLUMNS; i++)
        stmt_bind_text(s, i + 3, column[i]);
    stmt_bind_text(s, 10, hash);
    st = stmt_next(s, &row, err);
    stmt_close(s);
    return st;
}

/* One row of the walk: the number, the link to the row before, the hash. */
static bool row_holds(const struct stmt *s, int64_t seq, const char prev[65]) {
    const char *column[COLUMNS];
    char hash[65];
    for (int i = 0; i < COLUMNS; i++)
        column[i] = stmt_is_null(s, i + 2) ? NULL : stmt_text(s, i + 2);
    row_hash(prev, seq, column, hash);
    return stmt_int(s, 0) == seq && strcmp(stmt_text(s, 1), prev) == 0 &&
           strcmp(stmt_text(s, 9), hash) == 0;
}

static csn_status broken(int64_t seq, int64_t *ret_seq, csn_error *err) {
    *ret_seq = seq;
    return error_set(err, CSN_REJECTED, ERR_AUDIT_BROKEN, "audit: row %" PRId64 " does not hold",
                     seq);
}

csn_status audit_verify(struct db *d, int64_t *ret_seq, csn_error *err) {
    struct stmt *s = NULL;
    char prev[65] = "";
    int64_t seq = 0, given = 0;
    bool row = false;
    csn_status st =
        db_prepare(d,
                   "SELECT seq, prev_hash, at, actor, action, target, reason, before, after, hash "
                   "FROM consign_audit ORDER BY seq",
                   &s, err);
    if (st != CSN_OK)
        return st;
    while ((st = stmt_next(s, &row, err)) == CSN_OK && row) {
        if (!row_holds(s, ++seq, prev)) {
            st = broken(seq, ret_seq, err);
            break;
        }
        copy_text(prev, sizeof prev, stmt_text(s, 9));
    }
    stmt_close(s);
    if (st == CSN_OK)
        st = numbers(d, &given, err);
    if (st == CSN_OK && given != seq)
        st = broken(seq + 1, ret_seq, err);
    return st;
}
