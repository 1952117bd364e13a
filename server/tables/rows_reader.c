/* The rows and keys of a table in files; see rows_reader.h. */
#include "rows_reader.h"

#include "import.h"
#include "kernels/rowformat.h"

bool bag_rows_reader_open(struct bag_rows_reader *reader, const struct bag_source *source,
                          struct bag_problem *problem)
{
    *reader =
        (struct bag_rows_reader){.source = source, .row_bytes = bag_row_bytes(&source->table)};
    for (size_t i = 0; i < source->num_files; i++)
        reader->num_rows += (size_t)source->files[i].npy.shape[0];
    if (bag_open_files_open(source->files, source->num_files, &reader->files, problem) &&
        bag_open_files_open(source->key_files, source->num_key_files, &reader->keys, problem) &&
        bag_open_files_open(source->scales, source->num_scales, &reader->scales, problem))
        return true;
    bag_rows_reader_close(reader);
    return false;
}

void bag_rows_reader_close(struct bag_rows_reader *reader)
{
    bag_open_files_close(&reader->files);
    bag_open_files_close(&reader->keys);
    bag_open_files_close(&reader->scales);
}

bool bag_rows_reader_check(const struct bag_rows_reader *reader, struct bag_problem *problem)
{
    return bag_open_files_check(&reader->files, problem) &&
           bag_open_files_check(&reader->keys, problem) &&
           bag_open_files_check(&reader->scales, problem);
}

bool bag_rows_read(const struct bag_rows_reader *reader, size_t first, size_t count, void *rows,
                   struct bag_problem *problem)
{
    if (bag_import_is_needed(reader->source))
        return bag_import_read(reader->source, &reader->files, &reader->scales, first, count, rows,
                               problem);
    return bag_open_files_read(&reader->files, first, count, rows, problem);
}

/* ---- values ---------------------------------------------------------------------------------- */

void bag_row_to_floats(const struct bag_table *table, const void *row, float *values)
{
    struct bag_table one = *table;
    one.rows = row;
    one.num_rows = 1;
    if (table->dtype != BAG_F64)
        bag_row_decode(&one, 0, 0, table->row_elements, values);
    for (size_t i = 0; table->dtype == BAG_F64 && i < table->row_elements; i++)
        values[i] = (float)bag_load_f64(row, i);
}

double bag_row_value(const struct bag_table *table, const void *row, const float *values,
                     size_t column)
{
    return table->dtype == BAG_F64 ? bag_load_f64(row, column) : (double)values[column];
}
