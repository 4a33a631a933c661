/* op.h: what the core may ask of the world, and how the answer comes back.
 *
 * One struct is the effect on its way out and the event on its way back. The core fills an op,
 * submits it to a port, and from then until it is reaped the op and everything it points to belong
 * to the driver. A batch is read-only once its CLAIM or RECEIVE was reaped, so that several ops
 * may point to it; what a driver learns about single messages goes into the op's own arrays. The
 * docs/protocol.md page says what each verb does to which row; a driver is right when the contract
 * suite says so.
 *
 * Instants in here (deadline) are the core's monotonic clock. What the store judges travels as a
 * duration and is added to the store's own clock inside its transaction. */
#ifndef CSN_CORE_OP_H
#define CSN_CORE_OP_H

#include "base/arena.h"
#include "consign/consign.h"
#include <stdbool.h>

enum {
    LANE_MAX = 64,        /* lanes of one name; a set of lanes is a uint64_t */
    BATCH_MAX = 1000,     /* messages in one batch */
    TOKEN_SIZE = 37,      /* 36 characters and a NUL, the seed's CHAR(36) */
    ID_MAX = 128,         /* longest event id the inbox keeps as it is */
    OUTBOX_ID_MAX = 36,   /* longest event id of the outbox */
    NAME_MAX_ = 64,       /* consumer, store, route and broker names, NUL included */
    ERROR_TEXT_MAX = 200, /* evidence text per message, NUL included */
    COUNTERS_MAX = 8192   /* counters as JSON, NUL included */
};

enum op_kind {
    OP_NONE,
    /* of a store */
    OP_LEASE,   /* heart: take, renew and drop lanes; heartbeat of the member */
    OP_WATCH,   /* watch: wait a bounded time until there may be work */
    OP_CLAIM,   /* relay: take due rows of held lanes under a fresh token */
    OP_SETTLE,  /* relay: write outcomes back, if the token still holds */
    OP_RENEW,   /* relay: lengthen the lease of claimed rows */
    OP_RECOVER, /* relay: put back what expired or waited long enough */
    OP_APPLY,   /* apply: inbox row, handler, result events: one transaction */
    OP_PARK,    /* apply: keep what was not applied, with its evidence */
    OP_TRY,     /* apply: handler and result events without an inbox, of what was acked before */
    /* of a broker */
    OP_DECLARE, /* bindings, partitions, topology */
    OP_PUBLISH,
    OP_RECEIVE,
    OP_ACK,
    OP_KIND_NR
};

/* The engine's statements take the table as a parameter. */
enum work_table { TABLE_OUTBOX, TABLE_WORK };

/* Why a row waits: the column waits_for. */
enum waits_for { WAITS_NONE = 0, WAITS_KEY = 1, WAITS_ROUTE = 2, WAITS_EARLY = 3 };

/* One event as it was claimed or received. All bytes point into the batch's arena, and have a NUL
 * behind their size. */
struct message {
    csn_bytes id, aggregate_type, aggregate_id, event_type, payload;
    csn_bytes headers; /* a JSON object or empty */
    csn_bytes traceparent, correlation_id, causation_id, tenant;
    csn_bytes route;       /* outbox only, and only where the row has one written */
    uint64_t version;      /* aggregate_version */
    uint64_t prev_version; /* of the same key on the same destination; 0: none known */
    uint64_t seq;          /* outbox, work: the row; queue: the position */
    uint32_t schema_version;
    uint32_t lane;     /* outbox, work: slot; queue: partition */
    uint32_t attempts; /* claims or deliveries so far, this one included */
    uint32_t failures, tries;
    int32_t priority;
    csn_usec
        age; /* since created, by the store's clock; time behind a closed route not subtracted */
    csn_usec failing_for; /* since first_failed_at; 0: never failed */
    csn_usec expires_in;  /* until expires_at; CSN_USEC_NEVER: does not expire; <= 0: expired */
    bool redelivered;
    bool maybe_sent; /* outbox only, and only of one that can expire: an earlier attempt may have
                        reached the broker, so that nobody can say that it was not sent */
};

struct batch {
    struct arena arena;  /* owns every byte that msg[] points to */
    struct message *msg; /* cap entries, in the arena of the machine */
    uint32_t n, cap;
};

/* Where a claimed row goes. */
enum settle_to {
    SETTLE_SENT,
    SETTLE_PENDING, /* again after retry_in: a temporary fault, a give-back (failure and try 0) */
    SETTLE_UNKNOWN, /* asked for and not answered; due again after retry_in */
    SETTLE_WAITING, /* for its route (waits_for 2), or for its key (1) */
    SETTLE_FAILED,
    SETTLE_CANCELLED /* expired before it was published */
};

