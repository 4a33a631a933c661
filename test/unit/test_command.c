/* test_command.c: the table of commands, how words become a call, and what commands print. */
#include "base/message.h"
#include "cli/command.h"
#include "cli/explain.h"
#include "cli/width.h"
#include "core/guess.h"
#include "store/store.h"
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h>

#include <cmocka.h>

/* ---- running ---- */

struct ran {
    int code;
    char *out, *err;
};

enum { WORDS_MAX = 24 };

/* Runs a command line; words are divided by single blanks. */
static struct ran run(const char *line) {
    static char copy[4096];
    struct ran r = {0, NULL, NULL};
    char *argv[WORDS_MAX + 2] = {(char *)"consign"};
    int argc = 1;
    size_t size;
    struct out o = {.to = open_memstream(&r.out, &size)};
    o.err = open_memstream(&r.err, &size);
    assert_true(copy_text(copy, sizeof(copy), line));
    for (char *s = copy; *s != '\0' && argc <= WORDS_MAX;) {
        size_t n = strcspn(s, " ");
        argv[argc++] = s;
        s += n;
        if (*s != '\0')
            *s++ = '\0';
    }
    assert_true(o.to != NULL && o.err != NULL);
    r.code = command_main(argc, argv, &o);
    message_language(LANG_EN);
    assert_int_equal(fclose(o.to), 0);
    assert_int_equal(fclose(o.err), 0);
    return r;
}

static void done(struct ran *r) {
    free(r->out);
    free(r->err);
}

/* Runs and wants this code, and this text on the stream that fits it. */
static void expect(const char *line, int code, const char *text) {
    struct ran r = run(line);
    if (r.code != code || strstr(code == 0 || code == 1 ? r.out : r.err, text) == NULL)
        fail_msg("consign %s: code %d\n--- out\n%s--- err\n%s", line, r.code, r.out, r.err);
    if (code > 1)
        assert_string_equal(r.out, ""); /* an error leaves stdout alone */
    done(&r);
}

/* ---- the table ---- */

static void rows_are_whole(void **state) {
    (void)state;
    for (size_t i = 0; command_at(i) != NULL; i++) {
        const struct command *k = command_at(i);
        int flags = 0;
        assert_non_null(k->run);
        assert_true(k->help[0][0] != '\0' && k->help[1][0] != '\0');
        assert_int_equal(k->more[0] == NULL, k->more[1] == NULL);
        assert_ptr_equal(command_find(k->name), k);
        assert_true(k->least <= k->most);
        assert_int_equal(k->most == 0, k->args[0] == '\0');
        for (const struct flag *f = k->flag; f != NULL && f->name != NULL; f++, flags++) {
            assert_true(f->help[0][0] != '\0' && f->help[1][0] != '\0');
            assert_int_equal(f->type == FLAG_SWITCH, f->value == NULL);
            if (f->type == FLAG_INT || f->type == FLAG_DURATION)
                assert_true(f->min < f->max);
            for (const struct flag *g = command_global_flags(); g->name != NULL; g++)
                assert_string_not_equal(f->name, g->name);
        }
        assert_true(flags <= COMMAND_FLAGS_MAX);
    }
}

/* A flag of one name takes a value everywhere or nowhere: otherwise the first reading of words
 * could not step over it. */
static void flags_of_one_name_are_alike(void **state) {
    (void)state;
    for (size_t i = 0; command_at(i) != NULL; i++)
        for (const struct flag *f = command_at(i)->flag; f != NULL && f->name != NULL; f++)
            for (size_t j = 0; command_at(j) != NULL; j++)
                for (const struct flag *g = command_at(j)->flag; g != NULL && g->name != NULL; g++)
                    if (strcmp(f->name, g->name) == 0)
                        assert_int_equal(f->type == FLAG_SWITCH, g->type == FLAG_SWITCH);
}

static bool names_a_command(const char *hint) {
    for (size_t i = 0; command_at(i) != NULL; i++) {
        size_t n = strlen(command_at(i)->name);
        if (strncmp(hint, command_at(i)->name, n) == 0 && (hint[n] == '\0' || hint[n] == ' '))
            return true;
    }
    return false;
}

