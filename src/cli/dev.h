/* dev.h: consign dev: the shop, running, to be looked at and broken. */
#ifndef CSN_CLI_DEV_H
#define CSN_CLI_DEV_H

#include "cli/command.h"

int dev_command(struct command_call *c);

#endif
