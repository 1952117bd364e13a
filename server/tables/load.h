/* Table files -> memory that the kernels read.
 *
 * A table is copied into private anonymous memory (64-byte aligned, huge pages asked for), so the
 * file may be replaced, truncated or removed afterwards; or it stays in its file, mapped. Called
 * from any one thread at a time; the readers that it starts are joined before it returns. */
#ifndef BAG_TABLES_LOAD_H
#define BAG_TABLES_LOAD_H

#include "kernels/keys.h"
#include "kernels/part.h"
#include "kernels/pool.h"
#include "proto/formats.h"
#include "proto/problem.h"

#include <stdatomic.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>

/* How a table is read, while others may be served. Zeros: by one thread, quietly. */
struct bag_load_options {
    unsigned threads;             /* that read; at least 1, whatever is said */
    uint64_t bytes_per_second;    /* that all of them read of elements; 0: any */
    const atomic_bool *cancelled; /* set by any thread: reading fails soon; NULL: never */
    /* Told on the loading thread of bytes that were read since it was told last: together all bytes
     * of a table that was loaded. NULL: not wanted. */
    void (*progress)(void *context, size_t bytes);
    void *context; /* its */
};

static inline void bag_load_tell(const struct bag_load_options *options, size_t bytes)
{
    if (options->progress)
        options->progress(options->context, bytes);
}

/* ---- the index of keys (keys_index.c) -------------------------------------------------------- */

/* The index of a keyed table: memory for kernels/keys.h, filled by several threads.
 *
 * Keys are read in pieces and go straight to their places: beside the index itself a piece for each
 * thread is held, and the eighth of the keys that has no room at first, 2 bytes for each key.
 * Called from any one thread at a time; the builders that it starts are joined before it returns.
 */

struct bag_keys_index {
    struct bag_keys keys;
    size_t mapping_bytes; /* of the lines, and keys.rows after them, which are owned */
};

/* Where the keys come from. */
struct bag_keys_source {
    /* Puts `count` keys, those of rows first, first + 1, ..., into `keys`, and their rows in the
     * table, if these are others, into `rows`, unless that is NULL. Called by several threads at
     * once. */
    bool (*read)(void *context, size_t first, size_t count, uint64_t *keys, uint64_t *rows,
                 struct bag_problem *problem);
    void *context;
    size_t num_keys;
    bool is_signed;    /* how messages show a key */
    size_t spare_keys; /* that may be added later */
    bool keeps_rows;   /* the index says the table's rows, in keys.rows; there are no spare keys */
};

/* Returns the bytes of memory that an index of so many keys takes: at most 11 a key, and 1 KiB, and
 * 8 a key more if it keeps the table's rows. */
size_t bag_keys_index_bytes(size_t num_keys, bool keeps_rows);

/* Builds the index. Rejects a key that is duplicated, with the rows of the first such pair. On
 * failure nothing stays allocated. */
bool bag_keys_index_build(const struct bag_keys_source *source,
                          const struct bag_load_options *options, struct bag_keys_index *index,
                          struct bag_problem *problem);

/* Gives the memory back; an index of zeros is allowed. */
void bag_keys_index_free(struct bag_keys_index *index);

/* ---- tables ---------------------------------------------------------------------------------- */

/* A table file whose header is valid and whose size is right. */
struct bag_table_file {
    const char *path; /* borrowed */
    struct bag_npy npy;
    enum bag_row_format row_format; /* that the file says; else PLAIN */
    size_t row_elements;            /* that the file says; else 0 */
    bool has_crc32;                 /* the elements and what stands before them from there on: */
    uint64_t crc32_from;
    uint32_t crc32;
    /* Which file that was, in which state. */
    uint64_t device, inode, bytes;
    struct timespec modified;
    uint64_t updates_through; /* the last update of rows that it says it includes; 0: none */
    bool is_ordered;          /* it says that its rows were put in another order, ... */
    uint64_t fixed_rows;      /* but for so many, the first */
    bool has_notes;           /* it is a safetensors file: bag_file_read_notes */
};

