/* relay.c: see relay.h. Top down: the step, then claim, publish, outcomes, settle, recover. */
#include "core/relay.h"
#include "base/error.h"
#include "core/batch.h"
#include "core/route.h"
#include <stdlib.h>

enum { NOT_HERE = UINT8_MAX, SETTLE_GIVE_UP = 3 /* leases after the claim */ };
#define NONE UINT32_MAX

/* ---- making and freeing ---- */

/* Room for so many messages in a flight that is free; the batch comes last, and says how many. */
static bool flight_grow(struct flight *f, uint32_t rows) {
    return f->batch.cap >= rows ||
           (array_renew(&f->item, rows, sizeof *f->item) &&
            array_renew(&f->pub, rows, sizeof *f->pub) &&
            array_renew(&f->at, rows, sizeof *f->at) && array_renew(&f->to, rows, sizeof *f->to) &&
            array_renew(&f->before, rows, sizeof *f->before) &&
            array_renew(&f->published_at, rows, sizeof *f->published_at) &&
            batch_grow(&f->batch, rows));
}

static bool flight_alloc(struct relay *r, struct flight *f) {
    f->claim.kind = OP_CLAIM;
    f->settle.kind = OP_SETTLE;
    f->renew.kind = OP_RENEW;
    return batch_init(&f->batch, 0, r->bytes) && flight_grow(f, r->rows);
}

csn_status relay_init(struct relay *r, csn_error *err) {
    r->flights = FLIGHTS_MAX;
    r->recover.kind = OP_RECOVER;
    r->pause = r->pause_min;
    r->due = true;
    for (uint32_t i = 0; i < r->flights; i++)
        if (!flight_alloc(r, &r->flight[i]))
            return error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "relay of %s", r->store);
    return CSN_OK;
}

void relay_free(struct relay *r) {
    for (uint32_t i = 0; i < FLIGHTS_MAX; i++) {
        struct flight *f = &r->flight[i];
        free(f->item);
        free(f->pub);
        free(f->at);
        free(f->to);
        free(f->before);
        free(f->published_at);
        batch_free(&f->batch);
    }
}

/* ---- what is in the air ---- */

static bool flight_pending(const struct flight *f) {
    bool pending =
        f->claim.state != OP_IDLE || f->settle.state != OP_IDLE || f->renew.state != OP_IDLE;
    for (uint32_t i = 0; i < BROKERS_MAX; i++)
        pending |= f->publish[i].state != OP_IDLE;
    return pending;
}

static uint64_t busy_lanes(const struct relay *r) {
    uint64_t busy = 0;
    for (uint32_t i = 0; i < r->flights; i++)
        if (r->flight[i].state != FLIGHT_FREE)
            busy |= r->flight[i].lanes;
    return busy;
}

static struct flight *free_flight(struct relay *r) {
    for (uint32_t i = 0; i < r->flights; i++)
        if (r->flight[i].state == FLIGHT_FREE && !flight_pending(&r->flight[i]))
            return &r->flight[i];
    return NULL;
}

static bool dest_open(struct destination *d, csn_usec now) {
    return d->declared && breaker_allows(&d->breaker, now);
}

static void dest_good(struct relay *r, struct destination *d, csn_usec now) {
    if (d->breaker.faults) {
        d->rested += now - d->breaker.opened_at;
        note_add(r->notes, NOTE_INFO, "broker.back", "broker=%s after_ms=%lld", d->name,
                 (long long)((now - d->breaker.opened_at) / 1000));
        r->recover_at = now; /* rows that wait for its routes */
        r->due = true;
    }
    breaker_good(&d->breaker);
}

static void dest_bad(struct relay *r, struct destination *d, csn_usec now, const char *why) {
    if (d->breaker.faults == 0) {
        r->counters->breaker_opened++;
        note_add(r->notes, NOTE_WARN, "broker.rests", "broker=%s why=\"%s\"", d->name, why);
    }
    breaker_bad(&d->breaker, &r->retry, r->chance, now);
}

