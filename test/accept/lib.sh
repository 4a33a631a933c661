# shellcheck shell=bash
# test/accept/lib.sh: what the scenarios share. A scenario is a shell script that uses the program as
# a person would and asks SQL what is true afterwards: by the name of a store, through accept-ask, so
# that only the table of URLs here knows what kind of store it is. Each check prints one line; the last line is
# "N passed, N failed". Bounds of time are generous: they end a wait that would not end, and measure
# nothing.

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export PATH=${CONSIGN_TEST_BUILD:-$top/build/release}:$PATH
export LC_ALL=C.UTF-8
unset CONSIGN_CONFIG CONSIGN_FAILPOINTS CONSIGN_FAILPOINT_HITS
passed=0 failed=0
declare -A pid=() # of daemons and others, by name
work=$(mktemp -d)
cd "$work" || exit 1
declare -A url=([orders]=sqlite:$work/demo/orders.db [stock]=sqlite:$work/demo/stock.db [memory]=memory:)

leave() {
    local p
    for p in "${pid[@]}"; do
        kill -CONT "$p" 2>/dev/null
        kill -KILL "$p" 2>/dev/null
    done
    cd / && rm -rf "$work"
}
trap leave EXIT
trap 'exit 130' INT TERM

# check NAME COMMAND…: passes when the command succeeds; its output is shown when it does not.
check() {
    local name=$1 log
    shift
    if "$@" >check.out 2>&1; then
        passed=$((passed + 1))
        echo "ok      $name"
        return 0
    fi
    failed=$((failed + 1))
    echo "FAILED  $name"
    tail -n 20 check.out | sed 's/^/      | /'
    for log in *.log; do
        [ -f "$log" ] && tail -n 5 "$log" | cut -c1-300 | sed "s/^/      | $log: /"
    done
    return 1
}

# code N COMMAND…: the command ends with this exit code.
code() {
    local want=$1 got
    shift
    "$@"
    got=$?
    [ "$got" = "$want" ] || { echo "exit code $got, not $want: $*"; return 1; }
}

# says FILE TEXT…: the file has each of the texts.
says() {
    local file=$1 text
    shift
    for text in "$@"; do
        grep -qF -- "$text" "$file" || { echo "not said: $text"; cat "$file"; return 1; }
    done
}

# within SECONDS COMMAND…: until it succeeds.
within() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || { echo "not within the time: $*"; return 1; }
        sleep 0.1
    done
}

# ask STORE SQL [VALUE…]: the rows, fields separated by |.
ask() {
    local store=$1
    shift
    accept-ask "${url[$store]}" "$@"
}

# change STORE SQL: all of it in one transaction.
change() {
    accept-ask --change "${url[$1]}" "$2"
}

# is VALUE STORE SQL [VALUE…]: the answer is this one.
is() {
    local want=$1 got
    shift
    got=$(ask "$@") || return 1
    [ "$got" = "$want" ] || { echo "is '$got', not '$want': $2"; return 1; }
}

# json FILE SQL: what the SQL answers, in which doc.j is the text of FILE.
json() {
    ask memory "WITH doc(j) AS (SELECT ?1) $2" "$(cat "$1")"
}

# shop [WORDS…]: a shop in ./demo.
shop() {
    consign init -q --dir demo "$@" >init.out 2>&1 && config=$work/demo/consign.yaml
}

# quick_leases: leases of two seconds for the daemons that are started after this.
quick_leases() {
    export CONSIGN_RELAY__LEASE=2s CONSIGN_RELAY__LOCK_WAIT=400ms
    export CONSIGN_BROKERS__LOCAL__CONFIRM_TIMEOUT=200ms
}

# serve NAME [VARIABLE=VALUE…]: a daemon; what it says is in NAME.log.
serve() {
    local name=$1
    shift
    env "$@" consign serve -c "$config" >>"$name.log" 2>&1 &
    pid[$name]=$!
}

ready() {
    within 60 grep -qs '"event":"ready"' "$1.log"
}

up() { # NAME [VARIABLE=VALUE…]
    serve "$@"
    ready "$1"
}

# ends NAME CODE: the daemon ends by itself with this code.
ends() {
    local got p=${pid[$1]}
    within 60 gone "$p" || return 1
    wait "$p"
    got=$?
    unset "pid[$1]"
    [ "$got" = "$2" ] || { echo "exit code $got, not $2"; return 1; }
}

gone() {
    ! kill -0 "$1" 2>/dev/null || [ "$(ps -o state= -p "$1")" = Z ]
}

# stop NAME: SIGTERM, and a clean end.
stop() {
    kill -TERM "${pid[$1]}" && ends "$1" 0
}

# crash NAME: kill -9.
crash() {
    local p=${pid[$1]}
    unset "pid[$1]"
    kill -KILL "$p"
    wait "$p" 2>/dev/null
    true
}

# event ID KEY VERSION TYPE PAYLOAD [COLUMN VALUE]: the five columns that a producer must know.
event() {
    change orders "INSERT INTO outbox_events(event_id, aggregate_id, aggregate_version, event_type, payload${6:+, $6})
        VALUES ('$1', '$2', $3, '$4', '$5'${7:+, $7})"
}

# order ID SKU QTY: an order and its event, as an application writes them.
order() {
    change orders "INSERT INTO orders(order_id, sku, qty) VALUES ('$1', '$2', $3);
        INSERT INTO outbox_events(event_id, aggregate_type, aggregate_id, aggregate_version, event_type, payload)
        VALUES ('E-$1-1', 'order', '$1', 1, 'OrderCreated', '{\"sku\":\"$2\",\"qty\":$3}')"
}

# settled ID STATE: the order has this state.
settled() {
    is "$2" orders "SELECT state FROM orders WHERE order_id = '$1'"
}

# quiet: nothing is under way.
quiet() {
    local d
    for d in orders stock; do
        is 0 "$d" "SELECT (SELECT count(*) FROM outbox_events WHERE status IN ('pending', 'sending', 'unknown'))
            + (SELECT count(*) FROM consign_queue WHERE acked_at IS NULL)
            + (SELECT count(*) FROM consign_work)" || return 1
    done
}

summary() {
    echo "$passed passed, $failed failed"
    [ "$failed" = 0 ]
}
