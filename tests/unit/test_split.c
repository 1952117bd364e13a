/* Cutting requests into slices: they cover the results once, and evenly. */
#include "testing.h"

#include "server/engine/engine.h"

#define MAX_PARTS 8

/* An offsets call of bags of the given lengths, over rows of `columns`. */
static struct bag_op op_of(const int64_t *offsets, size_t num_bags, size_t num_indices,
                           size_t columns)
{
    return (struct bag_op){.args = {.form = BAG_FORM_OFFSETS,
                                    .table = {.dtype = BAG_F32, .row_elements = columns},
                                    .num_bags = num_bags,
                                    .indices = {.count = num_indices, .wide = true},
                                    .groups = {.data = offsets, .count = num_bags, .wide = true}}};
}

static void covers(const struct bag_op *ops, size_t num_ops, const struct bag_split *splits,
                   unsigned count)
{
    for (unsigned s = 0; s < count; s++)
        assert_true(splits[s].end_op < num_ops ||
                    (splits[s].end_op == num_ops && splits[s].end_bag == 0));
    for (size_t i = 0; i < num_ops; i++) {
        /* Every cell of pooling number `i` lies in exactly one slice. */
        const struct bag_pool_args *args = &ops[i].args;
        size_t columns = args->table.row_elements;
        unsigned char *cells = calloc(args->num_bags * columns + 1, 1);
        for (unsigned s = 0; s < count; s++) {
            size_t end = splits[s].end_op + (splits[s].end_bag > 0);
            if (i < splits[s].first_op || i >= end)
                continue;
            struct bag_range range = bag_split_range(&splits[s], args, i);
            assert_true(range.end_bag <= args->num_bags);
            assert_true(range.end_column <= columns);
            for (size_t bag = range.first_bag; bag < range.end_bag; bag++)
                for (size_t c = range.first_column; c < range.end_column; c++)
                    cells[bag * columns + c]++;
        }
        for (size_t cell = 0; cell < args->num_bags * columns; cell++)
            assert_int_equal(cells[cell], 1);
        free(cells);
    }
}

/* The bytes of rows that a slice reads of one pooling. */
static size_t bytes_in(const struct bag_split *split, const struct bag_op *pooling, size_t i)
{
    size_t end = split->end_op + (split->end_bag > 0);
    if (i < split->first_op || i >= end)
        return 0;
    struct bag_range range = bag_split_range(split, &pooling->args, i);
    size_t entries = bag_pool_entries_before(&pooling->args, range.end_bag) -
                     bag_pool_entries_before(&pooling->args, range.first_bag);
    return entries * (range.end_column - range.first_column) * sizeof(float);
}

TEST(test_even_bags_are_cut_by_bags)
{
    int64_t offsets[100];
    struct bag_split splits[MAX_PARTS];
    for (int i = 0; i < 100; i++)
        offsets[i] = i * 10;
    struct bag_op pooling = op_of(offsets, 100, 1000, 64);
    for (unsigned parts = 1; parts <= MAX_PARTS; parts++) {
        assert_int_equal(bag_split_ops(&pooling, 1, parts, splits), parts);
        covers(&pooling, 1, splits, parts);
        for (unsigned i = 0; i < parts; i++) {
            struct bag_range range = bag_split_range(&splits[i], &pooling.args, 0);
            assert_in_range(range.end_bag - range.first_bag, 100 / parts, 100 / parts + parts);
        }
    }
}

/* Ten heavy bags first: they are shared out, not the bags' number. */
TEST(test_heavy_bags_are_shared)
{
    int64_t offsets[1000];
    struct bag_split splits[MAX_PARTS];
    for (int i = 0; i < 1000; i++)
        offsets[i] = i < 10 ? i * 1000 : 10000 + (i - 10);
    struct bag_op pooling = op_of(offsets, 1000, 10990, 64);
    assert_int_equal(bag_split_ops(&pooling, 1, 2, splits), 2);
    covers(&pooling, 1, splits, 2);
    assert_in_range(splits[0].end_bag, 5, 7);
    assert_int_equal(splits[0].num_column_splits, 1);
}

TEST(test_a_giant_bag_is_cut_by_columns)
{
    static const int64_t offsets[] = {0, 100000};
    struct bag_split splits[MAX_PARTS];
    struct bag_op pooling = op_of(offsets, 2, 100001, 100);
    unsigned count = bag_split_ops(&pooling, 1, 4, splits);
    assert_int_equal(count, 4);
    covers(&pooling, 1, splits, count);
    for (unsigned i = 0; i < count; i++) {
        struct bag_range range = bag_split_range(&splits[i], &pooling.args, 0);
        assert_int_equal(range.first_bag, 0);
        assert_int_equal(range.end_bag, 2);
        assert_int_equal(range.first_column % 16, 0);
    }
}

TEST(test_what_cannot_be_cut_stays_whole)
{
    static const int64_t offsets[] = {0};
    struct bag_split splits[MAX_PARTS];
    struct bag_op narrow = op_of(offsets, 1, 100000, 16);
    assert_int_equal(bag_split_ops(&narrow, 1, 4, splits), 1);
    covers(&narrow, 1, splits, 1);
    struct bag_op nothing = op_of(offsets, 0, 0, 64);
    assert_in_range(bag_split_ops(&nothing, 1, 4, splits), 1, 4);
    struct bag_op wide = op_of(offsets, 1, 100000, 17);
    assert_int_equal(bag_split_ops(&wide, 1, 4, splits), 2);
    covers(&wide, 1, splits, 2);
}

/* Many tables of different widths: every slice reads about as many bytes, over as many tables as
 * that takes. */
TEST(test_tables_are_shared_by_bytes)
{
    enum { TABLES = 26, BAGS = 30 };
    static int64_t offsets[TABLES][BAGS];
    struct bag_op ops[TABLES];
    struct bag_split splits[MAX_PARTS];
    size_t total = 0;
    for (int t = 0; t < TABLES; t++) {
        int length = 1 + t * 7 % 20;
        for (int b = 0; b < BAGS; b++)
            offsets[t][b] = b * length;
        size_t columns = 16u << t % 4;
        ops[t] = op_of(offsets[t], BAGS, (size_t)(BAGS * length), columns);
        total += (size_t)(BAGS * length) * columns * sizeof(float);
    }
    ops[3].args.num_bags = 0; /* a feature without bags */
    ops[3].args.indices.count = 0;
    total -= 30u * 2 * 128 * sizeof(float);
    for (unsigned parts = 1; parts <= MAX_PARTS; parts++) {
        assert_int_equal(bag_split_ops(ops, TABLES, parts, splits), parts);
        covers(ops, TABLES, splits, parts);
        for (unsigned s = 0; s < parts; s++) {
            size_t bytes = 0;
            for (size_t t = 0; t < TABLES; t++)
                bytes += bytes_in(&splits[s], &ops[t], t);
            assert_in_range(bytes, total / parts * 4 / 5, total / parts * 6 / 5);
        }
    }
}

/* One table holds one giant bag, others a few small ones. */
TEST(test_a_giant_bag_among_tables_is_cut_by_columns)
{
    static const int64_t offsets[] = {0, 1, 2};
    struct bag_split splits[MAX_PARTS];
    struct bag_op ops[] = {op_of(offsets, 3, 4, 8), op_of(offsets, 1, 9999, 64),
                           op_of(offsets, 2, 5, 100)};
    unsigned count = bag_split_ops(ops, 3, 4, splits);
    assert_int_equal(count, 4);
    covers(ops, 3, splits, count);
}
