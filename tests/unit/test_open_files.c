/* Rows of several files whose elements are in different orders, read from any position. */
#include "table_fixture.h"

enum { FILES = 3, COLUMNS = 2, ROWS = 12 };

static char paths[FILES][128];

/* Writes the elements 0, 1, ... of ROWS rows: in C order, column-major, and big-endian. */
static void write_files(struct bag_table_file files[FILES])
{
    static const char *const types[FILES] = {"<u2", "<u2", ">u2"};
    static const char *const orders[FILES] = {"False", "True", "False"};
    static const char *const shapes[FILES] = {"(4, 2)", "(5, 2)", "(3, 2)"};
    static const size_t rows[FILES] = {4, 5, 3};
    char own[96];
    memcpy(own, path, sizeof own);
    for (size_t i = 0, first = 0; i < FILES; first += rows[i++]) {
        uint16_t data[5 * COLUMNS];
        struct bag_problem problem;
        for (size_t at = 0; at < rows[i] * COLUMNS; at++) {
            size_t row = i == 1 ? at % rows[i] : at / COLUMNS;
            size_t column = i == 1 ? at / rows[i] : at % COLUMNS;
            uint16_t value = (uint16_t)(300 * ((first + row) * COLUMNS + column));
            data[at] = i == 2 ? __builtin_bswap16(value) : value;
        }
        snprintf(path, sizeof path, "%s/%zu.npy", directory, i);
        write_table(types[i], orders[i], shapes[i], data, rows[i] * COLUMNS * sizeof *data);
        memcpy(paths[i], path, sizeof path);
        assert_true(bag_table_file_open(paths[i], BAG_DTYPE_COUNT, &files[i], &problem));
    }
    memcpy(path, own, sizeof own);
}

static int remove_files(void **state)
{
    for (size_t i = 0; i < FILES; i++)
        unlink(paths[i]);
    return tear_down(state);
}

AROUND_EACH(set_up, remove_files)

TEST(reads_rows_across_files_in_any_order)
{
    struct bag_table_file files[FILES];
    struct bag_open_files opened;
    struct bag_problem problem;
    uint16_t rows[ROWS * COLUMNS];
    write_files(files);
    assert_true(bag_open_files_open(files, FILES, &opened, &problem));
    for (size_t first = 0; first <= ROWS; first++) {
        for (size_t count = 0; first + count <= ROWS; count++) {
            if (!bag_open_files_read(&opened, first, count, rows, &problem))
                fail_msg("%s", problem.text);
            for (size_t i = 0; i < count * COLUMNS; i++)
                assert_int_equal(rows[i], 300 * (first * COLUMNS + i));
        }
    }
    assert_true(bag_open_files_check(&opened, &problem));
    bag_open_files_close(&opened);
}

TEST(reads_rows_of_a_range_that_was_cut_out)
{
    struct bag_table_file files[FILES];
    struct bag_open_files opened;
    struct bag_problem problem;
    uint16_t rows[2 * COLUMNS];
    write_files(files);
    bag_npy_slice(&files[1].npy, 2, 2);
    assert_true(bag_open_files_open(&files[1], 1, &opened, &problem));
    assert_true(bag_open_files_read(&opened, 0, 2, rows, &problem));
    for (size_t i = 0; i < 2 * COLUMNS; i++)
        assert_int_equal(rows[i], 300 * ((4 + 2) * COLUMNS + i));
    bag_open_files_close(&opened);
}

TEST(rejects_files_that_changed)
{
    struct bag_table_file files[FILES];
    struct bag_open_files opened;
    struct bag_problem problem;
    uint16_t rows[ROWS * COLUMNS];
    write_files(files);
    assert_true(bag_open_files_open(files, FILES, &opened, &problem));
    assert_int_equal(truncate(paths[2], (off_t)files[2].bytes - 1), 0);
    assert_false(bag_open_files_read(&opened, 0, ROWS, rows, &problem));
    assert_non_null(strstr(problem.text, "2.npy: the file shrank to"));
    assert_false(bag_open_files_check(&opened, &problem));
    assert_non_null(strstr(problem.text, "2.npy: the file changed while it was read"));
    bag_open_files_close(&opened);
    assert_false(bag_open_files_open(files, FILES, &opened, &problem));
    assert_non_null(strstr(problem.text, "2.npy: the file changed after it was checked"));
    bag_open_files_close(&opened);
}