/* What __metadata__ of a safetensors file says that struct bag_table_file keeps. */
#define BAG_NOTE_UPDATES_THROUGH "updates_through"
#define BAG_NOTE_FIXED_ROWS      "fixed_rows"

/* Opens the file, reads its header, compares the file's size with it. Rejects missing, unreadable,
 * truncated, oversized and irregular files, wrong types, and scalars. `override_dtype` as in
 * bag_npy_parse. Reads no elements. */
bool bag_table_file_open(const char *path, enum bag_dtype override_dtype,
                         struct bag_table_file *file, struct bag_problem *problem);

/* The same of a file without a header: little-endian elements in C order. The first of the `rank`
 * dimensions may be -1, for as many as the file holds. */
bool bag_table_raw_open(const char *path, enum bag_dtype dtype, uint32_t rank, const int64_t *shape,
                        struct bag_table_file *file, struct bag_problem *problem);

/* Whether those files are still as they were, and have the CRC-32 that they say, where they say
 * one: their elements are read for it. */
bool bag_table_files_check(const struct bag_table_file *files, size_t count,
                           struct bag_problem *problem);

/* Bytes of memory that the table will take. */
size_t bag_table_file_bytes(const struct bag_table_file *file);

struct bag_live_rows;
struct bag_remote;

/* A loaded table with its whole shape. */
struct bag_table_memory {
    struct bag_table table;
    uint32_t rank;
    int64_t shape[BAG_MAX_RANK];
    void *mapping; /* owned; NULL for a table without elements, or in its file */
    size_t mapping_bytes;
    size_t huge_bytes;           /* of it in huge pages when it was loaded */
    size_t spare_rows;           /* behind the table's own, of zeros, for keys that are to come */
    struct bag_map *map;         /* owned; of a table in its file, which nobody may write to */
    struct bag_keys_index index; /* owned; no lines: a dense table */
    enum bag_dtype keys_dtype;   /* of the keys' file: I64 or U64 */
    struct bag_live_rows *live;  /* owned by its stream (updates.h); NULL: rows never change */
    struct bag_remote *remote;   /* owned; shards have the rows, and there are none here (remote.h);
                                    NULL: they are here */

    /* Which part of which table it is. Ids are those of the whole table everywhere but in `index`
     * and the kernels, whose rows are counted from 0 in this memory. */
    struct bag_part part;  /* of 0: all of it */
    uint64_t whole_rows;   /* of the whole table; likewise */
    size_t whole_elements; /* of a row of it */
    uint64_t digest;       /* of the files that the part was cut from; 0: the whole table */
    uint64_t first_row;    /* of a part by rows: its own shape[0] rows begin here, */
    size_t first_column;   /* of one by columns, the columns */
    bool keeps_default; /* by rows, or by keys: the row, or the key, `kept_default` is here even */
    int64_t kept_default; /* where it is of another part; of rows behind the part's own */
    int64_t kept_rows;    /* by keys: the first so many rows are here whatever their keys are */
};

static inline bool bag_table_is_part(const struct bag_table_memory *memory)
{
    return memory->part.of > 0;
}

/* Whether ids may be of other parts; every part by columns has all. */
static inline bool bag_table_divides_ids(const struct bag_table_memory *memory)
{
    return bag_table_is_part(memory) && memory->part.by != BAG_PART_COLUMNS;
}

/* The table as its ids are counted: of a part by rows it has all rows of the whole one. */
static inline struct bag_table bag_table_by_ids(const struct bag_table_memory *memory)
{
    struct bag_table table = memory->table;
    if (bag_table_is_part(memory) && memory->part.by == BAG_PART_ROWS)
        table.num_rows = (int64_t)memory->whole_rows;
    return table;
}

/* Whether a row, or a key, of the whole table is the part's own: its ids, and its updates, are for
 * no other. Every part by columns has all. */
static inline bool bag_table_owns(const struct bag_table_memory *memory, uint64_t id)
{
    if (!bag_table_is_part(memory) || memory->part.by == BAG_PART_COLUMNS)
        return true;
    if (memory->part.by == BAG_PART_KEYS)
        return bag_part_of_key(id, memory->part.of) == memory->part.index;
    return id - memory->first_row < (uint64_t)memory->shape[0];
}

