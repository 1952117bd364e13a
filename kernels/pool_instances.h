/* Makes the instances of the loop for one instruction set: every kind of row, mode and number of
 * vectors. Included once for each instruction set, after its operations and
 *
 *   #define BAG_KERNELS              name of the table to define
 *   #define BAG_BELOW                kernels for rows narrower than a vector, or NULL
 *   #define BAG_PAIRED(kind)         whether a kind is summed in pairs of vectors
 *   #define BAG_NARROW_ROWS          1: there are kernels for rows narrower than a vector
 *   #define BAG_WHOLE_TILES(X, ...)  X(__VA_ARGS__, n) for rows of n vectors that are one tile
 *   #define BAG_FEW_TILES(X, ...)    the same for kinds and modes that are rare
 *   #define BAG_NEAR_TILES(X, ...)   the same for loops without prefetching
 *   #define BAG_WIDE_TILES(X, ...)   the same for kinds for which such tiles are faster
 *   #define BAG_WIDE_WEIGHTED(X, ...) the same with weights; f32 has all wide tiles with weights
 *   #define BAG_SPLIT_TILES(X, ...)  X(__VA_ARGS__, n) for rows split into tiles of n vectors
 *   #define BAG_OTHER_TILES(X, ...)  the same for the kind whose columns cost the most
 *   #define BAG_LONG_TILES(X, ...)   the same for some kinds, for rows of many full tiles
 *   #define BAG_LARGEST_TILE(X, ...) the same for the largest n only
 *   #define BAG_FIND_KEYS            function that finds keys
 *   #define BAG_ID_VECTOR_BYTES      size of the vectors that check ids
 *   #define BAG_FAR                  how much further ahead the rows of far tables are prefetched
 *   #define BAG_TO_FIRST             1: there is a loop that prefetches into L1
 *   #define BAG_FETCHES_SECOND       1: some rows of f32 in L2 are prefetched */
#include "pool_block.h"
#include "simd_ids.h"

/* The types of a vector's lanes, and of a result that is not rounded. */
typedef float f32v_real;
typedef double f64v_real;
static const enum bag_dtype f32v_dtype = BAG_F32, f64v_dtype = BAG_F64;

BAG_LANE float f32v_root(float value)
{
    return __builtin_sqrtf(value);
}

BAG_LANE double f64v_root(double value)
{
    return __builtin_sqrt(value);
}

/* ---- rows of every kind as vectors ----------------------------------------------------------- */

/* A row that is being read. `kind` is a constant wherever the functions below are inlined, so the
 * compiler removes the switches. */
struct f32v_row {
    const char *codes;
    f32v scale;        /* scale of INT8, SINT8, INT2, E4M3 (256 times it) and E5M2 rows */
    f32v bias;         /* bias of INT8 and INT2 rows */
    struct f32v_u4 u4; /* scale and bias of INT4 rows */
    bool padded;       /* eight codes may be read: INT8 rows with f32 scale and bias after them */
};

/* Opens a row whose first column to read is at `at`, and whose scale and bias, if it has any, are
 * at `params`. `half`: those of INT8 and SINT8 are f16. Branches that depend on `rows`, or for
 * SINT8 on `half`, are the same for all rows, so they are predicted. */
