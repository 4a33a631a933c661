#!/usr/bin/env bash
# Bad rows, bad configuration, bad handlers, bad surroundings. Each is refused or endured with words
# that name the thing and the way out; nothing is lost, and what is not concerned goes on.
set -u
# A private mount namespace: the small file system of the full disk ends with this script.
if [ -z "${CONSIGN_TEST_NAMESPACE:-}" ]; then
    export CONSIGN_TEST_NAMESPACE=1
    [ "$(id -u)" = 0 ] || exec unshare --map-root-user --mount "$0"
    unshare --mount true 2>/dev/null && exec unshare --mount "$0"
    exec unshare --mount --propagation unchanged "$0" # a chroot is no mount point
fi
# shellcheck source=test/accept/lib.sh
. "$(dirname "$0")/lib.sh"

# ---- rows ----------------------------------------------------------------------------------------

# refused CONSTRAINT COLUMN EXPRESSION: the producer's own session is told, and no row is there.
refused() {
    local before columns='event_id, aggregate_id, aggregate_version, event_type, payload' c values='' list=''
    before=$(ask orders 'SELECT count(*) FROM outbox_events')
    for c in ${columns//,/} ; do
        [ "$c" = "$2" ] && continue
        list="$list$c, "
        case $c in
        aggregate_version) values="${values}1, " ;;
        payload) values="$values'{}', " ;;
        *) values="$values'good', " ;;
        esac
    done
    if change orders "INSERT INTO outbox_events(${list}$2) VALUES (${values}$3)" 2>refused.out; then
        echo "it was taken"
        return 1
    fi
    says refused.out "$1" && is "$before" orders 'SELECT count(*) FROM outbox_events'
}

# Every named constraint that the tables print has an explanation, in both languages.
explained() {
    local name n=0
    for name in $(consign schema print | grep -o 'CONSTRAINT csn_[a-z_]*' | sed 's/CONSTRAINT //' | sort -u); do
        n=$((n + 1))
        consign explain "$name" --lang en | grep -q "$name" || { echo "$name"; return 1; }
        consign explain "$name" --lang zh-CN | grep -qP '\p{Han}' || { echo "$name"; return 1; }
    done
    [ "$n" -ge 9 ]
}

quick_leases
check 'a shop' shop
check 'a payload that is no JSON' refused csn_payload_json payload "'{\"sku\":'"
check 'a payload over the limit' refused csn_payload_size payload "'\"' || hex(zeroblob(131072)) || '\"'"
check 'a payload that is a number' refused csn_payload_type payload 5
check 'an id of 37 characters' refused csn_event_id event_id "hex(zeroblob(18)) || 'x'"
check 'an id that is not ASCII' refused csn_event_id event_id "'订单'"
check 'an empty id' refused csn_event_id event_id "''"
check 'an aggregate id of 129 bytes' refused csn_aggregate_id aggregate_id "hex(zeroblob(64)) || 'x'"
check 'a negative version' refused csn_aggregate_version aggregate_version -1
check 'an event type of 81 characters' refused csn_event_type event_type "hex(zeroblob(40)) || 'x'"
check 'headers that are no JSON' refused csn_headers headers "'{'"
for column in event_id aggregate_id aggregate_version event_type payload; do
    check "no $column" refused "NOT NULL constraint failed: outbox_events.$column" "$column" NULL
done
check 'each constraint is explained' explained

# ---- columns and statuses of somebody else -------------------------------------------------------

status_code() { # CODE WHAT
    code "$1" consign status -c "$config" -o json >status.json || return 1
    [ -z "${2:-}" ] || test 1 = "$(json status.json "SELECT count(*)
        FROM doc, json_each(j, '\$.needs') n WHERE n.value ->> 'what' = '$2'")"
}

