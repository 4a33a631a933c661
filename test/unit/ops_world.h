/* ops_world.h: two SQLite stores with consign's tables in a folder of their own, a configuration
 * over them, and plain SQL as the oracle. The queue of broker "local" is in orders; subscription
 * "stock" takes OrderCreated into stock, "orders" takes Inventory* into orders. */
#ifndef TEST_OPS_WORLD_H
#define TEST_OPS_WORLD_H

#include "base/digest.h"
#include "cli/event_kit.h"
#include <inttypes.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MS     INT64_C(1000)
#define SECOND INT64_C(1000000)
#define T0     INT64_C(1700000000000000) /* a day in 2023, long before now */

struct world {
    char dir[96];
    struct config config;
    sqlite3 *db[2]; /* orders, stock */
};

static inline void sql(sqlite3 *db, const char *text) {
    char *why = NULL;
    if (sqlite3_exec(db, text, NULL, NULL, &why) != SQLITE_OK)
        fail_msg("%s: %s", why, text);
}

static inline int64_t ask(sqlite3 *db, const char *text) {
    sqlite3_stmt *s = NULL;
    int64_t n = INT64_MIN;
    if (sqlite3_prepare_v2(db, text, -1, &s, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sqlite3_errmsg(db), text);
    if (sqlite3_step(s) == SQLITE_ROW)
        n = sqlite3_column_int64(s, 0);
    sqlite3_finalize(s);
    return n;
}

static inline bool says(sqlite3 *db, const char *text, const char *expected) {
    sqlite3_stmt *s = NULL;
    if (sqlite3_prepare_v2(db, text, -1, &s, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sqlite3_errmsg(db), text);
    const char *found =
        sqlite3_step(s) == SQLITE_ROW ? (const char *)sqlite3_column_text(s, 0) : NULL;
    bool same = found && strcmp(found, expected) == 0;
    if (!same)
        print_error("%s: \"%s\" instead of \"%s\"\n", text, found ? found : "(none)", expected);
    sqlite3_finalize(s);
    return same;
}

static inline void add_store(struct world *w, const char *name) {
    struct config_store *s = &w->config.store[w->config.stores];
    csn_error err = {0};
    char path[sizeof s->url];
    char dir[sizeof w->dir];
    copy_text(dir, sizeof dir, w->dir);
    copy_text(s->name, sizeof s->name, name);
    snprintf(s->url, sizeof s->url, "sqlite:%s/%s.db", dir, name);
    snprintf(path, sizeof path, "%s/%s.db", dir, name);
    if (schema_apply(s->url, &err) != CSN_OK)
        fail_msg("schema: %s", err.text);
    assert_int_equal(sqlite3_open(path, &w->db[w->config.stores]), SQLITE_OK);
    w->config.stores++;
}

static inline void add_subscription(struct world *w, const char *consumer, const char *match) {
    struct config_subscription *s = &w->config.subscription[w->config.subscriptions++];
    copy_text(s->consumer, sizeof s->consumer, consumer);
    copy_text(s->broker, sizeof s->broker, "local");
    copy_text(s->store, sizeof s->store, consumer);
    copy_text(s->match, sizeof s->match, match);
    s->partitions = 8;
}

/* A store that cannot be opened. */
static inline void add_lost_store(struct world *w) {
    struct config_store *s = &w->config.store[w->config.stores++];
    copy_text(s->name, sizeof s->name, "gone");
    copy_text(s->url, sizeof s->url, "sqlite:/nowhere/gone.db");
}

static inline struct world *world_new(void) {
    struct world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    const char *base = getenv("TMPDIR");
    snprintf(w->dir, sizeof w->dir, "%.64s/consign-ops-XXXXXX", base && *base ? base : P_tmpdir);
    assert_non_null(mkdtemp(w->dir));
    add_store(w, "orders");
    add_store(w, "stock");
    copy_text(w->config.broker[0].name, NAME_MAX_, "local");
    copy_text(w->config.broker[0].store, NAME_MAX_, "orders");
    w->config.brokers = 1;
    w->config.relay.lease = 30 * SECOND;
    w->config.reconcile.grace = 600 * SECOND;
    add_subscription(w, "stock", "OrderCreated");
    add_subscription(w, "orders", "Inventory*");
    return w;
}

static inline void world_free(struct world *w) {
    static const char *const names[] = {"orders.db", "orders.db-wal", "orders.db-shm",
                                        "stock.db",  "stock.db-wal",  "stock.db-shm"};
    char path[192];
    sqlite3_close(w->db[0]);
    sqlite3_close(w->db[1]);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        snprintf(path, sizeof path, "%s/%s", w->dir, names[i]);
        (void)unlink(path);
    }
    assert_int_equal(rmdir(w->dir), 0);
    free(w);
}

/* Everything that is in a store, as one digest. */
static inline void table_digest(sqlite3 *db, const char *table, struct sha256 *sha) {
    char text[200];
    sqlite3_stmt *s = NULL;
    snprintf(text, sizeof text, "SELECT * FROM \"%s\"", table);
    assert_int_equal(sqlite3_prepare_v2(db, text, -1, &s, NULL), SQLITE_OK);
    while (sqlite3_step(s) == SQLITE_ROW)
        for (int i = 0; i < sqlite3_column_count(s); i++) {
            const void *data = sqlite3_column_text(s, i);
            sha256_add(sha, (csn_bytes){data, (size_t)sqlite3_column_bytes(s, i)});
            sha256_add(sha, (csn_bytes){"\n", 1});
        }
    sqlite3_finalize(s);
}

static inline void world_digest(struct world *w, uint8_t ret[32]) {
    struct sha256 sha;
    sha256_init(&sha);
    for (int i = 0; i < 2; i++) {
        sqlite3_stmt *s = NULL;
        assert_int_equal(
            sqlite3_prepare_v2(w->db[i],
                               "SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name",
                               -1, &s, NULL),
            SQLITE_OK);
        while (sqlite3_step(s) == SQLITE_ROW)
            table_digest(w->db[i], (const char *)sqlite3_column_text(s, 0), &sha);
        sqlite3_finalize(s);
    }
    sha256_end(&sha, ret);
}

/* A row of the outbox; more: further columns and values, or "". */
static inline void put_event(sqlite3 *db, const char *id, const char *type, const char *key,
                             int version, const char *status) {
    char text[600];
    snprintf(text, sizeof text,
             "INSERT INTO outbox_events(event_id, aggregate_type, aggregate_id, aggregate_version, "
             "event_type, payload, status, "
             "created_at, next_attempt_at) VALUES ('%s', 'order', '%s', %d, '%s', "
             "'{\"sku\":\"A\",\"card\":\"4111\"}', '%s', %" PRId64 ", %" PRId64 ")",
             id, key, version, type, status, T0, T0);
    sql(db, text);
}

#endif
