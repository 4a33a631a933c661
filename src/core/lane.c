/* lane.c: see lane.h. One LEASE op at a time; a failed one is tried again soon, and the lanes are
 * believed until held_until. */
#include "core/lane.h"

enum { RETRY_SOONEST = 20000, RETRY_LATEST = 1000000 };

void lanes_init(struct lanes *l, struct port *heart, const char *name, uint32_t count,
                csn_usec lease, const char *boot, const char *label) {
    *l = (struct lanes){.heart = heart, .lease = lease, .member = -1};
    l->all = count >= LANE_MAX ? ~UINT64_C(0) : (UINT64_C(1) << count) - 1;
    l->op.kind = OP_LEASE;
    copy_text(l->op.lease.name, sizeof l->op.lease.name, name);
    copy_text(l->op.lease.boot, sizeof l->op.lease.boot, boot);
    copy_text(l->op.lease.label, sizeof l->op.lease.label, label);
}

static void lost(struct lanes *l, uint64_t gone, const char *why) {
    gone &= l->held;
    if (!gone)
        return;
    l->held &= ~gone;
    l->fresh &= ~gone;
    l->counters->lanes_lost += (uint64_t)__builtin_popcountll(gone);
    note_add(l->notes, NOTE_WARN, "lanes.lost", "name=%s lanes=%d why=\"%s\"", l->op.lease.name,
             __builtin_popcountll(gone), why);
}

void lanes_lose(struct lanes *l, uint64_t gone, csn_usec now) {
    if (gone & l->held)
        l->next_at = now;
    lost(l, gone, "another owner has them");
}

static void took(struct lanes *l, uint64_t fresh) {
    if (!fresh)
        return;
    l->fresh |= fresh;
    l->counters->lanes_taken += (uint64_t)__builtin_popcountll(fresh);
    note_add(l->notes, NOTE_INFO, "lanes.taken", "name=%s lanes=%d held=%d of=%d", l->op.lease.name,
             __builtin_popcountll(fresh), __builtin_popcountll(l->held),
             __builtin_popcountll(l->all));
}

static csn_usec pause_after_fault(const struct lanes *l) {
    csn_usec pause = RETRY_SOONEST << (l->faults < 6 ? l->faults : 6);
    csn_usec most = l->lease / 6 < RETRY_LATEST ? l->lease / 6 : RETRY_LATEST;
    return pause < most ? pause : most;
}

static void answered(struct lanes *l, csn_usec now) {
    struct op *op = &l->op;
    op->state = OP_IDLE;
    if (op->lease.drop || op->lease.leave) {
        l->dropped = op->result.status == CSN_OK || ++l->faults > 3;
        l->next_at = now + pause_after_fault(l);
        return;
    }
    if (op->result.status != CSN_OK) {
        if (l->faults++ == 0)
            note_add(l->notes, NOTE_WARN, "lanes.unsure", "name=%s error=\"%s\"", op->lease.name,
                     op->result.text);
        l->counters->store_faults++;
        l->next_at = now + pause_after_fault(l);
        return;
    }
    l->faults = 0;
    l->asked = true;
    l->member = op->lease.member;
    l->members = op->lease.members;
    lost(l, l->held & ~op->lease.held, "the lease was not renewed");
    /* A lane that was lost to the clock and taken again has a new epoch: what was in flight under
     * the old one is stale. One that I did not believe in and that was only renewed was taken by a
     * LEASE whose answer was lost: as new to me as any other. */
    uint64_t before = l->held;
    l->held = op->lease.held & l->all;
    memcpy(l->epoch, op->lease.epoch, sizeof l->epoch);
    l->held_until = l->asked_at + l->lease - l->lease / 16;
    took(l, (op->lease.fresh | ~before) & l->held);
    csn_usec again = l->lease / 3;
    if (l->held != l->all && again > RETRY_LATEST)
        again = RETRY_LATEST;
    l->next_at = l->stopping ? now : l->asked_at + again;
}

static void ask(struct lanes *l, csn_usec now) {
    struct op *op = &l->op;
    op->lease.want = l->stopping ? 0 : l->all;
    op->lease.drop = l->stopping ? l->all : 0;
    op->lease.leave = l->stopping && l->write_counters;
    op->lease.lease = l->lease;
    op->lease.longest = l->lease * 4;
    op->lease.counters = NULL;
    if (l->write_counters) {
        counters_json(l->counters, l->counters_text, COUNTERS_MAX);
        op->lease.counters = l->counters_text;
    }
    op->deadline = now + l->lease / 3;
    l->asked_at = now;
    l->heart->submit(l->heart, op);
    l->heart->flush(l->heart);
}

void lanes_step(struct lanes *l, csn_usec now) {
    if (l->op.state == OP_FINISHED)
        answered(l, now);
    if (l->held && now >= l->held_until)
        lost(l, l->held, "no renewal in time");
    if (l->op.state == OP_IDLE && !l->dropped && now >= l->next_at)
        ask(l, now);
}

csn_usec lanes_deadline(const struct lanes *l) {
    csn_usec until = CSN_USEC_NEVER;
    if (l->op.state == OP_IDLE && !l->dropped)
        until = l->next_at;
    if (l->held && l->held_until < until)
        until = l->held_until;
    return until;
}

void lanes_stop(struct lanes *l) {
    if (l->stopping)
        return;
    l->stopping = true;
    l->faults = 0;
    l->next_at = 0;
    if (!l->asked && l->op.state == OP_IDLE)
        l->dropped = true;
}
