# file: src/store/sqlite_apply.c
# killer: contract apply
# what: dead letters are not looked up
s/^    if (st == CSN_OK \&\& dead) {/    if (st == CSN_OK \&\& dead \&\& !a->broker) {/
