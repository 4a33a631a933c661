/* fake_inbox.c: APPLY, TRY and PARK of the fake store. The savepoint of a message is the order of
 * things here: the handler decides first, and only a verdict that commits is followed by writes. */
#include "fake_store.h"

#include <stdio.h>

static csn_verdict run_decide(const struct message *m, void *arg) {
    struct fake_handler *h = arg;
    return h->decide(m, h->arg);
}

void fake_handler_init(struct fake_handler *h) {
    h->handler = (struct handler){.function = run_decide, .arg = h};
}

static bool commits(csn_verdict v) {
    return v == CSN_DONE || v == CSN_REFUSED || v == CSN_DUPLICATE || v == CSN_LATE;
}

/* The identity of a delivery; the long one is what the drivers keep. */
static void digest_of(const struct fake_store *s, const struct message *m, char ret[65]) {
    if (!s->full_digest) {
        uint64_t h = bytes_hash(
            m->payload, bytes_hash(m->event_type, bytes_hash(m->aggregate_id, m->schema_version)));
        for (int i = 0; i < 16; i++)
            ret[i] = "0123456789abcdef"[h >> (4 * i) & 15];
        ret[16] = '\0';
        return;
    }
    char number[32];
    struct sha256 sum;
    const csn_bytes part[] = {m->event_type, m->aggregate_type, m->aggregate_id, m->payload};
    sha256_init(&sum);
    for (size_t i = 0; i < ARRAY_LEN(part); i++) {
        snprintf(number, sizeof number, "%zu:%u:", part[i].size, m->schema_version);
        sha256_add(&sum, bytes_of(number));
        sha256_add(&sum, part[i]);
    }
    uint8_t raw[32];
    sha256_end(&sum, raw);
    for (int i = 0; i < 32; i++)
        snprintf(ret + 2 * (size_t)i, 3, "%02x", raw[i]);
}

static struct fake_inbox *inbox_add(struct fake_store *s, uint32_t consumer,
                                    const struct message *m, bool broker) {
    csn_usec now = fake_now(s);
    struct fake_inbox *b = fake_take(s, sizeof *b);
    *b = (struct fake_inbox){.consumer = consumer,
                             .id = fake_copy(s, m->id),
                             .event_type = fake_copy(s, m->event_type),
                             .aggregate_type = fake_copy(s, m->aggregate_type),
                             .aggregate_id = fake_copy(s, m->aggregate_id),
                             .version = m->version,
                             .received_at = now,
                             .attempts = 1,
                             .verdict = -1,
                             .status = INBOX_WAITING,
                             .broker_part = broker ? (int64_t)m->lane : -1,
                             .broker_pos = broker ? (int64_t)m->seq : -1};
    digest_of(s, m, b->digest);
    fake_list_add(&s->inbox, b);
    fake_map_set(&s->inbox_by_id, fake_id_hash(consumer, m->id), b);
    return b;
}

/* ---- keys of a consumer ---- */

static struct fake_key *work_key(struct fake_store *s, uint32_t consumer, const struct message *m) {
    return fake_key_of(s, consumer + 1, m->aggregate_type, m->aggregate_id);
}

static struct fake_row *key_head(const struct fake_key *k) {
    return k->n ? k->row[0] : NULL;
}

/* After a row of the key went: the next one is due now and the head; no more rows, no more key. */
static void key_goes_on(struct fake_store *s, struct fake_key *k) {
    struct fake_row *head = key_head(k);
    k->parked = head != NULL;
    if (!head)
        return;
    k->version = head->content.version;
    if (head->status != ROW_WAITING)
        return;
    head->next_attempt_at = fake_now(s);
    fake_move(s, head, ROW_PENDING);
}

static void work_delete(struct fake_store *s, struct fake_row *r) {
    fake_row_drop(r);
    fake_move(s, r, ROW_GONE);
    key_goes_on(s, r->key);
}

