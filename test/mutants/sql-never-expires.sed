# file: src/store/sqlite_recover.c
# killer: contract
# what: a sending row whose lease is over stays
/\[TABLE_OUTBOX\] = "SELECT seq FROM outbox_events INDEXED BY ix_expired/,/ORDER BY lease_until/s/lease_until IS NULL OR lease_until <= ?3 OR "/lease_until IS NULL OR ?3 < 0 OR "/
