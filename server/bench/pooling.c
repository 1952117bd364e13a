/* Bags that are pooled from a table's file; see pooling.h. */
#include "pooling.h"

#include "kernels/rowformat.h"

#include <math.h>
#include <stdlib.h>

/* ---- numbers --------------------------------------------------------------------------------- */

static bool is_whole(const struct bag_table *table)
{
    return bag_dtypes[table->dtype].kind != BAG_KIND_FLOAT;
}

__int128 bag_bench_whole_keep(__int128 sum, enum bag_dtype dtype)
{
    unsigned unused = 64 - 8 * (unsigned)bag_dtypes[dtype].bytes;
    uint64_t bits = (uint64_t)sum << unused;
    return bag_dtypes[dtype].kind == BAG_KIND_SIGNED ? (__int128)((int64_t)bits >> unused)
                                                     : (__int128)(bits >> unused);
}

static void read_floats(const struct bag_table *table, size_t row, union bag_bench_number *numbers)
{
    float values[64];
    for (size_t first = 0; first < table->row_elements; first += 64) {
        size_t left = table->row_elements - first, count = left < 64 ? left : 64;
        bag_row_decode(table, (int64_t)row, first, count, values);
        for (size_t i = 0; i < count; i++)
            numbers[first + i].real = (double)values[i];
    }
}

void bag_bench_row_read(const struct bag_table *table, size_t row, union bag_bench_number *numbers)
{
    size_t bytes = bag_dtypes[table->dtype].bytes;
    const unsigned char *at = (const unsigned char *)table->rows + row * bag_row_bytes(table);
    if (!is_whole(table) && table->dtype != BAG_F64)
        read_floats(table, row, numbers);
    for (size_t i = 0; is_whole(table) && i < table->row_elements; i++) {
        uint64_t bits = 0;
        memcpy(&bits, at + i * bytes, bytes);
        numbers[i].whole = bag_bench_whole_keep((__int128)bits, table->dtype);
    }
    for (size_t i = 0; table->dtype == BAG_F64 && i < table->row_elements; i++)
        numbers[i].real = bag_load_f64(at, i);
}

/* ---- tables ---------------------------------------------------------------------------------- */

static int compare_keys(const void *a, const void *b)
{
    const struct bag_bench_keyed_row *left = a, *right = b;
    return left->key < right->key ? -1 : left->key > right->key;
}

static bool sort_keys(const struct bag_bench_array *keys, struct bag_bench_table *table,
                      struct bag_problem *problem)
{
    size_t rows = (size_t)table->rows.num_rows;
    if (rows != keys->npy.count)
        return bag_problem_set(problem, BAG_ERROR_FILE, "it has %zu rows, and there are %zu keys",
                               rows, keys->npy.count);
    if (!(table->keys = calloc(rows, sizeof *table->keys)))
        return bag_problem_no_memory(problem);
    for (size_t row = 0; row < rows; row++) {
        memcpy(&table->keys[row].key, keys->data + row * sizeof(uint64_t), sizeof(uint64_t));
        table->keys[row].row = row;
    }
    qsort(table->keys, rows, sizeof *table->keys, compare_keys);
    return true;
}

/* The rows are of the server's format, which the file may name, too. */
static bool describe_rows(const struct bag_client_table *facts, struct bag_bench_table *table,
                          struct bag_problem *problem)
{
    const struct bag_npy *npy = &table->array.npy;
    enum bag_row_format format = facts->row_format, own = table->array.row_format;
    size_t row_bytes = npy->row_elements * bag_dtypes[npy->dtype].bytes;
    bool is_plain = format == BAG_ROWS_PLAIN;
    if (format == BAG_ROW_FORMAT_COUNT)
        return bag_problem_set(problem, BAG_ERROR_CONFLICT,
                               "the server's rows are of a format that is not known here");
    if (own != format && (is_plain || own != BAG_ROWS_PLAIN))
        return bag_problem_set(problem, BAG_ERROR_CONFLICT,
                               "its rows are %s, those of the server %s", bag_row_format_names[own],
                               bag_row_format_names[format]);
    if (npy->rank == 0)
        return bag_problem_set(problem, BAG_ERROR_FILE, "a single number is no table");
    table->rows =
        (struct bag_table){.rows = table->array.data,
                           .dtype = is_plain ? npy->dtype : BAG_F32,
                           .num_rows = npy->shape[0],
                           .row_elements = is_plain ? npy->row_elements : facts->row_elements,
                           .row_format = format};
    return bag_row_bytes(&table->rows) == row_bytes ||
           bag_problem_set(problem, BAG_ERROR_CONFLICT,
                           "its rows have %zu bytes, those of the server, %s of %zu elements, %zu",
                           row_bytes, bag_row_format_names[format], facts->row_elements,
                           bag_row_bytes(&table->rows));
}

static bool check_elements(const struct bag_client_table *facts,
                           const struct bag_bench_table *table, struct bag_problem *problem)
{
    if (facts->projected)
        return bag_problem_set(problem, BAG_ERROR_CONFLICT,
                               "the server multiplies pooled rows with a matrix: what that makes "
                               "of them is not compared");
    return facts->output_elements == table->rows.row_elements ||
           bag_problem_set(problem, BAG_ERROR_CONFLICT,
                           "its rows have %zu elements, those of the answer %zu",
                           table->rows.row_elements, facts->output_elements);
}

