/* inbox.c: see inbox.h. Top down: take, apply, decide, park, acknowledge. */
#include "core/inbox.h"
#include "base/error.h"
#include "core/batch.h"
#include "core/route.h"
#include <stdlib.h>

#define NONE UINT32_MAX

static bool delivery_alloc(struct delivery *d, enum source source, uint32_t rows, size_t bytes,
                           csn_usec pause) {
    d->source = source;
    d->due = true;
    d->again = source == SOURCE_BROKER; /* an earlier life of this lane may hold deliveries */
    d->pause = pause;
    return batch_init(&d->batch, rows, bytes);
}

/* Room to apply so many messages, while none is being applied. */
static bool room_grow(struct inbox *b, uint32_t rows) {
    if (b->room >= rows)
        return true;
    bool ok = array_renew(&b->item, rows, sizeof *b->item) &&
              array_renew(&b->park, rows, sizeof *b->park) &&
              array_renew(&b->again, rows, sizeof *b->again) &&
              array_renew(&b->done, rows, sizeof *b->done);
    b->room = ok ? rows : b->room;
    return ok;
}

csn_status inbox_init(struct inbox *b, csn_error *err) {
    b->most = b->rows;
    b->apply_op.kind = b->at_most_once ? OP_TRY : OP_APPLY;
    b->park_op.kind = OP_PARK;
    b->ack_op.kind = OP_ACK;
    b->recover.kind = OP_RECOVER;
    bool ok = room_grow(b, b->rows);
    ok &= delivery_alloc(&b->slot[SOURCE_BROKER], SOURCE_BROKER, b->rows, b->bytes, b->pause_min);
    ok &= delivery_alloc(&b->slot[SOURCE_WORK], SOURCE_WORK, b->rows, b->bytes, b->pause_min);
    return ok ? CSN_OK : error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "inbox of %s", b->consumer);
}

void inbox_free(struct inbox *b) {
    for (int i = 0; i < 2; i++) {
        batch_free(&b->slot[i].batch);
    }
    free(b->item);
    free(b->park);
    free(b->again);
    free(b->done);
}

static uint64_t my_parts(const struct inbox *b) {
    return b->lanes->held & b->part_mask;
}

/* A row was parked under the partition it came from. When there are fewer partitions now, its slot
 * is folded onto those there are: the store keeps the key in order whoever works on it. */
uint64_t inbox_slots(const struct inbox *b) {
    uint64_t parts = my_parts(b), slots = 0;
    uint32_t n = (uint32_t)__builtin_popcountll(b->lanes->all);
    for (uint32_t s = 0; s < LANE_MAX; s++)
        slots |= (parts >> (s % n) & 1) << s;
    return slots;
}

static void store_fault(struct inbox *b, const struct op *op, csn_usec now) {
    b->counters->store_faults++;
    if (b->faults == 0)
        note_add(b->notes, NOTE_WARN, "store.unavailable", "store=%s consumer=%s error=\"%s\"",
                 b->store, b->consumer, op->result.text);
    b->retry_at = now + retry_store_pause(b->faults);
    b->faults++;
}

static void store_well(struct inbox *b) {
    if (b->faults)
        note_add(b->notes, NOTE_INFO, "store.back", "store=%s consumer=%s", b->store, b->consumer);
    b->faults = 0;
}

/* ---- take ---- */

/* How many may be taken: what there is room for when they come, and when they are applied. */
static uint32_t take_limit(const struct inbox *b, struct delivery *d) {
    uint32_t limit = batch_grow(&d->batch, b->rows) ? b->rows : d->batch.cap;
    return limit < b->room ? limit : b->room;
}

static void fresh_batch(struct inbox *b, struct delivery *d, csn_usec now) {
    batch_reset(&d->batch, b->bytes);
    d->state = DELIVERY_ASKED;
    d->taken_at = now;
    d->lease_end = now + b->lease - b->lease / 16;
    prng_token(b->chance, d->token);
    memcpy(d->epoch, b->lanes->epoch, sizeof d->epoch);
    d->take.batch = &d->batch;
    d->take.deadline = now + b->lock_wait;
}

