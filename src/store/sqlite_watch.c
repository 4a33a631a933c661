/* sqlite_watch.c: WATCH: is there work? Each look is a few index look-ups without a lock; between
 * two looks the thread sleeps on the eventfd that wake() writes. A wake before the sleep is not
 * lost: the eventfd keeps it. It sleeps no longer than until the next row becomes due. Of a quiet
 * store it asks between two looks only whether anybody has committed. */
#include "store/sqlite.h"
#include <errno.h>
#include <poll.h>
#include <unistd.h>

struct eye {
    const char *sql; /* ?1 lanes, ?2 consumer: the instant at which the first row becomes due */
    bool consumer;
};

/* In the order of enum watch_kind. A queue row that was never delivered is due at 0. */
static const struct eye eyes[][2] = {
    [WATCH_OUTBOX] = {{"SELECT next_attempt_at FROM outbox_events INDEXED BY ix_dispatch WHERE "
                       "status = 'pending'"
                       " AND (?1 >> slot) & 1 ORDER BY next_attempt_at LIMIT 1",
                       false}},
    [WATCH_RECOVER] =
        {{"SELECT lease_until FROM outbox_events INDEXED BY ix_expired WHERE status = 'sending'"
          " AND (?1 >> slot) & 1 ORDER BY lease_until LIMIT 1",
          false},
         {"SELECT next_attempt_at FROM outbox_events INDEXED BY ix_unknown WHERE status = 'unknown'"
          " AND (?1 >> slot) & 1 ORDER BY next_attempt_at LIMIT 1",
          false}},
    [WATCH_WORK] =
        {{"SELECT next_attempt_at FROM consign_work INDEXED BY consign_ix_work_due WHERE status = "
          "'pending'"
          " AND consumer_name = ?2 AND (?1 >> slot) & 1 ORDER BY next_attempt_at LIMIT 1",
          true},
         {"SELECT lease_until FROM consign_work INDEXED BY consign_ix_work_expired WHERE status = "
          "'sending'"
          " AND consumer_name = ?2 AND (?1 >> slot) & 1 ORDER BY lease_until LIMIT 1",
          true}},
    [WATCH_QUEUE] = {{NULL, true}},
};

static csn_status first_due(struct sqlite_conn *c, sqlite3_stmt *s, csn_usec *ret_due,
                            csn_error *err) {
    int rc = sqlite3_step(s);
    csn_status status = CSN_OK;

    if (rc == SQLITE_ROW)
        *ret_due = sqlite3_column_int64(s, 0);
    else if (rc != SQLITE_DONE)
        status = sqlite_failed(c, "watch", err);
    sqlite3_reset(s);
    return status;
}

static csn_status look_at_rows(struct sqlite_conn *c, const struct eye *eye,
                               const struct watch_item *item, csn_usec *ret_due, csn_error *err) {
    sqlite3_stmt *s = sqlite_prepare(c, eye->sql, err);

    if (!s)
        return err->status;
    sqlite3_bind_int64(s, 1, (int64_t)item->lanes);
    if (eye->consumer)
        sqlite_bind_bytes(s, 2, bytes_of(item->consumer));
    return first_due(c, s, ret_due, err);
}

/* Stops at the first row that is not under a lease: what lies before it is at most a batch. */
static csn_status look_at_partition(struct sqlite_conn *c, const struct watch_item *item,
                                    uint32_t part, csn_usec *ret_due, csn_error *err) {
    static const char sql[] =
        "SELECT CASE WHEN token IS NULL THEN 0 ELSE coalesce(lease_until, 0) END FROM consign_queue"
        " INDEXED BY consign_ix_queue_live WHERE subscription = ?1 AND part = ?2"
        " AND acked_at IS NULL ORDER BY pos";
    sqlite3_stmt *s = sqlite_prepare(c, sql, err);
    int rc = SQLITE_ROW;

    if (!s)
        return err->status;
    sqlite_bind_bytes(s, 1, bytes_of(item->consumer));
    sqlite3_bind_int64(s, 2, part);
    while (*ret_due > c->now && (rc = sqlite3_step(s)) == SQLITE_ROW) {
        csn_usec due = sqlite3_column_int64(s, 0);
        *ret_due = due < *ret_due ? due : *ret_due;
    }
    csn_status status =
        rc == SQLITE_ROW || rc == SQLITE_DONE ? CSN_OK : sqlite_failed(c, "watch", err);
    sqlite3_reset(s);
    return status;
}

static csn_status look_at(struct sqlite_conn *c, const struct watch_item *item, csn_usec *ret_due,
                          csn_error *err) {
    csn_status s = CSN_OK;

    *ret_due = CSN_USEC_NEVER;
    for (uint32_t part = 0;
         item->kind == WATCH_QUEUE && part < LANE_MAX && s == CSN_OK && *ret_due > c->now; part++)
        if (item->lanes >> part & 1)
            s = look_at_partition(c, item, part, ret_due, err);
    for (size_t i = 0;
         item->lanes && i < ARRAY_LEN(eyes[0]) && s == CSN_OK && eyes[item->kind][i].sql; i++) {
        csn_usec due = CSN_USEC_NEVER;
        s = look_at_rows(c, &eyes[item->kind][i], item, &due, err);
        *ret_due = due < *ret_due ? due : *ret_due;
    }
    return s;
}

