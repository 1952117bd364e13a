/* Table files are loaded and unloaded; see load.h.
 *
 * Elements are read in parallel, in large tiles. A file in C order is split into blocks. Of a
 * column-major one a tile takes a range of as many columns as fit: so each reader writes whole
 * rows, and the table's cache lines are filled at once instead of once per column. */
#include "map.h"

#include "live_rows.h"
#include "proto/formats.h"
#include "remote.h"
#include "server/memory/memory.h"
#include "server/system/crew.h"
#include "server/system/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

#define TILE_BYTES ((size_t)8 << 20)
/* The least that is read at one place, however many columns there are. */
#define RUN_BYTES ((size_t)64 << 10)
/* At a rate, one call reads what that allows in such a part of a second: so progress shows, and
 * cancelling is seen soon. */
#define PIECES_PER_S 10
/* The pages of smaller tables are not logged. */
#define LARGE_BYTES ((size_t)16 << 20)

#define NS_PER_S   1000000000
#define MAX_NAP_NS (NS_PER_S / 20)

/* ---- tiles ----------------------------------------------------------------------------------- */

struct tiling {
    size_t elements; /* of each column in a tile */
    size_t columns;  /* in a tile */
    size_t down;     /* tiles along a column */
    size_t count;    /* of all tiles */
    size_t bytes;    /* of the largest tile */
};

