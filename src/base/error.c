/* error.c: the table of errors, from errors.def, and the three ways to fill a csn_error. */
#include "base/error.h"
#include <stdio.h>

static const struct error_row row[] = {
#define X(number, name, exit, title_en, title_zh, help_en, help_zh)                                \
    {number, #name, exit, {title_en, title_zh}, {help_en, help_zh}},
#include "base/errors.def"
#undef X
};

const struct error_row *error_find(int32_t number) {
    for (size_t i = 0; i < ARRAY_LEN(row); i++) {
        if (row[i].number == number) {
            return &row[i];
        }
    }
    return NULL;
}

const struct error_row *error_at(size_t i) {
    return i < ARRAY_LEN(row) ? &row[i] : NULL;
}

const char *status_name(csn_status s) {
    static const char *const name[] = {"ok",       "again",   "unknown",       "stale",
                                       "rejected", "invalid", "out of memory", "fatal"};
    return s >= 0 && (size_t)s < ARRAY_LEN(name) ? name[s] : "?";
}

csn_status error_set(csn_error *err, csn_status status, int32_t code, const char *format, ...) {
    if (!err) {
        return status;
    }
    char said[sizeof err->text]; /* an argument may be the old text itself */
    struct text t;
    text_init(&t, said, sizeof said);
    va_list args;
    va_start(args, format);
    text_add_list(&t, format, args);
    va_end(args);
    *err = (csn_error){.status = status, .code = code};
    copy_text(err->text, sizeof err->text, said);
    return status;
}

csn_status error_prefix(csn_error *err, const char *where) {
    if (!err) {
        return CSN_FATAL; /* nobody can tell any more what it was */
    }
    char said[sizeof err->text];
    copy_text(said, sizeof said, err->text);
    struct text t;
    text_init(&t, err->text, sizeof err->text);
    text_add(&t, "%s: ", where);
    text_add_bytes(&t, bytes_of(said));
    return err->status;
}

void error_clear(csn_error *err) {
    if (err) {
        *err = (csn_error){.status = CSN_OK};
    }
}
