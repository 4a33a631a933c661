/* world_fake.c: the simulator's fake store as a world of the contract suite. Groups run in flush;
 * the clock stands still but for advance, so that instants are exact. */
#include "test/contract/world.h"

#include "fake_store.h"

#include <stdio.h>
#include <stdlib.h>

struct fake_world;

struct fake_line { /* a connection */
    struct port port;
    struct fake_world *world;
    struct op *first, *last, *done, *done_last;
    bool cut_armed, again;
    enum world_cut cut;
};

struct fake_world {
    struct world world;
    struct fake_store store;
    csn_usec mono;
    struct fake_handler handler;
    bool locked;
};

const char *const contract_world_name = "fake";

static struct fake_world *of(struct world *w) {
    return (struct fake_world *)w; /* its first member */
}

/* ---- connections ---- */

static void line_submit(struct port *p, struct op *op) {
    struct fake_line *l = (struct fake_line *)p;
    op->state = OP_PENDING;
    op->next = NULL;
    if (l->last)
        l->last->next = op;
    else
        l->first = op;
    l->last = op;
}

static void line_finish(struct fake_line *l, struct op *op) {
    op->next = NULL;
    if (l->done_last)
        l->done_last->next = op;
    else
        l->done = op;
    l->done_last = op;
}

static void line_run(struct fake_line *l, struct op *op) {
    if (l->world->locked && op->kind != OP_WATCH)
        error_set(&op->result, CSN_AGAIN, ERR_STORE_LOCKED, "somebody holds the lock");
    else if (l->cut_armed && l->cut == CUT_BEFORE_COMMIT)
        error_set(&op->result, CSN_UNKNOWN, ERR_STORE_COMMIT_UNKNOWN, "cut before the commit");
    else
        fake_run(&l->world->store, op);
    if (l->cut_armed)
        error_set(&op->result, CSN_UNKNOWN, ERR_STORE_COMMIT_UNKNOWN, "cut");
}

static void line_flush(struct port *p) {
    struct fake_line *l = (struct fake_line *)p;
    struct op *op = l->first;
    bool allowed = fake_group_allowed(&l->world->store, op);
    l->first = l->last = NULL;
    while (op) {
        struct op *next = op->next;
        if (allowed)
            line_run(l, op);
        line_finish(l, op);
        op = next;
    }
    l->cut_armed = false;
}

static struct op *line_reap(struct port *p) {
    struct fake_line *l = (struct fake_line *)p;
    struct op *op = l->done;
    if (!op)
        return NULL;
    l->done = op->next;
    if (!l->done)
        l->done_last = NULL;
    op->next = NULL;
    op->state = OP_FINISHED;
    return op;
}

static struct port *world_open(struct world *w, enum role role) {
    struct fake_line *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    l->port = (struct port){.submit = line_submit,
                            .flush = line_flush,
                            .reap = line_reap,
                            .flags = role == ROLE_QUEUE_IN ? PORT_ATOMIC_PUBLISH : 0};
    l->world = of(w);
    return &l->port;
}

static void world_close(struct world *w, struct port *p) {
    (void)w;
    free(p);
}

static void world_cut(struct world *w, struct port *p, enum world_cut cut) {
    (void)w;
    struct fake_line *l = (struct fake_line *)p;
    l->cut_armed = true;
    l->cut = cut;
}

static void world_lock(struct world *w, bool on) {
    of(w)->locked = on;
}

static csn_usec world_now(struct world *w) {
    return fake_now(&of(w)->store);
}

static void world_advance(struct world *w, csn_usec step) {
    of(w)->store.offset += step;
}

static csn_usec world_clock(struct world *w) {
    return of(w)->mono;
}

/* ---- hands ---- */

