/* worker.h: makes a port of a store connection: one thread, a queue of groups in, a list of
 * finished ops out, an eventfd.
 *
 *   loop's thread          worker's thread
 *   submit ─▶ staged
 *   flush  ─▶ queue ─────▶ take a group ─▶ open if need be ─▶ driver->run
 *   reap   ◀─ done  ◀───── and write(ready_fd)
 *
 * What always holds: an op that was submitted is reaped exactly once, in the order of its group;
 * op->state is written on the loop's thread only; the connection is used by the worker's thread
 * only, but for driver->wake. An op is never run on a connection that is known to be broken: it is
 * answered CSN_AGAIN, and the connection is opened again, with growing pauses, by the ops that
 * follow. */
#ifndef CSN_HOST_WORKER_H
#define CSN_HOST_WORKER_H

#include "base/error.h"
#include "core/driver.h"
#include "core/port.h"

enum { WORKER_QUEUE_MAX = 1024 };

struct worker;

struct worker_setup {
    const struct store_driver *driver;
    const char *url; /* borrowed until worker_free */
    enum role role;
    uint32_t flags; /* of the port: PORT_ bits */
    uint32_t limit; /* ops that may wait to be run, at most; 0: WORKER_QUEUE_MAX */
    int ready_fd;   /* eventfd of the loop; written when ops are done */
    /* Runs before each open, on the worker's thread: brings the store to where it can be opened.
     * NULL: nothing to do. */
    csn_status (*prepare)(void *arg, csn_error *err);
    void *arg;
};

enum worker_state {
    WORKER_NEW, /* no op came yet */
    WORKER_UP,
    WORKER_DOWN, /* could not be opened, or broke */
};

/* Starts the thread; nothing is opened before the first group. */
csn_status worker_start(const struct worker_setup *setup, struct worker **ret,
                        csn_error *err) MUST_USE;
struct port *worker_port(struct worker *w);
void worker_wake(struct worker *w); /* any thread: cuts the wait of a WATCH short */

/* True when the state is another than at the last call that returned true; err says why it is down.
 * Loop's thread. */
bool worker_news(struct worker *w, enum worker_state *ret_state, csn_error *err);

void worker_stop(
    struct worker *w); /* the group in hand is the last; what is queued is answered CSN_AGAIN */
/* Waits for the thread. False: it did not end by then (a lock, a pause); the worker must not be
 * freed. */
bool worker_join(struct worker *w, csn_usec longest) MUST_USE;
void worker_free(struct worker *w); /* after worker_join; NULL is fine */

#endif
