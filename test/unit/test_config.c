/* test_config.c: the configuration: what it means, and that every mistake is told at its place. */
#include "base/message.h"
#include "cli/report.h"
#include "conf/load.h"
#include "cli/out.h"
#include "store/store.h"
#include <stdlib.h>

#include <setjmp.h>

#include <cmocka.h>

static const char good[] = "stores:\n"
                           "  orders: { url: sqlite:orders.db }\n"
                           "  stock: { url: sqlite:/data/stock.db, apply: 4, migrate: apply }\n"
                           "brokers:\n"
                           "  local: { type: embedded, store: orders }\n"
                           "subscriptions:\n"
                           "  stock:\n"
                           "    from: { broker: local }\n"
                           "    store: stock\n"
                           "    match: OrderCreated\n"
                           "    handler: { sql: handlers/reserve.sql }\n"
                           "    retry: { base: 250ms, jitter: 20% }\n"
                           "relay: { batch: { rows: 50, bytes: 1MiB }, lease: 1m }\n"
                           "log: { level: debug }\n";

static struct load *load(const char *text, const char *const *set, int sets,
                         char *const *environment) {
    const struct load_input in = {
        .environment = environment, .set = set, .sets = sets, .drivers = store_drivers};
    struct load *l = NULL;
    csn_error err;
    assert_int_equal(load_text(&in, "/etc/shop/consign.yaml", bytes_of(text), &l, &err), CSN_OK);
    assert_non_null(l);
    return l;
}

static struct load *load_plain(const char *text) {
    return load(text, NULL, 0, NULL);
}

/* What is printed for people; the caller frees. */
static char *report(const struct load *l, enum out_format format, int *ret_code) {
    char *text = NULL;
    size_t size = 0;
    struct out o = {.format = format};
    o.to = o.err = open_memstream(&text, &size);
    assert_non_null(o.err);
    int code = report_mistakes(l, &o);
    assert_int_equal(fclose(o.err), 0);
    if (ret_code != NULL)
        *ret_code = code;
    char *copy =
        strdup(text); /* gcc 12 takes what open_memstream left in text for a pointer to it */
    assert_non_null(copy);
    free(text);
    return copy;
}

static const struct mistake *mistake_of(const struct load *l, const char *path) {
    for (uint32_t i = 0; i < l->mistakes; i++)
        if (strcmp(l->mistake[i].path, path) == 0)
            return &l->mistake[i];
    return NULL;
}

static void show(const struct load *l) {
    char *text = report(l, OUT_TABLE, NULL);
    if (l->mistakes > 0)
        print_message("%s", text);
    free(text);
}

static void defaults_and_values(void **state) {
    (void)state;
    struct load *l = load_plain(good);
    const struct config *c = &l->config;
    show(l);
    assert_int_equal(l->mistakes, 0);
    assert_int_equal(c->stores, 2);
    assert_string_equal(c->store[0].url, "sqlite:/etc/shop/orders.db");
    assert_string_equal(c->store[1].url, "sqlite:/data/stock.db");
    assert_int_equal(c->store[0].apply, 1);
    assert_int_equal(c->store[1].apply, 4);
    assert_false(c->store[0].migrate);
    assert_true(c->store[1].migrate);
    assert_int_equal(c->broker[0].confirm_timeout, 10000000);
    assert_string_equal(c->subscription[0].handler_path, "/etc/shop/handlers/reserve.sql");
    assert_int_equal(c->subscription[0].partitions, 8);
    assert_int_equal(c->subscription[0].retry.base, 250000);
    assert_int_equal(c->subscription[0].retry.max, INT64_C(600000000));
    assert_int_equal(c->subscription[0].retry.jitter, JITTER_PERCENT);
    assert_int_equal(c->subscription[0].retry.jitter_percent, 20);
    assert_int_equal(c->subscription[0].retry.failures, 8);
    assert_int_equal(c->subscription[0].retry.age, INT64_C(86400000000));
    assert_int_equal(c->relay.batch_rows, 50);
    assert_int_equal(c->relay.batch_bytes, 1024 * 1024);
    assert_int_equal(c->relay.lease, 60000000);
    assert_int_equal(c->relay.probe_min, 1000);
    assert_int_equal(c->relay.probe_max, 50000);
    assert_int_equal(c->relay.lock_wait, 2000000);
    assert_int_equal(c->relay.stop_timeout, 10000000);
    assert_int_equal(c->relay.confirm_timeout, 10000000);
    assert_int_equal(c->reconcile.grace, INT64_C(600000000));
    assert_string_equal(c->log_level, "debug");
    assert_string_equal(c->log_format, "auto");
    assert_true(c->node[0] != '\0');
    load_free(l);
}