static const char *world_insert(struct world *w, const struct world_event *e, uint32_t n,
                                bool commit) {
    for (uint32_t i = 0; commit && i < n; i++) {
        struct message m = {.id = bytes_of(e[i].id),
                            .aggregate_type = bytes_of(e[i].aggregate_type),
                            .aggregate_id = bytes_of(e[i].aggregate_id),
                            .event_type = bytes_of(e[i].event_type),
                            .payload = bytes_of(e[i].payload),
                            .headers = bytes_of(e[i].headers),
                            .traceparent = bytes_of(e[i].traceparent),
                            .correlation_id = bytes_of(e[i].correlation_id),
                            .causation_id = bytes_of(e[i].causation_id),
                            .tenant = bytes_of(e[i].tenant),
                            .version = (uint64_t)e[i].version,
                            .schema_version = (uint32_t)e[i].schema_version,
                            .priority = e[i].priority};
        fake_insert(&of(w)->store, &m, e[i].due_in, e[i].expires_in);
    }
    return NULL;
}

static struct fake_row *row_of(struct world *w, const char *id) {
    return fake_outbox_find(&of(w)->store, bytes_of(id));
}

static void world_set_status(struct world *w, const char *id, const char *status, int waits_for) {
    struct fake_row *r = row_of(w, id);
    if (!r)
        world_fail("no event %s", id);
    for (enum row_status s = ROW_PENDING; s < ROW_STATUS_NR; s++)
        if (strcmp(row_status_name(s), status) == 0)
            fake_operate(&of(w)->store, r, s, false);
    r->waits_for = (uint8_t)waits_for;
}

static void world_set_token(struct world *w, const char *id, const char *token) {
    struct fake_row *r = row_of(w, id);
    if (!r)
        r = fake_map_get(&of(w)->store.work_by_id, fake_id_hash(0, bytes_of(id)));
    if (!r)
        world_fail("no event %s", id);
    copy_text(r->token, sizeof r->token, token);
}

static uint32_t number(struct world *w, const char *consumer) {
    return fake_consumer(&of(w)->store, consumer);
}

static void world_purge(struct world *w, const char *consumer, const char *id) {
    struct fake_inbox *b = fake_inbox_find(&of(w)->store, number(w, consumer), bytes_of(id));
    if (b)
        b->gone = true;
}

/* ---- eyes ---- */

#define SHOW(to, from) copy_bytes_text((to), sizeof(to), (from))

static bool world_outbox(struct world *w, const char *id, struct outbox_row *ret) {
    const struct fake_row *r = row_of(w, id);
    if (!r)
        return false;
    *ret = (struct outbox_row){.seq = r->seq,
                               .attempts = r->attempts,
                               .failures = r->failures,
                               .tries = r->tries,
                               .waits_for = r->waits_for,
                               .sent_by = r->sent_by,
                               .broker_part = r->broker_part,
                               .broker_pos = r->broker_pos,
                               .created_at = r->created_at,
                               .next_attempt_at = r->next_attempt_at,
                               .lease_until = r->lease_until,
                               .claimed_at = r->claimed_at,
                               .published_at = r->published_at,
                               .sent_at = r->sent_at,
                               .first_failed_at = r->first_failed_at,
                               .last_failed_at = r->last_failed_at};
    copy_text(ret->status, sizeof ret->status, row_status_name(r->status));
    copy_text(ret->token, sizeof ret->token, r->token);
    SHOW(ret->route, r->route);
    SHOW(ret->last_error, r->last_error);
    return true;
}

static int64_t world_outbox_count(struct world *w, const char *status, int waits_for) {
    const struct fake_list *rows = &of(w)->store.outbox.row;
    int64_t n = 0;
    for (uint32_t i = 0; i < rows->n; i++) {
        const struct fake_row *r = rows->at[i];
        n += (!status || strcmp(row_status_name(r->status), status) == 0) &&
             (waits_for < 0 || r->waits_for == waits_for);
    }
    return n;
}

