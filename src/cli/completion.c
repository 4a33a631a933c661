/* completion.c: the shells are given a few lines that ask this program; so a word is completed by
 * the tables that read it, in every shell alike, and a new command needs nothing here.
 *
 * What fits a value is told by the word that stands for it in the table of commands: "FORM" is a
 * form of output, "ID" of the laboratory an experiment. A word that is not known completes to
 * nothing. Candidates are a line each, with a tab before their meaning; ":file" and ":dir" leave the
 * rest to the shell. Mistakes are silent: nobody wants an error while typing. */
#include "cli/completion.h"
#include "base/message.h"
#include "cli/explain.h"
#include "conf/load.h"
#include "lab/lab.h"
#include "store/store.h"
#include <unistd.h>

static int here(void) {
    return message_language_now() == LANG_ZH;
}

/* ---- the lines for the shells ---- */

static const char bash_lines[] =
    "# consign: completion for bash. Load it with:  source <(consign completion bash)\n"
    "_consign() {\n"
    "    local line word=${COMP_WORDS[COMP_CWORD]}\n"
    "    COMPREPLY=()\n"
    "    while IFS= read -r line; do\n"
    "        case $line in\n"
    "        :file) mapfile -t COMPREPLY < <(compgen -f -- \"${word#=}\"); compopt -o filenames "
    ";;\n"
    "        :dir) mapfile -t COMPREPLY < <(compgen -d -- \"${word#=}\"); compopt -o filenames ;;\n"
    "        *) COMPREPLY+=(\"${line%%$'\\t'*}\") ;;\n"
    "        esac\n"
    "    done < <(\"${COMP_WORDS[0]/#~/$HOME}\" complete \"${COMP_WORDS[@]:1:COMP_CWORD}\""
    " 2>/dev/null)\n"
    "} 2>/dev/null\n"
    "complete -F _consign consign\n";

static const char zsh_lines[] =
    "#compdef consign\n"
    "# consign: completion for zsh. Save it as _consign in a folder of $fpath, or load it with:\n"
    "#   source <(consign completion zsh)\n"
    "_consign() {\n"
    "    local line\n"
    "    local -a found\n"
    "    while IFS= read -r line; do\n"
    "        case $line in\n"
    "        (:file) _files; return ;;\n"
    "        (:dir) _files -/; return ;;\n"
    "        (*) found+=(\"${${line%%$'\\t'*}//:/\\\\:}:${line#*$'\\t'}\") ;;\n"
    "        esac\n"
    "    done < <(\"${(Q)words[1]}\" complete \"${(@Q)words[2,CURRENT]}\" 2>/dev/null)\n"
    "    _describe -V consign found\n"
    "}\n"
    "if [[ ${funcstack[1]} == _consign ]]; then\n"
    "    _consign \"$@\"\n"
    "elif (( $+functions[compdef] )); then\n"
    "    compdef _consign consign\n"
    "fi\n";

static const char fish_lines[] =
    "# consign: completion for fish. Load it with:  consign completion fish | source\n"
    "function __consign_complete\n"
    "    set -l words (commandline -opc)\n"
    "    set -l word (commandline -ct)\n"
    "    set -l program $words[1]\n"
    "    set -e words[1]\n"
    "    for line in ($program complete $words \"$word\" 2>/dev/null)\n"
    "        switch $line\n"
    "            case :file\n"
    "                __fish_complete_path \"$word\"\n"
    "            case :dir\n"
    "                __fish_complete_directories \"$word\"\n"
    "            case '*'\n"
    "                echo $line\n"
    "        end\n"
    "    end\n"
    "end\n"
    "complete -c consign -f -k -a '(__consign_complete)'\n";

static const struct {
    const char *name, *lines;
} shells[] = {{"bash", bash_lines}, {"zsh", zsh_lines}, {"fish", fish_lines}};

int completion_command(struct command_call *c) {
    for (size_t i = 0; i < ARRAY_LEN(shells); i++) {
        if (strcmp(c->arg[0], shells[i].name) != 0)
            continue;
        json_t *document = out_document("completion");
        out_put(document, "shell", out_json_string(shells[i].name));
        out_put(document, "script", out_json_string(shells[i].lines));
        if (c->out->format == OUT_TABLE)
            (void)fputs(shells[i].lines, c->out->to);
        out_json(c->out, document);
        return 0;
    }
    return out_fail(c->out, ERR_USAGE, NULL, "consign completion bash|zsh|fish", "%.40s",
                    c->arg[0]);
}

/* ---- candidates ---- */

/* What is being completed: the word, up to where it is typed. Candidates that do not begin with it
 * are left out; before is put in front of each ("--output=" where the shell has one word). */
struct completing {
    struct command_call *c;
    const struct command *command; /* NULL: not named yet */
    const char *word, *before;
    const char *config_path; /* -c, or NULL */
};

