/* lab.c: the table of experiments, the list of what is planned, and one run. */
#include "lab/lab.h"
#include "lab/experiments.h"
#include <stdlib.h>
#include <unistd.h>

/* A row is read as a row. */
/* clang-format off */
#define INBOX_KEY {"PRIMARY KEY(consumer_name, event_id) of consumer_inbox", \
      "consumer_inbox 的 PRIMARY KEY(consumer_name, event_id)"}
#define ONE_COMMIT {"inbox row, effect and result event in one transaction", "收件记录、业务效果和结果事件在同一事务"}
#define TAKEOVER {"lanes and rows of a dead owner are recovered when its lease is over", "持有者死亡、租约到期后通道和记录被恢复"}
#define NO_MORE {NULL, NULL}

static const struct experiment experiments[] = {
    {"A1", {"throw after the order insert, before the outbox insert", "写订单后、写发件箱前抛异常"},
     {"in the application's transaction: an exception, kill -9, a payload that csn_payload_json refuses",
       "应用事务内：异常、kill -9、被 csn_payload_json 拒绝的载荷"},
     {{"order and event are rows of one transaction", "订单与事件在同一个事务中"},
      {"CONSTRAINT csn_payload_json", "约束 csn_payload_json"}, NO_MORE},
     "lab-rollback-commits", {"a rollback commits", "回滚变成提交"}, a1_atomic},
    {"A2", {"stop the dispatcher after commit, start it again", "提交后停止投递器，再启动"},
     {"SIGTERM before the order is committed; a new process afterwards", "订单提交前 SIGTERM；之后启动新进程"},
     {{"the outbox row is the intention to send; a clean stop lets go of its lanes",
       "发件箱记录即发送意图；干净停止会释放通道"}, NO_MORE},
     "lab-free-lane-ignored", {"a lane that nobody owns is not taken", "无主的通道不会被接管"}, a2_restart},
    {"A3", {"kill between confirm and the sent mark", "确认之后、标记已发送之前杀死进程"},
     {"relay.confirmed=crash@1 in daemon A; B takes over", "守护进程 A：relay.confirmed=crash@1；B 接管"},
     {TAKEOVER, INBOX_KEY, NO_MORE},
     "lab-inbox-deaf", {"every delivery is taken for the first", "每次投递都被当作首次"}, a3_kill_before_mark},
    {"A4", {"throw after the business SQL, before commit", "业务 SQL 之后、提交之前抛异常"},
     {"apply.handled=error@1, then kill -9 at apply.handled", "apply.handled=error@1，随后在 apply.handled 处 kill -9"},
     {ONE_COMMIT, NO_MORE},
     "lab-error-commits", {"a group that failed is committed", "失败的事务组被提交"}, a4_throw_before_commit},
    {"A5", {"close the channel after commit, no ack", "提交后关闭通道，不 ACK"},
     {"broker.ack=error@1 in A; inbox.committed=crash@1 in B; C takes over",
       "A：broker.ack=error@1；B：inbox.committed=crash@1；C 接管"},
     {{"delivery lease: what is not acknowledged comes again", "投递租约：未确认的会再次投递"}, INBOX_KEY, NO_MORE},
     "lab-ack-on-delivery", {"a delivery is its own acknowledgement", "投递即视为确认"}, a5_no_ack},
    {"A6", {"two connections handle one event id at once", "两个连接同时处理同一事件标识"},
     {"two connections, a barrier before each of 24 events; the handler guards nothing itself",
       "两个连接，24 个事件各自同时开始；处理器本身不做任何防护"},
     {INBOX_KEY, NO_MORE},
     "lab-inbox-deaf", {"every delivery is taken for the first", "每次投递都被当作首次"}, a6_two_connections},
    {"A7", {"A pauses past its lease, B claims, A resumes", "A 暂停超过租约，B 认领，A 恢复"},
     {"relay.confirmed=pause in A, opened when B has finished", "A：relay.confirmed=pause，B 完成后放行"},
     {{"fence: status = 'sending' AND claim_token = token", "栅栏：status = 'sending' AND claim_token = 令牌"},
      {"lane epoch: only grows", "通道纪元只增不减"}, NO_MORE},
     "lab-no-fence", {"a mark needs no token", "标记不再需要令牌"}, a7_pause_past_lease},
    {"A8", {"cancel arrives before create", "取消先于创建到达"},
     {"the queue's copy of the creation is held back, policy command", "扣住创建事件的队列副本，策略 command"},
     {{"an older version is late: history only", "较旧的版本迟到：只留历史"},
      {"the gap stays on record", "缺口留有记录"}, NO_MORE},
     "lab-late-move", {"a command does not look whether its version is older", "command 不检查版本是否较旧"}, a8_cancel_before_create},
    {"A9", {"kill after the claim, before the publish", "认领后、发布前杀死进程"},
     {"relay.claimed=crash@1 in A; B takes over", "A：relay.claimed=crash@1；B 接管"},
     {TAKEOVER, NO_MORE},
     "lab-gone-is-sent", {"a row whose owner is gone is taken for sent", "持有者消失的记录被当作已发送"}, a9_kill_after_claim},
    {"A10", {"the COMMIT's answer is lost, the client retries its request", "COMMIT 的应答丢失，客户端重试请求"},
     {"the client dies between its COMMIT and its answer", "客户端在 COMMIT 与答复之间死亡"},
     {{"PRIMARY KEY(order_id): the order number is the request's idempotency key",
       "PRIMARY KEY(order_id)：单号就是请求的幂等键"}, NO_MORE},
     "lab-order-not-unique", {"the order number is not unique", "单号不再唯一"}, a10_lost_commit},
    {"A11", {"the broker loses a confirmed message", "代理丢失已确认的消息"},
     {"broker.receive=pause in A; the queue row is deleted; reconcile run outbox",
       "A：broker.receive=pause；删除队列记录；reconcile run outbox"},
     {{"books: sent, but neither in the inbox nor in the queue", "对账：已发送，但收件箱和队列中都没有"},
      {"sent → pending, fenced by status = 'sent', same event id",
       "sent → pending，以 status = 'sent' 为栅栏，标识不变"}, NO_MORE},
     "lab-resend-nothing", {"what is missing is not sent again", "缺失的不会重发"}, a11_broker_loses},
    {"B1", {"order O-9001, event E-9001-1: the publish times out, the broker has it",
       "订单 O-9001、事件 E-9001-1：发送超时，代理其实已落盘"},
     {"broker.publish=pause, longer than confirm_timeout; the broker stores it afterwards",
       "broker.publish=pause 超过 confirm_timeout，之后代理才落盘"},
     {{"no answer is unknown: looked up and sent again under the same id", "没有应答即未知：以同一标识查证并补发"}, INBOX_KEY, NO_MORE},
     "lab-unknown-is-sent", {"no answer is taken for a confirm", "没有应答被当作已确认"}, b1_five_layers},
    {"B2", {"acknowledge first, then crash · effect first, then crash", "先确认后宕机 · 先写业务后宕机"},
     {"plan A: semantics at_most_once and inbox.acked=crash@1; plan B: inbox.committed=crash@1",
       "方案甲：semantics at_most_once 加 inbox.acked=crash@1；方案乙：inbox.committed=crash@1"},
     {ONE_COMMIT, INBOX_KEY, {"acknowledging first is a verb of its own, refused for class critical",
       "先确认是单独的一种方式，critical 类拒绝使用"}, NO_MORE},
     "lab-never-again", {"what was delivered once is never delivered again", "投递过一次的不会再次投递"}, b2_ack_order},
    {"B4", {"E-PAY-77: stored, the confirm is lost, sent again after 800 + 0-200 ms",
       "E-PAY-77：已落盘，确认丢失，800 + 0–200 ms 后重发"},
     {"broker.stored=pause, longer than confirm_timeout (300 ms)", "broker.stored=pause 超过 confirm_timeout（300 ms）"},
     {{"no answer is unknown: sent again under the same id", "没有应答即未知：以同一标识重发"}, INBOX_KEY,
      {"UNIQUE(event_id) of the ledger", "账务表的 UNIQUE(event_id)"}, NO_MORE},
     "lab-unknown-is-sent", {"no answer is taken for a confirm", "没有应答被当作已确认"}, b4_stored_unconfirmed},
    {"B5", {"E-INV-88 fails before the connection is up", "E-INV-88 在连接建立前失败"},
     {"broker.publish=error@1: nothing reached the broker", "broker.publish=error@1：没有任何内容到达代理"},
     {{"surely not sent: given back, no failure and no unknown is counted", "确定未发送：归还，不计失败也不计未知"}, NO_MORE},
     "lab-unsent-is-unknown", {"what was surely not sent counts as unknown", "确定未发送的被计为未知"}, b5_before_connection},
    {"B6", {"tracking 16 → 17, the ack is lost", "轨迹 16 → 17，ACK 丢失"},
     {"broker.ack=error@1 after the first commit", "首次提交之后 broker.ack=error@1"},
     {{"delivery lease: what is not acknowledged comes again", "投递租约：未确认的会再次投递"}, INBOX_KEY,
      {"UPDATE … WHERE version = 16", "UPDATE … WHERE version = 16"}, NO_MORE},
     "lab-ack-on-delivery", {"a delivery is its own acknowledgement", "投递即视为确认"}, b6_ack_lost},
    {"B7", {"two consumers, E-301 takes 5 of 100", "两个消费者，E-301 从 100 中扣 5"},
     {"apply.handled=pause and SIGSTOP in A; B gets E-301 by lane takeover; then A goes on",
       "A：apply.handled=pause 并 SIGSTOP；B 接管通道后收到 E-301；然后 A 继续"},
     {INBOX_KEY, NO_MORE},
     "lab-inbox-deaf", {"every delivery is taken for the first", "每次投递都被当作首次"}, b7_two_consumers},
    {"O1", {"version 2 fails while 3 waits or wins, and comes back", "版本 2 失败，3 等待或先到，2 再返回"},
     {"the handler of version 2 fails until it is mended; then the copy of version 4 is held back, policy snapshot",
       "版本 2 的处理器失败直到修复；然后扣住版本 4 的副本，策略 snapshot"},
     {{"a key's later event waits behind its parked one", "同键的后续事件在被搁置者之后等待"},
      {"snapshot: newer version only", "snapshot：只应用更新的版本"}, NO_MORE},
     "lab-goes-back", {"an older version is applied, too", "较旧的版本也被应用"}, o1_comes_back},
    {"O2", {"two versions complete at once", "两个版本同时完成"},
     {"24 keys, versions 2 and 3 on two connections, a barrier before each pair, policy snapshot",
       "24 个键，版本 2 与 3 在两个连接上，每对之前设屏障，策略 snapshot"},
     {{"snapshot: newer version only, judged in the transaction", "snapshot：只应用更新的版本，在事务内判定"}, NO_MORE},
     "lab-goes-back", {"an older version is applied, too", "较旧的版本也被应用"}, o2_concurrent_completion},
    {"O3", {"the producer retries under a new id", "生产者以新标识重试"},
     {"the same version twice (snapshot), the same state twice (command)", "同一版本两次（snapshot），同一状态两次（command）"},
     {{"snapshot: newer version only", "snapshot：只应用更新的版本"},
      {"command: the state that is there already is a duplicate", "command：已处于该状态即为重复"}, NO_MORE},
     "lab-goes-back", {"an older version is applied, too", "较旧的版本也被应用"}, o3_producer_retry},
    {"V1", {"one provider number, ten times at once", "同一渠道交易号并发十次"},
     {"ten events, ten connections, a barrier before the handler; then the number with another amount",
       "十个事件、十个连接，处理器之前设屏障；之后同号不同金额"},
     {{"UNIQUE(provider_no) of the ledger", "账务流水的 UNIQUE(provider_no)"},
      {"ON CONFLICT DO NOTHING and the rows that were expected", "ON CONFLICT DO NOTHING 与期望行数"}, NO_MORE},
     "lab-rows-unchecked", {"no rows is as good as one", "零行也算符合期望"}, v1_one_provider_number},
    {"V3", {"fifty threads, one event", "五十个线程，一个事件"},
     {"fifty connections, a barrier before the handler; the handler guards nothing itself",
       "五十个连接，处理器之前设屏障；处理器本身不做任何防护"},
     {INBOX_KEY, NO_MORE},
     "lab-inbox-deaf", {"every delivery is taken for the first", "每次投递都被当作首次"}, v3_fifty_threads},
    {"D1", {"acks are down, six deliveries of each", "ACK 持续失败，每个事件投递六次"},
     {"broker.ack=error in A, for every ack; kill -9; one more delivery with its statements counted",
       "A：broker.ack=error，每次都失败；kill -9；再投递一次并统计语句数"},
     {INBOX_KEY, {"the dedupe is one statement", "去重只用一条语句"}, NO_MORE},
     "lab-duplicate-looks-twice", {"a duplicate is looked for among dead letters, too", "重复还要再查一遍死信"}, d1_acks_down},
};

