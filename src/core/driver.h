/* driver.h: what a back end must be. Drivers are plain code and know nothing of the core's
 * machines. */
#ifndef CSN_CORE_DRIVER_H
#define CSN_CORE_DRIVER_H

#include "core/op.h"

/* Connections have fixed roles per store and are never mixed in a group. */
enum role {
    ROLE_HEART,     /* LEASE */
    ROLE_RELAY,     /* CLAIM SETTLE RENEW RECOVER of the outbox */
    ROLE_APPLY,     /* APPLY PARK, and CLAIM RENEW RECOVER of the work table */
    ROLE_WATCH,     /* WATCH; read-only */
    ROLE_QUEUE_IN,  /* embedded broker: DECLARE PUBLISH */
    ROLE_QUEUE_OUT, /* embedded broker: RECEIVE ACK */
    ROLE_NR
};

/* A store blocks, on a thread of its own. One connection is used by one thread at a time; wake()
 * may come from any thread. */
struct store_driver {
    const char *version; /* CSN_VERSION: it shares structures with who calls it */
    const char *scheme;  /* "sqlite": the URL scheme it answers to */
    uint32_t ops;        /* bit (1u << op_kind) for each verb it can run */

    /* Opens and checks (schema, version, writable). On failure *ret_conn is untouched and nothing
     * is left open. CSN_AGAIN: not reachable now. CSN_INVALID, CSN_REJECTED: will not work until
     * somebody mends it. */
    csn_status (*open)(const char *url, enum role role, void **ret_conn, csn_error *err);

    /* Runs one commit group, linked by op->next, and sets result and outputs of every op; never
     * fails to. A deadline past gives CSN_AGAIN when nothing was committed. CSN_AGAIN promises that
     * nothing changed. */
    void (*run)(void *conn, struct op *group);

    void (*wake)(void *conn);  /* any thread: cut a wait of run() short */
    void (*close)(void *conn); /* NULL is fine */

    /* Brings the tables to this version; idempotent, touches no row. */
    csn_status (*migrate)(const char *url, csn_error *err);
    /* Whether the laboratory's marker is there: only such a store may be harmed on purpose. */
    csn_status (*marked)(const char *url, bool *ret, csn_error *err);
};

/* The one of these (to the first NULL) that answers to the URL; NULL: none, CSN-2012. */
const struct store_driver *driver_for(const struct store_driver *const *drivers, const char *url,
                                      csn_error *err);

/* A transport streams: several PUBLISH ops in flight, outcomes per message. */
struct transport_driver {
    const char *scheme;
    uint32_t ops;
    csn_status (*open)(const char *url, void **ret_conn, csn_error *err);
    void (*start)(void *conn, struct op *op);
    struct op *(*poll)(void *conn, csn_usec until,
                       int wake_fd); /* next finished op; NULL: woken, or out of time */
    void (*close)(void *conn);
};

#endif
