/* Table files are loaded and unloaded; see load.h. */
#include "map.h"

#include "live_rows.h"
#include "proto/formats.h"
#include "remote.h"
#include "server/memory/memory.h"
#include "server/system/log.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The pages of smaller tables are not logged. */
#define LARGE_BYTES ((size_t)16 << 20)

/* ---- memory of tables ------------------------------------------------------------------------ */

void bag_table_describe(enum bag_dtype dtype, uint32_t rank, const int64_t *shape,
                        size_t row_elements, const void *rows, struct bag_table_memory *memory)
{
    memset(memory, 0, sizeof *memory);
    memory->table.rows = rows;
    memory->table.dtype = dtype;
    memory->table.num_rows = shape[0];
    memory->table.row_elements = row_elements;
    memory->rank = rank;
    memcpy(memory->shape, shape, rank * sizeof *shape);
    memory->whole_rows = (uint64_t)shape[0];
    memory->whole_elements = row_elements;
}

/* What a table without elements points to: nothing reads it. */
static const _Alignas(64) char no_rows[64];

static bool allocate(enum bag_dtype dtype, uint32_t rank, const int64_t *shape, size_t row_elements,
                     size_t bytes, struct bag_table_memory *memory, struct bag_problem *problem)
{
    bag_table_describe(dtype, rank, shape, row_elements, no_rows, memory);
    if (bytes == 0)
        return true;
    memory->mapping = bag_pages_map(bytes, problem);
    memory->mapping_bytes = bytes;
    memory->table.rows = memory->mapping;
    return memory->mapping != NULL;
}

bool bag_table_create(enum bag_dtype dtype, uint32_t rank, const int64_t *shape,
                      struct bag_table_memory *memory, struct bag_problem *problem)
{
    size_t row_elements = 1, bytes = bag_dtypes[dtype].bytes;
    bool overflow = false;
    for (uint32_t axis = 0; axis < rank; axis++) {
        overflow |= __builtin_mul_overflow(bytes, (size_t)shape[axis], &bytes);
        if (axis > 0)
            overflow |= __builtin_mul_overflow(row_elements, (size_t)shape[axis], &row_elements);
    }
    if (overflow)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "the table's size passes the machine's address space");
    return allocate(dtype, rank, shape, row_elements, bytes, memory, problem);
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
    memset(memory, 0, sizeof *memory);
}

/* ---- loading --------------------------------------------------------------------------------- */

bool bag_table_load_file(const struct bag_table_file *file, const struct bag_load_options *options,
                         void *rows, const struct bag_rows_sink *sink, struct bag_problem *problem)
{
    int fd = bag_file_reopen(file, problem);
    if (fd < 0)
        return false;
    uint32_t crc32 = 0;
    bool ok = ((bag_read_elements(fd, &file->npy, options, rows, sink,
                                  file->has_crc32 ? &crc32 : NULL, problem) &&
                bag_file_check_crc32(file, fd, crc32, problem)) ||
               bag_file_reject(file->path, problem)) &&
              bag_file_check_unchanged(file, fd, problem);
    close(fd);
    return ok;
}

/* Room for the rows of all files and spare ones. */
static bool allocate_parts(const struct bag_npy *npy, const int64_t *shape, size_t file_bytes,
                           size_t spare_rows, struct bag_table_memory *memory,
                           struct bag_problem *problem)
{
    size_t bytes, row_bytes = npy->row_elements * bag_dtypes[npy->dtype].bytes;
    if (__builtin_mul_overflow(spare_rows, row_bytes, &bytes) ||
        __builtin_add_overflow(bytes, file_bytes, &bytes))
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY,
                               "the table with %zu spare rows is larger than any memory",
                               spare_rows);
    if (!allocate(npy->dtype, npy->rank, shape, npy->row_elements, bytes, memory, problem))
        return false;
    memory->spare_rows = spare_rows;
    return true;
}

/* Whether large memory is in huge pages, as configured, is the system's to decide. */
void bag_table_log_pages(const char *path, struct bag_table_memory *memory)
{
    if (memory->mapping_bytes < LARGE_BYTES)
        return;
    memory->huge_bytes = bag_pages_huge(memory->mapping, memory->mapping_bytes);
    bag_log(BAG_LOG_LEVEL_INFO, "table in memory", BAG_LOG_TEXT("file", path),
            BAG_LOG_NUMBER("bytes", memory->mapping_bytes),
            BAG_LOG_NUMBER("huge_page_bytes", memory->huge_bytes));
}

bool bag_table_load(const struct bag_table_file *files, size_t count, size_t spare_rows,
                    const struct bag_load_options *options, struct bag_table_memory *memory,
                    struct bag_problem *problem)
{
    const struct bag_npy *npy = &files[0].npy;
    int64_t shape[BAG_MAX_RANK];
    size_t bytes = npy->data_bytes;
    memcpy(shape, npy->shape, sizeof shape);
    for (size_t i = 1; i < count; i++) {
        shape[0] += files[i].npy.shape[0];
        bytes += files[i].npy.data_bytes;
    }
    if (!allocate_parts(npy, shape, bytes, spare_rows, memory, problem))
        return bag_file_reject(files[0].path, problem);
    char *rows = memory->mapping;
    for (size_t i = 0; i < count; i++) {
        if (!bag_table_load_file(&files[i], options, rows, NULL, problem)) {
            bag_table_unload(memory);
            return false;
        }
        rows += files[i].npy.data_bytes;
    }
    bag_table_log_pages(files[0].path, memory);
    return true;
}

/* ---- projections ----------------------------------------------------------------------------- */

struct bag_projection_memory *bag_projection_load(const struct bag_table_file *matrix,
                                                  const struct bag_table_file *bias,
                                                  bag_gemm_fn *gemm, struct bag_problem *problem)
{
    struct bag_projection_memory *memory = calloc(1, sizeof *memory);
    if (!memory) {
        bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "%s: not enough memory", matrix->path);
        return NULL;
    }
    const struct bag_load_options options = {.threads = 1};
    if (!bag_table_load(matrix, 1, 0, &options, &memory->matrix, problem) ||
        (bias && !bag_table_load(bias, 1, 0, &options, &memory->bias, problem))) {
        bag_projection_free(memory);
        return NULL;
    }
    memory->projection = (struct bag_projection){.matrix = memory->matrix.table.rows,
                                                 .bias = bias ? memory->bias.table.rows : NULL,
                                                 .rows = (size_t)matrix->npy.shape[0],
                                                 .columns = memory->matrix.table.row_elements,
                                                 .gemm = gemm};
    return memory;
}

void bag_projection_free(struct bag_projection_memory *memory)
{
    if (!memory)
        return;
    bag_table_unload(&memory->matrix);
    bag_table_unload(&memory->bias);
    free(memory);
}
