/* main.c: consign-sim: runs seeds, prints what was found, what went wrong and what was checked. */
#include "sim.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { TWICE_EVERY = 16 /* seeds; of them one is run twice and the hashes are compared */ };

static const struct {
    const char *name, *text;
} faults[FAULT_NR] = {
#define X(name, text, rate) {#name, text},
#include "faults.def"
#undef X
};
static const struct {
    const char *name, *ref, *text;
} checks[CHECK_NR] = {
#define X(name, ref, text) {#name, ref, text},
#include "checks.def"
#undef X
};

struct options {
    uint64_t from, seeds, until;
    bool one, trace, quiet;
};

static const char usage[] =
    "consign-sim runs the engine on stores and brokers in memory, under faults, one run per seed.\n"
    "consign-sim 在内存中的存储和代理上运行引擎并注入故障，每个种子一次运行。\n\n"
    "  --seeds N     run N seeds (1000)                             运行 N 个种子\n"
    "  --from N      begin with seed N (1)                          从种子 N 开始\n"
    "  --seed N      run seed N only and print its hash             只运行种子 N 并打印其哈希\n"
    "  --until N     stop that seed after N events                  在 N 个事件后停止\n"
    "  --trace       print every event of it                        打印其每个事件\n"
    "  --list FILE   run the seeds that FILE lists, one a line      运行 FILE 中每行一个的种子\n"
    "  --quiet       print failures only                            只打印失败\n";

static bool number_of(const char *text, uint64_t *ret) {
    char *end = NULL;
    *ret = text ? strtoull(text, &end, 10) : 0;
    return text && *text && end && *end == '\0';
}

static void print_failure(const struct sim *s) {
    printf("seed %" PRIu64 " fails after %" PRIu64
           " events: %s\n  replay: consign-sim --seed %" PRIu64 " --trace\n",
           s->seed, s->events, s->why, s->seed);
}

/* Runs a seed, and some seeds twice. True when all holds. */
static bool run_seed(struct sim *s, uint64_t seed, bool twice) {
    sim_run(s, seed);
    if (!s->failed && twice) {
        uint64_t hash = s->hash;
        sim_run(s, seed);
        check(s, CHECK_SAME_HASH, hash == s->hash, "%016" PRIx64 " and then %016" PRIx64, hash,
              s->hash);
    }
    if (s->failed)
        print_failure(s);
    return !s->failed;
}

static int by_size(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void print_tables(const struct tally *t) {
    puts("\nfault               times  what happens");
    for (enum fault_kind f = 0; f < FAULT_NR; f++)
        printf("%-16s %8" PRIu64 "  %s\n", faults[f].name, t->fault[f], faults[f].text);
    puts("\ncheck         ref        times  what must hold");
    for (enum check_kind c = 0; c < CHECK_NR; c++)
        printf("%-12s %-4s %12" PRIu64 "  %s\n", checks[c].name, checks[c].ref, t->check[c],
               checks[c].text);
}

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); /* other programs do not count */
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* A check that was never made, or a fault that never happened, in a long run is a hole in the
 * simulator. */
static int holes(const struct tally *t, uint64_t seeds) {
    int n = 0;
    if (seeds < 300)
        return 0;
    for (enum check_kind c = 0; c < CHECK_NR; c++) {
        if (t->check[c])
            continue;
        printf("never checked: %s\n", checks[c].name);
        n++;
    }
    for (enum fault_kind f = 0; f < FAULT_NR; f++) {
        if (t->fault[f])
            continue;
        printf("never happened: %s\n", faults[f].name);
        n++;
    }
    return n;
}

static int run_seeds(struct sim *s, const struct options *o) {
    uint64_t *events = calloc(o->seeds + 1, sizeof *events), done = 0;
    double begin = seconds_now();
    bool good = events != NULL;
    for (; good && done < o->seeds; done++) {
        good = run_seed(s, o->from + done, done % TWICE_EVERY == 0);
        events[done] = s->events;
    }
    double took = seconds_now() - begin;
    if (good && !o->quiet) {
        qsort(events, done, sizeof *events, by_size);
        print_tables(s->tally);
        printf("\n%" PRIu64 " seeds, %" PRIu64 " events, median %" PRIu64
               " a seed; %.0f seeds and %.0f events per CPU second; no failure\n",
               done, s->tally->events, done ? events[done / 2] : 0, (double)s->tally->seeds / took,
               (double)s->tally->events / took);
    }
    if (good && holes(s->tally, done))
        good = false;
    free(events);
    return good ? 0 : 1;
}

static int run_one(struct sim *s, const struct options *o) {
    s->trace = o->trace;
    s->until = o->until;
    bool good = run_seed(s, o->from, !o->trace && !o->until);
    printf("seed %" PRIu64 " hash %016" PRIx64 " events %" PRIu64 "\n", o->from, s->hash,
           s->events);
    return good ? 0 : 1;
}

static int run_list(struct sim *s, const char *path) {
    char line[200];
    uint64_t n = 0;
    bool good = true;
    FILE *f = fopen(path, "r");
    if (!f) {
        perror(path);
        return 66;
    }
    while (fgets(line, sizeof line, f)) {
        char *end;
        uint64_t seed = strtoull(line, &end, 10);
        if (end == line)
            continue; /* a comment */
        good &= run_seed(s, seed, true);
        n++;
    }
    fclose(f);
    printf("%" PRIu64 " kept seeds %s\n", n, good ? "hold" : "do not all hold");
    return good ? 0 : 1;
}

int main(int argc, char **argv) {
    struct options o = {.from = 1, .seeds = 1000};
    const char *list = NULL;
    for (int i = 1; i < argc; i++) {
        bool ok = true;
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--trace") == 0)
            o.trace = true;
        else if (strcmp(argv[i], "--quiet") == 0)
            o.quiet = true;
        else if (strcmp(argv[i], "--list") == 0 && value)
            list = argv[++i];
        else if (strcmp(argv[i], "--seeds") == 0)
            ok = number_of(value, &o.seeds) && ++i && o.seeds <= 100000000;
        else if (strcmp(argv[i], "--from") == 0)
            ok = number_of(value, &o.from) && ++i;
        else if (strcmp(argv[i], "--until") == 0)
            ok = number_of(value, &o.until) && ++i;
        else if (strcmp(argv[i], "--seed") == 0)
            ok = o.one = number_of(value, &o.from) && ++i;
        else
            ok = false;
        if (!ok) {
            fputs(usage, stderr);
            return 64;
        }
    }
    static struct tally tally;
    static struct sim sim;
    sim_init(&sim, &tally);
    int code = list ? run_list(&sim, list) : o.one ? run_one(&sim, &o) : run_seeds(&sim, &o);
    sim_free(&sim);
    return code;
}
