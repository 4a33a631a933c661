/* config.c: the table of keys, and a struct config filled from (path, value) pairs. Where the pairs
 * come from (file, environment, command line) and where a mistake is shown is the caller's matter;
 * nothing here does I/O.
 *
 * A path is looked up by walking its parts along the patterns; "*" in a pattern stands for a name.
 * A named thing exists from the moment one of its keys, or its bare name, was seen; its defaults
 * are put at that moment. */
#include "core/config.h"
#include "base/message.h"
#include "core/guess.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#define MS     INT64_C(1000)
#define SECOND (1000 * MS)
#define HOUR   (3600 * SECOND)
#define DAY    (24 * HOUR)

#define IN_GLOBAL(f) offsetof(struct config, f), sizeof(((struct config *)NULL)->f)
#define IN_STORE(f)  offsetof(struct config_store, f), sizeof(((struct config_store *)NULL)->f)
#define IN_BROKER(f) offsetof(struct config_broker, f), sizeof(((struct config_broker *)NULL)->f)
#define IN_ROUTE(f)  offsetof(struct config_route, f), sizeof(((struct config_route *)NULL)->f)
#define IN_SUBSCRIPTION(f)                                                                         \
    offsetof(struct config_subscription, f), sizeof(((struct config_subscription *)NULL)->f)
#define IN_EVENT(f)   offsetof(struct config_event, f), sizeof(((struct config_event *)NULL)->f)
#define IN_MACHINE(f) offsetof(struct config_machine, f), sizeof(((struct config_machine *)NULL)->f)

/* clang-format off */
static const struct config_key keys[] = {
#define X(path, type, otherwise, least, most, choices, section, field, bits, reload, since, en, zh) \
    {path, CONFIG_##type, otherwise, least, most, choices, CONFIG_##section, IN_##section(field), \
     bits, CONFIG_RELOAD_##reload, since, {en, zh}},
#include "core/config.def"
#undef X
};
/* clang-format on */

struct section {
    const char *name;
    enum message_id singular;
    size_t first, step, count; /* where the array and its count are in struct config */
    uint32_t most;
};

#define ARRAY(field, count, most)                                                                  \
    offsetof(struct config, field), sizeof(((struct config *)NULL)->field[0]),                     \
        offsetof(struct config, count), most

static const struct section sections[CONFIG_SECTION_NR] = {
    [CONFIG_STORE] = {"stores", MSG_CONFIG_STORE, ARRAY(store, stores, STORES_MAX)},
    [CONFIG_BROKER] = {"brokers", MSG_CONFIG_BROKER, ARRAY(broker, brokers, BROKERS_MAX)},
    [CONFIG_ROUTE] = {"routes", MSG_CONFIG_ROUTE, ARRAY(route, routes, ROUTES_MAX)},
    [CONFIG_SUBSCRIPTION] = {"subscriptions", MSG_CONFIG_SUBSCRIPTION,
                             ARRAY(subscription, subscriptions, SUBSCRIPTIONS_MAX)},
    [CONFIG_EVENT] = {"events", MSG_CONFIG_EVENT, ARRAY(event, events, EVENT_TYPES_MAX)},
    [CONFIG_MACHINE] = {"machines", MSG_CONFIG_MACHINE, ARRAY(machine, machines, MACHINES_MAX)},
};

static csn_status wrong(csn_error *err, int32_t code, const struct text *t) {
    return error_set(err, CSN_INVALID, code, "%s", t->data);
}

/* ---- paths ---- */

/* Length of the part that begins at s. */
static size_t part_size(const char *s) {
    return strcspn(s, ".");
}

static const char *part_next(const char *s) {
    s += part_size(s);
    return *s == '.' ? s + 1 : s;
}

static bool part_fits(const char *pattern, const char *path) {
    size_t n = part_size(pattern);
    if (n == 1 && *pattern == '*')
        return part_size(path) > 0;
    return n == part_size(path) && memcmp(pattern, path, n) == 0;
}

/* Compares along the parts: true when path is used up. *ret_rest is what is left of the pattern. */
static bool path_fits(const char *pattern, const char *path, const char **ret_rest) {
    while (*path != '\0' && *pattern != '\0') {
        if (!part_fits(pattern, path))
            return false;
        pattern = part_next(pattern);
        path = part_next(path);
    }
    *ret_rest = pattern;
    return *path == '\0';
}

const struct config_key *config_key_at(size_t i) {
    return i < ARRAY_LEN(keys) ? &keys[i] : NULL;
}

const struct config_key *config_key_find(const char *path) {
    const char *rest;
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        if (path_fits(keys[i].path, path, &rest) && *rest == '\0')
            return &keys[i];
    return NULL;
}

unsigned config_what(const char *path) {
    unsigned ret = 0;
    const char *rest;
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        if (path_fits(keys[i].path, path, &rest))
            ret |= *rest == '\0' ? CONFIG_IS_KEY : CONFIG_IS_GROUP;
    return ret;
}

bool config_guess(const char *path, char *ret, size_t size) {
    char before[CONFIG_PATH_MAX], words[ARRAY_LEN(keys)][GUESS_WORD_MAX];
    const char *dot = strrchr(path, '.'), *rest;
    struct guess g;
    guess_init(&g, dot != NULL ? dot + 1 : path);
    csn_bytes head = {path, dot != NULL ? (size_t)(dot - path) : 0};
    if (!copy_bytes_text(before, sizeof(before), head))
        return false;
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        if (!path_fits(keys[i].path, before, &rest) || *rest == '\0' || *rest == '*')
            continue;
        (void)copy_bytes_text(words[i], sizeof(words[i]), (csn_bytes){rest, part_size(rest)});
        guess_offer(&g, words[i]);
    }
    return g.best != NULL && copy_text(ret, size, g.best);
}