change orders "ALTER TABLE outbox_events ADD COLUMN note TEXT DEFAULT 'mine'"
change stock "ALTER TABLE consumer_inbox ADD COLUMN note TEXT DEFAULT 'mine'"
check 'a column of the user is no difference' consign schema check -c "$config"
event T-1 t 1 OrderCreated '{"sku":"A","qty":1}' status "'teleported'"
check 'the daemon becomes ready' up a
order 1 A 1
check 'a table with a column of the user is worked on' within 60 settled 1 confirmed
check '… and the column is left alone' is mine orders "SELECT note FROM outbox_events WHERE event_id = 'E-1-1'"
check 'a status put in by hand is reported' status_code 1 strange_status
check '… and never touched' is 'teleported|0' orders \
    "SELECT status, attempts FROM outbox_events WHERE event_id = 'T-1'"
change orders "UPDATE outbox_events SET status = 'pending' WHERE event_id = 'T-1'"
check '… until it is put right' within 60 is sent orders "SELECT status FROM outbox_events WHERE event_id = 'T-1'"
check 'then nobody is needed' within 60 status_code 0
check 'the daemon stops clean' stop a

# ---- configuration and handlers ------------------------------------------------------------------

members() {
    ask orders 'SELECT count(*) FROM consign_members'
}

cat >demo/bad.yaml <<'END'
stores:
  orders: { url: "sqlite:orders.db", colour: blue }
brokers:
  local: { type: pigeon, store: orders }
subscriptions:
  stock: { from: { broker: nobody }, store: orders, handler: { sql: handlers/reserve.sql } }
relay:
  lease: 10
  batch: { rows: many }
END
before=$(members)
check 'five mistakes are not started' code 78 consign serve -c demo/bad.yaml
cp check.out bad.out
consign serve -c demo/bad.yaml >bad.out 2>&1
check 'all are told at once, each at its place' says bad.out 'bad.yaml:2:' 'bad.yaml:4:' 'bad.yaml:6:' \
    'bad.yaml:8:' 'bad.yaml:9:' '"10" is not a duration' 'there is no broker "nobody"' '^'
check 'nothing was started' test "$(members)" = "$before"
check 'a file that is not there' code 78 consign config check -c demo/none.yaml

# bad_handler TEXT-OF-THE-MISTAKE SED: one mistake in the handler of the stock.
bad_handler() {
    cp demo/handlers/reserve.sql good.sql
    sed -i "$2" demo/handlers/reserve.sql
    cmp -s good.sql demo/handlers/reserve.sql && { echo 'the handler is as it was'; return 1; }
    code 78 consign serve -c "$config" >handler.out 2>&1
    local result=$?
    cp good.sql demo/handlers/reserve.sql
    [ "$result" = 0 ] && says handler.out "$1" 'reserve.sql:' '^'
}

check 'a handler that jumps to no label' bad_handler 'rejct' 's/goto reject/goto rejct/'
check 'a handler with a verdict that is none' bad_handler 'dome' 's/^-- verdict done/-- verdict dome/'
check 'a handler with a bind that is none' bad_handler 'event_idd' 's/:event_id,/:event_idd,/'
check 'a handler that ends the transaction' bad_handler 'COMMIT' '2s/^/COMMIT;\n/'

# ---- stores that cannot be used ------------------------------------------------------------------

# unusable CODE TEXT COMMAND…: with the command done to demo/stock.db, serve ends with the code and
# the text, and names the store; afterwards the file is as it was.
unusable() {
    local want=$1 text=$2 result
    shift 2
    cp demo/stock.db stock.good
    "$@" || return 1
    code "$want" consign serve -c "$config" >unusable.out 2>&1
    result=$?
    rm -f demo/stock.db*
    mv stock.good demo/stock.db
    [ "$result" = 0 ] && says unusable.out "$text" stock 'consign explain CSN-'
}

newer() { change stock "UPDATE consign_meta SET value = '99' WHERE key IN ('schema', 'min_reader', 'min_writer')"; }
no_database() { echo 'this is a text, and no database at all' >demo/stock.db; }
missing() { rm demo/stock.db; }
no_tables() { : >demo/stock.db && change stock 'CREATE TABLE other(x)'; }
no_column() { change stock 'ALTER TABLE consumer_inbox DROP COLUMN last_duplicate_at'; }

