/* test_worker.c: a worker over a driver made for the purpose: groups, wakes, reopening, bounds, and
 * that no op is lost. Meant to be run under the thread sanitizer, too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/failpoint.h"
#include "host/clock.h"
#include "host/worker.h"

enum { GROUPS_SEEN = 64, PATIENCE = 20000000 };

/* What the driver does, told by the test through the URL: a pointer as text would be ugly, so one
 * test runs at a time and the driver's state stands here. */
static struct {
    _Atomic int opens, closes, runs, wakes, open_now;
    _Atomic int refuse_opens;     /* so many opens fail */
    _Atomic csn_status fail_next; /* the next run gives this to all of its group, once */
    _Atomic int32_t fail_code;
    _Atomic bool hang; /* run does not return while this is set */
    _Atomic bool in_run;
    uint32_t group[GROUPS_SEEN]; /* sizes, in order; read after the ops were reaped */
    int wake_fd;
} fake;

static csn_status fake_open(const char *url, enum role role, void **ret_conn, csn_error *err) {
    (void)role;
    assert_string_equal(url, "fake:x");
    fake.opens++;
    if (fake.refuse_opens > 0) {
        fake.refuse_opens--;
        return error_set(err, CSN_AGAIN, ERR_STORE_UNREACHABLE, "nobody answers");
    }
    assert_int_equal(fake.open_now++, 0);
    *ret_conn = &fake;
    return CSN_OK;
}

static void fake_run(void *conn, struct op *group) {
    assert_ptr_equal(conn, &fake);
    fake.in_run = true;
    while (fake.hang) {
        usleep(1000);
    }
    csn_status status = atomic_exchange(&fake.fail_next, CSN_OK);
    uint32_t n = 0;
    for (struct op *op = group; op; op = op->next, n++) {
        op->result = (csn_error){.status = status, .code = status ? fake.fail_code : 0};
        if (op->kind == OP_WATCH) {
            struct pollfd p = {.fd = fake.wake_fd, .events = POLLIN};
            poll(&p, 1, (int)(op->watch.wait / 1000));
            uint64_t woken;
            op->watch.next_in = read(fake.wake_fd, &woken, sizeof woken) > 0 ? 1 : 0;
        }
    }
    if (fake.runs < GROUPS_SEEN) {
        fake.group[fake.runs] = n;
    }
    fake.runs++;
    fake.in_run = false;
}

static void fake_wake(void *conn) {
    (void)conn;
    uint64_t one = 1;
    fake.wakes++;
    assert_int_equal(write(fake.wake_fd, &one, sizeof one), sizeof one);
}

static void fake_close(void *conn) {
    assert_ptr_equal(conn, &fake);
    fake.closes++;
    fake.open_now--;
}

static const struct store_driver fake_driver = {
    .scheme = "fake", .open = fake_open, .run = fake_run, .wake = fake_wake, .close = fake_close};

struct bench {
    struct worker *w;
    struct port *port;
    int ready_fd;
};

static void bench_start(struct bench *b, uint32_t limit) {
    memset(&fake, 0, sizeof fake);
    fake.wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    b->ready_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    assert_true(fake.wake_fd >= 0 && b->ready_fd >= 0);
    const struct worker_setup setup = {.driver = &fake_driver,
                                       .url = "fake:x",
                                       .role = ROLE_RELAY,
                                       .limit = limit,
                                       .ready_fd = b->ready_fd};
    assert_int_equal(worker_start(&setup, &b->w, NULL), CSN_OK);
    b->port = worker_port(b->w);
}

static void bench_end(struct bench *b) {
    worker_stop(b->w);
    assert_true(worker_join(b->w, PATIENCE));
    assert_null(b->port->reap(b->port));
    worker_free(b->w);
    assert_int_equal(fake.open_now, 0);
    close(b->ready_fd);
    close(fake.wake_fd);
}

static void send_op(struct bench *b, struct op *op, enum op_kind kind) {
    memset(op, 0, sizeof *op);
    op->kind = kind;
    b->port->submit(b->port, op);
    assert_int_equal(op->state, OP_PENDING);
}

/* The next finished op, as the loop gets it: by the eventfd, within a bound. */
static struct op *next_op(struct bench *b) {
    csn_usec until = clock_now() + PATIENCE;
    for (;;) {
        struct op *op = b->port->reap(b->port);
        if (op) {
            assert_int_equal(op->state, OP_FINISHED);
            assert_null(op->next);
            return op;
        }
        assert_true(clock_now() < until);
        struct pollfd p = {.fd = b->ready_fd, .events = POLLIN};
        uint64_t n;
        if (poll(&p, 1, 1000) > 0) {
            assert_int_equal(read(b->ready_fd, &n, sizeof n), sizeof n);
        }
    }
}

