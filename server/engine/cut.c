/* Cutting the pools of one request into slices; see cut.h. */
#include "cut.h"

/* A bag costs something even where it is empty: as much as this many indices. */
#define BAG_WEIGHT 1

struct work {
    const struct bag_pooling *poolings;
    size_t count;
};

/* What an index costs, in bytes; at least one, so that rows of no bytes can be cut too. */
static size_t row_weight(const struct bag_pool *pool)
{
    size_t bytes = bag_row_bytes(&pool->table);
    return bytes ? bytes : 1;
}

static size_t weight_before(const struct bag_pool *pool, size_t bag)
{
    return (bag_pool_entries_before(pool, bag) + BAG_WEIGHT * bag) * row_weight(pool);
}

static size_t weight_of(const struct bag_pool *pool)
{
    return weight_before(pool, pool->num_bags);
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

/* Ends the slice at the first bag before which at least `weight` of all work stands; returns what
 * stands before it. */
static size_t end_at(const struct work *work, size_t weight, struct bag_slice *slice)
{
    size_t before = 0;
    for (size_t i = 0; i < work->count; i++) {
        const struct bag_pool *pool = &work->poolings[i].pool;
        size_t own = weight_of(pool);
        if (weight <= before + own) {
            slice->end_pooling = i;
            slice->end_bag = bag_at(pool, weight - before);
            return before + weight_before(pool, slice->end_bag);
        }
        before += own;
    }
    slice->end_pooling = work->count;
    slice->end_bag = 0;
    return before;
}

static unsigned cut_columns(const struct work *work, unsigned parts, struct bag_slice *slices)
{
    for (unsigned i = 0; i < parts; i++) {
        slices[i] = bag_slice_all(work->count);
        slices[i].share = i;
        slices[i].num_shares = parts;
    }
    return parts;
}

/* How many shares the columns of most work can be cut into. */
static unsigned most_shares(const struct work *work, unsigned parts)
{
    const struct bag_pool *heaviest = &work->poolings[0].pool;
    for (size_t i = 1; i < work->count; i++) {
        if (weight_of(&work->poolings[i].pool) > weight_of(heaviest))
            heaviest = &work->poolings[i].pool;
    }
    size_t steps = bag_column_steps(heaviest->table.row_elements);
    return steps < parts ? (unsigned)steps : parts;
}

unsigned bag_cut(const struct bag_pooling *poolings, size_t count, unsigned parts,
                 struct bag_slice *slices)
{
    struct work work = {poolings, count};
    size_t total = 0, before = 0;
    unsigned made = 0;
    bool uneven = false;
    for (size_t i = 0; i < count; i++)
        total += weight_of(&poolings[i].pool);
    struct bag_slice slice = bag_slice_all(count);
    for (unsigned i = 1; i <= parts; i++) {
        size_t end =
            i < parts ? end_at(&work, total / parts * i, &slice) : end_at(&work, SIZE_MAX, &slice);
        if (end == before)
            continue;
        /* Where one got a quarter more than its share, cutting by bags gained little. */
        uneven |= end - before > total / parts + total / parts / 4;
        slices[made++] = slice;
        slice.first_pooling = slice.end_pooling;
        slice.first_bag = slice.end_bag;
        before = end;
    }
    if (made == 0)
        slices[made++] = bag_slice_all(count);
    unsigned shares = most_shares(&work, parts);
    if (shares > 1 && (made < parts || uneven))
        made = cut_columns(&work, shares, slices);
    return made;
}
