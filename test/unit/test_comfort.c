/* test_comfort.c: completion, manual pages, colours: what follows from the tables of commands and
 * keys without being written anywhere. */
#include "base/message.h"
#include "cli/command.h"
#include "cli/explain.h"
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_command_is_offered),
        cmocka_unit_test(every_flag_is_offered),
        cmocka_unit_test(values_are_offered),
        cmocka_unit_test(names_come_from_the_configuration),
        cmocka_unit_test(shells_ask_the_program),
        cmocka_unit_test(every_command_has_a_page),
        cmocka_unit_test(every_key_has_an_entry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
