/* event.c: show, find, list.
 *
 * Every answer says what it looked at. Open states have partial indexes and are listed whole up to
 * the limit; sent and cancelled rows, and searches by trace, correlation or causation id, look at a
 * window of the newest rows, and the window is part of the answer: "none" always means "none in
 * there". */
#include "cli/event.h"
#include <inttypes.h>
#include <stdio.h>

/* ---- lists ---- */

static const struct {
    const char *status, *list, *count;
} listing[] = {
    {"pending", "list.pending", "status.pending"}, {"sending", "list.sending", "status.sending"},
    {"unknown", "list.unknown", "status.unknown"}, {"waiting", "list.waiting", "status.waiting"},
    {"failed", "list.failed", "status.failed"},    {"held", "list.held", "status.held"},
    {"strange", "list.strange", "status.strange"}, {"sent", "list.sent", NULL},
    {"cancelled", "list.cancelled", NULL},
};

bool event_list_status(const char *status) {
    for (size_t i = 0; i < ARRAY_LEN(listing); i++)
        if (strcmp(status, listing[i].status) == 0)
            return true;
    return false;
}

/* Rows by their seq, raw, appended with their store. */
static csn_status add_lines(struct leg *g, const json_t *seqs, json_t *items, csn_error *err) {
    size_t i;
    json_t *s;
    csn_status st = CSN_OK;
    json_array_foreach(seqs, i, s) {
        json_t *row = NULL;
        st = kit_row(g->db, "event.line", KIT_ARGS(KIT_INT(row_int(s, "seq"))), &row, err);
        if (st != CSN_OK)
            return st;
        if (!row)
            continue;
        out_put(row, "store", out_json_string(g->name));
        json_t *shown = kit_public(row, false);
        json_decref(row);
        out_append(items, shown);
    }
    return st;
}

static csn_status window_of(struct leg *g, int64_t rows, json_t *windows, csn_error *err) {
    json_t *w = NULL, *shown = json_object();
    csn_status st = kit_row(g->db, "window.bounds", KIT_ARGS(KIT_INT(rows)), &w, err);
    out_put(shown, "store", out_json_string(g->name));
    out_put(shown, "from", out_json_time(row_int(w, "first_at")));
    out_put(shown, "to", out_json_time(row_int(w, "last_at")));
    out_put(shown, "rows", out_json_int64(row_int(w, "rows_looked_at")));
    out_append(windows, shown);
    json_decref(w);
    return st;
}

/* One window over all stores: the earliest and the latest instant. RFC 3339 in UTC sorts as text.
 */
static json_t *window_over(const json_t *windows) {
    const char *from = NULL, *to = NULL;
    size_t i;
    json_t *w, *o = json_object();
    json_array_foreach(windows, i, w) {
        const char *a = json_string_value(json_object_get(w, "from")),
                   *b = json_string_value(json_object_get(w, "to"));
        from = a && (!from || strcmp(a, from) < 0) ? a : from;
        to = b && (!to || strcmp(b, to) > 0) ? b : to;
    }
    out_put(o, "from", out_json_string(from));
    out_put(o, "to", out_json_string(to));
    out_put(o, "stores", json_incref((json_t *)(uintptr_t)windows));
    return o;
}

struct listed {
    json_t *items, *windows;
    int64_t total;
    bool exact;
};

static csn_status list_leg(struct leg *g, const char *status, int64_t limit, struct listed *ret,
                           csn_error *err) {
    const char *list = "list.newest", *count = NULL;
    json_t *seqs;
    int64_t n = 0;
    for (size_t i = 0; status && i < ARRAY_LEN(listing); i++)
        if (strcmp(status, listing[i].status) == 0) {
            list = listing[i].list;
            count = listing[i].count;
        }
    bool windowed = status && !count;
    const struct kit_arg arg[] = {KIT_INT(limit), KIT_INT(KIT_WINDOW)};
    csn_status st = kit_rows(g->db, list, arg, windowed ? 2 : 1, &seqs, err);
    if (st == CSN_OK)
        st = add_lines(g, seqs, ret->items, err);
    if (st == CSN_OK && count)
        st = kit_int(g->db, count, KIT_ARGS(KIT_INT(KIT_COUNT_MAX + 1)), &n, err);
    if (st == CSN_OK)
        st = window_of(g,
                       windowed ? KIT_WINDOW
                       : status ? KIT_COUNT_MAX + 1
                                : limit,
                       ret->windows, err);
    ret->total += count ? n : (int64_t)json_array_size(seqs);
    ret->exact = ret->exact && count && n <= KIT_COUNT_MAX;
    json_decref(seqs);
    return st;
}

