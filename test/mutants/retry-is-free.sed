# file: src/core/inbox.c
# killer: sim
# what: a handler that fails never spends its budget
s/p->failure = p->attempt = 1;/p->attempt = 1;/
