/* What a kernel is handed: a run of bags whose borders are written out, so that it knows neither
 * offsets nor segment ids; and what all kernels ask about an entry.
 *
 * An entry is one position of the indices: a row, and a weight where there are weights.
 *
 * Must not know: instruction sets. */
#ifndef BAG_POOL_BLOCK_H
#define BAG_POOL_BLOCK_H

#include "pool_ids.h"
#include "rowformat.h"

/* The most bags of one block: borders fit a small array on the stack. */
#define BAG_BLOCK_BAGS 256

struct bag_block {
    const struct bag_pool *pool;
    size_t num_bags;
    const size_t *borders; /* num_bags + 1; bag i has entries [borders[i], borders[i + 1]) */
    size_t end_entry;      /* of the whole range: entries up to here may be fetched ahead */
    bool is_first;         /* of its range: nobody has fetched its first rows ahead */
    size_t first_column, end_column;
    char *out; /* row of the block's first bag in the result, from column 0 */
};

/* Pools a block: writes the columns [first_column, end_column) of every bag. */
typedef void bag_block_fn(const struct bag_block *block);

/* Fills borders[0 .. end_bag - first_bag] for bags of the result; at most BAG_BLOCK_BAGS. `*hint`
 * is 0 before the first call and carries the search from one block to the next. */
void bag_pool_borders(const struct bag_pool *pool, size_t first_bag, size_t end_bag, size_t *hint,
                      size_t *borders);

/* ---- weights --------------------------------------------------------------------------------- */

/* The weight of an entry, of f16, bf16 or f32. */
static inline float bag_weight_f32(const struct bag_pool *pool, size_t entry)
{
    if (pool->weights_dtype == BAG_F16)
        return bag_f32_from_f16(bag_load_u16(pool->weights, entry));
    if (pool->weights_dtype == BAG_BF16)
        return bag_f32_from_bf16(bag_load_u16(pool->weights, entry));
    return bag_load_f32(pool->weights, entry);
}

/* The weight of an entry of a table of f64. */
static inline double bag_weight_f64(const struct bag_pool *pool, size_t entry)
{
    return pool->weights_dtype == BAG_F32 ? (double)bag_load_f32(pool->weights, entry)
                                          : bag_load_f64(pool->weights, entry);
}

/* ---- which entries count --------------------------------------------------------------------- */

/* Whether every entry counts, so that nobody has to ask. */
static inline bool bag_keeps_all(const struct bag_pool *pool)
{
    return pool->padding_row < 0 && !pool->skip_outside && !pool->skip_unweighted;
}

/* Whether the weight is above zero; a NaN is not. */
static inline bool bag_weight_counts(const struct bag_pool *pool, size_t entry)
{
    if (pool->weights_dtype == BAG_F64)
        return bag_load_f64(pool->weights, entry) > 0;
    if (bag_dtypes[pool->weights_dtype].kind == BAG_KIND_FLOAT)
        return bag_weight_f32(pool, entry) > 0;
    size_t bytes = bag_dtypes[pool->weights_dtype].bytes;
    const char *at = (const char *)pool->weights + entry * bytes;
    uint64_t bits = 0;
    memcpy(&bits, at, bytes);
    bool negative =
        bag_dtypes[pool->weights_dtype].kind == BAG_KIND_SIGNED && (bits >> (8 * bytes - 1) & 1);
    return bits != 0 && !negative;
}

/* Whether an entry stays in its bag. */
static inline bool bag_keeps(const struct bag_pool *pool, size_t entry, int64_t row)
{
    if (row == pool->padding_row)
        return false;
    if (pool->skip_outside && (row < 0 || row >= pool->table.num_rows))
        return false;
    return !pool->skip_unweighted || bag_weight_counts(pool, entry);
}

/* Entries of [first, end) that stay. */
size_t bag_count_kept(const struct bag_pool *pool, size_t first, size_t end);

#endif
