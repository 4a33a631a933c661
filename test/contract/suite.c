/* suite.c: the short words of suite.h. */
#include "test/contract/suite.h"

#include <stdio.h>
#include <stdlib.h>

enum kept_kind { KEPT_MEMORY, KEPT_BATCH, KEPT_PORT };

struct kept {
    struct kept *next;
    enum kept_kind kind;
    void *what;
};

static void *kept_add(struct suite *s, enum kept_kind kind, void *what) {
    struct kept *k = calloc(1, sizeof(*k));

    if (!k || !what)
        world_fail("out of memory, or a port that cannot be opened");
    *k = (struct kept){s->kept, kind, what};
    s->kept = k;
    return what;
}

static void kept_free(struct suite *s, struct kept *k) {
    if (k->kind == KEPT_PORT) {
        for (size_t i = 0; i < ROLE_NR; i++)
            if (s->port[i] == k->what)
                s->port[i] = NULL;
        s->w->close(s->w, k->what);
    } else {
        if (k->kind == KEPT_BATCH) {
            struct batch *b = k->what;
            arena_free(&b->arena);
            free(b->msg);
        }
        free(k->what);
    }
    free(k);
}

void world_fail(const char *format, ...) {
    va_list args;

    va_start(args, format);
    vprint_error(format, args);
    va_end(args);
    print_error("\n");
    fail();
    abort();
}

/* ---- the frame of a test ---- */

int suite_setup(void **state) {
    struct suite *s = calloc(1, sizeof(*s));
    struct op *op;

    if (!s)
        return -1;
    *state = s;
    s->w = contract_world();
    s->lanes =
        s->w->outbox_lanes == LANE_MAX ? UINT64_MAX : (UINT64_C(1) << s->w->outbox_lanes) - 1;
    op = lease_op(s, BOOT_A, "outbox", s->lanes);
    run(s, op);
    assert_true(op->lease.held == s->lanes);
    memcpy(s->epoch, op->lease.epoch, sizeof(s->epoch));
    return 0;
}

int suite_teardown(void **state) {
    struct suite *s = *state;

    release(s, NULL);
    contract_world_free(s->w);
    free(s);
    return 0;
}

void need(struct suite *s, uint32_t can) {
    if ((s->w->can & can) != can)
        skip();
}

void release(struct suite *s, struct kept *mark) {
    while (s->kept != mark) {
        struct kept *k = s->kept;
        s->kept = k->next;
        kept_free(s, k);
    }
}

void *keep(struct suite *s, size_t size) {
    return kept_add(s, KEPT_MEMORY, calloc(1, size));
}

void near(struct suite *s, csn_usec actual, csn_usec expected) {
    csn_usec apart = actual > expected ? actual - expected : expected - actual;

    if (apart > (csn_usec)s->w->tolerance_ms * 1000)
        world_fail("%lld us is not near %lld us", (long long)actual, (long long)expected);
}

/* ---- running ops ---- */

struct port *another_port(struct suite *s, enum role role) {
    return kept_add(s, KEPT_PORT, s->w->open(s->w, role));
}

struct port *port_of(struct suite *s, enum role role) {
    if (!s->port[role])
        s->port[role] = another_port(s, role);
    return s->port[role];
}

enum role role_of(const struct op *op) {
    static const enum role of[OP_KIND_NR] = {
        [OP_LEASE] = ROLE_HEART,      [OP_WATCH] = ROLE_WATCH,       [OP_CLAIM] = ROLE_RELAY,
        [OP_SETTLE] = ROLE_RELAY,     [OP_RENEW] = ROLE_RELAY,       [OP_RECOVER] = ROLE_RELAY,
        [OP_APPLY] = ROLE_APPLY,      [OP_PARK] = ROLE_APPLY,        [OP_DECLARE] = ROLE_QUEUE_IN,
        [OP_PUBLISH] = ROLE_QUEUE_IN, [OP_RECEIVE] = ROLE_QUEUE_OUT, [OP_ACK] = ROLE_QUEUE_OUT,
        [OP_TRY] = ROLE_APPLY,
    };
    enum work_table table = op->kind == OP_CLAIM     ? op->claim.table
                            : op->kind == OP_SETTLE  ? op->settle.table
                            : op->kind == OP_RENEW   ? op->renew.table
                            : op->kind == OP_RECOVER ? op->recover.table
                                                     : TABLE_OUTBOX;

