/* world.c: the shop, its processes and its pens. See world.h; the books are in books.c. */
#include "world.h"
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { POLL = 20000, INIT_BOUND = 30000000, WORDS = 16 };

static const char stock_handler[] =
    "-- handler stock\n"
    "UPDATE gate SET looks = looks + 1\n"
    " WHERE (julianday('now') - 2440587.5) * 86400000.0 >= :payload.after;\n"
    "-- expect rows 1\n"
    "INSERT INTO effects(consumer, event_id, aggregate_type, aggregate_id, version)\n"
    "VALUES (:consumer_name, :event_id, :aggregate_type, :aggregate_id, :aggregate_version);\n"
    "UPDATE stock SET available = available - :payload.qty\n"
    " WHERE :event_type = 'OrderCreated' AND sku = :payload.sku AND available >= :payload.qty;\n"
    "-- expect rows 1 else goto other\n"
    "INSERT INTO reservation(order_id, sku, qty, state)\n"
    "VALUES (:aggregate_id, :payload.sku, :payload.qty, 'reserved');\n"
    "INSERT INTO stock_journal(event_id, sku, qty, kind)\n"
    "VALUES (:event_id, :payload.sku, :payload.qty, 'reserve');\n"
    "-- emit InventoryReserved for stock :payload.sku payload {\"order\": :aggregate_id}\n"
    "-- verdict done\n"
    "-- label other\n"
    "UPDATE reservation SET state = 'released'\n"
    " WHERE :event_type = 'OrderCancelled' AND order_id = :aggregate_id AND state = 'reserved';\n"
    "-- expect rows 1 else goto nothing\n"
    "UPDATE stock SET available = available +\n"
    "       (SELECT qty FROM reservation WHERE order_id = :aggregate_id)\n"
    " WHERE sku = :payload.sku;\n"
    "-- expect rows 1\n"
    "INSERT INTO stock_journal(event_id, sku, qty, kind)\n"
    "SELECT :event_id, sku, -qty, 'release' FROM reservation WHERE order_id = :aggregate_id;\n"
    "-- emit InventoryReleased for stock :payload.sku payload {\"order\": :aggregate_id}\n"
    "-- verdict done\n"
    "-- label nothing\n"
    "UPDATE effects SET note = 'no stock'\n"
    " WHERE event_id = :event_id AND :event_type = 'OrderCreated';\n"
    "-- expect rows 1 else goto noted\n"
    "-- emit InventoryRejected for stock :payload.sku payload {\"order\": :aggregate_id}\n"
    "-- verdict refused\n"
    "-- label noted\n"
    "-- verdict done\n";

static const char orders_handler[] =
    "-- handler orders\n"
    "INSERT INTO effects(consumer, event_id, aggregate_type, aggregate_id, version)\n"
    "VALUES (:consumer_name, :event_id, :aggregate_type, :aggregate_id, :aggregate_version);\n"
    "UPDATE orders SET state = CASE :event_type WHEN 'InventoryReserved' THEN 'confirmed'\n"
    "       WHEN 'InventoryReleased' THEN 'cancelled' ELSE 'rejected' END\n"
    " WHERE order_id = :payload.order;\n"
    "-- expect rows 1 else goto late\n"
    "-- verdict done\n"
    "-- label late\n"
    "-- verdict late \"no order :payload.order\"\n";

/* At most once: what it saw, each time that it saw it. */
static const char glance_handler[] = "-- handler glance\n"
                                     "INSERT INTO glances(event_id) VALUES (:event_id);\n"
                                     "-- verdict done\n";

static const char config[] =
    "stores: { orders: { url: \"sqlite:orders.db\" }, stock: { url: \"sqlite:stock.db\" } }\n"
    "brokers: { local: { type: embedded, store: orders, confirm_timeout: %lldms } }\n"
    "subscriptions:\n"
    "  stock:\n"
    "    from: { broker: local }\n"
    "    store: stock\n"
    "    match: \"Order*\"\n"
    "    handler: { sql: handlers/stock.sql }\n"
    "    retry: { base: 50ms, max: 500ms, failures: 1000 }\n"
    "  orders:\n"
    "    from: { broker: local }\n"
    "    store: orders\n"
    "    match: \"Inventory*\"\n"
    "    handler: { sql: handlers/orders.sql }\n"
    "    retry: { base: 50ms, max: 500ms, failures: 1000 }\n"
    "  glance:\n"
    "    from: { broker: local }\n"
    "    store: stock\n"
    "    match: \"OrderChanged,OrderCancelled\"\n"
    "    class: bulk\n"
    "    semantics: at_most_once\n"
    "    handler: { sql: handlers/glance.sql }\n"
    "relay:\n"
    "  batch: { rows: 50 }\n"
    "  lease: %lldms\n"
    "  lock_wait: %lldms\n"
    "  retry: { base: 50ms, max: 500ms, failures: 1000 }\n";

