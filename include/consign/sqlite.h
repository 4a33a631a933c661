/* sqlite.h: consign on SQLite. Link with libconsign-sqlite, libconsign and SQLite 3.38 or later. */
#ifndef CONSIGN_SQLITE_H
#define CONSIGN_SQLITE_H

#include <consign/consign.h>
#include <sqlite3.h>

#ifdef __cplusplus
extern "C" {
#endif

/* For the calls that take a csn_tx, on a connection of the caller's. Begin with BEGIN IMMEDIATE: a
 * plain BEGIN may find at its first write that somebody else has written since (CSN_AGAIN: roll
 * back, begin again). The database has consign's tables: `consign schema apply`. */
CSN_API csn_tx csn_sqlite_tx(sqlite3 *db);
/* In a handler: the connection behind its tx, for statements of the handler's own. It is consign's:
 * do not close it, nor change how it behaves, nor keep statements beyond the handler. NULL: the tx
 * is not one of SQLite. */
CSN_API sqlite3 *csn_sqlite_db(const csn_tx *tx);
/* For csn_open. Static. */
CSN_API const struct csn_driver *csn_sqlite_driver(void);

#ifdef __cplusplus
}
#endif
#endif
