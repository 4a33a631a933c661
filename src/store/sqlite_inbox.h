/* sqlite_inbox.h: what the rooms of the consuming side share: APPLY (sqlite_apply.c), PARK with the
 * rows of parked keys (sqlite_park.c) and the statements of SQL handlers (sqlite_handler.c). Private
 * to them. */
#ifndef CSN_STORE_SQLITE_INBOX_H
#define CSN_STORE_SQLITE_INBOX_H

#include "base/failpoint.h"
#include "base/prng.h"
#include "core/order.h"
#include "store/run.h"
#include "store/sqlite.h"

enum { DIGEST_ID_SIZE = 72 };

/* ---- sqlite_handler.c ---- */

/* Runs the handler of op->apply for m, or finds it too late. Fills verdict, code and text of the
 * item; *ret_emitted: result events that were written. A failure ends the whole op. */
csn_status sqlite_handle(struct sqlite_conn *c, struct op *op, const struct message *m,
                         struct apply_item *item, uint32_t *ret_emitted) MUST_USE;
/* Code and text of an item; NULL: the title of the code. */
void sqlite_say(struct apply_item *item, int32_t code, const char *text);

/* The summary that the function of an application gave for the message at hand; NULL: none. */
const char *sqlite_summary(const struct sqlite_conn *c);

/* ---- sqlite_order.c ---- */

enum { ORDER_DEADLINE = 900000000 /* of a gap that an event without a policy shows */ };

struct sqlite_entity {
    struct order_entity entity;
    char state[STATE_SIZE]; /* as it is written */
    char ahead[ID_MAX + 1]; /* the event that brought it to its version */
};

/* r is NULL for an event type without a policy. */
csn_status sqlite_entity_read(struct sqlite_conn *c, const char *consumer, const struct message *m,
                              const struct order_rule *r, struct sqlite_entity *ret,
                              csn_error *err) MUST_USE;
/* After a verdict that commits: the version, the state, gaps that it shows or closes. */
csn_status sqlite_entity_write(struct sqlite_conn *c, const char *consumer, const struct message *m,
                               const struct order_rule *r, struct sqlite_entity *e,
                               csn_verdict verdict, csn_error *err) MUST_USE;

/* ---- sqlite_hand.c ---- */

enum { DEATHS_MAX = 3 };

bool sqlite_hand_wanted(const struct op *op);
/* In a transaction of its own, before that of op: sets in_hand and deaths of c. */
csn_status sqlite_hand_take(struct sqlite_conn *c, const struct op *op, csn_error *err) MUST_USE;
/* In the transaction of op. */
csn_status sqlite_hand_give(struct sqlite_conn *c, const char *consumer, csn_error *err) MUST_USE;
csn_status sqlite_hand_forgive(struct sqlite_conn *c, const char *consumer, csn_bytes id,
                               csn_error *err) MUST_USE;
void sqlite_hand_close(struct sqlite_conn *c);

/* ---- sqlite_park.c ---- */

/* The id under which the inbox keeps an event: its own, or the digest of one that is too long or
 * not printable ASCII. */
csn_bytes sqlite_inbox_id(csn_bytes id, char buffer[DIGEST_ID_SIZE]);
/* The lowest version of the key's parked rows, if it has any. */
csn_status sqlite_parked_head(struct sqlite_conn *c, const char *consumer, const struct message *m,
                              bool *ret_parked, int64_t *ret_head, csn_error *err) MUST_USE;
/* Deletes the work row that this claim holds and lets its key go on. *ret_mine: it was there. */
csn_status sqlite_end_work(struct sqlite_conn *c, const char *consumer, const struct message *m,
                           const char *token, bool *ret_mine, csn_error *err) MUST_USE;

/* ?1 … ?10 of a statement that writes an inbox row. */
#define INBOX_VALUES(c, consumer, m, digest, broker)                                               \
    sql_str(consumer), sql_bytes((m)->id), sql_int((c)->now), sql_str(digest),                     \
        sql_bytes((m)->aggregate_type), sql_bytes((m)->aggregate_id),                              \
        sql_int((int64_t)(m)->version), sql_bytes((m)->event_type), sql_maybe(broker, (m)->lane),  \
        sql_maybe(broker, (int64_t)(m)->seq)

static inline csn_status sqlite_failpoint(enum failpoint f, csn_error *err) {
    csn_status st = failpoint_hit(f);
    return st == CSN_OK ? st : error_set(err, st, 0, "failpoint %s", failpoint_name(f));
}

/* SAVEPOINT, RELEASE, ROLLBACK TO: one that is not there was taken away by a handler: CSN_FATAL,
 * CSN-4011. */
csn_status sqlite_savepoint(struct sqlite_conn *c, const char *sql, csn_error *err) MUST_USE;

#endif
