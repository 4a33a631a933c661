/* command.c: the table of commands, and how words become a call.
 *
 * Words are read twice. First without knowing the command: flags are stepped over (the whole table
 * says which of them take a value), the first one or two plain words are its name, and what decides
 * how everything else is said (--lang, -o, -q, -v) is obeyed. Then with the command: each flag is
 * checked against its row, the plain words that are left are its arguments. */
#include "cli/command.h"
#include "base/message.h"
#include "cli/completion.h"
#include "cli/config_cmd.h"
#include "cli/dead.h"
#include "cli/dev.h"
#include "cli/event.h"
#include "cli/event_change.h"
#include "cli/explain.h"
#include "cli/help.h"
#include "cli/init.h"
#include "cli/lab.h"
#include "cli/lanes.h"
#include "cli/report.h"
#include "conf/load.h"
#include "cli/reconcile.h"
#include "cli/schema_cmd.h"
#include "cli/serve.h"
#include "cli/status.h"
#include "cli/top.h"
#include "cli/trace.h"
#include "core/guess.h"
#include "store/store.h"
#include <pwd.h>
#include <stdlib.h>
#include <unistd.h>

#define DAY_USEC (INT64_C(86400) * 1000000)

/* ---- the table ---- */

/* A row is read as a row. */
/* clang-format off */
#define NO_FLAG {NULL, FLAG_SWITCH, NULL, 0, 0, {NULL, NULL}}

static const struct flag init_flags[] = {
    {"dir", FLAG_TEXT, "D", 0, 0, {"the folder to write; made when it is missing", "要写入的目录，不存在则创建"}},
    {"lab", FLAG_SWITCH, NULL, 0, 0, {"mark both databases as test databases for the lab", "把两个数据库标记为实验用的测试库"}},
    NO_FLAG,
};

static const struct flag schema_print_flags[] = {
    {"store", FLAG_TEXT, "KIND", 0, 0, {"of which kind of store (sqlite)", "哪一种存储（sqlite）"}},
    NO_FLAG,
};

static const struct flag schema_flags[] = {
    {"url", FLAG_TEXT, "URL", 0, 0, {"this database instead of those of the configuration", "指定数据库，而不是配置中的存储"}},
    NO_FLAG,
};

static const struct flag help_flags[] = {
    {"all", FLAG_SWITCH, NULL, 0, 0, {"everything about every command", "所有命令的完整说明"}},
    {"markdown", FLAG_SWITCH, NULL, 0, 0, {"the reference page", "参考手册页面"}},
    {"man", FLAG_SWITCH, NULL, 0, 0, {"the manual page, in mdoc; of the configuration: consign.yaml", "手册页（mdoc 格式）；配置的手册页：consign.yaml"}},
    {"dir", FLAG_TEXT, "D", 0, 0, {"with --man: write all pages into this folder", "与 --man 同用：把所有手册页写入该目录"}},
    NO_FLAG,
};

static const struct flag config_show_flags[] = {
    {"origin", FLAG_SWITCH, NULL, 0, 0, {"where each value came from: default, FILE:LINE, a variable, --set", "每个值的来源：默认值、文件:行、变量或 --set"}},
    NO_FLAG,
};

static const struct flag config_explain_flags[] = {
    {"markdown", FLAG_SWITCH, NULL, 0, 0, {"the reference page", "参考手册页面"}},
    NO_FLAG,
};

#define STORE_FLAG {"store", FLAG_TEXT, "NAME", 0, 0, {"only this store", "只看该存储"}}
#define LIMIT_FLAG {"limit", FLAG_INT, "N", 1, 10000, {"at most so many (50)", "最多多少条（50）"}}

static const struct flag top_flags[] = {
    {"once", FLAG_SWITCH, NULL, 0, 0, {"one picture, then end; so without a terminal", "只输出一次；没有终端时也是如此"}},
    NO_FLAG,
};

static const struct flag store_flags[] = {STORE_FLAG, NO_FLAG};

static const struct flag event_list_flags[] = {
    {"status", FLAG_TEXT, "S", 0, 0, {"pending, sending, sent, unknown, waiting, failed, held, cancelled or strange",
     "pending、sending、sent、unknown、waiting、failed、held、cancelled 或 strange"}},
    LIMIT_FLAG, STORE_FLAG, NO_FLAG,
};

static const struct flag event_find_flags[] = {
    {"window", FLAG_INT, "N", 1, 10000000, {"newest rows to search by trace and correlation id (20000)",
     "按跟踪号和关联号查找最新的多少行（20000）"}},
    LIMIT_FLAG, NO_FLAG,
};

static const struct flag show_flags[] = {
    {"payload", FLAG_SWITCH, NULL, 0, 0, {"show the payload; that it was shown is kept in the audit chain",
     "显示载荷；查看会记入审计链"}},
    STORE_FLAG, NO_FLAG,
};

static const struct flag dead_list_flags[] = {
    {"consumer", FLAG_TEXT, "NAME", 0, 0, {"of this consumer", "该消费者的"}},
    {"cause", FLAG_TEXT, "CLASS", 0, 0, {"poison, conflict or budget", "poison、conflict 或 budget"}},
    {"state", FLAG_TEXT, "STATE", 0, 0, {"open, unless given", "默认 open"}},
    LIMIT_FLAG, STORE_FLAG, NO_FLAG,
};

