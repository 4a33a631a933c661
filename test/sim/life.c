/* life.c: processes: the real engine with its connections, from start to crash or stop; and the
 * trouble that comes over them. A crashed engine's memory is kept until nothing that it sent is on
 * its way any more. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>

enum { STEP_LEAST = 20 };

static struct line *add_line(struct life *l, struct fake_store *store, enum role role) {
    struct line *line = &l->line[l->lines++];
    if (store == &l->sim->bus)
        stream_init(line, l, role);
    else
        line_init(line, l, store, role);
    return line;
}

static void make_stores(struct life *l, struct engine_store *store) {
    struct sim *s = l->sim;
    for (uint32_t i = 0; i < STORES; i++)
        store[i] = (struct engine_store){.name = s->store[i].name,
                                         .heart = &add_line(l, &s->store[i], ROLE_HEART)->port,
                                         .relay = &add_line(l, &s->store[i], ROLE_RELAY)->port,
                                         .watch = &add_line(l, &s->store[i], ROLE_WATCH)->port,
                                         .lanes = s->plan.lanes[i]};
}

/* The embedded broker lives in the first store; the lanes of the streaming one's partitions live
 * there, too. */
static uint32_t make_brokers(struct life *l, struct engine_broker *broker,
                             const struct engine_store *store) {
    struct sim *s = l->sim;
    broker[0] = (struct engine_broker){.name = "local",
                                       .in = &add_line(l, &s->store[0], ROLE_QUEUE_IN)->port,
                                       .out = &add_line(l, &s->store[0], ROLE_QUEUE_OUT)->port,
                                       .heart = store[0].heart,
                                       .watch = store[0].watch,
                                       .confirm_timeout = s->plan.confirm_timeout};
    if (!s->plan.bus)
        return 1;
    broker[1] = (struct engine_broker){.name = "bus",
                                       .in = &add_line(l, &s->bus, ROLE_QUEUE_IN)->port,
                                       .out = &add_line(l, &s->bus, ROLE_QUEUE_OUT)->port,
                                       .heart = store[0].heart,
                                       .confirm_timeout = s->plan.confirm_timeout};
    return 2;
}

static void make_subscriptions(struct life *l, struct engine_subscription *sub) {
    struct sim *s = l->sim;
    static const char *const result_types[CONSUMERS] = {"StockReserved", NULL, NULL};
    for (uint32_t i = 0; i < CONSUMERS; i++) {
        struct fake_handler *h = &l->handler[i];
        l->handler_arg[i].life = l;
        l->handler_arg[i].consumer = i;
        *h = (struct fake_handler){.decide = decide,
                                   .emits = emits,
                                   .result_type = result_types[i],
                                   .result_aggregate = "stock",
                                   .arg = &l->handler_arg[i]};
        fake_handler_init(h);
        sub[i] = (struct engine_subscription){.consumer = consumer_names[i],
                                              .broker = i == 1 ? s->plan.bus : s->plan.bus_all,
                                              .store = consumer_store(i),
                                              .match = consumer_matches[i],
                                              .partitions = s->plan.partitions[i],
                                              .handler = &h->handler,
                                              .at_most_once = is_once(s, i),
                                              .retry = s->plan.inbox,
                                              .workers = s->plan.workers};
        for (uint32_t w = 0; w < s->plan.workers; w++)
            sub[i].apply[w] = &add_line(l, &s->store[consumer_store(i)], ROLE_APPLY)->port;
    }
}

static void make_engine(struct life *l) {
    struct sim *s = l->sim;
    const struct plan *p = &s->plan;
    struct engine_store store[STORES];
    struct engine_broker broker[2];
    struct engine_subscription sub[CONSUMERS];
    const struct engine_route route[2] = {{"results", "Stock*", p->bus}, {"all", "*", p->bus_all}};
    make_stores(l, store);
    uint32_t brokers = make_brokers(l, broker, store);
    make_subscriptions(l, sub);
    struct engine_setup setup = {.store = store,
                                 .broker = broker,
                                 .subscription = sub,
                                 .route = route,
                                 .stores = STORES,
                                 .brokers = brokers,
                                 .subscriptions = CONSUMERS,
                                 .routes = 2,
                                 .label = "node",
                                 .batch_rows = p->batch_rows,
                                 .batch_bytes = 2048,
                                 .probe_min = p->probe_min,
                                 .probe_max = p->probe_max,
                                 .lease = p->lease,
                                 .lock_wait = p->lock_wait,
                                 .stop_timeout = p->lease * 2,
                                 .retry = p->relay};
    for (int i = 0; i < 4; i++)
        setup.seed[i] = prng_next(&s->chance);
    csn_error err;
    if (engine_new(&setup, s->now + l->skew, &l->engine, &err) != CSN_OK) {
        fprintf(stderr, "engine: %s\n", err.text);
        abort();
    }
}

