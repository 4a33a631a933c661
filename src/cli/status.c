/* status.c: gathers bounded numbers and judges them.
 *
 * Each count stops at KIT_COUNT_MAX and is then shown as "≥"; each comes from a partial index, so
 * that a million sent rows cost nothing here. Needs are what a person has to look at; there is one
 * for each cause, and with any the exit code is 1. A store that cannot be read is a need, too:
 * nothing is said about what was not seen. */
#include "cli/status.h"
#include "cli/event_change.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { BLOCKED_SHOWN = 20, LATE_LEASES = 5 };

struct status {
    struct legs *l;
    json_t *needs, *stores, *channels, *blocked, *counters;
    csn_usec late; /* an oldest due row older than this is a need */
};

/* ---- needs ---- */

/* what: a stable word for programs; the text is built by the caller. */
static void need(struct status *s, const char *what, const char *store, const char *consumer,
                 int64_t count, const struct text *text) {
    json_t *o = json_object();
    out_put(o, "what", json_string(what));
    out_put(o, "store", out_json_string(store));
    if (consumer)
        out_put(o, "consumer_name", out_json_string(consumer));
    out_put(o, "count", kit_count(count));
    out_put(o, "text", out_json_text((csn_bytes){text->data, text->used}));
    out_append(s->needs, o);
}

static void need_count(struct status *s, const char *what, enum message_id id, const char *store,
                       const char *consumer, int64_t count) {
    char line[400], n[32];
    struct text t;
    if (count <= 0)
        return;
    text_init(&t, line, sizeof line);
    message_add(&t, id, consumer ? consumer : store, kit_count_text(count, n));
    need(s, what, store, consumer, count, &t);
}

static void need_age(struct status *s, const char *what, enum message_id id, const char *store,
                     const char *consumer, csn_usec age) {
    char line[400], d[32];
    struct text t;
    if (age <= s->late)
        return;
    text_init(&t, line, sizeof line);
    message_add(&t, id, consumer ? consumer : store, out_duration(age, d));
    need(s, what, store, consumer, 1, &t);
}

/* ---- one outbox ---- */

static const struct {
    const char *name, *statement;
} counts[] = {{"pending", "status.pending"}, {"due", "status.due"},
              {"sending", "status.sending"}, {"unknown", "status.unknown"},
              {"waiting", "status.waiting"}, {"failed", "status.failed"},
              {"held", "status.held"},       {"strange", "status.strange"}};

struct outbox {
    int64_t count[ARRAY_LEN(counts)];
    csn_usec oldest_due; /* age; -1: nothing is due */
};

static int64_t count_of(const struct outbox *o, const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(counts); i++)
        if (strcmp(name, counts[i].name) == 0)
            return o->count[i];
    return 0;
}

static csn_status read_outbox(struct leg *g, struct outbox *o, csn_error *err) {
    const struct kit_arg arg[] = {KIT_INT(KIT_COUNT_MAX + 1), KIT_INT(g->now)};
    int64_t oldest = 0;
    csn_status st = CSN_OK;
    for (size_t i = 0; st == CSN_OK && i < ARRAY_LEN(counts); i++)
        st = kit_int(g->db, counts[i].statement, arg, strcmp(counts[i].name, "due") == 0 ? 2 : 1,
                     &o->count[i], err);
    if (st == CSN_OK)
        st = kit_int(g->db, "status.oldest_due", &arg[1], 1, &oldest, err);
    o->oldest_due = oldest ? g->now - oldest : -1;
    return st;
}

/* "orders→local", or all brokers where routes lead to several. */
static void channel_name(const struct config *c, const char *store, struct text *t) {
    text_add(t, "%s→", store);
    if (c->routes == 0)
        text_add(t, "%s", c->brokers ? c->broker[0].name : "–");
    size_t start = t->used;
    for (uint32_t i = 0; i < c->routes; i++) {
        bool again = false;
        for (uint32_t k = 0; k < i; k++)
            again = again || strcmp(c->route[k].to, c->route[i].to) == 0;
        if (!again)
            text_add(t, "%s%s", t->used > start ? "," : "", c->route[i].to);
    }
}

