/* The pools of one request; see pooling.h. */
#include "pooling.h"

/* Columns are cut at multiples of this, a cache line of the widest rows. */
#define COLUMN_STEP 16

size_t bag_column_steps(size_t columns)
{
    return (columns + COLUMN_STEP - 1) / COLUMN_STEP;
}

struct bag_slice bag_slice_all(size_t num_poolings)
{
    return (struct bag_slice){.end_pooling = num_poolings, .num_shares = 1};
}

struct bag_range bag_slice_range(const struct bag_slice *slice, const struct bag_pool *pool,
                                 size_t pooling)
{
    struct bag_range range = bag_range_all(pool);
    if (slice->num_shares > 1) {
        size_t steps = bag_column_steps(range.end_column);
        size_t first = steps * slice->share / slice->num_shares * COLUMN_STEP;
        size_t end = steps * (slice->share + 1) / slice->num_shares * COLUMN_STEP;
        range.first_column = first;
        range.end_column = end < range.end_column ? end : range.end_column;
    }
    if (pooling == slice->first_pooling)
        range.first_bag = slice->first_bag;
    if (pooling == slice->end_pooling)
        range.end_bag = slice->end_bag;
    return range;
}

void bag_poolings_run(const struct bag_pooling *poolings, struct bag_slice slice)
{
    /* The last one may have no bag in it, and then need not exist. */
    size_t end = slice.end_pooling + (slice.end_bag > 0);
    for (size_t i = slice.first_pooling; i < end; i++)
        bag_pool_run(&poolings[i].pool, bag_slice_range(&slice, &poolings[i].pool, i),
                     poolings[i].result);
}

struct bag_pooling_work bag_poolings_work(const struct bag_pooling *poolings, size_t count)
{
    struct bag_pooling_work work = {0};
    for (size_t i = 0; i < count; i++) {
        const struct bag_pool *pool = &poolings[i].pool;
        work.bags += pool->num_bags;
        work.rows += pool->indices.count;
        work.bytes += pool->indices.count * bag_row_bytes(&pool->table);
    }
    return work;
}

static size_t count_default_bags(const struct bag_pool *pool)
{
    size_t count = 0, before = 0;
    if (pool->default_row < 0)
        return 0;
    for (size_t bag = 0; bag < pool->num_bags; bag++) {
        size_t entries = bag_pool_entries_before(pool, bag + 1);
        count += entries == before;
        before = entries;
    }
    return count;
}

size_t bag_poolings_default_bags(const struct bag_pooling *poolings, size_t count)
{
    size_t bags = 0;
    for (size_t i = 0; i < count; i++)
        bags += count_default_bags(&poolings[i].pool);
    return bags;
}