void life_start(struct sim *s, uint32_t process) {
    if (s->lives == LIVES_MAX || s->current[process] || s->stopped)
        return;
    uint32_t number = s->lives++;
    struct life *l = s->life[number];
    if (!l)
        l = s->life[number] = calloc(1, sizeof *l);
    if (!l)
        abort();
    l->sim = s;
    l->number = number;
    l->process = process;
    l->lines = 0;
    l->dead = l->stopping = l->hurt = false;
    l->paused_until = 0;
    l->step_at = -1;
    l->skew = sim_between(s, SEC, 100000 * SEC);
    make_engine(l);
    s->current[process] = l;
    sim_trace(s, "process %u.%u starts", process, number);
    life_wake(s, l, 1);
}

void life_wake(struct sim *s, struct life *l, csn_usec in) {
    csn_usec at = s->now + in;
    if (at < l->paused_until)
        at = l->paused_until;
    if (l->dead || (l->step_at >= s->now && l->step_at <= at))
        return;
    l->step_at = at;
    sim_at(s, at, EV_STEP, l, 0, 0);
}

static void say_notes(struct sim *s, struct life *l) {
    const char *event, *text;
    int level;
    while ((event = engine_note(l->engine, &level, &text)) != NULL)
        sim_trace(s, "process %u.%u says %s %s", l->process, l->number, event, text);
}

static void check_stopped(struct sim *s, struct life *l);

void life_step(struct sim *s, struct life *l, csn_usec at) {
    if (at < l->paused_until) {
        l->step_at = -1;
        life_wake(s, l, 0);
        return;
    }
    csn_usec now = s->now + l->skew;
    l->step_at = -1;
    engine_step(l->engine, now);
    l->stepped = now;
    s->tally->steps++;
    say_notes(s, l);
    if (l->stopping && engine_stopped(l->engine, now)) {
        check_stopped(s, l);
        if (!s->stopped)
            life_crash(s, l->process); /* the process ends; what it left pending goes with it */
        return;
    }
    csn_usec next = engine_deadline(l->engine, now);
    if (next != CSN_USEC_NEVER)
        life_wake(s, l, next - now > STEP_LEAST ? next - now : STEP_LEAST);
}

/* In a life without trouble a clean stop leaves nothing behind. */
static void check_stopped(struct sim *s, struct life *l) {
    if (l->hurt || !s->plan.calm)
        return;
    for (uint32_t i = 0; i < STORES; i++) {
        const struct fake_store *st = &s->store[i];
        for (uint32_t k = 0; k < st->lane_sets; k++)
            for (uint32_t n = 0; n < LANE_MAX; n++)
                check(s, CHECK_STOPPED,
                      strcmp(st->lanes[k]->lane[n].owner, engine_boot(l->engine)) != 0,
                      "%s lane %u of %s is still owned after a clean stop", st->name, n,
                      st->lanes[k]->name);
        for (uint32_t k = 0; k < st->outbox.row.n; k++) {
            const struct fake_row *r = st->outbox.row.at[k];
            const struct truth *t = r->mark;
            check(s, CHECK_STOPPED, r->status != ROW_SENDING || t->lease_life != l->number,
                  "%s row %lld is still sending after a clean stop", st->name, (long long)r->seq);
        }
    }
}

void life_bury(struct sim *s, struct life *l) {
    (void)s;
    if (!l->dead || !l->engine)
        return;
    for (uint32_t i = 0; i < l->lines; i++)
        if (!line_quiet(&l->line[i]))
            return;
    engine_free(l->engine);
    l->engine = NULL;
}

void life_crash(struct sim *s, uint32_t process) {
    struct life *l = s->current[process];
    if (!l)
        return;
    l->dead = true;
    s->current[process] = NULL;
    sim_trace(s, "process %u.%u ends", process, l->number);
    for (uint32_t i = 0; i < l->lines; i++) {
        if (l->line[i].stream)
            stream_crash(&l->line[i]);
        else
            line_crash(&l->line[i]);
    }
    life_bury(s, l);
    sim_at(s, s->now + sim_between(s, MS, s->plan.lease * 2), EV_RESTART, NULL, process, 0);
}

void lives_end(struct sim *s) {
    for (uint32_t i = 0; i < s->lives; i++) {
        engine_free(s->life[i]->engine);
        s->life[i]->engine = NULL;
    }
}

/* ---- trouble ---- */

