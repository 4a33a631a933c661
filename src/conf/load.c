/* load.c: later wins: defaults < file < environment < --set. A CONSIGN_ variable that maps to no
 * key is a mistake like a wrong key in the file. Positions are remembered by path, because checks
 * between values know paths only. */
#include "conf/load.h"
#include "base/message.h"
#include "core/guess.h"
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static const char prefix[] = "CONSIGN_";
enum { PREFIX_SIZE = sizeof(prefix) - 1 };

/* ---- mistakes and places ---- */

static struct mistake *mistake_new(struct load *l, const char *path, int32_t code) {
    if (l->mistakes == MISTAKES_MAX) {
        l->more++;
        return NULL;
    }
    struct mistake *m = &l->mistake[l->mistakes++];
    m->code = code;
    (void)copy_text(m->path, sizeof(m->path), path);
    (void)copy_text(m->source, sizeof(m->source), l->source != NULL ? l->source : "");
    return m;
}

static void on_mistake(void *arg, int32_t code, const char *path, struct yaml_place at,
                       const char *text, const char *way) {
    struct mistake *m = mistake_new(arg, path, code);
    if (m == NULL)
        return;
    m->at = at;
    (void)copy_text(m->text, sizeof(m->text), text);
    (void)copy_text(m->way, sizeof(m->way), way);
}

static struct given *given_find(const struct load *l, const char *path) {
    for (uint32_t i = 0; i < l->givens; i++)
        if (strcmp(l->given[i].path, path) == 0)
            return &l->given[i];
    return NULL;
}

/* The place of path, or of the nearest group above it that was given. */
static const struct given *given_near(const struct load *l, const char *path) {
    char part[CONFIG_PATH_MAX];
    const struct given *g;
    (void)copy_text(part, sizeof(part), path);
    while ((g = given_find(l, part)) == NULL) {
        char *dot = strrchr(part, '.');
        if (dot == NULL)
            return NULL;
        *dot = '\0';
    }
    return g;
}

static void give(struct load *l, const char *path, struct yaml_place at) {
    struct given *g = given_find(l, path);
    if (g == NULL && l->givens < GIVEN_MAX)
        g = &l->given[l->givens++];
    if (g == NULL)
        return; /* more than all keys of all names that fit: only the position of a mistake is lost
                 */
    (void)copy_text(g->path, sizeof(g->path), path);
    (void)copy_text(g->source, sizeof(g->source), l->source != NULL ? l->source : "");
    g->at = at;
}

void load_mistake(struct load *l, const char *path, int32_t code, const char *text,
                  const char *way) {
    const struct given *g = given_near(l, path);
    struct mistake *m = mistake_new(l, path, code);
    if (m == NULL)
        return;
    if (g != NULL) {
        m->at = g->at;
        (void)copy_text(m->source, sizeof(m->source), g->source);
    }
    (void)copy_text(m->text, sizeof(m->text), text);
    (void)copy_text(m->way, sizeof(m->way), way != NULL ? way : "");
}

/* ---- filling ---- */

/* A bad name is told once, not again for each key inside. */
static bool told_above(const struct load *l, const char *path) {
    for (uint32_t i = 0; i < l->mistakes; i++) {
        size_t n = strlen(l->mistake[i].path);
        if (n > 0 && strncmp(l->mistake[i].path, path, n) == 0 && path[n] == '.')
            return true;
    }
    return false;
}

static void on_group(void *arg, const char *path, struct yaml_place at) {
    struct load *l = arg;
    csn_error err;
    error_clear(&err);
    if (config_name(&l->config, path, &err) == CSN_OK)
        give(l, path, at);
    else if (!told_above(l, path))
        on_mistake(l, err.code, path, at, err.text, "");
}

static void on_value(void *arg, const char *path, const char *value, struct yaml_place at) {
    struct load *l = arg;
    csn_error err;
    char way[240], guess[64];
    struct text t;
    error_clear(&err);
    if (config_put(&l->config, path, value, &err) == CSN_OK) {
        give(l, path, at);
        return;
    }
    if (l->source == NULL && told_above(l, path))
        return;
    text_init(&t, way, sizeof(way));
    if (err.code == ERR_CONFIG_KEY && config_guess(path, guess, sizeof(guess)))
        message_add(&t, MSG_YAML_MEANT, guess);
    on_mistake(l, err.code, path, at, err.text, way);
}

