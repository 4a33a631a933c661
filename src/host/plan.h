/* plan.h: from a configuration to everything that the engine is made of: drivers, handlers, one
 * worker per connection, and the tables of engine_setup that point to their ports. A plan owns all
 * of it.
 *
 *   store s      heart relay watch     1 each
 *   broker b     queue-in queue-out    1 each, in the store of b, whose heart and watch serve b, too
 *   subscription apply                 as many as `apply` of its store says */
#ifndef CSN_HOST_PLAN_H
#define CSN_HOST_PLAN_H

#include "core/engine.h"
#include "core/order.h"
#include "host/worker.h"

enum {
    PLAN_LANES = 1, /* of an outbox: one on SQLite */
    PLAN_WORKERS_MAX = STORES_MAX * 3 + BROKERS_MAX * 2 + SUBSCRIPTIONS_MAX * APPLY_WORKERS_MAX
};

struct plan_store {
    const struct config_store *config;
    const struct store_driver *driver;
    bool met;               /* a connection was opened once */
    bool down;              /* said to be down */
    uint32_t downs;         /* workers that are down */
    uint32_t role[ROLE_NR]; /* connections by role */
};

struct plan_worker {
    struct worker *w;
    struct port *port;
    enum role role;
    uint32_t store;
    bool down;
};

/* A handler file as it was read. Engine and stores have it by its address, so one that was replaced
 * stays until none of them looks at it. */
struct plan_handler {
    struct handler handler;
    struct sql_handler sql;
    char path[URL_MAX_];
    uint64_t hash;             /* of its text */
    struct plan_handler *next; /* that was replaced */
};

/* A subscription whose handler is a function of this program. */
struct plan_application {
    const char *consumer;
    struct handler handler;
};

struct plan_setup {
    const struct store_driver *const *drivers; /* those there are, to the first NULL */
    bool
        all; /* relays, and the subscriptions with an SQL handler; what is left of the configuration
                 is another process's, and only its bindings are declared */
    const struct plan_application *application;
    uint32_t applications;
};

struct plan {
    const struct config *config;
    bool relays;
    int ready_fd; /* eventfd of all workers */
    struct plan_store store[STORES_MAX];
    struct plan_worker worker[PLAN_WORKERS_MAX];
    uint32_t workers;
    uint32_t subscriptions;         /* that run here; the rest of the configuration's is behind */
    uint32_t of[SUBSCRIPTIONS_MAX]; /* engine_subscription k is this one of the configuration */
    const struct handler *handled_by[SUBSCRIPTIONS_MAX]; /* as of; NULL: not here */
    struct plan_handler *handler[SUBSCRIPTIONS_MAX];     /* by the configuration; NULL: no file */
    struct plan_handler *replaced;                       /* and perhaps still looked at */
    struct order order;                                  /* the policies of event types */
    struct order_rule rule[ORDER_RULES_MAX];
    struct order_machine machine[ORDER_RULES_MAX];
    struct engine_store engine_store[STORES_MAX];
    struct engine_broker engine_broker[BROKERS_MAX];
    struct engine_subscription engine_subscription[SUBSCRIPTIONS_MAX];
    struct engine_route engine_route[ROUTES_MAX];
};

/* The drivers of all stores and the handlers of all subscriptions; no connection, no thread. report
 * gets the mistakes of a handler file in full. */
csn_status plan_new(const struct config *c, const struct plan_setup *setup, struct text *report,
                    struct plan **ret, csn_error *err) MUST_USE;
/* Looks at store i as its driver would, after the schema was applied where `migrate` says so.
 * CSN_AGAIN: it may come later. */
csn_status plan_meet(struct plan *p, uint32_t i, csn_error *err) MUST_USE;
/* Starts all workers and fills setup; its pointers go into the plan. seed and label are the
 * caller's. */
csn_status plan_start(struct plan *p, struct engine_setup *setup, csn_error *err) MUST_USE;
/* Reads the handler file of subscription i again, from this path; nothing changes in the plan.
 * *ret is NULL when it is what there is already. */
csn_status plan_read_handler(const struct plan *p, uint32_t i, const char *path,
                             struct text *report, struct plan_handler **ret,
                             csn_error *err) MUST_USE;
void plan_handler_free(struct plan_handler *h); /* NULL is fine */
/* Makes h the handler of subscription i; h is the plan's from here on. */
void plan_take_handler(struct plan *p, uint32_t i, struct plan_handler *h);
/* What of the configuration the engine may take while it runs: fills these members of setup. */
void plan_policies(struct plan *p, struct engine_setup *setup);
/* Frees what was replaced and is not looked at any more. */
void plan_sweep(struct plan *p, const struct engine *e);
/* Stops all workers. False: one did not end within longest; the plan must be left alone then. All
 * ops are reaped after true. */
bool plan_stop(struct plan *p, csn_usec longest) MUST_USE;
void plan_free(struct plan *p); /* after plan_stop; NULL is fine */

const char *plan_role_name(enum role r);
uint32_t plan_connections(const struct plan *p, uint32_t store);
/* "heart 1, relay 1, …" of store i. */
void plan_roles(const struct plan *p, uint32_t store, struct text *ret);

#endif