/* The section of a path's first part; CONFIG_GLOBAL: it has no named things. */
static enum config_section section_of(const char *path) {
    csn_bytes first = {path, part_size(path)};
    for (int s = CONFIG_GLOBAL + 1; s < CONFIG_SECTION_NR; s++)
        if (bytes_is(first, sections[s].name))
            return (enum config_section)s;
    return CONFIG_GLOBAL;
}

/* ---- named things ---- */

static uint32_t *thing_count(struct config *c, enum config_section s) {
    return (uint32_t *)(void *)((char *)c + sections[s].count);
}

/* Every struct of a section begins with its name. */
static char *thing_at(struct config *c, enum config_section s, uint32_t i) {
    return (char *)c + sections[s].first + sections[s].step * i;
}

static char *thing_find(struct config *c, enum config_section s, csn_bytes name) {
    for (uint32_t i = 0; i < *thing_count(c, s); i++)
        if (bytes_is(name, thing_at(c, s, i)))
            return thing_at(c, s, i);
    return NULL;
}

static bool name_good(csn_bytes name) {
    const char *s = name.data;
    if (name.size == 0 || name.size > CONFIG_NAME_LONGEST || !isalnum((unsigned char)s[0]))
        return false;
    for (size_t i = 0; i < name.size; i++)
        if (!isalnum((unsigned char)s[i]) && s[i] != '_' && s[i] != '-')
            return false;
    return true;
}

bool config_thing_at(const struct config *c, enum config_section s, uint32_t i, char *ret,
                     size_t size) {
    struct config *w = (struct config *)(uintptr_t)c; /* only read below */
    if (s == CONFIG_GLOBAL || s >= CONFIG_SECTION_NR || i >= *thing_count(w, s))
        return false;
    struct text t;
    text_init(&t, ret, size);
    text_add(&t, "%s.%s", sections[s].name, thing_at(w, s, i));
    return !t.full;
}

static csn_status put_key(struct config *c, char *base, const struct config_key *k,
                          const char *value, csn_error *err);

static void put_defaults(struct config *c, enum config_section s, char *base) {
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        if (keys[i].section == s && keys[i].otherwise != NULL)
            (void)put_key(c, base, &keys[i], keys[i].otherwise, NULL);
}

static csn_status thing_make(struct config *c, enum config_section s, csn_bytes name, char **ret,
                             csn_error *err) {
    char line[200];
    struct text t;
    text_init(&t, line, sizeof(line));
    uint32_t *count = thing_count(c, s);
    *ret = thing_find(c, s, name);
    if (*ret != NULL)
        return CSN_OK;
    if (!name_good(name)) {
        message_add(&t, MSG_CONFIG_NAME_BAD, (int)(name.size < 60 ? name.size : 60),
                    (const char *)name.data, CONFIG_NAME_LONGEST);
        return wrong(err, ERR_CONFIG_VALUE, &t);
    }
    if (*count >= sections[s].most) {
        message_add(&t, MSG_CONFIG_TOO_MANY, sections[s].name, sections[s].most);
        return wrong(err, ERR_CONFIG_VALUE, &t);
    }
    *ret = thing_at(c, s, (*count)++);
    (void)copy_bytes_text(*ret, NAME_MAX_, name);
    put_defaults(c, s, *ret);
    return CSN_OK;
}

