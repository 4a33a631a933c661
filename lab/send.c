/* send.c: experiments on the sending side: what is written together, and what becomes of a row
 * whose dispatcher stops, dies or sleeps. */
#include "lab/experiments.h"
#include <inttypes.h>
#include <stdio.h>

static const char attempts_sql[] = "SELECT attempts FROM outbox_events WHERE seq = 1";
static const char copies_sql[] =
    "SELECT count(*) FROM consign_queue WHERE event_id = 'E-9001-1' AND subscription = 'stock'";
static const char reserved_sql[] =
    "SELECT count(*) FROM reservation WHERE order_id = '9001' AND qty = 5";
static const char sent_sql[] =
    "SELECT count(*) FROM outbox_events WHERE event_id = 'E-9001-1' AND status = 'sent'";
static const char stock_sql[] = "SELECT available FROM stock WHERE sku = 'A'";

/* What every experiment with order 9001 must show in the end. */
static void expect_effect(struct stage *s) {
    expect_int(s, ORDERS, 1, sent_sql, TEXT("the event is marked sent", "事件已标记为已发送"));
    expect_int(s, STOCK, 1, reserved_sql,
               TEXT("one reservation of 5 for order 9001", "订单 9001 有且仅有一笔 5 件的预占"));
    expect_int(s, STOCK, 99995, stock_sql,
               TEXT("stock of A: 100000 − 5", "商品 A 的可用量：100000 − 5"));
    expect_int(s, STOCK, 1,
               "SELECT count(*) FROM consumer_inbox WHERE consumer_name = 'stock' AND event_id = "
               "'E-9001-1' AND state = 'done'",
               TEXT("one inbox row, done", "一条收件记录，状态为 done"));
    expect_text(s, ORDERS, "confirmed", "SELECT state FROM orders WHERE order_id = '9001'",
                TEXT("the order is confirmed", "订单状态为 confirmed"));
    expect_books(s);
}

/* ---- A1 ---- */

static void expect_nothing(struct stage *s, const char *how) {
    char text[LINE_SIZE];
    (void)snprintf(text, sizeof text, TEXT("%s: no order", "%s：没有订单"), how);
    expect_int(s, ORDERS, 0, "SELECT count(*) FROM orders", text);
    (void)snprintf(text, sizeof text, TEXT("%s: no event", "%s：没有事件"), how);
    expect_int(s, ORDERS, 0, "SELECT count(*) FROM outbox_events", text);
}

/* The application's exception between the two inserts: its transaction is rolled back. */
static void throw_between(struct stage *s) {
    csn_error err;
    csn_status st;
    if (!stage_going(s))
        return;
    st = db_begin(s->db[ORDERS], &err);
    if (st == CSN_OK)
        st = shop_insert_order(s->db[ORDERS], "9001", "A", 5, &err);
    if (st != CSN_OK)
        stage_broke(s, &err);
    expect_int(s, ORDERS, 1, "SELECT count(*) FROM orders",
               TEXT("inside the transaction the order is there", "事务内能看到订单"));
    db_rollback(s->db[ORDERS]);
    stage_step(s, "%s",
               TEXT("exception after the order insert, before the outbox insert",
                    "写订单之后、写发件箱之前抛出异常"));
}

/* The event itself is refused by a named constraint; the order goes with it. */
static void refused_event(struct stage *s) {
    csn_error err;
    csn_status st;
    if (!stage_going(s))
        return;
    st = db_begin(s->db[ORDERS], &err);
    if (st == CSN_OK)
        st = shop_insert_order(s->db[ORDERS], "9001", "A", 5, &err);
    if (st != CSN_OK)
        stage_broke(s, &err);
    st = shop_insert_event(s->db[ORDERS], "9001", "E-9001-1", "{not json", &err);
    db_rollback(s->db[ORDERS]);
    expect(s, st == CSN_REJECTED && strstr(err.text, "csn_payload_json"),
           TEXT("a malformed payload is refused in the application's own session",
                "格式错误的载荷在应用自己的会话中被拒绝"),
           "csn_payload_json", st == CSN_OK ? "ok" : err.text);
}