static const char effects_table[] =
    "CREATE TABLE effects(seq INTEGER PRIMARY KEY AUTOINCREMENT, consumer TEXT, event_id TEXT,\n"
    "  aggregate_type TEXT, aggregate_id TEXT, version INTEGER, note TEXT);\n"
    "CREATE INDEX effects_event ON effects(event_id);\n";

static const char orders_tables[] =
    "DROP TABLE orders;\n"
    "CREATE TABLE orders(order_id TEXT PRIMARY KEY, sku TEXT, qty INTEGER,\n"
    "  state TEXT DEFAULT 'pending_inventory', version INTEGER);\n";

/* No key and no CHECK: an effect that comes twice must show, not fail. */
static const char stock_tables[] =
    "DROP TABLE stock_journal; DROP TABLE reservation; DROP TABLE stock;\n"
    "CREATE TABLE stock(sku TEXT, opening INTEGER, available INTEGER);\n"
    "CREATE INDEX stock_sku ON stock(sku);\n"
    "CREATE TABLE reservation(order_id TEXT, sku TEXT, qty INTEGER, state TEXT);\n"
    "CREATE INDEX reservation_order ON reservation(order_id);\n"
    "CREATE TABLE stock_journal(event_id TEXT, sku TEXT, qty INTEGER, kind TEXT);\n"
    "CREATE INDEX journal_event ON stock_journal(event_id);\n"
    "CREATE TABLE glances(event_id TEXT);\n"
    "CREATE INDEX glances_event ON glances(event_id);\n"
    "CREATE TABLE gate(looks INTEGER); INSERT INTO gate VALUES (0);\n";

/* ---- small things ---- */

csn_usec time_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (csn_usec)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int64_t time_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

void time_rest(csn_usec d) {
    struct timespec t = {.tv_sec = d / 1000000, .tv_nsec = d % 1000000 * 1000};
    while (d > 0 && nanosleep(&t, &t) != 0 && errno == EINTR) {
    }
}

_Noreturn static void give_up(const char *what, const csn_error *err) {
    fprintf(stderr, "%s: %s\n", what, err ? err->text : strerror(errno));
    exit(2);
}

bool world_path(const struct world *w, const char *name, char ret[PATH_SIZE]) {
    struct text t;
    text_init(&t, ret, PATH_SIZE);
    text_add(&t, "%s/%s", w->dir, name);
    return !t.full;
}

bool world_write(const struct world *w, const char *name, const char *text) {
    char path[PATH_SIZE];
    FILE *f = world_path(w, name, path) ? fopen(path, "we") : NULL;
    if (!f) {
        return false;
    }
    bool good = fputs(text, f) >= 0;
    return fclose(f) == 0 && good;
}

/* ---- processes ---- */

static void take_output(const char *out) {
    int fd = open(out, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    int none = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (fd < 0 || none < 0 || dup2(none, 0) < 0 || dup2(fd, 1) < 0 || dup2(fd, 2) < 0) {
        _exit(126);
    }
}

static pid_t start_program(const struct world *w, const char *const *words, const char *out) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid != 0) {
        return pid;
    }
    char *argv[WORDS] = {(char *)(uintptr_t) "consign"};
    for (int i = 0; words[i] && i < WORDS - 2; i++) {
        argv[i + 1] = (char *)(uintptr_t)words[i];
    }
    take_output(out);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* no daemon outlives its test */
    execv(w->program, argv);
    _exit(127);
}

static bool wait_end(pid_t pid, csn_usec bound, int *ret_status) {
    for (csn_usec until = time_now() + bound;; time_rest(POLL)) {
        if (waitpid(pid, ret_status, WNOHANG) == pid) {
            return true;
        }
        if (time_now() > until) {
            return false;
        }
    }
}