static const struct flag reconcile_flags[] = {
    {"grace", FLAG_DURATION, "D", 0, 365 * DAY_USEC, {"leave out what was sent later than this ago (reconcile.grace)",
     "忽略在此时长内发送的事件（reconcile.grace）"}},
    NO_FLAG,
};

static const struct flag lab_run_flags[] = {
    {"keep", FLAG_TEXT, "DIR", 0, 0, {"keep databases and logs below this folder", "把数据库和日志保留在该目录下"}},
    {"orders", FLAG_TEXT, "URL", 0, 0, {"a marked database instead of a fresh one; it is emptied", "使用已标记的数据库代替新建的；会被清空"}},
    {"stock", FLAG_TEXT, "URL", 0, 0, {"the same for the stock; both or neither", "库存库，同上；两者都给或都不给"}},
    {"prelaunch", FLAG_SWITCH, NULL, 0, 0, {"the six drills before a launch instead of IDs; those that are not built are named",
     "不指定实验，改为上线前的六类演练；尚未实现的会列出"}},
    NO_FLAG,
};

static const struct flag dev_flags[] = {
    {"dir", FLAG_TEXT, "D", 0, 0, {"the folder; missing, empty, or of an earlier trial (consign-dev)", "目录；须不存在、为空，或属于先前的试用（consign-dev）"}},
    {"for", FLAG_DURATION, "D", 1000000, DAY_USEC, {"end by itself after this, and compare the books; exit 1 when they differ",
     "到时自动结束并核对账目；不符则退出码为 1"}},
    NO_FLAG,
};

