# file: src/store/sqlite_lanes.c
# killer: contract lease
# what: taking a lane does not raise its epoch
s/take_lane(c, op, at, ++lane.epoch, err)/take_lane(c, op, at, lane.epoch, err)/
