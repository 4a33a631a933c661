/* consume.c: experiments on the consuming side: what commits together with its inbox row, and what
 * a second delivery finds. */
#include "lab/experiments.h"
#include <stdio.h>

static const char stock_sql[] = "SELECT available FROM stock WHERE sku = 'A'";
static const char inbox_sql[] = "SELECT count(*) FROM consumer_inbox WHERE consumer_name = 'stock'";

static void expect_untouched(struct stage *s, const char *when) {
    char text[LINE_SIZE];
    (void)snprintf(text, sizeof text, TEXT("%s: no inbox row", "%s：没有收件记录"), when);
    expect_int(s, STOCK, 0, inbox_sql, text);
    (void)snprintf(text, sizeof text, TEXT("%s: stock untouched", "%s：库存未变"), when);
    expect_int(s, STOCK, 100000, stock_sql, text);
    (void)snprintf(
        text, sizeof text,
        TEXT("%s: no reservation, no journal, no result event", "%s：没有预占、流水和结果事件"),
        when);
    expect_int(s, STOCK, 0,
               "SELECT (SELECT count(*) FROM reservation) + (SELECT count(*) FROM stock_journal) + "
               "(SELECT count(*) FROM outbox_events)",
               text);
}

static void expect_once(struct stage *s) {
    expect_int(s, STOCK, 99995, stock_sql,
               TEXT("stock of A: 100000 − 5", "商品 A 的可用量：100000 − 5"));
    expect_int(s, STOCK, 1, inbox_sql, TEXT("one inbox row", "一条收件记录"));
    expect_int(s, STOCK, 1, "SELECT count(*) FROM outbox_events",
               TEXT("one result event", "一个结果事件"));
    expect_text(s, ORDERS, "confirmed", "SELECT state FROM orders WHERE order_id = '9001'",
                TEXT("the order is confirmed", "订单状态为 confirmed"));
    expect_books(s);
}

/* ---- A4 ---- */

void a4_throw_before_commit(struct stage *s) {
    char rule[PATH_SIZE + 64];
    (void)snprintf(rule, sizeof rule, "apply.handled=error@1,apply.handled=pause:%s@2",
                   gate_make(s, "handled"));
    stage_state(s, BEFORE);
    daemon_start(s, "A", rule);
    stage_order(s, "9001", "E-9001-1", "A", 5);
    gate_arrived(s, "handled");
    stage_step(s, "%s",
               TEXT("the first attempt failed after its SQL; the second stands before its "
                    "commit",
                    "首次尝试在业务 SQL 之后失败；第二次停在提交之前"));
    stage_state(s, BETWEEN);
    expect_untouched(s, TEXT("after the exception", "异常之后"));
    daemon_kill(s, "A");
    expect_untouched(s, TEXT("after the kill", "被杀死之后"));
    daemon_start(s, "B", NULL);
    await_least(s, STOCK, 1, inbox_sql, TEXT("the event is handled", "事件已处理"));
    stage_quiet(s);
    stage_state(s, AFTER);
    expect_once(s);
}

/* ---- A5 ---- */