csn_status config_name(struct config *c, const char *path, csn_error *err) {
    enum config_section s = section_of(path);
    const char *name = part_next(path);
    char *thing;
    if (s == CONFIG_GLOBAL || *name == '\0')
        return CSN_OK;
    return thing_make(c, s, (csn_bytes){name, part_size(name)}, &thing, err);
}

/* ---- values ---- */

bool config_parse_int(const char *s, int64_t *ret) {
    int64_t n = 0;
    size_t i = 0;
    for (; s[i] >= '0' && s[i] <= '9'; i++) {
        if (n > (INT64_MAX - 9) / 10)
            return false;
        n = n * 10 + (s[i] - '0');
    }
    if (i == 0 || s[i] != '\0')
        return false;
    *ret = n;
    return true;
}

struct unit {
    const char *name;
    int64_t size;
};

static const struct unit duration_units[] = {
    {"d", DAY}, {"h", HOUR}, {"m", 60 * SECOND}, {"s", SECOND}, {"ms", MS}, {"us", 1},
};
static const struct unit size_units[] = {
    {"GiB", INT64_C(1) << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}, {"", 1},
};

static bool parse_with_unit(const char *s, const struct unit *unit, size_t units, int64_t *ret) {
    char digits[20];
    size_t n = strspn(s, "0123456789");
    int64_t number;
    if (n >= sizeof(digits) || !copy_bytes_text(digits, sizeof(digits), (csn_bytes){s, n}) ||
        !config_parse_int(digits, &number))
        return false;
    for (size_t i = 0; i < units; i++)
        if (strcmp(s + n, unit[i].name) == 0)
            return !__builtin_mul_overflow(number, unit[i].size, ret);
    return number == 0 && s[n] == '\0' && (*ret = 0, true); /* 0 needs no unit */
}

bool config_parse_duration(const char *s, csn_usec *ret) {
    return parse_with_unit(s, duration_units, ARRAY_LEN(duration_units), ret);
}

bool config_parse_size(const char *s, int64_t *ret) {
    return parse_with_unit(s, size_units, ARRAY_LEN(size_units), ret);
}

static void unit_text(int64_t n, const struct unit *unit, size_t units, struct text *t) {
    size_t i = 0;
    while (i + 1 < units &&
           (n == 0 || n % unit[i].size != 0 || (unit[i].size == DAY && n < 2 * DAY)))
        i++; /* a single day is 24h */
    if (n == 0)
        text_add(t, "0");
    else
        text_add(t, "%lld%s", (long long)(n / unit[i].size), unit[i].name);
}

void config_duration_text(csn_usec d, char *ret, size_t size) {
    struct text t;
    text_init(&t, ret, size);
    unit_text(d, duration_units, ARRAY_LEN(duration_units), &t);
}

static bool parse_jitter(const char *s, struct retry_policy *ret) {
    char digits[8];
    size_t n = strlen(s);
    int64_t percent;
    ret->jitter_percent = 0;
    if (strcmp(s, "full") == 0)
        return ret->jitter = JITTER_FULL, true;
    if (strcmp(s, "equal") == 0)
        return ret->jitter = JITTER_EQUAL, true;
    if (n < 2 || s[n - 1] != '%' ||
        !copy_bytes_text(digits, sizeof(digits), (csn_bytes){s, n - 1}) ||
        !config_parse_int(digits, &percent) || percent > 100)
        return false;
    ret->jitter = JITTER_PERCENT;
    ret->jitter_percent = (uint8_t)percent;
    return true;
}

/* Position of word among "a|b|c"; -1: it is none of them. */
static int choice_of(const char *choices, const char *word) {
    int at = 0;
    for (const char *s = choices; *s != '\0'; at++) {
        size_t n = strcspn(s, "|");
        if (bytes_is((csn_bytes){s, n}, word))
            return at;
        s += n + (s[n] == '|');
    }
    return -1;
}

static void range_text(const struct config_key *k, enum message_id id, const struct unit *unit,
                       size_t units, struct text *ret) {
    char least[32], most[32];
    struct text a, b;
    text_init(&a, least, sizeof(least));
    text_init(&b, most, sizeof(most));
    unit_text(k->least, unit, units, &a);
    unit_text(k->most, unit, units, &b);
    message_add(ret, id, least, most);
}

static void choices_text(const char *choices, struct text *ret) {
    for (const char *s = choices; *s != '\0';) {
        size_t n = strcspn(s, "|");
        text_add(ret, "%s%.*s", s == choices ? "" : ", ", (int)n, s);
        s += n + (s[n] == '|');
    }
}

