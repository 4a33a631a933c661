/* init.h: consign init: the demo folder. */
#ifndef CSN_CLI_INIT_H
#define CSN_CLI_INIT_H

#include "cli/command.h"

int init_command(struct command_call *c);
/* The folder in the language of now; it must be missing or empty, and is complete or not there. lab:
 * both databases carry the marker. */
csn_status init_make(const char *dir, bool lab, csn_error *err);

#endif
