/* worker.c: see worker.h for the drawing.
 *
 * Groups wait in a ring of their first ops; the ops of a group are linked by op->next, and so are
 * those that are done. One lock covers both, the state and the connection's address: it is held for
 * a few instructions, never while the driver works.
 *
 * A connection that is down rests between two openings, 50 ms at first, 2 s at last. Meanwhile an
 * op is not kept for the whole rest: it waits 50 ms at most, so that the machine that submitted it
 * neither spins nor loses sight of it, and is answered with the reason.
 *
 * Tried and dropped: to answer at once while resting. A machine that submits again at once then
 * spins. */
#include "host/worker.h"
#include "base/failpoint.h"
#include "host/clock.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { PAUSE_MIN = 50000, PAUSE_MAX = 2000000, ANSWER_AFTER = 50000 };

struct op_list {
    struct op *first, **end;
};

struct worker {
    struct port port; /* first: the port is the worker */
    struct worker_setup setup;
    pthread_t thread;
    /* the loop's thread only */
    struct op_list staged;
    uint32_t staged_count;
    enum worker_state told;
    /* under lock */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* queue, stopping, ended */
    struct op **ring;       /* setup.limit groups */
    uint32_t ring_first, groups, waiting;
    struct op_list done;
    bool stopping, ended;
    enum worker_state state;
    csn_error why;
    void *conn; /* written by the worker's thread under the lock; read by it without, by others with
                   it */
    /* the worker's thread only */
    csn_error last;
    csn_usec reopen_at, pause;
};

static void list_clear(struct op_list *l) {
    l->first = NULL;
    l->end = &l->first;
}

static void list_add(struct op_list *l, struct op *op) {
    op->next = NULL;
    *l->end = op;
    l->end = &op->next;
}

/* Appends a chain that ends with NULL. */
static void list_join(struct op_list *l, struct op *chain) {
    for (; chain; chain = chain->next) {
        *l->end = chain;
        l->end = &chain->next;
    }
}

static uint32_t count(const struct op *group) {
    uint32_t n = 0;
    for (; group; group = group->next) {
        n++;
    }
    return n;
}

static void answer_again(struct op *group, const csn_error *why) {
    for (; group; group = group->next) {
        group->result = *why;
        group->result.status = CSN_AGAIN;
    }
}

/* ---- the loop's side ---- */

static struct worker *of_port(struct port *p) {
    return (struct worker *)p;
}

static void ring_bell(const struct worker *w) {
    uint64_t one = 1;
    ssize_t n;
    do {
        n = write(w->setup.ready_fd, &one, sizeof one);
    } while (n < 0 && errno == EINTR); /* EAGAIN: the counter is full, the loop wakes anyhow */
}

static void submit(struct port *p, struct op *op) {
    struct worker *w = of_port(p);
    op->state = OP_PENDING;
    op->result = (csn_error){.status = CSN_OK};
    list_add(&w->staged, op);
    w->staged_count++;
}

/* Either the whole group is queued or the whole group is refused: a group is all or nothing. */
static void flush(struct port *p) {
    struct worker *w = of_port(p);
    struct op *group = w->staged.first;
    if (!group) {
        return;
    }
    pthread_mutex_lock(&w->lock);
    bool taken = !w->stopping && w->waiting + w->staged_count <= w->setup.limit;
    if (taken) {
        w->ring[(w->ring_first + w->groups++) % w->setup.limit] = group;
        w->waiting += w->staged_count;
        pthread_cond_broadcast(&w->changed);
    } else {
        csn_error why;
        error_set(&why, CSN_AGAIN, ERR_STORE_UNREACHABLE, "%s",
                  w->stopping ? "the connection is closed"
                              : "too many operations wait for this connection");
        answer_again(group, &why);
        list_join(&w->done, group);
    }
    pthread_mutex_unlock(&w->lock);
    list_clear(&w->staged);
    w->staged_count = 0;
    if (!taken) {
        ring_bell(w);
    }
}

/* The failpoints of the dispatcher and the consumer themselves are hit here, on the loop's thread:
 * a pause then stops every decision of the process, as a stop of the process would. */
static void hit_failpoint(const struct op *op) {
    bool rows = op->result.status == CSN_OK && op->batch && op->batch->n > 0;
    if (op->kind == OP_CLAIM && op->claim.table == TABLE_OUTBOX && rows) {
        failpoint_hit(FAIL_RELAY_CLAIMED);
    } else if (op->kind == OP_PUBLISH && op->result.status == CSN_OK) {
        failpoint_hit(FAIL_RELAY_CONFIRMED);
    } else if ((op->kind == OP_RECEIVE || op->kind == OP_CLAIM) && rows) {
        failpoint_hit(FAIL_INBOX_RECEIVED);
    }
}

