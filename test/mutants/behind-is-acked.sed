# file: src/core/inbox.c
# killer: sim
# what: an event behind a parked one is acknowledged and forgotten
s/^            behind(b, a->msg, &n);/            (void)behind, done(b, a->msg);/
