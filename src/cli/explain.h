/* explain.h: consign explain and consign version: words that need no store and no configuration. */
#ifndef CSN_CLI_EXPLAIN_H
#define CSN_CLI_EXPLAIN_H

#include "cli/command.h"

struct constraint_row {
    const char *name;    /* csn_event_id, as the database says it */
    const char *help[2]; /* by enum language */
};

const struct constraint_row *constraint_find(const char *name); /* NULL: none */
const struct constraint_row *constraint_at(size_t i);           /* NULL past the end */

int explain_command(struct command_call *c);
int version_command(struct command_call *c);

#endif
