/* Splitting the ops of one request into ranges; see split.h. */
#include "split.h"

/* A bag costs something even where it is empty: as much as this many indices. */
#define BAG_WEIGHT 1

struct work {
    const struct bag_op *ops;
    size_t count;
};

/* What an index costs, in bytes; at least one, so that rows of no bytes can be split, too. */
static size_t row_weight(const struct bag_pool_args *args)
{
    size_t bytes = bag_row_bytes(&args->table);
    return bytes ? bytes : 1;
}

static size_t weight_before(const struct bag_pool_args *args, size_t bag)
{
    return (bag_pool_entries_before(args, bag) + BAG_WEIGHT * bag) * row_weight(args);
}

static size_t weight_of(const struct bag_pool_args *args)
{
    return weight_before(args, args->num_bags);
}

/* The first bag before which there is at least `weight`. */
static size_t bag_at(const struct bag_pool_args *args, size_t weight)
{
    size_t low = 0, high = args->num_bags;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (weight_before(args, middle) < weight)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Ends the split at the first bag before which there is at least `weight` of all work; returns what
 * stands before it. */
static size_t end_at(const struct work *work, size_t weight, struct bag_split *split)
{
    size_t before = 0;
    for (size_t i = 0; i < work->count; i++) {
        const struct bag_pool_args *args = &work->ops[i].args;
        size_t own = weight_of(args);
        if (weight <= before + own) {
            split->end_op = i;
            split->end_bag = bag_at(args, weight - before);
            return before + weight_before(args, split->end_bag);
        }
        before += own;
    }
    split->end_op = work->count;
    split->end_bag = 0;
    return before;
}

static unsigned split_columns(const struct work *work, unsigned parts, struct bag_split *splits)
{
    for (unsigned i = 0; i < parts; i++) {
        splits[i] = bag_split_all(work->count);
        splits[i].column_split = i;
        splits[i].num_column_splits = parts;
    }
    return parts;
}

/* How many ranges the columns of the heaviest op can be split into. */
static unsigned most_column_splits(const struct work *work, unsigned parts)
{
    const struct bag_pool_args *heaviest = &work->ops[0].args;
    for (size_t i = 1; i < work->count; i++) {
        if (weight_of(&work->ops[i].args) > weight_of(heaviest))
            heaviest = &work->ops[i].args;
    }
    size_t steps = bag_column_steps(heaviest->table.row_elements);
    return steps < parts ? (unsigned)steps : parts;
}

unsigned bag_split_ops(const struct bag_op *ops, size_t count, unsigned parts,
                       struct bag_split *splits)
{
    struct work work = {ops, count};
    size_t total = 0, before = 0;
    unsigned made = 0;
    bool uneven = false;
    for (size_t i = 0; i < count; i++)
        total += weight_of(&ops[i].args);
    struct bag_split split = bag_split_all(count);
    for (unsigned i = 1; i <= parts; i++) {
        size_t end =
            i < parts ? end_at(&work, total / parts * i, &split) : end_at(&work, SIZE_MAX, &split);
        if (end == before)
            continue;
        /* Where one got a quarter more than its part, splitting by bags gained little. */
        uneven |= end - before > total / parts + total / parts / 4;
        splits[made++] = split;
        split.first_op = split.end_op;
        split.first_bag = split.end_bag;
        before = end;
    }
    if (made == 0)
        splits[made++] = bag_split_all(count);
    unsigned columns = most_column_splits(&work, parts);
    if (columns > 1 && (made < parts || uneven))
        made = split_columns(&work, columns, splits);
    return made;
}
