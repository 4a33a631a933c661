/* plan.c: what a seed is like. Swarm: each seed takes a random part of the faults, each with its
 * own rate, so that one fault cannot hide another; some seeds have one fault only, some none. */
#include "sim.h"

#include <inttypes.h>
#include <stdio.h>

static const uint32_t usual_rate[FAULT_NR] = {
#define X(name, text, rate) rate,
#include "faults.def"
#undef X
};

/* Faults that are asked for in other ways than by the rates of the table; here a rate of 1 … 10,000
 * is a weight or a share. */
static const struct {
    enum fault_kind fault;
    uint32_t most;
} drawn[] = {{FAULT_CRASH, 10},
             {FAULT_PAUSE, 10},
             {FAULT_STOP, 4},
             {FAULT_LOCKED, 6},
             {FAULT_STORE_DOWN, 6},
             {FAULT_CLOCK_FORWARD, 5},
             {FAULT_CLOCK_BACK, 5},
             {FAULT_REOPEN, 8},
             {FAULT_BLOCKED, 6},
             {FAULT_BROKER_LOSES, 6},
             {FAULT_RETURNED, 300},
             {FAULT_REJECTED, 300},
             {FAULT_EXPIRES, 500},
             {FAULT_CONFIRM_SWAPPED, 3000},
             {FAULT_VERDICT_REFUSED, 1500},
             {FAULT_VERDICT_RETRY, 1500},
             {FAULT_VERDICT_BUDGET, 400},
             {FAULT_VERDICT_POISON, 400},
             {FAULT_VERDICT_CONFLICT, 400},
             {FAULT_VERDICT_EARLY, 1000},
             {FAULT_VERDICT_UNKNOWN, 1000},
             {FAULT_OPERATOR_RETRY, 5000},
             {FAULT_OPERATOR_CANCEL, 2000}};

static uint32_t most_of(enum fault_kind f) {
    for (size_t i = 0; i < ARRAY_LEN(drawn); i++)
        if (drawn[i].fault == f)
            return drawn[i].most;
    return usual_rate[f] * 2;
}

static bool always(enum fault_kind f) {
    return f == FAULT_CRASH_RAN || f == FAULT_VERDICT_LATE || f == FAULT_REDELIVERED ||
           f == FAULT_RECONCILE;
}

static void draw_rates(struct sim *s, uint32_t share) {
    for (enum fault_kind f = 0; f < FAULT_NR; f++) {
        s->plan.rate[f] = 0;
        if (always(f) || sim_below(s, 100) >= share)
            continue;
        s->plan.rate[f] = 1 + (uint32_t)sim_below(s, most_of(f));
    }
    s->plan.rate[FAULT_CRASH_RAN] = 5000;
}

/* With a far broker: a renewal is not made, or nobody knows. */
static const enum fault_kind renewal_fails[] = {FAULT_AGAIN, FAULT_REQUEST_LOST,
                                                FAULT_COMMIT_UNKNOWN};

static void draw_faults(struct sim *s) {
    uint64_t how = sim_below(s, 20);
    struct plan *p = &s->plan;
    p->calm = how == 0;
    if (how == 1) { /* one fault alone */
        draw_rates(s, 0);
        enum fault_kind f = (enum fault_kind)sim_below(s, FAULT_NR);
        if (!always(f))
            p->rate[f] = 1 + most_of(f);
    } else {
        draw_rates(s, p->calm ? 0 : how < 8 ? 25 : how < 15 ? 50 : 80);
    }
    p->reorder = p->bus && p->rate[FAULT_REORDER];
    if (!p->reorder)
        p->rate[FAULT_REORDER] = 0;
    for (size_t i = 0; p->far && how > 1 && i < ARRAY_LEN(renewal_fails); i++)
        p->rate[renewal_fails[i]] += (uint32_t)sim_between(s, 200, 600);
    p->trouble = p->calm ? 0 : (uint32_t)sim_between(s, 150, 3000);
}

static void draw_policy(struct sim *s, struct retry_policy *p) {
    *p = (struct retry_policy){.base = sim_between(s, 5, 100) * MS,
                               .max = sim_between(s, 200, 1500) * MS,
                               .jitter = (uint8_t)sim_below(s, 3),
                               .jitter_percent = (uint8_t)sim_below(s, 50),
                               .failures = 2 + (uint32_t)sim_below(s, 5),
                               .age = sim_between(s, 8, 20) * SEC};
}

