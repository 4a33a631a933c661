/* service.c: see service.h.
 *
 *   meet the stores ─▶ arm failpoints ─▶ start workers ─▶ step … ─▶ stop workers ─▶ counts
 *
 * A step steps the engine, says what it noted, and hears from the workers. What always holds:
 * nothing here waits, but for service_close, which has a limit; a start with a store that is away
 * goes on without it, the workers bring it in. */
#include "host/service.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/message.h"
#include "host/clock.h"
#include "host/fields.h"
#include "host/reload.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

enum { LOOK_EVERY = 1000000, JOIN_SLACK = 2000000, REPORT_MAX = 16384, NOTES_A_STEP = 256 };

struct service {
    struct config *config; /* its own: live keys change */
    const struct service_options *options;
    struct plan *plan;
    struct engine *engine;
    char label[NAME_MAX_];
    bool ready, stopping;
    csn_usec stop_since;
    csn_error failed; /* status CSN_OK: none */
};

/* ---- words ---- */

static void log_error(const char *event, const csn_error *err) {
    char code[16];
    struct text t;
    text_init(&t, code, sizeof code);
    text_add(&t, "CSN-%04d", (int)err->code);
    log_event(LOG_ERROR, event,
              (struct log_field[]){LSTR("code", code), LSTR("error", err->text), LEND});
}

#define SAY(d, ...)                                                                                \
    do {                                                                                           \
        if ((d)->options->say) {                                                                   \
            message_print((d)->options->say, __VA_ARGS__);                                         \
            fflush((d)->options->say);                                                             \
        }                                                                                          \
    } while (0)

static void set_up_log(const struct config *c, int fd) {
    static const char *const level[] = {"error", "warn", "info", "debug"};
    int to = fd >= 0 ? fd : STDERR_FILENO;
    enum log_level least = LOG_INFO;
    for (size_t i = 0; i < ARRAY_LEN(level); i++) {
        least = strcmp(c->log_level, level[i]) == 0 ? (enum log_level)i : least;
    }
    bool text =
        strcmp(c->log_format, "text") == 0 || (strcmp(c->log_format, "json") != 0 && isatty(to));
    log_setup(to, text ? LOG_TEXT : LOG_JSON, least);
}

static void log_start(const struct service *d) {
    const struct config *c = d->config;
    log_event(LOG_INFO, "start",
              (struct log_field[]){LSTR("version", CSN_VERSION), LSTR("node", d->label),
                                   LSTR("config", c->path), LINT("stores", c->stores),
                                   LINT("brokers", c->brokers),
                                   LINT("subscriptions", c->subscriptions), LEND});
    for (uint32_t i = 0; i < c->stores; i++) {
        char roles[160];
        struct text t;
        text_init(&t, roles, sizeof roles);
        plan_roles(d->plan, i, &t);
        uint32_t n = plan_connections(d->plan, i);
        log_event(LOG_INFO, "store.connections",
                  (struct log_field[]){LSTR("store", c->store[i].name), LINT("connections", n),
                                       LSTR("roles", roles), LEND});
        SAY(d, MSG_DAEMON_CONNECTIONS, c->store[i].name, n, roles);
    }
    for (uint32_t k = 0; k < c->subscriptions; k++) {
        const struct config_subscription *s = &c->subscription[d->plan->of[k]];
        const struct handler *h = d->plan->handled_by[k];
        log_event(LOG_INFO, "subscription",
                  (struct log_field[]){LSTR("consumer", s->consumer), LSTR("match", s->match),
                                       LSTR("broker", s->broker), LSTR("store", s->store),
                                       LINT("partitions", s->partitions),
                                       LSTR("handler", !h       ? "another process"
                                                       : h->sql ? h->sql->name
                                                                : "application"),
                                       LEND});
    }
}

/* ---- stores that come and go ---- */

static void say_down(struct service *d, struct plan_store *s, const char *role,
                     const csn_error *why) {
    if (s->down) {
        return;
    }
    s->down = true;
    char code[16];
    struct text t;
    text_init(&t, code, sizeof code);
    text_add(&t, "CSN-%04d", (int)why->code);
    log_event(LOG_WARN, "store.down",
              (struct log_field[]){LSTR("store", s->config->name), LSTR("role", role),
                                   LSTR("code", code), LSTR("error", why->text), LEND});
    if (!s->met) {
        SAY(d, MSG_DAEMON_STORE_WAIT, s->config->name, why->text);
    }
}

static void say_up(struct plan_store *s) {
    s->met = true;
    if (!s->down) {
        return;
    }
    s->down = false;
    log_event(LOG_INFO, "store.up", (struct log_field[]){LSTR("store", s->config->name), LEND});
}