static void offer(const struct completing *p, const char *candidate, const char *meaning) {
    if (strncmp(candidate, p->word, strlen(p->word)) == 0)
        (void)fprintf(p->c->out->to, "%s%s\t%s\n", p->before, candidate, meaning);
}

/* "a|b|c" */
static void offer_list(const struct completing *p, const char *list) {
    char one[80];
    for (const char *s = list; *s != '\0';) {
        size_t n = strcspn(s, "|");
        if (copy_bytes_text(one, sizeof one, (csn_bytes){s, n}))
            offer(p, one, "");
        s += n + (s[n] == '|');
    }
}

static void offer_errors(const struct completing *p) {
    char code[16];
    for (size_t i = 0; error_at(i) != NULL; i++) {
        (void)snprintf(code, sizeof code, "CSN-%04d", error_at(i)->number);
        offer(p, code, error_at(i)->title[here()]);
    }
    for (size_t i = 0; constraint_at(i) != NULL; i++)
        offer(p, constraint_at(i)->name, "");
}

static void offer_keys(const struct completing *p) {
    for (size_t i = 0; config_key_at(i) != NULL; i++)
        offer(p, config_key_at(i)->path, config_key_at(i)->help[here()]);
}

static void offer_experiments(const struct completing *p) {
    for (size_t i = 0; lab_at(i) != NULL; i++)
        offer(p, lab_at(i)->id, lab_at(i)->title[here()]);
    offer(p, "all", "");
}

/* The names of a section of the configuration that this call would read. */
static void offer_names(const struct completing *p, enum config_section section) {
    char path[CONFIG_PATH_MAX];
    const struct load_input in = {
        .file = p->config_path, .environment = environ, .drivers = store_drivers};
    struct load *l = NULL;
    if (load_config(&in, &l, NULL) != CSN_OK)
        return;
    for (uint32_t i = 0; config_thing_at(&l->config, section, i, path, sizeof path); i++)
        offer(p, strrchr(path, '.') + 1, "");
    load_free(l);
}

/* First words of names; with a noun, its verbs. A noun is offered once: its rows stand together. */
static void offer_commands(const struct completing *p, const char *noun) {
    char word[64], last[64] = "";
    size_t n = strlen(noun);
    for (size_t i = 0; command_at(i) != NULL; i++) {
        const struct command *k = command_at(i);
        const char *rest = k->name + (n > 0 ? n + 1 : 0);
        if ((k->bits & COMMAND_HIDDEN) != 0 ||
            (n > 0 && (strncmp(k->name, noun, n) != 0 || k->name[n] != ' ')))
            continue;
        size_t size = strcspn(rest, " ");
        (void)copy_bytes_text(word, sizeof word, (csn_bytes){rest, size});
        if (strcmp(word, last) != 0)
            offer(p, word, rest[size] == ' ' ? "" : k->help[here()]);
        (void)copy_text(last, sizeof last, word);
    }
}

static void say(const struct completing *p, const char *line) {
    (void)fprintf(p->c->out->to, "%s\n", line);
}

/* What stands for a value says what fits it. */
static void offer_value(const struct completing *p, const char *command, const char *flag,
                        const char *value) {
    static const struct {
        const char *flag, *value; /* NULL: any */
        const char *list;
    } known[] = {
        {"output", NULL, "table|json|jsonl"},
        {"lang", NULL, "en|zh-CN"},
        {"status", NULL, "pending|sending|sent|unknown|waiting|failed|held|cancelled|strange"},
        {"cause", NULL, "poison|conflict|budget"},
        {"state", NULL, "open"},
        {NULL, "KIND", "sqlite"},
        {NULL, "SHELL", "bash|zsh|fish"},
    };
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        if ((known[i].flag == NULL || strcmp(known[i].flag, flag) == 0) &&
            (known[i].value == NULL || strcmp(known[i].value, value) == 0)) {
            offer_list(p, known[i].list);
            return;
        }
    if (strcmp(value, "FILE") == 0)
        say(p, ":file");
    else if (strcmp(value, "DIR") == 0 || (strcmp(flag, "dir") == 0))
        say(p, ":dir");
    else if (strcmp(flag, "store") == 0 || strcmp(value, "[STORE...]") == 0)
        offer_names(p, CONFIG_STORE);
    else if (strcmp(flag, "consumer") == 0)
        offer_names(p, CONFIG_SUBSCRIPTION);
    else if (strcmp(flag, "set") == 0 || strcmp(value, "[KEY]") == 0)
        offer_keys(p);
    else if (strcmp(value, "[CODE]") == 0)
        offer_errors(p);
    else if (strcmp(command, "lab run") == 0)
        offer_experiments(p);
    else if (value[0] >= 'a' && value[0] <= 'z')
        offer_list(p, value);
}

