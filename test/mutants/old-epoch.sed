# file: src/core/lane.c
# killer: sim
# what: works under the epoch it had before
s/^    memcpy(l->epoch, op->lease.epoch, sizeof l->epoch);/    (void)sizeof l->epoch;/
