/* tx.c: see tx.h. */
#include "core/tx.h"
#include "base/digest.h"
#include <stdio.h>

static const char *string_of(csn_bytes b) {
    return b.size ? b.data : "";
}

static const char *string_or_null(csn_bytes b) {
    return b.size ? b.data : NULL;
}

void delivery_init(struct csn_delivery *d, const struct message *m, const char *consumer) {
    d->event = (csn_event){.size = sizeof d->event,
                           .event_id = string_of(m->id),
                           .aggregate_type = string_of(m->aggregate_type),
                           .aggregate_id = string_of(m->aggregate_id),
                           .aggregate_version = m->version,
                           .event_type = string_of(m->event_type),
                           .schema_version = m->schema_version,
                           .priority = m->priority,
                           .payload = m->payload,
                           .headers = m->headers,
                           .correlation_id = string_or_null(m->correlation_id),
                           .causation_id = string_or_null(m->causation_id),
                           .traceparent = string_or_null(m->traceparent),
                           .tenant = string_or_null(m->tenant),
                           .expires_in = m->expires_in == CSN_USEC_NEVER ? 0 : m->expires_in};
    d->consumer = consumer;
    d->attempt = m->attempts;
    d->published = 0;
    d->summary_size = 0;
    d->summary[0] = '\0';
}

void result_event_id(const char *consumer, csn_bytes event_id, uint32_t position,
                     char ret[TOKEN_SIZE]) {
    struct sha256 sha;
    uint8_t raw[32];
    char number[16];
    snprintf(number, sizeof number, "%u", position);
    sha256_init(&sha);
    sha256_add(&sha, bytes_of(consumer));
    sha256_add(&sha, (csn_bytes){"", 1});
    sha256_add(&sha, event_id);
    sha256_add(&sha, (csn_bytes){"", 1});
    sha256_add(&sha, bytes_of(number));
    sha256_end(&sha, raw);
    sha256_uuid(raw, ret);
}
