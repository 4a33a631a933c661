/* lab.c: prints what the laboratory found; the experiments themselves are in lab/. */
#include "cli/lab.h"
#include "base/message.h"
#include "lab/lab.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { PROGRAM_SIZE = 1024, DRILLS_SIZE = 2048, EXIT_FAILED = 1 };

static const char *const when_name[] = {
    [BEFORE] = "before", [AFTER] = "after", [BETWEEN] = "between"};

static const char *say_when(enum when w) {
    static const char *const zh[] = {[BEFORE] = "之前", [AFTER] = "之后", [BETWEEN] = "其间"};
    return TEXT(when_name[w], zh[w]);
}

static int language(void) {
    return message_language_now() == LANG_ZH;
}

/* ---- list ---- */

/* Names what is planned and cannot be run yet. */
static json_t *not_built(struct out *o) {
    char line[400];
    struct text t;
    json_t *list = json_array();
    const char *id;
    bool built;
    uint32_t all = 0, n = 0;
    text_init(&t, line, sizeof line);
    for (size_t i = 0; (id = lab_planned(i, &built)) != NULL; i++, all++) {
        if (built)
            continue;
        text_add(&t, "%s%s", n > 0 ? " " : "", id);
        out_append(list, out_json_string(id));
        n++;
    }
    out_line(o, TEXT("not built yet, %u of %u: %s", "尚未实现（%u / %u）：%s"), n, all, line);
    return list;
}

int lab_list_command(struct command_call *c) {
    struct table *t = table_new(
        3, (const char *const[]){"ID", TEXT("EXPERIMENT", "实验"), TEXT("MUTANT", "变异")}, "lll");
    json_t *items = json_array();
    bool built;
    const char *id;
    for (size_t i = 0; (id = lab_planned(i, &built)) != NULL; i++) {
        const struct experiment *e = lab_find(id);
        json_t *o = json_object();
        out_put(o, "id", out_json_string(id));
        out_put(o, "built", json_boolean(built));
        if (e) {
            out_put(o, "title", out_json_string(e->title[language()]));
            out_put(o, "mutant", out_json_string(e->mutant));
            table_cell(t, e->id);
            table_cell(t, e->title[language()]);
            table_cell(t, e->mutant);
        }
        out_append(items, o);
    }
    table_print(t, c->out);
    table_free(t);
    json_t *extra = json_object();
    out_put(extra, "not_built", not_built(c->out));
    out_list(c->out, "lab_list", items, extra);
    command_next(c);
    return 0;
}

/* ---- one report, for people ---- */

static bool all_numbers(const struct sheet *s, uint32_t column) {
    bool any = false;
    for (uint32_t r = 0; r < s->rows; r++) {
        const char *text = s->cell[r][column];
        if (text[strspn(text, "-0123456789")] == '\0')
            any = true;
        else if (strcmp(text, "–") != 0)
            return false;
    }
    return any;
}

static void print_sheet(struct out *o, const struct sheet *s) {
    const char *heading[SHEET_COLUMNS];
    char align[SHEET_COLUMNS + 1];
    for (uint32_t i = 0; i < s->columns; i++) {
        heading[i] = s->heading[i];
        align[i] = all_numbers(s, i) ? 'r' : 'l';
    }
    align[s->columns] = '\0';
    struct table *t = table_new((int)s->columns, heading, align);
    for (uint32_t r = 0; r < s->rows; r++)
        for (uint32_t i = 0; i < s->columns; i++)
            table_cell(t, s->cell[r][i]);
    out_line(o, "%s · %s%s", say_when(s->when), s->title,
             s->rows == 0 ? TEXT(": none", "：无") : "");
    table_print(t, o);
    table_free(t);
}

