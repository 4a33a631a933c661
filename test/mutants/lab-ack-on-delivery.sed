# file: src/store/sqlite_queue.c
# killer: lab A5 B6
# what: a delivery is its own acknowledgement
/^static csn_status write_delivered/,/^}/s/deliveries = deliveries + 1 WHERE/acked_at = ?4, deliveries = deliveries + 1 WHERE/
