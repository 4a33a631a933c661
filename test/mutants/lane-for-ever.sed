# file: src/core/lane.c
# killer: sim
# what: lanes are believed for ever
s/if (l->held \&\& now >= l->held_until)/if (l->held \&\& now < 0)/
