/* engine.h: owns the machines (lanes, relays, inboxes) and steps them. No thread, no clock, no
 * I/O: the host and the simulator call engine_step with the time and wait until engine_deadline or
 * until a port has something to reap.
 *
 *   stores ──lanes("outbox")──▶ relay ──▶ brokers          one relay per store with an outbox
 *   brokers ─lanes("sub/x")───▶ inbox ──▶ store of x       one inbox per subscription and apply worker
 */
#ifndef CSN_CORE_ENGINE_H
#define CSN_CORE_ENGINE_H

#include "core/config.h"
#include "core/handler.h"
#include "core/metrics.h"
#include "core/port.h"

enum { APPLY_WORKERS_MAX = 8 };

/* The ports of one store; NULL where the store has no such role here. */
struct engine_store {
    const char *name;
    struct port *heart, *relay, *watch;
    uint32_t lanes; /* of its outbox: 1 on SQLite; 0: the relay is another process's, and so relay
                       may be NULL */
};

struct engine_broker {
    const char *name;
    struct port *in, *out; /* publish and declare; receive and ack */
    struct port *heart;    /* where the lanes of its partitions live */
    struct port *watch; /* tells of deliveries; NULL: the broker pushes, RECEIVE waits by itself */
    csn_usec confirm_timeout;
};

struct engine_subscription {
    const char *consumer;
    uint32_t broker, store; /* indexes */
    const char *match;
    uint32_t partitions;
    const struct handler *handler;
    const struct order *order; /* NULL: no event type has a policy */
    bool at_most_once;
    struct retry_policy retry;
    uint32_t workers;
    struct port *apply[APPLY_WORKERS_MAX];
};

struct engine_route {
    const char *name, *match;
    uint32_t broker;
};

struct engine_setup {
    const struct engine_store *store;
    const struct engine_broker *broker;
    const struct engine_subscription *subscription;
    const struct engine_route *route; /* first match wins; the last should match all */
    uint32_t stores, brokers, subscriptions, routes;
    uint32_t bound; /* subscriptions behind those that are another process's: only declared here */
    const char *label; /* of this node */
    uint64_t seed[4];
    uint32_t batch_rows;
    size_t batch_bytes;
    csn_usec probe_min, probe_max, lease, lock_wait, stop_timeout;
    struct retry_policy retry; /* of the relays and of the breakers */
};

struct engine;

/* All memory is taken here, but for the arenas of batches. Strings are borrowed until engine_free.
 */
csn_status engine_new(const struct engine_setup *setup, csn_usec now, struct engine **ret,
                      csn_error *err) MUST_USE;
void engine_step(struct engine *e,
                 csn_usec now); /* level-triggered: look, do what can be done, return */
csn_usec engine_deadline(const struct engine *e,
                         csn_usec now); /* when to step again if nothing is reaped before */
/* Takes from s what may change while it runs, between two steps: batch_rows, batch_bytes, probe_min,
 * probe_max, stop_timeout, the retry policies, and the handler of each subscription. Everything else
 * of s is not looked at; subscriptions are in the order they were. */
void engine_reload(struct engine *e, const struct engine_setup *s);
/* May an op still look at this handler? */
bool engine_uses(const struct engine *e, const struct handler *h);
bool engine_ready(const struct engine *e); /* every lane was asked for once, and an answer came */
void engine_stop(struct engine *e, csn_usec now); /* take no more; settle, give back, drop lanes */
bool engine_stopped(const struct engine *e,
                    csn_usec now);  /* the lanes are dropped, or stop_timeout is over */
void engine_free(struct engine *e); /* NULL is fine; no op may be pending in a port */

const struct counters *engine_counters(const struct engine *e, uint32_t store);
const char *engine_boot(const struct engine *e); /* id of this start */
/* Next thing worth a log line: an event name, or NULL; level 0 error … 3 debug. text is valid until
 * the next call. */
const char *engine_note(struct engine *e, int *ret_level, const char **ret_text);

#endif
