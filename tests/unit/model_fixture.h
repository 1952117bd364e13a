/* A model of one table of floats in the test's own memory, as the reconciler would make it. */
#pragma once

#include "server/models/snapshot.h"

static inline void set_up_model(struct bag_model *model, struct bag_feature *feature,
                                struct bag_table_memory *memory, const float *rows,
                                int64_t num_rows, size_t columns)
{
    *memory = (struct bag_table_memory){
        .table = {.rows = rows, .dtype = BAG_F32, .num_rows = num_rows, .row_elements = columns},
        .rank = 2,
        .shape = {num_rows, (int64_t)columns}};
    *feature = (struct bag_feature){.name = (char *)(uintptr_t)BAG_EMBEDDINGS,
                                    .rules = {.default_index = -1, .output_dtype = BAG_F32},
                                    .memory = memory};
    *model = (struct bag_model){.name = (char *)(uintptr_t) "m",
                                .version = (char *)(uintptr_t) "1",
                                .memory = memory,
                                .features = feature,
                                .num_features = 1,
                                .typical_row_bytes = columns * sizeof(float)};
}
