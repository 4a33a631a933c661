/* stream.c: connections to a broker that streams: several PUBLISH ops at once, an outcome per
 * message, in any order, late, or never; deliveries are pushed. Its messages lie in a queue like
 * that of the embedded broker, with other rules: nothing is atomic, no lane fences a delivery,
 * what a connection holds goes back when the connection goes.
 *
 * Order: the messages of one connection land in the order in which they were sent, and never after
 * the op's deadline, when a driver would have closed the connection. A partition is delivered in
 * order, unless the seed's plan has the fault REORDER. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>

static csn_usec line_now(const struct line *l) {
    return l->sim->now + l->life->skew;
}

static void serve_at(struct line *l, csn_usec at) {
    sim_at(l->sim, at, EV_RECEIVE, l, 0, 0);
}

/* ---- publish ---- */

static struct stream_op *stream_op_take(struct sim *s) {
    for (uint32_t i = 0; i < STREAM_OPS_MAX; i++)
        if (!s->stream[i].op)
            return &s->stream[i];
    abort();
}

static void give_answer(struct stream_op *o) {
    struct line *l = o->line;
    struct op *op = o->op;
    for (uint32_t i = 0; i < op->publish.n; i++) {
        op->publish.item[i] = o->said[i];
        if (o->at[i] == STREAM_QUEUED)
            op->publish.item[i].out = PUB_UNSENT;
    }
    o->op = NULL;
    line_done(l, op);
    if (l->life->dead)
        life_bury(l->sim, l->life);
    else
        life_wake(l->sim, l->life, 0);
}

static void begin_publish(struct line *l, struct op *op) {
    struct sim *s = l->sim;
    struct stream_op *o = stream_op_take(s);
    csn_usec t = s->now, until = op->deadline - l->life->skew;
    error_clear(&op->result);
    o->op = op;
    o->line = l;
    o->left = op->publish.n;
    o->serial = ++s->stream_serial;
    for (uint32_t i = 0; i < op->publish.n; i++) {
        o->at[i] = STREAM_QUEUED;
        o->said[i] = op->publish.item[i];
        o->said[i].out = PUB_NONE;
        t += line_latency(s, s->plan.road) / 4 + 1;
        if (t < s->blocked_until)
            t = s->blocked_until;
        if (t < until)
            sim_at(s, t, EV_LAND, o, o->serial, i);
    }
    if (sim_fault(s, FAULT_CONFIRM_LATE))
        until += sim_between(s, 1, s->plan.lease);
    sim_at(s, until, EV_GIVE_UP, o, o->serial, 0);
}

/* When the channel was opened anew, or the op was given up, what is scheduled for it is old. */
static bool is_old(const struct stream_op *o, uint32_t serial) {
    return !o->op || o->serial != serial;
}

void stream_land(struct sim *s, struct stream_op *o, uint32_t item, uint32_t serial) {
    if (is_old(o, serial) || o->at[item] != STREAM_QUEUED)
        return;
    o->at[item] = STREAM_LANDED;
    if (sim_fault(s, FAULT_PUBLISH_LOST)) {
        o->at[item] = STREAM_SILENT;
        return;
    }
    fake_publish_one(&s->bus, &o->op->batch->msg[o->said[item].msg], o->op->publish.ago,
                     &o->said[item]);
    struct publish_item landed = o->said[item];
    stream_kick(s);
    if (landed.out == PUB_CONFIRMED && sim_fault(s, FAULT_CONFIRM_LOST)) {
        o->at[item] = STREAM_SILENT;
        o->said[item].out = PUB_NONE;
        return;
    }
    csn_usec in = line_latency(s, s->plan.road);
    if (sim_fault(s, FAULT_CONFIRM_SWAPPED))
        in += sim_between(s, 0, s->plan.road * 8);
    sim_at(s, s->now + in, EV_CONFIRM, o, serial, item);
}

static void said(struct stream_op *o, uint32_t item) {
    o->at[item] = STREAM_SAID;
    o->left--;
}

void stream_confirm(struct sim *s, struct stream_op *o, uint32_t item, uint32_t serial) {
    if (is_old(o, serial) || o->at[item] != STREAM_LANDED)
        return;
    said(o, item);
    if (o->said[item].out == PUB_CONFIRMED && sim_fault(s, FAULT_CONFIRM_MANY))
        for (uint32_t i = 0; i < item; i++)
            if (o->at[i] == STREAM_LANDED && o->said[i].out == PUB_CONFIRMED)
                said(o, i);
    if (o->left == 0)
        give_answer(o);
}

