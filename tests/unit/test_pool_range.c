/* Parts of a result: ranges of every form of bags, and how work is counted for splitting it. Gaps
 * and streamed results are checked by tests/kernels/check_kernels.c. */
#include "pool_fixture.h"

enum { BAGS = 700, LENGTH = 3, COLUMNS = 130, ROWS = 50 };

static void fill_pool(struct bag_pool_args *args, enum bag_form form)
{
    static float rows[ROWS * COLUMNS];
    static int64_t ids[BAGS * LENGTH], groups[BAGS * LENGTH];
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        rows[i] = (float)(i * 2654435761u % 1000) / 7;
    for (size_t i = 0; i < COUNT_OF(ids); i++) {
        ids[i] = (int64_t)(i * 7919 % ROWS);
        groups[i] = (int64_t)(form == BAG_FORM_OFFSETS ? i * LENGTH : i / LENGTH);
    }
    struct bag_table table = table_of(BAG_F32, ROWS, COLUMNS, rows);
    struct bag_rules rules = rules_for(BAG_F32, BAG_MEAN);
    struct bag_tensor entries = TENSOR(I64, 1, ids);
    struct bag_tensor given =
        tensor_of(BAG_I64, 1, form == BAG_FORM_OFFSETS ? BAGS : BAGS * LENGTH, groups);
    struct bag_inputs inputs = {{[BAG_INDICES] = &entries}};
    if (form == BAG_FORM_PACKED)
        entries = with_shape(entries, BAGS, LENGTH);
    else
        inputs.tensor[form == BAG_FORM_OFFSETS ? BAG_OFFSETS : BAG_SEGMENT_IDS] = &given;
    struct bag_fault fault;
    static struct bag_pool_plan plan; /* static, because the call keeps a pointer to it */
    bag_pool_prepare(&table, &rules, &plan);
    assert_int_equal(bag_pool_check(&plan, &inputs, SIZE_MAX, args, &fault), BAG_STATUS_OK);
}

TEST(ranges_have_the_bits_of_the_whole)
{
    static float whole[BAGS * COLUMNS], parts[BAGS * COLUMNS];
    for (int form = 0; form <= BAG_FORM_SEGMENTS; form++) {
        struct bag_pool_args args;
        fill_pool(&args, (enum bag_form)form);
        bag_pool_run(&args, bag_range_all(&args), whole);
        memset(parts, 0, sizeof parts);
        for (size_t bag = 0; bag < BAGS; bag += 100) {
            bag_pool_run(&args, (struct bag_range){bag, bag + 100, 0, 63}, parts);
            bag_pool_run(&args, (struct bag_range){bag, bag + 100, 63, COLUMNS}, parts);
        }
        assert_memory_equal(whole, parts, sizeof whole);
    }
}

TEST(a_range_writes_nothing_else)
{
    static float out[BAGS * COLUMNS];
    struct bag_pool_args args;
    fill_pool(&args, BAG_FORM_OFFSETS);
    for (size_t i = 0; i < COUNT_OF(out); i++)
        out[i] = -1;
    bag_pool_run(&args, (struct bag_range){300, 302, 5, 77}, out);
    for (size_t i = 0; i < COUNT_OF(out); i++) {
        size_t bag = i / COLUMNS, column = i % COLUMNS;
        bool inside = bag >= 300 && bag < 302 && column >= 5 && column < 77;
        assert_int_equal(out[i] != -1, inside);
    }
    bag_pool_run(&args, (struct bag_range){5, 5, 0, COLUMNS}, out);
    bag_pool_run(&args, (struct bag_range){0, 3, 9, 9}, out);
    assert_true(out[0] == -1 && out[9] == -1);
}

/* Tests a bag that is longer than a streamed piece, and one of the same length. */
TEST(long_bags_are_not_streamed_in_parts)
{
    enum { MOST = 4096 };
    static float rows[2 * (MOST + 1)], out[2 * (MOST + 1) + 1];
    const int64_t ids[] = {1, 0}, starts[] = {0, 1};
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        rows[i] = (float)i;
    for (size_t columns = MOST; columns <= MOST + 1; columns++) {
        struct bag_table table = table_of(BAG_F32, 2, columns, rows);
        struct bag_rules rules = rules_for(BAG_F32, BAG_SUM);
        struct bag_pool_plan plan;
        bag_pool_prepare(&table, &rules, &plan);
        struct bag_pool_args args = plan.args;
        args.form = BAG_FORM_OFFSETS;
        args.num_bags = 2;
        args.bag_stride = columns * sizeof(float);
        args.indices = (struct bag_ids){ids, 2, true};
        args.groups = (struct bag_ids){starts, 2, true};
        args.streams = true;
        out[2 * columns] = -1;
        bag_pool_run(&args, bag_range_all(&args), out);
        assert_memory_equal(out, rows + columns, columns * sizeof(float));
        assert_memory_equal(out + columns, rows, columns * sizeof(float));
        assert_true(out[2 * columns] == -1);
    }
}

TEST(counts_entries_before_a_bag)
{
    for (int form = 0; form <= BAG_FORM_SEGMENTS; form++) {
        struct bag_pool_args args;
        fill_pool(&args, (enum bag_form)form);
        for (size_t bag = 0; bag <= BAGS; bag++)
            assert_int_equal(bag_pool_entries_before(&args, bag), bag * LENGTH);
    }
    const int64_t starts[] = {2, 3, 3}, ids[] = {0, 0, 0, 0, 0};
    struct bag_pool_args args = {.form = BAG_FORM_OFFSETS,
                                 .num_bags = 3,
                                 .indices = {ids, 5, true},
                                 .groups = {starts, 3, true}};
    const size_t without_end[] = {0, 1, 1, 3}, with_end[] = {0, 1, 1};
    for (size_t bag = 0; bag <= 3; bag++)
        assert_int_equal(bag_pool_entries_before(&args, bag), without_end[bag]);
    args.num_bags = 2;
    for (size_t bag = 0; bag <= 2; bag++)
        assert_int_equal(bag_pool_entries_before(&args, bag), with_end[bag]);
}
