/* Tables in memory that are made, not read. */
#pragma once

#include "server/tables/memory.h"

/* Makes a zeroed table. */
static inline bool create_table(enum bag_dtype dtype, uint32_t rank, const int64_t *shape,
                                struct bag_table_memory *memory, struct bag_problem *problem)
{
    size_t row_elements = 1;
    for (uint32_t axis = 1; axis < rank; axis++)
        row_elements *= (size_t)shape[axis];
    bag_table_describe(dtype, rank, shape, row_elements, memory);
    return bag_table_allocate(memory, problem);
}
