/* dead.h: dead letters: what was set aside, by consumer and cause. */
#ifndef CSN_CLI_DEAD_H
#define CSN_CLI_DEAD_H

#include "cli/event_kit.h"

/* {"items":[…],"groups":[…],"window":{…}} of all readable legs; consumer and cause NULL: all. */
json_t *dead_list_collect(struct legs *l, const char *state, const char *consumer,
                          const char *cause, int64_t limit);

int dead_list(struct command_call *c);
int dead_show(struct command_call *c);

#endif
