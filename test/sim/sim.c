/* sim.c: the scheduler and the course of one seed; see sim.h. */
#include "sim.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { EVENTS_MAX = 400000, HASH_START = 0x5eed };

uint64_t sim_below(struct sim *s, uint64_t n) {
    return n > 1 ? prng_below(&s->chance, n) : 0;
}

csn_usec sim_between(struct sim *s, csn_usec least, csn_usec most) {
    return least + (csn_usec)sim_below(s, (uint64_t)(most - least) + 1);
}

void sim_mix(struct sim *s, uint64_t what) {
    s->hash = (s->hash ^ what) * UINT64_C(0x9e3779b97f4a7c15);
    s->hash ^= s->hash >> 29;
}

void sim_happened(struct sim *s, enum fault_kind f) {
    static const char *const names[] = {
#define X(name, text, rate) #name,
#include "faults.def"
#undef X
    };
    s->tally->fault[f]++;
    sim_mix(s, 1000 + (uint64_t)f);
    if (s->trace)
        sim_trace(s, "fault %s", names[f]);
}

bool sim_fault(struct sim *s, enum fault_kind f) {
    if (s->kind || s->plan.rate[f] == 0 || sim_below(s, 10000) >= s->plan.rate[f])
        return false;
    sim_happened(s, f);
    return true;
}

void sim_trace(struct sim *s, const char *format, ...) {
    if (!s->trace)
        return;
    va_list args;
    va_start(args, format);
    printf("%6" PRIu64 " %12.6f  ", s->events, (double)s->now / 1e6);
    vprintf(format, args);
    putchar('\n');
    va_end(args);
}

/* ---- the heap ---- */

static bool first_of(const struct event *a, const struct event *b) {
    return a->at < b->at || (a->at == b->at && a->tie < b->tie);
}

void sim_at(struct sim *s, csn_usec at, enum event_kind kind, void *who, uint32_t a, uint32_t b) {
    if (s->heap_n == s->heap_cap) {
        s->heap_cap = s->heap_cap ? s->heap_cap * 2 : 1024;
        s->heap = realloc(s->heap, s->heap_cap * sizeof *s->heap);
        if (!s->heap)
            abort();
    }
    struct event e = {.at = at > s->now ? at : s->now,
                      .tie = prng_next(&s->chance),
                      .who = who,
                      .kind = kind,
                      .a = a,
                      .b = b};
    uint32_t i = s->heap_n++;
    while (i > 0 && first_of(&e, &s->heap[(i - 1) / 2])) {
        s->heap[i] = s->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    s->heap[i] = e;
}

static struct event heap_pop(struct sim *s) {
    struct event top = s->heap[0], last = s->heap[--s->heap_n];
    uint32_t i = 0;
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= s->heap_n)
            break;
        if (child + 1 < s->heap_n && first_of(&s->heap[child + 1], &s->heap[child]))
            child++;
        if (first_of(&last, &s->heap[child]))
            break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    if (s->heap_n)
        s->heap[i] = last;
    return top;
}

/* ---- the course of a seed ---- */

static void dispatch(struct sim *s, const struct event *e) {
    switch ((enum event_kind)e->kind) {
    case EV_STEP:
        life_step(s, e->who, e->at);
        break;
    case EV_LINE:
        line_event(e->who, e->a);
        break;
    case EV_RESTART:
        life_start(s, e->a);
        break;
    case EV_PRODUCE:
        produce(s, e->a);
        break;
    case EV_TROUBLE:
        trouble(s);
        break;
    case EV_OPERATE:
        operate(s);
        break;
    case EV_RECONCILE:
        reconcile(s);
        break;
    case EV_LAND:
        stream_land(s, e->who, e->b, e->a);
        break;
    case EV_CONFIRM:
        stream_confirm(s, e->who, e->b, e->a);
        break;
    case EV_GIVE_UP:
        stream_give_up(s, e->who, e->a);
        break;
    case EV_RECEIVE:
        stream_serve(e->who);
        break;
    }
}

static bool old_step(const struct event *e) {
    const struct life *l = e->who;
    return e->kind == EV_STEP && (l->dead || l->step_at != e->at);
}

static void one_event(struct sim *s) {
    struct event e = heap_pop(s);
    s->now = e.at;
    if (old_step(&e))
        return;
    s->events++;
    sim_mix(s, (uint64_t)e.at * 16 + e.kind);
    dispatch(s, &e);
    check_dirty(s);
}

