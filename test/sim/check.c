/* check.c: what must hold, and the eyes that look. Three kinds of looks: at what a process asks
 * for (check_submitted), judged by what it was told before (check_reaped); at what changes in a
 * store, as it changes (eyes); and at everything, once it is quiet. */
#include "sim.h"

#include <inttypes.h>
#include <stdio.h>

static const char *const check_names[CHECK_NR] = {
#define X(name, ref, text) #name,
#include "checks.def"
#undef X
};

void check(struct sim *s, enum check_kind c, bool holds, const char *format, ...) {
    s->tally->check[c]++;
    if (holds || s->failed)
        return;
    struct text t;
    text_init(&t, s->why, sizeof s->why);
    text_add(&t, "%s: ", check_names[c]);
    va_list args;
    va_start(args, format);
    text_add_list(&t, format, args);
    va_end(args);
    s->failed = true;
    sim_trace(s, "FAILED %s", s->why);
}

bool is_once(const struct sim *s, uint32_t consumer) {
    return s->plan.once && consumer == CONSUMERS - 1;
}

/* ---- truths ---- */

struct truth *truth_of(struct sim *s, csn_bytes id) {
    return fake_map_get(&s->truths, fake_id_hash(0, id));
}

struct truth *truth_add(struct sim *s, struct fake_store *store, struct fake_row *r) {
    struct truth *t = arena_take(&s->arena, sizeof *t);
    if (!t)
        __builtin_trap();
    *t = (struct truth){.row = r, .store = store, .written_at = s->now, .lease_life = UINT32_MAX};
    r->mark = t;
    fake_map_set(&s->truths, fake_id_hash(0, r->content.id), t);
    fake_list_add(&s->truth, t);
    s->changes++;
    return t;
}

static uint64_t life_bit(const struct line *l) {
    return UINT64_C(1) << l->life->number;
}

static uint64_t token_hash(const char *token) {
    return bytes_hash(bytes_of(token), 99);
}

#define ID(b) (int)(b).size, (const char *)(b).data

static bool is_for(const struct message *m, uint32_t consumer) {
    return glob_list_matches(consumer_matches[consumer], m->event_type);
}

/* ---- what a process asks for ---- */

/* The one before it in its key: ended, or confirmed to this very process, or earlier in the same
 * atomic publish. */
static bool may_follow(const struct line *l, const struct op *op, uint32_t i,
                       const struct truth *t) {
    const struct fake_row *before = row_before(t->row);
    if (!before || row_ended(before))
        return true;
    const struct truth *b = before->mark;
    if (b->lost || t->lost || (b->confirmed & life_bit(l)))
        return true;
    for (uint32_t k = 0; (l->port.flags & PORT_ATOMIC_PUBLISH) && k < i; k++)
        if (bytes_equal(op->batch->msg[op->publish.item[k].msg].id, before->content.id))
            return true;
    return false;
}

static void asked_publish(struct line *l, const struct op *op) {
    struct sim *s = l->sim;
    for (uint32_t i = 0; i < op->publish.n; i++) {
        const struct message *m = &op->batch->msg[op->publish.item[i].msg];
        struct truth *t = truth_of(s, m->id);
        check(s, CHECK_STRICT, may_follow(l, op, i, t),
              "%.*s is published before the one before it", ID(m->id));
        check(s, CHECK_COVERED,
              t->lease_life != l->life->number ||
                  op->deadline - l->life->skew <= t->lease_from + s->plan.lease,
              "%.*s is published although its claim may be over before the answer", ID(m->id));
        check(s, CHECK_EXPIRED,
              m->expires_in == CSN_USEC_NEVER || m->maybe_sent ||
                  m->expires_in > s->now - t->claimed_from || t->lease_life != l->life->number,
              "%.*s has expired and is published", ID(m->id));
        if (!s->kind)
            continue;
        bool nobody = bytes_is(m->event_type, "NobodyCares");
        t->kind_publishes++;
        check(s, CHECK_AMPLIFY, t->kind_publishes <= (nobody ? 2 * s->plan.relay.failures + 4 : 5),
              "%.*s is published %u times in kind times", ID(m->id), t->kind_publishes);
    }
}