static void hints_and_examples_name_commands(void **state) {
    (void)state;
    for (size_t i = 0; command_at(i) != NULL; i++) {
        const struct command *k = command_at(i);
        if (k->next != NULL && !names_a_command(k->next))
            fail_msg("%s: hint to no command: %s", k->name, k->next);
        if (k->example != NULL && strstr(k->example, k->name) == NULL)
            fail_msg("%s: the example is of something else", k->name);
    }
}

/* Runs no command that works: parses its example lines. */
static void examples_parse(void **state) {
    (void)state;
    char line[400], way[300];
    for (size_t i = 0; command_at(i) != NULL; i++) {
        for (const char *s = command_at(i)->example; s != NULL && *s != '\0';) {
            size_t n = strcspn(s, "\n");
            char *argv[WORDS_MAX], *save = line;
            int argc = 0;
            struct out o = {.to = stdout, .err = stderr};
            struct command_call call;
            struct text t;
            csn_error err;
            assert_true(copy_bytes_text(line, sizeof(line), (csn_bytes){s, n}));
            s += n + (s[n] == '\n');
            line[strcspn(line, "|")] = '\0';
            char *begin = strstr(line, "consign ");
            assert_non_null(begin);
            for (save = begin; *save != '\0' && argc < WORDS_MAX;) {
                char stop = *save == '"' ? '"' : ' ';
                save += stop == '"';
                argv[argc++] = save;
                save = strchr(save, stop);
                if (save == NULL)
                    break;
                *save++ = '\0';
                save += strspn(save, " ");
            }
            text_init(&t, way, sizeof(way));
            if (command_parse(argc, argv, &o, &call, &t, &err) != CSN_OK)
                fail_msg("example of %s: %s", command_at(i)->name, err.text);
            assert_ptr_equal(call.command, command_at(i));
        }
    }
}

/* ---- parsing ---- */

static void flags_stand_anywhere(void **state) {
    (void)state;
    expect("schema print --store sqlite", 0, "CREATE TABLE outbox_events");
    expect("--store sqlite schema print", 0, "CREATE TABLE outbox_events");
    expect("schema --store=sqlite print", 0, "CREATE TABLE outbox_events");
    expect("-o json schema print", 0, "{\"v\":1,\"kind\":\"schema\",\"store\":\"sqlite\"");
    expect("schema print -o json", 0, "{\"v\":1,\"kind\":\"schema\"");
    expect("--json explain -- CSN-1006", 0, "\"code\":\"CSN-1006\"");
}

static void mistakes_are_told(void **state) {
    (void)state;
    expect("serv", 64, "did you mean: consign serve");
    expect("shema print", 64, "schema print");
    expect("schema", 64, "schema needs one of: print, check, apply");
    expect("event --payload", 64, "event show needs ID"); /* only that verb has the flag */
    expect("event --limit 5", 64, "event needs one of: ");
    expect("schema aply", 64, "did you mean: consign schema apply");
    expect("schema print --stor sqlite", 64, "did you mean --store?");
    expect("schema print --store", 64, "--store needs a value: KIND");
    expect("schema apply --dry-run=yes", 64, "--dry-run takes no value");
    expect("schema check --dry-run", 64, "no flag --dry-run of schema check");
    expect("version now", 64, "one word too many: now");
    expect("version -x", 64, "no flag -x of version");
    expect("-o yaml version", 64, "-o takes table, json, jsonl");
    expect("--lang fr version", 64, "--lang takes en, zh-CN");
    expect("nonsense", 64, "there is no command nonsense");
    expect("explain CSN-0001", 66, "CSN-0001");
}

static void errors_have_three_lines(void **state) {
    (void)state;
    struct ran r = run("serv");
    int lines = 0;
    for (const char *s = r.err; *s != '\0'; s++)
        lines += *s == '\n';
    assert_int_equal(lines, 2); /* the place is left out where there is none */
    assert_int_equal(strncmp(r.err, "error CSN-8001: ", 16), 0);
    assert_non_null(strstr(r.err, "\n  try:   did you mean"));
    assert_non_null(strstr(r.err, "more: consign explain CSN-8001\n"));
    done(&r);
    r = run("serv -o json");
    json_t *j = json_loads(r.err, 0, NULL);
    assert_non_null(j);
    assert_string_equal(json_string_value(json_object_get(j, "code")), "CSN-8001");
    json_decref(j);
    done(&r);
}

