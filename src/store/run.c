/* run.c: runs a handler's steps against a store.
 *
 * The payload is parsed once a message; integers of 64 bits stay exact. What is wrong with the
 * message (a payload that is no JSON, a field that is not there) is the verdict poison, what is
 * wrong with a statement is the verdict retry, and only a failure of the store itself is a status.
 * A run touches nothing but its outcome and its own arena, so that the same event gives the same
 * statements and the same result ids at every try.
 *
 * Result ids: SHA-256 over consumer, event id and the number of the step, so that another path
 * through a handler gives other ids. */
#include "store/run.h"
#include "base/digest.h"
#include "core/tx.h"
#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { ARENA_LIMIT = 8 * 1024 * 1024, PAYLOAD_MAX = 256 * 1024 };

struct run {
    const struct sql_handler *h;
    const struct handler_store *store;
    const char *consumer;
    const struct message *m;
    struct arena arena;
    json_t *payload;
    struct handler_outcome *out;
    bool ended; /* the outcome is final */
};

/* A bind found: a value of the event, or a node of its payload. */
struct found {
    struct value value;
    json_t *node; /* NULL: not of the payload */
};

/* ---- outcomes ---- */

static void end(struct run *r, csn_verdict verdict, int32_t code) {
    r->out->verdict = verdict;
    r->out->code = code;
    r->out->text[0] = 0;
    r->ended = true;
}

static csn_status poison(struct run *r, int32_t code, const char *what, const char *name) {
    end(r, CSN_POISON, code);
    snprintf(r->out->text, sizeof r->out->text, "%s%s", what, name);
    return CSN_OK;
}

static csn_status no_memory(csn_error *err) {
    return error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "handler: out of memory");
}

/* A statement that failed for itself is tried again by policy; anything else is the store's. */
static csn_status statement_failed(struct run *r, const struct step *s, csn_status st,
                                   const csn_error *why) {
    if (st != CSN_REJECTED)
        return st;
    end(r, CSN_RETRY, ERR_HANDLER_SQL);
    snprintf(r->out->text, sizeof r->out->text, "%s:%u: %.150s", r->h->name, s->line, why->text);
    return CSN_OK;
}

/* ---- text ---- */

/* Text that grows in the arena; what is outgrown stays there until the run is over. */
struct out {
    struct arena *arena;
    char *data;
    size_t size, used;
    bool failed;
};

static void add(struct out *o, csn_bytes b) {
    if (o->failed || b.size == 0)
        return;
    if (b.size > o->size - o->used) {
        size_t size = 2 * (o->used + b.size) + 256;
        char *data = arena_take(o->arena, size);
        o->failed = !data;
        if (!data)
            return;
        if (o->used)
            memcpy(data, o->data, o->used);
        o->data = data;
        o->size = size;
    }
    memcpy(o->data + o->used, b.data, b.size);
    o->used += b.size;
}

/* As it stands between the quotes of a JSON string. */
static void add_escaped(struct out *o, csn_bytes b) {
    const unsigned char *s = b.data;
    size_t from = 0;
    for (size_t i = 0; i < b.size; i++) {
        char code[8];
        if (s[i] >= 0x20 && s[i] != '"' && s[i] != '\\')
            continue;
        snprintf(code, sizeof code, s[i] < 0x20 ? "\\u%04x" : "\\%c", s[i]);
        add(o, (csn_bytes){s + from, i - from});
        add(o, bytes_of(code));
        from = i + 1;
    }
    add(o, (csn_bytes){s + from, b.size - from});
}

static void add_string(struct out *o, csn_bytes b) {
    add(o, bytes_of("\""));
    add_escaped(o, b);
    add(o, bytes_of("\""));
}

/* The shortest decimal that reads back as the same number, and still looks like one that is not
 * whole. */
static void real_text(double real, char ret[32]) {
    for (int precision = 15; precision <= 17; precision++) {
        snprintf(ret, 32, "%.*g", precision, real);
        if (strtod(ret, NULL) == real)
            break;
    }
    if (!strpbrk(ret, ".eE"))
        copy_text(ret + strlen(ret), 3, ".0");
}

