/* init.h: consign init: the demo folder. */
#ifndef CSN_CLI_INIT_H
#define CSN_CLI_INIT_H

#include "cli/command.h"

int init_command(struct command_call *c);

#endif
