/* Rows and keys are read block by block; see tools.h. */
#include "tools.h"

#include "kernels/rowformat.h"
#include "server/tables/load.h"

#include <stdlib.h>
#include <unistd.h>

/* ---- opening --------------------------------------------------------------------------------- */

static void close_all(int *descriptors, size_t count)
{
    for (size_t i = 0; descriptors && i < count; i++) {
        if (descriptors[i] >= 0)
            close(descriptors[i]);
    }
    free(descriptors);
}

/* NULL with the problem set. */
static int *open_all(const struct bag_table_file *files, size_t count, struct bag_problem *problem)
{
    int *descriptors = calloc(count + 1, sizeof *descriptors);
    if (!descriptors) {
        bag_problem_no_memory(problem);
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        descriptors[i] = bag_file_reopen(&files[i], problem);
        if (descriptors[i] < 0) {
            close_all(descriptors, i);
            return NULL;
        }
    }
    return descriptors;
}

bool bag_rows_reader_open(struct bag_rows_reader *reader, const struct bag_source *source,
                          struct bag_problem *problem)
{
    *reader =
        (struct bag_rows_reader){.source = source, .row_bytes = bag_row_bytes(&source->table)};
    for (size_t i = 0; i < source->num_files; i++)
        reader->num_rows += (size_t)source->files[i].npy.shape[0];
    reader->files = open_all(source->files, source->num_files, problem);
    if (!reader->files)
        return false;
    reader->key_files = open_all(source->key_files, source->num_key_files, problem);
    if (reader->key_files)
        reader->scales = open_all(source->scales, source->num_scales, problem);
    if (reader->scales)
        return true;
    close_all(reader->files, source->num_files);
    close_all(reader->key_files, source->num_key_files);
    return false;
}

void bag_rows_reader_close(struct bag_rows_reader *reader)
{
    close_all(reader->files, reader->source->num_files);
    close_all(reader->key_files, reader->source->num_key_files);
    close_all(reader->scales, reader->source->num_scales);
}

bool bag_rows_reader_check(const struct bag_rows_reader *reader, struct bag_problem *problem)
{
    const struct bag_source *source = reader->source;
    return bag_files_check_read(source->files, reader->files, source->num_files, problem) &&
           bag_files_check_read(source->key_files, reader->key_files, source->num_key_files,
                                problem) &&
           bag_files_check_read(source->scales, reader->scales, source->num_scales, problem);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Rows of one file. A column-major one has a run of every column in each block. */
static bool read_part(int fd, const struct bag_npy *npy, size_t first, size_t count,
                      unsigned char *rows, unsigned char *scratch, struct bag_problem *problem)
{
    size_t bytes = bag_dtypes[npy->dtype].bytes, row_bytes = npy->row_elements * bytes;
    struct bag_npy_tile tile = {0, npy->fortran_order ? npy->num_columns : 1, 0,
                                npy->fortran_order ? count : count * npy->row_elements};
    if (!npy->fortran_order) {
        unsigned char *into = bag_npy_is_plain(npy) ? rows : scratch;
        if (!bag_file_read_at(fd, into, count * row_bytes, npy->data_offset + first * row_bytes,
                              problem))
            return false;
    }
    for (size_t i = 0; npy->fortran_order && i < npy->num_columns; i++) {
        uint64_t at = npy->data_offset + (i * npy->column_elements + first) * bytes;
        if (!bag_file_read_at(fd, scratch + i * count * bytes, count * bytes, at, problem))
            return false;
    }
    if (!bag_npy_is_plain(npy))
        bag_npy_place(npy, tile, scratch, rows);
    return true;
}

bool bag_rows_read_file(int fd, const struct bag_table_file *file, size_t first, size_t count,
                        void *rows, void *scratch, struct bag_problem *problem)
{
    return read_part(fd, &file->npy, first, count, rows, scratch, problem) ||
           bag_file_reject(file->path, problem);
}

static bool read_parts(const struct bag_table_file *files, const int *descriptors, size_t num_files,
                       size_t first, size_t count, unsigned char *rows, unsigned char *scratch,
                       struct bag_problem *problem)
{
    for (size_t i = 0; i < num_files && count > 0; i++) {
        const struct bag_npy *npy = &files[i].npy;
        size_t here = (size_t)npy->shape[0], part;
        if (first >= here) {
            first -= here;
            continue;
        }
        part = here - first < count ? here - first : count;
        if (!bag_rows_read_file(descriptors[i], &files[i], first, part, rows, scratch, problem))
            return false;
        rows += part * npy->row_elements * bag_dtypes[npy->dtype].bytes;
        count -= part;
        first = 0;
    }
    return true;
}

bool bag_rows_read(const struct bag_rows_reader *reader, size_t first, size_t count, void *rows,
                   void *scratch, struct bag_problem *problem)
{
    if (bag_rows_are_imported(reader->source))
        return bag_rows_import(reader, first, count, rows, problem);
    return read_parts(reader->source->files, reader->files, reader->source->num_files, first, count,
                      rows, scratch, problem);
}

bool bag_rows_read_keys(const struct bag_rows_reader *reader, size_t first, size_t count,
                        uint64_t *keys, void *scratch, struct bag_problem *problem)
{
    return read_parts(reader->source->key_files, reader->key_files, reader->source->num_key_files,
                      first, count, (unsigned char *)keys, scratch, problem);
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
