/* out.h: everything that a command says. Data goes to `to` (stdout), talk goes to `err` (stderr);
 * the forms are the same for every command: tables aligned by the width that a terminal gives to
 * East Asian characters, one JSON document, or one JSON object a line; errors in three lines, or as
 * an RFC 9457 object on `err` when JSON was asked for.
 *
 * What always holds: text that came from a database never reaches a terminal with control
 * characters in it; ids and 64-bit numbers are strings in JSON; times are RFC 3339 in UTC. */
#ifndef CSN_CLI_OUT_H
#define CSN_CLI_OUT_H

#include "base/error.h"
#include "base/message.h"
#include <jansson.h>
#include <stdio.h>

enum out_format { OUT_TABLE, OUT_JSON, OUT_JSONL };

struct out {
    FILE *to, *err;
    enum out_format format;
    bool color;     /* `to` is a terminal and nobody said no */
    bool color_err; /* so is `err` */
    bool live;      /* `to` is a terminal on which the cursor can be moved */
    bool progress;  /* so is `err`: long work may say how far it is */
    bool quiet;     /* no hints, no talk */
    int verbose;    /* number of -v */
};

/* What a stream may be given: to_tty and err_tty say what they are, no_color and term are the
 * environment's (NULL: not set). A dumb terminal gets neither colours nor progress. */
void out_terminal(struct out *o, bool to_tty, bool err_tty, const char *no_color, const char *term);
void out_plain(struct out *o); /* --no-color */

/* Colours are for what a person should not miss; what is as it should be has none. */
enum tone { TONE_NONE, TONE_GOOD, TONE_WARN, TONE_BAD, TONE_HEAD };
const char *tone_begin(bool color, enum tone tone); /* "" without colours */
const char *tone_end(bool color, enum tone tone);
/* The tone of a stored state or of a word that an answer has for one: "failed" is bad. */
enum tone tone_of(const char *state);

/* Both are for people: printed only with OUT_TABLE. out_line adds the newline; arguments must be
 * safe (out_safe) already. */
void out_line(struct out *o, const char *format, ...) PRINTF_LIKE(2, 3);
/* A row of messages.def with its arguments, as a line for people (only with OUT_TABLE). */
void out_say(struct out *o, enum message_id id, ...);
/* Talk on err, in any format, unless quiet; adds the newline. */
void out_talk(struct out *o, const char *format, ...) PRINTF_LIKE(2, 3);
/* One line on err that the next one takes the place of, on a terminal only; out_progress_end takes
 * it away, and is called before anything else is said. */
void out_progress(struct out *o, const char *format, ...) PRINTF_LIKE(2, 3);
void out_progress_end(struct out *o);

/* Prints an error and returns the exit code that its row in errors.def names (70 for a code without
 * a row). err->text goes on the first line after the title. where: what place, file or key, or
 * NULL; way: what to do ("consign schema apply"), or NULL for the words of the table. Both are free
 * text, already in the reader's language. */
int out_error(struct out *o, const csn_error *err, const char *where, const char *way);
/* The same for a mistake that has no csn_error yet: out_fail(o, ERR_NOT_FOUND, where, way, "event
 * %s", id). */
int out_fail(struct out *o, int32_t code, const char *where, const char *way, const char *format,
             ...) PRINTF_LIKE(5, 6);

/* Copies text with control characters (C0, C1, DEL, bidi marks) and broken UTF-8 made visible as
 * \xNN; always ends with NUL; returns ret. */
const char *out_safe(csn_bytes text, char *ret, size_t size);
const char *out_safe_text(const char *text, char *ret, size_t size); /* NULL is "" */

/* "send it" → "Send it." for a page; what begins with a symbol and what ends a sentence already
 * stays. Returns ret. */
const char *out_sentence(const char *text, char *ret, size_t size);

/* "2026-11-30T13:58:02.114Z"; "-" for 0. */
const char *out_time(csn_usec at, char ret[32]);
/* "13:58:02.114" of the same. */
const char *out_clock(csn_usec at, char ret[32]);
/* "1.5 ms", "0.4 s", "7m 12s", "3d 4h". */
const char *out_duration(csn_usec d, char ret[32]);

/* ---- tables ---- */

enum { TABLE_COLUMNS_MAX = 20, TABLE_ROWS_MAX = 100000 };

struct table;

/* headings: n texts; align: n letters, l or r ("lrrl"). NULL: out of memory. Every later failure is
 * kept and said by table_print. */
struct table *table_new(int n, const char *const *headings, const char *align);
/* The next cell; n of them make a row. Made safe here. */
void table_cell(struct table *t, const char *text);
void table_cell_bytes(struct table *t, csn_bytes text);
void table_cell_int(struct table *t, int64_t n); /* 0 is shown as – */
void table_cell_format(struct table *t, const char *format, ...) PRINTF_LIKE(2, 3);
void table_tone(struct table *t, enum tone tone);          /* of the cell that came last */
void table_cell_state(struct table *t, const char *state); /* in its tone */
size_t table_rows(const struct table *t);
void table_print(const struct table *t,
                 struct out *o);  /* only with OUT_TABLE; nothing when it has no rows */
void table_free(struct table *t); /* NULL is fine */

/* ---- JSON ---- The helpers never return NULL for want of memory: they end the program with
 * CSN-9002 (a command holds nothing that could be lost by that). */

json_t *out_document(const char *kind);    /* {"v":1,"kind":kind} */
json_t *out_json_text(csn_bytes text);     /* broken UTF-8 becomes U+FFFD; {NULL, 0} is null */
json_t *out_json_string(const char *text); /* NULL is null */
json_t *out_json_int64(int64_t n);         /* "42" */
json_t *out_json_time(csn_usec at);        /* RFC 3339; null for 0 */
void out_put(json_t *object, const char *key, json_t *value); /* takes value over */
void out_append(json_t *array, json_t *value);                /* takes value over */
/* Prints a document and lets it go: one compact line. In OUT_TABLE it is only let go. */
void out_json(struct out *o, json_t *document);
/* For lists: OUT_JSON prints {"v":1,"kind":kind,"items":[…], members of extra}; OUT_JSONL prints
 * one item a line. Takes both over; extra may be NULL. An empty list is still JSON. */
void out_list(struct out *o, const char *kind, json_t *items, json_t *extra);

#endif
