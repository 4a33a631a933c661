/* sim.h: the deterministic simulator: the real engine, several of it, on stores and brokers in
 * memory, under faults.
 *
 *   heap of (time, tie from the seed) ──▶ line (a store connection) · stream (a broker connection) · life (a process)
 *                                         producers · operator · reconcile · trouble
 *
 * One seed is one run: a plan is drawn (topology, limits, which faults and how often), then comes
 * the cruel time, in which safety is checked after every event, then the kind time without faults,
 * in which everything must drain within a bound, then the books. Nothing but the seed decides: no
 * clock, no address, no order of a hash table goes into a decision or into the hash. */
#ifndef CSN_TEST_SIM_SIM_H
#define CSN_TEST_SIM_SIM_H

#include "core/driver.h"
#include "core/engine.h"
#include "fake_store.h"

#define MS  INT64_C(1000)
#define SEC INT64_C(1000000)

enum {
    STORES = 2,
    PROCESSES_MAX = 3,
    LIVES_MAX = 40,
    LINES_MAX = 24,
    GROUPS_MAX = 40,
    CONSUMERS = 3,
    KEYS_MAX = 16,
    STREAM_OPS_MAX = 64,
    PRODUCERS_MAX = 4
};

enum fault_kind {
#define X(name, text, rate) FAULT_##name,
#include "faults.def"
#undef X
    FAULT_NR
};

enum check_kind {
#define X(name, ref, text) CHECK_##name,
#include "checks.def"
#undef X
    CHECK_NR
};

struct tally { /* over all seeds of a run */
    uint64_t fault[FAULT_NR], check[CHECK_NR];
    uint64_t events, steps, seeds;
};

struct plan {
    uint32_t processes, producers, keys, events, lanes[STORES], partitions[CONSUMERS], workers,
        batch_rows;
    bool bus, bus_all; /* results, or everything, travel over the streaming broker */
    bool ties;         /* some events of a key have the version of the one before */
    bool reorder;      /* which also swaps; the handlers gate by version then */
    bool calm;         /* no fault at all: whatever is found is a false alarm or a plain bug */
    bool far; /* the broker is far away: the waves of a key outlast the lease of their claim */
    bool once; /* the last consumer is at most once */
    uint32_t guests; /* events that come when all is quiet again: they are taken up at once */
    csn_usec lease, lock_wait, confirm_timeout, probe_min, probe_max, cruel;
    csn_usec latency, road; /* of the stores, of the streaming broker */
    struct retry_policy relay, inbox;
    uint32_t rate[FAULT_NR]; /* of 10,000 */
    uint32_t trouble;        /* mean pause between troubles, ms */
};

enum event_kind {
    EV_STEP,
    EV_LINE,
    EV_RESTART,
    EV_PRODUCE,
    EV_TROUBLE,
    EV_OPERATE,
    EV_RECONCILE,
    EV_LAND,
    EV_CONFIRM,
    EV_GIVE_UP,
    EV_RECEIVE
};

struct event {
    csn_usec at;
    uint64_t tie;
    void *who;
    uint32_t kind, a, b;
};

struct sim;
struct life;

enum stream_at {
    STREAM_QUEUED,
    STREAM_LANDED,
    STREAM_SAID,
    STREAM_SILENT /* nothing will be said */
};
enum line_state { LINE_IDLE, LINE_ASKING, LINE_ANSWERING };
enum fate { FATE_RUN, FATE_LOST, FATE_UNKNOWN, FATE_AGAIN };

struct line { /* one connection of a process: a port. Groups run one after the other. */
    struct port port;
    struct sim *sim;
    struct life *life;
    struct fake_store *store;
    enum role role;
    bool stream;
    enum line_state state;
    enum fate fate;
    bool looked;             /* a WATCH at its second look */
    uint32_t serial;         /* of what is scheduled; others are old */
    struct op *first, *last; /* submitted, not flushed */
    struct op *group[GROUPS_MAX];
    uint32_t groups;
    struct op *done, *done_last;
    struct {
        struct op *op;
        csn_usec at;
    } waiting[GROUPS_MAX]; /* a stream's DECLARE, RECEIVE and ACK */
    uint32_t waitings;
};

struct life { /* a process from its start to its end */
    struct sim *sim;
    struct engine *engine;
    struct line line[LINES_MAX];
    uint32_t lines, number, process;
    csn_usec skew;    /* its monotonic clock is ahead of the simulator's by this */
    csn_usec stepped; /* its own clock at its last step: deadlines up to then it has seen pass */
    csn_usec step_at; /* the step that counts; others are old */
    csn_usec paused_until;
    bool dead, stopping, hurt; /* hurt: something went wrong in this life */
    struct fake_handler handler[CONSUMERS];
    struct {
        struct life *life;
        uint32_t consumer;
    } handler_arg[CONSUMERS];
};

struct truth { /* what really happened to an event, whoever believes what */
    struct fake_row *row;
    struct fake_store *store;
    uint64_t confirmed;  /* lives that were told so under their last claim */
    uint64_t refused;    /* lives that were told no under their last claim */
    uint64_t rejected;   /* lives that were told never */
    uint64_t late;       /* lives that were told after the deadline: they may use it or not */
    csn_usec lease_from; /* when the op was asked that the claim's lease counts from, simulator's
                            clock */
    csn_usec claimed_from, written_at, sent_at;
    csn_usec planned_at; /* the store's clock: not claimed before that; 0: not planned */
    uint32_t lease_life;
    uint64_t token[LIVES_MAX]; /* hash of the token of each life's last claim */
    uint32_t claims, faults, kind_publishes;
    uint32_t copies[CONSUMERS], live_copies[CONSUMERS], acked[CONSUMERS], runs[CONSUMERS], effects[CONSUMERS],
        dead[CONSUMERS];
    bool operated; /* a person looked at it in kind times */
    bool guest;    /* came when all was quiet, or is the result of such a one */
    bool lost;     /* a broker lost it, or a person moved it: order is not asked of it any more */
};

