/* Cutting a range of the result into blocks of bags, and finding where bags begin and end.
 *
 * Must not know: elements, instruction sets. */
#include "dispatch.h"
#include "pool_block.h"

struct bag_range bag_range_all(const struct bag_pool *pool)
{
    return (struct bag_range){0, pool->num_bags, 0, pool->table.row_elements};
}

/* Where the bags begin that `offsets` names; past the last one, where the last bag ends. */
static size_t offset_at(const struct bag_pool *pool, size_t bag)
{
    return bag < pool->groups.count ? (size_t)bag_id_at(&pool->groups, bag) : pool->indices.count;
}

static inline __attribute__((always_inline)) void copy_ids(struct bag_ids ids, bool wide,
                                                           size_t first, size_t count, size_t *copy)
{
    ids.wide = wide;
    for (size_t i = 0; i < count; i++)
        copy[i] = (size_t)bag_id_at(&ids, first + i);
}

static void copy_offsets(const struct bag_pool *pool, size_t first_bag, size_t num_bags,
                         size_t *borders)
{
    if (pool->groups.wide)
        copy_ids(pool->groups, true, first_bag, num_bags, borders);
    else
        copy_ids(pool->groups, false, first_bag, num_bags, borders);
    borders[num_bags] = offset_at(pool, first_bag + num_bags);
}

/* Walks on from the first entry of `first_bag`. */
static size_t walk_segments(const struct bag_pool *pool, size_t entry, size_t first_bag,
                            size_t num_bags, size_t *borders)
{
    for (size_t i = 0; i <= num_bags; i++) {
        int64_t bag = (int64_t)(first_bag + i);
        while (entry < pool->groups.count && bag_id_at(&pool->groups, entry) < bag)
            entry++;
        borders[i] = entry;
    }
    return entry;
}

void bag_pool_borders(const struct bag_pool *pool, size_t first_bag, size_t end_bag, size_t *hint,
                      size_t *borders)
{
    size_t num_bags = end_bag - first_bag;
    switch (pool->form) {
    case BAG_FORM_OFFSETS:
        copy_offsets(pool, first_bag, num_bags, borders);
        break;
    case BAG_FORM_PACKED:
        for (size_t i = 0; i <= num_bags; i++)
            borders[i] = (first_bag + i) * pool->bag_length;
        break;
    case BAG_FORM_SEGMENTS:
        *hint = bag_ids_lower_bound(&pool->groups, *hint, (int64_t)first_bag);
        *hint = walk_segments(pool, *hint, first_bag, num_bags, borders);
        break;
    }
}

size_t bag_pool_entries_before(const struct bag_pool *pool, size_t bag)
{
    switch (pool->form) {
    case BAG_FORM_OFFSETS:
        return pool->num_bags == 0 ? 0 : offset_at(pool, bag) - offset_at(pool, 0);
    case BAG_FORM_PACKED:
        return bag * pool->bag_length;
    case BAG_FORM_SEGMENTS:
        break;
    }
    return bag_ids_lower_bound(&pool->groups, 0, (int64_t)bag);
}

size_t bag_count_kept(const struct bag_pool *pool, size_t first, size_t end)
{
    if (bag_keeps_all(pool))
        return end - first;
    size_t kept = 0;
    for (size_t entry = first; entry < end; entry++)
        kept += bag_keeps(pool, entry, bag_id_at(&pool->indices, entry));
    return kept;
}

void bag_pool_run(const struct bag_pool *pool, struct bag_range range, void *out)
{
    bag_block_fn *pool_block = bag_kernel_for(&pool->table);
    size_t borders[BAG_BLOCK_BAGS + 1] BAG_UNSET;
    size_t end_entry;
    size_t hint = 0;
    if (range.first_column >= range.end_column || range.first_bag >= range.end_bag)
        return;
    bag_pool_borders(pool, range.end_bag, range.end_bag, &hint, &end_entry);
    hint = 0;
    for (size_t bag = range.first_bag; bag < range.end_bag;) {
        size_t left = range.end_bag - bag;
        size_t count = left < BAG_BLOCK_BAGS ? left : BAG_BLOCK_BAGS;
        bag_pool_borders(pool, bag, bag + count, &hint, borders);
        struct bag_block block = {.pool = pool,
                                  .num_bags = count,
                                  .borders = borders,
                                  .end_entry = end_entry,
                                  .is_first = bag == range.first_bag,
                                  .first_column = range.first_column,
                                  .end_column = range.end_column,
                                  .out = (char *)out + bag * pool->bag_stride};
        pool_block(&block);
        bag += count;
    }
}
