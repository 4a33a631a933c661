# file: src/core/relay.c
# killer: sim
# what: a refusal is taken for a confirm
s/} else if (p->out == PUB_CONFIRMED) {/} else if (p->out == PUB_CONFIRMED || p->out == PUB_NACKED) {/
