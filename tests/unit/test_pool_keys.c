/* Rows in place of keys: every policy, padding, and the sentences of what is rejected. */
#include "resolve_fixture.h"

static struct bag_keys_line lines[16];
static struct bag_keys keys;
static const int64_t own_keys[] = {-1, 0, 70, INT64_MIN};

static int set_up(void **state)
{
    struct bag_keys_entry crowded[4];
    size_t num_crowded;
    (void)state;
    memset(lines, 0, sizeof lines);
    keys = bag_keys_for(4);
    keys.lines = lines;
    return keys.num_lines != COUNT_OF(lines) ||
           !bag_keys_fill(&keys, own_keys, 4, 0, crowded, &num_crowded) || num_crowded > 0;
}

AROUND_ALL(set_up, NULL)

/* ---- keys ------------------------------------------------------------------------------------ */

TEST(finds_rows_of_every_type)
{
    static const int32_t narrow[] = {70, -1, 0};
    static const int64_t wide[] = {INT64_MIN, -1};
    static const uint64_t unsigned_keys[] = {UINT64_C(1) << 63, UINT64_MAX};
    struct call call = {.keys = &keys};
    assert_int_equal(resolve(&call, BAG_I32, narrow, 3), BAG_STATUS_OK);
    assert_true(pool(&call) == 7);
    assert_false(call.args.skip_outside); /* so that the kernels test no entry */
    assert_int_equal(resolve(&call, BAG_I64, wide, 2), BAG_STATUS_OK);
    assert_true(pool(&call) == 9);
    assert_int_equal(resolve(&call, BAG_U64, unsigned_keys, 2), BAG_STATUS_OK);
    assert_true(pool(&call) == 9);
    assert_int_equal(call.resolving.num_missing, 0);
    assert_int_equal(resolve(&call, BAG_U64, NULL, 0), BAG_STATUS_OK);
    assert_true(pool(&call) == 0);
}

TEST(skips_and_rejects_missing_keys)
{
    static const int64_t ids[] = {0, 71, -2, 70};
    static const uint64_t large[] = {0, UINT64_MAX - 1};
    struct call call = {.keys = &keys, .rules = {.missing = BAG_MISSING_SKIP}};
    assert_int_equal(resolve(&call, BAG_I64, ids, 4), BAG_STATUS_OK);
    assert_true(pool(&call) == 6);
    assert_int_equal(call.resolving.num_missing, 2);
    assert_int_equal(bag_pool_entry_status(&call.args, 0), BAG_ENTRY_KEPT);
    assert_int_equal(bag_pool_entry_status(&call.args, 1), BAG_ENTRY_MISSING);
    call.rules.missing = BAG_MISSING_ERROR;
    expect_rejected(resolve(&call, BAG_I64, ids, 4), &call,
                    "'indices' at position 1 is 71, a key that the table does not have");
    expect_rejected(resolve(&call, BAG_U64, large, 2), &call,
                    "'indices' at position 1 is 18446744073709551614, a key that the table does "
                    "not have");
}

TEST(gives_missing_keys_a_row)
{
    static const int64_t ids[] = {71, 0};
    struct call call = {.keys = &keys,
                        .rules = {.missing = BAG_MISSING_DEFAULT,
                                  .default_index = INT64_MIN,
                                  .has_default_index = true}};
    assert_int_equal(resolve(&call, BAG_I64, ids, 2), BAG_STATUS_OK);
    assert_true(pool(&call) == 10);
    assert_int_equal(call.args.default_row, 3);
    EXPECT_STATUSES(&call, BAG_ENTRY_MISSING, BAG_ENTRY_KEPT);
    assert_int_equal(bag_count_kept(&call.args, 0, 2), 2);
    call.rules.missing = BAG_MISSING_HASH;
    call.rules.hash_rows = 3;
    assert_int_equal(resolve(&call, BAG_I64, ids, 2), BAG_STATUS_OK);
    assert_int_equal(call.rows[0], bag_keys_hashed_row(71, 3));
    assert_int_equal(call.resolving.num_missing, 1);
}

