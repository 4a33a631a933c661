/* width.h: how many columns of a terminal a text takes. The C library's wcwidth follows the locale,
 * which a daemon may not have; this one does not. */
#ifndef CSN_CLI_WIDTH_H
#define CSN_CLI_WIDTH_H

#include "base/bytes.h"

/* Decodes one character of UTF-8 at s; *ret_size is the bytes used, at least 1. -1: broken there
 * (one byte used). size > 0. */
int32_t utf8_decode(const char *s, size_t size, size_t *ret_size);

int char_width(int32_t c);         /* 0, 1 or 2 */
size_t text_width(csn_bytes text); /* a broken byte counts as 1 */
/* Bytes of the longest beginning that takes at most so many columns; never cuts a character, nor
 * leaves what belongs on it behind. */
size_t text_fit(csn_bytes text, size_t columns);

#endif
