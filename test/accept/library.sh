#!/usr/bin/env bash
# The C library as it is installed: pkg-config, C and C++, shared and static; an order in a
# transaction, rolled back and committed; the shop of examples/shop beside the daemon and without it.
set -u
# shellcheck source=test/accept/lib.sh
. "$(dirname "$0")/lib.sh"
build=${CONSIGN_TEST_BUILD:-$top/build/release}
prefix=$work/prefix
cc=(cc -std=c11 -Wall -Wextra -Werror)
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
shared=$prefix/lib

flags() {
    pkg-config --cflags --libs consign consign-sqlite
}

# compile OUTPUT SOURCE…: against the shared libraries, as the README says it.
compile() {
    local out=$1
    shift
    # shellcheck disable=SC2046  # flags are words
    "${cc[@]}" -o "$out" "$@" $(flags) -Wl,-rpath,"$shared"
}

# The archives alone: no libconsign at run time.
compile_static() { # OUTPUT SOURCE…
    local out=$1
    shift
    # shellcheck disable=SC2046
    "${cc[@]}" -o "$out" "$@" $(pkg-config --cflags consign consign-sqlite) -L"$shared" \
        -Wl,-Bstatic -lconsign-sqlite -lconsign -Wl,-Bdynamic \
        $(pkg-config --libs sqlite3 jansson yaml-0.1) -pthread -lm &&
        ! ldd "$out" | grep consign
}

only_ours() { # LIBRARY PREFIX: every name that is seen from outside
    local others
    others=$(nm -D --defined-only "$1" | awk '$2 != "A" {print $3}' | grep -v "^$2")
    [ -z "$others" ] || { echo "$others"; return 1; }
}

archive_only_ours() { # ARCHIVE PREFIX
    local others
    others=$(nm -g --defined-only "$1" | awk 'NF == 3 {print $3}' | grep -v "^$2")
    [ -z "$others" ] || { echo "$others"; return 1; }
}

no_client() { ! nm -D --undefined-only "$1" | grep -E 'sqlite3_|json_|PQ|mysql'; }

one_soname() { # LIBRARY NAME
    readelf -d "$1" | grep -F "[$2]"
}

readme_has_the_example() { # PAGE
    awk '/^```c$/ {on = 1; next} /^```$/ {on = 0} on' "$1" >from_readme.c
    diff "$top/examples/order.c" from_readme.c
}

check 'it is installed' cmake --install "$build" --prefix "$prefix"
check 'pkg-config knows it' pkg-config --exists 'consign = 0.1.0' consign-sqlite
check 'the library shows csn_ names only' only_ours "$shared/libconsign.so" csn_
check 'and that of SQLite, too' only_ours "$shared/libconsign-sqlite.so" csn_sqlite_
check 'and the archives' archive_only_ours "$shared/libconsign.a" csn_
check 'and that of SQLite' archive_only_ours "$shared/libconsign-sqlite.a" csn_sqlite_
check 'the library needs no database client' no_client "$shared/libconsign.so"
check 'it has a soname' one_soname "$shared/libconsign.so" libconsign.so.0
check 'the example of the README is the one that is compiled' readme_has_the_example "$top/README.md"
check 'in Chinese, too' readme_has_the_example "$top/README.zh-CN.md"

# shellcheck disable=SC2046
check 'ten lines compile as the README says' cc -o order "$top/examples/order.c" $(flags)
check 'and without a warning' compile order "$top/examples/order.c"
check 'and against the archives' compile_static order-static "$top/examples/order.c"
# shellcheck disable=SC2046
check 'the headers are C++' c++ -std=c++11 -Wall -Wextra -Wpedantic -Werror -o cpp "$top/examples/compile.cpp" \
    $(flags) -Wl,-rpath,"$shared"
check 'and work there' ./cpp

