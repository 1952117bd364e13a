/* Resolves ids of a whole table on a part of it: the rows that they become, the ids that are left
 * to other parts, and the messages for rejected ids. */
#include "kernels/keys.h"
#include "kernels/pool_entries.h"
#include "proto/problem.h"
#include "testing.h"

/* One bag of ids of a table of four rows, or of a part of it, which bag_keys_resolve replaces by
 * rows. */
static const float values[4][1] = {{1}, {2}, {4}, {8}};
static const struct bag_table table = {
    .rows = values, .dtype = BAG_F32, .num_rows = 4, .row_elements = 1};

struct call {
    struct bag_rules rules;
    const struct bag_keys *keys; /* NULL: ids are rows */
    struct bag_part_ids part;    /* used if part.part.of is not 0 */
    struct bag_tensor indices, default_index, weights;
    struct bag_inputs inputs;
    struct bag_pool_args args;
    struct bag_resolving resolving;
    struct bag_fault fault;
    int64_t rows[8];
    uint8_t replaced[8];
};

static enum bag_status resolve(struct call *call, enum bag_dtype dtype, const void *ids,
                               size_t count)
{
    static struct bag_pool_plan plan; /* static, because the call keeps a pointer to it */
    const bool is_part = call->part.part.of > 0;
    call->rules.output_dtype = BAG_F32;
    call->rules.keyed = call->keys != NULL;
    call->indices = (struct bag_tensor){
        .dtype = dtype, .rank = 2, .shape = {1, (int64_t)count}, .count = count, .data = ids};
    call->inputs.tensor[BAG_INDICES] = &call->indices;
    bag_pool_prepare(&table, &call->rules, &plan);
    assert_int_equal(plan.needs_rows,
                     call->rules.keyed || call->rules.missing == BAG_MISSING_DEFAULT);
    if (is_part)
        bag_pool_prepare_part(&plan, call->keys ? 4 : 10);
    assert_true(plan.needs_rows || !is_part);
    call->resolving = (struct bag_resolving){.keys = call->keys,
                                             .part = is_part ? &call->part : NULL,
                                             .rules = &call->rules,
                                             .inputs = &call->inputs,
                                             .rows = call->rows,
                                             .replaced = call->replaced};
    enum bag_status status = bag_pool_check(&plan, &call->inputs, 1000, &call->args, &call->fault);
    return status == BAG_STATUS_OK ? bag_keys_resolve(&call->resolving, &call->args, &call->fault)
                                   : status;
}

static float pool(const struct call *call)
{
    float sum;
    bag_pool_run(&call->args, bag_range_all(&call->args), &sum);
    return sum;
}

static void expect_statuses(const struct call *call, const enum bag_entry_status *statuses)
{
    for (size_t i = 0; i < call->args.indices.count; i++)
        assert_string_equal(bag_entry_status_names[bag_pool_entry_status(&call->args, i)],
                            bag_entry_status_names[statuses[i]]);
}

#define EXPECT_STATUSES(call, ...) \
    expect_statuses((call), (const enum bag_entry_status[]){__VA_ARGS__})

static void expect_rejected(enum bag_status status, const struct call *call, const char *sentence)
{
    struct bag_problem problem;
    assert_int_not_equal(status, BAG_STATUS_OK);
    bag_problem_from_fault(&problem, &call->fault);
    assert_string_equal(problem.text, sentence);
}

/* Part 1 of 3 by rows of a table of 10 rows: those from 3 to 5, and behind them row 9. */
static struct call new_call(bool is_partial)
{
    return (struct call){.rules = {.default_index = 9, .output_dtype = BAG_F32},
                         .part = {{BAG_PART_ROWS, 1, 3},
                                  is_partial,
                                  .first_row = 3,
                                  .own_rows = 3,
                                  .local_rows = 4,
                                  .kept_row = 9}};
}

/* ---- rows ------------------------------------------------------------------------------------ */

TEST(finds_the_part_s_own_rows)
{
    const int64_t ids[] = {5, 3, 3, 4}, none[] = {0};
    struct call call = new_call(false);
    assert_int_equal(resolve(&call, BAG_I64, ids, 4), BAG_STATUS_OK);
    assert_true(pool(&call) == 8 && call.resolving.num_other == 0);
    assert_int_equal(resolve(&call, BAG_I64, none, 0), BAG_STATUS_OK);
    assert_true(pool(&call) == 8 && call.args.default_row == 3);
}

TEST(rejects_rows_of_other_parts_with_their_place)
{
    const int64_t ids[] = {3, 9, 2}, outside[] = {3, 10};
    struct call call = new_call(false);
    /* The row behind its own is here for empty bags alone. */
    expect_rejected(resolve(&call, BAG_I64, ids, 3), &call,
                    "'indices' at position 1 is 9, a row of another part: this server has part 1 "
                    "of 3 by rows; with the parameter partial its sums leave out ids of others");
    expect_rejected(resolve(&call, BAG_I64, outside, 2), &call,
                    "'indices' at position 1 is 10; it must be from 0 to 9, the last row");
    call.rules.default_index = 2;
    call.part.kept_row = -1;
    expect_rejected(resolve(&call, BAG_I64, ids, 1), &call,
                    "'default_index' is 2, which is of another part: this server has part 1 of 3");
}

