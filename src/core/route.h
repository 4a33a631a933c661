/* route.h: which partition a key belongs to. The same key goes to the same partition in every
 * process and every version of consign, as long as the number of partitions stays: the order per
 * key hangs on it. */
#ifndef CSN_CORE_ROUTE_H
#define CSN_CORE_ROUTE_H

#include "core/op.h"
#include "consign/consign.h"

/* 0 … partitions - 1; 0 when partitions is 0. */
uint32_t route_partition(csn_bytes aggregate_type, csn_bytes aggregate_id, uint32_t partitions);

/* The two belong to one key: what is ordered, parked and partitioned together. */
bool route_same_key(const struct message *a, const struct message *b);

#endif