# ---- an order, in a transaction ----
check 'a shop' shop
check 'an order and its event' ./order demo/orders.db 7001
check 'are both there' is '1|1' orders "SELECT (SELECT count(*) FROM orders WHERE order_id = '7001'),
    (SELECT count(*) FROM outbox_events WHERE aggregate_id = '7001' AND event_type = 'OrderCreated')"
check 'the same order again is refused' code 1 ./order demo/orders.db 7001
check 'an order that the outbox refuses' change orders "CREATE TRIGGER no BEFORE INSERT ON outbox_events
    WHEN new.aggregate_id = '7002' BEGIN SELECT RAISE(ABORT, 'not today'); END"
check 'leaves nothing' code 1 ./order-static demo/orders.db 7002
check 'no row at all' is '0|0' orders "SELECT (SELECT count(*) FROM orders WHERE order_id = '7002'),
    (SELECT count(*) FROM outbox_events WHERE aggregate_id = '7002')"

# ---- a request that is repeated ----
check 'the shop in C compiles' compile place "$top/examples/shop/place.c"
check 'its stock, too' compile stock "$top/examples/shop/stock.c"
same_answer() {
    local first second
    first=$(./place demo/orders.db key-1 A 5)
    second=$(./place demo/orders.db key-1 A 5)
    echo "'$first' and '$second'"
    [ -n "$first" ] && [ "$first" = "$second" ]
}
check 'a repeated request gets the first answer' same_answer
check 'and is one order' is '1|1' orders "SELECT (SELECT count(*) FROM orders WHERE qty = 5),
    (SELECT count(*) FROM outbox_events WHERE correlation_id = 'key-1')"
refused() { code 1 ./place demo/orders.db key-1 A 6 2>place.err && says place.err CSN-5005; }
check 'the same key for another order is refused' refused
crowd() { # one key, many at once
    local i crowd=()
    for i in 1 2 3 4 5 6 7 8; do
        ./place demo/orders.db key-2 B 1 >"crowd.$i" 2>&1 &
        crowd+=($!)
    done
    wait "${crowd[@]}"
    [ "$(cat crowd.* | sort -u | wc -l)" = 1 ] || { cat crowd.*; return 1; }
}
check 'eight at once get one answer' crowd

# ---- functions as handlers ----
application() {
    sed -i 's|handler: { sql: handlers/reserve.sql }|handler: application|' "$config" && consign config check -c "$config"
}
check 'the configuration says application' application
quick_leases
check 'the daemon runs everything else' up a
check 'it says whose the handler is' grep -q '"consumer":"stock".*"handler":"another process"' a.log
relayed() { is 0 orders "SELECT count(*) FROM outbox_events WHERE status <> 'sent'"; }
check 'events are kept for the application' within 60 relayed
check 'nothing was handled' is 0 stock "SELECT count(*) FROM consumer_inbox"
./stock "$config" 2>>stock.log &
pid[stock]=$!
check 'the application handles them' within 60 settled 7001 confirmed
check 'once each' within 60 is '3|8' stock "SELECT count(*), sum(qty) FROM stock_journal"
check 'its summary is kept' is '"reserved"' stock "SELECT DISTINCT result -> 'result' FROM consumer_inbox WHERE state = 'done'"
trace() {
    consign event trace "$(ask orders "SELECT event_id FROM outbox_events WHERE correlation_id = 'key-1'")" \
        -c "$config" -o json >trace.json
}
check 'the trace shows the way' trace
check 'with its result event' json trace.json "SELECT 1 / (json_array_length(j, '$.results') = 1) FROM doc"
check 'a signal stops it cleanly' stop stock
check 'and the daemon' stop a
./stock "$config" --all 2>>stock.log &
pid[stock]=$!
check 'an order while no daemon runs' ./order demo/orders.db 7003
check 'is handled by the program alone' within 60 settled 7003 confirmed
check 'which stops cleanly' stop stock
check 'nothing is left in hand' is 0 stock "SELECT count(*) FROM consign_in_hand"
summary