void config_expected(const struct config_key *k, struct text *ret) {
    static const struct unit plain = {"", 1};
    switch (k->type) {
    case CONFIG_INT:
        range_text(k, MSG_CONFIG_EXPECT_INT, &plain, 1, ret);
        break;
    case CONFIG_DURATION:
        range_text(k, MSG_CONFIG_EXPECT_DURATION, duration_units, ARRAY_LEN(duration_units), ret);
        break;
    case CONFIG_SIZE:
        range_text(k, MSG_CONFIG_EXPECT_SIZE, size_units, ARRAY_LEN(size_units), ret);
        break;
    case CONFIG_JITTER:
        message_add(ret, MSG_CONFIG_EXPECT_JITTER);
        break;
    case CONFIG_CHOICE:
    case CONFIG_SWITCH:
        text_add(ret, "%s", message(MSG_CONFIG_EXPECT_CHOICE));
        choices_text(k->choices, ret);
        break;
    case CONFIG_NAME:
        message_add(ret, MSG_CONFIG_EXPECT_NAME, k->choices);
        break;
    case CONFIG_URL:
        text_add(ret, "%s", message(MSG_CONFIG_EXPECT_URL));
        break;
    case CONFIG_PATH:
        text_add(ret, "%s", message(MSG_CONFIG_EXPECT_PATH));
        break;
    case CONFIG_MATCH:
        text_add(ret, "%s", message(MSG_CONFIG_EXPECT_MATCH));
        break;
    case CONFIG_TEXT:
        message_add(ret, MSG_CONFIG_EXPECT_TEXT, (int)k->most);
        break;
    }
}

/* Puts a relative path behind the folder of the configuration file. */
static bool put_path(const struct config *c, const char *prefix, const char *path, char *to,
                     size_t size) {
    const char *slash = strrchr(c->path, '/');
    struct text t;
    text_init(&t, to, size);
    text_add(&t, "%s", prefix);
    while (path[0] == '.' && path[1] == '/')
        path += 2;
    if (path[0] != '/' && slash != NULL)
        text_add(&t, "%.*s", (int)(slash - c->path + 1), c->path);
    text_add(&t, "%s", path);
    return !t.full;
}

static bool put_url(const struct config *c, const char *value, char *to, size_t size) {
    static const char scheme[] = "sqlite:";
    size_t n = sizeof(scheme) - 1;
    if (strncmp(value, scheme, n) == 0 && value[n] != '\0' && value[n] != ':')
        return put_path(c, scheme, value + n, to, size);
    return strchr(value, ':') > value &&
           copy_text(to, size, value); /* which schemes there are is the stores' matter */
}

static bool match_good(const char *s) {
    for (const char *p = s; *p != '\0'; p++)
        if (!isalnum((unsigned char)*p) && strchr("*?._-:/,", *p) == NULL)
            return false;
    size_t n = strlen(s);
    return n > 0 && s[0] != ',' && s[n - 1] != ',' && strstr(s, ",,") == NULL;
}

static bool put_number(const struct config_key *k, int64_t n, char *field) {
    if (n < k->least || n > k->most)
        return false;
    if (k->size == sizeof(uint32_t)) {
        uint32_t small = (uint32_t)n;
        memcpy(field, &small, sizeof(small));
    } else {
        memcpy(field, &n, sizeof(n)); /* csn_usec and size_t are 64 bits wide: asserted below */
    }
    return true;
}
_Static_assert(sizeof(size_t) == sizeof(int64_t), "sizes are held in 64 bits");

