/* bytes.h: borrowed bytes, and text that is built into a buffer with a bound. */
#ifndef CSN_BASE_BYTES_H
#define CSN_BASE_BYTES_H

#include "consign/consign.h"
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>

#define PRINTF_LIKE(f, a) __attribute__((format(printf, f, a)))
#define MUST_USE          __attribute__((warn_unused_result))
#define ARRAY_LEN(a)      (sizeof(a) / sizeof((a)[0]))

csn_bytes bytes_of(const char *s); /* NULL is empty */
bool bytes_equal(csn_bytes a, csn_bytes b);
int bytes_compare(csn_bytes a, csn_bytes b); /* as unsigned bytes, the shorter first */
bool bytes_is(csn_bytes a, const char *s);
uint64_t
bytes_hash(csn_bytes a,
           uint64_t seed); /* FNV-1a 64 with a final mix; stable for ever: partitions hang on it */

/* Copies at most size - 1 bytes and ends with NUL; never cuts a UTF-8 sequence. Returns false when
 * it did not fit. */
bool copy_text(char *to, size_t size, const char *from);
bool copy_bytes_text(char *to, size_t size, csn_bytes from);

/* "OrderCreated,Stock*": true when one comma-separated glob (* and ? only) matches the whole of
 * text. "*" matches all. */
bool glob_list_matches(const char *globs, csn_bytes text);

/* A bounded text under construction. Past its end it stays cut and NUL-terminated, and full is set.
 */
struct text {
    char *data;
    size_t size, used;
    bool full;
};
void text_init(struct text *t, char *buffer, size_t size);
void text_add(struct text *t, const char *format, ...) PRINTF_LIKE(2, 3);
void text_add_list(struct text *t, const char *format, va_list args) PRINTF_LIKE(2, 0);
void text_add_bytes(struct text *t, csn_bytes b);

#endif
