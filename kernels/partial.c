/* Computes partial results and merges them; see partial.h. */
#include "partial.h"

#include "exact.h"
#include "pool_loop.h"

/* The number of columns that are added at a time. */
#define TILE_COLUMNS 64

static bool is_integer(enum bag_dtype dtype)
{
    return bag_dtypes[dtype].kind != BAG_KIND_FLOAT;
}

struct bag_partial_form bag_partial_form(enum bag_dtype dtype, enum bag_reduction reduction)
{
    if (reduction == BAG_NONE)
        return (struct bag_partial_form){dtype, dtype, 1, 1};
    if (!is_integer(dtype)) {
        enum bag_dtype sums = dtype == BAG_F64 ? BAG_F64 : BAG_F32;
        return (struct bag_partial_form){sums, sums, 1, 1};
    }
    bool exact = reduction == BAG_MEAN;
    return (struct bag_partial_form){exact ? BAG_U64 : dtype, BAG_U64, exact ? BAG_WIDE_WORDS : 1,
                                     BAG_WIDE_WORDS};
}

/* ---- a part ---------------------------------------------------------------------------------- */

void bag_pool_make_partial(struct bag_pool_args *args)
{
    struct bag_partial_form form = bag_partial_form(args->table.dtype, args->reduction);
    args->partial = true;
    args->whole_reduction = (uint8_t)args->reduction;
    if (args->reduction == BAG_SQRTN || (args->reduction == BAG_MEAN && form.sum_words == 1))
        args->reduction = BAG_SUM;
    args->divides = false;
    args->default_row = -1;
    args->output_dtype = form.sums_dtype;
    args->element_bytes = form.sum_words * bag_dtypes[form.sums_dtype].bytes;
    if (__builtin_mul_overflow(args->table.row_elements, args->element_bytes, &args->bag_stride) ||
        __builtin_mul_overflow(args->num_bags, args->bag_stride, &args->result_bytes))
        args->bag_stride = args->result_bytes = SIZE_MAX;
}

/* Called for each bag with its entries [first, end), in order. */
typedef void bag_fn(const struct bag_pool_args *args, size_t first, size_t end, char *out);

static void each_bag(const struct bag_pool_args *args, bag_fn *of_bag, size_t bytes, char *out)
{
    size_t bounds[BAG_BOUNDS + 1], hint = 0, count;
    for (size_t bag = 0; bag < args->num_bags; bag += count) {
        count = args->num_bags - bag < BAG_BOUNDS ? args->num_bags - bag : BAG_BOUNDS;
        bag_pool_bounds(args, bag, bag + count, &hint, bounds);
        for (size_t i = 0; i < count; i++, out += bytes)
            of_bag(args, bounds[i], bounds[i + 1], out);
    }
}

static void count_bag(const struct bag_pool_args *args, size_t first, size_t end, char *out)
{
    int64_t count = (int64_t)bag_count_kept(args, first, end);
    memcpy(out, &count, sizeof count);
}

void bag_pool_counts(const struct bag_pool_args *args, void *counts)
{
    each_bag(args, count_bag, sizeof(int64_t), counts);
}

static bool is_squared(const struct bag_pool_args *args)
{
    return args->whole_reduction == BAG_SQRTN;
}

static void weigh_f32(const struct bag_pool_args *args, size_t first, size_t end, char *out)
{
    float sum = bag_weights_f32(args, is_squared(args), first, end);
    memcpy(out, &sum, sizeof sum);
}

static void weigh_f64(const struct bag_pool_args *args, size_t first, size_t end, char *out)
{
    double sum = bag_weights_f64(args, is_squared(args), first, end);
    memcpy(out, &sum, sizeof sum);
}

static void weigh_integers(const struct bag_pool_args *args, size_t first, size_t end, char *out)
{
    const struct bag_number one = {1, false};
    struct bag_wide sum = {0};
    for (size_t entry = first; entry < end; entry++) {
        if (bag_keeps(args, entry, bag_id_at(&args->indices, entry)))
            bag_wide_add_product(&sum, bag_weight_number(args, entry), one);
    }
    bag_wide_store(sum, out);
}

