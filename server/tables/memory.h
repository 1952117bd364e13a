/* Tables in memory: rows that the kernels read, with what belongs to them.
 *
 * The rows of a table are in one of three places:
 *
 *   copied   in private anonymous memory, 64-byte aligned, in huge pages if the system has them.
 *            Their file may be replaced, truncated or removed afterwards.
 *   mapped   in their file (map.h)
 *   remote   on other servers, the shards (server/shards/remote.h)
 *
 * A table is described first: type, shape and part, without memory. Then its rows are allocated and
 * read, or mapped, and the index of its keys is built (load.c). If the server takes updates, the
 * rows become live (live_rows.h). bag_table_unload() frees everything.
 *
 * A stored table is a table in memory with the identity of its files. Models are rules over it, and
 * several models may share one. */
#pragma once

#include "kernels/part.h"
#include "kernels/table.h"
#include "keys_index.h"
#include "map.h"
#include "read.h"

struct bag_live_rows;
struct bag_remote;

/* The state of a delta folder at the last poll. The fingerprint changes when a file in the folder
 * does. */
struct bag_delta_state {
    uint64_t number, fingerprint;
};

/* The folder of deltas beside a table, as the last poll saw it (server/updates/deltas.c). Belongs
 * to the thread that changes the tables. */
struct bag_seen_deltas {
    struct bag_delta_state *waiting; /* owned; ascending; those that were not applied */
    size_t count;
    uint64_t awaited; /* number of the missing delta that was last logged; 0: none */
    uint64_t logged;  /* hash of the problem that was last logged; 0: none */
};

/* A table with its whole shape. Made and freed by the thread that changes the tables; any thread
 * may read it. */
struct bag_table_memory {
    struct bag_table table;
    uint32_t rank;
    int64_t shape[BAG_MAX_RANK];
    void *mapping; /* owned; NULL if there are no elements, or they are in a file */
    size_t mapping_bytes;
    size_t huge_bytes;   /* bytes of the mapping that were in huge pages when it was loaded */
    size_t spare_rows;   /* zeroed rows after the table's own, for keys that are added */
    struct bag_map *map; /* owned; the mapped file; NULL: the rows are in `mapping` */
    struct bag_keys_index index; /* owned; without lines: a dense table */
    enum bag_dtype keys_dtype;   /* INT64 or UINT64, as in the file of keys */
    struct bag_live_rows *live;  /* owned by its stream (updates.h); NULL: rows never change */
    struct bag_remote *remote;   /* owned; shards have the rows; NULL: they are here */
    struct bag_seen_deltas seen; /* owned */

    /* Which part of which table this is (part.h). Ids are those of the whole table everywhere
     * except in `index` and in the kernels, whose rows are counted from 0 in this memory. */
    struct bag_part part;  /* part.of is 0 for the whole table */
    uint64_t whole_rows;   /* rows of the whole table */
    size_t whole_elements; /* elements of a row of the whole table */
    uint64_t digest;       /* digest of the files from which the part was cut; 0: the whole table */
    uint64_t first_row;    /* by rows: the part has shape[0] rows from this one on */
    size_t first_column; /* by columns: the part has table.row_elements columns from this one on */
    bool keeps_default;  /* by rows or keys: the row or key `kept_default` is here even if it
                            belongs to another part; such a row follows the part's own */
    int64_t kept_default;
    int64_t kept_rows; /* by keys: this many rows from the first are here whatever their keys */
};

/* ---- questions ------------------------------------------------------------------------------- */

/* Returns whether this is a part of a table whose other parts other servers have. */
static inline bool bag_table_is_part(const struct bag_table_memory *memory)
{
    return memory->part.of > 0;
}

/* Returns whether ids may belong to other parts. A part by columns has all ids. */
static inline bool bag_table_divides_ids(const struct bag_table_memory *memory)
{
    return bag_table_is_part(memory) && memory->part.by != BAG_PART_COLUMNS;
}