static void a_group_is_what_lies_between_two_flushes(void **state) {
    (void)state;
    struct bench b;
    struct op op[6];
    bench_start(&b, 0);
    for (int i = 0; i < 3; i++) {
        send_op(&b, &op[i], OP_SETTLE);
    }
    b.port->flush(b.port);
    b.port->flush(b.port); /* nothing: no group */
    for (int i = 3; i < 5; i++) {
        send_op(&b, &op[i], OP_CLAIM);
    }
    b.port->flush(b.port);
    send_op(&b, &op[5], OP_CLAIM);
    for (int i = 0; i < 5; i++) {
        assert_ptr_equal(next_op(&b), &op[i]);
        assert_int_equal(op[i].result.status, CSN_OK);
    }
    assert_int_equal(op[5].state, OP_PENDING); /* not flushed: not run */
    assert_int_equal(fake.runs, 2);
    assert_int_equal(fake.group[0], 3);
    assert_int_equal(fake.group[1], 2);
    worker_stop(b.w);
    assert_ptr_equal(next_op(&b), &op[5]);
    assert_int_equal(op[5].result.status, CSN_AGAIN);
    bench_end(&b);
    assert_int_equal(fake.opens, 1);
}

static void nothing_is_opened_before_it_is_needed(void **state) {
    (void)state;
    struct bench b;
    enum worker_state s;
    bench_start(&b, 0);
    usleep(20000);
    assert_int_equal(fake.opens, 0);
    assert_false(worker_news(b.w, &s, NULL));
    assert_int_equal(s, WORKER_NEW);
    bench_end(&b);
    assert_int_equal(fake.closes, 0);
}

static void a_closed_door_is_tried_again_with_pauses(void **state) {
    (void)state;
    struct bench b;
    struct op op;
    csn_error err;
    enum worker_state s;
    bench_start(&b, 0);
    fake.refuse_opens = 3;
    int again = 0;
    csn_usec from = clock_now();
    for (;;) {
        send_op(&b, &op, OP_CLAIM);
        b.port->flush(b.port);
        assert_ptr_equal(next_op(&b), &op);
        if (op.result.status == CSN_OK) {
            break;
        }
        assert_int_equal(op.result.status, CSN_AGAIN);
        assert_int_equal(op.result.code, ERR_STORE_UNREACHABLE);
        if (again++ == 0) {
            assert_true(worker_news(b.w, &s, &err));
            assert_int_equal(s, WORKER_DOWN);
            assert_string_equal(err.text, "nobody answers");
        }
        assert_true(again < 100);
    }
    csn_usec took = clock_now() - from;
    assert_int_equal(fake.opens, 4);
    assert_true(took >= 50000 + 100000 + 200000); /* it neither spins … */
    assert_true(again >= 3 + 1 && again <= 30);   /* … nor keeps an op for the whole rest */
    assert_true(worker_news(b.w, &s, NULL));
    assert_int_equal(s, WORKER_UP);
    assert_false(worker_news(b.w, &s, NULL));
    bench_end(&b);
}

static csn_status run_one(struct bench *b, csn_status fail, int32_t code) {
    struct op op;
    fake.fail_code = code;
    fake.fail_next = fail;
    send_op(b, &op, OP_SETTLE);
    b->port->flush(b->port);
    assert_ptr_equal(next_op(b), &op);
    assert_int_equal(op.result.code, op.result.status ? code : 0);
    return op.result.status;
}

static void what_broke_is_opened_anew_and_what_is_busy_is_kept(void **state) {
    (void)state;
    struct bench b;
    bench_start(&b, 0);
    assert_int_equal(run_one(&b, CSN_OK, 0), CSN_OK);
    assert_int_equal(run_one(&b, CSN_AGAIN, ERR_STORE_LOCKED), CSN_AGAIN);
    assert_int_equal(run_one(&b, CSN_UNKNOWN, ERR_STORE_COMMIT_UNKNOWN), CSN_UNKNOWN);
    assert_int_equal(run_one(&b, CSN_REJECTED, ERR_STORE_SQL), CSN_REJECTED);
    assert_int_equal(fake.closes, 0);
    static const struct {
        csn_status status;
        int32_t code;
    } broken[] = {{CSN_FATAL, ERR_STORE_IO},
                  {CSN_AGAIN, ERR_STORE_OPEN},
                  {CSN_AGAIN, ERR_STORE_UNREACHABLE},
                  {CSN_UNKNOWN, ERR_STORE_UNREACHABLE}};
    for (size_t i = 0; i < ARRAY_LEN(broken); i++) {
        assert_int_equal(run_one(&b, broken[i].status, broken[i].code), broken[i].status);
        csn_usec until = clock_now() + PATIENCE;
        struct op op;
        do {
            assert_true(clock_now() < until);
            send_op(&b, &op, OP_CLAIM);
            b.port->flush(b.port);
            assert_ptr_equal(next_op(&b), &op);
        } while (op.result.status == CSN_AGAIN);
        assert_int_equal(op.result.status, CSN_OK);
        assert_int_equal(fake.closes, i + 1);
        assert_int_equal(fake.opens, i + 2);
    }
    bench_end(&b);
}

