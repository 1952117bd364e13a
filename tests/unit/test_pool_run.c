/* Tests the exact results of pooling for every form, reduction and option. */
#include "kernels/rowformat.h"
#include "pool_fixture.h"

#include <math.h>

#define ROWS_F32 TABLE(F32, float, 2, 1, 2, 3, -4, 5, 0.5f, 7, 8)

/* Three bags of rows of two columns. The second bag is empty. */
static struct given given_f32(enum bag_reduction reduction)
{
    static const float rows[] = {1, 2, 3, -4, 5, 0.5f, 7, 8};
    static const int64_t ids[] = {3, 0, 1, 1, 2}, offsets[] = {0, 2, 2};
    struct given given = given_of(table_of(BAG_F32, 4, 2, rows), reduction, TENSOR(I64, 1, ids));
    given.offsets = TENSOR(I64, 1, offsets);
    return given;
}

TEST(reduces_by_sum_mean_max_and_sqrtn)
{
    float root2 = sqrtf(2), root3 = sqrtf(3);
    struct given given = given_f32(BAG_SUM);
    POOLS(given, float, 8, 10, 0, 0, 11, -7.5f);
    given.rules.reduction = BAG_MEAN;
    POOLS(given, float, 4, 5, 0, 0, 11.0f / 3, -2.5f);
    given.rules.reduction = BAG_MAX;
    POOLS(given, float, 7, 8, 0, 0, 5, 0.5f);
    given.rules.reduction = BAG_SQRTN;
    POOLS(given, float, 8 / root2, 10 / root2, 0, 0, 11 / root3, -7.5f / root3);
}

TEST(weighs_rows)
{
    float squares = sqrtf(1 + 0.25f + 16);
    struct given given = given_f32(BAG_SUM);
    given.weights = ELEMENTS(F32, float, 1, 2, -1, 0.5f, 4);
    POOLS(given, float, 9, 12, 0, 0, 18.5f, 4);
    given.rules.reduction = BAG_SQRTN;
    POOLS(given, float, 9 / sqrtf(5), 12 / sqrtf(5), 0, 0, 18.5f / squares, 4 / squares);
    given.rules.reduction = BAG_MEAN;
    given.rules.weighted_mean = true;
    POOLS(given, float, 3, 4, 0, 0, 18.5f / 3.5f, 4 / 3.5f);
    given.weights = ELEMENTS(F32, float, 1, -1, 0, 0, 0);
    POOLS(given, float, 0, 0, 0, 0, 0, 0);
}

TEST(fuses_weights_and_starts_from_positive_zero)
{
    /* (1 + 2^-12)^2 - 1 loses its last bit unless product and sum are rounded together. */
    const float near_one = 1 + 0x1p-12f;
    struct given given =
        given_of(TABLE(F32, float, 1, -1, near_one, -0.0f), BAG_SUM, BAGS(1, 0, 1));
    given.weights = ELEMENTS(F32, float, 1, near_one);
    POOLS(given, float, 0x1p-11f + 0x1p-24f);
    given.ids = BAGS(1, 2);
    given.weights = ELEMENTS(F32, float, 1);
    POOLS(given, float, 0.0f);
    given.weights.data = NULL;
    POOLS(given, float, 0.0f);
}

TEST(copies_the_default_row_as_it_is)
{
    struct given given = given_f32(BAG_MEAN);
    given.rules.default_index = 1;
    POOLS(given, float, 4, 5, 3, -4, 11.0f / 3, -2.5f);
}

TEST(leaves_out_padding)
{
    struct given given = given_f32(BAG_MEAN);
    given.rules.has_padding_idx = true;
    given.rules.padding_idx = -3;
    POOLS(given, float, 4, 5, 0, 0, 5, 0.5f);
}

TEST(prunes_by_index_and_by_weight)
{
    struct given given = given_of(ROWS_F32, BAG_SUM, BAGS(1, -1, 0, 9, 2, 1));
    given.rules.missing = BAG_MISSING_SKIP;
    POOLS(given, float, 9, -1.5f);
    given.rules.prune_invalid = true;
    given.rules.reduction = BAG_SQRTN;
    given.weights = ELEMENTS(F32, float, 3, 1, 1, NAN, 0);
    POOLS(given, float, 1, 2);
    given.weights = ELEMENTS(F32, float, 0, -1, 1, 0, NAN);
    given.rules.default_index = 3;
    POOLS(given, float, 7, 8);
}

TEST(max_keeps_the_earlier_zero_and_the_first_nan)
{
    struct given given =
        given_of(TABLE(F32, float, 1, -0.0f, 0.0f, NAN, 5), BAG_MAX, BAGS(2, 0, 1, 1, 0));
    POOLS(given, float, -0.0f, 0.0f);
    given.ids = BAGS(2, 2, 3, 3, 2);
    POOLS(given, float, NAN, NAN);
}

