/* The instances of the loop for one instruction set: every kind of row, mode and number of vectors.
 * Included once per instruction set, after its operations and
 *
 *   #define BAG_KERNELS            the name of the table to define
 *   #define BAG_BELOW(kind)        the kernel for rows narrower than a vector
 *   #define BAG_WHOLE_VECTORS      rows of up to so many vectors are one tile
 *   #define BAG_LONG_TILE_VECTORS  longer rows are split into tiles of so many
 *   #define BAG_FAR_BYTES          how far ahead the rows of large tables are prefetched
 *   #define BAG_FAR_CACHE          into which cache they are: 1 or 2 */
#include "pool_tiles.h"
#include "simd.h"

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

#define INSTANCE(vector, kind, mode, vectors)                                   \
    static void kind##_##mode##_##vectors(const struct bag_tile_task *task)     \
    {                                                                           \
        vector##_pool_bags(task, BAG_KIND_OF_##kind, BAG_MODE_##mode, vectors); \
    }

#define COUNTS(X, ...) \
    X(__VA_ARGS__, 1)  \
    X(__VA_ARGS__, 2)  \
    X(__VA_ARGS__, 3)  \
    X(__VA_ARGS__, 4)  \
    X(__VA_ARGS__, 5)  \
    X(__VA_ARGS__, 6)  \
    X(__VA_ARGS__, 7)  \
    X(__VA_ARGS__, 8)

#define NAME(kind, mode, vectors) kind##_##mode##_##vectors,

/* The kernel of one kind of rows. */
#define KERNEL(vector, kind, element_bits)                                 \
    COUNTS(INSTANCE, vector, kind, PLAIN)                                  \
    COUNTS(INSTANCE, vector, kind, WEIGHTED)                               \
    COUNTS(INSTANCE, vector, kind, GENERAL)                                \
                                                                           \
    static void below_##kind(const struct bag_block *block)                \
    {                                                                      \
        BAG_BELOW(kind)(block);                                            \
    }                                                                      \
                                                                           \
    static void pool_##kind(const struct bag_block *block)                 \
    {                                                                      \
        static const struct bag_tile_set set = {                           \
            .pool = {[BAG_MODE_PLAIN] = {COUNTS(NAME, kind, PLAIN)},       \
                     [BAG_MODE_WEIGHTED] = {COUNTS(NAME, kind, WEIGHTED)}, \
                     [BAG_MODE_GENERAL] = {COUNTS(NAME, kind, GENERAL)}},  \
            .bits = element_bits,                                          \
            .lanes = vector##_lanes,                                       \
            .whole_vectors = BAG_WHOLE_VECTORS,                            \
            .tile_vectors = BAG_LONG_TILE_VECTORS,                         \
            .far_bytes = BAG_FAR_BYTES,                                    \
            .far_cache = BAG_FAR_CACHE,                                    \
            .below = below_##kind,                                         \
        };                                                                 \
        bag_tiles_pool(block, &set);                                       \
    }

#define BAG_X(id, bits, vector) KERNEL(vector, id, bits)
BAG_ROW_KINDS(BAG_X)
#undef BAG_X

const struct bag_kernels BAG_KERNELS = {.pool = {
#define BAG_X(id, bits, vector) [BAG_KIND_OF_##id] = pool_##id,
                                            BAG_ROW_KINDS(BAG_X)
#undef BAG_X
                                                [BAG_KIND_OF_INTEGERS] = bag_ref_block}};
