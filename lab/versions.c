/* versions.c: experiments on versions that come out of turn: the policies snapshot and command. The
 * handler guards nothing itself, as a careless one would: what comes last stands. */
#include "core/order.h"
#include "lab/crowd.h"
#include "lab/experiments.h"
#include <stdio.h>

static const char ship_sql[] =
    "-- handler ship\n"
    "INSERT INTO shipment(id, version, state) VALUES (:aggregate_id, :aggregate_version, "
    ":payload.state) ON CONFLICT (id) DO UPDATE SET version = :aggregate_version, state = "
    ":payload.state;\n"
    "UPDATE gate SET passed = passed + 1 WHERE open = 1 OR :aggregate_version <> 2;\n"
    "-- expect rows 1\n"
    "-- verdict done\n";

static const char version_sql[] = "SELECT version FROM shipment WHERE id = 'S-1'";
static const char done_sql[] =
    "SELECT count(*) FROM consumer_inbox WHERE consumer_name = 'stock' AND state = 'done'";
static const char late_sql[] =
    "SELECT count(*) FROM consumer_inbox WHERE consumer_name = 'stock' AND verdict = 'late'";

static void make_tables(struct stage *s, int open) {
    char sql[400];
    (void)snprintf(sql, sizeof sql,
                   "CREATE TABLE IF NOT EXISTS shipment(id TEXT PRIMARY KEY, version INTEGER NOT "
                   "NULL, state TEXT NOT NULL); CREATE TABLE IF NOT EXISTS gate(open INTEGER NOT "
                   "NULL, passed INTEGER NOT NULL); DELETE FROM shipment; DELETE FROM gate; INSERT "
                   "INTO gate VALUES (%d, 0)",
                   open);
    stage_sql(s, STOCK, sql);
}

static void use_shipments(struct stage *s, int open) {
    stage_write(s, "handlers/ship.sql", ship_sql);
    make_tables(s, open);
    stage_set(s, "subscriptions.stock.handler.sql=handlers/ship.sql");
    stage_set(s, "subscriptions.stock.match=Shipment*");
    s->pace = PACE_CALM;
}

static void snapshot(struct stage *s) {
    stage_set(s, "events.ShipmentChanged.policy=snapshot");
}

static void put_event(struct stage *s, const char *id, int version, const char *type,
                      const char *state) {
    char sql[400];
    (void)snprintf(sql, sizeof sql,
                   "INSERT INTO outbox_events(event_id, aggregate_type, aggregate_id, "
                   "aggregate_version, event_type, payload) VALUES ('%s', 'shipment', 'S-1', %d, "
                   "'%s', '{\"state\":\"%s\"}')",
                   id, version, type, state);
    stage_sql(s, ORDERS, sql);
}

static void sheets(struct stage *s, enum when when) {
    stage_sheet(s, when, "shipment", TEXT("shipment", "发货单"), STOCK, "SELECT * FROM shipment");
    stage_sheet(s, when, "inbox", TEXT("inbox of stock", "库存的收件箱"), STOCK,
                "SELECT event_id, state, verdict, result FROM consumer_inbox WHERE consumer_name = "
                "'stock' ORDER BY processed_at, event_id");
    stage_sheet(s, when, "gaps", TEXT("gaps", "缺口"), STOCK,
                "SELECT after_version, before_version, missing_version, event_id AS shown_by, "
                "closed_by FROM consign_gaps");
}

/* The copy of this version stays behind at the broker, and comes again later. */
static void hold_copy(struct stage *s, int version) {
    char sql[160];
    (void)snprintf(sql, sizeof sql,
                   "UPDATE consign_queue SET acked_at = 1 WHERE aggregate_id = 'S-1' AND "
                   "aggregate_version = %d",
                   version);
    stage_sql(s, ORDERS, sql);
}

static void bring_copy(struct stage *s, int version) {
    char sql[200];
    (void)snprintf(sql, sizeof sql,
                   "UPDATE consign_queue SET acked_at = NULL, token = NULL, lease_until = NULL "
                   "WHERE aggregate_id = 'S-1' AND aggregate_version = %d",
                   version);
    stage_sql(s, ORDERS, sql);
}

/* Both are at the broker, the daemon stands before it takes them. */
static void start_before_receive(struct stage *s, char *rule, size_t size) {
    (void)snprintf(rule, size, "broker.receive=pause:%s", gate_make(s, "receive"));
    daemon_start(s, "A", rule);
    gate_arrived(s, "receive");
}

static void sent(struct stage *s, int64_t n) {
    await_least(s, ORDERS, n, "SELECT count(*) FROM outbox_events WHERE status = 'sent'",
                TEXT("the events are at the broker", "事件已到达代理"));
}

static void expect_gap(struct stage *s, int64_t open, int64_t closed) {
    expect_int(s, STOCK, open, "SELECT count(*) FROM consign_gaps WHERE closed_at IS NULL",
               TEXT("open gaps", "未关闭的缺口"));
    expect_int(s, STOCK, closed, "SELECT count(*) FROM consign_gaps WHERE closed_at IS NOT NULL",
               TEXT("closed gaps, still on record", "已关闭的缺口，记录保留"));
}

