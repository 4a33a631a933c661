/* process.h: what stage.c and process.c share. */
#ifndef CSN_LAB_PROCESS_H
#define CSN_LAB_PROCESS_H

#include "lab/stage.h"

enum { WAIT_LONGEST = 15000000, WAIT_STEP = 5000 };

void process_rest(void);             /* between two looks */
void processes_end(struct stage *s); /* whatever still runs is killed and reaped */

#endif
