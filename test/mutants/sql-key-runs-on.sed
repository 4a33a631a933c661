# file: src/store/sqlite_apply.c
# killer: contract apply
# what: an event behind a parked one is handled
s/key_stopped(a) || (a->parked && a->head <= (int64_t)a->m.version)/key_stopped(a) || (a->parked \&\& a->head > (int64_t)a->m.version)/
