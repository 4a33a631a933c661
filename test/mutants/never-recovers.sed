# file: src/core/relay.c
# killer: sim
# what: rows of a dead process stay sending
s/op->recover.limit = probing ? PROBE_ROWS : BATCH_MAX;/op->recover.limit = 0;/
