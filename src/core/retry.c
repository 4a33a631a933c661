/* retry.c: the one retry. Everything that is tried again in consign, at either end, takes its
 * pause, its budget and the rest of a destination from here. Arithmetic saturates: no count of
 * tries and no policy can make a pause negative or endless. */
#include "core/retry.h"

enum {
    RETRY_LEAST =
        1000 /* 1 ms: full jitter may draw zero, and a loop without a pause is no policy */
};

static csn_usec capped_double(csn_usec base, uint32_t tries, csn_usec max) {
    csn_usec pause = base;
    for (uint32_t i = 0; i < tries && pause < max; i++)
        pause = pause > max / 2 ? max : pause * 2;
    return pause < max ? pause : max;
}

csn_usec retry_backoff(const struct retry_policy *p, uint32_t tries, struct prng *chance) {
    csn_usec cap = capped_double(p->base, tries, p->max);
    csn_usec pause = cap;
    switch (p->jitter) {
    case JITTER_EQUAL:
        pause = cap / 2 + (csn_usec)prng_below(chance, (uint64_t)(cap - cap / 2) + 1);
        break;
    case JITTER_PERCENT:
        pause = cap + (csn_usec)prng_below(chance, (uint64_t)(cap / 100 * p->jitter_percent) + 1);
        break;
    default:
        pause = (csn_usec)prng_below(chance, (uint64_t)cap + 1);
        break;
    }
    return pause > RETRY_LEAST ? pause : RETRY_LEAST;
}

bool retry_spent(const struct retry_policy *p, uint32_t failures_before, csn_usec failing_for) {
    return failures_before + 1 >= p->failures || failing_for >= p->age;
}

csn_usec retry_store_pause(uint32_t faults) {
    return (csn_usec)10000 << (faults < 7 ? faults : 7);
}

csn_usec retry_longest(const struct retry_policy *p) {
    return p->max + p->max / 100 * (p->jitter == JITTER_PERCENT ? p->jitter_percent : 0) +
           RETRY_LEAST;
}

bool breaker_allows(struct breaker *b, csn_usec now) {
    if (b->state == BREAKER_OPEN && now >= b->open_until)
        b->state = BREAKER_PROBING;
    return b->state != BREAKER_OPEN;
}

void breaker_good(struct breaker *b) {
    *b = (struct breaker){.state = BREAKER_CLOSED};
}

void breaker_bad(struct breaker *b, const struct retry_policy *p, struct prng *chance,
                 csn_usec now) {
    if (b->faults == 0)
        b->opened_at = now;
    b->open_until = now + retry_backoff(p, b->faults, chance);
    b->faults++;
    b->state = BREAKER_OPEN;
}
