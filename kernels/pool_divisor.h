/* What the sum of a bag is divided by: the same operations in the same order for every kernel.
 *
 * A divisor of zero means that the result is zero, not a quotient.
 *
 * Must not know: rows. */
#ifndef BAG_POOL_DIVISOR_H
#define BAG_POOL_DIVISOR_H

#include "pool_block.h"

/* The sum of the weights of the entries that stay, or of their squares, in index order. */
#define BAG_DEFINE_DIVISOR(name, real, weight_of, fused, root)                                     \
    static inline real name(const struct bag_pool_args *args, size_t first, size_t end,            \
                            size_t kept)                                                           \
    {                                                                                              \
        bool is_mean = args->reduction == BAG_MEAN;                                                \
        if (!args->weights)                                                                        \
            return is_mean ? (real)kept : root((real)kept);                                        \
        real sum = 0;                                                                              \
        for (size_t entry = first; entry < end; entry++) {                                         \
            if (!bag_keeps_all(args) && !bag_keeps(args, entry, bag_id_at(&args->indices, entry))) \
                continue;                                                                          \
            real weight = weight_of(args, entry);                                                  \
            sum = is_mean ? sum + weight : fused(weight, weight, sum);                             \
        }                                                                                          \
        return is_mean ? sum : root(sum);                                                          \
    }

BAG_DEFINE_DIVISOR(bag_divisor_f32, float, bag_weight_f32, __builtin_fmaf, __builtin_sqrtf)
BAG_DEFINE_DIVISOR(bag_divisor_f64, double, bag_weight_f64, __builtin_fma, __builtin_sqrt)

#endif
