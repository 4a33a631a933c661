#!/usr/bin/env bash
# SIGTERM in the middle of work: what is in hand is settled or given back, the lanes are free at once,
# and another daemon has them while the lease of the first would still run for most of an hour.
set -u
# shellcheck source=test/accept/lib.sh
. "$(dirname "$0")/lib.sh"

many_orders() {
    change orders "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)
        INSERT INTO orders(order_id, sku, qty) SELECT i, 'A', 1 FROM n;
        INSERT INTO outbox_events(event_id, aggregate_type, aggregate_id, aggregate_version, event_type, payload)
        SELECT 'E-' || order_id, 'order', order_id, 1, 'OrderCreated', '{\"sku\":\"A\",\"qty\":1}' FROM orders"
}

some_sent() {
    is 1 orders "SELECT count(*) > 100 FROM outbox_events WHERE status = 'sent'"
}

all_confirmed() {
    is 3000 orders "SELECT count(*) FROM orders WHERE state = 'confirmed'"
}

export CONSIGN_RELAY__LEASE=1h
check 'a shop' shop
check 'A becomes ready' up a CONSIGN_NODE__NAME=A
check 'B becomes ready beside it' up b CONSIGN_NODE__NAME=B
check 'A has every lane' is '17|1' orders \
    "SELECT count(*), count(DISTINCT owner) FROM consign_lanes WHERE owner = (SELECT boot FROM consign_members WHERE label = 'A')"
many_orders
check 'work is under way' within 60 some_sent
check 'A stops clean in the middle of it' stop a
check 'it says so' says a.log '"event":"stopped"' 'everything was let go'
check 'nothing is in its hands' is 0 orders \
    "SELECT count(*) FROM outbox_events o JOIN consign_lanes l ON l.name = 'outbox' WHERE status = 'sending'
     AND l.owner = (SELECT boot FROM consign_members WHERE label = 'A')"
check 'it left the list of members' is 1 orders \
    "SELECT ended_at IS NOT NULL FROM consign_members WHERE label = 'A'"
check 'B takes every lane' within 120 is 17 orders \
    "SELECT count(*) FROM consign_lanes WHERE owner = (SELECT boot FROM consign_members WHERE label = 'B')"
check 'B finishes every order' within 120 all_confirmed
check 'each order was handled once' is '3000|3000|3000' stock \
    "SELECT count(*), count(DISTINCT order_id), (SELECT opening - available FROM stock WHERE sku = 'A') FROM reservation"
check 'B stops clean' stop b
check 'nobody has a lane' is 0 orders "SELECT count(*) FROM consign_lanes WHERE owner IS NOT NULL"
serve c
ready c
kill -INT "${pid[c]}"
check 'Ctrl-C is a clean stop, too' ends c 0
summary
