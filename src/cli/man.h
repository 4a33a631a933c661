/* man.h: manual pages from the tables of commands and keys. */
#ifndef CSN_CLI_MAN_H
#define CSN_CLI_MAN_H

#include "cli/command.h"

/* consign help --man [TOPIC]: one page on stdout; with --dir D all of them, as D/man1 and D/man5. */
int man_command(struct command_call *c);

#endif
