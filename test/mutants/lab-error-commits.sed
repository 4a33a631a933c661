# file: src/store/sqlite.c
# killer: lab A4
# what: a group that failed is committed
s/return s == CSN_OK ? commit(c, err) : s;/return commit(c, err) == CSN_OK ? s : s;/
