/* See demo.h. */
#include "demo.h"

#include <string.h>

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
