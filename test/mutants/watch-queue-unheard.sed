# file: src/core/engine.c
# killer: sim
# what: deliveries that the watch found are not passed on
s/^        if (w->inbox\[i\])$/        if (w->inbox[i] \&\& w->item[i].kind != WATCH_QUEUE)/
