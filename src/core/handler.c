/* handler.c: reads a handler file into steps.
 *
 * One pass over the file makes steps, labels and jumps; a second resolves the jumps and walks the
 * paths. Mistakes do not stop the reading: each is kept with its offset in the file, and at the end
 * all of them are sorted and shown, three lines each:
 *
 *     reserve.sql:3:28: no label is named rejct; did you mean reject?
 *       -- expect rows 1 else goto rejct
 *                                  ^
 *
 * Statements are cut by a small lexer that knows strings, quoted names and remarks, and nothing
 * else of SQL: what a statement means is the store's to judge. Paths are judged only when the steps
 * could be told apart, so that one missing semicolon is one mistake. */
#include "core/handler.h"
#include "base/message.h"
#include "core/guess.h"
#include "core/template.h"

enum {
    MISTAKES_MAX = 50,
    NAME_LIMIT = 63,
    TYPE_LIMIT = 80,
    PATH_LIMIT = 200,
    WORD_SIZE = 64,
    BRACKET_MAX = 128,
    ROWS_MAX = 1000000
};

struct mistake {
    size_t at;
    char text[160];
};

struct label {
    const char *name;
    size_t at;
    uint32_t step; /* the step after it */
};

struct jump {
    const char *label;
    size_t at;
    uint32_t step;
};

struct parse {
    csn_bytes file;
    size_t at; /* next byte to read */
    struct sql_handler *h;
    size_t step_at[HANDLER_STEPS_MAX];
    struct label label[HANDLER_STEPS_MAX];
    struct jump jump[HANDLER_STEPS_MAX];
    uint32_t labels, jumps;
    struct bind bind[HANDLER_BINDS_MAX]; /* of the text being read; offsets in the file */
    uint32_t binds;
    struct mistake mistake[MISTAKES_MAX];
    uint32_t mistakes, unshown;
    char lost[160]; /* where the text of a mistake goes that is not kept */
    struct text say;
    bool headed;    /* the handler line was seen, or missed once */
    bool after_sql; /* expect may stand here */
    bool torn;      /* steps could not be told apart: paths are not judged */
    bool astray;    /* a jump has no goal: unreached lines are not judged */
    bool no_memory;
};

/* ---- verdicts ---- */

static const char *const verdicts[] = {"done",     "refused", "duplicate", "late",   "early",
                                       "conflict", "poison",  "retry",     "unknown"};

const char *verdict_name(csn_verdict v) {
    return v >= 0 && (size_t)v < ARRAY_LEN(verdicts) ? verdicts[v] : "?";
}

csn_verdict verdict_find(const char *name) {
    for (size_t i = 0; name && i < ARRAY_LEN(verdicts); i++)
        if (strcmp(verdicts[i], name) == 0)
            return (csn_verdict)i;
    return -1;
}

/* ---- mistakes ---- */

/* Keeps a mistake at this offset; what it is goes into the text that comes back. */
static struct text *mistake(struct parse *p, size_t at) {
    if (p->mistakes == MISTAKES_MAX) {
        p->unshown++;
        text_init(&p->say, p->lost, sizeof p->lost);
        return &p->say;
    }
    struct mistake *m = &p->mistake[p->mistakes++];
    m->at = at;
    text_init(&p->say, m->text, sizeof m->text);
    return &p->say;
}

static void meant(struct parse *p, const char *best) {
    if (best)
        message_add(&p->say, MSG_HANDLER_MEANT, best);
}

static void sort_mistakes(struct parse *p) {
    for (uint32_t i = 1; i < p->mistakes; i++) {
        struct mistake m = p->mistake[i];
        uint32_t j = i;
        for (; j > 0 && p->mistake[j - 1].at > m.at; j--)
            p->mistake[j] = p->mistake[j - 1];
        p->mistake[j] = m;
    }
}

static const char *file_data(const struct parse *p) {
    return p->file.data;
}