static void check_pause(struct sim *s, const struct retry_policy *p, csn_usec pause, uint32_t tries,
                        csn_bytes id) {
    csn_usec cap = p->base;
    for (uint32_t i = 0; i < tries && cap < p->max; i++)
        cap *= 2;
    if (cap > p->max)
        cap = p->max;
    csn_usec least = p->jitter == JITTER_PERCENT ? cap : p->jitter == JITTER_EQUAL ? cap / 2 : 0;
    csn_usec most = p->jitter == JITTER_PERCENT ? cap + cap / 100 * p->jitter_percent : cap;
    check(s, CHECK_BACKOFF, pause > 0 && pause >= least && pause <= (most > MS ? most : MS),
          "%.*s pauses %lld us after %u tries", ID(id), (long long)pause, tries);
}

static void asked_settle_item(struct line *l, const struct op *op, uint32_t i) {
    struct sim *s = l->sim;
    const struct settle_item *item = &op->settle.item[i];
    const struct message *m = &op->batch->msg[item->msg];
    const struct truth *t = truth_of(s, m->id);
    /* The answer to the settlement and to the claim that shared its commit was lost, and the claim
     * took the row again: the settlement is asked again and is refused by its token. */
    if (t->token[l->life->number] != token_hash(op->settle.token))
        return;
    bool told_no = t->refused & life_bit(l), must = told_no && !(t->late & life_bit(l));
    if (item->to == SETTLE_SENT)
        check(s, CHECK_CONFIRMED, t->confirmed & life_bit(l),
              "%.*s is marked sent and was not confirmed", ID(m->id));
    if (item->to == SETTLE_CANCELLED)
        check(s, CHECK_EXPIRED,
              t->lease_life != l->life->number ||
                  (m->expires_in != CSN_USEC_NEVER && m->expires_in <= s->now - t->claimed_from),
              "%.*s is cancelled and has not expired", ID(m->id));
    if (item->failure)
        check(s, CHECK_BUDGET, told_no, "%.*s is charged with a fault that is not its own",
              ID(m->id));
    if (must && (item->to == SETTLE_PENDING || item->to == SETTLE_FAILED))
        check(s, CHECK_BUDGET, item->failure, "%.*s is not charged with its fault", ID(m->id));
    if (item->attempt && (item->to == SETTLE_PENDING || item->to == SETTLE_UNKNOWN))
        check_pause(s, &s->plan.relay, item->retry_in, m->tries, m->id);
    if (item->to == SETTLE_FAILED)
        check(s, CHECK_BUDGET,
              (t->rejected & life_bit(l)) || m->failures + 1 >= s->plan.relay.failures ||
                  m->failing_for >= s->plan.relay.age,
              "%.*s has failed and its budget is not spent", ID(m->id));
    if (must && !(t->rejected & life_bit(l)) && m->failures + 1 >= s->plan.relay.failures)
        check(s, CHECK_BUDGET, item->to == SETTLE_FAILED, "%.*s has spent its budget and goes on",
              ID(m->id));
}

static void asked_settle(struct line *l, const struct op *op) {
    bool seen[BATCH_MAX] = {false};
    check(l->sim, CHECK_WHOLE, op->settle.n == op->batch->n, "%u of %u rows are settled",
          op->settle.n, op->batch->n);
    for (uint32_t i = 0; i < op->settle.n; i++) {
        uint32_t msg = op->settle.item[i].msg;
        check(l->sim, CHECK_WHOLE, msg < op->batch->n && !seen[msg], "row %u is settled twice",
              msg);
        seen[msg] = true;
        asked_settle_item(l, op, i);
    }
}

static void asked_ack(struct line *l, const struct op *op) {
    struct sim *s = l->sim;
    uint32_t c = consumer_number(op->ack.consumer);
    struct fake_store *store = &s->store[consumer_store(c)];
    bool acked[BATCH_MAX] = {false};
    uint64_t stopped = 0;
    for (uint32_t i = 0; i < op->ack.n; i++) {
        const struct message *m = &op->batch->msg[op->ack.msg[i]];
        acked[op->ack.msg[i]] = true;
        check(s, CHECK_ACK,
              is_once(s, c) ||
                  fake_inbox_find(store, fake_consumer(store, op->ack.consumer), m->id) != NULL,
              "%.*s is acknowledged by %s and is not in its inbox", ID(m->id), op->ack.consumer);
    }
    for (uint32_t i = 0; i < op->batch->n; i++) {
        uint64_t part = UINT64_C(1) << op->batch->msg[i].lane;
        if (!acked[i])
            stopped |= part;
        else
            check(s, CHECK_PREFIX, !(stopped & part), "%.*s is acknowledged past one that is not",
                  ID(op->batch->msg[i].id));
    }
}

