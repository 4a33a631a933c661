#!/usr/bin/env bash
# A stands still after the broker's confirm and before it marks the row, for longer than its lease.
# B takes over and finishes. When A goes on it must change nothing of what B wrote, and count that it
# was refused.
set -u
# shellcheck source=test/accept/lib.sh
. "$(dirname "$0")/lib.sh"

digest() {
    local t
    for t in outbox_events consumer_inbox consign_queue consign_work orders; do
        ask orders "SELECT * FROM $t ORDER BY 1, 2"
    done
    for t in outbox_events consumer_inbox consign_work stock reservation stock_journal; do
        ask stock "SELECT * FROM $t ORDER BY 1, 2"
    done
}

counted() {
    local n
    n=$(ask orders "SELECT sum(counters ->> '\$.$1') FROM consign_members WHERE label = '$2'")
    [ "${n:-0}" -ge 1 ] || { echo "$1 of $2: ${n:-none}"; return 1; }
}

quick_leases
mkfifo gate
check 'a shop for the laboratory' shop --lab
check 'A becomes ready' up a CONSIGN_NODE__NAME=A CONSIGN_FAILPOINTS="relay.confirmed=pause:$work/gate"
order 1 A 3
check 'A stands after the confirm' within 60 grep -q 'failpoint.pause' a.log
check 'the row is still in its hands' is 'sending|A' orders \
    "SELECT status, (SELECT label FROM consign_members LIMIT 1) FROM outbox_events"
check 'B becomes ready' up b CONSIGN_NODE__NAME=B
check 'B finishes the order' within 60 settled 1 confirmed
check 'all is quiet' within 60 quiet
check 'it was sent by B' is B orders \
    "SELECT label FROM outbox_events JOIN consign_members ON member = sent_by"
check 'there were two copies' is 2 orders "SELECT count(*) FROM consign_queue WHERE subscription = 'stock'"
check 'and one effect' is '1|1' stock \
    "SELECT sum(duplicates), (SELECT count(*) FROM reservation) FROM consumer_inbox"
digest >before.txt
: >gate
check 'A goes on' within 60 grep -q 'failpoint.resume' a.log
check 'its late write is refused and counted' within 60 counted stale_writes A
check 'and said' grep -q '"event":"relay.stale"' a.log
digest >after.txt
check 'nothing of what B wrote has changed' cmp before.txt after.txt
check 'status sums the refused writes' consign status -c "$config" -o json
cp check.out status.json
check 'and they are there' test "$(json status.json "SELECT (j ->> '\$.counters.stale_writes') >= 1 FROM doc")" = 1
check 'A stops clean' stop a
check 'B stops clean' stop b
summary