/* Returns the table as its ids are counted: a part by rows gets the rows of the whole table. */
static inline struct bag_table bag_table_by_ids(const struct bag_table_memory *memory)
{
    struct bag_table table = memory->table;
    if (bag_table_is_part(memory) && memory->part.by == BAG_PART_ROWS)
        table.num_rows = (int64_t)memory->whole_rows;
    return table;
}

/* Returns whether a row or key of the whole table belongs to this part and to no other. A part by
 * columns has all ids. */
static inline bool bag_table_owns(const struct bag_table_memory *memory, uint64_t id)
{
    if (!bag_table_divides_ids(memory))
        return true;
    if (memory->part.by == BAG_PART_KEYS)
        return bag_part_of_key(id, memory->part.of) == memory->part.index;
    return id - memory->first_row < (uint64_t)memory->shape[0];
}

/* Returns the row of this memory that holds a row of a dense table; -1 if it is not here. */
static inline int64_t bag_table_local_row(const struct bag_table_memory *memory, uint64_t row)
{
    uint64_t local = row - memory->first_row;
    if (local < (uint64_t)memory->shape[0])
        return (int64_t)local;
    return memory->keeps_default && row == (uint64_t)memory->kept_default ? memory->shape[0] : -1;
}

/* Returns the bytes of the rows, including the spare rows of a keyed table that is live. */
static inline size_t bag_table_rows_bytes(const struct bag_table_memory *memory)
{
    return (size_t)memory->table.num_rows * bag_row_bytes(&memory->table);
}

/* Returns the bytes of the rows and of the index. */
static inline size_t bag_table_memory_bytes(const struct bag_table_memory *memory)
{
    return bag_table_rows_bytes(memory) + memory->index.mapping_bytes;
}

static inline bool bag_table_is_keyed(const struct bag_table_memory *memory)
{
    return memory->index.keys.lines != NULL;
}

/* ---- making and freeing ---------------------------------------------------------------------- */

/* Describes a whole table of this type and shape, without memory. Sets all of *memory. */
void bag_table_describe(enum bag_dtype dtype, uint32_t rank, const int64_t *shape,
                        size_t row_elements, struct bag_table_memory *memory);

/* Gives a table that is described zeroed memory for its rows and spare rows. Returns false and sets
 * *problem (BAG_ERROR_NO_MEMORY) if there is not enough. */
bool bag_table_allocate(struct bag_table_memory *memory, struct bag_problem *problem);

/* Allocates a table that is described, and reads the rows of the files, which follow each other,
 * one file after the other. On failure nothing stays allocated; *problem is as of bag_file_load. */
bool bag_table_read(const struct bag_table_file *files, size_t count,
                    const struct bag_load_options *options, struct bag_table_memory *memory,
                    struct bag_problem *problem);

/* Describes the table that the files hold, which have one type and row shape, and reads it. */
bool bag_table_load(const struct bag_table_file *files, size_t count,
                    const struct bag_load_options *options, struct bag_table_memory *memory,
                    struct bag_problem *problem);

/* Logs how much of a large table's memory is in huge pages, and keeps that number. */
void bag_table_log_pages(const char *path, struct bag_table_memory *memory);

/* Frees everything that the table owns, and zeros *memory. */
void bag_table_unload(struct bag_table_memory *memory);

/* ---- stored tables --------------------------------------------------------------------------- */

/* A table in memory that models share. */
struct bag_stored_table {
    struct bag_table_memory memory;
    uint64_t fingerprint; /* fingerprint of its files and of how they are read; 0: never shared */
    size_t holders;       /* reference count; changed by the thread that changes the tables */
};

/* Takes over the memory. The caller gets the first reference. Returns NULL without memory, in which
 * case *memory still belongs to the caller. */
struct bag_stored_table *bag_stored_table_make(const struct bag_table_memory *memory,
                                               uint64_t fingerprint);

/* Releases a reference. The last one unloads the table. NULL is ignored. */
void bag_stored_table_drop(struct bag_stored_table *table);
