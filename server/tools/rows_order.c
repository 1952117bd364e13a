/* The order of rows by how often they are used; see tools.h.
 *
 * Rows that are used often then lie together at the beginning of the file. A mapped table then
 * needs fewer pages of memory for them. */
#include "tools.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The number of counts that are read at a time. */
#define BLOCK_ROWS ((size_t)64 << 10)

struct counted {
    double count; /* integers that round to one double count as equal */
    size_t row;
};

/* Orders the larger count first, and equal ones by their rows. */
static int compare(const void *left, const void *right)
{
    const struct counted *one = left, *other = right;
    if (one->count != other->count)
        return one->count > other->count ? -1 : 1;
    return (one->row > other->row) - (one->row < other->row);
}

/* Checks that there is one number for each row of the table. */
static bool check_shape(const struct bag_source *counts, size_t num_rows,
                        struct bag_problem *problem)
{
    const struct bag_table *table = &counts->table;
    if (table->row_format == BAG_ROWS_PLAIN && table->row_elements == 1 &&
        (size_t)table->num_rows == num_rows)
        return true;
    return bag_problem_set(problem, BAG_ERROR_FILE,
                           "%s has %lld rows of %zu elements; --order-by needs one number for each "
                           "row of the table, which has %zu",
                           counts->model->path, (long long)table->num_rows, table->row_elements,
                           num_rows);
}

/* Returns a number of any type as a double. Half precision is decoded by the kernels. */
static double number_of(const struct bag_table *table, const unsigned char *bytes)
{
    float half;
    switch (table->dtype) {
#define BAG_X(id, type)                        \
    case BAG_##id: {                           \
        type number;                           \
        memcpy(&number, bytes, sizeof number); \
        return (double)number;                 \
    }
        BAG_X(F32, float)
        BAG_X(F64, double)
        BAG_X(I8, int8_t)
        BAG_X(I16, int16_t)
        BAG_X(I32, int32_t)
        BAG_X(I64, int64_t)
        BAG_X(U8, uint8_t)
        BAG_X(U16, uint16_t)
        BAG_X(U32, uint32_t)
        BAG_X(U64, uint64_t)
#undef BAG_X
    default:
        bag_row_to_floats(table, bytes, &half);
        return (double)half;
    }
}

/* Reads all counts, block by block. */
static bool read_counts(const struct bag_rows_reader *reader, struct counted *rows,
                        struct bag_problem *problem)
{
    unsigned char *values = malloc(BLOCK_ROWS * reader->row_bytes);
    bool ok = values || bag_problem_no_memory(problem);
    for (size_t first = 0; ok && first < reader->num_rows; first += BLOCK_ROWS) {
        size_t left = reader->num_rows - first, count = left < BLOCK_ROWS ? left : BLOCK_ROWS;
        ok = bag_rows_read(reader, first, count, values, problem);
        for (size_t i = 0; ok && i < count; i++) {
            struct counted *row = &rows[first + i];
            row->count = number_of(&reader->source->table, values + i * reader->row_bytes);
            row->row = first + i;
            if (isnan(row->count))
                ok = bag_problem_set(problem, BAG_ERROR_FILE,
                                     "%s: the count of row %zu is not a number",
                                     reader->source->model->path, row->row);
        }
    }
    free(values);
    return ok && bag_rows_reader_check(reader, problem);
}

/* Returns the sorted rows, which the caller frees. Returns NULL and sets *problem on failure. */
static size_t *sort_rows(const struct bag_rows_reader *reader, size_t fixed_rows,
                         struct bag_problem *problem)
{
    struct counted *rows = calloc(reader->num_rows + 1, sizeof *rows);
    /* Rows and their counts are sorted together; the counts are not needed afterwards. */
    size_t *order = rows ? calloc(reader->num_rows + 1, sizeof *order) : NULL;
    bool ok = (order || bag_problem_no_memory(problem)) && read_counts(reader, rows, problem);
    if (ok)
        qsort(rows + fixed_rows, reader->num_rows - fixed_rows, sizeof *rows, compare);
    for (size_t i = 0; ok && i < reader->num_rows; i++)
        order[i] = rows[i].row;
    free(rows);
    if (ok)
        return order;
    free(order);
    return NULL;
}

size_t bag_rows_fixed(const struct bag_source *source)
{
    return (size_t)source->features[0].rules.hash_rows;
}

size_t *bag_rows_order(const struct bag_source *source, const char *path,
                       struct bag_problem *problem)
{
    if (!bag_source_is_keyed(source)) {
        bag_problem_set(problem, BAG_ERROR_FILE,
                        "%s: the table has no keys: its ids are the numbers of its rows, which "
                        "--order-by would change",
                        source->model->path);
        return NULL;
    }
    struct bag_source *counts = bag_source_find(path, problem);
    struct bag_rows_reader reader;
    size_t *order = NULL;
    if (counts && bag_source_open_table(counts, problem) &&
        check_shape(counts, (size_t)source->table.num_rows, problem) &&
        bag_rows_reader_open(&reader, counts, problem)) {
        order = sort_rows(&reader, bag_rows_fixed(source), problem);
        bag_rows_reader_close(&reader);
    }
    bag_source_free(counts);
    return order;
}
