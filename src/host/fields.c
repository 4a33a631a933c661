/* fields.c: see fields.h. A quoted value may hold quotes: it ends at the quote after which the text
 * ends or the next key begins. */
#include "host/fields.h"

static bool in_key(char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

/* Length of the key at s; 0: no "key=" here. */
static size_t key_length(const char *s) {
    size_t n = 0;
    while (in_key(s[n])) {
        n++;
    }
    return s[n] == '=' ? n : 0;
}

static bool ends_here(const char *s) {
    return *s == '\0' || (*s == ' ' && key_length(s + 1) > 0);
}

/* The value at s, without its quotes; *ret_next is what follows it. */
static csn_bytes value_at(const char *s, const char **ret_next) {
    bool quoted = *s == '"';
    const char *end = s + quoted;
    while (*end && !(quoted ? *end == '"' && ends_here(end + 1) : ends_here(end))) {
        end++;
    }
    csn_bytes v = {s + quoted, (size_t)(end - s) - quoted};
    *ret_next = end + (quoted && *end == '"');
    return v;
}

static struct log_field field_of(const char *key, csn_bytes value) {
    const char *p = value.data;
    int64_t n = 0;
    size_t i = value.size > 1 && p[0] == '-';
    bool number = i < value.size && value.size < 18;
    for (size_t k = i; k < value.size && number; k++) {
        number = p[k] >= '0' && p[k] <= '9' && !(p[i] == '0' && value.size > i + 1);
        n = n * 10 + (p[k] - '0');
    }
    return number ? LINT(key, i ? -n : n) : LBYTES(key, value);
}

void fields_of(const char *text, struct fields *ret) {
    size_t n = 0;
    struct text keys;
    text_init(&keys, ret->keys, sizeof ret->keys);
    while (*text == ' ') {
        text++;
    }
    for (size_t length; n < FIELDS_MAX - 1 && (length = key_length(text)) > 0;) {
        if (keys.used + length + 2 > sizeof ret->keys) {
            break;
        }
        const char *key = ret->keys + keys.used;
        text_add_bytes(&keys, (csn_bytes){text, length});
        keys.used++; /* keep the NUL */
        ret->field[n++] = field_of(key, value_at(text + length + 1, &text));
        text += *text == ' ';
    }
    if (*text) {
        ret->field[n++] = LSTR("text", text);
    }
    ret->field[n] = LEND;
}
