/* event.h: looking at events: show, find, list. Nothing is changed, but that showing a payload is
 * written into the audit chain. */
#ifndef CSN_CLI_EVENT_H
#define CSN_CLI_EVENT_H

#include "cli/event_kit.h"

/* Events of all readable legs in this status (NULL: the newest of any, "strange": of a status that
 * consign does not know), at most limit per leg: {"items":[…],"window":{…},"total":{…}}. Legs that
 * fail are lost. */
json_t *event_list_collect(struct legs *l, const char *status, int64_t limit);
bool event_list_status(const char *status); /* whether it can be listed */

/* Events found by id, key, trace id, correlation or causation id. The last three are looked for in
 * the newest `window` rows. */
json_t *event_find_collect(struct legs *l, const char *text, int64_t limit, int64_t window);

int event_show(struct command_call *c);
int event_find(struct command_call *c);
int event_list(struct command_call *c);

#endif
