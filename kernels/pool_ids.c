/* Whole arrays of ids. An array is first checked as a whole by the instruction set in use; only a
 * bad one is searched for its first bad position. */
#include "pool_ids.h"
#include "pool_block.h"

#define BAG_ID_VECTOR_BYTES 16
#include "simd_ids.h"

/* Arrays of so many ids are searched at once. */
#define SHORT_COUNT 4

bool bag_ref_ids_valid(const struct bag_ids *ids, const struct bag_id_bounds *bounds)
{
    return ids_valid(ids, bounds);
}

size_t bag_ids_first_bad(const struct bag_ids *ids, const struct bag_id_bounds *bounds)
{
    if (ids->count > SHORT_COUNT && bag_ids_kernel()(ids, bounds))
        return ids->count;
    for (size_t i = 0; i < ids->count; i++) {
        int64_t id = bag_id_at(ids, i);
        bool bad = id > bounds->high || (id < 0 && !bounds->any_negative);
        if (bad || (bounds->ascending && i > 0 && id < bag_id_at(ids, i - 1)))
            return i;
    }
    return ids->count;
}

int64_t bag_ids_max(const struct bag_ids *ids)
{
    int64_t largest = -1;
    for (size_t i = 0; i < ids->count; i++) {
        int64_t id = bag_id_at(ids, i);
        largest = id > largest ? id : largest;
    }
    return largest;
}

size_t bag_ids_lower_bound(const struct bag_ids *ids, size_t from, int64_t value)
{
    size_t end = ids->count;
    while (from < end) {
        size_t middle = from + (end - from) / 2;
        if (bag_id_at(ids, middle) < value)
            from = middle + 1;
        else
            end = middle;
    }
    return from;
}
