/* help.c: every word here comes from the table of commands; a command that is not in it cannot be
 * shown, one that is cannot be forgotten. */
#include "cli/help.h"
#include "base/message.h"
#include "cli/man.h"
#include "cli/width.h"
#include "core/guess.h"

static int here(void) {
    return message_language_now() == LANG_ZH;
}

static bool hidden(const struct command *k) {
    return (k->bits & COMMAND_HIDDEN) != 0;
}

/* "  name…  help", aligned at the given width. */
static void line_pair(struct out *o, const char *left, size_t width, const char *right) {
    size_t used = text_width(bytes_of(left));
    out_line(o, "  %s%*s  %s", left, used < width ? (int)(width - used) : 0, "", right);
}

static void flag_text(const struct flag *f, char *ret, size_t size) {
    struct text t;
    text_init(&t, ret, size);
    text_add(&t, "--%s%s%s", f->name, f->value != NULL ? " " : "",
             f->value != NULL ? f->value : "");
}

static void print_flags(struct out *o, const struct flag *f) {
    char left[80];
    for (; f != NULL && f->name != NULL; f++) {
        flag_text(f, left, sizeof(left));
        line_pair(o, left, 20, f->help[here()]);
    }
}

/* The flags that only some commands take. */
static void print_change_flags(struct out *o, const struct command *k) {
    for (const struct flag *f = command_global_flags(); f->name != NULL; f++)
        if (command_takes_some(k, f->name))
            print_flags(o,
                        (const struct flag[]){*f, {NULL, FLAG_SWITCH, NULL, 0, 0, {NULL, NULL}}});
}

static bool has_flags(const struct command *k) {
    return k->flag != NULL ||
           (k->bits & (COMMAND_REASON | COMMAND_MAY_REASON | COMMAND_DRY_RUN | COMMAND_YES)) != 0;
}

static void print_lines(struct out *o, const char *lines) {
    for (const char *s = lines; *s != '\0';) {
        size_t n = strcspn(s, "\n");
        out_line(o, "  %.*s", (int)n, s);
        s += n + (s[n] == '\n');
    }
}

static void print_one(struct out *o, const struct command *k) {
    out_line(o, "consign %s%s%s — %s", k->name, k->args[0] != '\0' ? " " : "", k->args,
             k->help[here()]);
    if (k->more[here()] != NULL)
        print_lines(o, k->more[here()]);
    if (has_flags(k)) {
        out_line(o, "%s", message(MSG_HELP_FLAGS));
        print_flags(o, k->flag);
        print_change_flags(o, k);
    }
    if (k->example != NULL) {
        out_line(o, "%s", message(MSG_HELP_EXAMPLES));
        print_lines(o, k->example);
    }
}

static json_t *flag_json(const struct flag *f) {
    json_t *j = json_object();
    out_put(j, "name", out_json_string(f->name));
    out_put(j, "value", out_json_string(f->value));
    out_put(j, "help", out_json_string(f->help[here()]));
    return j;
}

static json_t *one_json(const struct command *k) {
    json_t *j = json_object(), *flags = json_array();
    for (const struct flag *f = k->flag; f != NULL && f->name != NULL; f++)
        out_append(flags, flag_json(f));
    out_put(j, "name", out_json_string(k->name));
    out_put(j, "args", out_json_string(k->args));
    out_put(j, "help", out_json_string(k->help[here()]));
    out_put(j, "example", out_json_string(k->example));
    out_put(j, "reason_required", json_boolean((k->bits & COMMAND_REASON) != 0));
    out_put(j, "flags", flags);
    return j;
}

int help_one(struct out *o, const struct command *k) {
    json_t *document = out_document("command");
    out_put(document, "command", one_json(k));
    print_one(o, k);
    out_json(o, document);
    return 0;
}

static json_t *all_json(void) {
    json_t *items = json_array();
    for (size_t i = 0; command_at(i) != NULL; i++)
        if (!hidden(command_at(i)))
            out_append(items, one_json(command_at(i)));
    return items;
}

static size_t widest(void) {
    size_t most = 0;
    for (size_t i = 0; command_at(i) != NULL; i++) {
        const struct command *k = command_at(i);
        size_t n = strlen(k->name) + (k->args[0] != '\0' ? strlen(k->args) + 1 : 0);
        most = !hidden(k) && n > most ? n : most;
    }
    return most;
}

