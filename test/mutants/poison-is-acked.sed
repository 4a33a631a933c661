# file: src/core/inbox.c
# killer: sim
# what: poison is acknowledged
s/v == CSN_REFUSED || v == CSN_DUPLICATE/v == CSN_REFUSED || v == CSN_POISON || v == CSN_DUPLICATE/
