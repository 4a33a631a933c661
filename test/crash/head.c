/* head.c: one failed event with a hundred thousand behind it, and everybody else.
 *
 *   crash-head [--followers N] [--others N] [--rounds N] [--ratio PERCENT] [--keep]
 *
 * First the events of other keys alone: how fast are they sent? Then the same number behind a head
 * that failed and its followers: from the moment when the last follower waits, how fast are they
 * sent now? A row that waits must cost the others nothing, so that the second rate is nearly the
 * first. A machine that does other things disturbs one measurement or the other: the pair is
 * measured again, --rounds times at most, until it holds. Then `consign event cancel` ends the
 * head, and its followers must be sent in the order of their versions, each once. */
#include "world.h"
#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

enum { POLL = 50000, READY_BOUND = 60000000, KEY_EVENTS = 10 };

static const char config[] =
    "stores: { orders: { url: \"sqlite:orders.db\" } }\n"
    "brokers: { local: { type: embedded, store: orders } }\n"
    "subscriptions:\n"
    "  sink: { from: { broker: local }, store: orders, match: \"Step*\",\n"
    "          handler: { sql: handlers/sink.sql } }\n"
    "relay: { retry: { failures: 1 } }\n"; /* an event that nobody takes fails at once */

static const char handler[] = "-- handler sink\n-- verdict done\n";

struct options {
    int64_t followers, others, rounds, percent;
    bool keep;
};

struct run {
    struct world w;
    struct daemon_process d;
    struct db *db;
    csn_usec bound; /* of a drain: generous, by size */
};

struct drain {
    double rate, cpu_per_event; /* events a second; microseconds */
};

static bool failed(const char *what) {
    printf("  FAILED: %s\n", what);
    return false;
}

/* ---- one shop ---- */

static bool open_run(struct run *r) {
    r->w = (struct world){.lease = 30000000, .confirm = 1000000, .lock_wait = 1000000};
    if (!world_make(&r->w, NULL) || !world_write(&r->w, "consign.yaml", config) ||
        !world_write(&r->w, "handlers/sink.sql", handler)) {
        return failed("no shop");
    }
    r->db = world_open(&r->w);
    if (!daemon_start(&r->w, &r->d, "daemon.log", NULL, NULL) ||
        !daemon_wait_ready(&r->d, READY_BOUND)) {
        return failed("the daemon is not ready");
    }
    return true;
}

static void close_run(struct run *r, bool keep) {
    daemon_kill(&r->d);
    db_close(r->db);
    r->db = NULL;
    if (!keep) {
        world_remove(&r->w);
    }
}

static bool script(struct run *r, const char *sql) {
    csn_error err = {.status = CSN_OK};
    bool good = db_begin(r->db, &err) == CSN_OK && db_script(r->db, sql, &err) == CSN_OK &&
                db_commit(r->db, &err) == CSN_OK;
    if (!good) {
        printf("  %s\n", err.text);
        db_rollback(r->db);
    }
    return good;
}

static void add_events(struct text *t, const char *id, const char *key, int64_t n, int64_t keys) {
    text_add(
        t,
        "INSERT INTO outbox_events(event_id, aggregate_type, aggregate_id, aggregate_version,\n"
        "  event_type, payload)\n"
        "WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < %" PRId64
        ")\n"
        "SELECT '%s' || i, 'key', '%s' || (i %% %" PRId64 "), 2 + i / %" PRId64
        ", 'Step', '{}' FROM n;\n",
        n, id, key, keys, keys);
}

static bool is_done(struct run *r, const char *sql, csn_usec rest) {
    for (csn_usec until = time_now() + r->bound; count_of(r->db, sql) == 0; time_rest(rest)) {
        if (time_now() > until) {
            return false;
        }
    }
    return true;
}

static double cpu_of(pid_t pid) {
    char path[64], line[1024];
    struct text t;
    text_init(&t, path, sizeof path);
    text_add(&t, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "re");
    bool good = f && fgets(line, sizeof line, f);
    if (f) {
        fclose(f);
    }
    const char *rest = good ? strrchr(line, ')') : NULL;
    unsigned long user = 0, kernel = 0;
    if (!rest || sscanf(rest + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
                        &kernel) != 2) {
        return 0;
    }
    return (double)(user + kernel) * 1e6 / (double)sysconf(_SC_CLK_TCK);
}

