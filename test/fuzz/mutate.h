/* mutate.h: a corpus from a folder, and small cruelties to its files. Everything follows from the
 * seed. */
#ifndef CSN_TEST_MUTATE_H
#define CSN_TEST_MUTATE_H

#include "base/bytes.h"
#include "base/prng.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

enum { CORPUS_MAX = 64, CORPUS_FILE_MAX = 16384, MUTANT_MAX = 32768 };

struct corpus {
    char name[CORPUS_MAX][64];
    char *data[CORPUS_MAX];
    size_t size[CORPUS_MAX];
    uint32_t n;
};

static inline void corpus_add(struct corpus *c, const char *folder, const char *name) {
    char path[512];
    int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = length < (int)sizeof path ? fopen(path, "rb") : NULL;
    char *data = malloc(CORPUS_FILE_MAX);
    if (!f || !data || c->n == CORPUS_MAX) {
        fprintf(stderr, "corpus: %s\n", path);
        exit(2);
    }
    copy_text(c->name[c->n], sizeof c->name[0], name);
    c->size[c->n] = fread(data, 1, CORPUS_FILE_MAX, f);
    c->data[c->n++] = data;
    fclose(f);
}

static inline int corpus_compare(const void *a, const void *b) {
    return strcmp(a, b);
}

/* In order of the names, so that the order of the folder does not matter. */
static inline void corpus_load(struct corpus *c, const char *folder) {
    char names[CORPUS_MAX][64];
    uint32_t n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && n < CORPUS_MAX && (e = readdir(d));)
        if (e->d_name[0] != '.')
            copy_text(names[n++], sizeof names[0], e->d_name);
    if (d)
        closedir(d);
    qsort(names, n, sizeof names[0], corpus_compare);
    c->n = 0;
    for (uint32_t i = 0; i < n; i++)
        corpus_add(c, folder, names[i]);
}

static inline void corpus_free(struct corpus *c) {
    for (uint32_t i = 0; i < c->n; i++)
        free(c->data[i]);
    c->n = 0;
}

static inline size_t mutate_at(struct prng *p, size_t size) {
    return size ? prng_below(p, size) : 0;
}

/* Replaces `cut` bytes at a place by others, as far as there is room. */
static inline void mutate_splice(char *data, size_t *size, size_t at, size_t cut, csn_bytes by) {
    if (cut > *size - at)
        cut = *size - at;
    if (*size - cut + by.size > MUTANT_MAX)
        return;
    memmove(data + at + by.size, data + at + cut, *size - at - cut);
    if (by.size)
        memcpy(data + at, by.data, by.size);
    *size = *size - cut + by.size;
}

/* One to eight changes: a byte, a cut, a piece of another file, a word that means something, a
 * doubled piece. */
static inline void mutate(struct prng *p, const struct corpus *c, const char *const *words,
                          size_t words_n, char *data, size_t *size) {
    char piece[256];
    for (uint64_t n = 1 + prng_below(p, 1 + prng_below(p, 8)); n > 0; n--) {
        size_t at = mutate_at(p, *size + 1);
        uint32_t other = (uint32_t)prng_below(p, c->n);
        size_t from = mutate_at(p, c->size[other]), length = mutate_at(p, sizeof piece);
        switch (prng_below(p, 6)) {
        case 0:
            if (at < *size)
                data[at] = (char)prng_below(p, 256);
            break;
        case 1:
            mutate_splice(data, size, at, mutate_at(p, 40), (csn_bytes){NULL, 0});
            break;
        case 2:
            if (length > c->size[other] - from)
                length = c->size[other] - from;
            mutate_splice(data, size, at, 0, (csn_bytes){c->data[other] + from, length});
            break;
        case 3:
            if (length > *size - at)
                length = *size - at;
            memcpy(piece, data + at, length);
            mutate_splice(data, size, mutate_at(p, *size + 1), 0, (csn_bytes){piece, length});
            break;
        case 4:
            *size = at; /* cut off */
            break;
        default:
            mutate_splice(data, size, at, mutate_at(p, 3), bytes_of(words[prng_below(p, words_n)]));
        }
    }
}

#endif