/* Where a row of a dense table is in this memory; -1 where it is not. */
static inline int64_t bag_table_local_row(const struct bag_table_memory *memory, uint64_t row)
{
    uint64_t local = row - memory->first_row;
    if (local < (uint64_t)memory->shape[0])
        return (int64_t)local;
    return memory->keeps_default && row == (uint64_t)memory->kept_default ? memory->shape[0] : -1;
}

static inline size_t bag_table_rows_bytes(const struct bag_table_memory *memory)
{
    return (size_t)memory->table.num_rows * bag_row_bytes(&memory->table);
}

/* With its index of keys. */
static inline size_t bag_table_memory_bytes(const struct bag_table_memory *memory)
{
    return bag_table_rows_bytes(memory) + memory->index.mapping_bytes;
}

static inline bool bag_table_is_keyed(const struct bag_table_memory *memory)
{
    return memory->index.keys.lines != NULL;
}

/* Reads the table in large blocks, from one file or several, whose rows, of one type and shape,
 * follow each other; behind them there is room for `spare_rows` more. On failure nothing stays
 * allocated and *problem names the file and the reason; a file that was replaced or written to
 * since bag_table_file_open, or while it is read, is one. */
bool bag_table_load(const struct bag_table_file *files, size_t count, size_t spare_rows,
                    const struct bag_load_options *options, struct bag_table_memory *memory,
                    struct bag_problem *problem);

/* ---- rows of a part by keys (keys_part.c) ----------------------------------------------------
 */

/* Files whose keys follow each other, all open. */
struct bag_key_files {
    const struct bag_table_file *files; /* borrowed */
    int *fds;                           /* owned */
    size_t count;
};

/* On failure nothing stays open. */
bool bag_key_files_open(const struct bag_table_file *files, size_t count,
                        struct bag_key_files *opened, struct bag_problem *problem);
void bag_key_files_close(struct bag_key_files *opened);

/* Reads `count` keys, those of rows first, first + 1, ..., of all files. Any thread. */
bool bag_key_files_read(const struct bag_key_files *opened, size_t first, size_t count,
                        uint64_t *keys, struct bag_problem *problem);

/* Builds memory->index of what the source reads from those files, whose type and spare keys it
 * takes; afterwards they must be as they were. */
bool bag_keys_index_of_files(const struct bag_keys_source *source,
                             const struct bag_key_files *files,
                             const struct bag_load_options *options,
                             struct bag_table_memory *memory, struct bag_problem *problem);

/* Which rows of a keyed table a part by keys has: those of its own keys, the first kept_rows, and
 * that of the kept default. They stay in their order. */
struct bag_part_rows {
    struct bag_key_files keys;
    const struct bag_table_memory *part; /* borrowed; says which part it is */
    size_t num_rows;                     /* of the whole table */
    size_t count;                        /* of them, that the part has */
    uint64_t *before;                    /* owned; of each block of rows, how many are before it */
};

#define BAG_PART_BLOCK_ROWS ((size_t)16 << 10)

/* Reads all keys to find them. On failure nothing stays. */
bool bag_part_rows_find(const struct bag_table_file *key_files, size_t count,
                        const struct bag_table_memory *part, struct bag_part_rows *rows,
                        struct bag_problem *problem);
void bag_part_rows_free(struct bag_part_rows *rows);

/* Room for the keys of up to BAG_PART_BLOCK_ROWS rows, and those that are the part's. */
struct bag_part_selection {
    uint64_t keys[2 * BAG_PART_BLOCK_ROWS];
    uint32_t rows[BAG_PART_BLOCK_ROWS]; /* set: of the range's rows the part's, counted from 0 */
    size_t count;                       /* set: how many */
    size_t before;                      /* set: rows of the part before them */
};

/* Which of `count` rows from `first` on are the part's. Any thread. */
bool bag_part_rows_select(const struct bag_part_rows *rows, size_t first, size_t count,
                          struct bag_part_selection *selection, struct bag_problem *problem);

