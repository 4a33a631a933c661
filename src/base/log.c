/* log.c: one line is built in a buffer of fixed size and written by one write(2), so that lines of
 * several threads, and of several processes that share a pipe, do not mix. A line that does not fit
 * is cut at a field and says so. Nothing here waits: a line that a full pipe refuses is dropped.
 *
 *   2026-11-30T19:32:00.123Z info  relay.stale store=orders rows=1
 *   {"at":"2026-11-30T19:32:00.123Z","level":"info","event":"relay.stale","store":"orders","rows":1}
 *
 * The three settings are the process's, as its standard error is: the only state that is not handed
 * in. */
#include "base/log.h"
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { LINE_MAX_ = 4096, LINE_TAIL = 24 /* room for ,"cut":true}\n */ };

static _Atomic int log_fd = STDERR_FILENO;
static _Atomic int log_form = LOG_TEXT;
static _Atomic int log_least = LOG_INFO;

void log_setup(int fd, enum log_format format, enum log_level least) {
    atomic_store(&log_fd, fd);
    atomic_store(&log_form, (int)format);
    atomic_store(&log_least, (int)least);
}

static const char *level_name(enum log_level level) {
    static const char *const name[] = {"error", "warn", "info", "debug"};
    return (size_t)level < ARRAY_LEN(name) ? name[level] : "?";
}

static void add_time(struct text *t) {
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    text_add(t, "%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ", utc.tm_year + 1900, utc.tm_mon + 1,
             utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, now.tv_nsec / 1000000);
}

/* Runs of plain bytes are copied, the others escaped. */
static void add_escaped(struct text *t, csn_bytes b) {
    const unsigned char *p = b.data;
    size_t from = 0;
    for (size_t i = 0; i < b.size; i++) {
        if (p[i] >= 0x20 && p[i] != '"' && p[i] != '\\' && p[i] != 0x7f) {
            continue;
        }
        text_add_bytes(t, (csn_bytes){p + from, i - from});
        from = i + 1;
        if (p[i] == '"' || p[i] == '\\') {
            text_add(t, "\\%c", p[i]);
        } else if (p[i] == '\n') {
            text_add(t, "\\n");
        } else {
            text_add(t, "\\u%04x", p[i]);
        }
    }
    if (from < b.size) {
        text_add_bytes(t, (csn_bytes){p + from, b.size - from});
    }
}

/* A byte that is not UTF-8 would spoil the whole line for a JSON reader. */
static bool is_utf8(csn_bytes b) {
    const unsigned char *p = b.data;
    for (size_t i = 0; i < b.size;) {
        unsigned char c = p[i++];
        int more = c < 0x80                ? 0
                   : c >= 0xc2 && c < 0xe0 ? 1
                   : c >= 0xe0 && c < 0xf0 ? 2
                   : c >= 0xf0 && c < 0xf5 ? 3
                                           : -1;
        if (more < 0 || (size_t)more > b.size - i) {
            return false;
        }
        if (more > 1) {
            unsigned char d = p[i];
            if ((c == 0xe0 && d < 0xa0) || (c == 0xed && d > 0x9f) || (c == 0xf0 && d < 0x90) ||
                (c == 0xf4 && d > 0x8f)) {
                return false;
            }
        }
        for (; more > 0; more--) {
            if ((p[i++] & 0xc0) != 0x80) {
                return false;
            }
        }
    }
    return true;
}

static void add_value(struct text *t, csn_bytes b, bool json) {
    if (!is_utf8(b)) {
        const unsigned char *p = b.data;
        text_add(t, "\"0x");
        for (size_t i = 0; i < b.size && i < 64; i++) {
            text_add(t, "%02x", p[i]);
        }
        text_add(t, "\"");
        return;
    }
    bool plain = !json && b.size > 0;
    for (size_t i = 0; plain && i < b.size; i++) {
        unsigned char c = ((const unsigned char *)b.data)[i];
        plain = c > 0x20 && c != '"' && c != '\\' && c != '=' && c != 0x7f;
    }
    if (plain) {
        text_add_bytes(t, b);
        return;
    }
    text_add(t, "\"");
    add_escaped(t, b);
    text_add(t, "\"");
}

static void add_field(struct text *t, const struct log_field *f, bool json) {
    const char *unit = f->type == LOG_USEC && json ? "_ms" : "";
    if (json) {
        text_add(t, ",\"%s%s\":", f->key, unit);
    } else {
        text_add(t, " %s=", f->key);
    }
    if (f->type == LOG_INT) {
        text_add(t, "%" PRId64, f->num);
    } else if (f->type == LOG_USEC) {
        text_add(t, "%.3f%s", (double)f->num / 1000, json ? "" : "ms");
    } else {
        add_value(t, f->type == LOG_STR ? bytes_of(f->str) : f->bytes, json);
    }
}

/* EINTR is the only reason to try again, and only a few times: a log line is not worth a hang. */
static void write_line(int fd, const char *line, size_t n) {
    for (int tries = 0; tries < 8; tries++) {
        ssize_t wrote = write(fd, line, n);
        if (wrote < 0 && errno == EINTR) {
            continue;
        }
        if (wrote < 0 || (size_t)wrote >= n) {
            return;
        }
        line += wrote;
        n -= (size_t)wrote;
    }
}

void log_event(enum log_level level, const char *event, const struct log_field *fields) {
    if ((int)level > atomic_load(&log_least)) {
        return;
    }
    int saved = errno;
    bool json = atomic_load(&log_form) == LOG_JSON;
    char line[LINE_MAX_];
    struct text t;
    text_init(&t, line, sizeof line - LINE_TAIL);
    text_add(&t, "%s", json ? "{\"at\":\"" : "");
    add_time(&t);
    text_add(&t, json ? "\",\"level\":\"%s\",\"event\":\"%s\"" : " %-5s %s", level_name(level),
             event);
    for (const struct log_field *f = fields; f && f->type != LOG_END && !t.full; f++) {
        size_t before = t.used;
        add_field(&t, f, json);
        if (t.full) {
            t.used = before;
        }
    }
    bool cut = t.full;
    t.size = sizeof line;
    t.full = false;
    text_add(&t, "%s%s\n", cut ? json ? ",\"cut\":true" : " cut=true" : "", json ? "}" : "");
    write_line(atomic_load(&log_fd), line, t.used);
    errno = saved;
}
