/* reconcile.c: outbox against inbox.
 *
 * For each sent row that is older than the grace, and each subscription that is given events of its
 * type: the consumer must have an inbox row, or the queue an unacked copy. The queue is looked at
 * first and the inbox second: a consumer commits its inbox row before it acknowledges, so what was
 * acknowledged before the first look is in the inbox at the second.
 *
 *   neither ─▶ difference "not consumed" ─▶ sent → pending under the same id,
 *                                           fenced by status = sent, with an attempts row
 *
 * A subscription that was declared after an event was sent was never meant to have it; such pairs
 * are counted apart. A leg that cannot be read is "not compared", and a run with such a leg never
 * says that there are no differences. All rows of one store are sent again in one transaction with
 * one audit row, which holds a digest of their numbers. */
#include "cli/reconcile.h"
#include "base/digest.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { PAGE_ROWS = 500, PAGES_MAX = 1000000000 };

/* One subscription as a leg of the comparison with one outbox. */
struct pair_leg {
    const struct config_subscription *sub;
    struct leg *inbox, *queue;
    csn_usec declared_at; /* 0: not known */
    struct stmt *live, *state;
    int64_t compared, missing, consumed, queued, before;
    bool readable;
};

struct run {
    struct legs *l;
    struct reconcile *r;
    struct leg *outbox;
    struct pair_leg pair[SUBSCRIPTIONS_MAX];
    uint32_t pairs;
    int64_t *seq; /* rows to send again */
    uint32_t rows;
    int64_t sent, young, other; /* rows of the outbox by what was done with them */
};

/* ---- the legs ---- */

static csn_status pair_prepare(struct pair_leg *p, struct leg **ret_at, csn_error *err) {
    *ret_at = p->queue;
    csn_status st = kit_int(p->queue->db, "reconcile.bound", KIT_ARGS(KIT_TEXT(p->sub->consumer)),
                            &p->declared_at, err);
    if (st == CSN_OK)
        st = db_prepare(p->queue->db, "@reconcile.live", &p->live, err);
    if (st != CSN_OK)
        return st;
    *ret_at = p->inbox;
    return db_prepare(p->inbox->db, p->sub->at_most_once ? "@reconcile.copy" : "@reconcile.inbox",
                      &p->state, err);
}

static void pair_init(struct run *x, const struct config_subscription *sub) {
    struct pair_leg *p = &x->pair[x->pairs++];
    struct leg *at = NULL;
    csn_error err = {0};
    *p = (struct pair_leg){.sub = sub,
                           .inbox = legs_find(x->l, sub->store),
                           .queue = legs_find(x->l, kit_queue_store(x->l->config, sub->broker))};
    if (sub->at_most_once) /* keeps no inbox: that it had its copy is all there is to know */
        p->inbox = p->queue;
    p->readable = p->inbox && p->inbox->db && p->queue && p->queue->db;
    if (p->readable && pair_prepare(p, &at, &err) != CSN_OK) {
        leg_lost(at, &err);
        p->readable = false;
    }
}

static void pair_done(struct pair_leg *p) {
    stmt_close(p->live);
    stmt_close(p->state);
    p->live = p->state = NULL;
}

static json_t *pair_public(const struct run *x, const struct pair_leg *p) {
    json_t *o = json_object();
    out_put(o, "outbox", out_json_string(x->outbox->name));
    out_put(o, "consumer_name", out_json_string(p->sub->consumer));
    out_put(o, "store", out_json_string(p->sub->store));
    out_put(o, "result",
            json_string(!p->readable ? "not_compared"
                        : p->missing ? "differences"
                                     : "no_differences"));
    out_put(o, "compared", out_json_int64(p->compared));
    out_put(o, "consumed", out_json_int64(p->consumed));
    out_put(o, "queued", out_json_int64(p->queued));
    out_put(o, "not_consumed", out_json_int64(p->missing));
    out_put(o, "sent_before_subscription", out_json_int64(p->before));
    if (!p->readable) {
        const struct leg *lost = p->inbox && !p->inbox->db   ? p->inbox
                                 : p->queue && !p->queue->db ? p->queue
                                                             : NULL;
        out_put(o, "code", json_string("CSN-6001"));
        out_put(o, "text", out_json_string(lost ? lost->error.text : "–"));
    }
    return o;
}

