/* reload.c: see reload.h.
 *
 *   read ─▶ check, all of it ─▶ read the handler files ─▶ take over ─▶ engine_reload
 *             │ wrong              │ one is wrong
 *             ▼                    ▼
 *           said, and the old configuration stays in force */
#include "host/reload.h"
#include "base/log.h"
#include "base/message.h"
#include <stdlib.h>

enum { REPORT_SIZE = 16384 };

struct work {
    const struct reload *r;
    struct config next;
    struct plan_handler *fresh[SUBSCRIPTIONS_MAX];
    char report[REPORT_SIZE];
    uint32_t mistakes, taken, restart, handlers;
};

#define SAY(w, ...)                                                                                \
    do {                                                                                           \
        if ((w)->r->options->say) {                                                                \
            message_print((w)->r->options->say, __VA_ARGS__);                                      \
            fflush((w)->r->options->say);                                                          \
        }                                                                                          \
    } while (0)

/* ---- reading and checking ---- */

static void on_mistake(void *arg, int32_t code, const char *path, const char *where,
                       const char *text) {
    struct work *w = arg;
    char number[16];
    w->mistakes++;
    snprintf(number, sizeof number, "CSN-%04d", (int)code);
    log_event(LOG_ERROR, "reload.mistake",
              (struct log_field[]){LSTR("code", number), LSTR("key", path), LSTR("where", where),
                                   LSTR("error", text), LEND});
}

static void read_config(struct work *w) {
    const struct service_options *o = w->r->options;
    csn_error err = {0};
    w->next = *w->r->config;
    if (o->reload && o->reload(o->reload_arg, &w->next, on_mistake, w, &err) != CSN_OK &&
        w->mistakes == 0) {
        on_mistake(w, err.code, "", w->r->config->path, err.text);
    }
}

/* Where the new configuration has the handler of this subscription; NULL: it has no such one. */
static const char *path_of(const struct config *c, const char *consumer) {
    for (uint32_t i = 0; i < c->subscriptions; i++) {
        if (strcmp(c->subscription[i].consumer, consumer) == 0) {
            return c->subscription[i].handler_path;
        }
    }
    return NULL;
}

static void read_handler(struct work *w, uint32_t i) {
    const struct config_subscription *s = &w->r->config->subscription[i];
    const char *path = path_of(&w->next, s->consumer);
    struct text report;
    csn_error err = {0};
    text_init(&report, w->report, sizeof w->report);
    if (path && path[0] && w->r->plan->handler[i] &&
        plan_read_handler(w->r->plan, i, path, &report, &w->fresh[i], &err) != CSN_OK) {
        on_mistake(w, err.code, s->consumer, path, err.text);
        if (w->r->options->say && report.used > 0) {
            fputs(w->report, w->r->options->say);
        }
    }
}

/* ---- taking over ---- */

static void on_change(void *arg, const struct config_key *k, const char *path, const char *before,
                      const char *after) {
    struct work *w = arg;
    bool secret = k && (k->bits & CONFIG_SECRET), live = k && k->reload == CONFIG_RELOAD_LIVE;
    const char *from = !before ? "" : secret ? "•••" : before;
    const char *to = !after ? "" : secret ? "•••" : after;
    if (k && k->reload == CONFIG_RELOAD_COMMAND) {
        return; /* none of the daemon's */
    }
    w->taken += live;
    w->restart += !live;
    log_event(live ? LOG_INFO : LOG_WARN, live ? "reload.key" : "reload.needs_restart",
              (struct log_field[]){LSTR("key", path), LSTR("from", from), LSTR("to", to), LEND});
}

static void take_handlers(struct work *w) {
    for (uint32_t i = 0; i < w->r->config->subscriptions; i++) {
        if (!w->fresh[i]) {
            continue;
        }
        log_event(LOG_INFO, "reload.handler",
                  (struct log_field[]){LSTR("consumer", w->r->config->subscription[i].consumer),
                                       LSTR("handler", w->fresh[i]->sql.name),
                                       LSTR("file", w->fresh[i]->path), LEND});
        plan_take_handler(w->r->plan, i, w->fresh[i]);
        w->fresh[i] = NULL;
        w->handlers++;
    }
}

static void take_over(struct work *w) {
    struct engine_setup setup = {.label = NULL};
    config_reload(w->r->config, &w->next, on_change, w);
    take_handlers(w);
    plan_policies(w->r->plan, &setup);
    engine_reload(w->r->engine, &setup);
    log_event(LOG_INFO, "reload",
              (struct log_field[]){LINT("taken", w->taken), LINT("need_restart", w->restart),
                                   LINT("handlers", w->handlers), LEND});
    SAY(w, MSG_DAEMON_RELOADED, w->taken, w->restart, w->handlers);
}

static void refuse(struct work *w) {
    log_event(LOG_ERROR, "reload.refused",
              (struct log_field[]){LINT("mistakes", w->mistakes),
                                   LSTR("text", "the old configuration stays in force"), LEND});
    SAY(w, MSG_DAEMON_NOT_RELOADED, w->mistakes);
}

bool reload_all(const struct reload *r) {
    struct work *w = calloc(1, sizeof *w);
    if (!w) {
        log_event(LOG_ERROR, "reload.refused",
                  (struct log_field[]){LSTR("text", "out of memory"), LEND});
        return false;
    }
    w->r = r;
    read_config(w);
    for (uint32_t i = 0; i < r->config->subscriptions; i++) {
        read_handler(w, i);
    }
    bool good = w->mistakes == 0;
    if (good) {
        take_over(w);
    } else {
        refuse(w);
    }
    for (uint32_t i = 0; i < SUBSCRIPTIONS_MAX; i++) {
        plan_handler_free(w->fresh[i]);
    }
    free(w);
    return good;
}