static size_t line_end(const struct parse *p, size_t at) {
    while (at < p->file.size && file_data(p)[at] != '\n')
        at++;
    return at;
}

static size_t line_start(const struct parse *p, size_t at) {
    while (at > 0 && file_data(p)[at - 1] != '\n')
        at--;
    return at;
}

static uint32_t line_number(const struct parse *p, size_t at) {
    uint32_t n = 1;
    for (size_t i = 0; i < at; i++)
        n += file_data(p)[i] == '\n';
    return n;
}

/* Columns count characters from 1. */
static uint32_t column_number(const struct parse *p, size_t at) {
    uint32_t n = 1;
    for (size_t i = line_start(p, at); i < at; i++)
        n += (file_data(p)[i] & 0xc0) != 0x80;
    return n;
}

/* As much blank as stands before the mistake: a tab for a tab, two for a wide character (three
 * bytes and more, nearly always). */
static void add_caret(struct text *t, csn_bytes before) {
    const unsigned char *s = before.data;
    for (size_t i = 0; i < before.size; i++) {
        if (s[i] == '\t')
            text_add(t, "\t");
        else if (s[i] >= 0xe2)
            text_add(t, "  ");
        else if ((s[i] & 0xc0) != 0x80)
            text_add(t, " ");
    }
    text_add(t, "^\n");
}

static void show(const struct parse *p, const struct mistake *m, struct text *report) {
    size_t from = line_start(p, m->at), end = line_end(p, m->at);
    if (end > from && file_data(p)[end - 1] == '\r')
        end--;
    text_add(report, "%s:%u:%u: %s\n  ", p->h->path, line_number(p, m->at), column_number(p, m->at),
             m->text);
    text_add_bytes(report, (csn_bytes){file_data(p) + from, end - from});
    text_add(report, "\n  ");
    add_caret(report, (csn_bytes){file_data(p) + from, m->at - from});
}

/* ---- small readers ---- */

static const char *keep(struct parse *p, size_t at, size_t size) {
    csn_bytes copy = arena_copy(&p->h->arena, (csn_bytes){file_data(p) + at, size});
    if (!copy.data)
        p->no_memory = true;
    return copy.data ? copy.data : "";
}

static bool blank(char c) {
    return c == ' ' || c == '\t' || c == '\r';
}

/* What is left of a line that begins with "--". */
struct cursor {
    size_t at, end;
};

struct word {
    size_t at, size;
};

static void skip_blanks(const struct parse *p, struct cursor *c) {
    while (c->at < c->end && blank(file_data(p)[c->at]))
        c->at++;
}

static struct word next_word(const struct parse *p, struct cursor *c) {
    skip_blanks(p, c);
    struct word w = {c->at, 0};
    while (c->at < c->end && !blank(file_data(p)[c->at]))
        c->at++;
    w.size = c->at - w.at;
    return w;
}

static bool word_is(const struct parse *p, struct word w, const char *text) {
    return bytes_is((csn_bytes){file_data(p) + w.at, w.size}, text);
}

static void word_text(const struct parse *p, struct word w, char ret[WORD_SIZE]) {
    copy_bytes_text(ret, WORD_SIZE, (csn_bytes){file_data(p) + w.at, w.size});
}

static bool word_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
}

static bool is_name(const struct parse *p, struct word w) {
    for (size_t i = 0; i < w.size; i++)
        if (!word_char(file_data(p)[w.at + i]))
            return false;
    return w.size > 0 && w.size <= NAME_LIMIT;
}

static struct cursor line_at(const struct parse *p, size_t at) {
    struct cursor c = {at, line_end(p, at)};
    while (c.end > c.at && blank(file_data(p)[c.end - 1]))
        c.end--;
    return c;
}

/* ---- binds ---- */

static const char *const bind_names[] = {
    "event_id",       "aggregate_type", "aggregate_id",  "aggregate_version",
    "event_type",     "schema_version", "tenant",        "traceparent",
    "correlation_id", "causation_id",   "consumer_name", "payload"};

