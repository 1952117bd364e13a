/* Table files are opened, checked, loaded and unloaded; see load.h.
 *
 * Elements are read in parallel, in large tiles. A file in C order is split into blocks. Of a
 * column-major one a tile takes a range of as many columns as fit: so each reader writes whole
 * rows, and the table's cache lines are filled at once instead of once per column. */
#include "load.h"

#include "server/memory/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TILE_BYTES ((size_t)8 << 20)
/* The least that is read at one place, however many columns there are. */
#define RUN_BYTES ((size_t)64 << 10)

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
    unsigned char *rows;

    pthread_mutex_t lock;   /* guards what follows */
    pthread_cond_t changed; /* signalled when a tile is done and when a reader ends */
    size_t next_tile;
    size_t done_bytes;
    unsigned running; /* readers that have not ended */
    bool failed;      /* the first failure, which `problem` describes, stops all readers */
    struct bag_problem problem;
};

static bool next_tile(struct reading *reading, struct bag_npy_tile *tile)
{
    pthread_mutex_lock(&reading->lock);
    bool more = !reading->failed && reading->next_tile < reading->tiling.count;
    if (more)
        *tile = tile_at(reading->npy, &reading->tiling, reading->next_tile++);
    pthread_mutex_unlock(&reading->lock);
    return more;
}

static void tile_done(struct reading *reading, struct bag_npy_tile tile)
{
    size_t elements = tile.count * tile.num_columns;
    pthread_mutex_lock(&reading->lock);
    reading->done_bytes += elements * bag_dtypes[reading->npy->dtype].bytes;
    pthread_cond_signal(&reading->changed);
    pthread_mutex_unlock(&reading->lock);
}

static void reader_ends(struct reading *reading, const struct bag_problem *problem)
{
    pthread_mutex_lock(&reading->lock);
    if (problem && !reading->failed) {
        reading->failed = true;
        reading->problem = *problem;
    }
    reading->running--;
    pthread_cond_signal(&reading->changed);
    pthread_mutex_unlock(&reading->lock);
}

/* ---- one reader ------------------------------------------------------------------------------ */

/* Reads the elements from the file's `first` on, in the file's order. */
static bool read_run(const struct reading *reading, size_t first, size_t elements,
                     unsigned char *out, struct bag_problem *problem)
{
    size_t bytes = elements * bag_dtypes[reading->npy->dtype].bytes;
    off_t at = (off_t)(reading->npy->data_offset + first * bag_dtypes[reading->npy->dtype].bytes);
    while (bytes > 0) {
        ssize_t got = pread(reading->fd, out, bytes, at);
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
    }
    return true;
}

/* Column after column; one run where the tile holds its columns whole. */
static bool read_tile(const struct reading *reading, struct bag_npy_tile tile, unsigned char *out,
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
    while (next_tile(reading, &tile)) {
        if (!read_tile(reading, tile, reading->rows + tile.first * element_bytes, problem))
            return false;
        tile_done(reading, tile);
    }
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
        if (ok) {
            bag_npy_place(reading->npy, tile, block, reading->rows);
            tile_done(reading, tile);
        }
    }
    bag_memory_unmap(block, reading->tiling.bytes);
    return ok;
}

static void *run_reader(void *argument)
{
    struct reading *reading = argument;
    struct bag_problem problem;
    bool ok = bag_npy_is_plain(reading->npy) ? read_into_place(reading, &problem)
                                             : read_and_place(reading, &problem);
    reader_ends(reading, ok ? NULL : &problem);
    return NULL;
}

/* ---- the thread that waits for them ---------------------------------------------------------- */

/* Returns when all readers have ended and their last progress is told. The lock is free while
 * `progress` runs. */
static void wait_for_readers(struct reading *reading, bag_load_progress *progress, void *context)
{
    size_t told = 0;
    pthread_mutex_lock(&reading->lock);
    for (;;) {
        size_t done = reading->done_bytes;
        if (progress && done != told) {
            pthread_mutex_unlock(&reading->lock);
            progress(context, done, reading->npy->data_bytes);
            pthread_mutex_lock(&reading->lock);
            told = done;
        } else if (reading->running > 0) {
            pthread_cond_wait(&reading->changed, &reading->lock);
        } else {
            break;
        }
    }
    pthread_mutex_unlock(&reading->lock);
}

