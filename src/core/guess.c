/* guess.c: optimal string alignment over three rows of the usual matrix; words are short, so
 * quadratic is nothing. */
#include "core/guess.h"

static uint32_t least(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

static size_t word_size(const char *s) {
    return strnlen(s, GUESS_WORD_MAX);
}

uint32_t guess_distance(const char *a, const char *b) {
    uint32_t rows[3][GUESS_WORD_MAX + 1];
    uint32_t *before = rows[0], *last = rows[1], *now = rows[2];
    size_t as = word_size(a), bs = word_size(b);
    for (size_t j = 0; j <= bs; j++) {
        before[j] = 0;
        last[j] = (uint32_t)j;
    }
    for (size_t i = 1; i <= as; i++) {
        now[0] = (uint32_t)i;
        for (size_t j = 1; j <= bs; j++) {
            uint32_t change = last[j - 1] + (a[i - 1] != b[j - 1]);
            now[j] = least(change, least(last[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = least(now[j], before[j - 2] + 1);
        }
        uint32_t *spare = before;
        before = last;
        last = now;
        now = spare;
    }
    return last[bs];
}

void guess_init(struct guess *g, const char *wrong) {
    *g = (struct guess){.wrong = wrong};
}

void guess_offer(struct guess *g, const char *word) {
    uint32_t distance = guess_distance(g->wrong, word);
    uint32_t enough = (uint32_t)(word_size(word) / 3);
    if (enough < 1)
        enough = 1;
    if (distance > enough || distance >= word_size(word) ||
        (g->best != NULL && distance >= g->distance))
        return;
    g->best = word;
    g->distance = distance;
}
