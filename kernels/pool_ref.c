/* The plain C loop, which defines every result, for all element types. One loop goes over bags,
 * pieces of columns and entries. A struct steps has the operations on the elements. */
#include "exact.h"
#include "pool_loop.h"

/* The number of columns that are pooled at a time. Their sums stay on the stack, in L1. */
#define PIECE_COLUMNS 64

union values {
    float f32[PIECE_COLUMNS];
    double f64[PIECE_COLUMNS];
    uint64_t u64[PIECE_COLUMNS]; /* integers; sign-extended if they are signed */
};

/* The smallest piece of work of the kernel: some columns of one bag. */
struct piece {
    const struct bag_pool_args *args;
    size_t first_entry, end_entry;
    size_t num_kept; /* number of entries that stay; above 0 */
    size_t column, num_columns;
};

/* The operations that differ between kinds of elements. Values are in the type of computation: f32
 * for f16, bf16 and f32; f64; 64-bit integers for all integers. */
struct steps {
    /* Loads columns of a row as values. */
    void (*load)(const struct bag_pool_args *args, int64_t row, size_t column, size_t count,
                 union values *values);
    void (*add)(union values *sums, const union values *values, size_t count);
    void (*add_weighted)(const struct bag_pool_args *args, size_t entry, union values *sums,
                         const union values *values, size_t count);
    void (*max)(const struct bag_pool_args *args, union values *largest, const union values *values,
                size_t count);
    /* Divides sums, for means and sqrtn. */
    void (*divide)(const struct piece *piece, union values *sums);
    /* Writes values as elements of the result. */
    void (*store)(const struct bag_pool_args *args, const union values *values, size_t count,
                  void *out);
};

/* ---- rows and results ------------------------------------------------------------------------ */

static void load_f32(const struct bag_pool_args *args, int64_t row, size_t column, size_t count,
                     union values *values)
{
    bag_row_decode(&args->table, row, column, count, values->f32);
}

static void store_f32(const struct bag_pool_args *args, const union values *values, size_t count,
                      void *out)
{
    bag_elements_encode(values->f32, count, args->output_dtype, out);
}

static void load_f64(const struct bag_pool_args *args, int64_t row, size_t column, size_t count,
                     union values *values)
{
    size_t element = (size_t)row * args->table.row_elements + column;
    const char *rows = args->table.rows;
    memcpy(values->f64, rows + element * sizeof(double), count * sizeof(double));
}

static void store_f64(const struct bag_pool_args *args, const union values *values, size_t count,
                      void *out)
{
    (void)args;
    memcpy(out, values->f64, count * sizeof(double));
}

/* ---- arithmetic, the same for both widths ---------------------------------------------------- */

/* Defines the steps for one type of floats. Max keeps the earlier one of two equal values. It
 * keeps the first NaN. */
#define DEFINE_STEPS(real, member, weight_of, divisor_of, fused)                            \
    static void add_##member(union values *sums, const union values *values, size_t count)  \
    {                                                                                       \
        for (size_t i = 0; i < count; i++)                                                  \
            sums->member[i] += values->member[i];                                           \
    }                                                                                       \
                                                                                            \
    static void add_weighted_##member(const struct bag_pool_args *args, size_t entry,       \
                                      union values *sums, const union values *values,       \
                                      size_t count)                                         \
    {                                                                                       \
        real weight = weight_of(args, entry);                                               \
        for (size_t i = 0; i < count; i++)                                                  \
            sums->member[i] = fused(weight, values->member[i], sums->member[i]);            \
    }                                                                                       \
                                                                                            \
    static void max_##member(const struct bag_pool_args *args, union values *largest,       \
                             const union values *values, size_t count)                      \
    {                                                                                       \
        (void)args;                                                                         \
        for (size_t i = 0; i < count; i++) {                                                \
            real value = values->member[i], so_far = largest->member[i];                    \
            bool wins = (value > so_far || value != value) && so_far == so_far;             \
            largest->member[i] = wins ? value : so_far;                                     \
        }                                                                                   \
    }                                                                                       \
                                                                                            \
    static void divide_##member(const struct piece *piece, union values *sums)              \
    {                                                                                       \
        real divisor =                                                                      \
            divisor_of(piece->args, piece->first_entry, piece->end_entry, piece->num_kept); \
        for (size_t i = 0; i < piece->num_columns; i++)                                     \
            sums->member[i] = divisor == 0 ? 0 : sums->member[i] / divisor;                 \
    }                                                                                       \
                                                                                            \
    static const struct steps steps_##member = {.load = load_##member,                      \
                                                .add = add_##member,                        \
                                                .add_weighted = add_weighted_##member,      \
                                                .max = max_##member,                        \
                                                .divide = divide_##member,                  \
                                                .store = store_##member};

DEFINE_STEPS(float, f32, bag_weight_f32, bag_divisor_f32, __builtin_fmaf)
DEFINE_STEPS(double, f64, bag_weight_f64, bag_divisor_f64, __builtin_fma)