static void asked_apply(struct line *l, const struct op *op) {
    for (uint32_t i = 0; i < op->apply.n; i++) {
        const struct message *m = &op->batch->msg[op->apply.item[i].msg];
        bool can = m->expires_in != CSN_USEC_NEVER;
        check(l->sim, CHECK_EXPIRED, can || !op->apply.item[i].expired,
              "%.*s does not expire and is skipped", ID(m->id));
        check(l->sim, CHECK_EXPIRED, !can || m->expires_in > 0 || op->apply.item[i].expired,
              "%.*s has expired and is handled", ID(m->id));
    }
}

static void asked_park(struct line *l, const struct op *op) {
    struct sim *s = l->sim;
    const struct retry_policy *p = &s->plan.inbox;
    for (uint32_t i = 0; i < op->park.n; i++) {
        const struct park_item *item = &op->park.item[i];
        const struct message *m = &op->batch->msg[item->msg];
        if (item->to == PARK_RETRY)
            check_pause(s, p, item->retry_in, m->tries, m->id);
        if (item->to == PARK_RETRY && item->verdict == CSN_RETRY)
            check(s, CHECK_BUDGET, m->failures + 1 < p->failures && item->failure,
                  "%.*s is tried past its budget", ID(m->id));
        if (item->verdict == CSN_OUTCOME_UNKNOWN || item->verdict == CSN_EARLY)
            check(s, CHECK_BUDGET, !item->failure, "%.*s is charged for what is not its fault",
                  ID(m->id));
    }
}

void check_submitted(struct line *l, struct op *op) {
    check(l->sim, CHECK_WHOLE, op->deadline > l->sim->now + l->life->skew,
          "an op of kind %d without a deadline ahead", (int)op->kind);
    if (op->kind == OP_PUBLISH)
        asked_publish(l, op);
    else if (op->kind == OP_SETTLE)
        asked_settle(l, op);
    else if (op->kind == OP_ACK)
        asked_ack(l, op);
    else if (op->kind == OP_APPLY)
        asked_apply(l, op);
    else if (op->kind == OP_PARK)
        asked_park(l, op);
}

/* ---- what a process is told ---- */

static void told_publish(struct line *l, const struct op *op) {
    for (uint32_t i = 0; i < op->publish.n && op->result.status == CSN_OK; i++) {
        const struct publish_item *p = &op->publish.item[i];
        struct truth *t = truth_of(l->sim, op->batch->msg[p->msg].id);
        /* What comes after a step that saw the deadline pass is no confirm any more. */
        if (p->out == PUB_CONFIRMED && l->life->stepped < op->deadline)
            t->confirmed |= life_bit(l);
        if (p->out != PUB_NACKED && p->out != PUB_RETURNED && p->out != PUB_REJECTED)
            continue;
        t->refused |= life_bit(l);
        t->faults++;
        if (l->sim->now + l->life->skew >= op->deadline)
            t->late |= life_bit(l);
        if (p->out == PUB_REJECTED)
            t->rejected |= life_bit(l);
    }
}

static void told_renew(struct line *l, const struct op *op) {
    if (op->result.status != CSN_OK || op->renew.renewed == 0)
        return;
    for (uint32_t i = 0; i < op->batch->n; i++) {
        struct truth *t = truth_of(l->sim, op->batch->msg[i].id);
        if (t->lease_life == l->life->number)
            t->lease_from = op->deadline - l->sim->plan.lock_wait - l->life->skew;
    }
}

void check_reaped(struct line *l, struct op *op) {
    if (op->kind == OP_PUBLISH)
        told_publish(l, op);
    else if (op->kind == OP_RENEW && op->renew.table == TABLE_OUTBOX)
        told_renew(l, op);
}

/* ---- what was carried out ---- */

