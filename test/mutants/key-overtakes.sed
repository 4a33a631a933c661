# file: src/core/relay.c
# killer: sim
# what: an event goes out before the one before it is confirmed
s/if (before == NONE || ended(f, before))$/if (before == NONE || d < r->dests)/
