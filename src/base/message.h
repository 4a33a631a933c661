/* message.h: every text for people but those of errors, in English and Simplified Chinese, from one
 * table, messages.def. A row is a printf format; both languages of a row have the same conversions
 * in the same order, which a unit test checks. The language is the process's and is set once,
 * before threads start. */
#ifndef CSN_BASE_MESSAGE_H
#define CSN_BASE_MESSAGE_H

#include "base/bytes.h"
#include <stdio.h>

enum language { LANG_EN, LANG_ZH, LANG_NR };

/* MSG_name for each row of messages.def: X(name, "English", "中文") */
enum message_id {
#define X(name, en, zh) MSG_##name,
#include "base/messages.def"
#undef X
    MSG_NR
};

void message_language(enum language l);
enum language message_language_now(void);
/* "en", "zh", "zh-CN", "zh_CN.UTF-8", "C", …; false: a language that consign does not speak, *ret
 * is untouched. */
bool language_find(const char *name, enum language *ret);

const char *message(enum message_id id); /* in the language that is set */
const char *message_in(enum message_id id, enum language l);
void message_add(struct text *t, enum message_id id,
                 ...);                                 /* arguments as the row's conversions say */
void message_print(FILE *to, enum message_id id, ...); /* the same, one line of at most 4 KB */

#endif
