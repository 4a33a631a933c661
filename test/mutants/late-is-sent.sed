# file: src/core/relay.c
# killer: sim
# what: an answer that is late is taken for a yes
s/faulted(r, f, i, FAULT_UNKNOWN, ERR_BROKER_NO_ANSWER, late, now);/ready(f, i, SETTLE_SENT);/