void a1_atomic(struct stage *s) {
    stage_state(s, BEFORE);
    throw_between(s);
    expect_nothing(s, TEXT("exception", "异常"));
    int code = stage_command(s, (const char *const[]){"lab", "act", "tear", s->url[ORDERS], "9001"},
                             5, NULL, 0);
    stage_step(s, "%s",
               TEXT("process killed after the order insert, before the outbox insert",
                    "进程在写订单之后、写发件箱之前被杀死"));
    expect(s, code == 128 + 9, TEXT("the process died of SIGKILL", "进程死于 SIGKILL"), "137",
           code == 137 ? "137" : "-");
    expect_nothing(s, TEXT("killed", "被杀死"));
    refused_event(s);
    expect_nothing(s, TEXT("refused", "被拒绝"));
    stage_order(s, "9001", "E-9001-1", "A", 5);
    expect_int(s, ORDERS, 2,
               "SELECT (SELECT count(*) FROM orders) + (SELECT count(*) FROM outbox_events)",
               TEXT("without a fault both are there", "没有故障时两者都在"));
    stage_state(s, AFTER);
}

/* ---- A2 ---- */

void a2_restart(struct stage *s) {
    s->pace = PACE_CALM;
    daemon_start(s, "A", NULL);
    daemon_ready(s, "A");
    daemon_stop(s, "A");
    stage_order(s, "9001", "E-9001-1", "A", 5);
    stage_state(s, BEFORE);
    expect_int(
        s, ORDERS, 0, attempts_sql,
        TEXT("no dispatcher runs: the event was not claimed", "没有投递器运行：事件未被认领"));
    expect_text(s, ORDERS, "pending", "SELECT status FROM outbox_events WHERE seq = 1",
                TEXT("the intention to send is durable", "发送意图已经持久化"));
    daemon_start(s, "A2", NULL);
    await_least(s, ORDERS, 1, sent_sql, TEXT("event E-9001-1 is sent", "事件 E-9001-1 已发送"));
    stage_quiet(s);
    stage_state(s, AFTER);
    expect_effect(s);
    expect_int(s, ORDERS, 1, copies_sql,
               TEXT("it was sent once: nothing was in doubt", "只发送一次：没有任何不确定"));
    daemon_stop(s, "A2");
}

/* ---- A3 ---- */

void a3_kill_before_mark(struct stage *s) {
    daemon_start(s, "A", "relay.confirmed=crash@1");
    stage_order(s, "9001", "E-9001-1", "A", 5);
    daemon_dies(s, "A");
    stage_state(s, BEFORE);
    expect_text(s, ORDERS, "sending", "SELECT status FROM outbox_events WHERE seq = 1",
                TEXT("the row does not know of its confirm", "记录不知道已经确认"));
    expect_int(s, ORDERS, 1, copies_sql, TEXT("the broker has it", "代理已经持有该消息"));
    daemon_start(s, "B", NULL);
    stage_quiet(s);
    stage_state(s, AFTER);
    expect_least(s, ORDERS, 2, copies_sql,
                 TEXT("sent again under the same event id", "以同一事件标识再次发送"));
    expect_least(
        s, STOCK, 1,
        "SELECT duplicates FROM consumer_inbox WHERE consumer_name = 'stock' AND event_id "
        "= 'E-9001-1'",
        TEXT("delivered more than once, and the inbox counted it", "投递了不止一次，收件箱已计数"));
    expect_int(s, STOCK, 1,
               "SELECT attempts FROM consumer_inbox WHERE consumer_name = 'stock' AND event_id = "
               "'E-9001-1'",
               TEXT("the handler ran once", "处理器只运行了一次"));
    expect_effect(s);
}

/* ---- A7 ---- */