static void store_fault(struct relay *r, const struct op *op, csn_usec now) {
    r->counters->store_faults++;
    if (r->faults == 0)
        note_add(r->notes, NOTE_WARN, "store.unavailable", "store=%s error=\"%s\"", r->store,
                 op->result.text);
    csn_usec pause = retry_store_pause(r->faults);
    r->faults++;
    r->fault_until = now + pause;
}

static void store_well(struct relay *r) {
    if (r->faults > 0)
        note_add(r->notes, NOTE_INFO, "store.back", "store=%s", r->store);
    r->faults = 0;
    r->fault_until = 0;
}

/* ---- claim ---- */

/* How many rows may be claimed now: none while every destination rests, few while none is known to
 * work. */
static uint32_t claim_limit(struct relay *r, csn_usec now) {
    bool works = false, may = false, probing = false;
    for (uint32_t i = 0; i < r->dests; i++) {
        bool open = dest_open(&r->dest[i], now);
        may |= open;
        works |= open && r->dest[i].breaker.state == BREAKER_CLOSED;
    }
    for (uint32_t i = 0; i < r->flights; i++)
        probing |= r->flight[i].state != FLIGHT_FREE && r->flight[i].probe;
    if (!may || (!works && probing))
        return 0;
    return works || r->rows < PROBE_ROWS ? r->rows : PROBE_ROWS;
}

/* Submits a claim of what is held and idle, after those lanes of `also` that a settle in the same
 * group sets free. */
static bool submit_claim(struct relay *r, uint64_t also, csn_usec now) {
    uint64_t lanes = r->lanes->held & ~(busy_lanes(r) & ~also) & ~r->lanes->fresh & ~r->unsure;
    struct flight *f = free_flight(r);
    uint32_t limit =
        lanes && f && !r->stopping && r->due && now >= r->rest_until ? claim_limit(r, now) : 0;
    if (limit == 0)
        return false;
    if (!flight_grow(f, limit))
        limit = f->batch.cap;
    struct op *op = &f->claim;
    batch_reset(&f->batch, r->bytes);
    f->state = FLIGHT_CLAIMING;
    f->lanes = lanes;
    f->abandoned = 0;
    f->settle_faults = 0;
    f->settle_unsure = false;
    f->waits_route = NULL;
    f->probe = limit == PROBE_ROWS && limit < r->rows;
    f->claimed_at = now;
    f->lease_end = now + r->lease - r->lease / 16;
    prng_token(r->chance, f->token);
    op->batch = &f->batch;
    op->deadline = now + r->lock_wait;
    op->claim.table = TABLE_OUTBOX;
    copy_text(op->claim.lane_name, sizeof op->claim.lane_name, r->lanes->op.lease.name);
    copy_text(op->claim.boot, sizeof op->claim.boot, r->boot);
    copy_text(op->claim.token, sizeof op->claim.token, f->token);
    op->claim.consumer[0] = '\0';
    op->claim.lanes = lanes;
    memcpy(f->epoch, r->lanes->epoch, sizeof f->epoch);
    op->claim.epoch = f->epoch;
    op->claim.limit = limit;
    op->claim.park_limit = r->rows * PARK_SHARE;
    op->claim.bytes = r->bytes;
    op->claim.lease = r->lease;
    op->claim.longest_backoff = retry_longest(&r->retry);
    r->port->submit(r->port, op);
    return true;
}

static uint8_t route_of(const struct relay *r, const struct message *m) {
    for (uint32_t i = 0; m->route.size && i < r->routes; i++)
        if (bytes_is(m->route, r->route[i].name))
            return (uint8_t)i;
    for (uint32_t i = 0; i < r->routes; i++)
        if (glob_list_matches(r->route[i].match, m->event_type))
            return (uint8_t)i;
    return NOT_HERE;
}

static uint64_t key_hash(const struct message *m) {
    return bytes_hash(m->aggregate_id, bytes_hash(m->aggregate_type, 1));
}

/* Finds for every message the one before it in its key, in this batch. Within a key the batch is in
 * order. */
