/* kill.c: two daemons with one configuration, killed over and over while writers do business.
 *
 *   crash-kill [--kills N] [--writers W] [--rate R] [--unpaced S] [--seed S] [--dir D] [--lease MS]
 *              [--keep]
 *
 * Each start of a daemon gets a fate: a crash at the n-th hit of a random failpoint, a kill -9 at a
 * random time, or a SIGSTOP for longer than its lease, a SIGCONT, and a kill later. After N kills
 * both daemons live, and the writers go on for S seconds as fast as they can. Then they stop, the
 * daemons run undisturbed until nothing is under way, SIGTERM ends them, and the books are read by
 * SQL. The exit code is 0 only when nothing is amiss.
 *
 * The test states what it relies on: a kill counts when the daemon had said that it was ready or
 * died at its own failpoint; the writers' own count of acknowledged commits must be the number of
 * rows; each rule of the books must see its canary. */
#include "base/failpoint.h"
#include "writers.h"
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>

enum {
    SLOTS = 2,
    POLL = 10000,
    START_BOUND = 60000000,
    QUIET_BOUND = 120000000, /* without anything new that is done */
    STOP_BOUND = 30000000,
    STUCK_BOUND = 120000000, /* between two kills */
    PAUSES_MAX = 1000,
    STARTS_MAX = 4000,
    HITS_MAX = 8,
    UNPACED_SHORT = 5, /* seconds, when nobody says how many */
    UNPACED_LONG = 30,
    KILLS_MANY = 200
};

enum fate { FATE_LIVE, FATE_KILL, FATE_CRASH, FATE_PAUSE };

struct slot {
    struct daemon_process d;
    enum fate fate;
    int start;         /* index of this start */
    bool idle_will_do; /* its fate may strike while another one has the lanes */
    int place;         /* enum failpoint, with FATE_CRASH */
    csn_usec started, act_at, go_on_at;
};

/* What befell each start, for reading its log afterwards. */
struct start_record {
    char log[PATH_SIZE];
    bool paused;
};

struct run {
    struct world w;
    struct writers writers;
    struct prng chance;
    struct slot slot[SLOTS];
    struct start_record *start;
    int starts, kills, wanted, rate, writer_count, by_hand, pauses, unpaced;
    int killed_at[FAIL_NR];
    struct {
        int64_t from, to; /* ms since 1970: somebody was stopped, and the others recovered */
    } pause[PAUSES_MAX];
    bool keep;
    uint64_t seed;
    csn_usec last_kill;
};

static bool failed(const char *what) {
    printf("  FAILED: %s\n", what);
    return false;
}

/* ---- fates ---- */

static csn_usec draw(struct run *r, csn_usec least, csn_usec spread) {
    return least + (csn_usec)prng_below(&r->chance, (uint64_t)spread);
}

/* How often a place is hit soon after a takeover: few things are parked or recovered. */
static uint64_t hits_of(int place) {
    switch (place) {
    case FAIL_RECOVER_UPDATED:
    case FAIL_PARK_UPDATED:
    case FAIL_PARK_COMMITTED:
    case FAIL_HOST_STOPPING:
        return 1;
    default:
        return HITS_MAX;
    }
}

static bool start_slot(struct run *r, struct slot *s, bool live) {
    char name[64], spec[128] = "";
    struct text t;
    if (r->starts == STARTS_MAX) {
        return failed("more starts than there is room for");
    }
    text_init(&t, name, sizeof name);
    text_add(&t, "daemon-%d-%04d.log", (int)(s - r->slot), r->starts);
    s->fate = live ? FATE_LIVE
                   : (enum fate[]){FATE_KILL,  FATE_CRASH, FATE_CRASH,
                                   FATE_CRASH, FATE_KILL,  FATE_PAUSE}[prng_below(&r->chance, 6)];
    s->idle_will_do = prng_below(&r->chance, 6) == 0;
    s->place = (int)prng_below(&r->chance, FAIL_NR);
    if (s->fate == FATE_CRASH) {
        text_init(&t, spec, sizeof spec);
        text_add(&t, "%s=crash@%d", failpoint_name((enum failpoint)s->place),
                 1 + (int)prng_below(&r->chance, hits_of(s->place)));
    }
    s->start = r->starts++;
    s->started = time_now();
    s->act_at = s->go_on_at = 0;
    if (!daemon_start(&r->w, &s->d, name, spec[0] ? spec : NULL, NULL)) {
        return failed("a daemon cannot be started");
    }
    copy_text(r->start[s->start].log, PATH_SIZE, s->d.log);
    return true;
}

