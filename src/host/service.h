/* service.h: the engine with its stores and workers, as something that is stepped: the daemon and a
 * program that links the library wait in their own way, and step it when its descriptor is readable
 * or its timeout is over. One thread. */
#ifndef CSN_HOST_SERVICE_H
#define CSN_HOST_SERVICE_H

#include "core/config.h"
#include "host/plan.h"
#include <stdio.h>

/* One mistake of a new configuration: where is "consign.yaml:12", or what else it came from. */
typedef void service_mistake(void *arg, int32_t code, const char *path, const char *where,
                             const char *text);

struct service_options {
    const struct store_driver *const *drivers; /* those there are, to the first NULL */
    bool all; /* relays, and the subscriptions that are no application's */
    const struct plan_application *application; /* and these */
    uint32_t applications;
    FILE *say;              /* for people: connections, ready, stopped; NULL: nobody reads */
    const char *failpoints; /* CONSIGN_FAILPOINTS, or NULL */
    int log_fd;             /* where log lines go; < 0: standard error */
    /* Reads the configuration again, all of it, and checks it. Any status but CSN_OK: it is not to
     * be used, and tell heard why, or *err is set. NULL: handler files are read again. */
    csn_status (*reload)(void *arg, struct config *ret, service_mistake *tell, void *tell_arg,
                         csn_error *err);
    void *reload_arg;
};

struct service;

/* The options are borrowed until service_close. */
csn_status service_open(const struct config *c, const struct service_options *o,
                        struct service **ret, csn_error *err) MUST_USE;
int service_fd(const struct service *s); /* readable when a step has something to do */
csn_usec
service_timeout(const struct service *s); /* until the next step, if nothing comes before */
bool service_step(struct service *s);     /* false: it has stopped, or could not in time */
bool service_reload(struct service *s);   /* false: nothing was changed */
void service_stop(struct service *s); /* take no more; a store that cannot be used stops it, too */
bool service_stopping(const struct service *s);
const csn_error *
service_failed(const struct service *s); /* why it stops; status CSN_OK: asked to */
/* After the last step. False: not everything was let go in time. *ret_failed as service_failed. */
bool service_close(struct service *s, csn_error *ret_failed);

#endif