/* Waiting does not help against these: somebody must mend the store, or use another program. */
static bool for_good(const struct plan_store *s, const csn_error *why) {
    switch (why->code) {
    case ERR_STORE_SCHEMA_OLD:
    case ERR_STORE_SCHEMA_NEW:
    case ERR_STORE_COLUMN:
        return true;
    default:
        return !s->met && why->status != CSN_AGAIN && why->status != CSN_NOMEM;
    }
}

static void begin_stop(struct service *d, csn_usec now) {
    if (!d->stopping) {
        d->stopping = true;
        d->stop_since = now;
        engine_stop(d->engine, now);
    }
}

static void take_news(struct service *d, csn_usec now) {
    for (uint32_t i = 0; i < d->plan->workers; i++) {
        struct plan_worker *w = &d->plan->worker[i];
        struct plan_store *s = &d->plan->store[w->store];
        enum worker_state state;
        csn_error why;
        if (!worker_news(w->w, &state, &why)) {
            continue;
        }
        bool down = state == WORKER_DOWN;
        s->downs = s->downs + (down && !w->down) - (!down && w->down);
        w->down = down;
        if (down && for_good(s, &why) && d->failed.status == CSN_OK) {
            d->failed = why;
            error_prefix(&d->failed, s->config->name);
            log_error("store.unfit", &d->failed);
            begin_stop(d, now);
        } else if (down) {
            say_down(d, s, plan_role_name(w->role), &why);
        } else if (s->downs == 0) {
            say_up(s);
        }
    }
}

/* A store that cannot be used is an error of the start; one that is away is left to the workers. */
static csn_status meet_stores(struct service *d, csn_error *err) {
    for (uint32_t i = 0; i < d->config->stores; i++) {
        struct plan_store *s = &d->plan->store[i];
        csn_status status = plan_meet(d->plan, i, err);
        if (status == CSN_AGAIN) {
            say_down(d, s, "start", err);
        } else if (status != CSN_OK) {
            return status;
        }
    }
    error_clear(err);
    return CSN_OK;
}

/* Failpoints are for marked databases: a variable left in an environment must not crash a
 * production daemon. */
static csn_status arm_failpoints(const struct service *d, csn_error *err) {
    const char *spec = d->options->failpoints;
    if (!spec || !*spec) {
        return CSN_OK;
    }
    for (uint32_t i = 0; i < d->config->stores; i++) {
        const struct config_store *s = &d->config->store[i];
        bool there = false;
        csn_status status = d->plan->store[i].driver->marked(s->url, &there, err);
        if (status != CSN_OK) {
            error_prefix(err, s->name);
            return status;
        }
        if (!there) {
            return error_set(err, CSN_INVALID, ERR_STORE_NO_MARKER,
                             "CONSIGN_FAILPOINTS is set, and store %s is no laboratory store",
                             s->name);
        }
    }
    csn_status status = failpoint_arm(spec, err);
    if (status == CSN_OK) {
        log_event(LOG_WARN, "failpoints.armed", (struct log_field[]){LSTR("spec", spec), LEND});
    }
    return status;
}

/* ---- the step ---- */

static void log_notes(struct service *d) {
    const char *event, *text;
    int level;
    for (int i = 0; i < NOTES_A_STEP && (event = engine_note(d->engine, &level, &text)); i++) {
        struct fields f;
        fields_of(text, &f);
        log_event(level < LOG_ERROR || level > LOG_DEBUG ? LOG_INFO : (enum log_level)level, event,
                  f.field);
    }
}

static void say_ready(struct service *d) {
    if (d->ready || d->stopping || !engine_ready(d->engine)) {
        return;
    }
    d->ready = true;
    log_event(
        LOG_INFO, "ready",
        (struct log_field[]){LSTR("node", d->label), LSTR("boot", engine_boot(d->engine)), LEND});
    SAY(d, MSG_DAEMON_READY, (unsigned)d->config->stores, (unsigned)d->config->subscriptions);
}

bool service_reload(struct service *s) {
    const struct reload r = {s->config, s->plan, s->engine, s->options};
    if (s->stopping || !reload_all(&r)) {
        return false;
    }
    set_up_log(s->config, s->options->log_fd);
    return true;
}

static void drain(int fd) {
    uint64_t n;
    while (read(fd, &n, sizeof n) < 0 && errno == EINTR) {
    }
}

bool service_step(struct service *s) {
    csn_usec now = clock_now();
    drain(s->plan->ready_fd);
    engine_step(s->engine, now);
    log_notes(s);
    plan_sweep(s->plan, s->engine);
    take_news(s, now);
    say_ready(s);
    return !engine_stopped(s->engine, clock_now());
}

int service_fd(const struct service *s) {
    return s->plan->ready_fd;
}

csn_usec service_timeout(const struct service *s) {
    csn_usec now = clock_now(), wait = engine_deadline(s->engine, now) - now;
    return wait < 0 ? 0 : wait > LOOK_EVERY ? LOOK_EVERY : wait;
}

