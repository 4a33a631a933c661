/* deduction.c: the worked examples B1, B2 and B4 to B6: their ids, their order of events, their
 * timings scaled to what a database on a disk can show. */
#include "lab/experiments.h"
#include <inttypes.h>
#include <stdio.h>

static void counter_sql(const char *name, char *ret, size_t size) {
    (void)snprintf(ret, size,
                   "SELECT coalesce(sum(CAST(json_extract(counters, '$.%s') AS INTEGER)), 0) FROM "
                   "consign_members",
                   name);
}

/* A machine that is slow enough times out once more; each time is counted, and the last one is not.
 */
static void expect_unknown(struct stage *s) {
    char sql[200];
    counter_sql("unknown", sql, sizeof sql);
    int64_t tries = ask_int(s, ORDERS, "SELECT attempts - 1 FROM outbox_events WHERE seq = 1");
    expect_int(s, ORDERS, tries, sql,
               TEXT("counter unknown: every attempt but the last",
                    "计数 unknown：除最后一次外的每次尝试"));
    expect_least(s, ORDERS, 1, sql, TEXT("counter unknown: at least 1", "计数 unknown：至少 1"));
}

static int64_t at(struct stage *s, enum where w, const char *sql, int64_t from) {
    int64_t n = ask_int(s, w, sql);
    return n > 0 ? (n - from) / 1000 : -1;
}

/* ---- B1 ---- */

static void layer(struct sheet *t, uint32_t row, const char *name, const char *says, int64_t ms) {
    char text[24] = "–";
    if (!t)
        return;
    if (ms >= 0)
        (void)snprintf(text, sizeof text, "+%" PRId64 " ms", ms);
    (void)sheet_cell(t, row, 0, name);
    (void)sheet_cell(t, row, 1, says);
    (void)sheet_cell(t, row, 2, text);
}

static void five_layers(struct stage *s, enum when when, int64_t from) {
    char order[64], row[CELL_SIZE], queue[64], inbox[64], effect[64];
    if (!stage_going(s))
        return;
    ask_text(s, ORDERS, "SELECT order_id || ' ' || state FROM orders", order, sizeof order);
    ask_text(s, ORDERS,
             "SELECT event_id || ' ' || status || ', ' || attempts || ' attempt(s)' FROM "
             "outbox_events",
             row, sizeof row);
    ask_text(s, ORDERS,
             "SELECT count(*) || ' × ' || coalesce(min(event_id), '–') FROM consign_queue WHERE "
             "subscription = 'stock'",
             queue, sizeof queue);
    ask_text(s, STOCK,
             "SELECT event_id || ' ' || state || ', ' || duplicates || ' duplicate(s)' FROM "
             "consumer_inbox WHERE consumer_name = 'stock'",
             inbox, sizeof inbox);
    ask_text(s, STOCK, "SELECT order_id || ' × ' || qty FROM reservation", effect, sizeof effect);
    struct sheet *t = report_sheet(s->report, when, "layers", TEXT("five layers", "五层证据"));
    if (t) {
        t->columns = 3;
        (void)copy_text(t->heading[0], CELL_SIZE, TEXT("layer", "层"));
        (void)copy_text(t->heading[1], CELL_SIZE, TEXT("says", "证据"));
        (void)copy_text(t->heading[2], CELL_SIZE, TEXT("since commit", "距提交"));
    }
    layer(t, 0, TEXT("business", "业务库"), order, 0);
    layer(t, 1, TEXT("sender", "发送日志"), row,
          at(s, ORDERS, "SELECT at FROM consign_attempts WHERE kind = 'unanswered' ORDER BY seq",
             from));
    layer(t, 2, TEXT("broker", "代理"), queue,
          at(s, ORDERS, "SELECT min(published_at) FROM consign_queue WHERE subscription = 'stock'",
             from));
    layer(t, 3, TEXT("consumer", "消费者"), inbox,
          at(s, STOCK, "SELECT processed_at FROM consumer_inbox WHERE consumer_name = 'stock'",
             from));
    layer(t, 4, TEXT("receiver's business", "接收方业务"), effect, -1);
}