void a7_pause_past_lease(struct stage *s) {
    static const char rows[] = "SELECT * FROM outbox_events ORDER BY seq";
    static const char stale[] =
        "SELECT coalesce(sum(CAST(json_extract(counters, '$.stale_writes') AS INTEGER)), 0) FROM "
        "consign_members WHERE label = 'A'";
    static const char spoken[] =
        "SELECT coalesce(sum(CAST(coalesce(json_extract(counters, '$.stale_writes'), 0) AS INTEGER)"
        " + CAST(coalesce(json_extract(counters, '$.sent'), 0) AS INTEGER)), 0) FROM "
        "consign_members WHERE label = 'A'";
    char before[65], after[65], rule[PATH_SIZE + 64];
    (void)snprintf(rule, sizeof rule, "relay.confirmed=pause:%s", gate_make(s, "confirmed"));
    daemon_start(s, "A", rule);
    stage_order(s, "9001", "E-9001-1", "A", 5);
    gate_arrived(s, "confirmed");
    stage_state(s, BEFORE);
    expect_int(s, ORDERS, 1,
               "SELECT count(*) FROM outbox_events WHERE status = 'sending' AND claim_token IS NOT "
               "NULL",
               TEXT("A holds the row under its token", "A 以自己的令牌持有该行"));
    daemon_start(s, "B", NULL);
    await_least(s, ORDERS, 1, sent_sql, TEXT("B sends the event", "B 发送事件"));
    stage_quiet(s);
    stage_step(s, "%s",
               TEXT("B took the lane when A's lease was over, and finished",
                    "A 的租约到期后 B 接管通道并完成"));
    stage_state(s, BETWEEN);
    ask_digest(s, ORDERS, rows, before);
    expect_text(s, ORDERS, "B",
                "SELECT label FROM outbox_events JOIN consign_members ON member = sent_by WHERE "
                "event_id = 'E-9001-1'",
                TEXT("the row was sent by B", "该行由 B 发送"));
    gate_open(s, "confirmed");
    await_least(s, ORDERS, 1, spoken,
                TEXT("A tells what became of its late mark", "A 报告其迟到标记的结果"));
    ask_digest(s, ORDERS, rows, after);
    stage_state(s, AFTER);
    expect(
        s, strcmp(before, after) == 0,
        TEXT("the outbox is byte for byte as before A went on", "A 恢复之后发件箱与之前逐字节相同"),
        before, after);
    expect_int(s, ORDERS, 1, stale, TEXT("one stale write was counted", "记录了一次过期写入"));
    expect_text(s, ORDERS, "B",
                "SELECT label FROM consign_lanes JOIN consign_members ON boot = owner WHERE name = "
                "'outbox'",
                TEXT("the lane is B's still", "通道仍归 B 所有"));
    expect_effect(s);
}

/* ---- A9 ---- */

void a9_kill_after_claim(struct stage *s) {
    daemon_start(s, "A", "relay.claimed=crash@1");
    stage_order(s, "9001", "E-9001-1", "A", 5);
    daemon_dies(s, "A");
    stage_state(s, BEFORE);
    expect_text(s, ORDERS, "sending", "SELECT status FROM outbox_events WHERE seq = 1",
                TEXT("claimed by a process that is gone", "认领它的进程已经消失"));
    expect_int(s, ORDERS, 0, copies_sql, TEXT("nothing was published", "尚未发布"));
    daemon_start(s, "B", NULL);
    stage_quiet(s);
    stage_state(s, AFTER);
    expect_least(s, ORDERS, 2, attempts_sql, TEXT("claimed a second time", "被第二次认领"));
    expect_least(s, ORDERS, 1,
                 "SELECT count(*) FROM consign_attempts WHERE event_id = 'E-9001-1' AND kind = "
                 "'unanswered' AND code = 3007",
                 TEXT("the first attempt is evidence: owner gone", "首次尝试留有证据：持有者消失"));
    expect_text(s, ORDERS, "B",
                "SELECT label FROM outbox_events JOIN consign_members ON member = sent_by WHERE "
                "event_id = 'E-9001-1'",
                TEXT("sent by B", "由 B 发送"));
    expect_effect(s);
}

/* ---- A10 ---- */

static void first_word(const char *text, char *ret, size_t size) {
    (void)copy_bytes_text(ret, size, (csn_bytes){text, strcspn(text, " \n")});
}

void a10_lost_commit(struct stage *s) {
    char out[256], event[64], answer[64];
    s->pace = PACE_CALM;
    stage_state(s, BEFORE);
    int code = stage_command(s,
                             (const char *const[]){"lab", "act", "place", s->url[ORDERS], "9001",
                                                   "E-9001-1", "A", "5", "die"},
                             9, out, sizeof out);
    stage_step(s, "%s",
               TEXT("the client's COMMIT succeeded, the client died before its answer",
                    "客户端的 COMMIT 成功，答复之前客户端死亡"));
    expect(s, code == 128 + 9 && out[0] == '\0',
           TEXT("the first request got no answer", "第一次请求没有得到答复"), "–",
           out[0] ? out : "–");
    ask_text(s, ORDERS, "SELECT event_id FROM outbox_events WHERE aggregate_id = '9001'", event,
             sizeof event);
    /* A client that does not know draws a new event id; the order number decides all the same. */
    code = stage_command(s,
                         (const char *const[]){"lab", "act", "place", s->url[ORDERS], "9001",
                                               "E-9001-retry", "A", "5"},
                         8, out, sizeof out);
    first_word(out, answer, sizeof answer);
    stage_step(s, "%s", TEXT("the same request again", "重试同一请求"));
    expect(s, code == 0 && strcmp(answer, event) == 0 && strcmp(event, "E-9001-1") == 0,
           TEXT("the retry gets the first answer", "重试得到第一次的答复"), "E-9001-1", answer);
    code = stage_command(s,
                         (const char *const[]){"lab", "act", "place", s->url[ORDERS], "9001",
                                               "E-9001-other", "A", "6"},
                         8, out, sizeof out);
    expect(s, code == 65,
           TEXT("the same number with another quantity is refused (CSN-4005)",
                "同一单号、不同数量被拒绝（CSN-4005）"),
           "65",
           code == 0    ? "0"
           : code == 65 ? "65"
                        : out);
    expect_int(s, ORDERS, 1, "SELECT count(*) FROM orders WHERE qty = 5",
               TEXT("one order, as first written", "一个订单，内容为第一次写入的"));
    expect_int(s, ORDERS, 1, "SELECT count(*) FROM outbox_events WHERE event_type = 'OrderCreated'",
               TEXT("one event", "一个事件"));
    daemon_start(s, "A", NULL);
    await_least(s, ORDERS, 1, sent_sql, TEXT("event E-9001-1 is sent", "事件 E-9001-1 已发送"));
    stage_quiet(s);
    stage_state(s, AFTER);
    expect_effect(s);
    daemon_stop(s, "A");
}

