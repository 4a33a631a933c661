/* writers.c: see writers.h.
 *
 * Half of the transactions place an order, half go on with an order of any writer (changed, or
 * cancelled), so that writers meet on one row and draw its versions under its lock; a tenth write
 * two events at once. One in twenty is rolled back. A writer's first order and one in two
 * hundred lack their quantity (poison), one in fifty is not to be handled yet (retry, and what
 * follows it parks behind it). */
#include "writers.h"
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    STOP_BOUND = 60000000,
    BEHIND_MOST = 10000000, /* longer than a daemon that holds the write lock is stopped */
    LATER_MS = 8000,
    EVENTS_MAX = 2
};

struct writer {
    struct writers *all;
    int number;
    struct pen pen;
    struct prng chance;
};

struct plan {
    struct order_event event[EVENTS_MAX];
    char id[EVENTS_MAX][ID_SIZE], order[ID_SIZE], sku[8];
    int n;
    bool undone;
};

static bool one_in(struct writer *w, uint64_t n) {
    return prng_below(&w->chance, n) == 0;
}

static void name_event(struct writer *w, struct plan *p) {
    int64_t id = atomic_fetch_add(&w->all->shared->id, 1);
    struct text t;
    text_init(&t, p->id[p->n], ID_SIZE);
    text_add(&t, "%s-%d-%" PRId64, p->undone ? "undone" : "E", w->number, id);
    p->event[p->n].id = p->id[p->n];
    p->event[p->n].order = p->order;
    p->n++;
}

static void plan_new(struct writer *w, struct plan *p) {
    struct order_event *e = &p->event[p->n];
    *e = (struct order_event){.type = "OrderCreated", .created = true, .sku = p->sku};
    bool first = atomic_load(&w->all->shared->by[w->number].orders) == 0;
    e->qty = first || one_in(w, 200) ? 0 : 1 + (int)prng_below(&w->chance, 3);
    e->after = one_in(w, 50) ? time_ms() + (int64_t)prng_below(&w->chance, LATER_MS) : 0;
    name_event(w, p);
}

static void plan_next(struct writer *w, struct plan *p) {
    p->event[p->n] = (struct order_event){.type = one_in(w, 2) ? "OrderCancelled" : "OrderChanged"};
    name_event(w, p);
}

/* The order of somebody, which is there already; false: nobody has one yet. */
static bool pick_order(struct writer *w, struct plan *p) {
    int of = (int)prng_below(&w->chance, (uint64_t)w->all->n);
    int64_t orders = atomic_load(&w->all->shared->by[of].orders);
    struct text t;
    text_init(&t, p->order, sizeof p->order);
    if (orders == 0) {
        return false;
    }
    /* Mostly young ones: their events are still under way. */
    int64_t back = (int64_t)prng_below(&w->chance, one_in(w, 10) ? (uint64_t)orders : 20);
    text_add(&t, "%d-%" PRId64, of, orders - 1 - (back < orders ? back : orders - 1));
    return true;
}

static void make_plan(struct writer *w, struct plan *p) {
    struct text t;
    p->n = 0;
    p->undone = one_in(w, 20);
    text_init(&t, p->sku, sizeof p->sku);
    text_add(&t, "S%02d", one_in(w, 30) ? SKUS - 1 : (int)prng_below(&w->chance, SKUS));
    if (one_in(w, 2) && pick_order(w, p)) {
        plan_next(w, p);
    } else {
        text_init(&t, p->order, sizeof p->order);
        text_add(&t, "%d-%" PRId64, w->number, atomic_load(&w->all->shared->by[w->number].orders));
        plan_new(w, p);
    }
    if (one_in(w, 10)) {
        plan_next(w, p);
    }
}

static csn_status write_plan(struct writer *w, const struct plan *p, csn_error *err) {
    csn_status s = db_begin(w->pen.db, err);
    for (int i = 0; s == CSN_OK && i < p->n; i++) {
        bool there = true;
        s = pen_write(&w->pen, &p->event[i], &there, err);
        if (s == CSN_OK && !there) {
            s = error_set(err, CSN_FATAL, ERR_NOT_FOUND, "order %s was committed and is not there",
                          p->order);
        }
    }
    if (s == CSN_OK && !p->undone) {
        s = db_commit(w->pen.db, err);
    }
    if (s != CSN_OK || p->undone) {
        db_rollback(w->pen.db);
    }
    return s;
}