/* ---- apply ---- */

static void emit(struct fake_store *s, const struct fake_handler *h, const struct message *m,
                 uint32_t consumer) {
    static const char digits[] = "0123456789abcdef";
    char id[TOKEN_SIZE] = "r-";
    uint64_t hash = bytes_hash(m->id, consumer + 1000);
    for (int i = 0; i < 16; i++)
        id[2 + i] = digits[hash >> (4 * i) & 15];
    char payload[200];
    struct text t;
    text_init(&t, payload, sizeof payload);
    text_add(&t, "{\"of\":\"%.*s\"}", (int)m->id.size, (const char *)m->id.data);
    struct message e = {.id = bytes_of(id),
                        .aggregate_type = bytes_of(h->result_aggregate),
                        .aggregate_id = m->aggregate_id,
                        .event_type = bytes_of(h->result_type),
                        .payload = {payload, t.used},
                        .schema_version = 1,
                        .correlation_id = m->correlation_id,
                        .traceparent = m->traceparent,
                        .tenant = m->tenant,
                        .causation_id = m->id};
    e.version = fake_key_of(s, 0, e.aggregate_type, e.aggregate_id)->version + 1;
    fake_insert(s, &e, 0, 0);
}

static void finish_inbox(struct fake_store *s, struct fake_inbox *b, csn_verdict verdict) {
    b->status = verdict == CSN_REFUSED ? INBOX_REFUSED : INBOX_DONE;
    b->verdict = verdict;
    b->processed_at = fake_now(s);
}

static void leave_effect(struct fake_store *s, struct op *op, struct fake_inbox *b,
                         const struct message *m, csn_verdict verdict) {
    const struct fake_handler *h = op->apply.handler->arg;
    struct fake_effect *e = fake_take(s, sizeof *e);
    *e = (struct fake_effect){.inbox = b,
                              .id = b->id,
                              .key = work_key(s, b->consumer, m),
                              .version = m->version,
                              .consumer = b->consumer,
                              .verdict = verdict};
    finish_inbox(s, b, verdict);
    fake_list_add(&s->effect, e);
    fake_list_add(&s->effects_of[b->consumer], e);
    if (h->emits && h->emits(m, h->arg)) {
        emit(s, h, m, b->consumer);
        op->apply.emitted++;
    }
    if (s->eyes.effect)
        s->eyes.effect(s->eyes.arg, s, e);
}

static void evidence(struct apply_item *item) {
    static const int32_t codes[] = {[CSN_EARLY] = ERR_HANDLER_EARLY,
                                    [CSN_CONFLICT] = ERR_HANDLER_CONFLICT,
                                    [CSN_POISON] = ERR_HANDLER_POISON,
                                    [CSN_RETRY] = ERR_HANDLER_RETRY,
                                    [CSN_OUTCOME_UNKNOWN] = ERR_HANDLER_UNKNOWN};
    item->code = codes[item->verdict];
    copy_text(item->text, sizeof item->text, "the handler says so");
}

/* Runs the handler; true when it committed. */
static bool handle(struct fake_store *s, struct op *op, struct apply_item *item,
                   struct fake_inbox *b, struct fake_key *k) {
    const struct message *m = &op->batch->msg[item->msg];
    bool broker = op->apply.source == SOURCE_BROKER;
    item->out = APPLY_VERDICT;
    if (item->expired) { /* its time is over: nothing is run, nothing is left but the inbox row */
        item->verdict = CSN_LATE;
        item->code = ERR_EXPIRED;
        if (!b)
            b = inbox_add(s, fake_consumer(s, op->apply.consumer), m, broker);
        finish_inbox(s, b, CSN_LATE);
        b->expired = true;
        return true;
    }
    item->verdict = op->apply.handler->function(m, op->apply.handler->arg);
    if (!commits(item->verdict)) {
        k->stopped = s->serial;
        evidence(item);
        return false;
    }
    if (!b)
        b = inbox_add(s, fake_consumer(s, op->apply.consumer), m, broker);
    else if (!broker)
        b->attempts++;
    leave_effect(s, op, b, m, item->verdict);
    return true;
}

