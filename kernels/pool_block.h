/* What a kernel is handed, and the tables of kernels.
 *
 * A block is a run of bags whose bounds are written out, so that a kernel needs to know neither
 * offsets nor segment ids. */
#ifndef BAG_POOL_BLOCK_H
#define BAG_POOL_BLOCK_H

#include "pool_entries.h"

/* The most bags of one block: bounds fit a small array on the stack. */
#define BAG_BLOCK_BAGS 256

struct bag_block {
    const struct bag_pool_args *args;
    size_t num_bags;
    const size_t *bounds; /* num_bags + 1; bag i has entries [bounds[i], bounds[i + 1]) */
    size_t end_entry;     /* of the whole range: entries up to here may be prefetched */
    bool is_first;        /* of its range: its first rows have not been prefetched */
    size_t first_column, end_column;
    char *out; /* row of the block's first bag in the result, from column 0 */
};

/* Pools a block: writes the columns [first_column, end_column) of every bag. */
typedef void bag_block_fn(const struct bag_block *block);

/* The plain C kernel, for any table: it defines every result. */
void bag_ref_block(const struct bag_block *block);

/* Writes bag number `bag` of the block, in which no entry is left: the default row, or zeros. */
void bag_ref_empty(const struct bag_block *block, size_t bag);

/* Whether all ids are within the bounds. */
typedef bool bag_ids_fn(const struct bag_ids *ids, const struct bag_id_bounds *bounds);

bag_ids_fn bag_ref_ids_valid;

/* ---- kernels by instruction set -------------------------------------------------------------- */

/* The kinds of rows that kernels differ by. X(ID, bits of an element, vector type that sums it) */
#define BAG_ROW_KINDS(X) \
    X(F32, 32, f32v)     \
    X(F16, 16, f32v)     \
    X(BF16, 16, f32v)    \
    X(INT8, 8, f32v)     \
    X(INT4, 4, f32v)     \
    X(E4M3, 8, f32v)     \
    X(E5M2, 8, f32v)     \
    X(F64, 64, f64v)

enum bag_row_kind {
#define BAG_X(id, bits, vector) BAG_KIND_OF_##id,
    BAG_ROW_KINDS(BAG_X)
#undef BAG_X
        BAG_KIND_OF_INTEGERS,
    BAG_ROW_KIND_COUNT
};

struct bag_kernels {
    bag_block_fn *pool[BAG_ROW_KIND_COUNT];
    bag_ids_fn *ids_valid;
};

/* Those of other processor families are not linked in. */
extern const struct bag_kernels bag_generic_kernels, bag_neon_kernels, bag_avx2_kernels,
    bag_avx512_kernels;

/* The kernel in use for the table's rows. */
bag_block_fn *bag_kernel_for(const struct bag_table *table);

/* The check of ids in use. */
bag_ids_fn *bag_ids_kernel(void);

#endif