static void languages(void **state) {
    (void)state;
    expect("--lang zh-CN explain 1006", 0, "配置中的时间互不相容");
    expect("--lang zh help", 0, "用法");
    expect("--lang zh serv", 64, "没有命令 serv");
    assert_int_equal(setenv("LC_ALL", "zh_CN.UTF-8", 1), 0);
    expect("explain 1006", 0, "配置中的时间互不相容");
    expect("explain 1006 --lang en", 0, "do not fit together");
    assert_int_equal(setenv("LC_ALL", "C", 1), 0);
    expect("explain 1006", 0, "do not fit together");
}

static void help_knows_everything(void **state) {
    (void)state;
    struct ran all = run("help --all"), page = run("help --markdown"), short_ = run("help");
    for (size_t i = 0; command_at(i) != NULL; i++) {
        if ((command_at(i)->bits & COMMAND_HIDDEN) != 0)
            continue;
        assert_non_null(strstr(all.out, command_at(i)->name));
        assert_non_null(strstr(page.out, command_at(i)->name));
        assert_non_null(strstr(short_.out, command_at(i)->name));
    }
    done(&all);
    done(&page);
    done(&short_);
    expect("help schema apply", 0, "--dry-run");
    expect("schema apply -h", 0, "--dry-run");
    expect("help schema", 0, "consign schema check");
    expect("help shcema", 64, "consign help");
    expect("", 0, "Use: consign COMMAND");
    expect("help -o json", 0, "\"kind\":\"command_list\"");
    expect("--version", 0, CSN_VERSION);
    expect("version --json", 0, "\"version\":\"" CSN_VERSION "\"");
}

static void every_constraint_is_explained(void **state) {
    (void)state;
    const char *sql = schema_text("sqlite");
    int found = 0;
    assert_non_null(sql);
    for (const char *s = strstr(sql, "CONSTRAINT csn_"); s != NULL;
         s = strstr(s + 1, "CONSTRAINT csn_")) {
        char name[64];
        const char *start = s + sizeof("CONSTRAINT ") - 1;
        (void)copy_bytes_text(name, sizeof(name),
                              (csn_bytes){start, strspn(start, "abcdefghijklmnopqrstuvwxyz_")});
        if (constraint_find(name) == NULL)
            fail_msg("consign explain %s is missing", name);
        found++;
    }
    assert_true(found >= 10);
    expect("explain csn_payload_json", 0, "valid JSON");
    expect("explain csn-2003", 0, "cannot be reached");
    expect("explain 2003", 0, "exit code of commands: 69");
    expect("explain", 0, "CSN-9001");
}

static void every_error_explains_itself(void **state) {
    (void)state;
    char line[40], code[16];
    for (size_t i = 0; error_at(i) != NULL; i++) {
        (void)snprintf(code, sizeof(code), "CSN-%04d", error_at(i)->number);
        (void)snprintf(line, sizeof(line), "explain %s", code);
        expect(line, 0, code);
    }
}

static void keys_are_explained(void **state) {
    (void)state;
    expect("config explain relay.lease", 0, "CONSIGN_RELAY__LEASE");
    expect("config explain stores.orders.url", 0, "sqlite:PATH");
    expect("config explain relay", 0, "relay.batch.rows");
    expect("config explain relay.leese", 78, "consign config explain relay.lease");
    expect("config explain --markdown", 0, "## `relay.lease`");
    expect("config explain --json", 0, "\"path\":\"node.name\"");
}

/* The reference pages are what the tables say: whoever changes a row writes the page again. */
static void a_page_is_up_to_date(const char *line, const char *page) {
    char path[600];
    csn_bytes here = bytes_of(__FILE__), tail = bytes_of("test/unit/test_command.c");
    assert_true(here.size >= tail.size);
    (void)snprintf(path, sizeof(path), "%.*s%s", (int)(here.size - tail.size), __FILE__, page);
    FILE *f = fopen(path, "re");
    struct ran r = run(line);
    size_t size = strlen(r.out);
    char *text = calloc(1, size + 2);
    if (f == NULL || text == NULL)
        fail_msg("%s cannot be read", path);
    size_t n = fread(text, 1, size + 1, f);
    assert_int_equal(fclose(f), 0);
    if (n != size || strcmp(text, r.out) != 0)
        fail_msg("write the page again: consign %s > %s", line, page);
    free(text);
    done(&r);
}