static bool transact(struct writer *w, bool *ret_committed) {
    struct plan p;
    csn_error err = {.status = CSN_OK};
    *ret_committed = false;
    make_plan(w, &p);
    csn_status s = write_plan(w, &p, &err);
    if (s == CSN_AGAIN) {
        return true; /* locked for long: nothing was written; the next plan is another one */
    }
    if (s != CSN_OK) {
        fprintf(stderr, "writer %d: %s\n", w->number, err.text);
        return false;
    }
    struct writer_counts *c = &w->all->shared->by[w->number];
    if (p.undone) {
        atomic_fetch_add(&c->undone, 1);
    } else {
        *ret_committed = true;
        atomic_fetch_add(&c->commits, 1);
        atomic_fetch_add(&c->events, p.n);
        atomic_fetch_add(&c->orders, p.event[0].created);
    }
    return true;
}

static int write_all(struct writer *w, int rate) {
    struct writers_shared *shared = w->all->shared;
    csn_usec step = (csn_usec)1000000 * w->all->n / (rate > 0 ? rate : 1);
    csn_usec next = time_now() + (csn_usec)prng_below(&w->chance, (uint64_t)step + 1);
    while (!atomic_load(&shared->stop)) {
        bool committed;
        csn_usec now = time_now();
        if (now < next && !atomic_load(&shared->unpaced)) {
            time_rest(next - now < 50000 ? next - now : 50000);
            continue;
        }
        if (!transact(w, &committed)) {
            return 1;
        }
        if (committed) {
            next = next + step > now - BEHIND_MOST ? next + step : now - BEHIND_MOST;
        }
    }
    return 0;
}

static pid_t start_one(struct writers *all, const struct world *world, int number, int rate,
                       uint64_t seed) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid != 0) {
        return pid;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct writer w = {.all = all, .number = number};
    prng_seed(&w.chance, seed * 1000 + (uint64_t)number);
    pen_open(&w.pen, world);
    int code = write_all(&w, rate);
    pen_close(&w.pen);
    _exit(code);
}

bool writers_start(struct writers *w, const struct world *world, int n, int rate, uint64_t seed) {
    w->n = n < WRITERS_MAX ? n : WRITERS_MAX;
    w->shared =
        mmap(NULL, sizeof *w->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (w->shared == MAP_FAILED) {
        w->shared = NULL;
        return false;
    }
    bool good = true;
    for (int i = 0; i < w->n; i++) {
        w->pid[i] = start_one(w, world, i, rate, seed);
        good = good && w->pid[i] > 0;
    }
    return good;
}

bool writers_alive(const struct writers *w) {
    siginfo_t info;
    for (int i = 0; i < w->n; i++) {
        info.si_pid = 0;
        if (waitid(P_PID, (id_t)w->pid[i], &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
            info.si_pid != 0) {
            return false;
        }
    }
    return true;
}

void writers_unpace(struct writers *w) {
    atomic_store(&w->shared->unpaced, true);
}

bool writers_stop(struct writers *w) {
    bool good = true;
    atomic_store(&w->shared->stop, true);
    csn_usec until = time_now() + STOP_BOUND;
    for (int i = 0; i < w->n; i++) {
        int status = 0;
        pid_t got;
        while ((got = waitpid(w->pid[i], &status, WNOHANG)) == 0 && time_now() < until) {
            time_rest(10000);
        }
        good = good && got == w->pid[i] && WIFEXITED(status) && WEXITSTATUS(status) == 0;
        w->pid[i] = got == w->pid[i] ? 0 : w->pid[i];
    }
    return good;
}

void writers_kill(struct writers *w) {
    for (int i = 0; i < w->n; i++) {
        if (w->pid[i] > 0) {
            kill(w->pid[i], SIGKILL);
            waitpid(w->pid[i], NULL, 0);
        }
    }
    if (w->shared) {
        munmap(w->shared, sizeof *w->shared);
    }
    w->shared = NULL;
    w->n = 0;
}

int64_t writers_orders(const struct writers *w) {
    int64_t n = 0;
    for (int i = 0; i < w->n; i++) {
        n += atomic_load(&w->shared->by[i].orders);
    }
    return n;
}

int64_t writers_events(const struct writers *w) {
    int64_t n = 0;
    for (int i = 0; i < w->n; i++) {
        n += atomic_load(&w->shared->by[i].events);
    }
    return n;
}

int64_t writers_commits(const struct writers *w) {
    int64_t n = 0;
    for (int i = 0; i < w->n; i++) {
        n += atomic_load(&w->shared->by[i].commits);
    }
    return n;
}

int64_t writers_undone(const struct writers *w) {
    int64_t n = 0;
    for (int i = 0; i < w->n; i++) {
        n += atomic_load(&w->shared->by[i].undone);
    }
    return n;
}
