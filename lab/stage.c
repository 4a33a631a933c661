/* stage.c: the folder, the stores, asking and asserting. Processes are in process.c. */
#include "lab/stage.h"
#include "base/digest.h"
#include "host/clock.h"
#include "lab/process.h"
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEEPEST = 8, REMOVE_FDS = 16 };

static const char *const store_name[] = {"orders", "stock"};

/* ---- going on, or not ---- */

bool stage_going(const struct stage *s) {
    return s->report->broken.status == CSN_OK;
}

csn_usec stage_time(const struct stage *s) {
    return clock_now() - s->began;
}

void stage_broke(struct stage *s, const csn_error *err) {
    if (stage_going(s))
        s->report->broken = *err;
    if (stage_going(s))
        s->report->broken.status = CSN_FATAL;
}

void stage_break(struct stage *s, int32_t code, const char *format, ...) {
    char line[sizeof s->report->broken.text];
    csn_error err;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    (void)error_set(&err, CSN_FATAL, code, "%s", line);
    stage_broke(s, &err);
}

void stage_step(struct stage *s, const char *format, ...) {
    char line[LINE_SIZE];
    va_list args;
    if (!stage_going(s))
        return;
    va_start(args, format);
    (void)vsnprintf(line, sizeof line, format, args);
    va_end(args);
    report_step(s->report, stage_time(s), line);
}

/* ---- the folder ---- */

static void make_folder(struct stage *s, const char *id) {
    const char *keep = s->options->keep, *temp = getenv("TMPDIR");
    struct text t;
    text_init(&t, s->dir, sizeof s->dir);
    if (keep) {
        if (mkdir(keep, 0777) != 0 && errno != EEXIST)
            stage_break(s, ERR_WRITE, "%s: %s", keep, strerror(errno));
        text_add(&t, "%s/%s", keep, id);
        if (stage_going(s) && mkdir(s->dir, 0777) != 0)
            stage_break(s, errno == EEXIST ? ERR_TAKEN : ERR_WRITE, "%s: %s", s->dir,
                        strerror(errno));
    } else {
        text_add(&t, "%s/consign-lab-%s-XXXXXX", temp && temp[0] ? temp : "/tmp", id);
        if (!mkdtemp(s->dir))
            stage_break(s, ERR_WRITE, "%s: %s", s->dir, strerror(errno));
    }
    char *whole = stage_going(s) ? realpath(s->dir, NULL) : NULL;
    if (whole && !copy_text(s->dir, sizeof s->dir, whole))
        stage_break(s, ERR_WRITE, "%s: %s", whole, strerror(ENAMETOOLONG));
    free(whole);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st;
    (void)type;
    (void)at;
    (void)remove(path);
    return 0;
}

/* A store that is given must carry the marker before anything is written to it. */
static void check_marker(struct stage *s, const char *url) {
    csn_error err;
    bool there = false;
    csn_status st = lab_marker_there(url, &there, &err);
    if (st == CSN_OK && !there)
        st = error_set(&err, CSN_INVALID, ERR_STORE_NO_MARKER, "%s", url);
    if (st != CSN_OK)
        stage_broke(s, &err);
}

/* Runs a script in which each @ stands for the name. */
static csn_status run_text(struct db *d, csn_error *err, const char *script, const char *name) {
    char sql[PATH_SIZE * 4];
    struct text t;
    text_init(&t, sql, sizeof sql);
    for (const char *p = script; *p; p++)
        text_add_bytes(&t, *p == '@' ? bytes_of(name) : (csn_bytes){p, 1});
    return t.full ? error_set(err, CSN_INVALID, ERR_BUG, "%s: too long", name)
                  : db_script(d, sql, err);
}

#define SHOP_TABLES                                                                                \
    "SELECT f.name, f.sql, EXISTS (SELECT 1 FROM main.sqlite_schema m WHERE m.name = f.name) "     \
    "FROM "                                                                                        \
    "fresh.sqlite_schema f WHERE f.type = 'table' AND f.name NOT LIKE 'consign%' AND f.name NOT "  \
    "LIKE 'sqlite%' AND f.name NOT IN ('outbox_events', 'consumer_inbox') ORDER BY f.rowid "

