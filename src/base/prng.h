/* prng.h: xoshiro256**, seeded by the host from getrandom(2), by the simulator from its seed. The
 * only source of chance in the core: jitter, claim tokens, ids. */
#ifndef CSN_BASE_PRNG_H
#define CSN_BASE_PRNG_H

#include "consign/consign.h"

struct prng {
    uint64_t s[4];
};

void prng_seed(struct prng *p, uint64_t seed); /* splitmix64; for tests and the simulator */
void prng_seed_full(struct prng *p, const uint64_t seed[4]); /* 256 bits of entropy */
uint64_t prng_next(struct prng *p);
uint64_t prng_below(struct prng *p, uint64_t n); /* 0 … n - 1 without bias; n > 0 */
void prng_token(struct prng *p, char ret[37]);   /* a random UUID (version 4) as text */

#endif
