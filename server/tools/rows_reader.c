/* Rows and keys are read block by block; see tools.h. */
#include "tools.h"

#include "kernels/rowformat.h"
#include "server/tables/load.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
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

static bool read_file(int fd, const struct bag_table_file *file, size_t first, size_t count,
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
        if (!read_file(descriptors[i], &files[i], first, part, rows, scratch, problem))
            return false;
        rows += part * npy->row_elements * bag_dtypes[npy->dtype].bytes;
        count -= part;
        first = 0;
    }
    return true;
}

/* ---- rows as other programs write them ---------------------------------------------------------
 */

/* Codes whose scales and biases are in arrays of their own, and rows with padding behind them, are
 * put together; see server/tables/split.c. */

/* The zero of codes with a sign, once they have none. */
#define SIGNED_ZERO 128

static size_t stored_bytes(const struct bag_source *source)
{
    const struct bag_npy *npy = &source->files[0].npy;
    return npy->row_elements * bag_dtypes[npy->dtype].bytes;
}

static bool are_imported(const struct bag_source *source)
{
    return source->num_scales > 0 ||
           (source->num_files > 0 && source->table.row_format != BAG_ROWS_PLAIN &&
            stored_bytes(source) != bag_row_bytes(&source->table));
}

/* Of `count` rows, as f32: [i] belongs to the i-th. */
struct params {
    float *scales, *biases;
};

/* Reads one array: a number for each row, or one for all. */
static bool read_numbers(int fd, const struct bag_table_file *file, size_t first, size_t count,
                         float *numbers, void *scratch, struct bag_problem *problem)
{
    struct bag_table table = {.dtype = file->npy.dtype, .num_rows = 1, .row_elements = 1};
    bool for_all = file->npy.count == 1;
    unsigned char *stored = (unsigned char *)scratch + count * sizeof(float);
    if (!read_file(fd, file, for_all ? 0 : first, for_all ? 1 : count, stored, scratch, problem))
        return false;
    table.rows = stored;
    for (size_t i = 0; i < count; i++)
        bag_row_decode(&table, for_all ? 0 : (int64_t)i, 0, 1, &numbers[i]);
    return true;
}

static bool read_params(const struct bag_rows_reader *reader, size_t first, size_t count,
                        const struct params *params, void *scratch, struct bag_problem *problem)
{
    const struct bag_source *source = reader->source;
    if (!read_numbers(reader->scales[0], &source->scales[0], first, count, params->scales, scratch,
                      problem))
        return false;
    if (source->num_scales > 1)
        return read_numbers(reader->scales[1], &source->scales[1], first, count, params->biases,
                            scratch, problem);
    for (size_t i = 0; i < count; i++)
        params->biases[i] = -SIGNED_ZERO * params->scales[i];
    return true;
}

static bool check_params(const struct bag_source *source, size_t row, float scale, float bias,
                         struct bag_problem *problem)
{
    bool halves = bag_row_layouts[source->table.row_format].param_dtype == BAG_F16;
    float largest = halves ? 65504 : INFINITY;
    if (isfinite(scale) && isfinite(bias) && fabsf(bias) <= largest)
        return true;
    if (source->num_scales > 1 || !isfinite(scale))
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "%s: row %zu has the scale %g and the bias %g; both must be finite",
                               source->files[0].path, row, (double)scale, (double)bias);
    return bag_problem_set(
        problem, BAG_ERROR_FILE, "%s: row %zu has the scale %g, which is too large for %s rows",
        source->files[0].path, row, (double)scale, bag_row_format_names[source->table.row_format]);
}

/* The values of four-bit codes with f32 parameters, for which there is no row format. */
static void write_values(const struct bag_table *table, const unsigned char *codes, float scale,
                         float bias, unsigned char *row)
{
    for (size_t i = 0; i < table->row_elements; i++) {
        unsigned code = i % 2 ? codes[i / 2] >> 4 : codes[i / 2] & 15;
        float value = __builtin_fmaf((float)code, scale, bias);
        memcpy(row + i * sizeof value, &value, sizeof value);
    }
}