static void count_kill(struct run *r, int place) {
    r->kills++;
    r->last_kill = time_now();
    if (place >= 0) {
        r->killed_at[place]++;
    } else {
        r->by_hand++;
    }
}

static void begin_pause(struct run *r, struct slot *s) {
    kill(s->d.pid, SIGSTOP);
    s->go_on_at = time_now() + draw(r, r->w.lease * 5 / 4, r->w.lease);
    r->start[s->start].paused = true;
    if (r->pauses < PAUSES_MAX) {
        r->pause[r->pauses].from = time_ms();
        r->pause[r->pauses].to = INT64_MAX;
        r->pauses++;
    }
}

static void end_pause(struct run *r, struct slot *s) {
    kill(s->d.pid, SIGCONT);
    s->go_on_at = 0;
    s->fate = FATE_KILL;
    s->act_at = time_now() + draw(r, 200000, 1500000);
    for (int i = 0; i < r->pauses; i++) {
        if (r->pause[i].to == INT64_MAX) {
            r->pause[i].to = time_ms() + 3 * r->w.lease / 1000;
        }
    }
}

/* A daemon that ended: by its failpoint, or for a reason that is a failure. */
static bool ended(struct run *r, struct slot *s, int status) {
    bool at_place = s->fate == FATE_CRASH && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL &&
                    daemon_says(&s->d, "failpoint.crash");
    if (!at_place) {
        printf("  %s: status %x\n", s->d.log, (unsigned)status);
        return failed("a daemon ended by itself");
    }
    count_kill(r, s->place);
    return true;
}

/* Mostly the one that works is struck: the clock of its fate starts when it has lanes. */
static void begin_fate(struct run *r, struct slot *s, csn_usec now) {
    if (daemon_ready(&s->d) && (s->idle_will_do || daemon_says(&s->d, "\"lanes.taken\""))) {
        s->act_at = now + draw(r, 50000, s->fate == FATE_CRASH ? 3000000 : 1200000);
    }
}

static void strike(struct run *r, struct slot *s, csn_usec now) {
    if (s->fate == FATE_PAUSE) {
        begin_pause(r, s);
    } else if (s->fate == FATE_CRASH && s->place == FAIL_HOST_STOPPING) {
        kill(s->d.pid, SIGTERM);
        s->act_at = now + STOP_BOUND; /* it crashes on the way out, or is killed then */
    } else {
        daemon_kill(&s->d);
        count_kill(r, -1);
    }
}

static bool step_slot(struct run *r, struct slot *s) {
    int status;
    csn_usec now = time_now();
    if (s->d.pid == 0) {
        return start_slot(r, s, false);
    }
    if (daemon_ended(&s->d, &status)) {
        return ended(r, s, status);
    }
    if (!s->act_at) {
        begin_fate(r, s, now);
        return s->d.ready || now - s->started < START_BOUND || failed("a daemon is not ready");
    }
    if (s->go_on_at) {
        if (now >= s->go_on_at) {
            end_pause(r, s);
        }
    } else if (now >= s->act_at) {
        strike(r, s, now);
    }
    return true;
}

static void say_rate(const char *phase, int64_t commits, csn_usec took, const char *of) {
    printf("  %s: %" PRId64 " commits in %.1f s, %.0f a second%s\n", phase, commits,
           (double)took / 1e6, took > 0 ? (double)commits * 1e6 / (double)took : 0.0, of);
    fflush(stdout);
}

static bool kill_loop(struct run *r) {
    r->last_kill = time_now();
    while (r->kills < r->wanted) {
        for (int i = 0; i < SLOTS; i++) {
            if (!step_slot(r, &r->slot[i])) {
                return false;
            }
        }
        if (!writers_alive(&r->writers)) {
            return failed("a writer ended by itself");
        }
        if (time_now() - r->last_kill > STUCK_BOUND) {
            return failed("nothing was killed for a long time");
        }
        time_rest(POLL);
    }
    return true;
}

/* ---- the loud end, and the quiet one ---- */