    return table == TABLE_WORK ? ROLE_APPLY : of[op->kind];
}

void group(struct suite *s, struct port *p, struct op **op, uint32_t n) {
    uint32_t reaped = 0;

    for (uint32_t i = 0; i < n; i++) {
        p->submit(p, op[i]);
        assert_int_equal(op[i]->state, OP_PENDING);
    }
    p->flush(p);
    for (uint32_t round = 0; reaped < n; round++) {
        struct op *done = p->reap(p);

        if (done) {
            assert_int_equal(done->state, OP_FINISHED);
            reaped++;
        } else if (round < ANSWER_ROUNDS_MAX && s->w->pump) {
            s->w->pump(s->w);
        } else {
            world_fail("%u of %u ops were answered", reaped, n);
        }
    }
    assert_null(p->reap(p));
}

csn_status answer(struct suite *s, struct port *p, struct op *op) {
    group(s, p, &op, 1);
    return op->result.status;
}

void run_on(struct suite *s, struct port *p, struct op *op) {
    csn_status got = answer(s, p, op);

    if (got != CSN_OK)
        world_fail("op %d: status %d, CSN-%d: %s", (int)op->kind, (int)got, (int)op->result.code,
                   op->result.text);
}

void run(struct suite *s, struct op *op) {
    run_on(s, port_of(s, role_of(op)), op);
}

/* ---- building ops ---- */

struct op *new_op(struct suite *s, enum op_kind kind) {
    struct op *op = keep(s, sizeof(*op));

    op->kind = kind;
    op->deadline = s->w->clock(s->w) + 30 * SECOND;
    return op;
}

struct batch *new_batch(struct suite *s) {
    struct batch *b = kept_add(s, KEPT_BATCH, calloc(1, sizeof(*b)));

    arena_init(&b->arena, (size_t)64 << 20);
    b->msg = calloc(BATCH_MAX, sizeof(*b->msg));
    assert_non_null(b->msg);
    b->cap = BATCH_MAX;
    return b;
}

void new_token(struct suite *s, char ret[TOKEN_SIZE]) {
    snprintf(ret, TOKEN_SIZE, "70000000-0000-4000-8000-%012u", ++s->tokens);
}

struct op *lease_op(struct suite *s, const char *boot, const char *name, uint64_t want) {
    struct op *op = new_op(s, OP_LEASE);

    copy_text(op->lease.name, sizeof(op->lease.name), name);
    copy_text(op->lease.boot, sizeof(op->lease.boot), boot);
    copy_text(op->lease.label, sizeof(op->lease.label), "node");
    op->lease.want = want;
    op->lease.lease = 10 * MINUTE;
    op->lease.longest = 10 * MINUTE;
    return op;
}

struct op *claim_op(struct suite *s, uint32_t limit) {
    struct op *op = new_op(s, OP_CLAIM);

    op->batch = new_batch(s);
    op->claim.table = TABLE_OUTBOX;
    copy_text(op->claim.lane_name, sizeof(op->claim.lane_name), "outbox");
    copy_text(op->claim.boot, sizeof(op->claim.boot), BOOT_A);
    new_token(s, op->claim.token);
    op->claim.lanes = s->lanes;
    op->claim.epoch = s->epoch;
    op->claim.limit = limit;
    op->claim.park_limit = 1000;
    op->claim.bytes = (size_t)4 << 20;
    op->claim.lease = 30 * SECOND;
    op->claim.longest_backoff = 10 * MINUTE;
    return op;
}

struct op *claim_work_op(struct suite *s, const char *consumer, uint32_t limit) {
    struct op *op = claim_op(s, limit);

    op->claim.table = TABLE_WORK;
    op->claim.lane_name[0] = 0;
    op->claim.epoch = NULL;
    op->claim.lanes = UINT64_MAX;
    copy_text(op->claim.consumer, sizeof(op->claim.consumer), consumer);
    return op;
}

struct op *settle_op(struct suite *s, const struct op *claim_, uint8_t to) {
    struct op *op = new_op(s, OP_SETTLE);
    uint32_t n = claim_->batch->n;

