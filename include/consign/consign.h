/* consign.h: the words that every part of consign, and every program that links it, shares.
 *
 * Times and durations are microseconds (csn_usec), sizes are bytes, ids and keys are
 * NUL-terminated strings at the public border and csn_bytes inside. A call that can fail returns a
 * csn_status, named by what the caller should do next; the detail goes into a csn_error that the
 * caller owns. On failure ownership never moves. */
#ifndef CONSIGN_H
#define CONSIGN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Microseconds; the only unit of time. Durations and instants share it: a name that ends in _at or
 * is called now, deadline or until is an instant, everything else is a duration. */
typedef int64_t csn_usec;

#define CSN_USEC_NEVER INT64_MAX

/* Borrowed bytes, valid as long as the owner says. data may be NULL when size is 0. Not
 * NUL-terminated unless stated. */
typedef struct csn_bytes {
    const void *data;
    size_t size;
} csn_bytes;

/* What the caller should do next. Values never change. */
typedef int32_t csn_status;
enum {
    CSN_OK = 0,
    CSN_AGAIN = 1,    /* nothing happened; the same call may work later */
    CSN_UNKNOWN = 2,  /* it may or may not have happened; look it up, or repeat with the same id */
    CSN_STALE = 3,    /* somebody else owns it now; forget it */
    CSN_REJECTED = 4, /* will never be accepted as it is */
    CSN_INVALID = 5,  /* the caller's mistake: argument, state, configuration */
    CSN_NOMEM = 6,    /* nothing happened: out of memory */
    CSN_FATAL = 7     /* stop using this object, or this process */
};

/* Filled only when a call does not return CSN_OK. */
typedef struct csn_error {
    csn_status status;
    int32_t code;   /* the nnnn of CSN-nnnn, for `consign explain`; 0: none */
    int32_t native; /* errno, extended SQLite code, broker code; 0: none */
    char text[240]; /* "claim: outbox_events: disk is full", outermost first; always NUL-terminated
                     */
} csn_error;

/* What became of the business in a handler. A verdict is not a status: a refusal is a success of
 * the machinery. */
typedef int32_t csn_verdict;
enum {
    CSN_DONE = 0,           /* commit, ack */
    CSN_REFUSED = 1,        /* commit the refusal and its result event, ack */
    CSN_DUPLICATE = 2,      /* commit what was written, ack */
    CSN_LATE = 3,           /* commit the history, ack */
    CSN_EARLY = 4,          /* roll back, wait durably for the predecessor */
    CSN_CONFLICT = 5,       /* roll back, set aside, alarm */
    CSN_POISON = 6,         /* roll back, set aside, alarm */
    CSN_RETRY = 7,          /* roll back, try again by policy */
    CSN_OUTCOME_UNKNOWN = 8 /* roll back, try again with the same id, or look up */
};

#ifdef __cplusplus
}
#endif
#endif
