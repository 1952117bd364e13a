/* Reading the elements of a file, by several threads and in large tiles.
 *
 * The calling thread starts the readers, reports their progress, and joins them before the function
 * returns. Readers share one rate limit. */
#pragma once

#include "file.h"

#include <stdatomic.h>

/* How a table is loaded while others are served. Zeros: by one thread, at any rate, silently. */
struct bag_load_options {
    unsigned threads;             /* number of readers; 0 counts as 1 */
    uint64_t bytes_per_second;    /* limit for all readers together; 0: none */
    const atomic_bool *cancelled; /* set by any thread: reading fails soon; NULL: never */
    /* Called on the loading thread with the number of bytes that were read since the last call. The
     * numbers of a table that was loaded add up to bag_source_read_bytes. NULL: not wanted. */
    void (*progress)(void *context, size_t bytes);
    void *context; /* context of `progress` */
};

static inline void bag_load_progress(const struct bag_load_options *options, size_t bytes)
{
    if (options->progress)
        options->progress(options->context, bytes);
}

/* Takes whole rows, as the table has them, in place of memory for all of them. */
struct bag_rows_sink {
    /* Called by several threads at once, once for each row. */
    bool (*put)(void *context, size_t first_row, size_t num_rows, const unsigned char *rows,
                struct bag_problem *problem);
    void *context;
    size_t max_rows; /* maximum of one call */
};

/* Reads all elements of a file into `rows`, which has npy.data_bytes bytes, or through the sink if
 * it is not NULL. Compares the CRC-32 if the file states one. Returns false and sets *problem if
 * reading fails or the file changed since it was checked (BAG_ERROR_FILE), if it was cancelled
 * (BAG_ERROR_DRAINING), without memory (BAG_ERROR_NO_MEMORY), or if the sink fails. */
bool bag_file_load(const struct bag_table_file *file, const struct bag_load_options *options,
                   void *rows, const struct bag_rows_sink *sink, struct bag_problem *problem);
