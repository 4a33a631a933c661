/* world_sqlite.c: the suite's world on the real SQLite driver: a database in a folder of its own,
 * connections whose groups run inside flush(), rows read through db.h. A step of the clock moves
 * every instant in the tables the other way. A connection is cut by running its group in a child
 * process that dies by SIGKILL at a failpoint; no connection is open across the fork. */
#include "test/contract/world_sqlite.h"
#include "test/contract/suite.h"

#include "base/failpoint.h"
#include "store/sqlite.h"
#include "store/store.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PORTS_MAX = 32, CUT_NONE = -1 };

const char *const contract_world_name = "sqlite";

struct sqlite_port {
    struct port port;
    struct sqlite_world *world;
    enum role role;
    void *conn;
    struct op *queued, **queued_end, *done;
    int cut; /* enum world_cut of the next group, or CUT_NONE */
    bool wake;
};

struct sqlite_world {
    struct world world;
    char folder[256], url[300], refusal[256];
    struct db *db;
    struct sqlite_port *port[PORTS_MAX];
    struct sql_handler script;
    struct handler handler, swap;
    bool locked;
};

static struct sqlite_world *of(struct world *w) {
    return (struct sqlite_world *)w;
}

const char *world_sqlite_url(struct world *w) {
    return of(w)->url;
}

static void must(csn_status status, const csn_error *err) {
    if (status != CSN_OK)
        world_fail("world: status %d: %s", (int)status, err->text);
}

/* ---- connections ---- */