static void print_checks(struct out *o, const struct report *r, bool all) {
    char text[LINE_SIZE], expected[VALUE_SIZE], found[VALUE_SIZE];
    for (uint32_t i = 0; i < r->checks; i++) {
        const struct check *k = &r->check[i];
        (void)out_safe_text(k->text, text, sizeof text);
        (void)out_safe_text(k->expected, expected, sizeof expected);
        (void)out_safe_text(k->found, found, sizeof found);
        if (k->ok && all)
            out_line(o, "ok      %s (%s)", text, found);
        else if (!k->ok)
            out_line(o, TEXT("FAILED  %s: expected %s, found %s", "FAILED  %s：期望 %s，实际 %s"),
                     text, expected, found);
    }
}

static void print_story(struct out *o, const struct experiment *e, const struct report *r) {
    char text[LINE_SIZE];
    out_line(o, "%s %s", TEXT("injected:", "注入："), e->inject[language()]);
    for (uint32_t i = 0; i < r->steps; i++)
        out_line(o, "  +%" PRId64 ".%03" PRId64 " s  %s", r->step[i].at / 1000000,
                 r->step[i].at / 1000 % 1000, out_safe_text(r->step[i].text, text, sizeof text));
    for (uint32_t i = 0; i < r->sheets; i++)
        print_sheet(o, &r->sheet[i]);
    for (int i = 0; i < LAB_HELD_MAX && e->held[i][0]; i++)
        out_line(o, "%s %s", TEXT("held by: ", "由此守住："), e->held[i][language()]);
}

static void print_report(struct out *o, const struct experiment *e, const struct report *r) {
    out_line(o, "%s  %s", e->id, e->title[language()]);
    if (!o->quiet)
        print_story(o, e, r);
    print_checks(o, r, !o->quiet);
    if (r->broken.status != CSN_OK) {
        char text[sizeof r->broken.text];
        out_line(o, TEXT("FAILED  not carried out: CSN-%04d %s", "FAILED  未能完成：CSN-%04d %s"),
                 (int)r->broken.code, out_safe_text(r->broken.text, text, sizeof text));
    }
    if (!o->quiet)
        out_line(o, "%s %s: %s", TEXT("mutant:  ", "变异："), e->mutant, e->sabotage[language()]);
    if (r->folder[0])
        out_line(o, "%s %s", TEXT("kept in: ", "保留于："), r->folder);
    out_line(o, "%s: %s (%" PRId64 ".%01" PRId64 " s)\n", e->id,
             report_passed(r) ? TEXT("passed", "通过") : TEXT("FAILED", "失败"), r->took / 1000000,
             r->took / 100000 % 10);
    (void)fflush(o->to);
}

/* ---- one report, for programs ---- */

static json_t *sheets_json(const struct report *r, enum when when) {
    json_t *all = json_object();
    for (uint32_t i = 0; i < r->sheets; i++) {
        const struct sheet *s = &r->sheet[i];
        json_t *rows = json_array();
        if (s->when != when)
            continue;
        for (uint32_t row = 0; row < s->rows; row++) {
            json_t *one = json_object();
            for (uint32_t k = 0; k < s->columns; k++)
                out_put(one, s->heading[k], out_json_string(s->cell[row][k]));
            out_append(rows, one);
        }
        out_put(all, s->name, rows);
    }
    return all;
}

static json_t *report_json(const struct experiment *e, const struct report *r) {
    json_t *o = json_object(), *checks = json_array(), *held = json_array();
    for (uint32_t i = 0; i < r->checks; i++) {
        json_t *k = json_object();
        out_put(k, "text", out_json_string(r->check[i].text));
        out_put(k, "ok", json_boolean(r->check[i].ok));
        out_put(k, "expected", out_json_string(r->check[i].expected));
        out_put(k, "found", out_json_string(r->check[i].found));
        out_append(checks, k);
    }
    for (int i = 0; i < LAB_HELD_MAX && e->held[i][0]; i++)
        out_append(held, out_json_string(e->held[i][language()]));
    out_put(o, "id", out_json_string(e->id));
    out_put(o, "title", out_json_string(e->title[language()]));
    out_put(o, "injected", out_json_string(e->inject[language()]));
    out_put(o, "passed", json_boolean(report_passed(r)));
    for (int w = BEFORE; w <= BETWEEN; w++)
        out_put(o, when_name[w], sheets_json(r, (enum when)w));
    out_put(o, "held_by", held);
    out_put(o, "checks", checks);
    out_put(o, "mutant", out_json_string(e->mutant));
    out_put(o, "took_ms", json_integer(r->took / 1000));
    if (r->broken.status != CSN_OK) {
        char code[16];
        (void)snprintf(code, sizeof code, "CSN-%04d", (int)r->broken.code);
        out_put(o, "code", out_json_string(code));
        out_put(o, "error", out_json_string(r->broken.text));
    }
    return o;
}

