/* Whole arrays of ids: the loops that run once over everything a client sent.
 *
 * They go block by block: a block is judged as a whole, without a branch per element, so that the
 * compiler can use vectors; only a bad block is searched for its position.
 *
 * Must not know: what the ids mean. */
#include "pool_ids.h"

#define BLOCK 256

/* Widens a block of ids, so that every judgement is written once. */
static size_t widen(const struct bag_ids *ids, size_t from, int64_t *block)
{
    size_t count = ids->count - from < BLOCK ? ids->count - from : BLOCK;
    if (ids->wide) {
        memcpy(block, (const char *)ids->data + from * sizeof(int64_t), count * sizeof *block);
        return count;
    }
    int32_t narrow[BLOCK];
    memcpy(narrow, (const char *)ids->data + from * sizeof *narrow, count * sizeof *narrow);
    for (size_t i = 0; i < count; i++)
        block[i] = narrow[i];
    return count;
}

size_t bag_ids_first_outside(const struct bag_ids *ids, int64_t low, int64_t high)
{
    int64_t block[BLOCK];
    for (size_t from = 0; from < ids->count;) {
        size_t count = widen(ids, from, block);
        int64_t outside = 0;
        for (size_t i = 0; i < count; i++)
            outside |= (int64_t)(block[i] < low) | (int64_t)(block[i] > high);
        for (size_t i = 0; outside && i < count; i++)
            if (block[i] < low || block[i] > high)
                return from + i;
        from += count;
    }
    return ids->count;
}

size_t bag_ids_first_descent(const struct bag_ids *ids)
{
    int64_t block[BLOCK];
    int64_t before = INT64_MIN;
    for (size_t from = 0; from < ids->count;) {
        size_t count = widen(ids, from, block);
        int64_t descents = before > block[0];
        for (size_t i = 1; i < count; i++)
            descents |= (int64_t)(block[i - 1] > block[i]);
        for (size_t i = 0; descents && i < count; i++) {
            if (before > block[i])
                return from + i;
            before = block[i];
        }
        before = block[count - 1];
        from += count;
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