static void add_node(struct out *o, json_t *node);

static void add_members(struct out *o, json_t *object) {
    const char *comma = "";
    for (void *i = json_object_iter(object); i; i = json_object_iter_next(object, i)) {
        add(o, bytes_of(comma));
        add_string(o, (csn_bytes){json_object_iter_key(i), json_object_iter_key_len(i)});
        add(o, bytes_of(":"));
        add_node(o, json_object_iter_value(i));
        comma = ",";
    }
}

static void add_elements(struct out *o, json_t *array) {
    size_t n = json_array_size(array);
    for (size_t i = 0; i < n; i++) {
        add(o, bytes_of(i ? "," : ""));
        add_node(o, json_array_get(array, i));
    }
}

static void add_number(struct out *o, json_t *node) {
    char number[32];
    if (json_is_integer(node))
        snprintf(number, sizeof number, "%" JSON_INTEGER_FORMAT, json_integer_value(node));
    else
        real_text(json_real_value(node), number);
    add(o, bytes_of(number));
}

/* As compact JSON. Recursion is as deep as the parser let the payload be (2,048). jansson's own
 * writer is not used because it shows 19.9 as 19.899999999999999. */
static void add_node(struct out *o, json_t *node) {
    switch (json_typeof(node)) {
    case JSON_OBJECT:
        add(o, bytes_of("{"));
        add_members(o, node);
        add(o, bytes_of("}"));
        break;
    case JSON_ARRAY:
        add(o, bytes_of("["));
        add_elements(o, node);
        add(o, bytes_of("]"));
        break;
    case JSON_STRING:
        add_string(o, (csn_bytes){json_string_value(node), json_string_length(node)});
        break;
    case JSON_INTEGER:
    case JSON_REAL:
        add_number(o, node);
        break;
    default:
        add(o, bytes_of(json_is_null(node) ? "null" : json_is_true(node) ? "true" : "false"));
    }
}

/* ---- values ---- */

static struct value text_value(csn_bytes b) {
    return (struct value){.kind = VALUE_TEXT, .text = b};
}

static struct value optional_value(csn_bytes b) {
    return b.size ? text_value(b) : (struct value){.kind = VALUE_NULL};
}

static struct value int_value(int64_t n) {
    return (struct value){.kind = VALUE_INT, .integer = n};
}

static struct value event_value(const struct run *r, const char *name) {
    const struct message *m = r->m;
    const struct {
        const char *name;
        struct value value;
    } field[] = {
        {"event_id", text_value(m->id)},
        {"aggregate_type", text_value(m->aggregate_type)},
        {"aggregate_id", text_value(m->aggregate_id)},
        {"aggregate_version", int_value((int64_t)m->version)},
        {"event_type", text_value(m->event_type)},
        {"schema_version", int_value(m->schema_version)},
        {"tenant", optional_value(m->tenant)},
        {"traceparent", optional_value(m->traceparent)},
        {"correlation_id", optional_value(m->correlation_id)},
        {"causation_id", optional_value(m->causation_id)},
        {"consumer_name", text_value(bytes_of(r->consumer))},
        {"payload", text_value(m->payload)},
    };
    for (size_t i = 0; i < ARRAY_LEN(field); i++)
        if (strcmp(field[i].name, name) == 0)
            return field[i].value;
    return (struct value){.kind = VALUE_NULL}; /* the parser let no other name pass */
}

static json_t *child(json_t *node, const char *part, size_t size) {
    size_t index = 0;
    if (json_is_object(node))
        return json_object_getn(node, part, size);
    if (!json_is_array(node))
        return NULL;
    for (size_t i = 0; i < size; i++) {
        if (part[i] < '0' || part[i] > '9' || index > PAYLOAD_MAX)
            return NULL;
        index = index * 10 + (size_t)(part[i] - '0');
    }
    return json_array_get(node, index);
}

static json_t *node_at(const struct run *r, const char *path) {
    json_t *node = r->payload;
    while (node && *path) {
        size_t n = strcspn(path, ".");
        node = child(node, path, n);
        path += n + (path[n] == '.');
    }
    return node;
}

