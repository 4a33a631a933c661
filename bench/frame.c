/* frame.c: see frame.h. */
#include "bench/frame.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void die(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static double clock_us(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

double wall_now(void) {
    return clock_us(CLOCK_BOOTTIME);
}

double cpu_now(void) {
    return clock_us(CLOCK_PROCESS_CPUTIME_ID);
}

void remove_store(const char *path) {
    static const char *const ends[] = {"", "-wal", "-shm"};
    char whole[700];
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        snprintf(whole, sizeof whole, "%s%s", path, ends[i]);
        unlink(whole);
    }
}

static void add(struct turn *sum, const struct turn *t) {
    sum->wall += t->wall;
    sum->cpu += t->cpu;
    sum->events += t->events;
    sum->commits += t->commits;
    sum->statements += t->statements;
}

static void play_round(struct pair *p, int round, int turns, play_turn *turn, void *arg) {
    struct turn sum[SIDES] = {{0}};
    for (int i = 0; i < turns * SIDES; i++) {
        int side = (i + i / SIDES) % SIDES;
        struct turn t = {0};
        turn(arg, side, &t);
        add(&sum[side], &t);
    }
    for (int k = 0; k < SIDES; k++) {
        struct side *s = &p->side[k];
        s->rate[round] = (double)sum[k].events * 1e6 / sum[k].wall;
        s->cpu[round] = sum[k].cpu / (double)sum[k].events;
        s->events += sum[k].events;
        s->commits += sum[k].commits;
        s->statements += sum[k].statements;
    }
}

void play(struct pair *p, int turns, play_turn *turn, void *arg) {
    for (int i = 0; i < ROUNDS; i++)
        play_round(p, i, turns, turn, arg);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void sorted(const double *values, int n, double *ret) {
    memcpy(ret, values, (size_t)n * sizeof *ret);
    qsort(ret, (size_t)n, sizeof *ret, by_value);
}

double median(const double *values, int n) {
    double v[ROUNDS];
    sorted(values, n, v);
    return v[n / 2];
}

static FILE *json(void) {
    const char *path = getenv("BENCH_JSON");
    FILE *f = path && *path ? fopen(path, "ae") : NULL;
    if (path && *path && !f)
        die("BENCH_JSON", "cannot be written");
    return f;
}

static double each(uint64_t n, uint64_t events) {
    return events ? (double)n / (double)events : 0;
}

static void json_side(FILE *f, const struct side *s) {
    double v[ROUNDS];
    sorted(s->rate, ROUNDS, v);
    fprintf(f,
            "{\"name\":\"%s\",\"events_per_second\":{\"min\":%.0f,\"median\":%.0f,\"max\":%.0f},"
            "\"cpu_us_per_event\":%.2f,\"commits_per_event\":%.4f,\"statements_per_event\":%.2f}",
            s->name, v[0], v[ROUNDS / 2], v[ROUNDS - 1], median(s->cpu, ROUNDS),
            each(s->commits, s->events), each(s->statements, s->events));
}

static void spread(const char *what, const double v[ROUNDS]) {
    printf("  ratio by %-15s %.2f (%.2f to %.2f)\n", what, v[ROUNDS / 2], v[0], v[ROUNDS - 1]);
}

/* Of each round, and sorted: what disturbs a round disturbs both sides of it. */
static void ratios(const struct pair *p, double time[ROUNDS], double cpu[ROUNDS]) {
    double t[ROUNDS], c[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        t[i] = p->side[1].rate[i] / p->side[0].rate[i];
        c[i] = p->side[0].cpu[i] / p->side[1].cpu[i];
    }
    sorted(t, ROUNDS, time);
    sorted(c, ROUNDS, cpu);
}

void report(const struct pair *p) {
    double time[ROUNDS], cpu[ROUNDS];
    FILE *f = json();
    ratios(p, time, cpu);
    printf("%s: %s\n", p->name, p->conditions);
    printf("  %-18s %9s %9s %9s  %9s %8s %8s\n", "events/s", "min", "median", "max", "cpu us",
           "commits", "statem.");
    for (int k = 0; k < SIDES; k++) {
        const struct side *s = &p->side[k];
        double v[ROUNDS];
        sorted(s->rate, ROUNDS, v);
        printf("  %-18s %9.0f %9.0f %9.0f  %9.2f %8.4f %8.2f\n", s->name, v[0], v[ROUNDS / 2],
               v[ROUNDS - 1], median(s->cpu, ROUNDS), each(s->commits, s->events),
               each(s->statements, s->events));
    }
    spread("time", time);
    spread("processor time", cpu);
    putchar('\n');
    if (!f)
        return;
    fprintf(f, "{\"v\":1,\"name\":\"%s\",\"conditions\":\"%s\",\"sides\":[", p->name,
            p->conditions);
    json_side(f, &p->side[0]);
    fputc(',', f);
    json_side(f, &p->side[1]);
    fprintf(f, "],\"ratio\":%.3f,\"ratio_min\":%.3f,\"ratio_max\":%.3f,\"ratio_cpu\":%.3f}\n",
            time[ROUNDS / 2], time[0], time[ROUNDS - 1], cpu[ROUNDS / 2]);
    fclose(f);
}

void report_figure(const char *name, const char *unit, double value, const char *conditions) {
    FILE *f = json();
    printf("%-28s %12.3f %-12s %s\n", name, value, unit, conditions);
    if (!f)
        return;
    fprintf(f, "{\"v\":1,\"name\":\"%s\",\"unit\":\"%s\",\"value\":%.4f,\"conditions\":\"%s\"}\n",
            name, unit, value, conditions);
    fclose(f);
}
