/* fuzz_handler.c: whatever stands in a handler file, reading it ends, and what comes out holds
 * together: every path of a good file reaches a verdict, every bind lies in its text, and a bad
 * file has an error with a place and a report. */
#include "core/handler.h"
#include "mutate.h"

static const char *const words[] = {"-- ",
                                    "-- handler ",
                                    "-- expect rows ",
                                    "-- emit ",
                                    "-- verdict ",
                                    "-- label ",
                                    " else goto ",
                                    " payload ",
                                    " for ",
                                    ":payload.a",
                                    ":event_id",
                                    "::",
                                    ":",
                                    ";\n",
                                    ";",
                                    "\n",
                                    "'",
                                    "\"",
                                    "`",
                                    "[",
                                    "]",
                                    "/*",
                                    "*/",
                                    "{",
                                    "}",
                                    "\\",
                                    "\\u12",
                                    "\xf0",
                                    "\xef\xbb\xbf",
                                    "done",
                                    ">= ",
                                    "999999999999",
                                    "BEGIN;\n",
                                    "\r\n",
                                    "\t",
                                    "?",
                                    "$1",
                                    "@a",
                                    "payload.",
                                    "1e9"};

static void check(bool holds, const char *what) {
    if (holds)
        return;
    fprintf(stderr, "does not hold: %s\n", what);
    abort();
}

static void check_step(const struct sql_handler *h, uint32_t i) {
    const struct step *s = &h->step[i];
    size_t end = s->text ? strlen(s->text) : 0;
    check(s->binds <= HANDLER_BINDS_MAX, "binds of a step are bounded");
    check(s->line > 0, "a step has a line");
    for (uint32_t b = 0, from = 0; b < s->binds; b++) {
        const struct bind *bind = &s->bind[b];
        check(bind->offset >= from && bind->offset + bind->size <= end,
              "binds lie in the text, in order");
        check(s->text[bind->offset] == ':', "a bind begins with a colon");
        check(strlen(bind->name) == bind->size - 1, "a bind is as long as its name");
        from = bind->offset + bind->size;
    }
    check(s->kind != STEP_EMIT || (s->key && s->event_type[0] && s->aggregate_type[0]),
          "a result event has a key");
    check(s->kind != STEP_VERDICT || (s->verdict >= 0 && s->verdict <= CSN_OUTCOME_UNKNOWN),
          "a verdict is known");
    check(s->otherwise < 0 || (s->otherwise > (int32_t)i && s->otherwise < (int32_t)h->steps),
          "jumps go forwards");
    check(s->kind == STEP_VERDICT || i + 1 < h->steps, "no path falls off the end");
}

static uint32_t good, bad;

static void one(csn_bytes file) {
    static char buffer[4096]; /* small, so that reports are cut, too */
    struct text report;
    struct sql_handler h = {0};
    csn_error err = {0};
    text_init(&report, buffer, sizeof buffer);
    csn_status st = sql_handler_parse("fuzz.sql", file, &h, &report, &err);
    if (st == CSN_OK) {
        good++;
        check(report.used == 0, "a good file has no report");
        check(h.steps > 0 && h.steps <= HANDLER_STEPS_MAX && h.name[0],
              "a good file has a name and steps");
        for (uint32_t i = 0; i < h.steps; i++)
            check_step(&h, i);
        sql_handler_free(&h);
        return;
    }
    bad++;
    check(st == CSN_INVALID && err.status == st && err.code == 4001, "a bad file is CSN-4001");
    check(report.used > 0 && strncmp(err.text, "fuzz.sql:", 9) == 0, "a mistake has a place");
    check(h.step == NULL, "a bad file leaves nothing");
}

int main(int argc, char **argv) {
    static struct corpus c;
    static char data[MUTANT_MAX];
    uint64_t rounds = argc > 2 ? strtoull(argv[2], NULL, 10) : 40000,
             seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    struct prng p;
    if (argc < 2) {
        fprintf(stderr, "fuzz_handler FOLDER [rounds] [seed]\n");
        return 2;
    }
    corpus_load(&c, argv[1]);
    check(c.n > 0, "the corpus is there");
    for (uint32_t i = 0; i < c.n; i++)
        one((csn_bytes){c.data[i], c.size[i]});
    prng_seed(&p, seed);
    for (uint64_t i = 0; i < rounds; i++) {
        uint32_t from = (uint32_t)prng_below(&p, c.n);
        size_t size = c.size[from];
        memcpy(data, c.data[from], size);
        mutate(&p, &c, words, ARRAY_LEN(words), data, &size);
        one((csn_bytes){data, size});
    }
    corpus_free(&c);
    printf("fuzz_handler: %llu rounds, seed %llu: %u good files, %u bad ones\n",
           (unsigned long long)rounds, (unsigned long long)seed, good, bad);
    check(good > 0 && bad > 0, "both kinds were seen");
    return 0;
}
