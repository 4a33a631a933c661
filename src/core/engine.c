/* engine.c: see engine.h. Reap every port, step every machine, pass on what one has for another: a
 * publish wakes the consumers of its broker, a result event wakes the relay of its store. One
 * WATCH per store asks for all machines that have nothing to do; its pause doubles from probe_min
 * to probe_max while nothing is found. */
#include "core/engine.h"
#include "core/inbox.h"
#include "core/relay.h"
#include <stdlib.h>

enum {
    WATCH_ITEMS_MAX = 2 + 2 * SUBSCRIPTIONS_MAX * APPLY_WORKERS_MAX,
    WATCH_LOOKS = 10, /* in one WATCH, while a store is quiet */
    DECLARE_REST = 1000000
};

struct watcher {
    struct port *port;
    struct op op;
    struct watch_item item[WATCH_ITEMS_MAX];
    struct inbox *inbox[WATCH_ITEMS_MAX]; /* NULL: the relay of the store */
    csn_usec pause, next_at;
    bool nothing; /* all machines are busy or hold no lane: looked at again at the next step */
};

struct declaration {
    struct op op;
    struct binding *binding;
    uint32_t n;
    csn_usec next_at;
    uint32_t faults;
};

struct engine {
    struct notes notes;
    struct prng chance;
    char boot[TOKEN_SIZE], label[NAME_MAX_];
    csn_usec probe_min, probe_max, stop_timeout, stop_at;
    bool stopping;
    uint32_t stores, brokers, subscriptions, inboxes;
    struct port *port[STORES_MAX * 3 + BROKERS_MAX * 2 + SUBSCRIPTIONS_MAX * APPLY_WORKERS_MAX];
    uint32_t ports;
    struct counters counters[STORES_MAX];
    struct lanes outbox[STORES_MAX];       /* lanes of the outbox of each store */
    struct lanes parts[SUBSCRIPTIONS_MAX]; /* lanes of the partitions of each subscription */
    struct relay *relay;                   /* stores */
    struct inbox *inbox;                   /* inboxes */
    uint32_t *inbox_broker, *inbox_store;
    struct watcher *watcher;              /* stores */
    int32_t watch_of_broker[BROKERS_MAX]; /* store whose watch tells of deliveries; -1: pushed */
    struct destination dest[BROKERS_MAX];
    struct declaration declaration[BROKERS_MAX];
    struct relay_route route[ROUTES_MAX];
    uint32_t routes;
};

/* ---- making ---- */

static void add_port(struct engine *e, struct port *p) {
    for (uint32_t i = 0; i < e->ports; i++)
        if (e->port[i] == p)
            return;
    if (p)
        e->port[e->ports++] = p;
}

static csn_status make_store(struct engine *e, const struct engine_setup *s, uint32_t i,
                             csn_error *err) {
    const struct engine_store *store = &s->store[i];
    struct lanes *l = &e->outbox[i];
    lanes_init(l, store->heart, "outbox", store->lanes, s->lease, e->boot, e->label);
    l->counters = &e->counters[i];
    l->notes = &e->notes;
    l->write_counters = true;
    l->counters_text = calloc(1, COUNTERS_MAX);
    e->watcher[i] =
        (struct watcher){.port = store->watch, .pause = s->probe_min, .op.kind = OP_WATCH};
    add_port(e, store->heart);
    add_port(e, store->relay);
    add_port(e, store->watch);
    struct relay *r = &e->relay[i];
    *r = (struct relay){.store = store->name,
                        .lanes = l,
                        .port = store->relay,
                        .dest = e->dest,
                        .dests = s->brokers,
                        .route = e->route,
                        .routes = s->routes,
                        .counters = &e->counters[i],
                        .notes = &e->notes,
                        .chance = &e->chance,
                        .retry = s->retry,
                        .rows = s->batch_rows,
                        .bytes = s->batch_bytes,
                        .lease = s->lease,
                        .lock_wait = s->lock_wait,
                        .pause_min = s->probe_min,
                        .pause_max = s->probe_max,
                        .boot = e->boot};
    if (!l->counters_text)
        return error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "counters of %s", store->name);
    return relay_init(r, err);
}

