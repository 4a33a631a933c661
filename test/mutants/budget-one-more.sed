# file: src/core/retry.c
# killer: sim
# what: one fault more than the budget
s/return failures_before + 1 >= p->failures/return failures_before >= p->failures/