static const char five[] = "stores:\n"
                           "  orders:\n"
                           "    url: sqlite:orders.db\n"
                           "    aply: 2\n"
                           "  stock:\n"
                           "    url: sqlite:stock.db\n"
                           "brokers:\n"
                           "  local:\n"
                           "    type: embedded\n"
                           "    store: order\n"
                           "relay:\n"
                           "  lease: 30\n"
                           "  batch: { rows: 200000, bytes: 4MiB }\n"
                           "  lease: 40s\n";

static void five_mistakes_with_carets(void **state) {
    (void)state;
    static const char *const expected[] = {
        "CSN-1002",
        ":4:5",
        "             aply: 2\n             ^~~~\n",
        "did you mean \"apply\"?",
        "CSN-1005",
        ":10:12",
        "             store: order\n                    ^~~~~\n",
        "did you mean \"orders\"?",
        "\"30\" is not a duration from 1s to 1h",
        ":12:10",
        "\"200000\" is not a whole number from 1 to 1000",
        ":13:18",
        "lease is there twice, first in line 12",
        ":14:3",
        "5 mistakes",
    };
    struct load *l = load_plain(five);
    int code;
    char *text = report(l, OUT_TABLE, &code);
    print_message("%s", text);
    assert_int_equal(l->mistakes, 5);
    assert_int_equal(code, 78);
    const char *at = text;
    for (size_t i = 0; i < ARRAY_LEN(expected); i++) {
        const char *found = strstr(at, expected[i]);
        if (found == NULL)
            fail_msg("not in order, or not there: %s", expected[i]);
        at = found;
    }
    free(text);
    load_free(l);
}