static void ran_claim(struct sim *s, const struct op *op) {
    const struct batch *b = op->batch;
    uint32_t limit = op->kind == OP_CLAIM ? op->claim.limit : op->receive.limit;
    check(s, CHECK_LIMITS, b->n <= limit && b->n <= b->cap,
          "%u messages were asked for and %u came", limit, b->n);
    for (uint32_t i = 1; i < b->n; i++) {
        const struct message *x = &b->msg[i - 1], *y = &b->msg[i];
        bool same = bytes_equal(x->aggregate_id, y->aggregate_id) &&
                    bytes_equal(x->aggregate_type, y->aggregate_type);
        check(s, CHECK_LIMITS,
              op->kind == OP_CLAIM ? !same || x->version <= y->version
                                   : x->seq < y->seq || x->lane != y->lane,
              "messages come out of order");
    }
}

void check_ran(struct line *l, struct op *op) {
    if (op->kind == OP_CLAIM || op->kind == OP_RECEIVE)
        ran_claim(l->sim, op);
}

/* ---- the eyes ---- */

/* From (row) to (column), by verbs; P sending sent unknown waiting failed held cancelled. */
static const char *const legal[] = {
    [ROW_PENDING] = " S  W   ", [ROW_SENDING] = "P SUWF C",  [ROW_SENT] = "        ",
    [ROW_UNKNOWN] = "P       ", [ROW_WAITING] = "P       ",  [ROW_FAILED] = "        ",
    [ROW_HELD] = "        ",    [ROW_CANCELLED] = "        "};
static const char *const legal_by_hand[] = {
    [ROW_PENDING] = "       C", [ROW_SENDING] = "        ",  [ROW_SENT] = "P       ",
    [ROW_UNKNOWN] = "       C", [ROW_WAITING] = "P      C",  [ROW_FAILED] = "P      C",
    [ROW_HELD] = "       C",    [ROW_CANCELLED] = "        "};

static void saw_sent(struct sim *s, struct fake_row *r, struct truth *t) {
    t->sent_at = s->now;
    for (uint32_t c = 0; c < CONSUMERS; c++)
        if (is_for(&r->content, c))
            check(s, CHECK_DURABLE, t->copies[c] > 0, "%.*s is sent and %s never got a copy",
                  ID(r->content.id), consumer_names[c]);
}

/* Cancelled for its age says that nothing was sent; a person who cancels is not held to that. */
static void check_cancelled(struct sim *s, const struct fake_row *r, const struct truth *t) {
    for (uint32_t c = 0; c < CONSUMERS && !t->lost; c++)
        check(s, CHECK_EXPIRED, t->copies[c] == 0,
              "%.*s is cancelled as expired, and %s has a copy", ID(r->content.id),
              consumer_names[c]);
}

static void saw_outbox_move(struct sim *s, struct fake_row *r, enum row_status from) {
    struct truth *t = r->mark;
    const char *row = s->operating ? legal_by_hand[from] : legal[from];
    check(s, CHECK_MOVES, row[r->status] != ' ', "%.*s moves from %s to %s", ID(r->content.id),
          row_status_name(from), row_status_name(r->status));
    if (r->status == ROW_SENT)
        saw_sent(s, r, t);
    if (r->status == ROW_CANCELLED)
        check_cancelled(s, r, t);
    if (r->status == ROW_FAILED)
        check(s, CHECK_BUDGET, r->failures <= t->faults, "%.*s counts %u failures of %u faults",
              ID(r->content.id), r->failures, t->faults);
}

static void saw_move(void *arg, struct fake_store *store, struct fake_row *r, enum row_status from,
                     bool work) {
    struct sim *s = arg;
    s->changes++;
    sim_mix(s, (uint64_t)r->seq * 64 + from * 8 + r->status + (work ? 7777 : 0));
    sim_trace(s, "%s %s %.*s: %s to %s", store->name,
              work ? store->consumer[r->consumer] : "outbox", ID(r->content.id),
              row_status_name(from), row_status_name(r->status));
    if (!r->key->dirty)
        fake_list_add(&s->dirty, r->key);
    r->key->dirty = true;
    if (!work && from == ROW_PENDING && r->status == ROW_WAITING)
        truth_of(s, r->content.id)->planned_at = 0; /* it was due */
    if (!work)
        saw_outbox_move(s, r, from);
}

