/* Row updates for one table: read from tensors, checked, and converted to what the table stores.
 *
 * A batch is complete before any row is changed, and knows nothing of locks. live_rows.h applies
 * it. */
#pragma once

#include "memory.h"
#include "proto/arena.h"
#include "proto/v2_documents.h"

/* Arrays of a batch for a part of a table. Memory is from the arena. */
struct bag_rows_of_part {
    uint64_t *ids;
    char *rows;        /* NULL: deletes */
    size_t *positions; /* position of each id among all that came */
};

/* Rows to be written, or keys to be removed. Everything is borrowed. */
struct bag_rows_batch {
    bool deletes;
    size_t count;
    const uint64_t *ids; /* row numbers or keys, without duplicates */
    bool may_be_gone;    /* the table may lack some of the keys to be removed */
    const char *rows; /* `count` rows as the table stores them, at any alignment; NULL: deletes */
    size_t left_out;  /* ids of other parts of the table that came with these */
    struct bag_rows_of_part *undecided; /* ids, rows and positions, if keys of other parts are among
                                           these, of which the table may have copies; else NULL */
    const size_t *positions; /* position of each id among all that came; NULL: its index */
};

/* Makes a batch for a table of tensors from outside. `ids` are indices or keys. `rows` (NULL: the
 * keys are removed) are FP32, or as the table stores them (UINT8 if it is quantised). For a part
 * they are those of the whole table: ids of other parts are left out, and rows are cut. Keys that
 * other parts own stay until bag_rows_batch_decide, as earlier updates may remove a copy. Returns
 * false and sets *problem (BAG_ERROR_BAD_REQUEST, BAG_ERROR_NO_MEMORY) if they do not fit the
 * table, or if an id comes twice; if `merged`, the last one of these is taken instead. Memory is
 * from the arena. Any thread may call it: it reads nothing that updates change. */
bool bag_rows_batch_make(const struct bag_table_memory *memory, const struct bag_tensor *ids,
                         const struct bag_tensor *rows, bool merged, struct bag_arena *arena,
                         struct bag_rows_batch *batch, struct bag_problem *problem);

/* Leaves out the undecided keys that the table has no copy of. The caller is the table's writer,
 * and has applied all earlier updates that add or remove keys. */
void bag_rows_batch_decide(const struct bag_table_memory *memory, struct bag_rows_batch *batch);

/* Returns whether both tables store rows in the same bytes. */
bool bag_live_rows_same(const struct bag_table *a, const struct bag_table *b);

/* Returns whether rows can be converted: both have as many floats, and those of `from` fit into 32
 * bits. */
bool bag_live_rows_converts(const struct bag_table *from, const struct bag_table *to);

/* Converts rows of one table to those of another. Returns false if a value does not fit; *position
 * is then the number of its row. */
bool bag_live_rows_convert(const struct bag_table *from, const void *rows, size_t count,
                           const struct bag_table *to, void *out, size_t *position);
