# file: src/store/sqlite_park.c
# killer: contract park
# what: parks again under a stale token
/^static csn_status check_mine/,/^}/s/AND claim_token = ?2"/AND length(?2) > 0"/