/* *ret_near: the best guess when it is none. Of a path only the first part is guessed at. */
static bool known_bind(const char *name, const char **ret_near) {
    struct guess g;
    char first[WORD_SIZE];
    copy_bytes_text(first, sizeof first, (csn_bytes){name, strcspn(name, ".")});
    guess_init(&g, first);
    for (size_t i = 0; i < ARRAY_LEN(bind_names); i++) {
        if (strcmp(bind_names[i], name) == 0)
            return true;
        guess_offer(&g, bind_names[i]);
    }
    *ret_near = g.best;
    return strncmp(name, "payload.", 8) == 0 && strlen(name) <= PATH_LIMIT;
}

/* at: of the colon; size: with the colon. */
static void add_bind(struct parse *p, size_t at, size_t size) {
    const char *near = NULL;
    const char *name = keep(p, at + 1, size - 1);
    if (!known_bind(name, &near)) {
        message_add(mistake(p, at), MSG_HANDLER_BIND, name);
        meant(p, near);
    } else if (p->binds == HANDLER_BINDS_MAX)
        message_add(mistake(p, at), MSG_HANDLER_BINDS, (unsigned)HANDLER_BINDS_MAX);
    else
        p->bind[p->binds++] = (struct bind){name, (uint32_t)at, (uint32_t)size};
}

/* A colon at this offset; returns how many bytes it and what belongs to it take. */
static size_t colon(struct parse *p, size_t at, size_t end) {
    if (at + 1 < end && file_data(p)[at + 1] == ':')
        return 2;
    size_t n = bind_name_size((csn_bytes){file_data(p) + at + 1, end - at - 1});
    if (n)
        add_bind(p, at, n + 1);
    return n + 1;
}

/* Moves the binds read so far into the step, with offsets in its text. */
static void take_binds(struct parse *p, struct step *s, size_t from) {
    if (p->binds == 0)
        return;
    struct bind *b = arena_take(&p->h->arena, p->binds * sizeof *b);
    if (!b) {
        p->no_memory = true;
        return;
    }
    for (uint32_t i = 0; i < p->binds; i++) {
        b[i] = p->bind[i];
        b[i].offset -= (uint32_t)from;
    }
    s->bind = b;
    s->binds = p->binds;
    p->binds = 0;
}

/* ---- steps ---- */

static void headed(struct parse *p, size_t at) {
    if (!p->headed)
        message_add(mistake(p, at), MSG_HANDLER_FIRST);
    p->headed = true;
}

static struct step *add_step(struct parse *p, enum step_kind kind, size_t at) {
    headed(p, at);
    p->after_sql = false;
    if (p->h->steps == HANDLER_STEPS_MAX) {
        if (!p->torn)
            message_add(mistake(p, at), MSG_HANDLER_STEPS, (unsigned)HANDLER_STEPS_MAX);
        p->torn = true;
        return NULL;
    }
    p->after_sql = kind == STEP_SQL;
    p->step_at[p->h->steps] = at;
    struct step *s = &p->h->step[p->h->steps++];
    *s = (struct step){.kind = kind, .line = line_number(p, at), .otherwise = -1};
    return s;
}

/* ---- statements ---- */

static const char *const directives[] = {"handler", "expect", "emit", "verdict", "label"};

/* Which directive stands in a line that begins with "--" at this offset; -1 none. *ret: what is
 * left of the line. */
static int directive_at(const struct parse *p, size_t at, struct cursor *ret,
                        struct word *ret_word) {
    *ret = line_at(p, at + 2);
    *ret_word = next_word(p, ret);
    for (size_t i = 0; i < ARRAY_LEN(directives); i++)
        if (word_is(p, *ret_word, directives[i]))
            return (int)i;
    return -1;
}

static bool looking_at(const struct parse *p, size_t at, const char *text) {
    size_t n = strlen(text);
    return p->file.size - at >= n && memcmp(file_data(p) + at, text, n) == 0;
}

