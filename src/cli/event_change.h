/* event_change.h: what a person may do to a row of the outbox. */
#ifndef CSN_CLI_EVENT_CHANGE_H
#define CSN_CLI_EVENT_CHANGE_H

#include "cli/event_kit.h"

enum { CHANGE_FOLLOWERS_MAX = 1000 /* released by one row that ends, as by the store itself */ };

enum change_verb { CHANGE_RETRY, CHANGE_CANCEL, CHANGE_HOLD, CHANGE_RELEASE, CHANGE_NR };

enum change_answer {
    CHANGE_DO,     /* the move fits */
    CHANGE_SAME,   /* this very act was done already: nothing to do */
    CHANGE_ILLEGAL /* CSN-8003 */
};

/* Pure: what the verb means for a row in this status whose last audited act is last_action (""
 * none). */
enum change_answer change_judge(enum change_verb verb, const char *status, const char *last_action);
/* The commands that fit a row in this status, comma-separated; never empty. */
const char *change_fits(const char *status);
const char *change_name(enum change_verb verb);   /* "retry" */
const char *change_action(enum change_verb verb); /* "event.retry" */

struct change {
    enum change_verb verb;
    const char *event_id, *reason, *actor;
    bool dry_run;
    /* out */
    char from[64], to[16];
    bool changed;     /* with dry_run: would be */
    int64_t released; /* followers moved back to pending, or that would be */
};

/* One transaction: read, judge, move fenced by the status read, release followers, audit.
 * CSN_REJECTED: CSN-8002 or CSN-8003. CSN_STALE: somebody else moved the row meanwhile, nothing was
 * done. CSN_UNKNOWN: the commit has no answer; repeating is safe. */
csn_status change_apply(struct db *d, struct change *c, csn_error *err) MUST_USE;

int event_retry(struct command_call *c);
int event_cancel(struct command_call *c);
int event_hold(struct command_call *c);
int event_release(struct command_call *c);

#endif