/* Reads the at-th table of the shop; *ret_made is empty for one that is there already. */
static csn_status read_table(struct stmt *q, int at, bool *ret_row, char name[CELL_SIZE],
                             char made[2048], csn_error *err) {
    stmt_bind_int(q, 1, at);
    csn_status st = stmt_next(q, ret_row, err);
    if (st == CSN_OK && *ret_row &&
        (!copy_text(name, CELL_SIZE, stmt_text(q, 0)) || !copy_text(made, 2048, stmt_text(q, 1))))
        st = error_set(err, CSN_INVALID, ERR_BUG, "%s: too long", stmt_text(q, 0));
    if (st == CSN_OK && *ret_row && stmt_int(q, 2) != 0)
        made[0] = '\0';
    stmt_reset(q);
    return st;
}

/* Runs a script for each table of the shop, one by one; NULL: makes those that are missing. */
static csn_status each_table(struct db *d, const char *tables, const char *script, csn_error *err) {
    char name[CELL_SIZE] = "", made[2048] = "";
    struct stmt *q = NULL;
    bool row = true;
    csn_status st = db_prepare(d, tables, &q, err);
    for (int at = 0; st == CSN_OK && row; at++) {
        st = read_table(q, at, &row, name, made, err);
        if (st == CSN_OK && row && script)
            st = run_text(d, err, script, name);
        else if (st == CSN_OK && row && made[0] != '\0')
            st = db_script(d, made, err);
    }
    stmt_close(q);
    return st;
}

/* Tables refer to those that were made before them: emptied backwards, filled forwards. */
static csn_status renew_shop(struct db *d, csn_error *err) {
    static const char forwards[] = SHOP_TABLES "LIMIT 1 OFFSET ?1";
    static const char backwards[] = SHOP_TABLES "DESC LIMIT 1 OFFSET ?1";
    csn_status st = each_table(d, forwards, NULL, err);
    if (st == CSN_OK)
        st = each_table(d, backwards, "DELETE FROM main.@", err);
    return st == CSN_OK ? each_table(d, forwards, "INSERT INTO main.@ SELECT * FROM fresh.@", err)
                        : st;
}

/* Empties a marked store and puts the shop's tables into it as they are in a fresh one. */
static csn_status refresh(struct db *d, csn_error *err) {
    static const char *const ours[] = {
        "outbox_events",        "consumer_inbox",   "consign_work",     "consign_keys",
        "consign_queue",        "consign_lanes",    "consign_members",  "consign_attempts",
        "consign_dead_letters", "consign_versions", "consign_bindings",
    };
    csn_status st = db_begin(d, err);
    for (size_t i = 0; i < ARRAY_LEN(ours) && st == CSN_OK; i++)
        st = run_text(d, err, "DELETE FROM main.@", ours[i]);
    if (st == CSN_OK)
        st = renew_shop(d, err);
    return st == CSN_OK ? db_commit(d, err) : st;
}

static void refill(struct stage *s, enum where w, const char *given) {
    char path[PATH_SIZE];
    csn_error err;
    struct db *d = NULL;
    csn_status st = db_open(given, 0, &d, &err);
    if (st == CSN_OK && !sqlite_url_path(s->url[w], path, sizeof path))
        st = error_set(&err, CSN_INVALID, ERR_BUG, "%s", s->url[w]);
    if (st == CSN_OK)
        st = run_text(d, &err, "ATTACH '@' AS fresh", path);
    if (st == CSN_OK)
        st = refresh(d, &err);
    db_close(d);
    if (st != CSN_OK)
        stage_broke(s, &err);
    else
        (void)copy_text(s->url[w], sizeof s->url[w], given);
}