/* ---- run ---- */

struct session {
    struct command_call *c;
    struct lab_options options;
    struct report *report;
    json_t *items;
    uint32_t passed, failed, planned;
    json_t *drills; /* NULL: none are run */
    char summary[DRILLS_SIZE];
    struct text said;
    csn_error refused; /* a store without the marker: nothing is run */
};

static void run_one(struct session *x, const struct experiment *e) {
    if (x->refused.code != 0)
        return;
    out_progress(x->c->out, "%u/%u  %s  %s", x->passed + x->failed + 1, x->planned, e->id,
                 e->title[language()]);
    lab_run(e, &x->options, x->report);
    out_progress_end(x->c->out);
    if (x->report->broken.code == ERR_STORE_NO_MARKER) {
        x->refused = x->report->broken;
        return;
    }
    x->passed += report_passed(x->report);
    x->failed += !report_passed(x->report);
    if (x->c->out->format == OUT_TABLE)
        print_report(x->c->out, e, x->report);
    else
        out_append(x->items, report_json(e, x->report));
}

static int finish(struct session *x, bool all) {
    struct out *o = x->c->out;
    json_t *extra = json_object();
    if (x->drills)
        out_line(o, "%.*s", (int)x->said.used, x->summary);
    if (x->drills)
        out_put(extra, "drills", x->drills);
    if (all)
        out_put(extra, "not_built", not_built(o));
    out_put(extra, "passed", json_integer(x->passed));
    out_put(extra, "failed", json_integer(x->failed));
    out_line(o, "%u passed, %u failed", x->passed, x->failed);
    out_list(o, "lab_run", x->items, extra);
    x->items = NULL;
    return x->failed > 0 ? EXIT_FAILED : 0;
}

static int known(const struct command_call *c) {
    if (command_switch(c, "prelaunch") != (c->args == 0))
        return out_fail(c->out, ERR_USAGE, NULL, "consign lab run ID", "%s",
                        TEXT("either experiments or --prelaunch", "指定实验，或用 --prelaunch"));
    for (int i = 0; i < c->args; i++)
        if (strcmp(c->arg[i], "all") != 0 && !lab_find(c->arg[i]))
            return out_fail(c->out, ERR_NOT_FOUND, NULL, "consign lab list", "%s", c->arg[i]);
    return 0;
}

/* The experiments of a drill that are built, or those that are not. */
static json_t *drill_ids(const struct drill *d, bool built, struct text *ret) {
    json_t *list = json_array();
    for (int i = 0; i < DRILL_MAX && d->id[i]; i++) {
        if ((lab_find(d->id[i]) != NULL) != built)
            continue;
        text_add(ret, " %s", d->id[i]);
        out_append(list, out_json_string(d->id[i]));
    }
    return list;
}

/* One line for people and one object for programs: drilled, failed, or not drilled; and what is
 * still missing of it. */
static void drill_end(struct session *x, const struct drill *d, bool failed) {
    char built[80], missing[80];
    struct text b, m;
    json_t *o = json_object();
    text_init(&b, built, sizeof built);
    text_init(&m, missing, sizeof missing);
    json_t *ran = drill_ids(d, true, &b), *unbuilt = drill_ids(d, false, &m);
    const char *state = failed ? "failed" : b.used > 0 ? "passed" : "missing";
    text_add(&x->said, "%s  %s:%s",
             failed       ? TEXT("FAILED     ", "失败  ")
             : b.used > 0 ? TEXT("passed     ", "通过  ")
                          : TEXT("NOT DRILLED", "未演练"),
             d->title[language()], built);
    if (m.used > 0)
        text_add(&x->said, TEXT("%s not built yet:%s", "%s尚未实现：%s"),
                 b.used > 0 ? TEXT(";", "；") : "", missing);
    text_add(&x->said, "\n");
    out_put(o, "title", out_json_string(d->title[language()]));
    out_put(o, "state", out_json_string(state));
    out_put(o, "experiments", ran);
    out_put(o, "not_built", unbuilt);
    out_append(x->drills, o);
}

