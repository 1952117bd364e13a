/* Rows as other programs write them are put together: codes whose scales and biases are in arrays
 * of their own, and rows with padding behind them; see tools.h and server/tables/split.c. */
#include "kernels/rowformat.h"
#include "tools.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The zero of codes with a sign, once they have none. */
#define SIGNED_ZERO 128

static size_t stored_bytes(const struct bag_source *source)
{
    const struct bag_npy *npy = &source->files[0].npy;
    return npy->row_elements * bag_dtypes[npy->dtype].bytes;
}

bool bag_rows_are_imported(const struct bag_source *source)
{
    return source->num_scales > 0 ||
           (source->num_files > 0 && source->table.row_format != BAG_ROWS_PLAIN &&
            stored_bytes(source) != bag_row_bytes(&source->table));
}

/* ---- scale and bias -------------------------------------------------------------------------- */

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
    if (!bag_rows_read_file(fd, file, for_all ? 0 : first, for_all ? 1 : count, stored, scratch,
                            problem))
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

/* ---- rows ------------------------------------------------------------------------------------ */

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

bool bag_rows_import(const struct bag_rows_reader *reader, size_t first, size_t count,
                     unsigned char *rows, struct bag_problem *problem)
{
    const struct bag_source *source = reader->source;
    size_t bytes = stored_bytes(source), room = bytes > sizeof(float) ? bytes : sizeof(float);
    unsigned char *stored = malloc(count * bytes + 1), *scratch = malloc(2 * count * room + 1);
    bool ok = ((stored && scratch) || bag_problem_no_memory(problem)) &&
              bag_rows_read_file(reader->files[0], &source->files[0], first, count, stored, scratch,
                                 problem);
    for (size_t i = 0; ok && source->num_scales == 0 && i < count; i++)
        memcpy(rows + i * reader->row_bytes, stored + i * bytes, reader->row_bytes);
    ok = ok &&
         (source->num_scales == 0 || join(reader, first, count, stored, scratch, rows, problem));
    free(stored);
    free(scratch);
    return ok;
}