/* What landed and was not confirmed stays unsaid. */
static void hush(struct stream_op *o) {
    for (uint32_t i = 0; i < o->op->publish.n; i++)
        if (o->at[i] == STREAM_LANDED)
            o->said[i].out = PUB_NONE;
}

void stream_give_up(struct sim *s, struct stream_op *o, uint32_t serial) {
    (void)s;
    if (is_old(o, serial))
        return;
    hush(o);
    give_answer(o);
}

/* ---- receive ---- */

static bool held_elsewhere(const struct sim *s, const struct line *l,
                           const struct fake_queue_row *q, bool again) {
    csn_usec now = fake_now(&s->bus);
    if (!q->token[0] || q->lease_until <= now)
        return false;
    const struct life *holder = s->life[q->holder];
    return !holder->dead && (holder != l->life || !again);
}

static void swap_neighbours(struct sim *s, struct batch *b) {
    if (b->n < 2)
        return;
    uint32_t i = (uint32_t)sim_below(s, b->n - 1);
    if (b->msg[i].lane != b->msg[i + 1].lane || !sim_fault(s, FAULT_REORDER))
        return;
    struct message m = b->msg[i];
    b->msg[i] = b->msg[i + 1];
    b->msg[i + 1] = m;
}

static void hand_out(struct line *l, struct op *op, struct fake_queue_row *q) {
    struct sim *s = l->sim;
    struct message *m = &op->batch->msg[op->batch->n];
    if (!fake_message_give(&op->batch->arena, m, &q->content))
        abort();
    op->batch->n++;
    if (q->deliveries && !q->acked_at)
        sim_happened(s, FAULT_REDELIVERED);
    m->redelivered = q->deliveries > 0;
    m->attempts = ++q->deliveries;
    m->failures = m->tries = 0;
    m->failing_for = 0;
    m->age = fake_now(&s->bus) - q->created_at;
    m->expires_in = q->expires_at ? q->expires_at - fake_now(&s->bus) : CSN_USEC_NEVER;
    if (q->acked_at)
        return;
    copy_text(q->token, sizeof q->token, op->receive.token);
    q->lease_until = fake_now(&s->bus) + op->receive.lease;
    q->holder = l->life->number;
}

/* A broker may deliver what was acknowledged; mostly after it moved. */
static void once_more(struct line *l, struct op *op) {
    struct sim *s = l->sim;
    if (!s->bus.queue.n || op->batch->n >= op->receive.limit || !sim_fault(s, FAULT_DUPLICATE))
        return;
    struct fake_queue_row *q = s->bus.queue.at[sim_below(s, s->bus.queue.n)];
    if (q->acked_at && (op->receive.lanes >> q->content.lane & 1) &&
        strcmp(s->bus.consumer[q->subscription], op->receive.consumer) == 0)
        hand_out(l, op, q);
}

static void receive(struct line *l, struct op *op) {
    struct sim *s = l->sim;
    uint32_t subscription = fake_consumer(&s->bus, op->receive.consumer);
    uint64_t lanes = op->receive.lanes;
    size_t bytes = 0;
    op->batch->n = 0;
    op->receive.lost = 0;
    op->receive.more = false;
    once_more(l, op);
    for (uint32_t i = 0; i < s->bus.queue.n && !op->receive.more; i++) {
        struct fake_queue_row *q = s->bus.queue.at[i];
        uint64_t part = UINT64_C(1) << q->content.lane;
        if (q->subscription != subscription || q->acked_at || q->lost || !(lanes & part))
            continue;
        if (held_elsewhere(s, l, q, op->receive.again)) {
            lanes &= ~part;
            continue;
        }
        op->receive.more =
            op->batch->n == op->receive.limit || (op->batch->n && bytes > op->receive.bytes);
        if (op->receive.more)
            break;
        bytes += q->content.payload.size;
        hand_out(l, op, q);
    }
    if (s->plan.reorder)
        swap_neighbours(s, op->batch);
}