static void a_full_queue_refuses_whole_groups(void **state) {
    (void)state;
    struct bench b;
    struct op op[7];
    bench_start(&b, 4);
    fake.hang = true;
    send_op(&b, &op[0], OP_CLAIM);
    b.port->flush(b.port);
    while (!fake.in_run) {
        usleep(1000);
    }
    for (int i = 1; i < 4; i++) {
        send_op(&b, &op[i], OP_CLAIM);
    }
    b.port->flush(b.port); /* three wait: one more has room */
    send_op(&b, &op[4], OP_CLAIM);
    send_op(&b, &op[5], OP_CLAIM);
    b.port->flush(b.port); /* two have not: both are refused */
    assert_int_equal(op[4].state, OP_PENDING);
    assert_ptr_equal(next_op(&b), &op[4]);
    assert_ptr_equal(next_op(&b), &op[5]);
    assert_int_equal(op[4].result.status, CSN_AGAIN);
    assert_int_equal(op[5].result.status, CSN_AGAIN);
    send_op(&b, &op[6], OP_CLAIM);
    b.port->flush(b.port);
    fake.hang = false;
    for (int i = 0; i < 4; i++) {
        assert_ptr_equal(next_op(&b), &op[i]);
        assert_int_equal(op[i].result.status, CSN_OK);
    }
    assert_ptr_equal(next_op(&b), &op[6]);
    bench_end(&b);
}

static void a_wake_cuts_a_watch_short(void **state) {
    (void)state;
    struct bench b;
    struct op op;
    bench_start(&b, 0);
    worker_wake(b.w); /* no connection yet: nothing to wake, no harm */
    send_op(&b, &op, OP_WATCH);
    op.watch.wait = PATIENCE;
    b.port->flush(b.port);
    while (!fake.in_run) {
        usleep(1000);
    }
    csn_usec from = clock_now();
    worker_wake(b.w);
    assert_ptr_equal(next_op(&b), &op);
    assert_true(clock_now() - from < PATIENCE / 2);
    assert_int_equal(op.watch.next_in, 1);
    bench_end(&b);
}

static void a_stop_cuts_a_watch_short_and_answers_what_waits(void **state) {
    (void)state;
    for (int delay = 0; delay <= 2000; delay += 100) { /* also between the taking and the opening */
        struct bench b;
        struct op op[3];
        bench_start(&b, 0);
        send_op(&b, &op[0], OP_WATCH);
        op[0].watch.wait = PATIENCE;
        b.port->flush(b.port);
        send_op(&b, &op[1], OP_CLAIM);
        b.port->flush(b.port);
        usleep((useconds_t)delay);
        csn_usec from = clock_now();
        worker_stop(b.w);
        assert_true(worker_join(b.w, PATIENCE));
        assert_true(clock_now() - from < PATIENCE / 2);
        assert_ptr_equal(next_op(&b), &op[0]);
        assert_ptr_equal(next_op(&b), &op[1]);
        assert_int_equal(op[1].result.status, CSN_AGAIN);
        send_op(&b, &op[2], OP_CLAIM); /* too late, and yet answered */
        b.port->flush(b.port);
        assert_ptr_equal(next_op(&b), &op[2]);
        assert_int_equal(op[2].result.status, CSN_AGAIN);
        assert_null(b.port->reap(b.port));
        worker_free(b.w);
        assert_int_equal(fake.open_now, 0);
        close(b.ready_fd);
        close(fake.wake_fd);
    }
}

static void a_join_ends_although_the_driver_hangs(void **state) {
    (void)state;
    struct bench b;
    struct op op;
    bench_start(&b, 0);
    fake.hang = true;
    send_op(&b, &op, OP_CLAIM);
    b.port->flush(b.port);
    while (!fake.in_run) {
        usleep(1000);
    }
    worker_stop(b.w);
    assert_false(worker_join(b.w, 50000));
    fake.hang = false;
    assert_ptr_equal(next_op(&b), &op);
    bench_end(&b);
}

