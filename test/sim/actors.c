/* actors.c: who is not a process of ours: producers, the person at the console, reconcile, and the
 * handlers' business. */
#include "sim.h"

#include <stdio.h>

const char *const consumer_names[CONSUMERS] = {"reserve", "result", "audit"};
const char *const consumer_matches[CONSUMERS] = {"Order*", "Stock*", "Order*,Audit*"};

uint32_t consumer_store(uint32_t consumer) {
    return consumer == 1 ? 0 : 1;
}

uint32_t consumer_number(const char *name) {
    uint32_t i = 0;
    while (i < CONSUMERS - 1 && strcmp(consumer_names[i], name) != 0)
        i++;
    return i;
}

/* ---- producers ---- */

static const char *event_type(struct sim *s) {
    static const char *const types[] = {"OrderCreated", "OrderPaid", "OrderShipped", "AuditNote"};
    if (sim_fault(s, FAULT_RETURNED))
        return "NobodyCares";
    if (sim_fault(s, FAULT_REJECTED))
        return "RefusedForEver";
    return types[sim_below(s, ARRAY_LEN(types))];
}

/* Mostly one higher; sometimes the same once more: then the order of the rows decides. */
static uint64_t next_version(struct sim *s, uint32_t key) {
    bool same = s->plan.ties && s->version[key] && sim_below(s, 8) == 0;
    s->version[key] += !same;
    return s->version[key];
}

static struct truth *insert(struct sim *s, uint32_t key) {
    char id[TOKEN_SIZE], name[16], payload[64];
    csn_usec due_in = 0, expires_in = 0;
    snprintf(id, sizeof id, "e%u", s->produced);
    snprintf(name, sizeof name, "k%u", key);
    snprintf(payload, sizeof payload, "{\"n\":%u}", s->produced);
    struct message m = {.id = bytes_of(id),
                        .aggregate_type = bytes_of("order"),
                        .aggregate_id = bytes_of(name),
                        .event_type = bytes_of(event_type(s)),
                        .payload = bytes_of(payload),
                        .version = next_version(s, key),
                        .schema_version = 1,
                        .correlation_id = bytes_of(name)};
    s->produced++;
    if (sim_fault(s, FAULT_EXPIRES))
        expires_in = sim_between(s, 1, s->plan.lease);
    if (sim_fault(s, FAULT_FUTURE))
        due_in = sim_between(s, 1, s->plan.lease);
    struct fake_row *r = fake_insert(&s->store[0], &m, due_in, expires_in);
    struct truth *t = truth_add(s, &s->store[0], r);
    if (due_in > FOLLOWERS_MAX)
        t->planned_at = r->next_attempt_at;
    return t;
}

/* One transaction: one to three events, of one key or of several, all of them or none. */
void produce(struct sim *s, uint32_t producer) {
    if (s->produced >= s->plan.events)
        return;
    uint32_t n = 1 + (uint32_t)sim_below(s, 3), key = (uint32_t)sim_below(s, s->plan.keys);
    bool rollback = sim_fault(s, FAULT_ROLLBACK);
    for (uint32_t i = 0; i < n && !rollback; i++) {
        insert(s, key);
        if (sim_below(s, 2))
            key = (uint32_t)sim_below(s, s->plan.keys);
    }
    sim_trace(s, "producer %u: %s %u events", producer, rollback ? "rolls back" : "commits", n);
    csn_usec mean = s->plan.cruel * s->plan.producers / (s->plan.events / 2 + 1);
    sim_at(s, s->now + (sim_below(s, 4) ? sim_between(s, 0, mean * 2) : sim_between(s, 0, MS)),
           EV_PRODUCE, NULL, producer, 0);
}

/* One event of a key of its own, when all is quiet. */
void guest(struct sim *s) {
    struct truth *t = insert(s, KEYS_MAX);
    t->guest = true;
    sim_trace(s, "a guest comes: %.*s", (int)t->row->content.id.size,
              (const char *)t->row->content.id.data);
}

