/* Projections: matrices by which pooled rows are multiplied. */
#pragma once

#include "kernels/project.h"
#include "source.h"

/* Opens the projection of a feature, if one is configured. `feature` is NULL for the model of a
 * table. Returns false and sets *problem if the files are wrong (BAG_ERROR_FILE) or do not fit the
 * table (BAG_ERROR_CONFIGURATION). */
bool bag_source_open_projection(struct bag_feature_source *source,
                                const struct bag_feature_config *feature,
                                struct bag_problem *problem);

/* A projection in memory. */
struct bag_projection_memory {
    struct bag_projection projection;
    struct bag_table_memory matrix, bias;
};

/* Loads a projection that is open. Returns NULL and sets *problem if its files changed or cannot be
 * read (BAG_ERROR_FILE), or without memory (BAG_ERROR_NO_MEMORY). */
struct bag_projection_memory *bag_projection_load(const struct bag_projection_source *source,
                                                  bag_gemm_fn *gemm, struct bag_problem *problem);

/* Frees a projection. NULL is ignored. */
void bag_projection_free(struct bag_projection_memory *memory);
