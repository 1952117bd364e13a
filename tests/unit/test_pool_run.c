/* Tests the exact results of pooling for every form, reduction and option. */
#include "kernels/rowformat.h"
#include "pool_fixture.h"

#include <math.h>

static const float rows_f32[] = {1, 2, 3, -4, 5, 0.5f, 7, 8};
static const int64_t indices[] = {3, 0, 1, 1, 2};
static const int64_t offsets[] = {0, 2, 2};

/* Pools f32 rows of two columns with the offsets {0, 2, 2}. */
static void assert_f32(struct bag_rules rules, const float *weights, const float *expected)
{
    struct bag_table table = table_of(BAG_F32, 4, 2, rows_f32);
    struct bag_tensor ids = TENSOR(I64, 1, indices), starts = TENSOR(I64, 1, offsets);
    struct bag_tensor factors = tensor_of(BAG_F32, 1, 5, weights);
    struct bag_inputs inputs = {{[BAG_INDICES] = &ids,
                                 [BAG_OFFSETS] = &starts,
                                 [BAG_PER_SAMPLE_WEIGHTS] = weights ? &factors : NULL}};
    assert_pools(&table, &rules, &inputs, expected, 6 * sizeof *expected);
}

TEST(reduces_by_sum_mean_max_and_sqrtn)
{
    float root2 = sqrtf(2), root3 = sqrtf(3);
    assert_f32(rules_for(BAG_F32, BAG_SUM), NULL, (float[]){8, 10, 0, 0, 11, -7.5f});
    assert_f32(rules_for(BAG_F32, BAG_MEAN), NULL, (float[]){4, 5, 0, 0, 11.0f / 3, -2.5f});
    assert_f32(rules_for(BAG_F32, BAG_MAX), NULL, (float[]){7, 8, 0, 0, 5, 0.5f});
    assert_f32(rules_for(BAG_F32, BAG_SQRTN), NULL,
               (float[]){8 / root2, 10 / root2, 0, 0, 11 / root3, -7.5f / root3});
}

TEST(weighs_rows)
{
    const float weights[] = {1, 2, -1, 0.5f, 4};
    struct bag_rules rules = rules_for(BAG_F32, BAG_MEAN);
    float squares = sqrtf(1 + 0.25f + 16);
    assert_f32(rules_for(BAG_F32, BAG_SUM), weights, (float[]){9, 12, 0, 0, 18.5f, 4});
    assert_f32(rules_for(BAG_F32, BAG_SQRTN), weights,
               (float[]){9 / sqrtf(5), 12 / sqrtf(5), 0, 0, 18.5f / squares, 4 / squares});
    rules.weighted_mean = true;
    assert_f32(rules, weights, (float[]){3, 4, 0, 0, 18.5f / 3.5f, 4 / 3.5f});
    assert_f32(rules, (const float[]){1, -1, 0, 0, 0}, (float[]){0, 0, 0, 0, 0, 0});
}

TEST(fuses_weights_and_starts_from_positive_zero)
{
    /* (1 + 2^-12)^2 - 1 loses its last bit unless product and sum are rounded together. */
    const float near_one = 1 + 0x1p-12f, rows[] = {-1, near_one, -0.0f};
    const int32_t ids[] = {0, 1, 2};
    const float weights[] = {1, near_one, 1};
    struct bag_table table = table_of(BAG_F32, 3, 1, rows);
    struct bag_rules rules = rules_for(BAG_F32, BAG_SUM);
    struct bag_tensor entries = with_shape(TENSOR(I32, 1, ids), 1, 2);
    struct bag_tensor factors = with_shape(TENSOR(F32, 1, weights), 1, 2);
    struct bag_inputs inputs = {{[BAG_INDICES] = &entries, [BAG_PER_SAMPLE_WEIGHTS] = &factors}};
    assert_pools(&table, &rules, &inputs, &(float){0x1p-11f + 0x1p-24f}, sizeof(float));
    entries = with_shape(tensor_of(BAG_I32, 1, 1, ids + 2), 1, 1);
    factors = with_shape(tensor_of(BAG_F32, 1, 1, weights + 2), 1, 1);
    assert_pools(&table, &rules, &inputs, &(float){0.0f}, sizeof(float));
    inputs.tensor[BAG_PER_SAMPLE_WEIGHTS] = NULL;
    assert_pools(&table, &rules, &inputs, &(float){0.0f}, sizeof(float));
}

