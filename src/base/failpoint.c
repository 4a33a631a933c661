/* failpoint.c: counters of hits, and a short list of rules that is written once before any thread
 * starts and only read after. A process has one set of failpoints, as it has one environment: this
 * state is its only owner.
 *
 * A crash is SIGKILL to ourselves: no handler, no buffer, no destructor runs, as with kill -9. */
#include "base/failpoint.h"
#include "base/log.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RULES_MAX = 32, FIFO_PATH_MAX = 256, HIT_MAX = 1000000000 };

static const struct {
    const char *name, *help;
    unsigned modes;
} place[FAIL_NR] = {
#define X(id, name, modes, help) {name, help, modes},
#include "base/failpoints.def"
#undef X
};

static const struct {
    const char *name;
    unsigned mode;
} mode_table[] = {{"crash", FAIL_MODE_CRASH},
                  {"pause", FAIL_MODE_PAUSE},
                  {"error", FAIL_MODE_ERROR},
                  {"unknown", FAIL_MODE_UNKNOWN}};

struct rule {
    enum failpoint at;
    unsigned mode;
    uint64_t hit; /* the hit it acts on; 0: every one */
    char fifo[FIFO_PATH_MAX];
};

static _Atomic uint64_t hits[FAIL_NR];
static struct rule rules[RULES_MAX];
static size_t rule_count;
static bool armed[FAIL_NR];

static void pause_at(const struct rule *r) {
    log_event(LOG_WARN, "failpoint.pause",
              (struct log_field[]){LSTR("at", place[r->at].name), LEND});
    int fd;
    do {
        fd = open(r->fifo, O_RDONLY | O_CLOEXEC);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0) {
        log_event(LOG_ERROR, "failpoint.fifo",
                  (struct log_field[]){LSTR("path", r->fifo), LINT("errno", errno), LEND});
        return;
    }
    char ignored[64];
    ssize_t n;
    do {
        n = read(fd, ignored, sizeof ignored);
    } while (n > 0 || (n < 0 && errno == EINTR));
    close(fd);
    log_event(LOG_WARN, "failpoint.resume",
              (struct log_field[]){LSTR("at", place[r->at].name), LEND});
}

static csn_status act(const struct rule *r) {
    switch (r->mode) {
    case FAIL_MODE_CRASH:
        log_event(LOG_WARN, "failpoint.crash",
                  (struct log_field[]){LSTR("at", place[r->at].name), LEND});
        failpoint_report();
        kill(getpid(), SIGKILL);
        for (;;) {
            pause(); /* the signal is on its way; nothing more may happen on this thread */
        }
    case FAIL_MODE_PAUSE:
        pause_at(r);
        return CSN_OK;
    case FAIL_MODE_ERROR:
        return CSN_AGAIN;
    default:
        return CSN_UNKNOWN;
    }
}

csn_status failpoint_hit(enum failpoint f) {
    uint64_t n = atomic_fetch_add_explicit(&hits[f], 1, memory_order_relaxed) + 1;
    if (!armed[f]) {
        return CSN_OK;
    }
    csn_status status = CSN_OK;
    for (size_t i = 0; i < rule_count; i++) {
        if (rules[i].at == f && (rules[i].hit == 0 || rules[i].hit == n)) {
            csn_status s = act(&rules[i]);
            status = s != CSN_OK ? s : status;
        }
    }
    return status;
}

static bool find_place(csn_bytes name, enum failpoint *ret) {
    for (int i = 0; i < FAIL_NR; i++) {
        if (bytes_is(name, place[i].name)) {
            *ret = (enum failpoint)i;
            return true;
        }
    }
    return false;
}

/* Takes "@n" from the end of what; a path may contain an @ that no number follows. */
static bool take_hit(csn_bytes *what, uint64_t *ret) {
    const char *p = what->data;
    size_t digits = 0;
    while (digits < what->size && p[what->size - 1 - digits] >= '0' &&
           p[what->size - 1 - digits] <= '9') {
        digits++;
    }
    if (digits == 0 || digits == what->size || p[what->size - 1 - digits] != '@') {
        return true;
    }
    uint64_t n = 0;
    for (size_t i = what->size - digits; i < what->size; i++) {
        n = n * 10 + (uint64_t)(p[i] - '0');
        if (n > HIT_MAX) {
            return false;
        }
    }
    what->size -= digits + 1;
    *ret = n;
    return n > 0;
}

