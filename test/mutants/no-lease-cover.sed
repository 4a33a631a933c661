# file: src/core/relay.c
# killer: sim
# what: publishes although the claim may end before the answer
s/bool covered = now + longest_confirm(r) < f->lease_end;/bool covered = now + longest_confirm(r) < f->lease_end + r->lease;/