static csn_bytes dump(struct run *r, json_t *node) {
    struct out o = {.arena = &r->arena};
    add_node(&o, node);
    return o.failed ? (csn_bytes){NULL, 0} : (csn_bytes){o.data, o.used};
}

static csn_status node_value(struct run *r, json_t *node, struct value *ret, csn_error *err) {
    switch (json_typeof(node)) {
    case JSON_NULL:
        *ret = (struct value){.kind = VALUE_NULL};
        break;
    case JSON_INTEGER:
        *ret = int_value(json_integer_value(node));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        *ret = int_value(json_is_true(node));
        break;
    case JSON_REAL:
        *ret = (struct value){.kind = VALUE_REAL, .real = json_real_value(node)};
        break;
    case JSON_STRING:
        *ret = text_value((csn_bytes){json_string_value(node), json_string_length(node)});
        break;
    default:
        *ret = text_value(dump(r, node));
        if (!ret->text.data)
            return no_memory(err);
    }
    return CSN_OK;
}

/* Sets ended, and the verdict poison, when the field is not there. */
static csn_status find(struct run *r, const struct bind *b, struct found *ret, csn_error *err) {
    *ret = (struct found){.value = {.kind = VALUE_NULL}};
    if (strncmp(b->name, "payload.", 8) != 0) {
        ret->value = event_value(r, b->name);
        return CSN_OK;
    }
    ret->node = node_at(r, b->name + 8);
    if (!ret->node)
        return poison(r, ERR_PAYLOAD_FIELD, "the payload lacks ", b->name + 8);
    return node_value(r, ret->node, &ret->value, err);
}

/* ---- text with binds ---- */

/* Plain words for people, keys and the inside of strings. NULL is nothing; a boolean is a word, not
 * its number. */
static csn_bytes plain(const struct found *f, char scratch[32]) {
    if (f->node && json_is_boolean(f->node))
        return bytes_of(json_is_true(f->node) ? "true" : "false");
    if (f->value.kind == VALUE_TEXT)
        return f->value.text;
    scratch[0] = 0;
    if (f->value.kind == VALUE_INT)
        snprintf(scratch, 32, "%" PRId64, f->value.integer);
    if (f->value.kind == VALUE_REAL)
        real_text(f->value.real, scratch);
    return bytes_of(scratch);
}

/* A whole JSON value. The whole payload goes in as it came: it was parsed. */
static void add_value(struct out *o, const struct bind *b, const struct found *f) {
    char scratch[32];
    if (f->node)
        add_node(o, f->node);
    else if (strcmp(b->name, "payload") == 0)
        add(o, f->value.text);
    else if (f->value.kind == VALUE_TEXT)
        add_string(o, f->value.text);
    else
        add(o, f->value.kind == VALUE_NULL ? bytes_of("null") : plain(f, scratch));
}

/* Is the end of this piece of the template inside a string, when its begin was so? */
static bool inside_after(csn_bytes piece, bool inside) {
    const char *s = piece.data;
    for (size_t i = 0; i < piece.size; i++) {
        if (inside && s[i] == '\\')
            i++;
        else if (s[i] == '"')
            inside = !inside;
    }
    return inside;
}

enum form { FORM_PLAIN, FORM_JSON };

/* Replaces the binds of the step's text. */
static csn_status render(struct run *r, const struct step *s, enum form form, csn_bytes *ret,
                         csn_error *err) {
    struct out o = {.arena = &r->arena};
    char scratch[32];
    size_t from = 0;
    bool inside = false;
    for (uint32_t i = 0; i < s->binds && !r->ended; i++) {
        const struct bind *b = &s->bind[i];
        csn_bytes piece = {s->text + from, b->offset - from};
        struct found f;
        csn_status st = find(r, b, &f, err);
        if (st != CSN_OK)
            return st;
        add(&o, piece);
        inside = inside_after(piece, inside);
        if (form == FORM_PLAIN)
            add(&o, plain(&f, scratch));
        else if (inside)
            add_escaped(&o, plain(&f, scratch));
        else
            add_value(&o, b, &f);
        from = b->offset + b->size;
    }
    add(&o, bytes_of(s->text + from));
    *ret = (csn_bytes){o.used ? o.data : "", o.used};
    return o.failed ? no_memory(err) : CSN_OK;
}