static void pages_are_up_to_date(void **state) {
    (void)state;
    a_page_is_up_to_date("help --markdown --lang en", "docs/commands.md");
    a_page_is_up_to_date("config explain --markdown --lang en", "docs/configuration.md");
}

/* ---- width, tables, safe text ---- */

static void widths(void **state) {
    (void)state;
    assert_int_equal(text_width(bytes_of("abc")), 3);
    assert_int_equal(text_width(bytes_of("待发")), 4);
    assert_int_equal(text_width(bytes_of("ａ！")), 4);
    assert_int_equal(text_width(bytes_of("e\xcc\x81")), 1);
    assert_int_equal(text_width(bytes_of("–≥")), 2);
    assert_int_equal(text_width(bytes_of("\xff\xfe")), 2);
    assert_int_equal(text_width(bytes_of("\xe4\xbd")), 2);     /* cut short */
    assert_int_equal(text_width(bytes_of("\xc0\x80")), 2);     /* not the shortest form */
    assert_int_equal(text_width(bytes_of("\xed\xa0\x80")), 3); /* half of a pair */
}

static void tables_align(void **state) {
    (void)state;
    const char *headings[] = {"NAME", "N", "状态"};
    char *text = NULL;
    size_t size;
    struct out o = {.to = open_memstream(&text, &size)};
    struct table *t = table_new(3, headings, "lrl");
    assert_non_null(t);
    table_print(t, &o); /* nothing: no rows */
    table_cell(t, "订单");
    table_cell_int(t, 12);
    table_cell(t, "ok\033[31m");
    table_cell(t, "b");
    table_cell_int(t, 0);
    table_cell_format(t, "%s", "待发");
    assert_int_equal(table_rows(t), 2);
    table_print(t, &o);
    table_free(t);
    assert_int_equal(fclose(o.to), 0);
    assert_string_equal(text, "NAME   N  状态\n订单  12  ok\\x1b[31m\nb      –  待发\n");
    free(text);
}

static void escapes_are_harmless(void **state) {
    (void)state;
    char safe[40];
    assert_string_equal(out_safe_text("a\tb\033]0;x\a", safe, sizeof(safe)),
                        "a\\x09b\\x1b]0;x\\x07");
    assert_string_equal(out_safe_text("\xc2\x9b"
                                      "1m",
                                      safe, sizeof(safe)),
                        "\\xc2\\x9b1m");
    assert_string_equal(out_safe_text("\xe2\x80\xae"
                                      "abc",
                                      safe, sizeof(safe)),
                        "\\xe2\\x80\\xae"
                        "abc");
    assert_string_equal(out_safe_text("\xff", safe, sizeof(safe)), "\\xff");
    assert_string_equal(out_safe_text("待发", safe, 6), "待"); /* never cut inside a character */
    assert_string_equal(out_safe_text(NULL, safe, sizeof(safe)), "");
}

static void times_and_durations(void **state) {
    (void)state;
    char text[32];
    assert_string_equal(out_time(INT64_C(1764511082114000), text), "2025-11-30T13:58:02.114Z");
    assert_string_equal(out_clock(INT64_C(1764511082114999), text), "13:58:02.114");
    assert_string_equal(out_time(0, text), "-");
    assert_string_equal(out_duration(1500, text), "1.5 ms");
    assert_string_equal(out_duration(400000, text), "0.4 s");
    assert_string_equal(out_duration(INT64_C(432000000), text), "7m 12s");
    assert_string_equal(out_duration(INT64_C(273600000000), text), "3d 4h");
    assert_string_equal(out_duration(-1500, text), "-1.5 ms");
    (void)out_duration(INT64_MIN, text);
    (void)out_time(INT64_MAX, text);
}