static void read_file(struct load *l) {
    struct yaml_reader r = {l, on_group, on_value, on_mistake};
    (void)yaml_read((csn_bytes){l->text, l->size}, &r);
}

/* ---- environment ---- */

/* Variables that are not configuration. */
static bool not_ours(const char *name, size_t n) {
    static const char *const known[] = {"CONFIG", "FAILPOINTS", "FAILPOINT_HITS"};
    static const char *const families[] = {"CLOCK_STEP", "TEST_"};
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if (bytes_is((csn_bytes){name, n}, known[i]))
            return true;
    for (size_t i = 0; i < ARRAY_LEN(families); i++)
        if (n >= strlen(families[i]) && memcmp(name, families[i], strlen(families[i])) == 0)
            return true;
    return false;
}

/* ORDERS_2 is the name orders-2, orders_2 or Orders_2 of the file. */
static bool same_name(const char *name, csn_bytes upper) {
    const char *u = upper.data;
    if (strlen(name) != upper.size)
        return false;
    for (size_t i = 0; i < upper.size; i++) {
        char c = (char)toupper((unsigned char)name[i]);
        if ((c == '-' ? '_' : c) != u[i])
            return false;
    }
    return true;
}

static void add_lower(struct text *t, csn_bytes part) {
    const char *s = part.data;
    for (size_t i = 0; i < part.size; i++)
        text_add(t, "%c", tolower((unsigned char)s[i]));
}

/* Adds a part of a path: a known name where the section (first part) has one that fits, else the
 * lower-case word. */
static void add_part(const struct load *l, struct text *t, csn_bytes part, bool name) {
    char thing[CONFIG_PATH_MAX];
    for (int s = CONFIG_GLOBAL + 1; name && s < CONFIG_SECTION_NR; s++) {
        for (uint32_t i = 0;
             config_thing_at(&l->config, (enum config_section)s, i, thing, sizeof(thing)); i++) {
            if (strncmp(thing, t->data, t->used) != 0 || !same_name(thing + t->used, part))
                continue;
            text_add(t, "%s", thing + t->used);
            return;
        }
    }
    add_lower(t, part);
}

/* STORES__ORDERS__URL → stores.orders.url */
static bool variable_path(const struct load *l, csn_bytes name, char *ret, size_t size) {
    const char *s = name.data, *end = s + name.size;
    struct text t;
    text_init(&t, ret, size);
    for (int part = 0; s < end; part++) {
        const char *gap = memmem(s, (size_t)(end - s), "__", 2);
        const char *stop = gap != NULL ? gap : end;
        if (part > 0)
            text_add(&t, ".");
        add_part(l, &t, (csn_bytes){s, (size_t)(stop - s)}, part == 1);
        s = gap != NULL ? gap + 2 : end;
    }
    return !t.full;
}

static void guess_variable(const char *path, char *way, size_t size) {
    char guess[64];
    struct text t;
    text_init(&t, way, size);
    const char *dot = strrchr(path, '.');
    if (!config_guess(path, guess, sizeof(guess)))
        return;
    message_add(&t, MSG_LOAD_MEANT_KEY, (int)(dot != NULL ? dot - path + 1 : 0), path, guess);
}

static void read_variable(struct load *l, const char *variable) {
    char path[CONFIG_PATH_MAX], name[96], line[240], way[240];
    const char *equals = strchr(variable, '=');
    struct text t;
    if (equals == NULL || strncmp(variable, prefix, PREFIX_SIZE) != 0)
        return;
    size_t n = (size_t)(equals - variable);
    if (not_ours(variable + PREFIX_SIZE, n - PREFIX_SIZE))
        return;
    (void)copy_bytes_text(name, sizeof(name), (csn_bytes){variable, n});
    l->source = name;
    bool fits =
        variable_path(l, (csn_bytes){variable + PREFIX_SIZE, n - PREFIX_SIZE}, path, sizeof(path));
    if (fits && config_key_find(path) != NULL) {
        on_value(l, path, equals + 1, (struct yaml_place){0, 0, 0});
    } else {
        text_init(&t, line, sizeof(line));
        message_add(&t, MSG_LOAD_VARIABLE, name);
        guess_variable(path, way, sizeof(way));
        on_mistake(l, ERR_CONFIG_KEY, path, (struct yaml_place){0, 0, 0}, line, way);
    }
    l->source = NULL;
}

