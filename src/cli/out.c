/* out.c: see out.h. A table keeps its cells until it is printed, because a column is as wide as its
 * widest cell; its rows are bounded, and one that ran out of memory or rows prints what it has and
 * says so. */
#include "cli/out.h"
#include "base/message.h"
#include "cli/width.h"
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>

static int here(void) {
    return message_language_now() == LANG_ZH ? 1 : 0;
}

void out_line(struct out *o, const char *format, ...) {
    va_list args;
    if (o->format != OUT_TABLE)
        return;
    va_start(args, format);
    (void)vfprintf(o->to, format, args);
    va_end(args);
    (void)fputc('\n', o->to);
}

/* The formats of the table are checked against each other by a unit test, their arguments are not
 * seen by the compiler. */
void out_say(struct out *o, enum message_id id, ...) {
    va_list args;
    if (o->format != OUT_TABLE)
        return;
    va_start(args, id);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    (void)vfprintf(o->to, message(id), args);
#pragma GCC diagnostic pop
    va_end(args);
    (void)fputc('\n', o->to);
}

void out_talk(struct out *o, const char *format, ...) {
    va_list args;
    if (o->quiet)
        return;
    va_start(args, format);
    (void)vfprintf(o->err, format, args);
    va_end(args);
    (void)fputc('\n', o->err);
}

void out_progress(struct out *o, const char *format, ...) {
    enum { PROGRESS_WIDTH = 79 };
    char line[240];
    va_list args;
    if (!o->progress || o->quiet)
        return;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    (void)fprintf(o->err, "\r\033[K%.*s", (int)text_fit(bytes_of(line), PROGRESS_WIDTH), line);
    (void)fflush(o->err);
}

void out_progress_end(struct out *o) {
    if (!o->progress || o->quiet)
        return;
    (void)fputs("\r\033[K", o->err);
    (void)fflush(o->err);
}

/* ---- terminals and colours ---- */

void out_terminal(struct out *o, bool to_tty, bool err_tty, const char *no_color,
                  const char *term) {
    bool able = term != NULL && term[0] != '\0' && strcmp(term, "dumb") != 0;
    bool wanted = no_color == NULL || no_color[0] == '\0';
    o->live = to_tty && able;
    o->progress = err_tty && able;
    o->color = o->live && wanted;
    o->color_err = o->progress && wanted;
}

void out_plain(struct out *o) {
    o->color = false;
    o->color_err = false;
}

const char *tone_begin(bool color, enum tone tone) {
    static const char *const code[] = {[TONE_NONE] = "",
                                       [TONE_GOOD] = "\033[32m",
                                       [TONE_WARN] = "\033[33m",
                                       [TONE_BAD] = "\033[31m",
                                       [TONE_HEAD] = "\033[1m"};
    return color ? code[tone] : "";
}

const char *tone_end(bool color, enum tone tone) {
    return color && tone != TONE_NONE ? "\033[0m" : "";
}