static bool world_inbox(struct world *w, const char *consumer, const char *id,
                        struct inbox_row *ret) {
    static const char *const states[] = {"done", "refused", "waiting", "conflict", "dead"};
    static const char *const verdicts[] = {"done",     "refused", "duplicate", "late",   "early",
                                           "conflict", "poison",  "retry",     "unknown"};
    const struct fake_inbox *b = fake_inbox_find(&of(w)->store, number(w, consumer), bytes_of(id));
    if (!b)
        return false;
    *ret = (struct inbox_row){.attempts = b->attempts,
                              .duplicates = b->duplicates,
                              .entity_version = (int64_t)b->version,
                              .broker_part = b->broker_part,
                              .broker_pos = b->broker_pos,
                              .received_at = b->received_at,
                              .processed_at = b->processed_at,
                              .last_duplicate_at = b->last_duplicate_at};
    copy_text(ret->state, sizeof ret->state, states[b->status]);
    copy_text(ret->verdict, sizeof ret->verdict, b->verdict < 0 ? "" : verdicts[b->verdict]);
    copy_text(ret->digest, sizeof ret->digest, b->digest);
    SHOW(ret->result, b->result);
    SHOW(ret->error, b->error);
    SHOW(ret->event_type, b->event_type);
    SHOW(ret->aggregate_type, b->aggregate_type);
    SHOW(ret->aggregate_id, b->aggregate_id);
    return true;
}

static bool world_work(struct world *w, const char *consumer, const char *id,
                       struct work_row *ret) {
    const struct fake_row *r = fake_work_find(&of(w)->store, number(w, consumer), bytes_of(id));
    if (!r)
        return false;
    *ret = (struct work_row){.seq = r->seq,
                             .version = (int64_t)r->content.version,
                             .slot = r->slot,
                             .attempts = r->attempts,
                             .failures = r->failures,
                             .tries = r->tries,
                             .waits_for = r->waits_for,
                             .broker_pos = r->broker_pos,
                             .created_at = r->created_at,
                             .next_attempt_at = r->next_attempt_at,
                             .lease_until = r->lease_until,
                             .claimed_at = r->claimed_at,
                             .first_failed_at = r->first_failed_at,
                             .last_failed_at = r->last_failed_at};
    copy_text(ret->status, sizeof ret->status, row_status_name(r->status));
    copy_text(ret->token, sizeof ret->token, r->token);
    SHOW(ret->last_error, r->last_error);
    SHOW(ret->payload, r->content.payload);
    return true;
}

static bool world_key(struct world *w, const char *consumer, const char *type, const char *id,
                      struct key_row *ret) {
    const struct fake_key *k =
        fake_key_of(&of(w)->store, number(w, consumer) + 1, bytes_of(type), bytes_of(id));
    if (!k->parked)
        return false;
    *ret = (struct key_row){.head_version = (int64_t)k->version, .parked_at = k->parked_at};
    return true;
}

static bool world_queue(struct world *w, const char *subscription, const char *id,
                        struct queue_row *ret) {
    const struct fake_list *rows = &of(w)->store.queue;
    uint32_t s = number(w, subscription), at = rows->n;
    const struct fake_queue_row *q = NULL;
    while (at > 0 && !q) {
        const struct fake_queue_row *c = rows->at[--at];
        if (c->subscription == s && bytes_is(c->content.id, id))
            q = c;
    }
    if (!q)
        return false;
    *ret = (struct queue_row){.pos = (int64_t)q->content.seq,
                              .part = q->content.lane,
                              .version = (int64_t)q->content.version,
                              .prev_version = (int64_t)q->content.prev_version,
                              .deliveries = q->deliveries,
                              .epoch = (int64_t)q->epoch,
                              .routing_version = q->routing_version,
                              .published_at = q->published_at,
                              .lease_until = q->lease_until,
                              .delivered_at = q->delivered_at,
                              .acked_at = q->acked_at};
    copy_text(ret->token, sizeof ret->token, q->token);
    SHOW(ret->payload, q->content.payload);
    return true;
}