static void read_set(struct load *l, const char *set) {
    char path[CONFIG_PATH_MAX], line[240];
    const char *equals = strchr(set, '=');
    struct text t;
    l->source = "--set";
    if (equals == NULL ||
        !copy_bytes_text(path, sizeof(path), (csn_bytes){set, (size_t)(equals - set)})) {
        text_init(&t, line, sizeof(line));
        message_add(&t, MSG_LOAD_SET, set);
        on_mistake(l, ERR_CONFIG_VALUE, "", (struct yaml_place){0, 0, 0}, line, "");
    } else {
        on_value(l, path, equals + 1, (struct yaml_place){0, 0, 0});
    }
    l->source = NULL;
}

/* ---- checks ---- */

/* One mistake per place: a wrong value is not missing as well, nor is what would be inside it. */
static void on_found(void *arg, const char *path, int32_t code, const char *text, const char *way) {
    struct load *l = arg;
    for (uint32_t i = 0; i < l->mistakes; i++)
        if (strcmp(l->mistake[i].path, path) == 0)
            return;
    if (!told_above(l, path))
        load_mistake(l, path, code, text, way);
}

static void check_urls(struct load *l) {
    char path[CONFIG_PATH_MAX];
    csn_error err;
    for (uint32_t i = 0; i < l->config.stores; i++) {
        const struct config_store *s = &l->config.store[i];
        struct text t;
        error_clear(&err);
        text_init(&t, path, sizeof(path));
        text_add(&t, "stores.%s.url", s->name);
        if (s->url[0] != '\0' && driver_for(l->drivers, s->url, &err) == NULL)
            on_found(l, path, err.code != 0 ? err.code : ERR_STORE_URL, err.text, "");
    }
}

static bool has_syntax_mistake(const struct load *l) {
    for (uint32_t i = 0; i < l->mistakes; i++)
        if (l->mistake[i].code == ERR_CONFIG_SYNTAX)
            return true;
    return false;
}

static int by_place(const void *a, const void *b) {
    const struct mistake *x = a, *y = b;
    uint32_t xl = x->at.line - 1, yl = y->at.line - 1; /* line 0 goes last */
    if (xl != yl)
        return xl < yl ? -1 : 1;
    return x->at.column < y->at.column ? -1 : x->at.column > y->at.column;
}

static struct load *load_new(const char *name, const struct store_driver *const *drivers) {
    struct load *l = calloc(1, sizeof(*l));
    if (l == NULL)
        return NULL;
    l->drivers = drivers;
    l->given = calloc(GIVEN_MAX, sizeof(*l->given));
    l->mistake = calloc(MISTAKES_MAX, sizeof(*l->mistake));
    if (l->given == NULL || l->mistake == NULL) {
        load_free(l);
        return NULL;
    }
    config_init(&l->config, name);
    (void)copy_text(l->shown, sizeof(l->shown), name);
    return l;
}

/* The host's name, cut at its first dot and to what a name may hold. */
static void fill_node(struct config *c) {
    char host[256] = "";
    if (c->node[0] != '\0')
        return;
    if (gethostname(host, sizeof(host) - 1) != 0 || host[0] == '\0')
        (void)copy_text(host, sizeof(host), "consign");
    host[strcspn(host, ".")] = '\0';
    (void)copy_text(c->node, sizeof(c->node), host);
}

static void fill(struct load *l, const struct load_input *in) {
    read_file(l);
    for (char *const *e = in->environment; e != NULL && *e != NULL; e++)
        read_variable(l, *e);
    for (int i = 0; i < in->sets; i++)
        read_set(l, in->set[i]);
    fill_node(&l->config);
    if (!has_syntax_mistake(l)) {
        (void)config_check(&l->config, on_found, l);
        check_urls(l);
    }
    qsort(l->mistake, l->mistakes, sizeof(*l->mistake), by_place);
}

