/* run.h: runs a compiled SQL handler against any store: resolves binds from the event, renders
 * payloads of result events, decides where to go on after a count of rows. The store gives three
 * functions; the rest is the same for all of them. */
#ifndef CSN_STORE_RUN_H
#define CSN_STORE_RUN_H

#include "core/handler.h"

enum value_kind { VALUE_NULL, VALUE_INT, VALUE_REAL, VALUE_TEXT };

struct value {
    enum value_kind kind;
    int64_t integer;
    double real;
    csn_bytes text;
};

struct result_event {
    char event_id[TOKEN_SIZE]; /* derived from consumer, event id and position: the same at every
                                  try */
    const char *event_type, *aggregate_type;
    csn_bytes aggregate_id, payload, causation_id, correlation_id, traceparent, tenant;
};

struct handler_store {
    void *conn;
    /* Runs one statement with values for its binds; *ret_rows is the number of rows changed.
     * CSN_REJECTED: the statement failed for itself (constraint); any other failure ends the batch.
     */
    csn_status (*sql)(void *conn, const struct step *s, const struct value *values,
                      int64_t *ret_rows, csn_error *err);
    /* Draws the aggregate's next version under its lock and writes the row. */
    csn_status (*emit)(void *conn, const struct result_event *e, csn_error *err);
};

struct handler_outcome {
    csn_verdict verdict;
    uint32_t emitted;
    int32_t code;
    char text[ERROR_TEXT_MAX];
};

/* Returns CSN_OK with an outcome (also for poison: a missing payload field, CSN-4003; a failed
 * statement: retry, CSN-4002), or the store's own failure. The caller's savepoint is around it. */
csn_status handler_run(const struct sql_handler *h, const struct handler_store *store,
                       const char *consumer, const struct message *m, struct handler_outcome *ret,
                       csn_error *err) MUST_USE;

/* The identity digest of a delivery: SHA-256 over event type, schema version, key and payload, as
 * text. */
void message_digest(const struct message *m, char ret[65]);

#endif
