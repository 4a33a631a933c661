/* test_daemon.c: the daemon as a process of its own, on databases in a scratch folder: what it
 * carries, how it starts, waits, refuses and stops. The oracle is SQL, not the daemon's word. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "host/clock.h"
#include "host/daemon.h"
#include "store/store.h"

enum { PATIENCE = 15000000, LOG_BYTES_MAX = 1 << 20 };

static const char handler_text[] = "-- handler note\n"
                                   "INSERT INTO effects(event_id) VALUES (:event_id);\n"
                                   "-- expect rows 1\n"
                                   "-- verdict done\n";

/* One scratch folder and one configuration a test. */
struct scene {
    char folder[40], log[80], orders[80], stock[80];
    struct config c;
};

static void path_in(const struct scene *s, const char *name, char *ret, size_t size) {
    snprintf(ret, size, "%s/%s", s->folder, name);
}

static void put_file(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void put_name(char *to, size_t size, const char *text) {
    assert_true(copy_text(to, size, text));
}

static void put_store(struct scene *s, uint32_t i, const char *name, char *url, size_t size) {
    snprintf(url, size, "sqlite:%s/%s.db", s->folder, name);
    put_name(s->c.store[i].name, NAME_MAX_, name);
    put_name(s->c.store[i].url, URL_MAX_, url);
    s->c.store[i].apply = 1;
}

static void scene_new(struct scene *s) {
    memset(s, 0, sizeof *s);
    put_name(s->folder, sizeof s->folder, "/tmp/consign-daemon-XXXXXX");
    assert_non_null(mkdtemp(s->folder));
    path_in(s, "log", s->log, sizeof s->log);
    struct config *c = &s->c;
    put_name(c->node, sizeof c->node, "test");
    put_name(c->log_format, sizeof c->log_format, "text");
    put_name(c->log_level, sizeof c->log_level, "debug");
    c->relay.batch_rows = 200;
    c->relay.batch_bytes = 4 << 20;
    c->relay.probe_min = 1000;
    c->relay.probe_max = 50000;
    c->relay.lease = 3000000;
    c->relay.lock_wait = 300000;
    c->relay.confirm_timeout = 500000;
    c->relay.stop_timeout = 3000000;
    c->relay.retry = (struct retry_policy){.base = 100000,
                                           .max = 1000000,
                                           .jitter = JITTER_FULL,
                                           .failures = 8,
                                           .age = INT64_C(86400000000)};
    put_store(s, 0, "orders", s->orders, sizeof s->orders);
    put_store(s, 1, "stock", s->stock, sizeof s->stock);
    c->stores = 2;
    put_name(c->broker[0].name, NAME_MAX_, "local");
    put_name(c->broker[0].type, sizeof c->broker[0].type, "embedded");
    put_name(c->broker[0].store, NAME_MAX_, "orders");
    c->broker[0].confirm_timeout = c->relay.confirm_timeout;
    c->brokers = 1;
    struct config_subscription *sub = &c->subscription[0];
    put_name(sub->consumer, NAME_MAX_, "stock");
    put_name(sub->broker, NAME_MAX_, "local");
    put_name(sub->store, NAME_MAX_, "stock");
    put_name(sub->match, sizeof sub->match, "Order*");
    sub->partitions = 8;
    sub->retry = c->relay.retry;
    path_in(s, "note.sql", sub->handler_path, sizeof sub->handler_path);
    c->subscriptions = 1;
    put_file(sub->handler_path, handler_text);
    assert_int_equal(schema_apply(s->orders, NULL), CSN_OK);
    assert_int_equal(schema_apply(s->stock, NULL), CSN_OK);
}

static void scene_end(struct scene *s) {
    static const char *const name[] = {"log",           "note.sql", "orders.db",    "orders.db-wal",
                                       "orders.db-shm", "stock.db", "stock.db-wal", "stock.db-shm",
                                       "fifo",          "next",     "other.sql"};
    for (size_t i = 0; i < ARRAY_LEN(name); i++) {
        char path[80];
        path_in(s, name[i], path, sizeof path);
        unlink(path);
    }
    assert_int_equal(rmdir(s->folder), 0);
}

static void run_sql(const char *url, const char *sql) {
    struct db *d = NULL;
    csn_error err = {0};
    if (db_open(url, DB_ANY_SCHEMA, &d, &err) != CSN_OK || db_script(d, sql, &err) != CSN_OK) {
        fail_msg("%s: %s", sql, err.text);
    }
    db_close(d);
}

static int64_t ask(const char *url, const char *sql) {
    struct db *d = NULL;
    csn_error err = {0};
    int64_t n = -1;
    bool row = false;
    if (db_open(url, DB_READ_ONLY | DB_ANY_SCHEMA, &d, &err) != CSN_OK ||
        db_int(d, sql, NULL, 0, &n, &row, &err) != CSN_OK) {
        fail_msg("%s: %s", sql, err.text);
    }
    db_close(d);
    return n;
}

static void wait_for(const char *url, const char *sql, int64_t wanted) {
    csn_usec until = clock_now() + PATIENCE;
    int64_t n;
    while ((n = ask(url, sql)) != wanted) {
        if (clock_now() > until) {
            fail_msg("%s stays %lld, not %lld", sql, (long long)n, (long long)wanted);
        }
        usleep(5000);
    }
}

/* The new configuration is the old one with the lines "KEY VALUE" of the file "next". */
static csn_status read_next(void *arg, struct config *ret, service_mistake *tell, void *tell_arg,
                            csn_error *err) {
    const struct scene *s = arg;
    char path[80], line[300];
    csn_status status = CSN_OK;
    path_in(s, "next", path, sizeof path);
    FILE *f = fopen(path, "r");
    if (!f)
        return error_set(err, CSN_INVALID, ERR_CONFIG_NONE, "%s", path);
    *ret = s->c;
    while (fgets(line, sizeof line, f)) {
        csn_error why = {0};
        char *value = strchr(line, ' ');
        line[strcspn(line, "\n")] = '\0';
        *value++ = '\0';
        if (config_put(ret, line, value, &why) != CSN_OK) {
            tell(tell_arg, why.code, line, "next:1", why.text);
            status = CSN_INVALID;
        }
    }
    fclose(f);
    return status;
}

static void put_next(const struct scene *s, const char *text) {
    char path[80];
    path_in(s, "next", path, sizeof path);
    put_file(path, text);
}

static pid_t daemon_start(const struct scene *s, const char *failpoints) {
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that is ended leaves no daemon behind */
        int fd = open(s->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        FILE *say = fopen(s->log, "a");
        if (fd < 0 || !say) {
            _exit(99);
        }
        const struct service_options o = {.drivers = store_drivers,
                                          .all = true,
                                          .say = say,
                                          .failpoints = failpoints,
                                          .log_fd = fd,
                                          .reload = read_next,
                                          .reload_arg = (void *)(uintptr_t)s};
        csn_error err;
        int code = daemon_run(&s->c, &o, &err);
        fclose(say);
        close(fd);
        exit(code);
    }
    return pid;
}

/* The log so far; static because one test reads at a time. */
static const char *log_text(const struct scene *s) {
    static char text[LOG_BYTES_MAX];
    size_t n = 0;
    FILE *f = fopen(s->log, "r");
    if (f) {
        n = fread(text, 1, sizeof text - 1, f);
        fclose(f);
    }
    text[n] = '\0';
    return text;
}

static void wait_log(const struct scene *s, const char *wanted) {
    csn_usec until = clock_now() + PATIENCE;
    while (!strstr(log_text(s), wanted)) {
        if (clock_now() > until) {
            fail_msg("no \"%s\" in the log:\n%s", wanted, log_text(s));
        }
        usleep(5000);
    }
}

/* The wait status of a daemon that ends by itself, or after its signal. */
static int wait_end(const struct scene *s, pid_t pid) {
    csn_usec until = clock_now() + PATIENCE;
    int status = 0;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (clock_now() > until) {
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            fail_msg("the daemon did not end:\n%s", log_text(s));
        }
        usleep(5000);
    }
    return status;
}