static bool settle_down(struct run *r) {
    for (int i = 0; i < SLOTS; i++) {
        struct slot *s = &r->slot[i];
        if (s->go_on_at) {
            end_pause(r, s);
        }
        daemon_kill(&s->d); /* whatever its fate still was; not counted */
        if (!start_slot(r, s, true)) {
            return false;
        }
    }
    for (int i = 0; i < SLOTS; i++) {
        if (!daemon_wait_ready(&r->slot[i].d, START_BOUND)) {
            return failed("a daemon is not ready at the end");
        }
    }
    return true;
}

static bool all_alive(struct run *r) {
    int status;
    for (int i = 0; i < SLOTS; i++) {
        if (daemon_ended(&r->slot[i].d, &status)) {
            printf("  %s: status %x\n", r->slot[i].d.log, (unsigned)status);
            return failed("a daemon ended by itself");
        }
    }
    return true;
}

/* Nobody is killed, and the writers hurry: who lives keeps its lanes beside them. */
static bool hurry(struct run *r) {
    csn_usec began = time_now(), until = began + (csn_usec)r->unpaced * 1000000;
    int64_t before = writers_commits(&r->writers);
    if (r->unpaced == 0) {
        return true;
    }
    writers_unpace(&r->writers);
    for (; time_now() < until; time_rest(POLL)) {
        if (!all_alive(r)) {
            return false;
        }
        if (!writers_alive(&r->writers)) {
            return failed("a writer ended by itself");
        }
    }
    say_rate("unpaced", writers_commits(&r->writers) - before, time_now() - began, "");
    return true;
}

static bool become_quiet(struct run *r, struct db *d) {
    static const char done_sql[] = "SELECT (SELECT count(*) FROM consumer_inbox) +"
                                   " (SELECT count(*) FROM s.consumer_inbox)";
    csn_usec began = time_now(), last = began, took;
    int64_t done = -1, n;
    while (!world_quiet(d)) {
        n = count_of(d, done_sql);
        last = n != done ? time_now() : last;
        done = n;
        if (time_now() - last > QUIET_BOUND) {
            return failed("it does not become quiet");
        }
        if (!all_alive(r)) {
            return false;
        }
        time_rest(100000);
    }
    took = time_now() - began;
    printf("  quiet after %" PRId64 ".%" PRId64 " s\n", took / 1000000, took / 100000 % 10);
    return true;
}

static bool stop_daemons(struct run *r) {
    bool good = true;
    for (int i = 0; i < SLOTS; i++) {
        if (!daemon_stop(&r->slot[i].d, STOP_BOUND)) {
            good = failed("a daemon did not stop clean");
            daemon_kill(&r->slot[i].d);
        }
    }
    return good;
}

/* ---- the logs ---- */

static int64_t line_ms(const char *line) {
    const char *at = strstr(line, "\"at\":\"");
    struct tm tm = {0};
    const char *rest = at ? strptime(at + 6, "%Y-%m-%dT%H:%M:%S", &tm) : NULL;
    return rest ? (int64_t)timegm(&tm) * 1000 + (*rest == '.' ? strtol(rest + 1, NULL, 10) : 0) : 0;
}

static bool in_pause(const struct run *r, int64_t ms) {
    for (int i = 0; i < r->pauses; i++) {
        if (ms >= r->pause[i].from && ms <= r->pause[i].to) {
            return true;
        }
    }
    return false;
}

/* A lane is lost only by who was stopped, or beside one that was stopped with the write lock. */
static int amiss_in_log(const struct run *r, const struct start_record *s) {
    FILE *f = fopen(s->log, "re");
    char line[4096];
    int n = 0;
    while (f && fgets(line, sizeof line, f)) {
        bool lost = strstr(line, "\"event\":\"lanes.lost\"") != NULL && !s->paused &&
                    !in_pause(r, line_ms(line));
        if (lost || strstr(line, "\"level\":\"error\"")) {
            printf("  %s: %s", s->log, line);
            n++;
        }
    }
    if (f) {
        fclose(f);
    }
    return f ? n : 1;
}

static bool read_logs(const struct run *r) {
    int n = 0;
    for (int i = 0; i < r->starts; i++) {
        n += amiss_in_log(r, &r->start[i]);
    }
    return n == 0 || failed("a lane was lost while its owner lived, or an error was logged");
}