static void find_before(struct flight *f) {
    uint16_t last[2048]; /* twice BATCH_MAX: never full */
    memset(last, 0xff, sizeof last);
    for (uint32_t i = 0; i < f->batch.n; i++) {
        uint32_t at = (uint32_t)key_hash(&f->batch.msg[i]) % ARRAY_LEN(last);
        while (last[at] != UINT16_MAX && !route_same_key(&f->batch.msg[last[at]], &f->batch.msg[i]))
            at = (at + 1) % ARRAY_LEN(last);
        f->before[i] = last[at] == UINT16_MAX ? NONE : last[at];
        last[at] = (uint16_t)i;
    }
}

static void claimed(struct relay *r, struct flight *f, csn_usec now) {
    struct op *op = &f->claim;
    op->state = OP_IDLE;
    f->state = FLIGHT_FREE;
    if (op->result.status != CSN_OK) {
        if (op->result.status == CSN_UNKNOWN)
            r->unsure |= f->lanes; /* rows may be sending under a token that nobody has */
        store_fault(r, op, now);
        return;
    }
    store_well(r);
    lanes_lose(r->lanes, op->claim.lost, now);
    r->counters->parked += op->claim.parked;
    r->due = f->batch.n > 0 || op->claim.parked > 0 || op->claim.more;
    if (f->batch.n == 0) {
        r->pause = r->pause * 2 < r->pause_max ? r->pause * 2 : r->pause_max;
        r->rest_until = r->due ? 0 : now + r->pause;
        return;
    }
    r->pause = r->pause_min;
    r->counters->claims++;
    r->counters->claimed += f->batch.n;
    memset(f->at, AT_QUEUED, f->batch.n);
    memset(f->published_at, 0, f->batch.n * sizeof *f->published_at);
    for (uint32_t i = 0; i < f->batch.n; i++)
        f->to[i] = route_of(r, &f->batch.msg[i]);
    find_before(f);
    f->state = FLIGHT_PUBLISHING;
}

/* ---- outcomes: where a row goes ---- */

static struct settle_item *ready(struct flight *f, uint32_t i, enum settle_to to) {
    f->at[i] = AT_READY;
    f->item[i] = (struct settle_item){.msg = i, .to = (uint8_t)to, .part = -1, .pos = -1};
    return &f->item[i];
}

static void give_back(struct relay *r, struct flight *f, uint32_t i, csn_usec retry_in,
                      const char *why) {
    struct settle_item *item = ready(f, i, SETTLE_PENDING);
    item->retry_in = retry_in;
    copy_text(item->text, sizeof item->text, why);
    item->code = ERR_BROKER_DOWN;
    r->counters->given_back++;
}

static void wait_for_key(struct flight *f, uint32_t i) {
    struct settle_item *item = ready(f, i, SETTLE_WAITING);
    item->waits_for = WAITS_KEY;
    item->code = ERR_KEY_BLOCKED;
}

/* Time behind an open breaker is nobody's age. */
static csn_usec fair_age(const struct relay *r, const struct flight *f, uint32_t i, csn_usec now) {
    csn_usec rested = 0;
    if (f->to[i] != NOT_HERE) {
        const struct destination *d = &r->dest[r->route[f->to[i]].to];
        rested = d->rested + (d->breaker.faults ? now - d->breaker.opened_at : 0);
    }
    csn_usec age = f->batch.msg[i].failing_for - rested;
    return age > 0 ? age : 0;
}

static void faulted(struct relay *r, struct flight *f, uint32_t i, enum fault fault, int32_t code,
                    const char *text, csn_usec now) {
    const struct message *m = &f->batch.msg[i];
    bool spent =
        fault == FAULT_TEMPORARY && retry_spent(&r->retry, m->failures, fair_age(r, f, i, now));
    enum settle_to to = fault == FAULT_UNKNOWN              ? SETTLE_UNKNOWN
                        : fault == FAULT_PERMANENT || spent ? SETTLE_FAILED
                                                            : SETTLE_PENDING;
    struct settle_item *item = ready(f, i, to);
    item->failure = fault == FAULT_TEMPORARY || fault == FAULT_PERMANENT;
    item->attempt = fault != FAULT_PERMANENT;
    item->code = code;
    if (to != SETTLE_FAILED)
        item->retry_in = retry_backoff(&r->retry, m->tries, r->chance);
    struct text t;
    text_init(&t, item->text, sizeof item->text);
    text_add(&t, "%s%s", spent ? "budget spent: " : "", text);
    r->counters->unknown += fault == FAULT_UNKNOWN;
}

