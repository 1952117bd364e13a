/* Makes the instances of the loop for one instruction set: every kind of row, mode and number of
 * vectors. Included once for each instruction set, after its operations and
 *
 *   #define BAG_KERNELS              name of the table to define
 *   #define BAG_BELOW                kernels for rows narrower than a vector, or NULL
 *   #define BAG_PAIRED(kind)         whether a kind is summed in pairs of vectors
 *   #define BAG_NARROW_ROWS          1: there are loops for rows narrower than a vector
 *   #define BAG_TILES(X, ...)        X(__VA_ARGS__, n) for tiles of n vectors
 *   #define BAG_WIDE_TILES(X, ...)   the same for usual kinds without weights
 *   #define BAG_FEW_TILES(X, ...)    the same for kinds and modes that are rare
 *   #define BAG_FIND_KEYS            function that finds keys
 *   #define BAG_ID_VECTOR_BYTES      size of the vectors that check ids
 *   #define BAG_FAR                  how much further ahead the rows of far tables are prefetched
 *   #define BAG_TO_FIRST             1: there is a loop that prefetches into L1
 *   #define BAG_ADDS_FUSED           1: half of the additions are fused multiplications with 1 */
#include "pool_loop.h"
#include "simd_ids.h"

#include "pool_check_tmpl.h"

/* The types of a vector's lanes, and of a result that is not rounded. */
typedef float f32v_real;
typedef double f64v_real;
static const enum bag_dtype f32v_dtype = BAG_F32, f64v_dtype = BAG_F64;

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

/* Opens a row whose first column to read is at `at`, and whose scale and bias, if `has_params`, are
 * at `params`. `half`: those of INT8 and SINT8 are f16. Both are the same for all rows, so branches
 * are predicted. */