json_t *event_list_collect(struct legs *l, const char *status, int64_t limit) {
    struct listed r = {json_array(), json_array(), 0, true};
    json_t *total = json_object(), *o = json_object();
    for (uint32_t i = 0; i < l->n; i++) {
        csn_error err = {0};
        if (l->leg[i].db && list_leg(&l->leg[i], status, limit, &r, &err) != CSN_OK)
            leg_lost(&l->leg[i], &err);
    }
    out_put(total, "value", out_json_int64(r.total));
    out_put(total, "exact", json_boolean(r.exact && legs_lost(l) == 0));
    out_put(o, "items", r.items);
    out_put(o, "window", window_over(r.windows));
    out_put(o, "total", total);
    out_put(o, "next", json_null());
    json_decref(r.windows);
    return o;
}

/* ---- find ---- */

static csn_status find_leg(struct leg *g, const char *text, int64_t limit, int64_t window,
                           json_t *items, json_t *windows, csn_error *err) {
    const struct kit_arg arg[] = {KIT_TEXT(text), KIT_INT(limit), KIT_INT(window)};
    static const struct {
        const char *statement, *by;
        int args;
    } ways[] = {
        {"find.id", "event_id", 1}, {"find.key", "aggregate_id", 2}, {"find.trace", "trace", 3}};
    csn_status st = CSN_OK;
    for (size_t i = 0; st == CSN_OK && i < ARRAY_LEN(ways); i++) {
        json_t *seqs;
        size_t before = json_array_size(items);
        st = kit_rows(g->db, ways[i].statement, arg, ways[i].args, &seqs, err);
        if (st == CSN_OK)
            st = add_lines(g, seqs, items, err);
        for (size_t k = before; k < json_array_size(items); k++)
            out_put(json_array_get(items, k), "found_by", json_string(ways[i].by));
        json_decref(seqs);
    }
    return st == CSN_OK ? window_of(g, window, windows, err) : st;
}

/* An event that other stores know by its id only: inbox rows and dead letters. */
static csn_status find_elsewhere(struct leg *g, const char *text, json_t *items, csn_error *err) {
    static const char *const statements[] = {"event.consumers", "trace.dead"};
    csn_status st = CSN_OK;
    for (size_t k = 0; st == CSN_OK && k < ARRAY_LEN(statements); k++) {
        json_t *rows, *row;
        size_t i;
        st = kit_rows(g->db, statements[k], KIT_ARGS(KIT_TEXT(text)), &rows, err);
        json_array_foreach(rows, i, row) {
            json_t *o = json_object();
            out_put(o, "store", out_json_string(g->name));
            out_put(o, "event_id", out_json_string(text));
            out_put(o, "consumer_name", out_json_string(row_text(row, "consumer_name")));
            out_put(o, "status",
                    out_json_string(k == 0 ? row_text(row, "state") : row_text(row, "class")));
            out_put(o, "found_by", json_string(k == 0 ? "inbox" : "dead_letter"));
            out_append(items, o);
        }
        json_decref(rows);
    }
    return st;
}

json_t *event_find_collect(struct legs *l, const char *text, int64_t limit, int64_t window) {
    json_t *items = json_array(), *windows = json_array(), *o = json_object(),
           *searched = json_object();
    for (uint32_t i = 0; i < l->n; i++) {
        struct leg *g = &l->leg[i];
        csn_error err = {0};
        if (g->db && (find_leg(g, text, limit, window, items, windows, &err) != CSN_OK ||
                      find_elsewhere(g, text, items, &err) != CSN_OK))
            leg_lost(g, &err);
    }
    out_put(searched, "whole",
            json_pack("[ssss]", "event_id", "aggregate_id", "inbox", "dead_letter"));
    out_put(searched, "newest_rows",
            json_pack("[sss]", "traceparent", "correlation_id", "causation_id"));
    out_put(searched, "rows", out_json_int64(window));
    out_put(searched, "stores_not_read", json_integer(legs_lost(l)));
    out_put(o, "items", items);
    out_put(o, "window", window_over(windows));
    out_put(o, "searched", searched);
    json_decref(windows);
    return o;
}

