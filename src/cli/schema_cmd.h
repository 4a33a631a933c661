/* schema_cmd.h: consign schema print, check, apply. */
#ifndef CSN_CLI_SCHEMA_CMD_H
#define CSN_CLI_SCHEMA_CMD_H

#include "cli/command.h"

int schema_print_command(struct command_call *c);
int schema_check_command(struct command_call *c);
int schema_apply_command(struct command_call *c);

#endif
