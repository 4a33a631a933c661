/* reconcile.h: compares what the outbox calls sent with what the consumers have, and sends again
 * what nobody has. */
#ifndef CSN_CLI_RECONCILE_H
#define CSN_CLI_RECONCILE_H

#include "cli/event_kit.h"

enum { RECONCILE_DIFFERENCES_MAX = 10000 /* of one run and store; the next run finds the rest */ };

struct reconcile {
    const char *reason, *actor;
    csn_usec grace;
    bool dry_run;
    struct out *talk; /* progress, on a terminal; NULL: none */
    /* out */
    json_t *items;    /* one difference each, in public form; the caller lets it go */
    json_t *legs;     /* what was compared, and what was not and why */
    int64_t compared; /* (event, consumer) pairs */
    int64_t differences, resent;
    int64_t before; /* pairs sent before the subscription was declared: no difference, but said */
    uint32_t not_compared; /* legs */
    bool cut;              /* RECONCILE_DIFFERENCES_MAX was reached */
};

/* CSN_OK also when legs could not be read: they are counted. Any other status: a change failed, and
 * *err says where. */
csn_status reconcile_outbox(struct legs *l, struct reconcile *r, csn_error *err) MUST_USE;

int reconcile_run(struct command_call *c); /* reconcile run outbox */

#endif