void service_stop(struct service *s) {
    begin_stop(s, clock_now());
}

bool service_stopping(const struct service *s) {
    return s->stopping;
}

const csn_error *service_failed(const struct service *s) {
    return &s->failed;
}

/* ---- the end ---- */

static void log_counts(const struct service *d) {
    for (uint32_t i = 0; i < d->config->stores; i++) {
        const struct counters *c = engine_counters(d->engine, i);
        log_event(LOG_INFO, "store.counts",
                  (struct log_field[]){
                      LSTR("store", d->config->store[i].name), LINT("claimed", c->claimed),
                      LINT("published", c->published), LINT("confirmed", c->confirmed),
                      LINT("sent", c->sent), LINT("failed", c->failed),
                      LINT("given_back", c->given_back), LINT("unknown", c->unknown),
                      LINT("stale_writes", c->stale_writes), LINT("recovered", c->recovered),
                      LINT("received", c->received), LINT("handled", c->handled),
                      LINT("refused", c->refused), LINT("duplicates", c->duplicates),
                      LINT("retries", c->retries), LINT("dead", c->dead), LINT("acked", c->acked),
                      LINT("emitted", c->emitted), LEND});
    }
}

/* A worker that does not end keeps its connection and the engine's memory: they are left alone. */
bool service_close(struct service *s, csn_error *ret_failed) {
    csn_usec took = clock_now() - s->stop_since;
    bool clean = took < s->config->relay.stop_timeout;
    bool ended = plan_stop(s->plan, 2 * s->config->relay.lock_wait + JOIN_SLACK);
    log_notes(s);
    log_counts(s);
    log_event(clean && ended ? LOG_INFO : LOG_WARN, "stopped",
              (struct log_field[]){LSTR("how", !ended  ? "a connection did not answer"
                                               : clean ? "everything was let go"
                                                       : "out of time"),
                                   LUSEC("after", took), LEND});
    SAY(s, clean && ended ? MSG_DAEMON_STOPPED : MSG_DAEMON_STOP_LATE);
    *ret_failed = s->failed;
    if (ended) {
        engine_free(s->engine);
        plan_free(s->plan);
        free(s->config);
        free(s);
    }
    return clean && ended;
}

/* ---- the start ---- */

static csn_status make_engine(struct service *d, csn_error *err) {
    struct engine_setup setup = {.label = d->label};
    if (getrandom(setup.seed, sizeof setup.seed, 0) != (ssize_t)sizeof setup.seed) {
        return error_set(err, CSN_FATAL, ERR_BUG, "getrandom gave too little");
    }
    csn_status s = plan_start(d->plan, &setup, err);
    return s == CSN_OK ? engine_new(&setup, clock_now(), &d->engine, err) : s;
}

static csn_status start(struct service *d, csn_error *err) {
    char report[REPORT_MAX];
    struct text t;
    text_init(&t, report, sizeof report);
    const struct plan_setup setup = {.drivers = d->options->drivers,
                                     .all = d->options->all,
                                     .application = d->options->application,
                                     .applications = d->options->applications};
    csn_status s = plan_new(d->config, &setup, &t, &d->plan, err);
    if (s != CSN_OK && t.used > 0 && d->options->say) {
        fputs(report, d->options->say);
    }
    if (s == CSN_OK) {
        s = meet_stores(d, err);
    }
    if (s == CSN_OK) {
        s = arm_failpoints(d, err);
    }
    return s == CSN_OK ? make_engine(d, err) : s;
}

static void name_node(struct service *d) {
    char host[NAME_MAX_] = "";
    if (d->config->node[0] == '\0' && gethostname(host, sizeof host) == 0) {
        host[sizeof host - 1] = '\0';
    }
    copy_text(d->label, sizeof d->label,
              d->config->node[0] ? d->config->node
              : host[0]          ? host
                                 : "consign");
}

/* Workers that were started before the failure are stopped; one that does not end is left alone. */
static void undo(struct service *d) {
    if (!d->plan || plan_stop(d->plan, 2 * d->config->relay.lock_wait + JOIN_SLACK)) {
        engine_free(d->engine);
        plan_free(d->plan);
        free(d->config);
        free(d);
    }
}

csn_status service_open(const struct config *c, const struct service_options *o,
                        struct service **ret, csn_error *err) {
    struct service *d = calloc(1, sizeof *d);
    set_up_log(c, o->log_fd);
    if (!d || !(d->config = malloc(sizeof *d->config))) {
        free(d);
        return error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "the configuration");
    }
    *d->config = *c;
    d->options = o;
    name_node(d);
    csn_status s = start(d, err);
    if (s != CSN_OK) {
        err->status = s;
        log_error("start.failed", err);
        undo(d);
        return s;
    }
    error_clear(err);
    log_start(d);
    *ret = d;
    return CSN_OK;
}
