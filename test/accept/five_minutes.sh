#!/usr/bin/env bash
# A newcomer's first five minutes, in both languages at once: `consign dev` says what it is, each hint
# that it prints works, what fails is named, and what the keys break is mended, with nothing missing
# and nothing doubled.
set -u
# shellcheck source=test/accept/lib.sh
. "$(dirname "$0")/lib.sh"
declare -A key_fd=() # by language

trial() { # LANGUAGE: in a folder of its own, with its keys in a pipe
    local l=$1 fd
    mkdir "$l" && mkfifo "$l/keys" || return 1
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

press_both() { # KEY
    press en "$1" && press zh-CN "$1"
}

shows() { # LANGUAGE PATTERN [N]: so often
    [ "$(grep -cE -- "$2" "$1/out")" -ge "${3:-1}" ]
}

# The hints as they are printed, without their remarks.
hints() { # LANGUAGE
    awk '/^(Try next|接下来)/ {on = 1; next} /^Ctrl-C/ {on = 0} on' "$1/out" |
        sed 's/^  //; /^sqlite3/!s/   *[^ ].*$//'
}

# Runs the hint that begins so, in the newcomer's folder; 1 is the answer no.
hint() { # LANGUAGE START TEXT…
    local l=$1 start=$2 line got
    shift 2
    line=$(hints "$l" | grep -F -- "$start") || { echo "no such hint: $start"; hints "$l"; return 1; }
    (cd "$l" && eval "$line") >hint.out 2>&1
    got=$?
    [ "$got" -le 1 ] || { echo "exit code $got: $line"; cat hint.out; return 1; }
    says hint.out "$@"
}

hint_of() { # TEXT in English, TEXT in Chinese: the one of this language
    [ "$l" = en ] && echo "$1" || echo "$2"
}

some_dead() { is 1 "stock.$l" "SELECT count(*) > 0 FROM consign_dead_letters"; }
handled() { is "done" "stock.$l" "SELECT state FROM consumer_inbox WHERE event_id = 'E-9001-1'"; }
confirmed() { is confirmed "orders.$l" "SELECT state FROM orders WHERE order_id = '9001'"; }
strange_handled() { # an order with the strange currency, after the mending
    is 1 "stock.$l" "SELECT count(*) > 0 FROM consumer_inbox i JOIN reservation r ON r.order_id = i.aggregate_id
        WHERE consumer_name = 'stock' AND i.state = 'done' AND CAST(aggregate_id AS INTEGER) % 20 = 0"
}
lives() { # N: so many daemons have lived in the store
    is 1 "orders.$l" "SELECT count(*) >= $1 FROM consign_members"
}
both() { # COMMAND…: in each language
    for l in en zh-CN; do "$@" || return 1; done
}

# ---- minute 0: the start ----
check 'English starts' trial en
check 'Chinese starts' trial zh-CN
check 'it is ready' within 60 shows en 'ready     after'
check 'in Chinese, too' within 60 shows zh-CN '就绪'
check 'it says what it is' says en/out 'trial mode' 'consign-dev/orders.db' 'currency "XTS"' 'Keys: b break the broker'
check 'in Chinese' says zh-CN/out '试用模式' '按键：b 让代理故障' '每秒 5 个订单'
check 'nothing lies outside its folder' test "$(echo en/*) $(echo zh-CN/*)" = \
    'en/consign-dev en/keys en/out zh-CN/consign-dev zh-CN/keys zh-CN/out'
check 'a line a second, and it moves' within 60 shows en ' [1-9][0-9]* written · [1-9][0-9]* sent · [1-9][0-9]* handled' 3
check 'in Chinese' within 60 shows zh-CN '写入 [1-9][0-9]* · 已发送 [1-9][0-9]* · 已处理 [1-9][0-9]*' 3
english_hints() {
    test "$(hints en | grep -o '^[a-z0-9]* *[a-z]*' | tr '\n' ' ')" = \
        'consign status consign dead sqlite3  consign event consign lanes consign reconcile '
}
check 'the hints are these six' english_hints

# ---- minutes 1 to 3: the hints ----
for l in en zh-CN; do
    check "$l: an order by hand" hint "$l" sqlite3
    check "$l: it is handled" within 60 handled
    check "$l: and confirmed" within 60 confirmed
    check "$l: it is seen to travel" hint "$l" 'consign event trace' E-9001-1 \
        "$(hint_of written 写入)" "$(hint_of published 发布)" "$(hint_of confirmed 确认)" "$(hint_of handled 已处理)" InventoryReserved
    check "$l: one in twenty fails" within 60 some_dead
    check "$l: and says why" hint "$l" 'consign dead list' 'unknown currency XTS' "$(hint_of LETTERS 死信数)"
    check "$l: the status names it" hint "$l" 'consign status' stock "$(hint_of 'dead letter' 死信)"
    check "$l: who works on what" hint "$l" 'consign lanes' sub/stock outbox
    check "$l: was anything lost" hint "$l" 'consign reconcile' "$(hint_of comparisons 比较)"
done

# ---- minutes 3 to 5: the keys ----
check 'the relay is killed' press_both c
check 'it is said' within 60 shows en 'kill -9 of the relay'
check 'in Chinese' within 60 shows zh-CN '执行 kill -9'
check 'it is back' both within 60 lives 2
check 'it catches up, and nothing is doubled' within 60 shows en ' 0 effects were doubled'
check 'in Chinese' within 60 shows zh-CN '重复的业务效果 0 个'
check 'at the worst moment' press_both w
check 'it dies there' within 60 shows en 'It has died'
check 'in Chinese' within 60 shows zh-CN '它已崩溃'
check 'it catches up' within 60 shows en ' 0 effects were doubled' 2
check 'the inbox dropped what came again' shows en ' [1-9][0-9]* repeats were dropped by the inbox, 0 effects'
check 'in Chinese' within 60 shows zh-CN '收件箱丢弃了 [1-9][0-9]* 个重复，重复的业务效果 0 个'
check 'the broker is broken' press_both b
check 'the line says so' within 60 shows en '[(]the broker refuses everything[)]' 2
check 'in Chinese' within 60 shows zh-CN '（代理拒绝一切）' 2
check 'it is mended by itself' within 60 shows en 'The broker is back.'
check 'in Chinese' within 60 shows zh-CN '代理已恢复。'
check 'and catches up' within 60 shows en '[1-9][0-9]* events were claimed again.* 0 effects were doubled'
check 'in Chinese' within 60 shows zh-CN '[1-9][0-9]* 个事件被再次认领.*重复的业务效果 0 个'
check 'the handler is mended' press_both f
check 'and takes what it did not know' both within 60 strange_handled
check 'it is mended once' press en f
check 'and then said to be' within 60 shows en 'is left as it is'
check 'orders pause' press_both p
check 'the line says so' within 60 shows en '[(]no new orders[)]' 2
check 'in Chinese' within 60 shows zh-CN '（暂停下单）' 2
check 'and go on' press en p
check 'it is said' within 60 shows en 'Orders go on'
check 'a key that is none, and ?' press en 'x?'
check 'shows the keys' within 60 shows en '^Keys:' 2

# ---- the end ----
check 'q ends it' press en q
check 'cleanly' ends en 0
check 'a signal ends the other' kill -INT "${pid[zh-CN]}"
check 'cleanly, too' ends zh-CN 0
check 'and says where the data are' says zh-CN/out '数据保留在 consign-dev'
summary
