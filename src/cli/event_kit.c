/* event_kit.c: legs, rows and coverage. */
#include "cli/event_kit.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- legs ---- */

static void leg_open(struct leg *g, const struct config_store *s, unsigned flags) {
    *g = (struct leg){.name = s->name, .url = s->url};
    if (db_open(s->url, flags, &g->db, &g->error) == CSN_OK)
        g->now = db_now(g->db);
}

void legs_open(struct legs *l, const struct config *c, const char *only, unsigned flags) {
    *l = (struct legs){.config = c};
    for (uint32_t i = 0; i < c->stores; i++)
        if (!only || strcmp(only, c->store[i].name) == 0)
            leg_open(&l->leg[l->n++], &c->store[i], flags);
}

void legs_close(struct legs *l) {
    for (uint32_t i = 0; i < l->n; i++)
        db_close(l->leg[i].db);
    l->n = 0;
}

struct leg *legs_find(struct legs *l, const char *name) {
    for (uint32_t i = 0; name && i < l->n; i++)
        if (strcmp(l->leg[i].name, name) == 0)
            return &l->leg[i];
    return NULL;
}

void leg_lost(struct leg *g, const csn_error *err) {
    g->error = *err;
    db_close(g->db);
    g->db = NULL;
}

uint32_t legs_lost(const struct legs *l) {
    uint32_t lost = 0;
    for (uint32_t i = 0; i < l->n; i++)
        lost += !l->leg[i].db;
    return lost;
}

void legs_talk(const struct legs *l, struct out *o) {
    char name[NAME_MAX_ * 4], why[sizeof l->leg[0].error.text * 4], line[1200];
    for (uint32_t i = 0; i < l->n; i++) {
        const struct leg *g = &l->leg[i];
        if (g->db)
            continue;
        struct text t;
        text_init(&t, line, sizeof line);
        message_add(&t, MSG_OPS_STORE_LOST, out_safe_text(g->name, name, sizeof name),
                    g->error.code, out_safe_text(g->error.text, why, sizeof why));
        out_talk(o, "%s", line);
    }
}

/* ---- rows ---- */

/* Columns that are not text: small ones stay numbers in JSON. What ends in _at or _until is an
 * instant. */
static const struct {
    const char *name;
    bool small;
} numbers[] = {
    {"seq", false},
    {"aggregate_version", false},
    {"schema_version", true},
    {"attempts", true},
    {"failures", true},
    {"tries", true},
    {"waits_for", true},
    {"sent_by", false},
    {"broker_part", true},
    {"broker_pos", false},
    {"priority", true},
    {"payload_size", true},
    {"duplicates", true},
    {"entity_version", false},
    {"attempt", true},
    {"member", false},
    {"code", true},
    {"id", false},
    {"pos", false},
    {"part", true},
    {"deliveries", true},
    {"letters", false},
    {"lane", true},
    {"epoch", false},
    {"alive", true},
    {"lanes", true},
    {"held", true},
    {"total", false},
    {"last_seq", false},
    {"rows_looked_at", false},
    {"rows_of_state", false},
    {"rows_of_status", false},
    {"cut", true},
    {"members_alive", true},
    {"outbox_lanes", true},
    {"outbox_lanes_held", true},
    {"partitions", true},
};

enum form { FORM_TEXT, FORM_SMALL, FORM_BIG, FORM_TIME };

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

static enum form form_of(const char *name) {
    if (strcmp(name, "at") == 0 || ends_with(name, "_at") || ends_with(name, "_until"))
        return ends_with(name, "looked_at") ? FORM_BIG : FORM_TIME;
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
        if (strcmp(name, numbers[i].name) == 0)
            return numbers[i].small ? FORM_SMALL : FORM_BIG;
    return FORM_TEXT;
}

static json_t *row_of(const struct stmt *s) {
    json_t *row = json_object();
    for (int i = 0; i < stmt_columns(s); i++) {
        const char *name = stmt_column(s, i);
        if (stmt_is_null(s, i))
            out_put(row, name, json_null());
        else if (form_of(name) == FORM_TEXT)
            out_put(row, name, out_json_text(stmt_bytes(s, i)));
        else
            out_put(row, name, json_integer(stmt_int(s, i)));
    }
    return row;
}

static csn_status prepared(struct db *d, const char *name, const struct kit_arg *arg, int n,
                           struct stmt **ret, csn_error *err) {
    char at[80];
    snprintf(at, sizeof at, "@%s", name);
    csn_status st = db_prepare(d, at, ret, err);
    for (int i = 0; st == CSN_OK && i < n; i++) {
        if (arg[i].number)
            stmt_bind_int(*ret, i + 1, arg[i].integer);
        else
            stmt_bind_text(*ret, i + 1, arg[i].text);
    }
    return st;
}