/* ---- comparing ---- */

enum found { FOUND_INBOX, FOUND_QUEUE, FOUND_NOWHERE };

/* One row of a page. A page is read to its end before anything is compared: an open statement would
 * hold the store's state of that moment, and an inbox row that came later would not be seen. */
struct sent_row {
    int64_t seq;
    csn_usec sent_at;
    char event_id[OUTBOX_ID_MAX + 1], event_type[328];
    bool sent;
};

/* Whether a statement finds a row; its read transaction ends here. */
static csn_status there(struct stmt *s, const char *a, const char *b, bool *ret, csn_error *err) {
    stmt_bind_text(s, 1, a);
    stmt_bind_text(s, 2, b);
    csn_status st = stmt_next(s, ret, err);
    stmt_reset(s);
    return st;
}

static csn_status look(struct pair_leg *p, const char *event_id, enum found *ret, csn_error *err) {
    bool live = false, seen = false;
    csn_status st = there(p->live, event_id, p->sub->consumer, &live, err);
    if (st != CSN_OK) {
        leg_lost(p->queue, err);
        return st;
    }
    st = there(p->state, p->sub->consumer, event_id, &seen, err);
    if (st != CSN_OK)
        leg_lost(p->inbox, err);
    *ret = seen ? FOUND_INBOX : live ? FOUND_QUEUE : FOUND_NOWHERE;
    return st;
}

static void difference(struct run *x, const struct pair_leg *p, const struct sent_row *row) {
    json_t *o = json_object();
    out_put(o, "store", out_json_string(x->outbox->name));
    out_put(o, "event_id", out_json_string(row->event_id));
    out_put(o, "event_type", out_json_string(row->event_type));
    out_put(o, "consumer_name", out_json_string(p->sub->consumer));
    out_put(o, "cause", json_string("not_consumed"));
    out_put(o, "sent_at", out_json_time(row->sent_at));
    out_append(x->r->items, o);
    x->r->differences++;
}

/* A leg that fails here is not readable from now on, and what it had compared before does not count
 * as whole. */
static bool pair_row(struct run *x, struct pair_leg *p, const struct sent_row *row) {
    enum found found = FOUND_NOWHERE;
    csn_error err = {0};
    if (!p->inbox->db || !p->queue->db || look(p, row->event_id, &found, &err) != CSN_OK) {
        p->readable = false;
        return false;
    }
    p->compared++;
    x->r->compared++;
    p->consumed += found == FOUND_INBOX;
    p->queued += found == FOUND_QUEUE;
    if (found != FOUND_NOWHERE)
        return false;
    if (p->declared_at && row->sent_at < p->declared_at) {
        p->before++;
        x->r->before++;
        return false;
    }
    p->missing++;
    difference(x, p, row);
    return true;
}

static void compare_row(struct run *x, const struct sent_row *row) {
    bool missing = false;
    if (!row->sent) {
        x->other++;
        return;
    }
    if (row->sent_at > x->outbox->now - x->r->grace) {
        x->young++;
        return;
    }
    x->sent++;
    for (uint32_t i = 0; i < x->pairs; i++)
        if (x->pair[i].readable && kit_covers(x->l->config, x->pair[i].sub, row->event_type))
            missing = pair_row(x, &x->pair[i], row) || missing;
    if (missing)
        x->seq[x->rows++] = row->seq;
}

static csn_status read_page(struct stmt *s, int64_t after, struct sent_row *page, uint32_t *ret_n,
                            csn_error *err) {
    bool row = false;
    csn_status st = CSN_OK;
    *ret_n = 0;
    stmt_reset(s);
    stmt_bind_int(s, 1, after);
    stmt_bind_int(s, 2, PAGE_ROWS);
    while (*ret_n < PAGE_ROWS && (st = stmt_next(s, &row, err)) == CSN_OK && row) {
        struct sent_row *r = &page[(*ret_n)++];
        r->seq = stmt_int(s, 0);
        copy_text(r->event_id, sizeof r->event_id, stmt_text(s, 1));
        copy_text(r->event_type, sizeof r->event_type, stmt_text(s, 2));
        r->sent = strcmp(stmt_text(s, 3), "sent") == 0;
        r->sent_at = stmt_int(s, 4);
    }
    stmt_reset(s);
    return st;
}

