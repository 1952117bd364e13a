/* Which rows of a keyed table a part by keys has, and the index of their keys; see load.h.
 *
 * Keys are read from their files as often as they are needed, in blocks: nothing is kept of them
 * but how many rows of the part are before each block. */
#include "load.h"

#include <stdlib.h>
#include <string.h>

static bool has_row(const struct bag_table_memory *part, size_t row, uint64_t key)
{
    return bag_table_owns(part, key) || row < (uint64_t)part->kept_rows ||
           (part->keeps_default && key == (uint64_t)part->kept_default);
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static bool no_memory(size_t num_rows, struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "no memory to divide %zu keys", num_rows);
}

static bool reject_changed(struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_FILE, "the keys changed while they were read");
}

/* ---- finding ----------------------------------------------------------------------------------
 */

static bool count_rows(struct bag_part_rows *rows, uint64_t *keys, struct bag_problem *problem)
{
    for (size_t first = 0; first < rows->num_rows; first += BAG_PART_BLOCK_ROWS) {
        size_t count = least(BAG_PART_BLOCK_ROWS, rows->num_rows - first);
        rows->before[first / BAG_PART_BLOCK_ROWS] = rows->count;
        if (!bag_key_files_read(&rows->keys, first, count, keys, problem))
            return false;
        for (size_t i = 0; i < count; i++)
            rows->count += has_row(rows->part, first + i, keys[i]);
    }
    return true;
}

bool bag_part_rows_find(const struct bag_table_file *key_files, size_t count,
                        const struct bag_table_memory *part, struct bag_part_rows *rows,
                        struct bag_problem *problem)
{
    *rows = (struct bag_part_rows){.part = part, .num_rows = (size_t)part->whole_rows};
    if (!bag_key_files_open(key_files, count, &rows->keys, problem))
        return false;
    uint64_t *keys = malloc(BAG_PART_BLOCK_ROWS * sizeof *keys);
    rows->before = calloc(rows->num_rows / BAG_PART_BLOCK_ROWS + 1, sizeof *rows->before);
    bool ok =
        keys && rows->before ? count_rows(rows, keys, problem) : no_memory(rows->num_rows, problem);
    free(keys);
    if (!ok)
        bag_part_rows_free(rows);
    return ok;
}

void bag_part_rows_free(struct bag_part_rows *rows)
{
    bag_key_files_close(&rows->keys);
    free(rows->before);
    rows->before = NULL;
}

/* ---- selecting --------------------------------------------------------------------------------
 */

bool bag_part_rows_select(const struct bag_part_rows *rows, size_t first, size_t count,
                          struct bag_part_selection *selection, struct bag_problem *problem)
{
    size_t begin = first / BAG_PART_BLOCK_ROWS * BAG_PART_BLOCK_ROWS, lead = first - begin;
    uint64_t *keys = selection->keys;
    if (!bag_key_files_read(&rows->keys, begin, lead + count, keys, problem))
        return false;
    selection->count = 0;
    selection->before = rows->before[begin / BAG_PART_BLOCK_ROWS];
    for (size_t i = 0; i < lead; i++)
        selection->before += has_row(rows->part, begin + i, keys[i]);
    memmove(keys, keys + lead, count * sizeof *keys);
    for (size_t i = 0; i < count; i++) {
        selection->rows[selection->count] = (uint32_t)i;
        selection->count += has_row(rows->part, first + i, keys[i]);
    }
    return selection->before + selection->count <= rows->count || reject_changed(problem);
}

/* ---- the index of their keys ------------------------------------------------------------------
 */

/* The last block that has `position` of the part's rows, or fewer, before it. */
static size_t find_block(const struct bag_part_rows *rows, size_t position)
{
    size_t low = 0, high = (rows->num_rows + BAG_PART_BLOCK_ROWS - 1) / BAG_PART_BLOCK_ROWS;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (rows->before[middle] <= position)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Reads keys of the part's rows, counted as the part does, and their rows in the file. */
static bool read_blocks(const struct bag_part_rows *rows, struct bag_part_selection *selection,
                        size_t first, size_t count, uint64_t *keys, uint64_t *file_rows,
                        struct bag_problem *problem)
{
    for (size_t block = find_block(rows, first); count > 0; block++) {
        size_t begin = block * BAG_PART_BLOCK_ROWS;
        if (begin >= rows->num_rows)
            return reject_changed(problem);
        if (!bag_part_rows_select(rows, begin, least(BAG_PART_BLOCK_ROWS, rows->num_rows - begin),
                                  selection, problem))
            return false;
        size_t at = first - least(first, selection->before);
        for (; at < selection->count && count > 0; at++, first++, count--) {
            *keys++ = selection->keys[selection->rows[at]];
            if (file_rows)
                *file_rows++ = begin + selection->rows[at];
        }
    }
    return true;
}

static bool read_part_keys(void *context, size_t first, size_t count, uint64_t *keys,
                           uint64_t *file_rows, struct bag_problem *problem)
{
    const struct bag_part_rows *rows = context;
    struct bag_part_selection *selection = malloc(sizeof *selection);
    bool ok = selection ? read_blocks(rows, selection, first, count, keys, file_rows, problem)
                        : no_memory(rows->num_rows, problem);
    free(selection);
    return ok;
}

bool bag_part_rows_index(const struct bag_part_rows *rows, bool stay,
                         const struct bag_load_options *options, struct bag_table_memory *memory,
                         struct bag_problem *problem)
{
    struct bag_part_rows own = *rows;
    struct bag_keys_source source = {
        .read = read_part_keys, .context = &own, .num_keys = rows->count, .keeps_rows = stay};
    if (!bag_keys_index_of_files(&source, &rows->keys, options, memory, problem))
        return false;
    /* The others were read, too. */
    bag_load_tell(options, (rows->num_rows - rows->count) * sizeof(uint64_t));
    return true;
}
