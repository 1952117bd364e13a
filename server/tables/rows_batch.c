/* Batches of rows; see rows_batch.h. */
#include "rows_batch.h"

#include "kernels/rowformat.h"
#include "kernels/sort_ids.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- converting rows ------------------------------------------------------------------------- */

bool bag_live_rows_same(const struct bag_table *a, const struct bag_table *b)
{
    return a->dtype == b->dtype && a->row_format == b->row_format &&
           a->row_elements == b->row_elements;
}

/* Returns whether f32 can hold the values exactly. */
static bool has_f32(const struct bag_table *table)
{
    return table->dtype == BAG_F32 || table->dtype == BAG_F16 || table->dtype == BAG_BF16;
}

bool bag_live_rows_converts(const struct bag_table *from, const struct bag_table *to)
{
    bool takes_f32 = has_f32(to) || to->dtype == BAG_F64;
    return from->row_elements == to->row_elements &&
           (bag_live_rows_same(from, to) || (has_f32(from) && takes_f32));
}

bool bag_live_rows_convert(const struct bag_table *from, const void *rows, size_t count,
                           const struct bag_table *to, void *out, size_t *position)
{
    struct bag_table source = *from;
    size_t row_bytes = bag_row_bytes(to);
    float *values = malloc((from->row_elements + 1) * sizeof *values);
    bool ok = values != NULL;
    source.rows = rows;
    for (*position = 0; ok && *position < count; *position += ok) {
        bag_row_decode(&source, (int64_t)*position, 0, from->row_elements, values);
        unsigned char *row = (unsigned char *)out + *position * row_bytes;
        for (size_t i = 0; to->dtype == BAG_F64 && i < to->row_elements; i++) {
            double value = values[i];
            memcpy(row + i * sizeof value, &value, sizeof value);
        }
        ok = to->dtype == BAG_F64 || bag_row_encode(to, values, row);
    }
    free(values);
    return ok;
}

static bool no_memory(struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "not enough memory for the batch of rows");
}

/* Returns the name of the input that has the ids. */
static const char *ids_name(const struct bag_table_memory *memory)
{
    return bag_table_is_keyed(memory) ? "keys" : "indices";
}

/* ---- ids ------------------------------------------------------------------------------------- */

static bool check_ids(const struct bag_table_memory *memory, const struct bag_tensor *ids,
                      struct bag_problem *problem)
{
    bool ok = ids->dtype == BAG_I64 || ids->dtype == BAG_I32 ||
              (ids->dtype == BAG_U64 && bag_table_is_keyed(memory));
    if (!ok)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "'%s' has datatype %s; it must be INT64 or INT32%s",
                               ids_name(memory), bag_dtypes[ids->dtype].name,
                               bag_table_is_keyed(memory) ? ", or UINT64" : "");
    return ids->rank == 1 || bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                                             "'%s' has %" PRIu32 " dimensions; it must have 1",
                                             ids_name(memory), ids->rank);
}

static uint64_t id_at(const struct bag_tensor *ids, size_t position)
{
    const char *at = (const char *)ids->data + position * bag_dtypes[ids->dtype].bytes;
    uint64_t wide;
    int32_t narrow;
    if (ids->dtype == BAG_I32) {
        memcpy(&narrow, at, sizeof narrow);
        return (uint64_t)(int64_t)narrow;
    }
    memcpy(&wide, at, sizeof wide);
    return wide;
}