TEST(copies_the_default_row_as_it_is)
{
    struct bag_rules rules = rules_for(BAG_F32, BAG_MEAN);
    rules.default_index = 1;
    assert_f32(rules, NULL, (float[]){4, 5, 3, -4, 11.0f / 3, -2.5f});
}

TEST(leaves_out_padding)
{
    struct bag_rules rules = rules_for(BAG_F32, BAG_MEAN);
    rules.has_padding_idx = true;
    rules.padding_idx = -3;
    assert_f32(rules, NULL, (float[]){4, 5, 0, 0, 5, 0.5f});
}

TEST(prunes_by_index_and_by_weight)
{
    const int64_t ids[] = {-1, 0, 9, 2, 1};
    const float weights[] = {3, 1, 1, NAN, 0};
    struct bag_table table = table_of(BAG_F32, 4, 2, rows_f32);
    struct bag_rules rules = rules_for(BAG_F32, BAG_SUM);
    struct bag_tensor entries = with_shape(TENSOR(I64, 1, ids), 1, 5);
    struct bag_tensor factors = with_shape(TENSOR(F32, 1, weights), 1, 5);
    struct bag_inputs inputs = {{[BAG_INDICES] = &entries}};
    rules.missing = BAG_MISSING_SKIP;
    assert_pools(&table, &rules, &inputs, (float[]){9, -1.5f}, 8);
    rules.prune_invalid = true;
    rules.reduction = BAG_SQRTN;
    inputs.tensor[BAG_PER_SAMPLE_WEIGHTS] = &factors;
    assert_pools(&table, &rules, &inputs, (float[]){1, 2}, 8);
    float nothing[] = {0, -1, 1, 0, NAN};
    factors.data = nothing;
    rules.default_index = 3;
    assert_pools(&table, &rules, &inputs, (float[]){7, 8}, 8);
}

TEST(max_keeps_the_earlier_zero_and_the_first_nan)
{
    const float rows[] = {-0.0f, 0.0f, NAN, 5};
    struct bag_table table = table_of(BAG_F32, 4, 1, rows);
    struct bag_rules rules = rules_for(BAG_F32, BAG_MAX);
    const int32_t pairs[] = {0, 1, 1, 0};
    struct bag_tensor ids = with_shape(TENSOR(I32, 1, pairs), 2, 2);
    struct bag_inputs inputs = {{[BAG_INDICES] = &ids}};
    assert_pools(&table, &rules, &inputs, (float[]){-0.0f, 0.0f}, 8);
    const int32_t nans[] = {2, 3, 3, 2};
    ids.data = nans;
    assert_pools(&table, &rules, &inputs, (float[]){NAN, NAN}, 8);
}

TEST(converts_rows_and_results_once)
{
    /* 1 + 2^-11 + 2^-11 is 1 + 2^-10 in f32; rounded at each step it would stay 1. */
    const uint16_t rows[] = {0x3c00, 0x1000, 0x1000};
    const int32_t ids[] = {0, 1, 2};
    struct bag_table table = table_of(BAG_F16, 3, 1, rows);
    struct bag_rules rules = rules_for(BAG_F16, BAG_SUM);
    struct bag_tensor entries = with_shape(TENSOR(I32, 1, ids), 1, 3);
    struct bag_inputs inputs = {{[BAG_INDICES] = &entries}};
    assert_pools(&table, &rules, &inputs, &(uint16_t){0x3c01}, 2);
    rules.output_dtype = BAG_F32;
    assert_pools(&table, &rules, &inputs, &(float){1 + 0x1p-10f}, 4);
    rules.output_dtype = BAG_BF16;
    assert_pools(&table, &rules, &inputs, &(uint16_t){0x3f80}, 2);
    entries = with_shape(tensor_of(BAG_I32, 1, 0, ids), 1, 0);
    rules.default_index = 1;
    assert_pools(&table, &rules, &inputs, &(uint16_t){0x3a00}, 2);
}