static size_t within(size_t value, size_t low, size_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* For a file with at least one element. */
static struct tiling tiling_of(const struct bag_npy *npy)
{
    struct tiling tiling;
    size_t element_bytes = bag_dtypes[npy->dtype].bytes;
    size_t fitting = TILE_BYTES / element_bytes;
    tiling.elements = within(fitting / npy->num_columns, RUN_BYTES / element_bytes, fitting);
    tiling.elements = within(tiling.elements, 1, npy->column_elements);
    tiling.columns = within(fitting / tiling.elements, 1, npy->num_columns);
    tiling.down = (npy->column_elements + tiling.elements - 1) / tiling.elements;
    tiling.count = tiling.down * ((npy->num_columns + tiling.columns - 1) / tiling.columns);
    tiling.bytes = tiling.elements * tiling.columns * element_bytes;
    return tiling;
}

static struct bag_npy_tile tile_at(const struct bag_npy *npy, const struct tiling *tiling,
                                   size_t index)
{
    struct bag_npy_tile tile;
    tile.first = index % tiling->down * tiling->elements;
    tile.count = within(tiling->elements, 1, npy->column_elements - tile.first);
    tile.first_column = index / tiling->down * tiling->columns;
    tile.num_columns = within(tiling->columns, 1, npy->num_columns - tile.first_column);
    return tile;
}

/* ---- the readers' common state --------------------------------------------------------------- */

/* Lives on the stack of read_all, which outlives the readers. */
struct reading {
    /* Set before the readers start. */
    int fd;
    const struct bag_npy *npy;
    struct tiling tiling;
    size_t piece_bytes; /* of one call */
    unsigned char *rows;
    const struct bag_load_options *options;
    uint32_t *crc32; /* of the elements: the XOR of parts, atomic; NULL: not wanted */

    struct bag_crew crew; /* whose lock guards what follows; it counts bytes */
    size_t next_tile;
    uint64_t next_ns; /* when the next piece may be read; on the monotonic clock */
};

static bool is_cancelled(const struct reading *reading)
{
    const atomic_bool *cancelled = reading->options->cancelled;
    return cancelled && atomic_load_explicit(cancelled, memory_order_relaxed);
}

/* In naps, so that cancelling need not wait. */
static void sleep_until(const struct reading *reading, uint64_t at_ns)
{
    for (uint64_t now; (now = uv_hrtime()) < at_ns && !is_cancelled(reading);) {
        uint64_t nap_ns = at_ns - now < MAX_NAP_NS ? at_ns - now : MAX_NAP_NS;
        nanosleep(&(struct timespec){.tv_nsec = (long)nap_ns}, NULL);
    }
}

/* Waits until so many bytes may be read, so that all readers keep to their bytes per second. */
static void take_turn(struct reading *reading, size_t bytes)
{
    double rate = (double)reading->options->bytes_per_second;
    uint64_t at_ns = 0, now_ns = uv_hrtime();
    if (reading->options->bytes_per_second) {
        pthread_mutex_lock(&reading->crew.lock);
        at_ns = reading->next_ns > now_ns ? reading->next_ns : now_ns;
        reading->next_ns = at_ns + (uint64_t)((double)bytes / rate * NS_PER_S);
        pthread_mutex_unlock(&reading->crew.lock);
    }
    sleep_until(reading, at_ns);
}

static size_t piece_bytes_of(const struct bag_load_options *options)
{
    if (!options->bytes_per_second)
        return TILE_BYTES;
    return within(options->bytes_per_second / PIECES_PER_S, RUN_BYTES, TILE_BYTES);
}

static bool next_tile(struct reading *reading, struct bag_npy_tile *tile)
{
    pthread_mutex_lock(&reading->crew.lock);
    bool more = !reading->crew.failed && reading->next_tile < reading->tiling.count;
    if (more)
        *tile = tile_at(reading->npy, &reading->tiling, reading->next_tile++);
    pthread_mutex_unlock(&reading->crew.lock);
    return more;
}

/* ---- one reader ------------------------------------------------------------------------------ */

static void add_crc32(const struct reading *reading, size_t first, size_t elements,
                      const unsigned char *bytes)
{
    size_t element_bytes = bag_dtypes[reading->npy->dtype].bytes;
    size_t behind = reading->npy->data_bytes - (first + elements) * element_bytes;
    if (reading->crc32)
        __atomic_fetch_xor(reading->crc32,
                           bag_npz_crc32_part(bytes, elements * element_bytes, behind),
                           __ATOMIC_RELAXED);
}

/* Reads the elements from the file's `first` on, in the file's order. */
static bool read_run(struct reading *reading, size_t first, size_t elements, unsigned char *out,
                     struct bag_problem *problem)
{
    const unsigned char *start = out;
    size_t bytes = elements * bag_dtypes[reading->npy->dtype].bytes;
    off_t at = (off_t)(reading->npy->data_offset + first * bag_dtypes[reading->npy->dtype].bytes);
    while (bytes > 0) {
        size_t piece = within(bytes, 1, reading->piece_bytes);
        take_turn(reading, piece);
        if (is_cancelled(reading))
            return bag_problem_set(problem, BAG_ERROR_DRAINING, "it is no longer to be loaded");
        ssize_t got = pread(reading->fd, out, piece, at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return bag_problem_set(problem, BAG_ERROR_FILE, "reading at byte %lld failed: %s",
                                   (long long)at, strerror(errno));
        if (got == 0)
            return bag_problem_set(problem, BAG_ERROR_FILE,
                                   "the file shrank to %lld bytes while it was read; publish a "
                                   "table by renaming a complete file",
                                   (long long)at);
        out += got;
        at += got;
        bytes -= (size_t)got;
        bag_crew_did(&reading->crew, (size_t)got);
    }
    add_crc32(reading, first, elements, start);
    return true;
}

/* Column after column; one run where the tile holds its columns whole. */
static bool read_tile(struct reading *reading, struct bag_npy_tile tile, unsigned char *out,
                      struct bag_problem *problem)
{
    size_t column_elements = reading->npy->column_elements;
    size_t first = tile.first_column * column_elements + tile.first;
    if (tile.count == column_elements)
        return read_run(reading, first, tile.num_columns * tile.count, out, problem);
    size_t run_bytes = tile.count * bag_dtypes[reading->npy->dtype].bytes;
    for (size_t i = 0; i < tile.num_columns; i++)
        if (!read_run(reading, first + i * column_elements, tile.count, out + i * run_bytes,
                      problem))
            return false;
    return true;
}

static bool read_into_place(struct reading *reading, struct bag_problem *problem)
{
    struct bag_npy_tile tile;
    size_t element_bytes = bag_dtypes[reading->npy->dtype].bytes;
    while (next_tile(reading, &tile))
        if (!read_tile(reading, tile, reading->rows + tile.first * element_bytes, problem))
            return false;
    return true;
}

static bool read_and_place(struct reading *reading, struct bag_problem *problem)
{
    struct bag_npy_tile tile;
    bool ok = true;
    unsigned char *block = bag_memory_map(reading->tiling.bytes, problem);
    if (!block)
        return false;
    while (ok && next_tile(reading, &tile)) {
        ok = read_tile(reading, tile, block, problem);
        if (ok)
            bag_npy_place(reading->npy, tile, block, reading->rows);
    }
    bag_memory_unmap(block, reading->tiling.bytes);
    return ok;
}

static bool run_reader(void *context, struct bag_problem *problem)
{
    struct reading *reading = context;
    return bag_npy_is_plain(reading->npy) ? read_into_place(reading, problem)
                                          : read_and_place(reading, problem);
}

/* On the thread that waits for the readers. */
static void tell_progress(void *context, size_t done_bytes)
{
    const struct reading *reading = context;
    if (reading->options->progress)
        reading->options->progress(reading->options->context, done_bytes, reading->npy->data_bytes);
}

/* Reads all elements into `rows`, which has npy->data_bytes. Progress is told on the caller's own
 * thread. */
static bool read_all(int fd, const struct bag_npy *npy, const struct bag_load_options *options,
                     void *rows, uint32_t *crc32, struct bag_problem *problem)
{
    if (npy->count == 0)
        return true;
    struct reading reading = {.fd = fd,
                              .npy = npy,
                              .tiling = tiling_of(npy),
                              .piece_bytes = piece_bytes_of(options),
                              .rows = rows,
                              .options = options,
                              .crc32 = crc32};
    unsigned wanted = (unsigned)within(options->threads, 1, reading.tiling.count);
    bag_crew_init(&reading.crew);
    bool ok = bag_crew_run(&reading.crew, wanted, run_reader, tell_progress, &reading, problem);
    bag_crew_free(&reading.crew);
    return ok;
}

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

static bool allocate(enum bag_dtype dtype, uint32_t rank, const int64_t *shape, size_t row_elements,
                     size_t bytes, struct bag_table_memory *memory, struct bag_problem *problem)
{
    /* What a table without elements points to: nothing reads it. */
    static const _Alignas(64) char nothing[64];
    bag_table_describe(dtype, rank, shape, row_elements, nothing, memory);
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

/* Reads the elements of one file into place, and makes sure that nobody wrote to it before or
 * meanwhile. */
static bool load_file(const struct bag_table_file *file, const struct bag_load_options *options,
                      void *rows, struct bag_problem *problem)
{
    int fd = bag_file_reopen(file, problem);
    if (fd < 0)
        return false;
    uint32_t crc32 = 0;
    bool ok = ((read_all(fd, &file->npy, options, rows, file->has_crc32 ? &crc32 : NULL, problem) &&
                bag_file_check_crc32(file, fd, crc32, problem)) ||
               bag_file_reject(file->path, problem)) &&
              bag_file_check_unchanged(file, fd, problem);
    close(fd);
    return ok;
}

/* Progress over all files of a table. */
struct parts_progress {
    bag_load_progress *progress;
    void *context;
    size_t before_bytes, total_bytes;
};

static void on_part_progress(void *context, size_t done_bytes, size_t total_bytes)
{
    const struct parts_progress *parts = context;
    (void)total_bytes;
    if (parts->progress)
        parts->progress(parts->context, parts->before_bytes + done_bytes, parts->total_bytes);
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
static void log_pages(const char *path, struct bag_table_memory *memory)
{
    if (memory->mapping_bytes < LARGE_BYTES)
        return;
    memory->huge_bytes = bag_pages_huge(memory->mapping, memory->mapping_bytes);
    bag_log(BAG_LOG_LEVEL_INFO, "table in memory", BAG_LOG_TEXT("file", path),
            BAG_LOG_NUMBER("bytes", memory->mapping_bytes),
            BAG_LOG_NUMBER("huge_page_bytes", memory->huge_bytes));
}

bool bag_table_load_parts(const struct bag_table_file *files, size_t count, size_t spare_rows,
                          const struct bag_load_options *options, struct bag_table_memory *memory,
                          struct bag_problem *problem)
{
    const struct bag_npy *npy = &files[0].npy;
    struct parts_progress parts = {.progress = options->progress, .context = options->context};
    struct bag_load_options part_options = *options;
    int64_t shape[BAG_MAX_RANK];
    memcpy(shape, npy->shape, sizeof shape);
    for (size_t i = 1; i < count; i++)
        shape[0] += files[i].npy.shape[0];
    for (size_t i = 0; i < count; i++)
        parts.total_bytes += files[i].npy.data_bytes;
    if (!allocate_parts(npy, shape, parts.total_bytes, spare_rows, memory, problem))
        return bag_file_reject(files[0].path, problem);
    part_options.progress = on_part_progress;
    part_options.context = &parts;
    for (size_t i = 0; i < count; i++) {
        if (!load_file(&files[i], &part_options, (char *)memory->mapping + parts.before_bytes,
                       problem)) {
            bag_table_unload(memory);
            return false;
        }
        parts.before_bytes += files[i].npy.data_bytes;
    }
    log_pages(files[0].path, memory);
    return true;
}

bool bag_table_load(const struct bag_table_file *file, unsigned threads,
                    bag_load_progress *progress, void *context, struct bag_table_memory *memory,
                    struct bag_problem *problem)
{
    const struct bag_load_options options = {
        .threads = threads, .progress = progress, .context = context};
    return bag_table_load_parts(file, 1, 0, &options, memory, problem);
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
    if (!bag_table_load(matrix, 1, NULL, NULL, &memory->matrix, problem) ||
        (bias && !bag_table_load(bias, 1, NULL, NULL, &memory->bias, problem))) {
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
