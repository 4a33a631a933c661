/* fake_broker.c: the embedded broker of the fake store: DECLARE, PUBLISH, RECEIVE, ACK over its
 * queue. The streaming broker of the simulator keeps its messages in the same queue
 * (fake_publish_one), with other rules around it. */
#include "fake_store.h"

#include "core/route.h"

#include <stdio.h>

uint32_t fake_partition(csn_bytes type, csn_bytes id, uint32_t partitions) {
    return route_partition(type, id, partitions);
}

static bool has_unacked(const struct fake_store *s, uint32_t subscription) {
    for (uint32_t i = 0; i < s->queue_live.n; i++) {
        const struct fake_queue_row *q = s->queue_live.at[i];
        if (q->subscription == subscription && !q->acked_at && !q->lost)
            return true;
    }
    return false;
}

bool fake_declare_allowed(struct fake_store *s, const struct op *op, csn_error *err) {
    for (uint32_t i = 0; i < op->declare.n; i++) {
        const struct binding *b = &op->declare.binding[i];
        uint32_t at = fake_consumer(s, b->subscription);
        const struct fake_binding *have = &s->binding[at];
        if (have->there && have->partitions != b->partitions && has_unacked(s, at)) {
            error_set(err, CSN_REJECTED, ERR_BROKER_BINDING, "%s has messages in %u partitions",
                      b->subscription, have->partitions);
            return false;
        }
    }
    return true;
}

void fake_declare(struct fake_store *s, struct op *op) {
    if (!fake_declare_allowed(s, op, &op->result))
        return;
    for (uint32_t i = 0; i < op->declare.n; i++) {
        const struct binding *b = &op->declare.binding[i];
        struct fake_binding *have = &s->binding[fake_consumer(s, b->subscription)];
        have->routing_version += !have->there || have->partitions != b->partitions;
        have->partitions = b->partitions;
        copy_text(have->match, sizeof have->match, b->match);
        have->there = true;
    }
}

static struct fake_queue_row *queue_add(struct fake_store *s, uint32_t subscription,
                                        const struct message *m, csn_usec ago) {
    csn_usec now = fake_now(s);
    struct fake_queue_row *q = fake_take(s, sizeof *q);
    const struct fake_binding *b = &s->binding[subscription];
    fake_message_copy(s, &q->content, m);
    q->content.seq = (uint64_t)++s->pos;
    q->content.lane = fake_partition(m->aggregate_type, m->aggregate_id, b->partitions);
    q->subscription = subscription;
    q->routing_version = b->routing_version;
    q->created_at = now - ago - m->age;
    q->published_at = now;
    q->expires_at = m->expires_in == CSN_USEC_NEVER ? 0 : now - ago + m->expires_in;
    fake_list_add(&s->queue, q);
    fake_list_add(&s->queue_live, q);
    if (s->eyes.published)
        s->eyes.published(s->eyes.arg, s, q);
    return q;
}

void fake_publish_one(struct fake_store *s, const struct message *m, csn_usec ago,
                      struct publish_item *item) {
    enum publish_out refused = s->eyes.refuse ? s->eyes.refuse(s->eyes.arg, s, m) : PUB_NONE;
    item->out = refused ? (uint8_t)refused : PUB_RETURNED;
    item->part = -1;
    item->pos = -1;
    for (uint32_t i = 0; i < s->consumers && !refused; i++) {
        if (!s->binding[i].there || !glob_list_matches(s->binding[i].match, m->event_type))
            continue;
        const struct fake_queue_row *q = queue_add(s, i, m, ago);
        if (item->out != PUB_CONFIRMED) {
            item->part = (int32_t)q->content.lane;
            item->pos = (int64_t)q->content.seq;
        }
        item->out = PUB_CONFIRMED;
    }
    if (item->out == PUB_CONFIRMED)
        return;
    item->code = item->out == PUB_RETURNED ? ERR_BROKER_UNROUTABLE
                 : item->out == PUB_NACKED ? ERR_BROKER_NACK
                                           : ERR_BROKER_REJECTED;
    copy_text(item->text, sizeof item->text,
              item->out == PUB_RETURNED ? "no subscription takes this event type" : "refused");
}

static bool same_key(const struct message *a, const struct message *b) {
    return bytes_equal(a->aggregate_id, b->aggregate_id) &&
           bytes_equal(a->aggregate_type, b->aggregate_type);
}

/* A key never overtakes itself inside one publish. */
static bool key_was_refused(const struct op *op, uint32_t i) {
    const struct message *m = &op->batch->msg[op->publish.item[i].msg];
    for (uint32_t k = 0; k < i; k++) {
        const struct publish_item *p = &op->publish.item[k];
        if (p->out != PUB_CONFIRMED && same_key(&op->batch->msg[p->msg], m))
            return true;
    }
    return false;
}

