# file: src/store/sqlite_lanes.c
# killer: lab A2
# what: a lane that nobody owns is not taken
s/strcmp(owner, op->lease.boot) == 0, !owner || over,/strcmp(owner, op->lease.boot) == 0, owner \&\& over,/
