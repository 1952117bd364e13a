/* The tables of kernels, one per instruction set.
 *
 * Must not know: how a kernel works. */
#ifndef BAG_DISPATCH_H
#define BAG_DISPATCH_H

#include "pool_block.h"

/* The kinds of rows that kernels differ by.
 * X(ID, bits of an element, vector vocabulary that pools it) */
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
#define BAG_X(id, bits, vocabulary) BAG_KIND_OF_##id,
    BAG_ROW_KINDS(BAG_X)
#undef BAG_X
        BAG_KIND_OF_INTEGERS,
    BAG_ROW_KIND_COUNT
};

struct bag_kernels {
    bag_block_fn *pool[BAG_ROW_KIND_COUNT];
};

/* Only those of the processor's family are there. */
extern const struct bag_kernels bag_generic_kernels, bag_neon_kernels, bag_avx2_kernels,
    bag_avx512_kernels;

/* The kernel in use for the table's rows. */
bag_block_fn *bag_kernel_for(const struct bag_table *table);

#endif
