/* fake_outbox.c: LEASE, WATCH, CLAIM, SETTLE, RENEW and RECOVER of the fake store. CLAIM, RENEW
 * and RECOVER take the table as a parameter, as the real statements do. */
#include "fake_store.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- lanes and members ---- */

static bool lease_over(csn_usec until, csn_usec now, csn_usec longest) {
    return until <= now || until > now + longest;
}

static struct fake_member *member_of(struct fake_store *s, const struct op *op, csn_usec now) {
    for (uint32_t i = 0; i < s->member.n; i++) {
        struct fake_member *m = s->member.at[i];
        if (strcmp(m->boot, op->lease.boot) == 0)
            return m;
    }
    struct fake_member *m = fake_take(s, sizeof *m);
    copy_text(m->boot, sizeof m->boot, op->lease.boot);
    m->started_at = now;
    m->number = (int32_t)s->member.n + 1;
    fake_list_add(&s->member, m);
    return m;
}

static void member_beat(struct fake_store *s, struct op *op, csn_usec now) {
    struct fake_member *m = member_of(s, op, now);
    copy_text(m->label, sizeof m->label, op->lease.label);
    m->heartbeat_at = now;
    m->lease_until = now + op->lease.lease;
    if (op->lease.leave)
        m->ended_at = now;
    if (op->lease.counters && s->full_digest)
        m->counters = (char *)(uintptr_t)fake_copy(s, bytes_of(op->lease.counters)).data;
    op->lease.member = m->number;
    op->lease.members = 0;
    for (uint32_t i = 0; i < s->member.n; i++) {
        const struct fake_member *other = s->member.at[i];
        op->lease.members +=
            !other->ended_at && !lease_over(other->lease_until, now, op->lease.longest);
    }
}

static void lane_want(struct fake_store *s, struct op *op, uint32_t i, struct fake_lane *l,
                      csn_usec now) {
    bool mine = l->there && strcmp(l->owner, op->lease.boot) == 0;
    bool over = !l->owner[0] || lease_over(l->lease_until, now, op->lease.longest);
    struct fake_lane before = *l;
    if (!over && !mine)
        return;
    l->there = true;
    l->lease_until = now + op->lease.lease;
    op->lease.held |= UINT64_C(1) << i;
    if (!over)
        return;
    copy_text(l->owner, sizeof l->owner, op->lease.boot);
    l->epoch++;
    l->taken_at = now;
    op->lease.fresh |= UINT64_C(1) << i;
    if (s->eyes.lane_taken)
        s->eyes.lane_taken(s->eyes.arg, s, op->lease.name, i, &before, l, op->lease.longest);
}

void fake_lease(struct fake_store *s, struct op *op) {
    csn_usec now = fake_now(s);
    struct fake_lanes *set = fake_lanes_find(s, op->lease.name);
    op->lease.held = op->lease.fresh = 0;
    member_beat(s, op, now);
    for (uint32_t i = 0; i < LANE_MAX; i++) {
        struct fake_lane *l = &set->lane[i];
        uint64_t bit = UINT64_C(1) << i;
        if (op->lease.want & bit)
            lane_want(s, op, i, l, now);
        if ((op->lease.drop & bit) && l->there && strcmp(l->owner, op->lease.boot) == 0) {
            l->owner[0] = '\0';
            l->lease_until = 0;
            op->lease.held &= ~bit;
            op->lease.fresh &= ~bit;
        }
        op->lease.epoch[i] = l->epoch;
    }
}

uint64_t fake_fence(struct fake_store *s, const char *name, uint64_t lanes, const uint64_t *epoch,
                    const char *boot) {
    const struct fake_lanes *set = fake_lanes_find(s, name);
    csn_usec now = fake_now(s);
    uint64_t mine = 0;
    for (uint32_t i = 0; i < LANE_MAX; i++) {
        const struct fake_lane *l = &set->lane[i];
        uint64_t bit = UINT64_C(1) << i;
        if ((lanes & bit) && l->there && l->epoch == epoch[i] && l->lease_until > now &&
            strcmp(l->owner, boot) == 0)
            mine |= bit;
    }
    return mine;
}

/* ---- live rows ---- */

/* Rows that ended leave the list here, in passing. */
static void sweep(struct fake_list *live) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < live->n; i++) {
        struct fake_row *r = live->at[i];
        if (row_ended(r))
            r->live = false;
        else
            live->at[kept++] = r;
    }
    live->n = kept;
}

