/* failpoints.c: every failpoint of the table, in every way it can act, in the real program.
 *
 *   crash-failpoints [--quick] [--jobs N] [--only PLACE] [--keep]
 *
 * One scenario is one fresh shop with twenty events (a refusal, a poison, one to be tried again
 * with two that wait behind it, one that a dead dispatcher left), one daemon with the failpoint,
 * and small groups of such events until the place was hit:
 *
 *   crash@1, crash@3   the daemon dies there; another starts and finishes
 *   pause@1            it stands there for one and a half leases while another takes over; then it
 *                      goes on beside it
 *   error, unknown     its first three hits (one at least) fail; it finishes by itself
 *
 * Then everything becomes quiet, SIGTERM ends all, and the books must be right. A scenario whose
 * place was not hit is a failure. --quick leaves out crash@3 and pause. */
#include "base/failpoint.h"
#include "world.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    LEASE = 1000000,
    POLL = 20000,
    DRIP = 200000,
    READY_BOUND = 60000000,
    HIT_BOUND = 60000000,
    QUIET_BOUND = 120000000,
    STOP_BOUND = 60000000,
    SCENARIO_BOUND = 400, /* seconds, by alarm */
    FAILING_HITS = 3,
    SCENARIOS_MAX = FAIL_NR * 5,
    JOBS_MAX = 16,
    DRIP_EVENTS = 4,
    DRIPS = 15
};

static const unsigned modes_of[FAIL_NR] = {
#define X(id, name, modes, help) modes,
#include "base/failpoints.def"
#undef X
};

struct scenario {
    enum failpoint place;
    unsigned mode;
    int hit;
    /* written by the process that runs it */
    bool good;
    int64_t hits; /* of the daemon that had the failpoint; all places are in all_hits */
    int64_t all_hits[FAIL_NR];
    int64_t duplicates;
    char said[1000];
};

struct stage {
    struct scenario *sc;
    struct world w;
    struct pen pen;
    struct daemon_process a, b;
    char fifo[PATH_SIZE], hits_a[PATH_SIZE], hits_b[PATH_SIZE];
    int events, orders;
};

static const char *mode_name(unsigned mode) {
    return mode == FAIL_MODE_CRASH   ? "crash"
           : mode == FAIL_MODE_PAUSE ? "pause"
           : mode == FAIL_MODE_ERROR ? "error"
                                     : "unknown";
}

static bool failed(struct stage *s, const char *what) {
    struct text t;
    text_init(&t, s->sc->said, sizeof s->sc->said);
    text_add(&t, "%s (%s)", what, s->w.dir);
    return false;
}

/* ---- events ---- */

struct group {
    struct order_event event[DRIP_EVENTS];
    char id[DRIP_EVENTS][ID_SIZE], order[DRIP_EVENTS][ID_SIZE];
    int n;
};

static struct order_event *add_event(struct stage *s, struct group *g, const char *type) {
    struct order_event *e = &g->event[g->n];
    struct text t;
    text_init(&t, g->id[g->n], ID_SIZE);
    text_add(&t, "E-%d", s->events++);
    *e = (struct order_event){.id = g->id[g->n], .order = g->order[g->n], .type = type};
    g->n++;
    return e;
}

static struct order_event *add_order(struct stage *s, struct group *g, const char *sku, int qty) {
    struct order_event *e = add_event(s, g, "OrderCreated");
    struct text t;
    text_init(&t, g->order[g->n - 1], ID_SIZE);
    text_add(&t, "%d", s->orders++);
    e->created = true;
    e->sku = sku;
    e->qty = qty;
    return e;
}

static void add_next(struct stage *s, struct group *g, const char *type) {
    const char *order = g->event[g->n - 1].order;
    add_event(s, g, type)->order = order;
}

/* A daemon that stands inside a transaction holds the store: then nothing is written, and whoever
 * waits for the place looks again. */
static void drip(struct stage *s) {
    struct group g = {.n = 0};
    int events = s->events, orders = s->orders;
    add_order(s, &g, "S01", 1);
    add_order(s, &g, "S02", 2)->after = time_ms() + 150;
    add_next(s, &g, "OrderChanged");
    add_order(s, &g, "S03", 1)->left = true;
    if (!pen_try(&s->pen, g.event, g.n)) {
        s->events = events;
        s->orders = orders;
    }
}