static void confirmed(struct relay *r, struct flight *f, const struct publish_item *p) {
    struct settle_item *item = ready(f, p->msg, SETTLE_SENT);
    item->part = p->part;
    item->pos = p->pos;
    r->counters->confirmed++;
    r->woke = true;
}

/* ---- publish ---- */

static bool ended(const struct flight *f, uint32_t i) {
    return f->at[i] == AT_READY &&
           (f->item[i].to == SETTLE_SENT || f->item[i].to == SETTLE_CANCELLED);
}

/* One that may be with its consumers already goes out once more, and they find it too late: to
 * cancel it would say that nothing was sent, and let those behind it pass a copy under way. */
static bool expired(const struct flight *f, uint32_t i, csn_usec now) {
    const struct message *m = &f->batch.msg[i];
    return m->expires_in != CSN_USEC_NEVER && !m->maybe_sent &&
           m->expires_in <= now - f->claimed_at;
}

/* True when message i can leave in this wave towards destination d. */
static bool may_leave(const struct relay *r, const struct flight *f, uint32_t i, uint32_t d,
                      csn_usec now) {
    if (f->at[i] != AT_QUEUED || f->to[i] == NOT_HERE || r->route[f->to[i]].to != d ||
        expired(f, i, now))
        return false;
    uint32_t before = f->before[i];
    if (before == NONE || ended(f, before))
        return true;
    /* One commit shows both, in order: the earlier one must be in this very op. */
    return (r->dest[d].port->flags & PORT_ATOMIC_PUBLISH) && f->at[before] == AT_OUT &&
           r->route[f->to[before]].to == d;
}

static void not_now(struct relay *r, struct flight *f, uint32_t i, csn_usec now) {
    const struct relay_route *route = &r->route[f->to[i]];
    struct destination *d = &r->dest[route->to];
    bool others = false;
    for (uint32_t k = 0; k < r->dests; k++)
        others |= k != route->to && dest_open(&r->dest[k], now);
    if (others && (!f->waits_route || strcmp(f->waits_route, route->name) == 0)) {
        f->waits_route = route->name;
        struct settle_item *item = ready(f, i, SETTLE_WAITING);
        item->waits_for = WAITS_ROUTE;
        item->code = ERR_BROKER_DOWN;
        copy_text(item->text, sizeof item->text, "its destination rests");
        return;
    }
    csn_usec rest = d->breaker.open_until - now;
    give_back(r, f, i, others && rest > 0 ? rest : 0, "its destination rests");
}

/* Messages that need no broker: expired, without a route, behind one that did not go out, towards a
 * closed destination. */
static void sort_out(struct relay *r, struct flight *f, csn_usec now) {
    for (uint32_t i = 0; i < f->batch.n; i++) {
        if (f->at[i] != AT_QUEUED)
            continue;
        uint32_t before = f->before[i];
        if (before != NONE && f->at[before] == AT_READY && !ended(f, before)) {
            if (f->item[before].to == SETTLE_PENDING && !f->item[before].attempt)
                give_back(r, f, i, f->item[before].retry_in, "given back with the event before it");
            else
                wait_for_key(f, i);
        } else if (expired(f, i, now)) {
            if (before != NONE && !ended(f, before))
                continue; /* ended before its turn it would let those behind it pass those before it
                           */
            struct settle_item *item = ready(f, i, SETTLE_CANCELLED);
            item->code = ERR_EXPIRED;
            copy_text(item->text, sizeof item->text, "expired before it was published");
            r->counters->expired++;
        } else if (before != NONE && f->at[before] == AT_READY &&
                   f->item[before].to == SETTLE_CANCELLED) {
            wait_for_key(f, i); /* until that is written: before, a clock set back would let the one
                                   before it live, and go out after it */
        } else if (f->to[i] == NOT_HERE) {
            faulted(r, f, i, FAULT_TEMPORARY, ERR_BROKER_UNROUTABLE,
                    "no route matches the event type", now);
        } else if (!dest_open(&r->dest[r->route[f->to[i]].to], now)) {
            not_now(r, f, i, now);
        }
    }
}

