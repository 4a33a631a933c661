/* act.c: what the processes of an experiment do that are not daemons. Each is one line of a command
 * that people do not see; a store without the marker is refused here, too. */
#include "lab/lab.h"
#include "lab/shop.h"
#include "store/store.h"
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

/* As kill -9 from outside: nothing is flushed, closed or said. */
static void die(void) {
    (void)kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

/* tear URL ORDER: dies inside its transaction, after the order, before the event. */
static csn_status tear(const char *const *arg, FILE *to, csn_error *err) {
    struct db *d = NULL;
    (void)to;
    csn_status st = db_open(arg[0], 0, &d, err);
    if (st == CSN_OK)
        st = db_begin(d, err);
    if (st == CSN_OK)
        st = shop_insert_order(d, arg[1], "A", 5, err);
    if (st == CSN_OK)
        die();
    db_close(d);
    return st;
}

/* place URL ORDER EVENT SKU QTY [die]: a client's request; with die its answer is lost. */
static csn_status place(const char *const *arg, FILE *to, csn_error *err) {
    struct shop_answer answer;
    struct db *d = NULL;
    csn_status st = db_open(arg[0], 0, &d, err);
    if (st == CSN_OK)
        st = shop_place(d, arg[1], arg[2], arg[3], strtoll(arg[4], NULL, 10), &answer, err);
    if (st == CSN_OK && arg[5])
        die();
    db_close(d);
    if (st == CSN_OK)
        (void)fprintf(to, "%s %s %s\n", answer.event_id, answer.state,
                      answer.first ? "new" : "known");
    return st;
}

static const struct {
    const char *name;
    int args;
    csn_status (*run)(const char *const *arg, FILE *to, csn_error *err);
} acts[] = {{"tear", 2, tear}, {"place", 5, place}};

int lab_act(const char *const *arg, int args, FILE *to, csn_error *err) {
    bool there = false;
    for (size_t i = 0; i < ARRAY_LEN(acts); i++) {
        if (args < 1 || strcmp(arg[0], acts[i].name) != 0 || args - 1 < acts[i].args)
            continue;
        csn_status st = lab_marker_there(arg[1], &there, err);
        if (st == CSN_OK && !there)
            st = error_set(err, CSN_INVALID, ERR_STORE_NO_MARKER, "%s", arg[1]);
        if (st == CSN_OK)
            st = acts[i].run(arg + 1, to, err);
        const struct error_row *row = st == CSN_OK ? NULL : error_find(err->code);
        return st == CSN_OK ? 0 : row ? row->exit_code : 70;
    }
    (void)error_set(err, CSN_INVALID, ERR_USAGE, "lab act %s", args > 0 ? arg[0] : "");
    return 64;
}
