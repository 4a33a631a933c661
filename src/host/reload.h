/* reload.h: a new configuration for a daemon that runs. */
#ifndef CSN_HOST_RELOAD_H
#define CSN_HOST_RELOAD_H

#include "host/service.h"
#include "host/plan.h"

struct reload {
    struct config *config; /* in force; the plan's, too */
    struct plan *plan;
    struct engine *engine;
    const struct service_options *options;
};

/* Reads and checks everything, then changes everything that may change, or nothing. The log names
 * each mistake, each key that was taken over, and each that needs a restart. False: nothing was
 * changed. Between two steps of the engine only. */
bool reload_all(const struct reload *r);

#endif
