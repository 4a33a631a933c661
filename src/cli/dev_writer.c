/* dev_writer.c: the shop's application in `consign dev`: five orders a second, each with its event in
 * one transaction, written as any program would: plain SQL. One in twenty has a currency that the
 * demo's handler does not know. */
#include "cli/dev_kit.h"
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { PAUSE_NS = 200000000, FIRST = 10001, EVERY = 20 };

static volatile sig_atomic_t end_asked, paused;

static void on_signal(int number) {
    if (number == SIGUSR1)
        paused = !paused;
    else
        end_asked = 1;
}

static csn_status next_number(struct db *d, int64_t *ret, csn_error *err) {
    bool row = false;
    *ret = FIRST;
    return db_int(d,
                  "SELECT max(10000, coalesce(max(CAST(order_id AS INTEGER)), 0)) + 1 FROM orders "
                  "WHERE order_id GLOB '1[0-9][0-9][0-9][0-9]*'",
                  NULL, 0, ret, &row, err);
}

static csn_status run(struct db *d, const char *sql, const char *const *args, int n,
                      csn_error *err) {
    struct stmt *s = NULL;
    bool row = false;
    csn_status st = db_prepare(d, sql, &s, err);
    for (int i = 0; i < n && st == CSN_OK; i++)
        stmt_bind_text(s, i + 1, args[i]);
    if (st == CSN_OK)
        st = stmt_next(s, &row, err);
    stmt_close(s);
    return st;
}

static csn_status write_order(struct db *d, int64_t number, csn_error *err) {
    static const char *const sku[] = {"A", "B", "A", "C", "B", "A", "D", "E"};
    char order[24], id[32], qty[8], payload[120];
    const char *what = sku[number % 8];
    bool strange = number % EVERY == 0;
    (void)snprintf(order, sizeof order, "%" PRId64, number);
    (void)snprintf(id, sizeof id, "E-%" PRId64 "-1", number);
    (void)snprintf(qty, sizeof qty, "%d", 1 + (int)(number % 3));
    (void)snprintf(payload, sizeof payload, "{\"sku\":\"%s\",\"qty\":%s,\"currency\":\"%s\"}", what,
                   qty, strange ? "XTS" : "CNY");
    csn_status s = db_begin(d, err);
    if (s == CSN_OK)
        s = run(d, "INSERT INTO orders(order_id, sku, qty) VALUES (?1, ?2, CAST(?3 AS INTEGER))",
                (const char *[]){order, what, qty}, 3, err);
    if (s == CSN_OK)
        s = run(d,
                "INSERT INTO outbox_events(event_id, aggregate_type, aggregate_id, "
                "aggregate_version, event_type, payload) VALUES (?1, 'order', ?2, 1, "
                "'OrderCreated', ?3)",
                (const char *[]){id, order, payload}, 3, err);
    if (s == CSN_OK)
        return db_commit(d, err);
    db_rollback(d);
    return s;
}

static void rest(long ns) {
    (void)nanosleep(&(struct timespec){ns / 1000000000, ns % 1000000000}, NULL);
}

/* Somebody may hold the lock for as long as he likes: no order is written then. What does not pass
 * ends the writer, and the parent says so. */
static csn_status write_all(struct db *d, csn_error *err) {
    int64_t number = 0;
    csn_status s = next_number(d, &number, err);
    while (!end_asked && (s == CSN_OK || s == CSN_AGAIN)) {
        if (!paused) {
            s = write_order(d, number, err);
            number += s == CSN_OK;
        }
        rest(PAUSE_NS);
    }
    return s;
}

_Noreturn void dev_write(const char *orders_url) {
    struct sigaction act = {.sa_handler = on_signal};
    struct db *d = NULL;
    csn_error err;
    sigset_t none;
    error_clear(&err);
    (void)sigaction(SIGTERM, &act, NULL);
    (void)sigaction(SIGUSR1, &act, NULL);
    (void)signal(SIGINT, SIG_IGN);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    csn_status s = db_open(orders_url, 0, &d, &err);
    if (s == CSN_OK)
        s = write_all(d, &err);
    db_close(d);
    if (s != CSN_OK && !end_asked)
        (void)fprintf(stderr, "CSN-%04d %s\n", err.code, err.text);
    _exit(s == CSN_OK || end_asked ? 0 : 1);
}
