/* fake_store.h: a store in memory that does to its rows what docs/protocol.md says, verb by verb.
 * It is to the simulator what a database is to the daemon, and the contract suite holds it to the
 * same promises.
 *
 * What always holds: a verb runs whole or not at all (nothing here blocks or fails half-way, so a
 * group is atomic by running it or not); rows are never moved in memory; every instant is on the
 * store's own clock, *mono + offset, and a step of that clock is a change of offset. Rows are
 * looked up by 64-bit hashes that stand for the names: a collision would have to happen among a
 * few thousand rows.
 *
 * The eyes are told of each change as it happens; NULL ones are not called. Memory comes from one
 * arena and goes back at reset. */
#ifndef CSN_TEST_SIM_FAKE_STORE_H
#define CSN_TEST_SIM_FAKE_STORE_H

#include "base/digest.h"
#include "base/error.h"
#include "core/handler.h"
#include "core/op.h"

enum { FAKE_CONSUMERS_MAX = 16, FAKE_LANE_SETS_MAX = 24, FOLLOWERS_MAX = 1000, SET_BACK = 1000000 };

enum row_status {
    ROW_PENDING,
    ROW_SENDING,
    ROW_SENT,
    ROW_UNKNOWN,
    ROW_WAITING,
    ROW_FAILED,
    ROW_HELD,
    ROW_CANCELLED,
    ROW_GONE, /* a work row that was deleted */
    ROW_STATUS_NR
};
enum inbox_status { INBOX_DONE, INBOX_REFUSED, INBOX_WAITING, INBOX_CONFLICT, INBOX_DEAD };

struct fake_list { /* of pointers; grows, never moves what they point to */
    void **at;
    uint32_t n, cap;
};

struct fake_map { /* 64-bit key to pointer */
    struct {
        uint64_t key;
        void *value;
    } * slot;
    uint32_t n, cap;
};

struct fake_row {           /* of outbox_events or consign_work */
    struct message content; /* the producer's columns; counts and ages of it are not used */
    struct fake_key *key;
    int64_t seq, sent_by, broker_part, broker_pos;
    csn_usec next_attempt_at, lease_until, claimed_at, created_at, published_at, sent_at,
        first_failed_at, last_failed_at, expires_at;
    csn_bytes route, last_error;
    uint64_t claim; /* serial number of the CLAIM that took it last */
    uint32_t slot, attempts, failures, tries, consumer;
    uint8_t status, waits_for;
    bool live;       /* is in the table's list of rows that have not ended */
    bool maybe_sent; /* an attempt was not answered, or it is sent again */
    char token[TOKEN_SIZE];
    void *mark; /* the observer's */
};

struct fake_key { /* one (aggregate_type, aggregate_id) of the outbox, or of the work of a consumer
                   */
    csn_bytes type, id;
    struct fake_row **row; /* by (aggregate_version, seq) */
    uint32_t n, cap, consumer;
    uint64_t version; /* outbox: highest drawn or written; work: head_version */
    csn_usec parked_at;
    uint64_t
        applied; /* for the eyes: highest version with an effect, and the outbox row it came from */
    int64_t applied_seq;
    uint64_t stopped; /* serial of the APPLY in which it ended without commit */
    uint64_t claim;   /* serial of the CLAIM that is grouping by it */
    uint32_t first;   /* of its rows in that claim */
    bool parked;      /* work: has a row in consign_keys */
    bool dirty;       /* for the eyes */
};

struct fake_table {
    struct fake_list row, live;
    int64_t seq;
};

struct fake_inbox {
    csn_bytes id, event_type, aggregate_type, aggregate_id, result, error;
    uint64_t version;
    int64_t broker_part, broker_pos;
    csn_usec received_at, processed_at, last_duplicate_at;
    uint32_t consumer, attempts, duplicates;
    int32_t verdict; /* -1: none yet */
    uint8_t status;
    bool gone, expired; /* purged · done without an effect, because its time was over */
    char digest[65];
};

struct fake_effect {          /* what a handler left: the business change */
    struct fake_inbox *inbox; /* NULL: of a TRY */
    csn_bytes id;
    struct fake_key *key;
    uint64_t version;
    uint32_t consumer;
    int32_t verdict;
};

struct fake_queue_row {
    struct message content; /* seq is the position, lane the partition */
    csn_usec created_at, published_at, lease_until, delivered_at, acked_at, expires_at;
    uint64_t epoch;
    uint32_t subscription, deliveries, routing_version, holder;
    char token[TOKEN_SIZE];
    bool lost;  /* the broker forgot it after it was confirmed */
    bool tried; /* for the eyes: a TRY of it was committed */
};

