/* test_comfort.c: completion, manual pages, colours: what follows from the tables of commands and
 * keys without being written anywhere. */
#include "base/message.h"
#include "cli/command.h"
#include "cli/explain.h"
#include "cli/screen.h"
#include "cli/top.h"
#include "cli/width.h"
#include "core/metrics.h"
#include "lab/lab.h"
#include <stdlib.h>
#include <unistd.h>

#include <setjmp.h>

#include <cmocka.h>

enum { WORDS_MAX = 16 };

/* What a command line says on stdout; words are divided by single blanks, so that a blank at the
 * end is an empty last word. The caller frees it. */
static char *said(const char *line) {
    static char copy[1000];
    char *text = NULL, *argv[WORDS_MAX + 2] = {(char *)"consign"};
    int argc = 1;
    size_t size;
    struct out o = {.to = open_memstream(&text, &size), .err = stderr};
    assert_non_null(o.to);
    assert_true(copy_text(copy, sizeof copy, line));
    for (char *s = copy; s != NULL && argc <= WORDS_MAX;) {
        argv[argc++] = s;
        s = strchr(s, ' ');
        if (s != NULL)
            *s++ = '\0';
    }
    int code = command_main(argc, argv, &o);
    message_language(LANG_EN);
    assert_int_equal(fclose(o.to), 0);
    if (code != 0)
        fail_msg("consign %s: code %d", line, code);
    return text;
}

/* ---- completion ---- */

/* Is the candidate among the lines, alone or before a tab? */
static bool among(const char *lines, const char *candidate) {
    size_t n = strlen(candidate);
    for (const char *s = lines; *s != '\0'; s += strcspn(s, "\n"), s += *s != '\0')
        if (strncmp(s, candidate, n) == 0 && (s[n] == '\t' || s[n] == '\n'))
            return true;
    return false;
}

static void offers(const char *line, const char *candidate) {
    char whole[500];
    (void)snprintf(whole, sizeof whole, "complete %s", line);
    char *lines = said(whole);
    if (!among(lines, candidate))
        fail_msg("[%s] does not offer [%s]:\n%s", line, candidate, lines);
    free(lines);
}

static void offers_just(const char *line, const char *lines) {
    char whole[500];
    (void)snprintf(whole, sizeof whole, "complete %s", line);
    char *got = said(whole);
    assert_string_equal(got, lines);
    free(got);
}

static void every_command_is_offered(void **state) {
    (void)state;
    char word[64], line[200];
    for (size_t i = 0; command_at(i) != NULL; i++) {
        const struct command *k = command_at(i);
        if ((k->bits & COMMAND_HIDDEN) != 0)
            continue;
        const char *verb = strchr(k->name, ' ');
        size_t n = verb != NULL ? (size_t)(verb - k->name) : strlen(k->name);
        assert_true(copy_bytes_text(word, sizeof word, (csn_bytes){k->name, n}));
        offers("", word);
        offers("help ", word);
        if (verb == NULL)
            continue;
        (void)snprintf(line, sizeof line, "%s ", word);
        offers(line, verb + 1);
        (void)snprintf(line, sizeof line, "-o json help %s ", word);
        offers(line, verb + 1);
    }
    offers_just("nonsense ", "");
    offers_just("compl", "completion\twhat a shell loads to complete commands, flags, names and "
                         "codes\n"); /* not the hidden one */
}

static void every_flag_is_offered(void **state) {
    (void)state;
    char line[200], word[80];
    for (size_t i = 0; command_at(i) != NULL; i++) {
        const struct command *k = command_at(i);
        if ((k->bits & COMMAND_HIDDEN) != 0)
            continue;
        for (const struct flag *f = k->flag; f != NULL && f->name != NULL; f++) {
            (void)snprintf(line, sizeof line, "%s --%.2s", k->name, f->name);
            (void)snprintf(word, sizeof word, "--%s", f->name);
            offers(line, word);
        }
    }
    offers("event retry --re", "--reason");
    offers("event show --re", "--reason");
    offers_just("event list --re", "");
    offers("schema apply --d", "--dry-run");
    offers_just("status --d", "");
    offers("--", "--config");
}