/* The offset past the closing text; the end of the file, and a mistake, when there is none. */
static size_t closed_by(struct parse *p, size_t at, size_t skip, const char *closing) {
    for (size_t i = at + skip; i < p->file.size; i++)
        if (looking_at(p, i, closing))
            return i + strlen(closing);
    message_add(mistake(p, at), MSG_HANDLER_OPEN);
    p->torn = true;
    return p->file.size;
}

struct statement {
    size_t from, end; /* of the text; end: of the semicolon */
    struct word verb; /* first word */
    size_t first;     /* of the first token */
    bool any;         /* there is something but blanks and remarks */
    bool ended;
};

static size_t identifier(struct parse *p, struct statement *s, size_t at) {
    size_t end = at;
    while (end < p->file.size && ((word_char(file_data(p)[end]) && file_data(p)[end] != '-') ||
                                  file_data(p)[end] == '$' || (file_data(p)[end] & 0x80)))
        end++;
    if (!s->any)
        s->verb = (struct word){at, end - at};
    return end;
}

/* "[name]" of some dialects; anything else that begins with a bracket is one character. */
static size_t bracket(const struct parse *p, size_t at) {
    size_t end = p->file.size - at < BRACKET_MAX ? p->file.size : at + BRACKET_MAX;
    for (size_t i = at; i < end && file_data(p)[i] != '\n'; i++)
        if (file_data(p)[i] == ']')
            return i + 1;
    return at + 1;
}

static size_t placeholder(struct parse *p, size_t at) {
    char next = at + 1 < p->file.size ? file_data(p)[at + 1] : ' ';
    if (file_data(p)[at] == '?' || (word_char(next) && next != '-'))
        message_add(mistake(p, at), MSG_HANDLER_PLACEHOLDER);
    return at + 1;
}

/* One token that is neither blank nor remark nor semicolon. */
static size_t token(struct parse *p, struct statement *s, size_t at) {
    char c = file_data(p)[at];
    size_t end = at + 1;
    if (c == '\'' || c == '"' || c == '`')
        end = closed_by(p, at, 1, (char[]){c, 0});
    else if (c == '[')
        end = bracket(p, at);
    else if (c == ':')
        end = at + colon(p, at, p->file.size);
    else if (c == '?' || c == '@' || c == '$')
        end = placeholder(p, at);
    else if ((word_char(c) && c != '-') || (c & 0x80))
        end = identifier(p, s, at);
    if (!s->any)
        s->first = at;
    s->any = true;
    return end;
}

/* Past the semicolon at this offset, and the rest of its line. */
static size_t semicolon(struct parse *p, struct statement *s, size_t at) {
    struct cursor c = line_at(p, at + 1);
    s->end = at;
    s->ended = true;
    skip_blanks(p, &c);
    if (c.at < c.end && !looking_at(p, c.at, "--"))
        message_add(mistake(p, c.at), MSG_HANDLER_AFTER_END);
    return line_end(p, at);
}

/* Reads from p->at to the end of the statement, or to the directive or end of file that shows that
 * it has none. */
static void read_statement(struct parse *p, struct statement *s) {
    size_t at = p->at;
    *s = (struct statement){.from = at};
    while (at < p->file.size && !s->ended) {
        struct cursor rest;
        struct word w;
        char c = file_data(p)[at];
        if (c == '-' && looking_at(p, at, "--")) {
            struct cursor before = {line_start(p, at), at};
            skip_blanks(p, &before);
            if (before.at == at && directive_at(p, at, &rest, &w) >= 0)
                break;
            at = line_end(p, at);
        } else if (looking_at(p, at, "/*"))
            at = closed_by(p, at, 2, "*/");
        else if (c == ';')
            at = semicolon(p, s, at);
        else if (blank(c) || c == '\n')
            at++;
        else
            at = token(p, s, at);
    }
    p->at = at;
}