/* When all is well and nothing else is to be done, the watch finds what is due within its longest
 * pause, and what it finds is taken up after at most one more. The rest is time on the way. */
static void check_prompt(struct sim *s, const struct truth *t, csn_usec took, const char *what) {
    if (t->guest)
        check(s, CHECK_PROMPT, took <= 2 * s->plan.probe_max + 40 * s->plan.latency,
              "%.*s is %s only after %.3f s", ID(t->row->content.id), what, (double)took / 1e6);
}

static void saw_claim(void *arg, struct fake_store *store, struct fake_row *r,
                      const struct op *op) {
    struct sim *s = arg;
    const struct line *l = s->running;
    uint64_t hash = token_hash(op->claim.token);
    const struct op *had = fake_map_get(&s->tokens, hash);
    /* The serial of the claim is kept as a pointer: a token belongs to one claim. */
    check(s, CHECK_TOKEN,
          !had ||
              (uintptr_t)had == (uintptr_t)store->serial * 4 + (uintptr_t)(store - s->store) + 1,
          "token %s is used by two claims", op->claim.token);
    fake_map_set(&s->tokens, hash,
                 (void *)((uintptr_t)store->serial * 4 + (uintptr_t)(store - s->store) + 1));
    if (op->claim.table == TABLE_WORK)
        return;
    struct truth *t = r->mark;
    if (t->claims++ == 0)
        check_prompt(s, t, fake_now(store) - r->created_at, "claimed");
    check(s, CHECK_LIMITS, t->claims > 1 || fake_now(store) >= t->planned_at,
          "%.*s is claimed before the instant it is planned for", ID(r->content.id));
    check(s, CHECK_ATTEMPTS, r->attempts == t->claims, "%.*s counts %u attempts after %u claims",
          ID(r->content.id), r->attempts, t->claims);
    t->confirmed &= ~life_bit(l);
    t->refused &= ~life_bit(l);
    t->rejected &= ~life_bit(l);
    t->late &= ~life_bit(l);
    t->token[l->life->number] = hash;
    t->lease_life = l->life->number;
    t->lease_from = t->claimed_from = op->deadline - s->plan.lock_wait - l->life->skew;
}

static void saw_stale(void *arg, struct fake_store *store, const struct op *op, uint32_t i) {
    struct sim *s = arg;
    const struct fake_row *r = fake_outbox_find(store, op->batch->msg[op->settle.item[i].msg].id);
    check(s, CHECK_STALE,
          r && (r->status != ROW_SENDING || strcmp(r->token, op->settle.token) != 0),
          "a write under the right token was refused");
}

static void saw_lane(void *arg, struct fake_store *store, const char *name, uint32_t lane,
                     const struct fake_lane *before, const struct fake_lane *now,
                     csn_usec longest) {
    struct sim *s = arg;
    csn_usec at = fake_now(store);
    s->changes++;
    check(s, CHECK_EPOCH, now->epoch == before->epoch + 1,
          "epoch of %s lane %u goes from %" PRIu64 " to %" PRIu64, name, lane, before->epoch,
          now->epoch);
    check(s, CHECK_OWNER,
          !before->owner[0] || before->lease_until <= at || before->lease_until > at + longest,
          "%s lane %u was taken from a living owner", name, lane);
    sim_mix(s, now->epoch * 64 + lane);
}

static void saw_published(void *arg, struct fake_store *store, const struct fake_queue_row *q) {
    struct sim *s = arg;
    struct truth *t = truth_of(s, q->content.id);
    uint32_t c = consumer_number(store->consumer[q->subscription]);
    t->copies[c]++;
    t->live_copies[c]++;
    if (t->row->status == ROW_CANCELLED)
        check_cancelled(s, t->row, t);
    s->changes++;
    sim_mix(s, q->content.seq);
    sim_trace(s, "%s: %.*s for %s at %llu", store->name, ID(q->content.id), consumer_names[c],
              (unsigned long long)q->content.seq);
}

static void saw_delivered(void *arg, struct fake_store *store, const struct fake_queue_row *q) {
    struct sim *s = arg;
    s->changes++;
    sim_mix(s, q->content.seq * 3 + q->deliveries);
    if (q->deliveries > 1)
        sim_happened(s, FAULT_REDELIVERED);
    else
        check_prompt(s, truth_of(s, q->content.id), fake_now(store) - q->published_at, "delivered");
}

