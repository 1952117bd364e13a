/* Stored tables: the files of a source are read or mapped, and their keys indexed; and who holds
 * the table. See load.h and source.h. */
#include "map.h"
#include "source.h"

#include "server/system/log.h"

#include <stdlib.h>
#include <string.h>

/* ---- holders --------------------------------------------------------------------------------- */

struct bag_stored_table *bag_stored_table_make(const struct bag_table_memory *memory,
                                               uint64_t fingerprint)
{
    struct bag_stored_table *table = malloc(sizeof *table);
    if (table)
        *table =
            (struct bag_stored_table){.memory = *memory, .fingerprint = fingerprint, .holders = 1};
    return table;
}

void bag_stored_table_drop(struct bag_stored_table *table)
{
    if (!table || --table->holders > 0)
        return;
    bag_table_unload(&table->memory);
    free(table);
}

/* ---- loading --------------------------------------------------------------------------------- */

/* Keys are read when the elements are there. */
struct key_progress {
    const struct bag_load_options *options;
    size_t before_bytes;
};

static void on_keys_progress(void *context, size_t done_bytes, size_t total_bytes)
{
    const struct key_progress *keys = context;
    if (keys->options->progress)
        keys->options->progress(keys->options->context, keys->before_bytes + done_bytes,
                                total_bytes);
}

static enum bag_map_residence residence_of(const struct bag_model_config *model)
{
    if (model->lock_pages)
        return BAG_MAP_LOCKED;
    return model->warm ? BAG_MAP_WARM : BAG_MAP_ON_DEMAND;
}

static size_t bytes_of(const struct bag_table_file *files, size_t count)
{
    size_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += bag_table_file_bytes(&files[i]);
    return bytes;
}

static size_t element_bytes(const struct bag_source *source)
{
    bool reads = !source->maps || residence_of(source->model) != BAG_MAP_ON_DEMAND;
    return reads ? bytes_of(source->files, source->num_files) : 0;
}

size_t bag_source_read_bytes(const struct bag_source *source)
{
    return element_bytes(source) + bytes_of(source->key_files, source->num_key_files);
}

/* Maps or reads the elements. */
static bool bring_elements(const struct bag_source *source, const struct bag_load_options *options,
                           struct bag_table_memory *memory, struct bag_problem *problem)
{
    if (!source->maps)
        return bag_table_load_parts(source->files, source->num_files,
                                    (size_t)source->model->spare_rows, options, memory, problem);
    if (!bag_table_map(&source->files[0], residence_of(source->model), options->progress,
                       options->context, memory, problem))
        return false;
    bag_log(BAG_LOG_LEVEL_INFO, "mapped", BAG_LOG_TEXT("model", source->model->name),
            BAG_LOG_TEXT("file", source->files[0].path),
            BAG_LOG_NUMBER("bytes", bytes_of(source->files, source->num_files)),
            BAG_LOG_TEXT("crc32", source->files[0].has_crc32 ? "not compared: bagserve verify does"
                                                             : "none"));
    return true;
}

/* Elements and then keys. */
static bool read_table(const struct bag_source *source, const struct bag_load_options *options,
                       struct bag_table_memory *memory, struct bag_problem *problem)
{
    struct key_progress keys = {options, element_bytes(source)};
    if (!bring_elements(source, options, memory, problem))
        return false;
    if (!bag_source_is_keyed(source) ||
        bag_table_load_keys(source->key_files, source->num_key_files, options->threads,
                            on_keys_progress, &keys, memory, problem))
        return true;
    bag_table_unload(memory);
    return false;
}

static bool make_table(const struct bag_source *source, struct bag_table_memory *memory,
                       struct bag_problem *problem)
{
    if (!bag_table_create(source->table.dtype, source->rank, source->shape, memory, problem))
        return false;
    source->make(memory->mapping, (size_t)source->table.num_rows, source->table.row_elements);
    return true;
}

/* The elements are those of the file; what they stand for, the source knows. */
struct bag_stored_table *bag_source_load(const struct bag_source *source,
                                         const struct bag_load_options *options,
                                         struct bag_problem *problem)
{
    struct bag_table_memory memory;
    if (source->beside)
        bag_log(BAG_LOG_LEVEL_WARNING, "ignored", BAG_LOG_TEXT("path", source->beside),
                BAG_LOG_TEXT("reason", "there is a keyed table in its folder, which is served"));
    if (!(source->make ? make_table(source, &memory, problem)
                       : read_table(source, options, &memory, problem)))
        return NULL;
    const void *rows = memory.table.rows;
    memory.table = source->table;
    memory.table.rows = rows;
    memcpy(memory.shape, source->shape, sizeof memory.shape);
    struct bag_stored_table *stored = bag_stored_table_make(&memory, source->table_fingerprint);
    if (stored)
        return stored;
    bag_table_unload(&memory);
    bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "model '%s': not enough memory",
                    source->model->name);
    return NULL;
}