/* ---- handlers ---- */

enum { FATE_SHARE = 10000 };

/* What the business will say to this event at this consumer; drawn from the seed and the names, so
 * that it is the same each time. */
enum fault_kind fate_of(const struct sim *s, csn_bytes id, uint32_t consumer) {
    static const enum fault_kind fates[] = {
        FAULT_VERDICT_REFUSED,  FAULT_VERDICT_RETRY, FAULT_VERDICT_BUDGET, FAULT_VERDICT_POISON,
        FAULT_VERDICT_CONFLICT, FAULT_VERDICT_EARLY, FAULT_VERDICT_UNKNOWN};
    uint64_t h = bytes_hash(id, s->seed * CONSUMERS + consumer) % FATE_SHARE;
    for (size_t i = 0; i < ARRAY_LEN(fates); i++) {
        if (h < s->plan.rate[fates[i]])
            return fates[i];
        h -= s->plan.rate[fates[i]];
    }
    return FAULT_NR;
}

/* With a broker that swaps neighbours the handler gates by version: an event of the key that is at
 * the broker, is for this consumer and has not been applied comes first. */
static bool comes_too_early(struct sim *s, const struct truth *t, uint32_t consumer) {
    const struct fake_key *k = t->row->key;
    struct fake_store *home = &s->store[consumer_store(consumer)];
    for (uint32_t i = 0; i < k->n && k->row[i] != t->row; i++) {
        const struct truth *before = k->row[i]->mark;
        const struct fake_inbox *b = fake_inbox_find(
            home, fake_consumer(home, consumer_names[consumer]), k->row[i]->content.id);
        if (before->copies[consumer] && !before->lost && (!b || b->status == INBOX_WAITING))
            return true;
    }
    return false;
}

static csn_verdict verdict_of(enum fault_kind fate, uint32_t runs, uint64_t twice) {
    bool first = runs <= 1 + twice;
    switch (fate) {
    case FAULT_VERDICT_REFUSED:
        return CSN_REFUSED;
    case FAULT_VERDICT_RETRY:
        return first ? CSN_RETRY : CSN_DONE;
    case FAULT_VERDICT_BUDGET:
        return CSN_RETRY;
    case FAULT_VERDICT_POISON:
        return CSN_POISON;
    case FAULT_VERDICT_CONFLICT:
        return CSN_CONFLICT;
    case FAULT_VERDICT_EARLY:
        return first ? CSN_EARLY : CSN_DONE;
    case FAULT_VERDICT_UNKNOWN:
        return first ? CSN_OUTCOME_UNKNOWN : CSN_DONE;
    default:
        return CSN_DONE;
    }
}

csn_verdict decide(const struct message *m, void *arg) {
    const struct {
        struct life *life;
        uint32_t consumer;
    } *a = arg;
    struct sim *s = a->life->sim;
    struct truth *t = truth_of(s, m->id);
    struct fake_store *store = &s->store[consumer_store(a->consumer)];
    enum fault_kind fate = fate_of(s, m->id, a->consumer);
    t->runs[a->consumer]++;
    const struct fake_key *k =
        fake_key_of(store, fake_consumer(store, consumer_names[a->consumer]) + 1, m->aggregate_type,
                    m->aggregate_id);
    csn_verdict v;
    if (t->lost &&
        (k->applied > m->version || (k->applied == m->version && k->applied_seq > t->row->seq))) {
        fate = FAULT_VERDICT_LATE;
        v = CSN_LATE;
    } else if (s->plan.reorder && comes_too_early(s, t, a->consumer)) {
        fate = FAULT_VERDICT_EARLY;
        v = CSN_EARLY;
    } else {
        v = verdict_of(fate, t->runs[a->consumer], bytes_hash(m->id, 3) & 1);
    }
    if (fate != FAULT_NR && !s->kind)
        sim_happened(s, fate);
    return v;
}

bool emits(const struct message *m, void *arg) {
    const struct {
        struct life *life;
        uint32_t consumer;
    } *a = arg;
    return a->consumer == 0 && bytes_is(m->event_type, "OrderCreated");
}