/* Builds memory->index of the keys of the part's rows, as bag_table_load_keys does. `stay`: the
 * rows stay in their file, and the index says which they are there; otherwise the part's rows are
 * counted from 0. */
bool bag_part_rows_index(const struct bag_part_rows *rows, bool stay,
                         const struct bag_load_options *options, struct bag_table_memory *memory,
                         struct bag_problem *problem);

/* Builds memory->index of the keys in those files, I64 or U64 of 1 dimension, together as many as
 * the table has rows, with room for memory->spare_rows more. On failure the table stays, dense. */
bool bag_table_load_keys(const struct bag_table_file *files, size_t count,
                         const struct bag_load_options *options, struct bag_table_memory *memory,
                         struct bag_problem *problem);

/* Memory for a table that is made, not read; zeroed. `shape` has `rank` dimensions, rank >= 1. */
bool bag_table_create(enum bag_dtype dtype, uint32_t rank, const int64_t *shape,
                      struct bag_table_memory *memory, struct bag_problem *problem);

void bag_table_unload(struct bag_table_memory *memory);

/* A stored table: the memory of one, and of which files it is. Models are rules over it: several
 * may read one. Held and dropped by the thread that changes the tables. */
struct bag_stored_table {
    struct bag_table_memory memory;
    uint64_t fingerprint; /* of its files and how they are read; 0: nobody looks for it */
    size_t holders;
};

/* Takes over the memory; the caller holds it. NULL without memory: then it stays the caller's. */
struct bag_stored_table *bag_stored_table_make(const struct bag_table_memory *memory,
                                               uint64_t fingerprint);

/* The caller no longer holds it: the last one unloads it. NULL is ignored. */
void bag_stored_table_drop(struct bag_stored_table *table);

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

/* ---- files: private to server/tables (file.c, archive.c) --------------------------------------
 */

/* Opening and re-opening table files. Private to server/tables. */

/* Sets all of *memory: a table of that type and shape, whose rows are there and not owned. */
void bag_table_describe(enum bag_dtype dtype, uint32_t rank, const int64_t *shape,
                        size_t row_elements, const void *rows, struct bag_table_memory *memory);

/* Puts the file's path in front of a problem; returns false. */
bool bag_file_reject(const char *path, struct bag_problem *problem);

/* Memory for the rows of a table that is described, and spare ones; nothing else is set. */
bool bag_table_allocate(struct bag_table_memory *memory, struct bag_problem *problem);

/* Says in the log how much of a large table's memory is in huge pages, and keeps it. */
void bag_table_log_pages(const char *path, struct bag_table_memory *memory);

/* Where rows go that are not read into place: row after row as the table has them. Called by
 * several threads at once, for each row once. */
struct bag_rows_sink {
    bool (*put)(void *context, size_t first_row, size_t num_rows, const unsigned char *rows,
                struct bag_problem *problem);
    void *context;
    size_t most_rows; /* that one call takes */
};

/* Reads all elements into `rows`, which has npy->data_bytes, or through the sink where that is not
 * NULL. Progress is told on the caller's own thread. *crc32 gets the XOR of bag_npz_crc32_part of
 * all; NULL: not wanted (read.c). */
bool bag_read_elements(int fd, const struct bag_npy *npy, const struct bag_load_options *options,
                       void *rows, const struct bag_rows_sink *sink, uint32_t *crc32,
                       struct bag_problem *problem);

/* The same of a file, and makes sure that nobody wrote to it before or meanwhile. */
bool bag_table_load_file(const struct bag_table_file *file, const struct bag_load_options *options,
                         void *rows, const struct bag_rows_sink *sink, struct bag_problem *problem);

/* Opens a file again that was checked before; -1 with the problem set where it is not as it was. */
int bag_file_reopen(const struct bag_table_file *file, struct bag_problem *problem);

/* Whether the open file is still as it was. */
bool bag_file_check_unchanged(const struct bag_table_file *file, int fd,
                              struct bag_problem *problem);

