/* prng.c: xoshiro256** by Blackman and Vigna, and splitmix64 to spread a small seed over its state.
 * Not for secrets: a claim token must not repeat, nobody gains anything by guessing it. */
#include "base/prng.h"
#include <stdio.h>

static uint64_t rotated(uint64_t x, int by) {
    return (x << by) | (x >> (64 - by));
}

static uint64_t splitmix(uint64_t *x) {
    uint64_t z = (*x += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

void prng_seed(struct prng *p, uint64_t seed) {
    for (int i = 0; i < 4; i++) {
        p->s[i] = splitmix(&seed);
    }
}

void prng_seed_full(struct prng *p, const uint64_t seed[4]) {
    if ((seed[0] | seed[1] | seed[2] | seed[3]) == 0) {
        prng_seed(p, 0); /* all zeros is the one state that never changes */
        return;
    }
    for (int i = 0; i < 4; i++) {
        p->s[i] = seed[i];
    }
}

uint64_t prng_next(struct prng *p) {
    uint64_t *s = p->s;
    uint64_t ret = rotated(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotated(s[3], 45);
    return ret;
}

/* Draws below 2^64 mod n would be one too many for some results: they are drawn again. At worst
 * every second draw is. */
uint64_t prng_below(struct prng *p, uint64_t n) {
    uint64_t bias = (0 - n) % n, x;
    do {
        x = prng_next(p);
    } while (x < bias);
    return x % n;
}

void prng_token(struct prng *p, char ret[37]) {
    uint64_t a = prng_next(p), b = prng_next(p);
    a = (a & ~UINT64_C(0xf000)) | UINT64_C(0x4000);
    b = (b & ~(UINT64_C(3) << 62)) | (UINT64_C(2) << 62);
    snprintf(ret, 37, "%08x-%04x-%04x-%04x-%012llx", (unsigned)(a >> 32),
             (unsigned)(a >> 16 & 0xffff), (unsigned)(a & 0xffff), (unsigned)(b >> 48),
             (unsigned long long)(b & 0xffffffffffff));
}
