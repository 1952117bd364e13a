/* Parallel reading in large tiles; see read.h.
 *
 * A file in C order is cut into blocks. Of a column-major one a tile takes a piece of as many
 * columns as fit: so each reader writes whole rows, and the table's cache lines are filled at
 * once instead of once per column. */
#include "read.h"
#include "memory.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
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

/* Lives on the stack of the thread that called bag_table_read, which outlives the readers. */
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
            return bag_problem_set(problem, 500, "reading at byte %lld failed: %s", (long long)at,
                                   strerror(errno));
        if (got == 0)
            return bag_problem_set(problem, 500,
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
        bag_problem_set(&reading->problem, 500, "no thread can be started: %s", strerror(error));
    }
    pthread_mutex_unlock(&reading->lock);
    return started;
}

bool bag_table_read(int fd, const struct bag_npy *npy, unsigned threads,
                    bag_load_progress *progress, void *context, void *rows,
                    struct bag_problem *problem)
{
    if (npy->count == 0)
        return true;
    struct reading reading = {.fd = fd, .npy = npy, .tiling = tiling_of(npy), .rows = rows};
    unsigned wanted = (unsigned)within(threads, 1, reading.tiling.count);
    pthread_t *readers = calloc(wanted, sizeof *readers);
    if (!readers)
        return bag_problem_set(problem, 500, "no memory for %u readers", wanted);
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
