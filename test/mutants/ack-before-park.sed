# file: src/core/inbox.c
# killer: sim
# what: acknowledges before parking
/^    uint32_t n = decide(b);/,/^}/s/if (n)$/if (n > 1)/