TEST(pools_f64_in_f64)
{
    const double rows[] = {1, 0x1p-40, 3};
    const int64_t ids[] = {0, 1, 2};
    struct bag_table table = table_of(BAG_F64, 3, 1, rows);
    struct bag_rules rules = rules_for(BAG_F64, BAG_MEAN);
    struct bag_tensor entries = with_shape(TENSOR(I64, 1, ids), 1, 3);
    struct bag_inputs inputs = {{[BAG_INDICES] = &entries}};
    assert_pools(&table, &rules, &inputs, &(double){(4 + 0x1p-40) / 3}, 8);
}

TEST(does_what_unsigned_bytes_do)
{
    const uint8_t rows[] = {200, 100, 3}, weights[] = {2, 1, 255};
    const int64_t ids[] = {0, 1, 2};
    struct bag_table table = table_of(BAG_U8, 3, 1, rows);
    struct bag_rules rules = rules_for(BAG_U8, BAG_SUM);
    struct bag_tensor entries = with_shape(TENSOR(I64, 1, ids), 1, 3);
    struct bag_tensor factors = with_shape(TENSOR(U8, 1, weights), 1, 3);
    struct bag_inputs inputs = {{[BAG_INDICES] = &entries}};
    assert_pools(&table, &rules, &inputs, &(uint8_t){303 - 256}, 1);
    rules.reduction = BAG_MEAN;
    assert_pools(&table, &rules, &inputs, &(uint8_t){101}, 1);
    rules.reduction = BAG_MAX;
    assert_pools(&table, &rules, &inputs, &(uint8_t){200}, 1);
    inputs.tensor[BAG_PER_SAMPLE_WEIGHTS] = &factors;
    rules.reduction = BAG_SUM;
    assert_pools(&table, &rules, &inputs, &(uint8_t){(400 + 100 + 765) & 255}, 1);
    rules.reduction = BAG_MEAN;
    rules.weighted_mean = true;
    assert_pools(&table, &rules, &inputs, &(uint8_t){(400 + 100 + 765) / 258}, 1);
}

TEST(means_of_negative_integers_go_toward_zero)
{
    const int16_t rows[] = {-7, 0, -32768};
    const int64_t ids[] = {0, 1, 2, 2};
    struct bag_table table = table_of(BAG_I16, 3, 1, rows);
    struct bag_rules rules = rules_for(BAG_I16, BAG_MEAN);
    struct bag_tensor entries = with_shape(TENSOR(I64, 1, ids), 2, 2);
    struct bag_inputs inputs = {{[BAG_INDICES] = &entries}};
    assert_pools(&table, &rules, &inputs, (int16_t[]){-3, -32768}, 4);
}

/* Sums of 64-bit integers beyond 64 bits, weighted ones beyond 128. */
TEST(means_of_64_bit_integers_are_exact)
{
    const int64_t low = INT64_MIN, high = INT64_MAX, rows[] = {low, high, 5};
    const int64_t ids[] = {0, 0, 0, 0, 1, 1, 1, 2};
    struct bag_table table = table_of(BAG_I64, 3, 1, rows);
    struct bag_rules rules = rules_for(BAG_I64, BAG_MEAN);
    struct bag_tensor entries = with_shape(TENSOR(I64, 1, ids), 2, 4);
    struct bag_inputs inputs = {{[BAG_INDICES] = &entries}};
    int64_t mean = (int64_t)(((__int128)high * 3 + 5) / 4);
    assert_pools(&table, &rules, &inputs, (int64_t[]){low, mean}, 16);

    const int64_t weights[] = {low, low, low, low, high, high, high, 1};
    struct bag_tensor factors = with_shape(TENSOR(I64, 1, weights), 2, 4);
    inputs.tensor[BAG_PER_SAMPLE_WEIGHTS] = &factors;
    rules.weighted_mean = true;
    /* (3 * high^2 + 5) / (3 * high + 1) is high - 1/3 and a little, so high - 1. */
    assert_pools(&table, &rules, &inputs, (int64_t[]){low, high - 1}, 16);
}

