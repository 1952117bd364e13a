/* Index tensors: reading int32 or int64 elements at any alignment, and checking whole arrays. */
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

/* What is allowed. */
struct bag_id_bounds {
    bool any_negative; /* negative ids are allowed */
    int64_t high;      /* the largest; at least -1 */
    bool ascending;    /* none may be less than the one before it */
};

/* The first position whose id is not within the bounds, or ids->count. */
size_t bag_ids_first_bad(const struct bag_ids *ids, const struct bag_id_bounds *bounds);

/* The largest id; -1 where all are negative or there are none. */
int64_t bag_ids_max(const struct bag_ids *ids);

/* The first position in [from, ids->count] at which all ids, sorted, are at least `value`. */
size_t bag_ids_lower_bound(const struct bag_ids *ids, size_t from, int64_t value);

#endif
