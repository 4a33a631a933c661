/* plan.c: see plan.h. */
#include "host/plan.h"
#include "host/clock.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const role_name[ROLE_NR] = {"heart", "relay",    "apply",
                                               "watch", "queue-in", "queue-out"};

const char *plan_role_name(enum role r) {
    return (unsigned)r < ROLE_NR ? role_name[r] : "?";
}

/* ---- handlers ---- */

/* Reads the whole file; one byte more than allowed is enough to know that it is too large. */
static csn_status read_file(const char *path, char *buffer, size_t size, size_t *ret_size,
                            csn_error *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        int e = errno;
        error_set(err, CSN_INVALID, ERR_CONFIG_REFERENCE, "%s: %s", path, strerror(e));
        return CSN_INVALID;
    }
    size_t used = 0;
    ssize_t n = 1;
    while (n != 0 && used < size) {
        n = read(fd, buffer + used, size - used);
        if (n < 0 && errno != EINTR) {
            break;
        }
        used += n > 0 ? (size_t)n : 0;
    }
    int e = errno;
    close(fd);
    if (n < 0) {
        return error_set(err, CSN_INVALID, ERR_CONFIG_REFERENCE, "%s: %s", path, strerror(e));
    }
    if (used == size) {
        return error_set(err, CSN_INVALID, ERR_HANDLER_SYNTAX, "%s: longer than %d bytes", path,
                         HANDLER_FILE_MAX);
    }
    *ret_size = used;
    return CSN_OK;
}

void plan_handler_free(struct plan_handler *h) {
    if (h) {
        sql_handler_free(&h->sql);
        free(h);
    }
}

static csn_status handler_new(const char *path, csn_bytes text, struct text *report,
                              struct plan_handler **ret, csn_error *err) {
    struct plan_handler *h = calloc(1, sizeof *h);
    if (!h) {
        return error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "%s", path);
    }
    csn_status s = sql_handler_parse(path, text, &h->sql, report, err);
    if (s != CSN_OK) {
        free(h);
        return s;
    }
    copy_text(h->path, sizeof h->path, path);
    h->hash = bytes_hash(text, 0);
    h->handler = (struct handler){.sql = &h->sql};
    *ret = h;
    return CSN_OK;
}

csn_status plan_read_handler(const struct plan *p, uint32_t i, const char *path,
                             struct text *report, struct plan_handler **ret, csn_error *err) {
    enum { BUFFER = HANDLER_FILE_MAX + 1 };
    const struct plan_handler *now = p->handler[i];
    char *buffer = malloc(BUFFER);
    size_t size = 0;
    *ret = NULL;
    if (!buffer) {
        return error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "%s", path);
    }
    csn_status s = read_file(path, buffer, BUFFER, &size, err);
    csn_bytes text = {buffer, size};
    bool same =
        s == CSN_OK && now && strcmp(now->path, path) == 0 && now->hash == bytes_hash(text, 0);
    if (s == CSN_OK && !same) {
        s = handler_new(path, text, report, ret, err);
    }
    free(buffer);
    return s;
}

void plan_take_handler(struct plan *p, uint32_t i, struct plan_handler *h) {
    if (p->handler[i]) {
        p->handler[i]->next = p->replaced;
        p->replaced = p->handler[i];
    }
    p->handler[i] = h;
    for (uint32_t k = 0; k < p->subscriptions; k++) {
        if (p->of[k] == i) {
            p->handled_by[k] = p->engine_subscription[k].handler = &h->handler;
        }
    }
}

void plan_sweep(struct plan *p, const struct engine *e) {
    for (struct plan_handler **at = &p->replaced; *at;) {
        struct plan_handler *h = *at;
        if (engine_uses(e, &h->handler)) {
            at = &h->next;
        } else {
            *at = h->next;
            plan_handler_free(h);
        }
    }
}

/* ---- which subscriptions run here ---- */

static const struct plan_application *application_of(const struct plan_setup *setup,
                                                     const char *consumer) {
    for (uint32_t i = 0; i < setup->applications; i++) {
        if (strcmp(setup->application[i].consumer, consumer) == 0) {
            return &setup->application[i];
        }
    }
    return NULL;
}

