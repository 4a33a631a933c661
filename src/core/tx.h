/* tx.h: what stands behind csn_tx and csn_delivery: the verbs that a store's library gives for a
 * transaction of the caller's, and the event in a handler's hand. */
#ifndef CSN_CORE_TX_H
#define CSN_CORE_TX_H

#include "base/error.h"
#include "core/op.h"

enum {
    ANSWER_MAX = 65536, /* of a request */
    SUMMARY_MAX = 4096, /* of a handler */
    PAYLOAD_LIMIT = 262144,
    HEADERS_LIMIT = 16384,
    CONTEXT_LIMIT = 512,
    KEY_LIMIT = 128,
    TYPE_LIMIT = 80 /* characters */
};

/* Arguments were checked; nothing here opens or ends a transaction. Errors as csn_publish says. */
struct csn_tx_ops {
    bool (*inside)(const csn_tx *tx); /* is a transaction open */
    /* e->event_id and e->aggregate_version are filled. */
    csn_status (*publish)(csn_tx *tx, const csn_event *e, csn_error *err);
    csn_status (*next_version)(csn_tx *tx, const char *type, const char *id, uint64_t *ret,
                               csn_error *err);
    csn_status (*lookup)(csn_tx *tx, const char *event_id, bool *ret_there, csn_error *err);
    /* Takes the key, or finds it: *ret_new, and what it was taken with. answer: ANSWER_MAX + 1. */
    csn_status (*request_take)(csn_tx *tx, const char *scope, const char *key, const char *digest,
                               bool *ret_new, char ret_digest[65], char *answer, csn_error *err);
    csn_status (*request_answer)(csn_tx *tx, const char *scope, const char *key, const char *answer,
                                 bool *ret_there, csn_error *err);
    /* *ret_finished: done or refused. summary: SUMMARY_MAX + 1. */
    csn_status (*result)(csn_tx *tx, const char *consumer, const char *event_id, bool *ret_finished,
                         char *summary, csn_error *err);
    struct csn_delivery *(*delivery)(const csn_tx *tx); /* of a handler's tx; else NULL */
};

/* The id of a handler's result event: the same at every run for this position among them. */
void result_event_id(const char *consumer, csn_bytes event_id, uint32_t position,
                     char ret[TOKEN_SIZE]);

struct csn_delivery {
    csn_event event;
    const char *consumer;
    uint32_t attempt;
    uint32_t published; /* by its handler so far */
    size_t summary_size;
    char summary[SUMMARY_MAX + 1];
};

/* Strings of m are NUL-terminated behind their size, as arena_copy leaves them. */
void delivery_init(struct csn_delivery *d, const struct message *m, const char *consumer);

#endif
