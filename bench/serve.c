/* serve.c: measures a daemon that runs, from outside: fills its outbox, writes to it in an open loop,
 * reads what the system says of the process and what the databases say of the events.
 *
 *   bench-serve fill URL N                  N orders with their events, in one transaction
 *   bench-serve write URL RATE SECONDS      one commit each, at planned instants, whether the last was
 *                                           quick or not; created_at is the planned instant
 *   bench-serve wait STOCK N SECONDS        until N deliveries ended
 *   bench-serve path ORDERS STOCK           events/s from the first claim to the last effect
 *   bench-serve latency ORDERS STOCK NAME   planned instant to effect: quantiles
 *   bench-serve cpu PID SECONDS             processor time, per cent of a core
 *   bench-serve memory PID                  peak of the resident memory
 */
#include "bench/frame.h"
#include "store/db.h"
#include "store/sqlite.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static struct db *open_db(const char *url, unsigned flags) {
    struct db *d = NULL;
    csn_error err = {0};
    if (db_open(url, flags, &d, &err) != CSN_OK)
        die(url, err.text);
    return d;
}

static int64_t number(struct db *d, const char *sql) {
    int64_t n = 0;
    bool row = false;
    csn_error err = {0};
    if (db_int(d, sql, NULL, 0, &n, &row, &err) != CSN_OK || !row)
        die(sql, row ? err.text : "no row");
    return n;
}

static void fill(const char *url, unsigned n) {
    struct db *d = open_db(url, 0);
    char sql[900];
    csn_error err = {0};
    snprintf(sql, sizeof sql,
             "BEGIN IMMEDIATE;"
             "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %u) INSERT "
             "INTO orders(order_id, sku, qty) SELECT 100000 + i, 'A', 1 FROM n;"
             "INSERT INTO outbox_events(event_id, aggregate_type, aggregate_id, aggregate_version, "
             "event_type, payload) SELECT 'E-' || order_id, 'order', order_id, 1, 'OrderCreated', "
             "'{\"sku\":\"B\",\"qty\":1}' FROM orders WHERE CAST(order_id AS INTEGER) > 100000; "
             "COMMIT; PRAGMA wal_checkpoint(TRUNCATE)",
             n);
    if (db_script(d, sql, &err) != CSN_OK)
        die("fill", err.text);
    db_close(d);
}

static void sleep_until(double at) {
    double left = at - wall_now();
    if (left > 0) {
        struct timespec t = {(time_t)(left / 1e6),
                             (long)(left - (double)(time_t)(left / 1e6) * 1e6) * 1000};
        nanosleep(&t, NULL);
    }
}

static void run(struct stmt *s) {
    bool row = false;
    csn_error err = {0};
    if (stmt_next(s, &row, &err) != CSN_OK)
        die("write", err.text);
    stmt_reset(s);
}

static struct stmt *prepare(struct db *d, const char *sql) {
    struct stmt *s = NULL;
    csn_error err = {0};
    if (db_prepare(d, sql, &s, &err) != CSN_OK)
        die(sql, err.text);
    return s;
}

static void write_at(const char *url, unsigned rate, unsigned seconds) {
    struct db *d = open_db(url, 0);
    struct stmt *order = prepare(d, "INSERT INTO orders(order_id, sku, qty) VALUES (?1, 'A', 1)");
    struct stmt *event = prepare(
        d, "INSERT INTO outbox_events(event_id, aggregate_type, aggregate_id, aggregate_version, "
           "event_type, payload, created_at, next_attempt_at) VALUES ('L-' || ?1, 'order', ?1, 1, "
           "'OrderCreated', '{\"sku\":\"A\",\"qty\":1}', ?2, ?2)");
    double began = wall_now();
    csn_usec clock_began = sqlite_clock();
    csn_error err = {0};
    for (unsigned i = 0; i < rate * seconds; i++) {
        char key[24];
        double planned = (double)i * 1e6 / rate;
        sleep_until(began + planned);
        snprintf(key, sizeof key, "%u", 500000 + i);
        if (db_begin(d, &err) != CSN_OK)
            die("begin", err.text);
        stmt_bind_text(order, 1, key);
        run(order);
        stmt_bind_text(event, 1, key);
        stmt_bind_int(event, 2, clock_began + (csn_usec)planned);
        run(event);
        if (db_commit(d, &err) != CSN_OK)
            die("commit", err.text);
    }
    stmt_close(order);
    stmt_close(event);
    db_close(d);
}

static void wait_for(const char *url, int64_t n, unsigned seconds) {
    struct db *d = open_db(url, DB_READ_ONLY);
    double until = wall_now() + seconds * 1e6;
    while (number(d, "SELECT count(*) FROM consumer_inbox WHERE consumer_name = 'stock'") < n) {
        if (wall_now() > until)
            die("wait", "not all were handled in time");
        usleep(50000);
    }
    db_close(d);
}

