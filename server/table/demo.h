/* The models of `serve --demo`, made instead of read.
 *
 * Must not know: models, files. Safe on any thread. */
#ifndef BAG_TABLE_DEMO_H
#define BAG_TABLE_DEMO_H

#include "load.h"

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

/* X(name of the model, its maker)
 *
 *   example   5 x 2 f32, the table of the specification's examples
 *   items     BAG_DEMO_ITEMS_ROWS x BAG_DEMO_ITEMS_COLUMNS f32, as said above
 *
 * Each maker fills *memory, which the caller unloads; false, with the problem set, where there is
 * no memory. */
#define BAG_DEMO_TABLES(X)         \
    X("example", bag_demo_example) \
    X("items", bag_demo_items)

/* A collection of them, under the name BAG_DEMO_COLLECTION: its config.json. */
#define BAG_DEMO_COLLECTION "ranker"
#define BAG_DEMO_FEATURES                                                                       \
    "{\"features\": [{\"name\": \"history\", \"model\": \"example\", \"reduction\": \"mean\"}," \
    " {\"name\": \"user\", \"model\": \"example\"}, {\"name\": \"ad\", \"model\": \"items\"}]}"

bool bag_demo_example(struct bag_table_memory *memory, struct bag_problem *problem);
bool bag_demo_items(struct bag_table_memory *memory, struct bag_problem *problem);

#endif