static void open_stores(struct stage *s) {
    csn_error err;
    const char *given[] = {s->options->orders, s->options->stock};
    for (int w = 0; w < 2 && stage_going(s); w++) {
        struct text t;
        text_init(&t, s->url[w], sizeof s->url[w]);
        text_add(&t, "sqlite:%s/shop/%s.db", s->dir, store_name[w]);
        if (given[w]) {
            char setting[PATH_SIZE];
            refill(s, (enum where)w, given[w]);
            (void)snprintf(setting, sizeof setting, "stores.%s.url=%.400s", store_name[w],
                           given[w]);
            stage_set(s, setting);
        }
        if (stage_going(s) && db_open(s->url[w], 0, &s->db[w], &err) != CSN_OK)
            stage_broke(s, &err);
    }
}

void stage_open(struct stage *s, const struct lab_options *o, const char *id, struct report *r) {
    char shop[PATH_SIZE + 16];
    *s = (struct stage){.options = o, .report = r, .began = clock_now()};
    if (o->orders)
        check_marker(s, o->orders);
    if (o->stock)
        check_marker(s, o->stock);
    if (stage_going(s))
        make_folder(s, id);
    (void)snprintf(shop, sizeof shop, "%s/shop", s->dir);
    if (stage_going(s) &&
        stage_command(s, (const char *const[]){"init", "--lab", "--dir", shop, "-q"}, 5, NULL, 0) !=
            0)
        stage_break(s, ERR_WRITE, "consign init --lab --dir %s", shop);
    open_stores(s);
}

void stage_close(struct stage *s) {
    for (uint32_t i = 0; i < s->gates; i++)
        if (s->gate[i].fd >= 0)
            (void)close(s->gate[i].fd);
    processes_end(s);
    db_close(s->db[ORDERS]);
    db_close(s->db[STOCK]);
    if (s->options->keep)
        (void)copy_text(s->report->folder, sizeof s->report->folder, s->dir);
    else if (s->dir[0] != '\0')
        (void)nftw(s->dir, remove_one, REMOVE_FDS, FTW_DEPTH | FTW_PHYS);
    s->report->took = stage_time(s);
}

void stage_set(struct stage *s, const char *setting) {
    if (s->sets == SETS_MAX || !copy_text(s->set[s->sets], sizeof s->set[0], setting))
        stage_break(s, ERR_BUG, "%s: no room", setting);
    else
        s->sets++;
}

void stage_write(struct stage *s, const char *name, const char *text) {
    char path[PATH_SIZE + 64];
    if (!stage_going(s))
        return;
    (void)snprintf(path, sizeof path, "%s/shop/%s", s->dir, name);
    FILE *f = fopen(path, "we");
    bool ok = f && fputs(text, f) >= 0;
    if (f)
        ok &= fclose(f) == 0;
    if (!ok)
        stage_break(s, ERR_WRITE, "%s: %s", path, strerror(errno));
}

/* ---- asking ---- */

void stage_order(struct stage *s, const char *order, const char *event, const char *sku,
                 int64_t qty) {
    struct shop_answer answer;
    csn_error err;
    if (!stage_going(s))
        return;
    if (shop_place(s->db[ORDERS], order, event, sku, qty, &answer, &err) != CSN_OK)
        stage_broke(s, &err);
    stage_step(s,
               TEXT("order %s committed with event %s (%s × %" PRId64 ")",
                    "订单 %s 与事件 %s 一起提交（%s × %" PRId64 "）"),
               order, event, sku, qty);
}

void stage_sql(struct stage *s, enum where w, const char *sql) {
    csn_error err;
    if (stage_going(s) && db_script(s->db[w], sql, &err) != CSN_OK)
        stage_broke(s, &err);
}

/* The first column of the first row; false: there is none. */
static bool first(struct stage *s, enum where w, const char *sql, struct stmt **ret) {
    csn_error err;
    bool row = false;
    *ret = NULL;
    if (!stage_going(s))
        return false;
    csn_status st = db_prepare(s->db[w], sql, ret, &err);
    if (st == CSN_OK)
        st = stmt_next(*ret, &row, &err);
    if (st != CSN_OK)
        stage_broke(s, &err);
    return st == CSN_OK && row;
}

