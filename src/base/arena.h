/* arena.h: memory that is taken piece by piece and given back at once. A batch owns one. It has a
 * limit; there is no free(). Nothing here moves: a pointer stays good until reset or free. */
#ifndef CSN_BASE_ARENA_H
#define CSN_BASE_ARENA_H

#include "consign/consign.h"
#include <stdbool.h>

struct arena_block; /* internal */

struct arena {
    struct arena_block *first, *now;
    size_t used;  /* bytes handed out since the last reset */
    size_t held;  /* bytes owned */
    size_t limit; /* held never exceeds this, but for one single piece that is larger */
};

void arena_init(struct arena *a, size_t limit);
void arena_free(struct arena *a);
void arena_reset(struct arena *a); /* keeps one block */
void *arena_take(struct arena *a,
                 size_t size); /* aligned for any type; NULL: out of memory or over the limit */
csn_bytes
arena_copy(struct arena *a,
           csn_bytes b); /* {NULL, 0} with b.size > 0: out of memory; NUL-terminated as a gift */

/* For arrays that live as long as their owner: *(T **)array holds n zeroed elements of size bytes and
 * what it held is gone; false: out of memory, and all is as it was. */
bool array_renew(void *array, size_t n, size_t size);

#endif
