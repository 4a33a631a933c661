/* config.h: what a configuration file says, after checking. One table, config.def, describes every key: path, type, unit, limits,
 * default, reload class, words; parser, checks, `config explain`, the environment names and the reference page follow from it.
 * This struct is what the rest of the program reads. */
#ifndef CSN_CORE_CONFIG_H
#define CSN_CORE_CONFIG_H

#include "core/retry.h"

enum { STORES_MAX = 8, BROKERS_MAX = 8, ROUTES_MAX = 16, SUBSCRIPTIONS_MAX = 32, URL_MAX_ = 512 };

struct config_store {
    char name[NAME_MAX_];
    char url[URL_MAX_];        /* sqlite: paths are made absolute against the configuration file's folder */
    uint32_t apply;            /* apply workers per subscription */
    bool migrate;              /* true: apply the schema at start */
};

struct config_broker {
    char name[NAME_MAX_];
    char type[16];             /* embedded */
    char store[NAME_MAX_];     /* embedded: the store with the queue */
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
    char handler_path[URL_MAX_]; /* SQL handler file, absolute */
    struct retry_policy retry;
};

struct config {
    char path[URL_MAX_];       /* of the file; empty: none */
    char node[NAME_MAX_];
    struct {
        uint32_t batch_rows;
        size_t batch_bytes;
        csn_usec probe_min, probe_max;
        csn_usec lease;
        csn_usec lock_wait;    /* longest wait for a lock of the store */
        csn_usec confirm_timeout; /* of the brokers, the longest */
        csn_usec stop_timeout; /* for a clean stop */
        struct retry_policy retry;
    } relay;
    struct { csn_usec grace; } reconcile;
    struct config_store store[STORES_MAX];
    struct config_broker broker[BROKERS_MAX];
    struct config_route route[ROUTES_MAX];           /* first match wins; none: all to the first broker */
    struct config_subscription subscription[SUBSCRIPTIONS_MAX];
    uint32_t stores, brokers, routes, subscriptions;
    char log_format[8], log_level[8], language[8];   /* auto text json · error warn info debug · en zh-CN */
};

#endif