/* ---- steps ---- */

static csn_status run_sql(struct run *r, const struct step *s, int64_t *ret_rows, csn_error *err) {
    struct value value[HANDLER_BINDS_MAX];
    csn_error why = {0};
    for (uint32_t i = 0; i < s->binds; i++) {
        struct found f;
        csn_status st = find(r, &s->bind[i], &f, err);
        if (st != CSN_OK || r->ended)
            return st;
        value[i] = f.value;
    }
    csn_status st = r->store->sql(r->store->conn, s, value, ret_rows, &why);
    if (st == CSN_OK)
        return CSN_OK;
    if (err)
        *err = why;
    return statement_failed(r, s, st, &why);
}

static bool as_expected(const struct step *s, int64_t rows) {
    return !s->expects || (s->at_least ? rows >= s->rows : rows == s->rows);
}

static csn_status step_sql(struct run *r, const struct step *s, uint32_t *next, csn_error *err) {
    int64_t rows = 0;
    csn_status st = run_sql(r, s, &rows, err);
    if (st != CSN_OK || r->ended || as_expected(s, rows))
        return st;
    if (s->otherwise >= 0) {
        *next = (uint32_t)s->otherwise;
        return CSN_OK;
    }
    end(r, CSN_RETRY, ERR_HANDLER_RETRY);
    snprintf(r->out->text, sizeof r->out->text,
             "%s:%u: rows %s%" PRId64 " expected, %" PRId64 " found", r->h->name, s->line,
             s->at_least ? ">= " : "", s->rows, rows);
    return CSN_OK;
}

static csn_status emit(struct run *r, const struct step *s, struct result_event *e,
                       csn_error *err) {
    csn_error why = {0};
    csn_status st = r->store->emit(r->store->conn, e, &why);
    if (st == CSN_OK) {
        r->out->emitted++;
        return CSN_OK;
    }
    if (err)
        *err = why;
    return statement_failed(r, s, st, &why);
}

static csn_status step_emit(struct run *r, const struct step *s, uint32_t position,
                            csn_error *err) {
    struct result_event e = {.event_type = s->event_type,
                             .aggregate_type = s->aggregate_type,
                             .causation_id = r->m->id,
                             .correlation_id = r->m->correlation_id,
                             .traceparent = r->m->traceparent,
                             .tenant = r->m->tenant};
    struct found key;
    char scratch[32];
    csn_status st = find(r, s->key, &key, err);
    if (st != CSN_OK || r->ended)
        return st;
    e.aggregate_id = plain(&key, scratch);
    if (e.aggregate_id.size == 0)
        return poison(r, ERR_PAYLOAD_FIELD, "the key of a result event is empty: ", s->key->name);
    st = render(r, s, FORM_JSON, &e.payload, err);
    if (st != CSN_OK || r->ended)
        return st;
    if (e.payload.size > PAYLOAD_MAX)
        return poison(r, ERR_HANDLER_POISON,
                      "the payload of a result event is too large: ", e.event_type);
    result_event_id(r->consumer, r->m->id, position, e.event_id);
    return emit(r, s, &e, err);
}

static int32_t verdict_code(csn_verdict v) {
    static const int32_t code[] = {[CSN_EARLY] = ERR_HANDLER_EARLY,
                                   [CSN_CONFLICT] = ERR_HANDLER_CONFLICT,
                                   [CSN_POISON] = ERR_HANDLER_POISON,
                                   [CSN_RETRY] = ERR_HANDLER_RETRY,
                                   [CSN_OUTCOME_UNKNOWN] = ERR_HANDLER_UNKNOWN};
    return v >= 0 && (size_t)v < ARRAY_LEN(code) ? code[v] : 0;
}

