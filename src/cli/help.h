/* help.h: help, and the reference page, from the table of commands. */
#ifndef CSN_CLI_HELP_H
#define CSN_CLI_HELP_H

#include "cli/command.h"

int help_command(struct command_call *c);
int help_overview(struct out *o);
int help_one(struct out *o, const struct command *k);
int help_unknown(struct out *o, const char *name); /* there is no such command; a guess */

#endif
