/* digest.c: SHA-256 as FIPS 180-4 states it, byte order independent of the machine. */
#include "base/digest.h"
#include <stdio.h>
#include <string.h>

static const uint32_t round_constant[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotated(uint32_t x, int by) {
    return (x >> by) | (x << (32 - by));
}

static void spread(const uint8_t block[64], uint32_t w[64]) {
    for (int i = 0; i < 16; i++) {
        const uint8_t *p = block + 4 * i;
        w[i] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    }
    for (int i = 16; i < 64; i++) {
        uint32_t a = rotated(w[i - 15], 7) ^ rotated(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t b = rotated(w[i - 2], 17) ^ rotated(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + a + w[i - 7] + b;
    }
}

static void compress(uint32_t h[8], const uint8_t block[64]) {
    uint32_t w[64], v[8];
    spread(block, w);
    memcpy(v, h, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t s1 = rotated(v[4], 6) ^ rotated(v[4], 11) ^ rotated(v[4], 25);
        uint32_t choice = (v[4] & v[5]) ^ (~v[4] & v[6]);
        uint32_t t1 = v[7] + s1 + choice + round_constant[i] + w[i];
        uint32_t s0 = rotated(v[0], 2) ^ rotated(v[0], 13) ^ rotated(v[0], 22);
        uint32_t majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + s0 + majority;
    }
    for (int i = 0; i < 8; i++) {
        h[i] += v[i];
    }
}

void sha256_init(struct sha256 *s) {
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    *s = (struct sha256){.length = 0};
    memcpy(s->h, start, sizeof start);
}

void sha256_add(struct sha256 *s, csn_bytes b) {
    const uint8_t *p = b.data;
    size_t left = b.size;
    while (left > 0) {
        size_t at = s->length % 64, n = 64 - at < left ? 64 - at : left;
        memcpy(s->block + at, p, n);
        s->length += n;
        p += n;
        left -= n;
        if (s->length % 64 == 0) {
            compress(s->h, s->block);
        }
    }
}

void sha256_end(struct sha256 *s, uint8_t ret[32]) {
    static const uint8_t padding[64] = {0x80};
    uint64_t bits = s->length * 8;
    size_t at = s->length % 64, pad = at < 56 ? 56 - at : 120 - at;
    uint8_t tail[8];
    for (int i = 0; i < 8; i++) {
        tail[i] = (uint8_t)(bits >> (56 - 8 * i));
    }
    sha256_add(s, (csn_bytes){padding, pad});
    sha256_add(s, (csn_bytes){tail, sizeof tail});
    for (int i = 0; i < 32; i++) {
        ret[i] = (uint8_t)(s->h[i / 4] >> (24 - 8 * (i % 4)));
    }
}

void sha256_text(csn_bytes b, char ret[65]) {
    static const char digit[] = "0123456789abcdef";
    struct sha256 s;
    uint8_t d[32];
    sha256_init(&s);
    sha256_add(&s, b);
    sha256_end(&s, d);
    for (int i = 0; i < 32; i++) {
        ret[2 * i] = digit[d[i] >> 4];
        ret[2 * i + 1] = digit[d[i] & 15];
    }
    ret[64] = '\0';
}

void sha256_uuid(const uint8_t d[32], char ret[37]) {
    snprintf(ret, 37, "%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", d[0],
             d[1], d[2], d[3], d[4], d[5], (d[6] & 0x0f) | 0x80, d[7], (d[8] & 0x3f) | 0x80, d[9],
             d[10], d[11], d[12], d[13], d[14], d[15]);
}