TEST(converts_rows_and_results_once)
{
    /* 1 + 2^-11 + 2^-11 is 1 + 2^-10 in f32; rounded at each step it would stay 1. */
    struct given given =
        given_of(TABLE(F16, uint16_t, 1, 0x3c00, 0x1000, 0x1000), BAG_SUM, BAGS(1, 0, 1, 2));
    POOLS(given, uint16_t, 0x3c01);
    given.rules.output_dtype = BAG_F32;
    POOLS(given, float, 1 + 0x1p-10f);
    given.rules.output_dtype = BAG_BF16;
    POOLS(given, uint16_t, 0x3f80);
    given.ids = with_shape(given.ids, 1, 0);
    given.rules.default_index = 1;
    POOLS(given, uint16_t, 0x3a00);
}

TEST(pools_f64_in_f64)
{
    struct given given = given_of(TABLE(F64, double, 1, 1, 0x1p-40, 3), BAG_MEAN, BAGS(1, 0, 1, 2));
    POOLS(given, double, (4 + 0x1p-40) / 3);
}

TEST(does_what_unsigned_bytes_do)
{
    struct given given = given_of(TABLE(U8, uint8_t, 1, 200, 100, 3), BAG_SUM, BAGS(1, 0, 1, 2));
    POOLS(given, uint8_t, 303 - 256);
    given.rules.reduction = BAG_MEAN;
    POOLS(given, uint8_t, 101);
    given.rules.reduction = BAG_MAX;
    POOLS(given, uint8_t, 200);
    given.weights = ELEMENTS(U8, uint8_t, 2, 1, 255);
    given.rules.reduction = BAG_SUM;
    POOLS(given, uint8_t, (400 + 100 + 765) & 255);
    given.rules.reduction = BAG_MEAN;
    given.rules.weighted_mean = true;
    POOLS(given, uint8_t, (400 + 100 + 765) / 258);
}

TEST(means_of_negative_integers_go_toward_zero)
{
    struct given given =
        given_of(TABLE(I16, int16_t, 1, -7, 0, -32768), BAG_MEAN, BAGS(2, 0, 1, 2, 2));
    POOLS(given, int16_t, -3, -32768);
}

/* Sums of 64-bit integers beyond 64 bits, weighted ones beyond 128. */
TEST(means_of_64_bit_integers_are_exact)
{
    const int64_t low = INT64_MIN, high = INT64_MAX;
    struct given given =
        given_of(TABLE(I64, int64_t, 1, low, high, 5), BAG_MEAN, BAGS(2, 0, 0, 0, 0, 1, 1, 1, 2));
    POOLS(given, int64_t, low, (int64_t)(((__int128)high * 3 + 5) / 4));
    given.weights = ELEMENTS(I64, int64_t, low, low, low, low, high, high, high, 1);
    given.rules.weighted_mean = true;
    /* (3 * high^2 + 5) / (3 * high + 1) is high - 1/3 and a little, so high - 1. */
    POOLS(given, int64_t, low, high - 1);
}

TEST(means_of_unsigned_64_bit_integers_are_exact)
{
    const uint64_t most = UINT64_MAX;
    struct given given = given_of(TABLE(U64, uint64_t, 1, most, 1), BAG_MEAN, BAGS(2, 0, 0, 0, 1));
    POOLS(given, uint64_t, most, UINT64_C(1) << 63);
    given.weights = ELEMENTS(U64, uint64_t, most, most, most, 3);
    given.rules.weighted_mean = true;
    /* (most^2 + 3) / (most + 3) is most - 3 and 12 / (most + 3). */
    POOLS(given, uint64_t, most, most - 3);
}

/* A divisor below zero, and a quotient that does not fit, which wraps. */
TEST(weighted_means_of_integers_wrap_after_dividing)
{
    struct given given = given_of(TABLE(I8, int8_t, 1, 100, -100), BAG_MEAN, BAGS(2, 0, 1, 0, 1));
    given.weights = ELEMENTS(I8, int8_t, 3, 2, -2, 1);
    given.rules.weighted_mean = true;
    POOLS(given, int8_t, 20, (int8_t)(300 - 256));
    given.weights = ELEMENTS(I8, int8_t, 3, -3, -2, 1);
    POOLS(given, int8_t, 0, (int8_t)(300 - 256));
}

TEST(ends_the_last_bag_at_the_last_offset)
{
    struct given given = given_of(ROWS_F32, BAG_SUM, ELEMENTS(I32, int32_t, 3, 0, 1, 1, 2));
    given.offsets = ELEMENTS(I32, int32_t, 1, 2, 4);
    given.rules.include_last_offset = true;
    POOLS(given, float, 1, 2, 6, -8);
}

TEST(sorts_segments_stably)
{
    /* 1e8 swallows 1: the order of adding shows. Ids above 255 take a second sorting pass. */
    const float expected[300] = {[299] = -1e8f};
    struct given given =
        given_of(TABLE(F32, float, 1, 1e8f, 1, -1e8f), BAG_SUM, IDS(2, 0, 1, 1, 2));
    given.segments = ELEMENTS(I32, int32_t, 299, 0, 299, 0, 0);
    given.rules.unsorted_segments = true;
    expect_pooled(&given, expected, sizeof expected);
    given.weights = ELEMENTS(F32, float, 1, 1, 1, 1, 1);
    expect_pooled(&given, expected, sizeof expected);
}