static void assert_exit(const struct scene *s, pid_t pid, int code) {
    int status = wait_end(s, pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != code) {
        fail_msg("status %x, wanted exit %d:\n%s", (unsigned)status, code, log_text(s));
    }
}

static void stop(const struct scene *s, pid_t pid) {
    assert_int_equal(kill(pid, SIGTERM), 0);
    assert_exit(s, pid, 0);
}

static void write_orders(const struct scene *s, int from, int n) {
    char sql[600];
    snprintf(sql, sizeof sql,
             "WITH RECURSIVE i(x) AS (SELECT %d UNION ALL SELECT x + 1 FROM i WHERE x < %d) "
             "INSERT INTO outbox_events(event_id, aggregate_type, aggregate_id, aggregate_version, "
             "event_type, payload) "
             "SELECT 'e' || x, 'order', 'o' || (x %% 10), x / 10 + 1, 'OrderCreated', '{\"n\":' || "
             "x || '}' FROM i",
             from, from + n - 1);
    run_sql(s->orders, sql);
}

static void add_effects(const struct scene *s) {
    run_sql(
        s->stock,
        "CREATE TABLE effects(event_id TEXT NOT NULL) STRICT"); /* not unique: twice would show */
}

static const char sent[] = "SELECT count(*) FROM outbox_events WHERE status = 'sent'";
static const char effects[] = "SELECT count(*) FROM effects";
static const char acked[] = "SELECT count(*) FROM consign_queue WHERE acked_at IS NOT NULL";

