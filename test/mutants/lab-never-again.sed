# file: src/store/sqlite_queue.c
# killer: lab B2
# what: what was delivered once is never delivered again
s/if (rc == SQLITE_ROW && may_deliver(k, s, part)) {/if (rc == SQLITE_ROW \&\& may_deliver(k, s, part) \&\& sqlite3_column_type(s, COL_TOKEN) == SQLITE_NULL) {/
