/* The rows and keys of a table in files, block by block.
 *
 * For commands that read tables larger than memory: a source is opened as the server does, and its
 * rows are read from any position, whatever the files' format and order. Several threads may read
 * by one reader. */
#pragma once

#include "source.h"

struct bag_rows_reader {
    const struct bag_source *source; /* borrowed; open, with files */
    size_t num_rows, row_bytes;      /* size of the table for the kernels */
    struct bag_open_files files, keys, scales;
};

/* Opens the files again. On failure nothing stays open. Functions set problems of the kinds
 * BAG_ERROR_FILE and BAG_ERROR_NO_MEMORY. */
bool bag_rows_reader_open(struct bag_rows_reader *reader, const struct bag_source *source,
                          struct bag_problem *problem);

void bag_rows_reader_close(struct bag_rows_reader *reader);

/* Checks that all files are unchanged since the source was opened, and have the CRC-32 that they
 * state: the elements of files with one are read once more. */
bool bag_rows_reader_check(const struct bag_rows_reader *reader, struct bag_problem *problem);

/* Reads `count` rows from `first` on, in C order and the machine's byte order. */
bool bag_rows_read(const struct bag_rows_reader *reader, size_t first, size_t count, void *rows,
                   struct bag_problem *problem);

/* Reads the 64-bit keys of these rows. */
static inline bool bag_rows_read_keys(const struct bag_rows_reader *reader, size_t first,
                                      size_t count, uint64_t *keys, struct bag_problem *problem)
{
    return bag_open_files_read(&reader->keys, first, count, keys, problem);
}

/* Converts a row of floats to FP32. FP64 elements are rounded. */
void bag_row_to_floats(const struct bag_table *table, const void *row, float *values);

/* Returns one element of a row exactly, also of FP64. `values` are those of bag_row_to_floats. */
double bag_row_value(const struct bag_table *table, const void *row, const float *values,
                     size_t column);
