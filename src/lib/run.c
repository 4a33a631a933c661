/* run.c: a consign that a program opens: the configuration, its subscriptions, and the service that
 * runs them. Nothing is connected before csn_start. */
#include "base/error.h"
#include "conf/load.h"
#include "host/service.h"
#include <poll.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { DRIVERS_MAX = 8 };

struct csn {
    struct load *load;
    const struct store_driver *driver[DRIVERS_MAX + 1];
    struct plan_application application[SUBSCRIPTIONS_MAX];
    char consumer[SUBSCRIPTIONS_MAX][NAME_MAX_];
    uint32_t applications;
    struct service_options options;
    struct service *service;
    int wake_fd;   /* the service's, for csn_stop in any thread; -1 before */
    bool asked;    /* csn_stop: only ever set; read and written as an atomic */
    bool done;     /* the last step was made */
    csn_error why; /* of the stop; CSN_OK: asked to */
};

static csn_status too_late(const csn *c, const char *call, csn_error *err) {
    if (!c)
        return error_set(err, CSN_INVALID, ERR_ARGUMENT, "%s: no consign is given", call);
    if (c->service || c->done)
        return error_set(err, CSN_INVALID, ERR_CALL_ORDER, "%s: it was started already", call);
    return CSN_OK;
}

/* ---- opening ---- */

static csn_status take_drivers(csn *c, const struct csn_driver *const *drivers, csn_error *err) {
    uint32_t n = 0;
    for (; drivers && drivers[n]; n++) {
        const struct store_driver *d = (const struct store_driver *)drivers[n];
        if (n == DRIVERS_MAX)
            return error_set(err, CSN_INVALID, ERR_ARGUMENT, "open: more than %d drivers",
                             DRIVERS_MAX);
        if (strcmp(d->version, CSN_VERSION) != 0)
            return error_set(err, CSN_INVALID, ERR_LIBRARY_VERSION,
                             "open: libconsign is %s, the driver of %s is %s", CSN_VERSION,
                             d->scheme, d->version);
        c->driver[n] = d;
    }
    return n ? CSN_OK : error_set(err, CSN_INVALID, ERR_ARGUMENT, "open: no driver is given");
}

static csn_status first_mistake(const struct load *l, csn_error *err) {
    if (l->mistakes == 0)
        return CSN_OK;
    const struct mistake *m = &l->mistake[0];
    char where[URL_MAX_ + 16];
    struct text t;
    text_init(&t, where, sizeof where);
    text_add(&t, "%s", m->source[0] ? m->source : l->shown);
    if (!m->source[0] && m->at.line > 0)
        text_add(&t, ":%u", m->at.line);
    error_set(err, CSN_INVALID, m->code, "%s", m->text);
    return error_prefix(err, where);
}

csn_status csn_open(const char *config_path, const struct csn_driver *const *drivers, csn **ret,
                    csn_error *err) {
    csn_error here;
    err = err ? err : &here;
    error_clear(err);
    if (!ret)
        return error_set(err, CSN_INVALID, ERR_ARGUMENT, "open: no place for it is given");
    csn *c = calloc(1, sizeof *c);
    if (!c)
        return error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "open");
    c->wake_fd = -1;
    csn_status s = take_drivers(c, drivers, err);
    const struct load_input in = {
        .file = config_path, .environment = environ, .drivers = c->driver};
    if (s == CSN_OK)
        s = load_config(&in, &c->load, err);
    if (s == CSN_OK)
        s = first_mistake(c->load, err);
    if (s != CSN_OK) {
        csn_close(c);
        return s;
    }
    *ret = c;
    return CSN_OK;
}

/* A member that this version does not know must be unused. */
static csn_status check_subscription(const csn_subscription *s, csn_error *err) {
    const char *wrong = !s                                 ? "no subscription is given"
                        : s->size != sizeof *s             ? "size is not that of the structure"
                        : !s->consumer                     ? "consumer is missing"
                        : !s->handler                      ? "handler is missing"
                        : strlen(s->consumer) >= NAME_MAX_ ? "consumer is too long"
                                                           : NULL;
    return wrong ? error_set(err, CSN_INVALID, ERR_ARGUMENT, "subscribe: %s", wrong) : CSN_OK;
}

static csn_status check_consumer(const csn *c, const char *consumer, csn_error *err) {
    const struct config *conf = &c->load->config;
    uint32_t i = 0;
    while (i < conf->subscriptions && strcmp(conf->subscription[i].consumer, consumer) != 0)
        i++;
    if (i == conf->subscriptions)
        return error_set(err, CSN_INVALID, ERR_CONFIG_REFERENCE,
                         "subscribe: there is no subscription \"%s\" in %s", consumer,
                         c->load->shown);
    if (!conf->subscription[i].application)
        return error_set(err, CSN_INVALID, ERR_CONFIG_REFERENCE,
                         "subscribe: \"%s\" has an SQL handler; write \"handler: application\"",
                         consumer);
    for (i = 0; i < c->applications; i++)
        if (strcmp(c->consumer[i], consumer) == 0)
            return error_set(err, CSN_INVALID, ERR_CALL_ORDER, "subscribe: \"%s\" has its handler",
                             consumer);
    return CSN_OK;
}

