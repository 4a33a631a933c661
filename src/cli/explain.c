/* explain.c: the long text of an error or of a constraint of our tables, offline, in both languages
 * of one table each. */
#include "cli/explain.h"
#include "base/message.h"
#include <strings.h>

static const struct constraint_row constraints[] = {
    {"csn_event_id",
     {"event_id is 1 to 36 visible ASCII characters without blanks, made once and never changed; a "
      "UUID fits.",
      "event_id 为 1 到 36 个可见 ASCII 字符（不含空格），一经生成不再改变；UUID 即可。"}},
    {"csn_aggregate_id",
     {"aggregate_id names what the event is about, 1 to 128 bytes; order is kept per "
      "aggregate_type and aggregate_id.",
      "aggregate_id 指明事件属于哪个业务对象，1 到 128 字节；同一 aggregate_type 和 aggregate_id "
      "内保持顺序。"}},
    {"csn_aggregate_version",
     {"aggregate_version is a whole number from 0, drawn from the aggregate's own row under its "
      "lock; it decides the order.",
      "aggregate_version 是从 0 起的整数，在业务行的锁内取得；它决定顺序。"}},
    {"csn_event_type",
     {"event_type is 1 to 80 characters, such as OrderCreated; routes and subscriptions match it.",
      "event_type 为 1 到 80 个字符，如 OrderCreated；路由和订阅按它匹配。"}},
    {"csn_schema_version",
     {"schema_version is a whole number from 1: the version of the payload's form.",
      "schema_version 是从 1 起的整数：载荷格式的版本。"}},
    {"csn_payload_type",
     {"payload is JSON as text (or as bytes of text), not a number.",
      "payload 是 JSON 文本（或其字节），不能是数字。"}},
    {"csn_payload_size",
     {"payload is at most 256 KiB. Put large things elsewhere and send where they are.",
      "payload 最多 256 KiB。大的内容请存放在别处，只发送其位置。"}},
    {"csn_payload_json",
     {"payload must be valid JSON; the database checks it in the producer's own transaction, so "
      "nothing malformed is ever sent.",
      "payload 必须是有效的 JSON；数据库在生产者自己的事务中检查，因此不会发出格式错误的内容。"}},
    {"csn_aggregate_type",
     {"aggregate_type is at most 80 characters; empty is fine when there is only one kind.",
      "aggregate_type 最多 80 个字符；只有一种对象时可以为空。"}},
    {"csn_headers",
     {"headers is a JSON object of at most 16 KiB, or NULL.",
      "headers 是不超过 16 KiB 的 JSON 对象，或为 NULL。"}},
    {"csn_context",
     {"tenant, traceparent, correlation_id, causation_id and route are at most 512 bytes each.",
      "tenant、traceparent、correlation_id、causation_id 和 route 各自最多 512 字节。"}},
    {"csn_slot",
     {"slot is the lane, and SQLite has one: leave the column out (or write 0).",
      "slot 是通道，SQLite 只有一个：请省略该列（或写 0）。"}},
    {"csn_inbox_event_id",
     {"an event id in the inbox is 1 to 128 bytes; longer foreign ids are represented by their "
      "digest.",
      "收件箱中的事件标识为 1 到 128 字节；更长的外来标识用其摘要表示。"}},
};

const struct constraint_row *constraint_find(const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(constraints); i++)
        if (strcasecmp(constraints[i].name, name) == 0)
            return &constraints[i];
    return NULL;
}

const struct constraint_row *constraint_at(size_t i) {
    return i < ARRAY_LEN(constraints) ? &constraints[i] : NULL;
}

static int here(void) {
    return message_language_now() == LANG_ZH;
}

/* "CSN-2003", "csn-2003", "2003" */
static const struct error_row *error_named(const char *s) {
    int64_t n;
    if (strncasecmp(s, "csn-", 4) == 0)
        s += 4;
    return config_parse_int(s, &n) && n <= 9999 ? error_find((int32_t)n) : NULL;
}

static json_t *error_json(const struct error_row *row) {
    char code[16];
    json_t *j = json_object();
    (void)snprintf(code, sizeof(code), "CSN-%04d", row->number);
    out_put(j, "code", out_json_string(code));
    out_put(j, "title", out_json_string(row->title[here()]));
    out_put(j, "help", out_json_string(row->help[here()]));
    out_put(j, "exit", json_integer(row->exit_code));
    return j;
}

static int explain_error(struct out *o, const struct error_row *row) {
    json_t *document = out_document("explain");
    json_t *item = error_json(row);
    if (json_object_update(document, item) != 0)
        out_put(document, "code", NULL); /* ends the program: out of memory */
    json_decref(item);
    out_line(o, "CSN-%04d  %s", row->number, row->title[here()]);
    out_line(o, "  %s", row->help[here()]);
    out_say(o, MSG_EXPLAIN_EXIT, row->exit_code);
    out_json(o, document);
    return 0;
}

static int explain_constraint(struct out *o, const struct constraint_row *row) {
    json_t *document = out_document("explain");
    out_put(document, "constraint", out_json_string(row->name));
    out_put(document, "help", out_json_string(row->help[here()]));
    out_line(o, "%s", row->name);
    out_line(o, "  %s", row->help[here()]);
    out_json(o, document);
    return 0;
}

static int explain_all(struct out *o) {
    const char *headings[] = {message(MSG_EXPLAIN_CODE), message(MSG_EXPLAIN_TITLE)};
    struct table *t = table_new(2, headings, "ll");
    json_t *items = json_array();
    if (t == NULL)
        return out_fail(o, ERR_NO_MEMORY, NULL, NULL, "explain");
    for (size_t i = 0; error_at(i) != NULL; i++) {
        table_cell_format(t, "CSN-%04d", error_at(i)->number);
        table_cell(t, error_at(i)->title[here()]);
        out_append(items, error_json(error_at(i)));
    }
    for (size_t i = 0; i < ARRAY_LEN(constraints); i++) {
        table_cell(t, constraints[i].name);
        table_cell(t, constraints[i].help[here()]);
    }
    table_print(t, o);
    table_free(t);
    out_list(o, "explain_list", items, NULL);
    return 0;
}

int explain_command(struct command_call *c) {
    if (c->args == 0)
        return explain_all(c->out);
    const struct error_row *error = error_named(c->arg[0]);
    const struct constraint_row *constraint = constraint_find(c->arg[0]);
    if (error != NULL)
        return explain_error(c->out, error);
    if (constraint != NULL)
        return explain_constraint(c->out, constraint);
    return out_fail(c->out, ERR_NOT_FOUND, NULL, "consign explain", "%.80s", c->arg[0]);
}

int version_command(struct command_call *c) {
    json_t *document = out_document("version");
    out_put(document, "version", json_string(CSN_VERSION));
    out_line(c->out, "consign %s", CSN_VERSION);
    out_json(c->out, document);
    return 0;
}
