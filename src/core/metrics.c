/* metrics.c: counters as names, words and JSON. Numbers are JSON strings, because a reader may hold
 * numbers as doubles. */
#include "core/metrics.h"
#include <inttypes.h>
#include <stdio.h>

static const struct {
    const char *name, *help;
    size_t offset;
} counter[] = {
#define X(name, help) {#name, help, offsetof(struct counters, name)},
#include "core/metrics.def"
#undef X
};

const char *counter_name(size_t i) {
    return i < ARRAY_LEN(counter) ? counter[i].name : NULL;
}

const char *counter_help(size_t i) {
    return i < ARRAY_LEN(counter) ? counter[i].help : NULL;
}

/* Always whole JSON: an entry that does not fit together with the closing brace is left out with
 * all after it. */
size_t counters_json(const struct counters *c, char *buffer, size_t size) {
    if (size < sizeof "{}") {
        if (size > 0) {
            buffer[0] = '\0';
        }
        return 0;
    }
    size_t used = 1;
    buffer[0] = '{';
    for (size_t i = 0; i < ARRAY_LEN(counter); i++) {
        uint64_t value;
        memcpy(&value, (const char *)c + counter[i].offset, sizeof value);
        if (value == 0) {
            continue;
        }
        size_t room = size - used - 1; /* one for the brace */
        int n = snprintf(buffer + used, room, "%s\"%s\":\"%" PRIu64 "\"", used > 1 ? "," : "",
                         counter[i].name, value);
        if (n < 0 || (size_t)n >= room) {
            break;
        }
        used += (size_t)n;
    }
    buffer[used++] = '}';
    buffer[used] = '\0';
    return used;
}
