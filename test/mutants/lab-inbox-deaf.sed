# file: src/store/sqlite_apply.c
# killer: lab A3 A6 B7 V3
# what: every delivery is taken for the first
/^static csn_status insert_inbox/,/^}/s/\*ret_new = sqlite3_column_int64(s, 0) == 0;/*ret_new = sqlite3_column_int64(s, 0) >= 0;/
