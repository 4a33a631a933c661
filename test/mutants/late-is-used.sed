# file: src/core/relay.c
# killer: sim
# what: a late answer is used
s/^    f->abandoned |= 1u << d;/    f->abandoned |= 0u << d;/
