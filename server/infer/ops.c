/* The ops of one request; see ops.h. */
#include "ops.h"

/* Columns are split at multiples of this, a cache line of the widest rows. */
#define COLUMN_STEP 16

size_t bag_column_steps(size_t columns)
{
    return (columns + COLUMN_STEP - 1) / COLUMN_STEP;
}

struct bag_split bag_split_all(size_t num_ops)
{
    return (struct bag_split){.end_op = num_ops, .num_column_splits = 1};
}

struct bag_range bag_split_range(const struct bag_split *split, const struct bag_pool_args *args,
                                 size_t op)
{
    struct bag_range range = bag_range_all(args);
    if (split->num_column_splits > 1) {
        size_t steps = bag_column_steps(range.end_column);
        size_t first = steps * split->column_split / split->num_column_splits * COLUMN_STEP;
        size_t end = steps * (split->column_split + 1) / split->num_column_splits * COLUMN_STEP;
        range.first_column = first;
        range.end_column = end < range.end_column ? end : range.end_column;
    }
    if (op == split->first_op)
        range.first_bag = split->first_bag;
    if (op == split->end_op)
        range.end_bag = split->end_bag;
    return range;
}

void bag_ops_run(const struct bag_op *ops, struct bag_split split)
{
    /* The last one may have no bag in it, and then need not exist. */
    size_t end = split.end_op + (split.end_bag > 0);
    for (size_t i = split.first_op; i < end; i++)
        bag_pool_run(&ops[i].args, bag_split_range(&split, &ops[i].args, i), ops[i].result);
}

struct bag_ops_work bag_ops_count_work(const struct bag_op *ops, size_t count)
{
    struct bag_ops_work work = {0};
    for (size_t i = 0; i < count; i++) {
        const struct bag_pool_args *args = &ops[i].args;
        work.bags += args->num_bags;
        work.rows += args->indices.count;
        work.bytes += args->indices.count * bag_row_bytes(&args->table);
        work.unsorted += args->unsorted ? args->indices.count : 0;
    }
    return work;
}

static size_t count_default_bags(const struct bag_pool_args *args)
{
    size_t count = 0, before = 0;
    if (args->default_row < 0)
        return 0;
    for (size_t bag = 0; bag < args->num_bags; bag++) {
        size_t entries = bag_pool_entries_before(args, bag + 1);
        count += entries == before;
        before = entries;
    }
    return count;
}

size_t bag_ops_default_bags(const struct bag_op *ops, size_t count)
{
    size_t bags = 0;
    for (size_t i = 0; i < count; i++)
        bags += count_default_bags(&ops[i].args);
    return bags;
}
