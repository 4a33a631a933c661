/* lanes.h: who owns which lanes, and the processes behind them. */
#ifndef CSN_CLI_LANES_H
#define CSN_CLI_LANES_H

#include "cli/event_kit.h"

/* {"items":[lanes],"members":[…]} of all readable legs. */
json_t *lanes_collect(struct legs *l);

int lanes_command(struct command_call *c);

#endif
