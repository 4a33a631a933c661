/* man.c: the manual pages, in mdoc: consign(1), a page for each command, and consign.yaml(5) with
 * every key. All words are those of the tables; what is written here is their order.
 *
 * A line of words is never a line of a macro: it is escaped, and each sentence begins its own line,
 * as mdoc asks. */
#include "cli/man.h"
#include "base/message.h"
#include "cli/help.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

static const char page_date[] = "November 30, 2026"; /* of the last change of what stands here */
enum { LINE_MAX_ = 76 };
static const char yaml_topic[] = "consign.yaml";

static int here(void) {
    return message_language_now() == LANG_ZH;
}

static bool hidden(const struct command *k) {
    return (k->bits & COMMAND_HIDDEN) != 0;
}

/* ---- words ---- */

/* One line, safe from being read as a macro; "--" stays as it is typed. */
static void put_escaped(FILE *to, const char *s, size_t n) {
    if (n > 0 && (s[0] == '.' || s[0] == '\''))
        (void)fputs("\\&", to);
    for (size_t i = 0; i < n; i++) {
        if (s[i] == '\\')
            (void)fputs("\\e", to);
        else if (s[i] == '-' && ((i + 1 < n && s[i + 1] == '-') || (i > 0 && s[i - 1] == '-')))
            (void)fputs("\\-", to);
        else
            (void)fputc(s[i], to);
    }
}

static bool ends_sentence(const char *s, size_t i, size_t n) {
    return strchr(".?!", s[i]) != NULL && i + 1 < n && s[i + 1] == ' ';
}

/* Lines of at most LINE_MAX_ bytes, broken at blanks. */
static void filled(FILE *to, const char *s, size_t n) {
    while (n > LINE_MAX_) {
        size_t cut = LINE_MAX_;
        while (cut > 0 && s[cut] != ' ')
            cut--;
        if (cut == 0)
            break;
        put_escaped(to, s, cut);
        (void)fputc('\n', to);
        s += cut + 1;
        n -= cut + 1;
    }
    put_escaped(to, s, n);
    (void)fputc('\n', to);
}

/* Each sentence begins a line; breaks that were made by hand stay breaks. */
static void words(FILE *to, const char *text) {
    size_t n = strlen(text), from = 0;
    for (size_t i = 0; i <= n; i++) {
        bool line = i == n || text[i] == '\n', stop = !line && ends_sentence(text, i, n);
        if (!line && !stop)
            continue;
        size_t end = i + stop;
        while (from < end && text[from] == ' ')
            from++;
        if (end > from)
            filled(to, text + from, end - from);
        from = end + line;
    }
}

static void sentence(FILE *to, const char *text) {
    char line[600];
    words(to, out_sentence(text, line, sizeof line));
}

static void literal(FILE *to, const char *text) {
    (void)fputs(".Bd -literal -offset indent\n", to);
    for (const char *s = text; *s != '\0';) {
        size_t n = strcspn(s, "\n");
        put_escaped(to, s, n);
        (void)fputc('\n', to);
        s += n + (s[n] == '\n');
    }
    (void)fputs(".Ed\n", to);
}

/* "consign-event-trace" */
static void page_name(const struct command *k, char *ret, size_t size) {
    struct text t;
    text_init(&t, ret, size);
    text_add(&t, "consign-%s", k->name);
    for (char *s = ret; *s != '\0'; s++)
        *s = *s == ' ' ? '-' : *s;
}

static void head(FILE *to, const char *name, int section, const char *what) {
    (void)fprintf(to, ".Dd %s\n.Dt ", page_date);
    for (const char *s = name; *s != '\0'; s++)
        (void)fputc(*s >= 'a' && *s <= 'z' ? *s - 'a' + 'A' : *s, to);
    (void)fprintf(to, " %d\n.Os\n.Sh NAME\n.Nm %s\n.Nd ", section, name);
    put_escaped(to, what, strlen(what));
    (void)fputc('\n', to);
}

static void flags(FILE *to, const struct flag *f) {
    for (; f != NULL && f->name != NULL; f++) {
        (void)fprintf(to, ".It Fl -%s%s%s\n", f->name, f->value != NULL ? " Ar " : "",
                      f->value != NULL ? f->value : "");
        sentence(to, f->help[here()]);
    }
}

/* ---- consign(1) ---- */

static void main_commands(FILE *to) {
    char name[80];
    (void)fputs(".Sh COMMANDS\n.Bl -tag -width Ds\n", to);
    for (size_t i = 0; command_at(i) != NULL; i++) {
        const struct command *k = command_at(i);
        if (hidden(k))
            continue;
        page_name(k, name, sizeof name);
        (void)fprintf(to, ".It Xr %s 1\n", name);
        sentence(to, k->help[here()]);
    }
    (void)fputs(".El\n", to);
}

static void item(FILE *to, const char *macro, const char *name, enum message_id id) {
    (void)fprintf(to, ".It %s %s\n", macro, name);
    words(to, message(id));
}