BAG_LANE struct f32v_row f32v_open(enum bag_row_kind kind, bool half, const struct bag_rows *rows,
                                   const char *at, const char *params)
{
    struct f32v_row row = {.codes = at, .padded = kind == BAG_KIND_OF_INT8 && !half};
    if (kind == BAG_KIND_OF_INT4 || kind == BAG_KIND_OF_INT2 ||
        (kind == BAG_KIND_OF_INT8 && half)) {
        row.scale = f32v_all_f16(params);
        row.bias = f32v_all_f16(params + sizeof(uint16_t));
    } else if (kind == BAG_KIND_OF_INT8) {
        row.scale = f32v_all(bag_load_f32(params, 0));
        row.bias = f32v_all(bag_load_f32(params, 1));
    }
    if (kind == BAG_KIND_OF_SINT8)
        row.scale = half ? f32v_all_f16(params) : f32v_all(bag_load_f32(params, 0));
    if (kind == BAG_KIND_OF_INT4)
        row.u4 = f32v_u4_open(row.scale, row.bias);
    if (kind == BAG_KIND_OF_E4M3)
        row.scale = f32v_all(rows->has_params ? bag_load_f32(params, 0) * 256 : 256);
    if (kind == BAG_KIND_OF_E5M2)
        row.scale = f32v_all(rows->has_params ? bag_load_f32(params, 0) : 1);
    return row;
}

/* Returns the values from `column` on, counted from where the row was opened. `column` is at a
 * whole byte of codes. For kinds that are not summed in pairs, `part` has no meaning. */
BAG_LANE f32v f32v_columns(enum bag_row_kind kind, bool scaled, enum bag_parity part,
                           const struct f32v_row *row, size_t column)
{
    switch (kind) {
    case BAG_KIND_OF_F16:
        return f32v_load_f16(row->codes + column * sizeof(uint16_t));
    case BAG_KIND_OF_BF16:
        return f32v_load_bf16(part, row->codes + column * sizeof(uint16_t));
    case BAG_KIND_OF_INT8:
        return f32v_fused(f32v_load_u8(row->codes + column), row->scale, row->bias);
    case BAG_KIND_OF_SINT8:
        return f32v_multiply(f32v_load_s8(row->codes + column), row->scale);
    case BAG_KIND_OF_INT4:
        return f32v_u4_columns(&row->u4, part, row->codes + column / 2);
    case BAG_KIND_OF_INT2:
        return f32v_fused(f32v_load_u2(row->codes + column / 4), row->scale, row->bias);
    case BAG_KIND_OF_E4M3:
        return f32v_load_e4m3(row->codes + column, row->scale);
    case BAG_KIND_OF_E5M2:
        return scaled ? f32v_multiply(f32v_load_e5m2(row->codes + column), row->scale)
                      : f32v_load_e5m2(row->codes + column);
    default:
        return f32v_load_f32(row->codes + column * sizeof(float));
    }
}

#if BAG_NARROW_ROWS
/* Returns all columns of a row that has fewer than a vector. Codes are read from a padded copy. */
BAG_LANE f32v f32v_narrow_columns(enum bag_row_kind kind, bool scaled, const struct f32v_row *row,
                                  const struct f32v_some *some)
{
    if (kind == BAG_KIND_OF_F32)
        return f32v_load_some_f32(row->codes, some);
    if (row->padded)
        return f32v_columns(kind, scaled, BAG_PARITY_BOTH, row, 0);
    const __m128i codes = f32v_load_some(kind, row->codes, some);
    struct f32v_row copy = *row;
    copy.codes = (const char *)&codes;
    return f32v_columns(kind, scaled, BAG_PARITY_BOTH, &copy, 0);
}

/* Arranges ordered sums into parts if f32v_narrow_columns returns them in order. */
BAG_LANE f32v f32v_narrow_in_parts(enum bag_row_kind kind, f32v sums, const struct f32v_some *some)
{
    return kind == BAG_KIND_OF_INT8 || bag_kind_bits(kind) < 8 ? f32v_part(sums, some) : sums;
}
#endif

/* Orders the columns of sums if f32v_columns does not. */
BAG_LANE f32v f32v_in_order(enum bag_row_kind kind, f32v sums)
{
    return kind == BAG_KIND_OF_INT4 ? f32v_u4_in_order(sums) : sums;
}

/* Returns the weight of an entry in every lane. */
BAG_LANE f32v f32v_weight(enum bag_row_kind kind, const struct bag_pool_args *args, size_t entry)
{
    if (kind == BAG_KIND_OF_F16 || kind == BAG_KIND_OF_BF16)
        return f32v_all(bag_weight_f32(args, entry));
    return f32v_all(bag_load_f32(args->weights, entry));
}

