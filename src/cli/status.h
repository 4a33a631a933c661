/* status.h: is anything late, stuck, or in need of a person? One screen over all configured stores.
 */
#ifndef CSN_CLI_STATUS_H
#define CSN_CLI_STATUS_H

#include "cli/event_kit.h"

/* {"healthy":…,"needs":[…],"stores":[…],"channels":[…],"blocked":[…],"counters":{…}}; the caller
 * lets it go. */
json_t *status_collect(struct legs *l);

int status_command(struct command_call *c);

#endif
