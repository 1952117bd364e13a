/* The instances of the loop for one instruction set: every kind of row, mode and number of vectors.
 * Included once per instruction set, after its operations and
 *
 *   #define BAG_KERNELS              the name of the table to define
 *   #define BAG_BELOW(kind)          the kernel for rows narrower than a vector
 *   #define BAG_WHOLE_TILES(X, ...)  X(__VA_ARGS__, n) for rows of n vectors that are one tile
 *   #define BAG_SPLIT_TILES(X, ...)  likewise for rows that are split into tiles of n vectors
 *   #define BAG_LARGEST_TILE(X, ...) likewise for the largest such n alone
 *   #define BAG_ID_VECTOR_BYTES      bytes of the vectors that check ids
 *   #define BAG_FAR_BYTES            how far ahead the rows of large tables are prefetched
 *   #define BAG_FAR_CACHE            into which cache they are: 1 or 2 */
#include "pool_tiles.h"
#include "simd.h"
#include "simd_ids.h"

#define BODY         f32v
#define BODY_REAL    float
#define BODY_DTYPE   BAG_F32
#define BODY_DIVISOR bag_divisor_f32
#include "pool_body.h"

#define BODY         f64v
#define BODY_REAL    double
#define BODY_DTYPE   BAG_F64
#define BODY_DIVISOR bag_divisor_f64
#include "pool_body.h"

/* A function for rows of one tile of so many vectors, */
#define WHOLE(vector, kind, mode, vectors)                                             \
    static void kind##_##mode##_##vectors(const struct bag_tile_task *task)            \
    {                                                                                  \
        vector##_pool_bags(task, BAG_KIND_OF_##kind, BAG_MODE_##mode, vectors, false); \
    }

/* and one for rows of several. */
#define SPLIT(vector, kind, mode, vectors)                                            \
    static void kind##_##mode##_split_##vectors(const struct bag_tile_task *task)     \
    {                                                                                 \
        vector##_pool_bags(task, BAG_KIND_OF_##kind, BAG_MODE_##mode, vectors, true); \
    }

#define WHOLE_NAME(vector, kind, mode, vectors) [vectors - 1] = kind##_##mode##_##vectors,
#define COUNT(vector, kind, mode, vectors)      vectors
#define SPLIT_NAME(vector, kind, mode, vectors) [vectors - 1] = kind##_##mode##_split_##vectors,

/* The kernel of one kind of rows. The general mode has tiles of the largest width only, where it
 * splits rows. */
#define KERNEL(vector, kind, element_bits)                                    \
    BAG_WHOLE_TILES(WHOLE, vector, kind, PLAIN)                               \
    BAG_WHOLE_TILES(WHOLE, vector, kind, WEIGHTED)                            \
    BAG_WHOLE_TILES(WHOLE, vector, kind, GENERAL)                             \
    BAG_SPLIT_TILES(SPLIT, vector, kind, PLAIN)                               \
    BAG_SPLIT_TILES(SPLIT, vector, kind, WEIGHTED)                            \
    BAG_LARGEST_TILE(SPLIT, vector, kind, GENERAL)                            \
                                                                              \
    static void below_##kind(const struct bag_block *block)                   \
    {                                                                         \
        BAG_BELOW(kind)(block);                                               \
    }                                                                         \
                                                                              \
    static void pool_##kind(const struct bag_block *block)                    \
    {                                                                         \
        static const struct bag_tile_set set = {                              \
            .whole = {{BAG_WHOLE_TILES(WHOLE_NAME, vector, kind, PLAIN)},     \
                      {BAG_WHOLE_TILES(WHOLE_NAME, vector, kind, WEIGHTED)},  \
                      {BAG_WHOLE_TILES(WHOLE_NAME, vector, kind, GENERAL)}},  \
            .split = {{BAG_SPLIT_TILES(SPLIT_NAME, vector, kind, PLAIN)},     \
                      {BAG_SPLIT_TILES(SPLIT_NAME, vector, kind, WEIGHTED)},  \
                      {BAG_LARGEST_TILE(SPLIT_NAME, vector, kind, GENERAL)}}, \
            .largest_tile = BAG_LARGEST_TILE(COUNT, vector, kind, PLAIN),     \
            .bits = element_bits,                                             \
            .lanes = vector##_lanes,                                          \
            .far_bytes = BAG_FAR_BYTES,                                       \
            .far_cache = BAG_FAR_CACHE,                                       \
            .below = below_##kind,                                            \
        };                                                                    \
        bag_tiles_pool(block, &set);                                          \
    }

#define BAG_X(id, bits, vector) KERNEL(vector, id, bits)
BAG_ROW_KINDS(BAG_X)
#undef BAG_X

const struct bag_kernels BAG_KERNELS = {
    .pool =
        {
#define BAG_X(id, bits, vector) [BAG_KIND_OF_##id] = pool_##id,
            BAG_ROW_KINDS(BAG_X)
#undef BAG_X
                [BAG_KIND_OF_INTEGERS] = bag_ref_block,
        },
    .ids_valid = ids_valid,
};
