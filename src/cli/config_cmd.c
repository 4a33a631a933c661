/* config_cmd.c: the configuration as people ask about it. `check` reads the handler files, too,
 * because a daemon would stop at them; `show` gives what is in force with its origin; `explain` is
 * the table of keys. */
#include "cli/config_cmd.h"
#include "base/message.h"
#include "cli/report.h"
#include "conf/load.h"
#include "core/handler.h"
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

enum { REPORT_MAX = 64 * 1024 };

static int here(void) {
    return message_language_now() == LANG_ZH;
}

/* ---- check ---- */

/* *ret is NUL-terminated and the caller's; errno tells why it failed. */
static bool read_handler(const char *path, char **ret, size_t *ret_size) {
    FILE *f = fopen(path, "re");
    char *text = f != NULL ? malloc(HANDLER_FILE_MAX + 1) : NULL;
    if (text == NULL) {
        if (f != NULL)
            (void)fclose(f);
        return false;
    }
    size_t n = fread(text, 1, HANDLER_FILE_MAX + 1, f);
    bool good = ferror(f) == 0;
    if (good && n > HANDLER_FILE_MAX) {
        good = false;
        errno = EFBIG;
    }
    (void)fclose(f);
    if (!good) {
        free(text);
        return false;
    }
    text[n] = '\0';
    *ret = text;
    *ret_size = n;
    return true;
}

/* Whatever is wrong with the handler is a mistake of the configuration at the key that names it;
 * where exactly in the handler file is shown at once, for people. */
static void check_handler(struct load *l, const struct config_subscription *s, struct out *o,
                          char *report_text) {
    char path[CONFIG_PATH_MAX], *text;
    struct sql_handler handler;
    struct text report;
    csn_error err;
    size_t size;
    (void)snprintf(path, sizeof(path), "subscriptions.%s.handler.sql", s->consumer);
    if (!read_handler(s->handler_path, &text, &size)) {
        error_set(&err, CSN_INVALID, ERR_CONFIG_REFERENCE, "%s: %s", s->handler_path,
                  strerror(errno));
        load_mistake(l, path, err.code, err.text, "");
        return;
    }
    error_clear(&err);
    text_init(&report, report_text, REPORT_MAX);
    if (sql_handler_parse(s->handler_path, (csn_bytes){text, size}, &handler, &report, &err) ==
        CSN_OK) {
        sql_handler_free(&handler);
    } else {
        if (o->format == OUT_TABLE)
            (void)fputs(report_text, o->err);
        load_mistake(l, path, err.code, err.text, "");
    }
    free(text);
}

static int check_all(struct load *l, struct out *o, char *report) {
    for (uint32_t i = 0; i < l->config.subscriptions; i++)
        if (l->config.subscription[i].handler_path[0] != '\0')
            check_handler(l, &l->config.subscription[i], o, report);
    return report_mistakes(l, o);
}

static void say_fine(const struct load *l, struct command_call *c) {
    const struct config *k = &l->config;
    json_t *document = out_document("config_check");
    out_put(document, "ok", json_true());
    out_put(document, "file", out_json_string(k->path));
    out_put(document, "stores", json_integer(k->stores));
    out_put(document, "brokers", json_integer(k->brokers));
    out_put(document, "routes", json_integer(k->routes));
    out_put(document, "subscriptions", json_integer(k->subscriptions));
    out_say(c->out, MSG_CONFIG_FINE, l->shown, k->stores, k->brokers, k->routes, k->subscriptions);
    command_next(c);
    out_json(c->out, document);
}

int config_check_command(struct command_call *c) {
    const struct load_input in = command_input(c);
    struct load *l;
    csn_error err;
    error_clear(&err);
    if (load_config(&in, &l, &err) != CSN_OK)
        return out_error(c->out, &err, NULL, NULL);
    char *report = malloc(REPORT_MAX);
    int code = report != NULL ? check_all(l, c->out, report)
                              : out_fail(c->out, ERR_NO_MEMORY, NULL, NULL, "config check");
    if (code == 0)
        say_fine(l, c);
    free(report);
    load_free(l);
    return code;
}

/* ---- show ---- */

struct showing {
    const struct load *l;
    bool origin; /* for people, too */
    struct table *table;
    json_t *items;
};

