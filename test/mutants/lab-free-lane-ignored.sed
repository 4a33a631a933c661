# file: src/store/sqlite_lanes.c
# killer: lab A2
# what: a lane that nobody owns is not taken
s/!owner || over, sqlite3/owner \&\& over, sqlite3/
