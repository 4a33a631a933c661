/* daemon.c: one thread decides, the workers do.
 *
 *   meet the stores ─▶ arm failpoints ─▶ start workers ─▶ loop ─▶ stop workers ─▶ counts
 *
 * The loop steps the engine, says what it noted, hears from the workers, and waits: until a SIGTERM
 * came and the engine has let go, or until a store turns out to be one that must not be used.
 *
 * What always holds: nothing here waits without an end. The loop waits for the workers' eventfd, a
 * signal, or the engine's deadline, and looks at least once a second; a start with a store that is
 * away goes on without it, the workers bring it in. A second signal ends the process at once:
 * leases and tokens make that safe, as a crash is. */
#include "host/daemon.h"
#include "base/failpoint.h"
#include "base/log.h"
#include "base/message.h"
#include "host/clock.h"
#include "host/fields.h"
#include "host/plan.h"
#include "host/reload.h"
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <time.h>
#include <unistd.h>

enum { LOOK_EVERY = 1000000, JOIN_SLACK = 2000000, REPORT_MAX = 16384, NOTES_A_STEP = 256 };
enum { EXIT_ERROR = 1, EXIT_BUG = 70 };

struct daemon {
    struct config *config; /* its own: live keys change */
    const struct daemon_options *options;
    struct plan *plan;
    struct engine *engine;
    char label[NAME_MAX_];
    int signal_fd;
    bool ready, stopping;
    csn_usec stop_since;
    csn_error failed; /* status CSN_OK: none */
};

/* ---- words ---- */

static int exit_code_of(const csn_error *err) {
    const struct error_row *row = error_find(err->code);
    return row ? row->exit_code : EXIT_BUG;
}

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

static void log_start(const struct daemon *d) {
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
    for (uint32_t i = 0; i < c->subscriptions; i++) {
        const struct config_subscription *s = &c->subscription[i];
        log_event(LOG_INFO, "subscription",
                  (struct log_field[]){LSTR("consumer", s->consumer), LSTR("match", s->match),
                                       LSTR("broker", s->broker), LSTR("store", s->store),
                                       LINT("partitions", s->partitions),
                                       LSTR("handler", d->plan->handler[i]->sql.name), LEND});
    }
}

/* ---- stores that come and go ---- */