static void b1_settings(struct stage *s) {
    stage_set(s, "relay.lease=10s");
    stage_set(s, "relay.lock_wait=2s");
    stage_set(s, "brokers.local.confirm_timeout=300ms");
    stage_set(s, "relay.retry.base=1s");
    stage_set(s, "relay.retry.jitter=10%");
}

void b1_five_layers(struct stage *s) {
    static const char unanswered[] =
        "SELECT count(*) FROM consign_attempts WHERE kind = 'unanswered' AND code = 3005";
    char rule[PATH_SIZE + 64], late[200];
    counter_sql("late_results", late, sizeof late);
    s->pace = PACE_CALM;
    b1_settings(s);
    (void)snprintf(rule, sizeof rule, "broker.publish=pause:%s@1", gate_make(s, "publish"));
    daemon_start(s, "A", rule);
    daemon_ready(s, "A");
    stage_order(s, "O-9001", "E-9001-1", "A", 5);
    int64_t from = stage_going(s) ? db_now(s->db[ORDERS]) : 0;
    gate_arrived(s, "publish");
    await_least(s, ORDERS, 1, unanswered, TEXT("the publish times out", "发送超时"));
    stage_step(s, "%s", TEXT("the sender's time-out: outcome unknown", "发送方超时：结果未知"));
    five_layers(s, BEFORE, from);
    expect_text(s, ORDERS, "unknown", "SELECT status FROM outbox_events",
                TEXT("the sender says unknown, neither sent nor failed",
                     "发送方记为未知，既非已发送也非失败"));
    gate_open(s, "publish");
    await_least(s, ORDERS, 1, "SELECT count(*) FROM consign_queue WHERE subscription = 'stock'",
                TEXT("the broker stores the message after the time-out", "代理在超时之后落盘"));
    await_least(s, STOCK, 1, "SELECT count(*) FROM consumer_inbox WHERE consumer_name = 'stock'",
                TEXT("the consumer handles it", "消费者处理"));
    five_layers(s, BETWEEN, from);
    await_least(s, ORDERS, 1, "SELECT count(*) FROM outbox_events WHERE status = 'sent'",
                TEXT("sent again and confirmed", "重发并确认"));
    stage_quiet(s);
    five_layers(s, AFTER, from);
    stage_state(s, AFTER);
    expect_int(s, ORDERS, 1, "SELECT count(*) FROM outbox_events",
               TEXT("one event row: no E-9001-2 was made", "只有一个事件：没有产生 E-9001-2"));
    expect_least(s, ORDERS, 2,
                 "SELECT count(*) FROM consign_queue WHERE event_id = 'E-9001-1' AND subscription "
                 "= 'stock'",
                 TEXT("sent again under the same id", "以同一标识再次发送"));
    expect_int(s, ORDERS, 0,
               "SELECT count(*) FROM consign_queue WHERE event_type = 'OrderCreated' AND event_id "
               "<> 'E-9001-1'",
               TEXT("and under no other", "没有其他标识"));
    expect_int(s, STOCK, 1,
               "SELECT count(*) FROM reservation WHERE order_id = 'O-9001' AND qty = 5",
               TEXT("one reservation", "一笔预占"));
    expect_least(s, STOCK, 1, "SELECT duplicates FROM consumer_inbox WHERE event_id = 'E-9001-1'",
                 TEXT("the second copy was found done", "第二份查得已处理"));
    expect_books(s);
    daemon_stop(s, "A");
    expect_unknown(s);
    expect_least(s, ORDERS, 1, late,
                 TEXT("the late answer was counted, not used", "迟到的应答被计数，未被采用"));
}

/* ---- B2 ---- */