BAG_LANE void f32v_store(enum bag_dtype dtype, enum bag_bf16_of of, char *row, size_t column,
                         f32v values)
{
    if (dtype == BAG_F32)
        f32v_store_f32(row + column * sizeof(float), values);
    else if (dtype == BAG_F16)
        f32v_store_f16(row + column * sizeof(uint16_t), values);
    else
        f32v_store_bf16(of, row + column * sizeof(uint16_t), values);
}

/* Stores an unordered pair of vectors as bf16. */
BAG_LANE void f32v_store_pair(enum bag_bf16_of of, char *row, size_t column, f32v even, f32v odd)
{
    f32v_store_bf16_pair(of, row + column * sizeof(uint16_t), even, odd);
}

/* ---- the same of f64
 * ------------------------------------------------------------------------------------- */

struct f64v_row {
    const char *codes;
};

BAG_LANE struct f64v_row f64v_open(enum bag_row_kind kind, bool half, const struct bag_rows *rows,
                                   const char *at, const char *params)
{
    (void)kind;
    (void)half;
    (void)rows;
    (void)params;
    return (struct f64v_row){at};
}

BAG_LANE f64v f64v_columns(enum bag_row_kind kind, bool scaled, enum bag_parity part,
                           const struct f64v_row *row, size_t column)
{
    (void)kind;
    (void)scaled;
    (void)part;
    return f64v_load_f64(row->codes + column * sizeof(double));
}

#if BAG_NARROW_ROWS
BAG_LANE f64v f64v_narrow_columns(enum bag_row_kind kind, bool scaled, const struct f64v_row *row,
                                  const struct f64v_some *some)
{
    (void)kind;
    (void)scaled;
    return f64v_load_some_f64(row->codes, some);
}

BAG_LANE f64v f64v_narrow_in_parts(enum bag_row_kind kind, f64v sums, const struct f64v_some *some)
{
    (void)kind;
    (void)some;
    return sums;
}
#endif

BAG_LANE f64v f64v_in_order(enum bag_row_kind kind, f64v sums)
{
    (void)kind;
    return sums;
}

BAG_LANE void f64v_interleave(f64v *even, f64v *odd)
{
    (void)even;
    (void)odd;
}

BAG_LANE f64v f64v_weight(enum bag_row_kind kind, const struct bag_pool_args *args, size_t entry)
{
    (void)kind;
    return f64v_all(bag_weight_f64(args, entry));
}

BAG_LANE void f64v_store(enum bag_dtype dtype, enum bag_bf16_of of, char *row, size_t column,
                         f64v values)
{
    (void)dtype;
    (void)of;
    f64v_store_f64(row + column * sizeof(double), values);
}

BAG_LANE void f64v_store_pair(enum bag_bf16_of of, char *row, size_t column, f64v even, f64v odd)
{
    (void)of;
    (void)row;
    (void)column;
    (void)even;
    (void)odd;
}

/* ---- the loop -------------------------------------------------------------------------------- */

/* Returns the divisor of a bag with weights, or with only `kept` entries. It is not worth a copy in
 * every instance. */
#define DEFINE_DIVISOR(vector, type)                                         \
    static __attribute__((noinline)) vector##_real vector##_divisor(         \
        const struct bag_pool_args *args, const size_t *bounds, size_t kept) \
    {                                                                        \
        return bag_divisor_##type(args, bounds[0], bounds[1], kept);         \
    }

DEFINE_DIVISOR(f32v, f32)
DEFINE_DIVISOR(f64v, f64)

#define BODY_KIND F32
#define BODY      f32v
#include "pool_body.h"

#define BODY_KIND F16
#define BODY      f32v
#include "pool_body.h"

#define BODY_KIND BF16
#define BODY      f32v
#include "pool_body.h"

