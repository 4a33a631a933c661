# file: src/core/relay.c
# killer: sim
# what: a claim uses the token of the one before
s/^    prng_token(r->chance, f->token);/    if (!f->token[0]) prng_token(r->chance, f->token);/
