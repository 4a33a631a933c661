# file: src/core/relay.c
# killer: sim
# what: a comment: must survive
s|^/\* relay\.c: see relay\.h\.|/* relay.c: look at relay.h.|
