/* top.h: consign top: what status says, again each second, and how fast it moves. */
#ifndef CSN_CLI_TOP_H
#define CSN_CLI_TOP_H

#include "cli/event_kit.h"

enum { TOP_MEMBERS_MAX = 64 /* of all stores together */, TOP_RATES = 8 };

/* One process at one store, as its last two heartbeats left it. */
struct top_member {
    char store[NAME_MAX_], boot[TOKEN_SIZE];
    csn_usec at; /* of the last heartbeat that was seen */
    int64_t value[TOP_RATES];
    double rate[TOP_RATES];
    bool known; /* two heartbeats were seen */
    bool seen;  /* in this picture */
};

struct top {
    struct top_member member[TOP_MEMBERS_MAX];
    uint32_t members;
};

const char *top_rate_name(size_t i); /* of a counter; NULL past the end */
/* A row of @top.members: boot, heartbeat_at, counters. */
void top_hear(struct top *t, const char *store, const json_t *row);
/* Forgets who was not heard since the last call. */
void top_turn(struct top *t);
/* The sum over a store's processes; false: of none of them two heartbeats are known. */
bool top_rate(const struct top *t, const char *store, size_t i, double *ret);

int top_command(struct command_call *c);

#endif