enum tone tone_of(const char *state) {
    static const char *const bad[] = {"failed",       "dead",         "conflict", "strange",
                                      "not_readable", "dead_letters", "poison",   "not_consumed"};
    static const char *const warn[] = {"unknown",   "held",         "gone",   "lease_over",
                                       "cancelled", "not_compared", "behind", "newer"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        if (strcmp(bad[i], state) == 0)
            return TONE_BAD;
    for (size_t i = 0; i < ARRAY_LEN(warn); i++)
        if (strcmp(warn[i], state) == 0)
            return TONE_WARN;
    return TONE_NONE;
}

/* ---- errors ---- */

/* RFC 9457, on err. */
static void error_json(struct out *o, const struct error_row *row, const csn_error *err,
                       const char *where, const char *way) {
    char code[32], type[48];
    struct text t;
    json_t *j = json_object();
    text_init(&t, code, sizeof(code));
    text_add(&t, "CSN-%04d", err->code);
    text_init(&t, type, sizeof(type));
    text_add(&t, "urn:consign:error:%s", code);
    out_put(j, "type", out_json_string(type));
    out_put(j, "title", out_json_string(row->title[here()]));
    out_put(j, "detail", out_json_text(bytes_of(err->text)));
    out_put(j, "code", out_json_string(code));
    out_put(j, "status", out_json_string(status_name(err->status)));
    out_put(j, "exit", json_integer(row->exit_code));
    if (where != NULL)
        out_put(j, "where", out_json_text(bytes_of(where)));
    out_put(j, "try", out_json_text(bytes_of(way != NULL ? way : row->help[here()])));
    (void)json_dumpf(j, o->err, JSON_COMPACT);
    (void)fputc('\n', o->err);
    json_decref(j);
}

int out_error(struct out *o, const csn_error *err, const char *where, const char *way) {
    char text[1024], place[1024];
    const struct error_row *row = error_find(err->code);
    csn_error known = *err;
    if (row == NULL) {
        known.code = ERR_BUG;
        row = error_find(ERR_BUG);
    }
    if (o->format != OUT_TABLE) {
        error_json(o, row, &known, where, way);
        return row->exit_code;
    }
    (void)out_safe_text(known.text, text, sizeof(text));
    (void)fprintf(o->err, "%s%s CSN-%04d%s: %s%s%s\n", tone_begin(o->color_err, TONE_BAD),
                  message(MSG_OUT_ERROR), known.code, tone_end(o->color_err, TONE_BAD),
                  row->title[here()], text[0] != '\0' ? ": " : "", text);
    if (where != NULL && where[0] != '\0')
        (void)fprintf(o->err, "  %s %s\n", message(MSG_OUT_WHERE),
                      out_safe_text(where, place, sizeof(place)));
    (void)fprintf(o->err, "  %s %s      %s consign explain CSN-%04d\n", message(MSG_OUT_TRY),
                  way != NULL ? out_safe_text(way, place, sizeof(place)) : row->help[here()],
                  message(MSG_OUT_MORE), known.code);
    return row->exit_code;
}

int out_fail(struct out *o, int32_t code, const char *where, const char *way, const char *format,
             ...) {
    csn_error err = {.status = CSN_INVALID, .code = code};
    va_list args;
    va_start(args, format);
    (void)vsnprintf(err.text, sizeof(err.text), format, args);
    va_end(args);
    return out_error(o, &err, where, way);
}

/* ---- safe text ---- */

/* Characters that move the cursor, change colours or turn the direction of what follows. */
static bool harmful(int32_t c) {
    return c < 0x20 || (c >= 0x7f && c <= 0x9f) || c == 0x061c || (c >= 0x200e && c <= 0x200f) ||
           (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069) || c == 0xfeff;
}

const char *out_safe(csn_bytes text, char *ret, size_t size) {
    const char *s = text.data;
    size_t n, used = 0;
    for (size_t i = 0; i < text.size; i += n) {
        int32_t c = utf8_decode(s + i, text.size - i, &n);
        bool bad = harmful(c);
        if (used + (bad ? 4 * n : n) + 1 > size)
            break;
        if (!bad)
            memcpy(ret + used, s + i, n);
        for (size_t k = 0; bad && k < n; k++)
            (void)snprintf(ret + used + 4 * k, 5, "\\x%02x", (unsigned char)s[i + k]);
        used += bad ? 4 * n : n;
    }
    ret[used] = '\0';
    return ret;
}

const char *out_safe_text(const char *text, char *ret, size_t size) {
    return out_safe(bytes_of(text), ret, size);
}

const char *out_sentence(const char *text, char *ret, size_t size) {
    struct text t;
    text_init(&t, ret, size);
    text_add(&t, "%s", text);
    char last = t.used > 0 ? ret[t.used - 1] : '.';
    if (last != '.' && last != '?' && last != '!')
        text_add(&t, "%s", here() ? "。" : ".");
    if (ret[0] >= 'a' && ret[0] <= 'z')
        ret[0] = (char)(ret[0] - 'a' + 'A');
    return ret;
}

/* ---- times ---- */

static const char *time_text(csn_usec at, bool date, char ret[32]) {
    char head[24];
    size_t size = sizeof(head);
    struct tm tm;
    struct text t;
    int64_t second = at / 1000000, rest = at % 1000000;
    if (rest < 0) {
        second--;
        rest += 1000000;
    }
    time_t when = (time_t)second;
    text_init(&t, ret, 32);
    if (at == 0 || gmtime_r(&when, &tm) == NULL ||
        (date ? strftime(head, size, "%Y-%m-%dT%H:%M:%S", &tm)
              : strftime(head, size, "%H:%M:%S", &tm)) == 0)
        text_add(&t, "-");
    else
        text_add(&t, "%s.%03lld", head, (long long)(rest / 1000));
    return ret;
}

const char *out_time(csn_usec at, char ret[32]) {
    (void)time_text(at, true, ret);
    size_t n = strlen(ret);
    if (n > 1 && n + 1 < 32) {
        ret[n] = 'Z';
        ret[n + 1] = '\0';
    }
    return ret;
}

const char *out_clock(csn_usec at, char ret[32]) {
    return time_text(at, false, ret);
}

const char *out_duration(csn_usec d, char ret[32]) {
    struct text t;
    const char *sign = d < 0 ? "-" : "";
    int64_t n = d == INT64_MIN ? INT64_MAX : d < 0 ? -d : d;
    int64_t s = n / 1000000;
    text_init(&t, ret, 32);
    if (n < 100000)
        text_add(&t, "%s%lld.%lld ms", sign, (long long)(n / 1000), (long long)(n % 1000 / 100));
    else if (s < 60)
        text_add(&t, "%s%lld.%lld s", sign, (long long)s, (long long)(n % 1000000 / 100000));
    else if (s < 3600)
        text_add(&t, "%s%lldm %llds", sign, (long long)(s / 60), (long long)(s % 60));
    else if (s < 86400)
        text_add(&t, "%s%lldh %lldm", sign, (long long)(s / 3600), (long long)(s % 3600 / 60));
    else
        text_add(&t, "%s%lldd %lldh", sign, (long long)(s / 86400), (long long)(s % 86400 / 3600));
    return ret;
}

/* ---- tables ---- */

enum { CELL_MAX = 4096 };

struct table {
    int columns;
    size_t width[TABLE_COLUMNS_MAX];
    char align[TABLE_COLUMNS_MAX];
    const char *heading[TABLE_COLUMNS_MAX];
    char **cell;
    uint8_t *tone; /* of each cell */
    size_t cells, room;
    bool cut; /* out of memory or rows */
};

struct table *table_new(int n, const char *const *headings, const char *align) {
    struct table *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return NULL;
    t->columns = n < TABLE_COLUMNS_MAX ? n : TABLE_COLUMNS_MAX;
    for (int i = 0; i < t->columns; i++) {
        t->heading[i] = headings[i];
        t->align[i] = align[i];
        t->width[i] = text_width(bytes_of(headings[i]));
    }
    return t;
}

static bool table_grow(struct table *t) {
    size_t room = t->room == 0 ? 64 : t->room * 2;
    if (t->cells < t->room)
        return true;
    if (t->cells / (size_t)t->columns >= TABLE_ROWS_MAX)
        return false;
    char **cell = realloc(t->cell, room * sizeof(*cell));
    t->cell = cell != NULL ? cell : t->cell;
    uint8_t *tone = realloc(t->tone, room * sizeof(*tone));
    t->tone = tone != NULL ? tone : t->tone;
    if (cell == NULL || tone == NULL)
        return false;
    t->room = room;
    return true;
}

void table_cell_bytes(struct table *t, csn_bytes text) {
    char safe[CELL_MAX];
    char *copy = !t->cut && table_grow(t) ? strdup(out_safe(text, safe, sizeof(safe))) : NULL;
    if (copy == NULL) {
        t->cut = true;
        return;
    }
    size_t column = t->cells % (size_t)t->columns, width = text_width(bytes_of(copy));
    if (width > t->width[column])
        t->width[column] = width;
    t->tone[t->cells] = TONE_NONE;
    t->cell[t->cells++] = copy;
}

void table_tone(struct table *t, enum tone tone) {
    if (!t->cut && t->cells > 0)
        t->tone[t->cells - 1] = (uint8_t)tone;
}

void table_cell_state(struct table *t, const char *state) {
    table_cell(t, state);
    table_tone(t, tone_of(state));
}

void table_cell(struct table *t, const char *text) {
    table_cell_bytes(t, bytes_of(text));
}

void table_cell_int(struct table *t, int64_t n) {
    if (n == 0)
        table_cell(t, "–");
    else
        table_cell_format(t, "%lld", (long long)n);
}

void table_cell_format(struct table *t, const char *format, ...) {
    char line[CELL_MAX];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    table_cell(t, line);
}

size_t table_rows(const struct table *t) {
    return t->cells / (size_t)t->columns;
}

static void spaces(FILE *to, size_t n) {
    for (size_t i = 0; i < n; i++)
        (void)fputc(' ', to);
}

/* One cell, padded; the last column is not padded on its right, so that lines do not end in blanks.
 */
static void print_cell(const struct table *t, int column, const char *text, enum tone tone,
                       const struct out *o) {
    size_t width = text_width(bytes_of(text));
    size_t pad = width < t->width[column] ? t->width[column] - width : 0;
    if (column > 0)
        spaces(o->to, 2);
    if (t->align[column] == 'r')
        spaces(o->to, pad);
    (void)fprintf(o->to, "%s%s%s", tone_begin(o->color, tone), text, tone_end(o->color, tone));
    if (t->align[column] != 'r' && column + 1 < t->columns)
        spaces(o->to, pad);
}

void table_print(const struct table *t, struct out *o) {
    size_t rows = table_rows(t), n = (size_t)t->columns;
    if (o->format != OUT_TABLE || rows == 0)
        return;
    for (int c = 0; c < t->columns; c++)
        print_cell(t, c, t->heading[c], TONE_HEAD, o);
    (void)fputc('\n', o->to);
    for (size_t r = 0; r < rows; r++) {
        for (int c = 0; c < t->columns; c++)
            print_cell(t, c, t->cell[r * n + (size_t)c], (enum tone)t->tone[r * n + (size_t)c], o);
        (void)fputc('\n', o->to);
    }
    if (t->cut)
        (void)fprintf(o->to, "%s\n", message(MSG_OUT_CUT));
}

void table_free(struct table *t) {
    if (t == NULL)
        return;
    for (size_t i = 0; i < t->cells; i++)
        free(t->cell[i]);
    free(t->cell);
    free(t->tone);
    free(t);
}

/* ---- JSON ---- */

static json_t *there(json_t *j) {
    if (j != NULL)
        return j;
    (void)fputs("error CSN-9002: out of memory\n", stderr);
    exit(70);
}

json_t *out_document(const char *kind) {
    json_t *j = there(json_object());
    out_put(j, "v", json_integer(1));
    out_put(j, "kind", json_string(kind));
    return j;
}

/* Broken bytes become U+FFFD, which takes three. */
static json_t *mended(csn_bytes text) {
    const char *s = text.data;
    size_t n, used = 0;
    char *copy = malloc(text.size * 3 + 1);
    if (copy == NULL)
        return there(NULL);
    for (size_t i = 0; i < text.size; i += n) {
        bool bad = utf8_decode(s + i, text.size - i, &n) < 0;
        memcpy(copy + used, bad ? "\xef\xbf\xbd" : s + i, bad ? 3 : n);
        used += bad ? 3 : n;
    }
    json_t *j = json_stringn(copy, used);
    free(copy);
    return there(j);
}

json_t *out_json_text(csn_bytes text) {
    if (text.data == NULL)
        return there(json_null());
    json_t *j = json_stringn(text.data, text.size);
    return j != NULL ? j : mended(text);
}

json_t *out_json_string(const char *text) {
    return text == NULL ? there(json_null()) : out_json_text((csn_bytes){text, strlen(text)});
}

json_t *out_json_int64(int64_t n) {
    char digits[24];
    (void)snprintf(digits, sizeof(digits), "%lld", (long long)n);
    return there(json_string(digits));
}

json_t *out_json_time(csn_usec at) {
    char text[32];
    return at == 0 ? there(json_null()) : there(json_string(out_time(at, text)));
}

void out_put(json_t *object, const char *key, json_t *value) {
    if (json_object_set_new(object, key, there(value)) != 0)
        (void)there(NULL);
}

void out_append(json_t *array, json_t *value) {
    if (json_array_append_new(array, there(value)) != 0)
        (void)there(NULL);
}

void out_json(struct out *o, json_t *document) {
    if (o->format != OUT_TABLE) {
        (void)json_dumpf(document, o->to, JSON_COMPACT);
        (void)fputc('\n', o->to);
    }
    json_decref(document);
}

void out_list(struct out *o, const char *kind, json_t *items, json_t *extra) {
    size_t i;
    json_t *item;
    if (o->format == OUT_JSON) {
        json_t *document = out_document(kind);
        out_put(document, "items", json_incref(items));
        if (extra != NULL && json_object_update(document, extra) != 0)
            (void)there(NULL);
        out_json(o, document);
    } else if (o->format == OUT_JSONL) {
        json_array_foreach(items, i, item) {
            (void)json_dumpf(item, o->to, JSON_COMPACT);
            (void)fputc('\n', o->to);
        }
    }
    json_decref(items);
    json_decref(extra);
}
