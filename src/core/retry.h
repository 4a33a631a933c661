/* retry.h: the one retry: fault classes, backoff, budgets, and the breaker of a destination. Pure
 * functions of their input. */
#ifndef CSN_CORE_RETRY_H
#define CSN_CORE_RETRY_H

#include "base/prng.h"
#include "core/op.h"

enum jitter { JITTER_FULL, JITTER_EQUAL, JITTER_PERCENT };

struct retry_policy {
    csn_usec base, max;
    uint8_t jitter;         /* enum jitter */
    uint8_t jitter_percent; /* with JITTER_PERCENT: 0 … that much on top */
    uint32_t failures;      /* budget of faults of one message */
    csn_usec age;           /* budget of time since the first fault */
};

enum fault {
    FAULT_NONE,
    FAULT_PERMANENT,  /* failures +1, tries 0, failed at once */
    FAULT_TEMPORARY,  /* failures +1, tries +1, backoff */
    FAULT_UNKNOWN,    /* failures 0, tries +1, unknown with backoff, same id */
    FAULT_DESTINATION /* nothing counted: given back; the destination backs off */
};

/* min(max, base · 2^tries) with the policy's jitter; never negative, never overflows, at least 1 ms
 * for JITTER_FULL's zero. */
csn_usec retry_backoff(const struct retry_policy *p, uint32_t tries, struct prng *chance);

/* True when one more fault of a message with these counts spends its budget. */
bool retry_spent(const struct retry_policy *p, uint32_t failures_before, csn_usec failing_for);

/* The rest of a machine whose store could not, after faults earlier ones in a row: 10 ms, doubled up
 * to 1.28 s. */
csn_usec retry_store_pause(uint32_t faults);

/* The longest next_attempt_at this policy can set: what lies further ahead is a step of the clock.
 */
csn_usec retry_longest(const struct retry_policy *p);

/* A destination that cannot be reached rests and is probed by one small batch; one success opens it
 * fully. */
enum breaker_state { BREAKER_CLOSED /* works */, BREAKER_OPEN /* rests */, BREAKER_PROBING };

struct breaker {
    enum breaker_state state;
    uint32_t faults;     /* in a row */
    csn_usec open_until; /* monotonic */
    csn_usec opened_at;  /* first fault of this outage; 0: none */
};

bool breaker_allows(struct breaker *b,
                    csn_usec now); /* OPEN becomes PROBING when its rest is over */
void breaker_good(struct breaker *b);
void breaker_bad(struct breaker *b, const struct retry_policy *p, struct prng *chance,
                 csn_usec now);

#endif