static void main_surroundings(FILE *to) {
    (void)fputs(".Sh ENVIRONMENT\n.Bl -tag -width Ds\n", to);
    item(to, "Ev", "CONSIGN_CONFIG", MSG_MAN_ENV_CONFIG);
    item(to, "Ev", "CONSIGN_RELAY__LEASE", MSG_MAN_ENV_KEY);
    item(to, "Ev", "NO_COLOR", MSG_MAN_ENV_COLOR);
    item(to, "Ev", "LC_ALL , LC_MESSAGES , LANG", MSG_MAN_ENV_LANG);
    (void)fputs(".El\n.Sh FILES\n.Bl -tag -width Ds\n", to);
    item(to, "Pa", "consign.yaml", MSG_MAN_FILE_HERE);
    item(to, "Pa", "consign-dev/consign.yaml", MSG_MAN_FILE_DEV);
    item(to, "Pa", "/etc/consign/consign.yaml", MSG_MAN_FILE_ETC);
    (void)fputs(".El\n", to);
}

static void exit_codes(FILE *to) {
    static const struct {
        const char *code;
        enum message_id id;
    } row[] = {{"0", MSG_MAN_EXIT_0},   {"1", MSG_MAN_EXIT_1},   {"64", MSG_MAN_EXIT_64},
               {"65", MSG_MAN_EXIT_65}, {"66", MSG_MAN_EXIT_66}, {"69", MSG_MAN_EXIT_69},
               {"70", MSG_MAN_EXIT_70}, {"75", MSG_MAN_EXIT_75}, {"76", MSG_MAN_EXIT_76},
               {"77", MSG_MAN_EXIT_77}, {"78", MSG_MAN_EXIT_78}};
    (void)fputs(".Sh EXIT STATUS\n.Bl -tag -width Ds\n", to);
    for (size_t i = 0; i < ARRAY_LEN(row); i++)
        item(to, "Li", row[i].code, row[i].id);
    (void)fputs(".El\n", to);
}

static void main_page(FILE *to) {
    head(to, "consign", 1, message(MSG_HELP_WHAT));
    (void)fputs(".Sh SYNOPSIS\n.Nm\n.Ar command\n.Op Ar arguments\n.Op Fl flags\n"
                ".Sh DESCRIPTION\n",
                to);
    words(to, message(MSG_MAN_ABOUT));
    main_commands(to);
    (void)fputs(".Sh OPTIONS\n.Bl -tag -width Ds\n", to);
    flags(to, command_global_flags());
    (void)fputs(".El\n", to);
    main_surroundings(to);
    exit_codes(to);
    (void)fputs(".Sh SEE ALSO\n.Xr sqlite3 1 ,\n.Xr consign.yaml 5\n", to);
}

/* ---- consign-COMMAND(1) ---- */

static void command_flags(FILE *to, const struct command *k) {
    bool any = false;
    const struct flag end = {NULL, FLAG_SWITCH, NULL, 0, 0, {NULL, NULL}};
    const char *const head_line = ".Sh OPTIONS\n.Bl -tag -width Ds\n";
    if (k->flag != NULL && k->flag->name != NULL) {
        (void)fputs(head_line, to);
        flags(to, k->flag);
        any = true;
    }
    for (const struct flag *f = command_global_flags(); f->name != NULL; f++) {
        if (!command_takes_some(k, f->name))
            continue;
        (void)fputs(any ? "" : head_line, to);
        flags(to, (const struct flag[]){*f, end});
        any = true;
    }
    if (any)
        (void)fputs(".El\n.Pp\n", to);
    else
        (void)fputs(".Sh OPTIONS\n", to);
    words(to, message(MSG_MAN_GLOBAL));
    (void)fputs(".Xr consign 1 .\n", to);
}

static void command_page(FILE *to, const struct command *k) {
    char name[80];
    page_name(k, name, sizeof name);
    head(to, name, 1, k->help[here()]);
    (void)fprintf(to, ".Sh SYNOPSIS\n.Nm consign %s\n", k->name);
    if (k->args[0] != '\0')
        (void)fprintf(to, ".Ar %s\n", k->args);
    if ((k->bits & COMMAND_REASON) != 0)
        (void)fputs(".Fl -reason Ar TEXT\n", to);
    (void)fputs(".Op Fl flags\n.Sh DESCRIPTION\n", to);
    sentence(to, k->help[here()]);
    if (k->more[here()] != NULL)
        words(to, k->more[here()]);
    command_flags(to, k);
    if (k->example != NULL) {
        (void)fputs(".Sh EXAMPLES\n", to);
        literal(to, k->example);
    }
    (void)fputs(".Sh SEE ALSO\n.Xr consign 1 ,\n.Xr consign.yaml 5\n", to);
}

/* ---- consign.yaml(5) ---- */

