/* Loading the table of an open source; see source.h. */
#include "source.h"

#include "kernels/rowformat.h"
#include "part.h"
#include "row_formats.h"
#include "server/memory/memory.h"
#include "server/system/log.h"

#include <stdio.h>

/* The number of rows whose scale and bias are looked at. The rows of a mapped table may have
 * to be read from the disk one by one. */
#define CHECKED_ROWS        ((size_t)1 << 17)
#define CHECKED_MAPPED_ROWS ((size_t)1 << 10)

static enum bag_map_residence residence_of(const struct bag_model_config *model)
{
    if (model->lock_pages)
        return BAG_MAP_LOCKED;
    return model->warm ? BAG_MAP_WARM : BAG_MAP_ON_DEMAND;
}

/* Returns the bytes of all elements of the files. */
static size_t bytes_of(const struct bag_table_file *files, size_t count)
{
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += files[i].npy.data_bytes;
    return bytes;
}

size_t bag_source_read_bytes(const struct bag_source *source)
{
    bool reads = !source->maps || residence_of(source->model) != BAG_MAP_ON_DEMAND;
    return (reads ? bytes_of(source->files, source->num_files) : 0) +
           bytes_of(source->key_files, source->num_key_files);
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* Computes rows of a demo table, FP32 or FP16, whose values both types have. Returns false and sets
 * *problem without memory. */
static bool make_range(const struct bag_source *source, const struct bag_table_memory *memory,
                       void *out, size_t first, size_t count, struct bag_problem *problem)
{
    const size_t columns = memory->table.row_elements;
    if (memory->table.dtype == BAG_F32) {
        source->make(out, first, count, memory->first_column, columns);
        return true;
    }
    float *row = malloc((columns + 1) * sizeof *row);
    if (!row)
        return bag_problem_no_memory(problem);
    for (size_t i = 0; i < count; i++) {
        source->make(row, first + i, 1, memory->first_column, columns);
        bag_elements_encode(row, columns, BAG_F16, (uint16_t *)out + i * columns);
    }
    free(row);
    return true;
}

/* Brings the rows into memory, in the way that the source needs. */
static bool bring_rows(const struct bag_source *source, const struct bag_part_rows *kept,
                       const struct bag_load_options *options, struct bag_table_memory *memory,
                       struct bag_problem *problem)
{
    if (source->make) {
        /* Compute the rows of a demo table, and the copy of the default row after a part by rows.
         */
        const size_t rows = (size_t)memory->shape[0];
        if (!bag_table_allocate(memory, problem))
            return false;
        char *made = memory->mapping;
        if (!made)
            return true;
        return make_range(source, memory, made, (size_t)memory->first_row, rows, problem) &&
               (memory->table.num_rows == memory->shape[0] ||
                make_range(source, memory, made + rows * bag_row_bytes(&memory->table),
                           (size_t)memory->kept_default, 1, problem));
    }
    if (source->maps) {
        /* Map the rows from their file. A file without elements cannot be mapped, so its table is
         * read. */
        const struct bag_table_file *file = &source->files[0];
        if (file->npy.count == 0) {
            if (!bag_table_read(file, 1, options, memory, problem))
                return false;
        } else {
            memory->map = bag_map_open(file, residence_of(source->model), options, problem);
            if (!memory->map)
                return false;
            memory->table.rows = bag_map_rows(memory->map);
        }
        bag_log(
            BAG_LOG_LEVEL_INFO, "mapped", BAG_LOG_TEXT("model", source->model->name),
            BAG_LOG_TEXT("file", file->path), BAG_LOG_NUMBER("bytes", file->npy.data_bytes),
            BAG_LOG_TEXT("crc32", file->has_crc32 ? "not compared: bagserve verify does" : "none"));
        return true;
    }
    if (bag_table_is_part(memory))
        return bag_part_read(source, kept, options, memory, problem);
    return bag_table_read(source->files, source->num_files, options, memory, problem);
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* Returns whether the table is divided by keys. */
static bool is_by_keys(const struct bag_source *source)
{
    return bag_table_is_part(&source->own) && source->own.part.by == BAG_PART_KEYS;
}

/* Finds the rows of a part by keys. If there are more than expected, checks that they fit. */
static bool find_rows(const struct bag_source *source, struct bag_part_rows *kept,
                      struct bag_problem *problem)
{
    if (!bag_part_rows_find(source, kept, problem))
        return false;
    if (kept->count <= source->max_rows ||
        bag_pages_check(bag_source_bytes_of_rows(source, kept->count), 0, problem))
        return true;
    bag_part_rows_free(kept);
    return bag_file_reject(source->files[0].path, problem);
}

/* Builds the index of a keyed table; does nothing for others. `kept` has the rows of a part by
 * keys. */
static bool build_index(const struct bag_source *source, const struct bag_part_rows *kept,
                        const struct bag_load_options *options, struct bag_keys_index *index,
                        struct bag_problem *problem)
{
    if (kept)
        return bag_part_rows_index(kept, source, options, index, problem);
    return source->num_key_files == 0 ||
           bag_keys_index_load(source->key_files, source->num_key_files, source->own.spare_rows,
                               options, index, problem);
}

bool bag_source_load_keys(const struct bag_source *source, unsigned threads,
                          struct bag_keys_index *index, struct bag_problem *problem)
{
    const struct bag_load_options options = {.threads = threads};
    struct bag_part_rows kept;
    if (!is_by_keys(source))
        return build_index(source, NULL, &options, index, problem);
    if (!find_rows(source, &kept, problem))
        return false;
    bool ok = build_index(source, &kept, &options, index, problem);
    bag_part_rows_free(&kept);
    return ok;
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* Loads rows and keys into a table that is described. The rows of a part by keys are
 * found first. */
static bool load_both(const struct bag_source *source, const struct bag_load_options *options,
                      struct bag_table_memory *memory, struct bag_problem *problem)
{
    struct bag_part_rows rows, *kept = is_by_keys(source) ? &rows : NULL;
    if (kept && !find_rows(source, kept, problem))
        return false;
    bool ok = bring_rows(source, kept, options, memory, problem);
    if (ok && !build_index(source, kept, options, &memory->index, problem)) {
        bag_table_unload(memory);
        ok = false;
    }
    if (kept)
        bag_part_rows_free(kept);
    return ok;
}

/* Logs a warning if too many rows have a scale or bias that cannot be meant: then the format is
 * probably another one. */
static void warn_of_format(const struct bag_source *source, const struct bag_table_memory *memory)
{
    const struct bag_table *table = &memory->table;
    const size_t most = memory->map ? CHECKED_MAPPED_ROWS : CHECKED_ROWS;
    const size_t count = (size_t)table->num_rows < most ? (size_t)table->num_rows : most;
    const size_t implausible = bag_row_formats_count_implausible(table, count);
    if (!bag_row_format_is_implausible(implausible, count))
        return;
    char share[32], others[BAG_ROW_FORMATS_TEXT];
    snprintf(share, sizeof share, "%.3g%%", 100.0 * (double)implausible / (double)count);
    bag_row_formats_list(bag_row_bytes(table), table->row_elements, table->row_format, others);
    bag_log(BAG_LOG_LEVEL_WARNING, "implausible rows", BAG_LOG_TEXT("model", source->model->name),
            BAG_LOG_TEXT("rows", share),
            BAG_LOG_TEXT("reason", "their scale or bias is not finite or beyond 1e4"),
            BAG_LOG_TEXT("row_format", bag_row_format_names[table->row_format]),
            BAG_LOG_TEXT("as_wide", others));
}

struct bag_stored_table *bag_source_load(const struct bag_source *source,
                                         const struct bag_load_options *options,
                                         struct bag_problem *problem)
{
    struct bag_table_memory memory = source->own;
    if (source->beside)
        bag_log(BAG_LOG_LEVEL_WARNING, "ignored", BAG_LOG_TEXT("path", source->beside),
                BAG_LOG_TEXT("reason", "there is a keyed table in its folder, which is served"));
    if (source->remote) {
        memory.remote = bag_remote_copy(source->remote);
        if (!memory.remote) {
            bag_problem_no_memory(problem);
            return NULL;
        }
    } else if (!load_both(source, options, &memory, problem)) {
        return NULL;
    } else {
        warn_of_format(source, &memory);
    }
    if (bag_table_is_part(&memory) && !bag_source_digest(source, &memory.digest, problem)) {
        bag_table_unload(&memory);
        return NULL;
    }
    struct bag_stored_table *stored = bag_stored_table_make(&memory, source->table_fingerprint);
    if (stored)
        return stored;
    bag_table_unload(&memory);
    bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "model '%s': not enough memory",
                    source->model->name);
    return NULL;
}
