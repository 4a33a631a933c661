/* crowd.c: many at once: the machinery, and the experiments that need nothing else. */
#include "lab/crowd.h"
#include "host/clock.h"
#include "lab/experiments.h"
#include "store/run.h"
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { LONG_ENOUGH = 60000000 };

static const char inbox_sql[] = "SELECT count(*) FROM consumer_inbox WHERE consumer_name = 'stock'";

/* ---- the machinery ---- */

struct member { /* one connection, one thread */
    struct crowd *crowd;
    const struct store_driver *driver;
    const struct handler *handler;
    pthread_mutex_t *start;
    pthread_barrier_t *together;
    void *conn;
    uint32_t number;
    struct apply_item item[CROWD_MESSAGES];
    csn_error failed;
};

struct crowd *crowd_new(struct stage *s, uint32_t members, uint32_t rounds, uint32_t apart) {
    struct crowd *c = calloc(1, sizeof *c);
    if (!c) {
        stage_break(s, ERR_NO_MEMORY, "crowd");
        return NULL;
    }
    c->members = members;
    c->rounds = rounds;
    c->apart = apart;
    return c;
}

void crowd_free(struct crowd *c) {
    free(c);
}

void crowd_message(struct crowd *c, const char *event, const char *payload) {
    if (c->messages == CROWD_MESSAGES)
        return;
    uint32_t n = c->messages++;
    (void)copy_text(c->id[n], CELL_SIZE, event);
    (void)copy_text(c->text[n], CROWD_LINE, payload);
    c->message[n] = (struct message){.id = bytes_of(c->id[n]),
                                     .aggregate_type = bytes_of("order"),
                                     .aggregate_id = bytes_of(c->id[n]),
                                     .event_type = bytes_of("OrderCreated"),
                                     .payload = bytes_of(c->text[n]),
                                     .version = 1,
                                     .seq = n + 1,
                                     .schema_version = 1,
                                     .attempts = 1,
                                     .expires_in = CSN_USEC_NEVER};
}

/* All come to the barrier as often, whatever happens in between. */
static void *apply_all(void *arg) {
    struct member *m = arg;
    struct crowd *c = m->crowd;
    struct batch batch = {.msg = c->message, .n = c->messages, .cap = c->messages};
    for (uint32_t i = 0; i < c->rounds; i++) {
        struct op op = {.kind = OP_APPLY, .batch = &batch};
        m->item[i] = (struct apply_item){.msg = (i + m->number * c->apart) % c->messages};
        op.apply.handler = m->handler;
        op.apply.order = c->order;
        op.apply.source = SOURCE_BROKER;
        op.apply.item = &m->item[i];
        op.apply.n = 1;
        (void)copy_text(op.apply.consumer, sizeof op.apply.consumer, "stock");
        (void)pthread_barrier_wait(m->together);
        op.deadline = clock_now() + LONG_ENOUGH;
        m->driver->run(m->conn, &op);
        if (op.result.status != CSN_OK)
            m->failed = op.result;
    }
    return NULL;
}

/* The start line: whoever comes before all threads are there waits for the mutex. */
static void *start_and_apply(void *arg) {
    struct member *m = arg;
    (void)pthread_mutex_lock(m->start);
    bool go = m->crowd->rounds > 0;
    (void)pthread_mutex_unlock(m->start);
    return go ? apply_all(m) : NULL;
}

/* Without all of its threads the race is not run: they find no rounds. */
static void race(struct stage *s, struct crowd *c, struct member *m) {
    pthread_mutex_t start = PTHREAD_MUTEX_INITIALIZER;
    pthread_barrier_t together;
    pthread_t thread[CROWD_MAX];
    uint32_t n = 0;
    (void)pthread_mutex_lock(&start);
    for (; n < c->members; n++) {
        m[n].start = &start;
        m[n].together = &together;
        if (pthread_create(&thread[n], NULL, start_and_apply, &m[n]) != 0)
            break;
    }
    if (n < c->members || pthread_barrier_init(&together, NULL, n) != 0) {
        stage_break(s, ERR_NO_MEMORY, "threads");
        c->rounds = 0;
    }
    (void)pthread_mutex_unlock(&start);
    for (uint32_t i = 0; i < n; i++)
        (void)pthread_join(thread[i], NULL);
    if (c->rounds > 0)
        (void)pthread_barrier_destroy(&together);
}

static void sum_up(struct stage *s, struct crowd *c, const struct member *m) {
    for (uint32_t i = 0; i < c->members; i++) {
        if (m[i].failed.status != CSN_OK)
            stage_broke(s, &m[i].failed);
        for (uint32_t k = 0; k < c->rounds; k++) {
            const struct apply_item *item = &m[i].item[k];
            c->out[item->out]++;
            if (item->out == APPLY_VERDICT)
                c->verdict[item->verdict]++;
        }
    }
}

