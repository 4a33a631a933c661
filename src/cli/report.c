/* report.c: see report.h. */
#include "cli/report.h"
#include "base/message.h"
#include "cli/width.h"

/* The line of the file, without its end. */
static csn_bytes line_at(const struct load *l, uint32_t line) {
    const char *s = l->text, *end = l->text + l->size;
    for (uint32_t i = 1; i < line && s < end; i++) {
        const char *next = memchr(s, '\n', (size_t)(end - s));
        s = next != NULL ? next + 1 : end;
    }
    const char *stop = memchr(s, '\n', (size_t)(end - s));
    size_t n = (size_t)((stop != NULL ? stop : end) - s);
    if (n > 0 && s[n - 1] == '\r')
        n--;
    return (csn_bytes){s, n};
}

/* Bytes of the first n characters. */
static size_t chars_size(csn_bytes text, size_t n) {
    const char *s = text.data;
    size_t at = 0, size;
    for (size_t i = 0; i < n && at < text.size; i++, at += size)
        (void)utf8_decode(s + at, text.size - at, &size);
    return at;
}

/* The columns that a part of a line takes, made safe; a tab is shown as one blank. */
static const char *shown_part(csn_bytes part, char *ret, size_t size, size_t *ret_width) {
    char plain[400];
    (void)copy_bytes_text(plain, sizeof(plain), part);
    for (char *p = plain; *p != '\0'; p++)
        if (*p == '\t')
            *p = ' ';
    (void)out_safe_text(plain, ret, size);
    *ret_width = text_width(bytes_of(ret));
    return ret;
}

static void print_caret(const struct load *l, const struct mistake *m, FILE *to) {
    char before[800], marked[800], after[800];
    size_t a, b, c;
    csn_bytes line = line_at(l, m->at.line);
    const char *s = line.data;
    size_t first = chars_size(line, m->at.column - 1);
    csn_bytes rest = {s + first, line.size - first};
    size_t marks = chars_size(rest, m->at.width);
    (void)shown_part((csn_bytes){s, first}, before, sizeof(before), &a);
    (void)shown_part((csn_bytes){s + first, marks}, marked, sizeof(marked), &b);
    (void)shown_part((csn_bytes){s + first + marks, rest.size - marks}, after, sizeof(after), &c);
    (void)fprintf(to, "         %s%s%s\n         %*s^", before, marked, after, (int)a, "");
    for (size_t i = 1; i < b && i < 80; i++)
        (void)fputc('~', to);
    (void)fputc('\n', to);
}

static void place_text(const struct load *l, const struct mistake *m, struct text *t) {
    if (m->source[0] != '\0')
        text_add(t, "%s", m->source);
    else if (m->at.line == 0)
        text_add(t, "%s", l->shown);
    else
        text_add(t, "%s:%u:%u", l->shown, m->at.line, m->at.column);
}

/* What to do: the mistake's own words, for a value the key's page, else those of the code. */
static const char *way_of(const struct mistake *m, const struct error_row *row, char *ret,
                          size_t size) {
    char way[400];
    struct text t;
    const struct config_key *k = config_key_find(m->path);
    if (m->way[0] != '\0')
        return out_safe_text(m->way, ret, size);
    if (k == NULL || (m->code != ERR_CONFIG_VALUE && m->code != ERR_CONFIG_MISSING))
        return row != NULL ? row->help[message_language_now() == LANG_ZH] : "";
    text_init(&t, way, sizeof(way));
    message_add(&t, MSG_LOAD_SEE, m->path);
    return out_safe_text(way, ret, size);
}

static void print_mistake(const struct load *l, const struct mistake *m, FILE *to) {
    char text[800], way[800], place[800], safe[1600];
    int language = message_language_now() == LANG_ZH;
    const struct error_row *row = error_find(m->code);
    struct text t;
    text_init(&t, place, sizeof(place));
    place_text(l, m, &t);
    (void)fprintf(to, "%s CSN-%04d: %s: %s\n", message(MSG_OUT_ERROR), m->code,
                  row != NULL ? row->title[language] : "",
                  out_safe_text(m->text, text, sizeof(text)));
    (void)fprintf(to, "  %s %s\n", message(MSG_OUT_WHERE),
                  out_safe_text(place, safe, sizeof(safe)));
    if (m->source[0] == '\0' && m->at.line > 0)
        print_caret(l, m, to);
    (void)fprintf(to, "  %s %s      %s consign explain CSN-%04d\n", message(MSG_OUT_TRY),
                  way_of(m, row, way, sizeof(way)), message(MSG_OUT_MORE), m->code);
}

static json_t *mistake_json(const struct load *l, const struct mistake *m) {
    char code[16], place[800];
    struct text t;
    json_t *j = json_object();
    (void)snprintf(code, sizeof(code), "CSN-%04d", m->code);
    text_init(&t, place, sizeof(place));
    place_text(l, m, &t);
    out_put(j, "code", out_json_string(code));
    out_put(j, "path", out_json_string(m->path));
    out_put(j, "where", out_json_string(place));
    out_put(j, "detail", out_json_string(m->text));
    out_put(j, "try", m->way[0] != '\0' ? out_json_string(m->way) : json_null());
    return j;
}

static void report_json(const struct load *l, const struct error_row *row, struct out *o) {
    char type[64];
    json_t *errors = json_array(), *j = json_object();
    for (uint32_t i = 0; i < l->mistakes; i++)
        out_append(errors, mistake_json(l, &l->mistake[i]));
    (void)snprintf(type, sizeof(type), "urn:consign:error:CSN-%04d", l->mistake[0].code);
    out_put(j, "type", out_json_string(type));
    out_put(j, "title", out_json_string(row->title[message_language_now() == LANG_ZH]));
    out_put(j, "code", out_json_string(type + sizeof("urn:consign:error:") - 1));
    out_put(j, "detail", out_json_string(l->mistake[0].text));
    out_put(j, "exit", json_integer(row->exit_code));
    out_put(j, "errors", errors);
    (void)json_dumpf(j, o->err, JSON_COMPACT);
    (void)fputc('\n', o->err);
    json_decref(j);
}

int report_mistakes(const struct load *l, struct out *o) {
    if (l->mistakes == 0)
        return 0;
    const struct error_row *row = error_find(l->mistake[0].code);
    if (row == NULL)
        row = error_find(ERR_BUG);
    if (o->format != OUT_TABLE) {
        report_json(l, row, o);
        return row->exit_code;
    }
    for (uint32_t i = 0; i < l->mistakes; i++)
        print_mistake(l, &l->mistake[i], o->err);
    if (l->mistakes + l->more > 1)
        message_print(o->err, MSG_LOAD_COUNT, l->mistakes + l->more);
    return row->exit_code;
}