TEST(means_of_unsigned_64_bit_integers_are_exact)
{
    const uint64_t most = UINT64_MAX, rows[] = {most, 1};
    const int64_t ids[] = {0, 0, 0, 1};
    const uint64_t weights[] = {most, most, most, 3};
    struct bag_table table = table_of(BAG_U64, 2, 1, rows);
    struct bag_rules rules = rules_for(BAG_U64, BAG_MEAN);
    struct bag_tensor entries = with_shape(TENSOR(I64, 1, ids), 2, 2);
    struct bag_tensor factors = with_shape(TENSOR(U64, 1, weights), 2, 2);
    struct bag_inputs inputs = {{[BAG_INDICES] = &entries}};
    assert_pools(&table, &rules, &inputs, (uint64_t[]){most, UINT64_C(1) << 63}, 16);
    inputs.tensor[BAG_PER_SAMPLE_WEIGHTS] = &factors;
    rules.weighted_mean = true;
    /* (most^2 + 3) / (most + 3) is most - 3 and 12 / (most + 3). */
    assert_pools(&table, &rules, &inputs, (uint64_t[]){most, most - 3}, 16);
}

/* A divisor below zero, and a quotient that does not fit, which wraps. */
TEST(weighted_means_of_integers_wrap_after_dividing)
{
    const int8_t rows[] = {100, -100}, weights[] = {3, 2, -2, 1};
    const int64_t ids[] = {0, 1, 0, 1};
    struct bag_table table = table_of(BAG_I8, 2, 1, rows);
    struct bag_rules rules = rules_for(BAG_I8, BAG_MEAN);
    struct bag_tensor entries = with_shape(TENSOR(I64, 1, ids), 2, 2);
    struct bag_tensor factors = with_shape(TENSOR(I8, 1, weights), 2, 2);
    struct bag_inputs inputs = {{[BAG_INDICES] = &entries, [BAG_PER_SAMPLE_WEIGHTS] = &factors}};
    rules.weighted_mean = true;
    assert_pools(&table, &rules, &inputs, (int8_t[]){20, (int8_t)(300 - 256)}, 2);
    const int8_t cancel[] = {3, -3, -2, 1};
    factors.data = cancel;
    assert_pools(&table, &rules, &inputs, (int8_t[]){0, (int8_t)(300 - 256)}, 2);
}

TEST(ends_the_last_bag_at_the_last_offset)
{
    const int32_t ids[] = {3, 0, 1, 1, 2}, bounds[] = {1, 2, 4};
    struct bag_table table = table_of(BAG_F32, 4, 2, rows_f32);
    struct bag_rules rules = rules_for(BAG_F32, BAG_SUM);
    struct bag_tensor entries = TENSOR(I32, 1, ids), starts = TENSOR(I32, 1, bounds);
    struct bag_inputs inputs = {{[BAG_INDICES] = &entries, [BAG_OFFSETS] = &starts}};
    rules.include_last_offset = true;
    assert_pools(&table, &rules, &inputs, (float[]){1, 2, 6, -8}, 16);
}

TEST(sorts_segments_stably)
{
    /* 1e8 swallows 1: the order of adding shows. Ids above 255 take a second sorting pass. */
    const float rows[] = {1e8f, 1, -1e8f};
    const int64_t ids[] = {2, 0, 1, 1, 2};
    const int32_t segments[] = {299, 0, 299, 0, 0};
    const float weights[] = {1, 1, 1, 1, 1};
    float expected[300] = {0};
    struct bag_table table = table_of(BAG_F32, 3, 1, rows);
    struct bag_rules rules = rules_for(BAG_F32, BAG_SUM);
    struct bag_tensor entries = TENSOR(I64, 1, ids), groups = TENSOR(I32, 1, segments);
    struct bag_tensor factors = TENSOR(F32, 1, weights);
    struct bag_inputs inputs = {{[BAG_INDICES] = &entries, [BAG_SEGMENT_IDS] = &groups}};
    rules.unsorted_segments = true;
    expected[0] = 0;
    expected[299] = -1e8f;
    assert_pools(&table, &rules, &inputs, expected, sizeof expected);
    inputs.tensor[BAG_PER_SAMPLE_WEIGHTS] = &factors;
    assert_pools(&table, &rules, &inputs, expected, sizeof expected);
}

