/* event_kit.h: what the operator's commands share: the configured stores as legs, rows as JSON
 * objects, and which consumers an event concerns.
 *
 * A leg that could not be opened or read keeps its error, and every command says so: nothing that
 * was not looked at is reported as empty. Rows are plain inside (instants and numbers as JSON
 * integers), so that one row serves both the decision and the answer; kit_public turns a row into
 * the form that people's programs get: times as RFC 3339, ids and 64-bit numbers as strings. */
#ifndef CSN_CLI_EVENT_KIT_H
#define CSN_CLI_EVENT_KIT_H

#include "base/message.h"
#include "cli/command.h"
#include "store/store.h"

enum {
    KIT_COUNT_MAX = 10000 /* counts are exact up to here */,
    KIT_WINDOW = 20000 /* rows a search looks at where no index helps */
};

struct leg {
    const char *name, *url;
    struct db *db; /* NULL: not readable, see error */
    csn_error error;
    csn_usec now; /* the store's own clock at opening */
};

struct legs {
    const struct config *config;
    struct leg leg[STORES_MAX];
    uint32_t n;
};

/* Opens the configured stores, or only the one called `only`. Never fails: what could not be opened
 * is a leg with an error. */
void legs_open(struct legs *l, const struct config *c, const char *only, unsigned flags);
void legs_close(struct legs *l);
struct leg *legs_find(struct legs *l,
                      const char *name); /* NULL: not configured, or not asked for */
void leg_lost(
    struct leg *g,
    const csn_error *err); /* a query failed: from here on the leg counts as not readable */
uint32_t legs_lost(const struct legs *l);
/* Reports on stderr each leg that cannot be read. */
void legs_talk(const struct legs *l, struct out *o);

/* One value for a statement. */
struct kit_arg {
    const char *text; /* NULL with number false: NULL is bound */
    int64_t integer;
    bool number;
};
#define KIT_TEXT(s) ((struct kit_arg){(s), 0, false})
#define KIT_INT(n)  ((struct kit_arg){NULL, (n), true})
#define KIT_ARGS(...)                                                                              \
    (const struct kit_arg[]){__VA_ARGS__}, (int)ARRAY_LEN(((const struct kit_arg[]){__VA_ARGS__}))

/* Runs "@name" and gives all rows as an array (never NULL; empty on failure). The caller lets it
 * go. */
csn_status kit_rows(struct db *d, const char *name, const struct kit_arg *arg, int n, json_t **ret,
                    csn_error *err) MUST_USE;
/* The first row, or NULL without a row. */
csn_status kit_row(struct db *d, const char *name, const struct kit_arg *arg, int n, json_t **ret,
                   csn_error *err) MUST_USE;
/* Runs a change; *ret_changed: rows. */
csn_status kit_change(struct db *d, const char *name, const struct kit_arg *arg, int n,
                      int64_t *ret_changed, csn_error *err) MUST_USE;
/* The first column of the first row; *ret stays as it is without a row or with NULL. */
csn_status kit_int(struct db *d, const char *name, const struct kit_arg *arg, int n, int64_t *ret,
                   csn_error *err) MUST_USE;

/* Members of a row. */
const char *row_text(const json_t *row, const char *key); /* "" when missing or null */
int64_t row_int(const json_t *row, const char *key);      /* 0 when missing or null */
bool row_has(const json_t *row, const char *key);         /* there and not null */

/* A new object in public form; members that are null are kept out unless keep_null. */
json_t *kit_public(const json_t *row, bool keep_null);
/* {"value":"10000","exact":false} for a count that was bounded at KIT_COUNT_MAX + 1. */
json_t *kit_count(int64_t n);
const char *kit_count_text(int64_t n, char ret[32]); /* "≥10,000"; "–" for 0 */
json_t *kit_error(const csn_error *e);               /* {"code":"CSN-2001","text":…} */

/* The broker that takes an event of this type; NULL: none does. */
const char *kit_broker_for(const struct config *c, const char *event_type);
/* Whether a subscription is given events of this type. */
bool kit_covers(const struct config *c, const struct config_subscription *s,
                const char *event_type);
/* The store in which a broker keeps its queue; NULL: not in a store. */
const char *kit_queue_store(const struct config *c, const char *broker);

/* An error in the reader's words: a message of at most three texts. Returns status. */
csn_status kit_error_set(csn_error *err, csn_status status, int32_t code, enum message_id id,
                         const char *a, const char *b, const char *c);

/* Finds the one store that has this event in its outbox. CSN_REJECTED with CSN-8002 (nowhere; legs
 * that could not be read are named, and then the code is that of the leg), CSN_INVALID with
 * CSN-8001 (in several: --store is needed). */
csn_status kit_locate(struct legs *l, const char *event_id, struct leg **ret,
                      csn_error *err) MUST_USE;

/* Reads a payload and writes into the audit chain that it was read, in one transaction. The text is
 * as stored. */
csn_status kit_reveal(const char *url, const char *statement, struct kit_arg key,
                      const char *action, const char *target, const char *reason, json_t **ret,
                      csn_error *err) MUST_USE;
/* "312 bytes, keys order, sku, qty" for a row with payload_size and payload_keys. */
void kit_payload_line(const json_t *row, struct text *t);

/* Prints an object as a table of two columns, name and value. */
void kit_print_object(struct out *o, const json_t *object);

/* Checks --store; false: it was reported and *ret_exit is set. */
bool kit_store_flag(struct command_call *c, const char **ret_store, int *ret_exit);

#endif