static csn_status make_broker(struct engine *e, const struct engine_setup *s, uint32_t i,
                              csn_error *err) {
    const struct engine_broker *broker = &s->broker[i];
    struct declaration *d = &e->declaration[i];
    e->dest[i] = (struct destination){
        .name = broker->name, .port = broker->in, .confirm_timeout = broker->confirm_timeout};
    add_port(e, broker->in);
    add_port(e, broker->out);
    add_port(e, broker->heart);
    e->watch_of_broker[i] = -1;
    for (uint32_t k = 0; k < s->stores; k++)
        if (broker->watch && broker->watch == s->store[k].watch)
            e->watch_of_broker[i] = (int32_t)k;
    d->binding = calloc(s->subscriptions + s->bound + 1, sizeof *d->binding);
    if (!d->binding)
        return error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "bindings of %s", broker->name);
    for (uint32_t k = 0; k < s->subscriptions + s->bound; k++) {
        if (s->subscription[k].broker != i)
            continue;
        struct binding *b = &d->binding[d->n++];
        copy_text(b->subscription, sizeof b->subscription, s->subscription[k].consumer);
        copy_text(b->match, sizeof b->match, s->subscription[k].match);
        b->partitions = s->subscription[k].partitions;
    }
    d->op.kind = OP_DECLARE;
    d->op.declare.binding = d->binding;
    d->op.declare.n = d->n;
    return CSN_OK;
}

static uint64_t parts_of_worker(uint32_t partitions, uint32_t worker, uint32_t workers) {
    uint64_t mask = 0;
    for (uint32_t p = worker; p < partitions && p < LANE_MAX; p += workers)
        mask |= UINT64_C(1) << p;
    return mask;
}

static csn_status make_subscription(struct engine *e, const struct engine_setup *s, uint32_t i,
                                    csn_error *err) {
    const struct engine_subscription *sub = &s->subscription[i];
    struct lanes *l = &e->parts[i];
    char name[NAME_MAX_];
    struct text t;
    text_init(&t, name, sizeof name);
    text_add(&t, "sub/%s", sub->consumer);
    lanes_init(l, s->broker[sub->broker].heart, name, sub->partitions, s->lease, e->boot, e->label);
    l->counters = &e->counters[sub->store];
    l->notes = &e->notes;
    for (uint32_t w = 0; w < sub->workers; w++) {
        uint32_t at = e->inboxes++;
        struct inbox *b = &e->inbox[at];
        e->inbox_broker[at] = sub->broker;
        e->inbox_store[at] = sub->store;
        *b = (struct inbox){.consumer = sub->consumer,
                            .store = s->store[sub->store].name,
                            .lanes = l,
                            .part_mask = parts_of_worker(sub->partitions, w, sub->workers),
                            .apply = sub->apply[w],
                            .out = s->broker[sub->broker].out,
                            .pushed = e->watch_of_broker[sub->broker] < 0,
                            .handler = sub->handler,
                            .order = sub->order,
                            .at_most_once = sub->at_most_once,
                            .counters = &e->counters[sub->store],
                            .notes = &e->notes,
                            .chance = &e->chance,
                            .retry = sub->retry,
                            .rows = s->batch_rows,
                            .bytes = s->batch_bytes,
                            .lease = s->lease,
                            .lock_wait = s->lock_wait,
                            .pause_min = s->probe_min,
                            .pause_max = s->probe_max,
                            .boot = e->boot};
        add_port(e, sub->apply[w]);
        if (inbox_init(b, err) != CSN_OK)
            return err->status;
    }
    return CSN_OK;
}

static csn_status make(struct engine *e, const struct engine_setup *s, csn_error *err) {
    uint32_t inboxes = 0;
    for (uint32_t i = 0; i < s->subscriptions; i++)
        inboxes += s->subscription[i].workers;
    e->relay = calloc(s->stores + 1, sizeof *e->relay);
    e->watcher = calloc(s->stores + 1, sizeof *e->watcher);
    e->inbox = calloc(inboxes + 1, sizeof *e->inbox);
    e->inbox_broker = calloc(inboxes + 1, sizeof *e->inbox_broker);
    e->inbox_store = calloc(inboxes + 1, sizeof *e->inbox_store);
    if (!e->relay || !e->watcher || !e->inbox || !e->inbox_broker || !e->inbox_store)
        return error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "engine");
    for (uint32_t i = 0; i < s->routes; i++)
        e->route[i] = (struct relay_route){
            .name = s->route[i].name, .match = s->route[i].match, .to = s->route[i].broker};
    for (uint32_t i = 0; i < s->brokers; i++)
        if (make_broker(e, s, i, err) != CSN_OK)
            return err->status;
    for (; e->stores < s->stores; e->stores++)
        if (make_store(e, s, e->stores, err) != CSN_OK)
            return e->stores++, err->status;
    for (uint32_t i = 0; i < s->subscriptions; i++)
        if (make_subscription(e, s, i, err) != CSN_OK)
            return err->status;
    e->subscriptions = s->subscriptions;
    return CSN_OK;
}

