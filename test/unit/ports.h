/* ports.h: a port whose other side is the test. What the core submitted lies in `in`, in order;
 * the test fills outputs and calls port_finish; the machine sees it at its next step. */
#ifndef TEST_UNIT_PORTS_H
#define TEST_UNIT_PORTS_H

#include "base/error.h"
#include "core/port.h"

enum { TEST_PORT_MAX = 32 };

struct test_port {
    struct port port;
    struct op *in[TEST_PORT_MAX];
    uint32_t n, flushes, group[TEST_PORT_MAX]; /* group: number of the flush that sent it */
};

static void test_submit(struct port *p, struct op *op) {
    struct test_port *t = (struct test_port *)p;
    assert_true(t->n < TEST_PORT_MAX);
    op->state = OP_PENDING;
    op->result = (csn_error){0};
    t->group[t->n] = t->flushes;
    t->in[t->n++] = op;
}

static void test_flush(struct port *p) {
    ((struct test_port *)p)->flushes++;
}

static struct op *test_reap(struct port *p) {
    (void)p;
    return NULL;
}

static inline void port_make(struct test_port *t) {
    *t = (struct test_port){.port = {test_submit, test_flush, test_reap, 0}};
}

/* Takes the oldest op of a kind out of the port; fails the test when there is none. */
static inline struct op *port_take(struct test_port *t, enum op_kind kind) {
    for (uint32_t i = 0; i < t->n; i++) {
        struct op *op = t->in[i];
        if (op->kind != kind)
            continue;
        memmove(&t->in[i], &t->in[i + 1], (t->n - i - 1) * sizeof *t->in);
        memmove(&t->group[i], &t->group[i + 1], (t->n - i - 1) * sizeof *t->group);
        t->n--;
        return op;
    }
    fail_msg("no op of kind %d was submitted", (int)kind);
    return NULL;
}

static inline bool port_has(const struct test_port *t, enum op_kind kind) {
    for (uint32_t i = 0; i < t->n; i++)
        if (t->in[i]->kind == kind)
            return true;
    return false;
}

static inline void port_finish(struct op *op, csn_status status) {
    error_set(&op->result, status, status == CSN_OK ? 0 : ERR_STORE_UNREACHABLE, "%s",
              status == CSN_OK ? "" : "as the test says");
    op->state = OP_FINISHED;
}

#endif