/* ---- show ---- */

static json_t *consumers_of(struct legs *l, const char *event_id) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < l->n; i++) {
        json_t *rows, *row;
        size_t k;
        csn_error err = {0};
        if (!l->leg[i].db)
            continue;
        if (kit_rows(l->leg[i].db, "event.consumers", KIT_ARGS(KIT_TEXT(event_id)), &rows, &err) !=
            CSN_OK)
            leg_lost(&l->leg[i], &err);
        json_array_foreach(rows, k, row) {
            out_put(row, "store", out_json_string(l->leg[i].name));
            out_append(list, kit_public(row, false));
        }
        json_decref(rows);
    }
    return list;
}

static void print_show(struct command_call *c, const json_t *row, json_t *doc) {
    char line[4096];
    struct text t;
    text_init(&t, line, sizeof line);
    kit_payload_line(row, &t);
    json_t *shown = json_copy(doc);
    json_object_del(shown, "v");
    json_object_del(shown, "kind");
    json_object_del(shown, "payload_keys");
    json_object_del(shown, "payload_size");
    json_object_del(shown, "consumers");
    if (!json_object_get(shown, "payload"))
        out_put(shown, "payload", out_json_text((csn_bytes){line, t.used}));
    kit_print_object(c->out, shown);
    json_decref(shown);
    const char *const heads[] = {message(MSG_COL_STORE), message(MSG_COL_CONSUMER),
                                 message(MSG_COL_STATE), message(MSG_COL_DETAIL)};
    struct table *table = table_new(4, heads, "llll");
    size_t i;
    json_t *k;
    json_array_foreach(json_object_get(doc, "consumers"), i, k) {
        table_cell(table, row_text(k, "store"));
        table_cell(table, row_text(k, "consumer_name"));
        table_cell_state(table, row_text(k, "state"));
        table_cell(table, row_text(k, "error"));
    }
    if (table_rows(table))
        out_line(c->out, "%s", "");
    table_print(table, c->out);
    table_free(table);
}

static csn_status show(struct command_call *c, struct legs *l, csn_error *err) {
    struct leg *g = NULL;
    json_t *row = NULL, *payload = NULL;
    csn_status st = kit_locate(l, c->arg[0], &g, err);
    if (st == CSN_OK)
        st = kit_row(g->db, "event.row", KIT_ARGS(KIT_TEXT(c->arg[0])), &row, err);
    if (st == CSN_OK && command_switch(c, "payload"))
        st = kit_reveal(g->url, "event.payload", KIT_TEXT(c->arg[0]), "event.payload", c->arg[0],
                        c->reason, &payload, err);
    if (st == CSN_OK && row) {
        json_t *doc = out_document("event"), *shown = kit_public(row, false);
        json_object_update(doc, shown);
        json_decref(shown);
        out_put(doc, "store", out_json_string(g->name));
        out_put(doc, "consumers", consumers_of(l, c->arg[0]));
        if (payload)
            out_put(doc, "payload", json_incref(payload));
        if (c->out->format == OUT_TABLE)
            print_show(c, row, doc);
        out_json(c->out, doc);
        command_next_to(c, "event trace", c->arg[0]);
    }
    json_decref(row);
    json_decref(payload);
    return st;
}

int event_show(struct command_call *c) {
    struct legs l;
    csn_error err = {0};
    const char *store = NULL;
    int code = 0;
    if (!kit_store_flag(c, &store, &code))
        return code;
    legs_open(&l, c->config, store, DB_READ_ONLY);
    if (show(c, &l, &err) != CSN_OK)
        code = out_error(c->out, &err, NULL, NULL);
    legs_talk(&l, c->out);
    legs_close(&l);
    return code;
}

/* ---- answers of find and list ---- */