/* Plan A: semantics at_most_once, and the process dies between its ack and the effect. */
static void at_most_once(struct stage *s) {
    stage_set(s, "subscriptions.stock.semantics=at_most_once");
    daemon_start(s, "A1", "inbox.acked=crash@1");
    stage_order(s, "O-42", "E-42", "A", 5);
    daemon_dies(s, "A1");
    stage_step(s, "%s",
               TEXT("plan A: acknowledged first, then killed before the effect",
                    "方案甲：先确认，写库之前被杀死"));
    expect_int(s, ORDERS, 1,
               "SELECT count(*) FROM consign_queue WHERE event_id = 'E-42' AND subscription = "
               "'stock' AND acked_at IS NOT NULL",
               TEXT("plan A: the copy is acknowledged", "方案甲：副本已确认"));
    daemon_start(s, "A2", NULL);
    stage_order(s, "O-43", "E-43", "A", 1);
    await_least(s, STOCK, 1, "SELECT count(*) FROM stock_journal WHERE event_id = 'E-43'",
                TEXT("the next event is handled", "下一个事件被处理"));
    stage_quiet(s);
    expect_int(
        s, STOCK, 0, "SELECT count(*) FROM stock_journal WHERE event_id = 'E-42'",
        TEXT("plan A: E-42 is lost for ever (at most once)", "方案甲：E-42 永久遗漏（至多一次）"));
    expect_int(s, STOCK, 0, "SELECT count(*) FROM consumer_inbox WHERE consumer_name = 'stock'",
               TEXT("plan A: and there is no inbox that could know", "方案甲：也没有收件记录可查"));
    daemon_stop(s, "A2");
    stage_state(s, BEFORE);
    stage_sql(s, STOCK,
              "UPDATE stock SET available = 100000 WHERE sku = 'A'; DELETE FROM reservation; "
              "DELETE FROM stock_journal; DELETE FROM outbox_events");
    stage_sql(s, ORDERS,
              "DELETE FROM consign_queue; DELETE FROM outbox_events; DELETE FROM consumer_inbox; "
              "DELETE FROM orders");
    stage_set(s, "subscriptions.stock.semantics=once_effect");
}

void b2_ack_order(struct stage *s) {
    at_most_once(s);
    daemon_start(s, "A", "inbox.committed=crash@1");
    stage_order(s, "O-42", "E-42", "A", 5);
    daemon_dies(s, "A");
    stage_step(
        s, "%s",
        TEXT("plan B: effect first, killed before the ack", "方案乙：先写业务，确认之前被杀死"));
    expect_int(s, STOCK, 1, "SELECT count(*) FROM stock_journal WHERE event_id = 'E-42'",
               TEXT("plan B: the effect is committed", "方案乙：业务流水已提交"));
    daemon_start(s, "B", NULL);
    stage_quiet(s);
    stage_state(s, AFTER);
    expect_least(s, ORDERS, 2,
                 "SELECT deliveries FROM consign_queue WHERE event_id = 'E-42' AND subscription = "
                 "'stock'",
                 TEXT("plan B: E-42 is read again", "方案乙：E-42 被再次读取"));
    expect_least(
        s, STOCK, 1, "SELECT duplicates FROM consumer_inbox WHERE event_id = 'E-42'",
        TEXT("plan B: the unique row answers \"done already\"", "方案乙：唯一约束返回“已处理”"));
    expect_int(s, STOCK, 1, "SELECT count(*) FROM stock_journal WHERE event_id = 'E-42'",
               TEXT("plan B: one effect (at least once, effect once)",
                    "方案乙：业务效果仍为一次（至少一次投递）"));
    expect_int(s, STOCK, 99995, "SELECT available FROM stock WHERE sku = 'A'",
               TEXT("plan B: stock 100000 − 5", "方案乙：库存 100000 − 5"));
    expect_books(s);
}

/* ---- B4 ---- */

static const char ledger_sql[] = "-- handler ledger\n"
                                 "INSERT INTO ledger(event_id, payment, amount) VALUES (:event_id, "
                                 ":aggregate_id, :payload.qty);\n"
                                 "-- expect rows 1\n"
                                 "-- verdict done\n";

static void b4_settings(struct stage *s) {
    stage_write(s, "handlers/ledger.sql", ledger_sql);
    stage_sql(s, STOCK,
              "CREATE TABLE IF NOT EXISTS ledger(event_id TEXT NOT NULL, payment TEXT NOT NULL, "
              "amount INTEGER NOT NULL, UNIQUE (event_id)); DELETE FROM ledger");
    stage_set(s, "subscriptions.stock.handler.sql=handlers/ledger.sql");
    stage_set(s, "relay.lease=10s");
    stage_set(s, "relay.lock_wait=2s");
    stage_set(s, "brokers.local.confirm_timeout=300ms");
    stage_set(s, "relay.retry.base=800ms");
    stage_set(s, "relay.retry.jitter=25%");
}