static csn_status wrong(csn_error *err, csn_bytes part, const char *why) {
    return error_set(err, CSN_INVALID, ERR_CONFIG_VALUE, "CONSIGN_FAILPOINTS: %.*s: %s",
                     (int)part.size, (const char *)part.data, why);
}

static csn_status parse_mode(csn_bytes part, csn_bytes what, struct rule *r, csn_error *err) {
    const char *p = what.data, *colon = memchr(p, ':', what.size);
    csn_bytes name = {p, colon ? (size_t)(colon - p) : what.size};
    for (size_t i = 0; i < ARRAY_LEN(mode_table); i++) {
        r->mode = bytes_is(name, mode_table[i].name) ? mode_table[i].mode : r->mode;
    }
    if (r->mode == 0) {
        return wrong(err, part, "crash, pause:FIFO, error or unknown is expected");
    }
    if ((r->mode == FAIL_MODE_PAUSE) != (colon != NULL)) {
        return wrong(err, part,
                     colon ? "only pause takes a path" : "pause needs a path: pause:FIFO");
    }
    if (!(place[r->at].modes & r->mode)) {
        return wrong(err, part, "this place cannot do that");
    }
    if (!colon) {
        return CSN_OK;
    }
    struct stat st;
    csn_bytes path = {colon + 1, what.size - name.size - 1};
    if (!copy_bytes_text(r->fifo, sizeof r->fifo, path)) {
        return wrong(err, part, "the path is too long");
    }
    if (stat(r->fifo, &st) != 0 || !S_ISFIFO(st.st_mode)) {
        return wrong(err, part, "the path is not a FIFO");
    }
    r->hit = r->hit ? r->hit : 1; /* a pause without a number happens once */
    return CSN_OK;
}

static csn_status parse_rule(csn_bytes part, struct rule *r, csn_error *err) {
    const char *p = part.data, *equals = memchr(p, '=', part.size);
    if (!equals) {
        return wrong(err, part, "PLACE=MODE is expected");
    }
    if (!find_place((csn_bytes){p, (size_t)(equals - p)}, &r->at)) {
        return wrong(err, part, "there is no such place");
    }
    csn_bytes what = {equals + 1, part.size - (size_t)(equals - p) - 1};
    if (!take_hit(&what, &r->hit)) {
        return wrong(err, part, "the number of the hit is out of range");
    }
    return parse_mode(part, what, r, err);
}

csn_status failpoint_arm(const char *spec, csn_error *err) {
    struct rule parsed[RULES_MAX];
    size_t n = 0;
    for (const char *p = spec; p && *p;) {
        size_t size = strcspn(p, ",");
        csn_bytes part = {p, size};
        p += size + (p[size] == ',');
        if (size == 0) {
            continue;
        }
        if (n == RULES_MAX) {
            return wrong(err, part, "too many failpoints");
        }
        parsed[n] = (struct rule){.mode = 0};
        csn_status s = parse_rule(part, &parsed[n], err);
        if (s != CSN_OK) {
            return s;
        }
        n++;
    }
    memset(armed, 0, sizeof armed);
    for (size_t i = 0; i < n; i++) {
        rules[i] = parsed[i];
        armed[parsed[i].at] = true;
    }
    rule_count = n;
    return CSN_OK;
}

bool failpoint_armed(void) {
    return rule_count > 0;
}

uint64_t failpoint_hits(enum failpoint f) {
    return atomic_load_explicit(&hits[f], memory_order_relaxed);
}

const char *failpoint_name(enum failpoint f) {
    return (unsigned)f < FAIL_NR ? place[f].name : NULL;
}

const char *failpoint_help(enum failpoint f) {
    return (unsigned)f < FAIL_NR ? place[f].help : NULL;
}

void failpoint_report(void) {
    const char *path = getenv("CONSIGN_FAILPOINT_HITS");
    if (!path || !*path) {
        return;
    }
    char buffer[FAIL_NR * 48];
    struct text t;
    text_init(&t, buffer, sizeof buffer);
    for (int i = 0; i < FAIL_NR; i++) {
        uint64_t n = failpoint_hits((enum failpoint)i);
        if (n > 0) {
            text_add(&t, "%s %" PRIu64 "\n", place[i].name, n);
        }
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, buffer, t.used) != (ssize_t)t.used) {
        log_event(LOG_ERROR, "failpoint.report",
                  (struct log_field[]){LSTR("path", path), LINT("errno", errno), LEND});
    }
    if (fd >= 0) {
        close(fd);
    }
}
