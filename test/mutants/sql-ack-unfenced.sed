# file: src/store/sqlite_queue.c
# killer: contract broker
# what: acknowledges without looking at the token
s/AND subscription = ?3 AND token = ?4"/AND subscription = ?3 AND length(?4) > 0"/