static bool text_good(const struct config_key *k, const char *value) {
    size_t n = strlen(value);
    for (const char *p = value; *p != '\0'; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            return false;
    return (int64_t)n >= k->least && (k->most == 0 || (int64_t)n <= k->most);
}

static bool put_value(struct config *c, const struct config_key *k, const char *value,
                      char *field) {
    int64_t n;
    int at;
    switch (k->type) {
    case CONFIG_INT:
        return config_parse_int(value, &n) && put_number(k, n, field);
    case CONFIG_DURATION:
        return config_parse_duration(value, &n) && put_number(k, n, field);
    case CONFIG_SIZE:
        return config_parse_size(value, &n) && put_number(k, n, field);
    case CONFIG_JITTER:
        return parse_jitter(value, (struct retry_policy *)(void *)field);
    case CONFIG_CHOICE:
        return choice_of(k->choices, value) >= 0 && copy_text(field, k->size, value);
    case CONFIG_SWITCH:
        at = choice_of(k->choices, value);
        if (at >= 0)
            *(bool *)field = at == 1;
        return at >= 0;
    case CONFIG_NAME:
        return name_good(bytes_of(value)) && copy_text(field, k->size, value);
    case CONFIG_URL:
        return text_good(k, value) && put_url(c, value, field, k->size);
    case CONFIG_PATH:
        return text_good(k, value) && put_path(c, "", value, field, k->size);
    case CONFIG_MATCH:
        return match_good(value) && text_good(k, value) && copy_text(field, k->size, value);
    case CONFIG_TEXT:
        return text_good(k, value) && copy_text(field, k->size, value);
    }
    return false;
}

static csn_status put_key(struct config *c, char *base, const struct config_key *k,
                          const char *value, csn_error *err) {
    char line[sizeof(err->text)], expected[160];
    struct text t, e;
    if (put_value(c, k, value, base + k->offset))
        return CSN_OK;
    text_init(&e, expected, sizeof(expected));
    config_expected(k, &e);
    text_init(&t, line, sizeof(line));
    message_add(&t, MSG_CONFIG_VALUE_BAD, value, expected);
    return wrong(err, ERR_CONFIG_VALUE, &t);
}

csn_status config_put(struct config *c, const char *path, const char *value, csn_error *err) {
    const struct config_key *k = config_key_find(path);
    char line[sizeof(err->text)], *base = (char *)c;
    const char *name = part_next(path);
    struct text t;
    text_init(&t, line, sizeof(line));
    if (k == NULL) {
        message_add(&t, config_what(path) != 0 ? MSG_CONFIG_IS_GROUP : MSG_CONFIG_UNKNOWN, path);
        return wrong(err, config_what(path) != 0 ? ERR_CONFIG_VALUE : ERR_CONFIG_KEY, &t);
    }
    if (k->section != CONFIG_GLOBAL) {
        csn_status s = thing_make(c, k->section, (csn_bytes){name, part_size(name)}, &base, err);
        if (s != CSN_OK)
            return s;
    }
    return put_key(c, base, k, value, err);
}

void config_init(struct config *c, const char *file) {
    memset(c, 0, sizeof(*c));
    (void)copy_text(c->path, sizeof(c->path), file);
    put_defaults(c, CONFIG_GLOBAL, (char *)c);
}

/* ---- reading back ---- */

static int64_t number_of(const struct config_key *k, const char *field) {
    int64_t n = 0;
    uint32_t small;
    if (k->size == sizeof(small)) {
        memcpy(&small, field, sizeof(small));
        return small;
    }
    memcpy(&n, field, sizeof(n));
    return n;
}

static void jitter_text(const struct retry_policy *p, struct text *t) {
    if (p->jitter == JITTER_PERCENT)
        text_add(t, "%u%%", p->jitter_percent);
    else
        text_add(t, "%s", p->jitter == JITTER_FULL ? "full" : "equal");
}

static void value_text(const struct config_key *k, const char *field, struct text *t) {
    size_t first = 0;
    switch (k->type) {
    case CONFIG_INT:
        text_add(t, "%lld", (long long)number_of(k, field));
        break;
    case CONFIG_DURATION:
        unit_text(number_of(k, field), duration_units, ARRAY_LEN(duration_units), t);
        break;
    case CONFIG_SIZE:
        unit_text(number_of(k, field), size_units, ARRAY_LEN(size_units), t);
        break;
    case CONFIG_JITTER:
        jitter_text((const struct retry_policy *)(const void *)field, t);
        break;
    case CONFIG_SWITCH:
        first = strcspn(k->choices, "|");
        if (*(const bool *)field)
            text_add(t, "%s", k->choices + first + 1);
        else
            text_add(t, "%.*s", (int)first, k->choices);
        break;
    default:
        text_add(t, "%s", field);
        break;
    }
}

bool config_get(const struct config *c, const char *path, char *ret, size_t size) {
    const struct config_key *k = config_key_find(path);
    const char *base = (const char *)c, *name = part_next(path);
    struct text t;
    if (k == NULL)
        return false;
    if (k->section != CONFIG_GLOBAL)
        base = thing_find((struct config *)(uintptr_t)c, k->section,
                          (csn_bytes){name, part_size(name)});
    if (base == NULL)
        return false;
    text_init(&t, ret, size);
    value_text(k, base + k->offset, &t);
    return !t.full;
}

/* ---- another configuration ---- */

struct reloading {
    struct config *now;
    const struct config *next;
    config_changed *changed;
    void *arg;
};

static void reload_value(struct reloading *r, const struct config_key *k, const char *path) {
    char before[URL_MAX_ + 32], after[URL_MAX_ + 32];
    if (!config_get(r->now, path, before, sizeof(before)) ||
        !config_get(r->next, path, after, sizeof(after)) || strcmp(before, after) == 0)
        return;
    r->changed(r->arg, k, path, before, after);
    if (k->reload == CONFIG_RELOAD_LIVE && config_put(r->now, path, after, NULL) != CSN_OK)
        r->changed(r->arg, NULL, path, after, before); /* cannot be: next was checked */
}

/* The long form of a match is the same field. */
static bool is_long_form(const struct config_key *k) {
    return strstr(k->path, ".match.event_type") != NULL;
}

/* Things that a has and b has not. */
static void reload_missing(struct reloading *r, const struct config *a, const struct config *b,
                           enum config_section s, bool came) {
    char path[CONFIG_PATH_MAX];
    for (uint32_t i = 0; config_thing_at(a, s, i, path, sizeof(path)); i++)
        if (thing_find((struct config *)(uintptr_t)b, s, bytes_of(part_next(path))) == NULL)
            r->changed(r->arg, NULL, path, came ? NULL : "", came ? "" : NULL);
}

static void reload_order(struct reloading *r) {
    for (uint32_t i = 0; i < r->now->routes && i < r->next->routes; i++) {
        if (strcmp(r->now->route[i].name, r->next->route[i].name) == 0)
            continue;
        r->changed(r->arg, NULL, "routes", r->now->route[i].name, r->next->route[i].name);
        return;
    }
}

void config_reload(struct config *now, const struct config *next, config_changed *f, void *arg) {
    struct reloading r = {now, next, f, arg};
    char path[CONFIG_PATH_MAX], thing[CONFIG_PATH_MAX];
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        const struct config_key *k = &keys[i];
        if (k->section == CONFIG_GLOBAL)
            reload_value(&r, k, k->path);
        for (uint32_t t = 0; k->section != CONFIG_GLOBAL && !is_long_form(k) &&
                             config_thing_at(now, k->section, t, thing, sizeof(thing));
             t++) {
            (void)snprintf(path, sizeof(path), "%s%s", thing, strchr(k->path, '*') + 1);
            reload_value(&r, k, path);
        }
    }
    for (int s = CONFIG_GLOBAL + 1; s < CONFIG_SECTION_NR; s++) {
        reload_missing(&r, now, next, (enum config_section)s, false);
        reload_missing(&r, next, now, (enum config_section)s, true);
    }
    reload_order(&r);
}