/* ---- the books ---- */

static bool same(const char *what, int64_t a, int64_t b) {
    if (a == b) {
        return true;
    }
    printf("  DIFFERENCE: %s: %" PRId64 " and %" PRId64 "\n", what, a, b);
    return false;
}

static bool read_books(struct run *r, struct db *d) {
    bool good = same("orders acknowledged to the writers, and rows", writers_orders(&r->writers),
                     count_of(d, "SELECT count(*) FROM orders"));
    good &= same("events acknowledged to the writers, and rows", writers_events(&r->writers),
                 count_of(d, "SELECT count(*) FROM outbox_events"));
    good &= same("events, and inbox rows at the stock",
                 count_of(d, "SELECT count(*) FROM outbox_events"),
                 count_of(d, "SELECT count(*) FROM s.consumer_inbox"));
    good &= same("answers, and inbox rows at the orders",
                 count_of(d, "SELECT count(*) FROM s.outbox_events"),
                 count_of(d, "SELECT count(*) FROM consumer_inbox"));
    good &= books_check(d, stdout) == 0;
    return good || failed("the books");
}

static bool something_happened(const struct run *r, struct db *d) {
    bool good = writers_events(&r->writers) > 20 && writers_undone(&r->writers) > 0 &&
                count_of(d, "SELECT count(*) FROM s.reservation WHERE state = 'released'") > 0 &&
                count_of(d, "SELECT count(*) FROM s.consumer_inbox WHERE state = 'dead'") > 0;
    return good || failed("too little happened to prove anything: more kills, or more rate");
}

static void say(const struct run *r, struct db *d) {
    static const struct {
        const char *name, *sql;
    } facts[] = {
        {"orders", "SELECT count(*) FROM orders"},
        {"events", "SELECT count(*) FROM outbox_events"},
        {"answers", "SELECT count(*) FROM s.outbox_events"},
        {"refused", "SELECT count(*) FROM s.consumer_inbox WHERE state = 'refused'"},
        {"dead", "SELECT count(*) FROM s.consumer_inbox WHERE state = 'dead'"},
        {"copies in the queue", "SELECT count(*) FROM consign_queue"},
        {"duplicates suppressed", "SELECT (SELECT coalesce(sum(duplicates), 0) FROM consumer_inbox)"
                                  " + (SELECT coalesce(sum(duplicates), 0) FROM s.consumer_inbox)"},
        {"takeovers of lanes", "SELECT (SELECT sum(epoch - 1) FROM consign_lanes) +"
                               " (SELECT sum(epoch - 1) FROM s.consign_lanes)"},
        {"parkings", "SELECT count(*) FROM s.consign_attempts WHERE kind = 'parked'"},
        {"recovered from dead owners", "SELECT (SELECT count(*) FROM consign_attempts WHERE kind ="
                                       " 'unanswered') + (SELECT count(*) FROM s.consign_attempts"
                                       " WHERE kind = 'unanswered')"},
    };
    printf("  %d starts, %d kills: %d at a random time", r->starts, r->kills, r->by_hand);
    for (int i = 0; i < FAIL_NR; i++) {
        if (r->killed_at[i]) {
            printf(", %d at %s", r->killed_at[i], failpoint_name((enum failpoint)i));
        }
    }
    printf("; %d stops past the lease\n", r->pauses);
    for (size_t i = 0; i < ARRAY_LEN(facts); i++) {
        printf("  %-28s %" PRId64 "\n", facts[i].name, count_of(d, facts[i].sql));
    }
    printf("  %-28s %" PRId64 "\n", "rolled back on purpose", writers_undone(&r->writers));
}

/* ---- the run ---- */

static bool judge(struct run *r) {
    struct db *d = world_open(&r->w);
    bool quiet = become_quiet(r, d), good = stop_daemons(r) && quiet;
    say(r, d);
    good &= read_books(r, d);
    good &= read_logs(r);
    good &= something_happened(r, d);
    if (good && !books_canary(d, stdout)) {
        good = failed("the books do not see everything");
    }
    db_close(d);
    return good;
}

/* The writers keep their pace until the last two daemons live: a daemon that is stopped with the
 * write lock holds them up, and they make up for it when it goes on or dies. */
