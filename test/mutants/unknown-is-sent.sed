# file: src/core/relay.c
# killer: sim
# what: an unanswered publish is taken for confirmed
s/faulted(r, f, i, FAULT_UNKNOWN, ERR_BROKER_NO_ANSWER, "no answer from the broker", now);/confirmed(r, f, p);/
