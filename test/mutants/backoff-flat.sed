# file: src/core/retry.c
# killer: sim
# what: pauses do not grow
s|pause = pause > max / 2 ? max : pause \* 2;|pause = pause > max / 2 ? max : pause;|