    op->batch = claim_->batch;
    op->settle.table = claim_->claim.table;
    copy_text(op->settle.token, sizeof(op->settle.token), claim_->claim.token);
    op->settle.member = 1;
    op->settle.n = n;
    op->settle.item = keep(s, (n ? n : 1) * sizeof(*op->settle.item));
    for (uint32_t i = 0; i < n; i++) {
        struct settle_item *it = &op->settle.item[i];
        it->msg = i;
        it->to = to;
        it->part = -1;
        it->pos = -1;
        it->result = CSN_FATAL; /* must be written */
    }
    return op;
}

struct op *renew_op(struct suite *s, const struct op *claim_) {
    struct op *op = new_op(s, OP_RENEW);

    op->batch = claim_->batch;
    op->renew.table = claim_->claim.table;
    copy_text(op->renew.token, sizeof(op->renew.token), claim_->claim.token);
    op->renew.lease = 5 * MINUTE;
    return op;
}

struct op *recover_op(struct suite *s, uint64_t fresh) {
    struct op *op = new_op(s, OP_RECOVER);

    op->recover.table = TABLE_OUTBOX;
    copy_text(op->recover.lane_name, sizeof(op->recover.lane_name), "outbox");
    copy_text(op->recover.boot, sizeof(op->recover.boot), BOOT_A);
    op->recover.lanes = s->lanes;
    op->recover.fresh = fresh;
    op->recover.epoch = s->epoch;
    op->recover.longest_lease = 10 * MINUTE;
    op->recover.longest_backoff = 10 * MINUTE;
    op->recover.limit = 100;
    return op;
}

struct op *watch_op(struct suite *s, uint32_t n) {
    struct op *op = new_op(s, OP_WATCH);

    op->watch.item = keep(s, n * sizeof(*op->watch.item));
    op->watch.n = n;
    for (uint32_t i = 0; i < n; i++)
        op->watch.item[i].lanes = UINT64_MAX;
    return op;
}

struct op *publish_op(struct suite *s, struct batch *b) {
    struct op *op = new_op(s, OP_PUBLISH);

    op->batch = b;
    op->publish.n = b->n;
    op->publish.item = keep(s, b->n * sizeof(*op->publish.item));
    for (uint32_t i = 0; i < b->n; i++)
        op->publish.item[i].msg = i;
    return op;
}

struct op *declare_op(struct suite *s, const char *subscription, const char *match,
                      uint32_t partitions) {
    struct op *op = new_op(s, OP_DECLARE);
    struct binding *b = keep(s, sizeof(*b));

    copy_text(b->subscription, sizeof(b->subscription), subscription);
    copy_text(b->match, sizeof(b->match), match);
    b->partitions = partitions;
    op->declare.binding = b;
    op->declare.n = 1;
    return op;
}

struct op *receive_op(struct suite *s, const char *consumer, uint64_t lanes, uint32_t limit) {
    struct op *op = new_op(s, OP_RECEIVE);

    op->batch = new_batch(s);
    copy_text(op->receive.consumer, sizeof(op->receive.consumer), consumer);
    snprintf(op->receive.lane_name, sizeof(op->receive.lane_name), "sub/%s", consumer);
    copy_text(op->receive.boot, sizeof(op->receive.boot), BOOT_A);
    new_token(s, op->receive.token);
    op->receive.lanes = lanes;
    op->receive.epoch = s->part_epoch;
    op->receive.limit = limit;
    op->receive.bytes = (size_t)4 << 20;
    op->receive.lease = 30 * SECOND;
    op->receive.longest_lease = 10 * MINUTE;
    return op;
}

struct op *ack_op(struct suite *s, const struct op *receive_) {
    struct op *op = new_op(s, OP_ACK);
    uint32_t n = receive_->batch->n, *msg = keep(s, (n ? n : 1) * sizeof(*msg));

    for (uint32_t i = 0; i < n; i++)
        msg[i] = i;
    op->batch = receive_->batch;
    copy_text(op->ack.consumer, sizeof(op->ack.consumer), receive_->receive.consumer);
    copy_text(op->ack.token, sizeof(op->ack.token), receive_->receive.token);
    op->ack.msg = msg;
    op->ack.n = n;
    return op;
}

struct op *apply_op(struct suite *s, const char *consumer, struct batch *b) {
    struct op *op = new_op(s, OP_APPLY);

