# file: src/core/inbox.c
# killer: sim
# what: a failed handler is tried at once
/case CSN_RETRY:/,/break;/s|p->retry_in = retry_backoff(.*|p->retry_in = 0;|