static void seen(struct fake_store *s, struct apply_item *item, struct fake_inbox *b,
                 const struct message *m) {
    static const uint8_t outs[] = {[INBOX_DONE] = APPLY_SEEN,
                                   [INBOX_REFUSED] = APPLY_SEEN,
                                   [INBOX_WAITING] = APPLY_WAITS,
                                   [INBOX_CONFLICT] = APPLY_ASIDE,
                                   [INBOX_DEAD] = APPLY_ASIDE};
    char digest[65];
    b->duplicates++;
    b->last_duplicate_at = fake_now(s);
    digest_of(s, m, digest);
    item->out = outs[b->status];
    if (b->digest[0] == '\0' || strcmp(digest, b->digest) == 0)
        return;
    item->out = APPLY_MISMATCH;
    item->code = ERR_IDENTITY_CONFLICT;
    copy_text(item->text, sizeof item->text, "the id is known with another content");
}

static void apply_delivery(struct fake_store *s, struct op *op, struct apply_item *item,
                           uint32_t consumer) {
    const struct message *m = &op->batch->msg[item->msg];
    struct fake_inbox *b = fake_inbox_find(s, consumer, m->id);
    struct fake_key *k = work_key(s, consumer, m);
    if (b) {
        seen(s, item, b, m);
        return;
    }
    if (fake_dead_find(s, consumer, m->id)) {
        inbox_add(s, consumer, m, true)->status = INBOX_DEAD;
        item->out = APPLY_ASIDE;
        return;
    }
    if (k->stopped == s->serial || (k->parked && k->version <= m->version)) {
        item->out = APPLY_BEHIND;
        return;
    }
    if (!handle(s, op, item, NULL, k) || !k->parked)
        return;
    struct fake_row *head = key_head(k); /* what it waited for has come */
    if (head->content.version > m->version && head->waits_for == WAITS_EARLY &&
        head->status == ROW_PENDING)
        head->next_attempt_at = fake_now(s);
}

static void apply_parked(struct fake_store *s, struct op *op, struct apply_item *item,
                         uint32_t consumer) {
    const struct message *m = &op->batch->msg[item->msg];
    struct fake_row *r = fake_work_find(s, consumer, m->id);
    if (!r || (uint64_t)r->seq != m->seq || r->status != ROW_SENDING ||
        strcmp(r->token, op->apply.token) != 0) {
        item->out = APPLY_FENCED;
        return;
    }
    if (r->key->stopped == s->serial)
        item->out = APPLY_BEHIND;
    else if (handle(s, op, item, fake_inbox_find(s, consumer, m->id), r->key))
        work_delete(s, r);
}

void fake_apply(struct fake_store *s, struct op *op) {
    uint32_t consumer = fake_consumer(s, op->apply.consumer);
    s->serial++;
    op->apply.emitted = 0;
    for (uint32_t i = 0; i < op->apply.n; i++) {
        if (op->apply.source == SOURCE_BROKER)
            apply_delivery(s, op, &op->apply.item[i], consumer);
        else
            apply_parked(s, op, &op->apply.item[i], consumer);
    }
}

/* ---- try ---- */

