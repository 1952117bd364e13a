/* Mapped rows over two pages, of which one is gone: found before the next refresh, when the file's
 * size says nothing, as after an error of the disk. */
#include "server/tables/map.h"
#include "table_fixture.h"

enum { ROWS = 4 };

AROUND_EACH(set_up, tear_down)

/* Rows as long as a page, which begin behind a header: row i is on pages i and i + 1. */
TEST(test_second_page_is_gone)
{
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE), bytes = ROWS * page_bytes;
    struct bag_map *map;
    struct bag_problem problem;
    char shape[32], *rows = malloc(bytes);
    assert_non_null(rows);
    for (size_t i = 0; i < bytes; i++)
        rows[i] = (char)(i / page_bytes + 1);
    snprintf(shape, sizeof shape, "(%d, %zu)", ROWS, page_bytes);
    size_t header_bytes = write_table("|u1", "False", shape, rows, bytes);
    struct bag_table_file file = open_file();
    map =
        bag_map_open(&file, BAG_MAP_ON_DEMAND, &(struct bag_load_options){.threads = 1}, &problem);
    assert_non_null(map);
    for (int64_t row = 0; row < ROWS; row++)
        assert_true(bag_map_has_row(map, row));

    assert_int_equal(truncate(path, (off_t)(2 * page_bytes)), 0);
    const volatile char *gone = (const char *)bag_map_rows(map) - header_bytes + 2 * page_bytes;
    assert_int_equal(*gone, 0);
    write_at(rows, bytes, (off_t)header_bytes);
    assert_false(bag_map_is_whole(map));
    assert_true(bag_map_has_row(map, 0));
    for (int64_t row = 1; row < ROWS; row++)
        assert_false(bag_map_has_row(map, row));
    assert_false(bag_map_reject_row(map, 1, &problem));
    assert_string_equal(problem.text, "row 1 could not be read");

    bag_map_refresh(map, true);
    assert_true(bag_map_is_whole(map));
    for (int64_t row = 0; row < ROWS; row++)
        assert_true(bag_map_has_row(map, row));
    assert_memory_equal(bag_map_rows(map), rows, bytes);
    bag_map_free(map);
    free(rows);
}