static void say_down(struct daemon *d, struct plan_store *s, const char *role,
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

static void begin_stop(struct daemon *d, csn_usec now) {
    if (!d->stopping) {
        d->stopping = true;
        d->stop_since = now;
        engine_stop(d->engine, now);
    }
}

static void take_news(struct daemon *d, csn_usec now) {
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
static csn_status meet_stores(struct daemon *d, csn_error *err) {
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
static csn_status arm_failpoints(const struct daemon *d, csn_error *err) {
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

/* ---- the loop ---- */

static void log_notes(struct daemon *d) {
    const char *event, *text;
    int level;
    for (int i = 0; i < NOTES_A_STEP && (event = engine_note(d->engine, &level, &text)); i++) {
        struct fields f;
        fields_of(text, &f);
        log_event(level < LOG_ERROR || level > LOG_DEBUG ? LOG_INFO : (enum log_level)level, event,
                  f.field);
    }
}

static void say_ready(struct daemon *d) {
    if (d->ready || d->stopping || !engine_ready(d->engine)) {
        return;
    }
    d->ready = true;
    log_event(
        LOG_INFO, "ready",
        (struct log_field[]){LSTR("node", d->label), LSTR("boot", engine_boot(d->engine)), LEND});
    SAY(d, MSG_DAEMON_READY, (unsigned)d->config->stores, (unsigned)d->config->subscriptions);
}

static void take_reload(struct daemon *d) {
    const struct reload r = {d->config, d->plan, d->engine, d->options};
    if (!d->stopping && reload_all(&r)) {
        set_up_log(d->config, d->options->log_fd);
    }
}

static void end_at_once(void) {
    log_event(LOG_WARN, "stopped", (struct log_field[]){LSTR("why", "a second signal"), LEND});
    failpoint_report();
    _exit(EXIT_ERROR);
}

static void take_signals(struct daemon *d, csn_usec now) {
    struct signalfd_siginfo got;
    while (read(d->signal_fd, &got, sizeof got) == sizeof got) {
        if (got.ssi_signo == SIGHUP) {
            take_reload(d);
            continue;
        }
        if (d->stopping) {
            end_at_once();
        }
        log_event(LOG_INFO, "stopping", (struct log_field[]){LINT("signal", got.ssi_signo), LEND});
        failpoint_hit(FAIL_HOST_STOPPING);
        begin_stop(d, now);
    }
}

static void wait_for_news(struct daemon *d) {
    struct pollfd fd[] = {{.fd = d->plan->ready_fd, .events = POLLIN},
                          {.fd = d->signal_fd, .events = POLLIN}};
    csn_usec now = clock_now(), wait = engine_deadline(d->engine, now) - now;
    wait = wait < 0 ? 0 : wait > LOOK_EVERY ? LOOK_EVERY : wait;
    struct timespec ts = {.tv_sec = wait / 1000000, .tv_nsec = wait % 1000000 * 1000};
    if (ppoll(fd, ARRAY_LEN(fd), &ts, NULL) > 0 && fd[0].revents) {
        uint64_t n;
        while (read(d->plan->ready_fd, &n, sizeof n) < 0 && errno == EINTR) {
        }
    }
}

static void loop(struct daemon *d) {
    for (;;) {
        csn_usec now = clock_now();
        engine_step(d->engine, now);
        log_notes(d);
        plan_sweep(d->plan, d->engine);
        take_news(d, now);
        say_ready(d);
        if (engine_stopped(d->engine, clock_now())) {
            return;
        }
        wait_for_news(d);
        take_signals(d, clock_now());
    }
}

/* ---- the end ---- */

static void log_counts(const struct daemon *d) {
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

/* Returns the exit code. A worker that does not end keeps its connection and the engine's memory:
 * the process ends with it. */
static int end(struct daemon *d) {
    csn_usec took = clock_now() - d->stop_since;
    bool clean = took < d->config->relay.stop_timeout;
    bool ended = plan_stop(d->plan, 2 * d->config->relay.lock_wait + JOIN_SLACK);
    log_notes(d);
    log_counts(d);
    log_event(clean && ended ? LOG_INFO : LOG_WARN, "stopped",
              (struct log_field[]){LSTR("how", !ended  ? "a connection did not answer"
                                               : clean ? "everything was let go"
                                                       : "out of time"),
                                   LUSEC("after", took), LEND});
    SAY(d, clean && ended ? MSG_DAEMON_STOPPED : MSG_DAEMON_STOP_LATE);
    if (ended) {
        engine_free(d->engine);
        plan_free(d->plan);
        free(d->config);
        d->config = NULL;
    }
    d->engine = NULL;
    d->plan = NULL;
    return d->failed.status != CSN_OK ? exit_code_of(&d->failed) : clean && ended ? 0 : EXIT_ERROR;
}

/* ---- the start ---- */

static csn_status take_signal_fd(struct daemon *d, csn_error *err) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    d->signal_fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (d->signal_fd < 0) {
        int e = errno;
        return error_set(err, CSN_FATAL, ERR_NO_MEMORY, "signalfd: %s", strerror(e));
    }
    return CSN_OK;
}

static csn_status make_engine(struct daemon *d, csn_error *err) {
    struct engine_setup setup = {.label = d->label};
    if (getrandom(setup.seed, sizeof setup.seed, 0) != (ssize_t)sizeof setup.seed) {
        return error_set(err, CSN_FATAL, ERR_BUG, "getrandom gave too little");
    }
    csn_status s = plan_start(d->plan, &setup, err);
    return s == CSN_OK ? engine_new(&setup, clock_now(), &d->engine, err) : s;
}

static csn_status start(struct daemon *d, csn_error *err) {
    char report[REPORT_MAX];
    struct text t;
    text_init(&t, report, sizeof report);
    csn_status s = take_signal_fd(d, err);
    if (s == CSN_OK) {
        s = plan_new(d->config, d->options->drivers, &t, &d->plan, err);
    }
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

static void name_node(struct daemon *d) {
    char host[NAME_MAX_] = "";
    if (d->config->node[0] == '\0' && gethostname(host, sizeof host) == 0) {
        host[sizeof host - 1] = '\0';
    }
    copy_text(d->label, sizeof d->label,
              d->config->node[0] ? d->config->node
              : host[0]          ? host
                                 : "consign");
}

/* The copy is freed with what points into it. */
static csn_status copy_config(struct daemon *d, const struct config *c, csn_error *err) {
    d->config = malloc(sizeof *d->config);
    if (!d->config) {
        return error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "the configuration");
    }
    *d->config = *c;
    name_node(d);
    return start(d, err);
}

int daemon_run(const struct config *c, const struct daemon_options *o, csn_error *ret_error) {
    struct daemon d = {.options = o, .signal_fd = -1, .failed = {.status = CSN_OK}};
    set_up_log(c, o->log_fd);
    csn_status s = copy_config(&d, c, &d.failed);
    int code;
    if (s == CSN_OK) {
        error_clear(&d.failed);
        log_start(&d);
        loop(&d);
        code = end(&d);
    } else {
        d.failed.status = s;
        log_error("start.failed", &d.failed);
        code = exit_code_of(&d.failed);
        if (!d.plan || plan_stop(d.plan, 2 * c->relay.lock_wait + JOIN_SLACK)) {
            engine_free(d.engine);
            plan_free(d.plan);
            free(d.config);
        }
    }
    if (d.signal_fd >= 0) {
        close(d.signal_fd);
    }
    failpoint_report();
    if (ret_error) {
        *ret_error = d.failed;
    }
    return code;
}