#define BODY_KIND INT8
#define BODY      f32v
#include "pool_body.h"

#define BODY_KIND SINT8
#define BODY      f32v
#include "pool_body.h"

#define BODY_KIND INT4
#define BODY      f32v
#include "pool_body.h"

#define BODY_KIND INT2
#define BODY      f32v
#include "pool_body.h"

#define BODY_KIND E4M3
#define BODY      f32v
#include "pool_body.h"

#define BODY_KIND E5M2
#define BODY      f32v
#include "pool_body.h"

#define BODY_KIND F64
#define BODY      f64v
#include "pool_body.h"

/* Define a function for rows of one tile of `vectors` vectors (0: narrower than a vector), one for
 * bags of one entry with such rows, and one for rows of several tiles. */
#define WHOLE(vector, kind, mode, vectors)                               \
    static void kind##_##mode##_##vectors(const struct bag_block *block) \
    {                                                                    \
        kind##_pool_bags(block, BAG_MODE_##mode, vectors, false);        \
    }

#define SINGLES(vector, kind, mode, vectors)                                     \
    static bool kind##_##mode##_singles_##vectors(const struct bag_block *block) \
    {                                                                            \
        return kind##_pool_singles(block, BAG_MODE_##mode, vectors);             \
    }

#define NEAR(vector, kind, mode, vectors)                                                          \
    static size_t kind##_##mode##_near_##vectors(const struct bag_pool_args *args,                 \
                                                 const size_t *bounds, size_t num_bags, char *out) \
    {                                                                                              \
        return kind##_pool_near(args, bounds, num_bags, out, BAG_MODE_##mode, vectors);            \
    }

#define SPLIT(vector, kind, mode, vectors)                                     \
    static void kind##_##mode##_split_##vectors(const struct bag_block *block) \
    {                                                                          \
        kind##_pool_bags(block, BAG_MODE_##mode, vectors, true);               \
    }

#if BAG_NARROW_ROWS
#define NARROW(X, ...) X(__VA_ARGS__, 0)
#else
#define NARROW(X, ...)
#endif

#define WHOLE_NAME(vector, kind, mode, vectors)   [vectors] = kind##_##mode##_##vectors,
#define SINGLES_NAME(vector, kind, mode, vectors) [vectors] = kind##_##mode##_singles_##vectors,
#define NEAR_NAME(vector, kind, mode, vectors)    [vectors] = kind##_##mode##_near_##vectors,
#define SPLIT_NAME(vector, kind, mode, vectors)   [vectors] = kind##_##mode##_split_##vectors,
#define COUNT(vector, kind, mode, vectors)        vectors

/* Kinds that also have wide tiles. In their narrow rows each tile costs about as much as its
 * columns. f32 has wide tiles because its results are then divided and stored once. */
#define WIDE_TILES_F16(X, ...)  BAG_WIDE_TILES(X, __VA_ARGS__)
#define WIDE_TILES_BF16(X, ...) BAG_WIDE_TILES(X, __VA_ARGS__)
#define WIDE_TILES_INT8(X, ...) BAG_WIDE_TILES(X, __VA_ARGS__)
#define WIDE_TILES_INT4(X, ...) BAG_WIDE_TILES(X, __VA_ARGS__)
#define WIDE_TILES_E4M3(X, ...)
#define WIDE_TILES_E5M2(X, ...)
#define WIDE_TILES_SINT8(X, ...)
#define WIDE_TILES_INT2(X, ...)
#define WIDE_TILES_F32(X, ...) BAG_WIDE_TILES(X, __VA_ARGS__)
#define WIDE_TILES_F64(X, ...)

