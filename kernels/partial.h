/* Partial results: the answers of the parts of a table, and how they are merged.
 *
 * If several servers have parts of a table by rows or by keys, each pools its own entries.
 * Its answer for a bag contains
 *
 *   sums         the sum of the rows, not divided, in the type of accumulation: FP32 for tables of
 *                FP16, BF16, FP32 and quantised rows, otherwise the table's type. For max, the
 *                largest values. For a mean of integers, exact sums: three words of 64 bits each,
 *                the lowest first, in two's complement. Without a reduction a bag is an id, and the
 *                answer is its row as the table stores it, or FP32 for quantised rows
 *   count        the number of entries that were pooled. If it is 0, the sums are zeros, whatever
 *                the default row is
 *   weight sums  the sum of the entries' weights, or for sqrtn of their squares, accumulated like a
 *                divisor: FP32, or FP64 for FP64 tables. For integers, exact sums as above
 *
 * bag_merge() makes the result of the bag from all answers. Integers and largest values are the
 * same as with one table, except for the sign of a zero that is the maximum. Sums of floats are
 * added in another order, see PROTOCOL.md. */
#pragma once

#include "table.h"

struct bag_pool_args; /* pool.h */

/* The types of a partial answer, and the number of words of an element: 1, or 3 if it is exact. */
struct bag_partial_form {
    enum bag_dtype sums_dtype, weights_dtype;
    size_t sum_words, weight_words;
};

/* Returns the form of answers for a table of `dtype` and a reduction of the whole. */
struct bag_partial_form bag_partial_form(enum bag_dtype dtype, enum bag_reduction reduction);

/* Makes a checked call pool sums, as described above. Sets result_bytes and bag_stride to SIZE_MAX
 * if they overflow. */
void bag_pool_make_partial(struct bag_pool_args *args);

/* Write the counts (INT64) and the weight sums of all bags of a partial call, at any alignment. The
 * call must have weights for the latter. */
void bag_pool_counts(const struct bag_pool_args *args, void *counts);
void bag_pool_weight_sums(const struct bag_pool_args *args, void *weight_sums);

/* The parameters of a merge. */
struct bag_merge {
    enum bag_dtype dtype; /* type of the table */
    enum bag_reduction reduction;
    bool is_weighted;
    enum bag_dtype output_dtype; /* type of the result, as for a call */
    size_t columns;
};

/* The answer of one part for a bag, at any alignment. */
struct bag_share {
    const void *sums;        /* [columns, words] */
    const void *weight_sums; /* [words]; read if the call has weights */
    uint64_t count;
};

/* Merges the shares of a bag in their order and writes the result. Writes zeros if no entry was
 * pooled. It has no other effect, whatever the numbers are. */
void bag_merge(const struct bag_merge *merge, const struct bag_share *shares, size_t num_shares,
               void *out);