static const struct command commands[] = {
    {"dev", "", 0, 0, 0, dev_flags,
     {"see it work: a shop that writes orders, a daemon, a line a second", "看它运行：一个不断下单的商店、一个守护进程、每秒一行"},
     {"Everything is in one folder, on this machine. Keys break and mend it: b the broker, c and w the relay, p the orders, f the handler.",
      "一切都在一个目录中、在本机上。按键可以破坏和修复：b 代理，c 和 w 转发进程，p 下单，f 处理器。"},
     "consign dev\nconsign dev --for 20s --lang zh-CN", NULL, dev_command},
    {"init", "", 0, 0, 0, init_flags,
     {"write the demo: a commented configuration, handlers, two databases", "生成演示：带注释的配置、处理器和两个数据库"},
     {"The folder runs as it is: an order is written to orders.db, reserved in stock.db, and the result comes back.",
      "生成的目录可直接运行：订单写入 orders.db，在 stock.db 预占库存，结果再返回订单。"},
     "consign init --dir shop\nconsign init --dir shop --lab", "serve -c consign.yaml", init_command},
    {"serve", "", 0, 0, COMMAND_CONFIG, NULL,
     {"run the daemon: send what is in the outboxes, handle what arrives", "运行守护进程：发送发件箱中的事件，处理到达的事件"},
     {"Stops cleanly at SIGTERM or Ctrl-C: what is in hand is settled or given back. kill -9 loses nothing, either.\n"
      "SIGHUP reads configuration and handler files again: with a mistake nothing changes; what needs a restart is named.",
      "收到 SIGTERM 或 Ctrl-C 时干净停止：在途工作会标记完成或归还。kill -9 也不会丢失数据。\n"
      "收到 SIGHUP 时重新读取配置和处理器文件：有错误则什么都不改变；需要重启的项会列出。"},
     "consign serve -c shop/consign.yaml", NULL, serve_command},
    {"status", "", 0, 0, COMMAND_CONFIG, NULL,
     {"is anything late, stuck, or in need of a person? exit 1 when so", "有无延迟、停滞或需要人工处理；有则退出码为 1"},
     {"Counts are exact up to 10,000, then \"≥\". Reads only.", "计数在 10,000 以内精确，超过则显示“≥”。只读。"},
     "consign status\nconsign status -o json", "event list", status_command},
    {"top", "", 0, 0, COMMAND_CONFIG, top_flags,
     {"what status says, each second anew, and how fast it moves", "每秒刷新的状态，以及处理速率"},
     {"Rates come from the heartbeats of the processes, so they appear after a third of a lease. Reads only; q quits.",
      "速率来自各进程的心跳，因此在三分之一个租约之后出现。只读；按 q 退出。"},
     "consign top\nconsign top --once", "status", top_command},
    {"lanes", "", 0, 0, COMMAND_CONFIG, store_flags,
     {"who owns which lanes: owner, epoch, since, lease left", "通道的持有者、纪元、起始时间和剩余租约"}, {NULL, NULL},
     "consign lanes\nconsign lanes --store orders", "status", lanes_command},
    {"event trace", "ID", 1, 1, COMMAND_CONFIG, NULL,
     {"everything that is known of one event, over all stores, in order", "跨所有存储，按顺序列出一个事件的全部证据"},
     {"Evidence that is missing is stated with its reason; nothing is changed.", "缺失的证据会写明原因；不做任何改动。"},
     "consign event trace E-9001-1\nconsign event trace E-9001-1 -o json", "event show ID", trace_command},
    {"event show", "ID", 1, 1, COMMAND_CONFIG | COMMAND_MAY_REASON, show_flags,
     {"the row of one event, its payload masked", "显示一个事件的记录，载荷隐藏"}, {NULL, NULL},
     "consign event show E-9001-1\nconsign event show E-9001-1 --payload --reason \"support call 42\"", "event trace ID",
     event_show},
    {"event find", "TEXT", 1, 1, COMMAND_CONFIG, event_find_flags,
     {"search by event id, key, trace id, correlation id; says what was searched", "按事件标识、键、跟踪号、关联号查找，并说明查找范围"},
     {NULL, NULL}, "consign event find O-9001", "event list", event_find},
    {"event list", "", 0, 0, COMMAND_CONFIG, event_list_flags,
     {"events of one status, or the newest", "列出某一状态的事件，或最新的事件"}, {NULL, NULL},
     "consign event list --status failed --limit 20", "event trace ID", event_list},
    {"event retry", "ID", 1, 1, COMMAND_CONFIG | COMMAND_REASON | COMMAND_DRY_RUN, store_flags,
     {"send a failed event again, with a new budget", "重发待人工的事件，预算重新计算"}, {NULL, NULL},
     "consign event retry E-9001-1 --reason \"binding was missing\"", "event trace ID", event_retry},
    {"event cancel", "ID", 1, 1, COMMAND_CONFIG | COMMAND_REASON | COMMAND_DRY_RUN, store_flags,
     {"end an event that was not sent; what waits behind it goes on", "取消未发送的事件，其后的等待事件继续"}, {NULL, NULL},
     "consign event cancel E-9001-1 --reason \"order was a test\" --dry-run", "event trace ID", event_cancel},
    {"event hold", "ID", 1, 1, COMMAND_CONFIG | COMMAND_REASON | COMMAND_DRY_RUN, store_flags,
     {"keep an event, and its key, from being sent", "挂起一个事件（及其同键后续）"}, {NULL, NULL},
     "consign event hold E-9001-1 --reason \"waiting for legal\"", "event release ID", event_hold},
    {"event release", "ID", 1, 1, COMMAND_CONFIG | COMMAND_REASON | COMMAND_DRY_RUN, store_flags,
     {"let a held event go on", "放行挂起的事件"}, {NULL, NULL},
     "consign event release E-9001-1 --reason \"cleared\"", "event trace ID", event_release},
    {"dead list", "", 0, 0, COMMAND_CONFIG, dead_list_flags,
     {"dead letters, by consumer and cause", "按消费者和原因列出死信"}, {NULL, NULL},
     "consign dead list --consumer stock --cause poison", "status", dead_list},
    {"dead show", "LETTER", 1, 1, COMMAND_CONFIG | COMMAND_MAY_REASON, show_flags,
     {"one dead letter, by its number or its event id; the payload masked", "按编号或事件标识显示死信，载荷隐藏"}, {NULL, NULL},
     "consign dead show 17\nconsign dead show E-9001-1 --payload", "event trace ID", dead_show},
    {"reconcile run", "outbox", 1, 1, COMMAND_CONFIG | COMMAND_REASON | COMMAND_DRY_RUN, reconcile_flags,
     {"compare what was sent with what was consumed; send again what nobody has", "核对已发送与已消费，重发无人持有的事件"},
     {"Exit 1 with differences. A store that cannot be read is \"not compared\", never \"no differences\".",
      "有差异时退出码为 1。无法读取的存储记为“未比较”，而不是“无差异”。"},
     "consign reconcile run outbox --dry-run\nconsign reconcile run outbox --grace 1h --reason \"broker was restored\"", "status",
     reconcile_run},
    {"config check", "", 0, 0, 0, NULL,
     {"check the configuration and the handler files, all mistakes at once", "检查配置和处理器文件，一次列出所有错误"},
     {NULL, NULL}, "consign config check -c shop/consign.yaml", "serve", config_check_command},
    {"config show", "", 0, 0, 0, config_show_flags,
     {"every value in force, and where it came from", "当前生效的每个值及其来源"},
     {"Later wins: default, file, environment (CONSIGN_…), --set. Secrets are not shown.", "后者优先：默认值、文件、环境变量（CONSIGN_…）、--set。不显示机密。"},
     "consign config show -c shop/consign.yaml\nCONSIGN_RELAY__LEASE=60s consign config show --origin", "config explain KEY",
     config_show_command},
    {"config explain", "[KEY]", 0, 1, 0, config_explain_flags,
     {"what a key means: type, limits, default", "解释配置项：类型、范围、默认值"}, {NULL, NULL},
     "consign config explain relay.lease\nconsign config explain subscriptions", NULL, config_explain_command},
    {"schema print", "", 0, 0, 0, schema_print_flags,
     {"the tables as SQL, for your own migration tool", "以 SQL 输出表结构，供您的迁移工具使用"}, {NULL, NULL},
     "consign schema print | sqlite3 orders.db", "schema check", schema_print_command},
    {"schema check", "[STORE...]", 0, STORES_MAX, 0, schema_flags,
     {"compare the stores with what this program expects", "比对存储与本程序预期的表结构"}, {NULL, NULL},
     "consign schema check\nconsign schema check --url sqlite:orders.db", NULL, schema_check_command},
    {"schema apply", "[STORE...]", 0, STORES_MAX, COMMAND_DRY_RUN, schema_flags,
     {"bring the stores to this version; rows are not touched", "把存储升级到本版本，不改动任何数据行"}, {NULL, NULL},
     "consign schema apply\nconsign schema apply stock --dry-run", "schema check", schema_apply_command},
    {"lab list", "", 0, 0, 0, NULL,
     {"the experiments of the laboratory, each with the mutant that it catches", "列出实验，以及各自能发现的变异"}, {NULL, NULL},
     "consign lab list", "lab run ID", lab_list_command},
    {"lab run", "[ID...|all]", 0, COMMAND_ARGS_MAX, 0, lab_run_flags,
     {"inject a fault, recover, and check what must hold; exit 1 when it does not", "注入故障、恢复，并检查必须成立的断言；不成立则退出码为 1"},
     {"Works on databases of its own in a temporary folder. A database without the laboratory's marker is refused.",
      "在临时目录中使用自己的数据库。没有实验室标记的数据库会被拒绝。"},
     "consign lab run A3\nconsign lab run all\nconsign lab run --prelaunch\nconsign lab run A7 --keep lab-a7", NULL, lab_run_command},
    {"lab prepare", "URL", 1, 1, COMMAND_YES, NULL,
     {"mark a database as a test database that experiments may empty", "把数据库标记为实验可以清空的测试库"},
     {"One that has events already is marked only with --yes.", "其中已有事件时，须加 --yes 才会标记。"},
     "consign lab prepare sqlite:lab-orders.db", NULL, lab_prepare_command},
    {"lab act", "NAME...", 1, COMMAND_ARGS_MAX, COMMAND_HIDDEN, NULL,
     {"what a process of an experiment does", "实验中的进程所做的事"}, {NULL, NULL}, NULL, NULL, lab_act_command},
    {"explain", "[CODE]", 0, 1, 0, NULL,
     {"the long text of an error (CSN-2003) or of a constraint (csn_event_id)", "解释错误代码（CSN-2003）或约束（csn_event_id）"},
     {NULL, NULL}, "consign explain CSN-2003\nconsign explain 1006\nconsign explain csn_payload_json", NULL,
     explain_command},
    {"completion", "SHELL", 1, 1, 0, NULL,
     {"what a shell loads to complete commands, flags, names and codes", "供 shell 载入的补全脚本：命令、选项、名称和代码"},
     {"For bash, zsh and fish. Load it as its first lines say; it asks this program, and so stays right.",
      "支持 bash、zsh 和 fish。载入方法见其开头几行；脚本向本程序查询，因此始终正确。"},
     "consign completion bash\nconsign completion zsh\nconsign completion fish | source", NULL, completion_command},
    {"complete", "WORD...", 0, COMMAND_ARGS_MAX, COMMAND_HIDDEN | COMMAND_RAW, NULL,
     {"what the last word may become", "最后一个词的补全候选"}, {NULL, NULL}, NULL, NULL, complete_command},
    {"help", "[COMMAND]", 0, 2, 0, help_flags, {"the commands, or one of them", "列出命令，或解释其中一个"}, {NULL, NULL},
     "consign help\nconsign help schema apply\nconsign help --all\nconsign help --man schema apply | man -l -", NULL, help_command},
    {"version", "", 0, 0, 0, NULL, {"the version of this program", "本程序的版本"}, {NULL, NULL}, NULL, NULL,
     version_command},
};