static void json_forms(void **state) {
    (void)state;
    char *text = NULL;
    size_t size;
    struct out o = {.to = open_memstream(&text, &size), .format = OUT_JSON};
    json_t *items = json_array(), *item = json_object(), *extra = json_object();
    out_put(item, "seq", out_json_int64(INT64_C(653247040368672768)));
    out_put(item, "at", out_json_time(INT64_C(1764511082114000)));
    out_put(item, "never", out_json_time(0));
    out_put(item, "broken",
            out_json_text((csn_bytes){"a\xff"
                                      "b",
                                      3}));
    out_put(item, "none", out_json_text((csn_bytes){NULL, 0}));
    out_append(items, item);
    out_put(extra, "next", json_null());
    out_list(&o, "event_list", json_incref(items), extra);
    out_list(&o, "event_list", json_array(), NULL);
    o.format = OUT_JSONL;
    out_list(&o, "event_list", items, NULL);
    assert_int_equal(fclose(o.to), 0);
#define ITEM                                                                                       \
    "{\"seq\":\"653247040368672768\",\"at\":\"2025-11-30T13:58:02.114Z\",\"never\":null,"          \
    "\"broken\":\"a\xef\xbf\xbd"                                                                   \
    "b\",\"none\":null}"
    assert_string_equal(text,
                        "{\"v\":1,\"kind\":\"event_list\",\"items\":[" ITEM "],\"next\":null}\n"
                        "{\"v\":1,\"kind\":\"event_list\",\"items\":[]}\n" ITEM "\n");
    free(text);
}

static void distances(void **state) {
    (void)state;
    struct guess g;
    assert_int_equal(guess_distance("lease", "lease"), 0);
    assert_int_equal(guess_distance("leese", "lease"), 1);
    assert_int_equal(guess_distance("laese", "lease"), 1); /* a swap is one */
    assert_int_equal(guess_distance("", "abc"), 3);
    guess_init(&g, "stauts");
    guess_offer(&g, "start");
    guess_offer(&g, "status");
    assert_string_equal(g.best, "status");
    guess_init(&g, "c");
    guess_offer(&g, "a");
    assert_null(g.best);
}

/* ---- init, schema ---- */

static void init_writes_a_folder_that_works(void **state) {
    (void)state;
    char dir[] = "/tmp/csn-init-XXXXXX", line[300];
    struct stat st;
    assert_non_null(mkdtemp(dir));
    (void)snprintf(line, sizeof(line), "init --dir %s/shop --lab", dir);
    expect(line, 0, "consign serve -c ");
    expect(line, 65, "CSN-8005");
    (void)snprintf(line, sizeof(line), "config check -c %s/shop/consign.yaml", dir);
    expect(line, 0, "is fine: 2 store(s), 1 broker(s), 0 route(s), 2 subscription(s)");
    (void)snprintf(line, sizeof(line), "config show -c %s/shop/consign.yaml", dir);
    expect(line, 0, "subscriptions.stock.handler.sql");
    (void)snprintf(line, sizeof(line), "schema check -c %s/shop/consign.yaml", dir);
    expect(line, 0, "orders fits");
    (void)snprintf(line, sizeof(line), "schema check nowhere -c %s/shop/consign.yaml", dir);
    expect(line, 78, "nowhere");
    (void)snprintf(
        line, sizeof(line),
        "config check -c %s/shop/consign.yaml --set subscriptions.stock.handler.sql=x.sql", dir);
    expect(line, 78, "CSN-1005");
    (void)snprintf(
        line, sizeof(line),
        "config check -c %s/shop/consign.yaml --set subscriptions.stock.handler.sql=order.sql",
        dir);
    expect(line, 78, "error CSN-4001: ");
    expect(line, 78, "order.sql:2:1");
    (void)snprintf(line, sizeof(line), "%s/shop/stock.db", dir);
    assert_int_equal(stat(line, &st), 0);
    csn_error err;
    bool marked = false;
    (void)snprintf(line, sizeof(line), "sqlite:%s/shop/stock.db", dir);
    assert_int_equal(lab_marker_there(line, &marked, &err), CSN_OK);
    assert_true(marked);
    struct db *d;
    int64_t n = 0;
    bool row;
    assert_int_equal(db_open(line, DB_READ_ONLY, &d, &err), CSN_OK);
    assert_int_equal(
        db_int(d, "SELECT count(*) FROM stock WHERE available = opening", NULL, 0, &n, &row, &err),
        CSN_OK);
    assert_int_equal(n, 5);
    db_close(d);
    (void)snprintf(line, sizeof(line), "init --dir %s/no/such/place", dir);
    expect(line, 69, "CSN-8006");
    const char *const files[] = {"consign.yaml",
                                 "handlers/reserve.sql",
                                 "handlers/confirm.sql",
                                 "handlers",
                                 "shop.sql",
                                 "order.sql",
                                 "orders.db",
                                 "stock.db",
                                 "orders.db-wal",
                                 "orders.db-shm",
                                 "stock.db-wal",
                                 "stock.db-shm",
                                 "."};
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        (void)snprintf(line, sizeof(line), "%s/shop/%s", dir, files[i]);
        if (i + 1 == ARRAY_LEN(files))
            line[strlen(line) - 2] = '\0';
        (void)remove(line);
    }
    assert_int_equal(rmdir(dir), 0); /* nothing else was written */
}