/* A subscription has one handler: a file, or a function of a program that links the library. */
static void a_handler_is_a_file_or_an_application(void **state) {
    (void)state;
    static const char text[] = "stores: { a: { url: sqlite:a.db } }\n"
                               "brokers: { local: { type: embedded, store: a } }\n"
                               "subscriptions:\n"
                               "  stock: { from: { broker: local }, store: a%s }\n";
    static const struct {
        const char *handler, *environment;
        uint32_t mistakes;
        bool application;
        const char *said;
    } cases[] = {
        {", handler: application", NULL, 0, true, NULL},
        {", handler: { sql: h.sql }", NULL, 0, false, NULL},
        {"", NULL, 1, false, "subscriptions.stock.handler.sql"},
        {", handler: sql", NULL, 1, false, "subscriptions.stock.handler.sql"},
        {", handler: h.sql", NULL, 1, false, "sql, application"},
        {", handler: { sql: h.sql }", "CONSIGN_SUBSCRIPTIONS__STOCK__HANDLER=application", 1, true,
         "the application's"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char file[sizeof text + 40], *environment[] = {(char *)cases[i].environment, NULL};
        snprintf(file, sizeof file, text, cases[i].handler);
        struct load *l = load(file, NULL, 0, environment);
        char *said = report(l, OUT_TABLE, NULL);
        assert_int_equal(l->mistakes, cases[i].mistakes);
        assert_int_equal(l->config.subscription[0].application, cases[i].application);
        if (cases[i].said && !strstr(said, cases[i].said))
            fail_msg("%s: %s", cases[i].handler, said);
        free(said);
        load_free(l);
    }
}

static void what_is_critical_is_never_at_most_once(void **state) {
    (void)state;
    static const char text[] = "stores: { a: { url: sqlite:a.db } }\n"
                               "brokers: { local: { type: embedded, store: a } }\n"
                               "subscriptions:\n"
                               "  cache:\n"
                               "    from: { broker: local }\n"
                               "    store: a\n"
                               "    handler: { sql: h.sql }\n"
                               "    semantics: at_most_once\n"
                               "    class: %s\n";
    char file[sizeof text + 20];
    snprintf(file, sizeof file, text, "critical");
    struct load *l = load_plain(file);
    char *said = report(l, OUT_TABLE, NULL);
    assert_int_equal(l->mistakes, 1);
    assert_non_null(strstr(said, "CSN-1008"));
    assert_non_null(strstr(said, "    semantics: at_most_once\n"));
    free(said);
    load_free(l);
    snprintf(file, sizeof file, text, "bulk");
    l = load_plain(file);
    assert_int_equal(l->mistakes, 0);
    assert_true(l->config.subscription[0].at_most_once);
    load_free(l);
    l = load_plain(good);
    assert_false(l->config.subscription[0].at_most_once); /* nobody gets it who did not ask */
    assert_string_equal(l->config.subscription[0].criticality, "normal");
    load_free(l);
}

static void the_caret_stands_under_the_value(void **state) {
    (void)state;
    struct load *l = load_plain("stores:\n  a: { url: \"sqlite:数据.db\", apply: 多 }\n");
    char *text = report(l, OUT_TABLE, NULL), *line = strstr(text, "  a: {");
    assert_non_null(line);
    char *caret = strchr(strchr(line, '\n'), '^'), *start = strrchr(text, '\n');
    assert_non_null(caret);
    for (start = caret; start[-1] != '\n'; start--)
        ;
    /* 9 of the margin, then "  a: { url: "sqlite:数据.db", apply: " is 36 columns wide with two
     * characters of two columns */
    assert_int_equal(caret - start, 9 + 37);
    assert_true(caret[1] == '~'); /* one character, two columns */
    free(text);
    load_free(l);
}

static void json_is_one_object(void **state) {
    (void)state;
    struct load *l = load_plain(five);
    int code;
    char *text = report(l, OUT_JSON, &code);
    json_t *j = json_loads(text, 0, NULL);
    assert_non_null(j);
    assert_int_equal(json_array_size(json_object_get(j, "errors")), 5);
    assert_string_equal(json_string_value(json_object_get(j, "code")), "CSN-1002");
    assert_string_equal(json_string_value(json_object_get(j, "type")),
                        "urn:consign:error:CSN-1002");
    assert_int_equal(json_integer_value(json_object_get(j, "exit")), 78);
    json_decref(j);
    free(text);
    load_free(l);
}

static void references_and_required(void **state) {
    (void)state;
    struct load *l = load_plain("stores:\n  a: { url: sqlite:a.db }\n  b:\n"
                                "brokers:\n  local: { type: embedded, store: c }\n"
                                "routes:\n  all: { match: \"*\", to: locl }\n"
                                "subscriptions:\n  x: { from: { broker: local }, store: a }\n");
    show(l);
    assert_int_equal(mistake_of(l, "stores.b.url")->code, ERR_CONFIG_MISSING);
    assert_int_equal(mistake_of(l, "stores.b.url")->at.line, 3);
    assert_int_equal(mistake_of(l, "brokers.local.store")->code, ERR_CONFIG_REFERENCE);
    assert_non_null(strstr(mistake_of(l, "routes.all.to")->way, "local"));
    assert_int_equal(mistake_of(l, "subscriptions.x.handler.sql")->code, ERR_CONFIG_MISSING);
    assert_int_equal(l->mistakes, 4);
    load_free(l);
}

static void times_must_fit(void **state) {
    (void)state;
    char text[sizeof(good) + 100];
    (void)snprintf(text, sizeof(text), "%sreconcile: { grace: 1h }\n", good);
    const char *bad[] = {"relay.lease=28s", "relay.probe.min=1s",
                         "subscriptions.stock.retry.base=20m"};
    const char *edge[] = {"relay.lease=28s"};
    struct load *l = load(text, bad, 3, NULL);
    show(l);
    assert_int_equal(l->mistakes, 2 + 0);
    assert_int_equal(mistake_of(l, "relay.probe.min")->code, ERR_CONFIG_LIMITS);
    assert_int_equal(mistake_of(l, "subscriptions.stock.retry.base")->code, ERR_CONFIG_LIMITS);
    load_free(l);
    l = load(text, edge, 1, NULL); /* 10 s + 2 × 2 s = 14 s is just half of it */
    assert_int_equal(l->mistakes, 0);
    load_free(l);
    bad[0] = "relay.lease=27s";
    l = load(text, bad, 1, NULL);
    assert_int_equal(l->mistakes, 1);
    assert_int_equal(l->mistake[0].code, ERR_CONFIG_LIMITS);
    assert_string_equal(l->mistake[0].path, "brokers.local.confirm_timeout");
    assert_int_equal(l->mistake[0].at.line,
                     5); /* the broker, which does not give the value itself */
    load_free(l);
}

static void environment_wins_over_the_file(void **state) {
    (void)state;
    char *environment[] = {(char *)"PATH=/bin",
                           (char *)"CONSIGN_RELAY__LEASE=90s",
                           (char *)"CONSIGN_STORES__ORDERS__URL=sqlite:/x.db",
                           (char *)"CONSIGN_BROKERS__LOCAL__CONFIRM_TIMEOUT=11s",
                           (char *)"CONSIGN_CONFIG=/nowhere",
                           (char *)"CONSIGN_TEST_ANYTHING=1",
                           (char *)"CONSIGN_CLOCK_STEP_FILE=/x",
                           (char *)"CONSIGN_FAILPOINTS=a=crash",
                           (char *)"CONSIGN_FAILPOINT_HITS=/x",
                           NULL};
    const char *set[] = {"relay.lease=2m"};
    char origin[128], value[64];
    struct load *l = load(good, NULL, 0, environment);
    show(l);
    assert_int_equal(l->mistakes, 0);
    assert_int_equal(l->config.relay.lease, INT64_C(90000000));
    assert_string_equal(l->config.store[0].url, "sqlite:/x.db");
    assert_int_equal(l->config.relay.confirm_timeout, 11000000);
    load_origin(l, "relay.lease", origin, sizeof(origin));
    assert_string_equal(origin, "CONSIGN_RELAY__LEASE");
    load_free(l);
    l = load(good, set, 1, environment);
    assert_int_equal(l->config.relay.lease, INT64_C(120000000));
    assert_true(config_get(&l->config, "relay.lease", value, sizeof(value)));
    assert_string_equal(value, "2m");
    load_origin(l, "relay.lease", origin, sizeof(origin));
    assert_string_equal(origin, "--set");
    load_origin(l, "relay.batch.rows", origin, sizeof(origin));
    assert_string_equal(origin, "/etc/shop/consign.yaml:13");
    load_origin(l, "relay.probe.max", origin, sizeof(origin));
    assert_string_equal(origin, "default");
    load_free(l);
}

static void unknown_variables_are_mistakes(void **state) {
    (void)state;
    char *environment[] = {(char *)"CONSIGN_RELAY__LEESE=90s",
                           (char *)"CONSIGN_RELAY__PROBE__MIN=x", NULL};
    struct load *l = load(good, NULL, 0, environment);
    show(l);
    assert_int_equal(l->mistakes, 2);
    assert_int_equal(l->mistake[0].code, ERR_CONFIG_KEY);
    assert_string_equal(l->mistake[0].source, "CONSIGN_RELAY__LEESE");
    assert_string_equal(l->mistake[0].way, "did you mean relay.lease?");
    assert_int_equal(l->mistake[1].code, ERR_CONFIG_VALUE);
    load_free(l);
}

static void names_in_variables_follow_the_file(void **state) {
    (void)state;
    char *environment[] = {(char *)"CONSIGN_STORES__MY_STORE__APPLY=3", NULL};
    struct load *l = load("stores: { My-Store: { url: sqlite:a.db } }\nbrokers: { b: { type: "
                          "embedded, store: My-Store } }\n",
                          NULL, 0, environment);
    show(l);
    assert_int_equal(l->mistakes, 0);
    assert_int_equal(l->config.stores, 1);
    assert_int_equal(l->config.store[0].apply, 3);
    load_free(l);
}

/* Each of these is one mistake with this code in this line. */
static void single_mistakes(void **state) {
    (void)state;
    static const struct {
        const char *tail;
        int32_t code;
        uint32_t line; /* after the 14 lines of good; 0: nowhere */
    } cases[] = {
        {"relay2: {}\n", 1002, 15},
        {"node: { name: \"\" }\n", 1003, 15},
        {"node: [a, b]\n", 1003, 15},
        {"node: x\n", 1003, 15},
        {"node: { name: {a: b} }\n", 1003, 15},
        {"node: { name: &x y }\n", 1001, 15},
        {"node: { name: !!str y }\n", 1001, 15},
        {"node: { name: !foo y }\n", 1001, 15},
        {"language: fr\n", 1003, 15},
        {"relay.lease: 3s\n", 1002, 15},
        {"? [a]\n: b\n", 1002, 15},
        {"routes: { \"a b\": { match: x, to: local } }\n", 1003, 15},
        {"routes: { a: { match: \"x;y\", to: local } }\n", 1003, 15},
        {"routes: { \"*\": { match: \"x\", to: local } }\n", 1002, 15},
        {"node: { name: \"a\\0b\" }\n", 1003, 15},
        {"reconcile: { grace: -1s }\n", 1003, 15},
        {"reconcile: { grace: 99999999999999999999s }\n", 1003, 15},
        {"reconcile: { grace: 9223372036854775807s }\n", 1003, 15},
        {"reconcile: { grace: 1.5h }\n", 1003, 15},
        {"reconcile:\n  grace:\n", 1003, 16},
        {"---\nnode: {}\n", 1001, 15},
        {"...\nnode: {}\n", 1001, 16},
        {"---\na: 1\n---\nb: 2\n", 1001, 15},
        {"\tnode: 1\n", 1001, 15},
        {"node: { name: *alias }\n", 1001, 15},
        {"node: {\n", 1001, 16},
        {"node: { name: \xff }\n", 1001, 0},
    };
    char text[2048];
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        (void)snprintf(text, sizeof(text), "%s%s", good, cases[i].tail);
        struct load *l = load_plain(text);
        if (l->mistakes != 1 || l->mistake[0].code != cases[i].code ||
            l->mistake[0].at.line != cases[i].line) {
            show(l);
            fail_msg("case %zu: %u mistakes, code %d, line %u: %s", i, l->mistakes,
                     l->mistakes > 0 ? l->mistake[0].code : 0,
                     l->mistakes > 0 ? l->mistake[0].at.line : 0, cases[i].tail);
        }
        load_free(l);
    }
}

