/* Stored tables: the files of a source are read or mapped, and their keys indexed; and who holds
 * the table. See load.h and source.h. */
#include "map.h"
#include "source.h"

#include "server/memory/memory.h"
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

size_t bag_source_read_bytes(const struct bag_source *source)
{
    bool reads = !source->maps || residence_of(source->model) != BAG_MAP_ON_DEMAND;
    return (reads ? bytes_of(source->files, source->num_files) : 0) +
           bytes_of(source->key_files, source->num_key_files);
}

/* Maps or reads the elements. */
static bool bring_elements(const struct bag_source *source, const struct bag_part_rows *kept,
                           const struct bag_load_options *options, struct bag_table_memory *memory,
                           struct bag_problem *problem)
{
    if (!source->maps && bag_table_is_part(&source->own))
        return bag_part_load(source, kept, options, memory, problem);
    if (!source->maps)
        return bag_table_load(source->files, source->num_files, (size_t)source->model->spare_rows,
                              options, memory, problem);
    if (!bag_table_map(&source->files[0], residence_of(source->model), options, memory, problem))
        return false;
    bag_log(BAG_LOG_LEVEL_INFO, "mapped", BAG_LOG_TEXT("model", source->model->name),
            BAG_LOG_TEXT("file", source->files[0].path),
            BAG_LOG_NUMBER("bytes", bytes_of(source->files, source->num_files)),
            BAG_LOG_TEXT("crc32", source->files[0].has_crc32 ? "not compared: bagserve verify does"
                                                             : "none"));
    return true;
}

static bool is_by_keys(const struct bag_source *source)
{
    return bag_table_is_part(&source->own) && source->own.part.by == BAG_PART_KEYS;
}

/* Finds the rows of a part by keys. Keys may have been chosen to be of one part: then they are more
 * than were counted with before, and may not fit. */
static bool find_rows(const struct bag_source *source, struct bag_part_rows *kept,
                      struct bag_problem *problem)
{
    if (!bag_part_rows_find(source->key_files, source->num_key_files, &source->own, kept, problem))
        return false;
    if (kept->count <= source->most_rows ||
        bag_pages_check(bag_source_bytes_of_rows(source, kept->count), 0, problem))
        return true;
    bag_part_rows_free(kept);
    return bag_file_reject(source->files[0].path, problem);
}

static bool bring_keys(const struct bag_source *source, const struct bag_part_rows *kept,
                       const struct bag_load_options *options, struct bag_table_memory *memory,
                       struct bag_problem *problem)
{
    if (kept)
        return bag_part_rows_index(kept, source->maps, options, memory, problem);
    return !bag_source_is_keyed(source) ||
           bag_table_load_keys(source->key_files, source->num_key_files, options, memory, problem);
}

bool bag_source_load_keys(const struct bag_source *source, unsigned threads,
                          struct bag_table_memory *memory, struct bag_problem *problem)
{
    const struct bag_load_options options = {.threads = threads};
    struct bag_part_rows kept;
    if (!is_by_keys(source))
        return bring_keys(source, NULL, &options, memory, problem);
    if (!find_rows(source, &kept, problem))
        return false;
    bool ok = bring_keys(source, &kept, &options, memory, problem);
    bag_part_rows_free(&kept);
    return ok;
}

/* Elements and then keys. */
static bool read_both(const struct bag_source *source, const struct bag_part_rows *kept,
                      const struct bag_load_options *options, struct bag_table_memory *memory,
                      struct bag_problem *problem)
{
    if (!bring_elements(source, kept, options, memory, problem))
        return false;
    if (bring_keys(source, kept, options, memory, problem))
        return true;
    bag_table_unload(memory);
    return false;
}

/* Of a part by keys it is to be seen first which rows it has. */
static bool read_table(const struct bag_source *source, const struct bag_load_options *options,
                       struct bag_table_memory *memory, struct bag_problem *problem)
{
    struct bag_part_rows kept;
    if (!is_by_keys(source))
        return read_both(source, NULL, options, memory, problem);
    if (!find_rows(source, &kept, problem))
        return false;
    bool ok = read_both(source, &kept, options, memory, problem);
    bag_part_rows_free(&kept);
    return ok;
}

static bool make_table(const struct bag_source *source, struct bag_table_memory *memory,
                       struct bag_problem *problem)
{
    *memory = source->own;
    if (!bag_table_allocate(memory, problem))
        return false;
    const size_t rows = (size_t)memory->shape[0], columns = memory->table.row_elements;
    float *made = memory->mapping;
    if (!made)
        return true;
    source->make(made, (size_t)memory->first_row, rows, memory->first_column, columns);
    if (memory->table.num_rows > memory->shape[0])
        source->make(made + rows * columns, (size_t)memory->kept_default, 1, memory->first_column,
                     columns);
    return true;
}

/* What the rows stand for, the source knows; how many a part by keys has was seen in the files. */
static void describe(const struct bag_table_memory *own, struct bag_table_memory *memory)
{
    const struct bag_table_memory read = *memory;
    *memory = *own;
    memory->table.rows = read.table.rows;
    memory->mapping = read.mapping;
    memory->mapping_bytes = read.mapping_bytes;
    memory->huge_bytes = read.huge_bytes;
    memory->map = read.map;
    memory->index = read.index;
    memory->keys_dtype = read.keys_dtype;
    memory->remote = read.remote;
    if (bag_table_is_part(own) && own->part.by == BAG_PART_KEYS)
        memory->table.num_rows = memory->shape[0] = read.shape[0];
}

/* Of what shards have there is nothing here but what it is. */
static bool take_remote(const struct bag_source *source, struct bag_table_memory *memory,
                        struct bag_problem *problem)
{
    *memory = (struct bag_table_memory){.rank = source->rank,
                                        .whole_rows = (uint64_t)source->shape[0],
                                        .whole_elements = source->table.row_elements,
                                        .keys_dtype = source->remote->table.keys_dtype,
                                        .remote = bag_remote_copy(source->remote)};
    return memory->remote || bag_problem_no_memory(problem);
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
    if (!(source->remote ? take_remote(source, &memory, problem)
          : source->make ? make_table(source, &memory, problem)
                         : read_table(source, options, &memory, problem)))
        return NULL;
    describe(&source->own, &memory);
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