    op->batch = b;
    copy_text(op->apply.consumer, sizeof(op->apply.consumer), consumer);
    op->apply.handler = s->w->handler(s->w);
    op->apply.source = SOURCE_BROKER;
    op->apply.n = b->n;
    op->apply.item = keep(s, (b->n ? b->n : 1) * sizeof(*op->apply.item));
    for (uint32_t i = 0; i < b->n; i++)
        op->apply.item[i].msg = i;
    return op;
}

struct op *apply_work_op(struct suite *s, const struct op *claim_) {
    struct op *op = apply_op(s, claim_->claim.consumer, claim_->batch);

    op->apply.source = SOURCE_WORK;
    copy_text(op->apply.token, sizeof(op->apply.token), claim_->claim.token);
    return op;
}

struct op *park_op(struct suite *s, const char *consumer, struct batch *b, uint8_t to,
                   csn_verdict verdict) {
    struct op *op = new_op(s, OP_PARK);

    op->batch = b;
    copy_text(op->park.consumer, sizeof(op->park.consumer), consumer);
    op->park.source = SOURCE_BROKER;
    op->park.n = b->n;
    op->park.item = keep(s, (b->n ? b->n : 1) * sizeof(*op->park.item));
    for (uint32_t i = 0; i < b->n; i++) {
        struct park_item *it = &op->park.item[i];
        *it = (struct park_item){.msg = i, .to = to, .verdict = verdict, .result = CSN_FATAL};
        it->failure = it->attempt = to == PARK_RETRY || to == PARK_DEAD;
        it->code = 4008;
        copy_text(it->text, sizeof(it->text), "the evidence");
    }
    return op;
}

struct op *park_work_op(struct suite *s, const struct op *claim_, uint8_t to, csn_verdict verdict) {
    struct op *op = park_op(s, claim_->claim.consumer, claim_->batch, to, verdict);

    op->park.source = SOURCE_WORK;
    copy_text(op->park.token, sizeof(op->park.token), claim_->claim.token);
    return op;
}

/* ---- building and running at once ---- */

struct op *claim(struct suite *s, uint32_t limit) {
    struct op *op = claim_op(s, limit);

    run(s, op);
    return op;
}

struct op *claim_work(struct suite *s, const char *consumer, uint32_t limit) {
    struct op *op = claim_work_op(s, consumer, limit);

    run(s, op);
    return op;
}

struct op *settle(struct suite *s, const struct op *claim_, uint8_t to) {
    struct op *op = settle_op(s, claim_, to);

    run(s, op);
    return op;
}

struct op *apply(struct suite *s, const char *consumer, struct batch *b) {
    struct op *op = apply_op(s, consumer, b);

    run(s, op);
    return op;
}

struct op *park(struct suite *s, const char *consumer, struct batch *b, uint8_t to,
                csn_verdict verdict) {
    struct op *op = park_op(s, consumer, b, to, verdict);

    run(s, op);
    for (uint32_t i = 0; i < op->park.n; i++)
        assert_int_equal(op->park.item[i].result, CSN_OK);
    return op;
}

void hold_parts(struct suite *s, const char *name, uint64_t parts) {
    struct op *op = lease_op(s, BOOT_A, name, parts);

    run(s, op);
    assert_true(op->lease.held == parts);
    memcpy(s->part_epoch, op->lease.epoch, sizeof(s->part_epoch));
}

void declare(struct suite *s, const char *subscription, const char *match, uint32_t partitions) {
    run(s, declare_op(s, subscription, match, partitions));
}

void publish(struct suite *s, struct batch *b) {
    struct op *op = publish_op(s, b);

    run(s, op);
    for (uint32_t i = 0; i < b->n; i++)
        assert_int_equal(op->publish.item[i].out, PUB_CONFIRMED);
}

struct op *receive(struct suite *s, const char *consumer, uint64_t lanes, uint32_t limit) {
    struct op *op = receive_op(s, consumer, lanes, limit);

    run(s, op);
    return op;
}

/* ---- events and messages ---- */

void put_event(struct suite *s, const struct world_event *e) {
    const char *refusal = s->w->insert(s->w, e, 1, true);

    if (refusal)
        world_fail("insert of %s: %s", e->id, refusal);
}

void put_due(struct suite *s, const char *id, const char *key, int64_t version, csn_usec due_in) {
    struct world_event e = {.id = id,
                            .aggregate_type = "order",
                            .aggregate_id = key,
                            .event_type = "OrderCreated",
                            .payload = "{}",
                            .version = version,
                            .due_in = due_in};

    put_event(s, &e);
}