static void values_are_offered(void **state) {
    (void)state;
    char line[64];
    for (size_t i = 0; lab_at(i) != NULL; i++) {
        (void)snprintf(line, sizeof line, "lab run %.1s", lab_at(i)->id);
        offers(line, lab_at(i)->id);
        (void)snprintf(line, sizeof line, "lab run A1 A2 %s", lab_at(i)->id);
        offers(line, lab_at(i)->id);
    }
    for (size_t i = 0; error_at(i) != NULL; i++) {
        (void)snprintf(line, sizeof line, "CSN-%04d", error_at(i)->number);
        offers("explain ", line);
    }
    offers("explain csn_", "csn_event_id");
    for (size_t i = 0; config_key_at(i) != NULL; i++)
        offers("config explain ", config_key_at(i)->path);
    offers_just("-o ", "table\t\njson\t\njsonl\t\n");
    offers_just("status --output=js", "--output=json\t\n--output=jsonl\t\n");
    offers_just("status --output = js", "json\t\njsonl\t\n"); /* as bash divides it */
    offers_just("status --output =", "table\t\njson\t\njsonl\t\n");
    offers_just("event list --limit 5 --status s", "sending\t\nsent\t\nstrange\t\n");
    offers_just("completion f", "fish\t\n");
    offers_just("-c ", ":file\n");
    offers_just("init --dir x", ":dir\n");
    offers_just("event trace ", ""); /* an id is the user's */
    offers_just("version ", "");
    char *zh = said("--lang zh complete ev");
    assert_string_equal(zh, "event\t\n");
    free(zh);
}

static void names_come_from_the_configuration(void **state) {
    (void)state;
    char path[] = "/tmp/consign-comfort-XXXXXX", line[200];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *f = fdopen(fd, "w");
    assert_non_null(f);
    assert_true(fputs("stores:\n  orders: { url: \"sqlite:o.db\" }\n  parts: {}\n"
                      "subscriptions:\n  packing: { store: orders }\n",
                      f) >= 0); /* with mistakes: it is being written */
    assert_int_equal(fclose(f), 0);
    (void)snprintf(line, sizeof line, "-c %s lanes --store ", path);
    offers_just(line, "orders\t\nparts\t\n");
    (void)snprintf(line, sizeof line, "--config %s schema check p", path);
    offers_just(line, "parts\t\n");
    (void)snprintf(line, sizeof line, "dead list -c %s --consumer ", path);
    offers_just(line, "packing\t\n");
    offers_just("-c /nowhere/at/all.yaml lanes --store ", "");
    assert_int_equal(unlink(path), 0);
}

/* What each of them must do: ask this program, and be tied to its name. */
static void shells_ask_the_program(void **state) {
    (void)state;
    static const char *const shells[][3] = {{"bash", " complete ", "complete -F _consign consign"},
                                            {"zsh", " complete ", "compdef _consign consign"},
                                            {"fish", " complete ", "complete -c consign "}};
    char line[64];
    for (size_t i = 0; i < ARRAY_LEN(shells); i++) {
        (void)snprintf(line, sizeof line, "completion %s", shells[i][0]);
        char *text = said(line);
        assert_non_null(strstr(text, shells[i][1]));
        assert_non_null(strstr(text, shells[i][2]));
        free(text);
    }
}

/* ---- manual pages ---- */

/* Rules of mdoc that words could break: a line of words that is taken for a macro, long lines, blanks
 * at the end, a sentence that ends in the middle of a line. */