struct settle_item {
    uint32_t msg;      /* index into the batch */
    uint8_t to;        /* enum settle_to */
    uint8_t failure;   /* 1: count a fault of this message */
    uint8_t attempt;   /* 1: count a try (the exponent of the backoff) */
    uint8_t waits_for; /* enum waits_for, with SETTLE_WAITING */
    csn_usec retry_in; /* SETTLE_PENDING, SETTLE_UNKNOWN; 0 at a give-back: keep next_attempt_at as
                          it is */
    csn_usec published_ago;    /* since the publish of this attempt began; 0: it never began */
    int32_t part;              /* broker_part; -1 none */
    int64_t pos;               /* broker_pos; -1 none */
    int32_t code;              /* CSN-nnnn of the evidence; 0 none */
    char text[ERROR_TEXT_MAX]; /* evidence; empty: no row in consign_attempts */
    csn_status result;         /* out: CSN_OK, or CSN_STALE: this row is somebody else's now */
};

/* What the broker said about one message. */
enum publish_out {
    PUB_NONE,      /* not said (yet): unknown once the deadline is over */
    PUB_CONFIRMED, /* durable and routed */
    PUB_NACKED,    /* refused for now: temporary */
    PUB_RETURNED,  /* unroutable: temporary, although it may also be confirmed */
    PUB_REJECTED,  /* will never be accepted: permanent */
    PUB_UNSENT     /* surely not sent: the destination's fault, given back */
};

struct publish_item {
    uint32_t msg;
    uint8_t out;               /* out: enum publish_out */
    int32_t part;              /* out */
    int64_t pos;               /* out */
    int32_t code;              /* out, with NACKED, RETURNED, REJECTED */
    char text[ERROR_TEXT_MAX]; /* out */
};

/* What became of one delivery inside APPLY. */
enum apply_out {
    APPLY_NONE,     /* not reached */
    APPLY_VERDICT,  /* the handler ran; verdict says what it decided; committed for done, refused,
                       duplicate, late */
    APPLY_SEEN,     /* the inbox has it (done, refused) with the same digest: nothing was run */
    APPLY_WAITS,    /* the inbox has it waiting (it is parked already): nothing was run, ack */
    APPLY_ASIDE,    /* the inbox has it dead or in conflict: nothing was run, ack */
    APPLY_MISMATCH, /* the inbox has the id with another digest: nothing was run; becomes a conflict
                     */
    APPLY_BEHIND,   /* an earlier event of its key is parked, or ended without commit in this batch:
                       not run, park it */
    APPLY_FENCED    /* source work only: the work row is somebody else's now: nothing was run */
};

struct apply_item {
    uint32_t msg;
    bool expired;        /* its time is over: after the dedupe the handler is not run; verdict late,
                            CSN-3009, committed */
    uint8_t out;         /* out: enum apply_out */
    csn_verdict verdict; /* out */
    int32_t code;        /* out: evidence for early, conflict, poison, retry, unknown */
    char text[ERROR_TEXT_MAX]; /* out */
};

enum park_to {
    PARK_RETRY,   /* inbox waiting; the work row is due after retry_in; head of its key */
    PARK_EARLY,   /* the same, and due at once when its predecessor is applied */
    PARK_BEHIND,  /* inbox waiting; the work row waits for its key */
    PARK_DEAD,    /* inbox dead, dead letter; the key goes on */
    PARK_CONFLICT /* dead letter; the inbox row of a finished event stays as it is, a new one is
                     conflict */
};

struct park_item {
    uint32_t msg;
    uint8_t to; /* enum park_to */
    uint8_t failure, attempt;
    csn_verdict verdict;
    csn_usec retry_in;
    int32_t code;
    char text[ERROR_TEXT_MAX];
    csn_status result; /* out: CSN_OK, CSN_STALE (source work: the row is somebody else's now) */
};

enum source { SOURCE_BROKER, SOURCE_WORK };

enum watch_kind {
    WATCH_OUTBOX,  /* a pending row is due */
    WATCH_RECOVER, /* a sending row of the outbox whose lease is over, or an unknown one that is due
                    */
    WATCH_WORK,    /* the same two of the work table, of one consumer */
    WATCH_QUEUE /* an unacked delivery of one consumer in the lanes, not under a live delivery lease
                 */
};

struct watch_item {
    uint8_t kind;
    bool found;           /* out */
    const char *consumer; /* WORK, QUEUE */
    uint64_t lanes;       /* slots, partitions */
};

struct binding {
    char subscription[NAME_MAX_];
    char match[NAME_MAX_ * 2]; /* glob over event_type, comma-separated; "*" is all */
    uint32_t partitions;
};

struct order;   /* core/order.h: the policies of event types */
struct handler; /* core/handler.h: compiled SQL, or a C function */

enum op_state { OP_IDLE, OP_PENDING, OP_FINISHED };

