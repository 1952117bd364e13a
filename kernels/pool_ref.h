/* The plain C kernel: the definition of every answer, for all element types.
 *
 * Must not know: instruction sets. */
#ifndef BAG_POOL_REF_H
#define BAG_POOL_REF_H

#include "pool_block.h"

/* Pools a block of any table. */
void bag_ref_block(const struct bag_block *block);

/* Writes a bag in which no entry is left: the default row, copied, or zeros. */
void bag_ref_empty(const struct bag_block *block, size_t bag);

/* Columns that are pooled at a time: their sums stay on the stack, in the fastest cache. */
#define BAG_REF_TILE 64

union bag_tile {
    float f32[BAG_REF_TILE];
    double f64[BAG_REF_TILE];
    uint64_t u64[BAG_REF_TILE]; /* integers, sign-extended where they have signs */
};

/* The least work a kernel does: one bag, some columns. */
struct bag_piece {
    const struct bag_pool_args *args;
    size_t first_entry, end_entry;
    size_t num_kept; /* entries that stay; above 0 */
    size_t column, num_columns;
};

/* The steps that differ between the kinds of elements. Values are what elements are computed in:
 * f32 for f16, bf16 and f32; f64; 64-bit integers for all integers. */
struct bag_ref_kind {
    /* Columns of a row as values. */
    void (*load)(const struct bag_pool_args *args, int64_t row, size_t column, size_t count,
                 union bag_tile *values);
    void (*add)(union bag_tile *sums, const union bag_tile *values, size_t count);
    void (*add_weighted)(const struct bag_pool_args *args, size_t entry, union bag_tile *sums,
                         const union bag_tile *values, size_t count);
    void (*max)(const struct bag_pool_args *args, union bag_tile *largest,
                const union bag_tile *values, size_t count);
    /* Makes means or sqrtn of sums. */
    void (*divide)(const struct bag_piece *piece, union bag_tile *sums);
    /* Writes values as elements of the result. */
    void (*store)(const struct bag_pool_args *args, const union bag_tile *values, size_t count,
                  void *out);
};

extern const struct bag_ref_kind bag_ref_f32, bag_ref_f64, bag_ref_integer;

/* The exact mean of integers, weighted or not, toward zero, where 64 bits do not hold the sum. */
bool bag_ref_needs_exact(const struct bag_piece *piece);
void bag_ref_exact_mean(const struct bag_piece *piece, union bag_tile *means);

#endif