/* Every store is held to one clock that never steps, and to an offset of its own. */
static void stores_begin(struct sim *s) {
    for (uint32_t i = 0; i < STORES; i++) {
        fake_store_reset(&s->store[i]);
        s->store[i].outbox_lanes = s->plan.lanes[i];
        s->store[i].offset = sim_between(s, 1700000000 * SEC, 1700000100 * SEC);
        eyes_open(s, &s->store[i]);
    }
    fake_store_reset(&s->bus);
    s->bus.offset = sim_between(s, 0, 1000 * SEC);
    eyes_open(s, &s->bus);
}

static void begin(struct sim *s, uint64_t seed) {
    struct event *heap = s->heap;
    prng_seed(&s->chance, seed);
    s->seed = seed;
    s->now = SEC;
    s->heap = heap;
    s->heap_n = 0;
    s->hash = HASH_START;
    s->events = 0;
    s->kind = s->failed = s->stopped = s->operating = s->stepped = false;
    s->running = NULL;
    s->claim_serial = s->changes = 0;
    s->why[0] = '\0';
    s->lives = 0;
    s->produced = 0;
    s->stream_serial = 0;
    s->blocked_until = s->set_back = 0;
    memset(s->locked_until, 0, sizeof s->locked_until);
    memset(s->down_until, 0, sizeof s->down_until);
    memset(s->current, 0, sizeof s->current);
    memset(s->version, 0, sizeof s->version);
    fake_map_clear(&s->truths);
    fake_map_clear(&s->tokens);
    s->truth.n = s->dirty.n = 0;
    for (uint32_t i = 0; i < STREAM_OPS_MAX; i++)
        s->stream[i].op = NULL;
    arena_reset(&s->arena);
    plan_draw(s);
    stores_begin(s);
}

static void people_begin(struct sim *s) {
    for (uint32_t i = 0; i < s->plan.processes; i++)
        life_start(s, i);
    for (uint32_t i = 0; i < s->plan.producers; i++)
        sim_at(s, s->now + sim_between(s, 0, 50 * MS), EV_PRODUCE, NULL, i, 0);
    if (s->plan.trouble)
        sim_at(s, s->now + sim_between(s, 0, s->plan.trouble * MS), EV_TROUBLE, NULL, 0, 0);
    sim_at(s, s->now + 300 * MS, EV_OPERATE, NULL, 0, 0);
    if (s->plan.rate[FAULT_BROKER_LOSES])
        sim_at(s, s->now + s->plan.lease, EV_RECONCILE, NULL, 0, 0);
}

static bool over(const struct sim *s) {
    return s->failed || s->heap_n == 0 || (s->until && s->events >= s->until);
}

/* A planned row waits for its instant however far the clock was set back; so that a run can end, a
 * person holds it and releases it. */
static void let_go(struct sim *s) {
    for (uint32_t i = 0; i < s->truth.n; i++) {
        struct truth *t = s->truth.at[i];
        csn_usec now = fake_now(t->store);
        bool planned =
            t->planned_at || t->row->next_attempt_at > t->row->created_at + FOLLOWERS_MAX;
        if (!planned || t->row->status != ROW_PENDING || t->row->next_attempt_at <= now)
            continue;
        t->planned_at = 0;
        if (t->row->attempts == 0)
            t->row->next_attempt_at = now;
    }
}

/* From now on nothing goes wrong any more: what is away comes back, who is down starts, clocks
 * stay. */
static void turn_kind(struct sim *s) {
    s->kind = true;
    s->kind_since = s->now;
    let_go(s);
    s->bound = s->now + 8 * s->plan.lease + 30 * SEC + s->plan.inbox.age + s->set_back;
    s->blocked_until = 0;
    for (uint32_t i = 0; i < STORES; i++)
        s->locked_until[i] = s->down_until[i] = 0;
    for (uint32_t i = 0; i < s->plan.processes; i++)
        if (s->current[i])
            s->current[i]->paused_until = s->now;
    sim_trace(s, "kind time begins");
    stream_kick(s);
}

static void not_drained(struct sim *s) {
    char buffer[300];
    struct text left;
    text_init(&left, buffer, sizeof buffer);
    drained(s, &left);
    check(s, CHECK_DRAINS, false, "not drained %.1f s after the faults stopped:%s",
          (double)(s->now - s->kind_since) / 1e6, buffer);
}

static void run_kind(struct sim *s) {
    csn_usec look = s->now;
    while (!over(s)) {
        if (s->now >= look) {
            if (drained(s, NULL))
                break;
            look = s->now + 100 * MS;
        }
        if (s->now > s->bound || s->events > EVENTS_MAX) {
            not_drained(s);
            return;
        }
        one_event(s);
    }
    if (!s->failed && !(s->until && s->events >= s->until))
        check(s, CHECK_DRAINS, drained(s, NULL),
              "nothing is scheduled any more, and it is not drained");
}

