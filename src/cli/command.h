/* command.h: the one table of commands. A row is a noun and a verb, its arguments, its flags, its
 * words in both languages and the function that does it; parsing, help, guesses, hints and the
 * reference page follow from the table.
 *
 * A function gets a struct command_call in which everything was checked already: the number of
 * arguments, the flags and their types, the reason where one is required, the configuration where
 * it is needed. It returns the exit code of the process. */
#ifndef CSN_CLI_COMMAND_H
#define CSN_CLI_COMMAND_H

#include "cli/out.h"
#include "conf/load.h"

enum { COMMAND_ARGS_MAX = 64, COMMAND_FLAGS_MAX = 16 };

enum flag_type {
    FLAG_SWITCH,  /* --payload */
    FLAG_TEXT,    /* --status S */
    FLAG_INT,     /* --limit N, between min and max */
    FLAG_DURATION /* --grace 10m, between min and max, in microseconds */
};

struct flag {
    const char *name; /* without the dashes; NULL ends the list */
    enum flag_type type;
    const char *value; /* "N": how help calls it; NULL for a switch */
    int64_t min, max;
    const char *help[2]; /* by enum language */
};

enum {
    COMMAND_CONFIG = 1, /* the configuration is read and checked first; call->config is set */
    COMMAND_REASON =
        2, /* a change by a person: --reason is required (CSN-8004), but for --dry-run */
    COMMAND_DRY_RUN = 4,     /* takes --dry-run */
    COMMAND_YES = 8,         /* takes --yes */
    COMMAND_HIDDEN = 16,     /* not listed by help */
    COMMAND_MAY_REASON = 64, /* takes --reason, does not require it */
    COMMAND_RAW = 32         /* everything after the name is handed over as arguments, unparsed */
};

struct command_call;

struct command {
    const char *name;        /* "event trace", "serve" */
    const char *args;        /* as help shows them: "ID", "[CODE]"; "" for none */
    uint8_t least, most;     /* how many */
    unsigned bits;           /* COMMAND_ */
    const struct flag *flag; /* ended by a NULL name; NULL: none */
    const char *help[2];     /* one line */
    const char *more[2];     /* a paragraph, lines broken by hand; NULL: none */
    const char *example;     /* lines, each a whole command; NULL: none */
    const char *next; /* the hint at the end of an answer, without "consign": "event trace ID";
                         NULL: none */
    int (*run)(struct command_call *c);
};

struct command_call {
    const struct command *command;
    const struct config *config; /* NULL without COMMAND_CONFIG */
    struct out *out;
    const char *arg[COMMAND_ARGS_MAX];
    int args;
    const char *reason; /* NULL: none was given */
    bool dry_run, yes;
    const char *config_path;           /* -c, or NULL */
    const char *set[COMMAND_ARGS_MAX]; /* --set path=value, in order */
    int sets;
    const char *
        value[COMMAND_FLAGS_MAX]; /* of command->flag, by position; a switch that was given is "" */
    bool help, version;           /* --help, --version */
    bool lang_given;              /* --lang, not the locale, chose the language */
};

/* Flags of the call. The name must be in the command's row. */
bool command_switch(const struct command_call *c, const char *flag);
const char *command_text(const struct command_call *c, const char *flag); /* NULL: not given */
int64_t command_int(const struct command_call *c, const char *flag, int64_t otherwise);
csn_usec command_duration(const struct command_call *c, const char *flag, csn_usec otherwise);

/* "Next: consign …": the row's own hint, or one with a value in it: command_next_to(c, "event
 * trace", id). Only for people, not with -q. The name must be a command of the table. The value is
 * made safe. */
void command_next(const struct command_call *c);
void command_next_to(const struct command_call *c, const char *name, const char *value);

const struct command *command_find(const char *name); /* NULL: none */
const struct command *command_at(size_t i); /* NULL past the end; the order is that of help */

/* The flags that every command takes; ended by a NULL name. */
const struct flag *command_global_flags(void);
/* Of these, the ones that only some commands take (--reason, --dry-run, --yes); and whether k does. */
bool command_only_some(const char *flag);
bool command_takes_some(const struct command *k, const char *flag);
/* "-o": the flag that a letter stands for; NULL: none. */
const struct flag *command_short_flag(const char *word);
/* Is what stands behind this flag its value? */
bool command_eats_next(const char *word);

/* Reads and checks the configuration of a call whose row does not say COMMAND_CONFIG. 0, or the
 * exit code of what was reported. */
struct load_input command_input(const struct command_call *c); /* what this call reads */
int command_load(const struct command_call *c, struct load **ret);

/* Parses, prepares, runs: all of main but the streams. argv[0] is skipped. Returns the exit code.
 */
int command_main(int argc, char **argv, struct out *o);
/* The same in pieces, for tests: fills a call from the words; CSN_INVALID with CSN-8001 or CSN-8004
 * in err, `way` gets a guess. */
csn_status command_parse(int argc, char **argv, struct out *o, struct command_call *ret,
                         struct text *way, csn_error *err) MUST_USE;

/* Who acts, for the audit chain: "user@node" from the system, never empty. */
const char *command_actor(char *ret, size_t size);

#endif