/* Fewer readers than asked for are enough; none is a failure. */
static unsigned start_readers(struct reading *reading, pthread_t *readers, unsigned wanted)
{
    unsigned started = 0;
    int error = 0;
    reading->running = wanted;
    while (started < wanted &&
           (error = pthread_create(&readers[started], NULL, run_reader, reading)) == 0)
        started++;
    pthread_mutex_lock(&reading->lock);
    reading->running -= wanted - started;
    if (started == 0) {
        reading->failed = true;
        bag_problem_set(&reading->problem, BAG_ERROR_SYSTEM, "no thread can be started: %s",
                        strerror(error));
    }
    pthread_mutex_unlock(&reading->lock);
    return started;
}

/* Reads all elements into `rows`, which has npy->data_bytes. `progress` (may be NULL) is called by
 * the caller's own thread. */
static bool read_all(int fd, const struct bag_npy *npy, unsigned threads,
                     bag_load_progress *progress, void *context, void *rows,
                     struct bag_problem *problem)
{
    if (npy->count == 0)
        return true;
    struct reading reading = {.fd = fd, .npy = npy, .tiling = tiling_of(npy), .rows = rows};
    unsigned wanted = (unsigned)within(threads, 1, reading.tiling.count);
    pthread_t *readers = calloc(wanted, sizeof *readers);
    if (!readers)
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "no memory for %u readers", wanted);
    pthread_mutex_init(&reading.lock, NULL);
    pthread_cond_init(&reading.changed, NULL);
    unsigned started = start_readers(&reading, readers, wanted);
    wait_for_readers(&reading, progress, context);
    for (unsigned i = 0; i < started; i++)
        pthread_join(readers[i], NULL);
    pthread_cond_destroy(&reading.changed);
    pthread_mutex_destroy(&reading.lock);
    free(readers);
    if (reading.failed)
        *problem = reading.problem;
    return !reading.failed;
}

/* ---- looking at a file ----------------------------------------------------------------------- */

/* Opens a regular file and no other: a FIFO would block, a device has no size. -1: rejected. */
static int open_regular(const char *path, struct stat *state, struct bag_problem *problem)
{
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, state) != 0) {
        bag_problem_set(problem, BAG_ERROR_FILE, "cannot be opened: %s", strerror(errno));
    } else if (S_ISDIR(state->st_mode)) {
        bag_problem_set(problem, BAG_ERROR_FILE, "is a directory; name an .npy file");
    } else if (!S_ISREG(state->st_mode)) {
        bag_problem_set(problem, BAG_ERROR_FILE, "is not a regular file; name an .npy file");
    } else {
        return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

/* Reads up to `bytes` from the file's start; returns how many there were, or -1. */
static ssize_t read_start(int fd, void *out, size_t bytes, struct bag_problem *problem)
{
    size_t have = 0;
    while (have < bytes) {
        ssize_t got = pread(fd, (char *)out + have, bytes - have, (off_t)have);
        if (got == 0)
            break;
        if (got > 0)
            have += (size_t)got;
        else if (errno != EINTR) {
            bag_problem_set(problem, BAG_ERROR_FILE, "reading failed: %s", strerror(errno));
            return -1;
        }
    }
    return (ssize_t)have;
}

static bool check_size(const struct bag_npy *npy, size_t file_bytes, struct bag_problem *problem)
{
    /* A file that just grew may have a header beyond the size that was seen. */
    size_t data_bytes = file_bytes < npy->data_offset ? 0 : file_bytes - npy->data_offset;
    if (data_bytes < npy->data_bytes)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "the file is truncated: it has %zu bytes of data, the header "
                               "promises %zu",
                               data_bytes, npy->data_bytes);
    if (data_bytes > npy->data_bytes)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "the file is too long: it has %zu bytes of data, the header "
                               "promises %zu; one file holds one array",
                               data_bytes, npy->data_bytes);
    return true;
}

static bool read_header(int fd, size_t file_bytes, enum bag_dtype override_dtype,
                        struct bag_npy *npy, struct bag_problem *problem)
{
    unsigned char preamble[BAG_NPY_PREAMBLE_BYTES];
    ssize_t have = read_start(fd, preamble, sizeof preamble, problem);
    if (have < 0)
        return false;
    size_t header_bytes = bag_npy_header_bytes(preamble, (size_t)have);
    if (header_bytes == 0) /* which the parser explains */
        return bag_npy_parse(preamble, (size_t)have, override_dtype, npy, problem);
    char *header = malloc(header_bytes);
    if (!header)
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "no memory for a header of %zu bytes",
                               header_bytes);
    have = read_start(fd, header, header_bytes, problem);
    bool ok = have >= 0 && bag_npy_parse(header, (size_t)have, override_dtype, npy, problem);
    free(header);
    if (ok && npy->rank == 0) {
        bag_problem_from_fault(problem, &(struct bag_fault){.status = BAG_STATUS_TABLE_RANK});
        problem->kind = BAG_ERROR_FILE;
        return false;
    }
    return ok && check_size(npy, file_bytes, problem);
}