static void schema_of_one_database(void **state) {
    (void)state;
    char dir[] = "/tmp/csn-schema-XXXXXX", line[300];
    assert_non_null(mkdtemp(dir));
    (void)snprintf(line, sizeof(line), "schema check --url sqlite:%s/a.db", dir);
    struct ran r = run(line);
    assert_int_not_equal(r.code, 0); /* not there */
    done(&r);
    (void)snprintf(line, sizeof(line), "schema apply --url sqlite:%s/a.db", dir);
    expect(line, 0, "is at this version");
    expect(line, 0, "is at this version");
    (void)snprintf(line, sizeof(line), "schema check --url sqlite:%s/a.db --json", dir);
    expect(line, 0, "\"state\":\"fits\"");
    struct db *d;
    csn_error err;
    (void)snprintf(line, sizeof(line), "sqlite:%s/a.db", dir);
    assert_int_equal(db_open(line, 0, &d, &err), CSN_OK);
    assert_int_equal(db_script(d, "DROP INDEX ix_key", &err), CSN_OK);
    db_close(d);
    (void)snprintf(line, sizeof(line), "schema check --url sqlite:%s/a.db", dir);
    expect(line, 1, "ix_key");
    (void)snprintf(line, sizeof(line), "schema apply --dry-run --url sqlite:%s/a.db", dir);
    expect(line, 0, "ix_key");
    const char *const tails[] = {"", "-wal", "-shm"};
    for (size_t i = 0; i < ARRAY_LEN(tails); i++) {
        (void)snprintf(line, sizeof(line), "%s/a.db%s", dir, tails[i]);
        (void)unlink(line);
    }
    assert_int_equal(rmdir(dir), 0);
}

static void an_actor_is_never_empty(void **state) {
    (void)state;
    char actor[128];
    assert_non_null(strchr(command_actor(actor, sizeof(actor)), '@'));
    assert_true(actor[0] != '@');
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_whole),
        cmocka_unit_test(flags_of_one_name_are_alike),
        cmocka_unit_test(hints_and_examples_name_commands),
        cmocka_unit_test(examples_parse),
        cmocka_unit_test(flags_stand_anywhere),
        cmocka_unit_test(mistakes_are_told),
        cmocka_unit_test(errors_have_three_lines),
        cmocka_unit_test(languages),
        cmocka_unit_test(help_knows_everything),
        cmocka_unit_test(every_constraint_is_explained),
        cmocka_unit_test(every_error_explains_itself),
        cmocka_unit_test(keys_are_explained),
        cmocka_unit_test(pages_are_up_to_date),
        cmocka_unit_test(widths),
        cmocka_unit_test(tables_align),
        cmocka_unit_test(escapes_are_harmless),
        cmocka_unit_test(times_and_durations),
        cmocka_unit_test(json_forms),
        cmocka_unit_test(distances),
        cmocka_unit_test(init_writes_a_folder_that_works),
        cmocka_unit_test(schema_of_one_database),
        cmocka_unit_test(an_actor_is_never_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
