/* serve.h: consign serve. */
#ifndef CSN_CLI_SERVE_H
#define CSN_CLI_SERVE_H

#include "cli/command.h"

int serve_command(struct command_call *c);

#endif