/* ---- A8 ---- */

void a8_cancel_before_create(struct stage *s) {
    char rule[PATH_SIZE + 64];
    use_shipments(s, 1);
    stage_set(s, "machines.parcel.moves=OPEN > CANCELLED SENT; SENT > ARRIVED");
    stage_set(s, "events.ShipmentOpened.policy=command");
    stage_set(s, "events.ShipmentOpened.states=parcel");
    stage_set(s, "events.ShipmentOpened.to=OPEN");
    stage_set(s, "events.ShipmentCancelled.policy=command");
    stage_set(s, "events.ShipmentCancelled.states=parcel");
    stage_set(s, "events.ShipmentCancelled.to=CANCELLED");
    start_before_receive(s, rule, sizeof rule);
    put_event(s, "E-CREATE", 1, "ShipmentOpened", "OPEN");
    put_event(s, "E-CANCEL", 2, "ShipmentCancelled", "CANCELLED");
    sent(s, 2);
    hold_copy(s, 1);
    stage_step(s, "%s", TEXT("the creation stays behind at the broker", "创建事件滞留在代理"));
    sheets(s, BEFORE);
    gate_open(s, "receive");
    await_least(s, STOCK, 1, done_sql, TEXT("the cancellation is handled", "取消事件已处理"));
    sheets(s, BETWEEN);
    expect_text(s, STOCK, "CANCELLED", "SELECT state FROM shipment WHERE id = 'S-1'",
                TEXT("cancelled", "已取消"));
    expect_gap(s, 1, 0);
    bring_copy(s, 1);
    stage_step(s, "%s", TEXT("the creation arrives", "创建事件到达"));
    await_least(s, STOCK, 2, done_sql, TEXT("the creation is on record", "创建事件已记录"));
    stage_quiet(s);
    sheets(s, AFTER);
    expect_text(s, STOCK, "CANCELLED", "SELECT state FROM shipment WHERE id = 'S-1'",
                TEXT("it does not come back to life", "没有复活"));
    expect_int(s, STOCK, 1, late_sql, TEXT("the creation is history only", "创建事件只留历史"));
    expect_gap(s, 0, 1);
    daemon_stop(s, "A");
}

/* ---- O1 ---- */

static void o1_waits(struct stage *s) {
    daemon_start(s, "A", NULL);
    put_event(s, "E-1", 1, "ShipmentChanged", "packed");
    put_event(s, "E-2", 2, "ShipmentChanged", "sent");
    put_event(s, "E-3", 3, "ShipmentChanged", "arrived");
    await_least(
        s, STOCK, 2,
        "SELECT count(*) FROM consumer_inbox WHERE state = 'waiting' AND event_id IN "
        "('E-2', 'E-3')",
        TEXT("version 2 fails, version 3 waits behind it", "版本 2 失败，版本 3 在其后等待"));
    sheets(s, BEFORE);
    expect_int(s, STOCK, 1, version_sql, TEXT("the shipment is at 1", "发货单版本为 1"));
    stage_sql(s, STOCK, "UPDATE gate SET open = 1");
    stage_step(s, "%s", TEXT("what version 2 stumbled over is mended", "版本 2 失败的原因已修复"));
    await_least(s, STOCK, 3, done_sql, TEXT("all three are done", "三个都已完成"));
    stage_quiet(s);
    sheets(s, BETWEEN);
    expect_int(s, STOCK, 3, version_sql, TEXT("the shipment is at 3", "发货单版本为 3"));
    expect_int(s, STOCK, 0, late_sql, TEXT("nothing was late", "没有迟到"));
    expect_gap(s, 0, 0);
    daemon_stop(s, "A");
}

static void o1_wins(struct stage *s) {
    char rule[PATH_SIZE + 64];
    (void)snprintf(rule, sizeof rule, "broker.receive=pause:%s", gate_make(s, "receive"));
    daemon_start(s, "B", rule);
    gate_arrived(s, "receive");
    put_event(s, "E-4", 4, "ShipmentChanged", "returned");
    put_event(s, "E-5", 5, "ShipmentChanged", "refunded");
    sent(s, 5);
    hold_copy(s, 4);
    gate_open(s, "receive");
    await_least(s, STOCK, 4, done_sql, TEXT("version 5 wins", "版本 5 先到"));
    expect_gap(s, 1, 0);
    bring_copy(s, 4);
    stage_step(s, "%s", TEXT("version 4 comes back", "版本 4 返回"));
    await_least(s, STOCK, 1, late_sql, TEXT("version 4 is late", "版本 4 迟到"));
    stage_quiet(s);
    sheets(s, AFTER);
    expect_int(s, STOCK, 5, version_sql,
               TEXT("the shipment is at 5, not back", "版本为 5，没有倒退"));
    expect_int(s, STOCK, 5, done_sql, TEXT("the history is whole", "历史完整"));
    expect_gap(s, 0, 1);
    daemon_stop(s, "B");
}

