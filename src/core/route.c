/* route.c: see route.h. The hash of the type seeds the hash of the id, which keeps ("ab", "c") and
 * ("a", "bc") apart without a copy of both. Tried and dropped: one buffer with both texts; it
 * needs a bound that the texts do not have. */
#include "core/route.h"
#include "base/bytes.h"

uint32_t route_partition(csn_bytes aggregate_type, csn_bytes aggregate_id, uint32_t partitions) {
    uint64_t h = bytes_hash(aggregate_id, bytes_hash(aggregate_type, 0));

    return partitions ? (uint32_t)(h % partitions) : 0;
}

bool route_same_key(const struct message *a, const struct message *b) {
    return bytes_equal(a->aggregate_id, b->aggregate_id) &&
           bytes_equal(a->aggregate_type, b->aggregate_type);
}
