#!/usr/bin/env bash
# The README's first five minutes, run as they are printed, in both languages; SQL says what must be
# there afterwards.
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
export PATH=${CONSIGN_TEST_BUILD:-$top/build/release}:$PATH
passed=0 failed=0 daemon=''
work=$(mktemp -d)
cd "$work" || exit 1
finish() {
    [ -z "$daemon" ] || kill -KILL "$daemon" 2>/dev/null
    cd / && rm -rf "$work"
}
trap finish EXIT

check() { # NAME COMMAND…
    local name=$1
    shift
    if "$@" >check.out 2>&1; then
        passed=$((passed + 1))
        echo "ok      $name"
    else
        failed=$((failed + 1))
        echo "FAILED  $name"
        tail -n 20 check.out serve.out 2>/dev/null
    fi
}

# within SECONDS COMMAND…: until it succeeds.
within() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.1
    done
}

# The n-th block of commands of a page, without its remarks.
block() { # FILE N
    awk -v n="$2" '/^```/ { if (open) { open = 0; next } open = 1; k++; next } open && k == n' "$top/$1" |
        sed -E 's/ +# .*//; s/ --lang zh-CN//'
}

orders() {
    accept-ask sqlite:demo/orders.db "$1"
}

ended() {
    [ "$(orders "SELECT count(*) FROM orders WHERE order_id = '9001' AND state = 'confirmed'")" = 1 ]
}

trace_says() {
    local fact
    consign event trace E-9001-1 -c demo/consign.yaml -o json >trace.json || return 1
    for fact in written claimed published confirmed received handled; do
        grep -q "\"kind\": *\"$fact\"" trace.json || { echo "no fact: $fact"; cat trace.json; return 1; }
    done
}

stops_clean() {
    kill -TERM "$daemon" || return 1
    wait "$daemon"
    local code=$?
    daemon=''
    [ "$code" = 0 ] || { echo "exit code $code"; return 1; }
}

same_commands() {
    local n
    for n in 1 2 3 4; do
        [ -n "$(block README.md $n)" ] || return 1
        diff <(block README.md $n) <(block README.zh-CN.md $n) || return 1
    done
}

check 'both pages show the same commands' same_commands
check 'the page runs init' grep -q '^consign init --dir demo$' <(block README.md 3)
check 'init makes the shop' consign init --dir demo
consign serve -c demo/consign.yaml >serve.out 2>&1 &
daemon=$!
check 'the daemon says that it is ready' within 60 grep -q '"event":"ready"' serve.out
block README.md 4 >fourth.sh
check 'the fourth block runs as printed' bash -e fourth.sh
check 'the order is confirmed' within 60 ended
check 'one reservation of two' \
    test "$(accept-ask sqlite:demo/stock.db "SELECT count(*), sum(qty) FROM reservation WHERE order_id = '9001'")" = '1|2'
check 'the trace has the whole chain' within 60 trace_says
check 'status says that all is well' within 60 consign status -c demo/consign.yaml
check 'the daemon stops clean' stops_clean
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
