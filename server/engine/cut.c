/* Cutting one call into ranges; see cut.h. */
#include "cut.h"

/* A bag costs something even where it is empty: as much as this many indices. */
#define BAG_WEIGHT 1

/* Columns are cut at multiples of this, a cache line of the widest rows. */
#define COLUMN_STEP 16

static size_t weight_before(const struct bag_pool *pool, size_t bag)
{
    return bag_pool_entries_before(pool, bag) + BAG_WEIGHT * bag;
}

/* The first bag before which at least `weight` stands. */
static size_t bag_at(const struct bag_pool *pool, size_t weight)
{
    size_t low = 0, high = pool->num_bags;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (weight_before(pool, middle) < weight)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static unsigned cut_columns(const struct bag_pool *pool, unsigned parts, struct bag_range *ranges)
{
    struct bag_range all = bag_range_all(pool);
    size_t steps = (all.end_column + COLUMN_STEP - 1) / COLUMN_STEP;
    unsigned count = 0;
    if (parts > steps)
        parts = (unsigned)steps;
    for (unsigned i = 0; i < parts; i++) {
        ranges[count] = all;
        ranges[count].first_column = steps * i / parts * COLUMN_STEP;
        if (i + 1 < parts)
            ranges[count].end_column = steps * (i + 1) / parts * COLUMN_STEP;
        count++;
    }
    return count;
}

/* Whether some range got a quarter more than its share, so that cutting by bags gained little. */
static bool is_uneven(const struct bag_pool *pool, const struct bag_range *ranges, unsigned count,
                      size_t share)
{
    for (unsigned i = 0; i < count; i++) {
        if (weight_before(pool, ranges[i].end_bag) - weight_before(pool, ranges[i].first_bag) >
            share + share / 4)
            return true;
    }
    return false;
}

unsigned bag_cut(const struct bag_pool *pool, unsigned parts, struct bag_range *ranges)
{
    struct bag_range all = bag_range_all(pool);
    size_t total = weight_before(pool, pool->num_bags), first = 0;
    unsigned count = 0;
    for (unsigned i = 1; i <= parts; i++) {
        size_t end = i < parts ? bag_at(pool, total / parts * i) : pool->num_bags;
        if (end == first)
            continue;
        ranges[count] = all;
        ranges[count].first_bag = first;
        ranges[count].end_bag = end;
        count++;
        first = end;
    }
    if (count == 0)
        ranges[count++] = all;
    if (all.end_column > COLUMN_STEP && parts > 1 &&
        (count < parts || is_uneven(pool, ranges, count, total / parts)))
        count = cut_columns(pool, parts, ranges);
    return count;
}