static void saw_acked(void *arg, struct fake_store *store, const struct fake_queue_row *q) {
    struct sim *s = arg;
    struct truth *t = truth_of(s, q->content.id);
    uint32_t c = consumer_number(store->consumer[q->subscription]);
    struct fake_store *home = &s->store[consumer_store(c)];
    s->changes++;
    t->live_copies[c]--;
    t->acked[c]++;
    check(s, CHECK_ACK,
          is_once(s, c) ||
              fake_inbox_find(home, fake_consumer(home, consumer_names[c]), q->content.id) != NULL,
          "%.*s is acknowledged and %s does not have it", ID(q->content.id), consumer_names[c]);
}

static void saw_effect(void *arg, struct fake_store *store, const struct fake_effect *e) {
    struct sim *s = arg;
    struct truth *t = truth_of(s, e->id);
    uint32_t c = consumer_number(store->consumer[e->consumer]);
    s->changes++;
    sim_mix(s, bytes_hash(e->id, c));
    sim_trace(s, "%s: effect of %.*s", consumer_names[c], ID(e->id));
    t->effects[c]++;
    check(s, CHECK_ONE_EFFECT, t->effects[c] == 1, "%.*s has %u effects at %s", ID(e->id),
          t->effects[c], consumer_names[c]);
    check(s, CHECK_INBOX, e->inbox->status == INBOX_DONE || e->inbox->status == INBOX_REFUSED,
          "an effect without its inbox row");
    bool forward = e->version > e->key->applied ||
                   (e->version == e->key->applied && t->row->seq > e->key->applied_seq);
    check(s, CHECK_KEY_ORDER, forward || (t->lost && e->verdict == CSN_LATE),
          "%.*s is applied by %s after version %" PRIu64 " of its key", ID(e->id),
          consumer_names[c], e->key->applied);
    if (forward) {
        e->key->applied = e->version;
        e->key->applied_seq = t->row->seq;
    }
    struct fake_row *last =
        store->outbox.row.n ? store->outbox.row.at[store->outbox.row.n - 1] : NULL;
    bool emitted = last && !last->mark;
    check(s, CHECK_RESULTS, emitted == (c == 0 && bytes_is(e->inbox->event_type, "OrderCreated")),
          "%.*s has an effect and no result event, or the other way round", ID(e->id));
    if (emitted)
        truth_add(s, store, last)->guest = t->guest;
}

/* A copy that nobody acknowledged comes again, and one that was tried twice has two effects. */
static void saw_tried(void *arg, struct fake_store *store, const struct fake_effect *e,
                      uint64_t pos) {
    struct sim *s = arg;
    uint32_t c = consumer_number(store->consumer[e->consumer]);
    struct fake_queue_row *q = fake_queue_at(s->plan.bus_all ? &s->bus : &s->store[0], pos);
    s->changes++;
    sim_mix(s, bytes_hash(e->id, c + 90));
    sim_trace(s, "%s: tried %.*s at %llu", consumer_names[c], ID(e->id), (unsigned long long)pos);
    check(s, CHECK_ONCE, is_once(s, c) && q && q->acked_at && !q->tried,
          "%.*s is tried by %s before its ack, or twice", ID(e->id), consumer_names[c]);
    if (q)
        q->tried = true;
}

static void saw_dead(void *arg, struct fake_store *store, const struct fake_dead *d) {
    struct sim *s = arg;
    struct truth *t = truth_of(s, d->id);
    uint32_t c = consumer_number(store->consumer[d->consumer]);
    const struct retry_policy *p = &s->plan.inbox;
    bool old = s->stepped || s->now - t->written_at >= p->age;
    enum fault_kind fate = fate_of(s, d->id, c);
    bool named = fate == (strcmp(d->class_, "conflict") == 0 ? FAULT_VERDICT_CONFLICT
                                                             : FAULT_VERDICT_POISON);
    bool spent = strcmp(d->class_, "budget") == 0 || strcmp(d->class_, "early") == 0;
    s->changes++;
    t->dead[c]++;
    sim_mix(s, bytes_hash(d->id, c + 50));
    sim_trace(s, "%s: dead letter %.*s, %s", consumer_names[c], ID(d->id), d->class_);
    check(s, CHECK_LETTER, d->payload.size > 0 && d->error.size > 0 && d->code > 0,
          "dead letter %.*s lacks payload or error", ID(d->id));
    check(s, CHECK_SET_ASIDE, spent ? d->failures >= p->failures || old : named,
          "%.*s is set aside as %s after %u failures", ID(d->id), d->class_, d->failures);
}