csn_status engine_new(const struct engine_setup *s, csn_usec now, struct engine **ret,
                      csn_error *err) {
    csn_error here = {0};
    if (!err)
        err = &here;
    (void)now;
    if (s->stores == 0 || s->stores > STORES_MAX || s->brokers > BROKERS_MAX ||
        s->subscriptions + s->bound > SUBSCRIPTIONS_MAX || s->routes > ROUTES_MAX ||
        s->batch_rows == 0 || s->batch_rows > BATCH_MAX)
        return error_set(err, CSN_INVALID, ERR_CONFIG_VALUE,
                         "engine: a number is out of its limits");
    struct engine *e = calloc(1, sizeof *e);
    if (!e)
        return error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "engine");
    prng_seed_full(&e->chance, s->seed);
    prng_token(&e->chance, e->boot);
    copy_text(e->label, sizeof e->label, s->label);
    e->probe_min = s->probe_min;
    e->probe_max = s->probe_max;
    e->stop_timeout = s->stop_timeout;
    e->brokers = s->brokers;
    e->routes = s->routes;
    if (make(e, s, err) != CSN_OK) {
        engine_free(e);
        return err->status;
    }
    *ret = e;
    return CSN_OK;
}

void engine_free(struct engine *e) {
    if (!e)
        return;
    for (uint32_t i = 0; i < e->stores; i++) {
        relay_free(&e->relay[i]);
        free(e->outbox[i].counters_text);
    }
    for (uint32_t i = 0; i < e->inboxes; i++)
        inbox_free(&e->inbox[i]);
    for (uint32_t i = 0; i < e->brokers; i++)
        free(e->declaration[i].binding);
    free(e->relay);
    free(e->watcher);
    free(e->inbox);
    free(e->inbox_broker);
    free(e->inbox_store);
    free(e);
}

/* ---- bindings ---- */

static void declared(struct engine *e, uint32_t i, csn_usec now) {
    struct declaration *d = &e->declaration[i];
    d->op.state = OP_IDLE;
    if (d->op.result.status == CSN_OK) {
        e->dest[i].declared = true;
        d->faults = 0;
        for (uint32_t k = 0; k < e->inboxes; k++)
            e->inbox[k].declared |= e->inbox_broker[k] == i;
        return;
    }
    /* A store that is locked or away passes; what it refuses for good needs somebody. */
    if (d->faults++ == 0)
        note_add(&e->notes, d->op.result.status == CSN_AGAIN ? NOTE_WARN : NOTE_ERROR,
                 "broker.undeclared", "broker=%s error=\"%s\"", e->dest[i].name, d->op.result.text);
    d->next_at = now + DECLARE_REST;
}

static void step_declaration(struct engine *e, uint32_t i, csn_usec now) {
    struct declaration *d = &e->declaration[i];
    if (d->op.state == OP_FINISHED)
        declared(e, i, now);
    if (e->dest[i].declared || d->op.state != OP_IDLE || now < d->next_at || e->stopping)
        return;
    d->op.deadline = now + e->dest[i].confirm_timeout;
    e->dest[i].port->submit(e->dest[i].port, &d->op);
    e->dest[i].port->flush(e->dest[i].port);
}

/* ---- watching ---- */

static void add_item(struct watcher *w, uint32_t *n, enum watch_kind kind, struct inbox *b,
                     uint64_t lanes) {
    w->inbox[*n] = b;
    w->item[(*n)++] = (struct watch_item){
        .kind = (uint8_t)kind, .consumer = b ? b->consumer : NULL, .lanes = lanes};
}

/* *ret_all: every machine of this store that has lanes is watched for. */
static uint32_t collect(struct engine *e, uint32_t store, csn_usec now, bool *ret_all) {
    struct watcher *w = &e->watcher[store];
    uint32_t n = 0, machines = 0;
    if (relay_wants_watch(&e->relay[store], now)) {
        add_item(w, &n, WATCH_OUTBOX, NULL, e->outbox[store].held);
        add_item(w, &n, WATCH_RECOVER, NULL, e->outbox[store].held);
    }
    machines += e->outbox[store].held ? 2 : 0;
    for (uint32_t i = 0; i < e->inboxes; i++) {
        struct inbox *b = &e->inbox[i];
        uint64_t parts = b->lanes->held & b->part_mask;
        bool queue = e->watch_of_broker[e->inbox_broker[i]] == (int32_t)store;
        bool work = e->inbox_store[i] == store && !b->at_most_once;
        if (queue && inbox_wants_watch(b, SOURCE_BROKER))
            add_item(w, &n, WATCH_QUEUE, b, parts);
        if (work && inbox_wants_watch(b, SOURCE_WORK))
            add_item(w, &n, WATCH_WORK, b, inbox_slots(b));
        machines += parts ? (uint32_t)queue + work : 0;
    }
    *ret_all = n == machines;
    return n;
}

