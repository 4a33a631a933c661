/* daemon.h: the process that runs the engine: opens the stores, makes the ports, waits, steps,
 * logs, stops. */
#ifndef CSN_HOST_DAEMON_H
#define CSN_HOST_DAEMON_H

#include "core/config.h"
#include <stdio.h>

struct daemon_options {
    FILE *say;              /* for people: connections, ready, stopped; NULL: nobody reads */
    const char *failpoints; /* CONSIGN_FAILPOINTS, or NULL */
    int log_fd;             /* where log lines go; < 0: standard error */
};

/* Runs until SIGTERM or SIGINT. Returns the exit code: 0 after a stop; that of the error table when
 * the configuration, a handler file or a schema is wrong; 1 when the stop did not end in time or a
 * second signal came. On an error *ret_error is filled; it was logged, too. Blocks SIGTERM, SIGINT
 * and SIGHUP in the calling thread. */
int daemon_run(const struct config *c, const struct daemon_options *o, csn_error *ret_error);

#endif