static uint32_t publish_to(struct relay *r, struct flight *f, uint32_t d, uint32_t from,
                           csn_usec now) {
    struct destination *dest = &r->dest[d];
    uint32_t most = dest->breaker.state == BREAKER_PROBING ? PROBE_ROWS : BATCH_MAX, n = 0;
    for (uint32_t i = 0; i < f->batch.n && n < most; i++) {
        if (!may_leave(r, f, i, d, now))
            continue;
        f->pub[from + n++] = (struct publish_item){.msg = i, .part = -1, .pos = -1};
        f->at[i] = AT_OUT;
        f->published_at[i] = now;
    }
    if (n == 0)
        return 0;
    struct op *op = &f->publish[d];
    op->kind = OP_PUBLISH;
    op->batch = &f->batch;
    op->deadline = now + dest->confirm_timeout;
    op->publish.item = &f->pub[from];
    op->publish.n = n;
    op->publish.ago = now - f->claimed_at;
    r->counters->published += n;
    dest->port->submit(dest->port, op);
    dest->port->flush(dest->port);
    return n;
}

static bool publishing(const struct flight *f) {
    for (uint32_t d = 0; d < BROKERS_MAX; d++)
        if (f->publish[d].state == OP_PENDING && !(f->abandoned & (1u << d)))
            return true;
    return false;
}

static csn_usec longest_confirm(const struct relay *r) {
    csn_usec longest = 0;
    for (uint32_t d = 0; d < r->dests; d++)
        longest = r->dest[d].confirm_timeout > longest ? r->dest[d].confirm_timeout : longest;
    return longest;
}

static void renew(struct relay *r, struct flight *f, csn_usec now) {
    struct op *op = &f->renew;
    op->deadline = now + r->lock_wait;
    op->batch = &f->batch;
    op->renew.table = TABLE_OUTBOX;
    copy_text(op->renew.token, sizeof op->renew.token, f->token);
    op->renew.lease = r->lease;
    f->retry_at = now; /* the new lease counts from here */
    r->port->submit(r->port, op);
    r->port->flush(r->port);
}

/* Sends the next wave, or, when the lease would not cover its confirms, renews first or gives the
 * rest back. */
static void next_wave(struct relay *r, struct flight *f, csn_usec now) {
    bool covered = now + longest_confirm(r) < f->lease_end;
    bool give_up =
        r->stopping || f->abandoned || now >= f->claimed_at + 2 * r->lease || now >= f->lease_end;
    if (!give_up && !covered) {
        if (f->renew.state == OP_IDLE)
            renew(r, f, now);
        return;
    }
    sort_out(r, f, now);
    uint32_t sent = 0;
    for (uint32_t d = 0; !give_up && d < r->dests; d++)
        sent += publish_to(r, f, d, sent, now);
    if (sent)
        return;
    for (uint32_t i = 0; i < f->batch.n; i++) {
        if (f->at[i] != AT_QUEUED)
            continue;
        if (f->before[i] != NONE && f->at[f->before[i]] == AT_READY && !ended(f, f->before[i]))
            wait_for_key(f, i);
        else
            give_back(r, f, i, 0,
                      r->stopping ? "given back at stop"
                                  : "given back: the lease would end too soon");
    }
}

static void renewed(struct relay *r, struct flight *f, csn_usec now) {
    struct op *op = &f->renew;
    op->state = OP_IDLE;
    if (op->result.status == CSN_OK && op->renew.renewed > 0) {
        f->lease_end = f->retry_at + r->lease - r->lease / 16;
        r->counters->renewed += op->renew.renewed;
        return;
    }
    store_fault(r, op, now);
    f->lease_end = now; /* cannot be sure: give the rest back */
}