static csn_usec clock_now(struct world *w) {
    struct timespec t;

    (void)w;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (csn_usec)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void port_submit(struct port *port, struct op *op) {
    struct sqlite_port *p = (struct sqlite_port *)port;

    op->state = OP_PENDING;
    op->next = NULL;
    *p->queued_end = op;
    p->queued_end = &op->next;
}

static void *wake_later(void *arg) {
    struct sqlite_port *p = arg;
    struct timespec pause = {0, 50 * 1000 * 1000};

    nanosleep(&pause, NULL);
    sqlite_driver.wake(p->conn);
    return NULL;
}

static void cut_group(struct sqlite_port *p, struct op *group);

static void port_flush(struct port *port) {
    struct sqlite_port *p = (struct sqlite_port *)port;
    struct op *group = p->queued;
    pthread_t waker;
    bool wake = p->wake;

    p->queued = NULL;
    p->queued_end = &p->queued;
    p->wake = false;
    if (!group)
        return;
    if (wake && pthread_create(&waker, NULL, wake_later, p) != 0)
        world_fail("no thread");
    if (p->cut != CUT_NONE)
        cut_group(p, group);
    else
        sqlite_driver.run(p->conn, group);
    if (wake)
        pthread_join(waker, NULL);
    p->done = group;
}

static struct op *port_reap(struct port *port) {
    struct sqlite_port *p = (struct sqlite_port *)port;
    struct op *op = p->done;

    if (!op)
        return NULL;
    p->done = op->next;
    op->next = NULL;
    op->state = OP_FINISHED;
    return op;
}

static void connect_port(struct sqlite_port *p) {
    csn_error err = {0};

    must(sqlite_driver.open(p->world->url, p->role, &p->conn, &err), &err);
}

static struct port *world_open(struct world *w, enum role role) {
    struct sqlite_world *sw = of(w);
    struct sqlite_port *p = calloc(1, sizeof(*p));
    size_t i = 0;

    while (i < PORTS_MAX && sw->port[i])
        i++;
    if (!p || i == PORTS_MAX)
        world_fail("too many ports");
    p->port = (struct port){port_submit, port_flush, port_reap, PORT_ATOMIC_PUBLISH};
    p->world = sw;
    p->role = role;
    p->queued_end = &p->queued;
    p->cut = CUT_NONE;
    connect_port(p);
    sw->port[i] = p;
    return &p->port;
}

static void world_close(struct world *w, struct port *port) {
    struct sqlite_port *p = (struct sqlite_port *)port;

    for (size_t i = 0; i < PORTS_MAX; i++)
        if (of(w)->port[i] == p)
            of(w)->port[i] = NULL;
    sqlite_driver.close(p->conn);
    free(p);
}

/* ---- a connection that dies ---- */

static const char *cut_place(const struct op *op, enum world_cut cut) {
    static const struct {
        const char *before, *after;
    } place[OP_KIND_NR] = {
        [OP_LEASE] = {"store.lease", "lease.taken"},
        [OP_CLAIM] = {"claim.updated", "claim.committed"},
        [OP_SETTLE] = {"settle.updated", "settle.committed"},
        [OP_RECOVER] = {"recover.updated", NULL},
        [OP_PUBLISH] = {"broker.publish", "broker.stored"},
        [OP_APPLY] = {"apply.handled", "inbox.committed"},
        [OP_TRY] = {"try.handled", "try.committed"},
        [OP_PARK] = {"park.updated", "park.committed"},
        [OP_ACK] = {"broker.ack", "ack.committed"},
    };

    return cut == CUT_BEFORE_COMMIT ? place[op->kind].before : place[op->kind].after;
}

static void die_at(struct sqlite_port *p, struct op *group, enum world_cut cut) {
    const char *place = NULL;
    char spec[64];
    csn_error err = {0};

    for (struct op *op = group; op && !place; op = op->next)
        place = cut_place(op, cut);
    snprintf(spec, sizeof(spec), "%s=crash", place ? place : "none");
    if (failpoint_arm(spec, &err) == CSN_OK &&
        sqlite_driver.open(p->world->url, p->role, &p->conn, &err) == CSN_OK)
        sqlite_driver.run(p->conn, group);
    _exit(1);
}

static void cut_group(struct sqlite_port *p, struct op *group) {
    struct sqlite_world *sw = p->world;
    enum world_cut cut = (enum world_cut)p->cut;
    csn_error err = {0};
    int status = 0;
    pid_t child;

    p->cut = CUT_NONE;
    db_close(sw->db);
    for (size_t i = 0; i < PORTS_MAX; i++)
        if (sw->port[i])
            sqlite_driver.close(sw->port[i]->conn);
    child = fork();
    if (child == 0)
        die_at(p, group, cut);
    if (child < 0 || waitpid(child, &status, 0) != child)
        world_fail("no child process");
    must(db_open(sw->url, 0, &sw->db, &err), &err);
    for (size_t i = 0; i < PORTS_MAX; i++)
        if (sw->port[i])
            connect_port(sw->port[i]);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        world_fail("the child did not die where it should: status %x", (unsigned)status);
    for (struct op *op = group; op; op = op->next)
        error_set(&op->result, CSN_UNKNOWN, 2014, "the connection was cut");
}

static void world_cut(struct world *w, struct port *port, enum world_cut cut) {
    (void)w;
    ((struct sqlite_port *)port)->cut = (int)cut;
}

static void world_wake_soon(struct world *w, struct port *port) {
    (void)w;
    ((struct sqlite_port *)port)->wake = true;
}

/* ---- the store's clock ---- */

static csn_usec world_now(struct world *w) {
    return db_now(of(w)->db);
}

static void world_advance(struct world *w, csn_usec step) {
    static const char *const moves[] = {
        "UPDATE outbox_events SET next_attempt_at = next_attempt_at - ?1, lease_until = "
        "lease_until - ?1,"
        " created_at = created_at - ?1, sent_at = sent_at - ?1, claimed_at = claimed_at - ?1,"
        " published_at = published_at - ?1, first_failed_at = first_failed_at - ?1,"
        " last_failed_at = last_failed_at - ?1, expires_at = expires_at - ?1",
        "UPDATE consumer_inbox SET processed_at = processed_at - ?1, received_at = received_at - "
        "?1,"
        " lease_until = lease_until - ?1, last_duplicate_at = last_duplicate_at - ?1",
        "UPDATE consign_work SET next_attempt_at = next_attempt_at - ?1, lease_until = lease_until "
        "- ?1,"
        " created_at = created_at - ?1, claimed_at = claimed_at - ?1, first_failed_at = "
        "first_failed_at - ?1,"
        " last_failed_at = last_failed_at - ?1, expires_at = expires_at - ?1",
        "UPDATE consign_keys SET parked_at = parked_at - ?1",
        "UPDATE consign_queue SET created_at = created_at - ?1, published_at = published_at - ?1,"
        " expires_at = expires_at - ?1, lease_until = lease_until - ?1, delivered_at = "
        "delivered_at - ?1,"
        " acked_at = acked_at - ?1",
        "UPDATE consign_bindings SET declared_at = declared_at - ?1",
        "UPDATE consign_lanes SET lease_until = lease_until - ?1, taken_at = taken_at - ?1",
        "UPDATE consign_members SET started_at = started_at - ?1, heartbeat_at = heartbeat_at - ?1,"
        " lease_until = lease_until - ?1, ended_at = ended_at - ?1",
        "UPDATE consign_attempts SET at = at - ?1, planned_at = planned_at - ?1, started_at = "
        "started_at - ?1",
        "UPDATE consign_dead_letters SET first_failed_at = first_failed_at - ?1, dead_at = dead_at "
        "- ?1,"
        " last_failed_at = last_failed_at - ?1",
    };
    struct db *d = of(w)->db;
    csn_error err = {0};

    must(db_begin(d, &err), &err);
    for (size_t i = 0; i < ARRAY_LEN(moves); i++) {
        struct stmt *s;
        bool row;

        must(db_prepare(d, moves[i], &s, &err), &err);
        stmt_bind_int(s, 1, step);
        must(stmt_next(s, &row, &err), &err);
        stmt_close(s);
    }
    must(db_commit(d, &err), &err);
}

/* ---- hands ---- */

static void bind_instant(struct stmt *s, int at, csn_usec in, csn_usec now) {
    if (in)
        stmt_bind_int(s, at, now + in);
    else
        stmt_bind_null(s, at);
}

static csn_status insert_one(struct sqlite_world *sw, const struct world_event *e, csn_usec now,
                             csn_error *err) {
    static const char sql[] = "INSERT INTO outbox_events(event_id, aggregate_type, aggregate_id, "
                              "event_type, payload, aggregate_version,"
                              " schema_version, headers, traceparent, correlation_id, "
                              "causation_id, tenant, next_attempt_at, expires_at,"
                              " priority, created_at) VALUES (?1, coalesce(?2, ''), ?3, ?4, ?5, "
                              "?6, ?7, ?8, ?9, ?10, ?11, ?12,"
                              " coalesce(?13, ?16), ?14, ?15, ?16)";
    struct stmt *s;
    bool row;
    csn_status status;

    must(db_prepare(sw->db, sql, &s, err), err);
    stmt_bind_text(s, 1, e->id);
    stmt_bind_text(s, 2, e->aggregate_type);
    stmt_bind_text(s, 3, e->aggregate_id);
    stmt_bind_text(s, 4, e->event_type);
    stmt_bind_text(s, 5, e->payload);
    stmt_bind_int(s, 6, e->version);
    stmt_bind_int(s, 7, e->schema_version ? e->schema_version : 1);
    stmt_bind_text(s, 8, e->headers);
    stmt_bind_text(s, 9, e->traceparent);
    stmt_bind_text(s, 10, e->correlation_id);
    stmt_bind_text(s, 11, e->causation_id);
    stmt_bind_text(s, 12, e->tenant);
    bind_instant(s, 13, e->due_in, now);
    bind_instant(s, 14, e->expires_in, now);
    stmt_bind_int(s, 15, e->priority);
    stmt_bind_int(s, 16, now);
    status = stmt_next(s, &row, err);
    stmt_close(s);
    return status;
}

static const char *world_insert(struct world *w, const struct world_event *e, uint32_t n,
                                bool commit) {
    struct sqlite_world *sw = of(w);
    csn_error err = {0};
    csn_status status = CSN_OK;
    csn_usec now = db_now(sw->db);

    must(db_begin(sw->db, &err), &err);
    for (uint32_t i = 0; i < n && status == CSN_OK; i++)
        status = insert_one(sw, &e[i], now, &err);
    if (status == CSN_OK && commit) {
        must(db_commit(sw->db, &err), &err);
        return NULL;
    }
    db_rollback(sw->db);
    if (status == CSN_OK)
        return NULL;
    copy_text(sw->refusal, sizeof(sw->refusal), err.text);
    return sw->refusal;
}

/* Runs one statement with n texts. */
static void change(struct world *w, const char *sql, const char *const *args, int n) {
    csn_error err = {0};
    struct stmt *s;
    bool row;

    must(db_prepare(of(w)->db, sql, &s, &err), &err);
    for (int i = 0; i < n; i++)
        stmt_bind_text(s, i + 1, args[i]);
    must(stmt_next(s, &row, &err), &err);
    stmt_close(s);
}

static void world_set_status(struct world *w, const char *event_id, const char *status,
                             int waits_for) {
    char waits[12];

    snprintf(waits, sizeof(waits), "%d", waits_for);
    change(
        w,
        "UPDATE outbox_events SET status = ?2, waits_for = CAST(?3 AS INTEGER), claim_token = NULL,"
        " lease_until = NULL WHERE event_id = ?1",
        (const char *[]){event_id, status, waits}, 3);
}

static void world_set_token(struct world *w, const char *event_id, const char *token) {
    change(w, "UPDATE outbox_events SET claim_token = ?2 WHERE event_id = ?1",
           (const char *[]){event_id, token}, 2);
}

static void world_purge_inbox(struct world *w, const char *consumer, const char *event_id) {
    change(w, "DELETE FROM consumer_inbox WHERE consumer_name = ?1 AND event_id = ?2",
           (const char *[]){consumer, event_id}, 2);
}

static void world_purge_sent(struct world *w, const char *event_id) {
    change(w, "DELETE FROM outbox_events WHERE event_id = ?1", &event_id, 1);
}

static void world_refuse(struct world *w, const char *event_type) {
    char sql[256];
    csn_error err = {0};

    snprintf(sql, sizeof(sql),
             "CREATE TRIGGER refuse BEFORE INSERT ON consign_queue WHEN new.event_type = '%s'"
             " BEGIN SELECT RAISE(ABORT, 'refused by the table'); END",
             event_type);
    must(db_script(of(w)->db, sql, &err), &err);
}

static void world_lock(struct world *w, bool on) {
    csn_error err = {0};

    if (on)
        must(db_begin(of(w)->db, &err), &err);
    else
        db_rollback(of(w)->db);
    of(w)->locked = on;
}

static void world_fill(struct world *w, struct port *port, bool full) {
    struct sqlite_conn *c = ((struct sqlite_port *)port)->conn;

    (void)w;
    /* A limit below the present size means the present size. */
    sqlite3_exec(c->db, full ? "PRAGMA max_page_count = 1" : "PRAGMA max_page_count = 1073741823",
                 NULL, NULL, NULL);
}

/* ---- eyes ---- */

/* A statement on its one row, or NULL. */
static struct stmt *look(struct world *w, const char *sql, const char *const *args, int n) {
    csn_error err = {0};
    struct stmt *s;
    bool row;

    must(db_prepare(of(w)->db, sql, &s, &err), &err);
    for (int i = 0; i < n; i++)
        stmt_bind_text(s, i + 1, args[i]);
    must(stmt_next(s, &row, &err), &err);
    if (row)
        return s;
    stmt_close(s);
    return NULL;
}

static bool more_rows(struct stmt *s) {
    csn_error err = {0};
    bool row;

    must(stmt_next(s, &row, &err), &err);
    return row;
}

#define TEXT(s, col, field) copy_text((field), sizeof(field), stmt_text((s), (col)))

static int64_t number(struct stmt *s, int col) {
    return stmt_is_null(s, col) ? -1 : stmt_int(s, col);
}

static csn_usec instant(struct stmt *s, int col) {
    return stmt_is_null(s, col) ? 0 : stmt_int(s, col);
}

static bool world_outbox(struct world *w, const char *event_id, struct outbox_row *ret) {
    struct stmt *s = look(w,
                          "SELECT seq, status, claim_token, route, last_error, attempts, failures, "
                          "tries, waits_for, sent_by, broker_part,"
                          " broker_pos, created_at, next_attempt_at, lease_until, claimed_at, "
                          "published_at, sent_at, first_failed_at,"
                          " last_failed_at FROM outbox_events WHERE event_id = ?1",
                          &event_id, 1);

    if (!s)
        return false;
    *ret = (struct outbox_row){
        .seq = number(s, 0),
        .attempts = number(s, 5),
        .failures = number(s, 6),
        .tries = number(s, 7),
        .waits_for = number(s, 8),
        .sent_by = number(s, 9),
        .broker_part = number(s, 10),
        .broker_pos = number(s, 11),
        .created_at = instant(s, 12),
        .next_attempt_at = instant(s, 13),
        .lease_until = instant(s, 14),
        .claimed_at = instant(s, 15),
        .published_at = instant(s, 16),
        .sent_at = instant(s, 17),
        .first_failed_at = instant(s, 18),
        .last_failed_at = instant(s, 19),
    };
    TEXT(s, 1, ret->status);
    TEXT(s, 2, ret->token);
    TEXT(s, 3, ret->route);
    TEXT(s, 4, ret->last_error);
    stmt_close(s);
    return true;
}

static int64_t count(struct world *w, const char *sql, const char *const *args, int n) {
    struct stmt *s = look(w, sql, args, n);
    int64_t got = number(s, 0);

    stmt_close(s);
    return got;
}

static int64_t world_outbox_count(struct world *w, const char *status, int waits_for) {
    char waits[12];

    snprintf(waits, sizeof(waits), "%d", waits_for);
    return count(w,
                 "SELECT count(*) FROM outbox_events WHERE (?1 IS NULL OR status = ?1)"
                 " AND (?2 = '-1' OR waits_for = CAST(?2 AS INTEGER))",
                 (const char *[]){status, waits}, 2);
}

static bool world_inbox(struct world *w, const char *consumer, const char *event_id,
                        struct inbox_row *ret) {
    struct stmt *s = look(
        w,
        "SELECT state, verdict, digest, result, error, event_type, aggregate_type, aggregate_id, "
        "attempts, duplicates,"
        " entity_version, broker_part, broker_pos, received_at, processed_at, last_duplicate_at"
        " FROM consumer_inbox WHERE consumer_name = ?1 AND event_id = ?2",
        (const char *[]){consumer, event_id}, 2);

    if (!s)
        return false;
    *ret = (struct inbox_row){
        .attempts = number(s, 8),
        .duplicates = number(s, 9),
        .entity_version = number(s, 10),
        .broker_part = number(s, 11),
        .broker_pos = number(s, 12),
        .received_at = instant(s, 13),
        .processed_at = instant(s, 14),
        .last_duplicate_at = instant(s, 15),
    };
    TEXT(s, 0, ret->state);
    TEXT(s, 1, ret->verdict);
    TEXT(s, 2, ret->digest);
    TEXT(s, 3, ret->result);
    TEXT(s, 4, ret->error);
    TEXT(s, 5, ret->event_type);
    TEXT(s, 6, ret->aggregate_type);
    TEXT(s, 7, ret->aggregate_id);
    stmt_close(s);
    return true;
}

static bool world_work(struct world *w, const char *consumer, const char *event_id,
                       struct work_row *ret) {
    struct stmt *s =
        look(w,
             "SELECT seq, aggregate_version, slot, attempts, failures, tries, waits_for, "
             "broker_pos, status, claim_token,"
             " last_error, payload, created_at, next_attempt_at, lease_until, claimed_at, "
             "first_failed_at, last_failed_at"
             " FROM consign_work WHERE kind = 'delivery' AND consumer_name = ?1 AND event_id = ?2",
             (const char *[]){consumer, event_id}, 2);

    if (!s)
        return false;
    *ret = (struct work_row){
        .seq = number(s, 0),
        .version = number(s, 1),
        .slot = number(s, 2),
        .attempts = number(s, 3),
        .failures = number(s, 4),
        .tries = number(s, 5),
        .waits_for = number(s, 6),
        .broker_pos = number(s, 7),
        .created_at = instant(s, 12),
        .next_attempt_at = instant(s, 13),
        .lease_until = instant(s, 14),
        .claimed_at = instant(s, 15),
        .first_failed_at = instant(s, 16),
        .last_failed_at = instant(s, 17),
    };
    TEXT(s, 8, ret->status);
    TEXT(s, 9, ret->token);
    TEXT(s, 10, ret->last_error);
    TEXT(s, 11, ret->payload);
    stmt_close(s);
    return true;
}

static bool world_key(struct world *w, const char *consumer, const char *type, const char *id,
                      struct key_row *ret) {
    struct stmt *s =
        look(w,
             "SELECT head_version, parked_at FROM consign_keys WHERE consumer_name = ?1"
             " AND aggregate_type = ?2 AND aggregate_id = ?3",
             (const char *[]){consumer, type, id}, 3);

    if (!s)
        return false;
    *ret = (struct key_row){number(s, 0), instant(s, 1)};
    stmt_close(s);
    return true;
}

static bool world_queue(struct world *w, const char *subscription, const char *event_id,
                        struct queue_row *ret) {
    struct stmt *s = look(w,
                          "SELECT pos, part, aggregate_version, prev_version, deliveries, epoch, "
                          "routing_version, token, payload,"
                          " published_at, lease_until, delivered_at, acked_at FROM consign_queue "
                          "WHERE subscription = ?1"
                          " AND event_id = ?2 ORDER BY pos DESC LIMIT 1",
                          (const char *[]){subscription, event_id}, 2);

    if (!s)
        return false;
    *ret = (struct queue_row){
        .pos = number(s, 0),
        .part = number(s, 1),
        .version = number(s, 2),
        .prev_version = number(s, 3),
        .deliveries = number(s, 4),
        .epoch = number(s, 5),
        .routing_version = number(s, 6),
        .published_at = instant(s, 9),
        .lease_until = instant(s, 10),
        .delivered_at = instant(s, 11),
        .acked_at = instant(s, 12),
    };
    TEXT(s, 7, ret->token);
    TEXT(s, 8, ret->payload);
    stmt_close(s);
    return true;
}

static int64_t world_queue_count(struct world *w, const char *subscription, bool unacked_only) {
    return count(
        w,
        unacked_only
            ? "SELECT count(*) FROM consign_queue WHERE subscription = ?1 AND acked_at IS NULL"
            : "SELECT count(*) FROM consign_queue WHERE subscription = ?1",
        &subscription, 1);
}

static bool world_lane(struct world *w, const char *name, uint32_t n, struct lane_row *ret) {
    char at[12];
    struct stmt *s;

    snprintf(at, sizeof(at), "%u", n);
    s = look(w,
             "SELECT owner, epoch, lease_until, taken_at FROM consign_lanes WHERE name = ?1"
             " AND lane = CAST(?2 AS INTEGER)",
             (const char *[]){name, at}, 2);
    if (!s)
        return false;
    *ret = (struct lane_row){
        .epoch = number(s, 1), .lease_until = instant(s, 2), .taken_at = instant(s, 3)};
    TEXT(s, 0, ret->owner);
    stmt_close(s);
    return true;
}

static bool world_member(struct world *w, const char *boot, struct member_row *ret) {
    struct stmt *s =
        look(w,
             "SELECT member, label, counters, started_at, heartbeat_at, lease_until, ended_at"
             " FROM consign_members WHERE boot = ?1",
             &boot, 1);

    if (!s)
        return false;
    *ret = (struct member_row){.member = number(s, 0),
                               .started_at = instant(s, 3),
                               .heartbeat_at = instant(s, 4),
                               .lease_until = instant(s, 5),
                               .ended_at = instant(s, 6)};
    TEXT(s, 1, ret->label);
    TEXT(s, 2, ret->counters);
    stmt_close(s);
    return true;
}

static uint32_t world_attempts(struct world *w, const char *event_id, struct attempt_row *ret,
                               uint32_t max) {
    struct stmt *s =
        look(w,
             "SELECT side, kind, consumer_name, error, attempt, code, at, planned_at, started_at"
             " FROM consign_attempts WHERE event_id = ?1 ORDER BY seq",
             &event_id, 1);
    uint32_t n = 0;

    for (bool row = s != NULL; row; row = more_rows(s)) {
        if (n < max) {
            struct attempt_row *a = &ret[n];

            *a = (struct attempt_row){.attempt = number(s, 4),
                                      .code = number(s, 5),
                                      .at = instant(s, 6),
                                      .planned_at = instant(s, 7),
                                      .started_at = instant(s, 8)};
            TEXT(s, 0, a->side);
            TEXT(s, 1, a->kind);
            TEXT(s, 2, a->consumer);
            TEXT(s, 3, a->error);
        }
        n++;
    }
    stmt_close(s);
    return n;
}

static uint32_t world_dead(struct world *w, const char *consumer, const char *event_id,
                           struct dead_row *ret, uint32_t max) {
    struct stmt *s = look(w,
                          "SELECT class, error, payload, state, headers, event_type, aggregate_id, "
                          "code, aggregate_version, attempts,"
                          " failures, broker_part, broker_pos, first_failed_at, last_failed_at, "
                          "dead_at FROM consign_dead_letters"
                          " WHERE consumer_name = ?1 AND event_id = ?2 ORDER BY id",
                          (const char *[]){consumer, event_id}, 2);
    uint32_t n = 0;

    for (bool row = s != NULL; row; row = more_rows(s)) {
        if (n < max) {
            struct dead_row *d = &ret[n];

            *d = (struct dead_row){.code = number(s, 7),
                                   .version = number(s, 8),
                                   .attempts = number(s, 9),
                                   .failures = number(s, 10),
                                   .broker_part = number(s, 11),
                                   .broker_pos = number(s, 12),
                                   .first_failed_at = instant(s, 13),
                                   .last_failed_at = instant(s, 14),
                                   .dead_at = instant(s, 15)};
            TEXT(s, 0, d->class_);
            TEXT(s, 1, d->error);
            TEXT(s, 2, d->payload);
            TEXT(s, 3, d->state);
            TEXT(s, 4, d->headers);
            TEXT(s, 5, d->event_type);
            TEXT(s, 6, d->aggregate_id);
        }
        n++;
    }
    stmt_close(s);
    return n;
}

static uint32_t world_results(struct world *w, const char *causation_id, struct result_row *ret,
                              uint32_t max) {
    struct stmt *s =
        look(w,
             "SELECT event_id, event_type, aggregate_type, aggregate_id, payload, correlation_id, "
             "traceparent,"
             " aggregate_version FROM outbox_events WHERE causation_id = ?1 ORDER BY seq",
             &causation_id, 1);
    uint32_t n = 0;

    for (bool row = s != NULL; row; row = more_rows(s)) {
        if (n < max) {
            struct result_row *r = &ret[n];

            *r = (struct result_row){.version = number(s, 7)};
            TEXT(s, 0, r->id);
            TEXT(s, 1, r->event_type);
            TEXT(s, 2, r->aggregate_type);
            TEXT(s, 3, r->aggregate_id);
            TEXT(s, 4, r->payload);
            TEXT(s, 5, r->correlation_id);
            TEXT(s, 6, r->traceparent);
        }
        n++;
    }
    stmt_close(s);
    return n;
}

static int64_t world_effects(struct world *w, const char *consumer, const char *event_id) {
    return count(w, "SELECT count(*) FROM effects WHERE consumer = ?1 AND event_id = ?2",
                 (const char *[]){consumer, event_id}, 2);
}

/* ---- handlers ---- */

static void script_text(struct text *t) {
    text_add(t, "-- handler script\n"
                "INSERT INTO effects(consumer, event_id, version, verdict)\n"
                "  VALUES (:consumer_name, :event_id, :aggregate_version, :payload.verdict);\n"
                "UPDATE flag SET n = n WHERE :payload.emit = 1;\n"
                "-- expect rows 1 else goto decide\n"
                "-- emit ScriptDone for script :aggregate_id payload {\"of\": :event_id}\n"
                "-- label decide\n");
    for (csn_verdict v = CSN_DONE; v <= CSN_OUTCOME_UNKNOWN; v++) {
        text_add(t, "UPDATE flag SET n = n WHERE :payload.verdict = '%s';\n", verdict_name(v));
        text_add(t, "-- expect rows 1 else goto after_%s\n", verdict_name(v));
        text_add(t, "-- verdict %s \"the script says so\"\n-- label after_%s\n", verdict_name(v),
                 verdict_name(v));
    }
    text_add(t, "-- verdict poison \"no such verdict\"\n");
}

static void load_script(struct sqlite_world *sw) {
    char buffer[8192], report[4096];
    struct text file, lines;
    csn_error err = {0};

    text_init(&file, buffer, sizeof(buffer));
    text_init(&lines, report, sizeof(report));
    script_text(&file);
    if (sql_handler_parse("script.sql", (csn_bytes){file.data, file.used}, &sw->script, &lines,
                          &err) != CSN_OK)
        world_fail("script: %s\n%s", err.text, report);
    sw->handler.sql = &sw->script;
    must(db_script(sw->db,
                   "CREATE TABLE effects(consumer TEXT NOT NULL, event_id TEXT NOT NULL, version "
                   "INTEGER NOT NULL,"
                   " verdict TEXT CONSTRAINT not_broken CHECK (verdict <> 'break')) STRICT;"
                   "CREATE TABLE flag(n INTEGER); INSERT INTO flag VALUES (0);",
                   &err),
         &err);
}

static const struct handler *world_handler(struct world *w) {
    return &of(w)->handler;
}

static csn_verdict swap_transaction(const struct message *m, void *arg) {
    struct sqlite_conn *c = arg;

    (void)m;
    sqlite3_exec(c->db, "COMMIT", NULL, NULL, NULL);
    sqlite3_exec(c->db, "BEGIN IMMEDIATE", NULL, NULL, NULL);
    return CSN_DONE;
}

static const struct handler *world_handler_swap(struct world *w, struct port *port) {
    of(w)->swap = (struct handler){.function = swap_transaction,
                                   .arg = ((struct sqlite_port *)port)->conn};
    return &of(w)->swap;
}

/* ---- the world ---- */

static const struct world hooks = {
    .can = WORLD_CONSTRAINTS | WORLD_SQL_HANDLER | WORLD_CUT | WORLD_LOCK | WORLD_WAKE |
           WORLD_SWAP | WORLD_FULL | WORLD_REAL_TIME | WORLD_REFUSE | WORLD_THREADS | WORLD_PURGE |
           WORLD_ODD_STATUS | WORLD_FUNCTION,
    .outbox_lanes = 1,
    .tolerance_ms = 5000,
    .open = world_open,
    .close = world_close,
    .now = world_now,
    .advance = world_advance,
    .clock = clock_now,
    .insert = world_insert,
    .set_status = world_set_status,
    .purge_inbox = world_purge_inbox,
    .set_token = world_set_token,
    .purge_sent = world_purge_sent,
    .outbox = world_outbox,
    .outbox_count = world_outbox_count,
    .inbox = world_inbox,
    .work = world_work,
    .key = world_key,
    .queue = world_queue,
    .queue_count = world_queue_count,
    .lane = world_lane,
    .member = world_member,
    .attempts = world_attempts,
    .dead = world_dead,
    .results = world_results,
    .effects = world_effects,
    .handler = world_handler,
    .cut = world_cut,
    .lock = world_lock,
    .wake_soon = world_wake_soon,
    .handler_swap = world_handler_swap,
    .fill = world_fill,
    .refuse = world_refuse,
};

struct world *contract_world(void) {
    struct sqlite_world *sw = calloc(1, sizeof(*sw));
    const char *base = getenv("TMPDIR");
    csn_error err = {0};

    if (!sw)
        world_fail("out of memory");
    sw->world = hooks;
    snprintf(sw->folder, sizeof(sw->folder), "%.200s/consign-contract-XXXXXX",
             base && *base ? base : "/tmp");
    if (!mkdtemp(sw->folder))
        world_fail("no folder %s", sw->folder);
    snprintf(sw->url, sizeof(sw->url), "sqlite:%s/store.db", sw->folder);
    must(schema_apply(sw->url, &err), &err);
    must(db_open(sw->url, 0, &sw->db, &err), &err);
    load_script(sw);
    return &sw->world;
}

static void remove_file(const struct sqlite_world *sw, const char *name) {
    char path[300];

    snprintf(path, sizeof(path), "%s/%s", sw->folder, name);
    unlink(path);
}

void contract_world_free(struct world *w) {
    struct sqlite_world *sw = of(w);

    for (size_t i = 0; i < PORTS_MAX; i++)
        if (sw->port[i])
            world_close(w, &sw->port[i]->port);
    db_close(sw->db);
    sql_handler_free(&sw->script);
    remove_file(sw, "store.db");
    remove_file(sw, "store.db-wal");
    remove_file(sw, "store.db-shm");
    rmdir(sw->folder);
    free(sw);
}
