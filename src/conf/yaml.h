/* yaml.h: reads a configuration file: a strict subset of YAML (one document, maps and scalars; no
 * anchors, aliases, tags, lists) into (path, value) pairs with the place where each stands. Every
 * scalar stays text; the table of keys decides what it is. */
#ifndef CSN_CONF_YAML_H
#define CSN_CONF_YAML_H

#include "base/bytes.h"

enum { YAML_FILE_MAX = 1024 * 1024, YAML_PAIRS_MAX = 256 /* in one map */, YAML_VALUE_MAX = 1024 };

struct yaml_place {
    uint32_t line, column; /* from 1, in characters; line 0: nowhere */
    uint32_t width;        /* characters; at least 1 */
};

struct yaml_reader {
    void *arg;
    void (*group)(void *arg, const char *path, struct yaml_place at);
    void (*value)(void *arg, const char *path, const char *value, struct yaml_place at);
    /* way: what to do, or "" */
    void (*mistake)(void *arg, int32_t code, const char *path, struct yaml_place at,
                    const char *text, const char *way);
};

/* Reports all mistakes that it finds. False: the text is not YAML at all, and nothing after the
 * mistake was read. */
bool yaml_read(csn_bytes text, const struct yaml_reader *r);

#endif