static void say_progress(const struct run *x) {
    char line[200];
    struct text t;
    text_init(&t, line, sizeof line);
    message_add(&t, MSG_RECONCILE_PROGRESS, x->outbox->name,
                (long long)(x->sent + x->young + x->other));
    if (x->r->talk != NULL)
        out_progress(x->r->talk, "%s", line);
}

static csn_status compare_pages(struct run *x, struct stmt *s, struct sent_row *page,
                                csn_error *err) {
    int64_t after = INT64_MIN;
    uint32_t n = PAGE_ROWS;
    csn_status st = CSN_OK;
    for (int64_t pages = 0; st == CSN_OK && n == PAGE_ROWS && pages < PAGES_MAX; pages++) {
        st = read_page(s, after, page, &n, err);
        say_progress(x);
        for (uint32_t i = 0; st == CSN_OK && i < n; i++) {
            if (x->rows == RECONCILE_DIFFERENCES_MAX) {
                x->r->cut = true;
                return st;
            }
            compare_row(x, &page[i]);
            after = page[i].seq;
        }
    }
    return st;
}

static csn_status compare(struct run *x, csn_error *err) {
    struct stmt *s = NULL;
    struct sent_row *page = calloc(PAGE_ROWS, sizeof *page);
    csn_status st =
        page ? CSN_OK : error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "reconcile: out of memory");
    if (st == CSN_OK)
        st = db_prepare(x->outbox->db, "@reconcile.page", &s, err);
    if (st == CSN_OK)
        st = compare_pages(x, s, page, err);
    stmt_close(s);
    free(page);
    return st;
}

/* ---- sending again ---- */

static csn_status resend_row(struct db *d, int64_t seq, int64_t *ret_resent, csn_error *err) {
    int64_t changed = 0;
    csn_status st = kit_change(
        d, "reconcile.resent",
        KIT_ARGS(KIT_INT(seq), KIT_TEXT("reconcile run outbox: no inbox row and no queue copy"),
                 KIT_INT(db_now(d))),
        &changed, err);
    if (st == CSN_OK && changed == 1)
        st = kit_change(d, "reconcile.resend", KIT_ARGS(KIT_INT(seq), KIT_INT(db_now(d))), &changed,
                        err);
    *ret_resent += st == CSN_OK && changed == 1;
    return st;
}

/* SHA-256 over the row numbers, one a line. */
static void rows_digest(const struct run *x, char ret[65]) {
    static const char digit[] = "0123456789abcdef";
    struct sha256 sha;
    uint8_t raw[32];
    char line[32];
    sha256_init(&sha);
    for (uint32_t i = 0; i < x->rows; i++) {
        snprintf(line, sizeof line, "%" PRId64 "\n", x->seq[i]);
        sha256_add(&sha, bytes_of(line));
    }
    sha256_end(&sha, raw);
    for (int i = 0; i < 32; i++) {
        ret[2 * i] = digit[raw[i] >> 4];
        ret[2 * i + 1] = digit[raw[i] & 15];
    }
    ret[64] = 0;
}

static csn_status resend_all(const struct run *x, struct db *d, int64_t *ret_resent,
                             csn_error *err) {
    char digest[65], after[300];
    csn_status st = db_begin(d, err);
    for (uint32_t i = 0; st == CSN_OK && i < x->rows; i++)
        st = resend_row(d, x->seq[i], ret_resent, err);
    rows_digest(x, digest);
    snprintf(after, sizeof after, "{\"selected\":%u,\"resent\":%" PRId64 ",\"rows_sha256\":\"%s\"}",
             x->rows, *ret_resent, digest);
    if (st == CSN_OK)
        st = audit_append(d, x->r->actor, "reconcile.outbox", "outbox", x->r->reason, NULL, after,
                          err);
    if (st == CSN_OK)
        return db_commit(d, err);
    db_rollback(d);
    return st;
}

