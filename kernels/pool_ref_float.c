/* Plain C steps for floating point: f16, bf16 and f32 in f32, f64 in f64.
 *
 * Must not know: bags beyond their divisor. */
#include "pool_divisor.h"
#include "pool_ref.h"

/* ---- rows and results ------------------------------------------------------------------------ */

static void load_f32(const struct bag_pool_args *args, int64_t row, size_t column, size_t count,
                     union bag_tile *values)
{
    bag_row_decode(&args->table, row, column, count, values->f32);
}

static void store_f32(const struct bag_pool_args *args, const union bag_tile *values, size_t count,
                      void *out)
{
    bag_row_encode(values->f32, count, args->output_dtype, out);
}

static void load_f64(const struct bag_pool_args *args, int64_t row, size_t column, size_t count,
                     union bag_tile *values)
{
    size_t element = (size_t)row * args->table.row_elements + column;
    const char *rows = args->table.rows;
    memcpy(values->f64, rows + element * sizeof(double), count * sizeof(double));
}

static void store_f64(const struct bag_pool_args *args, const union bag_tile *values, size_t count,
                      void *out)
{
    (void)args;
    memcpy(out, values->f64, count * sizeof(double));
}

/* ---- arithmetic, the same for both widths ---------------------------------------------------- */

/* Of two equal values the earlier stays; the first NaN stays. */
#define DEFINE_STEPS(real, member, weight_of, divisor_of, fused)                               \
    static void add_##member(union bag_tile *sums, const union bag_tile *values, size_t count) \
    {                                                                                          \
        for (size_t i = 0; i < count; i++)                                                     \
            sums->member[i] += values->member[i];                                              \
    }                                                                                          \
                                                                                               \
    static void add_weighted_##member(const struct bag_pool_args *args, size_t entry,          \
                                      union bag_tile *sums, const union bag_tile *values,      \
                                      size_t count)                                            \
    {                                                                                          \
        real weight = weight_of(args, entry);                                                  \
        for (size_t i = 0; i < count; i++)                                                     \
            sums->member[i] = fused(weight, values->member[i], sums->member[i]);               \
    }                                                                                          \
                                                                                               \
    static void max_##member(const struct bag_pool_args *args, union bag_tile *largest,        \
                             const union bag_tile *values, size_t count)                       \
    {                                                                                          \
        (void)args;                                                                            \
        for (size_t i = 0; i < count; i++) {                                                   \
            real value = values->member[i], so_far = largest->member[i];                       \
            bool wins = (value > so_far || value != value) && so_far == so_far;                \
            largest->member[i] = wins ? value : so_far;                                        \
        }                                                                                      \
    }                                                                                          \
                                                                                               \
    static void divide_##member(const struct bag_piece *piece, union bag_tile *sums)           \
    {                                                                                          \
        real divisor =                                                                         \
            divisor_of(piece->args, piece->first_entry, piece->end_entry, piece->num_kept);    \
        for (size_t i = 0; i < piece->num_columns; i++)                                        \
            sums->member[i] = divisor == 0 ? 0 : sums->member[i] / divisor;                    \
    }                                                                                          \
                                                                                               \
    const struct bag_ref_kind bag_ref_##member = {.load = load_##member,                       \
                                                  .add = add_##member,                         \
                                                  .add_weighted = add_weighted_##member,       \
                                                  .max = max_##member,                         \
                                                  .divide = divide_##member,                   \
                                                  .store = store_##member};

DEFINE_STEPS(float, f32, bag_weight_f32, bag_divisor_f32, __builtin_fmaf)
DEFINE_STEPS(double, f64, bag_weight_f64, bag_divisor_f64, __builtin_fma)