int run_program(const struct world *w, const char *const *words, const char *out) {
    int status = 0;
    pid_t pid = start_program(w, words, out);
    if (pid < 0) {
        return -1;
    }
    if (!wait_end(pid, INIT_BOUND, &status)) {
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool daemon_start(const struct world *w, struct daemon_process *d, const char *name,
                  const char *failpoints, const char *hits) {
    char yaml[PATH_SIZE];
    if (!world_path(w, "consign.yaml", yaml) || !world_path(w, name, d->log)) {
        return false;
    }
    /* The environment is inherited; there is one thread here. */
    setenv("CONSIGN_FAILPOINTS", failpoints ? failpoints : "", 1);
    setenv("CONSIGN_FAILPOINT_HITS", hits ? hits : "", 1);
    d->ready = false;
    d->pid = start_program(w, (const char *const[]){"serve", "-q", "-c", yaml, NULL}, d->log);
    return d->pid > 0;
}

bool daemon_says(const struct daemon_process *d, const char *text) {
    FILE *f = fopen(d->log, "re");
    char line[4096];
    bool found = false;
    while (f && !found && fgets(line, sizeof line, f)) {
        found = strstr(line, text) != NULL;
    }
    if (f) {
        fclose(f);
    }
    return found;
}

bool daemon_ready(struct daemon_process *d) {
    d->ready = d->ready || daemon_says(d, "\"event\":\"ready\"");
    return d->ready;
}

bool daemon_ended(struct daemon_process *d, int *ret_status) {
    if (d->pid <= 0 || waitpid(d->pid, ret_status, WNOHANG) != d->pid) {
        return false;
    }
    d->pid = 0;
    return true;
}

bool daemon_wait_ready(struct daemon_process *d, csn_usec bound) {
    for (csn_usec until = time_now() + bound; !daemon_ready(d); time_rest(POLL)) {
        if (time_now() > until) {
            return false;
        }
    }
    return true;
}

bool daemon_wait_end(struct daemon_process *d, csn_usec bound, int *ret_status) {
    if (d->pid <= 0 || !wait_end(d->pid, bound, ret_status)) {
        return false;
    }
    d->pid = 0;
    return true;
}

bool daemon_stop(struct daemon_process *d, csn_usec bound) {
    int status = 0;
    if (d->pid <= 0 || kill(d->pid, SIGTERM) != 0) {
        return false;
    }
    return daemon_wait_end(d, bound, &status) && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void daemon_kill(struct daemon_process *d) {
    if (d->pid > 0) {
        kill(d->pid, SIGKILL);
        waitpid(d->pid, NULL, 0);
    }
    d->pid = 0;
}

/* ---- the shop ---- */

static bool find_program(struct world *w) {
    char self[PATH_SIZE];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) {
        return false;
    }
    self[n] = '\0';
    char *slash = strrchr(self, '/');
    struct text t;
    text_init(&t, w->program, sizeof w->program);
    text_add(&t, "%.*s/consign", (int)(slash - self), self);
    if (t.full || access(w->program, X_OK) != 0) {
        fprintf(stderr, "%s: not there\n", w->program);
        return false;
    }
    return true;
}

static bool make_folder(struct world *w, const char *dir) {
    const char *tmp = getenv("TMPDIR");
    if (dir) {
        return copy_text(w->dir, sizeof w->dir, dir);
    }
    struct text t;
    text_init(&t, w->dir, sizeof w->dir);
    text_add(&t, "%s/consign-crash.XXXXXX", tmp && *tmp ? tmp : "/tmp");
    return !t.full && mkdtemp(w->dir);
}

static bool make_tables(const struct world *w, csn_error *err) {
    struct db *d = world_open(w);
    char sql[4096];
    struct text t;
    text_init(&t, sql, sizeof sql);
    text_add(&t, "INSERT INTO s.stock(sku, opening, available) VALUES ");
    for (int i = 0; i < SKUS; i++) {
        int n = i < SKUS - SCARCE ? 100000000 : 20;
        text_add(&t, "%s('S%02d', %d, %d)", i ? ", " : "", i, n, n);
    }
    bool good = !t.full && db_script(d, sql, err) == CSN_OK;
    db_close(d);
    return good;
}

static bool run_sql(const struct world *w, const char *file, const char *a, const char *b,
                    csn_error *err) {
    char url[PATH_SIZE];
    struct text t;
    text_init(&t, url, sizeof url);
    text_add(&t, "sqlite:%s/%s", w->dir, file);
    struct db *d = NULL;
    bool good = db_open(url, 0, &d, err) == CSN_OK && db_script(d, a, err) == CSN_OK &&
                db_script(d, b, err) == CSN_OK;
    db_close(d);
    return good;
}

static bool write_config(const struct world *w) {
    char text[sizeof config + 100];
    struct text t;
    text_init(&t, text, sizeof text);
    text_add(&t, config, (long long)w->confirm / 1000, (long long)w->lease / 1000,
             (long long)w->lock_wait / 1000);
    return !t.full && world_write(w, "consign.yaml", text) &&
           world_write(w, "handlers/stock.sql", stock_handler) &&
           world_write(w, "handlers/glance.sql", glance_handler) &&
           world_write(w, "handlers/orders.sql", orders_handler);
}

bool world_make(struct world *w, const char *dir) {
    csn_error err = {.status = CSN_OK};
    char out[PATH_SIZE];
    if (!find_program(w) || !make_folder(w, dir)) {
        return false;
    }
    const char *const words[] = {"init", "-q", "--lab", "--dir", w->dir, NULL};
    struct text t;
    text_init(&t, out, sizeof out);
    text_add(&t, "%s.init", w->dir);
    int code = t.full ? -1 : run_program(w, words, out);
    if (code != 0) {
        fprintf(stderr, "consign init ended with %d, see %s\n", code, out);
        return false;
    }
    (void)unlink(out);
    bool good = write_config(w) && run_sql(w, "orders.db", orders_tables, effects_table, &err) &&
                run_sql(w, "stock.db", stock_tables, effects_table, &err) && make_tables(w, &err);
    if (!good) {
        fprintf(stderr, "the shop cannot be made: %s\n", err.text);
    }
    return good;
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw) {
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

void world_remove(const struct world *w) {
    if (w->dir[0]) {
        (void)nftw(w->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    }
}

struct db *world_open(const struct world *w) {
    csn_error err = {.status = CSN_OK};
    char url[PATH_SIZE], attach[PATH_SIZE + 40];
    struct db *d = NULL;
    struct text t;
    text_init(&t, url, sizeof url);
    text_add(&t, "sqlite:%s/orders.db", w->dir);
    if (db_open(url, 0, &d, &err) != CSN_OK) {
        give_up(url, &err);
    }
    text_init(&t, attach, sizeof attach);
    text_add(&t, "ATTACH '%s/stock.db' AS s", w->dir);
    if (db_script(d, attach, &err) != CSN_OK) {
        give_up(attach, &err);
    }
    return d;
}

int64_t count_of(struct db *d, const char *sql) {
    csn_error err = {.status = CSN_OK};
    int64_t n = 0;
    bool row = false;
    for (int i = 0; i < 20; i++) {
        csn_status s = db_int(d, sql, NULL, 0, &n, &row, &err);
        if (s == CSN_OK) {
            return n;
        }
        if (s != CSN_AGAIN) {
            break;
        }
    }
    give_up(sql, &err);
}

/* ---- writing ---- */

static const char create_sql[] =
    "INSERT INTO orders(order_id, sku, qty, version) VALUES (?1, ?2, ?3, 1)";
static const char draw_sql[] = "UPDATE orders SET version = version + 1 WHERE order_id = ?1\n"
                               "RETURNING version, sku, qty";
static const char event_sql[] =
    "INSERT INTO outbox_events(event_id, aggregate_type, aggregate_id, aggregate_version,\n"
    "  event_type, payload) VALUES (?1, 'order', ?2, ?3, ?4, ?5)";
static const char left_sql[] =
    "INSERT INTO outbox_events(event_id, aggregate_type, aggregate_id, aggregate_version,\n"
    "  event_type, payload, status, attempts, claim_token, lease_until)\n"
    "VALUES (?1, 'order', ?2, ?3, ?4, ?5, 'sending', 1, 'of-one-that-died',\n"
    "  CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER) * 1000 - 1000000)";

void pen_open(struct pen *p, const struct world *w) {
    csn_error err = {.status = CSN_OK};
    char url[PATH_SIZE];
    struct text t;
    text_init(&t, url, sizeof url);
    text_add(&t, "sqlite:%s/orders.db", w->dir);
    *p = (struct pen){.db = NULL};
    if (db_open(url, 0, &p->db, &err) != CSN_OK ||
        db_prepare(p->db, create_sql, &p->create, &err) != CSN_OK ||
        db_prepare(p->db, draw_sql, &p->draw, &err) != CSN_OK ||
        db_prepare(p->db, event_sql, &p->event, &err) != CSN_OK ||
        db_prepare(p->db, left_sql, &p->left, &err) != CSN_OK) {
        give_up(url, &err);
    }
}

void pen_close(struct pen *p) {
    stmt_close(p->create);
    stmt_close(p->draw);
    stmt_close(p->event);
    stmt_close(p->left);
    db_close(p->db);
    *p = (struct pen){.db = NULL};
}

static csn_status create(struct pen *p, const struct order_event *e, csn_error *err) {
    bool row;
    stmt_bind_text(p->create, 1, e->order);
    stmt_bind_text(p->create, 2, e->sku);
    stmt_bind_int(p->create, 3, e->qty);
    csn_status s = stmt_next(p->create, &row, err);
    stmt_reset(p->create);
    return s;
}

struct drawn {
    int64_t version, qty;
    char sku[8];
};

/* The version comes from the order's own row, under the write lock of this transaction. */
static csn_status draw(struct pen *p, const char *order, struct drawn *ret, bool *ret_there,
                       csn_error *err) {
    stmt_bind_text(p->draw, 1, order);
    csn_status s = stmt_next(p->draw, ret_there, err);
    if (s == CSN_OK && *ret_there) {
        ret->version = stmt_int(p->draw, 0);
        copy_text(ret->sku, sizeof ret->sku, stmt_text(p->draw, 1));
        ret->qty = stmt_int(p->draw, 2);
    }
    stmt_reset(p->draw);
    return s;
}

csn_status pen_write(struct pen *p, const struct order_event *e, bool *ret_there, csn_error *err) {
    struct drawn d = {.version = 1, .qty = e->qty};
    bool row, there = true;
    csn_status s;
    if (e->created) {
        copy_text(d.sku, sizeof d.sku, e->sku);
        s = create(p, e, err);
    } else {
        s = draw(p, e->order, &d, &there, err);
    }
    if (ret_there) {
        *ret_there = there;
    }
    if (s != CSN_OK || !there) {
        return s;
    }
    char payload[200];
    struct text t;
    text_init(&t, payload, sizeof payload);
    text_add(&t, "{\"sku\":\"%s\",\"after\":%lld", d.sku, (long long)e->after);
    if (!e->created || e->qty > 0) {
        text_add(&t, ",\"qty\":%lld", (long long)d.qty);
    }
    text_add(&t, "}");
    struct stmt *event = e->left ? p->left : p->event;
    stmt_bind_text(event, 1, e->id);
    stmt_bind_text(event, 2, e->order);
    stmt_bind_int(event, 3, d.version);
    stmt_bind_text(event, 4, e->type);
    stmt_bind_text(event, 5, payload);
    s = stmt_next(event, &row, err);
    stmt_reset(event);
    return s;
}

bool pen_try(struct pen *p, const struct order_event *e, int n) {
    csn_error err = {.status = CSN_OK};
    csn_status s = db_begin(p->db, &err);
    for (int i = 0; s == CSN_OK && i < n; i++) {
        s = pen_write(p, &e[i], NULL, &err);
    }
    if (s == CSN_OK) {
        s = db_commit(p->db, &err);
    }
    if (s != CSN_OK) {
        db_rollback(p->db);
    }
    if (s != CSN_OK && s != CSN_AGAIN) {
        give_up("an order cannot be written", &err);
    }
    return s == CSN_OK;
}

void pen_commit(struct pen *p, const struct order_event *e, int n) {
    for (int tries = 0; tries < 20; tries++) {
        if (pen_try(p, e, n)) {
            return;
        }
    }
    csn_error err = {.text = "the store stays locked"};
    give_up("an order cannot be written", &err);
}