static void events_are_carried_and_the_stop_is_clean(void **state) {
    (void)state;
    struct scene s;
    scene_new(&s);
    add_effects(&s);
    write_orders(&s, 0, 50);
    pid_t pid = daemon_start(&s, NULL);
    wait_log(&s, " ready ");
    write_orders(&s, 50, 50);
    wait_for(s.stock, effects, 100);
    wait_for(s.orders, sent, 100);
    wait_for(s.orders, acked, 100);
    stop(&s, pid);
    assert_int_equal(ask(s.stock, "SELECT count(DISTINCT event_id) FROM effects"), 100);
    assert_int_equal(ask(s.stock, "SELECT count(*) FROM consumer_inbox WHERE state = 'done'"), 100);
    assert_int_equal(ask(s.orders, "SELECT count(*) FROM consign_lanes WHERE owner IS NOT NULL"),
                     0);
    assert_int_equal(ask(s.orders, "SELECT count(*) FROM consign_members WHERE ended_at IS NULL"),
                     0);
    static const char *const wanted[] = {" start ",
                                         "store.connections store=orders connections=5",
                                         "store.connections store=stock connections=4",
                                         "consumer=stock",
                                         "lanes.taken",
                                         "store.counts store=orders",
                                         "consign is ready",
                                         " stopped "};
    for (size_t i = 0; i < ARRAY_LEN(wanted); i++) {
        if (!strstr(log_text(&s), wanted[i])) {
            fail_msg("no \"%s\" in the log:\n%s", wanted[i], log_text(&s));
        }
    }
    scene_end(&s);
}

/* Processor time of a process, in ticks. */
static unsigned long ticks_of(pid_t pid) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_non_null(fgets(text, sizeof text, f));
    fclose(f);
    unsigned long user = 0, system = 0;
    assert_int_equal(sscanf(strrchr(text, ')'),
                            ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user,
                            &system),
                     2);
    return user + system;
}

static void a_hangup_and_silence_cost_nothing(void **state) {
    (void)state;
    struct scene s;
    scene_new(&s);
    add_effects(&s);
    pid_t pid = daemon_start(&s, NULL);
    wait_log(&s, " ready ");
    put_next(&s, "");
    assert_int_equal(kill(pid, SIGHUP), 0);
    wait_log(&s, " reload taken=0 need_restart=0 handlers=0");
    write_orders(&s, 0, 1);
    wait_for(s.stock, effects, 1);
    /* Idle, it sleeps: some second of the next ones costs less than a quarter of a core, also under
     * a sanitizer and on a machine that is busy with something else. A loop that spins has none. */
    const unsigned long little = (unsigned long)sysconf(_SC_CLK_TCK) / 4;
    unsigned long used = little;
    for (int second = 0; second < 20 && used >= little; second++) {
        unsigned long before = ticks_of(pid);
        usleep(1000000);
        used = ticks_of(pid) - before;
    }
    assert_true(used < little);
    stop(&s, pid);
    scene_end(&s);
}

static const char marking_text[] = "-- handler mark\n"
                                   "INSERT INTO effects(event_id) VALUES ('new ' || :event_id);\n"
                                   "-- verdict done\n";
static const char marked[] = "SELECT count(*) FROM effects WHERE event_id LIKE 'new %'";

static void hang_up(const struct scene *s, pid_t pid, const char *wanted) {
    assert_int_equal(kill(pid, SIGHUP), 0);
    wait_log(s, wanted);
}