static void add_outbox(struct status *s, const struct leg *g, const struct outbox *o) {
    char name[600];
    struct text t;
    json_t *ch = json_object();
    text_init(&t, name, sizeof name);
    channel_name(s->l->config, g->name, &t);
    out_put(ch, "channel", out_json_string(name));
    out_put(ch, "store", out_json_string(g->name));
    out_put(ch, "side", json_string("outbox"));
    for (size_t i = 0; i < ARRAY_LEN(counts); i++)
        out_put(ch, counts[i].name, kit_count(o->count[i]));
    out_put(ch, "oldest_due_ms",
            o->oldest_due < 0 ? json_null() : json_integer(o->oldest_due / 1000));
    out_append(s->channels, ch);
}

static csn_status strange_values(struct status *s, struct leg *g, csn_error *err) {
    json_t *rows, *row;
    size_t i;
    csn_status st = kit_rows(g->db, "status.strange_values", NULL, 0, &rows, err);
    json_array_foreach(rows, i, row) {
        char line[700];
        struct text t;
        text_init(&t, line, sizeof line);
        message_add(&t, MSG_NEED_STRANGE, g->name, (int)row_int(row, "rows_of_status"),
                    row_text(row, "status"), row_text(row, "event_id"));
        need(s, "strange_status", g->name, NULL, row_int(row, "rows_of_status"), &t);
    }
    json_decref(rows);
    return st;
}

static csn_status look_outbox(struct status *s, struct leg *g, const json_t *meta, csn_error *err) {
    struct outbox o = {0};
    csn_status st = read_outbox(g, &o, err);
    if (st != CSN_OK)
        return st;
    add_outbox(s, g, &o);
    need_count(s, "failed", MSG_NEED_FAILED, g->name, NULL, count_of(&o, "failed"));
    if (row_int(meta, "outbox_lanes_held") == 0)
        need_count(s, "no_dispatcher", MSG_NEED_NO_DISPATCHER, g->name, NULL, count_of(&o, "due"));
    need_age(s, "late", MSG_NEED_LATE, g->name, NULL, o.oldest_due);
    return count_of(&o, "strange") ? strange_values(s, g, err) : CSN_OK;
}

/* ---- blocked keys ---- */

static csn_status add_blocked(struct status *s, struct leg *g, const json_t *first,
                              csn_error *err) {
    json_t *head = NULL, *o;
    int64_t followers = 0;
    const struct kit_arg key[] = {
        KIT_TEXT(row_text(first, "event_id")), KIT_TEXT(row_text(first, "aggregate_type")),
        KIT_TEXT(row_text(first, "aggregate_id")), KIT_INT(KIT_COUNT_MAX + 1)};
    csn_status st = kit_row(g->db, "trace.head", key, 3, &head, err);
    if (st == CSN_OK)
        st = kit_int(g->db, "status.blocked_count", &key[1], 3, &followers, err);
    if (st == CSN_OK && strcmp(row_text(head, "own_status"), "waiting") == 0) {
        o = json_object();
        out_put(o, "store", out_json_string(g->name));
        out_put(o, "aggregate_type", out_json_string(row_text(first, "aggregate_type")));
        out_put(o, "aggregate_id", out_json_string(row_text(first, "aggregate_id")));
        out_put(o, "head",
                row_has(head, "event_id") ? out_json_string(row_text(head, "event_id"))
                                          : json_null());
        out_put(o, "head_status",
                row_has(head, "status") ? out_json_string(row_text(head, "status")) : json_null());
        out_put(o, "followers", kit_count(followers));
        out_append(s->blocked, o);
        if (!row_has(head, "event_id"))
            need_count(s, "waits_for_nobody", MSG_NEED_NO_HEAD, g->name, NULL, followers);
    }
    json_decref(head);
    return st;
}

