# file: src/core/relay.c
# killer: sim
# what: what has expired goes out
s/return in != CSN_USEC_NEVER && in <= now - f->claimed_at;/return in == 0 \&\& now < f->claimed_at;/