static void b4_books(struct stage *s) {
    char paid[24], booked[24];
    (void)snprintf(paid, sizeof paid, "%" PRId64,
                   ask_int(s, ORDERS, "SELECT coalesce(sum(qty), 0) FROM orders"));
    (void)snprintf(booked, sizeof booked, "%" PRId64,
                   ask_int(s, STOCK, "SELECT coalesce(sum(amount), 0) FROM ledger"));
    expect(s, strcmp(paid, booked) == 0,
           TEXT("books: what was paid is what was booked", "账目：支付金额等于入账金额"), paid,
           booked);
}

void b4_stored_unconfirmed(struct stage *s) {
    char rule[PATH_SIZE + 64];
    s->pace = PACE_CALM;
    b4_settings(s);
    (void)snprintf(rule, sizeof rule, "broker.stored=pause:%s@1", gate_make(s, "stored"));
    daemon_start(s, "A", rule);
    daemon_ready(s, "A");
    stage_order(s, "P-77", "E-PAY-77", "A", 120);
    gate_arrived(s, "stored");
    expect_int(s, ORDERS, 1, "SELECT count(*) FROM consign_queue WHERE event_id = 'E-PAY-77'",
               TEXT("the broker stored it before the time-out", "代理在超时之前已落盘"));
    await_least(s, ORDERS, 1,
                "SELECT count(*) FROM consign_attempts WHERE kind = 'unanswered' AND code = 3005",
                TEXT("the publish times out", "发送超时"));
    stage_step(s, "%s", TEXT("no confirm within 300 ms: unknown", "300 ms 内没有确认：未知"));
    stage_state(s, BEFORE);
    expect_int(s, ORDERS, 1,
               "SELECT o.next_attempt_at - a.at BETWEEN 800000 AND 1000000 FROM outbox_events o "
               "JOIN consign_attempts a ON a.event_id = o.event_id WHERE a.kind = 'unanswered'",
               TEXT("it is due again after 800 ms + 0–200 ms", "800 ms + 0–200 ms 之后重发"));
    gate_open(s, "stored");
    await_least(s, ORDERS, 1, "SELECT count(*) FROM outbox_events WHERE status = 'sent'",
                TEXT("sent again and confirmed", "重发并确认"));
    stage_quiet(s);
    stage_state(s, AFTER);
    stage_sheet(s, AFTER, "ledger", TEXT("ledger", "账务表"), STOCK,
                "SELECT event_id, payment, amount FROM ledger");
    expect_least(s, ORDERS, 2, "SELECT count(*) FROM consign_queue WHERE event_id = 'E-PAY-77'",
                 TEXT("sent again under the same id", "以同一标识再次发送"));
    expect_least(s, STOCK, 1, "SELECT duplicates FROM consumer_inbox WHERE event_id = 'E-PAY-77'",
                 TEXT("received more than once", "消费者收到不止一次"));
    expect_int(s, STOCK, 1,
               "SELECT count(*) FROM ledger WHERE event_id = 'E-PAY-77' AND amount = 120",
               TEXT("one ledger row of 120", "账务表只有一行，金额 120"));
    b4_books(s);
    daemon_stop(s, "A");
    expect_unknown(s);
}

/* ---- B5 ---- */

