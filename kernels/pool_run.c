/* Cutting a range of the result into blocks of bags, and finding where bags begin and end.
 *
 * Must not know: elements, instruction sets. */
#include "dispatch.h"
#include "pool_block.h"

struct bag_range bag_range_all(const struct bag_pool_args *args)
{
    return (struct bag_range){0, args->num_bags, 0, args->table.row_elements};
}

/* Where the bags begin that `offsets` names; past the last one, where the last bag ends. */
static size_t offset_at(const struct bag_pool_args *args, size_t bag)
{
    return bag < args->groups.count ? (size_t)bag_id_at(&args->groups, bag) : args->indices.count;
}

static inline __attribute__((always_inline)) void copy_ids(struct bag_ids ids, bool wide,
                                                           size_t first, size_t count, size_t *copy)
{
    ids.wide = wide;
    for (size_t i = 0; i < count; i++)
        copy[i] = (size_t)bag_id_at(&ids, first + i);
}

static void copy_offsets(const struct bag_pool_args *args, size_t first_bag, size_t num_bags,
                         size_t *bounds)
{
    if (args->groups.wide)
        copy_ids(args->groups, true, first_bag, num_bags, bounds);
    else
        copy_ids(args->groups, false, first_bag, num_bags, bounds);
    bounds[num_bags] = offset_at(args, first_bag + num_bags);
}

/* Walks on from the first entry of `first_bag`. */
static size_t walk_segments(const struct bag_pool_args *args, size_t entry, size_t first_bag,
                            size_t num_bags, size_t *bounds)
{
    for (size_t i = 0; i <= num_bags; i++) {
        int64_t bag = (int64_t)(first_bag + i);
        while (entry < args->groups.count && bag_id_at(&args->groups, entry) < bag)
            entry++;
        bounds[i] = entry;
    }
    return entry;
}

void bag_pool_bounds(const struct bag_pool_args *args, size_t first_bag, size_t end_bag,
                     size_t *hint, size_t *bounds)
{
    size_t num_bags = end_bag - first_bag;
    switch (args->form) {
    case BAG_FORM_OFFSETS:
        copy_offsets(args, first_bag, num_bags, bounds);
        break;
    case BAG_FORM_PACKED:
        for (size_t i = 0; i <= num_bags; i++)
            bounds[i] = (first_bag + i) * args->bag_length;
        break;
    case BAG_FORM_SEGMENTS:
        *hint = bag_ids_lower_bound(&args->groups, *hint, (int64_t)first_bag);
        *hint = walk_segments(args, *hint, first_bag, num_bags, bounds);
        break;
    }
}

size_t bag_pool_entries_before(const struct bag_pool_args *args, size_t bag)
{
    switch (args->form) {
    case BAG_FORM_OFFSETS:
        return args->num_bags == 0 ? 0 : offset_at(args, bag) - offset_at(args, 0);
    case BAG_FORM_PACKED:
        return bag * args->bag_length;
    case BAG_FORM_SEGMENTS:
        break;
    }
    return bag_ids_lower_bound(&args->groups, 0, (int64_t)bag);
}

size_t bag_count_kept(const struct bag_pool_args *args, size_t first, size_t end)
{
    if (bag_keeps_all(args))
        return end - first;
    size_t kept = 0;
    for (size_t entry = first; entry < end; entry++)
        kept += bag_keeps(args, entry, bag_id_at(&args->indices, entry));
    return kept;
}

void bag_pool_run(const struct bag_pool_args *args, struct bag_range range, void *out)
{
    bag_block_fn *pool_block = bag_kernel_for(&args->table);
    size_t bounds[BAG_BLOCK_BAGS + 1] BAG_UNSET;
    size_t end_entry;
    size_t hint = 0;
    if (range.first_column >= range.end_column || range.first_bag >= range.end_bag)
        return;
    bag_pool_bounds(args, range.end_bag, range.end_bag, &hint, &end_entry);
    hint = 0;
    for (size_t bag = range.first_bag; bag < range.end_bag;) {
        size_t left = range.end_bag - bag;
        size_t count = left < BAG_BLOCK_BAGS ? left : BAG_BLOCK_BAGS;
        bag_pool_bounds(args, bag, bag + count, &hint, bounds);
        struct bag_block block = {.args = args,
                                  .num_bags = count,
                                  .bounds = bounds,
                                  .end_entry = end_entry,
                                  .is_first = bag == range.first_bag,
                                  .first_column = range.first_column,
                                  .end_column = range.end_column,
                                  .out = (char *)out + bag * args->bag_stride};
        pool_block(&block);
        bag += count;
    }
}