struct stream_op { /* a PUBLISH that a stream works on */
    struct op *op;
    struct line *line;
    uint32_t serial, left;
    uint8_t at[BATCH_MAX]; /* enum stream_at */
    struct publish_item said[BATCH_MAX];
};

struct sim {
    uint64_t seed;
    struct plan plan;
    struct prng chance;
    csn_usec now;
    struct event *heap;
    uint32_t heap_n, heap_cap;
    struct tally *tally;
    uint64_t hash, events, until;
    bool trace, kind, failed, stopped;
    bool operating;       /* a person or reconcile is at it */
    bool stepped;         /* a store's clock did */
    struct line *running; /* whose group is carried out */
    uint64_t claim_serial;
    char why[400];
    csn_usec kind_since, bound, set_back; /* set_back: of runs with early events */

    struct fake_store store[STORES], bus;
    csn_usec locked_until[STORES], down_until[STORES], blocked_until;
    struct life *life[LIVES_MAX];
    uint32_t lives;
    struct life *current[PROCESSES_MAX];
    struct stream_op stream[STREAM_OPS_MAX];
    uint32_t stream_serial;

    struct fake_map truths, tokens;
    struct fake_list truth;
    struct fake_list dirty; /* keys that changed since the last look */
    struct arena arena;
    uint32_t produced;
    uint64_t version[KEYS_MAX + 1]; /* the last is the key of the guests */
    uint64_t changes; /* rows moved, effects left: to see that a refused group changed nothing */
};

/* plan.c */
void plan_draw(struct sim *s);
void plan_print(const struct sim *s);

/* sim.c: the run */
void sim_init(struct sim *s, struct tally *tally);
void sim_run(struct sim *s, uint64_t seed);
void sim_free(struct sim *s);
uint64_t sim_below(struct sim *s, uint64_t n);
csn_usec sim_between(struct sim *s, csn_usec least, csn_usec most);
bool sim_fault(struct sim *s, enum fault_kind f); /* rolls; counts when it happens */
void sim_happened(struct sim *s, enum fault_kind f);
void sim_at(struct sim *s, csn_usec at, enum event_kind kind, void *who, uint32_t a, uint32_t b);
void sim_mix(struct sim *s, uint64_t what);
void sim_trace(struct sim *s, const char *format, ...) PRINTF_LIKE(2, 3);
struct fake_store *sim_store_of(struct sim *s, const struct fake_store *store);

/* line.c: connections to a store */
void line_init(struct line *l, struct life *life, struct fake_store *store, enum role role);
void line_event(struct line *l, uint32_t serial);
void line_done(struct line *l, struct op *op);
struct op *line_reap(struct port *p);
void line_submit(struct port *p, struct op *op);
csn_usec line_latency(struct sim *s, csn_usec mean);
void line_crash(struct line *l);
bool line_quiet(const struct line *l);
void line_scrub(struct op *op);

/* stream.c: connections to the streaming broker */
void stream_init(struct line *l, struct life *life, enum role role);
void stream_land(struct sim *s, struct stream_op *o, uint32_t item, uint32_t serial);
void stream_confirm(struct sim *s, struct stream_op *o, uint32_t item, uint32_t serial);
void stream_give_up(struct sim *s, struct stream_op *o, uint32_t serial);
void stream_serve(struct line *l);
void stream_reopen(struct line *l);
void stream_kick(struct sim *s);
void stream_crash(struct line *l);
bool stream_quiet(const struct line *l);

/* life.c: processes and trouble */
void life_start(struct sim *s, uint32_t process);
void life_step(struct sim *s, struct life *l, csn_usec at);
void life_wake(struct sim *s, struct life *l, csn_usec in);
void life_bury(struct sim *s,
               struct life *l); /* frees the engine once nothing of it is in flight */
void lives_end(struct sim *s);
void life_crash(struct sim *s, uint32_t process);
void trouble(struct sim *s);

/* actors.c */
void produce(struct sim *s, uint32_t producer);
void guest(struct sim *s);
void operate(struct sim *s);
void reconcile(struct sim *s);
enum fault_kind fate_of(const struct sim *s, csn_bytes id, uint32_t consumer);
csn_verdict decide(const struct message *m, void *arg);
bool emits(const struct message *m, void *arg);
extern const char *const consumer_names[CONSUMERS], *const consumer_matches[CONSUMERS];
uint32_t consumer_store(uint32_t consumer);
uint32_t consumer_number(const char *name);

/* check.c */
bool is_once(const struct sim *s, uint32_t consumer);
void check(struct sim *s, enum check_kind c, bool holds, const char *format, ...) PRINTF_LIKE(4, 5);
struct truth *truth_of(struct sim *s, csn_bytes id);
struct truth *truth_add(struct sim *s, struct fake_store *store, struct fake_row *r);
void eyes_open(struct sim *s, struct fake_store *store);
void check_submitted(struct line *l, struct op *op);
void check_reaped(struct line *l, struct op *op);
void check_ran(struct line *l, struct op *op);
void check_dirty(struct sim *s);
bool drained(struct sim *s, struct text *left); /* left: what is not, for people; NULL is fine */
void check_books(struct sim *s);

#endif
