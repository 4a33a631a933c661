/* init_files.c: the demo shop. An order and its event commit together in orders.db; stock.db
 * reserves once per event and answers with an event of its own; the answer settles the order.
 * Comments are in both languages, everything that runs is the same. */
#include "cli/init_files.h"

#define ORDERS_SQL                                                                                 \
    "CREATE TABLE orders (\n"                                                                      \
    "  order_id   TEXT PRIMARY KEY,\n"                                                             \
    "  sku        TEXT NOT NULL,\n"                                                                \
    "  qty        INTEGER NOT NULL CHECK (qty > 0),\n"                                             \
    "  state      TEXT NOT NULL DEFAULT 'pending_inventory'\n"                                     \
    "             CHECK (state IN ('pending_inventory', 'confirmed', 'rejected', 'cancelled')),\n" \
    "  created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))\n"                 \
    ") STRICT;\n"

#define STOCK_SQL                                                                                  \
    "CREATE TABLE stock (\n"                                                                       \
    "  sku        TEXT PRIMARY KEY,\n"                                                             \
    "  opening    INTEGER NOT NULL,\n"                                                             \
    "  available  INTEGER NOT NULL CHECK (available >= 0)\n"                                       \
    ") STRICT;\n"                                                                                  \
    "CREATE TABLE reservation (\n"                                                                 \
    "  order_id   TEXT PRIMARY KEY,\n"                                                             \
    "  sku        TEXT NOT NULL REFERENCES stock(sku),\n"                                          \
    "  qty        INTEGER NOT NULL CHECK (qty > 0),\n"                                             \
    "  state      TEXT NOT NULL\n"                                                                 \
    ") STRICT;\n"                                                                                  \
    "CREATE TABLE stock_journal (\n"                                                               \
    "  event_id   TEXT PRIMARY KEY,\n"                                                             \
    "  sku        TEXT NOT NULL REFERENCES stock(sku),\n"                                          \
    "  qty        INTEGER NOT NULL,\n"                                                             \
    "  kind       TEXT NOT NULL\n"                                                                 \
    ") STRICT;\n"                                                                                  \
    "INSERT INTO stock(sku, opening, available) VALUES\n"                                          \
    "  ('A', 100000, 100000), ('B', 100000, 100000), ('C', 1000, 1000), ('D', 10, 10), ('E', 0, "  \
    "0);\n"

const char shop_orders_sql[] = ORDERS_SQL;
const char shop_stock_sql[] = STOCK_SQL;

#define CONFIG_TOP_EN                                                                              \
    "# The shop. Check it with:  consign config check     What a key means:  consign config "      \
    "explain relay.lease\n"                                                                        \
    "# Run it with:              consign serve            Paths are relative to this file.\n\n"
#define CONFIG_TOP_ZH                                                                                           \
    "# 商店演示。检查：consign config check     解释配置项：consign config explain relay.lease\n" \
    "# 运行：consign serve     相对路径以本文件所在目录为准。\n\n"

static const char config_en[] = CONFIG_TOP_EN
    "stores:                          # every database that has an outbox or an inbox\n"
    "  orders:\n"
    "    url: sqlite:orders.db\n"
    "    # apply: 1                   # workers per subscription that handles events here\n"
    "    # migrate: check             # check | apply\n"
    "  stock:\n"
    "    url: sqlite:stock.db\n"
    "\n"
    "brokers:\n"
    "  local:                         # a queue table in orders.db; nothing else to install\n"
    "    type: embedded\n"
    "    store: orders\n"
    "    # confirm_timeout: 10s\n"
    "\n"
    "# routes:                        # first match wins; without routes every event goes to the "
    "first broker\n"
    "#   everything:\n"
    "#     match: \"*\"\n"
    "#     to: local\n"
    "\n"
    "subscriptions:                   # the name is consumer_name in consumer_inbox\n"
    "  stock:\n"
    "    from: { broker: local }\n"
    "    store: stock                 # inbox row, reservation and answer commit here together\n"
    "    match: OrderCreated\n"
    "    handler: { sql: handlers/reserve.sql }\n"
    "    # partitions: 8\n"
    "    # retry: { base: 1s, max: 10m, jitter: full, failures: 8, age: 24h }\n"
    "  orders:\n"
    "    from: { broker: local }\n"
    "    store: orders\n"
    "    match: \"Inventory*\"\n"
    "    handler: { sql: handlers/confirm.sql }\n"
    "\n"
    "# relay:                         # the values in force when nothing is written\n"
    "#   batch: { rows: 200, bytes: 4MiB }\n"
    "#   probe: { min: 1ms, max: 50ms }\n"
    "#   lease: 30s\n"
    "#   lock_wait: 2s\n"
    "#   stop_timeout: 10s\n"
    "#   retry: { base: 1s, max: 10m, jitter: full, failures: 8, age: 24h }\n"
    "# reconcile: { grace: 10m }\n"
    "# log: { format: auto, level: info }\n"
    "# language: en\n";