/* ---- integers -------------------------------------------------------------------------------- */

/* Integers of every width are computed in 64 bits, sign-extended if they are signed. Sums and
 * products modulo 2^64 are also correct modulo any smaller power, so storing the low bytes wraps
 * like the element's own type. */

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

static void widen(enum bag_dtype dtype, const void *from, size_t count, uint64_t *values)
{
    switch (dtype) {
#define BAG_X(id, type)                                   \
    case BAG_##id: {                                      \
        type elements[PIECE_COLUMNS] BAG_UNSET;           \
        memcpy(elements, from, count * sizeof *elements); \
        for (size_t i = 0; i < count; i++)                \
            values[i] = (uint64_t)elements[i];            \
        break;                                            \
    }
        INTEGERS(BAG_X)
#undef BAG_X
    default:
        break;
    }
}

static void store_integers(const struct bag_pool_args *args, const union values *values,
                           size_t count, void *out)
{
    switch (args->output_dtype) {
#define BAG_X(id, type)                                  \
    case BAG_##id: {                                     \
        type elements[PIECE_COLUMNS] BAG_UNSET;          \
        for (size_t i = 0; i < count; i++)               \
            elements[i] = (type)values->u64[i];          \
        memcpy(out, elements, count * sizeof *elements); \
        break;                                           \
    }
        INTEGERS(BAG_X)
#undef BAG_X
    default:
        break;
    }
}

static void load_integers(const struct bag_pool_args *args, int64_t row, size_t column,
                          size_t count, union values *values)
{
    size_t element = (size_t)row * args->table.row_elements + column;
    const char *rows = args->table.rows;
    widen(args->table.dtype, rows + element * bag_dtypes[args->table.dtype].bytes, count,
          values->u64);
}

static uint64_t integer_weight(const struct bag_pool_args *args, size_t entry)
{
    uint64_t weight = 0;
    size_t bytes = bag_dtypes[args->table.dtype].bytes;
    widen(args->table.dtype, (const char *)args->weights + entry * bytes, 1, &weight);
    return weight;
}

static void add_integers(union values *sums, const union values *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        sums->u64[i] += values->u64[i];
}

static void add_weighted_integers(const struct bag_pool_args *args, size_t entry,
                                  union values *sums, const union values *values, size_t count)
{
    uint64_t weight = integer_weight(args, entry);
    for (size_t i = 0; i < count; i++)
        sums->u64[i] += weight * values->u64[i];
}

static void max_integers(const struct bag_pool_args *args, union values *largest,
                         const union values *values, size_t count)
{
    /* Signed order is unsigned order with the top bit inverted. */
    bool is_signed = bag_dtypes[args->table.dtype].kind == BAG_KIND_SIGNED;
    uint64_t turn = is_signed ? UINT64_C(1) << 63 : 0;
    for (size_t i = 0; i < count; i++)
        if ((values->u64[i] ^ turn) > (largest->u64[i] ^ turn))
            largest->u64[i] = values->u64[i];
}

/* Divides sums that are exact in signed 64 bits. store_exactly handles the others. */
static void divide_integers(const struct piece *piece, union values *sums)
{
    for (size_t i = 0; i < piece->num_columns; i++)
        sums->u64[i] = (uint64_t)((int64_t)sums->u64[i] / (int64_t)piece->num_kept);
}

static const struct steps steps_integer = {.load = load_integers,
                                           .add = add_integers,
                                           .add_weighted = add_weighted_integers,
                                           .max = max_integers,
                                           .divide = divide_integers,
                                           .store = store_integers};

/* ---- exact means ----------------------------------------------------------------------------- */

static bool needs_exact_mean(const struct piece *piece)
{
    enum bag_dtype dtype = piece->args->table.dtype;
    if (piece->args->reduction != BAG_MEAN || bag_dtypes[dtype].kind == BAG_KIND_FLOAT)
        return false;
    return piece->args->partial || piece->args->weights || bag_dtypes[dtype].bytes == 8 ||
           piece->num_kept > INT32_MAX;
}

/* Computes the exact sums of the piece's columns and of the weights. */
static void sum_exactly(const struct piece *piece, struct bag_wide *sums, struct bag_wide *divisor)
{
    const struct bag_pool_args *args = piece->args;
    bool is_signed = bag_dtypes[args->table.dtype].kind == BAG_KIND_SIGNED;
    const struct bag_number one = {1, false};
    union values values;
    for (size_t entry = piece->first_entry; entry < piece->end_entry; entry++) {
        int64_t row = bag_id_at(&args->indices, entry);
        if (!bag_keeps(args, entry, row))
            continue;
        struct bag_number weight = args->weights ? bag_weight_number(args, entry) : one;
        bag_wide_add_product(divisor, weight, one);
        load_integers(args, row, piece->column, piece->num_columns, &values);
        for (size_t i = 0; i < piece->num_columns; i++)
            bag_wide_add_product(&sums[i], bag_number_of(values.u64[i], is_signed), weight);
    }
}

