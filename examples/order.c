/* order.c: an order and its event commit together, or not at all.
 *   cc -o order order.c $(pkg-config --cflags --libs consign consign-sqlite) */
#include <consign/sqlite.h>
#include <stdio.h>
#include <string.h>

static int run(sqlite3 *db, const char *sql) {
    return sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK;
}

int main(int argc, char **argv) {
    static const char payload[] = "{\"sku\": \"A\", \"qty\": 2}";
    sqlite3 *db = NULL;
    csn_error err = {0};
    char id[CSN_ID_SIZE], insert[200];

    if (argc != 3 || sqlite3_open(argv[1], &db) != SQLITE_OK)
        return fprintf(stderr, "usage: order DATABASE ORDER\n"), 2;
    sqlite3_busy_timeout(db, 5000);
    sqlite3_snprintf(sizeof insert, insert,
                     "INSERT INTO orders(order_id, sku, qty) VALUES (%Q, 'A', 2)", argv[2]);

    csn_tx tx = csn_sqlite_tx(db);
    csn_event e = {.size = sizeof e,
                   .aggregate_type = "order",
                   .aggregate_id = argv[2],
                   .event_type = "OrderCreated",
                   .payload = {payload, strlen(payload)}};

    int good = run(db, "BEGIN IMMEDIATE") && run(db, insert) &&
               csn_publish(&tx, &e, id, sizeof id, &err) == CSN_OK && run(db, "COMMIT");
    if (good)
        printf("order %s, event %s\n", argv[2], id);
    else
        fprintf(stderr, "%s\n", err.code ? err.text : sqlite3_errmsg(db));
    sqlite3_close(db); /* what was not committed is rolled back */
    return !good;
}
