# file: src/core/order.c
# killer: lab O1 O2 O3
# what: an older version is applied, too
s/return !e->there || version > e->version;/return !e->there || version > 0;/