static void a_page_is_sound(const char *topic, const char *text) {
    bool quoted = false; /* in an example */
    assert_true(strncmp(text, ".Dd ", 4) == 0);
    assert_non_null(strstr(text, "\n.Sh NAME\n.Nm consign"));
    for (const char *s = text; *s != '\0';) {
        size_t n = strcspn(s, "\n");
        if (n > 0 && s[0] != '.' && !quoted && (n > 80 || s[n - 1] == ' '))
            fail_msg("%s: %.*s", topic, (int)n, s);
        const char *stop = memmem(s, n, ". ", 2);
        if (s[0] != '.' && !quoted && stop != NULL)
            fail_msg("%s: a sentence ends in a line: %.*s", topic, (int)n, s);
        quoted = strncmp(s, ".Bd", 3) == 0 || (quoted && strncmp(s, ".Ed", 3) != 0);
        s += n + (s[n] == '\n');
    }
}

static void every_command_has_a_page(void **state) {
    (void)state;
    char line[200], word[80];
    for (size_t i = 0; command_at(i) != NULL; i++) {
        const struct command *k = command_at(i);
        if ((k->bits & COMMAND_HIDDEN) != 0)
            continue;
        (void)snprintf(line, sizeof line, "help --man %s", k->name);
        char *text = said(line);
        a_page_is_sound(k->name, text);
        for (const struct flag *f = k->flag; f != NULL && f->name != NULL; f++) {
            (void)snprintf(word, sizeof word, "\n.It Fl -%s", f->name);
            assert_non_null(strstr(text, word));
        }
        assert_int_equal(strstr(text, "\n.It Fl -reason Ar TEXT\n") != NULL,
                         (k->bits & (COMMAND_REASON | COMMAND_MAY_REASON)) != 0);
        free(text);
    }
    char *text = said("help --man");
    a_page_is_sound("consign", text);
    assert_non_null(strstr(text, "\n.It Xr consign-event-trace 1\n"));
    assert_null(strstr(text, "consign-lab-act"));
    free(text);
}

static void every_key_has_an_entry(void **state) {
    (void)state;
    char word[CONFIG_PATH_MAX + 8];
    char *text = said("help --man consign.yaml");
    a_page_is_sound("consign.yaml", text);
    for (size_t i = 0; config_key_at(i) != NULL; i++) {
        (void)snprintf(word, sizeof word, "\n.It Ic %s\n", config_key_at(i)->path);
        assert_non_null(strstr(text, word));
    }
    free(text);
}

/* ---- colours and terminals ---- */

static void colours_are_for_terminals(void **state) {
    (void)state;
    static const struct {
        bool to, err;
        const char *no_color, *term;
        bool color, color_err, live, progress;
    } row[] = {{true, true, NULL, "xterm", true, true, true, true},
               {false, true, NULL, "xterm", false, true, false, true},
               {true, false, "", "xterm", true, false, true, false},
               {true, true, "1", "xterm", false, false, true, true},
               {true, true, NULL, "dumb", false, false, false, false},
               {true, true, NULL, NULL, false, false, false, false},
               {false, false, NULL, "xterm", false, false, false, false}};
    for (size_t i = 0; i < ARRAY_LEN(row); i++) {
        struct out o = {.format = OUT_TABLE};
        out_terminal(&o, row[i].to, row[i].err, row[i].no_color, row[i].term);
        assert_int_equal(o.color, row[i].color);
        assert_int_equal(o.color_err, row[i].color_err);
        assert_int_equal(o.live, row[i].live);
        assert_int_equal(o.progress, row[i].progress);
        out_plain(&o);
        assert_false(o.color || o.color_err);
        assert_int_equal(o.live, row[i].live);
    }
}

static char *table_in(bool color) {
    const char *headings[] = {"事件", "STATUS", "N"};
    char *text = NULL;
    size_t size;
    struct out o = {.to = open_memstream(&text, &size), .color = color};
    struct table *t = table_new(3, headings, "llr");
    assert_true(o.to != NULL && t != NULL);
    table_cell(t, "订单");
    table_cell_state(t, "sent");
    table_cell_int(t, 1);
    table_cell(t, "b");
    table_cell_state(t, "failed");
    table_cell_int(t, 20);
    table_tone(t, TONE_WARN);
    table_print(t, &o);
    table_free(t);
    assert_int_equal(fclose(o.to), 0);
    return text;
}

