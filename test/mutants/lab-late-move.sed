# file: src/core/order.c
# killer: lab A8
# what: a command does not look whether its version is older
s/if (e->there \&\& version < e->version)/if (e->there \&\& version > UINT64_MAX - 1)/
