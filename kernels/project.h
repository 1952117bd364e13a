/* Projections: pooled rows times a matrix, plus a bias.
 *
 * Summing commutes with the projection. A table of low rank can therefore be stored as its narrow
 * factor, and tables of several widths can be projected to one width. The bits of a product may
 * depend on how many rows are multiplied together; those of the pooled rows do not. */
#pragma once

#include "bag.h"

/* Adds a [m, k] times b [k, n] to c [m, n]. All are row-major without gaps. */
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

/* Writes `count` rows of a product as elements of `dtype` (BAG_F16, BAG_BF16 or BAG_F32). The rows
 * are `stride` bytes apart from `out` on, at any alignment. */
void bag_project_store(const float *product, size_t count, size_t columns, enum bag_dtype dtype,
                       char *out, size_t stride);