static bool lives_and_holds(const struct sim *s, const struct fake_lane *lane) {
    bool mine = false;
    for (uint32_t i = 0; i < s->plan.processes && !mine; i++)
        mine = s->current[i] && !s->current[i]->stopping &&
               strcmp(lane->owner, engine_boot(s->current[i]->engine)) == 0;
    return mine;
}

/* Every lane belongs to a process that lives. */
static bool all_held(struct sim *s) {
    bool all = true;
    for (uint32_t i = 0; i < STORES; i++) {
        const struct fake_lanes *l = fake_lanes_find(&s->store[i], "outbox");
        for (uint32_t n = 0; n < s->plan.lanes[i]; n++)
            all &= lives_and_holds(s, &l->lane[n]);
    }
    for (uint32_t c = 0; c < CONSUMERS; c++) {
        char name[NAME_MAX_];
        snprintf(name, sizeof name, "sub/%s", consumer_names[c]);
        const struct fake_lanes *l = fake_lanes_find(&s->store[0], name);
        for (uint32_t n = 0; n < s->plan.partitions[c]; n++)
            all &= lives_and_holds(s, &l->lane[n]);
    }
    return all;
}

static void run_until(struct sim *s, csn_usec until) {
    while (!over(s) && s->heap[0].at <= until)
        one_event(s);
    if (!over(s) && s->now < until)
        s->now = until;
}

/* All is drained, every rest after a fault is over, every lane is held: who comes now is taken up
 * at once. */
static void receive_guests(struct sim *s) {
    csn_usec rested = s->kind_since + 2 * s->plan.lease + 3 * SEC;
    run_until(s, rested);
    for (uint32_t i = 0; i < s->plan.guests && !over(s); i++) {
        csn_usec bound = s->now + 8 * s->plan.lease;
        while (!over(s) && !all_held(s) && s->now < bound)
            one_event(s);
        if (!over(s))
            check(s, CHECK_DRAINS, all_held(s),
                  "a lane has no owner long after the faults stopped");
        run_until(s, s->now + s->plan.lease + sim_between(s, 0, s->plan.lease));
        guest(s);
        s->bound = s->now + 8 * s->plan.lease + 30 * SEC + s->plan.inbox.age;
        run_kind(s);
    }
}

static void stop_all(struct sim *s) {
    csn_usec until = s->now + 20 * SEC;
    s->stopped = true;
    for (uint32_t i = 0; i < s->plan.processes; i++) {
        struct life *l = s->current[i];
        if (!l)
            continue;
        engine_stop(l->engine, s->now + l->skew);
        l->stopping = true;
        life_wake(s, l, 0);
    }
    bool left = true;
    while (left && !over(s) && s->now < until) {
        one_event(s);
        left = false;
        for (uint32_t i = 0; i < s->plan.processes; i++)
            left |= s->current[i] &&
                    !engine_stopped(s->current[i]->engine, s->now + s->current[i]->skew);
    }
}

void sim_run(struct sim *s, uint64_t seed) {
    begin(s, seed);
    if (s->trace)
        plan_print(s);
    people_begin(s);
    csn_usec cruel_end = s->now + s->plan.cruel;
    while (!over(s) && (s->now < cruel_end || s->produced < s->plan.events) &&
           s->events < EVENTS_MAX)
        one_event(s);
    bool cut = s->until && s->events >= s->until;
    if (!s->failed && !cut) {
        turn_kind(s);
        run_kind(s);
        if (s->plan.guests)
            receive_guests(s);
    }
    cut = s->until && s->events >= s->until;
    if (!s->failed && !cut)
        stop_all(s);
    if (!s->failed && !cut)
        check_books(s);
    sim_mix(s, s->events);
    lives_end(s);
    s->tally->events += s->events;
    s->tally->seeds++;
}

void sim_init(struct sim *s, struct tally *tally) {
    static const char *const names[STORES] = {"orders", "stock"};
    *s = (struct sim){.tally = tally};
    for (uint32_t i = 0; i < STORES; i++)
        fake_store_init(&s->store[i], names[i], &s->now, 1);
    fake_store_init(&s->bus, "bus", &s->now, 1);
    arena_init(&s->arena, (size_t)1 << 28);
}

void sim_free(struct sim *s) {
    for (uint32_t i = 0; i < STORES; i++)
        fake_store_free(&s->store[i]);
    fake_store_free(&s->bus);
    for (uint32_t i = 0; i < LIVES_MAX; i++)
        free(s->life[i]);
    free(s->heap);
    free(s->truths.slot);
    free(s->tokens.slot);
    free(s->truth.at);
    free(s->dirty.at);
    arena_free(&s->arena);
}
