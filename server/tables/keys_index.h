/* The index of a keyed table: from 64-bit keys to rows.
 *
 * kernels/keys.h describes the layout (a hash table of 64-byte lines with seven keys each) and has
 * every operation on one key. It allocates nothing. This header adds what a loaded table needs:
 * memory for the lines, a random seed, and building by several threads from files that may be
 * larger than memory.
 *
 * Life of an index. bag_keys_index_build sizes the lines for all keys and the spare ones, maps
 * their memory, and draws a seed, so that no client can choose keys that collide. Each builder
 * thread then takes the next piece of 65,536 keys, reads it, and fills the keys whose home line has
 * room (bag_keys_fill, which needs no lock). The other keys, about one in eight, are kept in lists
 * until all pieces are done, and then inserted by the calling thread. If a key has no room within
 * the longest probe, everything starts again with another seed; with random seeds that practically
 * never happens; after four seeds building fails. Beside the index this takes one piece for each
 * thread and about 2 bytes for each key.
 *
 * Duplicates. A builder that meets a key twice stops all builders. Which pair it met depends on
 * timing, so the keys are added once more, in order and by one thread, and the message names the
 * first pair. The same files always give the same message.
 *
 * Rows. An index usually holds row numbers of the table in memory. A mapped part by keys is
 * different: its rows stay in the file of the whole table. To keep the index small, it numbers the
 * part's rows from 0, and the file's row of each follows the lines (bag_keys.rows). An index of
 * this kind never changes. In all others, live_rows.h adds and removes keys while it holds the
 * table's lock for writing, which keeps readers out.
 *
 * Threads. An index is built and freed by the thread that changes the tables. Readers are described
 * in kernels/keys.h. */
#pragma once

#include "kernels/keys.h"
#include "read.h"

/* An index and its memory. Zeros: there is none, as for a dense table. */
struct bag_keys_index {
    struct bag_keys keys; /* no lines: there is no index */
    size_t mapping_bytes; /* size of the lines and of keys.rows after them, which are owned */
};

/* Where the keys of an index come from. */
struct bag_keys_source {
    /* Sets `keys` to the keys of rows first, first + 1, ..., and `rows`, unless it is NULL, to
     * their rows in the table if the index counts them otherwise. Called by several threads at
     * once. */
    bool (*read)(void *context, size_t first, size_t count, uint64_t *keys, uint64_t *rows,
                 struct bag_problem *problem);
    void *context;
    size_t num_keys;
    bool is_signed;    /* messages show keys as signed numbers */
    size_t spare_keys; /* number of keys that may be added later */
    bool keeps_rows;   /* the index has the table's rows in keys.rows; needs spare_keys 0 */
};

/* Returns the memory that an index of this many keys takes: at most 11 bytes a key and 1 KiB, and 8
 * bytes a key more if it keeps the table's rows. */
size_t bag_keys_index_bytes(size_t num_keys, bool keeps_rows);

/* Builds an index. Returns false and sets *problem if that fails; nothing stays allocated then.
 *
 *   FILE       a key is duplicated, or there are too many keys
 *   INTERNAL   no seed spreads the keys evenly
 *   NO_MEMORY  there is not enough memory
 *   SYSTEM     the system gives no random numbers
 *   other      the source failed */
bool bag_keys_index_build(const struct bag_keys_source *source,
                          const struct bag_load_options *options, struct bag_keys_index *index,
                          struct bag_problem *problem);

/* Builds an index of the keys in open files, or of those that `source` chooses among them. Sets the
 * source's is_signed from the files. Checks afterwards that the files have not changed. */
bool bag_keys_index_of_files(const struct bag_keys_source *source,
                             const struct bag_open_files *files,
                             const struct bag_load_options *options, struct bag_keys_index *index,
                             struct bag_problem *problem);

/* Builds an index of all keys in the files: INT64 or UINT64 arrays of one dimension. */
bool bag_keys_index_load(const struct bag_table_file *files, size_t count, size_t spare_keys,
                         const struct bag_load_options *options, struct bag_keys_index *index,
                         struct bag_problem *problem);

/* Frees the memory. An index of zeros is allowed. */
void bag_keys_index_free(struct bag_keys_index *index);