static csn_status check_applications(const struct config *c, const struct plan_setup *setup,
                                     csn_error *err) {
    for (uint32_t i = 0; i < setup->applications; i++) {
        const char *consumer = setup->application[i].consumer;
        uint32_t k = 0;
        while (k < c->subscriptions && strcmp(c->subscription[k].consumer, consumer) != 0) {
            k++;
        }
        if (k == c->subscriptions) {
            return error_set(err, CSN_INVALID, ERR_CONFIG_REFERENCE,
                             "there is no subscription \"%s\" in %s", consumer, c->path);
        }
        if (!c->subscription[k].application) {
            return error_set(
                err, CSN_INVALID, ERR_CONFIG_REFERENCE,
                "subscription \"%s\" has an SQL handler; write \"handler: application\"", consumer);
        }
    }
    return CSN_OK;
}

static csn_status select_subscriptions(struct plan *p, const struct plan_setup *setup,
                                       struct text *report, csn_error *err) {
    const struct config *c = p->config;
    uint32_t elsewhere = c->subscriptions;
    csn_status s = check_applications(c, setup, err);
    for (uint32_t i = 0; i < c->subscriptions && s == CSN_OK; i++) {
        const struct config_subscription *sub = &c->subscription[i];
        const struct plan_application *a = application_of(setup, sub->consumer);
        const struct handler *h = a ? &a->handler : NULL;
        if (!a && setup->all && !sub->application) {
            s = plan_read_handler(p, i, sub->handler_path, report, &p->handler[i], err);
            h = s == CSN_OK ? &p->handler[i]->handler : NULL;
        }
        uint32_t k = h ? p->subscriptions++ : --elsewhere;
        p->of[k] = i;
        p->handled_by[k] = h;
    }
    return s;
}

/* The configuration was checked: names and moves are right. */
static void take_policies(struct plan *p) {
    const struct config *c = p->config;
    for (uint32_t i = 0; i < c->events; i++) {
        const struct config_event *e = &c->event[i];
        struct order_rule *r = &p->rule[p->order.rules];
        bool command = strcmp(e->policy, "command") == 0;
        if (!command && strcmp(e->policy, "snapshot") != 0) {
            continue;
        }
        struct order_machine *m = &p->machine[p->order.rules++];
        *r = (struct order_rule){.event_type = e->type,
                                 .policy = command ? POLICY_COMMAND : POLICY_SNAPSHOT,
                                 .deadline = e->gap_deadline};
        if (command && order_machine_parse(e->states, config_moves(c, e->states), m)) {
            r->machine = m;
            r->to = order_state_find(m, bytes_of(e->to));
        }
    }
    p->order.rule = p->rule;
}

csn_status plan_new(const struct config *c, const struct plan_setup *setup, struct text *report,
                    struct plan **ret, csn_error *err) {
    struct plan *p = calloc(1, sizeof *p);
    if (!p) {
        return error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "the plan of the connections");
    }
    p->config = c;
    p->relays = setup->all;
    p->ready_fd = -1;
    for (uint32_t i = 0; i < c->stores; i++) {
        p->store[i].config = &c->store[i];
        p->store[i].driver = driver_for(setup->drivers, c->store[i].url, err);
        if (!p->store[i].driver) {
            error_prefix(err, c->store[i].name);
            plan_free(p);
            return CSN_INVALID;
        }
    }
    take_policies(p);
    csn_status s = select_subscriptions(p, setup, report, err);
    if (s != CSN_OK) {
        plan_free(p);
        return s;
    }
    *ret = p;
    return CSN_OK;
}

/* ---- stores ---- */

/* Also called on the threads of the workers, each time before one opens its connection: whoever
 * comes first makes the tables. */
static csn_status prepare(void *arg, csn_error *err) {
    const struct plan_store *s = arg;
    return s->config->migrate ? s->driver->migrate(s->config->url, err) : CSN_OK;
}

csn_status plan_meet(struct plan *p, uint32_t i, csn_error *err) {
    struct plan_store *store = &p->store[i];
    void *conn = NULL;
    csn_status s = prepare(store, err);
    if (s == CSN_OK) {
        s = store->driver->open(store->config->url, ROLE_HEART, &conn, err);
    }
    if (s != CSN_OK) {
        error_prefix(err, store->config->name);
        err->status = s;
        return s;
    }
    store->driver->close(conn);
    store->met = true;
    return CSN_OK;
}

/* ---- workers and tables ---- */