/* Words that would end, nest or escape consign's transaction. DDL is among them: some stores commit
 * before it. */
static const char *const refused[] = {
    "BEGIN",  "COMMIT",   "END",     "ROLLBACK", "SAVEPOINT", "RELEASE", "ATTACH",
    "DETACH", "PRAGMA",   "VACUUM",  "START",    "ABORT",     "CREATE",  "ALTER",
    "DROP",   "TRUNCATE", "REINDEX", "ANALYZE",  "LOCK",      "SET",     "EXPLAIN"};

static bool same_word(const char *upper, const char *text) {
    size_t i = 0;
    for (; upper[i] && text[i]; i++)
        if ((text[i] >= 'a' && text[i] <= 'z' ? text[i] - 32 : text[i]) != upper[i])
            return false;
    return upper[i] == text[i];
}

static void check_verb(struct parse *p, struct word verb) {
    char text[WORD_SIZE];
    word_text(p, verb, text);
    for (size_t i = 0; i < ARRAY_LEN(refused); i++)
        if (same_word(refused[i], text))
            message_add(mistake(p, verb.at), MSG_HANDLER_CONTROL, refused[i]);
}

static void statement(struct parse *p) {
    struct statement s;
    p->binds = 0;
    read_statement(p, &s);
    if (!s.any && !s.ended) /* a remark only */
        return;
    struct step *step = add_step(p, STEP_SQL, s.any ? s.first : s.end);
    if (!s.ended && !p->torn)
        message_add(mistake(p, s.first), MSG_HANDLER_NOT_ENDED);
    if (!s.ended)
        p->torn = true;
    else if (!s.any)
        message_add(mistake(p, s.end), MSG_HANDLER_EMPTY);
    check_verb(p, s.verb);
    if (!step || !s.ended)
        return;
    step->text = keep(p, s.from, s.end - s.from);
    take_binds(p, step, s.from);
}

/* ---- directives ---- */

static void read_handler(struct parse *p, struct cursor c, size_t at) {
    struct word name = next_word(p, &c);
    if (p->headed)
        message_add(mistake(p, at), MSG_HANDLER_TWICE);
    else if (!is_name(p, name) || c.at < c.end)
        message_add(mistake(p, name.at), MSG_HANDLER_NAME, (unsigned)NAME_LIMIT);
    else
        p->h->name = keep(p, name.at, name.size);
    p->headed = true;
}

static void add_jump(struct parse *p, struct word label) {
    p->jump[p->jumps++] = (struct jump){keep(p, label.at, label.size), label.at, p->h->steps - 1};
}

/* N, ">= N" or ">=N". */
static bool read_rows(struct parse *p, struct cursor *c, struct step *s) {
    struct word w = next_word(p, c);
    if (w.size >= 2 && looking_at(p, w.at, ">=")) {
        s->at_least = true;
        w = w.size > 2 ? (struct word){w.at + 2, w.size - 2} : next_word(p, c);
    }
    int64_t n = 0;
    for (size_t i = 0; i < w.size; i++) {
        char d = file_data(p)[w.at + i];
        if (d < '0' || d > '9' || n > ROWS_MAX)
            return false;
        n = n * 10 + (d - '0');
    }
    s->rows = n;
    return w.size > 0 && n <= ROWS_MAX;
}

static void read_expect(struct parse *p, struct cursor c, size_t at) {
    struct step unused = {0};
    bool placed = p->after_sql && p->h->steps > 0;
    struct step *s = placed ? &p->h->step[p->h->steps - 1] : &unused;
    headed(p, at);
    p->after_sql = false;
    if (!placed && !p->torn)
        message_add(mistake(p, at), MSG_HANDLER_EXPECT_PLACE);
    struct word rows = next_word(p, &c);
    bool good = word_is(p, rows, "rows") && read_rows(p, &c, s);
    s->expects = good;
    struct word more = next_word(p, &c);
    if (good && more.size) {
        struct word jump = next_word(p, &c), label = next_word(p, &c);
        good = word_is(p, more, "else") && word_is(p, jump, "goto") && is_name(p, label) &&
               c.at == c.end;
        if (good && placed)
            add_jump(p, label);
    }
    if (!good)
        message_add(mistake(p, rows.at), MSG_HANDLER_EXPECT_FORM);
}