/* One bag and several, of rows without elements, as parts of fewer columns than parts have them. */
TEST(writes_nothing_for_rows_without_columns)
{
    static const enum bag_dtype dtypes[] = {BAG_F32, BAG_F16, BAG_BF16, BAG_F64, BAG_I32};
    const enum bag_isa used = bag_isa_used();
    for (int isa = 0; isa < BAG_ISA_COUNT; isa++)
        for (size_t i = 0; bag_isa_usable((enum bag_isa)isa) && i < 3 * COUNT_OF(dtypes); i++) {
            struct given given =
                given_of(table_of(dtypes[i / 3], 2, 0, dtypes), BAG_SUM, IDS(1, 0));
            given.offsets = tensor_of(BAG_I64, 1, i % 3, (const int64_t[]){0, 1});
            bag_isa_use((enum bag_isa)isa);
            expect_pooled(&given, dtypes, 0);
        }
    bag_isa_use(used);
}

TEST(takes_f32_weights_for_every_float)
{
    const struct bag_tensor weights = ELEMENTS(F32, float, 0.5f, 3);
    struct given given = given_of(TABLE(F16, uint16_t, 1, 0x3c00, 0x4000), BAG_SUM, BAGS(1, 0, 1));
    given.weights = weights;
    POOLS(given, uint16_t, 0x4680); /* 6.5 */
    given = given_of(TABLE(BF16, uint16_t, 1, 0x3f80, 0x4000), BAG_SUM, BAGS(1, 0, 1));
    given.weights = weights;
    POOLS(given, uint16_t, 0x40d0);
    given = given_of(TABLE(F64, double, 1, 1, 2), BAG_SUM, BAGS(1, 0, 1));
    given.weights = weights;
    POOLS(given, double, 6.5);
}

/* -0, a NaN with a payload, infinity, the least number, 1 and 2. */
#define ODD_BITS 0x80000000, 0x7fa12345, 0xff800000, 1, 0x3f800000, 0x40000000

TEST(copies_rows_bit_by_bit_without_a_reduction)
{
    struct given given = given_of(TABLE(F32, uint32_t, 2, ODD_BITS), BAG_NONE, BAGS(2, 0, 2, 0, 1));
    static const uint32_t expected[] = {0x80000000, 0x7fa12345, 0x3f800000, 0x40000000,
                                        0x80000000, 0x7fa12345, 0xff800000, 1};
    given.rules.default_index = 2;
    expect_pooled(&given, expected, sizeof expected);
    given.offsets = IDS(0, 1); /* is only checked */
    expect_pooled(&given, expected, sizeof expected);
    given.rules.include_last_offset = true;
    expect_pooled(&given, expected, sizeof expected);
    given.offsets.data = NULL;
    given.ids = tensor_of(BAG_I64, 0, 1, given.ids.data);
    expect_pooled(&given, expected, 2 * sizeof *expected);
    given.ids = tensor_of(BAG_I64, 1, 0, given.ids.data);
    expect_pooled(&given, expected, 0);
    given = given_of(TABLE(U8, uint8_t, 1, 1, 2, 3), BAG_NONE, IDS(0, 2, 0, 1));
    POOLS(given, uint8_t, 1, 3, 1, 2);
}

TEST(converts_rows_once_without_a_reduction)
{
    /* -0, 1 + 2^-10, the largest number, the least. */
    struct given given = given_of(TABLE(F16, uint16_t, 1, 0x8000, 0x3c01, 0x7bff, 0x0001), BAG_NONE,
                                  IDS(0, 1, 2, 3));
    given.rules.output_dtype = BAG_F32;
    POOLS(given, float, -0.0f, 1 + 0x1p-10f, 65504, 0x1p-24f);
    given.rules.output_dtype = BAG_BF16;
    POOLS(given, uint16_t, 0x8000, 0x3f80, 0x4780, 0x3380);
    /* Two codes, scale 0.5, bias -1. */
    unsigned char quantised[2 * 10] = {0, 4};
    memcpy(quantised + 2, (float[]){0.5f, -1}, 8);
    memcpy(quantised + 10, quantised, 10);
    quantised[10] = 2;
    given = given_of(table_of(BAG_F32, 2, 2, quantised), BAG_NONE, IDS(0, 1));
    given.table.row_format = BAG_ROWS_INT8;
    POOLS(given, float, -1, 1, 0, 1);
}

TEST(replaces_rows_without_a_reduction)
{
    struct given given = given_of(ROWS_F32, BAG_NONE, IDS(1, 7, -1, 0, 3));
    given.rules.default_index = 2;
    given.rules.missing = BAG_MISSING_SKIP;
    given.rules.has_padding_idx = true;
    given.rules.padding_idx = 1;
    POOLS(given, float, 0, 0, 0, 0, 0, 0, 1, 2, 7, 8);
    given.rules.output_dtype = BAG_F16;
    POOLS(given, uint16_t, 0, 0, 0, 0, 0, 0, 0x3c00, 0x4000, 0x4700, 0x4800);
}