enum global { G_CONFIG, G_OUTPUT, G_JSON, G_QUIET, G_VERBOSE, G_LANG, G_NO_COLOR, G_SET, G_REASON, G_DRY_RUN, G_YES, G_HELP,
              G_VERSION };

static const struct flag globals[] = {
    [G_CONFIG] = {"config", FLAG_TEXT, "FILE", 0, 0, {"-c: the configuration file", "-c：配置文件"}},
    [G_OUTPUT] = {"output", FLAG_TEXT, "FORM", 0, 0, {"-o: table, json or jsonl", "-o：table、json 或 jsonl"}},
    [G_JSON] = {"json", FLAG_SWITCH, NULL, 0, 0, {"the same as -o json", "等同于 -o json"}},
    [G_QUIET] = {"quiet", FLAG_SWITCH, NULL, 0, 0, {"-q: no hints, no talk", "-q：不输出提示"}},
    [G_VERBOSE] = {"verbose", FLAG_SWITCH, NULL, 0, 0, {"-v: say more", "-v：输出更多"}},
    [G_LANG] = {"lang", FLAG_TEXT, "LANGUAGE", 0, 0, {"en or zh-CN", "en 或 zh-CN"}},
    [G_NO_COLOR] = {"no-color", FLAG_SWITCH, NULL, 0, 0, {"no colours, as with NO_COLOR", "不使用颜色，同 NO_COLOR"}},
    [G_SET] = {"set", FLAG_TEXT, "PATH=VALUE", 0, 0, {"a value over the configuration's; may repeat", "覆盖配置中的值，可重复"}},
    [G_REASON] = {"reason", FLAG_TEXT, "TEXT", 0, 0, {"why; kept in the audit chain", "原因，记入审计链"}},
    [G_DRY_RUN] = {"dry-run", FLAG_SWITCH, NULL, 0, 0, {"say what would be done, change nothing", "只说明将做什么，不做改动"}},
    [G_YES] = {"yes", FLAG_SWITCH, NULL, 0, 0, {"do not ask", "不再询问"}},
    [G_HELP] = {"help", FLAG_SWITCH, NULL, 0, 0, {"-h: help for the command", "-h：该命令的帮助"}},
    [G_VERSION] = {"version", FLAG_SWITCH, NULL, 0, 0, {"the version", "版本"}},
    NO_FLAG,
};

static const struct {
    char letter;
    enum global flag;
} letters[] = {{'c', G_CONFIG}, {'o', G_OUTPUT}, {'q', G_QUIET}, {'v', G_VERBOSE}, {'h', G_HELP}};

