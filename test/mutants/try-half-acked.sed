# file: src/core/inbox.c
# killer: sim
# what: at most once is tried although its ack has no answer
s/    if (op->result.status == CSN_OK && op->ack.acked == n) {$/    if (op->result.status != CSN_AGAIN) {/