static csn_status look_blocked(struct status *s, struct leg *g, csn_error *err) {
    char type[512] = "", id[512] = "";
    csn_status st = CSN_OK;
    for (int i = 0; st == CSN_OK && i < BLOCKED_SHOWN; i++) {
        json_t *first = NULL;
        st = kit_row(g->db, "status.blocked_next", KIT_ARGS(KIT_TEXT(type), KIT_TEXT(id)), &first,
                     err);
        if (!first)
            return st;
        copy_text(type, sizeof type, row_text(first, "aggregate_type"));
        copy_text(id, sizeof id, row_text(first, "aggregate_id"));
        st = add_blocked(s, g, first, err);
        json_decref(first);
    }
    return st;
}

/* ---- one store ---- */

static csn_status add_counters(struct status *s, struct leg *g, json_t *store, csn_error *err) {
    json_t *rows, *row, *o = json_object();
    size_t i;
    csn_status st = kit_rows(g->db, "status.counters", NULL, 0, &rows, err);
    json_array_foreach(rows, i, row) {
        const char *name = row_text(row, "name");
        const char *sum = json_string_value(json_object_get(s->counters, name));
        out_put(o, name, out_json_int64(row_int(row, "total")));
        out_put(s->counters, name,
                out_json_int64(row_int(row, "total") + (sum ? strtoll(sum, NULL, 10) : 0)));
    }
    json_decref(rows);
    out_put(store, "counters", o);
    return st;
}

static csn_status look_store(struct status *s, struct leg *g, json_t *store, csn_error *err) {
    json_t *meta = NULL;
    csn_status st = kit_row(g->db, "status.meta", KIT_ARGS(KIT_INT(g->now)), &meta, err);
    if (st == CSN_OK) {
        out_put(store, "product", out_json_string(db_product(g->db)));
        out_put(store, "schema", out_json_string(row_text(meta, "schema_text")));
        out_put(store, "members_alive", json_integer(row_int(meta, "members_alive")));
        out_put(store, "outbox_lanes", json_integer(row_int(meta, "outbox_lanes")));
        out_put(store, "outbox_lanes_held", json_integer(row_int(meta, "outbox_lanes_held")));
        st = look_outbox(s, g, meta, err);
    }
    if (st == CSN_OK)
        st = look_blocked(s, g, err);
    if (st == CSN_OK)
        st = add_counters(s, g, store, err);
    json_decref(meta);
    return st;
}

static void store_status(struct status *s, struct leg *g) {
    json_t *store = json_object();
    csn_error err = {0};
    out_put(store, "name", out_json_string(g->name));
    if (g->db && look_store(s, g, store, &err) != CSN_OK)
        leg_lost(g, &err);
    out_put(store, "state", json_string(g->db ? "ok" : "not_readable"));
    if (!g->db) {
        char line[500];
        struct text t;
        text_init(&t, line, sizeof line);
        message_add(&t, MSG_NEED_STORE, g->name, g->error.code, g->error.text);
        out_put(store, "error", kit_error(&g->error));
        need(s, "store_not_readable", g->name, NULL, 1, &t);
    }
    out_append(s->stores, store);
}

/* ---- one subscription ---- */

struct consumer {
    int64_t unacked, waiting, processing, dead, conflict, letters, keys, lost, lanes_held;
    int64_t gaps, overdue;
    csn_usec oldest;   /* age of the oldest unacked copy at the head of its partition; -1 none */
    bool queue, inbox; /* whether they could be read */
};

