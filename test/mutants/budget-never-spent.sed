# file: src/core/relay.c
# killer: sim
# what: a spent budget goes on
s/^        fault == FAULT_TEMPORARY \&\& retry_spent(/        fault == FAULT_DESTINATION \&\& retry_spent(/
