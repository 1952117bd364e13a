/* Matrix files -> projections. Called while starting, like load.h. */
#ifndef BAG_TABLE_PROJECTION_H
#define BAG_TABLE_PROJECTION_H

#include "kernels/project.h"
#include "load.h"

/* What a configuration names: a matrix [dim, out] of FP32 in .npy, and NULL or a bias [out]. */
struct bag_projection_files {
    const char *matrix, *bias;
};

/* Looks at the files and rejects what does not fit rows of the table: its type must be one that is
 * pooled in FP32, the matrix must have as many rows as the table's rows have elements. Adds the
 * bytes that the files will take to *total_bytes. */
bool bag_projection_check(const struct bag_projection_files *files, const struct bag_table *table,
                          size_t *total_bytes, struct bag_problem *problem);

/* A loaded projection with what it owns. */
struct bag_projection_memory {
    struct bag_projection projection;
    struct bag_table_memory matrix, bias;
};

/* Loads what bag_projection_check accepts; NULL with the problem set. */
struct bag_projection_memory *bag_projection_load(const struct bag_projection_files *files,
                                                  const struct bag_table *table, bag_gemm_fn *gemm,
                                                  struct bag_problem *problem);

/* NULL is ignored. */
void bag_projection_free(struct bag_projection_memory *memory);

#endif
