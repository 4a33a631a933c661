/* message.c: the table, and the two ways to fill in a row. */
#include "base/message.h"
#include <stdatomic.h>

static const char *const table[MSG_NR][LANG_NR] = {
#define X(name, en, zh) {en, zh},
#include "base/messages.def"
#undef X
};

static _Atomic int language = LANG_EN;

void message_language(enum language l) {
    atomic_store(&language, (int)l);
}

enum language message_language_now(void) {
    return (enum language)atomic_load(&language);
}

/* The part before '-', '_', '.' or '@' is the language; C and POSIX are English. */
bool language_find(const char *name, enum language *ret) {
    static const struct {
        const char *name;
        enum language language;
    } known[] = {{"en", LANG_EN}, {"C", LANG_EN}, {"POSIX", LANG_EN}, {"zh", LANG_ZH}};
    csn_bytes part = {name, name ? strcspn(name, "-_.@") : 0};
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (bytes_is(part, known[i].name)) {
            *ret = known[i].language;
            return true;
        }
    }
    return false;
}

const char *message_in(enum message_id id, enum language l) {
    return (unsigned)id < MSG_NR && (unsigned)l < LANG_NR ? table[id][l] : "";
}

const char *message(enum message_id id) {
    return message_in(id, message_language_now());
}

/* The formats are rows of the table; that both languages take the same arguments is checked by a
 * test. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"

void message_add(struct text *t, enum message_id id, ...) {
    va_list args;
    va_start(args, id);
    text_add_list(t, message(id), args);
    va_end(args);
}

void message_print(FILE *to, enum message_id id, ...) {
    char line[4096];
    struct text t;
    text_init(&t, line, sizeof line);
    va_list args;
    va_start(args, id);
    text_add_list(&t, message(id), args);
    va_end(args);
    fprintf(to, "%s\n", line);
}

#pragma GCC diagnostic pop
