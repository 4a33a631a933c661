/* status.h: is anything late, stuck, or in need of a person? One screen over all configured stores.
 */
#ifndef CSN_CLI_STATUS_H
#define CSN_CLI_STATUS_H

#include "cli/event_kit.h"

/* {"healthy":…,"needs":[…],"stores":[…],"channels":[…],"blocked":[…],"counters":{…}}; the caller
 * lets it go. */
json_t *status_collect(struct legs *l);
/* The same for people. */
void status_print(struct out *o, const json_t *d);

int status_command(struct command_call *c);

#endif