/* In the middle of work: what is being applied is applied by the handler that it began with. */
static void a_hangup_brings_a_new_handler(void **state) {
    (void)state;
    struct scene s;
    char path[80], next[200];
    scene_new(&s);
    add_effects(&s);
    write_orders(&s, 0, 200);
    pid_t pid = daemon_start(&s, NULL);
    wait_log(&s, " ready ");
    put_next(&s, "");
    put_file(s.c.subscription[0].handler_path, marking_text);
    hang_up(&s, pid, " reload taken=0 need_restart=0 handlers=1");
    write_orders(&s, 200, 20);
    wait_for(s.stock, effects, 220);
    assert_true(ask(s.stock, marked) >= 20);
    path_in(&s, "other.sql", path, sizeof path);
    put_file(path, handler_text);
    snprintf(next, sizeof next, "subscriptions.stock.handler.sql %s\n", path);
    put_next(&s, next);
    hang_up(&s, pid, " reload taken=1 need_restart=0 handlers=1");
    int64_t before = ask(s.stock, marked);
    write_orders(&s, 220, 20);
    wait_for(s.stock, effects, 240);
    assert_int_equal(ask(s.stock, marked), before);
    stop(&s, pid);
    assert_int_equal(ask(s.stock, "SELECT count(*) FROM consumer_inbox WHERE state = 'done'"), 240);
    scene_end(&s);
}

static void a_hangup_takes_live_keys_and_names_the_others(void **state) {
    (void)state;
    struct scene s;
    scene_new(&s);
    add_effects(&s);
    pid_t pid = daemon_start(&s, NULL);
    wait_log(&s, " ready ");
    put_next(&s, "relay.batch.rows 900\nrelay.probe.max 80ms\nrelay.lease 9s\n"
                 "subscriptions.stock.retry.failures 3\nsubscriptions.extra.store stock\n"
                 "reconcile.grace 1h\n");
    hang_up(&s, pid, " reload taken=3 need_restart=2 handlers=0");
    static const char *const wanted[] = {
        "reload.key key=relay.batch.rows from=200 to=900",
        "reload.key key=relay.probe.max from=50ms to=80ms",
        "reload.key key=subscriptions.stock.retry.failures from=8 to=3",
        "reload.needs_restart key=relay.lease from=3s to=9s",
        "reload.needs_restart key=subscriptions.extra"};
    for (size_t i = 0; i < ARRAY_LEN(wanted); i++) {
        if (!strstr(log_text(&s), wanted[i])) {
            fail_msg("no \"%s\" in the log:\n%s", wanted[i], log_text(&s));
        }
    }
    write_orders(&s, 0, 2000);
    wait_for(s.stock, effects, 2000);
    put_next(&s, "relay.batch.rows 900\nlog.level error\n");
    hang_up(&s, pid, "reload.key key=log.level from=debug to=error");
    stop(&s, pid);
    assert_null(strstr(log_text(&s), " stopped ")); /* that is not an error */
    scene_end(&s);
}

/* Whichever half is wrong, nothing of the other is taken. */
static void a_wrong_reload_changes_nothing(void **state) {
    (void)state;
    struct scene s;
    scene_new(&s);
    add_effects(&s);
    pid_t pid = daemon_start(&s, NULL);
    wait_log(&s, " ready ");
    put_file(s.c.subscription[0].handler_path, marking_text);
    put_next(&s, "relay.batch.rows 900\nrelay.retry.base never\nrelay.leese 3s\n");
    hang_up(&s, pid, "reload.refused mistakes=2");
    assert_non_null(strstr(log_text(&s), "reload.mistake code=CSN-1003 key=relay.retry.base"));
    assert_non_null(strstr(log_text(&s), "reload.mistake code=CSN-1002 key=relay.leese"));
    put_next(&s, "relay.batch.rows 900\n");
    put_file(s.c.subscription[0].handler_path, "-- handler note\nSELEKT 1;\n-- verdict maybe\n");
    hang_up(&s, pid, "reload.refused mistakes=1");
    assert_non_null(strstr(log_text(&s), "reload.mistake code=CSN-4001 key=stock"));
    char path[80];
    path_in(&s, "next", path, sizeof path);
    unlink(path);
    put_file(s.c.subscription[0].handler_path, handler_text);
    hang_up(&s, pid, "reload.mistake code=CSN-1007"); /* a file that is gone is a mistake, too */
    assert_null(strstr(log_text(&s), "reload.key"));
    assert_null(strstr(log_text(&s), "reload.handler"));
    write_orders(&s, 0, 5);
    wait_for(s.stock, effects, 5);
    assert_int_equal(ask(s.stock, marked), 0);
    stop(&s, pid);
    scene_end(&s);
}