static void first_events(struct stage *s) {
    struct group g = {.n = 0};
    add_order(s, &g, "S00", 0); /* poison, and its key goes on */
    add_next(s, &g, "OrderChanged");
    add_order(s, &g, "S49", 21); /* more than there is: refused */
    add_next(s, &g, "OrderCancelled");
    pen_commit(&s->pen, g.event, g.n);
    g.n = 0;
    add_order(s, &g, "S04", 1)->after = time_ms() + 400;
    add_next(s, &g, "OrderChanged");
    add_next(s, &g, "OrderCancelled");
    add_order(s, &g, "S05", 1)->left = true;
    pen_commit(&s->pen, g.event, g.n);
    for (int i = 0; i < 6; i++) {
        g.n = 0;
        add_order(s, &g, "S06", 1);
        add_next(s, &g, "OrderCancelled");
        pen_commit(&s->pen, g.event, g.n);
    }
}

/* ---- hits ---- */

static void read_hits(const char *path, int64_t hits[FAIL_NR]) {
    FILE *f = fopen(path, "re");
    char name[64];
    int64_t n;
    while (f && fscanf(f, "%63s %" SCNd64, name, &n) == 2) {
        for (int i = 0; i < FAIL_NR; i++) {
            hits[i] += strcmp(name, failpoint_name((enum failpoint)i)) == 0 ? n : 0;
        }
    }
    if (f) {
        fclose(f);
    }
}

/* ---- the ways to act ---- */

/* Writes until what() says that the place was hit. For the place of the stop the signal is sent as
 * soon as the first events are done. */
static bool until_hit(struct stage *s, bool (*hit)(struct stage *)) {
    csn_usec until = time_now() + HIT_BOUND, next = time_now() + DRIP;
    if (s->sc->place == FAIL_HOST_STOPPING) {
        time_rest(DRIP);
        kill(s->a.pid, SIGTERM);
    }
    for (; !hit(s); time_rest(POLL)) {
        if (time_now() > until) {
            return failed(s, "the place was not hit");
        }
        if (time_now() >= next && s->sc->place != FAIL_HOST_STOPPING) {
            drip(s);
            next = time_now() + DRIP;
        }
    }
    return true;
}

static bool has_crashed(struct stage *s) {
    int status = 0;
    return daemon_ended(&s->a, &status) && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

static bool has_paused(struct stage *s) {
    return daemon_says(&s->a, "failpoint.pause");
}

static bool start_second(struct stage *s) {
    return daemon_start(&s->w, &s->b, "b.log", NULL, s->hits_b) ||
           failed(s, "the second daemon cannot be started");
}

static bool act_crash(struct stage *s) {
    return until_hit(s, has_crashed) && start_second(s);
}

/* A writer that opens the FIFO and closes it lets the daemon go on. */
static bool release_pause(struct stage *s) {
    for (csn_usec until = time_now() + HIT_BOUND; time_now() < until; time_rest(POLL)) {
        int fd = open(s->fifo, O_WRONLY | O_NONBLOCK | O_CLOEXEC);
        if (fd >= 0) {
            close(fd);
            return true;
        }
        if (errno != ENXIO) {
            break;
        }
    }
    return failed(s, "nobody waits at the FIFO");
}

static bool act_pause(struct stage *s) {
    if (!until_hit(s, has_paused) || !start_second(s)) {
        return false;
    }
    time_rest(LEASE * 3 / 2);
    return release_pause(s);
}

/* Error and unknown leave no trace outside; the hits are read when the daemon has ended. */
static bool act_failing(struct stage *s) {
    for (int i = 0; i < DRIPS; i++) {
        drip(s);
        time_rest(DRIP);
    }
    return true;
}

static void spec_of(const struct stage *s, char *ret, size_t size) {
    const struct scenario *sc = s->sc;
    const char *name = failpoint_name(sc->place);
    struct text t;
    text_init(&t, ret, size);
    if (sc->mode == FAIL_MODE_PAUSE) {
        text_add(&t, "%s=pause:%s@%d", name, s->fifo, sc->hit);
    } else if (sc->mode == FAIL_MODE_CRASH) {
        text_add(&t, "%s=crash@%d", name, sc->hit);
    } else {
        for (int i = 1; i <= FAILING_HITS; i++) {
            text_add(&t, "%s%s=%s@%d", i > 1 ? "," : "", name, mode_name(sc->mode), i);
        }
    }
}

/* ---- a scenario ---- */

static bool become_quiet(struct stage *s, struct db *d) {
    for (csn_usec until = time_now() + QUIET_BOUND; !world_quiet(d); time_rest(2 * POLL)) {
        if (time_now() > until) {
            return failed(s, "it does not become quiet");
        }
    }
    return true;
}

static bool stop_all(struct stage *s) {
    int status = 0;
    /* One that was stopped and stood at host.stopping goes on to its end; a second signal would end
     * it at once. */
    if (s->a.pid > 0 && s->sc->place == FAIL_HOST_STOPPING) {
        if (!daemon_wait_end(&s->a, STOP_BOUND, &status) || status != 0) {
            return failed(s, "the first daemon did not end clean");
        }
    } else if (s->a.pid > 0 && !daemon_stop(&s->a, STOP_BOUND)) {
        return failed(s, "the first daemon did not stop clean");
    }
    if (s->b.pid > 0 &&
        (!daemon_wait_ready(&s->b, READY_BOUND) || !daemon_stop(&s->b, STOP_BOUND))) {
        return failed(s, "the second daemon did not stop clean");
    }
    return true;
}

static bool read_books(struct stage *s, struct db *d) {
    char *said = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&said, &size);
    if (!f) {
        return failed(s, "out of memory");
    }
    bool good = books_check(d, f) == 0;
    if (count_of(d, "SELECT count(*) FROM outbox_events") != s->events) {
        fprintf(f, "  DIFFERENCE: events written and rows\n");
        good = false;
    }
    good = good && books_canary(d, f);
    fclose(f);
    if (!good) {
        (void)failed(s, "the books:\n");
        struct text t = {s->sc->said, sizeof s->sc->said, strlen(s->sc->said), false};
        text_add(&t, "\n%s", said);
    }
    free(said);
    s->sc->duplicates =
        count_of(d, "SELECT (SELECT coalesce(sum(duplicates), 0) FROM consumer_inbox) +"
                    " (SELECT coalesce(sum(duplicates), 0) FROM s.consumer_inbox)");
    return good;
}

