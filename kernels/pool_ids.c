/* Whole arrays of ids: the loops that run once over everything a client sent.
 *
 * An array is first checked as a whole, without a branch, a comparison or an early exit, so that
 * the compiler vectorises the loop even where vectors cannot compare 64-bit integers: every fault
 * shows in the sign of a difference. Only a bad array is searched for its first bad position. */
#include "pool_ids.h"

/* The sign says whether `id`, unless it is negative, is above `high`, which is at least -1. */
static inline int64_t above(int64_t id, int64_t high)
{
    return (int64_t)((uint64_t)high - (uint64_t)id);
}

static inline int64_t without_negative(int64_t id)
{
    return id & ~(id >> 63);
}

/* A difference that overflows needs a negative id, whose own sign says enough. */
static inline int64_t descent(int64_t before, int64_t id)
{
    return (int64_t)((uint64_t)id - (uint64_t)before);
}

/* Whether no id is negative or less than the one before it, and the last, then the largest, is not
 * above `high`. */
static inline __attribute__((always_inline)) bool judge_order(const struct bag_ids *ids,
                                                              int64_t high)
{
    int64_t negative = bag_id_at(ids, 0), descends = above(bag_id_at(ids, ids->count - 1), high);
#pragma GCC unroll 4
    for (size_t i = 1; i < ids->count; i++) {
        negative |= bag_id_at(ids, i);
        descends |= descent(bag_id_at(ids, i - 1), bag_id_at(ids, i));
    }
    return (negative | descends) >= 0;
}

/* Whether all ids are within the bounds; `wide` and what is asked are constants of each call. The
 * two kinds of signs are gathered apart, or each step would wait for the one before it. */
static inline __attribute__((always_inline)) bool
judge(struct bag_ids ids, bool wide, bool any_negative, bool ascending, int64_t high)
{
    int64_t negative = 0, outside = 0;
    ids.wide = wide;
    if (ids.count == 0)
        return true;
    if (ascending)
        return judge_order(&ids, high);
#pragma GCC unroll 4
    for (size_t i = 0; i < ids.count; i++) {
        int64_t id = bag_id_at(&ids, i);
        id = any_negative ? without_negative(id) : id;
        negative |= id;
        outside |= above(id, high);
    }
    return (negative | outside) >= 0;
}

static bool all_good(const struct bag_ids *ids, const struct bag_id_bounds *bounds)
{
    int64_t high = bounds->high;
    if (bounds->any_negative)
        return ids->wide ? judge(*ids, true, true, false, high)
                         : judge(*ids, false, true, false, high);
    if (bounds->ascending)
        return ids->wide ? judge(*ids, true, false, true, high)
                         : judge(*ids, false, false, true, high);
    return ids->wide ? judge(*ids, true, false, false, high)
                     : judge(*ids, false, false, false, high);
}

size_t bag_ids_first_bad(const struct bag_ids *ids, const struct bag_id_bounds *bounds)
{
    if (all_good(ids, bounds))
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
