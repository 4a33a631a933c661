/* config_cmd.h: consign config check, show, explain. */
#ifndef CSN_CLI_CONFIG_CMD_H
#define CSN_CLI_CONFIG_CMD_H

#include "cli/command.h"

int config_check_command(struct command_call *c);
int config_show_command(struct command_call *c);
int config_explain_command(struct command_call *c);

#endif