/* Everything that is planned; what has a row above can be run. */
static const char *const planned[] = {
    "A1", "A2", "A3", "A4", "A5", "A6", "A7", "A8", "A9", "A10", "A11",
    "B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8", "B9", "B10", "B11", "B12", "B13", "B14", "B15",
    "S1", "S2", "S3", "S4", "S5", "T1", "T2", "L1", "O1", "O2", "O3", "V1", "V2", "V3", "D1", "G1", "R1",
};

/* What is drilled before a launch, and the experiments that are it. */
static const struct drill drills[] = {
    {{"the confirm of a publish is lost", "发送确认丢失"}, {"A3", "B4"}},
    {{"crash after the business commit", "业务提交后宕机"}, {"A5", "B2"}},
    {{"repeated and concurrent", "重复与并发"}, {"A6", "B7", "V1", "V3", "D1"}},
    {{"disorder", "乱序"}, {"A8", "O1", "O2", "O3"}},
    {{"downstream throttled", "下游限流"}, {"B11"}},
    {{"dead letters replayed", "死信重放"}, {"B12"}},
};
/* clang-format on */

const struct drill *lab_drill_at(size_t i) {
    return i < ARRAY_LEN(drills) ? &drills[i] : NULL;
}

const struct experiment *lab_at(size_t i) {
    return i < ARRAY_LEN(experiments) ? &experiments[i] : NULL;
}