static void try_one(struct fake_store *s, struct op *op, struct apply_item *item,
                    uint32_t consumer) {
    const struct message *m = &op->batch->msg[item->msg];
    const struct fake_handler *h = op->apply.handler->arg;
    item->out = APPLY_VERDICT;
    item->verdict =
        item->expired ? CSN_LATE : op->apply.handler->function(m, op->apply.handler->arg);
    item->code = item->expired ? ERR_EXPIRED : 0;
    if (!commits(item->verdict))
        evidence(item);
    if (!commits(item->verdict) || item->expired)
        return;
    struct fake_effect *e = fake_take(s, sizeof *e);
    *e = (struct fake_effect){.id = fake_copy(s, m->id),
                              .key = work_key(s, consumer, m),
                              .version = m->version,
                              .consumer = consumer,
                              .verdict = item->verdict};
    fake_list_add(&s->effects_of[consumer], e);
    if (h->emits && h->emits(m, h->arg)) {
        emit(s, h, m, consumer);
        op->apply.emitted++;
    }
    if (s->eyes.tried)
        s->eyes.tried(s->eyes.arg, s, e, m->seq);
}

void fake_try(struct fake_store *s, struct op *op) {
    uint32_t consumer = fake_consumer(s, op->apply.consumer);
    op->apply.emitted = 0;
    for (uint32_t i = 0; i < op->apply.n; i++)
        try_one(s, op, &op->apply.item[i], consumer);
}

/* ---- park ---- */

static struct fake_row *work_add(struct fake_store *s, uint32_t consumer, const struct message *m,
                                 csn_usec ago) {
    struct fake_row *r = fake_take(s, sizeof *r);
    csn_usec now = fake_now(s);
    fake_message_copy(s, &r->content, m);
    r->key = work_key(s, consumer, m);
    r->consumer = consumer;
    r->slot = m->lane;
    r->created_at = r->next_attempt_at = now;
    r->expires_at = m->expires_in == CSN_USEC_NEVER ? 0 : now - ago + m->expires_in;
    r->sent_by = -1;
    r->broker_part = (int64_t)m->lane;
    r->broker_pos = (int64_t)m->seq;
    r->status = ROW_WAITING;
    fake_row_add(s, &s->work, r);
    fake_map_set(&s->work_by_id, fake_id_hash(consumer, m->id), r);
    return r;
}

static void note_park(struct fake_store *s, struct fake_row *r, const struct park_item *p) {
    csn_usec now = fake_now(s);
    r->failures += p->failure;
    r->tries += p->attempt;
    if (p->failure) {
        r->last_error = fake_copy(s, bytes_of(p->text));
        r->last_failed_at = now;
        if (!r->first_failed_at)
            r->first_failed_at = now;
    }
    fake_attempt_add(s, r, "inbox", "parked", p->code, p->text, r->next_attempt_at);
}

/* A lower row of the key became its head: the one that was it waits now, unless somebody is at it.
 */
static void step_back(struct fake_store *s, struct fake_key *k) {
    for (uint32_t i = 1; i < k->n; i++) {
        if (k->row[i]->status != ROW_PENDING)
            continue;
        fake_move(s, k->row[i], ROW_WAITING);
        k->row[i]->waits_for = WAITS_KEY;
    }
}

static void park_row(struct fake_store *s, struct fake_row *r, const struct park_item *p) {
    struct fake_key *k = r->key;
    csn_usec now = fake_now(s);
    bool head = key_head(k) == r;
    r->next_attempt_at = p->to == PARK_BEHIND ? now : now + p->retry_in;
    fake_move(s, r, head ? ROW_PENDING : ROW_WAITING);
    r->waits_for = !head ? WAITS_KEY : p->to == PARK_EARLY ? WAITS_EARLY : WAITS_NONE;
    if (!k->parked)
        k->parked_at = now;
    k->parked = true;
    k->version = key_head(k)->content.version;
    if (head)
        step_back(s, k);
    if (s->eyes.parked)
        s->eyes.parked(s->eyes.arg, s, r, p);
}

static const char *dead_class(const struct park_item *p) {
    if (p->verdict == CSN_RETRY || p->verdict == CSN_OUTCOME_UNKNOWN)
        return "budget";
    return p->verdict == CSN_POISON     ? "poison"
           : p->verdict == CSN_CONFLICT ? "conflict"
           : p->verdict == CSN_EARLY    ? "early"
                                        : "poison";
}

