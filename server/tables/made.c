/* Tables that are computed; see made.h. */
#include "made.h"

#include "config/synthetic.h"

#include <string.h>

void bag_make_example(float *rows, size_t first_row, size_t num_rows, size_t first_column,
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
void bag_make_items(float *rows, size_t first_row, size_t num_rows, size_t first_column,
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

bag_maker *bag_made_find(const struct bag_model_config *model, int64_t shape[2],
                         struct bag_problem *problem)
{
    static const struct {
        const char *path;
        bag_maker *make;
        int64_t rows, columns;
    } demos[] = {
#define BAG_X(name, make, rows, columns) {BAG_DEMO_PREFIX name, make, rows, columns},
        BAG_DEMO_TABLES(BAG_X)
#undef BAG_X
    };
    const char *path = model->path;
    if (bag_model_path_kind(model) == BAG_PATH_SYNTHETIC &&
        bag_synthetic_parse(path + strlen(BAG_SYNTHETIC_PREFIX), &shape[0], &shape[1]))
        return bag_make_items;
    for (size_t i = 0; i < sizeof demos / sizeof demos[0]; i++) {
        if (strcmp(demos[i].path, path) == 0) {
            shape[0] = demos[i].rows;
            shape[1] = demos[i].columns;
            return demos[i].make;
        }
    }
    bag_problem_set(problem, BAG_ERROR_CONFIGURATION, "there is no table '%s'",
                    bag_quote(path, strlen(path)).text);
    return NULL;
}