static csn_status read_queue(struct leg *q, const struct config_subscription *sub,
                             struct consumer *k, csn_error *err) {
    char name[NAME_MAX_ + 8];
    json_t *lanes = NULL;
    int64_t oldest = 0;
    snprintf(name, sizeof name, "sub/%s", sub->consumer);
    csn_status st =
        kit_int(q->db, "status.unacked",
                KIT_ARGS(KIT_TEXT(sub->consumer), KIT_INT(KIT_COUNT_MAX + 1)), &k->unacked, err);
    if (st == CSN_OK)
        st = kit_int(q->db, "status.oldest_unacked", KIT_ARGS(KIT_TEXT(sub->consumer)), &oldest,
                     err);
    if (st == CSN_OK)
        st = kit_row(q->db, "status.sub_lanes", KIT_ARGS(KIT_TEXT(name), KIT_INT(q->now)), &lanes,
                     err);
    k->lanes_held = row_int(lanes, "held");
    k->oldest = oldest ? q->now - oldest : -1;
    json_decref(lanes);
    return st;
}

static csn_status read_inbox(struct leg *g, const struct config_subscription *sub,
                             struct consumer *k, csn_error *err) {
    const struct kit_arg arg[] = {KIT_TEXT(sub->consumer), KIT_INT(KIT_COUNT_MAX + 1)};
    json_t *rows, *row;
    size_t i;
    csn_status st = kit_rows(g->db, "status.inbox", arg, 2, &rows, err);
    json_array_foreach(rows, i, row) {
        int64_t n = row_int(row, "rows_of_state");
        const char *state = row_text(row, "state");
        k->waiting += strcmp(state, "waiting") == 0 ? n : 0;
        k->processing += strcmp(state, "processing") == 0 ? n : 0;
        k->dead += strcmp(state, "dead") == 0 ? n : 0;
        k->conflict += strcmp(state, "conflict") == 0 ? n : 0;
    }
    json_decref(rows);
    if (st == CSN_OK)
        st = kit_int(g->db, "status.dead", arg, 2, &k->letters, err);
    if (st == CSN_OK)
        st = kit_int(g->db, "status.parked_keys", arg, 2, &k->keys, err);
    if (st == CSN_OK)
        st = kit_int(g->db, "status.parked_for_nobody", arg, 2, &k->lost, err);
    if (st == CSN_OK)
        st = kit_int(g->db, "status.gaps", arg, 2, &k->gaps, err);
    if (st == CSN_OK)
        st = kit_int(g->db, "status.overdue_gaps", arg, 2, &k->overdue, err);
    return st;
}

static void add_consumer(struct status *s, const struct config_subscription *sub,
                         const struct consumer *k) {
    char name[NAME_MAX_ * 2 + 8];
    json_t *ch = json_object();
    snprintf(name, sizeof name, "%s→%s", sub->broker, sub->consumer);
    out_put(ch, "channel", out_json_string(name));
    out_put(ch, "store", out_json_string(sub->store));
    out_put(ch, "side", json_string("inbox"));
    out_put(ch, "consumer_name", out_json_string(sub->consumer));
    out_put(ch, "unacked", k->queue ? kit_count(k->unacked) : json_null());
    out_put(ch, "oldest_unacked_ms",
            k->queue && k->oldest >= 0 ? json_integer(k->oldest / 1000) : json_null());
    const struct {
        const char *name;
        int64_t n;
    } list[] = {{"processing", k->processing},
                {"waiting", k->waiting},
                {"dead", k->dead},
                {"conflict", k->conflict},
                {"dead_letters", k->letters},
                {"parked_keys", k->keys},
                {"gaps", k->gaps}};
    for (size_t i = 0; i < ARRAY_LEN(list); i++)
        out_put(ch, list[i].name, k->inbox ? kit_count(list[i].n) : json_null());
    out_append(s->channels, ch);
}