static const char config_zh[] = CONFIG_TOP_ZH
    "stores:                          # 每个有发件箱或收件箱的数据库\n"
    "  orders:\n"
    "    url: sqlite:orders.db\n"
    "    # apply: 1                   # 每个在此处理事件的订阅的线程数\n"
    "    # migrate: check             # check | apply\n"
    "  stock:\n"
    "    url: sqlite:stock.db\n"
    "\n"
    "brokers:\n"
    "  local:                         # orders.db 中的队列表，无需安装其他软件\n"
    "    type: embedded\n"
    "    store: orders\n"
    "    # confirm_timeout: 10s\n"
    "\n"
    "# routes:                        # 取第一个匹配的路由；没有路由时所有事件发往第一个代理\n"
    "#   everything:\n"
    "#     match: \"*\"\n"
    "#     to: local\n"
    "\n"
    "subscriptions:                   # 名称即 consumer_inbox 中的 consumer_name\n"
    "  stock:\n"
    "    from: { broker: local }\n"
    "    store: stock                 # 收件记录、预占和答复在此一起提交\n"
    "    match: OrderCreated\n"
    "    handler: { sql: handlers/reserve.sql }\n"
    "    # partitions: 8\n"
    "    # retry: { base: 1s, max: 10m, jitter: full, failures: 8, age: 24h }\n"
    "  orders:\n"
    "    from: { broker: local }\n"
    "    store: orders\n"
    "    match: \"Inventory*\"\n"
    "    handler: { sql: handlers/confirm.sql }\n"
    "\n"
    "# relay:                         # 未写明时生效的值\n"
    "#   batch: { rows: 200, bytes: 4MiB }\n"
    "#   probe: { min: 1ms, max: 50ms }\n"
    "#   lease: 30s\n"
    "#   lock_wait: 2s\n"
    "#   stop_timeout: 10s\n"
    "#   retry: { base: 1s, max: 10m, jitter: full, failures: 8, age: 24h }\n"
    "# reconcile: { grace: 10m }\n"
    "# log: { format: auto, level: info }\n"
    "# language: zh-CN\n";

#define RESERVE_SQL                                                                                \
    "-- handler reserve\n"                                                                         \
    "UPDATE stock SET available = available - :payload.qty WHERE sku = :payload.sku AND "          \
    "available >= :payload.qty;\n"                                                                 \
    "-- expect rows 1 else goto reject\n"                                                          \
    "INSERT INTO reservation(order_id, sku, qty, state) VALUES (:aggregate_id, :payload.sku, "     \
    ":payload.qty, '已预占');\n"                                                                \
    "INSERT INTO stock_journal(event_id, sku, qty, kind) VALUES (:event_id, :payload.sku, "        \
    ":payload.qty, 'reserve');\n"                                                                  \
    "-- emit InventoryReserved for stock :payload.sku payload "                                    \
    "{\"order\": :aggregate_id, \"sku\": :payload.sku, \"qty\": :payload.qty}\n"                   \
    "-- verdict done\n"                                                                            \
    "-- label reject\n"                                                                            \
    "-- emit InventoryRejected for stock :payload.sku payload "                                    \
    "{\"order\": :aggregate_id, \"reason\": \"out of stock\"}\n"                                   \
    "-- verdict refused\n"

#define CONFIRM_SQL(late)                                                                          \
    "-- handler confirm\n"                                                                         \
    "UPDATE orders\n"                                                                              \
    "   SET state = CASE :event_type WHEN 'InventoryReserved' THEN 'confirmed' ELSE 'rejected' "   \
    "END\n"                                                                                        \
    " WHERE order_id = :payload.order AND state = 'pending_inventory';\n"                          \
    "-- expect rows 1 else goto late\n"                                                            \
    "-- verdict done\n"                                                                            \
    "-- label late\n"                                                                              \
    "-- verdict late \"" late "\"\n"

#define ORDER_SQL                                                                                  \
    ".bail on\n"                                                                                   \
    "PRAGMA busy_timeout = 5000;\n"                                                                \
    "BEGIN IMMEDIATE;\n"                                                                           \
    "INSERT INTO orders(order_id, sku, qty) VALUES ('9001', 'A', 5);\n"                            \
    "INSERT INTO outbox_events(event_id, aggregate_type, aggregate_id, aggregate_version, "        \
    "event_type, payload)\n"                                                                       \
    "VALUES ('E-9001-1', 'order', '9001', 1, 'OrderCreated', '{\"sku\":\"A\",\"qty\":5}');\n"      \
    "COMMIT;\n"

static const struct init_file files[] = {
    {"consign.yaml", {config_en, config_zh}},
    {"handlers/reserve.sql", {RESERVE_SQL, RESERVE_SQL}},
    {"handlers/confirm.sql",
     {CONFIRM_SQL("no pending order :payload.order here: it was never written to orders, or was "
                  "settled before"),
      CONFIRM_SQL("这里没有待确认的订单 :payload.order：它从未写入 orders，或已经处理过")}},
    {"shop.sql",
     {"-- The shop's own tables, as consign init made them beside consign's.\n\n-- in "
      "orders.db\n" ORDERS_SQL "\n-- in stock.db\n" STOCK_SQL,
      "-- 商店自己的表，由 consign init 与 consign 的表一起创建。\n\n-- 在 orders.db\n" ORDERS_SQL
      "\n-- 在 stock.db\n" STOCK_SQL}},
    {"order.sql",
     {"-- An order and its event, in one transaction:  sqlite3 orders.db < order.sql\n" ORDER_SQL,
      "-- 订单和它的事件，在同一个事务中：sqlite3 orders.db < order.sql\n" ORDER_SQL}},
};

const struct init_file *init_file_at(size_t i) {
    return i < ARRAY_LEN(files) ? &files[i] : NULL;
}