static void open_and_race(struct stage *s, struct crowd *c, const struct handler *h) {
    struct member *m = calloc(c->members, sizeof *m);
    csn_error err = {.status = CSN_OK};
    const struct store_driver *d = driver_for(store_drivers, s->url[STOCK], &err);
    if (!m)
        err = (csn_error){.status = CSN_NOMEM, .code = ERR_NO_MEMORY};
    for (uint32_t i = 0; m && d && i < c->members && err.status == CSN_OK; i++) {
        m[i] = (struct member){.crowd = c, .driver = d, .handler = h, .number = i};
        err.status = d->open(s->url[STOCK], ROLE_APPLY, &m[i].conn, &err);
    }
    if (!m || !d || err.status != CSN_OK) {
        stage_broke(s, &err);
    } else {
        sqlite_count_statements(m[0].conn, &c->statements);
        race(s, c, m);
        sum_up(s, c, m);
    }
    for (uint32_t i = 0; m && d && i < c->members; i++)
        d->close(m[i].conn);
    free(m);
}

void crowd_run(struct stage *s, struct crowd *c, const char *handler_sql) {
    struct sql_handler sql;
    char report[1024];
    struct text t;
    csn_error err;
    text_init(&t, report, sizeof report);
    if (!c || !stage_going(s))
        return;
    if (sql_handler_parse("crowd.sql", bytes_of(handler_sql), &sql, &t, &err) != CSN_OK) {
        stage_broke(s, &err);
        return;
    }
    open_and_race(s, c, &(struct handler){.sql = &sql});
    sql_handler_free(&sql);
}

void crowd_expect(struct stage *s, uint32_t expected, uint32_t found, const char *text) {
    char want[16], got[16];
    (void)snprintf(want, sizeof want, "%" PRIu32, expected);
    (void)snprintf(got, sizeof got, "%" PRIu32, found);
    expect(s, found == expected, text, want, got);
}

/* ---- A6 ---- */

enum { ROUNDS = 24 };

/* A handler that guards nothing itself: only the inbox stands between two deliveries. */
static const char bare_sql[] = "-- handler bare\n"
                               "UPDATE stock SET available = available - :payload.qty "
                               "WHERE sku = :payload.sku;\n"
                               "-- expect rows 1\n"
                               "-- verdict done\n";

static void a6_events(struct crowd *c) {
    char id[16];
    for (uint32_t i = 0; c && i < ROUNDS; i++) {
        (void)snprintf(id, sizeof id, "E-%u", 600 + i);
        crowd_message(c, id, "{\"sku\":\"C\",\"qty\":1}");
    }
}

void a6_two_connections(struct stage *s) {
    struct crowd *c = crowd_new(s, 2, ROUNDS, 0);
    a6_events(c);
    stage_state(s, BEFORE);
    stage_step(s, "%s",
               TEXT("24 events, each handed to two connections at the same moment",
                    "24 个事件，每个同时交给两个连接"));
    crowd_run(s, c, bare_sql);
    stage_state(s, AFTER);
    if (c) {
        crowd_expect(s, ROUNDS, c->out[APPLY_VERDICT],
                     TEXT("of 48 deliveries 24 ran the handler", "48 次投递中 24 次运行了处理器"));
        crowd_expect(s, ROUNDS, c->out[APPLY_SEEN],
                     TEXT("the other 24 found the event done", "其余 24 次查得已处理"));
    }
    crowd_free(c);
    expect_int(s, STOCK, 976, "SELECT available FROM stock WHERE sku = 'C'",
               TEXT("stock of C: 1000 − 24 × 1, once for each event",
                    "商品 C 的可用量：1000 − 24 × 1，每个事件一次"));
    expect_int(s, STOCK, ROUNDS, inbox_sql,
               TEXT("one inbox row for each event", "每个事件一条收件记录"));
    expect_int(s, STOCK, ROUNDS,
               "SELECT count(*) FROM consumer_inbox WHERE duplicates = 1 AND attempts = 1",
               TEXT("each was run once and seen once more", "每个运行一次、再次见到一次"));
}

/* ---- V1 ---- */

enum { CALLBACKS = 10 };

/* The channel's number is the key of the fact; each callback has an event id of its own. */
static const char charge_sql[] =
    "-- handler charge\n"
    "INSERT INTO ledger(provider_no, amount, currency, event_id) VALUES (:payload.provider_no, "
    ":payload.amount, :payload.currency, :event_id) ON CONFLICT (provider_no) DO NOTHING;\n"
    "-- expect rows 1 else goto known\n"
    "-- verdict done\n"
    "-- label known\n"
    "SELECT 1 FROM ledger WHERE provider_no = :payload.provider_no AND amount = :payload.amount "
    "AND currency = :payload.currency;\n"
    "-- expect rows 1 else goto other\n"
    "-- verdict duplicate \"booked already\"\n"
    "-- label other\n"
    "-- verdict conflict \"booked with another amount\"\n";