static void consumer_status(struct status *s, const struct config_subscription *sub) {
    struct consumer k = {.oldest = -1};
    csn_error err = {0};
    struct leg *q = legs_find(s->l, kit_queue_store(s->l->config, sub->broker)),
               *g = legs_find(s->l, sub->store);
    k.queue = q && q->db && read_queue(q, sub, &k, &err) == CSN_OK;
    k.inbox = g && g->db && read_inbox(g, sub, &k, &err) == CSN_OK;
    add_consumer(s, sub, &k);
    need_count(s, "dead_letters", MSG_NEED_DEAD, sub->store, sub->consumer, k.letters);
    need_count(s, "conflict", MSG_NEED_CONFLICT, sub->store, sub->consumer, k.conflict);
    need_count(s, "overdue_gaps", MSG_NEED_GAPS, sub->store, sub->consumer, k.overdue);
    need_count(s, "parked_for_nobody", MSG_NEED_PARKED_NO_HEAD, sub->store, sub->consumer, k.lost);
    if (k.queue && k.lanes_held == 0)
        need_count(s, "no_consumer", MSG_NEED_NO_CONSUMER, sub->store, sub->consumer, k.unacked);
    need_age(s, "consumer_late", MSG_NEED_CONSUMER_LATE, sub->store, sub->consumer, k.oldest);
}

/* ---- bindings ---- */

static const struct config_subscription *subscription_of(const struct config *c, const char *store,
                                                         const char *name) {
    for (uint32_t i = 0; i < c->subscriptions; i++) {
        const char *queue = kit_queue_store(c, c->subscription[i].broker);
        if (queue && strcmp(queue, store) == 0 && strcmp(c->subscription[i].consumer, name) == 0)
            return &c->subscription[i];
    }
    return NULL;
}

/* Its declaration is refused, and with it everything that the dispatcher would publish. */
static void need_partitions(struct status *s, const struct leg *g, const char *name, int64_t had,
                            uint32_t wanted, int64_t unacked) {
    char line[700], n[32];
    struct text t;
    text_init(&t, line, sizeof line);
    message_add(&t, MSG_NEED_PARTITIONS, name, (int)had, (int)wanted, kit_count_text(unacked, n));
    need(s, "partitions_differ", g->name, name, unacked, &t);
}

static void need_binding(struct status *s, const struct leg *g, const char *name, int64_t unacked) {
    const struct kit_arg arg[] = {KIT_TEXT(name), KIT_INT(KIT_COUNT_MAX + 1)};
    char line[900], n[32], m[32];
    int64_t parked = 0, here;
    struct text t;
    for (uint32_t i = 0; i < s->l->n; i++) {
        csn_error err = {0};
        here = 0;
        if (s->l->leg[i].db &&
            kit_int(s->l->leg[i].db, "status.parked", arg, 2, &here, &err) == CSN_OK)
            parked += here;
    }
    text_init(&t, line, sizeof line);
    message_add(&t, MSG_NEED_BINDING, name, g->name, kit_count_text(unacked, n),
                kit_count_text(parked, m), name);
    need(s, "binding_left", g->name, name, unacked, &t);
}

static void binding_status(struct status *s, struct leg *g) {
    json_t *rows = NULL, *row;
    csn_error err = {0};
    size_t i;
    csn_status st = g->db ? kit_rows(g->db, "status.bindings", NULL, 0, &rows, &err) : CSN_OK;
    json_array_foreach(rows, i, row) {
        const char *name = row_text(row, "subscription");
        const struct config_subscription *sub = subscription_of(s->l->config, g->name, name);
        int64_t unacked = 0, had = row_int(row, "partitions");
        if (st == CSN_OK)
            st = kit_int(g->db, "status.unacked",
                         KIT_ARGS(KIT_TEXT(name), KIT_INT(KIT_COUNT_MAX + 1)), &unacked, &err);
        if (st == CSN_OK && !sub)
            need_binding(s, g, name, unacked);
        else if (st == CSN_OK && had != sub->partitions && unacked > 0)
            need_partitions(s, g, name, had, sub->partitions, unacked);
    }
    json_decref(rows);
    if (st != CSN_OK)
        leg_lost(g, &err);
}

