/* The ops of one request: a list of checked calls of the kernels, each with the place of its
 * result. A request for a table has one, one for a collection has one or more for each feature.
 */
#ifndef BAG_OPS_H
#define BAG_OPS_H

#include "kernels/pool.h"

struct bag_op {
    struct bag_pool_args args;
    size_t output;  /* of which of the reply's outputs the result is a part */
    size_t offset;  /* of its first bag in that output, in bytes */
    char *result;   /* where the op writes, once there is memory */
    size_t feature; /* of the model */

    /* Where pooled rows, in FP32, are yet to be projected into the output. */
    const struct bag_projection *projection; /* borrowed; NULL: the op writes to the output */
    enum bag_dtype dtype;                    /* of the output */
    size_t stride;                           /* of the output's rows, in bytes */
    char *target;                            /* its first row, once there is memory */
};

/* A range of the work: bags of the list, counted as if they were one after the other, and of all of
 * them a range of the columns. */
struct bag_split {
    size_t first_op, first_bag;               /* from here on */
    size_t end_op, end_bag;                   /* up to here, where no bag of it has begun */
    unsigned column_split, num_column_splits; /* columns: this one of so many */
};

/* Into how many ranges so many columns can be split. */
size_t bag_column_steps(size_t columns);

/* All of it. */
struct bag_split bag_split_all(size_t num_ops);

/* Bags and columns of an op that are in the split. */
struct bag_range bag_split_range(const struct bag_split *split, const struct bag_pool_args *args,
                                 size_t op);

/* Pools a split; disjoint ones may run at the same time. */
void bag_ops_run(const struct bag_op *ops, struct bag_split split);

/* How much a list pools. Indices that are shared by two ops count twice. */
struct bag_ops_work {
    size_t bags, rows, bytes; /* bytes of the rows */
    size_t unsorted;          /* rows whose segments are yet to be sorted */
};
struct bag_ops_work bag_ops_count_work(const struct bag_op *ops, size_t count);

/* For the statistics: bags that brought no index, where those get a row. */
size_t bag_ops_default_bags(const struct bag_op *ops, size_t count);

#endif