/* Kinds that also have wide tiles with weights. */
#define WEIGHTED_WIDE_INT8(X, ...) BAG_WIDE_WEIGHTED(X, __VA_ARGS__)
#define WEIGHTED_WIDE_INT4(X, ...) BAG_WIDE_WEIGHTED(X, __VA_ARGS__)
#define WEIGHTED_WIDE_E4M3(X, ...)
#define WEIGHTED_WIDE_E5M2(X, ...)
#define WEIGHTED_WIDE_SINT8(X, ...)
#define WEIGHTED_WIDE_INT2(X, ...)
#define WEIGHTED_WIDE_F16(X, ...)  BAG_WIDE_WEIGHTED(X, __VA_ARGS__)
#define WEIGHTED_WIDE_BF16(X, ...) BAG_WIDE_WEIGHTED(X, __VA_ARGS__)
#define WEIGHTED_WIDE_F32(X, ...)  BAG_WIDE_TILES(X, __VA_ARGS__)
#define WEIGHTED_WIDE_F64(X, ...)

/* Kinds that also have the other widths of split rows, in the mode without weights. */
#define OTHER_TILES_INT8(X, ...) BAG_OTHER_TILES(X, __VA_ARGS__) BAG_LONG_TILES(X, __VA_ARGS__)
#define OTHER_TILES_INT4(X, ...) BAG_LONG_TILES(X, __VA_ARGS__)
#define OTHER_TILES_E4M3(X, ...)
#define OTHER_TILES_E5M2(X, ...)
#define OTHER_TILES_SINT8(X, ...)
#define OTHER_TILES_INT2(X, ...)
#define OTHER_TILES_F16(X, ...)  BAG_LONG_TILES(X, __VA_ARGS__)
#define OTHER_TILES_BF16(X, ...) BAG_LONG_TILES(X, __VA_ARGS__)
#define OTHER_TILES_F32(X, ...)  BAG_LONG_TILES(X, __VA_ARGS__)
#define OTHER_TILES_F64(X, ...)

/* Kinds that also have loops for bags of one entry with a weight. Kinds are listed here if these
 * loops are as short as the loops without a weight. */
#define WEIGHTED_SINGLES_INT8(X, ...)
#define WEIGHTED_SINGLES_INT4(X, ...)
#define WEIGHTED_SINGLES_E4M3(X, ...)
#define WEIGHTED_SINGLES_E5M2(X, ...)
#define WEIGHTED_SINGLES_SINT8(X, ...)
#define WEIGHTED_SINGLES_INT2(X, ...)
#define WEIGHTED_SINGLES_F16(X, ...)
#define WEIGHTED_SINGLES_BF16(X, ...)
#define WEIGHTED_SINGLES_F32(X, ...) NARROW(X, __VA_ARGS__) BAG_WHOLE_TILES(X, __VA_ARGS__)
#define WEIGHTED_SINGLES_F64(X, ...) NARROW(X, __VA_ARGS__) BAG_WHOLE_TILES(X, __VA_ARGS__)

/* Kinds that have a loop without prefetching, and those of them that have one with weights. */
#define NEAR_TILES_INT8(X, ...) NARROW(X, __VA_ARGS__) BAG_NEAR_TILES(X, __VA_ARGS__)
#define NEAR_TILES_INT4(X, ...)
#define NEAR_TILES_E4M3(X, ...)
#define NEAR_TILES_E5M2(X, ...)
#define NEAR_TILES_SINT8(X, ...)
#define NEAR_TILES_INT2(X, ...)
#define NEAR_TILES_F16(X, ...)  NARROW(X, __VA_ARGS__) BAG_NEAR_TILES(X, __VA_ARGS__)
#define NEAR_TILES_BF16(X, ...) NARROW(X, __VA_ARGS__) BAG_NEAR_TILES(X, __VA_ARGS__)
#define NEAR_TILES_F32(X, ...)  NARROW(X, __VA_ARGS__) BAG_NEAR_TILES(X, __VA_ARGS__)
#define NEAR_TILES_F64(X, ...)
#define WEIGHTED_NEAR_INT8(X, ...)
#define WEIGHTED_NEAR_INT4(X, ...)
#define WEIGHTED_NEAR_E4M3(X, ...)
#define WEIGHTED_NEAR_E5M2(X, ...)
#define WEIGHTED_NEAR_SINT8(X, ...)
#define WEIGHTED_NEAR_INT2(X, ...)
#define WEIGHTED_NEAR_F16(X, ...)
#define WEIGHTED_NEAR_BF16(X, ...)
#define WEIGHTED_NEAR_F32(X, ...) NARROW(X, __VA_ARGS__) BAG_NEAR_TILES(X, __VA_ARGS__)
#define WEIGHTED_NEAR_F64(X, ...)

