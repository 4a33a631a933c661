# file: src/core/relay.c
# killer: sim
# what: a returned message is taken for routed
s/} else if (p->out == PUB_CONFIRMED) {/} else if (p->out == PUB_CONFIRMED || p->out == PUB_RETURNED) {/