static void key_item(FILE *to, const struct config_key *k) {
    char expected[240], line[400];
    struct text t;
    text_init(&t, expected, sizeof expected);
    config_expected(k, &t);
    (void)fprintf(to, ".It Ic %s\n", k->path);
    sentence(to, k->help[here()]);
    text_init(&t, line, sizeof line);
    message_add(&t, MSG_MAN_KEY_TAKES, expected);
    sentence(to, line);
    if (k->otherwise == NULL)
        return;
    text_init(&t, line, sizeof line);
    message_add(&t, MSG_MAN_KEY_DEFAULT, k->otherwise);
    sentence(to, line);
}

static void yaml_page(FILE *to) {
    head(to, yaml_topic, 5, message(MSG_MAN_YAML_WHAT));
    (void)fputs(".Sh DESCRIPTION\n", to);
    words(to, message(MSG_MAN_YAML_ABOUT));
    (void)fputs(".Bl -tag -width Ds\n", to);
    for (size_t i = 0; config_key_at(i) != NULL; i++)
        key_item(to, config_key_at(i));
    (void)fputs(".El\n.Sh EXAMPLES\n", to);
    literal(to, "consign config check\nconsign config show --origin\n"
                "consign config explain relay.lease");
    (void)fputs(".Sh SEE ALSO\n.Xr consign 1\n", to);
}

/* ---- files ---- */

/* k and yaml choose the page; neither: consign(1). */
static void page(FILE *to, const struct command *k, bool yaml) {
    if (yaml)
        yaml_page(to);
    else if (k != NULL)
        command_page(to, k);
    else
        main_page(to);
}

struct writing {
    const char *dir;
    uint32_t pages;
    csn_error err;
};

static bool write_failed(struct writing *w, const char *path) {
    (void)error_set(&w->err, CSN_INVALID, ERR_WRITE, "%s: %s", path, strerror(errno));
    return false;
}

static bool write_page(struct writing *w, const struct command *k, bool yaml) {
    char name[80] = "consign", path[URL_MAX_ + 96];
    if (k != NULL)
        page_name(k, name, sizeof name);
    (void)snprintf(path, sizeof path, "%s/man%d/%s.%d", w->dir, yaml ? 5 : 1,
                   yaml ? yaml_topic : name, yaml ? 5 : 1);
    FILE *f = fopen(path, "we");
    if (f == NULL)
        return write_failed(w, path);
    page(f, k, yaml);
    bool good = ferror(f) == 0;
    if (fclose(f) != 0 || !good)
        return write_failed(w, path);
    w->pages++;
    return true;
}

static bool make_folder(struct writing *w, const char *tail) {
    char path[URL_MAX_ + 96];
    (void)snprintf(path, sizeof path, "%s%s", w->dir, tail);
    return mkdir(path, 0777) == 0 || errno == EEXIST || write_failed(w, path);
}

static int write_all(struct command_call *c, const char *dir) {
    struct writing w = {.dir = dir};
    if (strlen(dir) > URL_MAX_)
        return out_fail(c->out, ERR_WRITE, NULL, NULL, "%.80s…", dir);
    bool good = make_folder(&w, "") && make_folder(&w, "/man1") && make_folder(&w, "/man5") &&
                write_page(&w, NULL, false) && write_page(&w, NULL, true);
    for (size_t i = 0; good && command_at(i) != NULL; i++)
        good = hidden(command_at(i)) || write_page(&w, command_at(i), false);
    if (!good)
        return out_error(c->out, &w.err, NULL, NULL);
    json_t *document = out_document("man");
    out_put(document, "dir", out_json_string(dir));
    out_put(document, "pages", json_integer(w.pages));
    out_say(c->out, MSG_MAN_WRITTEN, w.pages, dir);
    out_json(c->out, document);
    return 0;
}

int man_command(struct command_call *c) {
    char name[128] = "", *text = NULL;
    size_t size = 0;
    struct text t;
    const char *dir = command_text(c, "dir");
    if (dir != NULL)
        return write_all(c, dir);
    text_init(&t, name, sizeof name);
    for (int i = 0; i < c->args; i++)
        text_add(&t, "%s%s", i > 0 ? " " : "", c->arg[i]);
    const struct command *k = command_find(name);
    bool yaml = strcmp(name, yaml_topic) == 0;
    if (c->args > 0 && k == NULL && !yaml)
        return help_unknown(c->out, name);
    FILE *to = open_memstream(&text, &size);
    if (to == NULL)
        return out_fail(c->out, ERR_NO_MEMORY, NULL, NULL, "help");
    page(to, k, yaml);
    if (fclose(to) != 0 || text == NULL)
        return out_fail(c->out, ERR_NO_MEMORY, NULL, NULL, "help");
    json_t *document = out_document("man");
    out_put(document, "page", out_json_text((csn_bytes){text, size}));
    if (c->out->format == OUT_TABLE)
        (void)fwrite(text, 1, size, c->out->to);
    out_json(c->out, document);
    free(text);
    return 0;
}
