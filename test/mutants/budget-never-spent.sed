# file: src/core/relay.c
# killer: sim
# what: a spent budget goes on
s/bool spent = fault == FAULT_TEMPORARY \&\& retry_spent(/bool spent = fault == FAULT_DESTINATION \&\& retry_spent(/
