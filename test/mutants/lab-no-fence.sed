# file: src/store/sqlite_outbox.c
# killer: lab A7
# what: a mark needs neither state nor token
/^static csn_status prepare_sent/,/^}/s/AND status = 'sending' AND claim_token = ?8";/AND length(?8) > 0";/
