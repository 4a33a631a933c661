/* digest.h: SHA-256, for identity digests, derived ids and the audit chain. */
#ifndef CSN_BASE_DIGEST_H
#define CSN_BASE_DIGEST_H

#include "consign/consign.h"

struct sha256 {
    uint32_t h[8];
    uint64_t length;
    uint8_t block[64];
};

void sha256_init(struct sha256 *s);
void sha256_add(struct sha256 *s, csn_bytes b);
void sha256_end(struct sha256 *s, uint8_t ret[32]);
void sha256_text(csn_bytes b, char ret[65]); /* lower-case hexadecimal */
void sha256_uuid(const uint8_t digest[32],
                 char ret[37]); /* the first 16 bytes as a UUID of version 8 */

#endif
