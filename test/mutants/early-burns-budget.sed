# file: src/core/inbox.c
# killer: sim
# what: waiting for a predecessor counts as a fault
/case CSN_EARLY:/,/break;/s/p->attempt = 1;/p->attempt = p->failure = 1;/
