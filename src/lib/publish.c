/* publish.c: the calls on a transaction of the caller's. Arguments are checked here, the same for
 * every store; what the table must judge is judged by the table. */
#include "base/digest.h"
#include "core/tx.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

const char *csn_status_name(csn_status s) {
    return status_name(s);
}

const char *csn_version(void) {
    return CSN_VERSION;
}

/* ---- checks ---- */

static csn_status wrong(csn_error *err, const char *call, const char *what) {
    return error_set(err, CSN_INVALID, ERR_ARGUMENT, "%s: %s", call, what);
}

static csn_status check_tx(const csn_tx *tx, const char *call, bool inside, csn_error *err) {
    if (!tx || !tx->ops || !tx->conn)
        return wrong(err, call, "the tx has no connection");
    if (inside && !tx->ops->inside(tx))
        return error_set(err, CSN_INVALID, ERR_NO_TRANSACTION, "%s: no transaction is open", call);
    return CSN_OK;
}

static csn_status check_text(const char *text, const char *name, size_t most, const char *call,
                             csn_error *err) {
    if (text && strnlen(text, most + 1) <= most)
        return CSN_OK;
    return error_set(err, CSN_INVALID, ERR_ARGUMENT,
                     text ? "%s: %s has more than %zu bytes" : "%s: %s is missing", call, name,
                     most);
}

static csn_status check_key(const char *text, const char *name, const char *call, csn_error *err) {
    csn_status s = check_text(text, name, KEY_LIMIT, call, err);
    return s == CSN_OK && !*text
               ? error_set(err, CSN_INVALID, ERR_ARGUMENT, "%s: %s is empty", call, name)
               : s;
}

/* Characters that are no continuation of another. */
static size_t characters(const char *s) {
    size_t n = 0;
    for (; *s; s++)
        n += (*s & 0xc0) != 0x80;
    return n;
}

static csn_status check_type(const char *text, const char *name, csn_error *err) {
    csn_status s = check_text(text, name, (size_t)4 * TYPE_LIMIT, "publish", err);
    if (s == CSN_OK && characters(text) > TYPE_LIMIT)
        s = error_set(err, CSN_INVALID, ERR_ARGUMENT, "publish: %s has more than %d characters",
                      name, TYPE_LIMIT);
    return s;
}

static csn_status check_id(const char *id, csn_error *err) {
    size_t n = strnlen(id, CSN_ID_SIZE);
    bool plain = n > 0 && n < CSN_ID_SIZE;
    for (size_t i = 0; plain && i < n; i++)
        plain = id[i] > 0x20 && id[i] < 0x7f;
    return plain ? CSN_OK
                 : wrong(err, "publish", "event_id is not 1 to 36 visible ASCII characters");
}

/* A caller of a later version may know more members: they must be unused here. */
static csn_status check_size(const void *given, size_t size, size_t known, const char *call,
                             csn_error *err) {
    const uint8_t *byte = given;
    if (size < known)
        return wrong(err, call, "size is not that of the structure");
    for (size_t i = known; i < size; i++)
        if (byte[i])
            return wrong(err, call, "a member is used that this version does not know");
    return CSN_OK;
}

static csn_status check_bytes(const csn_event *e, csn_error *err) {
    if (!e->payload.data || e->payload.size == 0)
        return wrong(err, "publish", "payload is missing");
    if (e->payload.size > PAYLOAD_LIMIT)
        return error_set(err, CSN_INVALID, ERR_ARGUMENT,
                         "publish: payload has %zu bytes, the limit is %d", e->payload.size,
                         PAYLOAD_LIMIT);
    if (e->headers.size > HEADERS_LIMIT || (e->headers.size && !e->headers.data))
        return error_set(err, CSN_INVALID, ERR_ARGUMENT,
                         "publish: headers have %zu bytes, the limit is %d", e->headers.size,
                         HEADERS_LIMIT);
    return e->expires_in < 0 ? wrong(err, "publish", "expires_in is negative") : CSN_OK;
}

static csn_status check_context(const csn_event *e, csn_error *err) {
    const struct {
        const char *name, *text;
    } context[] = {{"correlation_id", e->correlation_id},
                   {"causation_id", e->causation_id},
                   {"traceparent", e->traceparent},
                   {"tenant", e->tenant}};
    csn_status s = CSN_OK;
    for (size_t i = 0; i < ARRAY_LEN(context) && s == CSN_OK; i++)
        if (context[i].text)
            s = check_text(context[i].text, context[i].name, CONTEXT_LIMIT, "publish", err);
    return s;
}

static csn_status check_event(const csn_event *e, csn_error *err) {
    csn_status s = check_type(e->event_type, "event_type", err);
    if (s == CSN_OK && !*e->event_type)
        s = wrong(err, "publish", "event_type is empty");
    if (s == CSN_OK && e->aggregate_type)
        s = check_type(e->aggregate_type, "aggregate_type", err);
    if (s == CSN_OK)
        s = check_key(e->aggregate_id, "aggregate_id", "publish", err);
    if (s == CSN_OK && e->event_id)
        s = check_id(e->event_id, err);
    if (s == CSN_OK && e->aggregate_version > INT64_MAX)
        s = wrong(err, "publish", "aggregate_version is beyond 63 bits");
    if (s == CSN_OK)
        s = check_bytes(e, err);
    return s == CSN_OK ? check_context(e, err) : s;
}

