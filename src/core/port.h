/* port.h: what the core sees of a store connection or of a broker. Nothing here blocks, completes
 * inside the call, or calls back. The ops submitted between two flushes are one commit group: they
 * commit together, or not at all, or nobody knows, in which case every op of the group has
 * result.status CSN_UNKNOWN. A group runs in the order of submission. */
#ifndef CSN_CORE_PORT_H
#define CSN_CORE_PORT_H

#include "core/op.h"

enum {
    PORT_ATOMIC_PUBLISH = 1 /* one PUBLISH op shows all its messages at once, in order, or none: a
                               key may be in it twice */
};

struct port {
    void (*submit)(
        struct port *,
        struct op *); /* queue it; sets op->state to OP_PENDING; never completes at once */
    void (*flush)(struct port *);      /* send what was queued as one commit group */
    struct op *(*reap)(struct port *); /* next finished op with state OP_FINISHED, or NULL */
    uint32_t flags;                    /* PORT_ bits */
};

#endif
