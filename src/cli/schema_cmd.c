/* schema_cmd.c: the tables of the stores: printed, compared, brought to this version. Stores are
 * those of the configuration, some of them by name, or one database by --url, for which no
 * configuration is needed. */
#include "cli/schema_cmd.h"
#include "base/message.h"
#include "conf/load.h"
#include "store/store.h"

enum { DIFFERENCES_MAX = 8192, SCHEMA_BEHIND = 1 /* exit code: the answer is no */ };

int schema_print_command(struct command_call *c) {
    const char *kind = command_text(c, "store");
    const char *text = schema_text(kind != NULL ? kind : "sqlite");
    if (text == NULL)
        return out_fail(c->out, ERR_STORE_URL, NULL, "consign schema print --store sqlite", "%.40s",
                        kind);
    json_t *document = out_document("schema");
    out_put(document, "store", out_json_string(kind != NULL ? kind : "sqlite"));
    out_put(document, "sql", out_json_string(text));
    if (c->out->format == OUT_TABLE)
        (void)fputs(text, c->out->to);
    out_json(c->out, document);
    return 0;
}

/* One database that a command is about. */
struct subject {
    const char *name, *url;
};

/* What is done for each; returns the exit code. */
typedef int subject_function(struct command_call *c, const struct subject *s, json_t *item);

static void say(struct command_call *c, json_t *item, const struct subject *s, const char *state,
                enum message_id id) {
    out_put(item, "store", out_json_string(s->name));
    out_put(item, "url", out_json_string(s->url));
    out_put(item, "state", out_json_string(state));
    out_say(c->out, id, s->name, s->url);
}

/* Errors are told and the other stores still get their turn; the worst exit code stays: any error
 * before "no" before 0. */
static int worse(int a, int b) {
    if (a > SCHEMA_BEHIND || b == 0)
        return a;
    return b > SCHEMA_BEHIND || a == 0 ? b : a;
}

static int one(struct command_call *c, const struct subject *s, subject_function *f,
               json_t *items) {
    json_t *item = json_object();
    int code = f(c, s, item);
    out_append(items, item);
    return code;
}

static bool wanted(const struct command_call *c, const char *name) {
    for (int i = 0; i < c->args; i++)
        if (strcmp(c->arg[i], name) == 0)
            return true;
    return c->args == 0;
}

static int check_names(struct command_call *c, const struct config *k) {
    for (int i = 0; i < c->args; i++) {
        bool found = false;
        for (uint32_t s = 0; s < k->stores; s++)
            found = found || strcmp(c->arg[i], k->store[s].name) == 0;
        if (!found)
            return out_fail(c->out, ERR_CONFIG_REFERENCE, k->path, "consign config show", "%.60s",
                            c->arg[i]);
    }
    return 0;
}

static int each_configured(struct command_call *c, subject_function *f, json_t *items) {
    struct load *l;
    int code = command_load(c, &l);
    if (code != 0)
        return code;
    code = check_names(c, &l->config);
    for (uint32_t i = 0; code == 0 && i < l->config.stores; i++) {
        const struct config_store *s = &l->config.store[i];
        if (wanted(c, s->name))
            code = worse(code, one(c, &(struct subject){s->name, s->url}, f, items));
    }
    load_free(l);
    return code;
}

static int each(struct command_call *c, const char *kind, subject_function *f) {
    const char *url = command_text(c, "url");
    json_t *items = json_array();
    if (items == NULL)
        return out_fail(c->out, ERR_NO_MEMORY, NULL, NULL, "%s", kind);
    int code =
        url != NULL ? one(c, &(struct subject){"-", url}, f, items) : each_configured(c, f, items);
    if (code <= SCHEMA_BEHIND) {
        command_next(c);
        out_list(c->out, kind, items, NULL);
    } else {
        json_decref(items);
    }
    return code;
}

/* ---- check ---- */

static void say_differences(struct command_call *c, json_t *item, char *lines) {
    json_t *list = json_array();
    char safe[400];
    for (char *s = lines, *end; *s != '\0'; s = end) {
        size_t n = strcspn(s, "\n");
        end = s + n + (s[n] == '\n');
        out_line(c->out, "  %s", out_safe((csn_bytes){s, n}, safe, sizeof(safe)));
        out_append(list, out_json_text((csn_bytes){s, n}));
    }
    out_put(item, "differences", list);
}

static int check_one(struct command_call *c, const struct subject *s, json_t *item) {
    char lines[DIFFERENCES_MAX];
    struct text t;
    csn_error err;
    error_clear(&err);
    text_init(&t, lines, sizeof(lines));
    csn_status status = schema_check(s->url, &t, &err);
    if (status == CSN_OK) {
        say(c, item, s, "fits", MSG_SCHEMA_FITS);
        return 0;
    }
    if (status != CSN_REJECTED)
        return out_error(c->out, &err, s->url, NULL);
    bool newer = err.code == ERR_STORE_SCHEMA_NEW;
    say(c, item, s, newer ? "newer" : "behind", newer ? MSG_SCHEMA_NEWER : MSG_SCHEMA_BEHIND);
    say_differences(c, item, lines);
    return SCHEMA_BEHIND;
}

int schema_check_command(struct command_call *c) {
    return each(c, "schema_check", check_one);
}

/* ---- apply ---- */

static int apply_one(struct command_call *c, const struct subject *s, json_t *item) {
    csn_error err;
    error_clear(&err);
    if (c->dry_run) {
        int code = check_one(c, s, item);
        return code == SCHEMA_BEHIND ? 0 : code; /* the question was what would be done */
    }
    out_progress(c->out, "%s  %s", s->name, s->url);
    csn_status status = schema_apply(s->url, &err);
    out_progress_end(c->out);
    if (status != CSN_OK)
        return out_error(c->out, &err, s->url, NULL);
    say(c, item, s, "applied", MSG_SCHEMA_APPLIED);
    return 0;
}

int schema_apply_command(struct command_call *c) {
    return each(c, "schema_apply", apply_one);
}
