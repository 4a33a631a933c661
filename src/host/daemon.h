/* daemon.h: the process that runs the engine: opens the stores, makes the ports, waits, steps,
 * logs, stops. */
#ifndef CSN_HOST_DAEMON_H
#define CSN_HOST_DAEMON_H

#include "core/config.h"
#include "core/driver.h"
#include <stdio.h>

/* One mistake of a new configuration: where is "consign.yaml:12", or what else it came from. */
typedef void daemon_mistake(void *arg, int32_t code, const char *path, const char *where,
                            const char *text);

struct daemon_options {
    const struct store_driver *const *drivers; /* those there are, to the first NULL */
    FILE *say;              /* for people: connections, ready, stopped; NULL: nobody reads */
    const char *failpoints; /* CONSIGN_FAILPOINTS, or NULL */
    int log_fd;             /* where log lines go; < 0: standard error */
    /* SIGHUP: reads the configuration again, all of it, and checks it. Any status but CSN_OK: it is
     * not to be used, and tell heard why, or *err is set. NULL: handler files are read again. */
    csn_status (*reload)(void *arg, struct config *ret, daemon_mistake *tell, void *tell_arg,
                         csn_error *err);
    void *reload_arg;
};

/* Runs until SIGTERM or SIGINT. Returns the exit code: 0 after a stop; that of the error table when
 * the configuration, a handler file or a schema is wrong; 1 when the stop did not end in time or a
 * second signal came. On an error *ret_error is filled; it was logged, too. Blocks SIGTERM, SIGINT
 * and SIGHUP in the calling thread. */
int daemon_run(const struct config *c, const struct daemon_options *o, csn_error *ret_error);

#endif