static void template_bind(void *arg, size_t offset, size_t size) {
    struct parse *p = arg;
    add_bind(p, p->at + offset, size);
}

static bool is_type(struct word w) {
    return w.size > 0 && w.size <= TYPE_LIMIT;
}

/* The words up to "payload"; *ret_key: the bind. */
static bool read_emit_head(struct parse *p, struct cursor *c, struct step *s,
                           struct word *ret_key) {
    struct word type = next_word(p, c), for_ = next_word(p, c), aggregate = next_word(p, c);
    struct word key = next_word(p, c), payload = next_word(p, c);
    if (!is_type(type) || !word_is(p, for_, "for") || !is_type(aggregate) ||
        !word_is(p, payload, "payload"))
        return false;
    if (key.size < 2 || file_data(p)[key.at] != ':' ||
        bind_name_size((csn_bytes){file_data(p) + key.at + 1, key.size - 1}) != key.size - 1)
        return false;
    s->event_type = keep(p, type.at, type.size);
    s->aggregate_type = keep(p, aggregate.at, aggregate.size);
    *ret_key = key;
    return true;
}

static void read_emit_key(struct parse *p, struct step *s, struct word key) {
    add_bind(p, key.at, key.size);
    if (p->binds == 0)
        return;
    struct bind *b = arena_take(&p->h->arena, sizeof *b);
    if (b) {
        *b = (struct bind){p->bind[0].name, 0, (uint32_t)key.size};
        s->key = b;
    } else
        p->no_memory = true;
    p->binds = 0;
}

static void read_emit(struct parse *p, struct cursor c, size_t at) {
    struct step unused = {0}, *s = add_step(p, STEP_EMIT, at);
    struct word key;
    size_t wrong = 0;
    if (!s)
        s = &unused;
    p->binds = 0;
    skip_blanks(p, &c);
    size_t from = c.at;
    if (!read_emit_head(p, &c, s, &key)) {
        message_add(mistake(p, from), MSG_HANDLER_EMIT_FORM);
        return;
    }
    read_emit_key(p, s, key);
    skip_blanks(p, &c);
    p->at = c.at;
    if (!template_scan((csn_bytes){file_data(p) + c.at, c.end - c.at}, template_bind, p, &wrong))
        message_add(mistake(p, c.at + wrong), MSG_HANDLER_EMIT_JSON);
    s->text = keep(p, c.at, c.end - c.at);
    take_binds(p, s, c.at);
}

static void read_verdict_text(struct parse *p, struct cursor c, struct step *s) {
    if (c.end - c.at < 2 || file_data(p)[c.at] != '"' || file_data(p)[c.end - 1] != '"') {
        message_add(mistake(p, c.at), MSG_HANDLER_VERDICT_FORM);
        return;
    }
    size_t from = c.at + 1, end = c.end - 1;
    for (size_t i = from; i < end;)
        i += file_data(p)[i] == ':' ? colon(p, i, end) : 1;
    s->text = keep(p, from, end - from);
    take_binds(p, s, from);
}

static void read_verdict(struct parse *p, struct cursor c, size_t at) {
    struct step unused = {0}, *s = add_step(p, STEP_VERDICT, at);
    char name[WORD_SIZE];
    struct word w = next_word(p, &c);
    struct guess g;
    if (!s)
        s = &unused;
    word_text(p, w, name);
    s->verdict = verdict_find(name);
    guess_init(&g, name);
    for (size_t i = 0; i < ARRAY_LEN(verdicts); i++)
        guess_offer(&g, verdicts[i]);
    if (w.size == 0)
        message_add(mistake(p, w.at), MSG_HANDLER_VERDICT_FORM);
    else if (s->verdict < 0) {
        message_add(mistake(p, w.at), MSG_HANDLER_VERDICT, name);
        meant(p, g.best);
    }
    p->binds = 0;
    skip_blanks(p, &c);
    if (c.at < c.end)
        read_verdict_text(p, c, s);
}