/* ---- A11 ---- */

static int reconcile(struct stage *s, char *out, size_t size) {
    char config[PATH_SIZE + 32], orders[PATH_SIZE + 32], stock[PATH_SIZE + 32];
    (void)snprintf(config, sizeof config, "%s/shop/consign.yaml", s->dir);
    (void)snprintf(orders, sizeof orders, "stores.orders.url=%s", s->url[ORDERS]);
    (void)snprintf(stock, sizeof stock, "stores.stock.url=%s", s->url[STOCK]);
    return stage_command(s,
                         (const char *const[]){"reconcile", "run", "outbox", "-c", config, "--set",
                                               orders, "--set", stock, "--grace", "0s", "--reason",
                                               "lab: the broker lost a message", "-o", "json"},
                         15, out, size);
}

void a11_broker_loses(struct stage *s) {
    char rule[PATH_SIZE + 64], out[2048], got[16];
    s->pace = PACE_CALM;
    (void)snprintf(rule, sizeof rule, "broker.receive=pause:%s", gate_make(s, "receive"));
    daemon_start(s, "A", rule);
    gate_arrived(s, "receive");
    stage_order(s, "9001", "E-9001-1", "A", 5);
    await_least(s, ORDERS, 1, sent_sql, TEXT("event E-9001-1 is sent", "事件 E-9001-1 已发送"));
    stage_state(s, BEFORE);
    expect_int(s, ORDERS, 1, copies_sql,
               TEXT("confirmed: the broker had it", "已确认：代理曾持有它"));
    stage_sql(s, ORDERS, "DELETE FROM consign_queue WHERE event_id = 'E-9001-1'");
    stage_step(s, "%s",
               TEXT("the broker loses the confirmed message before anybody received it",
                    "代理在任何消费者收到之前丢失了已确认的消息"));
    gate_open(s, "receive");
    stage_quiet(s);
    stage_state(s, BETWEEN);
    expect_int(s, STOCK, 0, "SELECT count(*) FROM consumer_inbox",
               TEXT("nobody got it, and no queue says so", "没有人收到，队列也看不出来"));
    int code = reconcile(s, out, sizeof out);
    (void)snprintf(got, sizeof got, "%d", code);
    stage_step(s, "consign reconcile run outbox: exit %d", code);
    expect(s, code == 1, TEXT("the books find the difference", "对账发现差异"), "1", got);
    await_least(s, STOCK, 1, reserved_sql,
                TEXT("the reservation of order 9001", "订单 9001 的预占"));
    stage_quiet(s);
    stage_state(s, AFTER);
    expect_int(s, ORDERS, 1,
               "SELECT count(*) FROM consign_attempts WHERE event_id = 'E-9001-1' AND kind = "
               "'resent'",
               TEXT("the resending is on record", "重发已留证据"));
    code = reconcile(s, out, sizeof out);
    (void)snprintf(got, sizeof got, "%d", code);
    expect(s, code == 0, TEXT("a second comparison finds no difference", "再次对账没有差异"), "0",
           got);
    expect_int(s, ORDERS, 1,
               "SELECT count(*) FROM consign_attempts WHERE event_id = 'E-9001-1' AND kind = "
               "'resent'",
               TEXT("and sends nothing again", "也不再重发"));
    expect_effect(s);
    daemon_stop(s, "A");
}