int64_t ask_int(struct stage *s, enum where w, const char *sql) {
    struct stmt *q;
    int64_t n = first(s, w, sql, &q) ? stmt_int(q, 0) : 0;
    stmt_close(q);
    return n;
}

void ask_text(struct stage *s, enum where w, const char *sql, char *ret, size_t size) {
    struct stmt *q;
    (void)copy_text(ret, size, first(s, w, sql, &q) ? stmt_text(q, 0) : "–");
    stmt_close(q);
}

void ask_digest(struct stage *s, enum where w, const char *sql, char ret[65]) {
    struct sha256 h;
    uint8_t digest[32];
    struct stmt *q;
    csn_error err;
    bool row = first(s, w, sql, &q);
    csn_status st = CSN_OK;
    sha256_init(&h);
    while (row && st == CSN_OK) {
        for (int i = 0; i < stmt_columns(q); i++) {
            sha256_add(&h, bytes_of(stmt_is_null(q, i) ? "-" : "+"));
            sha256_add(&h, bytes_of(stmt_text(q, i)));
            sha256_add(&h, (csn_bytes){"", 1});
        }
        st = stmt_next(q, &row, &err);
    }
    stmt_close(q);
    if (st != CSN_OK)
        stage_broke(s, &err);
    sha256_end(&h, digest);
    for (int i = 0; i < 32; i++)
        (void)snprintf(ret + 2 * i, 3, "%02x", digest[i]);
}

void await_least(struct stage *s, enum where w, int64_t least, const char *sql, const char *what) {
    csn_usec until = clock_now() + WAIT_LONGEST;
    int64_t n = ask_int(s, w, sql);
    while (stage_going(s) && n < least) {
        if (clock_now() >= until)
            stage_break(s, ERR_LAB_WAIT,
                        TEXT("%s: %" PRId64 " wanted, %" PRId64 " there",
                             "%s：需要 %" PRId64 "，实际 %" PRId64),
                        what, least, n);
        process_rest();
        n = ask_int(s, w, sql);
    }
}

void stage_quiet(struct stage *s) {
    static const char sql[] =
        "SELECT NOT EXISTS (SELECT 1 FROM outbox_events WHERE status NOT IN ('sent', 'cancelled', "
        "'failed')) AND NOT EXISTS (SELECT 1 FROM consign_queue WHERE acked_at IS NULL) AND NOT "
        "EXISTS (SELECT 1 FROM consign_work)";
    csn_usec until = clock_now() + WAIT_LONGEST;
    /* Orders, stock, orders: what stock answers lies in its outbox before its inbox row is acked.
     */
    while (stage_going(s) && !(ask_int(s, ORDERS, sql) && ask_int(s, STOCK, sql) &&
                               ask_int(s, ORDERS, sql) && ask_int(s, STOCK, sql))) {
        if (clock_now() >= until)
            stage_break(s, ERR_LAB_WAIT, "%s",
                        TEXT("something is on its way still, in an outbox, the queue or parked",
                             "发件箱、队列或暂存中仍有未完成的消息"));
        process_rest();
    }
}

/* ---- the tables of a report ---- */

void stage_sheet(struct stage *s, enum when when, const char *name, const char *title, enum where w,
                 const char *sql) {
    struct stmt *q;
    csn_error err;
    csn_status st = CSN_OK;
    bool row = first(s, w, sql, &q);
    struct sheet *t = stage_going(s) ? report_sheet(s->report, when, name, title) : NULL;
    if (t) {
        t->columns = (uint32_t)stmt_columns(q);
        for (uint32_t i = 0; i < t->columns && i < SHEET_COLUMNS; i++)
            (void)copy_text(t->heading[i], CELL_SIZE, stmt_column(q, (int)i));
    }
    for (uint32_t r = 0; t && row && st == CSN_OK && r < SHEET_ROWS; r++) {
        for (uint32_t i = 0; i < t->columns; i++)
            (void)sheet_cell(t, r, i, stmt_is_null(q, (int)i) ? NULL : stmt_text(q, (int)i));
        st = stmt_next(q, &row, &err);
    }
    stmt_close(q);
    if (st != CSN_OK)
        stage_broke(s, &err);
}

