/* place.c: a shop's "place an order" as a client may repeat it. The same key gives the same answer,
 * one order and one event, however often it is asked; the same key for another order is refused.
 *
 *   place DATABASE KEY SKU QTY      prints the number of the order */
#include <consign/sqlite.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int run(sqlite3 *db, const char *sql) {
    return sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK;
}

/* The business row; its number goes to order. */
static int insert_order(sqlite3 *db, const char *sku, long qty, char *order, size_t size) {
    sqlite3_stmt *s = NULL;
    int good = sqlite3_prepare_v2(db,
                                  "INSERT INTO orders(order_id, sku, qty) SELECT 1 + max(50000, "
                                  "coalesce(max(CAST(order_id AS INTEGER)), 0)), ?1, ?2 FROM "
                                  "orders RETURNING order_id",
                                  -1, &s, NULL) == SQLITE_OK;
    if (good) {
        sqlite3_bind_text(s, 1, sku, -1, SQLITE_STATIC);
        sqlite3_bind_int64(s, 2, qty);
        good = sqlite3_step(s) == SQLITE_ROW;
    }
    if (good)
        snprintf(order, size, "%s", (const char *)sqlite3_column_text(s, 0));
    while (good && sqlite3_step(s) == SQLITE_ROW) { /* to its end: the row is in */
    }
    sqlite3_finalize(s);
    return good;
}

static csn_status place(sqlite3 *db, csn_tx *tx, char **argv, char *order, size_t size,
                        csn_error *err) {
    char parameters[200], payload[200];
    long qty = strtol(argv[4], NULL, 10);
    int32_t repeated = 0;
    snprintf(parameters, sizeof parameters, "%s %ld", argv[3], qty);
    snprintf(payload, sizeof payload, "{\"sku\": \"%s\", \"qty\": %ld}", argv[3], qty);
    csn_bytes asked = {parameters, strlen(parameters)};
    csn_status s =
        csn_request_begin(tx, "place order", argv[2], asked, order, size, &repeated, err);
    if (s != CSN_OK || repeated)
        return s;
    if (!insert_order(db, argv[3], qty, order, size)) {
        snprintf(err->text, sizeof err->text, "%s", sqlite3_errmsg(db));
        return CSN_REJECTED;
    }
    csn_event e = {.size = sizeof e,
                   .aggregate_type = "order",
                   .aggregate_id = order,
                   .event_type = "OrderCreated",
                   .payload = {payload, strlen(payload)},
                   .correlation_id = argv[2]};
    s = csn_publish(tx, &e, NULL, 0, err);
    return s == CSN_OK ? csn_request_answer(tx, "place order", argv[2], order, err) : s;
}

int main(int argc, char **argv) {
    sqlite3 *db = NULL;
    csn_error err = {0};
    char order[32] = "";
    if (argc != 5 || sqlite3_open(argv[1], &db) != SQLITE_OK) {
        fprintf(stderr, "usage: place DATABASE KEY SKU QTY\n");
        return 64;
    }
    sqlite3_busy_timeout(db, 5000);
    csn_tx tx = csn_sqlite_tx(db);
    int good = run(db, "BEGIN IMMEDIATE") &&
               place(db, &tx, argv, order, sizeof order, &err) == CSN_OK && run(db, "COMMIT");
    if (good)
        printf("%s\n", order);
    else
        fprintf(stderr, "CSN-%04d %s\n", err.code ? err.code : 2010,
                err.text[0] ? err.text : sqlite3_errmsg(db));
    sqlite3_close(db); /* what was not committed is rolled back */
    return !good;
}
