/* sqlite_count.c: counts the statements of a connection, so that the laboratory can say what a
 * duplicate costs. What only moves the transaction is not counted. */
#include "store/sqlite.h"
#include "store/store.h"

static bool moves_only(const char *sql) {
    static const char *const word[] = {"BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE"};
    for (size_t i = 0; i < ARRAY_LEN(word); i++)
        if (strncmp(sql, word[i], strlen(word[i])) == 0)
            return true;
    return false;
}

static int count(unsigned kind, void *counter, void *stmt, void *text) {
    (void)kind;
    (void)stmt;
    if (!moves_only(text))
        ++*(uint64_t *)counter;
    return 0;
}

void sqlite_count_statements(void *conn, uint64_t *counter) {
    struct sqlite_conn *c = conn;
    (void)sqlite3_trace_v2(c->db, counter ? SQLITE_TRACE_STMT : 0, counter ? count : NULL, counter);
}
