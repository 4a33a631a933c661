/* top.c: a picture is status and, for each store, the rates of its processes. A process writes its
 * counters with each heartbeat (a third of its lease), so a rate is the difference of two heartbeats
 * by the store's clock, and there is none before the second.
 *
 * Reads only, with the bounded statements of status; the stores are opened for each picture anew, so
 * that one that was away comes back by itself. */
#include "cli/top.h"
#include "cli/screen.h"
#include "cli/status.h"
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { EVERY = 1000000, EXIT_SIGNAL = 128 };

/* ---- rates ---- */

static const char *const rates[TOP_RATES] = {"claimed", "sent",    "unknown", "received",
                                             "handled", "refused", "retries", "dead"};

const char *top_rate_name(size_t i) {
    return i < ARRAY_LEN(rates) ? rates[i] : NULL;
}

static struct top_member *member_of(struct top *t, const char *store, const char *boot) {
    for (uint32_t i = 0; i < t->members; i++)
        if (strcmp(t->member[i].store, store) == 0 && strcmp(t->member[i].boot, boot) == 0)
            return &t->member[i];
    if (t->members == TOP_MEMBERS_MAX)
        return NULL;
    struct top_member *m = &t->member[t->members++];
    *m = (struct top_member){.at = 0};
    (void)copy_text(m->store, sizeof m->store, store);
    (void)copy_text(m->boot, sizeof m->boot, boot);
    return m;
}

void top_hear(struct top *t, const char *store, const json_t *row) {
    struct top_member *m = member_of(t, store, row_text(row, "boot"));
    csn_usec at = row_int(row, "heartbeat_at");
    if (m == NULL)
        return;
    m->seen = true;
    if (at <= m->at)
        return;
    json_t *counters = json_loads(row_text(row, "counters"), 0, NULL);
    for (size_t i = 0; i < TOP_RATES; i++) {
        const char *digits = json_string_value(json_object_get(counters, rates[i]));
        int64_t now = digits != NULL ? strtoll(digits, NULL, 10) : 0;
        m->rate[i] = (double)(now - m->value[i]) * 1e6 / (double)(at - m->at);
        m->value[i] = now;
    }
    m->known = m->at != 0;
    m->at = at;
    json_decref(counters);
}

void top_turn(struct top *t) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < t->members; i++) {
        if (!t->member[i].seen)
            continue;
        t->member[kept] = t->member[i];
        t->member[kept++].seen = false;
    }
    t->members = kept;
}

bool top_rate(const struct top *t, const char *store, size_t i, double *ret) {
    bool known = false;
    *ret = 0;
    for (uint32_t k = 0; k < t->members; k++) {
        if (!t->member[k].known || strcmp(t->member[k].store, store) != 0)
            continue;
        known = true;
        *ret += t->member[k].rate[i];
    }
    return known;
}

/* ---- a picture ---- */

static void hear_store(struct top *t, struct leg *g) {
    json_t *rows = NULL, *row;
    csn_error err = {0};
    size_t i;
    if (g->db == NULL)
        return;
    if (kit_rows(g->db, "top.members", KIT_ARGS(KIT_INT(g->now)), &rows, &err) != CSN_OK)
        leg_lost(g, &err);
    json_array_foreach(rows, i, row) top_hear(t, g->name, row);
    json_decref(rows);
}

static json_t *rates_json(const struct top *t, const struct legs *l) {
    json_t *all = json_array();
    for (uint32_t k = 0; k < l->n; k++) {
        json_t *o = json_object();
        double rate;
        out_put(o, "store", out_json_string(l->leg[k].name));
        for (size_t i = 0; i < TOP_RATES; i++)
            out_put(o, rates[i],
                    top_rate(t, l->leg[k].name, i, &rate) ? json_real(rate) : json_null());
        out_append(all, o);
    }
    return all;
}

