/* Projection: pooled rows times a matrix, and a bias.
 *
 * Summing commutes with it, so that a table of low rank can be kept as its narrow factor, and
 * tables of several widths can be brought to one. The product's bits may depend on how many rows
 * are multiplied at once; those of the pooled rows do not. */
#ifndef BAG_PROJECT_H
#define BAG_PROJECT_H

#include "bag.h"

/* Adds a [m, k] times b [k, n] to c [m, n]; all row by row, without gaps. */
typedef void bag_gemm_fn(size_t m, size_t n, size_t k, const float *a, const float *b, float *c);

struct bag_projection {
    const float *matrix; /* [rows, columns] */
    const float *bias;   /* [columns]; NULL: none */
    size_t rows, columns;
    bag_gemm_fn *gemm;
};

/* Projects `count` rows: `pooled` is [count, rows], `product` [count, columns]. */
void bag_project(const struct bag_projection *projection, const float *pooled, size_t count,
                 float *product);

/* Writes `count` rows of a product as elements of `dtype` (BAG_F16, BAG_BF16 or BAG_F32), one every
 * `stride` bytes from `out` on, at any alignment. */
void bag_project_store(const float *product, size_t count, size_t columns, enum bag_dtype dtype,
                       char *out, size_t stride);

#endif