static void write_row(const struct bag_source *source, const unsigned char *codes, float scale,
                      float bias, unsigned char *row)
{
    const struct bag_table *table = &source->table;
    const float params[] = {scale, bias};
    unsigned char *to = row + bag_row_places(table).codes_at;
    size_t bytes = stored_bytes(source);
    if (table->row_format == BAG_ROWS_PLAIN) {
        write_values(table, codes, scale, bias, row);
        return;
    }
    memcpy(to, codes, bytes);
    for (size_t i = 0; source->num_scales == 1 && i < bytes; i++)
        to[i] ^= SIGNED_ZERO;
    bag_elements_encode(params, 2, bag_row_layouts[table->row_format].param_dtype,
                        row + bag_row_places(table).params_at);
}

static bool join(const struct bag_rows_reader *reader, size_t first, size_t count,
                 const unsigned char *stored, void *scratch, unsigned char *rows,
                 struct bag_problem *problem)
{
    const struct bag_source *source = reader->source;
    size_t bytes = stored_bytes(source);
    float *numbers = malloc(2 * count * sizeof *numbers + 1);
    struct params params = {numbers, numbers ? numbers + count : NULL};
    bool ok = (numbers || bag_problem_no_memory(problem)) &&
              read_params(reader, first, count, &params, scratch, problem);
    for (size_t i = 0; ok && i < count; i++) {
        ok = check_params(source, first + i, params.scales[i], params.biases[i], problem);
        if (ok)
            write_row(source, stored + i * bytes, params.scales[i], params.biases[i],
                      rows + i * reader->row_bytes);
    }
    free(numbers);
    return ok;
}

static bool import_rows(const struct bag_rows_reader *reader, size_t first, size_t count,
                        unsigned char *rows, struct bag_problem *problem)
{
    const struct bag_source *source = reader->source;
    size_t bytes = stored_bytes(source), room = bytes > sizeof(float) ? bytes : sizeof(float);
    unsigned char *stored = malloc(count * bytes + 1), *scratch = malloc(2 * count * room + 1);
    bool ok =
        ((stored && scratch) || bag_problem_no_memory(problem)) &&
        read_file(reader->files[0], &source->files[0], first, count, stored, scratch, problem);
    for (size_t i = 0; ok && source->num_scales == 0 && i < count; i++)
        memcpy(rows + i * reader->row_bytes, stored + i * bytes, reader->row_bytes);
    ok = ok &&
         (source->num_scales == 0 || join(reader, first, count, stored, scratch, rows, problem));
    free(stored);
    free(scratch);
    return ok;
}

/* ---- blocks of the table -----------------------------------------------------------------------
 */

bool bag_rows_read(const struct bag_rows_reader *reader, size_t first, size_t count, void *rows,
                   void *scratch, struct bag_problem *problem)
{
    if (are_imported(reader->source))
        return import_rows(reader, first, count, rows, problem);
    return read_parts(reader->source->files, reader->files, reader->source->num_files, first, count,
                      rows, scratch, problem);
}

bool bag_rows_read_keys(const struct bag_rows_reader *reader, size_t first, size_t count,
                        uint64_t *keys, void *scratch, struct bag_problem *problem)
{
    return read_parts(reader->source->key_files, reader->key_files, reader->source->num_key_files,
                      first, count, (unsigned char *)keys, scratch, problem);
}

bool bag_rows_check_keys(const struct bag_source *source, unsigned threads,
                         struct bag_problem *problem)
{
    struct bag_table_memory memory = {.table = source->table};
    const struct bag_load_options options = {.threads = threads};
    bool ok =
        bag_table_load_keys(source->key_files, source->num_key_files, &options, &memory, problem);
    bag_keys_index_free(&memory.index);
    return ok;
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
