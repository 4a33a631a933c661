/* world.h: what the contract suite needs of a world: a store (with its embedded broker) behind
 * ports, the hands of a producer and of an operator, and eyes that see committed rows.
 * docs/protocol.md is what the suite checks; a world only carries it out.
 *
 *   suite_*.c ──ops──▶ struct port ──▶ driver or fake        one process, one thread, synchronous where it can be
 *       └────hooks──▶ struct world ──▶ the same rows, seen from outside
 *
 * A program is the suite linked with one world_<name>.c, which defines contract_world(). Each test
 * opens a world and closes it. Hooks that a world lacks are NULL and their WORLD_ bit is not set;
 * a test asks for the bits it needs and is skipped without them, by name. All other hooks are
 * there. A hook that fails for reasons of its own ends the test (world_fail). */
#ifndef CSN_TEST_CONTRACT_WORLD_H
#define CSN_TEST_CONTRACT_WORLD_H

#include "core/driver.h"
#include "core/handler.h"
#include "core/port.h"

enum world_can {
    WORLD_CONSTRAINTS = 1, /* insert() refuses bad rows by the name of a constraint */
    WORLD_SQL_HANDLER = 2, /* handler() is SQL: payload {"verdict":"break"} violates a constraint of
                              the business table */
    WORLD_CUT = 4,         /* cut() */
    WORLD_LOCK = 8,        /* lock() */
    WORLD_WAKE = 16,       /* wake_soon() */
    WORLD_SWAP = 32,       /* handler_swap() */
    WORLD_FULL = 64,       /* fill() */
    WORLD_REAL_TIME =
        128, /* the store's clock runs by itself: instants are compared with a tolerance */
    WORLD_REFUSE = 256,      /* refuse() */
    WORLD_THREADS = 512,     /* two ports may be used by two threads at the same time */
    WORLD_PURGE = 1024,      /* purge_sent() */
    WORLD_ODD_STATUS = 2048, /* set_status() takes any word */
    WORLD_FUNCTION = 4096    /* APPLY runs any handler.function */
};

/* What a producer gives; NULL and 0 take the column's default. */
struct world_event {
    const char *id, *aggregate_type, *aggregate_id, *event_type, *payload;
    int64_t version, schema_version;
    const char *headers, *traceparent, *correlation_id, *causation_id, *tenant;
    csn_usec due_in;     /* next_attempt_at = now + due_in when not 0 */
    csn_usec expires_in; /* expires_at = now + expires_in when not 0 */
    int32_t priority;
};

/* Rows as they are committed. Text that is NULL is "", instants that are NULL are 0, other numbers
 * that are NULL are -1. Instants are on the scale of world->now. */
struct outbox_row {
    int64_t seq;
    char status[16], token[40], route[NAME_MAX_], last_error[256];
    int64_t attempts, failures, tries, waits_for, sent_by, broker_part, broker_pos;
    csn_usec created_at, next_attempt_at, lease_until, claimed_at, published_at, sent_at,
        first_failed_at, last_failed_at;
};

struct inbox_row {
    char state[16], verdict[16], digest[72], result[256], error[256], event_type[88],
        aggregate_type[88], aggregate_id[136];
    int64_t attempts, duplicates, entity_version, broker_part, broker_pos;
    csn_usec received_at, processed_at, last_duplicate_at;
};

struct work_row {
    int64_t seq, version, slot, attempts, failures, tries, waits_for, broker_pos;
    char status[16], token[40], last_error[256], payload[256];
    csn_usec created_at, next_attempt_at, lease_until, claimed_at, first_failed_at, last_failed_at;
};

struct key_row {
    int64_t head_version;
    csn_usec parked_at;
};

struct queue_row {
    int64_t pos, part, version, prev_version, deliveries, epoch, routing_version;
    char token[40], payload[256];
    csn_usec published_at, lease_until, delivered_at, acked_at;
};

struct lane_row {
    char owner[40]; /* "": free */
    int64_t epoch;
    csn_usec lease_until, taken_at;
};

struct member_row {
    int64_t member;
    char label[NAME_MAX_], counters[256];
    csn_usec started_at, heartbeat_at, lease_until, ended_at;
};

struct attempt_row {
    char side[8], kind[16], consumer[NAME_MAX_], error[256];
    int64_t attempt, code;
    csn_usec at, planned_at, started_at;
};

struct dead_row {
    char class_[16], error[256], payload[256], state[16], headers[256], event_type[88],
        aggregate_id[136];
    int64_t code, version, attempts, failures, broker_part, broker_pos;
    csn_usec first_failed_at, last_failed_at, dead_at;
};

struct result_row { /* a result event in the outbox */
    char id[40], event_type[88], aggregate_type[88], aggregate_id[136], payload[256],
        correlation_id[136], traceparent[136];
    int64_t version;
};