/* clang-format on */

const struct flag *command_global_flags(void) {
    return globals;
}

/* Bits of the commands that take a flag; 0: all do. */
static unsigned takers(const char *flag) {
    static const struct {
        enum global flag;
        unsigned bits;
    } some[] = {{G_REASON, COMMAND_REASON | COMMAND_MAY_REASON},
                {G_DRY_RUN, COMMAND_DRY_RUN},
                {G_YES, COMMAND_YES}};
    for (size_t i = 0; i < ARRAY_LEN(some); i++)
        if (strcmp(globals[some[i].flag].name, flag) == 0)
            return some[i].bits;
    return 0;
}

bool command_only_some(const char *flag) {
    return takers(flag) != 0;
}

bool command_takes_some(const struct command *k, const char *flag) {
    return (k->bits & takers(flag)) != 0;
}

const struct command *command_at(size_t i) {
    return i < ARRAY_LEN(commands) ? &commands[i] : NULL;
}

const struct command *command_find(const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

/* ---- flags ---- */

/* A word that is a flag, taken apart. */
struct word {
    char name[64];     /* without dashes */
    const char *value; /* after '=', or NULL */
    bool long_form;
};

static bool is_flag(const char *s) {
    return s[0] == '-' && s[1] != '\0';
}

static void take_apart(const char *s, struct word *ret) {
    ret->long_form = s[1] == '-';
    const char *name = s + (ret->long_form ? 2 : 1), *equals = strchr(name, '=');
    size_t n = equals != NULL ? (size_t)(equals - name) : strlen(name);
    ret->value = equals != NULL ? equals + 1 : NULL;
    (void)copy_bytes_text(ret->name, sizeof(ret->name), (csn_bytes){name, n});
}

static int flag_in(const struct flag *list, const struct word *w) {
    for (int i = 0; list != NULL && w->long_form && list[i].name != NULL; i++)
        if (strcmp(list[i].name, w->name) == 0)
            return i;
    return -1;
}

static int global_of(const struct word *w) {
    for (size_t i = 0; i < ARRAY_LEN(letters); i++)
        if (!w->long_form && w->name[0] == letters[i].letter && w->name[1] == '\0')
            return (int)letters[i].flag;
    return flag_in(globals, w);
}

/* Does any command's flag of this name take a value? */
static bool takes_value_somewhere(const struct word *w) {
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        int at = flag_in(commands[i].flag, w);
        if (at >= 0)
            return commands[i].flag[at].type != FLAG_SWITCH;
    }
    return false;
}

/* Is the word after this flag its value? */
static bool eats_next(const struct word *w) {
    int at = global_of(w);
    if (w->value != NULL)
        return false;
    return at >= 0 ? globals[at].type != FLAG_SWITCH : takes_value_somewhere(w);
}

bool command_eats_next(const char *word) {
    struct word w;
    take_apart(word, &w);
    return eats_next(&w);
}

const struct flag *command_short_flag(const char *word) {
    struct word w;
    take_apart(word, &w);
    int at = w.long_form ? -1 : global_of(&w);
    return at >= 0 ? &globals[at] : NULL;
}

/* ---- the first reading: name, language, form ---- */

struct reading {
    int argc;
    char **argv;
    struct out *o;
    struct text *way;
    csn_error *err;
    int name[2]; /* positions of the words of the name; 0: none */
    int name_words;
    int second; /* the plain word after the first, of the name or not; 0: none */
};

static csn_status usage(struct reading *r, enum message_id id, const char *word,
                        const char *value) {
    char line[sizeof(r->err->text)];
    struct text t;
    text_init(&t, line, sizeof(line));
    message_add(&t, id, word, value);
    return error_set(r->err, CSN_INVALID, ERR_USAGE, "%s", line);
}

static csn_status set_format(struct reading *r, const char *s) {
    static const char *const forms[] = {
        [OUT_TABLE] = "table", [OUT_JSON] = "json", [OUT_JSONL] = "jsonl"};
    for (size_t i = 0; i < ARRAY_LEN(forms); i++) {
        if (strcmp(forms[i], s) == 0) {
            r->o->format = (enum out_format)i;
            return CSN_OK;
        }
    }
    return usage(r, MSG_COMMAND_TAKES, "-o", "table, json, jsonl");
}

static csn_status set_language(struct reading *r, const char *s) {
    enum language l;
    if (!language_find(s, &l))
        return usage(r, MSG_COMMAND_TAKES, "--lang", "en, zh-CN");
    message_language(l);
    return CSN_OK;
}

/* Flags that decide how things are said; a missing value is told in the second reading. */
static csn_status obey_early(struct reading *r, enum global flag, const char *value) {
    switch (flag) {
    case G_OUTPUT:
        return value != NULL ? set_format(r, value) : CSN_OK;
    case G_LANG:
        return value != NULL ? set_language(r, value) : CSN_OK;
    case G_JSON:
        r->o->format = OUT_JSON;
        return CSN_OK;
    case G_QUIET:
        r->o->quiet = true;
        return CSN_OK;
    case G_VERBOSE:
        r->o->verbose++;
        return CSN_OK;
    case G_NO_COLOR:
        out_plain(r->o);
        return CSN_OK;
    default:
        return CSN_OK;
    }
}

static void language_of_locale(void) {
    static const char *const names[] = {"LC_ALL", "LC_MESSAGES", "LANG"};
    enum language l = LANG_EN;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const char *value = getenv(names[i]);
        if (value == NULL || value[0] == '\0')
            continue;
        (void)language_find(value, &l);
        break;
    }
    message_language(l);
}