/* Writes the means, or in a partial call the sums themselves. */
static void store_exactly(const struct steps *steps, const struct piece *piece, char *out)
{
    struct bag_wide sums[PIECE_COLUMNS] = {{0}}, divisor = {0};
    union values means BAG_UNSET;
    sum_exactly(piece, sums, &divisor);
    for (size_t i = 0; i < piece->num_columns; i++) {
        if (piece->args->partial)
            bag_wide_store(sums[i], out + i * BAG_WIDE_BYTES);
        else
            means.u64[i] = bag_wide_quotient(sums[i], divisor);
    }
    if (!piece->args->partial)
        steps->store(piece->args, &means, piece->num_columns, out);
}

/* ---- the loop -------------------------------------------------------------------------------- */

static const struct steps *steps_for(enum bag_dtype dtype)
{
    if (dtype == BAG_F64)
        return &steps_f64;
    return bag_dtypes[dtype].kind == BAG_KIND_FLOAT ? &steps_f32 : &steps_integer;
}

/* Computes the sums, or the largest values, of the columns over the entries that stay. Sums start
 * from +0, so that a sum of -0 is +0. */
static void combine(const struct steps *steps, const struct piece *piece, union values *result)
{
    const struct bag_pool_args *args = piece->args;
    union values values BAG_UNSET;
    bool first = true;
    memset(result, 0, sizeof *result);
    for (size_t entry = piece->first_entry; entry < piece->end_entry; entry++) {
        int64_t row = bag_id_at(&args->indices, entry);
        if (!bag_keeps(args, entry, row))
            continue;
        bool is_max = args->reduction == BAG_MAX;
        steps->load(args, row, piece->column, piece->num_columns,
                    is_max && first ? result : &values);
        if (is_max && !first)
            steps->max(args, result, &values, piece->num_columns);
        else if (!is_max && args->weights)
            steps->add_weighted(args, entry, result, &values, piece->num_columns);
        else if (!is_max)
            steps->add(result, &values, piece->num_columns);
        first = false;
    }
}

static void pool_piece(const struct steps *steps, const struct piece *piece, char *out)
{
    union values result BAG_UNSET;
    bool divides = piece->args->reduction == BAG_MEAN || piece->args->reduction == BAG_SQRTN;
    if (needs_exact_mean(piece)) {
        store_exactly(steps, piece, out);
        return;
    }
    combine(steps, piece, &result);
    if (divides)
        steps->divide(piece, &result);
    steps->store(piece->args, &result, piece->num_columns, out);
}

/* Writes the default row. Its bits are unchanged if no conversion is needed. */
static void copy_default(const struct bag_pool_args *args, size_t column, size_t count, char *out)
{
    const struct bag_table *table = &args->table;
    const struct steps *steps = steps_for(table->dtype);
    size_t bytes = bag_dtypes[args->output_dtype].bytes;
    union values values BAG_UNSET;
    if (table->row_format == BAG_ROWS_PLAIN && args->output_dtype == table->dtype) {
        size_t element = (size_t)args->default_row * table->row_elements + column;
        memcpy(out, (const char *)table->rows + element * bytes, count * bytes);
        return;
    }
    for (size_t done = 0; done < count; done += PIECE_COLUMNS) {
        size_t now = count - done < PIECE_COLUMNS ? count - done : PIECE_COLUMNS;
        steps->load(args, args->default_row, column + done, now, &values);
        steps->store(args, &values, now, out + done * bytes);
    }
}

void bag_ref_empty(const struct bag_pool_args *args, const struct bag_tiles *tiles, char *out)
{
    const size_t count = tiles->end_column - tiles->first_column;
    if (args->default_row < 0)
        memset(out, 0, count * args->element_bytes);
    else
        copy_default(args, tiles->first_column, count, out);
}

/* Pools these columns of a bag with the entries [first, end). */
static void pool_bag(const struct bag_pool_args *args, const struct bag_tiles *tiles, size_t first,
                     size_t end, char *out)
{
    const struct steps *steps = steps_for(args->table.dtype);
    struct piece piece = {.args = args, .first_entry = first, .end_entry = end};
    piece.num_kept = bag_count_kept(args, first, end);
    if (piece.num_kept == 0) {
        bag_ref_empty(args, tiles, out);
        return;
    }
    for (size_t column = tiles->first_column; column < tiles->end_column;) {
        size_t left = tiles->end_column - column;
        piece.column = column;
        piece.num_columns = left < PIECE_COLUMNS ? left : PIECE_COLUMNS;
        pool_piece(steps, &piece, out);
        out += piece.num_columns * args->element_bytes;
        column += piece.num_columns;
    }
}

void bag_ref_loop(const struct bag_pool_args *args, const struct bag_tiles *tiles, size_t first_bag,
                  size_t end_bag, char *out)
{
    for (size_t bag = first_bag; bag < end_bag; bag++, out += args->bag_stride)
        pool_bag(args, tiles, bag_offset_at(args, bag), bag_offset_at(args, bag + 1), out);
}