/* ---- the words before ---- */

static void offer_flags(const struct completing *p) {
    char word[80];
    const struct flag *own = p->command != NULL ? p->command->flag : NULL;
    for (const struct flag *f = own; f != NULL && f->name != NULL; f++) {
        (void)snprintf(word, sizeof word, "--%s", f->name);
        offer(p, word, f->help[here()]);
    }
    for (const struct flag *f = command_global_flags(); f->name != NULL; f++) {
        (void)snprintf(word, sizeof word, "--%s", f->name);
        if (!command_only_some(f->name) ||
            (p->command != NULL && command_takes_some(p->command, f->name)))
            offer(p, word, f->help[here()]);
    }
}

/* The flag that a word names, with or without its value behind "="; NULL: none. */
static const struct flag *flag_named(const struct command *k, const char *word) {
    size_t n = strcspn(word, "=");
    const struct flag *lists[] = {k != NULL ? k->flag : NULL, command_global_flags()};
    if (word[0] != '-')
        return NULL;
    if (word[1] != '-')
        return command_short_flag(word);
    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        for (const struct flag *f = lists[i]; f != NULL && f->name != NULL; f++)
            if (n == strlen(f->name) + 2 && strncmp(f->name, word + 2, n - 2) == 0)
                return f;
    return NULL;
}

/* The command that the words name so far; noun gets the first word when a verb is missing. */
static const struct command *command_of(const char *const *word, int words, const char **ret_noun) {
    char name[128];
    const char *first = NULL;
    *ret_noun = "";
    for (int i = 0; i < words; i++) {
        if (word[i][0] == '-') {
            i += command_eats_next(word[i]);
            continue;
        }
        (void)snprintf(name, sizeof name, "%s%s%s", first != NULL ? first : "",
                       first != NULL ? " " : "", word[i]);
        const struct command *k = command_find(name);
        if (k != NULL || first != NULL)
            return k;
        first = word[i];
        *ret_noun = first;
    }
    return NULL;
}

/* How many plain words stand behind the name. */
static int arguments(const char *const *word, int words, const struct command *k) {
    int plain = 0;
    for (int i = 0; i < words; i++)
        if (word[i][0] == '-')
            i += command_eats_next(word[i]);
        else
            plain++;
    return plain - (strchr(k->name, ' ') != NULL ? 2 : 1);
}

/* bash hands "--output=js" over as three words: put together again, in place. */
static int join(const char **word, int words) {
    int n = 0;
    for (int i = 0; i < words; i++) {
        bool equals = strcmp(word[i], "=") == 0 && n > 0 && word[n - 1][0] == '-';
        if (!equals)
            word[n++] = word[i];
        else if (i + 1 == words)
            word[n++] = "";
    }
    return n;
}

static void complete_plain(struct completing *p, const char *const *word, int words,
                           const char *noun) {
    const struct command *k = p->command;
    if (k == NULL) {
        offer_commands(p, noun);
    } else if (strcmp(k->name, "help") == 0) {
        bool second = arguments(word, words, k) == 1;
        offer_commands(p, second ? word[words - 1] : "");
    } else if (arguments(word, words, k) < k->most) {
        offer_value(p, k->name, "", k->args);
    }
}

/* word: those before the one that is completed. */
static void complete(struct completing *p, const char *const *word, int words) {
    const char *noun, *last = words > 0 ? word[words - 1] : "", *equals;
    char before[80];
    p->command = command_of(word, words, &noun);
    for (int i = 0; i + 1 < words; i++)
        if (strcmp(word[i], "-c") == 0 || strcmp(word[i], "--config") == 0)
            p->config_path = word[i + 1];
    const char *command = p->command != NULL ? p->command->name : "";
    const struct flag *f = flag_named(p->command, last);
    if (f != NULL && strchr(last, '=') == NULL && f->type != FLAG_SWITCH) {
        offer_value(p, command, f->name, f->value);
    } else if ((equals = strchr(p->word, '=')) != NULL && p->word[0] == '-') {
        f = flag_named(p->command, p->word);
        (void)copy_bytes_text(before, sizeof before,
                              (csn_bytes){p->word, (size_t)(equals - p->word + 1)});
        p->before = before;
        p->word = equals + 1;
        if (f != NULL && f->type != FLAG_SWITCH)
            offer_value(p, command, f->name, f->value);
    } else if (p->word[0] == '-') {
        offer_flags(p);
    } else {
        complete_plain(p, word, words, noun);
    }
}

int complete_command(struct command_call *c) {
    int words = join(c->arg, c->args);
    struct completing p = {.c = c, .word = words > 0 ? c->arg[words - 1] : "", .before = ""};
    complete(&p, c->arg, words > 0 ? words - 1 : 0);
    return 0;
}