/* One document with the marks of one is fine. */
static void marks_of_one_document(void **state) {
    (void)state;
    char text[2048];
    (void)snprintf(text, sizeof(text), "# first\n---\n%s...\n", good);
    struct load *l = load_plain(text);
    show(l);
    assert_int_equal(l->mistakes, 0);
    load_free(l);
}

/* Aliases could make a walk endless; with one in the text nothing is walked. */
static void a_bomb_of_aliases_ends(void **state) {
    (void)state;
    char text[4096];
    struct text t;
    text_init(&t, text, sizeof(text));
    text_add(&t, "stores: &a0 { x: { url: u } }\n");
    for (int i = 1; i < 30; i++)
        text_add(&t, "k%d: &a%d [*a%d, *a%d, *a%d]\n", i, i, i - 1, i - 1, i - 1);
    struct load *l = load_plain(text);
    assert_int_equal(l->mistakes, MISTAKES_MAX);
    assert_int_equal(l->more, 30 + 29 * 3 - MISTAKES_MAX);
    load_free(l);
}

static void limits_of_names(void **state) {
    (void)state;
    char text[4096];
    struct text t;
    text_init(&t, text, sizeof(text));
    text_add(&t, "brokers: { b: { type: embedded, store: s0 } }\nstores:\n");
    for (int i = 0; i < STORES_MAX + 2; i++)
        text_add(&t, "  s%d: { url: sqlite:%d.db, apply: 2 }\n", i, i);
    struct load *l = load_plain(text);
    show(l);
    assert_int_equal(l->config.stores, STORES_MAX);
    assert_int_equal(l->mistakes, 2); /* once for each store too many, not for each of its keys */
    load_free(l);
    text_init(&t, text, sizeof(text));
    text_add(&t, "stores:\n  a: { url: sqlite:a.db }\n  b: { url: \"sqlite:./a.db\" }\n  c: { url: "
                 "\"redis://x\" }\n"
                 "brokers: { b: { type: embedded, store: a } }\n");
    l = load_plain(text);
    show(l);
    assert_int_equal(l->mistakes, 2);
    assert_non_null(mistake_of(l, "stores.b.url"));
    assert_int_equal(mistake_of(l, "stores.c.url")->code, ERR_STORE_URL);
    load_free(l);
}

