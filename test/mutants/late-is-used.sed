# file: src/core/relay.c
# killer: sim
# near: 9758
# what: a late answer is used
s/^    f->abandoned |= 1u << d;/    f->abandoned |= 0u << d;/
