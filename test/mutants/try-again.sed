# file: src/core/inbox.c
# killer: sim
# what: at most once is tried again although the outcome is unknown
/^static void try_failed(/,/^}/s/    if (op->result.status == CSN_AGAIN || /    if (op->result.status == CSN_AGAIN || op->result.status == CSN_UNKNOWN || /