/* Kinds that are rarely weighted, and those of which entries are rarely left out: their rows of
 * many vectors are split. */
#define WEIGHTED_TILES_INT8(X, ...)  BAG_WHOLE_TILES(X, __VA_ARGS__)
#define WEIGHTED_TILES_INT4(X, ...)  BAG_FEW_TILES(X, __VA_ARGS__)
#define WEIGHTED_TILES_E4M3(X, ...)  BAG_FEW_TILES(X, __VA_ARGS__)
#define WEIGHTED_TILES_E5M2(X, ...)  BAG_FEW_TILES(X, __VA_ARGS__)
#define WEIGHTED_TILES_SINT8(X, ...) BAG_FEW_TILES(X, __VA_ARGS__)
#define WEIGHTED_TILES_INT2(X, ...)  BAG_FEW_TILES(X, __VA_ARGS__)
#define WEIGHTED_TILES_F16(X, ...)   BAG_WHOLE_TILES(X, __VA_ARGS__)
#define WEIGHTED_TILES_BF16(X, ...)  BAG_WHOLE_TILES(X, __VA_ARGS__)
#define WEIGHTED_TILES_F32(X, ...)   BAG_WHOLE_TILES(X, __VA_ARGS__)
#define WEIGHTED_TILES_F64(X, ...)   BAG_WHOLE_TILES(X, __VA_ARGS__)
#define GENERAL_TILES_INT8(X, ...)   BAG_WHOLE_TILES(X, __VA_ARGS__)
#define GENERAL_TILES_INT4(X, ...)   BAG_FEW_TILES(X, __VA_ARGS__)
#define GENERAL_TILES_E4M3(X, ...)   BAG_FEW_TILES(X, __VA_ARGS__)
#define GENERAL_TILES_E5M2(X, ...)   BAG_FEW_TILES(X, __VA_ARGS__)
#define GENERAL_TILES_SINT8(X, ...)  BAG_FEW_TILES(X, __VA_ARGS__)
#define GENERAL_TILES_INT2(X, ...)   BAG_FEW_TILES(X, __VA_ARGS__)
#define GENERAL_TILES_F16(X, ...)    BAG_WHOLE_TILES(X, __VA_ARGS__)
#define GENERAL_TILES_BF16(X, ...)   BAG_WHOLE_TILES(X, __VA_ARGS__)
#define GENERAL_TILES_F32(X, ...)    BAG_WHOLE_TILES(X, __VA_ARGS__)
#define GENERAL_TILES_F64(X, ...)    BAG_FEW_TILES(X, __VA_ARGS__)

#define SPLIT_TILES(X, vector, kind, mode) \
    BAG_SPLIT_TILES(X, vector, kind, mode) OTHER_TILES_##kind(X, vector, kind, mode)
#define WIDE_TILES(X, vector, kind, mode) WIDE_TILES_##kind(X, vector, kind, mode)

/* The kernels of one kind of rows. If the general mode splits rows, it has tiles of the largest
 * width only. */
#define ONE_TILE(X, vector, kind, mode) \
    NARROW(X, vector, kind, mode) BAG_WHOLE_TILES(X, vector, kind, mode)

#define WEIGHTED_ONE_TILE(X, vector, kind) \
    NARROW(X, vector, kind, WEIGHTED) WEIGHTED_TILES_##kind(X, vector, kind, WEIGHTED)