static csn_status resend(const struct run *x, csn_error *err) {
    struct db *d = NULL;
    int64_t resent = 0;
    if (x->rows == 0 || x->r->dry_run)
        return CSN_OK;
    csn_status st = db_open(x->outbox->url, 0, &d, err);
    if (st == CSN_OK)
        st = resend_all(x, d, &resent, err);
    if (st == CSN_OK)
        x->r->resent += resent;
    db_close(d);
    return st;
}

/* ---- one outbox, all outboxes ---- */

static csn_status run_outbox(struct legs *l, struct reconcile *r, struct leg *g, csn_error *err) {
    struct run x = {.l = l, .r = r, .outbox = g};
    csn_error lost = {0};
    csn_status st = CSN_OK;
    x.seq = calloc(RECONCILE_DIFFERENCES_MAX, sizeof *x.seq);
    if (!x.seq)
        return error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "reconcile: out of memory");
    for (uint32_t i = 0; i < l->config->subscriptions; i++)
        pair_init(&x, &l->config->subscription[i]);
    if (compare(&x, &lost) != CSN_OK)
        leg_lost(g, &lost);
    for (uint32_t i = 0; i < x.pairs; i++) {
        out_append(r->legs, pair_public(&x, &x.pair[i]));
        r->not_compared += !x.pair[i].readable;
        pair_done(&x.pair[i]);
    }
    json_t *o = json_object();
    out_put(o, "outbox", out_json_string(g->name));
    out_put(o, "result", json_string(g->db ? "read" : "not_compared"));
    out_put(o, "sent", out_json_int64(x.sent));
    out_put(o, "within_grace", out_json_int64(x.young));
    out_put(o, "not_sent", out_json_int64(x.other));
    out_append(r->legs, o);
    if (!g->db)
        r->not_compared++;
    else
        st = resend(&x, err);
    free(x.seq);
    return st;
}

static void outbox_lost(struct reconcile *r, const struct leg *g) {
    json_t *o = json_object();
    out_put(o, "outbox", out_json_string(g->name));
    out_put(o, "result", json_string("not_compared"));
    out_put(o, "code", json_string("CSN-6001"));
    out_put(o, "text", out_json_string(g->error.text));
    out_append(r->legs, o);
    r->not_compared++;
}

csn_status reconcile_outbox(struct legs *l, struct reconcile *r, csn_error *err) {
    csn_status st = CSN_OK;
    r->items = json_array();
    r->legs = json_array();
    for (uint32_t i = 0; st == CSN_OK && i < l->n; i++) {
        if (l->leg[i].db)
            st = run_outbox(l, r, &l->leg[i], err);
        else
            outbox_lost(r, &l->leg[i]);
    }
    return st;
}

/* ---- the command ---- */

static void print(struct out *o, const struct reconcile *r) {
    const char *const leg_heads[] = {message(MSG_COL_OUTBOX),      message(MSG_COL_CONSUMER),
                                     message(MSG_COL_RESULT_OF),   message(MSG_COL_COMPARED),
                                     message(MSG_COL_CONSUMED),    message(MSG_COL_QUEUED),
                                     message(MSG_COL_NOT_CONSUMED)};
    const char *const heads[] = {message(MSG_COL_STORE), message(MSG_COL_EVENT),
                                 message(MSG_COL_TYPE), message(MSG_COL_CONSUMER),
                                 message(MSG_COL_AT)};
    struct table *legs = table_new(7, leg_heads, "lllrrrr"), *t = table_new(5, heads, "lllll");
    size_t i;
    json_t *g;
    json_array_foreach(r->legs, i, g) {
        if (!row_has(g, "consumer_name") && strcmp(row_text(g, "result"), "not_compared") != 0)
            continue;
        table_cell(legs, row_text(g, "outbox"));
        table_cell(legs, row_has(g, "consumer_name") ? row_text(g, "consumer_name") : "–");
        table_cell_state(legs, row_text(g, "result"));
        const char *const keys[] = {"compared", "consumed", "queued", "not_consumed"};
        for (size_t k = 0; k < ARRAY_LEN(keys); k++)
            table_cell(legs, row_has(g, keys[k]) ? row_text(g, keys[k]) : "–");
    }
    table_print(legs, o);
    json_array_foreach(r->items, i, g) {
        table_cell(t, row_text(g, "store"));
        table_cell(t, row_text(g, "event_id"));
        table_cell(t, row_text(g, "event_type"));
        table_cell(t, row_text(g, "consumer_name"));
        table_cell(t, row_text(g, "sent_at"));
    }
    if (table_rows(t))
        out_line(o, "%s", "");
    table_print(t, o);
    table_free(legs);
    table_free(t);
}