static csn_status step_verdict(struct run *r, const struct step *s, csn_error *err) {
    csn_bytes text = {NULL, 0};
    csn_status st = s->text ? render(r, s, FORM_PLAIN, &text, err) : CSN_OK;
    if (st != CSN_OK || r->ended)
        return st;
    end(r, s->verdict, verdict_code(s->verdict));
    copy_bytes_text(r->out->text, sizeof r->out->text, text);
    const struct error_row *row = text.size == 0 && r->out->code ? error_find(r->out->code) : NULL;
    if (row)
        copy_text(r->out->text, sizeof r->out->text, row->title[0]);
    return CSN_OK;
}

/* Jumps go forwards only, so this ends after at most as many steps as there are. */
static csn_status run_steps(struct run *r, csn_error *err) {
    csn_status st = CSN_OK;
    for (uint32_t i = 0, next; i < r->h->steps && st == CSN_OK && !r->ended; i = next) {
        const struct step *s = &r->h->step[i];
        next = i + 1;
        if (s->kind == STEP_SQL)
            st = step_sql(r, s, &next, err);
        else if (s->kind == STEP_EMIT)
            st = step_emit(r, s, i, err);
        else
            st = step_verdict(r, s, err);
    }
    if (st == CSN_OK && !r->ended)
        st = error_set(err, CSN_FATAL, ERR_BUG, "handler %s: a path ended without a verdict",
                       r->h->name);
    return st;
}

/* jansson reports some allocations that failed as a mistake of the text. A payload must not be
 * called poison for that, so its allocator remembers. */
static _Thread_local bool starved;

static void *json_memory(size_t size) {
    void *p = malloc(size);
    starved |= !p;
    return p;
}

static void watch_json_memory(void) {
    json_set_alloc_funcs(json_memory, free);
}

static csn_status parse_payload(struct run *r, csn_error *err) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    json_error_t e;
    pthread_once(&once, watch_json_memory);
    starved = false;
    r->payload = json_loadb(r->m->payload.size ? r->m->payload.data : "", r->m->payload.size,
                            JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
    if (r->payload)
        return CSN_OK;
    if (starved || json_error_code(&e) == json_error_out_of_memory)
        return no_memory(err);
    end(r, CSN_POISON, ERR_PAYLOAD_JSON);
    snprintf(r->out->text, sizeof r->out->text,
             "the payload is not JSON, or has a number beyond 64 bits, at byte %d", e.position);
    return CSN_OK;
}

csn_status handler_run(const struct sql_handler *h, const struct handler_store *store,
                       const char *consumer, const struct message *m, struct handler_outcome *ret,
                       csn_error *err) {
    struct run r = {.h = h, .store = store, .consumer = consumer, .m = m, .out = ret};
    *ret = (struct handler_outcome){0};
    arena_init(&r.arena, ARENA_LIMIT);
    csn_status st = parse_payload(&r, err);
    if (st == CSN_OK && !r.ended)
        st = run_steps(&r, err);
    json_decref(r.payload);
    arena_free(&r.arena);
    return st;
}

/* ---- identity ---- */

static void digest_field(struct sha256 *sha, csn_bytes b) {
    char size[24];
    snprintf(size, sizeof size, "%zu:", b.size);
    sha256_add(sha, bytes_of(size));
    sha256_add(sha, b);
}

void message_digest(const struct message *m, char ret[65]) {
    static const char digit[] = "0123456789abcdef";
    struct sha256 sha;
    uint8_t raw[32];
    char version[16];
    snprintf(version, sizeof version, "%u", m->schema_version);
    sha256_init(&sha);
    digest_field(&sha, m->event_type);
    digest_field(&sha, bytes_of(version));
    digest_field(&sha, m->aggregate_type);
    digest_field(&sha, m->aggregate_id);
    digest_field(&sha, m->payload);
    sha256_end(&sha, raw);
    for (int i = 0; i < 32; i++) {
        ret[2 * i] = digit[raw[i] >> 4];
        ret[2 * i + 1] = digit[raw[i] & 15];
    }
    ret[64] = 0;
}
