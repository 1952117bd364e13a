/* What a configuration names, besides files: demo tables, row formats, projections. */
#include "source.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- demo tables ----------------------------------------------------------------------------- */

bool bag_demo_example(struct bag_table_memory *memory, struct bag_problem *problem)
{
    static const float rows[5][2] = {
        {-0.2f, -0.6f}, {-0.1f, -0.4f}, {-1.9f, -1.8f}, {-1.0f, 1.5f}, {0.8f, -0.7f}};
    if (!bag_table_create(BAG_F32, 2, (int64_t[]){5, 2}, memory, problem))
        return false;
    memcpy(memory->mapping, rows, sizeof rows);
    return true;
}

bool bag_demo_items(struct bag_table_memory *memory, struct bag_problem *problem)
{
    int64_t shape[] = {BAG_DEMO_ITEMS_ROWS, BAG_DEMO_ITEMS_COLUMNS};
    if (!bag_table_create(BAG_F32, 2, shape, memory, problem))
        return false;
    float *value = memory->mapping;
    for (uint32_t row = 0; row < BAG_DEMO_ITEMS_ROWS; row++) {
        for (uint32_t column = 0; column < BAG_DEMO_ITEMS_COLUMNS; column++) {
            uint32_t hash = row * UINT32_C(2654435769) + column * UINT32_C(2246822507);
            *value++ = (float)((int32_t)(hash >> 20) - 2048) / 2048;
        }
    }
    return true;
}

/* ---- row formats ----------------------------------------------------------------------------- */

bool bag_table_take_format(struct bag_table *table, uint32_t rank, enum bag_row_format format,
                           struct bag_problem *problem)
{
    const char *name = bag_row_format_names[format];
    if (format == BAG_ROWS_PLAIN)
        return true;
    if (table->dtype != BAG_U8 || rank != 2)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "row_format %s needs a table of 2 dimensions of UINT8, rows and "
                               "their bytes; this one has %u of %s",
                               name, rank, bag_dtypes[table->dtype].name);
    size_t row_elements = bag_row_elements(format, table->row_elements);
    if (row_elements == 0)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "row_format %s: rows of %zu bytes are too short to hold an element",
                               name, table->row_elements);
    table->dtype = BAG_F32;
    table->row_elements = row_elements;
    table->row_format = format;
    return true;
}

/* ---- projections ----------------------------------------------------------------------------- */

struct files {
    struct bag_table_file matrix, bias;
};

static bool takes_table(const struct bag_table *table, struct bag_problem *problem)
{
    if (table->dtype == BAG_F32 || table->dtype == BAG_F16 || table->dtype == BAG_BF16)
        return true;
    return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                           "a projection needs a table of FP32, FP16 or BF16; this one is %s",
                           bag_dtypes[table->dtype].name);
}

/* The multiplying library counts in int. */
static bool takes_matrix(const char *path, const struct bag_npy *npy, size_t row_elements,
                         struct bag_problem *problem)
{
    if (npy->dtype == BAG_F32 && npy->rank == 2 && (uint64_t)npy->shape[0] == row_elements &&
        npy->shape[1] > 0 && npy->shape[1] <= INT_MAX && row_elements <= INT_MAX)
        return true;
    return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                           "%s: a projection must be FP32 of shape [%zu, out], as many rows as "
                           "the table's have elements; this one is %s in %u dimension%s, the "
                           "first of %lld",
                           path, row_elements, bag_dtypes[npy->dtype].name, (unsigned)npy->rank,
                           npy->rank == 1 ? "" : "s", (long long)npy->shape[0]);
}

static bool takes_bias(const char *path, const struct bag_npy *npy, int64_t columns,
                       struct bag_problem *problem)
{
    if (npy->dtype == BAG_F32 && npy->rank == 1 && npy->shape[0] == columns)
        return true;
    return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                           "%s: a bias must be FP32 of shape [%lld], the columns of its "
                           "projection; this one is %s in %u dimension%s, the first of %lld",
                           path, (long long)columns, bag_dtypes[npy->dtype].name,
                           (unsigned)npy->rank, npy->rank == 1 ? "" : "s",
                           (long long)npy->shape[0]);
}

static bool open_files(const struct bag_projection_files *names, const struct bag_table *table,
                       struct files *files, struct bag_problem *problem)
{
    return takes_table(table, problem) &&
           bag_table_file_open(names->matrix, BAG_DTYPE_COUNT, &files->matrix, problem) &&
           takes_matrix(names->matrix, &files->matrix.npy, table->row_elements, problem) &&
           (!names->bias ||
            (bag_table_file_open(names->bias, BAG_DTYPE_COUNT, &files->bias, problem) &&
             takes_bias(names->bias, &files->bias.npy, files->matrix.npy.shape[1], problem)));
}

bool bag_projection_check(const struct bag_projection_files *names, const struct bag_table *table,
                          size_t *total_bytes, struct bag_problem *problem)
{
    struct files files;
    if (!open_files(names, table, &files, problem))
        return false;
    size_t bytes = bag_table_file_bytes(&files.matrix);
    if (names->bias)
        bytes += bag_table_file_bytes(&files.bias);
    return !__builtin_add_overflow(*total_bytes, bytes, total_bytes) ||
           bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "the tables are larger than any memory");
}

struct bag_projection_memory *bag_projection_load(const struct bag_projection_files *names,
                                                  const struct bag_table *table, bag_gemm_fn *gemm,
                                                  struct bag_problem *problem)
{
    struct files files;
    struct bag_projection_memory *memory = calloc(1, sizeof *memory);
    if (!memory) {
        bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "%s: not enough memory", names->matrix);
        return NULL;
    }
    if (!open_files(names, table, &files, problem) ||
        !bag_table_load(&files.matrix, 1, NULL, NULL, &memory->matrix, problem) ||
        (names->bias && !bag_table_load(&files.bias, 1, NULL, NULL, &memory->bias, problem))) {
        bag_projection_free(memory);
        return NULL;
    }
    memory->projection =
        (struct bag_projection){.matrix = memory->matrix.table.rows,
                                .bias = names->bias ? memory->bias.table.rows : NULL,
                                .rows = table->row_elements,
                                .columns = memory->matrix.table.row_elements,
                                .gemm = gemm};
    return memory;
}

void bag_projection_free(struct bag_projection_memory *memory)
{
    if (!memory)
        return;
    bag_table_unload(&memory->matrix);
    bag_table_unload(&memory->bias);
    free(memory);
}
