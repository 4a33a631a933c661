# file: src/core/engine.c
# killer: sim
# what: what the watch found is not passed on
s/^            relay_found(&e->relay\[store\], w->item\[i\].kind == WATCH_OUTBOX,$/            relay_found(\&e->relay[store], false,/
