/* ask.c: what the scenarios ask a store, through db.h, so that a scenario knows the store's URL and
 * not its kind.
 *
 *   accept-ask URL SQL [ARG…]     one statement; ARGs are ?1, ?2 …; a line for each row, fields
 *                                 separated by |, NULL empty
 *   accept-ask --change URL SQL   any number of statements in one write transaction; prints nothing
 *   accept-ask --hold URL         takes the write lock, says "held", keeps it until its input ends
 *
 * URL memory: is an empty database of this process, for sums and for JSON that is given as an ARG.
 * A store that is locked is asked again for LOCKED_LONGEST seconds; what it refuses is said on the
 * error output, exit code 1. */
#include "store/db.h"
#include <stdio.h>
#include <time.h>

enum { LOCKED_LONGEST = 60, EXIT_REFUSED = 1, EXIT_USAGE = 64 };

static csn_status print_rows(struct stmt *s, csn_error *err) {
    bool row = false;
    csn_status st;
    while ((st = stmt_next(s, &row, err)) == CSN_OK && row) {
        for (int i = 0; i < stmt_columns(s); i++)
            printf("%s%s", i ? "|" : "", stmt_is_null(s, i) ? "" : stmt_text(s, i));
        putchar('\n');
    }
    return st;
}

static csn_status ask(struct db *d, char *const *arg, int n, csn_error *err) {
    struct stmt *s;
    csn_status st = db_prepare(d, arg[0], &s, err);
    if (st != CSN_OK)
        return st;
    for (int i = 1; i < n; i++)
        stmt_bind_text(s, i, arg[i]);
    st = print_rows(s, err);
    stmt_close(s);
    return st;
}

static csn_status change(struct db *d, const char *sql, csn_error *err) {
    csn_status st = db_begin(d, err);
    if (st == CSN_OK)
        st = db_script(d, sql, err);
    if (st == CSN_OK)
        return db_commit(d, err);
    db_rollback(d);
    return st;
}

static csn_status hold(struct db *d, csn_error *err) {
    csn_status st = db_begin(d, err);
    if (st != CSN_OK)
        return st;
    puts("held");
    fflush(stdout);
    while (getchar() != EOF)
        continue;
    db_rollback(d);
    return CSN_OK;
}

static csn_status answer(const char *mode, char *const *arg, int n, csn_error *err) {
    struct db *d;
    csn_status st = strcmp(arg[0], "memory:") == 0 ? db_memory(&d, err)
                                                   : db_open(arg[0], DB_ANY_SCHEMA, &d, err);
    if (st != CSN_OK)
        return st;
    if (strcmp(mode, "--hold") == 0)
        st = hold(d, err);
    else if (strcmp(mode, "--change") == 0)
        st = change(d, arg[1], err);
    else
        st = ask(d, arg + 1, n - 1, err);
    db_close(d);
    return st;
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 && argv[1][0] == '-' ? argv[1] : "";
    int skip = *mode ? 2 : 1, n = argc - skip;
    bool holds = strcmp(mode, "--hold") == 0, changes = strcmp(mode, "--change") == 0;
    if (*mode ? !(holds && n == 1) && !(changes && n == 2) : n < 2) {
        fputs("accept-ask [--change|--hold] URL [SQL [ARG...]]\n", stderr);
        return EXIT_USAGE;
    }
    time_t end = time(NULL) + LOCKED_LONGEST;
    csn_error err = {0};
    csn_status st;
    do
        st = answer(mode, argv + skip, n, &err);
    while (st == CSN_AGAIN && err.code == ERR_STORE_LOCKED && time(NULL) < end);
    if (st == CSN_OK)
        return 0;
    fprintf(stderr, "%s\n", err.text);
    return EXIT_REFUSED;
}