static csn_status add_worker(struct plan *p, uint32_t store, enum role role, struct port **ret,
                             csn_error *err) {
    struct plan_store *s = &p->store[store];
    struct plan_worker *w = &p->worker[p->workers];
    const struct worker_setup setup = {
        .driver = s->driver,
        .url = s->config->url,
        .role = role,
        .flags = role == ROLE_QUEUE_IN ? PORT_ATOMIC_PUBLISH : 0,
        .ready_fd = p->ready_fd,
        .prepare = s->config->migrate ? prepare : NULL,
        .arg = s,
    };
    csn_status status = worker_start(&setup, &w->w, err);
    if (status != CSN_OK) {
        return status;
    }
    *w = (struct plan_worker){.w = w->w, .port = worker_port(w->w), .role = role, .store = store};
    *ret = w->port;
    s->role[role]++;
    p->workers++;
    return CSN_OK;
}

/* Index of the name; every name was checked with the configuration. */
static uint32_t store_index(const struct config *c, const char *name) {
    uint32_t i = 0;
    while (i < c->stores && strcmp(c->store[i].name, name) != 0) {
        i++;
    }
    return i;
}

static uint32_t broker_index(const struct config *c, const char *name) {
    uint32_t i = 0;
    while (i < c->brokers && strcmp(c->broker[i].name, name) != 0) {
        i++;
    }
    return i;
}

static csn_status no_such(const char *who, const char *name, csn_error *err) {
    return error_set(err, CSN_INVALID, ERR_CONFIG_REFERENCE, "%s: there is no \"%s\"", who, name);
}

static csn_status start_store(struct plan *p, uint32_t i, csn_error *err) {
    struct engine_store *e = &p->engine_store[i];
    e->name = p->config->store[i].name;
    e->lanes = p->relays ? PLAN_LANES : 0;
    csn_status s = add_worker(p, i, ROLE_HEART, &e->heart, err);
    if (s == CSN_OK && p->relays) {
        s = add_worker(p, i, ROLE_RELAY, &e->relay, err);
    }
    if (s == CSN_OK) {
        s = add_worker(p, i, ROLE_WATCH, &e->watch, err);
    }
    return s;
}

static csn_status start_broker(struct plan *p, uint32_t i, csn_error *err) {
    const struct config_broker *c = &p->config->broker[i];
    struct engine_broker *e = &p->engine_broker[i];
    uint32_t store = store_index(p->config, c->store);
    if (store == p->config->stores) {
        return no_such(c->name, c->store, err);
    }
    e->name = c->name;
    e->heart = p->engine_store[store].heart;
    e->watch = p->engine_store[store].watch;
    e->confirm_timeout = c->confirm_timeout;
    csn_status s = add_worker(p, store, ROLE_QUEUE_IN, &e->in, err);
    if (s == CSN_OK) {
        s = add_worker(p, store, ROLE_QUEUE_OUT, &e->out, err);
    }
    return s;
}

static csn_status start_subscription(struct plan *p, uint32_t k, csn_error *err) {
    const struct config_subscription *c = &p->config->subscription[p->of[k]];
    struct engine_subscription *e = &p->engine_subscription[k];
    uint32_t store = store_index(p->config, c->store), broker = broker_index(p->config, c->broker);
    if (store == p->config->stores || broker == p->config->brokers) {
        return no_such(c->consumer, store == p->config->stores ? c->store : c->broker, err);
    }
    uint32_t apply = p->config->store[store].apply;
    *e = (struct engine_subscription){.consumer = c->consumer,
                                      .broker = broker,
                                      .store = store,
                                      .match = c->match,
                                      .partitions = c->partitions,
                                      .handler = p->handled_by[k],
                                      .order = p->order.rules > 0 ? &p->order : NULL,
                                      .at_most_once = c->at_most_once,
                                      .retry = c->retry,
                                      .workers =
                                          apply > APPLY_WORKERS_MAX ? APPLY_WORKERS_MAX : apply};
    csn_status s = CSN_OK;
    for (uint32_t w = 0; w < e->workers && k < p->subscriptions && s == CSN_OK; w++) {
        s = add_worker(p, store, ROLE_APPLY, &e->apply[w], err);
    }
    return s;
}