/* Every rejection begins with the file. */
static bool name_file(const char *path, struct bag_problem *problem)
{
    bag_problem_prefix(problem, "%s", path);
    return false;
}

bool bag_table_file_open(const char *path, enum bag_dtype override_dtype,
                         struct bag_table_file *file, struct bag_problem *problem)
{
    struct stat state;
    int fd = open_regular(path, &state, problem);
    if (fd < 0)
        return name_file(path, problem);
    bool ok = read_header(fd, (size_t)state.st_size, override_dtype, &file->npy, problem);
    close(fd);
    file->path = path;
    file->device = state.st_dev;
    file->inode = state.st_ino;
    file->bytes = (uint64_t)state.st_size;
    file->modified = state.st_mtim;
    return ok || name_file(path, problem);
}

size_t bag_table_file_bytes(const struct bag_table_file *file)
{
    return file->npy.data_bytes;
}

/* ---- memory of tables
 * ---------------------------------------------------------------------------------- */

static bool allocate(enum bag_dtype dtype, uint32_t rank, const int64_t *shape, size_t row_elements,
                     size_t bytes, struct bag_table_memory *memory, struct bag_problem *problem)
{
    /* What a table without elements points to: nothing reads it. */
    static const _Alignas(64) char nothing[64];
    memset(memory, 0, sizeof *memory);
    memory->table.rows = nothing;
    memory->table.dtype = dtype;
    memory->table.num_rows = shape[0];
    memory->table.row_elements = row_elements;
    memory->rank = rank;
    memcpy(memory->shape, shape, rank * sizeof *shape);
    if (bytes == 0)
        return true;
    memory->mapping = bag_memory_map(bytes, problem);
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
    bag_memory_unmap(memory->mapping, memory->mapping_bytes);
    memset(memory, 0, sizeof *memory);
}

/* ---- loading --------------------------------------------------------------------------------- */

static bool same_state(const struct bag_table_file *file, const struct stat *state)
{
    return file->device == state->st_dev && file->inode == state->st_ino &&
           file->bytes == (uint64_t)state->st_size &&
           file->modified.tv_sec == state->st_mtim.tv_sec &&
           file->modified.tv_nsec == state->st_mtim.tv_nsec;
}

static bool reject_changed(const char *when, struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_FILE,
                           "the file changed %s; publish a table by renaming a complete file",
                           when);
}

/* Reads the elements, and makes sure that nobody wrote to the file before or meanwhile. */
static bool read_elements(int fd, const struct bag_table_file *file, unsigned threads,
                          bag_load_progress *progress, void *context,
                          struct bag_table_memory *memory, struct bag_problem *problem)
{
    struct stat state;
    if (!read_all(fd, &file->npy, threads, progress, context, memory->mapping, problem))
        return false;
    if (fstat(fd, &state) != 0 || !same_state(file, &state))
        return reject_changed("while it was read", problem);
    return true;
}

static bool load_open(int fd, const struct bag_table_file *file, unsigned threads,
                      bag_load_progress *progress, void *context, struct bag_table_memory *memory,
                      struct bag_problem *problem)
{
    const struct bag_npy *npy = &file->npy;
    if (!allocate(npy->dtype, npy->rank, npy->shape, npy->row_elements, npy->data_bytes, memory,
                  problem))
        return false;
    if (read_elements(fd, file, threads, progress, context, memory, problem))
        return true;
    bag_table_unload(memory);
    return false;
}

bool bag_table_load(const struct bag_table_file *file, unsigned threads,
                    bag_load_progress *progress, void *context, struct bag_table_memory *memory,
                    struct bag_problem *problem)
{
    struct stat state;
    int fd = open_regular(file->path, &state, problem);
    if (fd < 0)
        return name_file(file->path, problem);
    bool ok = same_state(file, &state)
                  ? load_open(fd, file, threads, progress, context, memory, problem)
                  : reject_changed("after it was checked", problem);
    close(fd);
    return ok || name_file(file->path, problem);
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
