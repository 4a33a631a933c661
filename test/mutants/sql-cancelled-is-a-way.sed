# file: src/store/sqlite_outbox.c
# killer: contract claim
# what: a cancelled row opens the way round a failed head
s/AND status <> 'cancelled' ORDER BY aggregate_version DESC/AND status <> '' ORDER BY aggregate_version DESC/