static void submit_receive(struct inbox *b, csn_usec now) {
    struct delivery *d = &b->slot[SOURCE_BROKER];
    struct op *op = &d->take;
    fresh_batch(b, d, now);
    op->kind = OP_RECEIVE;
    copy_text(op->receive.consumer, sizeof op->receive.consumer, b->consumer);
    copy_text(op->receive.lane_name, sizeof op->receive.lane_name, b->lanes->op.lease.name);
    copy_text(op->receive.boot, sizeof op->receive.boot, b->boot);
    copy_text(op->receive.token, sizeof op->receive.token, d->token);
    op->receive.lanes = my_parts(b);
    op->receive.epoch = d->epoch;
    op->receive.limit = take_limit(b, d);
    op->receive.bytes = b->bytes;
    op->receive.lease = b->lease;
    op->receive.longest_lease = b->lease * 4;
    op->receive.again = d->again;
    op->receive.lost = 0;
    op->receive.more = false;
    b->out->submit(b->out, op);
}

static void submit_work(struct inbox *b, csn_usec now) {
    struct delivery *d = &b->slot[SOURCE_WORK];
    struct op *op = &d->take;
    fresh_batch(b, d, now);
    op->kind = OP_CLAIM;
    op->claim.table = TABLE_WORK;
    op->claim.lane_name[0] = '\0';
    copy_text(op->claim.consumer, sizeof op->claim.consumer, b->consumer);
    copy_text(op->claim.boot, sizeof op->claim.boot, b->boot);
    copy_text(op->claim.token, sizeof op->claim.token, d->token);
    op->claim.lanes = inbox_slots(b);
    op->claim.epoch = d->epoch;
    op->claim.limit = take_limit(b, d);
    op->claim.park_limit = 0;
    op->claim.bytes = b->bytes;
    op->claim.lease = b->lease;
    op->claim.longest_backoff = retry_longest(&b->retry);
    op->claim.lost = 0;
    op->claim.parked = 0;
    op->claim.more = false;
}

/* Expired work rows go back first; both share a commit. */
static void submit_recover_and_work(struct inbox *b, csn_usec now) {
    struct op *op = &b->recover;
    op->deadline = now + b->lock_wait;
    op->recover.table = TABLE_WORK;
    copy_text(op->recover.consumer, sizeof op->recover.consumer, b->consumer);
    op->recover.lane_name[0] = '\0';
    copy_text(op->recover.boot, sizeof op->recover.boot, b->boot);
    op->recover.lanes = inbox_slots(b);
    op->recover.fresh = 0;
    op->recover.epoch = b->slot[SOURCE_WORK].epoch;
    op->recover.longest_lease = b->lease * 4;
    op->recover.longest_backoff = retry_longest(&b->retry);
    op->recover.open_routes[0] = '\0';
    op->recover.limit = BATCH_MAX;
    submit_work(b, now);
    b->apply->submit(b->apply, op);
    b->apply->submit(b->apply, &b->slot[SOURCE_WORK].take);
    b->apply->flush(b->apply);
}

/* At most once parks nothing. */
static bool has_slot(const struct inbox *b, const struct delivery *d) {
    return !b->at_most_once || d->source == SOURCE_BROKER;
}

static bool may_take(const struct inbox *b, const struct delivery *d, csn_usec now) {
    return has_slot(b, d) && d->state == DELIVERY_EMPTY && d->due && now >= d->rest_until &&
           !b->stopping && b->declared && my_parts(b) && b->state != INBOX_BROKEN &&
           now >= b->retry_at;
}