/* Keeps which file that is, in which state. */
void bag_file_remember(struct bag_table_file *file, const char *path, const struct stat *state);

/* Reads up to `bytes` at a place; returns how many there were, or -1 with the problem set. */
ssize_t bag_file_read_some(int fd, void *out, size_t bytes, uint64_t at,
                           struct bag_problem *problem);

/* Whether the elements give the CRC-32 that the file says, if it says one: `of_elements` is the XOR
 * of their parts (bag_npz_crc32_part). */
bool bag_file_check_crc32(const struct bag_table_file *file, int fd, uint32_t of_elements,
                          struct bag_problem *problem);

/* For files that were read by these descriptors: whether each is as it was when it was opened, and
 * has the CRC-32 that it says, where it says one: its elements are read once more. */
bool bag_files_check_read(const struct bag_table_file *files, const int *fds, size_t count,
                          struct bag_problem *problem);

/* Reads the header of the .npy array, or scalar, that stands in [begin, end) of the file. */
bool bag_file_read_npy(int fd, uint64_t begin, uint64_t end, enum bag_dtype override_dtype,
                       struct bag_npy *npy, struct bag_problem *problem);

/* Says that an array without dimensions is no table; returns false. */
bool bag_file_reject_scalar(struct bag_problem *problem);

/* Reads `bytes` at a place; fewer are a failure. */
bool bag_file_read_at(int fd, void *out, size_t bytes, uint64_t at, struct bag_problem *problem);

/* Names of the arrays of an archive, or of the tensors of an index of parts. */
struct bag_file_names {
    char **names;                 /* owned; in the file's order */
    char **sorted;                /* owned; the same ones */
    struct bag_table_file *files; /* owned; what each name is of, without a path: it cannot be
                                     pooled; NULL: of an index of parts */
    size_t count;
};
bool bag_file_list_index(const char *path, struct bag_file_names *names,
                         struct bag_problem *problem);
void bag_file_names_free(struct bag_file_names *names);

/* The name that is the first `bytes` of `base`, and the suffix; NULL: there is none. */
const char *bag_file_names_find(const struct bag_file_names *names, const char *base, size_t bytes,
                                const char *suffix);

/* An open archive of named arrays: a safetensors file, or, by its name, an .npz file. */
struct bag_archive {
    struct bag_table_file file; /* that holds them, without an array */
    bool is_npz;
    int fd;
    struct bag_safetensors tensors; /* its header, owned; */
    struct bag_npz npz;             /* or its directory, */
    void *directory;                /* owned */
};
bool bag_archive_open(const char *path, struct bag_archive *archive, struct bag_problem *problem);
void bag_archive_close(struct bag_archive *archive);

/* Lists its arrays. In any case bag_file_names_free is due. */
bool bag_archive_list(const struct bag_archive *archive, struct bag_file_names *names,
                      struct bag_problem *problem);

/* Opens one of them, a scalar, too; `override_dtype` is for .npz files, as in bag_npy_parse. Where
 * there is none of that name, *problem says which there are. */
bool bag_archive_array(const struct bag_archive *archive, const char *name,
                       enum bag_dtype override_dtype, struct bag_table_file *file,
                       struct bag_problem *problem);

/* All that __metadata__ of a file says; none where it has none. */
struct bag_file_notes {
    struct bag_safetensors_note *notes; /* owned; their texts are the header's */
    size_t count;
    struct bag_safetensors tensors; /* the header; owned */
};
bool bag_file_read_notes(const struct bag_table_file *file, struct bag_file_notes *notes,
                         struct bag_problem *problem);
void bag_file_notes_free(struct bag_file_notes *notes);

/* The file of a tensor by the index of files in parts, as a path the caller frees; NULL with the
 * problem set, where `names` is that of the index's tensors. */
char *bag_file_find_part(const char *index_path, const char *tensor, struct bag_problem *problem);

/* Says which names there are, where none was said; returns false. */
bool bag_file_reject_choice(const struct bag_file_names *names, struct bag_problem *problem);

#endif
