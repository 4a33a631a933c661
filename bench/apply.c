/* apply.c: what a batch is worth at the consumer: the same deliveries through APPLY, one transaction
 * for each message, and one for a batch. Inbox row, SQL handler (three statements), commit with
 * synchronous=FULL.
 *
 *   bench-apply [FOLDER [EVENTS [BATCH]]]
 */
#include "bench/frame.h"
#include "core/handler.h"
#include "store/sqlite.h"
#include "store/store.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char handler_text[] =
    "-- handler reserve\n"
    "UPDATE stock SET available = available - :payload.qty WHERE sku = :payload.sku AND available "
    ">= :payload.qty;\n"
    "-- expect rows 1\n"
    "INSERT INTO reservation(order_id, sku, qty) VALUES (:aggregate_id, :payload.sku, "
    ":payload.qty);\n"
    "INSERT INTO journal(event_id, qty) VALUES (:event_id, :payload.qty);\n"
    "-- verdict done\n";

enum { TURNS = 4 }; /* in a round */

struct bench {
    char path[600], url[620];
    uint32_t events, batch;
    struct batch in;
    struct apply_item item[BATCH_MAX];
    struct sql_handler sql;
    struct handler handler;
};

static void fresh_store(const struct bench *b) {
    csn_error err = {0};
    struct db *db = NULL;
    remove_store(b->path);
    if (schema_apply(b->url, &err) != CSN_OK || db_open(b->url, 0, &db, &err) != CSN_OK ||
        db_script(db,
                  "CREATE TABLE stock (sku TEXT PRIMARY KEY, available INTEGER);"
                  "CREATE TABLE reservation (order_id TEXT PRIMARY KEY, sku TEXT, qty INTEGER);"
                  "CREATE TABLE journal (event_id TEXT PRIMARY KEY, qty INTEGER);"
                  "INSERT INTO stock VALUES ('A', 1000000000)",
                  &err) != CSN_OK)
        die("store", err.text);
    db_close(db);
}

static csn_bytes text(struct arena *a, const char *before, unsigned n) {
    char buffer[80];
    snprintf(buffer, sizeof buffer, "%s-%08u", before, n);
    csn_bytes b = arena_copy(a, bytes_of(buffer));
    if (!b.data)
        die("arena", "out of memory");
    return b;
}

/* Messages first … first + n - 1. */
static void fill(struct bench *b, uint32_t first, uint32_t n) {
    arena_reset(&b->in.arena);
    for (uint32_t i = 0; i < n; i++) {
        b->in.msg[i] = (struct message){.id = text(&b->in.arena, "event", first + i),
                                        .aggregate_type = bytes_of("order"),
                                        .aggregate_id = text(&b->in.arena, "order", first + i),
                                        .event_type = bytes_of("OrderCreated"),
                                        .payload = bytes_of("{\"sku\":\"A\",\"qty\":1}"),
                                        .version = 1,
                                        .seq = first + i + 1,
                                        .schema_version = 1,
                                        .attempts = 1,
                                        .expires_in = CSN_USEC_NEVER};
        b->item[i] = (struct apply_item){.msg = i};
    }
    b->in.n = n;
}

static uint32_t apply(struct bench *b, void *conn, uint32_t first, uint32_t n) {
    struct op op = {.kind = OP_APPLY,
                    .batch = &b->in,
                    .deadline = sqlite_steady() + 60000000,
                    .apply = {.consumer = "stock",
                              .handler = &b->handler,
                              .source = SOURCE_BROKER,
                              .item = b->item,
                              .n = n}};
    uint32_t done = 0;
    fill(b, first, n);
    sqlite_driver.run(conn, &op);
    if (op.result.status != CSN_OK)
        die("apply", op.result.text);
    for (uint32_t i = 0; i < n; i++)
        done += b->item[i].out == APPLY_VERDICT && b->item[i].verdict == CSN_DONE;
    return done;
}

static void apply_all(void *arg, int side, struct turn *ret) {
    struct bench *b = arg;
    csn_error err = {0};
    void *conn = NULL;
    uint32_t done = 0, batch = side == 1 ? b->batch : 1;
    fresh_store(b);
    if (sqlite_driver.open(b->url, ROLE_APPLY, &conn, &err) != CSN_OK)
        die("open", err.text);
    sqlite_count_statements(conn, &ret->statements);
    double cpu = cpu_now(), began = wall_now();
    for (uint32_t at = 0; at < b->events; at += batch) {
        done += apply(b, conn, at, b->events - at < batch ? b->events - at : batch);
        ret->commits++;
    }
    ret->wall = wall_now() - began;
    ret->cpu = cpu_now() - cpu;
    ret->events = b->events;
    if (done != b->events)
        die("apply", "not every event was handled");
    sqlite_driver.close(conn);
}

int main(int argc, char **argv) {
    struct bench b = {.events = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 16000,
                      .batch = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 200};
    const char *folder = argc > 1 ? argv[1] : ".";
    char conditions[160], report_text[400];
    struct text t;
    csn_error err = {0};

    b.events /= TURNS;
    if (b.events < 1 || b.events > 1000000 || b.batch < 1 || b.batch > BATCH_MAX ||
        strlen(folder) > 500)
        die("usage", "bench-apply [FOLDER [EVENTS, at least 4 [BATCH, at most 1000]]]");
    snprintf(b.path, sizeof b.path, "%s/bench-apply-%d.db", folder, (int)getpid());
    snprintf(b.url, sizeof b.url, "sqlite:%s", b.path);
    text_init(&t, report_text, sizeof report_text);
    if (sql_handler_parse("reserve.sql", bytes_of(handler_text), &b.sql, &t, &err) != CSN_OK)
        die("handler", err.text);
    b.handler = (struct handler){.sql = &b.sql};
    b.in.msg = calloc(b.batch, sizeof *b.in.msg);
    b.in.cap = b.batch;
    if (!b.in.msg)
        die("batch", "out of memory");
    arena_init(&b.in.arena, 64 << 20);
    snprintf(conditions, sizeof conditions,
             "%d x %u deliveries a round, inbox row and three statements each, synchronous=FULL",
             TURNS, b.events);
    struct pair p = {.name = "apply",
                     .conditions = conditions,
                     .side = {{.name = "one by one"}, {.name = "in batches"}}};
    play(&p, TURNS, apply_all, &b);
    remove_store(b.path);
    report(&p);
    arena_free(&b.in.arena);
    free(b.in.msg);
    sql_handler_free(&b.sql);
    return 0;
}
