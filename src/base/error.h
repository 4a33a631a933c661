/* error.h: the table of errors. One row of errors.def is a code CSN-nnnn, its name, its exit code
 * for the command line, and its words in English and Chinese; `consign explain`, the reference
 * page and every csn_error.text come from it. */
#ifndef CSN_BASE_ERROR_H
#define CSN_BASE_ERROR_H

#include "base/bytes.h"

/* ERR_name = nnnn for each row of errors.def:
 * X(nnnn, name, exit, "title en", "title zh", "cause and way out en", "cause and way out zh") */
enum error_code {
    ERR_NONE = 0,
#define X(number, name, exit, title_en, title_zh, help_en, help_zh) ERR_##name = number,
#include "base/errors.def"
#undef X
};

struct error_row {
    int32_t number;
    const char *name;
    int exit_code;
    const char *title[2], *help[2]; /* by enum language */
};

const struct error_row *error_find(int32_t number); /* NULL: no such code */
const struct error_row *error_at(size_t i);         /* NULL past the end */

const char *status_name(csn_status s); /* "ok", "again", … */

/* Fills err (NULL is fine) and returns status, so that a failing path is one line. */
csn_status error_set(csn_error *err, csn_status status, int32_t code, const char *format, ...)
    PRINTF_LIKE(4, 5);
/* Puts "where: " before err->text; returns err->status. */
csn_status error_prefix(csn_error *err, const char *where);
void error_clear(csn_error *err);

#endif
