/* The demo tables hold what their header says. */
#include "server/table/source.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void makes_the_table_of_the_examples(void **state)
{
    (void)state;
    static const float expected[10] = {-0.2f, -0.6f, -0.1f, -0.4f, -1.9f,
                                       -1.8f, -1.0f, 1.5f,  0.8f,  -0.7f};
    struct bag_table_memory memory;
    struct bag_problem problem;
    assert_true(bag_demo_example(&memory, &problem));
    assert_int_equal(memory.table.dtype, BAG_F32);
    assert_int_equal(memory.table.num_rows, 5);
    assert_int_equal(memory.table.row_elements, 2);
    assert_int_equal(memory.rank, 2);
    assert_memory_equal(memory.table.rows, expected, sizeof expected);
    bag_table_unload(&memory);
}

/* The header's formula in the integers and doubles of another size. */
static float item(uint64_t row, uint64_t column)
{
    uint64_t hash = (row * 2654435769 + column * 2246822507) % 4294967296;
    return (float)(((double)(hash / 1048576) - 2048.0) / 2048.0);
}

static void makes_the_items(void **state)
{
    (void)state;
    struct bag_table_memory memory;
    struct bag_problem problem;
    assert_true(bag_demo_items(&memory, &problem));
    assert_int_equal(memory.table.dtype, BAG_F32);
    assert_int_equal(memory.table.num_rows, 100000);
    assert_int_equal(memory.table.row_elements, 64);
    const float *rows = memory.table.rows;
    for (uint64_t row = 0; row < 100000; row++)
        for (uint64_t column = 0; column < 64; column++)
            if (rows[row * 64 + column] != item(row, column))
                fail_msg("row %lu, column %lu is %g", row, column, rows[row * 64 + column]);
    bag_table_unload(&memory);
}

/* Worked out apart from any C, so that a change of the formula is noticed. */
static void keeps_the_known_items(void **state)
{
    (void)state;
    static const struct {
        size_t row, column;
        float value;
    } known[] = {{0, 0, -2048 / 2048.0f},   {0, 1, 94 / 2048.0f},   {0, 63, 1872 / 2048.0f},
                 {1, 0, 483 / 2048.0f},     {2, 3, 1251 / 2048.0f}, {54321, 31, -241 / 2048.0f},
                 {99999, 63, 974 / 2048.0f}};
    struct bag_table_memory memory;
    struct bag_problem problem;
    assert_true(bag_demo_items(&memory, &problem));
    const float *rows = memory.table.rows;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        assert_true(rows[known[i].row * 64 + known[i].column] == known[i].value);
    bag_table_unload(&memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(makes_the_table_of_the_examples),
        cmocka_unit_test(makes_the_items),
        cmocka_unit_test(keeps_the_known_items),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
