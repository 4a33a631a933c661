/* completion.h: what may stand where the cursor is, for the shells. */
#ifndef CSN_CLI_COMPLETION_H
#define CSN_CLI_COMPLETION_H

#include "cli/command.h"

/* consign completion bash|zsh|fish: the few lines that a shell loads. */
int completion_command(struct command_call *c);
/* consign complete WORD…: what the last word may become, one a line, its meaning after a tab. Asked
 * by those lines; not for people. */
int complete_command(struct command_call *c);

#endif