static bool watched(struct engine *e, uint32_t store) {
    struct watcher *w = &e->watcher[store];
    bool any = false;
    for (uint32_t i = 0; i < w->op.watch.n; i++) {
        if (!w->item[i].found)
            continue;
        any = true;
        if (w->inbox[i])
            inbox_found(w->inbox[i], w->item[i].kind == WATCH_WORK ? SOURCE_WORK : SOURCE_BROKER);
        else
            relay_found(&e->relay[store], w->item[i].kind == WATCH_OUTBOX,
                        w->item[i].kind == WATCH_RECOVER);
    }
    return any;
}

/* Before the machines are stepped: what was found is done in the same step. */
static void hear_watcher(struct engine *e, uint32_t store, csn_usec now) {
    struct watcher *w = &e->watcher[store];
    if (w->op.state != OP_FINISHED)
        return;
    w->op.state = OP_IDLE;
    bool found = w->op.result.status == CSN_OK && watched(e, store);
    w->pause = found ? e->probe_min : w->pause * 2 < e->probe_max ? w->pause * 2 : e->probe_max;
    /* A store that cannot even be looked at is asked again after a pause; its machines say so. */
    w->next_at = w->op.result.status == CSN_OK ? now : now + e->probe_max * 2;
}

/* After them: for what has nothing to do. */
static void ask_watcher(struct engine *e, uint32_t store, csn_usec now) {
    struct watcher *w = &e->watcher[store];
    if (!w->port || w->op.state != OP_IDLE || now < w->next_at || e->stopping)
        return;
    bool all = false;
    uint32_t n = collect(e, store, now, &all);
    w->nothing = n == 0;
    if (w->nothing)
        return;
    w->op.watch.item = w->item;
    w->op.watch.n = n;
    w->op.watch.wait = w->pause;
    /* A quiet store is looked at in its own thread, and this one sleeps. Whoever is not watched for
     * would wait for the end of it. */
    w->op.watch.longest = all && w->pause >= e->probe_max ? e->probe_max * WATCH_LOOKS : 0;
    w->op.watch.next_in = CSN_USEC_NEVER;
    w->op.deadline = now + w->pause + e->probe_max * 20;
    w->port->submit(w->port, &w->op);
    w->port->flush(w->port);
}

/* ---- the step ---- */

static void reap_all(struct engine *e) {
    for (uint32_t i = 0; i < e->ports; i++) {
        struct op *op;
        while ((op = e->port[i]->reap(e->port[i])) != NULL)
            op->state = OP_FINISHED;
    }
}

/* What one machine did is news for another: no need to wait for the next look. */
static void pass_on(struct engine *e) {
    for (uint32_t i = 0; i < e->stores; i++) {
        if (!e->relay[i].woke)
            continue;
        e->relay[i].woke = false;
        for (uint32_t k = 0; k < e->inboxes; k++)
            inbox_found(&e->inbox[k], SOURCE_BROKER);
    }
    for (uint32_t k = 0; k < e->inboxes; k++) {
        if (e->inbox[k].emitted)
            relay_found(&e->relay[e->inbox_store[k]], true, false);
        e->inbox[k].emitted = false;
    }
}

static void step_stop(struct engine *e) {
    bool idle = true, parts = true;
    for (uint32_t i = 0; i < e->stores; i++)
        idle &= relay_idle(&e->relay[i]);
    for (uint32_t i = 0; i < e->inboxes; i++)
        idle &= inbox_idle(&e->inbox[i]);
    if (!idle)
        return;
    for (uint32_t i = 0; i < e->subscriptions; i++) {
        lanes_stop(&e->parts[i]);
        parts &= e->parts[i].dropped;
    }
    for (uint32_t i = 0; parts && i < e->stores; i++)
        lanes_stop(&e->outbox[i]); /* the last word: counters, and the member has left */
}

void engine_step(struct engine *e, csn_usec now) {
    reap_all(e);
    for (uint32_t i = 0; i < e->stores; i++)
        hear_watcher(e, i, now);
    if (e->stopping)
        step_stop(e);
    for (uint32_t i = 0; i < e->stores; i++)
        lanes_step(&e->outbox[i], now);
    for (uint32_t i = 0; i < e->subscriptions; i++)
        lanes_step(&e->parts[i], now);
    for (uint32_t i = 0; i < e->brokers; i++)
        step_declaration(e, i, now);
    for (uint32_t i = 0; i < e->stores; i++)
        relay_step(&e->relay[i], now);
    pass_on(e);
    for (uint32_t i = 0; i < e->inboxes; i++)
        inbox_step(&e->inbox[i], now);
    pass_on(e);
    for (uint32_t i = 0; i < e->stores; i++)
        relay_step(&e->relay[i], now); /* result events of this step */
    for (uint32_t i = 0; i < e->stores; i++)
        ask_watcher(e, i, now);
}