#define GENERAL_ONE_TILE(X, vector, kind) \
    NARROW(X, vector, kind, GENERAL) GENERAL_TILES_##kind(X, vector, kind, GENERAL)

#define KERNEL(vector, kind, element_bits)                                                         \
    ONE_TILE(WHOLE, vector, kind, PLAIN)                                                           \
    WEIGHTED_ONE_TILE(WHOLE, vector, kind)                                                         \
    GENERAL_ONE_TILE(WHOLE, vector, kind)                                                          \
    ONE_TILE(SINGLES, vector, kind, PLAIN)                                                         \
    NEAR_TILES_##kind(NEAR, vector, kind, PLAIN) WEIGHTED_NEAR_##kind(                             \
        NEAR, vector, kind, WEIGHTED) WIDE_TILES(WHOLE, vector, kind, PLAIN)                       \
        WEIGHTED_WIDE_##kind(WHOLE, vector, kind, WEIGHTED) WIDE_TILES(                            \
            SINGLES, vector, kind, PLAIN) WEIGHTED_SINGLES_##kind(SINGLES, vector, kind, WEIGHTED) \
            SPLIT_TILES(SPLIT, vector, kind, PLAIN) BAG_SPLIT_TILES(                               \
                SPLIT, vector, kind, WEIGHTED) BAG_LARGEST_TILE(SPLIT, vector, kind, GENERAL)      \
                                                                                                   \
                static const struct bag_tile_set set_##kind = {                                    \
                    .whole = {{ONE_TILE(WHOLE_NAME, vector, kind, PLAIN)},                         \
                              {WEIGHTED_ONE_TILE(WHOLE_NAME, vector, kind)},                       \
                              {GENERAL_ONE_TILE(WHOLE_NAME, vector, kind)}},                       \
                    .wide = {{WIDE_TILES(WHOLE_NAME, vector, kind, PLAIN)},                        \
                             {WEIGHTED_WIDE_##kind(WHOLE_NAME, vector, kind, WEIGHTED)}},          \
                    .split = {{SPLIT_TILES(SPLIT_NAME, vector, kind, PLAIN)},                      \
                              {BAG_SPLIT_TILES(SPLIT_NAME, vector, kind, WEIGHTED)},               \
                              {BAG_LARGEST_TILE(SPLIT_NAME, vector, kind, GENERAL)}},              \
                    .singles = {{ONE_TILE(SINGLES_NAME, vector, kind, PLAIN)                       \
                                     WIDE_TILES(SINGLES_NAME, vector, kind, PLAIN)},               \
                                {WEIGHTED_SINGLES_##kind(SINGLES_NAME, vector, kind, WEIGHTED)}},  \
                    .near = {{NEAR_TILES_##kind(NEAR_NAME, vector, kind, PLAIN)},                  \
                             {WEIGHTED_NEAR_##kind(NEAR_NAME, vector, kind, WEIGHTED)}},           \
                    .largest_tile = BAG_LARGEST_TILE(COUNT, vector, kind, PLAIN),                  \
                    .bits = element_bits,                                                          \
                    .lanes = vector##_lanes,                                                       \
    };

#define BAG_X(id, bits, vector) KERNEL(vector, id, bits)
BAG_ROW_KINDS(BAG_X)
#undef BAG_X

const struct bag_kernels BAG_KERNELS = {
    .sets =
        {
#define BAG_X(id, bits, vector) [BAG_KIND_OF_##id] = &set_##id,
            BAG_ROW_KINDS(BAG_X)
#undef BAG_X
        },
    .ids_in_range = ids_in_range,
    .ids_ascend = ids_ascend,
    .find_keys = BAG_FIND_KEYS,
    .below = BAG_BELOW,
    .far = BAG_FAR,
    .fetches_second = BAG_FETCHES_SECOND,
};
