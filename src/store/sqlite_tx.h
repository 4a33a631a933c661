/* sqlite_tx.h: the tx that the driver gives to a handler of an application. */
#ifndef CSN_STORE_SQLITE_TX_H
#define CSN_STORE_SQLITE_TX_H

#include "core/tx.h"
#include "store/sqlite.h"

struct sqlite_hand {
    sqlite3 *db;
    struct csn_delivery *delivery;
};

csn_tx sqlite_hand_tx(struct sqlite_hand *h); /* h must outlive it */

/* ?1 type, ?2 id: draws the next version of an aggregate; its first one follows what the application
 * itself wrote. */
#define SQL_NEXT_VERSION                                                                           \
    "INSERT INTO consign_versions(aggregate_type, aggregate_id, version) VALUES (?1, ?2, 1 + "     \
    "coalesce((SELECT max(aggregate_version) FROM outbox_events WHERE aggregate_type = ?1 AND "    \
    "aggregate_id = ?2), 0)) ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE SET "            \
    "version = version + 1 RETURNING version"

#endif
