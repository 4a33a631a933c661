# file: src/store/sqlite_outbox.c
# killer: contract claim
# what: a claim takes a row whose predecessor has failed
s/SELECT seq, aggregate_version, status = 'sent' FROM outbox_events/SELECT seq, aggregate_version, status IN ('sent', 'failed') FROM outbox_events/
