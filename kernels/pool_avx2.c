/* The kernels for AVX2, FMA and F16C. Compiled for these alone: nothing here runs unless the
 * processor has them. */
#if defined(__x86_64__)
#include "simd_avx2.h"

#define BAG_KERNELS     bag_avx2_kernels
#define BAG_BELOW(kind) bag_ref_block
/* clang-format off */
#define BAG_WHOLE_TILES(X, ...) \
    X(__VA_ARGS__, 1) X(__VA_ARGS__, 2) X(__VA_ARGS__, 3) X(__VA_ARGS__, 4) \
    X(__VA_ARGS__, 5) X(__VA_ARGS__, 6) X(__VA_ARGS__, 7) X(__VA_ARGS__, 8)
/* clang-format on */
#define BAG_SPLIT_TILES(X, ...) \
    X(__VA_ARGS__, 5) X(__VA_ARGS__, 6) X(__VA_ARGS__, 7) X(__VA_ARGS__, 8)
#define BAG_LARGEST_TILE(X, ...) X(__VA_ARGS__, 8)
#define BAG_ID_VECTOR_BYTES      32
#define BAG_FAR_BYTES            4096
#define BAG_FAR_CACHE            1
#include "pool_instances.h"
#endif
