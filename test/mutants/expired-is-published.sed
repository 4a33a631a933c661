# file: src/core/relay.c
# killer: sim
# what: what has expired goes out
s/           m->expires_in <= now - f->claimed_at;/           m->expires_in < now - f->claimed_at - 3600000000;/
