/* line.c: a connection to a store, as a port. Groups run one after the other; each is asked for,
 * carried out (or not) at one moment, and answered later. What may go wrong: the group is refused,
 * the request or the answer is lost, all of it is slow, the store is locked or away. A group whose
 * deadline has passed when its turn comes is not run: that is what a driver promises. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>

csn_usec line_latency(struct sim *s, csn_usec mean) {
    csn_usec t = sim_between(s, mean / 2, mean * 2);
    return sim_fault(s, FAULT_SLOW) ? t * sim_between(s, 20, 200) : t;
}

static csn_usec line_now(const struct line *l) {
    return l->sim->now + l->life->skew;
}

static void schedule(struct line *l, csn_usec in) {
    sim_at(l->sim, l->sim->now + in, EV_LINE, l, ++l->serial, 0);
}

static void ask(struct line *l) {
    l->state = LINE_ASKING;
    l->looked = false;
    l->fate = FATE_RUN;
    schedule(l, line_latency(l->sim, l->sim->plan.latency));
}

void line_submit(struct port *p, struct op *op) {
    struct line *l = (struct line *)p;
    if (op->state != OP_IDLE)
        check(l->sim, CHECK_WHOLE, false, "an op of kind %d is submitted twice", (int)op->kind);
    op->state = OP_PENDING;
    op->next = NULL;
    if (l->last)
        l->last->next = op;
    else
        l->first = op;
    l->last = op;
    check_submitted(l, op);
}

static void line_flush(struct port *p) {
    struct line *l = (struct line *)p;
    if (!l->first)
        return;
    if (l->groups == GROUPS_MAX)
        abort();
    l->group[l->groups++] = l->first;
    l->first = l->last = NULL;
    if (l->state == LINE_IDLE)
        ask(l);
}

void line_done(struct line *l, struct op *op) {
    op->next = NULL;
    if (l->done_last)
        l->done_last->next = op;
    else
        l->done = op;
    l->done_last = op;
}

struct op *line_reap(struct port *p) {
    struct line *l = (struct line *)p;
    struct op *op = l->done;
    if (!op)
        return NULL;
    l->done = op->next;
    if (!l->done)
        l->done_last = NULL;
    op->next = NULL;
    op->state = OP_FINISHED;
    check_reaped(l, op);
    return op;
}

void line_init(struct line *l, struct life *life, struct fake_store *store, enum role role) {
    *l = (struct line){
        .sim = life->sim, .life = life, .store = store, .role = role, .serial = l->serial};
    l->port = (struct port){.submit = line_submit,
                            .flush = line_flush,
                            .reap = line_reap,
                            .flags = role == ROLE_QUEUE_IN ? PORT_ATOMIC_PUBLISH : 0};
}

/* ---- carrying out ---- */

/* What an op says when nobody knows: its outputs are worth nothing. */
void line_scrub(struct op *op) {
    if (op->kind == OP_CLAIM || op->kind == OP_RECEIVE)
        op->batch->n = 0;
    if (op->kind == OP_PUBLISH)
        for (uint32_t i = 0; i < op->publish.n; i++)
            op->publish.item[i].out = PUB_NONE;
    if (op->kind == OP_APPLY || op->kind == OP_TRY)
        for (uint32_t i = 0; i < op->apply.n; i++)
            op->apply.item[i].out = APPLY_NONE;
}

static void refuse(struct op *group, csn_status status, int32_t code, const char *text) {
    for (struct op *op = group; op; op = op->next) {
        line_scrub(op);
        error_set(&op->result, status, code, "%s", text);
    }
}

static csn_usec group_deadline(const struct op *group) {
    csn_usec until = CSN_USEC_NEVER;
    for (const struct op *op = group; op; op = op->next)
        until = op->deadline < until ? op->deadline : until;
    return until;
}

static enum fate roll(struct line *l) {
    if (l->life->dead)
        return FATE_RUN;
    if (sim_fault(l->sim, FAULT_AGAIN))
        return FATE_AGAIN;
    if (sim_fault(l->sim, FAULT_REQUEST_LOST))
        return FATE_LOST;
    return sim_fault(l->sim, FAULT_COMMIT_UNKNOWN) ? FATE_UNKNOWN : FATE_RUN;
}

static uint32_t store_number(const struct line *l) {
    return (uint32_t)(l->store - l->sim->store);
}