int help_overview(struct out *o) {
    char left[120];
    size_t width = widest();
    out_line(o, "consign %s — %s", CSN_VERSION, message(MSG_HELP_WHAT));
    out_line(o, "%s", message(MSG_HELP_USAGE));
    for (size_t i = 0; command_at(i) != NULL; i++) {
        const struct command *k = command_at(i);
        if (hidden(k))
            continue;
        (void)snprintf(left, sizeof(left), "%s%s%s", k->name, k->args[0] != '\0' ? " " : "",
                       k->args);
        line_pair(o, left, width, k->help[here()]);
    }
    out_line(o, "%s", message(MSG_HELP_GLOBAL));
    print_flags(o, command_global_flags());
    if (!o->quiet)
        out_line(o, "%s consign help COMMAND", message(MSG_OUT_NEXT));
    out_list(o, "command_list", all_json(), NULL);
    return 0;
}

static int help_all(struct out *o) {
    for (size_t i = 0; command_at(i) != NULL; i++) {
        if (hidden(command_at(i)))
            continue;
        print_one(o, command_at(i));
        out_line(o, "%s", "");
    }
    out_line(o, "%s", message(MSG_HELP_GLOBAL));
    print_flags(o, command_global_flags());
    out_list(o, "command_list", all_json(), NULL);
    return 0;
}

/* ---- the reference page ---- */

static void markdown_flags(struct out *o, const struct flag *f) {
    char left[80];
    for (; f != NULL && f->name != NULL; f++) {
        flag_text(f, left, sizeof(left));
        out_line(o, "| `%s` | %s |", left, f->help[here()]);
    }
}

static void markdown_one(struct out *o, const struct command *k) {
    char sentence[400];
    out_line(o, "## consign %s\n\n%s\n", k->name,
             out_sentence(k->help[here()], sentence, sizeof(sentence)));
    if (k->more[here()] != NULL)
        out_line(o, "%s\n", k->more[here()]);
    out_line(o, "`consign %s%s%s%s%s`\n", k->name, k->args[0] != '\0' ? " " : "", k->args,
             (k->bits & COMMAND_REASON) != 0 ? " --reason TEXT" : "",
             (k->bits & COMMAND_DRY_RUN) != 0 ? " [--dry-run]" : "");
    if (k->flag != NULL) {
        out_line(o, "| %s | |\n|---|---|", message(MSG_HELP_FLAG));
        markdown_flags(o, k->flag);
        out_line(o, "%s", "");
    }
    if (k->example != NULL)
        out_line(o, "```\n%s\n```\n", k->example);
}

static int help_markdown(struct out *o) {
    out_line(o, "# %s\n\n%s\n", message(MSG_HELP_PAGE), message(MSG_HELP_GENERATED));
    for (size_t i = 0; command_at(i) != NULL; i++)
        if (!hidden(command_at(i)))
            markdown_one(o, command_at(i));
    out_line(o, "## %s\n\n| %s | |\n|---|---|", message(MSG_HELP_GLOBAL_TITLE),
             message(MSG_HELP_FLAG));
    markdown_flags(o, command_global_flags());
    return 0;
}

/* ---- consign help ---- */

/* All verbs of a noun; false: it is none. */
static bool help_noun(struct out *o, const char *noun) {
    size_t n = strlen(noun);
    bool found = false;
    for (size_t i = 0; command_at(i) != NULL; i++) {
        const struct command *k = command_at(i);
        if (hidden(k) || strncmp(k->name, noun, n) != 0 || k->name[n] != ' ')
            continue;
        if (found)
            out_line(o, "%s", "");
        print_one(o, k);
        found = true;
    }
    return found;
}

int help_unknown(struct out *o, const char *name) {
    char way[120], line[200];
    struct text t, l;
    struct guess g;
    guess_init(&g, name);
    for (size_t i = 0; command_at(i) != NULL; i++)
        guess_offer(&g, command_at(i)->name);
    text_init(&t, way, sizeof(way));
    text_add(&t, "consign help%s%s", g.best != NULL ? " " : "", g.best != NULL ? g.best : "");
    text_init(&l, line, sizeof(line));
    message_add(&l, MSG_COMMAND_UNKNOWN, name, "");
    return out_fail(o, ERR_USAGE, NULL, way, "%s", line);
}

int help_command(struct command_call *c) {
    char name[128];
    struct text t;
    if (command_switch(c, "man"))
        return man_command(c);
    if (command_switch(c, "markdown"))
        return help_markdown(c->out);
    if (command_switch(c, "all"))
        return help_all(c->out);
    if (c->args == 0)
        return help_overview(c->out);
    text_init(&t, name, sizeof(name));
    text_add(&t, "%s%s%s", c->arg[0], c->args == 2 ? " " : "", c->args == 2 ? c->arg[1] : "");
    const struct command *k = command_find(name);
    if (k != NULL)
        return help_one(c->out, k);
    return c->args == 1 && c->out->format == OUT_TABLE && help_noun(c->out, name)
               ? 0
               : help_unknown(c->out, name);
}