csn_status load_text(const struct load_input *in, const char *name, csn_bytes text,
                     struct load **ret, csn_error *err) {
    struct load *l = load_new(name, in->drivers);
    if (l == NULL || (l->text = malloc(text.size + 1)) == NULL) {
        load_free(l);
        return error_set(err, CSN_NOMEM, ERR_NO_MEMORY, "%s", name);
    }
    if (text.size > 0)
        memcpy(l->text, text.data, text.size);
    l->text[text.size] = '\0';
    l->size = text.size;
    fill(l, in);
    *ret = l;
    return CSN_OK;
}

/* ---- the file ---- */

/* Reads at most YAML_FILE_MAX bytes of a regular file. */
static csn_status slurp(const char *path, char **ret, size_t *ret_size, csn_error *err) {
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return error_set(err, CSN_INVALID, ERR_CONFIG_NONE, "%s: %s", path, strerror(errno));
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size > YAML_FILE_MAX) {
        (void)close(fd);
        return error_set(err, CSN_INVALID, ERR_CONFIG_NONE, "%s: %s", path,
                         message(MSG_LOAD_NOT_FILE));
    }
    size_t size = (size_t)st.st_size, used = 0;
    ssize_t n = 1;
    char *text = malloc(size + 1);
    while (text != NULL && used < size && (n = read(fd, text + used, size - used)) > 0)
        used += (size_t)n;
    (void)close(fd);
    if (text == NULL || n < 0) {
        free(text);
        return error_set(err, CSN_INVALID, text == NULL ? ERR_NO_MEMORY : ERR_CONFIG_NONE, "%s: %s",
                         path, strerror(errno));
    }
    *ret = text;
    *ret_size = used;
    return CSN_OK;
}

static const char *variable(char *const *environment, const char *name) {
    size_t n = strlen(name);
    for (char *const *e = environment; e != NULL && *e != NULL; e++)
        if (strncmp(*e, name, n) == 0 && (*e)[n] == '=')
            return *e + n + 1;
    return NULL;
}

static const char *look_for(const char *file, char *const *environment) {
    static const char *const places[] = {"consign.yaml", "consign-dev/consign.yaml",
                                         "/etc/consign/consign.yaml"};
    const char *named = file != NULL ? file : variable(environment, "CONSIGN_CONFIG");
    if (named != NULL && named[0] != '\0')
        return named;
    for (size_t i = 0; i < ARRAY_LEN(places); i++)
        if (access(places[i], F_OK) == 0)
            return places[i];
    return NULL;
}

csn_status load_config(const struct load_input *in, struct load **ret, csn_error *err) {
    const char *found = look_for(in->file, in->environment);
    char *text = NULL, *absolute;
    size_t size = 0;
    if (found == NULL)
        return error_set(err, CSN_INVALID, ERR_CONFIG_NONE, "%s", message(MSG_LOAD_NOWHERE));
    csn_status s = slurp(found, &text, &size, err);
    if (s != CSN_OK)
        return s;
    absolute = realpath(found, NULL);
    if (absolute == NULL || strlen(absolute) >= URL_MAX_) {
        s = error_set(err, CSN_INVALID, ERR_CONFIG_NONE, "%s: %s", found,
                      message(MSG_LOAD_NOT_FILE));
    } else {
        s = load_text(in, absolute, (csn_bytes){text, size}, ret, err);
        if (s == CSN_OK)
            (void)copy_text((*ret)->shown, sizeof((*ret)->shown), found);
    }
    free(absolute);
    free(text);
    return s;
}

void load_free(struct load *l) {
    if (l == NULL)
        return;
    free(l->text);
    free(l->given);
    free(l->mistake);
    free(l);
}

/* ---- origin ---- */

void load_origin(const struct load *l, const char *path, char *ret, size_t size) {
    const struct given *g = given_find(l, path);
    struct text t;
    text_init(&t, ret, size);
    if (g == NULL)
        text_add(&t, "default");
    else if (g->source[0] != '\0')
        text_add(&t, "%s", g->source);
    else
        text_add(&t, "%s:%u", l->shown, g->at.line);
}