static enum publish_out refuse(void *arg, struct fake_store *store, const struct message *m) {
    struct sim *s = arg;
    (void)store;
    if (bytes_is(m->event_type, "RefusedForEver"))
        return PUB_REJECTED;
    return sim_fault(s, FAULT_NACK) ? PUB_NACKED : PUB_NONE;
}

void eyes_open(struct sim *s, struct fake_store *store) {
    store->eyes = (struct fake_eyes){.arg = s,
                                     .moved = saw_move,
                                     .claimed = saw_claim,
                                     .stale = saw_stale,
                                     .lane_taken = saw_lane,
                                     .published = saw_published,
                                     .delivered = saw_delivered,
                                     .acked = saw_acked,
                                     .effect = saw_effect,
                                     .tried = saw_tried,
                                     .dead = saw_dead,
                                     .refuse = refuse};
}

/* ---- keys that changed ---- */

static void check_outbox_key(struct sim *s, const struct fake_key *k) {
    for (uint32_t i = 0; i < k->n; i++) {
        const struct fake_row *r = k->row[i];
        if (r->status == ROW_WAITING && r->waits_for == WAITS_KEY)
            check(s, CHECK_HEAD, row_before(r) && !row_ended(row_before(r)),
                  "%.*s waits and nobody is left to release it", ID(r->content.id));
    }
}

/* A parked key has a head that is due one day or is being tried, and only that. */
static void check_work_key(struct sim *s, const struct fake_key *k) {
    check(s, CHECK_HEAD, k->parked == (k->n > 0),
          "a key is parked without rows, or not parked with rows");
    if (k->n)
        check(s, CHECK_HEAD, k->row[0]->status == ROW_PENDING || k->row[0]->status == ROW_SENDING,
              "%.*s heads its key and waits", ID(k->row[0]->content.id));
    for (uint32_t i = 1; i < k->n; i++)
        check(s, CHECK_HEAD, k->row[i]->status != ROW_PENDING,
              "%.*s is due and not the head of its key", ID(k->row[i]->content.id));
}

void check_dirty(struct sim *s) {
    for (uint32_t i = 0; i < s->dirty.n; i++) {
        struct fake_key *k = s->dirty.at[i];
        k->dirty = false;
        if (k->consumer)
            check_work_key(s, k);
        else
            check_outbox_key(s, k);
    }
    s->dirty.n = 0;
}

/* ---- when all is quiet ---- */

/* Behind a failed row of its own key. */
static bool is_blocked(const struct fake_row *r) {
    const struct fake_key *k = r->key;
    for (uint32_t i = 0; i < k->n && k->row[i] != r; i++)
        if (k->row[i]->status == ROW_FAILED || k->row[i]->status == ROW_HELD)
            return true;
    return false;
}

static bool at_rest(struct sim *s, const struct fake_row *r) {
    const struct truth *t = r->mark;
    if (r->status == ROW_FAILED)
        return t->operated;
    if (r->status == ROW_WAITING)
        return is_blocked(r);
    if (r->status != ROW_SENT)
        return r->status == ROW_CANCELLED;
    for (uint32_t c = 0; c < CONSUMERS; c++) {
        struct fake_store *home = &s->store[consumer_store(c)];
        if (is_for(&r->content, c) && !is_once(s, c) &&
            !fake_inbox_find(home, fake_consumer(home, consumer_names[c]), r->content.id))
            return false;
    }
    return true;
}

static bool queue_empty(const struct fake_store *store) {
    for (uint32_t i = 0; i < store->queue_live.n; i++) {
        const struct fake_queue_row *q = store->queue_live.at[i];
        if (!q->acked_at && !q->lost)
            return false;
    }
    return true;
}