csn_status csn_subscribe(csn *c, const csn_subscription *s, csn_error *err) {
    csn_error here;
    err = err ? err : &here;
    error_clear(err);
    csn_status st = too_late(c, "subscribe", err);
    if (st == CSN_OK)
        st = check_subscription(s, err);
    if (st == CSN_OK)
        st = check_consumer(c, s->consumer, err);
    if (st != CSN_OK)
        return st;
    uint32_t n = c->applications++;
    copy_text(c->consumer[n], sizeof c->consumer[n], s->consumer);
    c->application[n] = (struct plan_application){
        .consumer = c->consumer[n], .handler = {.application = s->handler, .arg = s->arg}};
    return CSN_OK;
}

csn_status csn_serve(csn *c, csn_error *err) {
    csn_error here;
    err = err ? err : &here;
    error_clear(err);
    csn_status st = too_late(c, "serve", err);
    if (st == CSN_OK)
        c->options.all = true;
    return st;
}

/* ---- running ---- */

csn_status csn_start(csn *c, csn_error *err) {
    csn_error here;
    err = err ? err : &here;
    error_clear(err);
    csn_status st = too_late(c, "start", err);
    if (st == CSN_OK && !c->options.all && c->applications == 0)
        st = error_set(err, CSN_INVALID, ERR_CALL_ORDER,
                       "start: nothing is to be run; csn_subscribe or csn_serve first");
    if (st != CSN_OK)
        return st;
    c->options.drivers = c->driver;
    c->options.application = c->application;
    c->options.applications = c->applications;
    c->options.log_fd = -1;
    st = service_open(&c->load->config, &c->options, &c->service, err);
    if (st == CSN_OK)
        __atomic_store_n(&c->wake_fd, service_fd(c->service), __ATOMIC_RELEASE);
    return st;
}

int csn_fd(const csn *c) {
    return c && c->service ? service_fd(c->service) : -1;
}

csn_usec csn_timeout(const csn *c) {
    return c && c->service && !c->done ? service_timeout(c->service) : 0;
}

int csn_done(const csn *c) {
    return !c || c->done;
}

static void finish(csn *c) {
    __atomic_store_n(&c->wake_fd, -1, __ATOMIC_RELEASE);
    (void)service_close(c->service, &c->why);
    c->service = NULL;
    c->done = true;
}

csn_status csn_step(csn *c, csn_error *err) {
    csn_error here;
    err = err ? err : &here;
    error_clear(err);
    if (!c || (!c->service && !c->done))
        return error_set(err, CSN_INVALID, ERR_CALL_ORDER, "step: it was not started");
    if (c->service && __atomic_load_n(&c->asked, __ATOMIC_ACQUIRE))
        service_stop(c->service);
    if (c->service && !service_step(c->service))
        finish(c);
    *err = c->done ? c->why : *service_failed(c->service);
    return err->status;
}

/* A signal that ends the wait early does no harm: a step more. */
static void wait_for_news(const csn *c) {
    struct pollfd fd = {.fd = csn_fd(c), .events = POLLIN};
    csn_usec wait = csn_timeout(c);
    struct timespec ts = {.tv_sec = wait / 1000000, .tv_nsec = wait % 1000000 * 1000};
    (void)ppoll(&fd, 1, &ts, NULL);
}

csn_status csn_run(csn *c, csn_error *err) {
    csn_error here;
    err = err ? err : &here;
    csn_status st = c && c->service ? CSN_OK : csn_start(c, err);
    if (st != CSN_OK)
        return st;
    do {
        st = csn_step(c, err);
        if (!csn_done(c))
            wait_for_news(c);
    } while (!csn_done(c));
    return st;
}

/* Async-signal-safe: an atomic store and a write. */
void csn_stop(csn *c) {
    uint64_t one = 1;
    if (!c)
        return;
    __atomic_store_n(&c->asked, true, __ATOMIC_RELEASE);
    int fd = __atomic_load_n(&c->wake_fd, __ATOMIC_ACQUIRE);
    if (fd >= 0 && write(fd, &one, sizeof one) < 0) {
        /* it is awake already, or closed: the store was enough */
    }
}

void csn_close(csn *c) {
    csn_error err;
    if (!c)
        return;
    csn_stop(c);
    while (c->service) { /* ends: the engine stops in relay.stop_timeout */
        (void)csn_step(c, &err);
        if (c->service)
            wait_for_news(c);
    }
    load_free(c->load);
    free(c);
}