/* ---- checks between values ---- */

struct checking {
    struct config *c;
    config_found *found;
    void *arg;
    uint32_t mistakes;
};

static void tell(struct checking *w, const char *path, int32_t code, const struct text *t) {
    w->mistakes++;
    w->found(w->arg, path, code, t->data, "");
}

/* "stores.*.url" with the name in the star's place. */
static void path_of(const struct config_key *k, const char *name, char *ret, size_t size) {
    const char *star = strchr(k->path, '*');
    struct text t;
    text_init(&t, ret, size);
    if (star == NULL)
        text_add(&t, "%s", k->path);
    else
        text_add(&t, "%.*s%s%s", (int)(star - k->path), k->path, name, star + 1);
}

static void check_name(struct checking *w, const struct config_key *k, const char *path,
                       const char *name) {
    char line[200], way[120];
    struct text t, y;
    enum config_section s = section_of(k->choices);
    if (name[0] == '\0' || thing_find(w->c, s, bytes_of(name)) != NULL)
        return;
    struct guess g;
    guess_init(&g, name);
    for (uint32_t i = 0; i < *thing_count(w->c, s); i++)
        guess_offer(&g, thing_at(w->c, s, i));
    text_init(&t, line, sizeof(line));
    message_add(&t, MSG_CONFIG_NO_SUCH, message(sections[s].singular), name);
    text_init(&y, way, sizeof(way));
    if (g.best != NULL)
        message_add(&y, MSG_YAML_MEANT, g.best);
    w->mistakes++;
    w->found(w->arg, path, ERR_CONFIG_REFERENCE, line, way);
}

/* One key of one thing: required ones are there, names are known. */
static void check_key(struct checking *w, const struct config_key *k, const char *base) {
    char path[CONFIG_PATH_MAX], line[200];
    const char *field = base + k->offset;
    struct text t;
    path_of(k, base, path, sizeof(path));
    if ((k->bits & CONFIG_REQUIRED) != 0 && field[0] == '\0') {
        text_init(&t, line, sizeof(line));
        message_add(&t, MSG_CONFIG_REQUIRED, path);
        tell(w, path, ERR_CONFIG_MISSING, &t);
    }
    if (k->type == CONFIG_NAME)
        check_name(w, k, path, field);
}