csn_status kit_rows(struct db *d, const char *name, const struct kit_arg *arg, int n, json_t **ret,
                    csn_error *err) {
    struct stmt *s = NULL;
    bool row = false;
    *ret = json_array();
    csn_status st = prepared(d, name, arg, n, &s, err);
    while (st == CSN_OK && (st = stmt_next(s, &row, err)) == CSN_OK && row)
        out_append(*ret, row_of(s));
    stmt_close(s);
    if (st != CSN_OK)
        json_array_clear(*ret);
    return st;
}

csn_status kit_row(struct db *d, const char *name, const struct kit_arg *arg, int n, json_t **ret,
                   csn_error *err) {
    struct stmt *s = NULL;
    bool row = false;
    *ret = NULL;
    csn_status st = prepared(d, name, arg, n, &s, err);
    if (st == CSN_OK)
        st = stmt_next(s, &row, err);
    if (st == CSN_OK && row)
        *ret = row_of(s);
    stmt_close(s);
    return st;
}

csn_status kit_change(struct db *d, const char *name, const struct kit_arg *arg, int n,
                      int64_t *ret_changed, csn_error *err) {
    struct stmt *s = NULL;
    bool row = false;
    *ret_changed = 0;
    csn_status st = prepared(d, name, arg, n, &s, err);
    if (st == CSN_OK)
        st = stmt_next(s, &row, err);
    if (st == CSN_OK)
        *ret_changed = db_changes(d);
    stmt_close(s);
    return st;
}

csn_status kit_int(struct db *d, const char *name, const struct kit_arg *arg, int n, int64_t *ret,
                   csn_error *err) {
    struct stmt *s = NULL;
    bool row = false;
    csn_status st = prepared(d, name, arg, n, &s, err);
    if (st == CSN_OK)
        st = stmt_next(s, &row, err);
    if (st == CSN_OK && row && !stmt_is_null(s, 0))
        *ret = stmt_int(s, 0);
    stmt_close(s);
    return st;
}

const char *row_text(const json_t *row, const char *key) {
    const char *s = json_string_value(json_object_get(row, key));
    return s ? s : "";
}

int64_t row_int(const json_t *row, const char *key) {
    return json_integer_value(json_object_get(row, key));
}

bool row_has(const json_t *row, const char *key) {
    const json_t *v = json_object_get(row, key);
    return v && !json_is_null(v);
}

/* ---- forms ---- */

static json_t *public_value(const char *name, json_t *v) {
    if (!json_is_integer(v))
        return json_incref(v);
    enum form form = form_of(name);
    if (form == FORM_TIME)
        return out_json_time(json_integer_value(v));
    return form == FORM_BIG ? out_json_int64(json_integer_value(v)) : json_incref(v);
}

json_t *kit_public(const json_t *row, bool keep_null) {
    json_t *to = json_object(), *v;
    const char *name;
    json_object_foreach((json_t *)(uintptr_t)row, name, v) {
        if (json_is_null(v) && !keep_null)
            continue;
        if (strcmp(name, "code") == 0 && json_is_integer(v)) {
            char code[24];
            snprintf(code, sizeof code, "CSN-%04" PRId64, (int64_t)json_integer_value(v));
            out_put(to, name, json_integer_value(v) ? json_string(code) : json_null());
        } else if (strcmp(name, "payload_keys") == 0 && json_is_string(v)) {
            json_t *keys = json_loads(json_string_value(v), 0, NULL);
            out_put(to, name, keys ? keys : json_null());
        } else {
            out_put(to, name, public_value(name, v));
        }
    }
    return to;
}

json_t *kit_count(int64_t n) {
    json_t *o = json_object();
    bool exact = n <= KIT_COUNT_MAX;
    out_put(o, "value", out_json_int64(exact ? n : KIT_COUNT_MAX));
    out_put(o, "exact", json_boolean(exact));
    return o;
}

const char *kit_count_text(int64_t n, char ret[32]) {
    if (n > KIT_COUNT_MAX)
        copy_text(ret, 32, "≥10,000");
    else if (n == 0)
        copy_text(ret, 32, "–");
    else
        snprintf(ret, 32, "%" PRId64, n);
    return ret;
}

json_t *kit_error(const csn_error *e) {
    json_t *o = json_object();
    char code[24];
    snprintf(code, sizeof code, "CSN-%04d", (int)e->code);
    out_put(o, "code", json_string(code));
    out_put(o, "text", out_json_string(e->text));
    return o;
}

/* ---- who is concerned ---- */

const char *kit_broker_for(const struct config *c, const char *event_type) {
    for (uint32_t i = 0; i < c->routes; i++)
        if (glob_list_matches(c->route[i].match, bytes_of(event_type)))
            return c->route[i].to;
    return c->routes == 0 && c->brokers > 0 ? c->broker[0].name : NULL;
}

bool kit_covers(const struct config *c, const struct config_subscription *s,
                const char *event_type) {
    const char *broker = kit_broker_for(c, event_type);
    return broker && strcmp(broker, s->broker) == 0 &&
           glob_list_matches(s->match, bytes_of(event_type));
}