void bag_pool_weight_sums(const struct bag_pool_args *args, void *weight_sums)
{
    struct bag_partial_form form =
        bag_partial_form(args->table.dtype, (enum bag_reduction)args->whole_reduction);
    size_t bytes = form.weight_words * bag_dtypes[form.weights_dtype].bytes;
    bag_fn *weigh = form.weights_dtype == BAG_F32   ? weigh_f32
                    : form.weights_dtype == BAG_F64 ? weigh_f64
                                                    : weigh_integers;
    each_bag(args, weigh, bytes, weight_sums);
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* Some columns of a bag that is being merged. */
struct merging {
    const struct bag_merge *merge;
    const struct bag_share *shares;
    size_t num_shares;
    size_t column, num_columns;
};

/* Loads the columns of a share. Returns the number of its entries. */
static size_t load(const struct merging *merging, size_t share, size_t bytes, void *values)
{
    const char *sums = merging->shares[share].sums;
    memcpy(values, sums + merging->column * bytes, merging->num_columns * bytes);
    return merging->shares[share].count;
}

static uint64_t count_entries(const struct merging *merging)
{
    uint64_t count = 0;
    for (size_t i = 0; i < merging->num_shares; i++)
        count += merging->shares[i].count;
    return count;
}

/* Defines the steps for one type of floats, like those of a part in pool_ref.c. */
#define DEFINE_FLOATS(type, real, root)                                               \
    static real divisor_##type(const struct merging *merging)                         \
    {                                                                                 \
        const struct bag_merge *merge = merging->merge;                               \
        real sum = 0, part;                                                           \
        if (!merge->is_weighted)                                                      \
            sum = (real)count_entries(merging);                                       \
        for (size_t i = 0; merge->is_weighted && i < merging->num_shares; i++) {      \
            if (merging->shares[i].count == 0)                                        \
                continue;                                                             \
            memcpy(&part, merging->shares[i].weight_sums, sizeof part);               \
            sum += part;                                                              \
        }                                                                             \
        return merge->reduction == BAG_MEAN ? sum : root(sum);                        \
    }                                                                                 \
                                                                                      \
    static void combine_##type(const struct merging *merging, real *sums)             \
    {                                                                                 \
        bool first = true, is_max = merging->merge->reduction == BAG_MAX;             \
        real values[TILE_COLUMNS] BAG_UNSET;                                          \
        for (size_t share = 0; share < merging->num_shares; share++) {                \
            if (!load(merging, share, sizeof *sums, first ? sums : values))           \
                continue;                                                             \
            for (size_t i = 0; !first && i < merging->num_columns; i++) {             \
                real value = values[i], so_far = sums[i];                             \
                bool wins = (value > so_far || value != value) && so_far == so_far;   \
                sums[i] = !is_max ? so_far + value : wins ? value : so_far;           \
            }                                                                         \
            first = false;                                                            \
        }                                                                             \
    }                                                                                 \
                                                                                      \
    static void merge_##type(const struct merging *merging, char *out)                \
    {                                                                                 \
        const struct bag_merge *merge = merging->merge;                               \
        bool divides = merge->reduction == BAG_MEAN || merge->reduction == BAG_SQRTN; \
        real sums[TILE_COLUMNS] BAG_UNSET;                                            \
        combine_##type(merging, sums);                                                \
        real divisor = divides ? divisor_##type(merging) : 1;                         \
        for (size_t i = 0; divides && i < merging->num_columns; i++)                  \
            sums[i] = divisor == 0 ? 0 : sums[i] / divisor;                           \
        store_##type(merging, sums, out);                                             \
    }

static void store_f32(const struct merging *merging, const float *sums, char *out)
{
    bag_elements_encode(sums, merging->num_columns, merging->merge->output_dtype, out);
}

static void store_f64(const struct merging *merging, const double *sums, char *out)
{
    memcpy(out, sums, merging->num_columns * sizeof *sums);
}

DEFINE_FLOATS(f32, float, __builtin_sqrtf)
DEFINE_FLOATS(f64, double, __builtin_sqrt)

/* X(dtype, its C type) */
#define INTEGERS(X)  \
    X(U8, uint8_t)   \
    X(U16, uint16_t) \
    X(U32, uint32_t) \
    X(U64, uint64_t) \
    X(I8, int8_t)    \
    X(I16, int16_t)  \
    X(I32, int32_t)  \
    X(I64, int64_t)

#define DEFINE_INTEGERS(id, type)                                                    \
    static void merge_##type(const struct merging *merging, char *out)               \
    {                                                                                \
        bool first = true, is_max = merging->merge->reduction == BAG_MAX;            \
        type sums[TILE_COLUMNS] BAG_UNSET, values[TILE_COLUMNS] BAG_UNSET;           \
        for (size_t share = 0; share < merging->num_shares; share++) {               \
            if (!load(merging, share, sizeof *sums, first ? sums : values))          \
                continue;                                                            \
            for (size_t i = 0; !first && i < merging->num_columns; i++) {            \
                type sum = (type)((uint64_t)sums[i] + (uint64_t)values[i]);          \
                sums[i] = !is_max ? sum : values[i] > sums[i] ? values[i] : sums[i]; \
            }                                                                        \
            first = false;                                                           \
        }                                                                            \
        memcpy(out, sums, merging->num_columns * sizeof *sums);                      \
    }
INTEGERS(DEFINE_INTEGERS)

/* Writes the exact mean: sums of three words that are divided once. */
static void merge_exactly(const struct merging *merging, char *out)
{
    const struct bag_merge *merge = merging->merge;
    size_t bytes = bag_dtypes[merge->dtype].bytes;
    struct bag_wide divisor = {0};
    if (!merge->is_weighted)
        divisor.low = count_entries(merging);
    for (size_t i = 0; merge->is_weighted && i < merging->num_shares; i++)
        divisor = bag_wide_add(divisor, bag_wide_load(merging->shares[i].weight_sums));
    for (size_t column = 0; column < merging->num_columns; column++) {
        struct bag_wide sum = {0};
        for (size_t i = 0; i < merging->num_shares; i++) {
            const char *sums = merging->shares[i].sums;
            sum = bag_wide_add(sum,
                               bag_wide_load(sums + (merging->column + column) * BAG_WIDE_BYTES));
        }
        uint64_t mean = bag_wide_quotient(sum, divisor);
        memcpy(out + column * bytes, &mean, bytes); /* the low bytes: little-endian */
    }
}

/* Writes the row of the share that has it; its bits stay if the result has its type. */
static void copy_row(const struct merging *merging, char *out)
{
    const struct bag_merge *merge = merging->merge;
    size_t share = 0;
    while (merging->shares[share].count == 0)
        share++;
    const struct bag_table row = {.rows = merging->shares[share].sums,
                                  .dtype = merge->dtype,
                                  .num_rows = 1,
                                  .row_elements = merge->columns};
    float values[TILE_COLUMNS] BAG_UNSET;
    if (merge->output_dtype == merge->dtype) {
        load(merging, share, bag_dtypes[merge->dtype].bytes, out);
        return;
    }
    bag_row_decode(&row, 0, merging->column, merging->num_columns, values);
    bag_elements_encode(values, merging->num_columns, merge->output_dtype, out);
}

typedef void merge_fn(const struct merging *merging, char *out);

static merge_fn *merge_for(const struct bag_merge *merge)
{
    if (merge->reduction == BAG_NONE)
        return copy_row;
    if (is_integer(merge->dtype) && merge->reduction == BAG_MEAN)
        return merge_exactly;
    switch (merge->dtype) {
#define BAG_X(id, type) \
    case BAG_##id:      \
        return merge_##type;
        INTEGERS(BAG_X)
#undef BAG_X
    case BAG_F64:
        return merge_f64;
    default:
        return merge_f32;
    }
}

/* Returns whether the sums of a bag's only share are the result. */
static bool is_whole(const struct bag_merge *merge)
{
    const struct bag_partial_form form = bag_partial_form(merge->dtype, merge->reduction);
    return merge->output_dtype == form.sums_dtype && merge->reduction != BAG_MEAN &&
           merge->reduction != BAG_SQRTN;
}

void bag_merge(const struct bag_merge *merge, const struct bag_share *shares, size_t num_shares,
               void *out)
{
    struct merging merging = {.merge = merge, .shares = shares, .num_shares = num_shares};
    size_t bytes = bag_dtypes[merge->output_dtype].bytes;
    char *at = out;
    if (count_entries(&merging) == 0) {
        memset(out, 0, merge->columns * bytes);
        return;
    }
    if (num_shares == 1 && is_whole(merge)) {
        memcpy(out, shares->sums, merge->columns * bytes);
        return;
    }
    merge_fn *of_columns = merge_for(merge);
    while (merging.column < merge->columns) {
        size_t left = merge->columns - merging.column;
        merging.num_columns = left < TILE_COLUMNS ? left : TILE_COLUMNS;
        of_columns(&merging, at + merging.column * bytes);
        merging.column += merging.num_columns;
    }
}