/* What one finished publish op says, message by message. */
static void published(struct relay *r, struct flight *f, uint32_t d, csn_usec now) {
    struct op *op = &f->publish[d];
    csn_status status = op->result.status;
    uint32_t said = 0, unsaid = 0;
    op->state = OP_IDLE;
    if (f->abandoned & (1u << d)) {
        f->abandoned &= ~(1u << d);
        r->counters->late_results += op->publish.n;
        return;
    }
    for (uint32_t k = 0; k < op->publish.n; k++) {
        const struct publish_item *p = &op->publish.item[k];
        uint32_t i = p->msg, before = f->before[i];
        bool nothing = status == CSN_AGAIN || status == CSN_NOMEM || p->out == PUB_UNSENT;
        said += p->out != PUB_NONE && p->out != PUB_UNSENT && !nothing;
        if (nothing && before != NONE && f->at[before] == AT_READY && !ended(f, before) &&
            f->item[before].attempt) {
            wait_for_key(f, i);
        } else if (nothing) {
            give_back(r, f, i, 0, op->result.text[0] ? op->result.text : "not sent");
        } else if (p->out == PUB_CONFIRMED) {
            confirmed(r, f, p);
        } else if (p->out == PUB_NACKED) {
            r->counters->nacked++;
            faulted(r, f, i, FAULT_TEMPORARY, p->code ? p->code : ERR_BROKER_NACK, p->text, now);
        } else if (p->out == PUB_RETURNED) {
            r->counters->returned++;
            faulted(r, f, i, FAULT_TEMPORARY, p->code ? p->code : ERR_BROKER_UNROUTABLE, p->text,
                    now);
        } else if (p->out == PUB_REJECTED) {
            r->counters->rejected++;
            faulted(r, f, i, FAULT_PERMANENT, p->code ? p->code : ERR_BROKER_REJECTED, p->text,
                    now);
        } else {
            unsaid++;
            faulted(r, f, i, FAULT_UNKNOWN, ERR_BROKER_NO_ANSWER, "no answer from the broker", now);
        }
    }
    if (said)
        dest_good(r, &r->dest[d], now);
    else if (unsaid || status != CSN_OK)
        dest_bad(r, &r->dest[d], now, op->result.text[0] ? op->result.text : "no answer");
}

/* The deadline has passed and the driver still has the op: what was asked for and not answered is
 * unknown. */
static void abandon(struct relay *r, struct flight *f, uint32_t d, csn_usec now) {
    static const char late[] = "no answer from the broker in time";
    f->abandoned |= 1u << d;
    for (uint32_t i = 0; i < f->batch.n; i++)
        if (f->at[i] == AT_OUT && r->route[f->to[i]].to == d)
            faulted(r, f, i, FAULT_UNKNOWN, ERR_BROKER_NO_ANSWER, late, now);
    dest_bad(r, &r->dest[d], now, late);
}

/* ---- settle ---- */

static bool all_ready(const struct flight *f) {
    for (uint32_t i = 0; i < f->batch.n; i++)
        if (f->at[i] != AT_READY)
            return false;
    return true;
}

static void submit_settle(struct relay *r, struct flight *f, csn_usec now) {
    struct op *op = &f->settle;
    for (uint32_t i = 0; i < f->batch.n; i++) {
        f->item[i].result = CSN_OK;
        f->item[i].published_ago = f->published_at[i] ? now - f->published_at[i] : 0;
    }
    op->batch = &f->batch;
    op->deadline = now + r->lock_wait;
    op->settle.table = TABLE_OUTBOX;
    copy_text(op->settle.token, sizeof op->settle.token, f->token);
    op->settle.member = r->lanes->member;
    op->settle.item = f->item;
    op->settle.n = f->batch.n;
    op->settle.route = f->waits_route;
    op->settle.stale = op->settle.released = 0;
    f->state = FLIGHT_SETTLING;
    r->port->submit(r->port, op);
    if (f->settle_faults == 0)
        submit_claim(r, f->lanes, now);
    r->port->flush(r->port);
}

