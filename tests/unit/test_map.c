/* Mapped rows over two pages: one page is gone, which is found before the next refresh, when the
 * file's size says nothing, as after an error of the disk; and what is known to be in memory. */
#include "server/tables/map.h"
#include "table_fixture.h"

enum { ROWS = 4 };

static size_t page_bytes, bytes, header_bytes;
static char *rows;

static int start(void **state)
{
    page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    bytes = ROWS * page_bytes;
    rows = malloc(bytes);
    assert_non_null(rows);
    return set_up(state);
}

static int stop(void **state)
{
    free(rows);
    return tear_down(state);
}

AROUND_EACH(start, stop)

/* Maps rows as long as a page, which begin behind a header: row i is on pages i and i + 1. */
static struct bag_map *map_rows(enum bag_map_residence residence)
{
    struct bag_problem problem;
    char shape[32];
    for (size_t i = 0; i < bytes; i++)
        rows[i] = (char)(i / page_bytes + 1);
    snprintf(shape, sizeof shape, "(%d, %zu)", ROWS, page_bytes);
    header_bytes = write_table("|u1", "False", shape, rows, bytes);
    struct bag_table_file file = open_file();
    struct bag_map *map =
        bag_map_open(&file, residence, &(struct bag_load_options){.threads = 1}, &problem);
    assert_non_null(map);
    return map;
}

TEST(test_second_page_is_gone)
{
    struct bag_problem problem;
    struct bag_map *map = map_rows(BAG_MAP_ON_DEMAND);
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
}

/* Checks which of the rows are known to be in memory. */
static void check_known(struct bag_map *map, uint32_t now, const char *want)
{
    char known[ROWS + 1] = {0};
    for (int64_t row = 0; row < ROWS; row++)
        known[row] = bag_map_keeps_row(map, row, now) ? 'y' : 'n';
    assert_string_equal(known, want);
}

/* A row is known to be in memory for a while after its pages were touched, until a job had to read.
 */
TEST(test_touched_rows_are_in_memory)
{
    struct bag_map *map = map_rows(BAG_MAP_ON_DEMAND);
    uint32_t now = bag_map_time() + 10;
    assert_false(bag_map_is_watched(map, now));
    check_known(map, now, "nnnn");
    bag_map_record_row(map, 1, now);
    bag_map_record_row(map, 2, now);
    assert_true(bag_map_is_watched(map, now + 4));
    assert_false(bag_map_is_watched(map, now + 5));
    check_known(map, now, "nyyn");
    check_known(map, now + 40, "nyyn");
    check_known(map, now + 80, "nyyn");
    check_known(map, now + 121, "nnnn");

    bag_map_record_row(map, 3, now);
    check_known(map, now, "nnny");
    bag_map_refresh(map, false);
    check_known(map, now, "nnny");
    bag_map_record_row(map, 3, bag_map_time());
    bag_map_refresh(map, true);
    check_known(map, bag_map_time(), "nnnn");

    bag_map_record_row(map, 0, now);
    assert_true(bag_map_is_watched(map, now));
    assert_int_equal(truncate(path, (off_t)(header_bytes + bytes - 1)), 0);
    bag_map_refresh(map, false);
    assert_false(bag_map_is_watched(map, now));
    bag_map_free(map);
}

/* All rows of a locked table are in memory, until the file was changed. */
TEST(test_locked_rows_are_in_memory)
{
    struct bag_map *map = map_rows(BAG_MAP_LOCKED);
    uint32_t now = bag_map_time();
    assert_true(bag_map_is_watched(map, now));
    check_known(map, now, "yyyy");
    assert_int_equal(truncate(path, 0), 0);
    bag_map_refresh(map, false);
    assert_false(bag_map_is_watched(map, now));
    assert_int_equal(truncate(path, (off_t)(header_bytes + bytes)), 0);
    bag_map_refresh(map, true);
    assert_true(bag_map_is_whole(map));
    assert_false(bag_map_is_watched(map, now));
    check_known(map, now, "nnnn");
    bag_map_free(map);
}
