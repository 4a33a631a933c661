# file: src/core/relay.c
# killer: sim
# what: an expired event is cancelled although an earlier attempt may have arrived
s/CSN_USEC_NEVER \&\& !m->maybe_sent \&\&/CSN_USEC_NEVER \&\&/