/* Is s the first word of a command's name with two? */
static bool is_noun(const char *s) {
    size_t n = strlen(s);
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        if (strncmp(commands[i].name, s, n) == 0 && commands[i].name[n] == ' ')
            return true;
    return false;
}

/* A raw command gets everything behind its name. */
static bool name_is_raw(const struct reading *r) {
    const struct command *c = r->name_words == 1 ? command_find(r->argv[r->name[0]]) : NULL;
    return c != NULL && (c->bits & COMMAND_RAW) != 0;
}

static csn_status read_name(struct reading *r) {
    csn_status s = CSN_OK, first = CSN_OK;
    struct word w;
    language_of_locale();
    for (int i = 1; i < r->argc && strcmp(r->argv[i], "--") != 0 && !name_is_raw(r); i++) {
        if (!is_flag(r->argv[i])) {
            if (r->name_words == 1 && r->second == 0)
                r->second = i;
            if (r->name_words == 0 || (r->name_words == 1 && is_noun(r->argv[r->name[0]])))
                r->name[r->name_words++] = i;
            continue;
        }
        take_apart(r->argv[i], &w);
        bool eats = eats_next(&w) && i + 1 < r->argc;
        const char *value = eats ? r->argv[i + 1] : w.value;
        int at = global_of(&w);
        s = at >= 0 ? obey_early(r, (enum global)at, value) : CSN_OK;
        first = first == CSN_OK ? s : first;
        i += eats;
    }
    return first;
}

/* ---- the command ---- */

static void guess_command(struct reading *r, const char *name) {
    struct guess g;
    guess_init(&g, name);
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        if ((commands[i].bits & COMMAND_HIDDEN) != 0)
            continue;
        guess_offer(&g, commands[i].name);
        const char *verb = strchr(commands[i].name, ' ');
        if (verb != NULL && strchr(name, ' ') == NULL && g.best == NULL &&
            strcmp(verb + 1, name) == 0)
            g = (struct guess){name, commands[i].name, 0};
    }
    if (g.best != NULL)
        message_add(r->way, MSG_COMMAND_MEANT, g.best);
}

static csn_status needs_verb(struct reading *r, const char *noun) {
    char verbs[200];
    struct text t;
    size_t n = strlen(noun);
    text_init(&t, verbs, sizeof(verbs));
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        if (strncmp(commands[i].name, noun, n) == 0 && commands[i].name[n] == ' ')
            text_add(&t, "%s%s", t.used > 0 ? ", " : "", commands[i].name + n + 1);
    return usage(r, MSG_COMMAND_VERB, noun, verbs);
}

/* "lab --prelaunch": of the noun's verbs only one has a flag of these words. NULL: not so. */
static const struct command *verb_by_flag(const struct reading *r, const char *noun) {
    const struct command *found = NULL;
    size_t n = strlen(noun);
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        const struct command *k = &commands[i];
        if (strncmp(k->name, noun, n) != 0 || k->name[n] != ' ')
            continue;
        for (int f = 0; k->flag != NULL && k->flag[f].name != NULL; f++) {
            for (int w = 1; w < r->argc; w++) {
                if (strncmp(r->argv[w], "--", 2) != 0 || strcmp(r->argv[w] + 2, k->flag[f].name) != 0)
                    continue;
                if (found != NULL && found != k)
                    return NULL;
                found = k;
            }
        }
    }
    return found;
}

static csn_status find_command(struct reading *r, const struct command **ret) {
    char name[128];
    struct text t;
    text_init(&t, name, sizeof(name));
    *ret = NULL;
    if (r->name_words == 0)
        return CSN_OK;
    text_add(&t, "%s%s%s", r->argv[r->name[0]], r->name_words == 2 ? " " : "",
             r->name_words == 2 ? r->argv[r->name[1]] : "");
    *ret = command_find(name);
    if (*ret != NULL)
        return CSN_OK;
    if (r->name_words == 1 && is_noun(name)) {
        *ret = verb_by_flag(r, name);
        return *ret != NULL ? CSN_OK : needs_verb(r, name);
    }
    guess_command(r, name);
    if (r->way->used == 0 && r->name_words == 1 && r->second != 0) {
        char both[128]; /* "shema print": the noun is misspelt, the next word is the verb */
        text_init(&t, both, sizeof(both));
        text_add(&t, "%s %s", name, r->argv[r->second]);
        guess_command(r, both);
    }
    return usage(r, MSG_COMMAND_UNKNOWN, name, "");
}

/* ---- the second reading ---- */

static csn_status unknown_flag(struct reading *r, const struct command *c, const char *word,
                               const struct word *w) {
    struct guess g;
    guess_init(&g, w->name);
    for (int i = 0; c != NULL && c->flag != NULL && c->flag[i].name != NULL; i++)
        guess_offer(&g, c->flag[i].name);
    for (int i = 0; globals[i].name != NULL; i++)
        guess_offer(&g, globals[i].name);
    if (g.best != NULL)
        message_add(r->way, MSG_COMMAND_MEANT_FLAG, g.best);
    else if (c != NULL)
        message_add(r->way, MSG_COMMAND_SEE_HELP, c->name);
    return usage(r, MSG_COMMAND_FLAG, word, c != NULL ? c->name : "consign");
}