/* From now until all that is due was sent. */
static bool measure(struct run *r, struct drain *ret) {
    static const char left[] =
        "SELECT (SELECT count(*) FROM outbox_events WHERE status = 'pending')"
        " + (SELECT count(*) FROM outbox_events WHERE status = 'sending')";
    static const char none[] = "SELECT NOT EXISTS (SELECT 1 FROM outbox_events WHERE status IN"
                               " ('pending', 'sending', 'unknown'))";
    csn_usec began = time_now();
    double cpu = cpu_of(r->d.pid);
    int64_t n = count_of(r->db, left);
    if (n == 0 || !is_done(r, none, POLL)) {
        return failed(n == 0 ? "nothing was left to be measured" : "the drain does not end");
    }
    ret->rate = (double)n * 1e6 / (double)(time_now() - began);
    ret->cpu_per_event = (cpu_of(r->d.pid) - cpu) / (double)n;
    printf("  %" PRId64 " events: %.0f/s, %.0f us of CPU each\n", n, ret->rate, ret->cpu_per_event);
    fflush(stdout);
    return true;
}

/* ---- the two measurements ---- */

static bool alone(const struct options *o, struct drain *ret) {
    struct run r = {.bound = 60000000 + o->others * 2000};
    char sql[2048];
    struct text t;
    text_init(&t, sql, sizeof sql);
    add_events(&t, "O", "k", o->others, o->others / KEY_EVENTS);
    printf("the others alone\n");
    bool good = open_run(&r) && script(&r, sql) && measure(&r, ret);
    close_run(&r, false);
    return good;
}

static bool fail_the_head(struct run *r) {
    return script(r, "INSERT INTO outbox_events(event_id, aggregate_type, aggregate_id,\n"
                     "  aggregate_version, event_type, payload)\n"
                     "VALUES ('HEAD', 'key', 'head0', 1, 'NobodyTakesThis', '{}')") &&
           (is_done(r, "SELECT status = 'failed' FROM outbox_events WHERE event_id = 'HEAD'",
                    POLL) ||
            failed("the head does not fail"));
}

static bool blocked(const struct options *o, struct run *r, struct drain *ret) {
    char sql[4096], last[200];
    struct text t;
    text_init(&t, sql, sizeof sql);
    add_events(&t, "F", "head", o->followers, 1);
    add_events(&t, "O", "k", o->others, o->others / KEY_EVENTS);
    text_init(&t, last, sizeof last);
    text_add(&t, "SELECT status = 'waiting' FROM outbox_events WHERE event_id = 'F%" PRId64 "'",
             o->followers - 1);
    printf("behind a failed head with %" PRId64 " followers\n", o->followers);
    if (!open_run(r) || !fail_the_head(r) || !script(r, sql)) {
        return false;
    }
    csn_usec began = time_now();
    if (!is_done(r, last, POLL / 5)) {
        return failed("the followers do not come to wait");
    }
    double seconds = (double)(time_now() - began) / 1e6;
    printf("  the last follower waits after %.2f s: %.0f rows parked a second\n", seconds,
           (double)o->followers / seconds);
    return measure(r, ret);
}

/* ---- the end of the head ---- */

static bool check(struct run *r, const char *what, const char *sql) {
    int64_t n = count_of(r->db, sql);
    if (n != 0) {
        printf("  DIFFERENCE: %s: %" PRId64 "\n", what, n);
    }
    return n == 0;
}

static bool cancel_head(const struct options *o, struct run *r) {
    char out[PATH_SIZE], yaml[PATH_SIZE];
    if (!world_path(&r->w, "cancel.out", out) || !world_path(&r->w, "consign.yaml", yaml)) {
        return false;
    }
    if (count_of(r->db, "SELECT count(*) FROM outbox_events WHERE status = 'waiting'") !=
        o->followers) {
        return failed("not all followers wait");
    }
    csn_usec began = time_now();
    int code = run_program(&r->w,
                           (const char *const[]){"event", "cancel", "HEAD", "-c", yaml, "--reason",
                                                 "nobody takes it", NULL},
                           out);
    if (code != 0) {
        printf("  see %s\n", out);
        return failed("consign event cancel");
    }
    if (!is_done(r,
                 "SELECT NOT EXISTS (SELECT 1 FROM outbox_events WHERE status IN"
                 " ('waiting', 'pending', 'sending', 'unknown'))",
                 4 * POLL)) {
        return failed("the followers are not sent");
    }
    double seconds = (double)(time_now() - began) / 1e6;
    printf("the head is cancelled: %" PRId64 " followers sent in %.2f s, %.0f/s\n", o->followers,
           seconds, (double)o->followers / seconds);
    return true;
}