static const struct label *find_label(const struct parse *p, const char *name) {
    for (uint32_t i = 0; i < p->labels; i++)
        if (strcmp(p->label[i].name, name) == 0)
            return &p->label[i];
    return NULL;
}

static void read_label(struct parse *p, struct cursor c, size_t at) {
    struct word w = next_word(p, &c);
    headed(p, at);
    p->after_sql = false;
    skip_blanks(p, &c);
    if (!is_name(p, w) || c.at < c.end) {
        message_add(mistake(p, w.at), MSG_HANDLER_LABEL_FORM);
        p->astray = true;
        return;
    }
    const char *name = keep(p, w.at, w.size);
    if (find_label(p, name))
        message_add(mistake(p, w.at), MSG_HANDLER_LABEL_TWICE, name);
    else if (p->labels < HANDLER_STEPS_MAX)
        p->label[p->labels++] = (struct label){name, w.at, p->h->steps};
    else
        message_add(mistake(p, w.at), MSG_HANDLER_STEPS, (unsigned)HANDLER_STEPS_MAX);
}

/* A remark that begins with a word one slip away from a directive is taken for a slip: it would
 * silently do nothing. */
static void remark(struct parse *p, struct word w) {
    char text[WORD_SIZE];
    word_text(p, w, text);
    for (size_t i = 0; i < ARRAY_LEN(directives); i++)
        if (guess_distance(text, directives[i]) == 1)
            message_add(mistake(p, w.at), MSG_HANDLER_MISTYPED, text, directives[i]);
}

static void remark_or_directive(struct parse *p) {
    static void (*const read[])(struct parse * p, struct cursor c, size_t at) = {
        read_handler, read_expect, read_emit, read_verdict, read_label};
    struct cursor c;
    struct word w;
    size_t at = p->at;
    int d = directive_at(p, at, &c, &w);
    if (d >= 0)
        read[d](p, c, at);
    else
        remark(p, w);
    p->at = line_end(p, at);
}

/* ---- the whole ---- */

static void read_file(struct parse *p) {
    if (p->file.size >= 3 && memcmp(p->file.data, "\xef\xbb\xbf", 3) == 0)
        p->at = 3;
    while (p->at < p->file.size && !p->no_memory) {
        char c = file_data(p)[p->at];
        if (blank(c) || c == '\n')
            p->at++;
        else if (looking_at(p, p->at, "--"))
            remark_or_directive(p);
        else
            statement(p);
    }
    headed(p, 0);
}

static void unknown_label(struct parse *p, const struct jump *j) {
    struct guess g;
    guess_init(&g, j->label);
    for (uint32_t i = 0; i < p->labels; i++)
        guess_offer(&g, p->label[i].name);
    message_add(mistake(p, j->at), MSG_HANDLER_LABEL, j->label);
    meant(p, g.best);
    p->astray = true;
}

static void resolve_jumps(struct parse *p) {
    for (uint32_t i = 0; i < p->jumps; i++) {
        const struct jump *j = &p->jump[i];
        const struct label *l = find_label(p, j->label);
        if (!l) {
            unknown_label(p, j);
        } else if (l->step <= j->step) {
            message_add(mistake(p, j->at), MSG_HANDLER_BACKWARD, j->label);
            p->astray = true;
        } else {
            p->h->step[j->step].otherwise = (int32_t)l->step;
            if (l->step == p->h->steps)
                message_add(mistake(p, l->at), MSG_HANDLER_NO_VERDICT);
        }
    }
}