static bool was_hit(struct stage *s) {
    struct scenario *sc = s->sc;
    int64_t mine[FAIL_NR] = {0};
    read_hits(s->hits_a, mine);
    read_hits(s->hits_a, sc->all_hits);
    read_hits(s->hits_b, sc->all_hits);
    sc->hits = mine[sc->place];
    return sc->hits >= sc->hit || failed(s, "the place was not hit often enough");
}

static bool play(struct stage *s) {
    char spec[PATH_SIZE * 2];
    spec_of(s, spec, sizeof spec);
    if (!daemon_start(&s->w, &s->a, "a.log", spec, s->hits_a)) {
        return failed(s, "the daemon cannot be started");
    }
    /* Some places come before it is ready. */
    while (!daemon_ready(&s->a) && !has_paused(s) && !daemon_says(&s->a, "failpoint.crash")) {
        time_rest(POLL);
    }
    first_events(s);
    switch (s->sc->mode) {
    case FAIL_MODE_CRASH:
        return act_crash(s);
    case FAIL_MODE_PAUSE:
        return act_pause(s);
    default:
        return act_failing(s);
    }
}

static bool run_scenario(struct stage *s) {
    if (!world_make(&s->w, NULL) || !world_path(&s->w, "fifo", s->fifo) ||
        !world_path(&s->w, "a.hits", s->hits_a) || !world_path(&s->w, "b.hits", s->hits_b) ||
        mkfifo(s->fifo, 0600) != 0) {
        return failed(s, "no shop");
    }
    pen_open(&s->pen, &s->w);
    struct db *d = world_open(&s->w);
    bool good = play(s) && become_quiet(s, d) && stop_all(s) && read_books(s, d) && was_hit(s);
    db_close(d);
    pen_close(&s->pen);
    daemon_kill(&s->a);
    daemon_kill(&s->b);
    return good;
}

/* ---- all of them ---- */

struct sweep {
    struct scenario *sc; /* shared with the processes that run them */
    int n, jobs;
    bool quick, keep;
    const char *only;
};

static void add_scenario(struct sweep *w, enum failpoint place, unsigned mode, int hit) {
    bool wanted = !w->only || strcmp(w->only, failpoint_name(place)) == 0;
    if (wanted && modes_of[place] & mode && w->n < SCENARIOS_MAX) {
        w->sc[w->n++] = (struct scenario){.place = place, .mode = mode, .hit = hit};
    }
}

static void plan(struct sweep *w) {
    for (int i = 0; i < FAIL_NR; i++) {
        enum failpoint place = (enum failpoint)i;
        add_scenario(w, place, FAIL_MODE_CRASH, 1);
        if (!w->quick && place != FAIL_HOST_STOPPING) { /* a process stops once */
            add_scenario(w, place, FAIL_MODE_CRASH, 3);
        }
        if (!w->quick) {
            add_scenario(w, place, FAIL_MODE_PAUSE, 1);
        }
        add_scenario(w, place, FAIL_MODE_ERROR, 1);
        add_scenario(w, place, FAIL_MODE_UNKNOWN, 1);
    }
}

