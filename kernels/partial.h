/* Answers of parts of a table, and the whole that they make.
 *
 * Where several servers have parts of a table by rows or by keys, each pools the entries that it
 * has. Of a bag it says
 *
 *   sums         what its rows add up to, not divided, in the type that they are added in: FP32 of
 *                tables of FP16, BF16, FP32 and quantised rows, otherwise the table's; of max the
 *                largest values. Of a mean of integers they are exact: three words of 64 bits
 *                each, the lowest first, two's complement. Without a reduction a bag is an id, and
 *                has its row as the table stores it, or FP32 of quantised rows
 *   count        how many entries it pooled; of 0 the sums are zeros, whatever the default row is
 *   weight sums  of its entries' weights, or for sqrtn of their squares, added as a divisor is:
 *                FP32, FP64 of FP64 tables; of integers exact, as above
 *
 * and bag_merge makes the bag's result of all. Integers and largest values are those of one table
 * (but for the sign of a zero that is the largest of zeros); sums of floats are added in another
 * order, see PROTOCOL.md. */
#ifndef BAG_PARTIAL_H
#define BAG_PARTIAL_H

#include "table.h"

struct bag_pool_args; /* pool.h */

/* The types of a part's answer, and how many words an element has: 1, or 3 where it is exact. */
struct bag_partial_form {
    enum bag_dtype sums_dtype, weights_dtype;
    size_t sum_words, weight_words;
};

/* The form of answers about a table of `dtype` for a reduction of the whole. */
struct bag_partial_form bag_partial_form(enum bag_dtype dtype, enum bag_reduction reduction);

/* Makes a checked call pool sums, as said above; result_bytes and bag_stride are SIZE_MAX where
 * they overflow. */
void bag_pool_make_partial(struct bag_pool_args *args);

/* Writes the counts of all bags of a partial call, INT64, and their weight sums where it has
 * weights; any alignment. */
void bag_pool_counts(const struct bag_pool_args *args, void *counts);
void bag_pool_weight_sums(const struct bag_pool_args *args, void *weight_sums);

/* What is to be made of parts' answers. */
struct bag_merge {
    enum bag_dtype dtype; /* of the table */
    enum bag_reduction reduction;
    bool is_weighted;
    enum bag_dtype output_dtype; /* as a call's */
    size_t columns;
};

/* What a part says of a bag; any alignment. */
struct bag_share {
    const void *sums;        /* [columns, words] */
    const void *weight_sums; /* [words]; read where the call is weighted */
    uint64_t count;
};

/* Writes the bag that the shares, added in their order, make: zeros where no entry was pooled.
 * Whatever the numbers are, nothing else happens. */
void bag_merge(const struct bag_merge *merge, const struct bag_share *shares, size_t num_shares,
               void *out);

#endif