static struct crowd *callbacks(struct stage *s, uint32_t n, uint32_t first, const char *amount) {
    struct crowd *c = crowd_new(s, n, 1, 1);
    char id[16], payload[CROWD_LINE];
    for (uint32_t i = 0; c && i < n; i++) {
        (void)snprintf(id, sizeof id, "E-CB-%u", first + i);
        (void)snprintf(payload, sizeof payload,
                       "{\"provider_no\":\"CH-2026-77\",\"amount\":\"%s\",\"currency\":\"USD\"}",
                       amount);
        crowd_message(c, id, payload);
    }
    return c;
}

static void v1_sheet(struct stage *s, enum when when) {
    stage_sheet(s, when, "ledger", TEXT("ledger", "账务流水"), STOCK,
                "SELECT provider_no, amount, currency, event_id FROM ledger");
    stage_sheet(s, when, "inbox", TEXT("inbox of stock", "库存的收件箱"), STOCK,
                "SELECT verdict, count(*) AS events FROM consumer_inbox GROUP BY verdict");
}

void v1_one_provider_number(struct stage *s) {
    stage_sql(s, STOCK,
              "CREATE TABLE IF NOT EXISTS ledger(provider_no TEXT NOT NULL, amount TEXT NOT NULL, "
              "currency TEXT NOT NULL, event_id TEXT NOT NULL, UNIQUE (provider_no)); DELETE FROM "
              "ledger");
    struct crowd *c = callbacks(s, CALLBACKS, 1, "120.00");
    v1_sheet(s, BEFORE);
    stage_step(s, "%s",
               TEXT("ten callbacks with one provider number, on ten connections at once",
                    "同一渠道交易号的十个回调，同时在十个连接上处理"));
    crowd_run(s, c, charge_sql);
    if (c) {
        crowd_expect(s, 1, c->verdict[CSN_DONE], TEXT("one of ten booked it", "十个中一个入账"));
        crowd_expect(s, CALLBACKS - 1, c->verdict[CSN_DUPLICATE],
                     TEXT("nine found it booked already", "其余九个查得已入账"));
    }
    crowd_free(c);
    c = callbacks(s, 1, CALLBACKS + 1, "130.00");
    stage_step(s, "%s",
               TEXT("one more, with another amount under the same number",
                    "再来一个：号码相同，金额不同"));
    crowd_run(s, c, charge_sql);
    if (c)
        crowd_expect(
            s, 1, c->verdict[CSN_CONFLICT],
            TEXT("another amount is a conflict, never a duplicate", "金额不同是冲突，绝不算重复"));
    crowd_free(c);
    v1_sheet(s, AFTER);
    expect_text(s, STOCK, "1 × 120.00 USD",
                "SELECT count(*) || ' × ' || min(amount) || ' ' || min(currency) FROM ledger",
                TEXT("one ledger row, amount and currency as they were",
                     "账务流水只有一条，金额与币种一致"));
    expect_int(s, STOCK, CALLBACKS, inbox_sql,
               TEXT("ten events on record, the conflict left none", "十个事件有记录，冲突的没有"));
}

/* ---- V3 ---- */

/* Nothing here but the inbox keeps a second label from being bought. */
static const char label_sql[] =
    "-- handler label\n"
    "INSERT INTO label(label_no, order_id) SELECT 'L-' || (count(*) + 1), :aggregate_id FROM "
    "label;\n"
    "UPDATE stock SET available = available - 1 WHERE sku = 'C';\n"
    "-- expect rows 1\n"
    "-- emit LabelPurchased for label :aggregate_id payload {\"order\": :aggregate_id}\n"
    "-- verdict done\n";

void v3_fifty_threads(struct stage *s) {
    struct crowd *c = crowd_new(s, CROWD_MAX, 1, 0);
    if (c)
        crowd_message(c, "E-LABEL-1", "{\"carrier\":\"YT\"}");
    stage_sql(s, STOCK,
              "CREATE TABLE IF NOT EXISTS label(label_no TEXT NOT NULL, order_id TEXT NOT NULL); "
              "DELETE FROM label");
    stage_state(s, BEFORE);
    stage_step(s, "%s",
               TEXT("one event, handed to fifty threads with a connection each at the same moment",
                    "一个事件，同时交给五十个线程，各用一个连接"));
    crowd_run(s, c, label_sql);
    stage_state(s, AFTER);
    stage_sheet(s, AFTER, "label", TEXT("labels", "面单"), STOCK, "SELECT * FROM label");
    if (c) {
        crowd_expect(s, 1, c->out[APPLY_VERDICT],
                     TEXT("one thread ran the handler", "一个线程运行了处理器"));
        crowd_expect(s, CROWD_MAX - 1, c->out[APPLY_SEEN],
                     TEXT("forty-nine found the event done", "四十九个查得已处理"));
    }
    crowd_free(c);
    expect_text(s, STOCK, "1 × L-1", "SELECT count(*) || ' × ' || min(label_no) FROM label",
                TEXT("one label", "一张面单"));
    expect_int(s, STOCK, 999, "SELECT available FROM stock WHERE sku = 'C'",
               TEXT("one effect: 1000 − 1", "一次效果：1000 − 1"));
    expect_int(s, STOCK, 1,
               "SELECT count(*) FROM outbox_events WHERE event_type = 'LabelPurchased'",
               TEXT("one result event", "一个结果事件"));
    expect_int(s, STOCK, CROWD_MAX - 1,
               "SELECT duplicates FROM consumer_inbox WHERE event_id = 'E-LABEL-1'",
               TEXT("the inbox counted 49 duplicates", "收件箱计数：重复 49 次"));
}

