/* What a kernel is handed: a run of bags whose bounds are written out, so that it knows neither
 * offsets nor segment ids; and what all kernels ask about an entry.
 *
 * An entry is one position of the indices: a row, and a weight where there are weights.
 *
 * Must not know: instruction sets. */
#ifndef BAG_POOL_BLOCK_H
#define BAG_POOL_BLOCK_H

#include "pool_ids.h"
#include "rowformat.h"

/* The most bags of one block: bounds fit a small array on the stack. */
#define BAG_BLOCK_BAGS 256

struct bag_block {
    const struct bag_pool_args *args;
    size_t num_bags;
    const size_t *bounds; /* num_bags + 1; bag i has entries [bounds[i], bounds[i + 1]) */
    size_t end_entry;     /* of the whole range: entries up to here may be fetched ahead */
    bool is_first;        /* of its range: nobody has fetched its first rows ahead */
    size_t first_column, end_column;
    char *out; /* row of the block's first bag in the result, from column 0 */
};

/* Pools a block: writes the columns [first_column, end_column) of every bag. */
typedef void bag_block_fn(const struct bag_block *block);

/* Fills bounds[0 .. end_bag - first_bag] for bags of the result; at most BAG_BLOCK_BAGS. `*hint`
 * is 0 before the first call and carries the search from one block to the next. */
void bag_pool_bounds(const struct bag_pool_args *args, size_t first_bag, size_t end_bag,
                     size_t *hint, size_t *bounds);

/* ---- weights --------------------------------------------------------------------------------- */

/* The weight of an entry, of f16, bf16 or f32. */
static inline float bag_weight_f32(const struct bag_pool_args *args, size_t entry)
{
    if (args->weights_dtype == BAG_F16)
        return bag_f32_from_f16(bag_load_u16(args->weights, entry));
    if (args->weights_dtype == BAG_BF16)
        return bag_f32_from_bf16(bag_load_u16(args->weights, entry));
    return bag_load_f32(args->weights, entry);
}

/* The weight of an entry of a table of f64. */
static inline double bag_weight_f64(const struct bag_pool_args *args, size_t entry)
{
    return args->weights_dtype == BAG_F32 ? (double)bag_load_f32(args->weights, entry)
                                          : bag_load_f64(args->weights, entry);
}

/* ---- which entries count --------------------------------------------------------------------- */

/* Whether every entry counts, so that nobody has to ask. */
static inline bool bag_keeps_all(const struct bag_pool_args *args)
{
    return args->padding_row < 0 && !args->skip_outside && !args->skip_unweighted;
}

/* Whether the weight is above zero; a NaN is not. */
static inline bool bag_weight_counts(const struct bag_pool_args *args, size_t entry)
{
    if (args->weights_dtype == BAG_F64)
        return bag_load_f64(args->weights, entry) > 0;
    if (bag_dtypes[args->weights_dtype].kind == BAG_KIND_FLOAT)
        return bag_weight_f32(args, entry) > 0;
    size_t bytes = bag_dtypes[args->weights_dtype].bytes;
    const char *at = (const char *)args->weights + entry * bytes;
    uint64_t bits = 0;
    memcpy(&bits, at, bytes);
    bool negative =
        bag_dtypes[args->weights_dtype].kind == BAG_KIND_SIGNED && (bits >> (8 * bytes - 1) & 1);
    return bits != 0 && !negative;
}

/* Whether an entry stays in its bag. */
static inline bool bag_keeps(const struct bag_pool_args *args, size_t entry, int64_t row)
{
    if (row == args->padding_row)
        return false;
    if (args->skip_outside && (row < 0 || row >= args->table.num_rows))
        return false;
    return !args->skip_unweighted || bag_weight_counts(args, entry);
}

/* Entries of [first, end) that stay. */
size_t bag_count_kept(const struct bag_pool_args *args, size_t first, size_t end);

#endif
