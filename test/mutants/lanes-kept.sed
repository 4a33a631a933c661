# file: src/core/lane.c
# killer: sim
# what: a clean stop keeps its lanes
s/op->lease.drop = l->stopping ? l->all : 0;/op->lease.drop = l->stopping ? l->all \& 1 : 0;/
