/* Multiplies pooled rows by a matrix with the caller's multiplication. */
#include "project.h"

#include "rowformat.h"

#include <string.h>

void bag_project(const struct bag_projection *projection, const float *pooled, size_t count,
                 float *product)
{
    size_t columns = projection->columns;
    if (count == 0 || columns == 0)
        return;
    if (!projection->bias)
        memset(product, 0, count * columns * sizeof *product);
    for (size_t i = 0; projection->bias && i < count; i++)
        memcpy(product + i * columns, projection->bias, columns * sizeof *product);
    if (projection->rows > 0)
        projection->gemm(count, columns, projection->rows, pooled, projection->matrix, product);
}

void bag_project_store(const float *product, size_t count, size_t columns, enum bag_dtype dtype,
                       char *out, size_t stride)
{
    for (size_t i = 0; i < count; i++)
        bag_elements_encode(product + i * columns, columns, dtype, out + i * stride);
}
