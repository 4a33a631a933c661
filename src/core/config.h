/* config.h: what a configuration file says, after checking. One table, config.def, describes every
 * key: path, type, unit, limits, default, reload class, words; parser, checks, `config explain`,
 * the environment names and the reference page follow from it. This struct is what the rest of the
 * program reads. */
#ifndef CSN_CORE_CONFIG_H
#define CSN_CORE_CONFIG_H

#include "base/error.h"
#include "core/order.h"
#include "core/retry.h"

enum { STORES_MAX = 8, BROKERS_MAX = 8, ROUTES_MAX = 16, SUBSCRIPTIONS_MAX = 32, URL_MAX_ = 512 };
enum { EVENT_TYPES_MAX = ORDER_RULES_MAX, MACHINES_MAX = 16 };

struct config_store {
    char name[NAME_MAX_];
    char
        url[URL_MAX_]; /* sqlite: paths are made absolute against the configuration file's folder */
    uint32_t apply;    /* apply workers per subscription */
    bool migrate;      /* true: apply the schema at start */
};

struct config_broker {
    char name[NAME_MAX_];
    char type[16];         /* embedded */
    char store[NAME_MAX_]; /* embedded: the store with the queue */
    csn_usec confirm_timeout;
};

struct config_route {
    char name[NAME_MAX_];
    char match[NAME_MAX_ * 2]; /* globs over event_type */
    char to[NAME_MAX_];        /* broker */
};

struct config_subscription {
    char consumer[NAME_MAX_];
    char broker[NAME_MAX_];
    char store[NAME_MAX_];
    char match[NAME_MAX_ * 2];
    uint32_t partitions;
    char criticality[12];        /* critical normal bulk */
    bool at_most_once;           /* acked first, tried once, no inbox */
    bool application;            /* its handler is a function of a program that links the library */
    char handler_path[URL_MAX_]; /* SQL handler file, absolute; empty with application */
    struct retry_policy retry;
};

struct config_event {
    char type[NAME_MAX_];
    char policy[12];        /* none snapshot command */
    char states[NAME_MAX_]; /* command: a machine */
    char to[STATE_SIZE];    /* command: the state that the event leads to */
    csn_usec gap_deadline;
};

struct config_machine {
    char name[NAME_MAX_];
    char moves[MOVES_SIZE];
};

struct config {
    char path[URL_MAX_]; /* of the file; empty: none */
    char node[NAME_MAX_];
    struct {
        uint32_t batch_rows;
        size_t batch_bytes;
        csn_usec probe_min, probe_max;
        csn_usec lease;
        csn_usec lock_wait;       /* longest wait for a lock of the store */
        csn_usec confirm_timeout; /* of the brokers, the longest */
        csn_usec stop_timeout;    /* for a clean stop */
        struct retry_policy retry;
    } relay;
    struct {
        csn_usec grace;
    } reconcile;
    struct config_store store[STORES_MAX];
    struct config_broker broker[BROKERS_MAX];
    struct config_route route[ROUTES_MAX]; /* first match wins; none: all to the first broker */
    struct config_subscription subscription[SUBSCRIPTIONS_MAX];
    struct config_event event[EVENT_TYPES_MAX];
    struct config_machine machine[MACHINES_MAX];
    uint32_t stores, brokers, routes, subscriptions, events, machines;
    char log_format[8], log_level[8],
        language[8]; /* auto text json · error warn info debug · en zh-CN */
};

/* ---- the table ---- */

enum config_type {
    CONFIG_TEXT, /* any text */
    CONFIG_NAME, /* of something in the section that choices names */
    CONFIG_INT,
    CONFIG_DURATION, /* 1ms 30s 10m 24h 7d; held in microseconds */
    CONFIG_SIZE,     /* 4096 64KiB 4MiB; held in bytes */
    CONFIG_CHOICE,   /* one of choices; held as its text */
    CONFIG_SWITCH,   /* one of two choices; held as a bool */
    CONFIG_JITTER,   /* full, equal, 20%; held in a retry_policy */
    CONFIG_URL,      /* sqlite:PATH; held absolute */
    CONFIG_PATH,     /* of a file; held absolute */
    CONFIG_MATCH     /* globs over event types, comma-separated */
};