void stage_state(struct stage *s, enum when when) {
    static const struct {
        const char *name, *title[2];
        enum where at;
        const char *sql;
    } sheets[] = {
        {"orders",
         {"orders", "订单"},
         ORDERS,
         "SELECT order_id, sku, qty, state FROM orders ORDER BY rowid LIMIT 8"},
        {"outbox",
         {"outbox of orders", "订单的发件箱"},
         ORDERS,
         "SELECT event_id, status, attempts, failures, sent_by FROM outbox_events ORDER BY seq "
         "LIMIT 8"},
        {"queue",
         {"queue copies", "队列副本"},
         ORDERS,
         "SELECT subscription, event_id, pos, deliveries, iif(acked_at IS NULL, 'no', 'yes') AS "
         "acked FROM consign_queue ORDER BY pos LIMIT 8"},
        {"inbox",
         {"inbox of stock", "库存的收件箱"},
         STOCK,
         "SELECT consumer_name, event_id, state, verdict, attempts, duplicates FROM consumer_inbox "
         "ORDER BY rowid LIMIT 8"},
        {"stock",
         {"stock, reserved, journal", "库存、预占、流水"},
         STOCK,
         "SELECT sku, opening, available, (SELECT coalesce(sum(qty), 0) FROM reservation r WHERE "
         "r.sku = s.sku) AS reserved, (SELECT coalesce(sum(qty), 0) FROM stock_journal j WHERE "
         "j.sku = s.sku) AS journal FROM stock s WHERE available <> opening OR sku IN ('A', 'T') "
         "ORDER BY sku LIMIT 4"},
        {"reservation",
         {"reservations", "预占"},
         STOCK,
         "SELECT order_id, sku, qty, state FROM reservation ORDER BY rowid LIMIT 8"},
    };
    for (size_t i = 0; i < ARRAY_LEN(sheets); i++)
        stage_sheet(s, when, sheets[i].name, TEXT(sheets[i].title[0], sheets[i].title[1]),
                    sheets[i].at, sheets[i].sql);
}

/* ---- assertions ---- */

void expect(struct stage *s, bool ok, const char *text, const char *expected, const char *found) {
    if (stage_going(s))
        report_check(s->report, ok, text, expected, found);
}

void expect_int(struct stage *s, enum where w, int64_t expected, const char *sql,
                const char *text) {
    char want[24], got[24];
    int64_t n = ask_int(s, w, sql);
    (void)snprintf(want, sizeof want, "%" PRId64, expected);
    (void)snprintf(got, sizeof got, "%" PRId64, n);
    expect(s, n == expected, text, want, got);
}

void expect_least(struct stage *s, enum where w, int64_t least, const char *sql, const char *text) {
    char want[24], got[24];
    int64_t n = ask_int(s, w, sql);
    (void)snprintf(want, sizeof want, "≥ %" PRId64, least);
    (void)snprintf(got, sizeof got, "%" PRId64, n);
    expect(s, n >= least, text, want, got);
}

void expect_text(struct stage *s, enum where w, const char *expected, const char *sql,
                 const char *text) {
    char got[VALUE_SIZE];
    ask_text(s, w, sql, got, sizeof got);
    expect(s, strcmp(got, expected) == 0, text, expected, got);
}

void expect_books(struct stage *s) {
    expect_int(s, STOCK, 0,
               "SELECT count(*) FROM stock s WHERE opening - available <> (SELECT coalesce(sum(qty)"
               ", 0) FROM reservation r WHERE r.sku = s.sku) OR opening - available <> (SELECT "
               "coalesce(sum(qty), 0) FROM stock_journal j WHERE j.sku = s.sku) OR available < 0",
               TEXT("books: opening − available = reserved = journal, for every sku",
                    "账目：每个商品 期初 − 可用 = 预占 = 流水"));
}