/* ---- ids ---- */

/* Version 7: 48 bits of milliseconds, then chance. getrandom() of so little never fails once the
 * system has started, and is asked again when a signal came. */
void csn_event_id(char *ret) {
    static const char digit[] = "0123456789abcdef";
    struct timespec t;
    uint8_t raw[16];
    char *to = ret;
    clock_gettime(CLOCK_REALTIME, &t);
    uint64_t ms = (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
    for (int tries = 0; getrandom(raw, sizeof raw, 0) != (ssize_t)sizeof raw; tries++)
        if (errno != EINTR || tries == 1000)
            abort();
    for (int i = 0; i < 6; i++)
        raw[i] = (uint8_t)(ms >> (40 - 8 * i));
    raw[6] = (uint8_t)(0x70 | (raw[6] & 0x0f));
    raw[8] = (uint8_t)(0x80 | (raw[8] & 0x3f));
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            *to++ = '-';
        *to++ = digit[raw[i] >> 4];
        *to++ = digit[raw[i] & 15];
    }
    *to = '\0';
}

/* What a handler publishes is a result of the event in its hand. */
static void inherit(csn_event *e, const struct csn_delivery *d, char id[CSN_ID_SIZE]) {
    const csn_event *of = &d->event;
    if (!e->event_id)
        result_event_id(d->consumer, bytes_of(of->event_id), d->published, id);
    if (!e->causation_id)
        e->causation_id = of->event_id;
    if (!e->correlation_id)
        e->correlation_id = of->correlation_id;
    if (!e->traceparent)
        e->traceparent = of->traceparent;
    if (!e->tenant)
        e->tenant = of->tenant;
}

/* ---- sending ---- */

/* id: a place for the one that is made. */
static csn_status fill_and_publish(csn_tx *tx, csn_event *e, char id[CSN_ID_SIZE], csn_error *err) {
    struct csn_delivery *d = tx->ops->delivery(tx);
    csn_status s = CSN_OK;
    csn_event_id(id);
    if (d)
        inherit(e, d, id);
    if (!e->event_id)
        e->event_id = id;
    if (!e->aggregate_type)
        e->aggregate_type = "";
    if (!e->schema_version)
        e->schema_version = 1;
    if (!e->aggregate_version)
        s = tx->ops->next_version(tx, e->aggregate_type, e->aggregate_id, &e->aggregate_version,
                                  err);
    if (s == CSN_OK)
        s = tx->ops->publish(tx, e, err);
    if (s != CSN_OK)
        return error_prefix(err, "publish"), s;
    if (d)
        d->published++;
    return CSN_OK;
}

csn_status csn_publish(csn_tx *tx, const csn_event *e, char *ret_id, size_t ret_size,
                       csn_error *err) {
    csn_error here;
    csn_event copy;
    char id[CSN_ID_SIZE];
    err = err ? err : &here;
    error_clear(err);
    csn_status s = check_tx(tx, "publish", true, err);
    if (s == CSN_OK && !e)
        s = wrong(err, "publish", "no event is given");
    if (s == CSN_OK && ret_id && ret_size < CSN_ID_SIZE)
        s = wrong(err, "publish", "ret_size is less than CSN_ID_SIZE");
    if (s == CSN_OK)
        s = check_size(e, e->size, sizeof *e, "publish", err);
    if (s == CSN_OK)
        s = check_event(e, err);
    if (s != CSN_OK)
        return s;
    copy = *e;
    s = fill_and_publish(tx, &copy, id, err);
    if (s == CSN_OK && ret_id)
        memcpy(ret_id, copy.event_id, strlen(copy.event_id) + 1);
    return s;
}

csn_status csn_next_version(csn_tx *tx, const char *aggregate_type, const char *aggregate_id,
                            uint64_t *ret, csn_error *err) {
    csn_error here;
    err = err ? err : &here;
    error_clear(err);
    csn_status s = check_tx(tx, "next version", true, err);
    if (s == CSN_OK && !ret)
        s = wrong(err, "next version", "no place for the version is given");
    if (s == CSN_OK && aggregate_type)
        s = check_type(aggregate_type, "aggregate_type", err);
    if (s == CSN_OK)
        s = check_key(aggregate_id, "aggregate_id", "next version", err);
    if (s != CSN_OK)
        return s;
    s = tx->ops->next_version(tx, aggregate_type ? aggregate_type : "", aggregate_id, ret, err);
    return s == CSN_OK ? s : (error_prefix(err, "next version"), s);
}

