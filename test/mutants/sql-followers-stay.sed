# file: src/store/sqlite_outbox.c
# killer: contract
# what: what waits behind a sent row is not released
s/bool ended = item->to == SETTLE_SENT || item->to == SETTLE_CANCELLED;/bool ended = item->to == SETTLE_CANCELLED;/