static void taken(struct inbox *b, struct delivery *d, csn_usec now) {
    struct op *op = &d->take;
    bool broker = d->source == SOURCE_BROKER;
    op->state = OP_IDLE;
    d->state = DELIVERY_EMPTY;
    if (op->result.status != CSN_OK) {
        d->again |= broker;
        b->counters->store_faults++;
        d->pause = d->pause * 2 < b->pause_max * 4 ? d->pause * 2 : b->pause_max * 4;
        d->rest_until = now + d->pause;
        return;
    }
    if (broker) {
        lanes_lose(b->lanes, op->receive.lost, now);
        d->again = op->receive.lost != 0;
    }
    bool more = broker ? op->receive.more : op->claim.more;
    d->due = d->batch.n > 0 || more;
    if (d->batch.n == 0) {
        d->pause = d->pause * 2 < b->pause_max ? d->pause * 2 : b->pause_max;
        d->rest_until = d->due ? 0 : now + (b->pushed && broker ? 0 : d->pause);
        d->due |= b->pushed && broker;
        return;
    }
    d->pause = b->pause_min;
    d->state = DELIVERY_READY;
    if (!broker)
        return;
    b->counters->received += d->batch.n;
    for (uint32_t i = 0; i < d->batch.n; i++)
        b->counters->redelivered += d->batch.msg[i].redelivered;
}

/* ---- apply ---- */

static bool expired(const struct delivery *d, uint32_t msg, csn_usec now) {
    csn_usec left = d->batch.msg[msg].expires_in;
    return left != CSN_USEC_NEVER && left <= now - d->taken_at;
}

static void submit_apply(struct inbox *b, csn_usec now) {
    struct op *op = &b->apply_op;
    uint32_t n = b->again_n < b->most ? b->again_n : b->most;
    for (uint32_t i = 0; i < n; i++)
        b->item[i] = (struct apply_item){.msg = b->again[i],
                                         .expired = expired(b->now_on, b->again[i], now)};
    op->batch = &b->now_on->batch;
    op->deadline = now + b->lock_wait;
    copy_text(op->apply.consumer, sizeof op->apply.consumer, b->consumer);
    op->apply.handler = b->handler;
    op->apply.order = b->order;
    op->apply.source = b->now_on->source;
    copy_text(op->apply.token, sizeof op->apply.token, b->now_on->token);
    op->apply.item = b->item;
    op->apply.n = n;
    op->apply.emitted = 0;
    b->state = INBOX_APPLYING;
    b->apply->submit(b->apply, op);
    b->apply->flush(b->apply);
}

/* Lets the batch go: nothing is acked, the broker (or the lease of the work rows) brings it back.
 */
static void let_go(struct inbox *b) {
    b->now_on->again = b->now_on->source == SOURCE_BROKER;
    b->now_on->due = true;
    b->now_on->state = DELIVERY_EMPTY;
    b->now_on = NULL;
    b->state = INBOX_IDLE;
}

static void submit_ack(struct inbox *b, uint32_t n, csn_usec now);

/* What was acknowledged before and does not come to a good end: nobody will deliver it again. */
static void lose(struct inbox *b, uint32_t msg, int32_t code, const char *text) {
    const struct message *m = &b->now_on->batch.msg[msg];
    b->counters->lost++;
    note_add(b->notes, NOTE_WARN, "inbox.lost",
             "consumer=%s event_id=%.*s code=CSN-%d error=\"%s\"", b->consumer, (int)m->id.size,
             (const char *)m->id.data, code, text);
}

/* The store cannot. What was acked is lost then; all else comes again. */
static void give_up(struct inbox *b) {
    const csn_error *e = &b->apply_op.result;
    for (uint32_t i = 0; b->at_most_once && i < b->again_n; i++)
        lose(b, b->again[i], e->code, e->text);
    let_go(b);
}

