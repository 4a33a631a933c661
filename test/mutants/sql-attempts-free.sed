# file: src/store/sqlite_outbox.c
# killer: contract claim
# what: a claim of the outbox does not count
/UPDATE outbox_events SET status = 'sending'/,/},/s/attempts = attempts + 1 WHERE/attempts = attempts WHERE/