static int64_t world_queue_count(struct world *w, const char *subscription, bool unacked_only) {
    const struct fake_list *rows = &of(w)->store.queue;
    uint32_t s = number(w, subscription);
    int64_t n = 0;
    for (uint32_t i = 0; i < rows->n; i++) {
        const struct fake_queue_row *q = rows->at[i];
        n += q->subscription == s && (!unacked_only || !q->acked_at);
    }
    return n;
}

static bool world_lane(struct world *w, const char *name, uint32_t lane, struct lane_row *ret) {
    const struct fake_lane *l = &fake_lanes_find(&of(w)->store, name)->lane[lane];
    if (!l->there)
        return false;
    *ret = (struct lane_row){
        .epoch = (int64_t)l->epoch, .lease_until = l->lease_until, .taken_at = l->taken_at};
    copy_text(ret->owner, sizeof ret->owner, l->owner);
    return true;
}

static bool world_member(struct world *w, const char *boot, struct member_row *ret) {
    const struct fake_list *members = &of(w)->store.member;
    for (uint32_t i = 0; i < members->n; i++) {
        const struct fake_member *m = members->at[i];
        if (strcmp(m->boot, boot) != 0)
            continue;
        *ret = (struct member_row){.member = m->number,
                                   .started_at = m->started_at,
                                   .heartbeat_at = m->heartbeat_at,
                                   .lease_until = m->lease_until,
                                   .ended_at = m->ended_at};
        copy_text(ret->label, sizeof ret->label, m->label);
        copy_text(ret->counters, sizeof ret->counters, m->counters ? m->counters : "{}");
        return true;
    }
    return false;
}

static uint32_t world_attempts(struct world *w, const char *id, struct attempt_row *ret,
                               uint32_t max) {
    const struct fake_store *s = &of(w)->store;
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->attempt.n; i++) {
        const struct fake_attempt *a = s->attempt.at[i];
        if (!bytes_is(a->id, id) || n++ >= max)
            continue;
        struct attempt_row *r = &ret[n - 1];
        *r = (struct attempt_row){.attempt = a->attempt,
                                  .code = a->code ? a->code : -1,
                                  .at = a->at,
                                  .planned_at = a->planned_at,
                                  .started_at = a->started_at};
        copy_text(r->side, sizeof r->side, a->side);
        copy_text(r->kind, sizeof r->kind, a->kind);
        copy_text(r->consumer, sizeof r->consumer,
                  strcmp(a->side, "inbox") == 0 ? s->consumer[a->consumer] : "");
        SHOW(r->error, a->text);
    }
    return n;
}

static uint32_t world_dead(struct world *w, const char *consumer, const char *id,
                           struct dead_row *ret, uint32_t max) {
    const struct fake_list *dead = &of(w)->store.dead;
    uint32_t c = number(w, consumer), n = 0;
    for (uint32_t i = 0; i < dead->n; i++) {
        const struct fake_dead *d = dead->at[i];
        if (d->consumer != c || !bytes_is(d->id, id) || n++ >= max)
            continue;
        struct dead_row *r = &ret[n - 1];
        *r = (struct dead_row){.code = d->code,
                               .version = (int64_t)d->version,
                               .attempts = d->attempts,
                               .failures = d->failures,
                               .broker_part = d->broker_part,
                               .broker_pos = d->broker_pos,
                               .first_failed_at = d->first_failed_at,
                               .last_failed_at = d->last_failed_at,
                               .dead_at = d->dead_at};
        copy_text(r->class_, sizeof r->class_, d->class_);
        copy_text(r->state, sizeof r->state, "open");
        SHOW(r->error, d->error);
        SHOW(r->payload, d->payload);
        SHOW(r->headers, d->headers);
        SHOW(r->event_type, d->event_type);
        SHOW(r->aggregate_id, d->aggregate_id);
    }
    return n;
}

