# file: src/core/inbox.c
# killer: sim
# what: a refusal of the business is set aside
s/v == CSN_REFUSED || v == CSN_DUPLICATE/v == CSN_DUPLICATE/
