# file: src/core/relay.c
# killer: lab B5
# what: what was surely not sent counts as unknown
s/bool nothing = status == CSN_AGAIN || status == CSN_NOMEM || p->out == PUB_UNSENT;/bool nothing = p->out == PUB_UNSENT;/