static void step_clock(struct sim *s, uint32_t store, csn_usec by) {
    s->store[store].offset += by;
    s->stepped = true;
    for (uint32_t i = 0; i < s->lives; i++)
        s->life[i]->hurt = true;
    sim_trace(s, "clock of %s steps by %.1f s", s->store[store].name, (double)by / 1e6);
}

static csn_usec far_step(struct sim *s) {
    return sim_below(s, 2) ? sim_between(s, 1, s->plan.lease * 3) : sim_between(s, 1, 3600 * SEC);
}

/* An event ages by the store's clock: what is early for ever is set aside later by as much as the
 * clock was set back. So that a run with such events can end, its steps back are short. */
static csn_usec back_step(struct sim *s) {
    csn_usec by = s->plan.reorder ? sim_between(s, 1, s->plan.lease * 3) : far_step(s);
    s->set_back += s->plan.reorder ? by : 0;
    return by;
}

static void lose_message(struct sim *s) {
    struct fake_store *store = s->plan.bus && sim_below(s, 2) ? &s->bus : &s->store[0];
    if (!store->queue.n)
        return;
    struct fake_queue_row *q = store->queue.at[sim_below(s, store->queue.n)];
    struct truth *t = truth_of(s, q->content.id);
    if (q->acked_at || q->lost || !t)
        return;
    q->lost = true;
    t->lost = true;
    t->live_copies[consumer_number(store->consumer[q->subscription])]--;
    sim_happened(s, FAULT_BROKER_LOSES);
}

static void strike(struct sim *s, enum fault_kind f) {
    uint32_t process = (uint32_t)sim_below(s, s->plan.processes),
             store = (uint32_t)sim_below(s, STORES);
    struct life *l = s->current[process];
    if ((f == FAULT_CRASH || f == FAULT_PAUSE || f == FAULT_STOP || f == FAULT_REOPEN) &&
        (!l || l->stopping))
        return;
    if (f == FAULT_BROKER_LOSES) {
        lose_message(s);
        return;
    }
    if (f == FAULT_REOPEN && !s->plan.bus)
        return;
    if ((f == FAULT_CRASH || f == FAULT_STOP) && s->lives + 4 > LIVES_MAX)
        return;
    sim_happened(s, f);
    if (l)
        l->hurt |= f != FAULT_STOP;
    switch (f) {
    case FAULT_CRASH:
        life_crash(s, process);
        break;
    case FAULT_PAUSE:
        l->paused_until = s->now + sim_between(s, 0, 3 * s->plan.lease);
        break;
    case FAULT_STOP:
        engine_stop(l->engine, s->now + l->skew);
        l->stopping = true;
        life_wake(s, l, 0);
        break;
    case FAULT_LOCKED:
        s->locked_until[store] = s->now + sim_between(s, 0, s->plan.lease);
        break;
    case FAULT_STORE_DOWN:
        s->down_until[store] = s->now + sim_between(s, 0, 2 * s->plan.lease);
        break;
    case FAULT_CLOCK_FORWARD:
        step_clock(s, store, far_step(s));
        break;
    case FAULT_CLOCK_BACK:
        step_clock(s, store, -back_step(s));
        break;
    case FAULT_BLOCKED:
        s->blocked_until = s->now + sim_between(s, 0, 2 * s->plan.lease);
        break;
    case FAULT_REOPEN:
        for (uint32_t i = 0; i < l->lines; i++)
            if (l->line[i].stream && sim_below(s, 2))
                stream_reopen(&l->line[i]);
        break;
    default:
        break;
    }
}

/* One of the troubles of this seed, by their weights. */
void trouble(struct sim *s) {
    static const enum fault_kind kinds[] = {
        FAULT_CRASH,         FAULT_PAUSE,      FAULT_STOP,    FAULT_LOCKED, FAULT_STORE_DOWN,
        FAULT_CLOCK_FORWARD, FAULT_CLOCK_BACK, FAULT_BLOCKED, FAULT_REOPEN, FAULT_BROKER_LOSES};
    uint32_t sum = 0;
    if (s->kind)
        return;
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        sum += s->plan.rate[kinds[i]];
    uint64_t at = sim_below(s, sum);
    for (size_t i = 0; sum && i < ARRAY_LEN(kinds); i++) {
        if (at < s->plan.rate[kinds[i]]) {
            strike(s, kinds[i]);
            break;
        }
        at -= s->plan.rate[kinds[i]];
    }
    sim_at(s, s->now + sim_between(s, s->plan.trouble * MS / 4, s->plan.trouble * MS * 2),
           EV_TROUBLE, NULL, 0, 0);
}
