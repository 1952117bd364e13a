/* Index tensors: reading int32 or int64 elements at any alignment, and judging whole arrays.
 *
 * Must not know: what the ids mean, which fault their being wrong is. */
#ifndef BAG_POOL_IDS_H
#define BAG_POOL_IDS_H

#include "pool.h"

#include <string.h>

static inline int64_t bag_id_at(const struct bag_ids *ids, size_t position)
{
    if (ids->wide) {
        int64_t value;
        memcpy(&value, (const char *)ids->data + position * sizeof value, sizeof value);
        return value;
    }
    int32_t value;
    memcpy(&value, (const char *)ids->data + position * sizeof value, sizeof value);
    return value;
}

/* The first position whose id is not in [low, high], or ids->count. */
size_t bag_ids_first_outside(const struct bag_ids *ids, int64_t low, int64_t high);

/* The first position whose id is less than the one before it, or ids->count. */
size_t bag_ids_first_descent(const struct bag_ids *ids);

/* The largest id; -1 where all are negative or there are none. */
int64_t bag_ids_max(const struct bag_ids *ids);

/* The first position in [from, ids->count] at which all ids, sorted, are at least `value`. */
size_t bag_ids_lower_bound(const struct bag_ids *ids, size_t from, int64_t value);

#endif
