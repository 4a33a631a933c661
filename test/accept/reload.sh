#!/usr/bin/env bash
# SIGHUP: the configuration and the handler files are read again. What may change changes at once and
# in the middle of work, what needs a restart is named, and one mistake anywhere changes nothing.
set -u
# shellcheck source=test/accept/lib.sh
. "$(dirname "$0")/lib.sh"

hang_up() {
    kill -HUP "${pid[$1]}"
}

said() { # N TEXT: so often in the daemon's log
    [ "$(grep -cF -- "$2" a.log)" -ge "$1" ]
}

hears() { # N TEXT: after a hangup it says so for the N-th time
    hang_up a && within 60 said "$@"
}

put() { # KEY: VALUE to the end of the configuration, as a block of its own
    printf '%s\n' "$1" >>demo/consign.yaml
}

orders_from() { # FROM N
    change orders "WITH RECURSIVE n(i) AS (SELECT $1 UNION ALL SELECT i + 1 FROM n WHERE i < $1 + $2 - 1)
        INSERT INTO orders(order_id, sku, qty) SELECT i, 'A', 1 FROM n;
        INSERT INTO outbox_events(event_id, aggregate_type, aggregate_id, aggregate_version, event_type, payload)
        SELECT 'E-' || order_id, 'order', order_id, 1, 'OrderCreated', '{\"sku\":\"A\",\"qty\":1}'
        FROM orders WHERE order_id >= $1 AND order_id < $1 + $2"
}

confirmed() { # N
    is "$1" orders "SELECT count(*) FROM orders WHERE state = 'confirmed'"
}

check 'a shop' shop
cp demo/consign.yaml was.yaml
cp demo/handlers/reserve.sql was.sql
check 'a daemon' up a
orders_from 1000 500

# A handler that marks what it did, while five hundred orders are under way.
sed -i "s/'已预占'/'已预占（新）'/" demo/handlers/reserve.sql
check 'the handler is another' test "$(diff was.sql demo/handlers/reserve.sql | wc -l)" -gt 0
check 'a hangup takes it' hears 1 '"event":"reload.handler","consumer":"stock"'
orders_from 2000 20
check 'every order ends' within 120 confirmed 520
check 'later ones by the new handler' is 20 stock \
    "SELECT count(*) FROM reservation WHERE order_id >= 2000 AND state = '已预占（新）'"
check 'each once' is '520|520' stock "SELECT count(*), count(DISTINCT order_id) FROM reservation"

put 'relay: { batch: { rows: 7 }, lease: 40s, retry: { base: 3s } }'
put 'log: { level: debug }'
check 'live keys are taken' hears 1 '"event":"reload.key","key":"relay.batch.rows","from":"200","to":"7"'
check 'all of them' says a.log '"key":"relay.retry.base","from":"1s","to":"3s"' '"key":"log.level","from":"info","to":"debug"'
check 'what needs a restart is named' says a.log \
    '"event":"reload.needs_restart","key":"relay.lease","from":"30s","to":"40s"'
check 'and people are told' says a.log 'configuration read again: 3 key(s) taken over, 1 need(s) a restart'
check 'a second hangup has no more to take' hears 1 '"taken":0,"need_restart":1,"handlers":0'
orders_from 3000 30
check 'work goes on in small batches' within 120 confirmed 550

# One mistake in each half, and good changes beside it.
cp demo/consign.yaml good.yaml
put 'reconcile: { grace: soon }'
put 'nonsense: 1'
sed -i 's/rows: 7/rows: 9/' demo/consign.yaml
cp was.sql demo/handlers/reserve.sql
check 'mistakes are refused' hears 1 '"event":"reload.refused","mistakes":2'
check 'each with its place' says a.log '"code":"CSN-1003","key":"reconcile.grace","where":"' \
    '"code":"CSN-1002","key":"nonsense","where":"'
check 'a place is a line of the file' grep -qE '"key":"nonsense","where":"[^"]*consign.yaml:[0-9]+"' a.log
cp good.yaml demo/consign.yaml
sed -i 's/rows: 7/rows: 9/' demo/consign.yaml
printf -- '-- handler reserve\nSELEKT 1;\n-- verdict maybe\n' >demo/handlers/reserve.sql
check 'so is a wrong handler' hears 1 '"event":"reload.refused","mistakes":1'
check 'with its code' says a.log '"event":"reload.mistake","code":"CSN-4001","key":"stock"'
check 'nothing was taken of either' test "$(grep -c '"to":"9"' a.log)$(grep -c '"event":"reload.handler"' a.log)" = 01
rm demo/consign.yaml
check 'a file that is gone is refused' hears 3 '"event":"reload.refused"'
orders_from 4000 10
check 'the old one stays in force' within 120 confirmed 560
check 'with its handler' is 10 stock "SELECT count(*) FROM reservation WHERE order_id >= 4000 AND state = '已预占（新）'"

cp good.yaml demo/consign.yaml
cp was.sql demo/handlers/reserve.sql
check 'mended, it is taken' hears 2 '"event":"reload.handler","consumer":"stock"'
check 'the daemon stops clean' stop a

check 'a key says when it is in force' consign config explain relay.batch.rows
consign config explain relay.batch.rows >explain.out
check 'live' says explain.out 'kill -HUP'
consign config explain relay.lease >explain.out
check 'or after a restart' says explain.out 'restart of the daemon'
consign config show -c demo/consign.yaml --origin --set log.level=warn >show.out
check 'each value with its origin' says show.out 'consign.yaml:' '--set' 'default'
consign config show -c demo/consign.yaml >plain.out
check 'or without' test "$(grep -c 'default$' plain.out)" = 0
summary