static void a_wrong_configuration_ends_at_once(void **state) {
    (void)state;
    struct scene s;
    scene_new(&s);
    put_file(s.c.subscription[0].handler_path, "-- handler note\nSELEKT 1;\n-- verdict maybe\n");
    assert_exit(&s, daemon_start(&s, NULL), 78);
    assert_non_null(strstr(log_text(&s), "CSN-4001"));
    unlink(s.c.subscription[0].handler_path);
    assert_exit(&s, daemon_start(&s, NULL), 78);
    assert_non_null(strstr(log_text(&s), "CSN-1005"));
    put_file(s.c.subscription[0].handler_path, handler_text);
    put_name(s.c.store[1].url, URL_MAX_, "oracle:x");
    assert_exit(&s, daemon_start(&s, NULL), 78);
    assert_non_null(strstr(log_text(&s), "CSN-2012"));
    scene_end(&s);
}

static void a_schema_that_does_not_fit_ends_at_once(void **state) {
    (void)state;
    struct scene s;
    scene_new(&s);
    run_sql(s.stock, "UPDATE consign_meta SET value = '99' WHERE key = 'min_writer'");
    assert_exit(&s, daemon_start(&s, NULL), 65);
    assert_non_null(strstr(log_text(&s), "CSN-2005"));
    s.c.store[1].migrate = true; /* nor is it changed back */
    assert_exit(&s, daemon_start(&s, NULL), 65);
    assert_int_equal(ask(s.stock, "SELECT value FROM consign_meta WHERE key = 'min_writer'"), 99);
    s.c.store[1].migrate = false;
    char path[80];
    path_in(&s, "stock.db", path, sizeof path);
    unlink(path);
    run_sql(s.orders, "SELECT 1");
    struct db *d = NULL;
    assert_int_equal(db_open(s.stock, DB_CREATE | DB_ANY_SCHEMA, &d, NULL), CSN_OK);
    db_close(d);
    assert_exit(&s, daemon_start(&s, NULL), 65);
    assert_non_null(strstr(log_text(&s), "CSN-2004"));
    scene_end(&s);
}

static void migrate_makes_the_tables(void **state) {
    (void)state;
    struct scene s;
    char path[80];
    scene_new(&s);
    path_in(&s, "stock.db", path, sizeof path);
    unlink(path);
    s.c.store[1].migrate = true;
    pid_t pid = daemon_start(&s, NULL);
    wait_log(&s, " ready ");
    add_effects(&s);
    write_orders(&s, 0, 5);
    wait_for(s.stock, effects, 5);
    stop(&s, pid);
    scene_end(&s);
}

/* A shell that forgot to COMMIT. A process of its own: what SQLite knows of locks does not survive
 * a fork of the one that holds them. */
static void lock_store(const char *url, pid_t *ret) {
    int held[2];
    char c = 'x';
    assert_int_equal(pipe(held), 0);
    *ret = fork();
    assert_true(*ret >= 0);
    if (*ret == 0) {
        struct db *d = NULL;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (db_open(url, 0, &d, NULL) != CSN_OK || db_begin(d, NULL) != CSN_OK ||
            write(held[1], &c, 1) != 1) {
            _exit(1);
        }
        sleep(PATIENCE / 1000000 * 4); /* until it is killed */
        _exit(0);
    }
    close(held[1]);
    assert_int_equal(read(held[0], &c, 1), 1); /* it has the lock */
    close(held[0]);
}

static void unlock_store(pid_t l) {
    assert_int_equal(kill(l, SIGKILL), 0); /* SQLite's locks end with their process */
    assert_int_equal(waitpid(l, NULL, 0), l);
}

static void a_locked_store_is_waited_for(void **state) {
    (void)state;
    struct scene s;
    scene_new(&s);
    add_effects(&s);
    s.c.store[1].migrate = true;
    write_orders(&s, 0, 5);
    pid_t l;
    lock_store(s.stock, &l);
    pid_t pid = daemon_start(&s, NULL);
    wait_log(&s, "store.down store=stock");
    wait_for(s.orders, sent, 5); /* the other store works on */
    assert_null(strstr(log_text(&s), "store.up"));
    unlock_store(l);
    wait_log(&s, "store.up store=stock");
    wait_for(s.stock, effects, 5);
    stop(&s, pid);
    const char *first = strstr(log_text(&s), "store.down store=stock");
    assert_null(strstr(first + 1, "store.down store=stock")); /* said once */
    scene_end(&s);
}