/* One bag and several, of rows without elements, as parts of fewer columns than parts have them. */
TEST(writes_nothing_for_rows_without_columns)
{
    static const enum bag_dtype dtypes[] = {BAG_F32, BAG_F16, BAG_BF16, BAG_F64, BAG_I32};
    const enum bag_isa used = bag_isa_used();
    const int64_t ids[] = {1, 0}, starts[] = {0, 1};
    for (int isa = 0; isa < BAG_ISA_COUNT; isa++)
        for (size_t i = 0; bag_isa_usable((enum bag_isa)isa) && i < 3 * COUNT_OF(dtypes); i++) {
            enum bag_dtype dtype = dtypes[i / 3];
            struct bag_table table = table_of(dtype, 2, 0, rows_f32);
            struct bag_rules rules = rules_for(dtype, BAG_SUM);
            struct bag_tensor entries = TENSOR(I64, 1, ids);
            struct bag_tensor begins = tensor_of(BAG_I64, 1, (int64_t)(i % 3), starts);
            struct bag_inputs inputs = {{[BAG_INDICES] = &entries, [BAG_OFFSETS] = &begins}};
            bag_isa_use((enum bag_isa)isa);
            assert_pools(&table, &rules, &inputs, rows_f32, 0);
        }
    bag_isa_use(used);
}

/* One bag of the rows 1 and 2 of a table of one column, with the weights 0.5 and 3. */
static enum bag_status pool_with_f32_weights(enum bag_dtype dtype, const void *rows, void *out)
{
    const int64_t ids[] = {0, 1};
    const float weights[] = {0.5f, 3};
    struct bag_table table = table_of(dtype, 2, 1, rows);
    struct bag_rules rules = rules_for(dtype, BAG_SUM);
    struct bag_tensor entries = with_shape(TENSOR(I64, 1, ids), 1, 2);
    struct bag_tensor factors = with_shape(TENSOR(F32, 1, weights), 1, 2);
    struct bag_inputs inputs = {{[BAG_INDICES] = &entries, [BAG_PER_SAMPLE_WEIGHTS] = &factors}};
    struct bag_fault fault;
    struct bag_pool_args args;
    struct bag_pool_plan plan;
    bag_pool_prepare(&table, &rules, &plan);
    if (bag_pool_check(&plan, &inputs, 64, &args, &fault) == BAG_STATUS_OK)
        bag_pool_run(&args, bag_range_all(&args), out);
    return fault.status;
}

TEST(takes_f32_weights_for_every_float)
{
    const uint16_t f16[] = {0x3c00, 0x4000}, bf16[] = {0x3f80, 0x4000};
    const double f64[] = {1, 2};
    const int32_t i32[] = {1, 2};
    uint16_t half = 0;
    double wide = 0;
    int32_t whole = 0;
    pool_with_f32_weights(BAG_F16, f16, &half);
    assert_int_equal(half, 0x4680); /* 6.5 */
    pool_with_f32_weights(BAG_BF16, bf16, &half);
    assert_int_equal(half, 0x40d0);
    pool_with_f32_weights(BAG_F64, f64, &wide);
    assert_true(wide == 6.5);
    assert_int_equal(pool_with_f32_weights(BAG_I32, i32, &whole),
                     BAG_STATUS_WEIGHTS_DTYPE_MISMATCH);
}

/* -0, a NaN with a payload, infinity, the least number, 1 and 2. */
static const uint32_t odd_bits[] = {0x80000000, 0x7fa12345, 0xff800000, 1, 0x3f800000, 0x40000000};