struct op {
    struct op *next; /* the port's, while pending */
    enum op_kind kind;
    enum op_state
        state; /* written on the loop's thread only: submit sets PENDING, reap sets FINISHED */
    csn_usec deadline; /* monotonic; a driver gives up waiting (locks, answers) by then */
    csn_error result;  /* result.status is valid in every case */
    struct batch *batch;
    union {
        struct {
            char name[NAME_MAX_]; /* "outbox", "sub/<consumer>" */
            uint64_t want;        /* take if free or expired, renew if mine */
            uint64_t drop;        /* give up if mine */
            csn_usec lease,
                longest; /* a lease that ends later than now + longest is over, too (clock step) */
            char boot[TOKEN_SIZE];    /* of this process; the owner */
            char label[NAME_MAX_];    /* node name, for people */
            char *counters;           /* JSON, or NULL: not written */
            bool leave;               /* last call of this process: mark the member as ended */
            uint64_t held;            /* out: lanes that are mine now */
            uint64_t fresh;           /* out: of these, taken by this op (not renewed) */
            uint64_t epoch[LANE_MAX]; /* out */
            int32_t member;           /* out: number of this process in this store */
            uint32_t members;         /* out: members alive */
        } lease;
        struct {
            struct watch_item *item;
            uint32_t n;
            csn_usec wait;    /* between two looks; ends early when woken */
            csn_usec longest; /* look so often for so long, as nothing is found; <= wait: once */
            csn_usec next_in; /* out: until the next row of any item becomes due; CSN_USEC_NEVER
                                 none known */
        } watch;
        struct {
            enum work_table table;
            char lane_name[NAME_MAX_]; /* whose lanes fence this claim; empty: no lane fence (work)
                                        */
            char consumer[NAME_MAX_];  /* TABLE_WORK */
            uint64_t lanes;
            const uint64_t
                *epoch; /* LANE_MAX entries: the claim is STALE for a lane whose epoch differs */
            char boot[TOKEN_SIZE];
            char token[TOKEN_SIZE];
            uint32_t limit;      /* runnable rows */
            uint32_t park_limit; /* rows that may be moved to waiting on the way */
            size_t bytes;        /* payload bytes; at least one row is taken */
            csn_usec lease, longest_backoff;
            uint64_t lost;   /* out: lanes of the set that are no longer mine */
            uint32_t parked; /* out: rows moved to waiting */
            bool more;       /* out: a limit ended the claim, there is probably more */
        } claim;
        struct {
            enum work_table table;
            char token[TOKEN_SIZE];
            int32_t member;
            struct settle_item *item;
            uint32_t n;
            const char *route; /* name written with WAITING for a route; NULL none */
            uint32_t stale;    /* out */
            uint32_t released; /* out: followers moved back to pending */
        } settle;
        struct {
            enum work_table table;
            char token[TOKEN_SIZE];
            csn_usec lease;
            uint32_t renewed; /* out: rows */
        } renew;
        struct {
            enum work_table table;
            char consumer[NAME_MAX_];
            char lane_name[NAME_MAX_];
            char boot[TOKEN_SIZE];
            uint64_t lanes,
                fresh; /* of fresh lanes every `sending` row is recovered, expired or not */
            const uint64_t *epoch;
            csn_usec longest_lease, longest_backoff;
            char open_routes[NAME_MAX_ * 8]; /* comma-separated: rows that wait for these return */
            uint32_t limit;                  /* rows of each kind */
            uint32_t expired, resent, released; /* out */
            uint32_t drawn; /* out: rows that a clock set back would have kept from being due */
            bool more;      /* out */
        } recover;
        struct {
            char consumer[NAME_MAX_];
            const struct handler *handler;
            const struct order *order; /* policies of event types; NULL: none has one */
            enum source source;
            char token[TOKEN_SIZE]; /* SOURCE_WORK: of the claim */
            struct apply_item *item;
            uint32_t n;
            uint32_t emitted; /* out: result events written */
        } apply;              /* TRY, too: source is the broker, the token is not used */
        struct {
            char consumer[NAME_MAX_];
            enum source source;
            char token[TOKEN_SIZE];
            struct park_item *item;
            uint32_t n;
            csn_usec
                ago; /* since the delivery was taken: what expires_in of the batch counts from */
        } park;
        struct {
            const struct binding *binding;
            uint32_t n;
        } declare;
        struct {
            struct publish_item *item;
            uint32_t n;
            csn_usec ago; /* since the claim: what age and expires_in of the batch count from */
        } publish;
        struct {
            char consumer[NAME_MAX_];
            char lane_name[NAME_MAX_];
            char boot[TOKEN_SIZE], token[TOKEN_SIZE];
            uint64_t lanes;
            const uint64_t *epoch;
            uint32_t limit;
            size_t bytes;
            csn_usec lease, longest_lease;
            bool again;    /* deliver what I hold unacked once more */
            uint64_t lost; /* out */
            bool more;     /* out */
        } receive;
        struct {
            char consumer[NAME_MAX_];
            char token[TOKEN_SIZE];
            const uint32_t *msg; /* indexes into the batch: done with */
            uint32_t n;
            uint32_t acked; /* out */
        } ack;
    };
};

#endif