static void summary(struct out *o, const struct reconcile *r) {
    char line[500];
    struct text t;
    text_init(&t, line, sizeof line);
    if (r->differences == 0 && r->not_compared == 0)
        message_add(&t, MSG_RECONCILE_NONE, (long long)r->compared);
    else if (r->differences == 0)
        message_add(&t, MSG_RECONCILE_PARTLY, (long long)r->compared, (int)r->not_compared);
    else
        message_add(&t, r->dry_run ? MSG_RECONCILE_WOULD : MSG_RECONCILE_FOUND,
                    (long long)r->differences, (long long)r->compared, (long long)r->resent);
    out_line(o, "%s", line);
    if (r->differences && r->not_compared) {
        text_init(&t, line, sizeof line);
        message_add(&t, MSG_RECONCILE_NOT_COMPARED, (int)r->not_compared);
        out_line(o, "%s", line);
    }
    if (r->before) {
        text_init(&t, line, sizeof line);
        message_add(&t, MSG_RECONCILE_BEFORE, (long long)r->before);
        out_line(o, "%s", line);
    }
    if (r->cut)
        out_line(o, "%s", message(MSG_RECONCILE_CUT));
}

static void answer(struct command_call *c, struct reconcile *r) {
    json_t *extra = json_object();
    if (c->out->format == OUT_TABLE)
        print(c->out, r);
    summary(c->out, r);
    if (r->differences)
        command_next_to(c, "event trace", row_text(json_array_get(r->items, 0), "event_id"));
    else
        command_next(c);
    out_put(extra, "result",
            json_string(r->differences    ? "differences"
                        : r->not_compared ? "not_compared"
                                          : "no_differences"));
    out_put(extra, "dry_run", json_boolean(r->dry_run));
    out_put(extra, "grace_ms", json_integer(r->grace / 1000));
    out_put(extra, "compared", out_json_int64(r->compared));
    out_put(extra, "differences", out_json_int64(r->differences));
    out_put(extra, "sent_before_subscription", out_json_int64(r->before));
    out_put(extra, "resent", out_json_int64(r->resent));
    out_put(extra, "complete", json_boolean(!r->cut && r->not_compared == 0));
    out_put(extra, "legs", json_incref(r->legs));
    if (c->out->format == OUT_TABLE)
        json_decref(extra);
    else
        out_list(c->out, "reconcile", json_incref(r->items), extra);
}

int reconcile_run(struct command_call *c) {
    struct legs l;
    char actor[200];
    csn_error err = {0};
    struct reconcile r = {.reason = c->reason,
                          .actor = command_actor(actor, sizeof actor),
                          .dry_run = c->dry_run,
                          .talk = c->out};
    r.grace = command_duration(c, "grace", c->config->reconcile.grace);
    if (strcmp(c->arg[0], "outbox") != 0)
        return out_fail(c->out, ERR_USAGE, "reconcile run", "consign reconcile run outbox", "%s",
                        "outbox");
    legs_open(&l, c->config, NULL, DB_READ_ONLY);
    csn_status st = reconcile_outbox(&l, &r, &err);
    out_progress_end(c->out);
    legs_talk(&l, c->out);
    int code = st == CSN_OK ? 0 : out_error(c->out, &err, NULL, NULL);
    if (st == CSN_OK) {
        answer(c, &r);
        code = r.differences ? 1 : 0;
        if (code == 0 && r.not_compared)
            code = out_fail(c->out, ERR_RECONCILE_LEG, "reconcile run", NULL, "%d",
                            (int)r.not_compared);
    } else if (st == CSN_UNKNOWN) {
        code = 76;
    }
    json_decref(r.items);
    json_decref(r.legs);
    legs_close(&l);
    return code;
}