enum config_section {
    CONFIG_GLOBAL,
    CONFIG_STORE,
    CONFIG_BROKER,
    CONFIG_ROUTE,
    CONFIG_SUBSCRIPTION,
    CONFIG_EVENT,
    CONFIG_MACHINE,
    CONFIG_SECTION_NR
};

enum config_reload {
    CONFIG_RELOAD_RESTART, /* a daemon takes the change at its next start */
    CONFIG_RELOAD_LIVE,    /* or when it is told to read its configuration again */
    CONFIG_RELOAD_COMMAND  /* the next command takes it */
};

enum { CONFIG_REQUIRED = 1, CONFIG_SECRET = 2 };
enum { CONFIG_PATH_MAX = 160, CONFIG_NAME_LONGEST = 48 };

struct config_key {
    const char *path; /* "stores.*.url" */
    enum config_type type;
    const char *otherwise; /* the default as it would be written; NULL: none */
    int64_t least, most;
    const char *choices; /* "auto|text|json" */
    enum config_section section;
    size_t offset; /* of its field in struct config, or in the section's struct */
    size_t size;   /* of that field */
    unsigned bits; /* CONFIG_REQUIRED, CONFIG_SECRET */
    enum config_reload reload;
    const char *since;
    const char *help[2]; /* by enum language */
};

const struct config_key *config_key_at(size_t i); /* NULL past the end */
const struct config_key *
config_key_find(const char *path); /* "stores.orders.url" or "stores.*.url"; NULL: no such key */

/* What a path is: a key, a group of keys ("relay", "stores", "stores.orders"), both
 * ("routes.x.match"), or nothing (0). */
enum { CONFIG_IS_KEY = 1, CONFIG_IS_GROUP = 2 };
unsigned config_what(const char *path);
/* The nearest key or group beside the last part of path: "relay.leese" gives "lease". False:
 * nothing is near. */
bool config_guess(const char *path, char *ret, size_t size);
/* "a duration between 1s and 1h, such as 30s", in the reader's language. */
void config_expected(const struct config_key *k, struct text *ret);

/* ---- filling ---- The texts of errors are in the reader's language and ready for the first line.
 */

void config_init(struct config *c, const char *file); /* defaults; file is absolute, or empty */
/* Makes "stores.orders" or the like with its defaults when it is not there. 1003 for a bad name, or
 * too many. */
csn_status config_name(struct config *c, const char *path, csn_error *err) MUST_USE;
/* Sets one key; makes the named thing it belongs to. 1002 for an unknown path, 1003 for a bad
 * value. */
csn_status config_put(struct config *c, const char *path, const char *value,
                      csn_error *err) MUST_USE;
/* The value as it would be written; false: no such path, or nothing of that name. */
bool config_get(const struct config *c, const char *path, char *ret, size_t size);
/* The name of the i-th thing of a section as a path ("stores.orders"); false past the end. */
bool config_thing_at(const struct config *c, enum config_section s, uint32_t i, char *ret,
                     size_t size);

/* The checks between values: names that are used exist, times fit together, what is required is
 * there. Calls found once per mistake with the path that it is about and what to do, or ""; fills
 * what follows from several keys. Returns the number of mistakes. */
typedef void config_found(void *arg, const char *path, int32_t code, const char *text,
                          const char *way);
uint32_t config_check(struct config *c, config_found *found, void *arg);
/* The moves of a machine, built in or of the file; NULL: no such machine. */
const char *config_moves(const struct config *c, const char *name);

/* Takes the live keys of next, which was checked, over into now, and tells of every difference: key
 * is NULL where a whole thing came or went, or the order of the routes is another. before or after
 * is NULL where there is no value. What needs a restart stays as it is in now. */
typedef void config_changed(void *arg, const struct config_key *key, const char *path,
                            const char *before, const char *after);
void config_reload(struct config *now, const struct config *next, config_changed *f, void *arg);

bool config_parse_duration(const char *s, csn_usec *ret);
bool config_parse_size(const char *s, int64_t *ret);
bool config_parse_int(const char *s, int64_t *ret);
void config_duration_text(csn_usec d, char *ret, size_t size);

#endif