static void run_drills(struct session *x) {
    const struct drill *d;
    x->drills = json_array();
    text_init(&x->said, x->summary, sizeof x->summary);
    for (size_t i = 0; (d = lab_drill_at(i)) != NULL; i++)
        for (int k = 0; k < DRILL_MAX && d->id[k]; k++)
            x->planned += lab_find(d->id[k]) != NULL;
    for (size_t i = 0; (d = lab_drill_at(i)) != NULL; i++) {
        uint32_t before = x->failed;
        for (int k = 0; k < DRILL_MAX && d->id[k]; k++)
            if (lab_find(d->id[k]))
                run_one(x, lab_find(d->id[k]));
        drill_end(x, d, x->failed > before);
    }
}

static void run_all(struct session *x, bool *ret_all) {
    if (command_switch(x->c, "prelaunch")) {
        run_drills(x);
        return;
    }
    for (int i = 0; i < x->c->args; i++)
        *ret_all |= strcmp(x->c->arg[i], "all") == 0;
    x->planned = (uint32_t)x->c->args;
    for (size_t i = 0; *ret_all && lab_at(i) != NULL; i++)
        x->planned = (uint32_t)i + 1;
    if (*ret_all)
        for (size_t i = 0; lab_at(i) != NULL; i++)
            run_one(x, lab_at(i));
    else
        for (int i = 0; i < x->c->args; i++)
            run_one(x, lab_find(x->c->arg[i]));
}

int lab_run_command(struct command_call *c) {
    char program[PROGRAM_SIZE];
    struct session x = {.c = c,
                        .options = {.program = program,
                                    .keep = command_text(c, "keep"),
                                    .orders = command_text(c, "orders"),
                                    .stock = command_text(c, "stock")}};
    bool all = false;
    int code = known(c);
    if (code != 0)
        return code;
    if ((x.options.orders != NULL) != (x.options.stock != NULL))
        return out_fail(c->out, ERR_USAGE, NULL, "consign lab run ID --orders URL --stock URL",
                        "%s", "--orders, --stock");
    x.report = calloc(1, sizeof *x.report);
    if (!x.report || !lab_program(program, sizeof program)) {
        free(x.report);
        return out_fail(c->out, ERR_NO_MEMORY, NULL, NULL, "lab");
    }
    x.items = json_array();
    run_all(&x, &all);
    free(x.report);
    if (x.refused.code != 0) {
        json_decref(x.items);
        json_decref(x.drills);
        return out_error(c->out, &x.refused, NULL, "consign lab prepare URL");
    }
    return finish(&x, all);
}

/* ---- prepare, act ---- */

int lab_prepare_command(struct command_call *c) {
    csn_error err;
    char safe[400];
    error_clear(&err);
    if (lab_prepare(c->arg[0], c->yes, &err) != CSN_OK)
        return out_error(c->out, &err, NULL,
                         err.code == ERR_TAKEN ? "consign lab prepare URL --yes" : NULL);
    json_t *document = out_document("lab_prepare");
    out_put(document, "url", out_json_string(c->arg[0]));
    out_line(c->out, "%s: %s", out_safe_text(c->arg[0], safe, sizeof safe),
             TEXT("marked as a test database; experiments empty it",
                  "已标记为实验用的测试库；实验会清空它"));
    out_json(c->out, document);
    return 0;
}

int lab_act_command(struct command_call *c) {
    csn_error err;
    error_clear(&err);
    int code = lab_act(c->arg, c->args, c->out->to, &err);
    if (code != 0)
        (void)out_error(c->out, &err, NULL, NULL);
    return code;
}
