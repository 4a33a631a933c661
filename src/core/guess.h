/* guess.h: what somebody may have meant: the nearest word by edit distance. Pure. */
#ifndef CSN_CORE_GUESS_H
#define CSN_CORE_GUESS_H

#include "base/bytes.h"

enum { GUESS_WORD_MAX = 64 };

/* Insertions, deletions, replacements and swaps of neighbours that turn a into b, by bytes; words
 * are cut at GUESS_WORD_MAX. */
uint32_t guess_distance(const char *a, const char *b);

/* The best word so far. */
struct guess {
    const char *wrong;
    const char *best; /* NULL: nothing is near enough */
    uint32_t distance;
};

void guess_init(struct guess *g, const char *wrong);
/* Takes word for the best when it is nearer than the best and near enough for its length (a third
 * of it, at least 1). word is borrowed as long as g is used. */
void guess_offer(struct guess *g, const char *word);

#endif
