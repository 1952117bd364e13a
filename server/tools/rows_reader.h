/* The rows and keys of a table, block by block, wherever they lie: for commands that read tables
 * larger than memory. One reader serves several threads. */
#ifndef BAG_TOOLS_ROWS_READER_H
#define BAG_TOOLS_ROWS_READER_H

#include "server/table/source.h"

struct bag_rows_reader {
    const struct bag_source *source; /* borrowed; of a table that is read from files */
    size_t num_rows, row_bytes;      /* of the table, as the kernels would see it */
    int *files, *key_files;          /* owned descriptors, as many as the source has files */
};

/* Opens the files again. False with the problem set; then nothing is due. */
bool bag_rows_reader_open(struct bag_rows_reader *reader, const struct bag_source *source,
                          struct bag_problem *problem);

void bag_rows_reader_close(struct bag_rows_reader *reader);

/* Whether no file has changed since the source was opened. */
bool bag_rows_reader_check(const struct bag_rows_reader *reader, struct bag_problem *problem);

/* Reads `count` rows from `first` on, in C order and the machine's byte order. `scratch` has as
 * many bytes as `rows`. */
bool bag_rows_read(const struct bag_rows_reader *reader, size_t first, size_t count, void *rows,
                   void *scratch, struct bag_problem *problem);

/* Reads the 64-bit keys of those rows, likewise. */
bool bag_rows_read_keys(const struct bag_rows_reader *reader, size_t first, size_t count,
                        uint64_t *keys, void *scratch, struct bag_problem *problem);

#endif
