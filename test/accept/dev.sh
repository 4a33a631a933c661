#!/usr/bin/env bash
# consign dev as a program among others: its folder is one process's at a time, nothing of another's is
# touched, no child outlives it, a lock that somebody holds does not end it; and its books agree, and
# say which line is wrong when a row is taken away.
set -u
# shellcheck source=test/accept/lib.sh
. "$(dirname "$0")/lib.sh"
url[orders]=sqlite:$work/consign-dev/orders.db url[stock]=sqlite:$work/consign-dev/stock.db

trial() { # NAME [FLAGS…]: said in NAME.said
    local name=$1
    shift
    consign dev "$@" </dev/null >"$name.said" 2>&1 &
    pid[$name]=$!
}

begun() { # NAME
    within 60 grep -qs 'ready     after' "$1.said"
}

lines() { # NAME PATTERN N
    [ "$(grep -cE -- "$2" "$1.said")" -ge "$3" ]
}

nobody() { ! pgrep -f "serve -c $work/" >/dev/null; }
written() { is 1 orders "SELECT count(*) >= $1 FROM orders"; }
refused() { # DIR TEXT…: nothing is begun there
    local dir=$1
    shift
    code 65 consign dev --dir "$dir" >refused.out 2>&1 && says refused.out CSN-8005 "$@"
}

# ---- the folder ----
mkdir taken && echo mine >taken/mine
check 'a taken folder is refused' refused taken '(mine)'
check 'and left alone' test "$(ls -A taken) $(cat taken/mine)" = 'mine mine'
check 'a folder of consign init' shop
check 'is refused, too' refused demo
check 'the time has a form' code 64 consign dev --for soon
check 'a trial' trial a
check 'is ready' begun a
check 'a second one in its folder is refused' refused consign-dev 'runs there already' "${pid[a]}"
check 'in Chinese' code 65 consign dev --lang zh-CN
check 'the first one goes on' within 60 lines a ' written · ' 3
check 'it makes one folder' test "$(echo consign*)" = consign-dev

# ---- who ends with whom ----
check 'the trial is killed' crash a
check 'its children end' within 60 nobody
check 'another takes the folder up' trial b
check 'is ready' begun b
daemon=$(pgrep -f "serve -c $work/")
check 'somebody kills its daemon' kill -KILL "$daemon"
check 'which is said' within 60 says b.said 'The relay has ended by itself' consign.log
check 'another one is started' within 60 pgrep -f "serve -c $work/"
n=$(ask orders 'SELECT count(*) FROM orders')
check 'orders go on' within 60 written $((n + 5))
check 'a signal ends it' stop b
check 'all of it' nobody

# ---- a lock that somebody holds ----
mkfifo shell
sqlite3 consign-dev/orders.db <shell >/dev/null 2>&1 &
pid[shell]=$!
exec {shell}>shell
check 'a trial' trial c
check 'is ready' begun c
echo 'PRAGMA busy_timeout = 60000; BEGIN IMMEDIATE;' >&"$shell"
stands() { # the last three lines say the same
    [ "$(grep -o '[0-9]* written' c.said | tail -n 3 | uniq -c | awk '{print $1}')" = 3 ]
}
check 'a person holds the lock: no order is written' within 60 stands
n=$(ask orders 'SELECT count(*) FROM orders')
echo 'ROLLBACK;' >&"$shell"
check 'and lets it go: they go on' within 60 written $((n + 5))
exec {shell}>&-
check 'it ends' stop c

# ---- the books ----
books() { # CODE [FLAGS…]: after three seconds more; said in books.said
    local want=$1
    shift
    code "$want" consign dev --for 3s "$@" </dev/null >books.said 2>&1
}
echo '-- mine' >>consign-dev/handlers/reserve.sql
cp consign-dev/handlers/reserve.sql mine.sql
check 'three seconds, and it ends by itself' books 0
check 'the books agree' says books.said 'right   orders and events' 'right   pieces of stock' \
    'right   effects, once each' 'right   states of orders' 'The books agree' 'Stopped.'
check 'a handler that a person changed is left alone' cmp mine.sql consign-dev/handlers/reserve.sql
check 'in Chinese' books 0 --lang zh-CN
check 'they agree, too' says books.said '一致   订单与事件' '一致   订单状态' '账目一致'

check 'an order is taken away' change orders "CREATE TABLE kept AS SELECT * FROM orders WHERE order_id = '10001';
    DELETE FROM orders WHERE order_id = '10001'"
check 'exit 1' books 1
check 'and it is said where' says books.said 'WRONG   orders and events' 'right   effects, once each' 'The books DIFFER'
check 'it comes back' change orders 'INSERT INTO orders SELECT * FROM kept; DROP TABLE kept'
check 'and they agree again' books 0
check 'one row is taken away' change stock \
    'DELETE FROM stock_journal WHERE event_id = (SELECT min(event_id) FROM stock_journal)'
check 'exit 1' books 1
check 'and it is said where' says books.said 'WRONG   effects, once each' 'WRONG   pieces of stock' \
    'right   orders and events' 'right   states of orders' 'The books DIFFER'
check 'an order is another than its reservation' change orders "UPDATE orders SET state = 'rejected' WHERE order_id =
    (SELECT min(order_id) FROM orders WHERE state = 'confirmed')"
first=$(ask orders "SELECT min(order_id) FROM orders WHERE state = 'rejected'")
check 'an event is gone' change orders "DELETE FROM outbox_events WHERE event_id =
    (SELECT max(event_id) FROM outbox_events WHERE event_type = 'OrderCreated' AND status = 'sent')"
check 'exit 1' books 1 --lang zh-CN
check 'and the first such order is named' says books.said '不符   订单与事件' '不符   订单状态' "第一个不符的：$first" '账目不符'
check 'no child is left' nobody
summary