static csn_status look_at_each(struct sqlite_conn *c, struct op *op, bool *ret_found) {
    for (uint32_t i = 0; i < op->watch.n; i++) {
        struct watch_item *item = &op->watch.item[i];
        csn_usec due;
        csn_status s;
        item->found = false;
        if (item->kind >= ARRAY_LEN(eyes))
            return error_set(&op->result, CSN_INVALID, ERR_BUG, "watch: no such kind");
        s = look_at(c, item, &due, &op->result);
        if (s != CSN_OK)
            return s;
        item->found = due <= c->now;
        *ret_found |= item->found;
        if (due != CSN_USEC_NEVER) {
            csn_usec in = item->found ? 0 : due - c->now;
            op->watch.next_in = in < op->watch.next_in ? in : op->watch.next_in;
        }
    }
    return CSN_OK;
}

/* One read transaction: its locks are taken once. On a failure the frame ends it. */
static csn_status look_at_all(struct sqlite_conn *c, struct op *op, bool *ret_found) {
    sqlite_end_reading(c);
    csn_status s = sqlite_do(c, "BEGIN", NULL, 0, &op->result);

    c->now = sqlite_clock();
    op->watch.next_in = CSN_USEC_NEVER;
    *ret_found = false;
    if (s == CSN_OK)
        s = look_at_each(c, op, ret_found);
    return s == CSN_OK ? sqlite_do(c, "COMMIT", NULL, 0, &op->result) : s;
}

/* True: woken. */
static bool wait_for_wake(const struct sqlite_conn *c, csn_usec until) {
    struct pollfd p = {.fd = c->wake_fd, .events = POLLIN};
    uint64_t count;
    int rc = 0;

    do {
        csn_usec left = until - sqlite_steady();
        struct timespec t = {left / 1000000, left % 1000000 * 1000};
        if (left <= 0)
            break;
        rc = ppoll(&p, 1, &t, NULL);
    } while (rc < 0 && errno == EINTR);
    if (rc > 0 && read(c->wake_fd, &count, sizeof count) < 0 && errno != EAGAIN)
        return true; /* the next look comes all the same */
    return rc > 0;
}

/* The head of the write-ahead log's index, which every commit changes (SQLite's file format, "WAL-mode
 * File Format", 2.1): read where SQLite itself has it mapped, without a lock or a call of the system.
 * The second copy, which a commit writes first. False: there is none to be had. */
enum { HEAD_SIZE = 48, REGION_SIZE = 32768 };

static bool read_head(const struct sqlite_conn *c, uint8_t ret[HEAD_SIZE]) {
    sqlite3_file *f = NULL;
    void volatile *region = NULL;

    if (sqlite3_file_control(c->db, "main", SQLITE_FCNTL_FILE_POINTER, &f) != SQLITE_OK || !f ||
        !f->pMethods || f->pMethods->iVersion < 2 || !f->pMethods->xShmMap ||
        f->pMethods->xShmMap(f, 0, REGION_SIZE, 0, &region) != SQLITE_OK || !region)
        return false;
    const uint32_t volatile *head = (const uint32_t volatile *)region + HEAD_SIZE / 4;
    for (int i = 0; i < HEAD_SIZE / 4; i++) {
        uint32_t word = __atomic_load_n(&head[i], __ATOMIC_ACQUIRE);
        memcpy(ret + (size_t)i * 4, &word, 4);
    }
    return true;
}

/* Has anybody committed since *seen was read? When that cannot be told: yes. */
static bool changed(const struct sqlite_conn *c, uint8_t seen[HEAD_SIZE]) {
    uint8_t now[HEAD_SIZE] = {0};
    bool same = read_head(c, now) && memcmp(now, seen, HEAD_SIZE) == 0;

    if (!same)
        memcpy(seen, now, HEAD_SIZE);
    return !same;
}

csn_status sqlite_watch(struct sqlite_conn *c, struct op *op) {
    bool found = false, last = op->watch.wait <= 0;
    csn_usec now = sqlite_steady(), due = CSN_USEC_NEVER, wait = op->watch.wait;
    csn_usec end = sqlite_after(now, op->watch.longest > wait ? op->watch.longest : wait);
    uint8_t seen[HEAD_SIZE] = {0};

    (void)changed(c, seen);
    csn_status s = look_at_all(c, op, &found);
    end = op->deadline < end ? op->deadline : end;
    while (s == CSN_OK && !found && !last) {
        due = sqlite_after(now, op->watch.next_in); /* by the last look */
        do {
            csn_usec until = sqlite_after(now, wait);
            until = due < until ? due : until;
            last = wait_for_wake(c, end < until ? end : until);
            now = sqlite_steady();
            last |= now >= end || now >= due;
        } while (!last && !changed(c, seen));
        s = look_at_all(c, op, &found);
    }
    return s;
}