static void nothing_at_all(void **state) {
    (void)state;
    static const char *const texts[] = {"", "\n# only a remark\n", "~\n"};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        struct load *l = load_plain(texts[i]);
        assert_int_equal(l->mistakes, 2);
        assert_non_null(mistake_of(l, "stores"));
        assert_non_null(mistake_of(l, "brokers"));
        load_free(l);
    }
}

/* Everything that the table says can be written back and read again. */
static void every_key_reads_back(void **state) {
    (void)state;
    struct config *c = calloc(1, sizeof(*c));
    csn_error err;
    char path[CONFIG_PATH_MAX], value[600];
    assert_non_null(c);
    config_init(c, "/etc/x.yaml");
    for (size_t i = 0; config_key_at(i) != NULL; i++) {
        const struct config_key *k = config_key_at(i);
        const char *star = strchr(k->path, '*');
        assert_true(k->help[0][0] != '\0' && k->help[1][0] != '\0');
        assert_ptr_equal(config_key_find(k->path), k);
        (void)snprintf(path, sizeof(path), "%.*s%s%s",
                       star != NULL ? (int)(star - k->path) : (int)strlen(k->path), k->path,
                       star != NULL ? "n" : "", star != NULL ? star + 1 : "");
        if (star != NULL)
            assert_int_equal(config_name(c, path, &err), CSN_OK);
        if (k->otherwise == NULL)
            continue;
        assert_true(config_get(c, path, value, sizeof(value)));
        assert_string_equal(value, k->otherwise);
        assert_int_equal(config_put(c, path, value, &err), CSN_OK);
        if (k->type == CONFIG_INT || k->type == CONFIG_DURATION || k->type == CONFIG_SIZE) {
            (void)snprintf(value, sizeof(value), "%lld%s", (long long)k->most + 1,
                           k->type == CONFIG_DURATION ? "us" : "");
            assert_int_equal(config_put(c, path, value, &err), CSN_INVALID);
            (void)snprintf(value, sizeof(value), "%lld%s", (long long)k->most,
                           k->type == CONFIG_DURATION ? "us" : "");
            assert_int_equal(config_put(c, path, value, &err), CSN_OK);
        }
    }
    free(c);
}