/* Without a route everything goes to the first broker. */
static csn_status fill_routes(struct plan *p, uint32_t *ret, csn_error *err) {
    const struct config *c = p->config;
    if (c->routes == 0 && c->brokers > 0) {
        p->engine_route[0] = (struct engine_route){.name = "all", .match = "*", .broker = 0};
        *ret = 1;
        return CSN_OK;
    }
    for (uint32_t i = 0; i < c->routes; i++) {
        uint32_t to = broker_index(c, c->route[i].to);
        if (to == c->brokers) {
            return no_such(c->route[i].name, c->route[i].to, err);
        }
        p->engine_route[i] = (struct engine_route){
            .name = c->route[i].name, .match = c->route[i].match, .broker = to};
    }
    *ret = c->routes;
    return CSN_OK;
}

static csn_status start_all(struct plan *p, csn_error *err) {
    const struct config *c = p->config;
    csn_status s = CSN_OK;
    for (uint32_t i = 0; i < c->stores && s == CSN_OK; i++) {
        s = start_store(p, i, err);
    }
    for (uint32_t i = 0; i < c->brokers && s == CSN_OK; i++) {
        s = start_broker(p, i, err);
    }
    for (uint32_t i = 0; i < c->subscriptions && s == CSN_OK; i++) {
        s = start_subscription(p, i, err);
    }
    return s;
}

void plan_policies(struct plan *p, struct engine_setup *setup) {
    const struct config *c = p->config;
    setup->subscription = p->engine_subscription;
    setup->batch_rows = c->relay.batch_rows;
    setup->batch_bytes = c->relay.batch_bytes;
    setup->probe_min = c->relay.probe_min;
    setup->probe_max = c->relay.probe_max;
    setup->stop_timeout = c->relay.stop_timeout;
    setup->retry = c->relay.retry;
    for (uint32_t i = 0; i < c->subscriptions; i++) {
        p->engine_subscription[i].retry = c->subscription[p->of[i]].retry;
    }
}

csn_status plan_start(struct plan *p, struct engine_setup *setup, csn_error *err) {
    const struct config *c = p->config;
    uint32_t routes = 0;
    csn_status s = fill_routes(p, &routes, err);
    if (s != CSN_OK) {
        return s;
    }
    p->ready_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (p->ready_fd < 0) {
        int e = errno;
        return error_set(err, CSN_FATAL, ERR_NO_MEMORY, "eventfd: %s", strerror(e));
    }
    s = start_all(p, err);
    setup->store = p->engine_store;
    setup->broker = p->engine_broker;
    setup->subscription = p->engine_subscription;
    setup->route = p->engine_route;
    setup->stores = c->stores;
    setup->brokers = c->brokers;
    setup->subscriptions = p->subscriptions;
    setup->bound = c->subscriptions - p->subscriptions;
    setup->routes = routes;
    setup->lease = c->relay.lease;
    setup->lock_wait = c->relay.lock_wait;
    plan_policies(p, setup);
    return s;
}

/* ---- the end ---- */

bool plan_stop(struct plan *p, csn_usec longest) {
    for (uint32_t i = 0; i < p->workers; i++) {
        worker_stop(p->worker[i].w);
    }
    csn_usec until = clock_now() + longest;
    bool all = true;
    for (uint32_t i = 0; i < p->workers; i++) {
        csn_usec left = until - clock_now();
        all &= worker_join(p->worker[i].w, left > 0 ? left : 0);
    }
    for (uint32_t i = 0; all && i < p->workers; i++) {
        struct port *port = p->worker[i].port;
        while (port->reap(port)) { /* each is the engine's again; nobody looks at it any more */
        }
    }
    return all;
}

void plan_free(struct plan *p) {
    if (!p) {
        return;
    }
    for (uint32_t i = 0; i < p->workers; i++) {
        worker_free(p->worker[i].w);
    }
    for (uint32_t i = 0; i < SUBSCRIPTIONS_MAX; i++) {
        plan_handler_free(p->handler[i]);
    }
    while (p->replaced) {
        struct plan_handler *h = p->replaced;
        p->replaced = h->next;
        plan_handler_free(h);
    }
    if (p->ready_fd >= 0) {
        close(p->ready_fd);
    }
    free(p);
}

uint32_t plan_connections(const struct plan *p, uint32_t store) {
    uint32_t n = 0;
    for (int r = 0; r < ROLE_NR; r++) {
        n += p->store[store].role[r];
    }
    return n;
}

void plan_roles(const struct plan *p, uint32_t store, struct text *ret) {
    for (int r = 0; r < ROLE_NR; r++) {
        if (p->store[store].role[r] > 0) {
            text_add(ret, "%s%s %u", ret->used ? ", " : "", role_name[r], p->store[store].role[r]);
        }
    }
}
