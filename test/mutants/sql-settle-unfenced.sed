# file: src/store/sqlite_outbox.c
# killer: contract settle
# what: other outcomes without looking at the token
/UPDATE outbox_events SET status = ?1, waits_for = ?2/,/UPDATE consign_work/s/AND claim_token = ?12"/AND length(?12) > 0"/
