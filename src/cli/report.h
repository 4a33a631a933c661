/* report.h: shows the mistakes of a configuration, all at once, each with its line and a caret. */
#ifndef CSN_CLI_REPORT_H
#define CSN_CLI_REPORT_H

#include "cli/out.h"
#include "conf/load.h"

/* Returns the exit code; 0 without any. */
int report_mistakes(const struct load *l, struct out *o);

#endif