static struct op *reap(struct port *p) {
    struct worker *w = of_port(p);
    pthread_mutex_lock(&w->lock);
    struct op *op = w->done.first;
    if (op) {
        w->done.first = op->next;
        if (!op->next) {
            list_clear(&w->done);
        }
    }
    pthread_mutex_unlock(&w->lock);
    if (op) {
        op->next = NULL;
        op->state = OP_FINISHED;
        hit_failpoint(op);
    }
    return op;
}

bool worker_news(struct worker *w, enum worker_state *ret_state, csn_error *err) {
    pthread_mutex_lock(&w->lock);
    bool news = w->state != w->told;
    *ret_state = w->told = w->state;
    if (err) {
        *err = w->why;
    }
    pthread_mutex_unlock(&w->lock);
    return news;
}

void worker_wake(struct worker *w) {
    pthread_mutex_lock(&w->lock);
    if (w->conn && w->setup.driver->wake) {
        w->setup.driver->wake(w->conn);
    }
    pthread_mutex_unlock(&w->lock);
}

/* ---- the worker's side ---- */

/* The next group, or NULL: stop. */
static struct op *take_group(struct worker *w) {
    struct op *group = NULL;
    pthread_mutex_lock(&w->lock);
    while (!w->stopping && w->groups == 0) {
        pthread_cond_wait(&w->changed, &w->lock);
    }
    if (!w->stopping) {
        group = w->ring[w->ring_first];
        w->ring_first = (w->ring_first + 1) % w->setup.limit;
        w->groups--;
        w->waiting -= count(group);
    }
    pthread_mutex_unlock(&w->lock);
    return group;
}

static void finish_group(struct worker *w, struct op *group) {
    pthread_mutex_lock(&w->lock);
    list_join(&w->done, group);
    pthread_mutex_unlock(&w->lock);
    ring_bell(w);
}

static void set_state(struct worker *w, enum worker_state state, void *conn, const csn_error *why) {
    pthread_mutex_lock(&w->lock);
    w->state = state;
    w->conn = conn;
    if (why) {
        w->why = *why;
    }
    if (conn && w->stopping && w->setup.driver->wake) {
        w->setup.driver->wake(conn); /* the stop came before there was anything to wake */
    }
    pthread_mutex_unlock(&w->lock);
}

/* Nobody can wake a connection that is being closed: its address is gone before. */
static void close_conn(struct worker *w, enum worker_state state, const csn_error *why) {
    void *conn = w->conn;
    set_state(w, state, NULL, why);
    w->setup.driver->close(conn);
}

static struct timespec timespec_of(csn_usec t) {
    return (struct timespec){.tv_sec = t / 1000000, .tv_nsec = t % 1000000 * 1000};
}

static csn_usec steady_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC,
                  &now); /* the clock of the condition, which cannot be CLOCK_BOOTTIME */
    return (csn_usec)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* Rests until the connection may be opened, at most ANSWER_AFTER. False: not yet, or stopping. */
static bool rest(struct worker *w) {
    csn_usec now = steady_now(), until = w->reopen_at;
    until = until - now > ANSWER_AFTER ? now + ANSWER_AFTER : until;
    struct timespec at = timespec_of(until);
    pthread_mutex_lock(&w->lock);
    while (!w->stopping && steady_now() < until) {
        pthread_cond_timedwait(&w->changed, &w->lock, &at);
    }
    bool stopping = w->stopping;
    pthread_mutex_unlock(&w->lock);
    return !stopping && steady_now() >= w->reopen_at;
}

static void rest_longer(struct worker *w) {
    w->pause = w->pause == 0 ? PAUSE_MIN : w->pause >= PAUSE_MAX / 2 ? PAUSE_MAX : w->pause * 2;
    w->reopen_at = steady_now() + w->pause;
}

static bool open_conn(struct worker *w) {
    if (w->conn) {
        return true;
    }
    if (!rest(w)) {
        return false;
    }
    void *conn = NULL;
    error_clear(&w->last);
    csn_status s = w->setup.prepare ? w->setup.prepare(w->setup.arg, &w->last) : CSN_OK;
    if (s == CSN_OK) {
        s = w->setup.driver->open(w->setup.url, w->setup.role, &conn, &w->last);
    }
    if (s != CSN_OK) {
        w->last.status = s;
        rest_longer(w);
        set_state(w, WORKER_DOWN, NULL, &w->last);
        return false;
    }
    set_state(w, WORKER_UP, conn, NULL);
    return true;
}