/* What is as it should be has no colour, and a colour takes no width. */
static void states_have_tones(void **state) {
    (void)state;
    char *plain = table_in(false), *coloured = table_in(true);
    assert_string_equal(plain, "事件  STATUS   N\n订单  sent     1\nb     failed  20\n");
    assert_string_equal(coloured, "\033[1m事件\033[0m  \033[1mSTATUS\033[0m   \033[1mN\033[0m\n"
                                  "订单  sent     1\n"
                                  "b     \033[31mfailed\033[0m  \033[33m20\033[0m\n");
    free(plain);
    free(coloured);
    assert_int_equal(tone_of("sent"), TONE_NONE);
    assert_int_equal(tone_of("unknown"), TONE_WARN);
    assert_int_equal(tone_of(""), TONE_NONE);
}

static void progress_is_one_line(void **state) {
    (void)state;
    char *text = NULL, wide[200] = "";
    size_t size;
    struct out o = {.err = open_memstream(&text, &size)};
    assert_non_null(o.err);
    out_progress(&o, "%d", 1);
    out_progress_end(&o); /* no terminal */
    o.progress = true;
    o.quiet = true;
    out_progress(&o, "%d", 2);
    out_progress_end(&o); /* nobody wants to know */
    o.quiet = false;
    for (int i = 0; i < 60; i++)
        memcpy(wide + 3 * i, "宽", 4);
    out_progress(&o, "%d%s", 3, wide);
    out_progress_end(&o);
    assert_int_equal(fclose(o.err), 0);
    wide[3 * 39] = '\0'; /* 1 + 2 * 39 columns */
    char wanted[260];
    (void)snprintf(wanted, sizeof wanted, "\r\033[K3%s\r\033[K", wide);
    assert_string_equal(text, wanted);
    free(text);
}

static void texts_are_cut_where_they_fit(void **state) {
    (void)state;
    assert_int_equal(text_fit(bytes_of("abc"), 2), 2);
    assert_int_equal(text_fit(bytes_of("abc"), 9), 3);
    assert_int_equal(text_fit(bytes_of("待发"), 3), 3);
    assert_int_equal(text_fit(bytes_of("待发"), 1), 0);
    assert_int_equal(text_fit(bytes_of("e\xcc\x81x"), 1), 3); /* the accent stays on its letter */
    assert_int_equal(text_fit(bytes_of(""), 0), 0);
}

static void fits(const char *text, unsigned rows, unsigned columns, const char *wanted) {
    char *got = NULL;
    size_t size;
    FILE *to = open_memstream(&got, &size);
    assert_non_null(to);
    screen_fit(to, text, rows, columns);
    assert_int_equal(fclose(to), 0);
    assert_string_equal(got, wanted);
    free(got);
}

static void a_picture_fits_its_terminal(void **state) {
    (void)state;
    fits("", 4, 10, "");
    fits("one\n", 4, 10, "\033[Jone");
    fits("one\ntwo\n", 2, 10, "\033[Kone\r\n\033[Jtwo");
    fits("1\n2\n3\n4\n", 3, 20, "\033[K1\r\n\033[K2\r\n\033[J… 2 more lines");
    fits("1\n2\n3\n4\n", 3, 6, "\033[K1\r\n\033[K2\r\n\033[J… 2 mo");
    fits("待发x\n", 2, 3, "\033[J待"); /* not half of a character */
    fits("待发x\n", 2, 5, "\033[J待发x");
    fits("\033[31m待发\033[0mx\n", 2, 4, "\033[J\033[31m待发\033[0m\033[0m");
    fits("\033[31mfailed\033[0m x\n", 2, 3, "\033[J\033[31mfai\033[0m\033[0m");
    fits("a\033[1mb\033[0mc\n", 2, 9, "\033[Ja\033[1mb\033[0mc\033[0m");
}