/* An op of the store failed: rest, then the same again, while the delivery lease lasts. */
static void stumbled(struct inbox *b, const struct op *op, csn_usec now) {
    store_fault(b, op, now);
    if (op->result.status == CSN_FATAL && op->result.code == ERR_HANDLER_TX) {
        note_add(b->notes, NOTE_ERROR, "inbox.broken", "consumer=%s error=\"%s\"", b->consumer,
                 op->result.text);
        give_up(b);
        b->state = INBOX_BROKEN;
        return;
    }
    if (b->stopping || b->retry_at + b->lock_wait >= b->now_on->lease_end)
        give_up(b);
}

static void start(struct inbox *b, struct delivery *d, csn_usec now) {
    (void)room_grow(b, b->rows); /* for what is taken from now on */
    b->now_on = d;
    b->again_n = d->batch.n;
    b->done_n = 0;
    for (uint32_t i = 0; i < d->batch.n; i++)
        b->again[i] = i;
    if (b->at_most_once)
        submit_ack(b, b->again_n, now);
    else
        submit_apply(b, now);
}

/* ---- decide: what is kept for later, and how ---- */

static void count_verdict(struct inbox *b, csn_verdict v) {
    switch (v) {
    case CSN_DONE:
        b->counters->handled++;
        break;
    case CSN_REFUSED:
        b->counters->refused++;
        break;
    case CSN_DUPLICATE:
        b->counters->duplicates++;
        break;
    case CSN_LATE:
        b->counters->late++;
        break;
    case CSN_EARLY:
        b->counters->early++;
        break;
    case CSN_CONFLICT:
        b->counters->conflicts++;
        break;
    case CSN_POISON:
        b->counters->poison++;
        break;
    case CSN_RETRY:
        b->counters->retries++;
        break;
    default:
        b->counters->outcome_unknown++;
        break;
    }
}

static bool commits(csn_verdict v) {
    return v == CSN_DONE || v == CSN_REFUSED || v == CSN_DUPLICATE || v == CSN_LATE;
}

/* Fills p for a message whose handler did not commit. */
static void park_by_verdict(struct inbox *b, struct park_item *p, const struct message *m) {
    bool old = m->failing_for >= b->retry.age || m->age >= b->retry.age;
    switch (p->verdict) {
    case CSN_EARLY:
        p->to = old && b->now_on->source == SOURCE_WORK ? PARK_DEAD : PARK_EARLY;
        p->attempt = 1;
        p->retry_in = b->retry.max;
        break;
    case CSN_RETRY:
        p->failure = p->attempt = 1;
        p->to = retry_spent(&b->retry, m->failures, m->failing_for) ? PARK_DEAD : PARK_RETRY;
        p->retry_in = retry_backoff(&b->retry, m->tries, b->chance);
        break;
    case CSN_OUTCOME_UNKNOWN:
        p->attempt = 1;
        p->to = old && b->now_on->source == SOURCE_WORK ? PARK_DEAD : PARK_RETRY;
        p->retry_in = retry_backoff(&b->retry, m->tries, b->chance);
        break;
    case CSN_CONFLICT:
        p->to = PARK_CONFLICT;
        p->failure = 1;
        break;
    default: /* poison, and what no handler may say */
        p->to = PARK_DEAD;
        p->failure = 1;
        break;
    }
}

/* The first message of the same key in this round that is to be parked, or NONE. The list of parked
 * ones is short unless much fails at once; it is bounded by the batch in every case. */
static const struct park_item *first_parked(const struct inbox *b, uint32_t n,
                                            const struct message *m) {
    const struct batch *batch = &b->now_on->batch;
    for (uint32_t i = 0; i < n; i++)
        if (route_same_key(&batch->msg[b->park[i].msg], m))
            return &b->park[i];
    return NULL;
}

static void done(struct inbox *b, uint32_t msg) {
    b->done[b->done_n++] = msg;
}