/* The first result that says the connection is of no more use; NULL: it lives. */
static const csn_error *broke(const struct op *group) {
    for (; group; group = group->next) {
        const csn_error *r = &group->result;
        bool gone = r->code == ERR_STORE_OPEN || r->code == ERR_STORE_UNREACHABLE;
        if (r->status == CSN_FATAL ||
            (gone && (r->status == CSN_AGAIN || r->status == CSN_UNKNOWN))) {
            return r;
        }
    }
    return NULL;
}

static void run_group(struct worker *w, struct op *group) {
    if (!open_conn(w)) {
        answer_again(group, &w->last);
        return;
    }
    w->setup.driver->run(w->conn, group);
    const csn_error *why = broke(group);
    if (why) {
        w->last = *why;
        rest_longer(w);
        close_conn(w, WORKER_DOWN, why);
        return;
    }
    w->pause = 0;
}

/* What is still queued when the worker stops was never run. */
static void refuse_rest(struct worker *w) {
    csn_error why;
    error_set(&why, CSN_AGAIN, ERR_STORE_UNREACHABLE, "the connection is closed");
    pthread_mutex_lock(&w->lock);
    for (; w->groups > 0; w->groups--) {
        struct op *group = w->ring[w->ring_first];
        w->ring_first = (w->ring_first + 1) % w->setup.limit;
        answer_again(group, &why);
        list_join(&w->done, group);
    }
    w->waiting = 0;
    pthread_mutex_unlock(&w->lock);
    ring_bell(w);
}

static void *main_of_worker(void *arg) {
    struct worker *w = arg;
    for (struct op *group = take_group(w); group; group = take_group(w)) {
        run_group(w, group);
        finish_group(w, group);
    }
    if (w->conn) {
        close_conn(w, WORKER_NEW, NULL);
    }
    refuse_rest(w);
    pthread_mutex_lock(&w->lock);
    w->ended = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* ---- start and end ---- */

static bool make_condition(pthread_cond_t *c) {
    pthread_condattr_t a;
    if (pthread_condattr_init(&a) != 0) {
        return false;
    }
    bool good =
        pthread_condattr_setclock(&a, CLOCK_MONOTONIC) == 0 && pthread_cond_init(c, &a) == 0;
    pthread_condattr_destroy(&a);
    return good;
}

/* Signals are the loop's: a worker never sees one. */
static int start_thread(struct worker *w) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&w->thread, NULL, main_of_worker, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

static void name_thread(const struct worker *w) {
    static const char *const name[ROLE_NR] = {"csn-heart", "csn-relay",    "csn-apply",
                                              "csn-watch", "csn-queue-in", "csn-queue-out"};
    pthread_setname_np(w->thread, name[w->setup.role]);
}

csn_status worker_start(const struct worker_setup *setup, struct worker **ret, csn_error *err) {
    struct worker *w = calloc(1, sizeof *w);
    if (!w) {
        return error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "a connection's worker");
    }
    w->setup = *setup;
    w->setup.limit = setup->limit ? setup->limit : WORKER_QUEUE_MAX;
    w->port = (struct port){.submit = submit, .flush = flush, .reap = reap, .flags = setup->flags};
    list_clear(&w->staged);
    list_clear(&w->done);
    w->ring = calloc(w->setup.limit, sizeof(struct op *));
    if (!w->ring || pthread_mutex_init(&w->lock, NULL) != 0) {
        free(w->ring);
        free(w);
        return error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "a connection's queue");
    }
    if (!make_condition(&w->changed)) {
        pthread_mutex_destroy(&w->lock);
        free(w->ring);
        free(w);
        return error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "a connection's condition");
    }
    int failed = start_thread(w);
    if (failed) {
        w->ended = true;
        worker_free(w);
        error_set(err, CSN_AGAIN, ERR_NO_MEMORY, "a connection's thread: error %d", failed);
        return CSN_AGAIN;
    }
    name_thread(w);
    *ret = w;
    return CSN_OK;
}

struct port *worker_port(struct worker *w) {
    return &w->port;
}

void worker_stop(struct worker *w) {
    pthread_mutex_lock(&w->lock);
    w->stopping = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    flush(&w->port); /* what was staged and never flushed is answered, and not run */
    worker_wake(w);
}

bool worker_join(struct worker *w, csn_usec longest) {
    csn_usec until = steady_now() + longest;
    struct timespec at = timespec_of(until);
    pthread_mutex_lock(&w->lock);
    while (!w->ended && steady_now() < until) {
        pthread_cond_timedwait(&w->changed, &w->lock, &at);
    }
    bool ended = w->ended;
    pthread_mutex_unlock(&w->lock);
    return ended && pthread_join(w->thread, NULL) == 0;
}

void worker_free(struct worker *w) {
    if (!w) {
        return;
    }
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w->ring);
    free(w);
}
