/* shop.h: the shop's own side of an experiment: what an application does in its transaction. */
#ifndef CSN_LAB_SHOP_H
#define CSN_LAB_SHOP_H

#include "store/db.h"

struct shop_answer {
    char event_id[40];
    char state[32];
    bool first; /* this call wrote it; else it was there before */
};

/* An order and its event in one transaction, with the order number as the request's idempotency
 * key: the same request gets its first answer, the same number with another content is
 * CSN_REJECTED. */
csn_status shop_place(struct db *d, const char *order, const char *event, const char *sku,
                      int64_t qty, struct shop_answer *ret, csn_error *err) MUST_USE;

/* The two inserts alone, inside the caller's transaction. */
csn_status shop_insert_order(struct db *d, const char *order, const char *sku, int64_t qty,
                             csn_error *err) MUST_USE;
csn_status shop_insert_event(struct db *d, const char *order, const char *event,
                             const char *payload, csn_error *err) MUST_USE;

#endif