struct fake_binding {
    char match[NAME_MAX_ * 2];
    uint32_t partitions, routing_version;
    bool there;
};

struct fake_lane {
    char owner[TOKEN_SIZE];
    uint64_t epoch;
    csn_usec lease_until, taken_at;
    bool there;
};

struct fake_lanes {
    char name[NAME_MAX_];
    struct fake_lane lane[LANE_MAX];
};

struct fake_member {
    char boot[TOKEN_SIZE], label[NAME_MAX_], *counters;
    int32_t number;
    csn_usec started_at, heartbeat_at, lease_until, ended_at;
};

struct fake_attempt {
    csn_bytes id, text;
    const char *side, *kind;
    uint32_t consumer, attempt;
    int32_t code;
    csn_usec at, planned_at, started_at;
};

struct fake_dead {
    csn_bytes id, error, payload, headers, event_type, aggregate_type, aggregate_id;
    const char *class_;
    uint64_t version;
    int64_t broker_part, broker_pos;
    csn_usec first_failed_at, last_failed_at, dead_at;
    uint32_t consumer, attempts, failures;
    int32_t code;
};

struct fake_store;

/* What somebody outside wants to be told. row->status is already the new one. */
struct fake_eyes {
    void *arg;
    void (*moved)(void *arg, struct fake_store *s, struct fake_row *r, enum row_status from,
                  bool work);
    void (*claimed)(void *arg, struct fake_store *s, struct fake_row *r, const struct op *claim);
    void (*stale)(void *arg, struct fake_store *s, const struct op *settle, uint32_t item);
    void (*lane_taken)(void *arg, struct fake_store *s, const char *name, uint32_t lane,
                       const struct fake_lane *before, const struct fake_lane *now,
                       csn_usec longest);
    void (*published)(void *arg, struct fake_store *s, const struct fake_queue_row *q);
    void (*delivered)(void *arg, struct fake_store *s, const struct fake_queue_row *q);
    void (*acked)(void *arg, struct fake_store *s, const struct fake_queue_row *q);
    void (*effect)(void *arg, struct fake_store *s, const struct fake_effect *e);
    /* A TRY ran the handler of this message and keeps what it did. */
    void (*tried)(void *arg, struct fake_store *s, const struct fake_effect *e, uint64_t pos);
    void (*parked)(void *arg, struct fake_store *s, const struct fake_row *r,
                   const struct park_item *p);
    void (*dead)(void *arg, struct fake_store *s, const struct fake_dead *d);
    /* Asked before a message is published: PUB_NONE lets it pass, NACKED, RETURNED and REJECTED
     * refuse it. */
    enum publish_out (*refuse)(void *arg, struct fake_store *s, const struct message *m);
};

struct fake_store {
    const char *name;
    const csn_usec *mono; /* the clock that never steps */
    csn_usec offset;      /* the store's clock is *mono + offset */
    csn_usec ahead;       /* the offset as it was seen last */
    csn_usec newest;      /* what the clock would have shown when it was seen to be set back */
    uint32_t outbox_lanes;
    bool full_digest; /* SHA-256 as the real thing; else a quick hash of the same bytes */
    struct fake_eyes eyes;

    struct arena arena;
    struct fake_table outbox, work;
    struct fake_map outbox_by_id, keys, inbox_by_id, work_by_id, dead_by_id;
    struct fake_list key, inbox, queue, queue_live, attempt, dead, effect;
    char consumer[FAKE_CONSUMERS_MAX][NAME_MAX_];
    struct fake_binding binding[FAKE_CONSUMERS_MAX]; /* by the same numbers */
    struct fake_list effects_of[FAKE_CONSUMERS_MAX];
    uint32_t consumers;
    struct fake_lanes *lanes[FAKE_LANE_SETS_MAX];
    uint32_t lane_sets;
    struct fake_list member;
    int64_t pos;
    uint64_t serial; /* of claims and applies */
    struct {
        struct fake_row *row;
        struct message m;
        uint32_t next;
    } * taken;             /* BATCH_MAX: a claim at work */
    struct fake_row **due; /* candidates of a claim at work */
    uint32_t due_cap;
};

/* A handler that the fakes can run: decides from the message, says whether a result event goes out.
 * handler.arg points to it. */
struct fake_handler {
    csn_verdict (*decide)(const struct message *m, void *arg);
    bool (*emits)(const struct message *m, void *arg);
    const char *result_type, *result_aggregate;
    void *arg;
    struct handler handler;
};

void fake_handler_init(struct fake_handler *h);

void fake_store_init(struct fake_store *s, const char *name, const csn_usec *mono,
                     uint32_t outbox_lanes);
