/* log.h: an event name and key=value pairs; text on a terminal, one JSON object a line elsewhere.
 * Never a payload. */
#ifndef CSN_BASE_LOG_H
#define CSN_BASE_LOG_H

#include "base/bytes.h"

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };
enum log_format { LOG_TEXT, LOG_JSON };
enum log_type { LOG_END, LOG_STR, LOG_INT, LOG_USEC, LOG_BYTES };

struct log_field {
    enum log_type type;
    const char *key;
    const char *str;
    int64_t num;
    csn_bytes bytes;
};

#define LSTR(k, v) ((struct log_field){LOG_STR, (k), (v), 0, {NULL, 0}})
#define LINT(k, v) ((struct log_field){LOG_INT, (k), NULL, (int64_t)(v), {NULL, 0}})
#define LUSEC(k, v)                                                                                \
    ((struct log_field){                                                                           \
        LOG_USEC, (k), NULL, (int64_t)(v), {NULL, 0}}) /* a duration, printed as ms */
#define LBYTES(k, v) ((struct log_field){LOG_BYTES, (k), NULL, 0, (v)})
#define LEND         ((struct log_field){LOG_END, NULL, NULL, 0, {NULL, 0}})

/* log_event(LOG_WARN, "relay.stale", (struct log_field[]){LSTR("store", "orders"), LINT("rows", 1),
 * LEND}); any thread. */
void log_event(enum log_level level, const char *event, const struct log_field *fields);
void log_setup(int fd, enum log_format format, enum log_level least);

#endif