static csn_status not_for_this(struct reading *r, const struct command *c, enum global flag) {
    char word[32];
    (void)snprintf(word, sizeof(word), "--%s", globals[flag].name);
    return usage(r, MSG_COMMAND_FLAG, word, c->name);
}

static csn_status take_set(struct reading *r, struct command_call *c, const char *value) {
    if (c->sets == COMMAND_ARGS_MAX)
        return usage(r, MSG_COMMAND_TOO_MANY, "--set", "");
    c->set[c->sets++] = value;
    return CSN_OK;
}

static csn_status take_global(struct reading *r, struct command_call *c, enum global flag,
                              const char *value) {
    unsigned bits = c->command != NULL ? c->command->bits : ~0U;
    switch (flag) {
    case G_CONFIG:
        c->config_path = value;
        break;
    case G_SET:
        return take_set(r, c, value);
    case G_LANG:
        c->lang_given = true;
        break;
    case G_HELP:
        c->help = true;
        break;
    case G_VERSION:
        c->version = true;
        break;
    case G_REASON:
        if ((bits & (COMMAND_REASON | COMMAND_MAY_REASON)) == 0)
            return not_for_this(r, c->command, flag);
        c->reason = value;
        break;
    case G_DRY_RUN:
        if ((bits & COMMAND_DRY_RUN) == 0)
            return not_for_this(r, c->command, flag);
        c->dry_run = true;
        break;
    case G_YES:
        if ((bits & COMMAND_YES) == 0)
            return not_for_this(r, c->command, flag);
        c->yes = true;
        break;
    default:
        break; /* obeyed early */
    }
    return CSN_OK;
}

static csn_status bad_value(struct reading *r, const struct flag *f, const char *word) {
    char expected[120], least[32], most[32];
    struct text t;
    text_init(&t, expected, sizeof(expected));
    if (f->type == FLAG_DURATION) {
        config_duration_text(f->min, least, sizeof(least));
        config_duration_text(f->max, most, sizeof(most));
        message_add(&t, MSG_CONFIG_EXPECT_DURATION, least, most);
    } else {
        (void)snprintf(least, sizeof(least), "%lld", (long long)f->min);
        (void)snprintf(most, sizeof(most), "%lld", (long long)f->max);
        message_add(&t, MSG_CONFIG_EXPECT_INT, least, most);
    }
    return usage(r, MSG_COMMAND_TAKES, word, expected);
}

static csn_status take_own(struct reading *r, struct command_call *c, int at, const char *word,
                           const char *value) {
    const struct flag *f = &c->command->flag[at];
    int64_t n = 0;
    bool good = true;
    if (f->type == FLAG_INT)
        good = config_parse_int(value, &n) && n >= f->min && n <= f->max;
    else if (f->type == FLAG_DURATION)
        good = config_parse_duration(value, &n) && n >= f->min && n <= f->max;
    if (!good || at >= COMMAND_FLAGS_MAX)
        return bad_value(r, f, word);
    c->value[at] = f->type == FLAG_SWITCH ? "" : value;
    return CSN_OK;
}

/* One flag at *i, and its value. */
static csn_status take_flag(struct reading *r, struct command_call *c, int *i) {
    struct word w;
    const char *word = r->argv[*i];
    take_apart(word, &w);
    int own = c->command != NULL ? flag_in(c->command->flag, &w) : -1,
        global = own < 0 ? global_of(&w) : -1;
    if (own < 0 && global < 0)
        return unknown_flag(r, c->command, word, &w);
    const struct flag *f = own >= 0 ? &c->command->flag[own] : &globals[global];
    char dashed[80];
    (void)snprintf(dashed, sizeof(dashed), "--%s", f->name);
    if (f->type == FLAG_SWITCH && w.value != NULL)
        return usage(r, MSG_COMMAND_NO_VALUE, dashed, "");
    if (f->type != FLAG_SWITCH && w.value == NULL) {
        if (*i + 1 >= r->argc)
            return usage(r, MSG_COMMAND_VALUE, dashed, f->value);
        w.value = r->argv[++*i];
    }
    return own >= 0 ? take_own(r, c, own, dashed, w.value)
                    : take_global(r, c, (enum global)global, w.value);
}

static csn_status take_argument(struct reading *r, struct command_call *c, const char *word) {
    if (c->args == COMMAND_ARGS_MAX)
        return usage(r, MSG_COMMAND_TOO_MANY, word, "");
    c->arg[c->args++] = word;
    return CSN_OK;
}

static csn_status read_words(struct reading *r, struct command_call *c) {
    bool plain = false, raw = c->command != NULL && (c->command->bits & COMMAND_RAW) != 0;
    csn_status s = CSN_OK;
    for (int i = 1; i < r->argc && s == CSN_OK; i++) {
        if (i == r->name[0] || (r->name_words == 2 && i == r->name[1]))
            plain = plain || (raw && i == r->name[0]);
        else if (!plain && strcmp(r->argv[i], "--") == 0)
            plain = true;
        else if (!plain && is_flag(r->argv[i]))
            s = take_flag(r, c, &i);
        else
            s = take_argument(r, c, r->argv[i]);
    }
    return s;
}