void fake_store_reset(struct fake_store *s); /* empty again; memory is kept */
void fake_store_free(struct fake_store *s);

csn_usec fake_now(const struct fake_store *s);
void fake_read_clock(struct fake_store *s); /* sees a clock that was set back */
/* Runs a verb; op->result and the outputs are filled. Any verb but a WATCH that would have to wait:
 * it looks once. */
void fake_run(struct fake_store *s, struct op *op);

/* False when an op of the group (linked by next) would be refused: nothing of it may run then, and
 * all results say why. */
bool fake_group_allowed(struct fake_store *s, struct op *first);

/* A producer's INSERT inside its transaction, which the caller has decided to commit. */
struct fake_row *fake_insert(struct fake_store *s, const struct message *m, csn_usec due_in,
                             csn_usec expires_in);
struct fake_queue_row *fake_queue_at(struct fake_store *s, uint64_t pos); /* or NULL */
struct fake_row *fake_outbox_find(struct fake_store *s, csn_bytes id);
struct fake_inbox *fake_inbox_find(struct fake_store *s, uint32_t consumer, csn_bytes id);
struct fake_row *fake_work_find(struct fake_store *s, uint32_t consumer, csn_bytes id);
struct fake_dead *fake_dead_find(struct fake_store *s, uint32_t consumer, csn_bytes id);
uint32_t fake_consumer(struct fake_store *s, const char *name); /* its number; made when new */
struct fake_lanes *fake_lanes_find(struct fake_store *s, const char *name);

/* An operator: moves a row outside of the verbs; releases followers when it ends by that and
 * release is set. */
void fake_operate(struct fake_store *s, struct fake_row *r, enum row_status to, bool release);

const char *row_status_name(enum row_status s);
bool row_ended(const struct fake_row *r);
struct fake_row *row_before(
    const struct fake_row *r); /* the previous row of its key that was not cancelled, or NULL */

/* Shared by the files of the fake. */
void *fake_take(struct fake_store *s,
                size_t size); /* zeroed; ends the program when there is no memory */
csn_bytes fake_copy(struct fake_store *s, csn_bytes b);
void fake_list_add(struct fake_list *l, void *p);
void *fake_map_get(const struct fake_map *m, uint64_t key);
void fake_map_set(struct fake_map *m, uint64_t key, void *value);
void fake_map_clear(struct fake_map *m);
uint64_t fake_id_hash(uint32_t consumer, csn_bytes id);
struct fake_key *fake_key_of(struct fake_store *s, uint32_t space, csn_bytes type,
                             csn_bytes id); /* 0 outbox, consumer + 1 work */
void fake_row_add(struct fake_store *s, struct fake_table *t, struct fake_row *r);
void fake_row_drop(struct fake_row *r); /* out of its key */
void fake_move(struct fake_store *s, struct fake_row *r, enum row_status to);
void fake_message_copy(struct fake_store *s, struct message *to, const struct message *from);
bool fake_message_give(struct arena *a, struct message *to, const struct message *from);
void fake_attempt_add(struct fake_store *s, const struct fake_row *r, const char *side,
                      const char *kind, int32_t code, const char *text, csn_usec planned_at);
uint64_t fake_fence(struct fake_store *s, const char *name, uint64_t lanes, const uint64_t *epoch,
                    const char *boot);
uint32_t fake_release_followers(struct fake_store *s, struct fake_row *ended);

void fake_lease(struct fake_store *s, struct op *op);
void fake_watch(struct fake_store *s, struct op *op);
void fake_claim(struct fake_store *s, struct op *op);
void fake_settle(struct fake_store *s, struct op *op);
void fake_renew(struct fake_store *s, struct op *op);
void fake_recover(struct fake_store *s, struct op *op);
void fake_apply(struct fake_store *s, struct op *op);
void fake_try(struct fake_store *s, struct op *op);
void fake_park(struct fake_store *s, struct op *op);
void fake_declare(struct fake_store *s, struct op *op);
bool fake_declare_allowed(struct fake_store *s, const struct op *op, csn_error *err);
void fake_publish(struct fake_store *s, struct op *op);
void fake_receive(struct fake_store *s, struct op *op);
void fake_ack(struct fake_store *s, struct op *op);

/* One message into the queue: a row per matching binding. What the broker says goes into item. */
void fake_publish_one(struct fake_store *s, const struct message *m, csn_usec ago,
                      struct publish_item *item);
bool fake_queue_due(const struct fake_store *s, const struct fake_queue_row *q, csn_usec now,
                    uint64_t epoch, csn_usec longest);
uint32_t fake_partition(csn_bytes type, csn_bytes id, uint32_t partitions);

#endif
