/* Pooling a range of the result: it is split into blocks of bags, one kernel call each. */
#include "pool_block.h"

struct bag_range bag_range_all(const struct bag_pool_args *args)
{
    return (struct bag_range){0, args->num_bags, 0, args->table.row_elements};
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