void b5_before_connection(struct stage *s) {
    char unknown[200], back[200];
    counter_sql("unknown", unknown, sizeof unknown);
    counter_sql("given_back", back, sizeof back);
    s->pace = PACE_CALM;
    stage_order(s, "O-88", "E-INV-88", "A", 5);
    stage_state(s, BEFORE);
    daemon_start(s, "A", "broker.publish=error@1");
    await_least(s, ORDERS, 1,
                "SELECT count(*) FROM outbox_events WHERE event_id = 'E-INV-88' AND status = "
                "'sent'",
                TEXT("E-INV-88 is sent", "E-INV-88 已发送"));
    stage_quiet(s);
    stage_state(s, AFTER);
    expect_int(s, ORDERS, 2, "SELECT attempts FROM outbox_events WHERE event_id = 'E-INV-88'",
               TEXT("the second attempt succeeded", "第 2 次尝试成功"));
    expect_int(s, ORDERS, 1,
               "SELECT count(*) FROM consign_queue WHERE event_id = 'E-INV-88' AND subscription = "
               "'stock'",
               TEXT("one copy at the broker, under the same id", "代理中只有一份，标识相同"));
    expect_int(s, ORDERS, 0, "SELECT failures FROM outbox_events WHERE event_id = 'E-INV-88'",
               TEXT("the destination's fault is not counted against the event",
                    "目的地的故障不计入该事件的失败次数"));
    expect_int(s, ORDERS, 1,
               "SELECT count(*) FROM consign_attempts WHERE event_id = 'E-INV-88' AND kind = "
               "'released'",
               TEXT("the first attempt is on record", "首次尝试留有证据"));
    expect_int(s, STOCK, 0, "SELECT duplicates FROM consumer_inbox WHERE event_id = 'E-INV-88'",
               TEXT("delivered once", "只投递一次"));
    expect_books(s);
    daemon_stop(s, "A");
    expect_int(s, ORDERS, 1, back, TEXT("counter given_back: 1", "计数 given_back：1"));
    expect_int(
        s, ORDERS, 0, unknown,
        TEXT("counter unknown: 0, for nothing was asked", "计数 unknown：0，因为请求并未发出"));
}

/* ---- B6 ---- */

static const char track_sql[] =
    "-- handler track\n"
    "UPDATE parcel SET version = 17 WHERE parcel_id = :aggregate_id AND version = 16;\n"
    "-- expect rows 1 else goto known\n"
    "INSERT INTO track(parcel_id, version, event_id) VALUES (:aggregate_id, 17, :event_id);\n"
    "-- verdict done\n"
    "-- label known\n"
    "-- verdict duplicate \"the parcel is at this version\"\n";

void b6_ack_lost(struct stage *s) {
    stage_write(s, "handlers/track.sql", track_sql);
    stage_sql(s, STOCK,
              "CREATE TABLE IF NOT EXISTS parcel(parcel_id TEXT PRIMARY KEY, version INTEGER NOT "
              "NULL); CREATE TABLE IF NOT EXISTS track(parcel_id TEXT NOT NULL, version INTEGER "
              "NOT NULL, event_id TEXT NOT NULL); DELETE FROM track; DELETE FROM parcel; "
              "INSERT INTO parcel VALUES ('TRACK-9', 16)");
    stage_set(s, "subscriptions.stock.handler.sql=handlers/track.sql");
    s->pace = PACE_CALM;
    stage_sheet(s, BEFORE, "parcel", TEXT("parcel", "包裹"), STOCK, "SELECT * FROM parcel");
    daemon_start(s, "A", "broker.ack=error@1");
    stage_order(s, "TRACK-9", "TRACK-9#17", "A", 1);
    await_least(s, STOCK, 1, "SELECT duplicates FROM consumer_inbox WHERE event_id = 'TRACK-9#17'",
                TEXT("the event is delivered a second time", "事件第二次投递"));
    stage_step(s, "%s", TEXT("its first ack never reached the broker", "第一次 ACK 没有到达代理"));
    stage_quiet(s);
    stage_state(s, AFTER);
    stage_sheet(s, AFTER, "parcel", TEXT("parcel", "包裹"), STOCK, "SELECT * FROM parcel");
    stage_sheet(s, AFTER, "track", TEXT("track", "轨迹"), STOCK, "SELECT * FROM track");
    expect_int(s, STOCK, 17, "SELECT version FROM parcel",
               TEXT("the parcel is at 17", "包裹版本为 17"));
    expect_int(s, STOCK, 1, "SELECT count(*) FROM track WHERE version = 17",
               TEXT("one track row", "一条轨迹"));
    expect_int(s, STOCK, 1, "SELECT duplicates FROM consumer_inbox WHERE event_id = 'TRACK-9#17'",
               TEXT("duplicate counter: 1", "重复次数：1"));
    expect_int(s, ORDERS, 0, "SELECT count(*) FROM consign_queue WHERE acked_at IS NULL",
               TEXT("the second delivery is acknowledged", "第二次投递已确认"));
    daemon_stop(s, "A");
}
