# file: src/store/sqlite_apply.c
# killer: lab D1
# what: a duplicate is looked for among dead letters, too
/^static csn_status apply_delivery/,/^}/s/if (st != CSN_OK || !new)/if (st != CSN_OK || (!new \&\& has_dead_letter(a, \&dead) != CSN_FATAL))/
