/* Tests the merging of what parts of a table answer: exact sums, and what is rounded, copied and
 * left out. test_fanout.c merges the answers to random calls. */
#include "kernels/exact.h"
#include "kernels/partial.h"
#include "kernels/rowformat.h"
#include "pool_fixture.h"

#include <math.h>

/* ---- rows that are not pooled ---------------------------------------------------------------- */

TEST(rows_without_a_reduction_are_copied)
{
    const uint16_t rows[] = {0x8000, 0x7d01}; /* -0, and a NaN with a payload */
    const int64_t ids[] = {0, 1, 7};
    struct bag_table table = table_of(BAG_F16, 2, 1, rows);
    struct bag_rules rules = rules_for(BAG_F16, BAG_NONE);
    struct bag_pool_plan plan;
    struct bag_fault fault;
    struct bag_pool_args args;
    struct bag_tensor entries = TENSOR(I64, 1, ids);
    struct bag_inputs inputs = {{[BAG_INDICES] = &entries}};
    rules.missing = BAG_MISSING_SKIP;
    rules.output_dtype = BAG_F32;
    bag_pool_prepare(&table, &rules, &plan);
    assert_int_equal(bag_pool_check(&plan, &inputs, 64, &args, &fault), BAG_STATUS_OK);
    bag_pool_make_partial(&args);
    assert_int_equal(args.output_dtype, BAG_F16);
    uint16_t found[3];
    int64_t counts[3];
    bag_pool_run(&args, bag_range_all(&args), found);
    bag_pool_counts(&args, counts);
    assert_memory_equal(found, ((uint16_t[]){rows[0], rows[1], 0}), sizeof found);
    assert_memory_equal(counts, ((int64_t[]){1, 1, 0}), sizeof counts);
    for (int i = 0; i < 3; i++) {
        const struct bag_share shares[] = {{rows, NULL, 0}, {&found[i], NULL, (uint64_t)counts[i]}};
        struct bag_merge merge = {BAG_F16, BAG_NONE, false, BAG_F16, 1};
        uint16_t same;
        float wide;
        bag_merge(&merge, shares, 2, &same);
        assert_int_equal(same, found[i]);
        merge.output_dtype = BAG_F32;
        bag_merge(&merge, shares, 2, &wide);
        assert_true(i == 1 ? isnan(wide) : wide == 0 && !!signbit(wide) == (i == 0));
    }
}

/* ---- exact values ---------------------------------------------------------------------------- */

/* Sums that no 64 bits hold, of both signs, with weights: the mean is that of all entries. */
TEST(integer_means_are_exact)
{
    const int64_t rows[] = {INT64_MIN, INT64_MAX, -7, 5};
    const int64_t ids[] = {0, 0, 1}, others[] = {2, 3}, starts[] = {0};
    struct bag_table table = table_of(BAG_I64, 4, 1, rows);
    struct bag_rules rules = rules_for(BAG_I64, BAG_MEAN);
    struct bag_pool_plan plan;
    struct bag_fault fault;
    struct bag_share shares[2];
    uint64_t sums[2][BAG_WIDE_WORDS];
    int64_t counts[2], mean;
    bag_pool_prepare(&table, &rules, &plan);
    for (int i = 0; i < 2; i++) {
        struct bag_tensor entries = i ? TENSOR(I64, 1, others) : TENSOR(I64, 1, ids);
        struct bag_tensor offsets_of = TENSOR(I64, 1, starts);
        struct bag_inputs inputs = {{[BAG_INDICES] = &entries, [BAG_OFFSETS] = &offsets_of}};
        struct bag_pool_args args;
        assert_int_equal(bag_pool_check(&plan, &inputs, 64, &args, &fault), BAG_STATUS_OK);
        bag_pool_make_partial(&args);
        assert_int_equal(args.result_bytes, sizeof sums[i]);
        assert_int_equal(args.output_dtype, BAG_U64);
        bag_pool_run(&args, bag_range_all(&args), sums[i]);
        bag_pool_counts(&args, &counts[i]);
        shares[i] = (struct bag_share){sums[i], NULL, (uint64_t)counts[i]};
    }
    /* 2 * -2^63 + 2^63 - 1 = -2^63 - 1 */
    const uint64_t expected[] = {UINT64_C(0x7fffffffffffffff), UINT64_MAX, UINT64_MAX};
    assert_memory_equal(sums[0], expected, sizeof expected);
    assert_true(counts[0] == 3 && counts[1] == 2);
    struct bag_merge merge = {BAG_I64, BAG_MEAN, false, BAG_I64, 1};
    bag_merge(&merge, shares, 2, &mean);
    assert_true(mean == INT64_MIN / 5 - 1); /* (-2^63 - 1 - 7 + 5) / 5, toward zero */
}

/* A mean of half precision is rounded once, after the division. */
TEST(rounds_once_at_the_end)
{
    const float sums[] = {2049, 1}; /* 2049 is no FP16 number; a third of 2050 is none either */
    const struct bag_share shares[] = {{&sums[0], NULL, 2}, {&sums[1], NULL, 1}};
    struct bag_merge merge = {BAG_F16, BAG_MEAN, false, BAG_F16, 1};
    uint16_t mean;
    bag_merge(&merge, shares, 2, &mean);
    assert_int_equal(mean, bag_f16_from_f32(2050.0f / 3));
}

/* A part without an entry has zeros, which count neither as a sum nor as the largest. */
TEST(leaves_out_parts_without_entries)
{
    const float sums[] = {0, -5, -0.0f}, weights[] = {7, 2, 1};
    const struct bag_share shares[] = {
        {&sums[0], &weights[0], 0}, {&sums[1], &weights[1], 3}, {&sums[2], &weights[2], 1}};
    struct bag_merge merge = {BAG_F32, BAG_MAX, false, BAG_F32, 1};
    float result;
    bag_merge(&merge, shares, 2, &result);
    assert_true(result == -5);
    merge.reduction = BAG_SUM;
    const struct bag_share zeros[] = {shares[0], shares[2]};
    bag_merge(&merge, zeros, 2, &result);
    assert_true(result == 0 && signbit(result));
    merge = (struct bag_merge){BAG_F32, BAG_MEAN, true, BAG_F32, 1};
    bag_merge(&merge, shares, 3, &result);
    assert_true(result == -5.0f / 3);
    bag_merge(&merge, shares, 1, &result);
    assert_true(result == 0 && !signbit(result));
}

/* Words that no shard sends are not numbers, and do no harm. */
TEST(takes_any_words)
{
    const uint64_t words[] = {0, 0, UINT64_C(1) << 63, UINT64_MAX, UINT64_MAX, UINT64_MAX};
    const struct bag_share shares[] = {
        {&words[0], &words[0], UINT64_MAX}, {&words[3], &words[3], 1}, {&words[0], &words[3], 1}};
    struct bag_merge merge = {BAG_I8, BAG_MEAN, true, BAG_I8, 1};
    int8_t result;
    for (size_t i = 1; i <= 3; i++)
        bag_merge(&merge, shares, i, &result);
    merge.is_weighted = false;
    for (size_t i = 1; i <= 3; i++)
        bag_merge(&merge, shares, i, &result);
}

TEST(sizes_do_not_overflow)
{
    struct bag_pool_args args = {.table = {.dtype = BAG_I8, .row_elements = SIZE_MAX / 8},
                                 .reduction = BAG_MEAN,
                                 .num_bags = 2};
    bag_pool_make_partial(&args);
    assert_true(args.result_bytes == SIZE_MAX);
}