/* ---- the person at the console ---- */

static void retry_event(struct sim *s, struct fake_store *store, struct fake_row *r) {
    sim_happened(s, FAULT_OPERATOR_RETRY);
    r->failures = r->tries = 0;
    r->first_failed_at = 0;
    r->next_attempt_at = fake_now(store);
    fake_operate(store, r, ROW_PENDING, false);
}

/* Nobody knows whether a cancelled event is at the broker already: order is not asked of it any
 * more. */
static void cancel_event(struct sim *s, struct fake_store *store, struct fake_row *r) {
    sim_happened(s, FAULT_OPERATOR_CANCEL);
    ((struct truth *)r->mark)->lost = true;
    fake_operate(store, r, ROW_CANCELLED, true);
}

/* In kind times every failed event is looked at once; some stay failed. */
static void look_at_row(struct sim *s, struct fake_store *store, struct fake_row *r) {
    struct truth *t = r->mark;
    bool failed = r->status == ROW_FAILED;
    if (s->kind) {
        uint64_t h = t->operated || !failed ? 3 : sim_below(s, 4);
        t->operated = true;
        if (h <= 1)
            retry_event(s, store, r);
        else if (h == 2)
            cancel_event(s, store, r);
        return;
    }
    bool cancels =
        failed || r->status == ROW_UNKNOWN || r->status == ROW_WAITING || r->status == ROW_PENDING;
    if (failed && sim_below(s, 10000) < s->plan.rate[FAULT_OPERATOR_RETRY])
        retry_event(s, store, r);
    else if (cancels &&
             sim_below(s, 10000) < s->plan.rate[FAULT_OPERATOR_CANCEL] / (failed ? 1 : 20))
        cancel_event(s, store, r);
}

void operate(struct sim *s) {
    s->operating = true;
    for (uint32_t i = 0; i < STORES; i++)
        for (uint32_t k = 0; k < s->store[i].outbox.live.n; k++)
            if (!row_ended(s->store[i].outbox.live.at[k]) && !s->stopped)
                look_at_row(s, &s->store[i], s->store[i].outbox.live.at[k]);
    s->operating = false;
    sim_at(s, s->now + sim_between(s, 200 * MS, 800 * MS), EV_OPERATE, NULL, 0, 0);
}

/* ---- reconcile ---- */

/* What shows that a consumer had it: the inbox row; of one that keeps none, an acknowledged copy. */
static bool has_it(struct sim *s, const struct truth *t, uint32_t c) {
    struct fake_store *store = &s->store[consumer_store(c)];
    return is_once(s, c) ? t->acked[c] > 0
                         : fake_inbox_find(store, fake_consumer(store, consumer_names[c]),
                                           t->row->content.id) != NULL;
}

/* A consumer that takes this event and has neither that nor a live copy in its queue. */
static bool is_missing(struct sim *s, const struct truth *t) {
    for (uint32_t c = 0; c < CONSUMERS; c++)
        if (glob_list_matches(consumer_matches[c], t->row->content.event_type) &&
            t->live_copies[c] == 0 && !has_it(s, t, c))
            return true;
    return false;
}

/* As `consign reconcile run outbox`: what was sent, is older than the grace and is missing goes out
 * again under the same id. */
void reconcile(struct sim *s) {
    s->operating = true;
    for (uint32_t i = 0; i < s->truth.n && !s->stopped; i++) {
        struct truth *t = s->truth.at[i];
        if (t->row->status != ROW_SENT || s->now < t->sent_at + s->plan.lease || !is_missing(s, t))
            continue;
        sim_happened(s, FAULT_RECONCILE);
        t->lost = true;
        t->row->next_attempt_at = fake_now(t->store);
        fake_operate(t->store, t->row, ROW_PENDING, false);
    }
    s->operating = false;
    sim_at(s, s->now + s->plan.lease, EV_RECONCILE, NULL, 0, 0);
}
