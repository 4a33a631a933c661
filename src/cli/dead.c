/* dead.c: list and show dead letters.
 *
 * A list looks at the newest KIT_WINDOW letters of each store and says when there are more. A
 * letter is named by its number, or by the id of its event. The payload is masked: size and the
 * names of its top-level keys; --payload shows it as it was kept, and that it was shown is written
 * into the audit chain first. */
#include "cli/dead.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- list ---- */

static void add_public(json_t *to, const json_t *rows, const char *store) {
    size_t i;
    json_t *row;
    json_array_foreach(rows, i, row) {
        json_t *shown = kit_public(row, false);
        out_put(shown, "store", out_json_string(store));
        out_append(to, shown);
    }
}

static csn_status list_leg(struct leg *g, const struct kit_arg *arg, json_t *o, csn_error *err) {
    json_t *rows, *groups, *window = NULL;
    const struct kit_arg group_arg[] = {arg[0], arg[1], arg[2], arg[4]};
    csn_status st = kit_rows(g->db, "dead.list", arg, 5, &rows, err);
    add_public(json_object_get(o, "items"), rows, g->name);
    json_decref(rows);
    if (st != CSN_OK)
        return st;
    st = kit_rows(g->db, "dead.groups", group_arg, 4, &groups, err);
    add_public(json_object_get(o, "groups"), groups, g->name);
    json_decref(groups);
    if (st == CSN_OK)
        st = kit_row(g->db, "dead.window", &arg[4], 1, &window, err);
    if (window) {
        json_t *w = json_object();
        out_put(w, "store", out_json_string(g->name));
        out_put(w, "from", out_json_time(row_int(window, "first_at")));
        out_put(w, "to", out_json_time(row_int(window, "last_at")));
        out_put(w, "rows", out_json_int64(row_int(window, "rows_looked_at")));
        out_put(w, "whole", json_boolean(!row_int(window, "cut")));
        out_append(json_object_get(o, "window"), w);
    }
    json_decref(window);
    return st;
}

json_t *dead_list_collect(struct legs *l, const char *state, const char *consumer,
                          const char *cause, int64_t limit) {
    const struct kit_arg arg[] = {KIT_TEXT(state), KIT_TEXT(consumer), KIT_TEXT(cause),
                                  KIT_INT(limit), KIT_INT(KIT_WINDOW)};
    json_t *o = json_object();
    out_put(o, "items", json_array());
    out_put(o, "groups", json_array());
    out_put(o, "window", json_array());
    for (uint32_t i = 0; i < l->n; i++) {
        csn_error err = {0};
        if (l->leg[i].db && list_leg(&l->leg[i], arg, o, &err) != CSN_OK)
            leg_lost(&l->leg[i], &err);
    }
    return o;
}

static void print_groups(struct out *o, const json_t *groups) {
    const char *const heads[] = {message(MSG_COL_STORE),   message(MSG_COL_CONSUMER),
                                 message(MSG_COL_CAUSE),   message(MSG_COL_CODE),
                                 message(MSG_COL_LETTERS), message(MSG_COL_OLDEST),
                                 message(MSG_COL_NEWEST)};
    struct table *t = table_new(7, heads, "llllrll");
    size_t i;
    json_t *g;
    json_array_foreach(groups, i, g) {
        table_cell(t, row_text(g, "store"));
        table_cell(t, row_text(g, "consumer_name"));
        table_cell(t, row_text(g, "class"));
        table_cell(t, row_text(g, "code"));
        table_cell(t, row_text(g, "letters"));
        table_cell(t, row_text(g, "oldest_at"));
        table_cell(t, row_text(g, "newest_at"));
    }
    table_print(t, o);
    if (table_rows(t))
        out_line(o, "%s", "");
    table_free(t);
}

static void print_letters(struct out *o, const json_t *items) {
    const char *const heads[] = {message(MSG_COL_STORE),    message(MSG_COL_LETTER),
                                 message(MSG_COL_CONSUMER), message(MSG_COL_EVENT),
                                 message(MSG_COL_KEY),      message(MSG_COL_CAUSE),
                                 message(MSG_COL_CODE),     message(MSG_COL_FAULTS),
                                 message(MSG_COL_AT),       message(MSG_COL_DETAIL)};
    struct table *t = table_new(10, heads, "lrlllllrll");
    size_t i;
    json_t *d;
    json_array_foreach(items, i, d) {
        table_cell(t, row_text(d, "store"));
        table_cell(t, row_text(d, "id"));
        table_cell(t, row_text(d, "consumer_name"));
        table_cell(t, row_text(d, "event_id"));
        table_cell(t, row_text(d, "aggregate_id"));
        table_cell(t, row_text(d, "class"));
        table_cell(t, row_text(d, "code"));
        table_cell_int(t, row_int(d, "failures"));
        table_cell(t, row_text(d, "dead_at"));
        table_cell(t, row_text(d, "error"));
    }
    table_print(t, o);
    table_free(t);
}

