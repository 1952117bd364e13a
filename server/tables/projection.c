/* Projections; see projection.h. */
#include "projection.h"

#include <limits.h>
#include <stdlib.h>

/* ---- opening --------------------------------------------------------------------------------- */

/* Checks that rows of this type can be projected. */
static bool takes_table(const struct bag_table *table, struct bag_problem *problem)
{
    if (table->dtype == BAG_F32 || table->dtype == BAG_F16 || table->dtype == BAG_BF16)
        return true;
    return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                           "a projection needs a table of FP32, FP16 or BF16; this one is %s",
                           bag_dtypes[table->dtype].name);
}

/* Checks that the matrix fits the table's rows. The library that multiplies counts in int, so sizes
 * are limited to INT_MAX. */
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

bool bag_source_open_projection(struct bag_feature_source *source,
                                const struct bag_feature_config *feature,
                                struct bag_problem *problem)
{
    const char *bias;
    const char *matrix = bag_config_projection(source->table->model, feature, &bias);
    if (!matrix)
        return true;
    if (source->table->model->part.of)
        return bag_problem_set(problem, BAG_ERROR_CONFIGURATION,
                               "%s: a projection is of sums over all parts of a table, and model "
                               "'%s' has a part of one",
                               matrix, source->table->model->name);
    source->projection = calloc(1, sizeof *source->projection);
    if (!source->projection)
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "%s: not enough memory", matrix);
    struct bag_projection_source *files = source->projection;
    const struct bag_table *table = &source->table->table;
    files->has_bias = bias != NULL;
    return takes_table(table, problem) &&
           bag_table_file_open(matrix, BAG_DTYPE_COUNT, &files->matrix, problem) &&
           takes_matrix(matrix, &files->matrix.npy, table->row_elements, problem) &&
           (!bias || (bag_table_file_open(bias, BAG_DTYPE_COUNT, &files->bias, problem) &&
                      takes_bias(bias, &files->bias.npy, files->matrix.npy.shape[1], problem)));
}

/* ---- loading --------------------------------------------------------------------------------- */

struct bag_projection_memory *bag_projection_load(const struct bag_projection_source *source,
                                                  bag_gemm_fn *gemm, struct bag_problem *problem)
{
    const struct bag_load_options options = {.threads = 1};
    const struct bag_table_file *matrix = &source->matrix;
    struct bag_projection_memory *memory = calloc(1, sizeof *memory);
    if (!memory) {
        bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "%s: not enough memory", matrix->path);
        return NULL;
    }
    if (!bag_table_load(matrix, 1, &options, &memory->matrix, problem) ||
        (source->has_bias && !bag_table_load(&source->bias, 1, &options, &memory->bias, problem))) {
        bag_projection_free(memory);
        return NULL;
    }
    memory->projection = (struct bag_projection){.matrix = memory->matrix.table.rows,
                                                 .bias = memory->bias.table.rows,
                                                 .rows = (size_t)matrix->npy.shape[0],
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
