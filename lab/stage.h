/* stage.h: where an experiment plays: a folder, two stores, daemons as processes, gates that hold
 * a process at a failpoint, and the words to ask and to assert with.
 *
 *   stage_open ─▶ daemons, gates, orders ─▶ waits for conditions ─▶ assertions ─▶ stage_close
 *
 * What always holds: after a first failure that is not an assertion (a condition that did not come
 * within its bound, a process that died) nothing more is done; every call is then a no-op, so that
 * an experiment reads as a straight line. All processes are gone when the stage is closed, and
 * when the laboratory dies. */
#ifndef CSN_LAB_STAGE_H
#define CSN_LAB_STAGE_H

#include "lab/lab.h"
#include "lab/shop.h"
#include "store/store.h"
#include <sys/types.h>

enum where { ORDERS, STOCK };
enum { ACTORS_MAX = 6, GATES_MAX = 4, SETS_MAX = 12, PATH_SIZE = 512 };

/* Times that fit together (CSN-1006): leases short enough to be waited for, or long enough that
 * none runs out by accident. */
enum pace { PACE_TAKEOVER, PACE_CALM };

struct actor {
    char name[16];
    pid_t pid; /* 0: not running */
};

struct gate {
    char name[16], path[PATH_SIZE];
    int fd; /* >= 0: a process waits at it */
};

struct stage {
    const struct lab_options *options;
    struct report *report;
    csn_usec began;
    char dir[PATH_SIZE];    /* the experiment's own */
    char url[2][PATH_SIZE]; /* of the stores */
    struct db *db[2];
    enum pace pace;
    char set[SETS_MAX][PATH_SIZE];
    uint32_t sets;
    struct actor actor[ACTORS_MAX];
    uint32_t actors;
    struct gate gate[GATES_MAX];
    uint32_t gates;
};

void stage_open(struct stage *s, const struct lab_options *o, const char *id, struct report *r);
void stage_close(struct stage *s);
bool stage_going(const struct stage *s); /* nothing broke yet */
/* Ends the experiment: it could not be carried out. */
void stage_break(struct stage *s, int32_t code, const char *format, ...) PRINTF_LIKE(3, 4);
void stage_broke(struct stage *s, const csn_error *err); /* the same, from a call's error */
void stage_step(struct stage *s, const char *format, ...) PRINTF_LIKE(2, 3);
csn_usec stage_time(const struct stage *s); /* since it began */

/* ---- settings and processes ---- */

/* "relay.retry.base=1s": given to every daemon that is started after this. */
void stage_set(struct stage *s, const char *setting);
/* Writes a file below the folder. */
void stage_write(struct stage *s, const char *name, const char *text);
/* failpoints: as CONSIGN_FAILPOINTS, or NULL. */
void daemon_start(struct stage *s, const char *name, const char *failpoints);
void daemon_ready(struct stage *s, const char *name); /* waits until it takes part in both stores */
void daemon_stop(struct stage *s, const char *name);  /* SIGTERM; must end with 0 */
void daemon_kill(struct stage *s, const char *name);  /* kill -9 */
void daemon_dies(struct stage *s, const char *name);  /* waits until its failpoint killed it */
void daemon_freeze(struct stage *s, const char *name); /* SIGSTOP */
void daemon_thaw(struct stage *s, const char *name);   /* SIGCONT */
/* Another command of this program, to its end. Its output goes to ret (NULL: nobody reads); returns
 * the exit code, or 128 + signal. */
int stage_command(struct stage *s, const char *const *arg, int args, char *ret, size_t size);

const char *gate_make(struct stage *s, const char *name); /* its path, for "=pause:PATH" */
void gate_arrived(struct stage *s, const char *name);     /* waits until a process stands there */
void gate_open(struct stage *s, const char *name);        /* lets it go on */

/* ---- the shop and its stores ---- */

void stage_order(struct stage *s, const char *order, const char *event, const char *sku,
                 int64_t qty);
void stage_sql(struct stage *s, enum where w, const char *sql);
int64_t ask_int(struct stage *s, enum where w, const char *sql);
void ask_text(struct stage *s, enum where w, const char *sql, char *ret, size_t size);
/* SHA-256 over all columns of all rows that sql returns, in its order. */
void ask_digest(struct stage *s, enum where w, const char *sql, char ret[65]);
/* Waits until the statement gives at least so much. what: for the error at the bound. */
void await_least(struct stage *s, enum where w, int64_t least, const char *sql, const char *what);
/* Waits until nothing is on its way in either store. */
void stage_quiet(struct stage *s);
void stage_state(struct stage *s, enum when when); /* the tables of a report */
void stage_sheet(struct stage *s, enum when when, const char *name, const char *title, enum where w,
                 const char *sql);

/* ---- assertions ---- */

void expect(struct stage *s, bool ok, const char *text, const char *expected, const char *found);
void expect_int(struct stage *s, enum where w, int64_t expected, const char *sql, const char *text);
void expect_least(struct stage *s, enum where w, int64_t least, const char *sql, const char *text);
void expect_text(struct stage *s, enum where w, const char *expected, const char *sql,
                 const char *text);
/* The books of the shop: what is gone from the stock is reserved and is in the journal. */
void expect_books(struct stage *s);

#endif