static void behind(struct inbox *b, uint32_t msg, uint32_t *n) {
    const struct batch *batch = &b->now_on->batch;
    const struct park_item *head = first_parked(b, *n, &batch->msg[msg]);
    if (head && (head->to == PARK_DEAD || head->to == PARK_CONFLICT)) {
        b->again[b->again_n++] = msg; /* the key goes on: apply it once the head is set aside */
        return;
    }
    if (head && bytes_equal(batch->msg[head->msg].id, batch->msg[msg].id)) {
        done(b, msg); /* the same event twice in one batch: parked once */
        return;
    }
    b->counters->behind++;
    b->park[(*n)++] = (struct park_item){
        .msg = msg, .to = PARK_BEHIND, .verdict = CSN_EARLY, .code = ERR_KEY_BLOCKED};
}

/* Sorts the results of a round into done, park and again; returns how many are to be parked. */
static uint32_t decide(struct inbox *b) {
    uint32_t n = 0, picks = b->apply_op.apply.n, rest = b->again_n - picks;
    b->again_n =
        0; /* grows no faster than i: what was not picked stays where it is until the end */
    for (uint32_t i = 0; i < picks; i++) {
        const struct apply_item *a = &b->item[i];
        const struct message *m = &b->now_on->batch.msg[a->msg];
        struct park_item *p = &b->park[n];
        switch (a->out) {
        case APPLY_VERDICT:
            count_verdict(b, a->verdict);
            if (commits(a->verdict)) {
                done(b, a->msg);
                break;
            }
            *p = (struct park_item){.msg = a->msg, .verdict = a->verdict, .code = a->code};
            copy_text(p->text, sizeof p->text, a->text);
            park_by_verdict(b, p, m);
            n++;
            break;
        case APPLY_MISMATCH:
            b->counters->conflicts++;
            *p = (struct park_item){.msg = a->msg,
                                    .to = PARK_CONFLICT,
                                    .verdict = CSN_CONFLICT,
                                    .failure = 1,
                                    .code = ERR_IDENTITY_CONFLICT};
            copy_text(p->text, sizeof p->text, a->text);
            n++;
            break;
        case APPLY_BEHIND:
            behind(b, a->msg, &n);
            break;
        case APPLY_FENCED:
            break; /* somebody else's now */
        case APPLY_NONE:
            b->again[b->again_n++] = a->msg;
            break;
        default: /* seen, waits, aside: the store has it */
            b->counters->duplicates++;
            done(b, a->msg);
            break;
        }
    }
    memmove(b->again + b->again_n, b->again + picks, rest * sizeof *b->again);
    b->again_n += rest;
    return n;
}

/* ---- park and acknowledge ---- */

static void submit_park(struct inbox *b, csn_usec now) {
    b->park_op.deadline = now + b->lock_wait;
    b->park_op.park.ago = now - b->now_on->taken_at;
    b->state = INBOX_PARKING;
    b->apply->submit(b->apply, &b->park_op);
    b->apply->flush(b->apply);
}

static void first_park(struct inbox *b, uint32_t n, csn_usec now) {
    struct op *op = &b->park_op;
    op->batch = &b->now_on->batch;
    copy_text(op->park.consumer, sizeof op->park.consumer, b->consumer);
    op->park.source = b->now_on->source;
    copy_text(op->park.token, sizeof op->park.token, b->now_on->token);
    op->park.item = b->park;
    op->park.n = n;
    submit_park(b, now);
}

static void finish(struct inbox *b) {
    b->now_on->state = DELIVERY_EMPTY;
    b->now_on->due = true;
    b->now_on = NULL;
    b->state = INBOX_IDLE;
    b->turn ^= 1;
}

/* Per partition only the contiguous prefix of what is done: the rest comes again. */
static uint32_t watermark(struct inbox *b) {
    const struct batch *batch = &b->now_on->batch;
    uint64_t stopped = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i < batch->n; i++) {
        uint64_t part = UINT64_C(1) << (batch->msg[i].lane % LANE_MAX);
        bool is_done = false;
        for (uint32_t k = 0; k < b->done_n && !is_done; k++)
            is_done = b->done[k] == i;
        if (!is_done)
            stopped |= part;
        else if (!(stopped & part))
            b->again[n++] = i;
    }
    return n;
}