static void failpoints_of_the_process_are_hit_when_it_learns(void **state) {
    (void)state;
    struct bench b;
    struct batch rows = {.n = 2}, none = {.n = 0};
    static const struct {
        enum op_kind kind;
        uint8_t table;
        bool rows;
        csn_status status;
        int claimed, confirmed, received;
    } row[] = {
        {OP_CLAIM, TABLE_OUTBOX, true, CSN_OK, 1, 0, 0},
        {OP_CLAIM, TABLE_OUTBOX, false, CSN_OK, 0, 0, 0},
        {OP_CLAIM, TABLE_OUTBOX, true, CSN_AGAIN, 0, 0, 0},
        {OP_CLAIM, TABLE_WORK, true, CSN_OK, 0, 0, 1},
        {OP_RECEIVE, 0, true, CSN_OK, 0, 0, 1},
        {OP_RECEIVE, 0, false, CSN_OK, 0, 0, 0},
        {OP_PUBLISH, 0, true, CSN_OK, 0, 1, 0},
        {OP_PUBLISH, 0, true, CSN_UNKNOWN, 0, 0, 0},
        {OP_SETTLE, 0, true, CSN_OK, 0, 0, 0},
    };
    bench_start(&b, 0);
    for (size_t i = 0; i < ARRAY_LEN(row); i++) {
        uint64_t claimed = failpoint_hits(FAIL_RELAY_CLAIMED),
                 confirmed = failpoint_hits(FAIL_RELAY_CONFIRMED);
        uint64_t received = failpoint_hits(FAIL_INBOX_RECEIVED);
        struct op op;
        memset(&op, 0, sizeof op);
        op.kind = row[i].kind;
        op.batch = row[i].rows ? &rows : &none;
        if (op.kind == OP_CLAIM) {
            op.claim.table = (enum work_table)row[i].table;
        }
        fake.fail_next = row[i].status;
        b.port->submit(b.port, &op);
        b.port->flush(b.port);
        assert_ptr_equal(next_op(&b), &op);
        assert_int_equal(failpoint_hits(FAIL_RELAY_CLAIMED) - claimed, row[i].claimed);
        assert_int_equal(failpoint_hits(FAIL_RELAY_CONFIRMED) - confirmed, row[i].confirmed);
        assert_int_equal(failpoint_hits(FAIL_INBOX_RECEIVED) - received, row[i].received);
    }
    bench_end(&b);
}

/* Thousands of ops in groups of changing size, with a connection that breaks now and then, while
 * another thread wakes. */
static void *wake_often(void *arg) {
    struct worker *w = arg;
    for (int i = 0; i < 2000; i++) {
        worker_wake(w);
        if (i % 16 == 0) {
            usleep(500);
        }
    }
    return NULL;
}

static void no_op_is_lost(void **state) {
    (void)state;
    enum { OPS = 256, ROUNDS = 40 };
    static struct op op[OPS];
    struct bench b;
    bench_start(&b, OPS);
    pthread_t waker;
    assert_int_equal(pthread_create(&waker, NULL, wake_often, b.w), 0);
    uint64_t answered = 0, good = 0;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0, group = 0; i < OPS; i++) {
            send_op(&b, &op[i], i % 3 ? OP_SETTLE : OP_CLAIM);
            if (++group > (i * 7 + round) % 9) {
                b.port->flush(b.port);
                group = 0;
            }
        }
        b.port->flush(b.port);
        if (round % 10 == 5) {
            fake.fail_code = ERR_STORE_IO;
            fake.fail_next = CSN_FATAL;
        }
        for (int i = 0; i < OPS; i++) {
            const struct op *done = next_op(&b);
            assert_ptr_equal(done, &op[i]); /* in order, each once */
            answered++;
            good += done->result.status == CSN_OK;
        }
        assert_null(b.port->reap(b.port));
    }
    assert_int_equal(pthread_join(waker, NULL), 0);
    assert_int_equal(answered, OPS * ROUNDS);
    assert_true(good > OPS * ROUNDS / 2 && good < OPS * ROUNDS);
    bench_end(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_group_is_what_lies_between_two_flushes),
        cmocka_unit_test(nothing_is_opened_before_it_is_needed),
        cmocka_unit_test(a_closed_door_is_tried_again_with_pauses),
        cmocka_unit_test(what_broke_is_opened_anew_and_what_is_busy_is_kept),
        cmocka_unit_test(a_full_queue_refuses_whole_groups),
        cmocka_unit_test(a_wake_cuts_a_watch_short),
        cmocka_unit_test(a_stop_cuts_a_watch_short_and_answers_what_waits),
        cmocka_unit_test(a_join_ends_although_the_driver_hangs),
        cmocka_unit_test(failpoints_of_the_process_are_hit_when_it_learns),
        cmocka_unit_test(no_op_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
