/* Tests the bits of results that comparing numbers cannot tell: signs of zeros, roundings, the
 * order of adding, and what is written beside a result. Cases of tests/conformance have the results
 * of each form, reduction and option. */
#include "pool_fixture.h"

#include <math.h>

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

TEST(max_keeps_the_earlier_zero_and_the_first_nan)
{
    struct given given =
        given_of(TABLE(F32, float, 1, -0.0f, 0.0f, NAN, 5), BAG_MAX, BAGS(2, 0, 1, 1, 0));
    POOLS(given, float, -0.0f, 0.0f);
    given.ids = BAGS(2, 2, 3, 3, 2);
    POOLS(given, float, NAN, NAN);
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

static void on_each_isa(void (*test)(void))
{
    const enum bag_isa used = bag_isa_used();
    for (int isa = 0; isa < BAG_ISA_COUNT; isa++)
        if (bag_isa_usable((enum bag_isa)isa)) {
            bag_isa_use((enum bag_isa)isa);
            test();
        }
    bag_isa_use(used);
}

static void pool_without_columns(void)
{
    static const enum bag_dtype dtypes[] = {BAG_F32, BAG_F16, BAG_BF16, BAG_F64, BAG_I32};
    for (size_t i = 0; i < 3 * COUNT_OF(dtypes); i++) {
        struct given given = given_of(table_of(dtypes[i / 3], 2, 0, dtypes), BAG_SUM, IDS(1, 0));
        given.offsets = tensor_of(BAG_I64, 1, i % 3, (const int64_t[]){0, 1});
        expect_pooled(&given, dtypes, 0);
    }
}

/* One bag and several, of rows without elements, as parts of fewer columns than parts have them. */
TEST(writes_nothing_for_rows_without_columns)
{
    on_each_isa(pool_without_columns);
}

enum { MOST_BAGS = 40, COLUMNS = 16 };

/* Pools `count` bags of one row each, except for one of none or two. */
static void pool_singles(size_t count, size_t other, size_t length)
{
    static float rows[5 * COLUMNS], sums[MOST_BAGS * COLUMNS];
    static int64_t ids[MOST_BAGS + 1], offsets[MOST_BAGS];
    static int32_t narrow_offsets[MOST_BAGS];
    size_t entries = 0;
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        rows[i] = (float)i;
    memset(sums, 0, sizeof sums);
    for (size_t bag = 0; bag < count; bag++) {
        offsets[bag] = (int64_t)entries;
        narrow_offsets[bag] = (int32_t)entries;
        for (size_t end = entries + (bag == other ? length : 1); entries < end; entries++) {
            ids[entries] = (int64_t)(entries % 5);
            for (size_t i = 0; i < COLUMNS; i++)
                sums[bag * COLUMNS + i] += rows[entries % 5 * COLUMNS + i];
        }
    }
    struct given given =
        given_of(table_of(BAG_F32, 5, COLUMNS, rows), BAG_SUM, tensor_of(BAG_I64, 1, entries, ids));
    given.offsets = tensor_of(BAG_I64, 1, count, offsets);
    expect_pooled(&given, sums, count * COLUMNS * sizeof *sums);
    given.offsets = tensor_of(BAG_I32, 1, count, narrow_offsets);
    expect_pooled(&given, sums, count * COLUMNS * sizeof *sums);
}

static void pool_singles_of_every_count(void)
{
    for (size_t count = 1; count <= MOST_BAGS; count++)
        for (size_t other = 0; other <= count; other++) {
            pool_singles(count, other, 0);
            pool_singles(count, other, 2);
        }
}

/* Bags of one row are counted by vectors of offsets, whose last one overlaps the one before it. */
TEST(pools_single_rows_beside_another_bag)
{
    on_each_isa(pool_singles_of_every_count);
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

/* A zero keeps its sign, which a sum would lose. */
TEST(decodes_rows_with_their_signs_without_a_reduction)
{
    struct given given =
        given_of(TABLE(F16, uint16_t, 2, 0x8000, 0x0000, 0xbc00, 0x7c00), BAG_NONE, IDS(1, 0));
    static const uint32_t expected[] = {0xbf800000, 0x7f800000, 0x80000000, 0x00000000};
    given.rules.output_dtype = BAG_F32;
    expect_pooled(&given, expected, sizeof expected);
}
