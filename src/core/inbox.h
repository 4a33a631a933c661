/* inbox.h: one apply worker of one subscription: takes deliveries of its partitions, applies them,
 * parks what was not applied, acknowledges.
 *
 *   broker ──RECEIVE──▶ slot[0] ─┐                    ┌─ committed, seen ───────────────▶ ACK
 *                                ├─▶ APPLY ──────────▶┤
 *   work   ──CLAIM────▶ slot[1] ─┘     ▲              ├─ retry, early, behind, poison … ─▶ PARK ──▶ ACK
 *                                      │              │
 *                                      └──────────────┴─ behind one that turned out dead: apply again
 *
 * What always holds:
 * - One APPLY, PARK or TRY is open at a time, so that the events of a partition are applied one after
 *   the other.
 * - Nothing is acknowledged before the transaction that holds its effect, or its parked row, is
 *   committed.
 * - At most once is the other way round, and a verb of its own: RECEIVE ▶ ACK ▶ TRY, no inbox, no
 *   work rows. Nothing is tried before all of the batch is acknowledged; an ACK or a TRY whose
 *   outcome is unknown is not repeated. What does not end well is lost: counted, and named in the
 *   log.
 * - A store that cannot (full, locked, away) stops the machine: no ack, no effect; the same batch
 *   is tried again until its delivery lease is nearly over, then it is let go and delivered once
 *   more. An unknown commit is asked again: the inbox decides.
 * - A batch whose handlers take longer than an APPLY may is applied in smaller parts; one message
 *   that takes too long alone is a retry by policy. So slow handlers slow their subscription down
 *   and never stop it. */
#ifndef CSN_CORE_INBOX_H
#define CSN_CORE_INBOX_H

#include "core/config.h"
#include "core/handler.h"
#include "core/lane.h"

enum delivery_state { DELIVERY_EMPTY, DELIVERY_ASKED, DELIVERY_READY };

struct delivery { /* one of the two inputs */
    enum source source;
    enum delivery_state state;
    struct op take; /* RECEIVE, or CLAIM of the work table */
    struct batch batch;
    char token[TOKEN_SIZE];
    uint64_t epoch[LANE_MAX];     /* as they were when it was asked for: the op points to them */
    csn_usec taken_at, lease_end; /* monotonic */
    bool due;                     /* there may be something */
    bool again;                   /* what was let go must be delivered once more */
    csn_usec rest_until, pause;
};

enum inbox_state {
    INBOX_IDLE,
    INBOX_APPLYING, /* or trying */
    INBOX_PARKING,
    INBOX_ACKING,
    INBOX_BROKEN
};

struct inbox {
    const char *consumer, *store; /* names */
    struct lanes *lanes;          /* of the partitions */
    uint64_t part_mask;           /* partitions of this worker */
    struct port *apply, *out;
    bool pushed;       /* the broker has no watch: RECEIVE waits by itself */
    bool at_most_once; /* acked first, tried once */
    const struct handler *handler;
    const struct order *order; /* NULL: no policies */
    struct counters *counters; /* of the consumer's store */
    struct notes *notes;
    struct prng *chance;
    struct retry_policy retry;
    uint32_t rows;
    size_t bytes;
    csn_usec lease, lock_wait, pause_min, pause_max;
    const char *boot;

    struct delivery slot[2];
    uint32_t turn;           /* slot that is looked at first */
    struct delivery *now_on; /* the one being processed */
    enum inbox_state state;
    struct op apply_op, park_op, ack_op, recover;
    struct apply_item *item; /* picks of this round */
    struct park_item *park;
    uint32_t *again;                /* messages for the next round */
    uint32_t *done;                 /* messages to acknowledge */
    uint32_t again_n, done_n, room; /* of these four */
    uint32_t
        most; /* messages an APPLY: halved when one ran out of time, doubled when one did not */
    csn_usec retry_at, look_at;
    uint32_t faults;
    bool declared; /* the binding is in place */
    bool stopping;
    bool emitted; /* out: result events were written; the owner tells the relay of the store */
};

csn_status inbox_init(struct inbox *b, csn_error *err);
void inbox_free(struct inbox *b);
void inbox_step(struct inbox *b, csn_usec now);
csn_usec inbox_deadline(const struct inbox *b, csn_usec now);
void inbox_found(struct inbox *b,
                 enum source source); /* WATCH, or a relay that has just published, says: look */
uint64_t inbox_slots(const struct inbox *b); /* of the work table: those of my partitions */
bool inbox_wants_watch(const struct inbox *b, enum source source);
void inbox_stop(struct inbox *b);
bool inbox_idle(const struct inbox *b);

#endif