csn_usec engine_deadline(const struct engine *e, csn_usec now) {
    csn_usec until = e->stopping ? e->stop_at : CSN_USEC_NEVER;
#define SOONER(t)                                                                                  \
    do {                                                                                           \
        csn_usec t_ = (t);                                                                         \
        until = t_ < until ? t_ : until;                                                           \
    } while (0)
    for (uint32_t i = 0; i < e->stores; i++) {
        SOONER(lanes_deadline(&e->outbox[i]));
        SOONER(relay_deadline(&e->relay[i], now));
        if (e->watcher[i].port && e->watcher[i].op.state == OP_IDLE && !e->watcher[i].nothing &&
            !e->stopping)
            SOONER(e->watcher[i].next_at);
    }
    for (uint32_t i = 0; i < e->subscriptions; i++)
        SOONER(lanes_deadline(&e->parts[i]));
    for (uint32_t i = 0; i < e->inboxes; i++)
        SOONER(inbox_deadline(&e->inbox[i], now));
    for (uint32_t i = 0; i < e->brokers; i++)
        if (!e->dest[i].declared && e->declaration[i].op.state == OP_IDLE && !e->stopping)
            SOONER(e->declaration[i].next_at);
#undef SOONER
    return until;
}

static void reload_inbox(struct inbox *b, const struct engine_setup *s,
                         const struct engine_subscription *sub) {
    b->retry = sub->retry;
    b->handler = sub->handler;
    b->rows = s->batch_rows;
    b->bytes = s->batch_bytes;
    b->most = b->rows;
    b->pause_min = s->probe_min;
    b->pause_max = s->probe_max;
}

void engine_reload(struct engine *e, const struct engine_setup *s) {
    uint32_t at = 0;
    e->probe_min = s->probe_min;
    e->probe_max = s->probe_max;
    e->stop_timeout = s->stop_timeout;
    for (uint32_t i = 0; i < e->stores; i++) {
        struct relay *r = &e->relay[i];
        r->retry = s->retry;
        r->rows = s->batch_rows;
        r->bytes = s->batch_bytes;
        r->pause_min = s->probe_min;
        r->pause_max = s->probe_max;
        e->watcher[i].pause = s->probe_min;
    }
    for (uint32_t i = 0; i < e->subscriptions; i++)
        for (; at < e->inboxes && e->inbox[at].lanes == &e->parts[i]; at++)
            reload_inbox(&e->inbox[at], s, &s->subscription[i]);
}

bool engine_uses(const struct engine *e, const struct handler *h) {
    for (uint32_t i = 0; i < e->inboxes; i++)
        if (e->inbox[i].handler == h ||
            (e->inbox[i].apply_op.state != OP_IDLE && e->inbox[i].apply_op.apply.handler == h))
            return true;
    return false;
}

bool engine_ready(const struct engine *e) {
    bool all = true;
    for (uint32_t i = 0; i < e->stores; i++)
        all &= e->outbox[i].asked;
    for (uint32_t i = 0; i < e->subscriptions; i++)
        all &= e->parts[i].asked;
    return all;
}

void engine_stop(struct engine *e, csn_usec now) {
    if (e->stopping)
        return;
    e->stopping = true;
    e->stop_at = now + e->stop_timeout;
    for (uint32_t i = 0; i < e->stores; i++)
        relay_stop(&e->relay[i]);
    for (uint32_t i = 0; i < e->inboxes; i++)
        inbox_stop(&e->inbox[i]);
}

bool engine_stopped(const struct engine *e, csn_usec now) {
    if (!e->stopping)
        return false;
    bool all = true;
    for (uint32_t i = 0; i < e->stores; i++)
        all &= e->outbox[i].dropped;
    return all || now >= e->stop_at;
}

const struct counters *engine_counters(const struct engine *e, uint32_t store) {
    return &e->counters[store];
}

const char *engine_boot(const struct engine *e) {
    return e->boot;
}

const char *engine_note(struct engine *e, int *ret_level, const char **ret_text) {
    const struct note *n = note_take(&e->notes);
    if (!n)
        return NULL;
    *ret_level = n->level;
    *ret_text = n->text;
    return n->event;
}
