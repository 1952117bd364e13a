/* What a configuration names, besides files: demo tables, row formats, projections. */
#ifndef BAG_TABLE_SOURCE_H
#define BAG_TABLE_SOURCE_H

#include "kernels/pool.h"
#include "kernels/project.h"
#include "load.h"
#include "proto/problem.h"

/* ---- demo tables ----------------------------------------------------------------------------- */

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

/* The path that stands for a table of `--demo`. */
#define BAG_DEMO_PREFIX "demo:"

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

/* ---- row formats ----------------------------------------------------------------------------- */

/* Takes the rows of `table`, which a file describes as 2-D UINT8, as rows of `format`: from then on
 * its dtype is FP32 and its row_elements are those of the rows that the bytes stand for. PLAIN
 * changes nothing; another shape or type is rejected. */
bool bag_table_take_format(struct bag_table *table, uint32_t rank, enum bag_row_format format,
                           struct bag_problem *problem);

/* ---- projections ----------------------------------------------------------------------------- */

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
