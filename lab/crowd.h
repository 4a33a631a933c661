/* crowd.h: several connections that run a handler at the same moment, each on a thread of its own.
 *
 * In each round all wait for each other, and then each applies one message: member i takes
 * message round + i × apart. apart 0 hands all of them the same event. */
#ifndef CSN_LAB_CROWD_H
#define CSN_LAB_CROWD_H

#include "core/op.h"
#include "lab/stage.h"

enum { CROWD_MAX = 50, CROWD_MESSAGES = 64, CROWD_LINE = 240 };

struct crowd {
    uint32_t members, rounds, apart;
    const struct order *order; /* policies; NULL: none */
    struct message message[CROWD_MESSAGES];
    uint32_t messages;
    char text[CROWD_MESSAGES][CROWD_LINE]; /* what the messages point to */
    char id[CROWD_MESSAGES][CELL_SIZE];
    uint32_t out[APPLY_FENCED + 1];            /* deliveries by enum apply_out */
    uint32_t verdict[CSN_OUTCOME_UNKNOWN + 1]; /* of APPLY_VERDICT, by verdict */
    uint64_t statements;                       /* of the first member */
};

/* NULL, and the stage is broken: no memory. Ends with crowd_free. */
struct crowd *crowd_new(struct stage *s, uint32_t members, uint32_t rounds, uint32_t apart);
void crowd_free(struct crowd *c);
/* One more message, an OrderCreated with itself as its key. */
void crowd_message(struct crowd *c, const char *event, const char *payload);
/* Runs them all as deliveries of the subscription stock. */
void crowd_run(struct stage *s, struct crowd *c, const char *handler_sql);
void crowd_expect(struct stage *s, uint32_t expected, uint32_t found, const char *text);

#endif
