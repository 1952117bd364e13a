/* Places the elements of a file into a row-major table, with conversion of byte order and order of
 * axes; see formats.h. Elements are accessed by memcpy, because neither side need be aligned. */
#include "formats.h"

#include <string.h>

/* The number of bytes of a column that are moved at a time: a cache line. The cache lines to which
 * the pieces of neighbouring columns go are then still in the cache. */
#define PIECE_BYTES 64

/* ---- sizes ----------------------------------------------------------------------------------- */

/* The products cannot overflow, even if a dimension is zero. Products that a reader computes later
 * cannot overflow either. */
bool bag_npy_describe(enum bag_dtype dtype, uint32_t rank, const int64_t *shape, size_t data_offset,
                      struct bag_npy *npy, struct bag_problem *problem)
{
    size_t nonzero = 1, end;
    bool overflow = false;
    *npy = (struct bag_npy){.dtype = dtype, .rank = rank, .data_offset = data_offset};
    memcpy(npy->shape, shape, rank * sizeof *shape);
    npy->count = npy->row_elements = npy->num_columns = 1;
    for (uint32_t axis = 0; axis < rank; axis++) {
        size_t dimension = (size_t)shape[axis];
        overflow |= __builtin_mul_overflow(nonzero, dimension ? dimension : 1, &nonzero);
        npy->count *= dimension;
        npy->row_elements *= axis ? dimension : 1;
    }
    overflow |= __builtin_mul_overflow(nonzero, bag_dtypes[dtype].bytes, &end);
    overflow |= __builtin_add_overflow(end, data_offset, &end) || end > PTRDIFF_MAX;
    if (overflow)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "the shape is too large: the bytes of its elements pass 2^63 - 1");
    npy->data_bytes = npy->count * bag_dtypes[dtype].bytes;
    npy->column_elements = npy->column_stride = npy->count;
    return true;
}

void bag_npy_slice(struct bag_npy *npy, size_t first_row, size_t num_rows)
{
    size_t bytes = bag_dtypes[npy->dtype].bytes;
    size_t in_column = npy->fortran_order ? 1 : npy->row_elements;
    npy->shape[0] = (int64_t)num_rows;
    npy->count = num_rows * npy->row_elements;
    npy->column_elements = num_rows * in_column;
    npy->data_offset += first_row * in_column * bytes;
    npy->data_bytes = npy->count * bytes;
}

bool bag_npy_is_plain(const struct bag_npy *npy)
{
    return !npy->swap && !npy->fortran_order;
}

/* ---- runs of elements ------------------------------------------------------------------------ */

typedef void place_run(const unsigned char *from, size_t count, unsigned char *to,
                       size_t stride_bytes);

/* X(bits of an element, function that swaps its bytes) */
#define NPY_SIZES(X)         \
    X(8, )                   \
    X(16, __builtin_bswap16) \
    X(32, __builtin_bswap32) \
    X(64, __builtin_bswap64)

/* Moves `count` adjacent elements to positions that are `stride_bytes` apart. */
#define BAG_X(bits, turn)                                                               \
    static void copy_##bits(const unsigned char *from, size_t count, unsigned char *to, \
                            size_t stride_bytes)                                        \
    {                                                                                   \
        for (size_t i = 0; i < count; i++)                                              \
            memcpy(to + i * stride_bytes, from + i * (bits / 8), bits / 8);             \
    }                                                                                   \
    static void swap_##bits(const unsigned char *from, size_t count, unsigned char *to, \
                            size_t stride_bytes)                                        \
    {                                                                                   \
        for (size_t i = 0; i < count; i++) {                                            \
            uint##bits##_t element;                                                     \
            memcpy(&element, from + i * (bits / 8), sizeof element);                    \
            element = turn(element);                                                    \
            memcpy(to + i * stride_bytes, &element, sizeof element);                    \
        }                                                                               \
    }
NPY_SIZES(BAG_X)
#undef BAG_X

/* Returns the function that moves elements of this size and byte order. */
static place_run *choose_run(const struct bag_npy *npy)
{
    switch (bag_dtypes[npy->dtype].bytes * 8) {
#define BAG_X(bits, turn) \
    case bits:            \
        return npy->swap ? swap_##bits : copy_##bits;
        NPY_SIZES(BAG_X)
#undef BAG_X
    }
    return NULL; /* not reached: a table's elements have one of these sizes */
}

/* ---- columns of a column-major file ---------------------------------------------------------- */

/* The element of a row that a column holds. The second axis runs fastest in the file, the last one
 * in the row. */
struct column {
    size_t index[BAG_MAX_RANK];  /* index[0] is unused */
    size_t stride[BAG_MAX_RANK]; /* distance of each axis within a row, in elements */
    size_t element;              /* sum of index * stride */
};

/* Sets *found to a column of the file by its number. */
static void column_find(const struct bag_npy *npy, size_t column, struct column *found)
{
    size_t stride = 1;
    for (uint32_t axis = npy->rank; axis-- > 1;) {
        found->stride[axis] = stride;
        stride *= (size_t)npy->shape[axis];
    }
    found->element = 0;
    for (uint32_t axis = 1; axis < npy->rank; axis++) {
        found->index[axis] = column % (size_t)npy->shape[axis];
        column /= (size_t)npy->shape[axis];
        found->element += found->index[axis] * found->stride[axis];
    }
}

/* Moves to the next column of the file: increments the second axis, with a carry to the third, and
 * so on. */
static void column_next(const struct bag_npy *npy, struct column *column)
{
    for (uint32_t axis = 1; axis < npy->rank; axis++) {
        column->element += column->stride[axis];
        if (++column->index[axis] < (size_t)npy->shape[axis])
            return;
        column->element -= column->index[axis] * column->stride[axis];
        column->index[axis] = 0;
    }
}

/* Transposes a tile. All columns of a piece of rows are moved before the next piece, so that the
 * rows of the piece stay in the cache while they are filled. */
static void place_columns(const struct bag_npy *npy, struct bag_npy_tile tile,
                          const unsigned char *block, unsigned char *rows)
{
    size_t bytes = bag_dtypes[npy->dtype].bytes;
    size_t row_bytes = npy->row_elements * bytes;
    place_run *run = choose_run(npy);
    struct column first, column;
    column_find(npy, tile.first_column, &first);
    for (size_t done = 0, piece; done < tile.count; done += piece) {
        piece = PIECE_BYTES / bytes;
        if (piece > tile.count - done)
            piece = tile.count - done;
        column = first;
        for (size_t i = 0; i < tile.num_columns; i++) {
            run(block + (i * tile.count + done) * bytes, piece,
                rows + (tile.first + done) * row_bytes + column.element * bytes, row_bytes);
            column_next(npy, &column);
        }
    }
}

void bag_npy_place(const struct bag_npy *npy, struct bag_npy_tile tile, const void *block,
                   void *rows)
{
    size_t bytes = bag_dtypes[npy->dtype].bytes;
    if (tile.num_columns == 0 || tile.count == 0)
        return;
    if (npy->fortran_order)
        place_columns(npy, tile, block, rows);
    else if (npy->swap)
        choose_run(npy)(block, tile.count, (unsigned char *)rows + tile.first * bytes, bytes);
    else
        memcpy((unsigned char *)rows + tile.first * bytes, block, tile.count * bytes);
}
