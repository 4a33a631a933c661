#!/usr/bin/env bash
# The newcomer's way: init, serve, and one INSERT of the five columns by the sqlite3 shell. It is
# handled soon; the trace tells the whole way in order, and the answer has a trace of its own.
set -u
# shellcheck source=test/accept/lib.sh
. "$(dirname "$0")/lib.sh"

# As a newcomer does it: by hand, with the shell of the database.
insert() { # ID KEY
    sqlite3 -bail -cmd '.timeout 60000' demo/orders.db "INSERT INTO outbox_events
        (event_id, aggregate_id, aggregate_version, event_type, payload)
        VALUES ('$1', '$2', 1, 'OrderCreated', '{\"sku\":\"A\",\"qty\":1}')"
}

handled() {
    is 1 stock "SELECT count(*) FROM consumer_inbox WHERE event_id = '$1' AND state = 'done'"
}

# how long it took, by the clock of the rows; said, not judged: the machine may do other things.
took() {
    local from to
    from=$(ask orders "SELECT created_at FROM outbox_events WHERE event_id = '$1'")
    to=$(ask stock "SELECT processed_at FROM consumer_inbox WHERE event_id = '$1'")
    echo "        handled $(((to - from) / 1000)) ms after its INSERT"
}

trace() {
    consign event trace "$1" -c "$config" -o json >"$2"
}

# The first of each kind, by time, gives the way from the INSERT to the effect.
in_order() {
    local kinds
    kinds=$(json "$1" "SELECT group_concat(kind, ' ') FROM (SELECT kind FROM (
        SELECT f.value ->> 'kind' AS kind, min(f.value ->> 'at') AS at, min(f.key) AS place
        FROM doc, json_each(doc.j, '\$.facts') f GROUP BY 1)
        WHERE kind IN ('written', 'claimed', 'published', 'confirmed', 'received', 'handled') ORDER BY at, place)")
    [ "$kinds" = 'written claimed published confirmed received handled' ] || { echo "$kinds"; cat "$1"; return 1; }
}

answer_of() {
    ask stock "SELECT event_id FROM outbox_events WHERE causation_id = '$1'"
}

check 'init makes the shop' shop
check 'init does not touch a folder that is taken' code 65 consign init --dir demo
check 'the daemon becomes ready' up a
check 'an INSERT of five columns' insert E-first first
check 'is handled' within 60 handled E-first
took E-first
check 'the effect is there once' is '1|-1' stock \
    "SELECT count(*), sum(available - opening) + (SELECT count(*) - 1 FROM stock_journal) FROM stock WHERE sku = 'A'"
order 9001 A 2
check 'an order and its event become a confirmed order' within 60 settled 9001 confirmed
check 'the trace is told as JSON' within 60 trace E-9001-1 trace.json
check 'it has the whole way, in order' in_order trace.json
check 'the answer has a row of its own' test -n "$(answer_of E-9001-1)"
check 'and its own trace' trace "$(answer_of E-9001-1)" answer.json
check 'with the whole way, too' in_order answer.json
check 'the event of an order that nobody wrote ends as late' within 60 is 'late|done' orders \
    "SELECT verdict, state FROM consumer_inbox WHERE event_id = '$(answer_of E-first)'"
trace "$(answer_of E-first)" late.json
check 'and says why' says late.json 'no pending order first here'
check 'nobody is needed' code 0 consign status -c "$config"
check 'the daemon stops clean' stop a
summary
