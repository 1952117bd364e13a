/* Tables that are computed; see demo.h. */
#include "demo.h"

#include "config/config.h"
#include "config/synthetic.h"

#include <string.h>

void bag_demo_example(float *rows, size_t first_row, size_t num_rows, size_t first_column,
                      size_t num_columns)
{
    static const float values[5][2] = {
        {-0.2f, -0.6f}, {-0.1f, -0.4f}, {-1.9f, -1.8f}, {-1.0f, 1.5f}, {0.8f, -0.7f}};
    for (size_t row = first_row; row < first_row + num_rows; row++) {
        for (size_t column = first_column; column < first_column + num_columns; column++)
            *rows++ = values[row][column];
    }
}

/* Values have 12 bits, so that sums are exact. */
void bag_demo_items(float *rows, size_t first_row, size_t num_rows, size_t first_column,
                    size_t num_columns)
{
    for (size_t row = first_row; row < first_row + num_rows; row++) {
        for (size_t column = first_column; column < first_column + num_columns; column++) {
            uint32_t hash =
                (uint32_t)row * UINT32_C(2654435769) + (uint32_t)column * UINT32_C(2246822507);
            *rows++ = (float)((int32_t)(hash >> 20) - 2048) / 2048;
        }
    }
}

static bool begins_with(const char *path, const char *prefix)
{
    return strncmp(path, prefix, strlen(prefix)) == 0;
}

bool bag_demo_has_prefix(const char *path)
{
    return begins_with(path, BAG_DEMO_PREFIX) || begins_with(path, BAG_SYNTHETIC_PREFIX);
}

bag_demo_maker *bag_demo_find(const char *path, int64_t shape[2], struct bag_problem *problem)
{
    static const struct {
        const char *name;
        bag_demo_maker *make;
        int64_t rows, columns;
    } demos[] = {
#define BAG_X(name, make, rows, columns) {BAG_DEMO_PREFIX name, make, rows, columns},
        BAG_DEMO_TABLES(BAG_X)
#undef BAG_X
    };
    for (size_t i = 0; i < sizeof demos / sizeof demos[0]; i++) {
        if (strcmp(demos[i].name, path) == 0) {
            shape[0] = demos[i].rows;
            shape[1] = demos[i].columns;
            return demos[i].make;
        }
    }
    if (begins_with(path, BAG_SYNTHETIC_PREFIX) &&
        bag_synthetic_parse(path + strlen(BAG_SYNTHETIC_PREFIX), &shape[0], &shape[1]))
        return bag_demo_items;
    bag_problem_set(problem, BAG_ERROR_CONFIGURATION, "there is no table '%s'",
                    bag_quote(path, strlen(path)).text);
    return NULL;
}