static bool kill_under_load(struct run *r) {
    csn_usec began = time_now();
    char of[40];
    struct text t;
    text_init(&t, of, sizeof of);
    text_add(&t, " of %d wanted", r->rate);
    bool good = kill_loop(r) && settle_down(r);
    say_rate("killed", writers_commits(&r->writers), time_now() - began, of);
    return good;
}

static bool run(struct run *r) {
    if (!world_make(&r->w, r->w.dir[0] ? r->w.dir : NULL)) {
        return failed("no shop");
    }
    printf("crash-kill: seed %" PRIu64 ", %d kills, in %s\n", r->seed, r->wanted, r->w.dir);
    fflush(stdout);
    /* The first two are up before anybody writes: what is counted happens to daemons that run. */
    for (int i = 0; i < SLOTS; i++) {
        if (!start_slot(r, &r->slot[i], true) || !daemon_wait_ready(&r->slot[i].d, START_BOUND)) {
            return failed("a daemon is not ready");
        }
        r->slot[i].fate = FATE_KILL;
        r->slot[i].act_at = time_now() + 1000000 + i * 1000000;
    }
    if (!writers_start(&r->writers, &r->w, r->writer_count, r->rate, r->seed)) {
        return failed("no writers");
    }
    bool good = kill_under_load(r) && hurry(r);
    good = (writers_stop(&r->writers) || failed("a writer failed")) && good;
    return good && judge(r);
}

static bool number(const char *text, int64_t least, int64_t most, int64_t *ret) {
    char *end;
    *ret = strtoll(text, &end, 10);
    return *text && !*end && *ret >= least && *ret <= most;
}

static bool option(struct run *r, const char *name, const char *value) {
    int64_t n = 0;
    bool good = true;
    if (strcmp(name, "--dir") == 0) {
        return copy_text(r->w.dir, sizeof r->w.dir, value);
    }
    if (strcmp(name, "--kills") == 0) {
        good = number(value, 1, 1000, &n);
        r->wanted = (int)n;
    } else if (strcmp(name, "--writers") == 0) {
        good = number(value, 1, WRITERS_MAX, &n);
        r->writer_count = (int)n;
    } else if (strcmp(name, "--rate") == 0) {
        good = number(value, 1, 5000, &n);
        r->rate = (int)n;
    } else if (strcmp(name, "--unpaced") == 0) {
        good = number(value, 0, 600, &n);
        r->unpaced = (int)n;
    } else if (strcmp(name, "--seed") == 0) {
        good = number(value, 0, INT32_MAX, &n);
        r->seed = (uint64_t)n;
    } else if (strcmp(name, "--lease") == 0) {
        good = number(value, 1000, 60000, &n);
        r->w.lease = n * 1000;
    } else {
        return false;
    }
    return good;
}

static bool options(struct run *r, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--keep") == 0) {
            r->keep = true;
        } else if (i + 1 >= argc || !option(r, argv[i], argv[i + 1])) {
            fprintf(stderr, "usage: crash-kill [--kills N] [--writers W] [--rate R] [--unpaced S] "
                            "[--seed S] [--dir D] [--lease MS] [--keep]\n");
            return false;
        } else {
            i++;
        }
    }
    if (r->unpaced < 0) {
        r->unpaced = r->wanted < KILLS_MANY ? UNPACED_SHORT : UNPACED_LONG;
    }
    r->w.confirm = r->w.lease / 10; /* confirm + 2 lock_wait is at most half a lease */
    r->w.lock_wait = r->w.lease / 5;
    return true;
}

int main(int argc, char **argv) {
    static struct run r;
    r.wanted = 20;
    r.writer_count = 8;
    r.rate = 400;
    r.unpaced = -1;
    r.seed = (uint64_t)time_ms() % 1000000;
    r.w.lease = 2000000;
    if (!options(&r, argc, argv)) {
        return 64;
    }
    prng_seed(&r.chance, r.seed);
    r.start = calloc(STARTS_MAX, sizeof *r.start);
    bool good = r.start && run(&r);
    writers_kill(&r.writers);
    for (int i = 0; i < SLOTS; i++) {
        daemon_kill(&r.slot[i].d);
    }
    if (good && !r.keep) {
        world_remove(&r.w);
    }
    free(r.start);
    printf("%s\n%d passed, %d failed\n", good ? "the books are right" : "kept for reading", good,
           !good);
    return good ? 0 : 1;
}