static void show_value(struct showing *s, const struct config_key *k, const char *path) {
    char value[URL_MAX_], origin[URL_MAX_ + 32];
    if (!config_get(&s->l->config, path, value, sizeof(value)))
        return;
    if ((k->bits & CONFIG_SECRET) != 0 && value[0] != '\0')
        (void)copy_text(value, sizeof(value), "•••");
    load_origin(s->l, path, origin, sizeof(origin));
    json_t *item = json_object();
    out_put(item, "path", out_json_string(path));
    out_put(item, "value", out_json_string(value));
    out_put(item, "origin", out_json_string(origin));
    out_append(s->items, item);
    table_cell(s->table, path);
    table_cell(s->table, value);
    if (s->origin)
        table_cell(s->table, origin);
}

/* One key for each thing of its section, or once. The long forms show nothing of their own. */
static void show_key(struct showing *s, const struct config_key *k) {
    char thing[CONFIG_PATH_MAX], path[CONFIG_PATH_MAX * 2];
    const char *rest = strchr(k->path, '*');
    if (rest == NULL) {
        show_value(s, k, k->path);
        return;
    }
    if (strstr(k->path, ".match.event_type") != NULL)
        return;
    for (uint32_t i = 0; config_thing_at(&s->l->config, k->section, i, thing, sizeof(thing)); i++) {
        (void)snprintf(path, sizeof(path), "%s%s", thing, rest + 1);
        show_value(s, k, path);
    }
}

int config_show_command(struct command_call *c) {
    const char *headings[] = {message(MSG_CONFIG_H_KEY), message(MSG_CONFIG_H_VALUE),
                              message(MSG_CONFIG_H_FROM)};
    struct load *l;
    int code = command_load(c, &l);
    if (code != 0)
        return code;
    bool origin = command_switch(c, "origin");
    struct showing s = {l, origin, table_new(origin ? 3 : 2, headings, "lll"), json_array()};
    if (s.table == NULL || s.items == NULL) {
        code = out_fail(c->out, ERR_NO_MEMORY, NULL, NULL, "config show");
        json_decref(s.items);
    } else {
        for (size_t i = 0; config_key_at(i) != NULL; i++)
            show_key(&s, config_key_at(i));
        table_print(s.table, c->out);
        command_next(c);
        out_list(c->out, "config", s.items, NULL);
    }
    table_free(s.table);
    load_free(l);
    return code;
}

/* ---- explain ---- */

/* CONFIG__PATH of an environment name; the star stays. */
static void variable_name(const char *path, char *ret, size_t size) {
    struct text t;
    text_init(&t, ret, size);
    text_add(&t, "CONSIGN_");
    for (const char *p = path; *p != '\0'; p++) {
        if (*p == '.')
            text_add(&t, "__");
        else if (*p == '*')
            text_add(&t, "NAME");
        else
            text_add(&t, "%c", *p >= 'a' && *p <= 'z' ? *p - 'a' + 'A' : *p);
    }
}

static const char *default_of(const struct config_key *k) {
    if (k->otherwise != NULL)
        return k->otherwise;
    return (k->bits & CONFIG_REQUIRED) != 0 ? message(MSG_CONFIG_NEEDED) : "–";
}

static const struct {
    const char *word;
    enum message_id when;
} reloads[] = {[CONFIG_RELOAD_RESTART] = {"restart", MSG_CONFIG_RELOAD_RESTART},
               [CONFIG_RELOAD_LIVE] = {"live", MSG_CONFIG_RELOAD_LIVE},
               [CONFIG_RELOAD_COMMAND] = {"command", MSG_CONFIG_RELOAD_COMMAND}};

static json_t *key_json(const struct config_key *k) {
    char expected[240], variable[CONFIG_PATH_MAX];
    struct text t;
    json_t *j = json_object();
    text_init(&t, expected, sizeof(expected));
    config_expected(k, &t);
    variable_name(k->path, variable, sizeof(variable));
    out_put(j, "path", out_json_string(k->path));
    out_put(j, "help", out_json_string(k->help[here()]));
    out_put(j, "takes", out_json_string(expected));
    out_put(j, "default", out_json_string(k->otherwise));
    out_put(j, "required", json_boolean((k->bits & CONFIG_REQUIRED) != 0));
    out_put(j, "environment", out_json_string(variable));
    out_put(j, "reload", json_string(reloads[k->reload].word));
    out_put(j, "since", out_json_string(k->since));
    return j;
}