static void a_second_signal_ends_at_once(void **state) {
    (void)state;
    struct scene s;
    scene_new(&s);
    add_effects(&s);
    s.c.relay.stop_timeout = PATIENCE * 2;
    pid_t pid = daemon_start(&s, NULL);
    wait_log(&s, " ready ");
    struct db *d = NULL;
    assert_int_equal(db_open(s.orders, 0, &d, NULL), CSN_OK);
    assert_int_equal(db_begin(d, NULL), CSN_OK); /* the lanes cannot be given back */
    assert_int_equal(kill(pid, SIGTERM), 0);
    wait_log(&s, " stopping ");
    usleep(200000);
    assert_int_equal(waitpid(pid, NULL, WNOHANG), 0);
    assert_int_equal(kill(pid, SIGINT), 0);
    assert_exit(&s, pid, 1);
    db_rollback(d);
    db_close(d);
    scene_end(&s);
}

static void a_stop_has_an_end(void **state) {
    (void)state;
    struct scene s;
    scene_new(&s);
    add_effects(&s);
    s.c.relay.stop_timeout = 500000;
    pid_t pid = daemon_start(&s, NULL);
    wait_log(&s, " ready ");
    struct db *d = NULL;
    assert_int_equal(db_open(s.orders, 0, &d, NULL), CSN_OK);
    assert_int_equal(db_begin(d, NULL), CSN_OK);
    csn_usec from = clock_now();
    assert_int_equal(kill(pid, SIGTERM), 0);
    assert_exit(&s, pid, 1);
    assert_true(clock_now() - from < 10000000);
    db_rollback(d);
    db_close(d);
    scene_end(&s);
}

static void failpoints_need_the_marker(void **state) {
    (void)state;
    struct scene s;
    scene_new(&s);
    add_effects(&s);
    assert_int_equal(lab_marker_set(s.orders, NULL), CSN_OK);
    assert_exit(&s, daemon_start(&s, "relay.confirmed=crash"), 77);
    assert_non_null(strstr(log_text(&s), "CSN-2013"));
    assert_int_equal(lab_marker_set(s.stock, NULL), CSN_OK);
    assert_exit(&s, daemon_start(&s, "relay.confirmed=burn"), 78);
    scene_end(&s);
}

/* Published, confirmed, and dead before it was marked: sent again by the next process, and its
 * effect is there once. */
static void a_crash_after_the_confirm_repeats_nothing(void **state) {
    (void)state;
    static const char *const places[] = {"relay.claimed=crash", "relay.confirmed=crash",
                                         "inbox.received=crash"};
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        struct scene s;
        scene_new(&s);
        add_effects(&s);
        assert_int_equal(lab_marker_set(s.orders, NULL), CSN_OK);
        assert_int_equal(lab_marker_set(s.stock, NULL), CSN_OK);
        write_orders(&s, 0, 20);
        pid_t pid = daemon_start(&s, places[i]);
        int status = wait_end(&s, pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        pid = daemon_start(&s, NULL);
        wait_for(s.orders, sent, 20);
        wait_for(s.orders, "SELECT count(*) FROM consign_queue WHERE acked_at IS NULL", 0);
        stop(&s, pid);
        assert_int_equal(ask(s.stock, effects), 20);
        assert_int_equal(ask(s.stock, "SELECT count(DISTINCT event_id) FROM effects"), 20);
        if (i == 1) {
            assert_int_equal(ask(s.orders, "SELECT count(*) FROM consign_queue"), 40);
            assert_int_equal(ask(s.stock, "SELECT sum(duplicates) FROM consumer_inbox"), 20);
        }
        scene_end(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_are_carried_and_the_stop_is_clean),
        cmocka_unit_test(a_hangup_and_silence_cost_nothing),
        cmocka_unit_test(a_hangup_brings_a_new_handler),
        cmocka_unit_test(a_hangup_takes_live_keys_and_names_the_others),
        cmocka_unit_test(a_wrong_reload_changes_nothing),
        cmocka_unit_test(a_wrong_configuration_ends_at_once),
        cmocka_unit_test(a_schema_that_does_not_fit_ends_at_once),
        cmocka_unit_test(migrate_makes_the_tables),
        cmocka_unit_test(a_locked_store_is_waited_for),
        cmocka_unit_test(a_second_signal_ends_at_once),
        cmocka_unit_test(a_stop_has_an_end),
        cmocka_unit_test(failpoints_need_the_marker),
        cmocka_unit_test(a_crash_after_the_confirm_repeats_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
