# file: src/core/inbox.c
# killer: sim
# what: at most once is tried before it is acknowledged
/^static void start(/,/^}/s/    if (b->at_most_once)$/    if (b->at_most_once \&\& !d->batch.n)/