bool bag_bench_table_open(const char *path, const struct bag_client_table *facts,
                          const struct bag_bench_array *keys, struct bag_bench_table *table,
                          struct bag_problem *problem)
{
    enum bag_dtype output = facts->output_dtype;
    bool floats = output != BAG_DTYPE_COUNT && bag_dtypes[output].kind == BAG_KIND_FLOAT;
    if (!bag_bench_array_read(path, BAG_BENCH_ROWS, floats ? BAG_BF16 : BAG_DTYPE_COUNT,
                              &table->array, problem))
        return false;
    if (describe_rows(facts, table, problem) && check_elements(facts, table, problem) &&
        (!keys->data || sort_keys(keys, table, problem)))
        return true;
    bag_problem_prefix(problem, "%s", path);
    return false;
}

void bag_bench_table_close(struct bag_bench_table *table)
{
    bag_bench_array_free(&table->array);
    free(table->keys);
}

/* Reads the row of an id into pooled->row; false where the file has none. */
static bool read_row(const struct bag_bench_table *table, uint64_t id,
                     struct bag_bench_pooled *pooled)
{
    const struct bag_bench_keyed_row wanted = {.key = id};
    size_t row = id, rows = (size_t)table->rows.num_rows;
    if (table->keys) {
        const struct bag_bench_keyed_row *found =
            bsearch(&wanted, table->keys, rows, sizeof *table->keys, compare_keys);
        row = found ? found->row : rows;
    }
    if (row < rows)
        bag_bench_row_read(&table->rows, row, pooled->row);
    return row < rows;
}

/* ---- pooling --------------------------------------------------------------------------------- */

bool bag_bench_pooled_make(size_t elements, struct bag_bench_pooled *pooled)
{
    *pooled = (struct bag_bench_pooled){.values = calloc(elements + 1, sizeof *pooled->values),
                                        .row = calloc(elements + 1, sizeof *pooled->row),
                                        .around = calloc(elements + 1, sizeof *pooled->around),
                                        .elements = elements};
    return pooled->values && pooled->row && pooled->around;
}

void bag_bench_pooled_free(struct bag_bench_pooled *pooled)
{
    free(pooled->values);
    free(pooled->row);
    free(pooled->around);
}

/* Adds pooled->row. */
static void add_reals(struct bag_bench_pooled *pooled, double weight, bool is_max)
{
    for (size_t i = 0; i < pooled->elements; i++) {
        double *so_far = &pooled->values[i].real, value = weight * pooled->row[i].real;
        if (!is_max)
            *so_far += value;
        else if (!pooled->count || (!isnan(*so_far) && !(value <= *so_far)))
            *so_far = value;
        pooled->around[i] += fabs(value);
    }
}

static void add_wholes(struct bag_bench_pooled *pooled, bool is_max)
{
    for (size_t i = 0; i < pooled->elements; i++) {
        __int128 *so_far = &pooled->values[i].whole, value = pooled->row[i].whole;
        if (!is_max)
            *so_far += value;
        else if (!pooled->count || value > *so_far)
            *so_far = value;
    }
}

static void divide(struct bag_bench_pooled *pooled, bool wholes, double divisor)
{
    for (size_t i = 0; i < pooled->elements && divisor != 0; i++) {
        if (wholes) {
            pooled->values[i].whole /= (__int128)divisor;
        } else {
            pooled->values[i].real /= divisor;
            pooled->around[i] /= fabs(divisor);
        }
    }
}

static double divisor_of(const struct bag_bench_pooled *pooled, enum bag_reduction reduction,
                         bool weighted_mean)
{
    if (reduction == BAG_MEAN)
        return weighted_mean ? pooled->weights : (double)pooled->count;
    return reduction == BAG_SQRTN ? sqrt(pooled->squares) : 1;
}

static bool reject_id(const struct bag_client_table *facts, uint64_t id,
                      struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_CONFLICT, "the file of '%s' has no row for id %llu",
                           facts->name, (unsigned long long)id);
}

/* What stands for a bag without entries. */
static bool pool_default(const struct bag_client_table *facts, const struct bag_bench_table *table,
                         struct bag_bench_pooled *pooled, struct bag_problem *problem)
{
    if (!facts->has_default)
        return true;
    if (!read_row(table, (uint64_t)facts->default_id, pooled))
        return reject_id(facts, (uint64_t)facts->default_id, problem);
    if (is_whole(&table->rows))
        add_wholes(pooled, false);
    else
        add_reals(pooled, 1, false);
    return true;
}

/* Only floats have weights: of others the server takes none. */
bool bag_bench_pool(const struct bag_client_table *facts, enum bag_reduction reduction,
                    const struct bag_bench_table *table, const uint64_t *ids, const float *weights,
                    size_t count, struct bag_bench_pooled *pooled, struct bag_problem *problem)
{
    bool wholes = is_whole(&table->rows);
    memset(pooled->values, 0, pooled->elements * sizeof *pooled->values);
    memset(pooled->around, 0, pooled->elements * sizeof *pooled->around);
    pooled->count = 0;
    pooled->weights = pooled->squares = 0;
    for (size_t i = 0; i < count; i++) {
        double weight = weights ? (double)weights[i] : 1;
        if (facts->has_padding && ids[i] == (uint64_t)facts->padding)
            continue;
        if (!read_row(table, ids[i], pooled))
            return reject_id(facts, ids[i], problem);
        if (wholes)
            add_wholes(pooled, reduction == BAG_MAX);
        else
            add_reals(pooled, weight, reduction == BAG_MAX);
        pooled->count++;
        pooled->weights += weight;
        pooled->squares += weight * weight;
    }
    if (pooled->count == 0)
        return pool_default(facts, table, pooled, problem);
    divide(pooled, wholes, divisor_of(pooled, reduction, facts->weighted_mean && weights));
    return true;
}
