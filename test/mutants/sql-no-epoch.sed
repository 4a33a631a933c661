# file: src/store/sqlite_lanes.c
# killer: contract
# what: the fence does not look at the epoch
s/AND owner = ?3 AND epoch = ?4"/AND owner = ?3 AND ?4 >= 0"/
