/* writers.h: processes that do business beside the daemons: orders and their events, some rolled
 * back. What they know of their own commits is kept in shared memory and compared with the rows. */
#ifndef CSN_TEST_CRASH_WRITERS_H
#define CSN_TEST_CRASH_WRITERS_H

#include "world.h"

enum { WRITERS_MAX = 32 };

struct writer_counts {
    _Atomic int64_t orders;  /* acknowledged; also the numbers 0 … orders - 1 of its orders */
    _Atomic int64_t events;  /* acknowledged */
    _Atomic int64_t commits; /* acknowledged transactions, of one event or two */
    _Atomic int64_t undone;  /* transactions rolled back on purpose */
};

struct writers_shared {
    _Atomic bool stop, unpaced;
    _Atomic int64_t id; /* of the next event */
    struct writer_counts by[WRITERS_MAX];
};

struct writers {
    struct writers_shared *shared;
    pid_t pid[WRITERS_MAX];
    int n;
};

/* rate: commits a second of all of them together; what is rolled back or finds the store locked is
 * done beside. Who was held up makes up for it, for at most BEHIND_MOST. */
bool writers_start(struct writers *w, const struct world *world, int n, int rate, uint64_t seed);
bool writers_alive(const struct writers *w); /* false: one ended before it was told to */
void writers_unpace(struct writers *w);      /* from now on as fast as each of them can */
bool writers_stop(struct writers *w);        /* every one ends with 0 */
void writers_kill(struct writers *w);
int64_t writers_orders(const struct writers *w);
int64_t writers_events(const struct writers *w);
int64_t writers_commits(const struct writers *w);
int64_t writers_undone(const struct writers *w);

#endif