BAG_LANE struct f32v_row f32v_open(enum bag_row_kind kind, bool half, bool has_params,
                                   const char *at, const char *params)
{
    struct f32v_row row = {.codes = at, .padded = kind == BAG_KIND_OF_INT8 && !half};
    if (kind == BAG_KIND_OF_INT4 || kind == BAG_KIND_OF_INT2 ||
        (kind == BAG_KIND_OF_INT8 && __builtin_expect(half, 0))) {
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
        row.scale = f32v_all(has_params ? bag_load_f32(params, 0) * 256 : 256);
    if (kind == BAG_KIND_OF_E5M2)
        row.scale = f32v_all(has_params ? bag_load_f32(params, 0) : 1);
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

BAG_LANE float f32v_load_one(const char *from)
{
    return bag_load_f32(from, 0);
}

/* Returns the weight of an entry, of every type that a call may have, in every lane. */
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

/* Stores f32 numbers, `vectors` vectors of them, as f16 or bf16 if the kind rarely has such
 * results, which are not worth a copy in every instance. The last vector begins at `last_vector`,
 * and with `ends_in_pair` the one before it at its side. */
static __attribute__((noinline)) void f32v_store_rarely(enum bag_dtype dtype, char *row,
                                                        const f32v *values, int vectors,
                                                        size_t last_vector, bool ends_in_pair)
{
    for (int i = 0; i < vectors; i++) {
        size_t column = (size_t)i * f32v_lanes;
        if (i == vectors - 1)
            column = last_vector;
        else if (i == vectors - 2 && ends_in_pair)
            column = last_vector - f32v_lanes;
        f32v_store(dtype, BAG_BF16_OF_ANY, row, column, values[i]);
    }
}

/* Stores an unordered pair of vectors as bf16. */
BAG_LANE void f32v_store_pair(enum bag_bf16_of of, char *row, size_t column, f32v even, f32v odd)
{
    f32v_store_bf16_pair(of, row + column * sizeof(uint16_t), even, odd);
}

/* ---- the same of f64 ------------------------------------------------------------------------- */

struct f64v_row {
    const char *codes;
};

BAG_LANE struct f64v_row f64v_open(enum bag_row_kind kind, bool half, bool has_params,
                                   const char *at, const char *params)
{
    (void)kind;
    (void)half;
    (void)has_params;
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

BAG_LANE double f64v_load_one(const char *from)
{
    return bag_load_f64(from, 0);
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

BAG_LANE void f64v_store_rarely(enum bag_dtype dtype, char *row, const f64v *values, int vectors,
                                size_t last_vector, bool ends_in_pair)
{
    (void)dtype;
    (void)row;
    (void)values;
    (void)vectors;
    (void)last_vector;
    (void)ends_in_pair;
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

/* Counts the bags with offsets in [offset, end) that have one entry each, from the first one on,
 * which has one, up to `most` bags. */
static __attribute__((noinline)) size_t
count_singles(const struct bag_pool_args *args, const char *offset, const char *end, size_t most)
{
    const bool wide = args->groups.wide;
    const size_t bytes = wide ? sizeof(int64_t) : sizeof(int32_t);
    const size_t first = (size_t)(offset - (const char *)args->groups.data) / bytes;
    const size_t bags = (size_t)(end - offset) / bytes, count = bags < most ? bags : most;
    const size_t steps = wide ? steps_64(offset, count) : steps_32(offset, count);
    const size_t last = first + count - 1;
    if (steps < count)
        return steps - 1;
    return bag_offset_at(args, last + 1) - bag_offset_at(args, last) == 1 ? count : count - 1;
}

/* Divides sums by the divisor of a bag with weights, or with only `kept` entries. It is not worth a
 * copy in every instance. */
#define DEFINE_DIVISION(vector, type)                                                             \
    static __attribute__((noinline)) void vector##_divide_rarely(                                 \
        const struct bag_pool_args *args, size_t first, size_t end, size_t kept, vector *sums,    \
        int vectors)                                                                              \
    {                                                                                             \
        const vector##_real divisor = bag_divisor_##type(args, first, end, kept);                 \
        for (int i = 0; i < vectors; i++)                                                         \
            sums[i] =                                                                             \
                divisor == 0 ? vector##_zero() : vector##_divide(sums[i], vector##_all(divisor)); \
    }

DEFINE_DIVISION(f32v, f32)
DEFINE_DIVISION(f64v, f64)

#define BODY_KIND F32
#define BODY      f32v
#include "pool_body_tmpl.h"

#define BODY_KIND F16
#define BODY      f32v
#include "pool_body_tmpl.h"

#define BODY_KIND BF16
#define BODY      f32v
#include "pool_body_tmpl.h"

#define BODY_KIND INT8
#define BODY      f32v
#include "pool_body_tmpl.h"

#define BODY_KIND SINT8
#define BODY      f32v
#include "pool_body_tmpl.h"

#define BODY_KIND INT4
#define BODY      f32v
#include "pool_body_tmpl.h"

#define BODY_KIND INT2
#define BODY      f32v
#include "pool_body_tmpl.h"

#define BODY_KIND E4M3
#define BODY      f32v
#include "pool_body_tmpl.h"

#define BODY_KIND E5M2
#define BODY      f32v
#include "pool_body_tmpl.h"

#define BODY_KIND F64
#define BODY      f64v
#include "pool_body_tmpl.h"

#if BAG_NARROW_ROWS
#define NARROW(X, ...) X(__VA_ARGS__, 0)
#else
#define NARROW(X, ...)
#endif

/* The widths of the tiles of each kind, and further ones without weights. Kinds that are rare have
 * few. */
#define TILES_F32(X, ...)   BAG_TILES(X, __VA_ARGS__)
#define TILES_F16(X, ...)   BAG_TILES(X, __VA_ARGS__)
#define TILES_BF16(X, ...)  BAG_TILES(X, __VA_ARGS__)
#define TILES_INT8(X, ...)  BAG_TILES(X, __VA_ARGS__)
#define TILES_INT4(X, ...)  BAG_TILES(X, __VA_ARGS__)
#define TILES_SINT8(X, ...) BAG_FEW_TILES(X, __VA_ARGS__)
#define TILES_INT2(X, ...)  BAG_FEW_TILES(X, __VA_ARGS__)
#define TILES_E4M3(X, ...)  BAG_FEW_TILES(X, __VA_ARGS__)
#define TILES_E5M2(X, ...)  BAG_FEW_TILES(X, __VA_ARGS__)
#define TILES_F64(X, ...)   BAG_FEW_TILES(X, __VA_ARGS__)

#define WIDE_TILES_F32(X, ...)  BAG_WIDE_TILES(X, __VA_ARGS__)
#define WIDE_TILES_F16(X, ...)  BAG_WIDE_TILES(X, __VA_ARGS__)
#define WIDE_TILES_BF16(X, ...) BAG_WIDE_TILES(X, __VA_ARGS__)
#define WIDE_TILES_INT8(X, ...) BAG_WIDE_TILES(X, __VA_ARGS__)
#define WIDE_TILES_INT4(X, ...) BAG_WIDE_TILES(X, __VA_ARGS__)
#define WIDE_TILES_SINT8(X, ...)
#define WIDE_TILES_INT2(X, ...)
#define WIDE_TILES_E4M3(X, ...)
#define WIDE_TILES_E5M2(X, ...)
#define WIDE_TILES_F64(X, ...)

/* The widths of the tiles of the general mode. Two tiles of two vectors would take 1.5 to 1.7 times
 * as long as one of three. */
#define GENERAL_TILES_F32(X, ...)   BAG_FEW_TILES(X, __VA_ARGS__) X(__VA_ARGS__, 3)
#define GENERAL_TILES_F16(X, ...)   BAG_FEW_TILES(X, __VA_ARGS__) X(__VA_ARGS__, 3)
#define GENERAL_TILES_BF16(X, ...)  BAG_FEW_TILES(X, __VA_ARGS__) X(__VA_ARGS__, 3)
#define GENERAL_TILES_INT8(X, ...)  BAG_FEW_TILES(X, __VA_ARGS__) X(__VA_ARGS__, 3)
#define GENERAL_TILES_INT4(X, ...)  BAG_FEW_TILES(X, __VA_ARGS__)
#define GENERAL_TILES_SINT8(X, ...) BAG_FEW_TILES(X, __VA_ARGS__)
#define GENERAL_TILES_INT2(X, ...)  BAG_FEW_TILES(X, __VA_ARGS__)
#define GENERAL_TILES_E4M3(X, ...)  BAG_FEW_TILES(X, __VA_ARGS__)
#define GENERAL_TILES_E5M2(X, ...)  BAG_FEW_TILES(X, __VA_ARGS__)
#define GENERAL_TILES_F64(X, ...)   BAG_FEW_TILES(X, __VA_ARGS__)

/* An instance for tiles of `vectors` vectors; 0: rows narrower than a vector. */
#define LOOP(kind, mode, vectors)                                                          \
    static void kind##_##mode##_##vectors(const struct bag_pool_args *args,                \
                                          const struct bag_tiles *tiles, size_t first_bag, \
                                          size_t end_bag, char *out)                       \
    {                                                                                      \
        kind##_pool(args, tiles, first_bag, end_bag, out, BAG_MODE_##mode, vectors);       \
    }
#define LOOP_NAME(kind, mode, vectors) [vectors] = kind##_##mode##_##vectors,

#define PLAIN_LOOPS(X, kind) \
    NARROW(X, kind, PLAIN) TILES_##kind(X, kind, PLAIN) WIDE_TILES_##kind(X, kind, PLAIN)
#define WEIGHTED_LOOPS(X, kind) NARROW(X, kind, WEIGHTED) TILES_##kind(X, kind, WEIGHTED)
#define GENERAL_LOOPS(X, kind)  NARROW(X, kind, GENERAL) GENERAL_TILES_##kind(X, kind, GENERAL)

#define KERNEL(vector, kind)                                               \
    PLAIN_LOOPS(LOOP, kind)                                                \
    WEIGHTED_LOOPS(LOOP, kind)                                             \
    GENERAL_LOOPS(LOOP, kind)                                              \
    static const struct bag_tile_set set_##kind = {                        \
        .loops = {[BAG_MODE_PLAIN] = {PLAIN_LOOPS(LOOP_NAME, kind)},       \
                  [BAG_MODE_WEIGHTED] = {WEIGHTED_LOOPS(LOOP_NAME, kind)}, \
                  [BAG_MODE_GENERAL] = {GENERAL_LOOPS(LOOP_NAME, kind)}},  \
        .lanes = vector##_lanes,                                           \
        .wide_vectors = kind##_wide_vectors,                               \
    };

#define BAG_X(id, bits, vector) KERNEL(vector, id)
BAG_ROW_KINDS(BAG_X)
#undef BAG_X

const struct bag_kernels BAG_KERNELS = {
    .sets =
        {
#define BAG_X(id, bits, vector) [BAG_KIND_OF_##id] = &set_##id,
            BAG_ROW_KINDS(BAG_X)
#undef BAG_X
        },
    .check = check_usual,
    .ids_in_range = ids_in_range,
    .ids_ascend = ids_ascend,
    .find_keys = BAG_FIND_KEYS,
    .below = BAG_BELOW,
    .far = BAG_FAR,
};
