/* wire.c: see wire.h. Every op is a group of its own on the connection of its role. */
#include "lab/wire.h"
#include "host/clock.h"
#include "store/store.h"
#include <stdio.h>
#include <time.h>

enum { LEASE = 300000, LONG_ENOUGH = 10000000, ARENA = 1 << 20, REST = 20000000 /* ns */ };
#define CONSUMER "lab-once"

csn_status wire_open(struct wire *w, const char *url, const char *boot, csn_error *err) {
    *w = (struct wire){.driver = store_driver_for(url, err)};
    csn_status st = w->driver ? CSN_OK : err->status;
    arena_init(&w->batch.arena, ARENA);
    w->batch.msg = w->message;
    w->batch.cap = ARRAY_LEN(w->message);
    (void)copy_text(w->boot, sizeof w->boot, boot);
    (void)snprintf(w->token, sizeof w->token, "token-%s", boot);
    if (st == CSN_OK)
        st = w->driver->open(url, ROLE_HEART, &w->heart, err);
    if (st == CSN_OK)
        st = w->driver->open(url, ROLE_QUEUE_IN, &w->in, err);
    if (st == CSN_OK)
        st = w->driver->open(url, ROLE_QUEUE_OUT, &w->out, err);
    return st;
}

void wire_close(struct wire *w) {
    if (w->driver) {
        w->driver->close(w->heart);
        w->driver->close(w->in);
        w->driver->close(w->out);
    }
    arena_free(&w->batch.arena);
}

static csn_status run(struct wire *w, void *conn, struct op *op, csn_error *err) {
    op->deadline = clock_now() + LONG_ENOUGH;
    w->driver->run(conn, op);
    if (op->result.status != CSN_OK)
        *err = op->result;
    return op->result.status;
}

csn_status wire_publish(struct wire *w, const char *event, csn_error *err) {
    struct binding binding = {.subscription = CONSUMER, .match = "LabOnce", .partitions = 1};
    struct message m = {.id = bytes_of(event),
                        .aggregate_type = bytes_of("lab"),
                        .aggregate_id = bytes_of(event),
                        .event_type = bytes_of("LabOnce"),
                        .payload = bytes_of("{}"),
                        .version = 1,
                        .schema_version = 1,
                        .expires_in = CSN_USEC_NEVER};
    struct publish_item item = {.msg = 0};
    struct batch one = {.msg = &m, .n = 1, .cap = 1};
    struct op declare = {.kind = OP_DECLARE}, publish = {.kind = OP_PUBLISH, .batch = &one};
    declare.declare.binding = &binding;
    declare.declare.n = 1;
    publish.publish.item = &item;
    publish.publish.n = 1;
    csn_status st = run(w, w->in, &declare, err);
    if (st == CSN_OK)
        st = run(w, w->in, &publish, err);
    if (st == CSN_OK && item.out != PUB_CONFIRMED)
        st = error_set(err, CSN_REJECTED, ERR_BROKER_REJECTED, "%s", item.text);
    return st;
}

static csn_status take_lane(struct wire *w, bool *ret, csn_error *err) {
    struct op op = {.kind = OP_LEASE};
    (void)copy_text(op.lease.name, sizeof op.lease.name, "sub/" CONSUMER);
    (void)copy_text(op.lease.boot, sizeof op.lease.boot, w->boot);
    (void)copy_text(op.lease.label, sizeof op.lease.label, "lab");
    op.lease.want = 1;
    op.lease.lease = LEASE;
    op.lease.longest = LEASE * 4;
    csn_status st = run(w, w->heart, &op, err);
    *ret = st == CSN_OK && op.lease.held == 1;
    w->epoch[0] = op.lease.epoch[0];
    return st;
}

/* The lane of one who died is free when its lease is over. */
csn_status wire_receive(struct wire *w, uint32_t *ret_n, csn_error *err) {
    csn_usec until = clock_now() + LONG_ENOUGH;
    bool mine = false;
    csn_status st = take_lane(w, &mine, err);
    while (st == CSN_OK && !mine && clock_now() < until) {
        nanosleep(&(struct timespec){0, REST}, NULL);
        st = take_lane(w, &mine, err);
    }
    if (st == CSN_OK && !mine)
        st = error_set(err, CSN_AGAIN, ERR_LAB_WAIT, "the lane of " CONSUMER);
    if (st != CSN_OK)
        return st;
    struct op op = {.kind = OP_RECEIVE, .batch = &w->batch};
    (void)copy_text(op.receive.consumer, sizeof op.receive.consumer, CONSUMER);
    (void)copy_text(op.receive.lane_name, sizeof op.receive.lane_name, "sub/" CONSUMER);
    (void)copy_text(op.receive.boot, sizeof op.receive.boot, w->boot);
    (void)copy_text(op.receive.token, sizeof op.receive.token, w->token);
    op.receive.lanes = 1;
    op.receive.epoch = w->epoch;
    op.receive.limit = w->batch.cap;
    op.receive.bytes = ARENA / 2;
    op.receive.lease = LEASE;
    op.receive.longest_lease = LEASE * 4;
    st = run(w, w->out, &op, err);
    *ret_n = st == CSN_OK ? w->batch.n : 0;
    return st;
}

csn_status wire_ack(struct wire *w, csn_error *err) {
    uint32_t index[] = {0, 1, 2, 3};
    struct op op = {.kind = OP_ACK, .batch = &w->batch};
    (void)copy_text(op.ack.consumer, sizeof op.ack.consumer, CONSUMER);
    (void)copy_text(op.ack.token, sizeof op.ack.token, w->token);
    op.ack.msg = index;
    op.ack.n = w->batch.n;
    return run(w, w->out, &op, err);
}