static bool in_lanes(uint64_t lanes, uint32_t lane) {
    return lanes >> (lane % LANE_MAX) & 1;
}

static bool row_due(const struct fake_row *r, csn_usec now, csn_usec longest) {
    return r->next_attempt_at <= now || (r->tries > 0 && r->next_attempt_at - now > longest);
}

static bool is_work_of(const struct fake_store *s, const struct fake_row *r, const char *consumer) {
    return strcmp(s->consumer[r->consumer], consumer) == 0;
}

/* ---- watch ---- */

static void watch_at(struct op *op, struct watch_item *w, csn_usec in) {
    if (in <= 0)
        w->found = true;
    else if (in < op->watch.next_in)
        op->watch.next_in = in;
}

static void watch_row(struct op *op, struct watch_item *w, const struct fake_row *r, csn_usec now) {
    bool pending = r->status == ROW_PENDING, sending = r->status == ROW_SENDING,
         unknown = r->status == ROW_UNKNOWN;
    bool work = w->kind == WATCH_WORK;
    if ((w->kind == WATCH_OUTBOX || work) && pending)
        watch_at(op, w, r->next_attempt_at - now);
    if ((w->kind == WATCH_RECOVER || work) && sending)
        watch_at(op, w, r->lease_until - now);
    if (w->kind == WATCH_RECOVER && unknown)
        watch_at(op, w, r->next_attempt_at - now);
}

static void watch_queue(struct fake_store *s, struct op *op, struct watch_item *w, csn_usec now) {
    uint32_t subscription = fake_consumer(s, w->consumer);
    uint64_t hidden =
        0; /* partitions whose lowest row is under a live lease: nothing behind it can be had */
    for (uint32_t i = 0; i < s->queue_live.n; i++) {
        const struct fake_queue_row *q = s->queue_live.at[i];
        uint64_t part = UINT64_C(1) << q->content.lane;
        if (q->subscription != subscription || q->acked_at || q->lost || !(w->lanes & part) ||
            (hidden & part))
            continue;
        if (q->token[0] && q->lease_until > now)
            hidden |= part;
        watch_at(op, w, q->token[0] ? q->lease_until - now : 0);
    }
}

void fake_watch(struct fake_store *s, struct op *op) {
    csn_usec now = fake_now(s);
    op->watch.next_in = CSN_USEC_NEVER;
    for (uint32_t k = 0; k < op->watch.n; k++) {
        struct watch_item *w = &op->watch.item[k];
        w->found = false;
        if (w->kind == WATCH_QUEUE) {
            watch_queue(s, op, w, now);
            continue;
        }
        struct fake_table *t = w->kind == WATCH_WORK ? &s->work : &s->outbox;
        for (uint32_t i = 0; i < t->live.n; i++) {
            const struct fake_row *r = t->live.at[i];
            if (in_lanes(w->lanes, r->slot) &&
                (w->kind != WATCH_WORK || is_work_of(s, r, w->consumer)))
                watch_row(op, w, r, now);
        }
    }
}

/* ---- claim ---- */

static bool sooner(const struct fake_row *a, const struct fake_row *b) {
    return a->next_attempt_at < b->next_attempt_at ||
           (a->next_attempt_at == b->next_attempt_at && a->seq < b->seq);
}

static int by_due(const void *a, const void *b) {
    const struct fake_row *x = *(struct fake_row *const *)a, *y = *(struct fake_row *const *)b;
    return sooner(x, y) ? -1 : 1;
}

/* Candidates of a claim in the order of the index. */
static uint32_t gather_due(struct fake_store *s, const struct op *op, uint64_t lanes,
                           csn_usec now) {
    bool work = op->claim.table == TABLE_WORK, sorted = true;
    struct fake_table *t = work ? &s->work : &s->outbox;
    uint32_t n = 0;
    sweep(&t->live);
    if (s->due_cap < t->live.n) {
        s->due_cap = t->live.n * 2;
        s->due = realloc(s->due, s->due_cap * sizeof(*s->due));
        if (!s->due)
            abort();
    }
    for (uint32_t i = 0; i < t->live.n; i++) {
        struct fake_row *r = t->live.at[i];
        if (r->status != ROW_PENDING || !in_lanes(lanes, r->slot) ||
            !row_due(r, now, op->claim.longest_backoff))
            continue;
        if (work && !is_work_of(s, r, op->claim.consumer))
            continue;
        sorted &= n == 0 || sooner(s->due[n - 1], r);
        s->due[n++] = r;
    }
    if (!sorted)
        qsort(s->due, n, sizeof(*s->due), by_due);
    return n;
}