static void dead_add(struct fake_store *s, const struct park_item *p, const struct message *m,
                     const struct fake_row *r, uint32_t consumer) {
    csn_usec now = fake_now(s);
    struct fake_dead *d = fake_take(s, sizeof *d);
    bool first = r && r->first_failed_at;
    *d = (struct fake_dead){.id = fake_copy(s, m->id),
                            .error = fake_copy(s, bytes_of(p->text)),
                            .payload = fake_copy(s, m->payload),
                            .headers = fake_copy(s, m->headers),
                            .event_type = fake_copy(s, m->event_type),
                            .aggregate_type = fake_copy(s, m->aggregate_type),
                            .aggregate_id = fake_copy(s, m->aggregate_id),
                            .class_ = dead_class(p),
                            .version = m->version,
                            .broker_part = r ? r->broker_part : (int64_t)m->lane,
                            .broker_pos = r ? r->broker_pos : (int64_t)m->seq,
                            .first_failed_at = first ? r->first_failed_at : now,
                            .last_failed_at = now,
                            .dead_at = now,
                            .consumer = consumer,
                            .attempts = r ? r->attempts : m->attempts,
                            .failures = (r ? r->failures : m->failures) + p->failure,
                            .code = p->code};
    fake_list_add(&s->dead, d);
    fake_map_set(&s->dead_by_id, fake_id_hash(consumer, m->id), d);
    if (s->eyes.dead)
        s->eyes.dead(s->eyes.arg, s, d);
}

static void park_aside(struct fake_store *s, struct op *op, struct park_item *p, struct fake_row *r,
                       uint32_t consumer) {
    const struct message *m = &op->batch->msg[p->msg];
    struct fake_inbox *b = fake_inbox_find(s, consumer, m->id);
    struct fake_dead *had = fake_dead_find(s, consumer, m->id);
    bool finished = b && (b->status == INBOX_DONE || b->status == INBOX_REFUSED);
    if (!b)
        b = inbox_add(s, consumer, m, op->park.source == SOURCE_BROKER);
    if (finished)
        b->error = fake_copy(s, bytes_of(p->text));
    else
        b->status = p->to == PARK_CONFLICT ? INBOX_CONFLICT : INBOX_DEAD;
    if (!had || strcmp(had->class_, dead_class(p)) != 0)
        dead_add(s, p, m, r, consumer);
    if (op->park.source == SOURCE_WORK)
        work_delete(s, r);
}

static void park_one(struct fake_store *s, struct op *op, struct park_item *p, uint32_t consumer) {
    const struct message *m = &op->batch->msg[p->msg];
    struct fake_row *r = fake_work_find(s, consumer, m->id);
    bool work = op->park.source == SOURCE_WORK;
    p->result = CSN_OK;
    if (work && (!r || (uint64_t)r->seq != m->seq || r->status != ROW_SENDING ||
                 strcmp(r->token, op->park.token) != 0)) {
        p->result = CSN_STALE;
        return;
    }
    if (p->to == PARK_DEAD || p->to == PARK_CONFLICT) {
        park_aside(s, op, p, work ? r : NULL, consumer);
        return;
    }
    struct fake_inbox *b = fake_inbox_find(s, consumer, m->id);
    if (!b)
        b = inbox_add(s, consumer, m, !work);
    else if (work)
        b->attempts++;
    if (!work && r)
        return; /* parked before: it stays as it is */
    if (!work && b->status != INBOX_WAITING)
        return;
    if (!r)
        r = work_add(s, consumer, m, op->park.ago);
    note_park(s, r, p);
    park_row(s, r, p);
}

void fake_park(struct fake_store *s, struct op *op) {
    uint32_t consumer = fake_consumer(s, op->park.consumer);
    for (uint32_t i = 0; i < op->park.n; i++)
        park_one(s, op, &op->park.item[i], consumer);
}
