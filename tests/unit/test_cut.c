/* Cutting calls into ranges: they cover the result once, and evenly. */
#include "testing.h"

#include "server/engine/cut.h"

#define MAX_PARTS 8

/* An offsets call of bags of the given lengths, over rows of `columns`. */
static struct bag_pool pool_of(const int64_t *offsets, size_t num_bags, size_t num_indices,
                               size_t columns)
{
    return (struct bag_pool){.form = BAG_FORM_OFFSETS,
                             .table = {.dtype = BAG_F32, .row_elements = columns},
                             .num_bags = num_bags,
                             .indices = {.count = num_indices, .wide = true},
                             .groups = {.data = offsets, .count = num_bags, .wide = true}};
}

/* Every cell of the result lies in exactly one range. */
static void covers(const struct bag_pool *pool, const struct bag_range *ranges, unsigned count)
{
    size_t columns = pool->table.row_elements;
    unsigned char *cells = calloc(pool->num_bags * columns + 1, 1);
    for (unsigned i = 0; i < count; i++) {
        assert_true(ranges[i].end_bag <= pool->num_bags);
        assert_true(ranges[i].end_column <= columns);
        for (size_t bag = ranges[i].first_bag; bag < ranges[i].end_bag; bag++)
            for (size_t c = ranges[i].first_column; c < ranges[i].end_column; c++)
                cells[bag * columns + c]++;
    }
    for (size_t i = 0; i < pool->num_bags * columns; i++)
        assert_int_equal(cells[i], 1);
    free(cells);
}

static void test_even_bags_are_cut_by_bags(void **state)
{
    int64_t offsets[100];
    struct bag_range ranges[MAX_PARTS];
    (void)state;
    for (int i = 0; i < 100; i++)
        offsets[i] = i * 10;
    struct bag_pool pool = pool_of(offsets, 100, 1000, 64);
    for (unsigned parts = 1; parts <= MAX_PARTS; parts++) {
        assert_int_equal(bag_cut(&pool, parts, ranges), parts);
        covers(&pool, ranges, parts);
        for (unsigned i = 0; i < parts; i++) {
            size_t bags = ranges[i].end_bag - ranges[i].first_bag;
            assert_in_range(bags, 100 / parts, 100 / parts + parts);
        }
    }
}

/* Ten heavy bags first: they are shared out, not the bags' number. */
static void test_heavy_bags_are_shared(void **state)
{
    int64_t offsets[1000];
    struct bag_range ranges[MAX_PARTS];
    (void)state;
    for (int i = 0; i < 1000; i++)
        offsets[i] = i < 10 ? i * 1000 : 10000 + (i - 10);
    struct bag_pool pool = pool_of(offsets, 1000, 10990, 64);
    assert_int_equal(bag_cut(&pool, 2, ranges), 2);
    covers(&pool, ranges, 2);
    assert_in_range(ranges[0].end_bag, 5, 7);
    assert_int_equal(ranges[0].end_column, 64);
}

static void test_a_giant_bag_is_cut_by_columns(void **state)
{
    static const int64_t offsets[] = {0, 100000};
    struct bag_range ranges[MAX_PARTS];
    (void)state;
    struct bag_pool pool = pool_of(offsets, 2, 100001, 100);
    unsigned count = bag_cut(&pool, 4, ranges);
    assert_int_equal(count, 4);
    covers(&pool, ranges, count);
    for (unsigned i = 0; i < count; i++) {
        assert_int_equal(ranges[i].first_bag, 0);
        assert_int_equal(ranges[i].end_bag, 2);
        assert_int_equal(ranges[i].first_column % 16, 0);
    }
}

static void test_what_cannot_be_cut_stays_whole(void **state)
{
    static const int64_t offsets[] = {0};
    struct bag_range ranges[MAX_PARTS];
    (void)state;
    struct bag_pool narrow = pool_of(offsets, 1, 100000, 16);
    assert_int_equal(bag_cut(&narrow, 4, ranges), 1);
    covers(&narrow, ranges, 1);
    struct bag_pool nothing = pool_of(offsets, 0, 0, 64);
    assert_in_range(bag_cut(&nothing, 4, ranges), 1, 4);
    struct bag_pool wide = pool_of(offsets, 1, 100000, 17);
    assert_int_equal(bag_cut(&wide, 4, ranges), 2);
    covers(&wide, ranges, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_even_bags_are_cut_by_bags),
        cmocka_unit_test(test_heavy_bags_are_shared),
        cmocka_unit_test(test_a_giant_bag_is_cut_by_columns),
        cmocka_unit_test(test_what_cannot_be_cut_stays_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
