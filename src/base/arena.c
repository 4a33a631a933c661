/* arena.c: a list of blocks, each twice the size of the one before. Pieces are cut from the newest
 * block and are never given back one by one. A piece that alone is larger than the limit gets a
 * block of its own, one at a time: a claim takes at least one row however large it is. Under
 * AddressSanitizer what was reset is poisoned, so that a stale pointer into a batch is found. */
#include "base/arena.h"
#include <stdalign.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define POISON(p, n)   ASAN_POISON_MEMORY_REGION((p), (n))
#define UNPOISON(p, n) ASAN_UNPOISON_MEMORY_REGION((p), (n))
#else
#define POISON(p, n)   ((void)(p), (void)(n))
#define UNPOISON(p, n) ((void)(p), (void)(n))
#endif

enum { BLOCK_MIN = 4096, BLOCK_MAX = 256 * 1024, ALIGN = alignof(max_align_t) };

struct arena_block {
    struct arena_block *next;
    size_t size, used;
    bool large; /* the one piece beyond the limit */
    alignas(max_align_t) unsigned char data[];
};

void arena_init(struct arena *a, size_t limit) {
    *a = (struct arena){.limit = limit};
}

static void free_blocks(struct arena_block *b) {
    while (b) {
        struct arena_block *next = b->next;
        UNPOISON(b->data, b->size);
        free(b);
        b = next;
    }
}

void arena_free(struct arena *a) {
    free_blocks(a->first);
    arena_init(a, a->limit);
}

/* Keeps the largest ordinary block: the next batch is probably like this one. */
void arena_reset(struct arena *a) {
    struct arena_block *keep = NULL, *rest = NULL;
    for (struct arena_block *b = a->first, *next; b; b = next) {
        next = b->next;
        struct arena_block *drop = b;
        if (!b->large && (!keep || b->size > keep->size)) {
            drop = keep;
            keep = b;
        }
        if (drop) {
            drop->next = rest;
            rest = drop;
        }
    }
    free_blocks(rest);
    a->first = a->now = keep;
    a->used = 0;
    a->held = keep ? keep->size : 0;
    if (keep) {
        keep->next = NULL;
        keep->used = 0;
        POISON(keep->data, keep->size);
    }
}

/* Bytes of ordinary blocks; *ret_large tells whether the large piece is there already. */
static size_t ordinary(const struct arena *a, bool *ret_large) {
    size_t held = 0;
    *ret_large = false;
    for (const struct arena_block *b = a->first; b; b = b->next) {
        *ret_large |= b->large;
        held += b->large ? 0 : b->size;
    }
    return held;
}

/* How large the next block becomes; 0: the limit forbids it. */
static size_t next_size(const struct arena *a, size_t need, bool *ret_large) {
    bool have_large;
    size_t held = ordinary(a, &have_large);
    *ret_large = need > a->limit;
    if (*ret_large) {
        return have_large ? 0 : need;
    }
    size_t left = a->limit - held;
    if (need > left) {
        return 0;
    }
    size_t size = held < BLOCK_MIN ? BLOCK_MIN : held;
    size = size > BLOCK_MAX ? BLOCK_MAX : size;
    size = size > left ? left & ~(size_t)(ALIGN - 1) : size;
    return size < need ? need : size;
}

static struct arena_block *add_block(struct arena *a, size_t need) {
    bool large;
    size_t size = next_size(a, need, &large);
    if (size == 0 || size > SIZE_MAX - sizeof(struct arena_block)) {
        return NULL;
    }
    struct arena_block *b = malloc(sizeof *b + size);
    if (!b) {
        return NULL;
    }
    b->next = a->first;
    b->size = size;
    b->used = 0;
    b->large = large;
    POISON(b->data, size);
    a->first = b;
    a->held += size;
    if (!large) {
        a->now = b; /* small pieces go on in the newest ordinary block */
    }
    return b;
}

void *arena_take(struct arena *a, size_t size) {
    if (size > SIZE_MAX / 2) {
        return NULL;
    }
    size_t need = (size + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    need = need == 0 ? ALIGN : need;
    struct arena_block *b = a->now;
    if (!b || b->size - b->used < need) {
        b = add_block(a, need);
    }
    if (!b) {
        return NULL;
    }
    void *p = b->data + b->used;
    b->used += need;
    a->used += need;
    UNPOISON(p, size);
    return p;
}

csn_bytes arena_copy(struct arena *a, csn_bytes b) {
    if (b.size == 0) {
        return (csn_bytes){"", 0};
    }
    char *p = b.size < SIZE_MAX ? arena_take(a, b.size + 1) : NULL;
    if (!p) {
        return (csn_bytes){NULL, 0};
    }
    memcpy(p, b.data, b.size);
    p[b.size] = '\0';
    return (csn_bytes){p, b.size};
}

bool array_renew(void *array, size_t n, size_t size) {
    void *fresh = calloc(n, size), *old;
    if (!fresh) {
        return false;
    }
    memcpy(&old, array, sizeof old);
    memcpy(array, &fresh, sizeof fresh);
    free(old);
    return true;
}
