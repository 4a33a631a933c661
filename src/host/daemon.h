/* daemon.h: the process that runs a service until a signal comes. */
#ifndef CSN_HOST_DAEMON_H
#define CSN_HOST_DAEMON_H

#include "host/service.h"

/* Runs until SIGTERM or SIGINT. SIGHUP reloads. Returns the exit code: 0 after a stop; that of the
 * error table when the configuration, a handler file or a schema is wrong; 1 when the stop did not
 * end in time or a second signal came. On an error *ret_error is filled; it was logged, too. Blocks
 * SIGTERM, SIGINT and SIGHUP in the calling thread. */
int daemon_run(const struct config *c, const struct service_options *o, csn_error *ret_error);

#endif
