# file: src/core/inbox.c
# killer: sim
# what: acknowledged although the store could not park it
/^static void parked(/,/^}/s/if (op->result.status != CSN_OK) {/if (op->result.status == CSN_FATAL) {/
