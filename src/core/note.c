/* note.c: see note.h. */
#include "core/note.h"
#include <stdio.h>

void note_add(struct notes *n, enum note_level level, const char *event, const char *format, ...) {
    if (n->n == NOTES_MAX) {
        n->dropped++;
        return;
    }
    struct note *note = &n->note[(n->first + n->n++) % NOTES_MAX];
    note->event = event;
    note->level = (int)level;
    va_list args;
    va_start(args, format);
    vsnprintf(note->text, sizeof note->text, format, args);
    va_end(args);
}

const struct note *note_take(struct notes *n) {
    if (n->n == 0)
        return NULL;
    const struct note *note = &n->note[n->first];
    n->first = (n->first + 1) % NOTES_MAX;
    n->n--;
    return note;
}