static _Noreturn void in_process(const struct sweep *w, struct scenario *sc) {
    struct stage s = {.sc = sc};
    s.w.lease = LEASE;
    s.w.confirm = LEASE / 10;
    s.w.lock_wait = LEASE / 5;
    alarm(SCENARIO_BOUND);
    sc->good = run_scenario(&s);
    if (sc->good && !w->keep) {
        world_remove(&s.w);
    }
    _exit(0);
}

static void say_one(const struct scenario *sc) {
    printf("%s  %-17s %-7s @%d  hits %-5" PRId64 " duplicates %" PRId64 "%s%s\n",
           sc->good ? "ok    " : "FAILED", failpoint_name(sc->place), mode_name(sc->mode), sc->hit,
           sc->hits, sc->duplicates, sc->said[0] ? "\n    " : "", sc->said);
    fflush(stdout);
}

/* The process of a scenario has ended; when it did not get to the end of it, what it said on its
 * standard error has more. */
static void ended(struct scenario *sc, int status) {
    if (status != 0) {
        struct text t = {sc->said, sizeof sc->said, strlen(sc->said), false};
        text_add(&t, "%sits process ended by %s %d", sc->said[0] ? "; " : "",
                 WIFSIGNALED(status) ? "signal" : "exit code",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        sc->good = false;
    }
    say_one(sc);
}

/* Most of a scenario is waiting for leases: several run at once. */
static int run_all(struct sweep *w) {
    pid_t pid[JOBS_MAX];
    int of[JOBS_MAX], running = 0, next = 0, bad = 0, status;
    while (next < w->n || running > 0) {
        if (next < w->n && running < w->jobs) {
            fflush(stdout);
            of[running] = next;
            pid[running] = fork();
            if (pid[running] == 0) {
                in_process(w, &w->sc[next]);
            }
            running++;
            next++;
            continue;
        }
        pid_t one = waitpid(-1, &status, 0);
        for (int i = 0; i < running; i++) {
            if (pid[i] == one) {
                ended(&w->sc[of[i]], status);
                bad += !w->sc[of[i]].good;
                running--;
                pid[i] = pid[running];
                of[i] = of[running];
                break;
            }
        }
    }
    return bad;
}

/* The sum of hits of each place; a place without any is a failure of its own. */
static int say_table(const struct sweep *w) {
    int none = 0;
    printf("\nhits of each place, over all scenarios:\n");
    for (int i = 0; i < FAIL_NR; i++) {
        int64_t hits = 0;
        for (int k = 0; k < w->n; k++) {
            hits += w->sc[k].all_hits[i];
        }
        printf("%s  %-17s %7" PRId64 "  %s\n", hits ? "      " : "FAILED",
               failpoint_name((enum failpoint)i), hits, failpoint_help((enum failpoint)i));
        none += hits == 0;
    }
    return none;
}

/* Once more and at the end, where a log that was cut short still has them. */
static void say_failures(const struct sweep *w) {
    for (int i = 0; i < w->n; i++) {
        if (!w->sc[i].good) {
            say_one(&w->sc[i]);
        }
    }
}

static bool options(struct sweep *w, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0) {
            w->quick = true;
        } else if (strcmp(argv[i], "--keep") == 0) {
            w->keep = true;
        } else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
            w->only = argv[++i];
        } else if (strcmp(argv[i], "--jobs") == 0 && i + 1 < argc) {
            w->jobs = (int)strtol(argv[++i], NULL, 10);
        } else {
            return false;
        }
    }
    return w->jobs >= 1 && w->jobs <= JOBS_MAX;
}

int main(int argc, char **argv) {
    struct sweep w = {.jobs = 6};
    if (!options(&w, argc, argv)) {
        fprintf(stderr, "usage: crash-failpoints [--quick] [--jobs 1-%d] [--only PLACE] [--keep]\n",
                JOBS_MAX);
        return 64;
    }
    w.sc = mmap(NULL, SCENARIOS_MAX * sizeof *w.sc, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (w.sc == MAP_FAILED) {
        return 2;
    }
    plan(&w);
    int bad = w.n == 0 ? 1 : run_all(&w);
    if (!w.only) {
        bad += say_table(&w);
    }
    say_failures(&w);
    printf("%d passed, %d failed\n", w.n > bad ? w.n - bad : 0, bad);
    return bad == 0 ? 0 : 1;
}
