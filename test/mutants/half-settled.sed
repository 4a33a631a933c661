# file: src/core/relay.c
# killer: sim
# what: a settlement forgets its last row
s/op->settle.n = f->batch.n;/op->settle.n = f->batch.n - (f->batch.n > 1);/
