/* handler.h: what a subscription runs for an event: SQL statements from a file, or a C function.
 *
 * The form of a handler file is a public contract:
 *
 *   -- handler NAME                       once, first
 *   SQL STATEMENT;                        ends with ; at the end of a line; with :binds
 *   -- expect rows N [else goto LABEL]    of the statement before; without else: verdict retry
 *   -- expect rows >= N [else goto LABEL]
 *   -- emit TYPE for AGGREGATE_TYPE BIND payload JSON-WITH-BINDS
 *   -- verdict VERDICT ["text with :binds"]
 *   -- label LABEL
 *
 * Rows are those a writing statement changed, or those a SELECT found. A bind is an event's column
 * (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, schema_version, tenant,
 * traceparent, correlation_id, causation_id), consumer_name, payload (all of it) or payload.a.0.b;
 * JSON null and an absent column are NULL, an object or array is its compact JSON text, a field
 * that is not there makes the event poison. In a template a bind in the place of a value becomes
 * JSON, one inside a string is spliced in, escaped. "::" is never a bind. A handler may read
 * everything, write the application's tables and add outbox rows; consign's own tables and the
 * schema are closed to it. A remark must not begin with a word that looks like a directive.
 *
 * Every path must reach a verdict; labels are jumped to forwards only, so that every handler ends.
 * Statements that control the transaction (BEGIN, COMMIT, ROLLBACK, SAVEPOINT, RELEASE, ATTACH,
 * DETACH, PRAGMA, VACUUM) are refused at load. */
#ifndef CSN_CORE_HANDLER_H
#define CSN_CORE_HANDLER_H

#include "base/error.h"
#include "core/op.h"

enum { HANDLER_STEPS_MAX = 200, HANDLER_BINDS_MAX = 64, HANDLER_FILE_MAX = 256 * 1024 };

enum step_kind { STEP_SQL, STEP_EMIT, STEP_VERDICT };

struct bind {
    const char *name;      /* "payload.a.b", "event_id"; without the colon */
    uint32_t offset, size; /* of ":name" in the text it stands in */
};

struct step {
    enum step_kind kind;
    uint32_t line;           /* in the file, from 1 */
    const char *text;        /* SQL as written · payload template · text of the verdict or NULL */
    const struct bind *bind; /* in text, in order */
    uint32_t binds;
    /* STEP_SQL */
    bool expects, at_least;
    int64_t rows;
    int32_t otherwise; /* step to go to; -1: verdict retry */
    /* STEP_EMIT */
    const char *event_type, *aggregate_type;
    const struct bind *key; /* aggregate_id of the result event */
    /* STEP_VERDICT */
    csn_verdict verdict;
};

struct sql_handler {
    struct arena arena; /* owns everything below */
    const char *name, *path;
    struct step *step;
    uint32_t steps;
};

/* For tests and the simulator: decides from the message alone; run by the fakes. */
typedef csn_verdict handler_function(const struct message *m, void *arg);

struct handler {
    const struct sql_handler *sql; /* or */
    csn_handler *application;      /* or */
    handler_function *function;
    void *arg;
};

/* Parses a handler file. All mistakes at once go to report (three-line form with caret), the first
 * into err (CSN-4001). On success the caller ends with sql_handler_free. */
csn_status sql_handler_parse(const char *path, csn_bytes file, struct sql_handler *ret,
                             struct text *report, csn_error *err) MUST_USE;
void sql_handler_free(struct sql_handler *h);

/* "done" … and back; -1: no such verdict. */
const char *verdict_name(csn_verdict v);
csn_verdict verdict_find(const char *name);

#endif
