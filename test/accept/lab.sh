#!/usr/bin/env bash
# The laboratory's borders: what it refuses, what it marks, what it prints for programs, in both
# languages, and that an experiment on given stores says what SQL says. The experiments themselves
# are the group lab (consign lab run all).
set -u
top=$(cd "$(dirname "$0")/../.." && pwd)
export PATH=${CONSIGN_TEST_BUILD:-$top/build/release}:$PATH
passed=0 failed=0
work=$(mktemp -d)
cd "$work" || exit 1
trap 'cd / && rm -rf "$work"' EXIT
export TMPDIR=$work/tmp
mkdir "$TMPDIR"

check() { # NAME COMMAND…
    local name=$1
    shift
    if "$@" >check.out 2>&1; then
        passed=$((passed + 1))
        echo "ok      $name"
    else
        failed=$((failed + 1))
        echo "FAILED  $name"
        tail -n 20 check.out
    fi
}

# exits CODE TEXT COMMAND…: ends with the code, and says the text on either stream.
exits() {
    local code=$1 text=$2
    shift 2
    "$@" >said.out 2>&1
    local got=$?
    [ "$got" -eq "$code" ] && grep -qF -- "$text" said.out && return 0
    echo "exit $got, wanted $code and \"$text\":"
    cat said.out
    return 1
}

holds() { # URL SQL EXPECTED [VALUE…]
    local got
    got=$(accept-ask "$1" "$2" "${@:4}")
    [ "$got" = "$3" ] && return 0
    echo "$2: $got, wanted $3"
    return 1
}

empty() { # FOLDER
    [ -z "$(ls -A "$1")" ]
}

# Every experiment that is built names a mutant, and that mutant's killers name it.
mutants_fit() {
    local id mutant n=0
    while read -r id mutant; do
        n=$((n + 1))
        grep -qE "^# killer: lab (.* )?$id( |\$)" "$top/test/mutants/$mutant.sed" && continue
        echo "$id: $mutant"
        return 1
    done < <(consign lab list -q | awk '/^[A-Z][0-9]+ / { print $1, $NF }')
    [ "$n" -ge 15 ]
}

a=sqlite:$work/a.db b=sqlite:$work/b.db
insert="INSERT INTO outbox_events(event_id, aggregate_id, aggregate_version, event_type, payload)
    VALUES ('E-1', '1', 1, 'OrderCreated', '{}')"
for url in "$a" "$b"; do
    consign schema apply --url "$url" >/dev/null || exit 1
done

check 'a store without the marker is refused' \
    exits 77 CSN-2013 consign lab run A10 --orders "$a" --stock "$b"
check 'one of two stores is not enough' exits 64 CSN-8001 consign lab run A10 --orders "$a"
check 'nothing was written to it' \
    holds "$a" "SELECT count(*) FROM sqlite_schema WHERE name = 'orders'" 0
accept-ask "$a" "$insert" || exit 1
check 'a store with events is not marked by accident' exits 65 CSN-8005 consign lab prepare "$a"
check 'it has its event still' holds "$a" 'SELECT count(*) FROM outbox_events' 1
check 'it is marked when one is sure' exits 0 marked consign lab prepare "$a" --yes
check 'marking twice is no mistake' exits 0 marked consign lab prepare "$a"
check 'one marked store and one without is refused' \
    exits 77 CSN-2013 consign lab run A10 --orders "$a" --stock "$b"
check 'the other one is marked' exits 0 lab_prepare consign lab prepare "$b" -o json
check 'an experiment on given stores' \
    exits 0 '1 passed, 0 failed' consign lab run A10 --orders "$a" --stock "$b"
check 'one order is in them' holds "$a" 'SELECT order_id, qty FROM orders' '9001|5'
check 'and its effect' holds "$b" "SELECT available FROM stock WHERE sku = 'A'" 99995
check 'again: the stores are emptied first' \
    exits 0 '1 passed, 0 failed' consign lab run A10 --orders "$a" --stock "$b"
check 'an experiment that is not there' exits 66 X1 consign lab run X1
check 'an unbuilt one is named by the list' exits 0 '"id":"B3","built":false' consign lab list -o json
check 'every experiment has its mutant' mutants_fit
check 'one JSON document' exits 0 '"kind":"lab_run"' consign lab run A1 -o json
consign lab run A1 -o json >run.json
check 'its assertions are in it' holds memory: "SELECT json_extract(?1, '\$.passed')
    || ' ' || json_array_length(?1, '\$.items[0].checks')" '1 10' "$(cat run.json)"
check 'Chinese' exits 0 '由此守住' consign lab run A1 --lang zh-CN
check 'what is kept is kept' exits 0 'kept in:' consign lab run A1 --keep kept
check 'databases are in it' test -f kept/A1/shop/orders.db
check 'and are not overwritten' exits 1 CSN-8005 consign lab run A1 --keep kept
check 'everything else is gone' empty "$TMPDIR"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
