#!/usr/bin/env bash
# What a person does: sees what needs one, retries, cancels, holds, releases, reads dead letters,
# compares and sends again, and finds every act in the audit chain. SQL says what became of the rows.
set -u
# shellcheck source=test/accept/lib.sh
. "$(dirname "$0")/lib.sh"

run() {
    consign "$@" -c "$config"
}

row() { # VALUE ID
    is "$1" orders "SELECT status FROM outbox_events WHERE event_id = '$2'"
}

# The versions of a key, in the order in which they are in the queue.
queued() { # KEY VERSIONS
    is "$2" orders "SELECT group_concat(aggregate_version, ' ') FROM
        (SELECT aggregate_version FROM consign_queue WHERE aggregate_id = '$1' ORDER BY pos)"
}

audited() { # ACTION TARGET
    is 1 orders "SELECT count(*) FROM consign_audit WHERE action = '$1' AND target LIKE '%$2%' AND reason <> ''"
}

needs() { # WHAT: status says this word among its needs, and its exit code is 1
    code 1 run status -o json >status.json || return 1
    test 1 = "$(json status.json "SELECT count(*) > 0
        FROM doc, json_each(j, '\$.needs') n WHERE n.value ->> 'what' = '$1'")"
}

dead_is() { # SQL over one letter d
    run dead list -o json >dead.json && test 1 = "$(json dead.json \
        "SELECT count(*) FROM doc, json_each(j, '\$.items') d WHERE $1")"
}

export CONSIGN_RELAY__RETRY__FAILURES=1 # an event that nobody takes fails at once
quick_leases
check 'a shop for the laboratory' shop --lab
check 'the daemon becomes ready' up a
check 'lanes says who has them' run lanes -o json
check '… this process has all' test "$(ask orders "SELECT count(*) FROM consign_lanes WHERE owner IS NOT NULL")" = 17

event H-1 head 1 NobodyTakesThis '{}'
check 'what nobody takes fails' within 60 row failed H-1
event H-2 head 2 InventoryNoted '{"order":"none"}'
event H-3 head 3 InventoryNoted '{"order":"none"}'
check 'what comes after it waits' within 60 row waiting H-3
check 'status needs a person, exit code 1' needs failed
check 'list finds it' grep -q H-1 <(run event list --status failed)
check 'show tells its row and hides the payload' says <(run event show H-1) H-1
check 'a change without a reason is refused' code 64 run event retry H-1
row failed H-1
check 'a dry run changes nothing' run event cancel H-1 --reason 'try' --dry-run
check '… it is still failed' row failed H-1
check 'retry sends it again' run event retry H-1 --reason 'a binding was promised'
check '… and it fails again, with a new attempt' within 60 is 'failed|2' orders \
    "SELECT status, attempts FROM outbox_events WHERE event_id = 'H-1'"
check 'cancel ends the head' run event cancel H-1 --reason 'nobody will take it'
check '… it is cancelled' row cancelled H-1
check 'its followers go on' within 60 row sent H-3
check '… in order' queued head '2 3'
check 'the same cancel again changes nothing' run event cancel H-1 --reason 'twice'
check 'a sent event cannot be cancelled' code 65 run event cancel H-3 --reason 'late'
check 'an event that is not there' code 66 run event cancel H-9 --reason 'where'
check 'each act is in the audit chain' audited event.cancel H-1
check 'the retry, too' audited event.retry H-1

event P-1 poison 1 OrderCreated '{"sku":"A"}'
event P-2 poison 2 OrderCreated '{"sku":"A","qty":1}'
check 'what lacks a field becomes a dead letter' within 60 dead_is \
    "d.value ->> 'event_id' = 'P-1' AND d.value ->> 'class' = 'poison'"
check 'its key goes on' within 60 is 1 stock \
    "SELECT count(*) FROM consumer_inbox WHERE event_id = 'P-2' AND state = 'done'"
check 'status says it' needs dead_letters
run dead show P-1 >show.out
check 'dead show hides the payload' code 1 grep -q '"sku"' show.out
run dead show P-1 --payload >show.out
check 'dead show --payload shows it' grep -q sku show.out
check '… and the audit chain knows' is 1 stock \
    "SELECT count(*) FROM consign_audit WHERE action LIKE '%payload%' OR action LIKE '%show%'"
check 'trace tells of the dead letter' says <(run event trace P-1 -o json) '"kind":"dead"'

check 'the daemon stops clean' stop a
event K-1 hold 1 InventoryNoted '{"order":"none"}'
event K-2 hold 2 InventoryNoted '{"order":"none"}'
check 'hold keeps an event' run event hold K-1 --reason 'legal asks'
check 'without a daemon the due events need one' needs no_dispatcher
up a
event Z-1 other 1 OrderCreated '{"sku":"A","qty":1}'
check 'other keys go on' within 60 row sent Z-1
check '… and the held one stays' row held K-1
check '… and its key waits' within 60 row waiting K-2
check 'release lets it go on' run event release K-1 --reason 'cleared'
check '… and its key' within 60 row sent K-2
check '… in order' queued hold '1 2'
check 'all is quiet' within 60 quiet
check 'the daemon stops clean again' stop a

# The broker loses a message: it was confirmed, and no delivery ever came.
up b CONSIGN_FAILPOINTS=broker.receive=error
order 77 A 1
check 'an event is sent and not delivered' within 60 row sent E-77-1
crash b
change orders "DELETE FROM consign_queue WHERE event_id = 'E-77-1'"
check 'a young difference is left alone' run reconcile run outbox --dry-run
check 'reconcile finds it, exit code 1' code 1 run reconcile run outbox --grace 0s --dry-run -o json
check '… a dry run changes nothing' row sent E-77-1
check 'reconcile sends it again' code 1 run reconcile run outbox --grace 0s --reason 'the broker lost it'
check '… it is pending' row pending E-77-1
up a
check '… and is handled' within 60 settled 77 confirmed
check 'afterwards there is no difference' within 60 run reconcile run outbox --grace 0s --dry-run
check 'trace says that it was sent again' says <(run event trace E-77-1 -o json) '"kind":"resent"'
check 'reconcile is audited' is 1 orders \
    "SELECT count(*) > 0 FROM consign_audit WHERE action LIKE 'reconcile%' AND reason = 'the broker lost it'"
check 'the daemon stops clean at the end' stop a
summary