int dead_list(struct command_call *c) {
    struct legs l;
    const char *store = NULL, *state = command_text(c, "state");
    char line[300];
    struct text t;
    int code = 0;
    if (!kit_store_flag(c, &store, &code))
        return code;
    legs_open(&l, c->config, store, DB_READ_ONLY);
    json_t *o = dead_list_collect(&l, state ? state : "open", command_text(c, "consumer"),
                                  command_text(c, "cause"), command_int(c, "limit", 50));
    json_t *items = json_incref(json_object_get(o, "items"));
    print_groups(c->out, json_object_get(o, "groups"));
    print_letters(c->out, items);
    text_init(&t, line, sizeof line);
    message_add(&t, MSG_DEAD_WINDOW, (int)json_array_size(items), (int)KIT_WINDOW);
    out_line(c->out, "%s", line);
    legs_talk(&l, c->out);
    if (json_array_size(items) > 0)
        command_next_to(c, "dead show", row_text(json_array_get(items, 0), "event_id"));
    else
        command_next(c);
    json_object_del(o, "items");
    if (c->out->format == OUT_TABLE) {
        json_decref(items);
        json_decref(o);
    } else {
        out_list(c->out, "dead_list", items, o);
    }
    code = l.n > 0 && legs_lost(&l) == l.n ? 69 : 0;
    legs_close(&l);
    return code;
}

/* ---- show ---- */

struct letter {
    struct leg *leg;
    int64_t id;
};

enum { LETTERS_MAX = 100 };

static void add_letter(struct letter *letter, uint32_t *n, struct leg *g, int64_t id) {
    if (*n < LETTERS_MAX)
        letter[(*n)++] = (struct letter){g, id};
}

static csn_status letters_in(struct leg *g, const char *what, struct letter *letter, uint32_t *n,
                             csn_error *err) {
    json_t *rows, *row = NULL;
    size_t i;
    char *end = NULL;
    int64_t number = strtoll(what, &end, 10);
    csn_status st = kit_rows(g->db, "dead.ids_of_event", KIT_ARGS(KIT_TEXT(what)), &rows, err);
    bool by_event = json_array_size(rows) > 0;
    json_array_foreach(rows, i, row) add_letter(letter, n, g, row_int(row, "id"));
    json_decref(rows);
    if (st != CSN_OK || by_event || *what == 0 || *end != 0)
        return st;
    st = kit_row(g->db, "dead.by_id", KIT_ARGS(KIT_INT(number)), &row, err);
    if (row)
        add_letter(letter, n, g, number);
    json_decref(row);
    return st;
}

static uint32_t letters(struct legs *l, const char *what, struct letter *letter) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        csn_error err = {0};
        if (l->leg[i].db && letters_in(&l->leg[i], what, letter, &n, &err) != CSN_OK)
            leg_lost(&l->leg[i], &err);
    }
    return n;
}

static void print_letter(struct out *o, const json_t *row, json_t *shown) {
    char line[4096];
    struct text t;
    text_init(&t, line, sizeof line);
    kit_payload_line(row, &t);
    json_t *copy = json_copy(shown);
    json_object_del(copy, "payload_keys");
    json_object_del(copy, "payload_size");
    if (!json_object_get(copy, "payload"))
        out_put(copy, "payload", out_json_text((csn_bytes){line, t.used}));
    kit_print_object(o, copy);
    json_decref(copy);
}

static csn_status show_one(struct command_call *c, const struct letter *letter, json_t *items,
                           csn_error *err) {
    json_t *row = NULL, *payload = NULL;
    csn_status st =
        kit_row(letter->leg->db, "dead.by_id", KIT_ARGS(KIT_INT(letter->id)), &row, err);
    if (st != CSN_OK || !row)
        return st;
    if (command_switch(c, "payload"))
        st = kit_reveal(letter->leg->url, "dead.payload", KIT_INT(letter->id), "dead.payload",
                        row_text(row, "event_id"), c->reason, &payload, err);
    if (st == CSN_OK) {
        json_t *shown = kit_public(row, false);
        out_put(shown, "store", out_json_string(letter->leg->name));
        if (payload)
            out_put(shown, "payload", json_incref(payload));
        if (c->out->format == OUT_TABLE)
            print_letter(c->out, row, shown);
        out_append(items, shown);
    }
    json_decref(payload);
    json_decref(row);
    return st;
}

int dead_show(struct command_call *c) {
    struct legs l;
    struct letter letter[LETTERS_MAX];
    const char *store = NULL;
    csn_error err = {0};
    csn_status st = CSN_OK;
    char safe[300];
    int code = 0;
    if (!kit_store_flag(c, &store, &code))
        return code;
    legs_open(&l, c->config, store, DB_READ_ONLY);
    json_t *items = json_array();
    uint32_t n = letters(&l, c->arg[0], letter);
    for (uint32_t i = 0; st == CSN_OK && i < n; i++)
        st = show_one(c, &letter[i], items, &err);
    legs_talk(&l, c->out);
    if (st != CSN_OK) {
        code = out_error(c->out, &err, NULL, NULL);
    } else if (n == 0 && legs_lost(&l)) {
        code = 69;
    } else if (n == 0) {
        code = out_fail(c->out, ERR_NOT_FOUND, NULL, NULL, "%s",
                        out_safe_text(c->arg[0], safe, sizeof safe));
    } else {
        if (c->out->format == OUT_TABLE)
            command_next_to(c, "event trace", row_text(json_array_get(items, 0), "event_id"));
        else
            out_list(c->out, "dead_letters", json_incref(items), NULL);
    }
    json_decref(items);
    legs_close(&l);
    return code;
}
