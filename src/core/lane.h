/* lane.h: keeps the lanes of one name for this process: takes what is free, renews what it has,
 * gives up what it cannot renew in time.
 *
 *   not held ──LEASE says held──▶ held ──renewed in time──▶ held
 *       ▲                          │ own clock passes held_until (counted from before the last good
 *       └──────────────────────────┘ LEASE), or an op found another epoch: lost, without asking
 *
 * The store judges leases by its own clock; this machine only judges its own deadline, which
 * always lies before the store's, because it starts when the op is submitted and the store's
 * starts later. */
#ifndef CSN_CORE_LANE_H
#define CSN_CORE_LANE_H

#include "core/metrics.h"
#include "core/note.h"
#include "core/port.h"

struct lanes {
    struct port *heart;
    struct op op;
    struct notes *notes;
    struct counters *counters;
    bool write_counters; /* one set of lanes per store carries the counters of the store */
    char *counters_text; /* COUNTERS_MAX bytes, with write_counters */
    uint64_t all;        /* lanes that exist */
    uint64_t held;       /* mine, as far as I may believe */
    uint64_t fresh;      /* taken and not yet recovered: cleared by who recovers them */
    uint64_t epoch[LANE_MAX];
    csn_usec lease, held_until, next_at, asked_at;
    uint32_t faults; /* LEASE ops that failed in a row */
    int32_t member;
    uint32_t members;
    bool asked;    /* a first answer has come */
    bool stopping; /* drop everything, once */
    bool dropped;  /* and it is done, or could not be done in time */
};

void lanes_init(struct lanes *l, struct port *heart, const char *name, uint32_t count,
                csn_usec lease, const char *boot, const char *label);
void lanes_step(struct lanes *l, csn_usec now);
csn_usec lanes_deadline(const struct lanes *l);
void lanes_lose(struct lanes *l, uint64_t lost,
                csn_usec now);    /* another op found them to be somebody else's */
void lanes_stop(struct lanes *l); /* the owner has nothing in flight any more */

#endif