/* Returns the first position of an id in the sorted ids. */
static size_t find_sorted(const uint64_t *sorted, size_t count, uint64_t id)
{
    size_t low = 0, high = count - 1;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (sorted[middle] < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Keeps the last one of equal ids, with its row. `taken` has room for a flag for each id, and `ids`
 * is the batch's own array. */
static bool keep_last(const struct bag_table_memory *memory, const uint64_t *sorted, char *taken,
                      uint64_t *ids, struct bag_arena *arena, struct bag_rows_batch *batch,
                      struct bag_problem *problem)
{
    size_t row_bytes = batch->deletes ? 0 : bag_row_bytes(&memory->table);
    char *rows = bag_arena_array(arena, batch->count, row_bytes + 1);
    size_t at = batch->count;
    if (!rows)
        return no_memory(problem);
    memset(taken, 0, batch->count);
    for (size_t i = batch->count; i-- > 0;) {
        size_t place = find_sorted(sorted, batch->count, ids[i]);
        if (taken[place])
            continue;
        taken[place] = true;
        ids[--at] = ids[i];
        if (row_bytes)
            memcpy(rows + at * row_bytes, batch->rows + i * row_bytes, row_bytes);
    }
    batch->count -= at;
    batch->ids = ids + at;
    batch->rows = batch->deletes ? NULL : rows + at * row_bytes;
    return true;
}

/* Rejects ids that come twice, or merges them. `ids` is the batch's own array. */
static bool check_once(const struct bag_table_memory *memory, uint64_t *ids, bool merged,
                       struct bag_arena *arena, struct bag_rows_batch *batch,
                       struct bag_problem *problem)
{
    uint64_t *copy = bag_arena_array(arena, batch->count, sizeof *copy);
    uint64_t *other = bag_arena_array(arena, batch->count, sizeof *other);
    size_t at = 1;
    if (!copy || !other)
        return no_memory(problem);
    if (batch->count)
        memcpy(copy, ids, batch->count * sizeof *copy);
    /* qsort() would take memory that is not counted. */
    const uint64_t *sorted = bag_sort_ids(copy, other, batch->count, sizeof *copy, UINT64_MAX);
    while (at < batch->count && sorted[at] != sorted[at - 1])
        at++;
    if (at >= batch->count)
        return true;
    if (merged)
        return keep_last(memory, sorted, (char *)(sorted == copy ? other : copy), ids, arena, batch,
                         problem);
    size_t first = 0;
    while (ids[first] != sorted[at])
        first++;
    size_t second = first + 1;
    while (ids[second] != sorted[at])
        second++;
    return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                           "'%s' names the same row at positions %zu and %zu", ids_name(memory),
                           first, second);
}

/* Copies the ids into the batch. Returns the copy, or NULL with *problem set. */
static uint64_t *take_ids(const struct bag_table_memory *memory, const struct bag_tensor *ids,
                          struct bag_arena *arena, struct bag_rows_batch *batch,
                          struct bag_problem *problem)
{
    if (!check_ids(memory, ids, problem))
        return NULL;
    uint64_t *copy = bag_arena_array(arena, ids->count, sizeof *copy);
    if (!copy) {
        no_memory(problem);
        return NULL;
    }
    for (size_t i = 0; i < ids->count; i++)
        copy[i] = id_at(ids, i);
    batch->count = ids->count;
    batch->ids = copy;
    return copy;
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Returns whether the tensor has a row for each id: of the table's elements, or of its bytes. */
static bool fits(const struct bag_table_memory *memory, const struct bag_tensor *rows, size_t count,
                 bool as_stored)
{
    bool as_bytes = as_stored && memory->table.row_format != BAG_ROWS_PLAIN;
    uint32_t rank = as_bytes ? 2 : memory->rank;
    bool ok = rows->rank == rank && (uint64_t)rows->shape[0] == count;
    if (as_bytes)
        return ok && (uint64_t)rows->shape[1] == bag_row_bytes(&memory->table);
    for (uint32_t axis = 1; ok && axis < rank; axis++)
        ok = rows->shape[axis] == memory->shape[axis];
    return ok;
}

/* A datatype and shape, as "FP32 [2, 64]". */
struct type_text {
    char text[32 + 24 * BAG_MAX_RANK];
};

static struct type_text print_type(enum bag_dtype dtype, const int64_t *shape, uint32_t rank)
{
    struct type_text type;
    snprintf(type.text, sizeof type.text, "%s [", bag_dtypes[dtype].name);
    for (uint32_t axis = 0; axis < rank; axis++)
        bag_text_add(type.text, sizeof type.text, "%s%" PRId64, axis ? ", " : "", shape[axis]);
    bag_text_add(type.text, sizeof type.text, "]");
    return type;
}

static bool reject_rows(const struct bag_table_memory *memory, const struct bag_tensor *rows,
                        size_t count, bool converts, struct bag_problem *problem)
{
    const struct bag_table *table = &memory->table;
    bool plain = table->row_format == BAG_ROWS_PLAIN, is_f32 = plain && table->dtype == BAG_F32;
    int64_t shape[BAG_MAX_RANK], bytes[] = {(int64_t)count, (int64_t)bag_row_bytes(table)};
    memcpy(shape, memory->shape, sizeof shape);
    shape[0] = (int64_t)count;
    struct type_text stored =
        plain ? print_type(table->dtype, shape, memory->rank) : print_type(BAG_U8, bytes, 2);
    return bag_problem_set(
        problem, BAG_ERROR_BAD_REQUEST, "'rows' is %s; for so many ids it must be %s%s%s",
        print_type(rows->dtype, rows->shape, rows->rank).text, stored.text,
        converts && !is_f32 ? " or " : "",
        converts && !is_f32 ? print_type(BAG_F32, shape, memory->rank).text : "");
}

/* Converts FP32 rows of a request to the table's format, with memory from the arena. */
static bool convert(const struct bag_table_memory *memory, const struct bag_tensor *rows,
                    struct bag_arena *arena, struct bag_rows_batch *batch,
                    struct bag_problem *problem)
{
    struct bag_table from = {.dtype = BAG_F32, .row_elements = memory->table.row_elements};
    size_t position;
    enum bag_row_format format = memory->table.row_format;
    char *out = bag_arena_array(arena, batch->count, bag_row_bytes(&memory->table));
    if (!out)
        return no_memory(problem);
    batch->rows = out;
    return bag_live_rows_convert(&from, rows->data, batch->count, &memory->table, out, &position) ||
           bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                           "'rows', row %zu: a value does not fit into the table's rows (%s)",
                           position,
                           format == BAG_ROWS_PLAIN ? bag_dtypes[memory->table.dtype].name
                                                    : bag_row_format_names[format]);
}

/* Sets the batch's rows: those of the tensor if they are as stored, otherwise converted ones. */
static bool take_rows(const struct bag_table_memory *memory, const struct bag_tensor *rows,
                      struct bag_arena *arena, struct bag_rows_batch *batch,
                      struct bag_problem *problem)
{
    const struct bag_table *table = &memory->table;
    struct bag_table f32 = {.dtype = BAG_F32, .row_elements = table->row_elements};
    enum bag_dtype stored = table->row_format == BAG_ROWS_PLAIN ? table->dtype : BAG_U8;
    if (rows->dtype == stored && fits(memory, rows, batch->count, true)) {
        batch->rows = rows->data;
        return true;
    }
    bool converts = bag_live_rows_converts(&f32, table);
    if (rows->dtype == BAG_F32 && converts && fits(memory, rows, batch->count, false))
        return convert(memory, rows, arena, batch, problem);
    return reject_rows(memory, rows, batch->count, converts, problem);
}

/* ---- parts of tables ------------------------------------------------------------------------- */

/* Returns whether a part by keys may have copies of rows whose keys other parts own. */
static bool may_have_copies(const struct bag_table_memory *memory)
{
    return memory->part.by == BAG_PART_KEYS && (memory->keeps_default || memory->kept_rows > 0);
}

/* Returns whether an update of this id may be for the part: it owns the id, or has or may have a
 * copy of the row. */
static bool may_want(const struct bag_table_memory *memory, uint64_t id)
{
    if (bag_table_owns(memory, id))
        return true;
    return bag_table_is_keyed(memory) ? may_have_copies(memory)
                                      : bag_table_local_row(memory, id) >= 0;
}

/* Leaves out ids that are of other parts alone with their rows, and cuts the other rows to the
 * part's columns. `ids` is the batch's own array. */
static bool take_part(const struct bag_table_memory *memory, const struct bag_table_memory *whole,
                      uint64_t *ids, struct bag_arena *arena, struct bag_rows_batch *batch,
                      struct bag_problem *problem)
{
    size_t from_bytes = bag_row_bytes(&whole->table), to_bytes = bag_row_bytes(&memory->table);
    struct bag_rows_of_part *part = bag_arena_alloc(arena, sizeof *part);
    size_t *positions = bag_arena_array(arena, batch->count, sizeof *positions);
    char *rows = batch->deletes ? NULL : bag_arena_array(arena, batch->count, to_bytes + 1);
    size_t count = 0;
    /* Check that the indices are rows of the whole table, also those of other parts. */
    size_t at = 0;
    while (at < batch->count && batch->ids[at] < memory->whole_rows)
        at++;
    if (!(bag_table_is_keyed(memory) || at == batch->count))
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "'indices' has %" PRId64
                               " at position %zu; the whole table has %" PRIu64 " rows",
                               (int64_t)batch->ids[at], at, memory->whole_rows);
    if (!part || !positions || (!rows && !batch->deletes))
        return no_memory(problem);
    for (size_t i = 0; i < batch->count; i++) {
        if (!may_want(memory, batch->ids[i]))
            continue;
        if (rows)
            bag_part_cut_rows(&whole->table, batch->rows + i * from_bytes, 1, memory->first_column,
                              memory->table.row_elements, rows + count * to_bytes);
        positions[count] = i;
        ids[count++] = batch->ids[i];
    }
    batch->left_out = batch->count - count;
    batch->count = count;
    batch->ids = ids;
    batch->rows = rows;
    batch->positions = positions;
    *part = (struct bag_rows_of_part){ids, rows, positions};
    batch->undecided = may_have_copies(memory) ? part : NULL;
    return true;
}