/* The first n of again[]. */
static void submit_ack(struct inbox *b, uint32_t n, csn_usec now) {
    struct op *op = &b->ack_op;
    op->batch = &b->now_on->batch;
    op->deadline = now + b->lock_wait;
    copy_text(op->ack.consumer, sizeof op->ack.consumer, b->consumer);
    copy_text(op->ack.token, sizeof op->ack.token, b->now_on->token);
    op->ack.msg = b->again;
    op->ack.n = n;
    op->ack.acked = 0;
    b->state = INBOX_ACKING;
    b->out->submit(b->out, op);
    b->out->flush(b->out);
}

static void acknowledge(struct inbox *b, csn_usec now) {
    if (b->now_on->source == SOURCE_WORK) {
        finish(b);
        return;
    }
    uint32_t n = b->done_n == b->now_on->batch.n ? b->done_n : watermark(b);
    if (n < b->now_on->batch.n)
        b->now_on->again = true;
    else
        memcpy(b->again, b->done, n * sizeof *b->again);
    submit_ack(b, n, now);
}

static void after_round(struct inbox *b, csn_usec now) {
    if (b->again_n)
        submit_apply(b, now);
    else
        acknowledge(b, now);
}

/* The handlers did not get through in their time. Alone, a message is to blame itself and becomes a
 * retry (true). */
static bool took_too_long(struct inbox *b, struct op *op) {
    if (op->result.status != CSN_AGAIN || op->result.code != ERR_HANDLER_SQL)
        return false;
    b->most = op->apply.n > 1 ? op->apply.n / 2 : 1;
    if (op->apply.n > 1)
        return false;
    struct apply_item *a = &op->apply.item[0];
    a->out = APPLY_VERDICT;
    a->verdict = CSN_RETRY;
    a->code = op->result.code;
    copy_text(a->text, sizeof a->text, op->result.text);
    op->result.status = CSN_OK;
    return true;
}

/* ---- at most once ---- */

/* Nothing is tried unless all of the batch is surely acknowledged: what is not comes again. */
static void acked_first(struct inbox *b, csn_usec now) {
    const struct op *op = &b->ack_op;
    uint32_t n = b->now_on->batch.n;
    if (op->result.status == CSN_OK && op->ack.acked == n) {
        store_well(b);
        submit_apply(b, now);
        return;
    }
    bool ok = op->result.status == CSN_OK;
    bool unknown = !ok && op->result.status != CSN_AGAIN;
    b->counters->lost += ok ? op->ack.acked : 0;
    b->counters->maybe_lost += unknown ? n : 0;
    if (unknown || (ok && op->ack.acked))
        note_add(b->notes, NOTE_WARN, "inbox.lost", "consumer=%s events=%u error=\"%s; not run\"",
                 b->consumer, ok ? op->ack.acked : n,
                 ok ? "others of their batch are somebody else's" : "the ack has no answer");
    let_go(b);
}

/* The outcome of these is not known: they are not tried again. */
static void tried_unknown(struct inbox *b, const struct op *op) {
    b->counters->apply_unknown++;
    b->counters->maybe_lost += op->apply.n;
    note_add(b->notes, NOTE_WARN, "inbox.lost", "consumer=%s events=%u error=\"%s; not repeated\"",
             b->consumer, op->apply.n, op->result.text);
}

static void tried(struct inbox *b, csn_usec now) {
    const struct op *op = &b->apply_op;
    uint32_t picks = op->apply.n, rest = b->again_n - picks;
    b->again_n = 0;
    for (uint32_t i = 0; i < picks; i++) {
        const struct apply_item *a = &b->item[i];
        if (a->out == APPLY_VERDICT)
            count_verdict(b, a->verdict);
        if (a->out != APPLY_VERDICT || !commits(a->verdict))
            lose(b, a->msg, a->code, a->text);
    }
    b->counters->emitted += op->apply.emitted;
    b->emitted |= op->apply.emitted > 0;
    memmove(b->again, b->again + picks, rest * sizeof *b->again);
    b->again_n = rest;
    if (rest)
        submit_apply(b, now);
    else
        finish(b);
}