static void settled(struct relay *r, struct flight *f, csn_usec now) {
    struct op *op = &f->settle;
    csn_status status = op->result.status;
    op->state = OP_IDLE;
    if (status != CSN_OK) {
        f->settle_unsure |= status == CSN_UNKNOWN;
        r->counters->settle_unknown += status == CSN_UNKNOWN;
        store_fault(r, op, now);
        f->retry_at = r->fault_until;
        f->settle_faults++;
        if (now < f->claimed_at + SETTLE_GIVE_UP * r->lease)
            return;
        r->unsure |= f->lanes; /* the leases are over: recovery says so in the rows */
        f->state = FLIGHT_FREE;
        return;
    }
    store_well(r);
    f->state = FLIGHT_FREE;
    r->counters->followers_released += op->settle.released;
    r->due |= op->settle.released > 0;
    for (uint32_t i = 0; i < f->batch.n; i++) {
        bool mine = f->item[i].result == CSN_OK;
        r->counters->sent += mine && f->item[i].to == SETTLE_SENT;
        r->counters->failed += mine && f->item[i].to == SETTLE_FAILED;
    }
    if (op->settle.stale && !f->settle_unsure) {
        r->counters->stale_writes += op->settle.stale;
        note_add(r->notes, NOTE_WARN, "relay.stale", "store=%s rows=%u token=%s", r->store,
                 op->settle.stale, f->token);
    }
}

static void step_flight(struct relay *r, struct flight *f, csn_usec now) {
    if (f->claim.state == OP_FINISHED)
        claimed(r, f, now);
    if (f->renew.state == OP_FINISHED)
        renewed(r, f, now);
    for (uint32_t d = 0; d < r->dests; d++) {
        if (f->publish[d].state == OP_FINISHED)
            published(r, f, d, now);
        else if (f->publish[d].state == OP_PENDING && !(f->abandoned & (1u << d)) &&
                 now >= f->publish[d].deadline)
            abandon(r, f, d, now);
    }
    if (f->settle.state == OP_FINISHED)
        settled(r, f, now);
    while (f->state == FLIGHT_PUBLISHING && !publishing(f) && f->renew.state == OP_IDLE &&
           !all_ready(f))
        next_wave(r, f, now);
    if (f->state == FLIGHT_PUBLISHING && !publishing(f) && all_ready(f))
        submit_settle(r, f, now);
    if (f->state == FLIGHT_SETTLING && f->settle.state == OP_IDLE && now >= f->retry_at)
        submit_settle(r, f, now);
}

/* ---- recover ---- */

static void recovered(struct relay *r, csn_usec now) {
    struct op *op = &r->recover;
    op->state = OP_IDLE;
    if (op->result.status != CSN_OK) {
        store_fault(r, op, now);
        r->recover_at = r->fault_until;
        return;
    }
    if (!op->recover.more) {
        /* What another flight or claim made unsure meanwhile was not in this op's set. */
        r->lanes->fresh &= ~r->recovering;
        r->unsure &= ~r->recovering;
    }
    r->counters->recovered += op->recover.expired;
    r->counters->resent += op->recover.resent;
    r->counters->route_released += op->recover.released;
    bool moved = op->recover.expired || op->recover.resent || op->recover.released ||
                 op->recover.drawn || r->recovering;
    if (r->due || moved)
        r->rest_until = 0;
    /* A claim is made now and then even if no row is known to be due: what a step of the clock hid
     * from the watch, it finds. */
    r->due = true;
    if (r->expired && !moved)
        r->watch_from = now + r->pause_max; /* the watch saw what this must not touch, and would say
                                               so again at once */
    r->expired = false;
    bool probes =
        op->recover.limit < BATCH_MAX; /* the rest comes when the destination is good again */
    r->recover_at = op->recover.more && !probes ? now : now + r->lease / 4;
}

