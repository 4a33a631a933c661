/* failpoint.h: named places where a test may pause, fail or crash the process.
 *
 * CONSIGN_FAILPOINTS="relay.confirmed=crash@3,inbox.committed=pause:/path/to/fifo,store.claim=error@2"
 *   crash      the process ends as by kill -9 (no handlers, no flush)
 *   pause:FIFO the thread opens FIFO for reading and waits until a writer opened it and closed it again
 *   error      the place reports CSN_AGAIN (nothing happened), where it can; elsewhere it is refused at start
 *   unknown    the place reports CSN_UNKNOWN although the work was done, where it can
 *   @n         at the n-th hit only (1 is the first); without it at every hit (pause: at the first)
 * Every build has them. They are armed only by failpoint_arm, which the host calls after it saw
 * the laboratory's marker in every store. Hits are counted also when nothing is armed for the
 * place. */
#ifndef CSN_BASE_FAILPOINT_H
#define CSN_BASE_FAILPOINT_H

#include "base/error.h"

enum failpoint {
#define X(id, name, modes, help) FAIL_##id,
#include "base/failpoints.def"
#undef X
    FAIL_NR
};

enum { FAIL_MODE_CRASH = 1, FAIL_MODE_PAUSE = 2, FAIL_MODE_ERROR = 4, FAIL_MODE_UNKNOWN = 8 };

/* CSN_OK nearly always; CSN_AGAIN or CSN_UNKNOWN when armed so. Any thread. One relaxed atomic add
 * when nothing is armed. */
csn_status failpoint_hit(enum failpoint f);

/* Parses spec; all or nothing. CSN_INVALID with the part that is wrong. Once, before threads start.
 */
csn_status failpoint_arm(const char *spec, csn_error *err);
bool failpoint_armed(void); /* any place */
uint64_t failpoint_hits(enum failpoint f);
const char *failpoint_name(enum failpoint f);
const char *failpoint_help(enum failpoint f);
/* Appends "name count" lines to the file at exit, or before a crash, when CONSIGN_FAILPOINT_HITS
 * names one. */
void failpoint_report(void);

#endif
