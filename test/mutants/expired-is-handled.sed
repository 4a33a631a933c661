# file: src/core/inbox.c
# killer: sim
# what: what expired at the consumer is handled
s/return left != CSN_USEC_NEVER && left <= now - d->taken_at;/return left == 1 \&\& now < d->taken_at;/