/* A store that is locked or away: the driver waits, at most until its deadline. True when it has
 * to. */
static bool must_wait(struct line *l, struct op *group) {
    struct sim *s = l->sim;
    uint32_t n = store_number(l);
    csn_usec until = s->down_until[n];
    if (group->kind != OP_WATCH && s->locked_until[n] > until)
        until = s->locked_until[n];
    csn_usec left = group_deadline(group) - line_now(l);
    if (until <= s->now || left < 0)
        return false;
    schedule(l, (until - s->now < left ? until - s->now : left) + 1);
    return true;
}

static void run_group(struct line *l, struct op *group) {
    struct sim *s = l->sim;
    uint64_t changes = s->changes;
    l->fate = roll(l);
    s->running = l;
    if (line_now(l) > group_deadline(group)) {
        l->fate = FATE_AGAIN;
        refuse(group, CSN_AGAIN, ERR_STORE_LOCKED, "the deadline has passed");
    } else if (l->fate == FATE_AGAIN) {
        refuse(group, CSN_AGAIN, ERR_STORE_LOCKED, "not now");
    } else if (l->fate == FATE_LOST) {
        refuse(group, CSN_UNKNOWN, ERR_STORE_COMMIT_UNKNOWN, "the request was lost");
    } else if (fake_group_allowed(l->store, group)) {
        for (struct op *op = group; op; op = op->next) {
            fake_run(l->store, op);
            check_ran(l, op);
        }
        if (l->fate == FATE_UNKNOWN)
            refuse(group, CSN_UNKNOWN, ERR_STORE_COMMIT_UNKNOWN, "the answer was lost");
    }
    s->running = NULL;
    if (group->result.status == CSN_AGAIN)
        check(s, CHECK_NOTHING, s->changes == changes, "a refused group changed %llu rows",
              (unsigned long long)(s->changes - changes));
    if (l->fate != FATE_RUN)
        l->life->hurt = true;
    sim_mix(s, (uint64_t)group->kind * 8 + (uint64_t)l->fate);
    sim_trace(s, "process %u.%u %s: op %d fate %d status %d", l->life->process, l->life->number,
              l->store->name, (int)group->kind, (int)l->fate, (int)group->result.status);
}

static bool watch_waits(struct line *l, struct op *op) {
    bool found = op->result.status != CSN_OK;
    for (uint32_t i = 0; i < op->watch.n; i++)
        found |= op->watch.item[i].found;
    if (found || l->looked || l->life->dead || op->watch.wait <= 0)
        return false;
    l->looked = true;
    schedule(l, sim_fault(l->sim, FAULT_WAKE) ? sim_between(l->sim, 0, op->watch.wait)
                                              : op->watch.wait);
    return true;
}

static void carry_out(struct line *l) {
    struct op *group = l->group[0];
    if (must_wait(l, group))
        return;
    run_group(l, group);
    if (group->kind == OP_WATCH && watch_waits(l, group))
        return;
    l->state = LINE_ANSWERING;
    schedule(l, line_latency(l->sim, l->sim->plan.latency));
}

static void answer(struct line *l) {
    struct op *op = l->group[0];
    memmove(l->group, l->group + 1, --l->groups * sizeof *l->group);
    l->state = LINE_IDLE;
    while (op) {
        struct op *next = op->next;
        line_done(l, op);
        op = next;
    }
    if (l->groups)
        ask(l);
    if (l->life->dead)
        life_bury(l->sim, l->life);
    else
        life_wake(l->sim, l->life, sim_between(l->sim, 0, 50));
}

void line_event(struct line *l, uint32_t serial) {
    if (serial != l->serial)
        return;
    if (l->state == LINE_ASKING)
        carry_out(l);
    else if (l->state == LINE_ANSWERING)
        answer(l);
}

/* The process is gone. What was sent may still be carried out; what was not sent is not. */
void line_crash(struct line *l) {
    l->first = l->last = NULL;
    if (!l->groups)
        return;
    bool on_its_way = l->state == LINE_ANSWERING;
    if (l->state == LINE_ASKING && l->group[0]->kind != OP_WATCH)
        on_its_way = sim_fault(l->sim, FAULT_CRASH_RAN);
    l->groups = on_its_way;
    if (on_its_way)
        return;
    l->state = LINE_IDLE;
    l->serial++;
}

bool line_quiet(const struct line *l) {
    return l->stream ? stream_quiet(l) : l->groups == 0;
}