void bag_rows_batch_decide(const struct bag_table_memory *memory, struct bag_rows_batch *batch)
{
    struct bag_rows_of_part *part = batch->undecided;
    size_t row_bytes = bag_row_bytes(&memory->table), count = 0;
    if (!part)
        return;
    for (size_t i = 0; i < batch->count; i++) {
        if (!bag_table_owns(memory, part->ids[i]) &&
            bag_keys_find_one(&memory->index.keys, part->ids[i]) < 0)
            continue;
        if (part->rows && count < i)
            memcpy(part->rows + count * row_bytes, part->rows + i * row_bytes, row_bytes);
        part->positions[count] = part->positions[i];
        part->ids[count++] = part->ids[i];
    }
    batch->left_out += batch->count - count;
    batch->count = count;
    batch->undecided = NULL;
}

bool bag_rows_batch_make(const struct bag_table_memory *memory, const struct bag_tensor *ids,
                         const struct bag_tensor *rows, bool merged, struct bag_arena *arena,
                         struct bag_rows_batch *batch, struct bag_problem *problem)
{
    /* Describes the rows of requests, which are whole. Other members may change meanwhile. */
    struct bag_table_memory whole = {
        .table = memory->table, .rank = memory->rank, .index = memory->index};
    memcpy(whole.shape, memory->shape, sizeof whole.shape);
    *batch = (struct bag_rows_batch){.deletes = rows == NULL};
    if (bag_table_is_part(memory)) {
        whole.table.row_elements = memory->whole_elements;
        if (memory->part.by == BAG_PART_COLUMNS)
            whole.shape[1] = (int64_t)memory->whole_elements;
    }
    if (batch->deletes && !bag_table_is_keyed(memory))
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "parameter delete is for tables with keys; rows of this one can "
                               "only be replaced");
    uint64_t *own = take_ids(memory, ids, arena, batch, problem);
    return own && (batch->deletes || take_rows(&whole, rows, arena, batch, problem)) &&
           check_once(&whole, own, merged, arena, batch, problem) &&
           (!bag_table_is_part(memory) || take_part(memory, &whole, own, arena, batch, problem));
}
