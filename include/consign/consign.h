/* consign.h: events that leave if, and only if, a transaction commits; handlers whose effect commits
 * once.
 *
 *   publish   in the caller's own transaction, on the caller's own connection:
 *             csn_tx tx = csn_sqlite_tx(db);  csn_publish(&tx, &event, …);  COMMIT
 *   receive   csn_open ─▶ csn_subscribe … ─▶ csn_run (or csn_start, and csn_step in a loop of one's own)
 *
 * Link with libconsign and one library for each database: libconsign-sqlite with <consign/sqlite.h>.
 * Both must be of one version; csn_open checks it.
 *
 * Times and durations are microseconds (csn_usec), sizes are bytes, ids and keys are NUL-terminated
 * UTF-8. A call that can fail returns a csn_status, named by what the caller should do next; the
 * detail goes into a csn_error that the caller owns (NULL: not wanted). On failure ownership never
 * moves. Structures begin with their size, for they may grow: set it to sizeof, and all that is not
 * used to zero. Nothing here takes a signal, forks, or ends the process. */
#ifndef CONSIGN_H
#define CONSIGN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Microseconds; the only unit of time. Durations and instants share it: a name that ends in _at or
 * is called now, deadline or until is an instant, everything else is a duration. */
typedef int64_t csn_usec;

#define CSN_USEC_NEVER INT64_MAX

/* Borrowed bytes, valid as long as the owner says. data may be NULL when size is 0. Not
 * NUL-terminated unless stated. */
typedef struct csn_bytes {
    const void *data;
    size_t size;
} csn_bytes;

/* What the caller should do next. Values never change. */
typedef int32_t csn_status;
enum {
    CSN_OK = 0,
    CSN_AGAIN = 1,    /* nothing happened; the same call may work later */
    CSN_UNKNOWN = 2,  /* it may or may not have happened; look it up, or repeat with the same id */
    CSN_STALE = 3,    /* somebody else owns it now; forget it */
    CSN_REJECTED = 4, /* will never be accepted as it is */
    CSN_INVALID = 5,  /* the caller's mistake: argument, state, configuration */
    CSN_NOMEM = 6,    /* nothing happened: out of memory */
    CSN_FATAL = 7     /* stop using this object, or this process */
};

/* Filled only when a call does not return CSN_OK. */
typedef struct csn_error {
    csn_status status;
    int32_t code;   /* the nnnn of CSN-nnnn, for `consign explain`; 0: none */
    int32_t native; /* errno, extended SQLite code, broker code; 0: none */
    char text[240]; /* "claim: outbox_events: disk is full", outermost first; always NUL-terminated
                     */
} csn_error;

#define CSN_API __attribute__((visibility("default")))

CSN_API const char *csn_status_name(csn_status s); /* "ok", "again", …; static */
CSN_API const char *csn_version(void);             /* "0.1.0"; static */

/* ---- sending: in the caller's own transaction ---- */

struct csn_tx_ops; /* of a library for one kind of database */

/* A connection on which the caller has a transaction open. A small value: made by csn_sqlite_tx(db)
 * and its like, copied freely, owns nothing, good as long as the connection. Used by the thread that
 * uses the connection. */
typedef struct csn_tx {
    const struct csn_tx_ops *ops;
    void *conn;
} csn_tx;

/* One event: the columns of outbox_events. Everything is borrowed during the call. NULL, zero and
 * empty mean the default. */
typedef struct csn_event {
    size_t size;                /* sizeof(csn_event) */
    const char *event_id;       /* 1 to 36 visible ASCII characters; NULL: a UUIDv7 is made */
    const char *aggregate_type; /* at most 80 characters; NULL: none */
    const char *aggregate_id; /* required, 1 to 128 bytes: events of one (type, id) stay in order */
    uint64_t aggregate_version; /* the place in that order. Draw it from the aggregate's own row,
                                   under its lock; 0: drawn from consign's counter, as by
                                   csn_next_version */
    const char *event_type;     /* required, at most 80 characters */
    uint32_t schema_version;    /* 0 is 1 */
    int32_t priority;
    csn_bytes payload; /* required: JSON, at most 262,144 bytes; delivered byte for byte */
    csn_bytes headers; /* a JSON object of at most 16,384 bytes, or empty */
    const char *correlation_id, *causation_id, *traceparent, *tenant; /* at most 512 bytes each */
    csn_usec expires_in; /* from now, by the database's clock; 0: never */
} csn_event;