static bool check_order(const struct options *o, struct run *r) {
    char all[200];
    struct text t;
    text_init(&t, all, sizeof all);
    text_add(&t, "SELECT (SELECT count(*) FROM consign_queue) - %" PRId64,
             o->followers + o->others);
    bool good = check(r, "each event is in the queue once", all);
    good &= check(r, "rows that were not sent",
                  "SELECT count(*) FROM outbox_events WHERE status <>"
                  " 'sent' AND event_id <> 'HEAD'");
    good &= check(r, "events that overtook an earlier one of their key",
                  "SELECT count(*) FROM (SELECT aggregate_version v, lag(aggregate_version, 1, 1)\n"
                  "  OVER (PARTITION BY aggregate_id ORDER BY pos) before FROM consign_queue)\n"
                  "WHERE v <> before + 1");
    return good || failed("the order of the queue");
}

static void say_counters(struct run *r) {
    static const char parked[] =
        "SELECT max(json_extract(counters, '$.parked')) FROM consign_members",
                      claims[] =
                          "SELECT max(json_extract(counters, '$.claims')) FROM consign_members";
    printf("  the daemon counted %" PRId64 " parked rows beside %" PRId64
           " claims that took rows\n",
           count_of(r->db, parked), count_of(r->db, claims));
}

static bool release(const struct options *o, struct run *r) {
    bool good = cancel_head(o, r) && check_order(o, r);
    if (good && !daemon_stop(&r->d, READY_BOUND)) {
        good = failed("the daemon did not stop clean");
    }
    if (good) {
        say_counters(r);
    }
    return good;
}

/* ---- the run ---- */

static bool run(const struct options *o) {
    double best = 0;
    for (int64_t i = 0; i < o->rounds; i++) {
        struct drain a = {0, 0}, b = {0, 0};
        struct run r = {.bound = 60000000 + (o->others + o->followers) * 2000};
        if (!alone(o, &a)) {
            return false;
        }
        bool good = blocked(o, &r, &b);
        double ratio = good ? b.rate / a.rate : 0;
        best = ratio > best ? ratio : best;
        printf("ratio %.2f (of CPU for an event: %.2f)\n", ratio,
               good && b.cpu_per_event > 0 ? a.cpu_per_event / b.cpu_per_event : 0);
        bool last = !good || ratio * 100 >= (double)o->percent || i + 1 == o->rounds;
        if (last) {
            good = good && release(o, &r);
        }
        close_run(&r, o->keep && last);
        if (last) {
            return good && (best * 100 >= (double)o->percent ||
                            failed("the others are slower than they were alone"));
        }
    }
    return false;
}

static bool option(struct options *o, const char *name, const char *value) {
    static const char *const names[] = {"--followers", "--others", "--rounds", "--ratio"};
    int64_t *const to[] = {&o->followers, &o->others, &o->rounds, &o->percent};
    const int64_t least[] = {1, KEY_EVENTS, 1, 1};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strcmp(name, names[i]) == 0) {
            char *end;
            *to[i] = strtoll(value, &end, 10);
            return *value && !*end && *to[i] >= least[i] && *to[i] <= 10000000;
        }
    }
    return false;
}

int main(int argc, char **argv) {
    struct options o = {.followers = 100000, .others = 50000, .rounds = 3, .percent = 90};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--keep") == 0) {
            o.keep = true;
        } else if (i + 1 < argc && option(&o, argv[i], argv[i + 1])) {
            i++;
        } else {
            fprintf(stderr, "usage: crash-head [--followers N] [--others N] [--rounds N] "
                            "[--ratio PERCENT] [--keep]\n");
            return 64;
        }
    }
    bool good = run(&o);
    printf("%d passed, %d failed\n", good, !good);
    return good ? 0 : 1;
}
