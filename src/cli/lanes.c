/* lanes.c: every lane row with its owner, epoch and what is left of its lease, and the newest
 * hundred processes of each store. */
#include "cli/lanes.h"

static json_t *lane_public(const struct leg *g, const json_t *row) {
    json_t *o = kit_public(row, true);
    int64_t left = row_has(row, "lease_until") ? row_int(row, "lease_until") - g->now : 0;
    const char *state = !row_has(row, "owner") ? "free" : left > 0 ? "held" : "lease_over";
    out_put(o, "store", out_json_string(g->name));
    out_put(o, "state", json_string(state));
    out_put(o, "lease_left_ms", json_integer(left > 0 ? left / 1000 : 0));
    out_put(o, "held_ms",
            row_has(row, "owner") && row_has(row, "taken_at")
                ? json_integer((g->now - row_int(row, "taken_at")) / 1000)
                : json_null());
    return o;
}

static json_t *member_public(const struct leg *g, const json_t *row) {
    json_t *o = kit_public(row, true);
    out_put(o, "store", out_json_string(g->name));
    out_put(o, "alive", json_boolean(row_int(row, "alive")));
    return o;
}

static csn_status leg_lanes(struct leg *g, json_t *o, csn_error *err) {
    json_t *rows, *row;
    size_t i;
    csn_status st = kit_rows(g->db, "lanes.list", NULL, 0, &rows, err);
    json_array_foreach(rows, i, row) out_append(json_object_get(o, "items"), lane_public(g, row));
    json_decref(rows);
    if (st != CSN_OK)
        return st;
    st = kit_rows(g->db, "lanes.members", KIT_ARGS(KIT_INT(g->now)), &rows, err);
    json_array_foreach(rows, i, row)
        out_append(json_object_get(o, "members"), member_public(g, row));
    json_decref(rows);
    return st;
}

json_t *lanes_collect(struct legs *l) {
    json_t *o = json_object();
    out_put(o, "items", json_array());
    out_put(o, "members", json_array());
    for (uint32_t i = 0; i < l->n; i++) {
        csn_error err = {0};
        if (l->leg[i].db && leg_lanes(&l->leg[i], o, &err) != CSN_OK)
            leg_lost(&l->leg[i], &err);
    }
    return o;
}

static void print_lanes(struct out *o, const json_t *items) {
    const char *const heads[] = {message(MSG_COL_STORE), message(MSG_COL_LANES),
                                 message(MSG_COL_LANE),  message(MSG_COL_STATE),
                                 message(MSG_COL_OWNER), message(MSG_COL_EPOCH),
                                 message(MSG_COL_SINCE), message(MSG_COL_LEASE_LEFT)};
    struct table *t = table_new(8, heads, "llrllrlr");
    size_t i;
    json_t *r;
    char left[32];
    json_array_foreach(items, i, r) {
        bool held = strcmp(row_text(r, "state"), "held") == 0;
        table_cell(t, row_text(r, "store"));
        table_cell(t, row_text(r, "name"));
        table_cell_format(t, "%d", (int)row_int(r, "lane"));
        table_cell_state(t, row_text(r, "state"));
        table_cell(t, row_has(r, "label")   ? row_text(r, "label")
                      : row_has(r, "owner") ? row_text(r, "owner")
                                            : "–");
        table_cell(t, row_text(r, "epoch"));
        table_cell(t,
                   row_has(r, "taken_at") && row_has(r, "owner") ? row_text(r, "taken_at") : "–");
        table_cell(t, held ? out_duration(row_int(r, "lease_left_ms") * 1000, left) : "–");
    }
    table_print(t, o);
    table_free(t);
}

static void print_members(struct out *o, const json_t *members) {
    const char *const heads[] = {message(MSG_COL_STORE),   message(MSG_COL_MEMBER),
                                 message(MSG_COL_NODE),    message(MSG_COL_STATE),
                                 message(MSG_COL_STARTED), message(MSG_COL_HEARTBEAT)};
    struct table *t = table_new(6, heads, "lrllll");
    size_t i;
    json_t *m;
    json_array_foreach(members, i, m) {
        bool alive = json_is_true(json_object_get(m, "alive"));
        table_cell(t, row_text(m, "store"));
        table_cell(t, row_text(m, "member"));
        table_cell(t, row_text(m, "label"));
        table_cell_state(t, alive ? "alive" : row_has(m, "ended_at") ? "ended" : "gone");
        table_cell(t, row_text(m, "started_at"));
        table_cell(t, row_text(m, "heartbeat_at"));
    }
    if (table_rows(t))
        out_line(o, "%s", "");
    table_print(t, o);
    table_free(t);
}

int lanes_command(struct command_call *c) {
    struct legs l;
    const char *store = NULL;
    int code = 0;
    if (!kit_store_flag(c, &store, &code))
        return code;
    legs_open(&l, c->config, store, DB_READ_ONLY);
    json_t *o = lanes_collect(&l);
    json_t *items = json_incref(json_object_get(o, "items"));
    if (json_array_size(items) == 0)
        out_line(c->out, "%s", message(MSG_LANES_NONE));
    print_lanes(c->out, items);
    print_members(c->out, json_object_get(o, "members"));
    legs_talk(&l, c->out);
    command_next(c);
    json_object_del(o, "items");
    if (c->out->format == OUT_TABLE) {
        json_decref(items);
        json_decref(o);
    } else {
        out_list(c->out, "lanes", items, o);
    }
    code = l.n > 0 && legs_lost(&l) == l.n ? 69 : 0;
    legs_close(&l);
    return code;
}
