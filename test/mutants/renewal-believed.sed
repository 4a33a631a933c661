# file: src/core/relay.c
# killer: sim
# what: a renewal that failed is believed
s/if (op->result.status == CSN_OK \&\& op->renew.renewed > 0) {/if (op->renew.renewed < UINT32_MAX) {/