check 'tables of a newer version' unusable 65 CSN-2005 newer
check 'a file that is no database' unusable 69 CSN-2002 no_database
check 'a database that is not there' unusable 69 CSN-2001 missing
check 'a database without the tables' unusable 65 CSN-2004 no_tables
check 'a table without a column' unusable 65 CSN-2011 no_column
check 'the shop is whole again' consign schema check -c "$config"

# Root may write everywhere; without this one capability it is like anybody else.
read_only() {
    chmod 444 demo/stock.db && chmod 555 demo
    code 69 setpriv --bounding-set=-dac_override consign serve -c "$config" >readonly.out 2>&1
    local result=$?
    chmod 755 demo && chmod 600 demo/stock.db
    [ "$result" = 0 ] && says readonly.out CSN-2006 stock
}
check 'a database that must not be written' read_only

# ---- locked --------------------------------------------------------------------------------------

# lock STORE: somebody begins to write, and is stopped.
lock() {
    mkfifo "held-$1"
    accept-ask --hold "${url[$1]}" <"held-$1" >"held-$1.out" 2>&1 &
    pid[$1]=$!
    exec {hold}>"held-$1"
    within 60 grep -q held "held-$1.out" && kill -STOP "${pid[$1]}"
}

unlock() {
    kill -CONT "${pid[$1]}" && kill -KILL "${pid[$1]}"
    wait "${pid[$1]}" 2>/dev/null
    unset "pid[$1]"
    exec {hold}>&-
}

up a
check 'somebody holds the stock and is stopped' lock stock
order 2 A 1
event I-1 i 1 InventoryNoted '{"order":"none"}'
check 'the order is sent' within 60 is sent orders "SELECT status FROM outbox_events WHERE event_id = 'E-2-1'"
check 'the daemon says what it waits for' within 60 grep -q '"event":"store.unavailable".*stock.*locked' a.log
check 'the other store goes on' within 60 is 1 orders \
    "SELECT count(*) FROM consumer_inbox WHERE event_id = 'I-1' AND state = 'done'"
check '… and the order waits' settled 2 pending_inventory
unlock stock
check 'afterwards it is confirmed, by itself' within 60 settled 2 confirmed
check 'somebody holds the orders and is stopped' lock orders
check 'a command gives up with words' code 75 consign event hold E-2-1 --reason 'try' -c "$config"
unlock orders
check 'all is quiet' within 60 quiet
check 'the daemon stops clean after all that' stop a

# ---- full ----------------------------------------------------------------------------------------

full_shop() {
    mkdir small && trap 'umount -l "$work/small"; leave' EXIT && mount -t tmpfs -o size=4m none small || return 1
    mkdir small/demo && mv demo/* small/demo/ && rmdir demo && ln -s small/demo demo
}

fill() {
    dd if=/dev/zero of=small/filler bs=4096 2>/dev/null
    [ "$(df --output=avail small | tail -n 1)" -lt 8 ]
}

sent_all() {
    is 600 orders "SELECT count(*) FROM orders WHERE order_id GLOB 'f*' AND state = 'confirmed'"
}

check 'a shop on a small disk' full_shop
check 'the daemon becomes ready there' up f
kill -STOP "${pid[f]}"
change orders "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 600)
    INSERT INTO orders(order_id, sku, qty) SELECT 'f' || i, 'A', 1 FROM n;
    INSERT INTO outbox_events(event_id, aggregate_type, aggregate_id, aggregate_version, event_type, payload)
    SELECT 'E-' || order_id, 'order', order_id, 1, 'OrderCreated', '{\"sku\":\"A\",\"qty\":1}' FROM orders
    WHERE order_id GLOB 'f*'"
check 'the disk is full' fill
kill -CONT "${pid[f]}"
check 'the daemon says so' within 60 grep -q '"event":"store.*full' f.log
check '… and lives' kill -0 "${pid[f]}"
rm small/filler
check 'with room again everything is handled, by itself' within 120 sent_all
check '… once' is '600|600' stock \
    "SELECT count(*), count(DISTINCT order_id) FROM reservation WHERE order_id GLOB 'f*'"
check 'nobody is needed' within 60 status_code 0
check 'the daemon stops clean at the end' stop f
summary