/* Entries with the padding key are not missing, even if the table does not have this key. */
TEST(padding_leaves_first)
{
    static const int64_t ids[] = {70, 99, 0};
    struct call call = {.keys = &keys, .rules = {.has_padding_idx = true, .padding_idx = 99}};
    assert_int_equal(resolve(&call, BAG_I64, ids, 3), BAG_STATUS_OK);
    assert_true(pool(&call) == 6);
    assert_int_equal(bag_pool_entry_status(&call.args, 1), BAG_ENTRY_PADDING);
    call.rules.padding_idx = 70;
    call.rules.missing = BAG_MISSING_SKIP;
    assert_int_equal(resolve(&call, BAG_I64, ids, 3), BAG_STATUS_OK);
    assert_true(pool(&call) == 2);
    assert_int_equal(bag_pool_entry_status(&call.args, 0), BAG_ENTRY_PADDING);
    assert_int_equal(bag_pool_entry_status(&call.args, 1), BAG_ENTRY_MISSING);
    assert_int_equal(call.resolving.num_missing, 1);
}

TEST(takes_the_default_of_a_request)
{
    static const int32_t key = -1;
    static const uint64_t unknown = UINT64_MAX - 9;
    struct call call = {.keys = &keys};
    call.default_index = (struct bag_tensor){.dtype = BAG_I32, .count = 1, .data = &key};
    call.inputs.tensor[BAG_DEFAULT_INDEX] = &call.default_index;
    assert_int_equal(resolve(&call, BAG_I64, NULL, 0), BAG_STATUS_OK);
    assert_true(pool(&call) == 1);
    call.default_index = (struct bag_tensor){.dtype = BAG_U64, .count = 1, .data = &unknown};
    expect_rejected(resolve(&call, BAG_I64, NULL, 0), &call,
                    "'default_index' is 18446744073709551606, a key that the table does not have");
    call.inputs.tensor[BAG_DEFAULT_INDEX] = NULL;
    call.rules.default_index = 1;
    call.rules.has_default_index = true;
    expect_rejected(resolve(&call, BAG_I64, NULL, 0), &call,
                    "'default_index' is 1, a key that the table does not have");
}

/* ---- dense tables ---------------------------------------------------------------------------- */

TEST(gives_indices_outside_the_default_row)
{
    static const int64_t ids[] = {3, 4, -1, 0};
    static const int64_t none = -1;
    struct call call = {.rules = {.missing = BAG_MISSING_DEFAULT, .default_index = 1}};
    assert_int_equal(resolve(&call, BAG_I64, ids, 4), BAG_STATUS_OK);
    assert_true(pool(&call) == 13);
    assert_int_equal(bag_pool_entry_status(&call.args, 1), BAG_ENTRY_OUTSIDE);
    call.rules.prune_invalid = true; /* negative ones leave, as they do otherwise */
    assert_int_equal(resolve(&call, BAG_I64, ids, 4), BAG_STATUS_OK);
    assert_true(pool(&call) == 11);
    assert_int_equal(bag_pool_entry_status(&call.args, 2), BAG_ENTRY_PRUNED);
    call.default_index = (struct bag_tensor){.dtype = BAG_I64, .count = 1, .data = &none};
    call.inputs.tensor[BAG_DEFAULT_INDEX] = &call.default_index;
    expect_rejected(resolve(&call, BAG_I64, ids, 4), &call,
                    "'default_index' is -1, but indices outside the table are to get its row: it "
                    "must be from 0 to 3");
    assert_int_equal(resolve(&call, BAG_U64, ids, 4), BAG_STATUS_INDICES_DTYPE);
}

