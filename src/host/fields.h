/* fields.h: takes a note of the core, "store=orders rows=3 error=\"disk is full\"", apart into the
 * fields of a log line. */
#ifndef CSN_HOST_FIELDS_H
#define CSN_HOST_FIELDS_H

#include "base/log.h"

enum { FIELDS_MAX = 16 };

struct fields {
    struct log_field field[FIELDS_MAX + 1]; /* ended by LOG_END */
    char keys[256];                         /* NUL-terminated copies that field[].key points to */
};

/* Values point into text. What is not key=value goes into the last field, "text". */
void fields_of(const char *text, struct fields *ret);

#endif
