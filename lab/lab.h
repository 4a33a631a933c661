/* lab.h: the laboratory: experiments with known faults at known places, each with its assertions.
 *
 * An experiment works on a folder of its own, made as `consign init --lab` makes it, with daemons
 * that are processes of their own. Faults come from named failpoints, from kill -9 and from stopped
 * processes; nothing waits for a length of time and hopes: every wait is for a condition and has a
 * bound. Databases without the laboratory's marker are refused (CSN-2013). */
#ifndef CSN_LAB_LAB_H
#define CSN_LAB_LAB_H

#include "lab/report.h"
#include <stdio.h>

enum { LAB_HELD_MAX = 4, DRILL_MAX = 6 };

struct stage;

struct experiment {
    const char *id;
    const char *title[2];              /* by enum language */
    const char *inject[2];             /* what is injected where */
    const char *held[LAB_HELD_MAX][2]; /* what constraint or recovery holds it */
    const char *mutant;                /* test/mutants/NAME.sed turns it red */
    const char *sabotage[2];           /* what that mutant does */
    void (*run)(struct stage *s);
};

struct drill {
    const char *title[2];
    const char *id[DRILL_MAX]; /* the experiments that are it; some may not be built */
};

struct lab_options {
    const char *program;        /* this program, for the processes that are started */
    const char *keep;           /* a folder whose contents stay; NULL: a temporary one that goes */
    const char *orders, *stock; /* URLs of marked databases, emptied first; NULL: fresh ones */
};

const struct experiment *lab_at(size_t i); /* NULL past the end; in the order of the list */
const struct experiment *lab_find(const char *id);
/* Every experiment that is planned, in order; *ret_built: it can be run. NULL past the end. */
const char *lab_planned(size_t i, bool *ret_built);

/* The drills before a launch, in order; NULL past the end. */
const struct drill *lab_drill_at(size_t i);

/* Runs one experiment; the report is complete in every case. */
void lab_run(const struct experiment *e, const struct lab_options *o, struct report *ret);

/* Marks a store as the laboratory's. One that has events already is refused (CSN-8005) unless sure:
 * experiments empty it. */
csn_status lab_prepare(const char *url, bool sure, csn_error *err) MUST_USE;

/* What a process of an experiment does: "consign lab act NAME …". Returns the exit code. */
int lab_act(const char *const *arg, int args, FILE *to, csn_error *err);

/* The program that runs now. */
bool lab_program(char *ret, size_t size);

#endif
