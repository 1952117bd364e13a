/* The demo tables hold what their header says. */
#include "server/tables/source.h"
#include "testing.h"

TEST(makes_the_table_of_the_examples)
{
    static const float expected[10] = {-0.2f, -0.6f, -0.1f, -0.4f, -1.9f,
                                       -1.8f, -1.0f, 1.5f,  0.8f,  -0.7f};
    float rows[10] = {0};
    bag_demo_example(rows, 0, 5, 0, 2);
    assert_memory_equal(rows, expected, sizeof expected);
}

/* On the heap, of the exact size. */
static float *make_items(void)
{
    float *rows = malloc(sizeof(float[BAG_DEMO_ITEMS_ROWS][BAG_DEMO_ITEMS_COLUMNS]));
    assert_non_null(rows);
    bag_demo_items(rows, 0, BAG_DEMO_ITEMS_ROWS, 0, BAG_DEMO_ITEMS_COLUMNS);
    return rows;
}

static struct bag_source *make_source(const char *name, const char *path)
{
    struct bag_config config;
    struct bag_problem problem;
    assert_true(bag_config_init(&config));
    assert_true(bag_config_add_model(&config, name, path, "1", &problem));
    struct bag_source *source = bag_source_make(&config.models[0], true);
    assert_non_null(source);
    bag_config_free(&config);
    return source;
}

/* The sources of `--demo`: their shapes are known before they are made. */
TEST(describes_the_demo)
{
    struct bag_problem problem;
    struct bag_source *items = make_source("items", "demo:items");
    struct bag_source *example = make_source("example", "demo:example");
    struct bag_source *nothing = make_source("nothing", "demo:nothing");
    assert_true(bag_source_open_table(items, &problem));
    assert_true(bag_source_open_table(example, &problem));
    assert_int_equal(bag_source_bytes(items), 100000 * 64 * 4);
    assert_int_equal(bag_source_bytes(example), 5 * 2 * 4);
    assert_int_equal(items->table.dtype, BAG_F32);
    assert_int_equal(items->table.num_rows, 100000);
    assert_int_equal(items->table.row_elements, 64);
    assert_int_equal(items->features[0].rules.output_dtype, BAG_F32);
    assert_int_equal(example->rank, 2);
    assert_int_equal(example->shape[0], 5);
    assert_int_equal(example->shape[1], 2);
    assert_int_not_equal(items->fingerprint, example->fingerprint);
    assert_false(bag_source_open_table(nothing, &problem));
    assert_string_equal(problem.text, "there is no table 'demo:nothing'");
    bag_source_free(items);
    bag_source_free(example);
    bag_source_free(nothing);
}

/* The header's formula in the integers and doubles of another size. */
static float item(uint64_t row, uint64_t column)
{
    uint64_t hash = (row * 2654435769 + column * 2246822507) % 4294967296;
    return (float)(((double)(hash / 1048576) - 2048.0) / 2048.0);
}

TEST(makes_the_items)
{
    float *rows = make_items();
    for (uint64_t row = 0; row < 100000; row++)
        for (uint64_t column = 0; column < 64; column++)
            if (rows[row * 64 + column] != item(row, column))
                fail_msg("row %lu, column %lu is %g", row, column, rows[row * 64 + column]);
    free(rows);
}

/* Worked out apart from any C, so that a change of the formula is noticed. */
TEST(keeps_the_known_items)
{
    static const struct {
        size_t row, column;
        float value;
    } known[] = {{0, 0, -2048 / 2048.0f},   {0, 1, 94 / 2048.0f},   {0, 63, 1872 / 2048.0f},
                 {1, 0, 483 / 2048.0f},     {2, 3, 1251 / 2048.0f}, {54321, 31, -241 / 2048.0f},
                 {99999, 63, 974 / 2048.0f}};
    float *rows = make_items();
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        assert_true(rows[known[i].row * 64 + known[i].column] == known[i].value);
    free(rows);
}