json_t *status_collect(struct legs *l) {
    struct status s = {l, json_array(), json_array(), json_array(), json_array(), json_object(), 0};
    csn_usec lease = l->config->relay.lease > 0 ? l->config->relay.lease : 30 * (csn_usec)1000000;
    s.late = LATE_LEASES * lease;
    for (uint32_t i = 0; i < l->n; i++)
        store_status(&s, &l->leg[i]);
    for (uint32_t i = 0; i < l->config->subscriptions; i++)
        consumer_status(&s, &l->config->subscription[i]);
    for (uint32_t i = 0; i < l->n; i++)
        binding_status(&s, &l->leg[i]);
    json_t *o = json_object();
    out_put(o, "healthy", json_boolean(json_array_size(s.needs) == 0));
    out_put(o, "needs", s.needs);
    out_put(o, "stores", s.stores);
    out_put(o, "channels", s.channels);
    out_put(o, "blocked", s.blocked);
    out_put(o, "counters", s.counters);
    return o;
}

/* ---- for people ---- */

static void cell_count(struct table *t, const json_t *ch, const char *key) {
    const json_t *n = json_object_get(ch, key);
    const char *value = row_text(n, "value");
    if (!json_is_object(n))
        table_cell(t, "?");
    else
        table_cell_format(t, "%s%s", json_is_true(json_object_get(n, "exact")) ? "" : "≥",
                          strcmp(value, "0") == 0 ? "–" : value);
    if (strcmp(value, "0") != 0)
        table_tone(t, tone_of(key));
}

static void cell_age(struct table *t, const json_t *ch, const char *key) {
    char d[32];
    table_cell(t, row_has(ch, key) ? out_duration(row_int(ch, key) * 1000, d) : "–");
}

static void print_channels(struct out *o, const json_t *channels, const char *side,
                           const char *const *keys, int n, const char *age,
                           const char *const *heads) {
    struct table *t = table_new(n + 2, heads, "lrrrrrrrrr");
    size_t i;
    json_t *ch;
    json_array_foreach(channels, i, ch) {
        if (strcmp(row_text(ch, "side"), side) != 0)
            continue;
        table_cell(t, row_text(ch, "channel"));
        for (int k = 0; k < n; k++)
            cell_count(t, ch, keys[k]);
        cell_age(t, ch, age);
    }
    table_print(t, o);
    if (table_rows(t))
        out_line(o, "%s", "");
    table_free(t);
}

static void print_stores(struct out *o, const json_t *stores) {
    const char *const heads[] = {message(MSG_COL_STORE),   message(MSG_COL_STATE),
                                 message(MSG_COL_PRODUCT), message(MSG_COL_SCHEMA),
                                 message(MSG_COL_ALIVE),   message(MSG_COL_LANES_HELD)};
    struct table *t = table_new(6, heads, "lllrrr");
    size_t i;
    json_t *s;
    json_array_foreach(stores, i, s) {
        table_cell(t, row_text(s, "name"));
        table_cell_state(t, row_text(s, "state"));
        table_cell(t, row_has(s, "product") ? row_text(s, "product") : "–");
        table_cell(t, row_has(s, "schema") ? row_text(s, "schema") : "–");
        table_cell_int(t, row_int(s, "members_alive"));
        table_cell_format(t, "%d/%d", (int)row_int(s, "outbox_lanes_held"),
                          (int)row_int(s, "outbox_lanes"));
    }
    table_print(t, o);
    out_line(o, "%s", "");
    table_free(t);
}