static void submit_recover(struct relay *r, csn_usec now) {
    struct op *op = &r->recover;
    struct text routes;
    bool probing = false;
    text_init(&routes, op->recover.open_routes, sizeof op->recover.open_routes);
    op->recover.open_routes[0] = '\0';
    for (uint32_t i = 0; i < r->routes; i++) {
        struct destination *d = &r->dest[r->route[i].to];
        if (dest_open(d, now))
            text_add(&routes, "%s%s", routes.used ? "," : "", r->route[i].name);
        probing |= d->breaker.state == BREAKER_PROBING;
    }
    op->deadline = now + r->lock_wait;
    op->recover.table = TABLE_OUTBOX;
    op->recover.consumer[0] = '\0';
    copy_text(op->recover.lane_name, sizeof op->recover.lane_name, r->lanes->op.lease.name);
    copy_text(op->recover.boot, sizeof op->recover.boot, r->boot);
    op->recover.lanes = r->lanes->held;
    r->recovering = (r->lanes->fresh | r->unsure) & r->lanes->held & ~busy_lanes(r);
    op->recover.fresh = r->recovering;
    memcpy(r->recover_epoch, r->lanes->epoch, sizeof r->recover_epoch);
    op->recover.epoch = r->recover_epoch;
    op->recover.longest_lease = r->lease * 4;
    op->recover.longest_backoff = retry_longest(&r->retry);
    op->recover.limit = probing ? PROBE_ROWS : BATCH_MAX;
    op->recover.expired = op->recover.resent = op->recover.released = op->recover.drawn = 0;
    op->recover.more = false;
    r->port->submit(r->port, op);
    r->port->flush(r->port);
}

static bool recover_due(const struct relay *r, csn_usec now) {
    uint64_t first = (r->lanes->fresh | r->unsure) & r->lanes->held & ~busy_lanes(r);
    return r->lanes->held && !r->stopping && now >= r->fault_until &&
           (first || now >= r->recover_at);
}

/* ---- the step ---- */

void relay_step(struct relay *r, csn_usec now) {
    if (r->recover.state == OP_FINISHED)
        recovered(r, now);
    for (uint32_t i = 0; i < r->flights; i++)
        step_flight(r, &r->flight[i], now);
    if (r->recover.state == OP_IDLE && recover_due(r, now))
        submit_recover(r, now);
    if (now >= r->fault_until && submit_claim(r, 0, now))
        r->port->flush(r->port);
}

static csn_usec earlier(csn_usec a, csn_usec b) {
    return a < b ? a : b;
}

csn_usec relay_deadline(const struct relay *r, csn_usec now) {
    csn_usec until = CSN_USEC_NEVER;
    for (uint32_t i = 0; i < r->flights; i++) {
        const struct flight *f = &r->flight[i];
        for (uint32_t d = 0; d < r->dests; d++)
            if (f->publish[d].state == OP_PENDING && !(f->abandoned & (1u << d)))
                until = earlier(until, f->publish[d].deadline);
        if (f->state == FLIGHT_SETTLING && f->settle.state == OP_IDLE)
            until = earlier(until, f->retry_at);
    }
    if (r->stopping || !r->lanes->held)
        return until;
    if (r->recover.state == OP_IDLE)
        until = earlier(until, r->recover_at > r->fault_until ? r->recover_at : r->fault_until);
    for (uint32_t d = 0; d < r->dests; d++)
        if (r->dest[d].breaker.state == BREAKER_OPEN && r->dest[d].breaker.open_until > now)
            until = earlier(until, r->dest[d].breaker.open_until); /* one whose rest is over waits
                                                                      for a row to probe it with */
    if (r->due && (r->rest_until > now || r->fault_until > now))
        until = earlier(until, r->rest_until > r->fault_until ? r->rest_until : r->fault_until);
    if (r->watch_from > now)
        until = earlier(until, r->watch_from);
    return until;
}

void relay_found(struct relay *r, bool due, bool expired) {
    r->due |= due;
    r->expired |= expired;
    if (expired)
        r->recover_at = 0;
}

/* What it has said is not asked again before somebody has looked: the watch answers at once, and
 * would spin. */
bool relay_wants_watch(const struct relay *r, csn_usec now) {
    return !r->stopping && r->lanes->held != 0 && !r->due && !r->expired && now >= r->watch_from;
}

void relay_stop(struct relay *r) {
    r->stopping = true;
}

bool relay_idle(const struct relay *r) {
    for (uint32_t i = 0; i < r->flights; i++)
        if (r->flight[i].state != FLIGHT_FREE)
            return false;
    return r->recover.state != OP_PENDING;
}
