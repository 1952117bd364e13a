/* .npy files (NumPy's format, versions 1.0 to 3.0): header bytes -> description, and parts of the
 * file -> the table's layout.
 * Bytes come in as arguments; nothing is allocated. */
#ifndef BAG_NPY_H
#define BAG_NPY_H

#include "problem.h"

/* The longest header that is read, in bytes. NumPy itself stops at 10,000 characters. */
#define BAG_NPY_MAX_HEADER_BYTES (64 * 1024)

/* As many bytes tell how long the header is; no valid file is shorter. */
#define BAG_NPY_PREAMBLE_BYTES 12

/* The elements lie in the file column after column. A column-major file has one column for each
 * element of a row; every other file is taken as a single column of all elements. */
struct bag_npy {
    enum bag_dtype dtype;
    bool swap;          /* elements are big-endian */
    bool fortran_order; /* column-major, and rank above 1 */
    uint32_t rank;      /* 0 for a scalar */
    int64_t shape[BAG_MAX_RANK];
    size_t count;           /* product of the shape; does not overflow, nor does data_bytes */
    size_t row_elements;    /* product of the dimensions after the first, zeros included */
    size_t num_columns;     /* of the file, as said above */
    size_t column_elements; /* in each of them */
    size_t data_offset;     /* of the first element in the file */
    size_t data_bytes;
};

/* How many bytes bag_npy_parse needs to see, judged by the first `count` bytes of the file: magic,
 * version, header length and header. 0 where that is already wrong (bag_npy_parse says how). Give
 * at least BAG_NPY_PREAMBLE_BYTES, or the whole file where it is shorter. */
size_t bag_npy_header_bytes(const void *bytes, size_t count);

/* Reads the header from the first `count` bytes of the file. `override_dtype` is the dtype that the
 * configuration names for data the file cannot name (bf16 is stored as '<u2', '<i2' or '|V2'), or
 * BAG_DTYPE_COUNT to take the file's own; it must have the file's element size. Object, string,
 * structured, bool and complex arrays are rejected. On failure returns false; *problem says why. */
bool bag_npy_parse(const void *bytes, size_t count, enum bag_dtype override_dtype,
                   struct bag_npy *npy, struct bag_problem *problem);

/* Describes elements in C order and little-endian, which another format says are there; `shape` has
 * `rank` dimensions up to BAG_MAX_RANK, none negative. Rejects a shape that is too large. */
bool bag_npy_describe(enum bag_dtype dtype, uint32_t rank, const int64_t *shape, size_t data_offset,
                      struct bag_npy *npy, struct bag_problem *problem);

/* Whether the file's elements are in the order of the table's, so that they may be read into place.
 */
bool bag_npy_is_plain(const struct bag_npy *npy);

/* A part of the file: of columns [first_column, +num_columns) the elements [first, +count). */
struct bag_npy_tile {
    size_t first_column, num_columns;
    size_t first, count;
};

/* Puts a tile where it belongs in the row-major table `rows`, in the machine's byte order. `block`
 * holds the tile column after column, at any alignment. Distinct tiles may be placed by several
 * threads at once. */
void bag_npy_place(const struct bag_npy *npy, struct bag_npy_tile tile, const void *block,
                   void *rows);

#endif
