/* lab.h: consign lab list, run, prepare, act. */
#ifndef CSN_CLI_LAB_H
#define CSN_CLI_LAB_H

#include "cli/command.h"

int lab_list_command(struct command_call *c);
int lab_run_command(struct command_call *c);
int lab_prepare_command(struct command_call *c);
int lab_act_command(struct command_call *c); /* of the processes that experiments start */

#endif
