# file: src/core/relay.c
# killer: lab B1 B4
# what: a publish whose time is over is taken for confirmed
/^static void abandon/,/^}/s/faulted(r, f, i, FAULT_UNKNOWN, ERR_BROKER_NO_ANSWER, .*, now);/confirmed(r, f, \&(struct publish_item){.msg = i, .part = -1, .pos = -1});/