void fake_publish(struct fake_store *s, struct op *op) {
    for (uint32_t i = 0; i < op->publish.n; i++) {
        struct publish_item *item = &op->publish.item[i];
        if (key_was_refused(op, i))
            item->out = PUB_UNSENT;
        else
            fake_publish_one(s, &op->batch->msg[item->msg], op->publish.ago, item);
    }
}

/* ---- receive and ack ---- */

static void sweep_queue(struct fake_store *s) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->queue_live.n; i++) {
        struct fake_queue_row *q = s->queue_live.at[i];
        if (!q->acked_at && !q->lost)
            s->queue_live.at[kept++] = q;
    }
    s->queue_live.n = kept;
}

bool fake_queue_due(const struct fake_store *s, const struct fake_queue_row *q, csn_usec now,
                    uint64_t epoch, csn_usec longest) {
    (void)s;
    return !q->token[0] || q->lease_until <= now || q->lease_until > now + longest ||
           q->epoch != epoch;
}

static bool deliver(struct fake_store *s, struct op *op, struct fake_queue_row *q, csn_usec now) {
    struct message *m = &op->batch->msg[op->batch->n];
    if (!fake_message_give(&op->batch->arena, m, &q->content))
        return false;
    op->batch->n++;
    m->redelivered = q->deliveries > 0;
    copy_text(q->token, sizeof q->token, op->receive.token);
    q->epoch = op->receive.epoch[q->content.lane];
    q->lease_until = now + op->receive.lease;
    q->delivered_at = now;
    q->deliveries++;
    m->attempts = q->deliveries;
    m->failures = m->tries = 0;
    m->failing_for = 0;
    m->age = now - q->created_at;
    m->expires_in = q->expires_at ? q->expires_at - now : CSN_USEC_NEVER;
    m->route = (csn_bytes){NULL, 0};
    if (s->eyes.delivered)
        s->eyes.delivered(s->eyes.arg, s, q);
    return true;
}

void fake_receive(struct fake_store *s, struct op *op) {
    csn_usec now = fake_now(s);
    uint32_t subscription = fake_consumer(s, op->receive.consumer);
    uint32_t limit = op->receive.limit < op->batch->cap ? op->receive.limit : op->batch->cap;
    uint64_t lanes = fake_fence(s, op->receive.lane_name, op->receive.lanes, op->receive.epoch,
                                op->receive.boot);
    size_t bytes = 0;
    op->receive.lost = op->receive.lanes & ~lanes;
    op->receive.more = false;
    op->batch->n = 0;
    sweep_queue(s);
    for (uint32_t i = 0; i < s->queue_live.n && !op->receive.more; i++) { /* positions only grow */
        struct fake_queue_row *q = s->queue_live.at[i];
        uint64_t part = UINT64_C(1) << q->content.lane;
        if (q->subscription != subscription || !(lanes & part))
            continue;
        bool due =
            op->receive.again || fake_queue_due(s, q, now, op->receive.epoch[q->content.lane],
                                                op->receive.longest_lease);
        if (!due) {
            lanes &= ~part; /* never past a row under a live lease */
        } else if (op->batch->n && bytes + q->content.payload.size > op->receive.bytes) {
            op->receive.more = true;
        } else {
            bytes += q->content.payload.size;
            op->receive.more = !deliver(s, op, q, now) || op->batch->n == limit;
        }
    }
}

struct fake_queue_row *fake_queue_at(struct fake_store *s, uint64_t pos) {
    uint32_t low = 0, high = s->queue.n;
    while (low < high) {
        uint32_t mid = (low + high) / 2;
        struct fake_queue_row *q = s->queue.at[mid];
        if (q->content.seq < pos)
            low = mid + 1;
        else
            high = mid;
    }
    struct fake_queue_row *q = low < s->queue.n ? s->queue.at[low] : NULL;
    return q && q->content.seq == pos ? q : NULL;
}

void fake_ack(struct fake_store *s, struct op *op) {
    uint32_t subscription = fake_consumer(s, op->ack.consumer);
    op->ack.acked = 0;
    for (uint32_t i = 0; i < op->ack.n; i++) {
        struct fake_queue_row *q = fake_queue_at(s, op->batch->msg[op->ack.msg[i]].seq);
        if (!q || q->subscription != subscription || q->acked_at || q->lost ||
            strcmp(q->token, op->ack.token) != 0)
            continue;
        q->acked_at = fake_now(s);
        op->ack.acked++;
        if (s->eyes.acked)
            s->eyes.acked(s->eyes.arg, s, q);
    }
}