static void park_behind(struct fake_store *s, struct op *op, struct fake_row *r) {
    r->waits_for = WAITS_KEY;
    fake_move(s, r, ROW_WAITING);
    op->claim.parked++;
}

static void fill_message(struct message *m, const struct fake_row *r, const struct fake_row *before,
                         csn_usec now) {
    m->prev_version = before ? before->content.version : 0;
    m->seq = (uint64_t)r->seq;
    m->lane = r->slot;
    m->attempts = r->attempts;
    m->failures = r->failures;
    m->tries = r->tries;
    m->age = now - r->created_at;
    m->failing_for = r->first_failed_at ? now - r->first_failed_at : 0;
    m->expires_in = r->expires_at ? r->expires_at - now : CSN_USEC_NEVER;
    m->route = r->route;
    m->redelivered = r->attempts > 1;
    m->maybe_sent = r->maybe_sent && r->expires_at;
}

static bool take_row(struct fake_store *s, struct op *op, struct fake_row *r, uint32_t n,
                     csn_usec now) {
    struct fake_row *before = op->claim.table == TABLE_OUTBOX ? row_before(r) : NULL;
    struct message *m = &s->taken[n].m;
    if (!fake_message_give(&op->batch->arena, m, &r->content))
        return false;
    s->taken[n].row = r;
    r->attempts++;
    r->claimed_at = now;
    r->claim = s->serial;
    fill_message(m, r, before, now);
    if (op->claim.table == TABLE_WORK)
        m->prev_version = r->content.prev_version;
    fake_move(s, r, ROW_SENDING);
    copy_text(r->token, sizeof r->token, op->claim.token);
    r->lease_until = now + op->claim.lease;
    if (s->eyes.claimed)
        s->eyes.claimed(s->eyes.arg, s, r, op);
    return true;
}

static bool lower(const struct fake_row *a, const struct fake_row *b) {
    return a->content.version < b->content.version ||
           (a->content.version == b->content.version && a->seq < b->seq);
}

/* Hangs entry i into the chain of its key, by version. Rows mostly come in order; a row that was
 * sent back by hand does not. */
static void chain(struct fake_store *s, struct fake_key *k, uint32_t i) {
    uint32_t *link = &k->first;
    while (*link != UINT32_MAX && lower(s->taken[*link].row, s->taken[i].row))
        link = &s->taken[*link].next;
    s->taken[i].next = *link;
    *link = i;
}

static void group_by_key(struct fake_store *s, struct batch *b, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        struct fake_key *k = s->taken[i].row->key;
        if (k->claim != s->serial)
            k->first = UINT32_MAX;
        k->claim = s->serial;
        chain(s, k, i);
    }
    for (uint32_t i = 0; i < n; i++) {
        struct fake_key *k = s->taken[i].row->key;
        for (uint32_t at = k->first; at != UINT32_MAX; at = s->taken[at].next)
            b->msg[b->n++] = s->taken[at].m;
        k->first = UINT32_MAX;
    }
}

void fake_claim(struct fake_store *s, struct op *op) {
    csn_usec now = fake_now(s);
    uint64_t lanes = op->claim.lanes;
    uint32_t limit = op->claim.limit < op->batch->cap ? op->claim.limit : op->batch->cap, n = 0;
    size_t bytes = 0;
    op->claim.lost = 0;
    op->claim.parked = 0;
    op->claim.more = false;
    op->batch->n = 0;
    s->serial++;
    if (op->claim.lane_name[0]) {
        lanes = fake_fence(s, op->claim.lane_name, lanes, op->claim.epoch, op->claim.boot);
        op->claim.lost = op->claim.lanes & ~lanes;
    }
    uint32_t due = gather_due(s, op, lanes, now);
    for (uint32_t i = 0; i < due && !op->claim.more; i++) {
        struct fake_row *r = s->due[i];
        const struct fake_row *before = op->claim.table == TABLE_OUTBOX ? row_before(r) : NULL;
        if (before && !row_ended(before) &&
            !(before->status == ROW_SENDING && before->claim == s->serial)) {
            if (op->claim.parked < op->claim.park_limit)
                park_behind(s, op, r);
            op->claim.more = op->claim.parked >= op->claim.park_limit;
        } else if (n > 0 && bytes + r->content.payload.size > op->claim.bytes) {
            op->claim.more = true;
        } else if (take_row(s, op, r, n, now)) {
            n++;
            bytes += r->content.payload.size;
            op->claim.more = n == limit;
        } else {
            op->claim.more = true;
        }
    }
    group_by_key(s, op->batch, n);
}

