/* The kernels for AVX-512. Compiled for it alone: nothing here runs unless the processor has it.
 * Rows narrower than a vector are left to AVX2, which every such processor has. */
#if defined(__x86_64__)
#include "simd_avx512.h"

/* Up to 448 bytes of sums are one tile; longer rows are split into tiles of at most 256. */
#define BAG_KERNELS     bag_avx512_kernels
#define BAG_BELOW(kind) bag_avx2_kernels.pool[BAG_KIND_OF_##kind]
/* clang-format off */
#define BAG_WHOLE_TILES(X, ...) \
    X(__VA_ARGS__, 1) X(__VA_ARGS__, 2) X(__VA_ARGS__, 3) X(__VA_ARGS__, 4) \
    X(__VA_ARGS__, 5) X(__VA_ARGS__, 6) X(__VA_ARGS__, 7)
/* clang-format on */
#define BAG_SPLIT_TILES(X, ...)  X(__VA_ARGS__, 3) X(__VA_ARGS__, 4)
#define BAG_LARGEST_TILE(X, ...) X(__VA_ARGS__, 4)
#define BAG_ID_VECTOR_BYTES      64
#define BAG_FAR_BYTES            16384
#define BAG_FAR_CACHE            2
#include "pool_instances.h"
#endif
