/* Parts of tables: what a server keeps of a table that is divided over several.
 *
 * A model whose configuration has "part" (0 of 4, by rows, say) keeps one part of its table. Its
 * files are those of the whole table, and so are the ids in its requests; clients and coordinators
 * need not know where rows are in memory. Three files tell how that works:
 *
 *   kernels/part.h    the arithmetic, which every server and client must agree on: where a range of
 *                     rows or columns begins, and to which part a key belongs
 *   memory.h          what a part is in memory: struct bag_table_memory's second half, and
 *                     bag_table_owns
 *   this header       how a part is described from its files, and read
 *
 * By columns. Every part has all rows, and a range of their columns. Rows are read in blocks, and
 * the part's columns are cut out of each (bag_part_cut_rows); quantised rows keep their scale and
 * bias.
 *
 * By rows. A dense table's rows are a contiguous range, so the part is read as a table of its own:
 * its files are cut to the range (bag_npy_slice). If the default row for empty bags belongs to
 * another part, a copy of it follows the part's rows.
 *
 * By keys. The row of a key belongs to part bag_part_of_key, so a part's rows are scattered over
 * the files. In addition the part has the row of the default key and the first hash_rows rows,
 * which stand in for missing keys on every server. Its rows keep the order of the files. Finding
 * them means reading all keys, which may be more than fit in memory: nothing is kept of them except
 * how many of the part's rows there are before each block of 16,384 (struct bag_part_rows). A block
 * is read again when its rows are needed: its keys tell which rows are the part's, and the count
 * before it is their position in the part. So rows are found twice, once for the index of keys and
 * once when the elements are read, by several threads and in any order. A mapped part by keys
 * leaves its rows in the file of the whole table; its index then holds file rows (bag_keys.rows).
 *
 * Memory is counted before anything is read. A part by keys counts the mean number of rows plus six
 * standard deviations, and the rows for missing keys. Keys may have been chosen to belong to one
 * part: if more are found, the memory is checked again before it is taken.
 *
 * Digest. Parts of the same dump on different servers must not be merged with parts of another
 * dump. bag_source_digest samples the files of the whole table, so that it is equal for copies of
 * them on any machine, and a coordinator compares it.
 *
 * All functions are called by the thread that changes the tables. They start threads to build an
 * index and to read; these threads read keys at the same time, by the same descriptors. */
#pragma once

#include "source.h"

/* Sets source->own, max_rows and default_file from the configuration, and cuts the files of a part
 * by rows, once the rules of the model itself are complete. Returns false and sets *problem
 * (BAG_ERROR_CONFIGURATION) if the table cannot be divided in this way. */
bool bag_source_describe_own(struct bag_source *source, struct bag_problem *problem);

/* Returns false and sets *problem (BAG_ERROR_CONFIGURATION) if the part lacks rows that the feature
 * needs: a default row or rows for missing keys. */
bool bag_source_check_feature_part(const struct bag_feature_source *feature, const char *what,
                                   struct bag_problem *problem);

/* Sets *digest, never to 0, from samples of the rows and keys. Fails with BAG_ERROR_FILE or
 * BAG_ERROR_NO_MEMORY. */
bool bag_source_digest(const struct bag_source *source, uint64_t *digest,
                       struct bag_problem *problem);

/* ---- a part by keys -------------------------------------------------------------------------- */

/* The rows of a part by keys. */
struct bag_part_rows {
    struct bag_open_files keys;
    const struct bag_table_memory *part; /* borrowed; says which part */
    size_t num_rows;                     /* rows of the whole table */
    size_t count;                        /* rows of the part */
    uint64_t *before;                    /* owned; rows of the part before each block of rows */
};

/* Reads all keys to find the part's rows. Returns false and sets *problem if the files changed
 * (BAG_ERROR_FILE) or without memory. On failure nothing stays. */
bool bag_part_rows_find(const struct bag_source *source, struct bag_part_rows *rows,
                        struct bag_problem *problem);

/* Closes the files of keys and frees the counts. */
void bag_part_rows_free(struct bag_part_rows *rows);

/* Builds the index of the keys of the part's rows. If the source is mapped, the index has their
 * rows in the file; otherwise the part's rows are counted from 0. Fails as bag_keys_index_build
 * does, or with BAG_ERROR_FILE if the keys changed since the rows were counted. */
bool bag_part_rows_index(const struct bag_part_rows *rows, const struct bag_source *source,
                         const struct bag_load_options *options, struct bag_keys_index *index,
                         struct bag_problem *problem);

/* ---- reading --------------------------------------------------------------------------------- */

/* Reads the rows of a part. `kept` are the rows of a part by keys, else NULL. *memory is described
 * as source->own; on failure nothing stays allocated. */
bool bag_part_read(const struct bag_source *source, const struct bag_part_rows *kept,
                   const struct bag_load_options *options, struct bag_table_memory *memory,
                   struct bag_problem *problem);