/* ---- settle ---- */

static const char *attempt_kind(const struct settle_item *item) {
    switch (item->to) {
    case SETTLE_UNKNOWN:
        return "unanswered";
    case SETTLE_WAITING:
        return "waiting";
    case SETTLE_FAILED:
        return "failed";
    case SETTLE_CANCELLED:
        return "expired";
    default:
        if (item->code == ERR_BROKER_UNROUTABLE)
            return "returned";
        return item->failure || item->code == ERR_BROKER_NACK ? "nacked" : "released";
    }
}

static void note_failure(struct fake_store *s, struct fake_row *r, const struct settle_item *item,
                         csn_usec now) {
    r->failures += item->failure;
    r->tries += item->attempt;
    if (!item->failure && item->to != SETTLE_FAILED)
        return;
    r->last_error = fake_copy(s, bytes_of(item->text));
    r->last_failed_at = now;
    if (!r->first_failed_at)
        r->first_failed_at = now;
}

static void settle_waiting(struct fake_store *s, struct op *op, struct fake_row *r,
                           const struct settle_item *item, csn_usec now) {
    const struct fake_row *before = row_before(r);
    if (item->waits_for == WAITS_KEY && (!before || row_ended(before))) {
        r->next_attempt_at = now;
        fake_move(s, r, ROW_PENDING);
        return;
    }
    if (item->waits_for == WAITS_ROUTE && op->settle.route)
        r->route = fake_copy(s, bytes_of(op->settle.route));
    r->waits_for = item->waits_for;
    fake_move(s, r, ROW_WAITING);
}

static void settle_row(struct fake_store *s, struct op *op, struct fake_row *r,
                       const struct settle_item *item, csn_usec now) {
    switch (item->to) {
    case SETTLE_SENT:
        r->sent_at = now;
        r->published_at = now - item->published_ago;
        r->sent_by = op->settle.member;
        r->broker_part = item->part;
        r->broker_pos = item->pos;
        r->tries = 0;
        fake_move(s, r, ROW_SENT);
        break;
    case SETTLE_PENDING:
    case SETTLE_UNKNOWN:
        if (item->retry_in)
            r->next_attempt_at = now + item->retry_in;
        r->maybe_sent |= item->to == SETTLE_UNKNOWN;
        fake_move(s, r, item->to == SETTLE_UNKNOWN ? ROW_UNKNOWN : ROW_PENDING);
        break;
    case SETTLE_WAITING:
        settle_waiting(s, op, r, item, now);
        break;
    default:
        fake_move(s, r, item->to == SETTLE_FAILED ? ROW_FAILED : ROW_CANCELLED);
        break;
    }
    if (row_ended(r))
        op->settle.released += fake_release_followers(s, r);
}

static struct fake_row *settle_find(struct fake_store *s, const struct op *op,
                                    const struct message *m) {
    struct fake_table *t = op->settle.table == TABLE_WORK ? &s->work : &s->outbox;
    struct fake_row *r = m->seq >= 1 && m->seq <= t->row.n ? t->row.at[m->seq - 1] : NULL;
    return r && bytes_equal(r->content.id, m->id) ? r : NULL;
}

void fake_settle(struct fake_store *s, struct op *op) {
    csn_usec now = fake_now(s);
    op->settle.stale = op->settle.released = 0;
    for (uint32_t i = 0; i < op->settle.n; i++) {
        struct settle_item *item = &op->settle.item[i];
        struct fake_row *r = settle_find(s, op, &op->batch->msg[item->msg]);
        item->result = CSN_OK;
        if (!r || r->status != ROW_SENDING || strcmp(r->token, op->settle.token) != 0) {
            item->result = CSN_STALE;
            op->settle.stale++;
            if (s->eyes.stale)
                s->eyes.stale(s->eyes.arg, s, op, i);
            continue;
        }
        note_failure(s, r, item, now);
        if (item->text[0])
            fake_attempt_add(s, r, "outbox", attempt_kind(item), item->code, item->text,
                             r->next_attempt_at);
        settle_row(s, op, r, item, now);
    }
}

