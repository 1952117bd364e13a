/* Plain C steps for integers of every width: in 64 bits, sign-extended where they have signs.
 *
 * Sums and products modulo 2^64 are right modulo any smaller power too, so storing the low bytes
 * wraps as the element's own type would.
 *
 * Must not know: bags beyond their number of entries. */
#include "pool_ref.h"

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
        type elements[BAG_REF_TILE] BAG_UNSET;            \
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

static void store(const struct bag_pool_args *args, const union bag_tile *values, size_t count,
                  void *out)
{
    switch (args->output_dtype) {
#define BAG_X(id, type)                                  \
    case BAG_##id: {                                     \
        type elements[BAG_REF_TILE] BAG_UNSET;           \
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

static void load(const struct bag_pool_args *args, int64_t row, size_t column, size_t count,
                 union bag_tile *values)
{
    size_t element = (size_t)row * args->table.row_elements + column;
    const char *rows = args->table.rows;
    widen(args->table.dtype, rows + element * bag_dtypes[args->table.dtype].bytes, count,
          values->u64);
}

static uint64_t weight_of(const struct bag_pool_args *args, size_t entry)
{
    uint64_t weight = 0;
    size_t bytes = bag_dtypes[args->table.dtype].bytes;
    widen(args->table.dtype, (const char *)args->weights + entry * bytes, 1, &weight);
    return weight;
}

static void add(union bag_tile *sums, const union bag_tile *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        sums->u64[i] += values->u64[i];
}

static void add_weighted(const struct bag_pool_args *args, size_t entry, union bag_tile *sums,
                         const union bag_tile *values, size_t count)
{
    uint64_t weight = weight_of(args, entry);
    for (size_t i = 0; i < count; i++)
        sums->u64[i] += weight * values->u64[i];
}

static void max(const struct bag_pool_args *args, union bag_tile *largest,
                const union bag_tile *values, size_t count)
{
    /* Signed order is unsigned order with the top bit turned over. */
    bool is_signed = bag_dtypes[args->table.dtype].kind == BAG_KIND_SIGNED;
    uint64_t turn = is_signed ? UINT64_C(1) << 63 : 0;
    for (size_t i = 0; i < count; i++)
        if ((values->u64[i] ^ turn) > (largest->u64[i] ^ turn))
            largest->u64[i] = values->u64[i];
}

/* Only for sums that bag_ref_needs_exact leaves here: they are exact in 64 bits with a sign. */
static void divide(const struct bag_piece *piece, union bag_tile *sums)
{
    for (size_t i = 0; i < piece->num_columns; i++)
        sums->u64[i] = (uint64_t)((int64_t)sums->u64[i] / (int64_t)piece->num_kept);
}

const struct bag_ref_kind bag_ref_integer = {.load = load,
                                             .add = add,
                                             .add_weighted = add_weighted,
                                             .max = max,
                                             .divide = divide,
                                             .store = store};

/* ---- exact means ----------------------------------------------------------------------------- */

typedef unsigned __int128 u128;

/* A sum in two's complement over 192 bits: 2^63 products of 64-bit factors fit. */
struct wide {
    u128 low;
    int64_t high;
};

/* A 65-bit integer: what both signed and unsigned elements fit. */
struct number {
    uint64_t magnitude;
    bool negative;
};

static struct number number_of(uint64_t value, bool is_signed)
{
    bool negative = is_signed && value >> 63;
    return (struct number){negative ? -value : value, negative};
}

static void add_product(struct wide *sum, struct number a, struct number b)
{
    u128 product = (u128)a.magnitude * b.magnitude;
    if (a.negative != b.negative) {
        sum->high -= sum->low < product;
        sum->low -= product;
    } else {
        sum->low += product;
        sum->high += sum->low < product;
    }
}

static struct wide magnitude_of(struct wide sum)
{
    if (sum.high < 0) {
        sum.low = -sum.low;
        sum.high = ~sum.high + (sum.low == 0);
    }
    return sum;
}

/* The low 64 bits of sum / divisor, rounded toward zero; 0 for a divisor of 0. By hand, bit by
 * bit: a divisor is below 2^127, so the remainder never loses a bit. */
static uint64_t quotient_of(struct wide sum, struct wide divisor)
{
    bool negative = (sum.high < 0) != (divisor.high < 0);
    struct wide left = magnitude_of(sum);
    u128 by = magnitude_of(divisor).low;
    u128 remainder = 0;
    uint64_t quotient = 0;
    if (by == 0)
        return 0;
    for (int bit = 191; bit >= 0; bit--) {
        u128 digit = bit >= 128 ? (uint64_t)left.high >> (bit - 128) : left.low >> bit;
        remainder = remainder << 1 | (digit & 1);
        quotient = quotient << 1 | (remainder >= by);
        remainder -= remainder >= by ? by : 0;
    }
    return negative ? -quotient : quotient;
}

bool bag_ref_needs_exact(const struct bag_piece *piece)
{
    enum bag_dtype dtype = piece->args->table.dtype;
    if (piece->args->reduction != BAG_MEAN || bag_dtypes[dtype].kind == BAG_KIND_FLOAT)
        return false;
    return piece->args->weights || bag_dtypes[dtype].bytes == 8 || piece->num_kept > INT32_MAX;
}

void bag_ref_exact_mean(const struct bag_piece *piece, union bag_tile *means)
{
    const struct bag_pool_args *args = piece->args;
    bool is_signed = bag_dtypes[args->table.dtype].kind == BAG_KIND_SIGNED;
    struct wide sums[BAG_REF_TILE] = {{0}}, divisor = {0};
    const struct number one = {1, false};
    union bag_tile values;
    for (size_t entry = piece->first_entry; entry < piece->end_entry; entry++) {
        int64_t row = bag_id_at(&args->indices, entry);
        if (!bag_keeps(args, entry, row))
            continue;
        struct number weight = args->weights ? number_of(weight_of(args, entry), is_signed) : one;
        add_product(&divisor, weight, one);
        load(args, row, piece->column, piece->num_columns, &values);
        for (size_t i = 0; i < piece->num_columns; i++)
            add_product(&sums[i], number_of(values.u64[i], is_signed), weight);
    }
    for (size_t i = 0; i < piece->num_columns; i++)
        means->u64[i] = quotient_of(sums[i], divisor);
}
