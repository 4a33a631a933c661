/* batch.c: see batch.h. An arena's limit only grows: the block that a reset keeps may be as large as
 * the limit once was. */
#include "core/batch.h"
#include <stdlib.h>

enum { OTHER_BYTES = 4 << 20 /* all but payloads */ };

/* A driver may hold a payload twice for a moment. */
static size_t limit_for(size_t bytes) {
    return bytes * 2 + OTHER_BYTES;
}

bool batch_init(struct batch *b, uint32_t rows, size_t bytes) {
    arena_init(&b->arena, limit_for(bytes));
    return batch_grow(b, rows);
}

bool batch_grow(struct batch *b, uint32_t rows) {
    if (b->cap >= rows)
        return true;
    if (!array_renew(&b->msg, rows, sizeof *b->msg))
        return false;
    b->cap = rows;
    return true;
}

void batch_reset(struct batch *b, size_t bytes) {
    arena_reset(&b->arena);
    b->n = 0;
    if (b->arena.limit < limit_for(bytes))
        b->arena.limit = limit_for(bytes);
}

void batch_free(struct batch *b) {
    free(b->msg);
    arena_free(&b->arena);
}