static void try_failed(struct inbox *b, csn_usec now) {
    const struct op *op = &b->apply_op;
    uint32_t rest = b->again_n - op->apply.n;
    if (op->result.status == CSN_AGAIN || op->result.status == CSN_NOMEM ||
        op->result.code == ERR_HANDLER_TX) {
        stumbled(b, op, now); /* nothing happened */
        return;
    }
    store_fault(b, op, now);
    tried_unknown(b, op);
    memmove(b->again, b->again + op->apply.n, rest * sizeof *b->again);
    b->again_n = rest;
    if (rest == 0)
        finish(b); /* else the next step goes on after the rest */
}

static void applied(struct inbox *b, csn_usec now) {
    struct op *op = &b->apply_op;
    op->state = OP_IDLE;
    bool alone = took_too_long(b, op);
    if (op->result.status == CSN_OK && !alone && op->apply.n == b->most)
        b->most = b->most < b->rows / 2 ? b->most * 2 : b->rows;
    if (b->at_most_once) {
        if (op->result.status == CSN_OK)
            tried(b, now);
        else
            try_failed(b, now);
        return;
    }
    if (op->result.status != CSN_OK) {
        b->counters->apply_unknown += op->result.status == CSN_UNKNOWN;
        stumbled(b, op, now);
        return;
    }
    store_well(b);
    b->counters->emitted += op->apply.emitted;
    b->emitted |= op->apply.emitted > 0;
    uint32_t n = decide(b);
    if (n)
        first_park(b, n, now);
    else
        after_round(b, now);
}

static void parked(struct inbox *b, csn_usec now) {
    struct op *op = &b->park_op;
    op->state = OP_IDLE;
    if (op->result.status == CSN_UNKNOWN) {
        /* What was parked is found waiting (or fenced) when it is applied again: before the rest,
         * which may be of its key. */
        memmove(b->again + op->park.n, b->again, b->again_n * sizeof *b->again);
        for (uint32_t i = 0; i < op->park.n; i++)
            b->again[i] = op->park.item[i].msg;
        b->again_n += op->park.n;
        store_fault(b, op, now);
        b->state = INBOX_APPLYING;
        return;
    }
    if (op->result.status != CSN_OK) {
        stumbled(b, op, now);
        return;
    }
    store_well(b);
    for (uint32_t i = 0; i < op->park.n; i++) {
        const struct park_item *p = &op->park.item[i];
        if (p->result != CSN_OK)
            continue; /* the work row is somebody else's now */
        done(b, p->msg);
        b->counters->dead += p->to == PARK_DEAD || p->to == PARK_CONFLICT;
        if (p->to == PARK_DEAD || p->to == PARK_CONFLICT)
            note_add(b->notes, NOTE_WARN, "inbox.dead",
                     "consumer=%s event_id=%.*s code=CSN-%d error=\"%s\"", b->consumer,
                     (int)b->now_on->batch.msg[p->msg].id.size,
                     (const char *)b->now_on->batch.msg[p->msg].id.data, p->code, p->text);
    }
    after_round(b, now);
}

static void acked(struct inbox *b, csn_usec now) {
    struct op *op = &b->ack_op;
    op->state = OP_IDLE;
    if (op->result.status == CSN_OK)
        b->counters->acked += op->ack.acked;
    else {
        store_fault(b, op, now);
        b->now_on->again = true; /* it comes again, and the inbox knows it */
    }
    if (b->at_most_once) {
        acked_first(b, now);
        return;
    }
    finish(b);
}

/* ---- the step ---- */