static void check_things(struct checking *w) {
    for (int s = CONFIG_GLOBAL + 1; s < CONFIG_SECTION_NR; s++)
        for (uint32_t i = 0; i < *thing_count(w->c, (enum config_section)s); i++)
            for (size_t k = 0; k < ARRAY_LEN(keys); k++)
                if (keys[k].section == (enum config_section)s)
                    check_key(w, &keys[k], thing_at(w->c, (enum config_section)s, i));
}

static void check_order(struct checking *w, const char *low, const char *high, csn_usec a,
                        csn_usec b) {
    char line[200], at[32], bt[32];
    struct text t;
    if (a <= b)
        return;
    config_duration_text(a, at, sizeof(at));
    config_duration_text(b, bt, sizeof(bt));
    text_init(&t, line, sizeof(line));
    message_add(&t, MSG_CONFIG_ORDER, low, at, high, bt);
    tell(w, low, ERR_CONFIG_LIMITS, &t);
}

static void check_retry(struct checking *w, const char *prefix, const struct retry_policy *p) {
    char low[CONFIG_PATH_MAX], high[CONFIG_PATH_MAX];
    struct text a, b;
    text_init(&a, low, sizeof(low));
    text_init(&b, high, sizeof(high));
    text_add(&a, "%s.retry.base", prefix);
    text_add(&b, "%s.retry.max", prefix);
    check_order(w, low, high, p->base, p->max);
}

/* A batch must end before its lease: confirm_timeout + 2 × lock_wait ≤ lease / 2. */
static void check_lease(struct checking *w, const struct config_broker *b) {
    char path[CONFIG_PATH_MAX], line[240], confirm[32], wait[32], lease[32];
    struct text t, p;
    if (b->confirm_timeout + 2 * w->c->relay.lock_wait <= w->c->relay.lease / 2)
        return;
    config_duration_text(b->confirm_timeout, confirm, sizeof(confirm));
    config_duration_text(w->c->relay.lock_wait, wait, sizeof(wait));
    config_duration_text(w->c->relay.lease, lease, sizeof(lease));
    text_init(&t, line, sizeof(line));
    message_add(&t, MSG_CONFIG_LEASE, confirm, wait, lease);
    text_init(&p, path, sizeof(path));
    text_add(&p, "brokers.%s.confirm_timeout", b->name);
    tell(w, path, ERR_CONFIG_LIMITS, &t);
}

/* Two relays of one process on one outbox would take each other for themselves. */
static void check_urls(struct checking *w) {
    char path[CONFIG_PATH_MAX], line[200];
    struct text t, p;
    for (uint32_t i = 1; i < w->c->stores; i++) {
        for (uint32_t j = 0; j < i; j++) {
            if (strcmp(w->c->store[i].url, w->c->store[j].url) != 0 ||
                w->c->store[i].url[0] == '\0')
                continue;
            text_init(&p, path, sizeof(path));
            text_add(&p, "stores.%s.url", w->c->store[i].name);
            text_init(&t, line, sizeof(line));
            message_add(&t, MSG_CONFIG_SAME_URL, w->c->store[j].name);
            tell(w, path, ERR_CONFIG_VALUE, &t);
            break;
        }
    }
}

/* What may lose events is not for what everything hangs on. */
static void check_semantics(struct checking *w, const struct config_subscription *s) {
    char path[CONFIG_PATH_MAX], line[200];
    struct text t, p;
    if (!s->at_most_once || strcmp(s->criticality, "critical") != 0)
        return;
    text_init(&p, path, sizeof(path));
    text_add(&p, "subscriptions.%s.semantics", s->consumer);
    text_init(&t, line, sizeof(line));
    message_add(&t, MSG_CONFIG_MAY_LOSE);
    tell(w, path, ERR_CONFIG_SEMANTICS, &t);
}

/* A file, or a program that brings a function: exactly one of them. */
static void check_handler(struct checking *w, const struct config_subscription *s) {
    char path[CONFIG_PATH_MAX], line[200];
    struct text t, p;
    if (s->application == (s->handler_path[0] == '\0'))
        return;
    text_init(&p, path, sizeof(path));
    text_add(&p, "subscriptions.%s.handler.sql", s->consumer);
    text_init(&t, line, sizeof(line));
    message_add(&t, s->application ? MSG_CONFIG_TWO_HANDLERS : MSG_CONFIG_REQUIRED, path);
    tell(w, path, s->application ? ERR_CONFIG_VALUE : ERR_CONFIG_MISSING, &t);
}

