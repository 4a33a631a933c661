/* bytes.c: see bytes.h. Every copy has a bound, and what is cut is cut between two characters of
 * UTF-8. */
#include "base/bytes.h"
#include <stdio.h>

csn_bytes bytes_of(const char *s) {
    return (csn_bytes){s, s ? strlen(s) : 0};
}

bool bytes_equal(csn_bytes a, csn_bytes b) {
    return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}

int bytes_compare(csn_bytes a, csn_bytes b) {
    size_t common = a.size < b.size ? a.size : b.size;
    int order = common ? memcmp(a.data, b.data, common) : 0;
    return order ? order : (a.size > b.size) - (a.size < b.size);
}

bool bytes_is(csn_bytes a, const char *s) {
    return bytes_equal(a, bytes_of(s));
}

/* FNV-1a alone leaves its high bits poor for short texts; the mix is the 64-bit finalizer of
 * MurmurHash3. */
uint64_t bytes_hash(csn_bytes a, uint64_t seed) {
    const unsigned char *p = a.data;
    uint64_t h = UINT64_C(0xcbf29ce484222325) ^ seed;
    for (size_t i = 0; i < a.size; i++) {
        h = (h ^ p[i]) * UINT64_C(0x100000001b3);
    }
    h = (h ^ (h >> 33)) * UINT64_C(0xff51afd7ed558ccd);
    h = (h ^ (h >> 33)) * UINT64_C(0xc4ceb9fe1a85ec53);
    return h ^ (h >> 33);
}

static bool continues(char c) {
    return ((unsigned char)c & 0xc0) == 0x80;
}

/* The longest prefix of at most n bytes that does not end inside a character. data[n] must be
 * readable. */
static size_t whole_prefix(const char *data, size_t n) {
    size_t cut = n;
    for (int back = 0; back < 3 && cut > 0 && continues(data[cut]); back++) {
        cut--;
    }
    return continues(data[cut]) ? n : cut; /* not UTF-8 at all: cut anywhere */
}

bool copy_bytes_text(char *to, size_t size, csn_bytes from) {
    if (size == 0) {
        return false;
    }
    bool fits = from.size < size;
    size_t n = fits ? from.size : whole_prefix(from.data, size - 1);
    if (n > 0) {
        memmove(to, from.data, n);
    }
    to[n] = '\0';
    return fits;
}

bool copy_text(char *to, size_t size, const char *from) {
    return copy_bytes_text(to, size, bytes_of(from));
}

/* Length of the character at s, at least 1 and at most n. */
static size_t step_over(const char *s, size_t n) {
    size_t i = 1;
    while (i < n && continues(s[i])) {
        i++;
    }
    return i;
}

/* One star is remembered; a mismatch goes back to it and lets it swallow one byte more: no
 * recursion, at most g · n steps. */
static bool glob_matches(const char *g, size_t glob_size, const char *s, size_t n) {
    size_t i = 0, at = 0, star = SIZE_MAX, star_at = 0;
    while (at < n) {
        if (i < glob_size && g[i] == '*') {
            star = i++;
            star_at = at;
        } else if (i < glob_size && g[i] == '?') {
            i++;
            at += step_over(s + at, n - at);
        } else if (i < glob_size && g[i] == s[at]) {
            i++;
            at++;
        } else if (star != SIZE_MAX) {
            i = star + 1;
            at = ++star_at;
        } else {
            return false;
        }
    }
    while (i < glob_size && g[i] == '*') {
        i++;
    }
    return i == glob_size;
}

bool glob_list_matches(const char *globs, csn_bytes text) {
    const char *g = globs ? globs : "";
    const char *s = text.size ? text.data : "";
    for (;;) {
        g += strspn(g, " ");
        size_t whole = strcspn(g, ","), n = whole;
        while (n > 0 && g[n - 1] == ' ') {
            n--;
        }
        if (n > 0 && glob_matches(g, n, s, text.size)) {
            return true;
        }
        if (g[whole] == '\0') {
            return false;
        }
        g += whole + 1;
    }
}

void text_init(struct text *t, char *buffer, size_t size) {
    *t = (struct text){.data = buffer, .size = size, .full = size == 0};
    if (size > 0) {
        buffer[0] = '\0';
    }
}

void text_add_bytes(struct text *t, csn_bytes b) {
    if (t->full || b.size == 0) {
        return;
    }
    size_t room = t->size - t->used;
    t->full = !copy_bytes_text(t->data + t->used, room, b);
    t->used += t->full ? strlen(t->data + t->used) : b.size;
}

/* Where to cut n written bytes so that no character is left half: vsnprintf counts bytes. */
static size_t cut_whole(const char *s, size_t n) {
    size_t lead = n;
    for (int back = 0; back < 4 && lead > 0; back++) {
        unsigned char c = (unsigned char)s[--lead];
        if (c >= 0xc0) {
            size_t want = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
            return n - lead < want ? lead : n;
        }
        if (c < 0x80) {
            return n;
        }
    }
    return n;
}

void text_add_list(struct text *t, const char *format, va_list args) {
    if (t->full) {
        return;
    }
    size_t room = t->size - t->used;
    char *end = t->data + t->used;
    int n = vsnprintf(end, room, format, args);
    size_t wrote = n < 0 ? 0 : (size_t)n;
    t->full = n < 0 || wrote >= room;
    if (n >= 0 && t->full) {
        wrote = cut_whole(end, room - 1);
    }
    end[wrote] = '\0';
    t->used += wrote;
}

void text_add(struct text *t, const char *format, ...) {
    va_list args;
    va_start(args, format);
    text_add_list(t, format, args);
    va_end(args);
}