void put(struct suite *s, const char *id, const char *key, int64_t version) {
    put_due(s, id, key, version, 0);
}

static csn_bytes borrowed(struct batch *b, const char *text) {
    csn_bytes copy = arena_copy(&b->arena, bytes_of(text));

    assert_true(copy.data || copy.size == 0);
    return copy;
}

struct message *add_message(struct suite *s, struct batch *b, const char *id, const char *key,
                            uint64_t version, const char *payload) {
    struct message *m = &b->msg[b->n];

    (void)s;
    assert_true(b->n < b->cap);
    *m = (struct message){.version = version,
                          .schema_version = 1,
                          .attempts = 1,
                          .age = SECOND,
                          .expires_in = CSN_USEC_NEVER};
    m->id = borrowed(b, id);
    m->aggregate_type = borrowed(b, "order");
    m->aggregate_id = borrowed(b, key);
    m->event_type = borrowed(b, "OrderCreated");
    m->payload = borrowed(b, payload);
    m->seq = ++b->n;
    return m;
}

struct batch *one_message(struct suite *s, const char *id, const char *key, uint64_t version,
                          const char *payload) {
    struct batch *b = new_batch(s);

    add_message(s, b, id, key, version, payload);
    return b;
}

/* ---- looking ---- */

bool text_is(csn_bytes b, const char *text) {
    return bytes_is(b, text);
}

void expect_ids(const struct batch *b, const char *ids) {
    char buffer[4096];
    struct text got;

    text_init(&got, buffer, sizeof(buffer));
    for (uint32_t i = 0; i < b->n; i++) {
        text_add(&got, i ? " " : "");
        text_add_bytes(&got, b->msg[i].id);
    }
    assert_string_equal(buffer, ids);
}

const struct message *message_of(const struct batch *b, const char *id) {
    for (uint32_t i = 0; i < b->n; i++)
        if (bytes_is(b->msg[i].id, id))
            return &b->msg[i];
    world_fail("%s is not in the batch", id);
}

struct outbox_row outbox(struct suite *s, const char *id) {
    struct outbox_row row;

    if (!s->w->outbox(s->w, id, &row))
        world_fail("no outbox row %s", id);
    return row;
}

struct inbox_row inbox(struct suite *s, const char *consumer, const char *id) {
    struct inbox_row row;

    if (!s->w->inbox(s->w, consumer, id, &row))
        world_fail("no inbox row %s %s", consumer, id);
    return row;
}

struct work_row work(struct suite *s, const char *consumer, const char *id) {
    struct work_row row;

    if (!s->w->work(s->w, consumer, id, &row))
        world_fail("no work row %s %s", consumer, id);
    return row;
}

struct queue_row queue(struct suite *s, const char *subscription, const char *id) {
    struct queue_row row;

    if (!s->w->queue(s->w, subscription, id, &row))
        world_fail("no queue row %s %s", subscription, id);
    return row;
}

struct lane_row lane(struct suite *s, const char *name, uint32_t n) {
    struct lane_row row;

    if (!s->w->lane(s->w, name, n, &row))
        world_fail("no lane %s/%u", name, n);
    return row;
}

void expect_status(struct suite *s, const char *id, const char *status) {
    assert_string_equal(outbox(s, id).status, status);
}

void expect_no_inbox(struct suite *s, const char *consumer, const char *id) {
    struct inbox_row row;

    if (s->w->inbox(s->w, consumer, id, &row))
        world_fail("inbox row %s %s in state %s", consumer, id, row.state);
}

void expect_no_work(struct suite *s, const char *consumer, const char *id) {
    struct work_row row;

    if (s->w->work(s->w, consumer, id, &row))
        world_fail("work row %s %s is %s", consumer, id, row.status);
}

struct attempt_row last_attempt(struct suite *s, const char *id, uint32_t n) {
    struct attempt_row row[16];

    assert_true(n >= 1 && n <= ARRAY_LEN(row));
    assert_int_equal(s->w->attempts(s->w, id, row, ARRAY_LEN(row)), n);
    return row[n - 1];
}

struct attempt_row only_attempt(struct suite *s, const char *id) {
    return last_attempt(s, id, 1);
}
