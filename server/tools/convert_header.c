/* The header of a converted table: its tensors and metadata; see tools.h. */
#include "server/tables/archive.h"
#include "tools.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- notes ----------------------------------------------------------------------------------- */

#define ROW_FORMAT   "row_format"
#define ROW_ELEMENTS "row_elements"

/* Metadata of the new table itself, with the texts of its numbers. */
struct own_notes {
    struct bag_safetensors_note notes[4];
    size_t count;
    char elements[24], updates_through[24], fixed_rows[24];
};

/* Adds a number to the metadata. `text` is its storage. */
static void add_number(struct own_notes *own, const char *key, char text[24], uint64_t number)
{
    snprintf(text, 24, "%" PRIu64, number);
    own->notes[own->count++] = (struct bag_safetensors_note){key, text};
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
static char *print(const struct bag_conversion *conversion,
                   const struct bag_safetensors_note *notes, size_t num_notes, size_t *header_bytes)
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
    return bag_safetensors_print(entries, keyed ? 2 : 1, notes, num_notes, header_bytes);
}

char *bag_convert_header(const struct bag_conversion *conversion, size_t *header_bytes,
                         struct bag_problem *problem)
{
    struct own_notes own;
    struct bag_file_notes said; /* metadata of the source's file */
    /* Collect the metadata that describes the new rows: their format, the last update in them, and
     * how many of the first rows must stay in place. */
    const struct bag_source *source = conversion->source;
    const struct bag_table_file *file = &source->files[0];
    uint64_t updates_through = bag_source_updates_through(source);
    own.notes[0] =
        (struct bag_safetensors_note){ROW_FORMAT, bag_row_format_names[conversion->to.row_format]};
    own.count = 1;
    add_number(&own, ROW_ELEMENTS, own.elements, conversion->to.row_elements);
    if (updates_through)
        add_number(&own, BAG_NOTE_UPDATES_THROUGH, own.updates_through, updates_through);
    if (conversion->order || file->is_ordered)
        add_number(&own, BAG_NOTE_FIXED_ROWS, own.fixed_rows,
                   conversion->order ? bag_rows_fixed(source) : file->fixed_rows);
    if (!bag_file_read_notes(&conversion->source->files[0], &said, problem))
        return NULL;
    struct bag_safetensors_note *notes = calloc(own.count + said.count, sizeof *notes);
    size_t count = own.count;
    if (notes)
        memcpy(notes, own.notes, own.count * sizeof *notes);
    /* Keep the other metadata of the source's file. */
    for (size_t i = 0; notes && i < said.count; i++) {
        if (!is_own(said.notes[i].key))
            notes[count++] = said.notes[i];
    }
    char *header = notes ? print(conversion, notes, count, header_bytes) : NULL;
    free(notes);
    bag_file_notes_free(&said);
    if (!header)
        bag_problem_no_memory(problem);
    return header;
}