/* ---- states and moves ---- */

const char *config_moves(const struct config *c, const char *name) {
    for (uint32_t i = 0; i < c->machines; i++)
        if (strcmp(c->machine[i].name, name) == 0)
            return c->machine[i].moves;
    return order_machine_moves(name);
}

static void tell_at(struct checking *w, const char *thing, const char *name, const char *key,
                    int32_t code, const struct text *t) {
    char path[CONFIG_PATH_MAX];
    (void)snprintf(path, sizeof(path), "%s.%s.%s", thing, name, key);
    tell(w, path, code, t);
}

static void check_machine(struct checking *w, const struct config_machine *m) {
    char line[200];
    struct order_machine parsed;
    struct text t;
    text_init(&t, line, sizeof(line));
    if (m->moves[0] == '\0')
        return; /* told already: it is required */
    if (order_machine_moves(m->name) != NULL)
        message_add(&t, MSG_CONFIG_MACHINE_TAKEN, m->name);
    else if (!order_machine_parse(m->name, m->moves, &parsed))
        message_add(&t, MSG_CONFIG_MOVES, m->moves);
    if (t.used > 0)
        tell_at(w, "machines", m->name, "moves", ERR_CONFIG_VALUE, &t);
}

/* A command needs a machine and a state of it; nothing else has use for them. */
static void check_event(struct checking *w, const struct config_event *e) {
    bool command = strcmp(e->policy, "command") == 0;
    const char *moves = config_moves(w->c, e->states), *key = "states";
    char line[240];
    struct order_machine m;
    struct text t;
    text_init(&t, line, sizeof(line));
    if (!command && (e->states[0] != '\0' || e->to[0] != '\0')) {
        key = e->states[0] != '\0' ? "states" : "to";
        message_add(&t, MSG_CONFIG_ONLY_COMMAND, e->policy);
    } else if (command && (e->states[0] == '\0' || e->to[0] == '\0')) {
        key = e->states[0] == '\0' ? "states" : "to";
        message_add(&t, MSG_CONFIG_NEEDS_STATES);
    } else if (command && moves == NULL) {
        message_add(&t, MSG_CONFIG_NO_SUCH, message(MSG_CONFIG_MACHINE), e->states);
    } else if (command && order_machine_parse(e->states, moves, &m) &&
               order_state_find(&m, bytes_of(e->to)) < 0) {
        key = "to";
        message_add(&t, MSG_CONFIG_NO_STATE, e->to, e->states, moves);
    }
    if (t.used > 0)
        tell_at(w, "events", e->type, key,
                moves == NULL && command && e->states[0] != '\0' ? ERR_CONFIG_REFERENCE
                                                                 : ERR_CONFIG_VALUE,
                &t);
}

static void check_section(struct checking *w, enum config_section s) {
    char line[200];
    struct text t;
    if (*thing_count(w->c, s) > 0)
        return;
    text_init(&t, line, sizeof(line));
    message_add(&t, MSG_CONFIG_REQUIRED, sections[s].name);
    tell(w, sections[s].name, ERR_CONFIG_MISSING, &t);
}

uint32_t config_check(struct config *c, config_found *found, void *arg) {
    struct checking w = {c, found, arg, 0};
    check_section(&w, CONFIG_STORE);
    if (c->subscriptions == 0) /* one who only consumes elsewhere still publishes */
        check_section(&w, CONFIG_BROKER);
    check_things(&w);
    check_urls(&w);
    check_order(&w, "relay.probe.min", "relay.probe.max", c->relay.probe_min, c->relay.probe_max);
    check_retry(&w, "relay", &c->relay.retry);
    for (uint32_t i = 0; i < c->subscriptions; i++) {
        char prefix[CONFIG_PATH_MAX];
        check_semantics(&w, &c->subscription[i]);
        check_handler(&w, &c->subscription[i]);
        if (config_thing_at(c, CONFIG_SUBSCRIPTION, i, prefix, sizeof(prefix)))
            check_retry(&w, prefix, &c->subscription[i].retry);
    }
    for (uint32_t i = 0; i < c->machines; i++)
        check_machine(&w, &c->machine[i]);
    for (uint32_t i = 0; i < c->events; i++)
        check_event(&w, &c->event[i]);
    c->relay.confirm_timeout = 0;
    for (uint32_t i = 0; i < c->brokers; i++) {
        check_lease(&w, &c->broker[i]);
        if (c->broker[i].confirm_timeout > c->relay.confirm_timeout)
            c->relay.confirm_timeout = c->broker[i].confirm_timeout;
    }
    return w.mistakes;
}