static void both_languages(void **state) {
    (void)state;
    struct load *l;
    message_language(LANG_ZH);
    l = load_plain(five);
    char *text = report(l, OUT_TABLE, NULL);
    message_language(LANG_EN);
    assert_non_null(strstr(text, "未知的配置项"));
    assert_non_null(strstr(text, "是否想写“apply”？"));
    assert_null(strstr(text, "did you mean"));
    free(text);
    load_free(l);
}

/* ---- another configuration ---- */

static void on_changed(void *arg, const struct config_key *k, const char *path, const char *before,
                       const char *after) {
    struct text *t = arg;
    text_add(t, "%s %s %s>%s\n",
             k == NULL                            ? "thing"
             : k->reload == CONFIG_RELOAD_LIVE    ? "live"
             : k->reload == CONFIG_RELOAD_COMMAND ? "command"
                                                  : "restart",
             path, before != NULL ? before : "-", after != NULL ? after : "-");
}

/* What a reload of the good configuration with these lines behind it tells; now is left in *ret. */
static void reloads(const char *const *set, int sets, const char *told, struct config *ret) {
    char line[2000];
    struct text t;
    struct load *now = load_plain(good), *next = load(good, set, sets, NULL);
    assert_int_equal(next->mistakes, 0);
    text_init(&t, line, sizeof(line));
    config_reload(&now->config, &next->config, on_changed, &t);
    assert_string_equal(line, told);
    *ret = now->config;
    text_init(&t, line, sizeof(line)); /* what was taken over differs no more */
    config_reload(&now->config, &next->config, on_changed, &t);
    assert_null(strstr(line, "live"));
    load_free(now);
    load_free(next);
}