const char *kit_queue_store(const struct config *c, const char *broker) {
    for (uint32_t i = 0; broker && i < c->brokers; i++)
        if (strcmp(c->broker[i].name, broker) == 0 && c->broker[i].store[0])
            return c->broker[i].store;
    return NULL;
}

csn_status kit_error_set(csn_error *err, csn_status status, int32_t code, enum message_id id,
                         const char *a, const char *b, const char *c) {
    char line[sizeof err->text];
    struct text t;
    text_init(&t, line, sizeof line);
    message_add(&t, id, a, b, c);
    return error_set(err, status, code, "%s", line);
}

static csn_status several(const char *event_id, uint32_t times, csn_error *err) {
    char line[sizeof err->text];
    struct text t;
    text_init(&t, line, sizeof line);
    message_add(&t, MSG_LOCATE_SEVERAL, event_id, times);
    return error_set(err, CSN_INVALID, ERR_USAGE, "%s", line);
}

csn_status kit_locate(struct legs *l, const char *event_id, struct leg **ret, csn_error *err) {
    struct leg *found = NULL;
    const struct leg *lost = NULL;
    uint32_t times = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        struct leg *g = &l->leg[i];
        int64_t seq = 0;
        csn_error e = {0};
        if (g->db && kit_int(g->db, "find.id", KIT_ARGS(KIT_TEXT(event_id)), &seq, &e) != CSN_OK)
            leg_lost(g, &e);
        if (!g->db)
            lost = g;
        else if (seq) {
            found = g;
            times++;
        }
    }
    *ret = found;
    if (times > 1)
        return several(event_id, times, err);
    if (times == 1)
        return CSN_OK;
    if (lost)
        return error_set(err, lost->error.status, lost->error.code, "store %s: %s", lost->name,
                         lost->error.text);
    return kit_error_set(err, CSN_REJECTED, ERR_NOT_FOUND, MSG_LOCATE_NOWHERE, event_id, "", "");
}

/* ---- payloads ---- */

static csn_status reveal(struct db *d, const char *statement, struct kit_arg key,
                         const char *action, const char *target, const char *reason, json_t **ret,
                         csn_error *err) {
    char actor[200];
    json_t *row = NULL;
    csn_status st = db_begin(d, err);
    if (st == CSN_OK)
        st = kit_row(d, statement, &key, 1, &row, err);
    if (st == CSN_OK && !row)
        st = error_set(err, CSN_REJECTED, ERR_NOT_FOUND, "%s", target);
    if (st == CSN_OK)
        st = audit_append(d, command_actor(actor, sizeof actor), action, target, reason, NULL, NULL,
                          err);
    if (st == CSN_OK)
        st = db_commit(d, err);
    else
        db_rollback(d);
    if (st == CSN_OK)
        *ret = json_incref(json_object_get(row, "payload"));
    json_decref(row);
    return st;
}

csn_status kit_reveal(const char *url, const char *statement, struct kit_arg key,
                      const char *action, const char *target, const char *reason, json_t **ret,
                      csn_error *err) {
    struct db *d = NULL;
    csn_status st = db_open(url, 0, &d, err);
    if (st == CSN_OK)
        st = reveal(d, statement, key, action, target, reason, ret, err);
    db_close(d);
    return st;
}

void kit_payload_line(const json_t *row, struct text *t) {
    json_t *keys = json_loads(row_text(row, "payload_keys"), 0, NULL), *key;
    size_t i;
    message_add(t, MSG_PAYLOAD_SIZE, (int)row_int(row, "payload_size"));
    json_array_foreach(keys, i, key)
        text_add(t, "%s%s", i ? ", " : " ", json_string_value(key) ? json_string_value(key) : "");
    json_decref(keys);
}

static void print_value(struct table *t, json_t *v) {
    char *dump = NULL;
    if (json_is_string(v))
        table_cell(t, json_string_value(v));
    else if ((dump = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY)))
        table_cell(t, dump);
    else
        table_cell(t, "–");
    free(dump);
}

void kit_print_object(struct out *o, const json_t *object) {
    const char *const heads[] = {message(MSG_COL_NAME), message(MSG_COL_VALUE)};
    struct table *t = table_new(2, heads, "ll");
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)object, key, v) {
        table_cell(t, key);
        print_value(t, v);
    }
    table_print(t, o);
    table_free(t);
}

bool kit_store_flag(struct command_call *c, const char **ret_store, int *ret_exit) {
    *ret_store = command_text(c, "store");
    if (!*ret_store)
        return true;
    for (uint32_t i = 0; i < c->config->stores; i++)
        if (strcmp(c->config->store[i].name, *ret_store) == 0)
            return true;
    csn_error err = {0};
    (void)kit_error_set(&err, CSN_INVALID, ERR_USAGE, MSG_LOCATE_NO_STORE, *ret_store, "", "");
    *ret_exit = out_error(c->out, &err, "--store", NULL);
    return false;
}