enum { CSN_ID_SIZE = 37 }; /* what an event id takes, with its NUL */

/* Writes the event through the caller's transaction: it leaves if, and only if, that commits. Never
 * opens, commits or rolls back. ret_id (NULL: not wanted) has ret_size >= CSN_ID_SIZE bytes and
 * receives the id. In a handler, on the handler's tx: the id (when NULL) is derived from consumer,
 * event and order of the calls, so that a repeated run writes the same; causation, correlation,
 * trace and tenant, where they are NULL, are the event's in hand.
 * CSN_INVALID: an argument is wrong (CSN-5002), or no transaction is open (CSN-5001); nothing was
 * written. CSN_REJECTED: the table refuses the event: the id is there already (CSN-5004), or one of
 * its constraints does not hold (CSN-2010, the text names it, `consign explain csn_…`). CSN_AGAIN,
 * CSN_UNKNOWN, CSN_FATAL: roll back, and begin again. */
CSN_API csn_status csn_publish(csn_tx *tx, const csn_event *e, char *ret_id, size_t ret_size,
                               csn_error *err);

/* The next version of an aggregate that has no row of its own: drawn from a counter under its lock,
 * which is held until the caller's transaction ends. The first is 1, or follows what outbox_events
 * has of it. Errors as csn_publish. */
CSN_API csn_status csn_next_version(csn_tx *tx, const char *aggregate_type,
                                    const char *aggregate_id, uint64_t *ret, csn_error *err);

/* After a COMMIT whose answer was lost, on any connection: CSN_OK it is there, CSN_REJECTED it is not
 * (CSN-8002), CSN_AGAIN or CSN_UNKNOWN ask again. Needs no transaction. */
CSN_API csn_status csn_lookup(csn_tx *tx, const char *event_id, csn_error *err);

/* A fresh UUIDv7 as text. ret has CSN_ID_SIZE bytes. Any thread. */
CSN_API void csn_event_id(char *ret);

/* ---- requests that a client may repeat ---- */

/* Dedupe of requests is another layer than dedupe of events: a client that got no answer asks again
 * under the same key, and must get the first answer and cause nothing new.
 *
 *   BEGIN IMMEDIATE
 *   csn_request_begin(&tx, "place order", key, parameters, answer, sizeof answer, &repeated, &err)
 *   repeated: ROLLBACK, and give the answer
 *   else: the business, csn_publish, csn_request_answer(&tx, "place order", key, its answer, &err), COMMIT
 */

/* scope and key: 1 to 128 bytes each. parameters: whatever says what is asked for, compared by its
 * SHA-256. *ret_repeated is 1 when the request was answered before; then answer holds its answer,
 * NUL-terminated. CSN_REJECTED: the key was used with other parameters (CSN-5005), or answer is too
 * small (CSN-5002). Errors as csn_publish. The key is taken when the caller's transaction commits. */
CSN_API csn_status csn_request_begin(csn_tx *tx, const char *scope, const char *key,
                                     csn_bytes parameters, char *answer, size_t answer_size,
                                     int32_t *ret_repeated, csn_error *err);
/* Keeps the answer, at most 65,536 bytes of text, in the same transaction. CSN_INVALID: the request
 * was not begun. */
CSN_API csn_status csn_request_answer(csn_tx *tx, const char *scope, const char *key,
                                      const char *answer, csn_error *err);

/* ---- receiving ---- */

/* What became of the business in a handler. A verdict is not a status: a refusal is a success of
 * the machinery. */
typedef int32_t csn_verdict;
enum {
    CSN_DONE = 0,           /* commit, ack */
    CSN_REFUSED = 1,        /* commit the refusal and its result event, ack */
    CSN_DUPLICATE = 2,      /* commit what was written, ack */
    CSN_LATE = 3,           /* commit the history, ack */
    CSN_EARLY = 4,          /* roll back, wait durably for the predecessor */
    CSN_CONFLICT = 5,       /* roll back, set aside, alarm */
    CSN_POISON = 6,         /* roll back, set aside, alarm */
    CSN_RETRY = 7,          /* roll back, try again by policy */
    CSN_OUTCOME_UNKNOWN = 8 /* roll back, try again with the same id, or look up */
};

typedef struct csn csn;                   /* one open consign: a configuration, later its workers */
typedef struct csn_delivery csn_delivery; /* one received event, alive during its handler */
struct csn_driver;                        /* csn_sqlite_driver() and its like */