static void live_keys_are_taken_over(void **state) {
    (void)state;
    struct config c;
    reloads(NULL, 0, "", &c);
    const char *const set[] = {"relay.lease=2m",
                               "relay.batch.rows=70",
                               "subscriptions.stock.retry.jitter=full",
                               "subscriptions.stock.handler.sql=/x/y.sql",
                               "subscriptions.stock.partitions=4",
                               "reconcile.grace=3h",
                               "log.level=warn",
                               "log.format=text"};
    reloads(set, ARRAY_LEN(set),
            "restart subscriptions.stock.partitions 8>4\n"
            "live subscriptions.stock.handler.sql /etc/shop/handlers/reserve.sql>/x/y.sql\n"
            "live subscriptions.stock.retry.jitter 20%>full\n"
            "live relay.batch.rows 50>70\n"
            "restart relay.lease 1m>2m\n"
            "command reconcile.grace 10m>3h\n"
            "live log.format auto>text\n"
            "live log.level debug>warn\n",
            &c);
    assert_int_equal(c.relay.batch_rows, 70);
    assert_int_equal(c.relay.lease, 60000000);
    assert_int_equal(c.subscription[0].partitions, 8);
    assert_int_equal(c.subscription[0].retry.jitter, JITTER_FULL);
    assert_int_equal(c.subscription[0].retry.base, 250000); /* its neighbours stay */
    assert_string_equal(c.subscription[0].handler_path, "/x/y.sql");
    assert_string_equal(c.log_level, "warn");
}

static void things_that_come_and_go_are_named(void **state) {
    (void)state;
    struct config c;
    const char *const set[] = {"stores.new.url=sqlite:n.db", "routes.b.match=B",
                               "routes.b.to=local"};
    reloads(set, ARRAY_LEN(set), "thing stores.new ->\nthing routes.b ->\n", &c);
    assert_int_equal(c.stores, 2);
    assert_int_equal(c.routes, 0);
    struct load *a =
        load(good, (const char *const[]){"routes.a.match=A", "routes.a.to=local"}, 2, NULL);
    struct load *b = load_plain(good);
    char line[400];
    struct text t;
    text_init(&t, line, sizeof(line));
    config_reload(&a->config, &b->config, on_changed, &t);
    assert_string_equal(line, "thing routes.a >-\n");
    load_free(b);
    b = load(good,
             (const char *const[]){"routes.z.match=Z", "routes.z.to=local", "routes.a.match=A",
                                   "routes.a.to=local"},
             4, NULL);
    load_free(a);
    a = load(good,
             (const char *const[]){"routes.a.match=A", "routes.a.to=local", "routes.z.match=Z",
                                   "routes.z.to=local"},
             4, NULL);
    text_init(&t, line, sizeof(line)); /* the first match wins, so the order is a value, too */
    config_reload(&a->config, &b->config, on_changed, &t);
    assert_string_equal(line, "thing routes a>z\n");
    load_free(a);
    load_free(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_and_values),
        cmocka_unit_test(five_mistakes_with_carets),
        cmocka_unit_test(a_handler_is_a_file_or_an_application),
        cmocka_unit_test(what_is_critical_is_never_at_most_once),
        cmocka_unit_test(the_caret_stands_under_the_value),
        cmocka_unit_test(json_is_one_object),
        cmocka_unit_test(references_and_required),
        cmocka_unit_test(times_must_fit),
        cmocka_unit_test(environment_wins_over_the_file),
        cmocka_unit_test(unknown_variables_are_mistakes),
        cmocka_unit_test(names_in_variables_follow_the_file),
        cmocka_unit_test(single_mistakes),
        cmocka_unit_test(marks_of_one_document),
        cmocka_unit_test(a_bomb_of_aliases_ends),
        cmocka_unit_test(limits_of_names),
        cmocka_unit_test(nothing_at_all),
        cmocka_unit_test(every_key_reads_back),
        cmocka_unit_test(both_languages),
        cmocka_unit_test(live_keys_are_taken_over),
        cmocka_unit_test(things_that_come_and_go_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