/* Jumps go forwards, so one walk in order sees every path. */
static void walk_paths(struct parse *p) {
    bool reached[HANDLER_STEPS_MAX + 1] = {true};
    uint32_t n = p->h->steps;
    for (uint32_t i = 0; i < n; i++) {
        const struct step *s = &p->h->step[i];
        if (!reached[i] && !p->astray) {
            message_add(mistake(p, p->step_at[i]), MSG_HANDLER_UNREACHED);
            reached[i] = true; /* said once for all that follow it */
        }
        if (s->otherwise >= 0)
            reached[s->otherwise] = true;
        if (s->kind != STEP_VERDICT && (reached[i] || p->astray))
            reached[i + 1] = true;
    }
    if (n == 0 && p->mistakes)
        return; /* whatever is wrong with it, it is no handler */
    if (n == 0 || p->h->step[n - 1].kind != STEP_VERDICT)
        message_add(mistake(p, n ? p->step_at[n - 1] : 0), MSG_HANDLER_NO_VERDICT);
}

static csn_status report_mistakes(struct parse *p, struct text *report, csn_error *err) {
    sort_mistakes(p);
    for (uint32_t i = 0; report && i < p->mistakes; i++)
        show(p, &p->mistake[i], report);
    if (report && p->unshown) {
        message_add(report, MSG_HANDLER_MORE, p->unshown);
        text_add(report, "\n");
    }
    const struct mistake *m = &p->mistake[0];
    return error_set(err, CSN_INVALID, ERR_HANDLER_SYNTAX, "%s:%u:%u: %s", p->h->path,
                     line_number(p, m->at), column_number(p, m->at), m->text);
}

/* Sizes that keep everything else small. false: not worth reading on. */
static bool readable(struct parse *p) {
    if (p->file.size > HANDLER_FILE_MAX) {
        p->file.size = 0;
        message_add(mistake(p, 0), MSG_HANDLER_SIZE, (unsigned)HANDLER_FILE_MAX);
        return false;
    }
    const char *nul = p->file.size ? memchr(p->file.data, 0, p->file.size) : NULL;
    if (nul)
        message_add(mistake(p, (size_t)(nul - file_data(p))), MSG_HANDLER_NUL);
    return !nul;
}

static csn_status parse(struct parse *p, const char *path, struct text *report, csn_error *err) {
    struct sql_handler *h = p->h;
    csn_bytes copy = arena_copy(&h->arena, bytes_of(path));
    h->path = copy.data ? copy.data : "";
    h->name = "";
    h->step = arena_take(&h->arena, HANDLER_STEPS_MAX * sizeof *h->step);
    p->no_memory = !h->step;
    if (!p->no_memory && readable(p)) {
        read_file(p);
        if (!p->torn)
            resolve_jumps(p);
        if (!p->torn)
            walk_paths(p);
    }
    if (p->no_memory)
        return error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "%s: out of memory", h->path);
    return p->mistakes ? report_mistakes(p, report, err) : CSN_OK;
}

csn_status sql_handler_parse(const char *path, csn_bytes file, struct sql_handler *ret,
                             struct text *report, csn_error *err) {
    struct arena scratch;
    struct sql_handler h = {0};
    arena_init(&scratch, 2 * sizeof(struct parse) + 4096);
    arena_init(&h.arena, 8 * (size_t)HANDLER_FILE_MAX);
    struct parse *p = arena_take(&scratch, sizeof *p);
    csn_status st;
    if (p) {
        memset(p, 0, sizeof *p);
        p->file = file;
        p->h = &h;
        st = parse(p, path, report, err);
    } else
        st = error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "%s: out of memory", path);
    arena_free(&scratch);
    if (st == CSN_OK)
        *ret = h;
    else
        sql_handler_free(&h);
    return st;
}

void sql_handler_free(struct sql_handler *h) {
    if (!h)
        return;
    arena_free(&h->arena);
    *h = (struct sql_handler){0};
}
