/* note.h: what the core wants said. A bounded ring; what does not fit is counted. The host turns
 * notes into log lines. */
#ifndef CSN_CORE_NOTE_H
#define CSN_CORE_NOTE_H

#include "base/bytes.h"

enum { NOTES_MAX = 64, NOTE_TEXT_MAX = 320 };
enum note_level { NOTE_ERROR, NOTE_WARN, NOTE_INFO, NOTE_DEBUG };

struct note {
    const char *event; /* literal, "relay.stale" */
    int level;
    char text[NOTE_TEXT_MAX];
};

struct notes {
    struct note note[NOTES_MAX];
    uint32_t first, n;
    uint64_t dropped;
};

void note_add(struct notes *n, enum note_level level, const char *event, const char *format, ...)
    PRINTF_LIKE(4, 5);
const struct note *note_take(struct notes *n); /* NULL: nothing; valid until the next note_add */

#endif