enum world_cut {
    CUT_BEFORE_COMMIT, /* the process or connection dies inside the group: nothing of it is ever
                          seen */
    CUT_AFTER_COMMIT   /* it dies after the commit, before the answer: all of it is there */
};

struct world {
    uint32_t can;          /* WORLD_ bits */
    uint32_t outbox_lanes; /* lanes of "outbox"; 1 on SQLite */
    uint32_t tolerance_ms; /* WORLD_REAL_TIME: how far an instant may lie from the computed one */

    /* Connections. Each open() is another one, as of another process; NULL is a failure. close()
     * may come with ops answered only. */
    struct port *(*open)(struct world *w, enum role role);
    void (*close)(struct world *w, struct port *p);
    void (*pump)(struct world *w); /* lets submitted groups go on (a step of simulated time); NULL:
                                      flush() has done it all */

    csn_usec (*now)(struct world *w);                /* the store's clock */
    void (*advance)(struct world *w, csn_usec step); /* forward or (negative) back, seen by all
                                                        connections; a step and not a wait */
    csn_usec (*clock)(struct world *w);              /* the clock of op->deadline */

    /* A producer: one transaction with one instant, all of the events, committed or rolled back.
     * NULL: done; else the text of the refusal (nothing was written), good until the next call. */
    const char *(*insert)(struct world *w, const struct world_event *e, uint32_t n, bool commit);
    /* An operator's hand, outside of every verb: writes status and waits_for of a row and clears
     * its token and lease. Releases nobody. */
    void (*set_status)(struct world *w, const char *event_id, const char *status, int waits_for);
    void (*purge_inbox)(struct world *w, const char *consumer, const char *event_id);
    /* As a takeover would: the token of an outbox row and nothing else. */
    void (*set_token)(struct world *w, const char *event_id, const char *token);

    /* Eyes. false: no such row. */
    bool (*outbox)(struct world *w, const char *event_id, struct outbox_row *ret);
    int64_t (*outbox_count)(struct world *w, const char *status,
                            int waits_for); /* status NULL: all; waits_for -1: any */
    bool (*inbox)(struct world *w, const char *consumer, const char *event_id,
                  struct inbox_row *ret);
    bool (*work)(struct world *w, const char *consumer, const char *event_id, struct work_row *ret);
    bool (*key)(struct world *w, const char *consumer, const char *type, const char *id,
                struct key_row *ret);
    bool (*queue)(struct world *w, const char *subscription, const char *event_id,
                  struct queue_row *ret); /* the newest copy */
    int64_t (*queue_count)(struct world *w, const char *subscription, bool unacked_only);
    bool (*lane)(struct world *w, const char *name, uint32_t lane, struct lane_row *ret);
    bool (*member)(struct world *w, const char *boot, struct member_row *ret);
    /* These three fill at most max rows, in the order they were written, and return how many there
     * are. */
    uint32_t (*attempts)(struct world *w, const char *event_id, struct attempt_row *ret,
                         uint32_t max);
    uint32_t (*dead)(struct world *w, const char *consumer, const char *event_id,
                     struct dead_row *ret, uint32_t max);
    uint32_t (*results)(struct world *w, const char *causation_id, struct result_row *ret,
                        uint32_t max);
    int64_t (*effects)(struct world *w, const char *consumer,
                       const char *event_id); /* committed business effects of handler() */

    /* A handler that leaves one effect, then takes its verdict from the payload:
     * {"verdict":"done","emit":0}, both always there. "emit":1 adds one result event ScriptDone for
     * the aggregate ("script", aggregate_id of the event), payload {"of": event_id}. */
    const struct handler *(*handler)(struct world *w);

    void (*cut)(struct world *w, struct port *p,
                enum world_cut cut);        /* of p's next group; its ops answer CSN_UNKNOWN */
    void (*lock)(struct world *w, bool on); /* somebody else holds the store's write lock */
    void (*wake_soon)(struct world *w,
                      struct port *p); /* wake() arrives while p's next WATCH waits */
    const struct handler *(*handler_swap)(
        struct world *w,
        struct port *p); /* ends and begins the transaction in the middle of a batch */
    void (*purge_sent)(struct world *w,
                       const char *event_id); /* deletes an outbox row, as retention does */
    void (*fill)(struct world *w, struct port *p,
                 bool full); /* the disk is full for this connection */
    void (*refuse)(
        struct world *w,
        const char *event_type); /* from now on the broker's table refuses messages of this type */
};

/* Defined once by each world: a fresh, empty world with the schema applied. */
struct world *contract_world(void);
void contract_world_free(struct world *w);
extern const char *const contract_world_name;

/* Ends the running test; for hooks (suite.c). */
void world_fail(const char *format, ...) PRINTF_LIKE(1, 2) __attribute__((noreturn));

#endif