static bool quiet_row(struct text *left, const struct fake_store *store, const struct fake_row *r,
                      bool rests) {
    if (!rests && left)
        text_add(left, " %s %s %.*s %s;", store->name,
                 r->key->consumer ? store->consumer[r->consumer] : "outbox", ID(r->content.id),
                 row_status_name(r->status));
    return rests;
}

static bool quiet_queue(struct text *left, const struct fake_store *store) {
    bool empty = queue_empty(store);
    if (!empty && left)
        text_add(left, " queue of %s;", store->name);
    return empty;
}

bool drained(struct sim *s, struct text *left) {
    bool quiet = s->produced >= s->plan.events && quiet_queue(left, &s->bus);
    for (uint32_t i = 0; i < STORES && (quiet || left); i++) {
        const struct fake_store *store = &s->store[i];
        quiet &= quiet_queue(left, store);
        for (uint32_t k = 0; k < store->work.live.n && (quiet || left); k++)
            quiet &=
                quiet_row(left, store, store->work.live.at[k], row_ended(store->work.live.at[k]));
        for (uint32_t k = 0; k < store->outbox.row.n && (quiet || left); k++)
            quiet &= quiet_row(left, store, store->outbox.row.at[k],
                               at_rest(s, store->outbox.row.at[k]));
    }
    return quiet;
}

static void book_row(struct sim *s, const struct truth *t) {
    const struct fake_row *r = t->row;
    check(s, CHECK_BUSINESS, fake_outbox_find(t->store, r->content.id) == r,
          "%.*s was committed and is not in the outbox", ID(r->content.id));
    check(s, CHECK_ENDS, row_ended(r) || r->status == ROW_FAILED || r->status == ROW_WAITING,
          "%.*s has not ended", ID(r->content.id));
    if (r->status == ROW_WAITING)
        check(s, CHECK_OWN_KEY, is_blocked(r), "%.*s waits and no head of its key has failed",
              ID(r->content.id));
    for (uint32_t c = 0; c < CONSUMERS; c++) {
        struct fake_store *home = &s->store[consumer_store(c)];
        const struct fake_inbox *b =
            fake_inbox_find(home, fake_consumer(home, consumer_names[c]), r->content.id);
        bool finished = b && (b->status == INBOX_DONE || b->status == INBOX_REFUSED);
        check(s, CHECK_INBOX,
              finished == (t->effects[c] == 1) || (b && b->expired && t->effects[c] == 0),
              "%.*s at %s: inbox and effect differ", ID(r->content.id), consumer_names[c]);
        check(s, CHECK_ONCE, !is_once(s, c) || !b, "%.*s is in the inbox of %s", ID(r->content.id),
              consumer_names[c]);
        if (r->status == ROW_SENT && is_for(&r->content, c) && !is_once(s, c))
            check(s, CHECK_BOOKS, finished || (b && t->dead[c]),
                  "%.*s is sent and is neither applied nor set aside at %s", ID(r->content.id),
                  consumer_names[c]);
        check(s, CHECK_BOOKS, !b || b->status != INBOX_WAITING,
              "%.*s still waits in the inbox of %s", ID(r->content.id), consumer_names[c]);
    }
}

void check_books(struct sim *s) {
    uint32_t rows = 0, effects = 0, finished = 0;
    for (uint32_t i = 0; i < s->truth.n; i++)
        book_row(s, s->truth.at[i]);
    for (uint32_t i = 0; i < STORES; i++) {
        const struct fake_store *store = &s->store[i];
        rows += store->outbox.row.n;
        effects += store->effect.n;
        for (uint32_t k = 0; k < store->inbox.n; k++) {
            const struct fake_inbox *b = store->inbox.at[k];
            finished += (b->status == INBOX_DONE || b->status == INBOX_REFUSED) && !b->expired;
        }
        for (uint32_t k = 0; k < store->outbox.row.n; k++)
            check(s, CHECK_BUSINESS,
                  ((const struct fake_row *)store->outbox.row.at[k])->mark != NULL,
                  "a row that no transaction committed");
    }
    check(s, CHECK_BUSINESS, rows == s->truth.n, "%u rows of %u that were committed", rows,
          s->truth.n);
    check(s, CHECK_BOOKS, effects == finished, "%u effects, %u finished inbox rows", effects,
          finished);
}