csn_status csn_lookup(csn_tx *tx, const char *event_id, csn_error *err) {
    csn_error here;
    bool there = false;
    err = err ? err : &here;
    error_clear(err);
    csn_status s = check_tx(tx, "look up", false, err);
    if (s == CSN_OK)
        s = check_key(event_id, "event_id", "look up", err);
    if (s == CSN_OK)
        s = tx->ops->lookup(tx, event_id, &there, err);
    if (s == CSN_OK && !there)
        s = error_set(err, CSN_REJECTED, ERR_NOT_FOUND, "look up: no event %s", event_id);
    return s;
}

/* ---- requests ---- */

static csn_status check_request(csn_tx *tx, const char *scope, const char *key, csn_error *err) {
    csn_status s = check_tx(tx, "request", true, err);
    if (s == CSN_OK)
        s = check_key(scope, "scope", "request", err);
    return s == CSN_OK ? check_key(key, "key", "request", err) : s;
}

static csn_status known_request(const char *digest, const char *was, const char *kept, char *answer,
                                size_t answer_size, csn_error *err) {
    if (strcmp(digest, was) != 0)
        return error_set(err, CSN_REJECTED, ERR_REQUEST_CONFLICT,
                         "request: its key was used with other parameters");
    if (strlen(kept) >= answer_size)
        return error_set(err, CSN_REJECTED, ERR_ARGUMENT,
                         "request: the first answer has %zu bytes, there is room for %zu",
                         strlen(kept), answer_size ? answer_size - 1 : 0);
    memcpy(answer, kept, strlen(kept) + 1);
    return CSN_OK;
}

csn_status csn_request_begin(csn_tx *tx, const char *scope, const char *key, csn_bytes parameters,
                             char *answer, size_t answer_size, int32_t *ret_repeated,
                             csn_error *err) {
    csn_error here;
    char digest[65], was[65] = "";
    bool fresh = false;
    err = err ? err : &here;
    error_clear(err);
    csn_status s = check_request(tx, scope, key, err);
    if (s == CSN_OK &&
        (!ret_repeated || !answer || answer_size == 0 || (parameters.size && !parameters.data)))
        s = wrong(err, "request", "ret_repeated, answer or parameters are missing");
    if (s != CSN_OK)
        return s;
    char *kept = malloc(ANSWER_MAX + 1);
    if (!kept)
        return error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "request");
    kept[0] = answer[0] = '\0';
    sha256_text(parameters, digest);
    s = tx->ops->request_take(tx, scope, key, digest, &fresh, was, kept, err);
    *ret_repeated = s == CSN_OK && !fresh;
    if (*ret_repeated)
        s = known_request(digest, was, kept, answer, answer_size, err);
    free(kept);
    return s;
}

csn_status csn_request_answer(csn_tx *tx, const char *scope, const char *key, const char *answer,
                              csn_error *err) {
    csn_error here;
    bool there = false;
    err = err ? err : &here;
    error_clear(err);
    csn_status s = check_request(tx, scope, key, err);
    if (s == CSN_OK)
        s = check_text(answer, "answer", ANSWER_MAX, "request", err);
    if (s == CSN_OK)
        s = tx->ops->request_answer(tx, scope, key, answer, &there, err);
    return s == CSN_OK && !there ? wrong(err, "request", "it was not begun, or has its answer") : s;
}

/* ---- in a handler ---- */

const csn_event *csn_delivery_event(const csn_delivery *d) {
    return &d->event;
}

const char *csn_delivery_consumer(const csn_delivery *d) {
    return d->consumer;
}

uint32_t csn_delivery_attempt(const csn_delivery *d) {
    return d->attempt;
}

void csn_delivery_result(csn_delivery *d, csn_bytes summary) {
    d->summary_size = summary.size < SUMMARY_MAX ? summary.size : SUMMARY_MAX;
    if (d->summary_size)
        memcpy(d->summary, summary.data, d->summary_size);
    d->summary[d->summary_size] = '\0';
}

csn_status csn_result(csn_tx *tx, const char *consumer, const char *event_id, char *ret,
                      size_t ret_size, csn_error *err) {
    csn_error here;
    char summary[SUMMARY_MAX + 1] = "";
    bool finished = false;
    err = err ? err : &here;
    error_clear(err);
    csn_status s = check_tx(tx, "result", false, err);
    if (s == CSN_OK)
        s = check_key(consumer, "consumer", "result", err);
    if (s == CSN_OK)
        s = check_key(event_id, "event_id", "result", err);
    if (s == CSN_OK && !ret)
        s = wrong(err, "result", "no place for the summary is given");
    if (s == CSN_OK)
        s = tx->ops->result(tx, consumer, event_id, &finished, summary, err);
    if (s == CSN_OK && !finished)
        return error_set(err, CSN_REJECTED, ERR_NOT_FOUND, "result: %s has not finished %s",
                         consumer, event_id);
    if (s == CSN_OK && strlen(summary) >= ret_size)
        return error_set(err, CSN_REJECTED, ERR_ARGUMENT, "result: it has %zu bytes",
                         strlen(summary));
    if (s == CSN_OK)
        memcpy(ret, summary, strlen(summary) + 1);
    return s;
}
