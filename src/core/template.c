/* template.c: a JSON checker by recursive descent whose values may be binds. Nesting is bounded by
 * DEPTH_MAX, so that the stack is, too. A colon between a key and its value is eaten before a value
 * is looked for; a second colon then begins a bind. */
#include "core/template.h"

enum { DEPTH_MAX = 32 };

struct scan {
    const char *data;
    size_t size, at;
    int depth;
    void (*found)(void *arg, size_t offset, size_t size);
    void *arg;
};

static bool letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool digit(char c) {
    return c >= '0' && c <= '9';
}

static bool name_char(char c) {
    return letter(c) || digit(c);
}

size_t bind_name_size(csn_bytes text) {
    const char *s = text.data;
    size_t n = 0;
    if (text.size == 0 || !letter(s[0]))
        return 0;
    while (n < text.size &&
           (name_char(s[n]) || (s[n] == '.' && n + 1 < text.size && name_char(s[n + 1]))))
        n++;
    return n;
}

static char peek(const struct scan *s) {
    return s->at < s->size ? s->data[s->at] : '\0';
}

static bool take(struct scan *s, char c) {
    if (s->at >= s->size || s->data[s->at] != c)
        return false;
    s->at++;
    return true;
}

static void blanks(struct scan *s) {
    while (s->at < s->size && strchr(" \t\r\n", s->data[s->at]) && s->data[s->at])
        s->at++;
}

/* At a colon: true when a bind stands here; it is taken. */
static bool bind(struct scan *s) {
    size_t n = bind_name_size((csn_bytes){s->data + s->at + 1, s->size - s->at - 1});
    if (n == 0)
        return false;
    s->found(s->arg, s->at, n + 1);
    s->at += n + 1;
    return true;
}

static bool hex4(struct scan *s) {
    for (int i = 0; i < 4; i++, s->at++)
        if (s->at >= s->size || !s->data[s->at] ||
            !strchr("0123456789abcdefABCDEF", s->data[s->at]))
            return false;
    return true;
}

static bool escape(struct scan *s) {
    if (take(s, 'u'))
        return hex4(s);
    if (s->at >= s->size || !s->data[s->at] || !strchr("\"\\/bfnrt", s->data[s->at]))
        return false;
    s->at++;
    return true;
}

static bool string(struct scan *s) {
    if (!take(s, '"'))
        return false;
    while (s->at < s->size) {
        unsigned char c = (unsigned char)s->data[s->at];
        if (c == '"')
            return take(s, '"');
        if (c < 0x20)
            return false;
        if (c == ':' && s->at + 1 < s->size && s->data[s->at + 1] == ':')
            s->at += 2; /* "::" is no bind, here as in SQL */
        else if (c == ':' && bind(s))
            continue;
        else {
            s->at++;
            if (c == '\\' && !escape(s))
                return false;
        }
    }
    return false;
}

static bool digits(struct scan *s) {
    size_t from = s->at;
    while (digit(peek(s)))
        s->at++;
    return s->at > from;
}

static bool number(struct scan *s) {
    take(s, '-');
    if (!take(s, '0') && !digits(s))
        return false;
    if (take(s, '.') && !digits(s))
        return false;
    if (take(s, 'e') || take(s, 'E')) {
        if (!take(s, '+'))
            take(s, '-');
        return digits(s);
    }
    return true;
}

static bool word(struct scan *s, const char *w) {
    size_t n = strlen(w);
    if (s->size - s->at < n || memcmp(s->data + s->at, w, n) != 0)
        return false;
    s->at += n;
    return true;
}

static bool value(struct scan *s);

static bool array(struct scan *s) {
    s->at++;
    blanks(s);
    if (take(s, ']'))
        return true;
    do {
        if (!value(s))
            return false;
    } while (take(s, ','));
    return take(s, ']');
}

static bool object(struct scan *s) {
    s->at++;
    blanks(s);
    if (take(s, '}'))
        return true;
    do {
        blanks(s);
        if (!string(s))
            return false;
        blanks(s);
        if (!take(s, ':') || !value(s))
            return false;
    } while (take(s, ','));
    return take(s, '}');
}

static bool scalar(struct scan *s) {
    switch (peek(s)) {
    case '"':
        return string(s);
    case ':':
        return bind(s);
    case 't':
        return word(s, "true");
    case 'f':
        return word(s, "false");
    case 'n':
        return word(s, "null");
    default:
        return number(s);
    }
}

/* A value with the blanks round it. */
static bool value(struct scan *s) {
    blanks(s);
    char c = peek(s);
    bool good;
    if (c != '{' && c != '[')
        good = scalar(s);
    else if (s->depth == DEPTH_MAX)
        return false;
    else {
        s->depth++;
        good = c == '{' ? object(s) : array(s);
        s->depth--;
    }
    if (good)
        blanks(s);
    return good;
}

bool template_scan(csn_bytes text, void (*found)(void *arg, size_t offset, size_t size), void *arg,
                   size_t *ret_at) {
    struct scan s = {.data = text.data, .size = text.size, .found = found, .arg = arg};
    bool good = value(&s) && s.at == s.size;
    *ret_at = s.at;
    return good;
}