/* Called on a thread of consign, one event at a time for each apply worker of the store (one by
 * default), inside a transaction that is committed after CSN_DONE, CSN_REFUSED, CSN_DUPLICATE and
 * CSN_LATE, together with the record that it ran, and rolled back to where it was before this event
 * otherwise. What is written through tx happens once; whatever else is done may repeat. Must not
 * begin, commit or roll back (savepoints of its own are fine), and keep nothing of the delivery.
 * Text put into err goes with the verdict as its evidence (status and code are not looked at). Other
 * writers of the database wait meanwhile: no calls over a network. */
typedef csn_verdict csn_handler(csn_tx *tx, csn_delivery *d, void *arg, csn_error *err);

/* The event in hand; its event_id, type and key are never NULL. */
CSN_API const csn_event *csn_delivery_event(const csn_delivery *d);
CSN_API const char *csn_delivery_consumer(const csn_delivery *d);
CSN_API uint32_t csn_delivery_attempt(const csn_delivery *d); /* 1 at the first */
/* A summary, kept in the inbox row and shown by `event trace`: JSON or any text, at most 4,096
 * bytes; a longer one is cut. Copied. The last call counts. */
CSN_API void csn_delivery_result(csn_delivery *d, csn_bytes summary);
/* What is kept of an event at a consumer: CSN_OK and the summary, NUL-terminated ("" when there is
 * none); CSN_REJECTED: the consumer has not finished it (CSN-8002), or ret is too small (CSN-5002). */
CSN_API csn_status csn_result(csn_tx *tx, const char *consumer, const char *event_id, char *ret,
                              size_t ret_size, csn_error *err);

/* A subscription of the configuration that says `handler: application`. */
typedef struct csn_subscription {
    size_t size;          /* sizeof(csn_subscription) */
    const char *consumer; /* its name in the configuration; consumer_name in consumer_inbox */
    csn_handler *handler;
    void *arg; /* given to each call; must outlive csn_close */
} csn_subscription;

/* ---- running ---- */

/* Reads and checks the configuration: config_path, or where NULL says: CONSIGN_CONFIG,
 * ./consign.yaml, ./consign-dev/consign.yaml, /etc/consign/consign.yaml; CONSIGN_… variables change
 * it. drivers: those of the databases it names, to the first NULL; they are static, the list is
 * copied. Opens nothing else. CSN_INVALID: the text has the first mistake, `consign config check`
 * shows all. */
CSN_API csn_status csn_open(const char *config_path, const struct csn_driver *const *drivers,
                            csn **ret, csn_error *err);
/* Before csn_start. The consumer is copied. */
CSN_API csn_status csn_subscribe(csn *c, const csn_subscription *s, csn_error *err);
/* Before csn_start: this process does the daemon's work, too: relays, and subscriptions with SQL
 * handlers. Beside daemons it shares with them, by leases. Without this call events leave only
 * while a `consign serve` runs somewhere. */
CSN_API csn_status csn_serve(csn *c, csn_error *err);

/* Until csn_stop, or until a store turns out to be one that cannot be used: the reason then.
 * Log lines go to standard error as the configuration says. */
CSN_API csn_status csn_run(csn *c, csn_error *err);
/* Takes no more, finishes what is in hand, lets go. Any thread, also a signal handler. */
CSN_API void csn_stop(csn *c);
/* Waits for what still runs, at most relay.stop_timeout and lock_wait; NULL is fine. A thread that
 * does not end by then keeps its memory. */
CSN_API void csn_close(csn *c);

/* For a program with a loop of its own; csn_run is made of these and poll(2). One thread.
 *
 *   csn_start(c, &err);
 *   while (!csn_done(c)) {
 *       … wait until csn_fd(c) is readable, at most csn_timeout(c) …
 *       csn_step(c, &err);
 *   }
 */
CSN_API csn_status csn_start(csn *c, csn_error *err);
CSN_API int csn_fd(const csn *c);           /* -1 before csn_start */
CSN_API csn_usec csn_timeout(const csn *c); /* until the next step, if nothing comes before */
CSN_API csn_status csn_step(csn *c, csn_error *err); /* not CSN_OK: why it stops */
CSN_API int csn_done(const csn *c);                  /* 1: it has stopped */

#ifdef __cplusplus
}
#endif
#endif
