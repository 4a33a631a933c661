/* shop.c: an application as the README tells one to be: its rows and the event in one transaction,
 * by plain INSERTs. */
#include "lab/shop.h"
#include <inttypes.h>
#include <stdio.h>

static csn_status once(struct db *d, const char *sql, const char *const *text, int n,
                       csn_error *err) {
    struct stmt *s = NULL;
    bool row = false;
    csn_status st = db_prepare(d, sql, &s, err);
    if (st != CSN_OK)
        return st;
    for (int i = 0; i < n; i++)
        stmt_bind_text(s, i + 1, text[i]);
    st = stmt_next(s, &row, err);
    stmt_close(s);
    return st;
}

csn_status shop_insert_order(struct db *d, const char *order, const char *sku, int64_t qty,
                             csn_error *err) {
    char number[24];
    (void)snprintf(number, sizeof number, "%" PRId64, qty);
    return once(d,
                "INSERT INTO orders(order_id, sku, qty) VALUES (?1, ?2, CAST(?3 AS INTEGER)) "
                "ON CONFLICT DO NOTHING",
                (const char *const[]){order, sku, number}, 3, err);
}

csn_status shop_insert_event(struct db *d, const char *order, const char *event,
                             const char *payload, csn_error *err) {
    return once(d,
                "INSERT INTO outbox_events(event_id, aggregate_type, aggregate_id, "
                "aggregate_version, event_type, payload) "
                "VALUES (?2, 'order', ?1, 1, 'OrderCreated', ?3)",
                (const char *const[]){order, event, payload}, 3, err);
}

/* What was answered the first time, read from what was committed then. */
static csn_status first_answer(struct db *d, const char *order, const char *sku, int64_t qty,
                               struct shop_answer *ret, csn_error *err) {
    struct stmt *s = NULL;
    bool row = false;
    csn_status st = db_prepare(
        d,
        "SELECT o.sku = ?2 AND o.qty = ?3, e.event_id, o.state FROM orders o JOIN outbox_events e "
        "ON e.aggregate_type = 'order' AND e.aggregate_id = o.order_id WHERE o.order_id = ?1",
        &s, err);
    if (st != CSN_OK)
        return st;
    stmt_bind_text(s, 1, order);
    stmt_bind_text(s, 2, sku);
    stmt_bind_int(s, 3, qty);
    st = stmt_next(s, &row, err);
    if (st == CSN_OK && !row)
        st = error_set(err, CSN_FATAL, ERR_BUG, "order %s has no event", order);
    if (st == CSN_OK && stmt_int(s, 0) == 0)
        st = error_set(err, CSN_REJECTED, ERR_IDENTITY_CONFLICT, "order %s", order);
    if (st == CSN_OK) {
        (void)copy_text(ret->event_id, sizeof ret->event_id, stmt_text(s, 1));
        (void)copy_text(ret->state, sizeof ret->state, stmt_text(s, 2));
    }
    stmt_close(s);
    return st;
}

csn_status shop_place(struct db *d, const char *order, const char *event, const char *sku,
                      int64_t qty, struct shop_answer *ret, csn_error *err) {
    char payload[160];
    *ret = (struct shop_answer){.state = "pending_inventory"};
    (void)copy_text(ret->event_id, sizeof ret->event_id, event);
    (void)snprintf(payload, sizeof payload, "{\"sku\":\"%s\",\"qty\":%" PRId64 "}", sku, qty);
    csn_status st = db_begin(d, err);
    if (st == CSN_OK)
        st = shop_insert_order(d, order, sku, qty, err);
    ret->first = st == CSN_OK && db_changes(d) == 1;
    if (ret->first)
        st = shop_insert_event(d, order, event, payload, err);
    else if (st == CSN_OK)
        st = first_answer(d, order, sku, qty, ret, err);
    if (st == CSN_OK)
        return db_commit(d, err);
    db_rollback(d);
    return st;
}
