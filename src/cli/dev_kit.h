/* dev_kit.h: what the parts of `consign dev` share: its folder, its counters, its books. */
#ifndef CSN_CLI_DEV_KIT_H
#define CSN_CLI_DEV_KIT_H

#include "cli/out.h"
#include "store/db.h"

enum { DEV_PATH_MAX = 700 };

/* ---- dev_writer.c: the child that writes orders ---- */

/* Writes an order and its event, again and again, until SIGTERM; SIGUSR1 pauses it between two
 * orders, and lets it go on. Never returns. */
_Noreturn void dev_write(const char *orders_url);

/* ---- dev_books.c ---- */

struct dev_counts {
    int64_t written, sent, handled, dead; /* events about orders */
    int64_t repeats;                      /* deliveries that the inboxes dropped */
    int64_t again;                        /* events that were claimed more than once */
    int64_t doubled;                      /* effects beyond one for each event that is done */
    int64_t open;                         /* rows, deliveries and parked events under way */
    int64_t behind;                       /* rows and deliveries that wait longer than a second */
};

/* CSN_AGAIN: a database is busy; nothing is changed in *ret then. */
csn_status dev_count(struct db *orders, struct db *stock, struct dev_counts *ret,
                     csn_error *err) MUST_USE;
/* Prints the books of both databases; *ret_right: they agree. */
csn_status dev_books(struct out *o, struct db *orders, struct db *stock, bool *ret_right,
                     csn_error *err) MUST_USE;

#endif