static void path_rate(const char *orders_url, const char *stock_url) {
    struct db *orders = open_db(orders_url, DB_READ_ONLY),
              *stock = open_db(stock_url, DB_READ_ONLY);
    double n = (double)number(stock, "SELECT count(*) FROM consumer_inbox");
    double took = (double)(number(stock, "SELECT max(processed_at) FROM consumer_inbox") -
                           number(orders, "SELECT min(claimed_at) FROM outbox_events"));
    report_figure(
        "path", "events/s", n * 1e6 / took,
        "first claim to last effect, real daemon, two databases, result events beside it");
    db_close(orders);
    db_close(stock);
}

static int by_usec(const void *a, const void *b) {
    csn_usec x = *(const csn_usec *)a, y = *(const csn_usec *)b;
    return x < y ? -1 : x > y;
}

static void latency(const char *orders_url, const char *stock_url, const char *name) {
    static const struct {
        const char *name;
        double q;
    } quantile[] = {{"p50", 0.50}, {"p99", 0.99}, {"max", 1}};
    struct db *d = open_db(orders_url, DB_READ_ONLY);
    csn_error err = {0};
    char attach[700];
    snprintf(attach, sizeof attach, "ATTACH '%s' AS s", stock_url + strlen("sqlite:"));
    if (db_script(d, attach, &err) != CSN_OK)
        die("attach", err.text);
    size_t n = 0, cap = (size_t)number(d, "SELECT count(*) FROM outbox_events");
    csn_usec *took = calloc(cap + 1, sizeof *took);
    struct stmt *s = prepare(d, "SELECT i.processed_at - e.created_at FROM outbox_events e JOIN "
                                "s.consumer_inbox i ON i.event_id = e.event_id AND i.consumer_name "
                                "= 'stock' WHERE e.event_id GLOB 'L-*'");
    bool row = false;
    if (!took)
        die("latency", "out of memory");
    while (stmt_next(s, &row, &err) == CSN_OK && row && n < cap)
        took[n++] = stmt_int(s, 0);
    if (n == 0)
        die("latency", "no event");
    qsort(took, n, sizeof *took, by_usec);
    for (size_t i = 0; i < ARRAY_LEN(quantile); i++) {
        char whole[60];
        snprintf(whole, sizeof whole, "%s %s", name, quantile[i].name);
        report_figure(whole, "ms", (double)took[(size_t)((double)(n - 1) * quantile[i].q)] / 1000,
                      "planned commit to effect, open loop");
    }
    stmt_close(s);
    free(took);
    db_close(d);
}

/* User and system time of the process, in seconds. */
static double process_cpu(int pid) {
    char path[40], line[1024], *at;
    unsigned long user = 0, kernel = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *f = fopen(path, "re");
    if (!f || !fgets(line, sizeof line, f) || !(at = strrchr(line, ')')) ||
        sscanf(at + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &kernel) != 2)
        die(path, "cannot be read");
    fclose(f);
    return (double)(user + kernel) / (double)sysconf(_SC_CLK_TCK);
}

static void cpu(int pid, unsigned seconds) {
    char conditions[80];
    double before = process_cpu(pid), began = wall_now();
    sleep(seconds);
    double took = (wall_now() - began) / 1e6;
    snprintf(conditions, sizeof conditions, "processor time of the daemon over %u s", seconds);
    report_figure("cpu", "% of a core", (process_cpu(pid) - before) * 100 / took, conditions);
}

static void memory(int pid) {
    char path[40], line[256];
    long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "VmHWM:", 6) == 0)
            kib = strtol(line + 6, NULL, 10);
    if (!f || kib == 0)
        die(path, "cannot be read");
    fclose(f);
    report_figure("memory", "MB", (double)kib * 1024 / 1e6, "VmHWM of the daemon");
}

static unsigned count(const char *text) {
    return (unsigned)strtoul(text, NULL, 10);
}

int main(int argc, char **argv) {
    const char *what = argc > 2 ? argv[1] : "";
    if (strcmp(what, "fill") == 0 && argc == 4)
        fill(argv[2], count(argv[3]));
    else if (strcmp(what, "write") == 0 && argc == 5)
        write_at(argv[2], count(argv[3]), count(argv[4]));
    else if (strcmp(what, "wait") == 0 && argc == 5)
        wait_for(argv[2], count(argv[3]), count(argv[4]));
    else if (strcmp(what, "path") == 0 && argc == 4)
        path_rate(argv[2], argv[3]);
    else if (strcmp(what, "latency") == 0 && argc == 5)
        latency(argv[2], argv[3], argv[4]);
    else if (strcmp(what, "cpu") == 0 && argc == 4)
        cpu((int)count(argv[2]), count(argv[3]));
    else if (strcmp(what, "memory") == 0)
        memory((int)count(argv[2]));
    else
        die("usage", "bench-serve fill|write|wait|path|latency|cpu|memory …");
    return 0;
}
