/* stock.c: the stock of the shop as a C program: what handlers/reserve.sql does, in a function. The
 * subscription says `handler: application`; `consign serve` runs everything else.
 *
 *   stock CONFIGURATION [--all]     --all: no daemon is needed, this process relays, too */
#include <consign/sqlite.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static csn *running; /* for the signal handler */

static void stop(int signal_number) {
    (void)signal_number;
    csn_stop(running);
}

/* A statement with the event's id, order, sku and qty as ?1 … ?4; rows that it changed, -1: failed. */
static int change(sqlite3 *db, const csn_event *e, const char *sku, sqlite3_int64 qty,
                  const char *sql) {
    sqlite3_stmt *s = NULL;
    int rows = -1;
    if (sqlite3_prepare_v2(db, sql, -1, &s, NULL) == SQLITE_OK) {
        sqlite3_bind_text(s, 1, e->event_id, -1, SQLITE_STATIC);
        sqlite3_bind_text(s, 2, e->aggregate_id, -1, SQLITE_STATIC);
        sqlite3_bind_text(s, 3, sku, -1, SQLITE_STATIC);
        sqlite3_bind_int64(s, 4, qty);
        rows = sqlite3_step(s) == SQLITE_DONE ? sqlite3_changes(db) : -1;
    }
    sqlite3_finalize(s);
    return rows;
}

/* sku and qty of the payload, read by SQLite. */
static int read_payload(sqlite3 *db, const csn_event *e, char *sku, size_t size,
                        sqlite3_int64 *qty) {
    sqlite3_stmt *s = NULL;
    int good = 0;
    if (sqlite3_prepare_v2(db, "SELECT ?1 ->> 'sku', ?1 ->> 'qty'", -1, &s, NULL) == SQLITE_OK) {
        sqlite3_bind_text(s, 1, (const char *)e->payload.data, (int)e->payload.size, SQLITE_STATIC);
        good = sqlite3_step(s) == SQLITE_ROW && sqlite3_column_text(s, 0) &&
               sqlite3_column_type(s, 1) == SQLITE_INTEGER;
    }
    if (good) {
        snprintf(sku, size, "%s", (const char *)sqlite3_column_text(s, 0));
        *qty = sqlite3_column_int64(s, 1);
    }
    sqlite3_finalize(s);
    return good;
}

static csn_verdict answer(csn_tx *tx, const char *type, const char *sku, const char *payload,
                          csn_verdict verdict, csn_error *err) {
    csn_event e = {.size = sizeof e,
                   .aggregate_type = "stock",
                   .aggregate_id = sku,
                   .event_type = type,
                   .payload = {payload, strlen(payload)}};
    return csn_publish(tx, &e, NULL, 0, err) == CSN_OK ? verdict : CSN_RETRY;
}

static csn_verdict reserve(csn_tx *tx, csn_delivery *d, void *arg, csn_error *err) {
    const csn_event *e = csn_delivery_event(d);
    sqlite3 *db = csn_sqlite_db(tx);
    char sku[64], payload[400];
    sqlite3_int64 qty = 0;
    (void)arg;
    if (!read_payload(db, e, sku, sizeof sku, &qty)) {
        snprintf(err->text, sizeof err->text, "the payload has no sku or no qty");
        return CSN_POISON;
    }
    int rows =
        change(db, e, sku, qty,
               "UPDATE stock SET available = available - ?4 WHERE sku = ?3 AND available >= ?4");
    if (rows == 0) {
        snprintf(payload, sizeof payload, "{\"order\": \"%s\", \"reason\": \"out of stock\"}",
                 e->aggregate_id);
        return answer(tx, "InventoryRejected", sku, payload, CSN_REFUSED, err);
    }
    if (rows < 0 ||
        change(db, e, sku, qty, "INSERT INTO reservation VALUES (?2, ?3, ?4, '已预占')") < 0 ||
        change(db, e, sku, qty, "INSERT INTO stock_journal VALUES (?1, ?3, ?4, 'reserve')") < 0) {
        snprintf(err->text, sizeof err->text, "%s", sqlite3_errmsg(db));
        return CSN_RETRY;
    }
    snprintf(payload, sizeof payload, "{\"order\": \"%s\"}", e->aggregate_id);
    csn_delivery_result(d, (csn_bytes){"\"reserved\"", 10});
    return answer(tx, "InventoryReserved", sku, payload, CSN_DONE, err);
}

int main(int argc, char **argv) {
    const struct csn_driver *drivers[] = {csn_sqlite_driver(), NULL};
    csn_subscription s = {.size = sizeof s, .consumer = "stock", .handler = reserve};
    int all = argc > 2 && strcmp(argv[2], "--all") == 0;
    csn_error err = {0};
    csn_status st = csn_open(argc > 1 ? argv[1] : NULL, drivers, &running, &err);
    if (st == CSN_OK)
        st = csn_subscribe(running, &s, &err);
    if (st == CSN_OK && all)
        st = csn_serve(running, &err);
    signal(SIGTERM, stop);
    signal(SIGINT, stop);
    if (st == CSN_OK)
        st = csn_run(running, &err);
    if (st != CSN_OK)
        fprintf(stderr, "stock: CSN-%04d %s\n", err.code, err.text);
    csn_close(running);
    return st != CSN_OK;
}