/* An index outside is not padding because the row that it gets is: row 0 is often both. */
TEST(pools_the_default_row_though_it_is_padding)
{
    static const int64_t ids[] = {0, 99, 1, -1, -2};
    static const float weights[] = {1, 1, 1, 0, 1};
    struct call call = {.rules = {.missing = BAG_MISSING_DEFAULT, .has_padding_idx = true}};
    assert_int_equal(resolve(&call, BAG_I64, ids, 3), BAG_STATUS_OK);
    assert_true(pool(&call) == 3);
    assert_int_equal(bag_count_kept(&call.args, 0, 3), 2);
    EXPECT_STATUSES(&call, BAG_ENTRY_PADDING, BAG_ENTRY_OUTSIDE, BAG_ENTRY_KEPT);
    assert_int_equal(resolve(&call, BAG_I64, ids + 1, 2), BAG_STATUS_OK);
    assert_true(pool(&call) == 3);
    assert_true(bag_keeps_all(&call.args)); /* so that the kernels test no entry */
    call.rules.prune_invalid = true;
    assert_int_equal(resolve(&call, BAG_I64, ids, 5), BAG_STATUS_OK);
    assert_true(pool(&call) == 3);
    assert_int_equal(bag_pool_entry_status(&call.args, 3), BAG_ENTRY_PRUNED);
    assert_int_equal(bag_pool_entry_status(&call.args, 4), BAG_ENTRY_PRUNED);
    /* An entry that was outside and has weight 0 is reported as outside. */
    call.rules.reduction = BAG_MEAN;
    call.rules.weighted_mean = true;
    call.weights = (struct bag_tensor){
        .dtype = BAG_F32, .rank = 2, .shape = {1, 4}, .count = 4, .data = weights};
    call.inputs.tensor[BAG_PER_SAMPLE_WEIGHTS] = &call.weights;
    static const int64_t others[] = {1, 0, 2, 99};
    assert_int_equal(resolve(&call, BAG_I64, others, 4), BAG_STATUS_OK);
    assert_true(pool(&call) == 3);
    assert_int_equal(bag_pool_entry_status(&call.args, 3), BAG_ENTRY_OUTSIDE);
}

TEST(says_which_types_keys_have)
{
    static const float ids[4] = {0};
    static const int64_t keys_asked[] = {0};
    struct call call = {.keys = &keys};
    expect_rejected(resolve(&call, BAG_F32, ids, 4), &call,
                    "'indices' has datatype FP32; keys must be INT32, INT64 or UINT64");
    call.default_index = (struct bag_tensor){.dtype = BAG_F32, .count = 1, .data = ids};
    call.inputs.tensor[BAG_DEFAULT_INDEX] = &call.default_index;
    expect_rejected(resolve(&call, BAG_I64, keys_asked, 1), &call,
                    "'default_index' has datatype FP32; keys must be INT32, INT64 or UINT64");
}

TEST(rows_without_a_reduction_take_the_default_for_missing_ones_alone)
{
    const int64_t ids[] = {70, 5, 0, -1};
    struct call call = {.keys = &keys,
                        .rules = {.reduction = BAG_NONE,
                                  .has_default_index = true,
                                  .default_index = 70,
                                  .has_padding_idx = true,
                                  .padding_idx = 70,
                                  .missing = BAG_MISSING_DEFAULT}};
    float rows[4];
    assert_int_equal(resolve(&call, BAG_I64, ids, 4), BAG_STATUS_OK);
    bag_pool_run(&call.args, bag_range_all(&call.args), rows);
    assert_memory_equal(rows, ((float[]){0, 4, 2, 1}), sizeof rows);
    call.rules.missing = BAG_MISSING_SKIP;
    assert_int_equal(resolve(&call, BAG_I64, ids, 4), BAG_STATUS_OK);
    bag_pool_run(&call.args, bag_range_all(&call.args), rows);
    assert_memory_equal(rows, ((float[]){0, 0, 2, 1}), sizeof rows);
    call.keys = NULL;
    call.rules = (struct bag_rules){.reduction = BAG_NONE,
                                    .default_index = 1,
                                    .has_padding_idx = true,
                                    .padding_idx = 1,
                                    .missing = BAG_MISSING_DEFAULT};
    const int64_t indices[] = {1, 4, 3, -7};
    assert_int_equal(resolve(&call, BAG_I64, indices, 4), BAG_STATUS_OK);
    bag_pool_run(&call.args, bag_range_all(&call.args), rows);
    assert_memory_equal(rows, ((float[]){0, 2, 8, 2}), sizeof rows);
}