static void go_on(struct inbox *b, csn_usec now) {
    if (now < b->retry_at)
        return;
    if (b->state == INBOX_APPLYING && b->apply_op.state == OP_IDLE && b->park_op.state == OP_IDLE) {
        submit_apply(b, now);
    } else if (b->state == INBOX_PARKING && b->park_op.state == OP_IDLE) {
        submit_park(b, now);
    } else if (b->state == INBOX_BROKEN) {
        return;
    } else if (b->state == INBOX_IDLE) {
        for (uint32_t k = 0; k < 2; k++) {
            struct delivery *d = &b->slot[(b->turn + k) % 2];
            if (d->state == DELIVERY_READY) {
                start(b, d, now);
                return;
            }
        }
    }
}

/* Deliveries that were taken and not begun when the stop came, or whose lease ran out while the
 * store was away. */
static void drop_waiting(struct inbox *b, csn_usec now) {
    for (int k = 0; k < 2; k++) {
        struct delivery *d = &b->slot[k];
        if (d->state == DELIVERY_READY && d != b->now_on &&
            (b->stopping || now + b->lock_wait >= d->lease_end)) {
            d->state = DELIVERY_EMPTY;
            d->again = d->source == SOURCE_BROKER;
            d->due = true;
        }
    }
}

void inbox_step(struct inbox *b, csn_usec now) {
    if (b->recover.state == OP_FINISHED) {
        b->recover.state = OP_IDLE;
        if (b->recover.result.status == CSN_OK)
            b->counters->recovered += b->recover.recover.expired;
    }
    for (int k = 0; k < 2; k++)
        if (b->slot[k].take.state == OP_FINISHED)
            taken(b, &b->slot[k], now);
    if (b->apply_op.state == OP_FINISHED)
        applied(b, now);
    if (b->park_op.state == OP_FINISHED)
        parked(b, now);
    if (b->ack_op.state == OP_FINISHED)
        acked(b, now);
    drop_waiting(b, now);
    go_on(b, now);
    if (now >= b->look_at) {
        /* What a step of the clock hid from the watch, a look of our own finds. */
        b->slot[SOURCE_BROKER].due = b->slot[SOURCE_WORK].due = true;
        b->look_at = now + b->lease / 4;
    }
    if (may_take(b, &b->slot[SOURCE_BROKER], now)) {
        submit_receive(b, now);
        b->out->flush(b->out);
    }
    if (may_take(b, &b->slot[SOURCE_WORK], now) && b->recover.state == OP_IDLE)
        submit_recover_and_work(b, now);
}

csn_usec inbox_deadline(const struct inbox *b, csn_usec now) {
    csn_usec until = CSN_USEC_NEVER;
    if (b->retry_at > now)
        until = b->retry_at;
    if (my_parts(b) && !b->stopping && b->look_at < until)
        until = b->look_at;
    for (int k = 0; k < 2; k++) {
        const struct delivery *d = &b->slot[k];
        if (d->state == DELIVERY_EMPTY && d->due && d->rest_until > now && d->rest_until < until &&
            my_parts(b))
            until = d->rest_until;
        if (d->state == DELIVERY_READY && d->lease_end - b->lock_wait > now &&
            d->lease_end - b->lock_wait < until)
            until = d->lease_end - b->lock_wait;
    }
    return until;
}

void inbox_found(struct inbox *b, enum source source) {
    b->slot[source].due = true;
}

bool inbox_wants_watch(const struct inbox *b, enum source source) {
    const struct delivery *d = &b->slot[source];
    return has_slot(b, d) && !b->stopping && my_parts(b) && d->state == DELIVERY_EMPTY && !d->due &&
           !(b->pushed && source == SOURCE_BROKER);
}

void inbox_stop(struct inbox *b) {
    b->stopping = true;
}

bool inbox_idle(const struct inbox *b) {
    return b->now_on == NULL && b->slot[0].state == DELIVERY_EMPTY &&
           b->slot[1].state == DELIVERY_EMPTY && b->recover.state == OP_IDLE;
}