static csn_status check_call(struct reading *r, const struct command_call *c) {
    const struct command *k = c->command;
    if (k == NULL)
        return c->args > 0 ? usage(r, MSG_COMMAND_UNKNOWN, c->arg[0], "") : CSN_OK;
    if (c->help || c->version || (k->bits & COMMAND_RAW) != 0)
        return CSN_OK;
    if (c->args < k->least) {
        message_add(r->way, MSG_COMMAND_SEE_HELP, k->name);
        return usage(r, MSG_COMMAND_MISSING, k->name, k->args);
    }
    if (c->args > k->most) {
        message_add(r->way, MSG_COMMAND_SEE_HELP, k->name);
        return usage(r, MSG_COMMAND_EXTRA, k->name, c->arg[k->most]);
    }
    if ((k->bits & COMMAND_REASON) != 0 && !c->dry_run &&
        (c->reason == NULL || c->reason[0] == '\0')) {
        (void)usage(r, MSG_COMMAND_REASON, k->name, "");
        r->err->code = ERR_REASON_REQUIRED;
        return CSN_INVALID;
    }
    return CSN_OK;
}

csn_status command_parse(int argc, char **argv, struct out *o, struct command_call *ret,
                         struct text *way, csn_error *err) {
    struct reading r = {.argc = argc, .argv = argv, .o = o, .way = way, .err = err};
    *ret = (struct command_call){.out = o};
    error_clear(err);
    csn_status s = read_name(&r);
    if (s == CSN_OK)
        s = find_command(&r, &ret->command);
    if (s == CSN_OK)
        s = read_words(&r, ret);
    if (s == CSN_OK)
        s = check_call(&r, ret);
    return s;
}

/* ---- what a command asks of its call ---- */

/* The name is in the command's row: a program mistake otherwise, seen by the first test that runs
 * the command. */
static const char *value_of(const struct command_call *c, const char *flag) {
    struct word w = {.long_form = true};
    (void)copy_text(w.name, sizeof(w.name), flag);
    int at = flag_in(c->command->flag, &w);
    if (at < 0) {
        (void)fprintf(stderr, "error CSN-9001: %s has no flag --%s\n", c->command->name, flag);
        abort();
    }
    return c->value[at];
}

bool command_switch(const struct command_call *c, const char *flag) {
    return value_of(c, flag) != NULL;
}

const char *command_text(const struct command_call *c, const char *flag) {
    return value_of(c, flag);
}

int64_t command_int(const struct command_call *c, const char *flag, int64_t otherwise) {
    const char *value = value_of(c, flag);
    int64_t n = otherwise;
    if (value != NULL)
        (void)config_parse_int(value, &n); /* checked by the parser */
    return n;
}

csn_usec command_duration(const struct command_call *c, const char *flag, csn_usec otherwise) {
    const char *value = value_of(c, flag);
    csn_usec d = otherwise;
    if (value != NULL)
        (void)config_parse_duration(value, &d);
    return d;
}

void command_next(const struct command_call *c) {
    if (c->command->next != NULL && !c->out->quiet)
        out_line(c->out, "%s consign %s", message(MSG_OUT_NEXT), c->command->next);
}

void command_next_to(const struct command_call *c, const char *name, const char *value) {
    char safe[400];
    if (command_find(name) == NULL) {
        (void)fprintf(stderr, "error CSN-9001: a hint names no command: %s\n", name);
        abort();
    }
    if (!c->out->quiet)
        out_line(c->out, "%s consign %s%s%s", message(MSG_OUT_NEXT), name,
                 value != NULL && value[0] != '\0' ? " " : "",
                 out_safe_text(value, safe, sizeof(safe)));
}

const char *command_actor(char *ret, size_t size) {
    char host[256] = "", room[1024];
    struct passwd entry, *found = NULL;
    struct text t;
    if (getpwuid_r(getuid(), &entry, room, sizeof(room), &found) != 0)
        found = NULL;
    if (gethostname(host, sizeof(host) - 1) != 0)
        host[0] = '\0';
    text_init(&t, ret, size);
    if (found != NULL)
        text_add(&t, "%s", found->pw_name);
    else
        text_add(&t, "uid %u", (unsigned)getuid());
    text_add(&t, "@%s", host[0] != '\0' ? host : "localhost");
    return ret;
}

struct load_input command_input(const struct command_call *c) {
    return (struct load_input){.file = c->config_path, .environment = environ, .set = c->set,
                               .sets = c->sets, .drivers = store_drivers};
}

int command_load(const struct command_call *c, struct load **ret) {
    const struct load_input in = command_input(c);
    csn_error err;
    error_clear(&err);
    if (load_config(&in, ret, &err) != CSN_OK)
        return out_error(c->out, &err, NULL, NULL);
    int code = report_mistakes(*ret, c->out);
    if (code != 0) {
        load_free(*ret);
        *ret = NULL;
    }
    return code;
}

static int run(struct command_call *c) {
    struct load *l = NULL;
    if (c->version)
        return version_command(c);
    if (c->command == NULL)
        return help_overview(c->out);
    if (c->help)
        return help_one(c->out, c->command);
    if ((c->command->bits & COMMAND_CONFIG) != 0) {
        int code = command_load(c, &l);
        if (code != 0)
            return code;
        c->config = &l->config;
    }
    int code = c->command->run(c);
    load_free(l);
    return code;
}

int command_main(int argc, char **argv, struct out *o) {
    struct command_call call;
    char line[300];
    struct text way;
    csn_error err;
    text_init(&way, line, sizeof(line));
    if (command_parse(argc, argv, o, &call, &way, &err) != CSN_OK)
        return out_error(o, &err, NULL, way.used > 0 ? line : NULL);
    return run(&call);
}
