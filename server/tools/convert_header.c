/* The header of a converted table: its tensors and metadata; see tools.h. */
#include "proto/arena.h"
#include "server/tables/archive.h"
#include "tools.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- notes ----------------------------------------------------------------------------------- */

#define ROW_FORMAT   "row_format"
#define ROW_ELEMENTS "row_elements"

/* The metadata of the new file. The texts are borrowed. */
struct notes {
    struct bag_safetensors_note *list; /* owned */
    size_t count;
};

/* Adds an entry. Returns false without memory. */
static bool add(struct notes *notes, const char *key, const char *value)
{
    if (!BAG_GROW(notes->list, notes->count))
        return false;
    notes->list[notes->count++] = (struct bag_safetensors_note){key, value};
    return true;
}

/* Adds a number. `text` is its storage. Returns false without memory. */
static bool add_number(struct notes *notes, const char *key, char text[24], uint64_t number)
{
    snprintf(text, 24, "%" PRIu64, number);
    return add(notes, key, text);
}

/* Returns whether metadata of the new table replaces this entry of the source's. */
static bool is_own(const char *key)
{
    static const char *const keys[] = {ROW_FORMAT, ROW_ELEMENTS, BAG_NOTE_UPDATES_THROUGH,
                                       BAG_NOTE_FIXED_ROWS};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (strcmp(key, keys[i]) == 0)
            return true;
    }
    return false;
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* Prints the header. Quantised rows are bytes, so their tensor has the bytes of a row as its second
 * dimension. Returns NULL without memory. */
static char *print(const struct bag_conversion *conversion, const struct notes *notes,
                   size_t *header_bytes)
{
    const struct bag_table *to = &conversion->to;
    const struct bag_source *source = conversion->source;
    bool quantised = to->row_format != BAG_ROWS_PLAIN, keyed = bag_source_is_keyed(source);
    bool is_2d = quantised || source->table.row_format != BAG_ROWS_PLAIN;
    int64_t shape[BAG_MAX_RANK], rows = source->table.num_rows;
    size_t row_bytes = bag_row_bytes(to);
    memcpy(shape, source->shape, sizeof shape);
    if (is_2d)
        shape[1] = (int64_t)(quantised ? row_bytes : to->row_elements);
    const struct bag_safetensors_entry entries[] = {
        {"values", bag_safetensors_type(to), is_2d ? 2 : source->rank, shape,
         (uint64_t)rows * row_bytes},
        {"keys", keyed && source->key_files[0].npy.dtype == BAG_U64 ? "U64" : "I64", 1, &rows,
         (uint64_t)rows * sizeof(uint64_t)}};
    return bag_safetensors_print(entries, keyed ? 2 : 1, notes->list, notes->count, header_bytes);
}

char *bag_convert_header(const struct bag_conversion *conversion, size_t *header_bytes,
                         struct bag_problem *problem)
{
    const struct bag_source *source = conversion->source;
    const struct bag_table_file *file = &source->files[0];
    const bool is_ordered = conversion->order || file->is_ordered;
    const uint64_t through = bag_source_updates_through(source);
    char elements[24], updates_through[24], fixed_rows[24];
    struct bag_archive archive; /* the source's file, whose other metadata is kept */
    struct bag_safetensors_note said;
    const struct cJSON *cursor = NULL;
    struct notes notes = {.count = 0};
    if (file->is_safetensors && !bag_archive_open(file->path, &archive, problem))
        return NULL;
    /* Describe the new rows: their format, the last update in them, and how many of the first rows
     * must stay in place. */
    bool ok =
        add(&notes, ROW_FORMAT, bag_row_format_names[conversion->to.row_format]) &&
        add_number(&notes, ROW_ELEMENTS, elements, conversion->to.row_elements) &&
        (!through || add_number(&notes, BAG_NOTE_UPDATES_THROUGH, updates_through, through)) &&
        (!is_ordered || add_number(&notes, BAG_NOTE_FIXED_ROWS, fixed_rows,
                                   conversion->order ? bag_rows_fixed(source) : file->fixed_rows));
    while (ok && file->is_safetensors &&
           bag_safetensors_next_note(&archive.tensors, &cursor, &said))
        ok = is_own(said.key) || add(&notes, said.key, said.value);
    char *header = ok ? print(conversion, &notes, header_bytes) : NULL;
    if (!header)
        bag_problem_no_memory(problem);
    free(notes.list);
    if (file->is_safetensors)
        bag_archive_close(&archive);
    return header;
}
