/* relay.h: the dispatcher of one store: claims due rows of its lanes, publishes them, settles what
 * the broker said.
 *
 *   FREE ─CLAIM─▶ CLAIMING ─rows─▶ PUBLISHING ─all said, or too late─▶ SETTLING ─committed─▶ FREE
 *                    │ none            │  ▲ one wave after the other: an event goes out
 *                    ▼                 └──┘ when the one before it in its key was confirmed
 *                  FREE
 *
 * What always holds:
 * - A lane is in one flight at a time (strict order): a row's successor cannot be claimed before
 *   the row is settled.
 * - Nothing is published after the flight's lease could be over; the rest is given back.
 * - An answer that has not come by the op's deadline is UNKNOWN. The op stays with the driver
 *   until it is reaped; its flight is not used again before, and what it says late is counted and
 *   not used.
 * - SETTLE shares its commit with the next CLAIM: one fsync per cycle. */
#ifndef CSN_CORE_RELAY_H
#define CSN_CORE_RELAY_H

#include "core/config.h"
#include "core/lane.h"
#include "core/retry.h"

enum {
    FLIGHTS_MAX = 4,
    PROBE_ROWS = 10,
    PARK_SHARE = 5 /* a claim moves at most 5 × its batch aside */
};

/* A broker as the relays of all stores see it: one breaker, so that one of them finds out for all.
 */
struct destination {
    const char *name;
    struct port *port;
    struct breaker breaker;
    csn_usec confirm_timeout;
    csn_usec rested; /* total time behind an open breaker: nobody's age */
    bool declared;   /* its bindings are in place */
};

struct relay_route {
    const char *name, *match;
    uint32_t to; /* destination */
};

enum flight_state { FLIGHT_FREE, FLIGHT_CLAIMING, FLIGHT_PUBLISHING, FLIGHT_SETTLING };
enum message_at { AT_QUEUED, AT_OUT, AT_READY };

struct flight {
    enum flight_state state;
    uint64_t lanes, epoch[LANE_MAX]; /* as they were when it was claimed: the ops point to them */
    char token[TOKEN_SIZE];
    struct op claim, settle, renew, publish[BROKERS_MAX];
    uint32_t abandoned; /* bit per publish op whose deadline passed while it was pending */
    struct batch batch;
    struct settle_item *item; /* one per message, valid when AT_READY */
    struct publish_item *pub; /* one per message, in segments per publish op */
    uint8_t *at;              /* enum message_at */
    uint8_t *to;              /* route; UINT8_MAX none */
    uint32_t *before;         /* the message before it in its key, in this batch; UINT32_MAX none */
    csn_usec *published_at;   /* monotonic; 0 never */
    csn_usec claimed_at, lease_end, publish_at, retry_at;
    uint32_t settle_faults;
    bool settle_unsure;      /* a settle may have committed: what is stale now is perhaps our own */
    bool probe;              /* claimed to probe a destination */
    const char *waits_route; /* the closed route whose rows are put aside by this flight */
};

struct relay {
    const char *store;
    struct lanes *lanes;
    struct port *port; /* of the relay role */
    struct destination *dest;
    uint32_t dests;
    const struct relay_route *route;
    uint32_t routes;
    struct counters *counters;
    struct notes *notes;
    struct prng *chance;
    struct retry_policy retry;
    uint32_t rows;
    size_t bytes;
    csn_usec lease, lock_wait, pause_min, pause_max;
    const char *boot;

    struct flight flight[FLIGHTS_MAX];
    uint32_t flights;
    struct op recover;
    csn_usec recover_at;
    uint64_t recovering; /* fresh lanes the pending RECOVER was asked for */
    uint64_t recover_epoch[LANE_MAX];
    uint64_t unsure;     /* lanes where a claim may have committed: recovered like fresh ones */
    bool due;            /* there may be rows to claim */
    bool expired;        /* WATCH saw rows to recover, and nobody has looked yet */
    csn_usec watch_from; /* no WATCH before: the last recovery was in vain */
    csn_usec rest_until,
        pause; /* after a claim that found nothing although there was said to be something */
    csn_usec fault_until; /* the store could not: try again then */
    uint32_t faults;
    bool stopping;
    bool woke; /* out: something was published; the owner tells the consumers */
};

csn_status relay_init(struct relay *r, csn_error *err); /* the upper part is filled by the owner */
void relay_free(struct relay *r);
void relay_step(struct relay *r, csn_usec now);
csn_usec relay_deadline(const struct relay *r, csn_usec now);
void relay_found(struct relay *r, bool due, bool expired); /* what WATCH said */
bool relay_wants_watch(const struct relay *r, csn_usec now);
void relay_stop(struct relay *r);
bool relay_idle(const struct relay *r); /* no op is pending, no flight in the air */

#endif