TEST(copies_rows_bit_by_bit_without_a_reduction)
{
    const int32_t ids[] = {0, 2, 0, 1};
    const int64_t starts[] = {0, 1};
    struct bag_table table = table_of(BAG_F32, 3, 2, odd_bits);
    struct bag_rules rules = rules_for(BAG_F32, BAG_NONE);
    struct bag_tensor entries = with_shape(TENSOR(I32, 1, ids), 2, 2);
    struct bag_tensor offsets_only_checked = TENSOR(I64, 1, starts);
    struct bag_inputs inputs = {{[BAG_INDICES] = &entries}};
    const uint32_t expected[] = {odd_bits[0], odd_bits[1], odd_bits[4], odd_bits[5],
                                 odd_bits[0], odd_bits[1], odd_bits[2], odd_bits[3]};
    rules.default_index = 2;
    assert_pools(&table, &rules, &inputs, expected, sizeof expected);
    inputs.tensor[BAG_OFFSETS] = &offsets_only_checked;
    assert_pools(&table, &rules, &inputs, expected, sizeof expected);
    rules.include_last_offset = true;
    assert_pools(&table, &rules, &inputs, expected, sizeof expected);
    entries = tensor_of(BAG_I32, 0, 1, ids);
    inputs.tensor[BAG_OFFSETS] = NULL;
    assert_pools(&table, &rules, &inputs, expected, 2 * sizeof *expected);
    entries = tensor_of(BAG_I32, 1, 0, ids);
    assert_pools(&table, &rules, &inputs, expected, 0);
    const uint8_t bytes[] = {1, 2, 3};
    table = table_of(BAG_U8, 3, 1, bytes);
    rules = rules_for(BAG_U8, BAG_NONE);
    entries = TENSOR(I32, 1, ids);
    assert_pools(&table, &rules, &inputs, (uint8_t[]){1, 3, 1, 2}, 4);
}

TEST(converts_rows_once_without_a_reduction)
{
    /* -0, 1 + 2^-10, the largest number, the least. */
    const uint16_t halves[] = {0x8000, 0x3c01, 0x7bff, 0x0001};
    const int64_t ids[] = {0, 1, 2, 3};
    struct bag_table table = table_of(BAG_F16, 4, 1, halves);
    struct bag_rules rules = rules_for(BAG_F16, BAG_NONE);
    struct bag_tensor entries = TENSOR(I64, 1, ids);
    struct bag_inputs inputs = {{[BAG_INDICES] = &entries}};
    rules.output_dtype = BAG_F32;
    assert_pools(&table, &rules, &inputs, (float[]){-0.0f, 1 + 0x1p-10f, 65504, 0x1p-24f}, 16);
    rules.output_dtype = BAG_BF16;
    assert_pools(&table, &rules, &inputs, (uint16_t[]){0x8000, 0x3f80, 0x4780, 0x3380}, 8);
    /* Two codes, scale 0.5, bias -1. */
    unsigned char quantised[2 * 10] = {0, 4};
    memcpy(quantised + 2, (float[]){0.5f, -1}, 8);
    memcpy(quantised + 10, quantised, 10);
    quantised[10] = 2;
    table = table_of(BAG_F32, 2, 2, quantised);
    table.row_format = BAG_ROWS_INT8;
    rules = rules_for(BAG_F32, BAG_NONE);
    entries = tensor_of(BAG_I64, 1, 2, ids);
    assert_pools(&table, &rules, &inputs, (float[]){-1, 1, 0, 1}, 16);
}

TEST(replaces_rows_without_a_reduction)
{
    const int64_t ids[] = {1, 7, -1, 0, 3};
    struct bag_table table = table_of(BAG_F32, 4, 2, rows_f32);
    struct bag_rules rules = rules_for(BAG_F32, BAG_NONE);
    struct bag_tensor entries = TENSOR(I64, 1, ids);
    struct bag_inputs inputs = {{[BAG_INDICES] = &entries}};
    rules.default_index = 2;
    rules.missing = BAG_MISSING_SKIP;
    rules.has_padding_idx = true;
    rules.padding_idx = 1;
    assert_pools(&table, &rules, &inputs, (float[]){0, 0, 0, 0, 0, 0, 1, 2, 7, 8}, 40);
    rules.output_dtype = BAG_F16;
    const uint16_t halves[] = {0, 0, 0, 0, 0, 0, 0x3c00, 0x4000, 0x4700, 0x4800};
    assert_pools(&table, &rules, &inputs, halves, sizeof halves);
}