/* ---- D1 ---- */

enum { STORM = 12, DELIVERIES = 6 };

static void storm_orders(struct stage *s) {
    char order[16], event[16];
    for (int i = 1; i <= STORM; i++) {
        (void)snprintf(order, sizeof order, "%d", 9000 + i);
        (void)snprintf(event, sizeof event, "E-%d-1", 9000 + i);
        stage_order(s, order, event, "A", 5);
    }
}

/* What the queue holds for the stock, as the broker would hand it over once more. */
static void queued(struct stage *s, struct crowd *c) {
    char sql[240], line[CROWD_LINE];
    for (uint32_t i = 0; c && i < STORM && stage_going(s); i++) {
        struct message *m = &c->message[i];
        (void)snprintf(sql, sizeof sql,
                       "SELECT payload FROM consign_queue WHERE subscription = 'stock' AND "
                       "event_id = 'E-%u-1'",
                       9001 + i);
        ask_text(s, ORDERS, sql, line, sizeof line);
        (void)snprintf(sql, sizeof sql, "E-%u-1", 9001 + i);
        crowd_message(c, sql, line);
        m->aggregate_id = (csn_bytes){c->id[i] + 2, 4};
    }
}

/* One more delivery of each, with the statements counted. */
static void count_duplicates(struct stage *s) {
    struct crowd *c = crowd_new(s, 1, STORM, 0);
    queued(s, c);
    crowd_run(s, c, bare_sql);
    if (c) {
        crowd_expect(s, STORM, c->out[APPLY_SEEN],
                     TEXT("one more delivery of each: found done", "每个再投递一次：查得已处理"));
        crowd_expect(s, STORM, (uint32_t)c->statements,
                     TEXT("12 duplicates cost 12 statements", "12 次重复只用 12 条语句"));
    }
    crowd_free(c);
}

void d1_acks_down(struct stage *s) {
    static const char fewest[] = "SELECT min(duplicates) FROM consumer_inbox WHERE consumer_name = "
                                 "'stock' HAVING count(*) >= 12";
    daemon_start(s, "A", "broker.ack=error");
    storm_orders(s);
    stage_state(s, BEFORE);
    await_least(s, STOCK, DELIVERIES - 1, fewest,
                TEXT("each event is delivered six times", "每个事件投递六次"));
    stage_step(s, "%s", TEXT("no ack has reached the broker", "没有任何 ACK 到达代理"));
    daemon_kill(s, "A");
    expect_int(s, ORDERS, 0,
               "SELECT count(*) FROM consign_queue WHERE subscription = 'stock' AND acked_at IS "
               "NOT NULL",
               TEXT("nothing is acknowledged", "没有一条被确认"));
    expect_least(s, ORDERS, DELIVERIES,
                 "SELECT min(deliveries) FROM consign_queue WHERE subscription = 'stock'",
                 TEXT("six deliveries of each", "每个至少投递六次"));
    expect_int(s, STOCK, 1,
               "SELECT max(attempts) FROM consumer_inbox WHERE consumer_name = 'stock'",
               TEXT("each ran its handler once", "每个只运行一次处理器"));
    count_duplicates(s);
    daemon_start(s, "B", NULL);
    stage_quiet(s);
    stage_state(s, AFTER);
    expect_int(s, STOCK, 99940, "SELECT available FROM stock WHERE sku = 'A'",
               TEXT("stock of A: 100000 − 12 × 5", "商品 A 的可用量：100000 − 12 × 5"));
    expect_int(s, STOCK, STORM, "SELECT count(*) FROM reservation",
               TEXT("one reservation for each order", "每个订单一笔预占"));
    expect_int(s, ORDERS, 0, "SELECT count(*) FROM consign_queue WHERE acked_at IS NULL",
               TEXT("with acks back, all is acknowledged", "ACK 恢复后全部确认"));
    expect_books(s);
}