static uint32_t world_results(struct world *w, const char *causation, struct result_row *ret,
                              uint32_t max) {
    const struct fake_list *rows = &of(w)->store.outbox.row;
    uint32_t n = 0;
    for (uint32_t i = 0; i < rows->n; i++) {
        const struct message *m = &((const struct fake_row *)rows->at[i])->content;
        if (!bytes_is(m->causation_id, causation) || n++ >= max)
            continue;
        struct result_row *r = &ret[n - 1];
        *r = (struct result_row){.version = (int64_t)m->version};
        SHOW(r->id, m->id);
        SHOW(r->event_type, m->event_type);
        SHOW(r->aggregate_type, m->aggregate_type);
        SHOW(r->aggregate_id, m->aggregate_id);
        SHOW(r->payload, m->payload);
        SHOW(r->correlation_id, m->correlation_id);
        SHOW(r->traceparent, m->traceparent);
    }
    return n;
}

static int64_t world_effects(struct world *w, const char *consumer, const char *id) {
    const struct fake_list *effects = &of(w)->store.effects_of[number(w, consumer)];
    int64_t n = 0;
    for (uint32_t i = 0; i < effects->n; i++)
        n += bytes_is(((const struct fake_effect *)effects->at[i])->id, id);
    return n;
}

/* ---- the scripted handler: {"verdict":"done","emit":1} ---- */

static bool says(const struct message *m, const char *what) {
    return memmem(m->payload.data, m->payload.size, what, strlen(what)) != NULL;
}

static csn_verdict script_decide(const struct message *m, void *arg) {
    (void)arg;
    static const struct {
        const char *word;
        csn_verdict verdict;
    } words[] = {{"\"refused\"", CSN_REFUSED},   {"\"duplicate\"", CSN_DUPLICATE},
                 {"\"late\"", CSN_LATE},         {"\"early\"", CSN_EARLY},
                 {"\"conflict\"", CSN_CONFLICT}, {"\"poison\"", CSN_POISON},
                 {"\"retry\"", CSN_RETRY},       {"\"unknown\"", CSN_OUTCOME_UNKNOWN}};
    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (says(m, words[i].word))
            return words[i].verdict;
    return CSN_DONE;
}

static bool script_emits(const struct message *m, void *arg) {
    (void)arg;
    return says(m, "\"emit\":1");
}

static const struct handler *world_handler(struct world *w) {
    return &of(w)->handler.handler;
}

struct world *contract_world(void) {
    struct fake_world *w = calloc(1, sizeof *w);
    if (!w)
        return NULL;
    w->mono = INT64_C(1000000000);
    fake_store_init(&w->store, "fake", &w->mono, 1);
    w->store.offset = INT64_C(1700000000000000);
    w->store.full_digest = true;
    w->handler = (struct fake_handler){.decide = script_decide,
                                       .emits = script_emits,
                                       .result_type = "ScriptDone",
                                       .result_aggregate = "script"};
    fake_handler_init(&w->handler);
    w->world = (struct world){.can = WORLD_CUT | WORLD_LOCK,
                              .outbox_lanes = 1,
                              .open = world_open,
                              .close = world_close,
                              .now = world_now,
                              .advance = world_advance,
                              .clock = world_clock,
                              .insert = world_insert,
                              .set_status = world_set_status,
                              .purge_inbox = world_purge,
                              .set_token = world_set_token,
                              .outbox = world_outbox,
                              .outbox_count = world_outbox_count,
                              .inbox = world_inbox,
                              .work = world_work,
                              .key = world_key,
                              .queue = world_queue,
                              .queue_count = world_queue_count,
                              .lane = world_lane,
                              .member = world_member,
                              .attempts = world_attempts,
                              .dead = world_dead,
                              .results = world_results,
                              .effects = world_effects,
                              .handler = world_handler,
                              .cut = world_cut,
                              .lock = world_lock};
    return &w->world;
}

void contract_world_free(struct world *w) {
    fake_store_free(&of(w)->store);
    free(of(w));
}
