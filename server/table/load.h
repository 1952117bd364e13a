/* Table files -> memory that the kernels read.
 *
 * A table is copied into private anonymous memory (64-byte aligned, huge pages asked for), so the
 * file may be replaced, truncated or removed afterwards; or it stays in its file (map.h). Called
 * from any one thread at a time; the readers that it starts are joined before it returns. */
#ifndef BAG_TABLE_LOAD_H
#define BAG_TABLE_LOAD_H

#include "kernels/pool.h"
#include "keys_index.h"
#include "proto/npy.h"

#include <stdatomic.h>
#include <time.h>

/* A table file whose header is valid and whose size is right. */
struct bag_table_file {
    const char *path; /* borrowed */
    struct bag_npy npy;
    enum bag_row_format row_format; /* that the file says; else PLAIN */
    size_t row_elements;            /* that the file says; else 0 */
    /* Which file that was, in which state. */
    uint64_t device, inode, bytes;
    struct timespec modified;
    uint64_t
        updates_through; /* the last update of rows that it says it includes; 0: it says none */
};

/* Opens the file, reads its header, compares the file's size with it. Rejects missing, unreadable,
 * truncated, oversized and irregular files, wrong types, and scalars. `override_dtype` as in
 * bag_npy_parse. Reads no elements. */
bool bag_table_file_open(const char *path, enum bag_dtype override_dtype,
                         struct bag_table_file *file, struct bag_problem *problem);

/* The same of a tensor in a safetensors file. */
bool bag_table_tensor_open(const char *path, const char *tensor, struct bag_table_file *file,
                           struct bag_problem *problem);

/* The same of an array in an .npz file; `override_dtype` as above. */
bool bag_table_member_open(const char *path, const char *member, enum bag_dtype override_dtype,
                           struct bag_table_file *file, struct bag_problem *problem);

/* The same of a file without a header: little-endian elements in C order. The first of the `rank`
 * dimensions may be -1, for as many as the file holds. */
bool bag_table_raw_open(const char *path, enum bag_dtype dtype, uint32_t rank, const int64_t *shape,
                        struct bag_table_file *file, struct bag_problem *problem);

/* Bytes of memory that the table will take. */
size_t bag_table_file_bytes(const struct bag_table_file *file);

struct bag_live_rows;

/* A loaded table with its whole shape. */
struct bag_table_memory {
    struct bag_table table;
    uint32_t rank;
    int64_t shape[BAG_MAX_RANK];
    void *mapping; /* owned; NULL for a table without elements, or in its file */
    size_t mapping_bytes;
    size_t spare_rows;           /* behind the table's own, of zeros, for keys that are to come */
    struct bag_map *map;         /* owned; of a table in its file, which nobody may write to */
    struct bag_keys_index index; /* owned; no lines: a dense table */
    enum bag_dtype keys_dtype;   /* of the keys' file: I64 or U64 */
    struct bag_live_rows *live;  /* owned by its stream (updates.h); NULL: rows never change */
};

/* Bytes of its rows, and of its index of keys. */
static inline size_t bag_table_memory_bytes(const struct bag_table_memory *memory)
{
    return (size_t)memory->table.num_rows * bag_row_bytes(&memory->table) +
           memory->index.mapping_bytes;
}

static inline bool bag_table_is_keyed(const struct bag_table_memory *memory)
{
    return memory->index.keys.lines != NULL;
}

/* Reads the table with `threads` readers (at least 1) in large blocks. On failure nothing stays
 * allocated and *problem names the file and the reason; a file that was replaced or written to
 * since bag_table_file_open, or while it is read, is one. `progress` may be NULL. */
bool bag_table_load(const struct bag_table_file *file, unsigned threads,
                    bag_load_progress *progress, void *context, struct bag_table_memory *memory,
                    struct bag_problem *problem);

/* How a table is read while others are served. */
struct bag_load_options {
    unsigned threads;             /* that read; at least 1 */
    uint64_t bytes_per_second;    /* that all of them read; 0: any */
    const atomic_bool *cancelled; /* set by any thread: reading fails soon; NULL: never */
    bag_load_progress *progress;  /* NULL: nobody is told */
    void *context;                /* its */
};

/* The same of a table in several files, whose rows follow each other; all have rows of one type and
 * shape. Behind them there is room for `spare_rows` more. */
bool bag_table_load_parts(const struct bag_table_file *files, size_t count, size_t spare_rows,
                          const struct bag_load_options *options, struct bag_table_memory *memory,
                          struct bag_problem *problem);

/* Builds memory->index of the keys in those files, I64 or U64 of 1 dimension, together as many as
 * the table has rows, with room for memory->spare_rows more. On failure the table stays, dense. */
bool bag_table_load_keys(const struct bag_table_file *files, size_t count, unsigned threads,
                         bag_load_progress *progress, void *context,
                         struct bag_table_memory *memory, struct bag_problem *problem);

/* Memory for a table that is made, not read; zeroed. `shape` has `rank` dimensions, rank >= 1. */
bool bag_table_create(enum bag_dtype dtype, uint32_t rank, const int64_t *shape,
                      struct bag_table_memory *memory, struct bag_problem *problem);

void bag_table_unload(struct bag_table_memory *memory);

/* A loaded projection with what it owns. */
struct bag_projection_memory {
    struct bag_projection projection;
    struct bag_table_memory matrix, bias;
};

/* Loads an FP32 matrix and, unless it is NULL, a bias of as many elements as the matrix has
 * columns. NULL with the problem set. */
struct bag_projection_memory *bag_projection_load(const struct bag_table_file *matrix,
                                                  const struct bag_table_file *bias,
                                                  bag_gemm_fn *gemm, struct bag_problem *problem);

/* NULL is ignored. */
void bag_projection_free(struct bag_projection_memory *memory);

#endif
