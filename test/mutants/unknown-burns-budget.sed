# file: src/core/relay.c
# killer: sim
# what: an unknown outcome counts as a fault of the message
s/item->failure = fault == FAULT_TEMPORARY || fault == FAULT_PERMANENT;/item->failure = fault != FAULT_NONE;/
