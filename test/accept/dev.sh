#!/usr/bin/env bash
# consign dev: a newcomer's first five minutes, in both languages at once: what it says, that each hint
# works, that what the keys break is mended, that the books agree, and differ when a row is taken away.
set -u
# shellcheck source=test/accept/lib.sh
. "$(dirname "$0")/lib.sh"
declare -A key_fd=() said=() # by language

trial() { # LANGUAGE: in a folder of its own, with its keys in a pipe
    local l=$1
    mkdir "$l" && mkfifo "$l/keys" || return 1
    said[$l]=$work/$l/out
    (cd "$l" && CONSIGN_TEST_KEYS=1 exec consign dev --lang "$l" <keys >out 2>&1) &
    pid[$l]=$!
    exec {fd}>"$l/keys"
    key_fd[$l]=$fd
    url[orders.$l]=sqlite:$work/$l/consign-dev/orders.db
    url[stock.$l]=sqlite:$work/$l/consign-dev/stock.db
}

press() { # LANGUAGE KEY
    printf %s "$2" >&"${key_fd[$1]}"
}

shows() { # LANGUAGE TEXT [N]: so often
    [ "$(grep -cF -- "$2" "${said[$1]}")" -ge "${3:-1}" ]
}

# The hints as they are printed, without their remarks.
hints() { # LANGUAGE
    awk '/^(Try next|接下来)/ {on = 1; next} /^Ctrl-C/ {on = 0} on' "${said[$1]}" |
        sed 's/^  //; /^sqlite3/!s/   *[^ ].*$//'
}

hint() { # LANGUAGE START: runs the hint that begins so, in the newcomer's folder
    local line
    line=$(hints "$1" | grep -F -- "$2") || { echo "no such hint: $2"; hints "$1"; return 1; }
    (cd "$1" && eval "$line") >hint.out 2>&1
    local got=$?
    [ "$got" -le 1 ] || { echo "exit code $got: $line"; cat hint.out; return 1; }
}

hint_says() { # LANGUAGE START TEXT…
    local l=$1 start=$2
    shift 2
    hint "$l" "$start" && says hint.out "$@"
}

counted() { # LANGUAGE N: so many are written, sent, and handled or dead
    is 1 "orders.$1" "SELECT count(*) >= $2 FROM outbox_events WHERE event_type = 'OrderCreated' AND status = 'sent'" &&
        is 1 "stock.$1" "SELECT count(*) >= $2 FROM consumer_inbox WHERE consumer_name = 'stock'"
}

dead_letters() { ask "stock.$1" "SELECT count(*) FROM consign_dead_letters"; }
some_dead() { [ "$(dead_letters "$1")" -ge 1 ]; }
handled() { is "done" "stock.$1" "SELECT state FROM consumer_inbox WHERE event_id = 'E-9001-1'"; }
strange_handled() { # LANGUAGE: an order with the strange currency was handled after the mending
    is 1 "stock.$1" "SELECT count(*) > 0 FROM consumer_inbox i JOIN reservation r ON r.order_id = i.aggregate_id
        WHERE consumer_name = 'stock' AND i.state = 'done' AND CAST(aggregate_id AS INTEGER) % 20 = 0"
}
another_daemon() { # LANGUAGE: a second process has lived in the store
    is 1 "orders.$1" "SELECT count(*) >= 2 FROM consign_members"
}

# ---- the start ----
check 'English starts' trial en
check 'Chinese starts' trial zh-CN
check 'it is ready' within 60 shows en 'ready     after'
check 'in Chinese, too' within 60 shows zh-CN '就绪'
check 'it says what it is' says en/out 'trial mode' 'consign-dev/orders.db' 'currency "XTS"' 'Keys: b break the broker'
check 'in Chinese' says zh-CN/out '试用模式' '按键：b 让代理故障' '每秒 5 个订单'
check 'nothing lies outside its folder' test "$(ls en)" = 'consign-dev
keys
out'
second() { (cd en && code 65 consign dev) >second.out 2>&1 && says second.out CSN-8005 'runs there already'; }
check 'a second one in the folder is refused' second
mkdir taken && touch taken/mine
taken() { code 65 consign dev --dir taken >taken.out 2>&1 && says taken.out CSN-8005 && [ "$(ls taken)" = mine ]; }
check 'a taken folder is refused and left alone' taken
check 'a line a second' within 60 shows en ' written · ' 3
check 'in Chinese' within 60 shows zh-CN ' · 已发送 ' 3

# ---- the hints ----
for l in en zh-CN; do
    check "$l: an order by hand" hint "$l" sqlite3
    check "$l: it is handled" within 60 handled "$l"
    check "$l: it is seen to travel" hint_says "$l" 'consign event trace' E-9001-1
    check "$l: one in twenty fails" within 60 some_dead "$l"
    check "$l: and says why" hint_says "$l" 'consign dead list' 'unknown currency XTS'
    check "$l: the status names it" hint_says "$l" 'consign status' stock
    check "$l: who works on what" hint_says "$l" 'consign lanes' sub/stock
    check "$l: was anything lost" hint "$l" 'consign reconcile'
done

# ---- the keys ----
for l in en zh-CN; do
    check "$l: the relay is killed" press "$l" c
done
check 'it is said' within 60 shows en 'kill -9 of the relay'
check 'in Chinese' within 60 shows zh-CN '执行 kill -9'
check 'it is back' within 60 another_daemon en
check 'it catches up, and says what came twice' within 60 shows en 'effects were doubled'
check 'none was' shows en '0 effects were doubled'
check 'in Chinese' within 60 shows zh-CN '重复的业务效果 0 个'
for l in en zh-CN; do
    check "$l: the broker is broken" press "$l" b
done
check 'the line says so' within 60 shows en '(the broker refuses everything)' 2
check 'in Chinese' within 60 shows zh-CN '（代理拒绝一切）' 2
check 'it is mended by itself' within 60 shows en 'The broker is back.'
check 'and catches up' within 60 shows en 'effects were doubled' 2
check 'in Chinese' within 60 shows zh-CN '重复的业务效果 0 个' 2
for l in en zh-CN; do
    check "$l: the handler is mended" press "$l" f
    check "$l: and takes what it did not know" within 60 strange_handled "$l"
    check "$l: orders pause" press "$l" p
done
check 'the line says so' within 60 shows en '(no new orders)' 2
check 'the first trial is still whole' counted en 30
check 'q ends it' press en q
check 'cleanly' ends en 0
check 'a signal ends the other' kill -INT "${pid[zh-CN]}"
check 'cleanly, too' ends zh-CN 0
check 'and says where the data are' says zh-CN/out '数据保留在 consign-dev'
nobody() { ! pgrep -f "$work/(en|zh-CN)/consign-dev" >/dev/null; }
check 'no child is left' within 60 nobody

# ---- the books ----
books() { (cd en && consign dev --for 3s) >books.out 2>&1; }
check 'the same folder goes on, for three seconds' books
check 'the books agree' says books.out 'right   orders and events' 'The books agree'
take_one() {
    change stock.en 'DELETE FROM stock_journal WHERE event_id = (SELECT min(event_id) FROM stock_journal)'
}
tampered() {
    (cd en && exec consign dev --for 4s) >tampered.out 2>&1 &
    pid[tampered]=$!
    within 60 grep -qs 'ready     after' tampered.out && take_one && ends tampered 1
}
check 'a row is taken away: exit 1' tampered
check 'and it is said which line' says tampered.out 'WRONG   effects, once each' 'The books DIFFER'
summary
