# file: src/store/sqlite_recover.c
# killer: lab A9
# what: a row whose owner is gone is taken for sent
/^static csn_status recover_expired/,/^}/s/"UPDATE outbox_events SET status = 'pending'/"UPDATE outbox_events SET status = 'sent'/