static void print_rates(struct out *o, const json_t *all) {
    const char *const heads[] = {
        message(MSG_COL_STORE),   message(MSG_COL_CLAIMED),  message(MSG_COL_SENT),
        message(MSG_COL_UNKNOWN), message(MSG_COL_RECEIVED), message(MSG_COL_HANDLED),
        message(MSG_COL_REFUSED), message(MSG_COL_RETRIES),  message(MSG_COL_DIED)};
    struct table *t = table_new(1 + TOP_RATES, heads, "lrrrrrrrr");
    size_t k;
    json_t *store;
    if (t == NULL)
        return;
    json_array_foreach(all, k, store) {
        table_cell(t, row_text(store, "store"));
        for (size_t i = 0; i < TOP_RATES; i++) {
            const json_t *rate = json_object_get(store, rates[i]);
            if (json_is_real(rate))
                table_cell_format(t, "%.1f", json_real_value(rate));
            else
                table_cell(t, "–");
        }
    }
    out_line(o, "%s", message(MSG_TOP_RATES));
    table_print(t, o);
    table_free(t);
}

static void print_picture(struct out *o, const json_t *d) {
    char line[200], at[32];
    struct timespec now;
    struct text t;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    text_init(&t, line, sizeof line);
    message_add(&t, MSG_TOP_TITLE, CSN_VERSION, out_time((csn_usec)now.tv_sec * 1000000, at));
    out_line(o, "%s%s%s\n", tone_begin(o->color, TONE_HEAD), line, tone_end(o->color, TONE_HEAD));
    status_print(o, d);
    out_line(o, "%s", "");
    print_rates(o, json_object_get(d, "rates"));
}

/* The whole answer; *ret_code: 69 when no store could be read. The caller lets it go. */
static json_t *look(struct command_call *c, struct top *t, int *ret_code) {
    struct legs l;
    legs_open(&l, c->config, NULL, DB_READ_ONLY);
    json_t *d = out_document("top"), *status = status_collect(&l);
    for (uint32_t i = 0; i < l.n; i++)
        hear_store(t, &l.leg[i]);
    if (json_object_update(d, status) != 0)
        out_put(d, "stores", NULL); /* ends the program: out of memory */
    json_decref(status);
    out_put(d, "rates", rates_json(t, &l));
    top_turn(t);
    *ret_code = l.n > 0 && legs_lost(&l) == l.n ? 69 : 0;
    legs_close(&l);
    return d;
}

static int once(struct command_call *c, struct top *t) {
    int code;
    json_t *d = look(c, t, &code);
    print_picture(c->out, d);
    out_json(c->out, d);
    return code;
}

/* ---- again and again ---- */

/* The picture as text; NULL: out of memory. */
static char *draw(struct command_call *c, struct top *t) {
    char *text = NULL;
    size_t size;
    int code;
    struct out o = *c->out;
    o.to = open_memstream(&text, &size);
    if (o.to == NULL)
        return NULL;
    json_t *d = look(c, t, &code);
    print_picture(&o, d);
    json_decref(d);
    if (fclose(o.to) == 0)
        return text;
    free(text);
    return NULL;
}

/* A new size paints the same picture again: no store is asked for that. */
static int watch(struct command_call *c, struct top *t, struct screen *s) {
    enum screen_news news = SCREEN_TIME;
    char *text = NULL;
    bool there = true;
    while (there && (news == SCREEN_TIME || news == SCREEN_SIZE)) {
        if (news == SCREEN_TIME) {
            free(text);
            text = draw(c, t);
        }
        there = text != NULL && screen_paint(s, text);
        if (there)
            news = screen_wait(s, EVERY);
    }
    free(text);
    return news == SCREEN_SIGNAL ? EXIT_SIGNAL + s->signal : 0;
}

int top_command(struct command_call *c) {
    struct screen s;
    struct top *t = calloc(1, sizeof *t);
    if (t == NULL)
        return out_fail(c->out, ERR_NO_MEMORY, NULL, NULL, "top");
    bool live = c->out->live && c->out->format == OUT_TABLE && !command_switch(c, "once");
    if (!live && !command_switch(c, "once") && c->out->format == OUT_TABLE)
        out_talk(c->out, "%s", message(MSG_TOP_NO_TERMINAL));
    int code;
    if (!live) {
        code = once(c, t);
    } else if (!screen_open(&s, c->out->to, STDIN_FILENO, STDOUT_FILENO)) {
        code = out_fail(c->out, ERR_NO_MEMORY, NULL, "consign top --once", "top");
    } else {
        code = watch(c, t, &s);
        screen_close(&s);
    }
    free(t);
    return code;
}
