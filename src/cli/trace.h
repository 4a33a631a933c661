/* trace.h: the evidence of one event over all configured stores, as one ordered list of facts. */
#ifndef CSN_CLI_TRACE_H
#define CSN_CLI_TRACE_H

#include "cli/event_kit.h"

/* {"event_id":…,"event":{…}|null,"facts":[…],"consumers":[…],"results":[…]} in public form;
 * *ret_found: some store knows the id. Legs that fail on the way are lost and stated as missing.
 * The caller lets the object go. */
json_t *trace_collect(struct legs *l, const char *event_id, bool *ret_found);

int trace_command(struct command_call *c); /* event trace ID */

#endif
