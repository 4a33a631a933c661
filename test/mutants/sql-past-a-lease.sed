# file: src/store/sqlite_queue.c
# killer: contract broker
# what: delivers what is under a live lease
s/^    return lease <= now || lease - now > longest ||$/    return lease != 0 || now == 0 || longest == 0 ||/
