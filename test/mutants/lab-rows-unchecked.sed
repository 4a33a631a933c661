# file: src/store/run.c
# killer: lab V1
# what: no rows is as good as one
/^static bool as_expected/,/^}/s/: rows == s->rows);/: rows <= s->rows);/
