/* Tables in memory; see memory.h. */
#include "memory.h"

#include "live_rows.h"
#include "server/memory/memory.h"
#include "server/shards/remote.h"
#include "server/system/log.h"

#include <stdlib.h>
#include <string.h>

/* The pages of smaller tables are not logged. */
#define LARGE_BYTES ((size_t)16 << 20)

/* The rows of a table without elements. Never read. */
static const _Alignas(64) char no_rows[64];

void bag_table_describe(enum bag_dtype dtype, uint32_t rank, const int64_t *shape,
                        size_t row_elements, struct bag_table_memory *memory)
{
    *memory = (struct bag_table_memory){
        .table = {.dtype = dtype, .num_rows = shape[0], .row_elements = row_elements},
        .rank = rank,
        .whole_rows = (uint64_t)shape[0],
        .whole_elements = row_elements};
    memcpy(memory->shape, shape, rank * sizeof *shape);
}

bool bag_table_allocate(struct bag_table_memory *memory, struct bag_problem *problem)
{
    size_t rows, bytes;
    if (__builtin_add_overflow((size_t)memory->table.num_rows, memory->spare_rows, &rows) ||
        __builtin_mul_overflow(rows, bag_row_bytes(&memory->table), &bytes) || bytes > PTRDIFF_MAX)
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "the table is larger than any memory");
    memory->table.rows = no_rows;
    memory->mapping = bytes ? bag_pages_map(bytes, problem) : NULL;
    memory->mapping_bytes = bytes;
    if (memory->mapping)
        memory->table.rows = memory->mapping;
    return memory->mapping || !bytes;
}

void bag_table_unload(struct bag_table_memory *memory)
{
    if (memory->live)
        memory->live->detach(memory->live);
    bag_pages_unmap(memory->mapping, memory->mapping_bytes);
    bag_map_free(memory->map);
    bag_keys_index_free(&memory->index);
    bag_remote_free(memory->remote);
    free(memory->seen.waiting);
    memset(memory, 0, sizeof *memory);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* The system decides whether large memory is in huge pages, as configured. */
void bag_table_log_pages(const char *path, struct bag_table_memory *memory)
{
    if (memory->mapping_bytes < LARGE_BYTES)
        return;
    memory->huge_bytes = bag_pages_huge(memory->mapping, memory->mapping_bytes);
    bag_log(BAG_LOG_LEVEL_INFO, "table in memory", BAG_LOG_TEXT("file", path),
            BAG_LOG_NUMBER("bytes", memory->mapping_bytes),
            BAG_LOG_NUMBER("huge_page_bytes", memory->huge_bytes));
}

bool bag_table_read(const struct bag_table_file *files, size_t count,
                    const struct bag_load_options *options, struct bag_table_memory *memory,
                    struct bag_problem *problem)
{
    if (!bag_table_allocate(memory, problem))
        return bag_file_reject(files[0].path, problem);
    char *rows = memory->mapping;
    for (size_t i = 0; i < count; i++) {
        if (!bag_file_load(&files[i], options, rows, NULL, problem)) {
            bag_table_unload(memory);
            return false;
        }
        if (rows)
            rows += files[i].npy.data_bytes;
    }
    bag_table_log_pages(files[0].path, memory);
    return true;
}

bool bag_table_load(const struct bag_table_file *files, size_t count,
                    const struct bag_load_options *options, struct bag_table_memory *memory,
                    struct bag_problem *problem)
{
    const struct bag_npy *npy = &files[0].npy;
    int64_t shape[BAG_MAX_RANK];
    memcpy(shape, npy->shape, sizeof shape);
    for (size_t i = 1; i < count; i++)
        shape[0] += files[i].npy.shape[0];
    bag_table_describe(npy->dtype, npy->rank, shape, npy->row_elements, memory);
    return bag_table_read(files, count, options, memory, problem);
}

/* ---- stored tables --------------------------------------------------------------------------- */

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
