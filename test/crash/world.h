/* world.h: what the crash programs share: a shop in a folder, its daemons, its writers, its books.
 *
 * The shop is the demo's, with two differences: its tables refuse nothing (no key, no constraint),
 * so that an effect that comes twice is seen and not masked; and every handler adds a row to a
 * table `effects`, so that the order of effects can be read afterwards. The books are SQL over both
 * databases and know nothing of what the daemons say about themselves. */
#ifndef CSN_TEST_CRASH_WORLD_H
#define CSN_TEST_CRASH_WORLD_H

#include "base/prng.h"
#include "store/db.h"
#include <stdio.h>
#include <sys/types.h>

enum { PATH_SIZE = 512, ID_SIZE = 40, SKUS = 50, SCARCE = 2 /* the last SKUs have little stock */ };

/* ---- the shop ---- */

struct world {
    char dir[PATH_SIZE];
    char program[PATH_SIZE]; /* consign */
    csn_usec lease, confirm, lock_wait;
};

/* Makes dir (or a fresh folder below TMPDIR when dir is NULL) and the shop in it. */
bool world_make(struct world *w, const char *dir);
void world_remove(const struct world *w);
bool world_path(const struct world *w, const char *name, char ret[PATH_SIZE]);
bool world_write(const struct world *w, const char *name, const char *text);
/* orders.db as main, stock.db as s. Ends the program when that fails: no test can go on. */
struct db *world_open(const struct world *w);

/* ---- processes ---- */

struct daemon_process {
    pid_t pid; /* 0: none */
    bool ready;
    char log[PATH_SIZE];
};

/* failpoints and hits (a file) may be NULL. */
bool daemon_start(const struct world *w, struct daemon_process *d, const char *name,
                  const char *failpoints, const char *hits);
bool daemon_ready(struct daemon_process *d); /* its log says so; looked at once a call */
bool daemon_says(const struct daemon_process *d, const char *text);
bool daemon_ended(struct daemon_process *d, int *ret_status); /* reaped; pid is 0 afterwards */
bool daemon_wait_ready(struct daemon_process *d, csn_usec bound);
bool daemon_wait_end(struct daemon_process *d, csn_usec bound, int *ret_status);
/* SIGTERM, and exit code 0 within the bound. */
bool daemon_stop(struct daemon_process *d, csn_usec bound);
void daemon_kill(struct daemon_process *d); /* whatever it does; reaped */

/* Runs the program with these words (NULL ends them), output to a file; its exit code, -1 none. */
int run_program(const struct world *w, const char *const *words, const char *out);

csn_usec time_now(void); /* monotonic */
int64_t time_ms(void);   /* since 1970 */
void time_rest(csn_usec d);

/* ---- writing ---- */

/* One open business connection with its statements. */
struct pen {
    struct db *db;
    struct stmt *create, *draw, *event, *left;
};

void pen_open(struct pen *p, const struct world *w);
void pen_close(struct pen *p);

struct order_event {
    const char *id, *order, *type;
    const char *sku; /* of a new order */
    int qty;         /* of a new order; 0: the payload lacks it, which is poison to the handler */
    int64_t after;   /* ms since 1970 before which the handler says retry */
    bool created;    /* a new order, version 1; else the next version of one that is there */
    bool left;       /* as a dispatcher that died leaves it: sending, its lease over */
};

/* Inside a transaction of p->db. *ret_there (NULL is fine) is false when the order is not there. */
csn_status pen_write(struct pen *p, const struct order_event *e, bool *ret_there, csn_error *err);
/* A transaction of its own; false: the store was locked, nothing is written. Ends the program at any
 * other error. */
bool pen_try(struct pen *p, const struct order_event *e, int n);
/* A transaction of its own, tried again while the store is locked; ends the program at any other
 * error. */
void pen_commit(struct pen *p, const struct order_event *e, int n);

/* ---- the books ---- */

bool world_quiet(struct db *d);               /* nothing is under way any more */
int64_t books_check(struct db *d, FILE *out); /* number of rules that do not hold, each said */
/* Breaks each thing that the books should see, in a transaction that is rolled back; false: one was
 * not seen, or there was nothing to break. */
bool books_canary(struct db *d, FILE *out);
int64_t count_of(struct db *d, const char *sql); /* one number; ends the program on an error */

#endif
