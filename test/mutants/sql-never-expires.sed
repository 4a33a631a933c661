# file: src/store/sqlite_outbox.c
# killer: contract
# what: a sending row whose lease is over stays
/static const char \*const sql\[\] = {/,/};/s/(?2 >> slot) \& 1 OR lease_until IS NULL OR lease_until <= ?3 OR lease_until > ?4)"/(?2 >> slot) \& 1 OR lease_until IS NULL OR ?3 < 0 OR lease_until > ?4)"/