static bool serve_one(struct line *l, struct op *op) {
    struct sim *s = l->sim;
    if (op->kind == OP_RECEIVE) {
        receive(l, op);
        return op->batch->n > 0 || line_now(l) >= op->deadline;
    }
    if (sim_fault(s, FAULT_REQUEST_LOST)) {
        error_set(&op->result, CSN_UNKNOWN, ERR_BROKER_NO_ANSWER, "the request was lost");
        l->life->hurt = true;
        return true;
    }
    fake_run(&s->bus, op);
    check_ran(l, op);
    return true;
}

/* Looks at everything that waits on this connection, in order. */
void stream_serve(struct line *l) {
    struct sim *s = l->sim;
    uint32_t kept = 0;
    bool any = false;
    if (l->life->dead)
        return;
    if (s->now < s->blocked_until) {
        serve_at(l, s->blocked_until);
        return;
    }
    for (uint32_t i = 0; i < l->waitings; i++) {
        struct op *op = l->waiting[i].op;
        if (l->waiting[i].at > s->now || !serve_one(l, op)) {
            l->waiting[kept++] = l->waiting[i];
            continue;
        }
        line_done(l, op);
        any = true;
    }
    l->waitings = kept;
    if (any)
        life_wake(s, l->life, sim_between(s, 0, 50));
}

static void begin_waiting(struct line *l, struct op *op) {
    csn_usec at = l->sim->now + line_latency(l->sim, l->sim->plan.road);
    error_clear(&op->result);
    if (l->waitings == GROUPS_MAX)
        abort();
    l->waiting[l->waitings].op = op;
    l->waiting[l->waitings++].at = at;
    serve_at(l, at);
    if (op->kind == OP_RECEIVE)
        serve_at(l, op->deadline - l->life->skew);
}

void stream_kick(struct sim *s) {
    for (uint32_t i = 0; i < s->lives; i++)
        for (uint32_t k = 0; k < s->life[i]->lines && !s->life[i]->dead; k++)
            if (s->life[i]->line[k].stream && s->life[i]->line[k].waitings)
                serve_at(&s->life[i]->line[k], s->now + 100);
}

static void stream_flush(struct port *p) {
    struct line *l = (struct line *)p;
    struct op *op = l->first;
    l->first = l->last = NULL;
    while (op) {
        struct op *next = op->next;
        if (op->kind == OP_PUBLISH)
            begin_publish(l, op);
        else
            begin_waiting(l, op);
        op = next;
    }
}

void stream_init(struct line *l, struct life *life, enum role role) {
    *l = (struct line){.sim = life->sim,
                       .life = life,
                       .store = &life->sim->bus,
                       .role = role,
                       .stream = true,
                       .serial = l->serial};
    l->port = (struct port){.submit = line_submit, .flush = stream_flush, .reap = line_reap};
}

/* ---- the connection goes ---- */

/* The channel is opened anew: answers that were outstanding will not come, what it held goes back.
 */
void stream_reopen(struct line *l) {
    struct sim *s = l->sim;
    for (uint32_t i = 0; i < STREAM_OPS_MAX; i++) {
        if (!s->stream[i].op || s->stream[i].line != l)
            continue;
        hush(&s->stream[i]);
        give_answer(&s->stream[i]);
    }
    for (uint32_t i = 0; i < s->bus.queue.n && l->role == ROLE_QUEUE_OUT; i++) {
        struct fake_queue_row *q = s->bus.queue.at[i];
        if (!q->acked_at && q->holder == l->life->number)
            q->token[0] = '\0';
    }
    stream_kick(s);
}

/* What was written to the socket may still land; nobody is told. The ops are dropped at once. */
void stream_crash(struct line *l) {
    struct sim *s = l->sim;
    for (uint32_t i = 0; i < STREAM_OPS_MAX; i++) {
        struct stream_op *o = &s->stream[i];
        if (!o->op || o->line != l)
            continue;
        for (uint32_t k = 0; k < o->op->publish.n && sim_fault(s, FAULT_CRASH_RAN); k++)
            stream_land(s, o, k, o->serial);
        o->op = NULL;
    }
    l->waitings = 0;
    l->first = l->last = NULL;
    stream_kick(s);
}

bool stream_quiet(const struct line *l) {
    for (uint32_t i = 0; i < STREAM_OPS_MAX; i++)
        if (l->sim->stream[i].op && l->sim->stream[i].line == l)
            return false;
    return l->waitings == 0;
}
