/* order.h: what the policy of an event type makes of a version: whether it may be applied to its
 * entity, and which versions are missing. Pure: a driver asks inside its transaction, with what it
 * found there, and writes down what comes back.
 *
 * An entity is a key as one consumer sees it: the last version that was applied, and the state that
 * it is in.
 *
 *   snapshot  a newer version is applied; any other is late
 *   command   a newer version is applied when the move of its machine is legal. When it is not: the
 *             same state again is a duplicate, one that can still be reached is early, all else is a
 *             conflict. An older version is late.
 *
 * Late means history only: the entity never goes back. A gap is the range of versions between two
 * that were seen, of which one is known to be missing: the version that stood before the later one
 * when it was sent. */
#ifndef CSN_CORE_ORDER_H
#define CSN_CORE_ORDER_H

#include "base/error.h"
#include "core/op.h"

enum { MACHINE_STATES_MAX = 16, STATE_SIZE = 48, MOVES_SIZE = 400, ORDER_RULES_MAX = 64 };
enum { STATE_NONE = -1, STATE_STRANGE = -2 /* of no state of the machine */ };

/* States and legal moves. An entity begins in the first state, whether an event says so or not. */
struct order_machine {
    const char *name;
    char state[MACHINE_STATES_MAX][STATE_SIZE];
    uint32_t states;
    uint16_t next[MACHINE_STATES_MAX]; /* bit per state */
};

enum order_policy { POLICY_NONE, POLICY_SNAPSHOT, POLICY_COMMAND };

struct order_rule {
    const char *event_type;
    enum order_policy policy;
    const struct order_machine *machine; /* POLICY_COMMAND */
    int32_t to;                          /* the state that the event leads to */
    csn_usec deadline;                   /* how long a version before it may be missing */
};

/* The policies of the event types that one subscription takes. All that it takes is counted, so
 * that a version of a type without a policy is no gap. */
struct order {
    const struct order_rule *rule;
    uint32_t rules;
};

struct order_entity {
    bool there;
    uint64_t version; /* 0 when it is not there */
    int32_t state;    /* of the rule's machine, or STATE_NONE, STATE_STRANGE */
    uint32_t gaps;    /* open ones */
};

enum order_says { ORDER_RUN, ORDER_LATE, ORDER_DUPLICATE, ORDER_EARLY, ORDER_CONFLICT };

struct order_gap {
    uint64_t after, before; /* the versions seen on either side; after 0: none was */
    uint64_t missing;       /* of those between, one that exists */
};

/* "PENDING > RUNNING; RUNNING > SUCCESS FAILED". False: not of that form, or too large. */
bool order_machine_parse(const char *name, const char *moves, struct order_machine *ret) MUST_USE;
/* payment, reservation, task; NULL: the moves of no machine that is built in. */
const char *order_machine_moves(const char *name);
int32_t order_state_find(const struct order_machine *m, csn_bytes state); /* or STATE_STRANGE */
const char *order_state_name(const struct order_machine *m, int32_t state);

/* NULL: a type without a policy; it is counted only. */
const struct order_rule *order_rule_for(const struct order *o, csn_bytes event_type);
enum order_says order_decide(const struct order_rule *r, const struct order_entity *e,
                             uint64_t version);
/* Fills in verdict, code and text of an item that is not to be run. ahead: the event that brought the
 * entity to its version; empty: not known. */
void order_answer(const struct order_rule *r, const struct order_entity *e, csn_bytes ahead,
                  const struct message *m, enum order_says says, struct apply_item *item);

/* The event ended with a verdict that commits: the entity as it is now. True: it is the newest. */
bool order_advance(const struct order_rule *r, struct order_entity *e, uint64_t version,
                   csn_verdict verdict);
/* Asked before order_advance: does this version leave a gap? */
bool order_gap_opens(const struct order_entity *e, const struct message *m, struct order_gap *ret);
/* A version inside a gap came: what is left of it on both sides. */
struct order_fill {
    struct order_gap lower, upper;
    bool has_lower, has_upper;
};
struct order_fill order_gap_fill(const struct order_gap *g, const struct message *m);

#endif