static void explain_one(struct out *o, const struct config_key *k) {
    char expected[240], variable[CONFIG_PATH_MAX];
    struct text t;
    text_init(&t, expected, sizeof(expected));
    config_expected(k, &t);
    variable_name(k->path, variable, sizeof(variable));
    out_line(o, "%s", k->path);
    out_line(o, "  %s", k->help[here()]);
    out_say(o, MSG_CONFIG_X_TAKES, expected);
    out_say(o, MSG_CONFIG_X_DEFAULT, default_of(k));
    out_say(o, MSG_CONFIG_X_ENV, variable);
    out_say(o,
            k->reload == CONFIG_RELOAD_COMMAND ? MSG_CONFIG_X_COMMAND
            : k->reload == CONFIG_RELOAD_LIVE  ? MSG_CONFIG_X_LIVE
                                               : MSG_CONFIG_X_RESTART,
            k->since);
}

/* True when key is path, or lies below it; names fit the stars. */
static bool below(const struct config_key *k, const char *path) {
    const char *p = path, *q = k->path;
    while (*p != '\0' && *q != '\0') {
        size_t n = strcspn(p, "."), m = strcspn(q, ".");
        if (!(m == 1 && *q == '*') && (n != m || memcmp(p, q, n) != 0))
            return false;
        p += n + (p[n] == '.');
        q += m + (q[m] == '.');
    }
    return *p == '\0';
}

static int explain_group(struct out *o, const char *path) {
    const char *headings[] = {message(MSG_CONFIG_H_KEY), message(MSG_CONFIG_H_DEFAULT),
                              message(MSG_CONFIG_H_MEANS)};
    struct table *t = table_new(3, headings, "lll");
    json_t *items = json_array();
    if (t == NULL || items == NULL) {
        table_free(t);
        json_decref(items);
        return out_fail(o, ERR_NO_MEMORY, NULL, NULL, "config explain");
    }
    for (size_t i = 0; config_key_at(i) != NULL; i++) {
        const struct config_key *k = config_key_at(i);
        if (path[0] != '\0' && !below(k, path))
            continue;
        table_cell(t, k->path);
        table_cell(t, default_of(k));
        table_cell(t, k->help[here()]);
        out_append(items, key_json(k));
    }
    table_print(t, o);
    table_free(t);
    out_list(o, "config_keys", items, NULL);
    return 0;
}

static int explain_markdown(struct out *o) {
    char variable[CONFIG_PATH_MAX], expected[240], sentence[400];
    struct text t;
    out_line(o, "# %s\n\n%s\n", message(MSG_CONFIG_PAGE), message(MSG_CONFIG_GENERATED));
    for (size_t i = 0; config_key_at(i) != NULL; i++) {
        const struct config_key *k = config_key_at(i);
        text_init(&t, expected, sizeof(expected));
        config_expected(k, &t);
        variable_name(k->path, variable, sizeof(variable));
        out_line(o, "## `%s`\n\n%s\n", k->path,
                 out_sentence(k->help[here()], sentence, sizeof(sentence)));
        out_line(o, "| | |\n|---|---|");
        out_line(o, "| %s | %s |", message(MSG_CONFIG_H_TAKES), expected);
        out_line(o, "| %s | `%s` |", message(MSG_CONFIG_H_OTHERWISE), default_of(k));
        out_line(o, "| %s | `%s` |", message(MSG_CONFIG_H_ENV), variable);
        out_line(o, "| %s | %s |\n", message(MSG_CONFIG_H_RELOAD),
                 message(reloads[k->reload].when));
    }
    return 0;
}

int config_explain_command(struct command_call *c) {
    char guess[64], way[120];
    const char *path = c->args > 0 ? c->arg[0] : "";
    if (command_switch(c, "markdown"))
        return explain_markdown(c->out);
    const struct config_key *k = config_key_find(path);
    if (k != NULL) {
        json_t *document = out_document("config_key");
        out_put(document, "key", key_json(k));
        explain_one(c->out, k);
        out_json(c->out, document);
        return 0;
    }
    if (path[0] == '\0' || config_what(path) != 0)
        return explain_group(c->out, path);
    (void)snprintf(way, sizeof(way), "consign config explain");
    if (config_guess(path, guess, sizeof(guess))) {
        const char *dot = strrchr(path, '.');
        (void)snprintf(way, sizeof(way), "consign config explain %.*s%s",
                       dot != NULL ? (int)(dot - path + 1) : 0, path, guess);
    }
    return out_fail(c->out, ERR_CONFIG_KEY, NULL, way, "%.80s", path);
}
