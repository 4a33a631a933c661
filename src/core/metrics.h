/* metrics.h: counters, one struct per store, one table. */
#ifndef CSN_CORE_METRICS_H
#define CSN_CORE_METRICS_H

#include "base/bytes.h"

struct counters {
#define X(name, help) uint64_t name;
#include "core/metrics.def"
#undef X
};

size_t counters_json(const struct counters *c, char *buffer,
                     size_t size);  /* {"claims":"1",…}, zeros left out; length */
const char *counter_name(size_t i); /* NULL past the end */
const char *counter_help(size_t i);

#endif