static void print_blocked(struct out *o, const json_t *blocked) {
    const char *const heads[] = {message(MSG_COL_STORE), message(MSG_COL_KEY),
                                 message(MSG_COL_HEAD), message(MSG_COL_STATUS),
                                 message(MSG_COL_FOLLOWERS)};
    struct table *t = table_new(5, heads, "llllr");
    size_t i;
    json_t *b;
    json_array_foreach(blocked, i, b) {
        const char *type = row_text(b, "aggregate_type");
        table_cell(t, row_text(b, "store"));
        table_cell_format(t, "%s%s%s", type, *type ? "/" : "", row_text(b, "aggregate_id"));
        table_cell(t, row_has(b, "head") ? row_text(b, "head") : "–");
        table_cell_state(t, row_has(b, "head_status") ? row_text(b, "head_status") : "–");
        cell_count(t, b, "followers");
    }
    table_print(t, o);
    if (table_rows(t))
        out_line(o, "%s", "");
    table_free(t);
}

void status_print(struct out *o, const json_t *d) {
    static const char *const outbox[] = {"due", "sending", "unknown", "waiting", "failed", "held"};
    static const char *const inbox[] = {"unacked", "waiting", "conflict", "dead_letters"};
    const char *const outbox_heads[] = {message(MSG_COL_CHANNEL), message(MSG_COL_DUE),
                                        message(MSG_COL_SENDING), message(MSG_COL_UNKNOWN),
                                        message(MSG_COL_WAITING), message(MSG_COL_FAILED),
                                        message(MSG_COL_HELD),    message(MSG_COL_OLDEST_DUE)};
    const char *const inbox_heads[] = {message(MSG_COL_CHANNEL), message(MSG_COL_UNACKED),
                                       message(MSG_COL_WAITING), message(MSG_COL_CONFLICT),
                                       message(MSG_COL_DEAD),    message(MSG_COL_OLDEST)};
    size_t i;
    json_t *n;
    char line[1600];
    print_stores(o, json_object_get(d, "stores"));
    print_channels(o, json_object_get(d, "channels"), "outbox", outbox, (int)ARRAY_LEN(outbox),
                   "oldest_due_ms", outbox_heads);
    print_channels(o, json_object_get(d, "channels"), "inbox", inbox, (int)ARRAY_LEN(inbox),
                   "oldest_unacked_ms", inbox_heads);
    print_blocked(o, json_object_get(d, "blocked"));
    json_array_foreach(json_object_get(d, "needs"), i, n)
        out_line(o, "%s!%s %s", tone_begin(o->color, TONE_BAD), tone_end(o->color, TONE_BAD),
                 out_safe_text(row_text(n, "text"), line, sizeof line));
    if (json_array_size(json_object_get(d, "needs")) == 0)
        out_line(o, "%s%s%s", tone_begin(o->color, TONE_GOOD), message(MSG_STATUS_HEALTHY),
                 tone_end(o->color, TONE_GOOD));
}

static void hint(struct command_call *c, const json_t *needs) {
    static const char *const next[][3] = {{"failed", "event list", "--status failed"},
                                          {"strange_status", "event list", "--status strange"},
                                          {"dead_letters", "dead list", ""},
                                          {"no_dispatcher", "serve", ""}};
    size_t k;
    json_t *n;
    json_array_foreach(needs, k, n) {
        for (size_t i = 0; i < ARRAY_LEN(next); i++) {
            if (strcmp(row_text(n, "what"), next[i][0]) != 0)
                continue;
            command_next_to(c, next[i][1], next[i][2]);
            return;
        }
    }
    command_next(c);
}

int status_command(struct command_call *c) {
    struct legs l;
    legs_open(&l, c->config, NULL, DB_READ_ONLY);
    json_t *o = status_collect(&l), *doc = out_document("status");
    bool healthy = json_is_true(json_object_get(o, "healthy"));
    int code = l.n > 0 && legs_lost(&l) == l.n ? 69 : healthy ? 0 : 1;
    if (c->out->format == OUT_TABLE)
        status_print(c->out, o);
    hint(c, json_object_get(o, "needs"));
    json_object_update(doc, o);
    json_decref(o);
    out_json(c->out, doc);
    legs_close(&l);
    return code;
}