TEST(leaves_rows_of_other_parts_out_where_that_is_asked)
{
    const int64_t ids[] = {0, 3, 9, 5, 6, 2};
    struct call call = new_call(true);
    assert_int_equal(resolve(&call, BAG_I64, ids, 6), BAG_STATUS_OK);
    assert_true(pool(&call) == 5 && call.resolving.num_other == 4);
    assert_int_equal(call.args.default_row, -1);
    EXPECT_STATUSES(&call, BAG_ENTRY_OTHER, BAG_ENTRY_KEPT, BAG_ENTRY_OTHER, BAG_ENTRY_KEPT,
                    BAG_ENTRY_OTHER, BAG_ENTRY_OTHER);
}

/* Padding of any part, negative ids that are pruned, ids outside of the whole table. */
TEST(keeps_the_rules_of_the_whole_table)
{
    const int64_t ids[] = {-7, 3, 4, INT64_MAX, INT64_MIN, 10};
    struct call call = new_call(false);
    call.rules.has_padding_idx = true;
    call.rules.padding_idx = -7; /* row 3 */
    call.rules.missing = BAG_MISSING_SKIP;
    assert_int_equal(resolve(&call, BAG_I64, ids, 6), BAG_STATUS_OK);
    assert_true(pool(&call) == 2);
    EXPECT_STATUSES(&call, BAG_ENTRY_OUTSIDE, BAG_ENTRY_PADDING, BAG_ENTRY_KEPT, BAG_ENTRY_OUTSIDE,
                    BAG_ENTRY_OUTSIDE, BAG_ENTRY_OUTSIDE);
    call.rules.prune_invalid = true;
    assert_int_equal(resolve(&call, BAG_I64, ids, 6), BAG_STATUS_OK);
    assert_true(pool(&call) == 2);
    EXPECT_STATUSES(&call, BAG_ENTRY_PRUNED, BAG_ENTRY_PADDING, BAG_ENTRY_KEPT, BAG_ENTRY_OUTSIDE,
                    BAG_ENTRY_PRUNED, BAG_ENTRY_OUTSIDE);
    call.rules.prune_invalid = false;
    call.rules.missing = BAG_MISSING_DEFAULT;
    assert_int_equal(resolve(&call, BAG_I64, ids, 6), BAG_STATUS_OK);
    assert_true(pool(&call) == 2 + 4 * 8 && call.resolving.num_missing == 4);
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* A key of another part that is here, as that of a default row may be. */
TEST(keys_of_other_parts_are_theirs_even_where_they_are_here)
{
    static struct bag_keys_line lines[16];
    struct bag_keys keys = bag_keys_for(4);
    struct bag_keys_entry crowded[4];
    size_t num_crowded, own = 0, other = 0;
    int64_t ids[4] = {0}, stored[4] = {0};
    keys.lines = lines;
    assert_true(keys.num_lines <= COUNT_OF(lines));
    struct call call = new_call(true);
    call.part.part = (struct bag_part){BAG_PART_KEYS, 1, 3};
    for (int64_t key = 0; own < 3 || other < 1; key++) {
        bool is_own = bag_part_of_key((uint64_t)key, 3) == 1;
        if (is_own && own < 3)
            ids[own++] = key;
        else if (!is_own && other++ == 0)
            ids[3] = key;
    }
    /* The third own key is missing; the other part's, as a default key would be, is here. */
    stored[0] = ids[0], stored[1] = ids[1], stored[2] = ids[3], stored[3] = INT64_MIN;
    assert_true(bag_keys_fill(&keys, stored, 4, 0, crowded, &num_crowded) && num_crowded == 0);
    call.keys = &keys;
    call.rules.missing = BAG_MISSING_DEFAULT;
    call.rules.has_default_index = true;
    call.rules.default_index = ids[3];
    assert_int_equal(resolve(&call, BAG_I64, ids, 4), BAG_STATUS_OK);
    assert_true(pool(&call) == 1 + 2 + 4 && call.resolving.num_other == 1);
    assert_int_equal(call.resolving.num_missing, 1);
    EXPECT_STATUSES(&call, BAG_ENTRY_KEPT, BAG_ENTRY_KEPT, BAG_ENTRY_MISSING, BAG_ENTRY_OTHER);
    call.part.is_partial = false;
    char sentence[200];
    snprintf(sentence, sizeof sentence,
             "'indices' at position 3 is %lld, a key of another part: this server has part 1 of 3 "
             "by keys; with the parameter partial its sums leave out ids of others",
             (long long)ids[3]);
    expect_rejected(resolve(&call, BAG_I64, ids, 4), &call, sentence);
    /* Padding leaves before anybody asks whose it is. */
    call.rules.has_padding_idx = true;
    call.rules.padding_idx = ids[3];
    assert_int_equal(resolve(&call, BAG_I64, ids, 4), BAG_STATUS_OK);
    assert_true(pool(&call) == 1 + 2 + 4);
}