/* Waves of a key over a far broker: the claim has to be renewed between them, again and again. */
static void draw_far(struct sim *s) {
    struct plan *p = &s->plan;
    p->far = p->bus = p->bus_all = true;
    p->keys = 1 + (uint32_t)sim_below(s, 2);
    p->events = (uint32_t)sim_between(s, 40, 70);
    p->batch_rows = (uint32_t)sim_between(s, 12, 24);
    p->road = sim_between(s, 15, 60) * MS;
    p->lease = sim_between(s, 10, 15) * 100 * MS;
}

void plan_draw(struct sim *s) {
    struct plan *p = &s->plan;
    *p = (struct plan){0};
    p->processes = 1 + (uint32_t)sim_below(s, 10) % PROCESSES_MAX;
    if (p->processes == 1 && sim_below(s, 3))
        p->processes = 2;
    p->producers = 1 + (uint32_t)sim_below(s, PRODUCERS_MAX);
    p->keys = 1 + (uint32_t)sim_below(s, KEYS_MAX);
    p->events = (uint32_t)sim_between(s, 20, 70);
    p->bus = sim_below(s, 2);
    p->bus_all = p->bus && sim_below(s, 2);
    for (uint32_t i = 0; i < STORES; i++)
        p->lanes[i] = sim_below(s, 3) ? 4 : 1;
    for (uint32_t i = 0; i < CONSUMERS; i++)
        p->partitions[i] = 1 + (uint32_t)sim_below(s, 4);
    p->workers = 1 + (uint32_t)sim_below(s, 4) / 3;
    p->batch_rows =
        sim_below(s, 3) ? (uint32_t)sim_between(s, 4, 24) : (uint32_t)sim_between(s, 1, 4);
    p->lease = sim_between(s, 10, 30) * 100 * MS;
    p->latency = p->road = sim_between(s, 100, 3000);
    if (sim_below(s, 12) == 0)
        draw_far(s);
    p->lock_wait = p->lease / (p->far || (p->latency < MS && sim_below(s, 2)) ? 20 : 10);
    csn_usec most = p->lease / 2 - 2 * p->lock_wait; /* as a configuration may have it */
    p->confirm_timeout = p->far ? most : sim_between(s, p->lease / 8, most);
    p->probe_min = sim_between(s, 2, 20) * MS;
    p->probe_max = sim_between(s, 30, 400) * MS;
    p->cruel = sim_between(s, 2, 4) * p->lease;
    p->ties = sim_below(s, 3) == 0;
    draw_policy(s, &p->relay);
    draw_policy(s, &p->inbox);
    draw_faults(s);
    p->once = sim_below(s, 4) == 0;
    if (p->once)
        p->rate[FAULT_DUPLICATE] = 0; /* a broker that keeps no promise cannot give this one */
    if (!p->far)
        p->guests = p->calm ? 2 : sim_below(s, 16) == 0;
}

void plan_print(const struct sim *s) {
    static const char *const names[FAULT_NR] = {
#define X(name, text, rate) #name,
#include "faults.def"
#undef X
    };
    const struct plan *p = &s->plan;
    printf("seed %" PRIu64 ": %u processes, %u producers, %u keys, %u events, lanes %u %u, "
           "partitions %u %u %u, %u workers, "
           "batches of %u, lease %.1f s, %s%s%s%s%s\n",
           s->seed, p->processes, p->producers, p->keys, p->events, p->lanes[0], p->lanes[1],
           p->partitions[0], p->partitions[1], p->partitions[2], p->workers, p->batch_rows,
           (double)p->lease / 1e6,
           p->bus_all ? "streaming broker only"
           : p->bus   ? "with a streaming broker"
                      : "embedded broker only",
           p->reorder ? ", reordering" : "", p->far ? ", far away" : "", p->calm ? ", calm" : "",
           p->once ? ", at most once" : "");
    for (enum fault_kind f = 0; f < FAULT_NR; f++)
        if (p->rate[f])
            printf("  %s %u", names[f], p->rate[f]);
    putchar('\n');
}