static void print_items(struct out *o, const json_t *items, bool found_by) {
    const char *const heads[] = {message(MSG_COL_STORE),   message(MSG_COL_EVENT),
                                 message(MSG_COL_TYPE),    message(MSG_COL_KEY),
                                 message(MSG_COL_VERSION), message(MSG_COL_STATUS),
                                 message(MSG_COL_CLAIMS),  message(MSG_COL_FAULTS),
                                 message(MSG_COL_WRITTEN), message(MSG_COL_DETAIL)};
    struct table *t = table_new(10, heads, "llllrlrrll");
    size_t i;
    json_t *e;
    json_array_foreach(items, i, e) {
        table_cell(t, row_text(e, "store"));
        table_cell(t, row_text(e, "event_id"));
        table_cell(t, row_text(e, "event_type"));
        table_cell(t, row_text(e, "aggregate_id"));
        table_cell(t, row_text(e, "aggregate_version"));
        table_cell_state(t, row_text(e, "status"));
        table_cell_int(t, row_int(e, "attempts"));
        table_cell_int(t, row_int(e, "failures"));
        table_cell(t, row_text(e, "created_at"));
        if (found_by)
            table_cell_format(t, "%s %s", row_text(e, "found_by"), row_text(e, "consumer_name"));
        else
            table_cell(t, row_text(e, "last_error"));
    }
    table_print(t, o);
    table_free(t);
}

static void hint(struct command_call *c, const json_t *items) {
    if (json_array_size(items) > 0)
        command_next_to(c, "event trace", row_text(json_array_get(items, 0), "event_id"));
    else
        command_next(c);
}

static void finish(struct command_call *c, const char *kind, json_t *o) {
    json_t *items = json_incref(json_object_get(o, "items"));
    json_object_del(o, "items");
    if (c->out->format == OUT_TABLE) {
        json_decref(items);
        json_decref(o);
    } else {
        out_list(c->out, kind, items, o);
    }
}

int event_find(struct command_call *c) {
    struct legs l;
    char line[600], safe[300];
    struct text t;
    int64_t window = command_int(c, "window", KIT_WINDOW);
    text_init(&t, line, sizeof line);
    legs_open(&l, c->config, NULL, DB_READ_ONLY);
    json_t *o = event_find_collect(&l, c->arg[0], command_int(c, "limit", 50), window);
    const json_t *items = json_object_get(o, "items");
    bool none = json_array_size(items) == 0;
    print_items(c->out, items, true);
    if (none)
        message_add(&t, MSG_FIND_NONE, out_safe_text(c->arg[0], safe, sizeof safe));
    else
        message_add(&t, MSG_FIND_SOME, (int)json_array_size(items));
    out_line(c->out, "%s", line);
    text_init(&t, line, sizeof line);
    message_add(&t, MSG_FIND_WINDOW, (int)window);
    out_line(c->out, "%s", line);
    legs_talk(&l, c->out);
    hint(c, items);
    finish(c, "event_find", o);
    int code = !none ? 0 : legs_lost(&l) ? 69 : 1; /* "no" is an answer, "could not look" is not */
    legs_close(&l);
    return code;
}

static void print_window(struct command_call *c, const char *status, const json_t *o) {
    const json_t *w = json_object_get(o, "window"), *total = json_object_get(o, "total");
    char line[600];
    struct text t;
    text_init(&t, line, sizeof line);
    bool windowed = !status || strcmp(status, "sent") == 0 || strcmp(status, "cancelled") == 0;
    message_add(&t, windowed ? MSG_LIST_WINDOW : MSG_LIST_WHOLE,
                (int)json_array_size(json_object_get(o, "items")),
                json_is_true(json_object_get(total, "exact")) || windowed ? "" : "≥",
                row_text(total, "value"), row_has(w, "from") ? row_text(w, "from") : "–",
                row_has(w, "to") ? row_text(w, "to") : "–");
    out_line(c->out, "%s", line);
}

int event_list(struct command_call *c) {
    struct legs l;
    const char *store = NULL, *status = command_text(c, "status");
    int code = 0;
    if (!kit_store_flag(c, &store, &code))
        return code;
    if (status && !event_list_status(status))
        return out_fail(c->out, ERR_USAGE, "--status", message(MSG_LIST_STATUSES), "%s", status);
    legs_open(&l, c->config, store, DB_READ_ONLY);
    json_t *o = event_list_collect(&l, status, command_int(c, "limit", 50));
    print_items(c->out, json_object_get(o, "items"), false);
    print_window(c, status, o);
    legs_talk(&l, c->out);
    hint(c, json_object_get(o, "items"));
    finish(c, "event_list", o);
    code = l.n > 0 && legs_lost(&l) == l.n ? 69 : 0;
    legs_close(&l);
    return code;
}
