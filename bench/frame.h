/* frame.h: a benchmark is a pair of two sides that do the same work in turns, five rounds in one
 * process, so that what else the machine does hits both. Its result is the median of the rounds' ratios;
 * the figures beside it say where it comes from. */
#ifndef CSN_BENCH_FRAME_H
#define CSN_BENCH_FRAME_H

#include <stdint.h>

enum { ROUNDS = 5, SIDES = 2 };

struct side {
    const char *name;
    double rate[ROUNDS];                  /* events per second */
    double cpu[ROUNDS];                   /* microseconds of processor per event */
    uint64_t events, commits, statements; /* of all rounds */
};

struct pair {
    const char *name, *conditions;
    struct side side[SIDES]; /* 0: what we are compared with */
};

struct turn {
    double wall, cpu; /* microseconds */
    uint64_t events, commits, statements;
};
/* Does the work of one side once. */
typedef void play_turn(void *arg, int side, struct turn *ret);

_Noreturn void die(const char *what, const char *why);
double wall_now(void); /* microseconds */
double cpu_now(void);  /* of this process, microseconds */
void remove_store(const char *path);
double median(const double *values, int n); /* the array is not touched */

/* ROUNDS rounds of so many turns of each side; they take turns at being the first, too. */
void play(struct pair *p, int turns, play_turn *turn, void *arg);
/* The table to standard output; one line of JSON to the file that BENCH_JSON names, if it
 * does. */
void report(const struct pair *p);
/* A single figure with its unit, the same two ways. */
void report_figure(const char *name, const char *unit, double value, const char *conditions);

#endif