void o1_comes_back(struct stage *s) {
    use_shipments(s, 0);
    snapshot(s);
    stage_set(s, "subscriptions.stock.retry.base=200ms");
    stage_set(s, "subscriptions.stock.retry.max=200ms");
    stage_set(s, "subscriptions.stock.retry.failures=1000");
    o1_waits(s);
    if (stage_going(s))
        o1_wins(s);
}

/* ---- O2 ---- */

enum { PAIRS = 24 };

static const char race_sql[] =
    "-- handler race\n"
    "INSERT INTO shipment(id, version, state) VALUES (:aggregate_id, :aggregate_version, 'x') ON "
    "CONFLICT (id) DO UPDATE SET version = :aggregate_version;\n"
    "-- verdict done\n";

/* Version 2 of each key, then version 3 of each. */
static void o2_messages(struct crowd *c, char key[][CELL_SIZE]) {
    char id[16];
    for (uint32_t i = 0; c && i < 2 * PAIRS; i++) {
        (void)snprintf(id, sizeof id, "E-%u-%u", i % PAIRS, 2 + i / PAIRS);
        crowd_message(c, id, "{}");
        (void)snprintf(key[i % PAIRS], CELL_SIZE, "S-%u", i % PAIRS);
        c->message[i].aggregate_id = bytes_of(key[i % PAIRS]);
        c->message[i].version = 2 + i / PAIRS;
        c->message[i].prev_version = i < PAIRS ? 0 : 2;
    }
}

void o2_concurrent_completion(struct stage *s) {
    static const struct order_rule rule = {
        .event_type = "OrderCreated", .policy = POLICY_SNAPSHOT, .deadline = 60000000};
    static const struct order order = {&rule, 1};
    char key[PAIRS][CELL_SIZE];
    struct crowd *c = crowd_new(s, 2, PAIRS, PAIRS);
    make_tables(s, 1);
    if (c)
        c->order = &order;
    o2_messages(c, key);
    stage_step(s, "%s",
               TEXT("24 shipments: version 2 and version 3 complete on two connections at once",
                    "24 个发货单：版本 2 与版本 3 同时在两个连接上完成"));
    crowd_run(s, c, race_sql);
    sheets(s, AFTER);
    expect_int(s, STOCK, PAIRS, "SELECT count(*) FROM shipment WHERE version = 3",
               TEXT("every shipment is at 3", "每个发货单的版本都是 3"));
    expect_int(s, STOCK, 2 * PAIRS, done_sql, TEXT("48 events on record", "48 个事件都有记录"));
    if (c) {
        crowd_expect(s, 2 * PAIRS, c->verdict[CSN_DONE] + c->verdict[CSN_LATE],
                     TEXT("each ended done or late", "每个的结果是 done 或 late"));
        expect_gap(s, 0, c->verdict[CSN_LATE]);
    }
    crowd_free(c);
}

/* ---- O3 ---- */

void o3_producer_retry(struct stage *s) {
    use_shipments(s, 1);
    snapshot(s);
    stage_set(s, "events.ShipmentClosed.policy=command");
    stage_set(s, "events.ShipmentClosed.states=task");
    stage_set(s, "events.ShipmentClosed.to=RUNNING");
    daemon_start(s, "A", NULL);
    put_event(s, "E-1", 1, "ShipmentChanged", "packed");
    put_event(s, "E-2", 2, "ShipmentChanged", "sent");
    put_event(s, "E-2-again", 2, "ShipmentChanged", "sent");
    await_least(s, STOCK, 3, done_sql, TEXT("all three are on record", "三个都有记录"));
    stage_step(s, "%s",
               TEXT("the producer wrote version 2 twice, under two ids",
                    "生产者以两个标识两次写入版本 2"));
    sheets(s, BETWEEN);
    expect_int(s, STOCK, 2, "SELECT passed FROM gate", TEXT("two effects", "两次业务效果"));
    expect_text(
        s, STOCK, "late", "SELECT verdict FROM consumer_inbox WHERE event_id = 'E-2-again'",
        TEXT("snapshot: the same version again is history only", "snapshot：相同版本只留历史"));
    put_event(s, "E-3", 3, "ShipmentClosed", "RUNNING");
    put_event(s, "E-4", 4, "ShipmentClosed", "RUNNING");
    await_least(s, STOCK, 5, done_sql, TEXT("all five are on record", "五个都有记录"));
    stage_quiet(s);
    sheets(s, AFTER);
    expect_text(
        s, STOCK, "duplicate", "SELECT verdict FROM consumer_inbox WHERE event_id = 'E-4'",
        TEXT("command: the same state again is a duplicate", "command：再次到达同一状态是重复"));
    expect_int(s, STOCK, 3, "SELECT passed FROM gate", TEXT("three effects", "三次业务效果"));
    expect_gap(s, 0, 0);
    daemon_stop(s, "A");
}
