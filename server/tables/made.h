/* Tables that are computed instead of read: those of `--demo` and `--synthetic`. */
#pragma once

#include "config/config.h"

#include <stddef.h>
#include <stdint.h>

/* The items table. Its value at (row, column) is
 *
 *     hash  = (row * 2654435769 + column * 2246822507) mod 2^32
 *     value = (floor(hash / 2^20) - 2048) / 2048
 *
 * a multiple of 1/2048 from -1 to 2047/2048: sums of up to 8,000 rows are exact in f32, and
 * ((row * 2654435769 + column * 2246822507) % 2**32 // 2**20 - 2048) / 2048 is the same in Python.
 */
#define BAG_DEMO_ITEMS_ROWS    100000
#define BAG_DEMO_ITEMS_COLUMNS 64

/* X(name of the model, its maker, rows, columns): FP32 tables.
 *
 *   example   the table of the specification's examples
 *   items     the table above
 */
#define BAG_DEMO_TABLES(X)               \
    X("example", bag_make_example, 5, 2) \
    X("items", bag_make_items, BAG_DEMO_ITEMS_ROWS, BAG_DEMO_ITEMS_COLUMNS)

/* The name of a collection of these tables, and its config.json. */
#define BAG_DEMO_COLLECTION "ranker"
#define BAG_DEMO_FEATURES                                                                       \
    "{\"features\": [{\"name\": \"history\", \"model\": \"example\", \"reduction\": \"mean\"}," \
    " {\"name\": \"user\", \"model\": \"example\"}, {\"name\": \"ad\", \"model\": \"items\"}]}"

/* Writes this range of a table's rows and columns to `rows`, in C order. */
typedef void bag_maker(float *rows, size_t first_row, size_t num_rows, size_t first_column,
                       size_t num_columns);
bag_maker bag_make_example, bag_make_items;

/* Sets the shape of the table of a model whose path is DEMO or SYNTHETIC, and returns its maker.
 * Returns NULL and sets *problem (BAG_ERROR_CONFIGURATION) if there is no such table. */
bag_maker *bag_made_find(const struct bag_model_config *model, int64_t shape[2],
                         struct bag_problem *problem);