void a5_no_ack(struct stage *s) {
    static const char first[] =
        "SELECT deliveries FROM consign_queue WHERE event_id = 'E-9001-1' AND subscription = "
        "'stock'";
    daemon_start(s, "A", "broker.ack=error@1");
    stage_order(s, "9001", "E-9001-1", "A", 5);
    await_least(s, STOCK, 1, inbox_sql, TEXT("the event is handled", "事件已处理"));
    stage_quiet(s);
    stage_step(s, "%s", TEXT("its first ack never reached the broker", "第一次 ACK 没有到达代理"));
    stage_state(s, BEFORE);
    expect_least(s, ORDERS, 2, first, TEXT("delivered again", "再次投递"));
    expect_least(s, STOCK, 1, "SELECT duplicates FROM consumer_inbox WHERE event_id = 'E-9001-1'",
                 TEXT("the inbox counts the repetition", "收件箱记录了重复"));
    expect_once(s);
    daemon_stop(s, "A");
    daemon_start(s, "B", "inbox.committed=crash@1");
    stage_order(s, "9002", "E-9002-1", "A", 7);
    daemon_dies(s, "B");
    stage_step(s, "%s",
               TEXT("killed after the commit, before the ack", "提交之后、ACK 之前被杀死"));
    expect_int(
        s, ORDERS, 1,
        "SELECT count(*) FROM consign_queue WHERE event_id = 'E-9002-1' AND acked_at IS NULL",
        TEXT("committed, and not acknowledged", "已提交，但未确认"));
    expect_int(s, STOCK, 99988, stock_sql, TEXT("the effect is there", "业务效果已在"));
    daemon_start(s, "C", NULL);
    stage_quiet(s);
    stage_state(s, AFTER);
    expect_least(s, STOCK, 1, "SELECT duplicates FROM consumer_inbox WHERE event_id = 'E-9002-1'",
                 TEXT("redelivered to another process, found done", "重投给另一进程，查得已处理"));
    expect_int(s, STOCK, 99988, stock_sql,
               TEXT("the effect has not grown: 100000 − 5 − 7", "效果没有增加：100000 − 5 − 7"));
    expect_int(s, STOCK, 2, "SELECT count(*) FROM reservation",
               TEXT("one reservation for each order", "每个订单一笔预占"));
    expect_books(s);
}

/* ---- B7 ---- */

/* A handler that guards nothing itself: only the inbox stands between two deliveries. */
static const char bare_sql[] = "-- handler bare\n"
                               "UPDATE stock SET available = available - :payload.qty "
                               "WHERE sku = :payload.sku;\n"
                               "-- expect rows 1\n"
                               "-- verdict done\n";

void b7_two_consumers(struct stage *s) {
    char rule[PATH_SIZE + 64];
    stage_write(s, "handlers/bare.sql", bare_sql);
    stage_sql(s, STOCK, "INSERT INTO stock(sku, opening, available) VALUES ('T', 100, 100)");
    stage_set(s, "subscriptions.stock.handler.sql=handlers/bare.sql");
    (void)snprintf(rule, sizeof rule, "apply.handled=pause:%s@1", gate_make(s, "handled"));
    daemon_start(s, "A", rule);
    stage_order(s, "O-301", "E-301", "T", 5);
    gate_arrived(s, "handled");
    stage_state(s, BEFORE);
    expect_int(s, STOCK, 100, "SELECT available FROM stock WHERE sku = 'T'",
               TEXT("A has run the handler, and nothing is committed", "A 已运行处理器，尚未提交"));
    daemon_freeze(s, "A");
    daemon_start(s, "B", NULL);
    await_least(s, ORDERS, 2, "SELECT deliveries FROM consign_queue WHERE event_id = 'E-301'",
                TEXT("E-301 is delivered to B as well", "E-301 也投递给了 B"));
    stage_step(s, "%s",
               TEXT("the lease of A is over; B has E-301 in hand, too, and waits for A's lock",
                    "A 的租约到期；B 也拿到 E-301，等待 A 的锁"));
    expect_int(s, STOCK, 0, inbox_sql,
               TEXT("a look before the insert would say \"no record\" to both",
                    "先查后写的话，两者都会查到“无记录”"));
    daemon_thaw(s, "A");
    gate_open(s, "handled");
    await_least(s, STOCK, 1, "SELECT duplicates FROM consumer_inbox WHERE event_id = 'E-301'",
                TEXT("the second consumer finds the row", "第二个消费者发现记录"));
    stage_quiet(s);
    stage_state(s, AFTER);
    expect_int(s, STOCK, 95, "SELECT available FROM stock WHERE sku = 'T'",
               TEXT("100 − 5 = 95, never 90", "100 − 5 = 95，绝不是 90"));
    expect_int(s, STOCK, 1, inbox_sql, TEXT("one inbox row", "一条收件记录"));
    expect_int(s, STOCK, 1, "SELECT attempts FROM consumer_inbox WHERE event_id = 'E-301'",
               TEXT("one run of the handler counts", "只有一次处理生效"));
}
