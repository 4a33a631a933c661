# file: src/cli/init_files.c
# killer: lab A10
# what: the order number is not unique
/"CREATE TABLE orders/,/STRICT/s/order_id   TEXT PRIMARY KEY,/order_id   TEXT,/
