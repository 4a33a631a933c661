# file: src/core/relay.c
# killer: sim
# what: rows that wait for a route are never released
s/if (dest_open(d, now))$/if (!d)/