/* ---- renew and recover ---- */

void fake_renew(struct fake_store *s, struct op *op) {
    csn_usec now = fake_now(s);
    struct fake_table *t = op->renew.table == TABLE_WORK ? &s->work : &s->outbox;
    op->renew.renewed = 0;
    for (uint32_t i = 0; i < t->live.n; i++) {
        struct fake_row *r = t->live.at[i];
        if (r->status == ROW_SENDING && strcmp(r->token, op->renew.token) == 0) {
            r->lease_until = now + op->renew.lease;
            op->renew.renewed++;
        }
    }
}

static bool route_listed(const char *list, csn_bytes route) {
    return list[0] && route.size && glob_list_matches(list, route);
}

static bool recover_sending(struct fake_store *s, struct op *op, struct fake_row *r, csn_usec now) {
    bool fresh = op->recover.table == TABLE_OUTBOX && in_lanes(op->recover.fresh, r->slot);
    if (r->status != ROW_SENDING ||
        (!fresh && !lease_over(r->lease_until, now, op->recover.longest_lease)))
        return false;
    fake_attempt_add(s, r, op->recover.table == TABLE_WORK ? "inbox" : "outbox", "unanswered",
                     ERR_OWNER_GONE, "unknown (owner gone)", r->next_attempt_at);
    r->maybe_sent = true;
    fake_move(s, r, ROW_PENDING);
    return true;
}

/* Not due only because the clock was set back. */
static bool recover_drawn(struct fake_store *s, struct op *op, struct fake_row *r, csn_usec now) {
    bool work = op->recover.table == TABLE_WORK;
    bool looked = work || in_lanes(op->recover.fresh, r->slot) ||
                  (now < s->newest && r->next_attempt_at <= s->newest);
    bool planned = !work && r->attempts == 0 && r->next_attempt_at > r->created_at + FOLLOWERS_MAX;
    if (r->status != ROW_PENDING || r->tries || r->next_attempt_at <= now || !looked || planned)
        return false;
    r->next_attempt_at = now;
    return true;
}

static void recover_row(struct fake_store *s, struct op *op, struct fake_row *r, csn_usec now) {
    uint32_t limit = op->recover.limit;
    if (op->recover.expired < limit)
        op->recover.expired += recover_sending(s, op, r, now);
    if (r->status == ROW_UNKNOWN && op->recover.resent < limit &&
        (r->next_attempt_at <= now || r->next_attempt_at > now + op->recover.longest_backoff)) {
        fake_move(s, r, ROW_PENDING);
        op->recover.resent++;
    }
    if (r->status == ROW_WAITING && r->waits_for == WAITS_ROUTE && op->recover.released < limit &&
        route_listed(op->recover.open_routes, r->route)) {
        fake_move(s, r, ROW_PENDING);
        op->recover.released++;
    }
    if (op->recover.drawn < limit)
        op->recover.drawn += recover_drawn(s, op, r, now);
}

void fake_recover(struct fake_store *s, struct op *op) {
    csn_usec now = fake_now(s);
    bool work = op->recover.table == TABLE_WORK;
    struct fake_table *t = work ? &s->work : &s->outbox;
    uint64_t lanes = op->recover.lanes;
    uint32_t limit = op->recover.limit;
    op->recover.expired = op->recover.resent = op->recover.released = op->recover.drawn = 0;
    if (op->recover.lane_name[0])
        lanes = fake_fence(s, op->recover.lane_name, lanes, op->recover.epoch, op->recover.boot);
    for (uint32_t i = 0; i < t->live.n; i++) {
        struct fake_row *r = t->live.at[i];
        if (in_lanes(lanes, r->slot) && (!work || is_work_of(s, r, op->recover.consumer)))
            recover_row(s, op, r, now);
    }
    op->recover.more = op->recover.expired >= limit || op->recover.resent >= limit ||
                       op->recover.released >= limit || op->recover.drawn >= limit;
}