const struct experiment *lab_find(const char *id) {
    for (size_t i = 0; i < ARRAY_LEN(experiments); i++)
        if (strcasecmp(experiments[i].id, id) == 0)
            return &experiments[i];
    return NULL;
}

const char *lab_planned(size_t i, bool *ret_built) {
    if (i >= ARRAY_LEN(planned))
        return NULL;
    *ret_built = lab_find(planned[i]) != NULL;
    return planned[i];
}

void lab_run(const struct experiment *e, const struct lab_options *o, struct report *ret) {
    struct stage *s = calloc(1, sizeof *s);
    memset(ret, 0, sizeof *ret);
    if (!s) {
        (void)error_set(&ret->broken, CSN_NOMEM, ERR_NO_MEMORY, "lab %s", e->id);
        return;
    }
    stage_open(s, o, e->id, ret);
    e->run(s);
    stage_close(s);
    free(s);
}

csn_status lab_prepare(const char *url, bool sure, csn_error *err) {
    struct db *d = NULL;
    int64_t rows = 0;
    bool row = false, there = false;
    csn_status st = lab_marker_there(url, &there, err);
    if (st != CSN_OK || there)
        return st;
    st = db_open(url, 0, &d, err);
    if (st == CSN_OK)
        st = db_int(d,
                    "SELECT EXISTS (SELECT 1 FROM outbox_events) + EXISTS (SELECT 1 FROM "
                    "consumer_inbox)",
                    NULL, 0, &rows, &row, err);
    db_close(d);
    if (st == CSN_OK && rows > 0 && !sure)
        st = error_set(err, CSN_INVALID, ERR_TAKEN, "%s: %s", url,
                       TEXT("it has events already, and experiments empty it",
                            "其中已有事件，而实验会清空它"));
    return st == CSN_OK ? lab_marker_set(url, err) : st;
}

bool lab_program(char *ret, size_t size) {
    ssize_t n = readlink("/proc/self/exe", ret, size - 1);
    if (n <= 0 || (size_t)n >= size - 1)
        return false;
    ret[n] = '\0';
    return true;
}