/* ---- top ---- */

static void hear(struct top *t, const char *store, const char *boot, csn_usec at,
                 const char *counters) {
    json_t *row = json_pack("{s:s,s:I,s:s}", "boot", boot, "heartbeat_at", (json_int_t)at,
                            "counters", counters);
    assert_non_null(row);
    top_hear(t, store, row);
    json_decref(row);
}

static double rate(const struct top *t, const char *store, const char *name) {
    double got = -1;
    for (size_t i = 0; top_rate_name(i) != NULL; i++)
        if (strcmp(top_rate_name(i), name) == 0)
            return top_rate(t, store, i, &got) ? got : -1;
    fail_msg("no rate of %s", name);
    return -1;
}

static void rates_need_two_heartbeats(void **state) {
    (void)state;
    struct top *t = calloc(1, sizeof *t);
    assert_non_null(t);
    hear(t, "orders", "a", 1000000, "{\"sent\":\"100\"}");
    top_turn(t);
    assert_true(rate(t, "orders", "sent") < 0); /* a sum since it started is no rate */
    hear(t, "orders", "a", 3000000, "{\"sent\":\"140\",\"claimed\":\"5\"}");
    top_turn(t);
    assert_true(rate(t, "orders", "sent") == 20.0);
    assert_true(rate(t, "orders", "claimed") == 2.5);
    assert_true(rate(t, "orders", "dead") == 0.0);
    assert_true(rate(t, "stock", "sent") < 0);
    hear(t, "orders", "a", 3000000, "{\"sent\":\"140\"}"); /* the same heartbeat again */
    hear(t, "orders", "b", 9000000, "{}");
    top_turn(t);
    assert_true(rate(t, "orders", "sent") == 20.0);
    hear(t, "orders", "a", 5000000, "{\"sent\":\"142\"}");
    hear(t, "orders", "b", 10000000, "{\"sent\":\"7\"}");
    top_turn(t);
    assert_true(rate(t, "orders", "sent") == 8.0);
    hear(t, "orders", "b", 11000000, "what is this"); /* written by somebody else */
    top_turn(t);
    assert_int_equal(t->members, 1); /* a is gone */
    free(t);
}

static void rates_are_of_counters(void **state) {
    (void)state;
    for (size_t i = 0; top_rate_name(i) != NULL; i++) {
        size_t k = 0;
        while (counter_name(k) != NULL && strcmp(counter_name(k), top_rate_name(i)) != 0)
            k++;
        assert_non_null(counter_name(k));
    }
}

static void top_is_bounded(void **state) {
    (void)state;
    struct top *t = calloc(1, sizeof *t);
    char boot[16];
    assert_non_null(t);
    for (int i = 0; i < 2 * TOP_MEMBERS_MAX; i++) {
        (void)snprintf(boot, sizeof boot, "%d", i);
        hear(t, "orders", boot, 1, "{}");
    }
    assert_int_equal(t->members, TOP_MEMBERS_MAX);
    top_turn(t);
    top_turn(t);
    assert_int_equal(t->members, 0);
    free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_command_is_offered),
        cmocka_unit_test(every_flag_is_offered),
        cmocka_unit_test(values_are_offered),
        cmocka_unit_test(names_come_from_the_configuration),
        cmocka_unit_test(shells_ask_the_program),
        cmocka_unit_test(every_command_has_a_page),
        cmocka_unit_test(every_key_has_an_entry),
        cmocka_unit_test(colours_are_for_terminals),
        cmocka_unit_test(states_have_tones),
        cmocka_unit_test(progress_is_one_line),
        cmocka_unit_test(texts_are_cut_where_they_fit),
        cmocka_unit_test(a_picture_fits_its_terminal),
        cmocka_unit_test(rates_need_two_heartbeats),
        cmocka_unit_test(rates_are_of_counters),
        cmocka_unit_test(top_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
