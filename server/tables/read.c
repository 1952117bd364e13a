/* Reading elements by several threads; see read.h.
 *
 * A file in C order is split into blocks. A tile of a column-major file has as many columns as fit,
 * so that a reader writes whole rows and fills each cache line of the table once instead of once
 * per column. If rows go through a sink, a tile has whole rows. */
#include "read.h"

#include "server/memory/memory.h"
#include "server/system/thread_team.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>
#include <uv.h>

/* The usual size of a tile, which a reader reads before it takes the next one. A single row may be
 * larger. */
#define TILE_BYTES ((size_t)8 << 20)
/* The minimum number of bytes that is read at one position, however many columns there are. */
#define RUN_BYTES ((size_t)64 << 10)
/* The maximum of one call. Kernels without preemption let no other thread run until a call has
 * copied its bytes, however low the priority of the caller is: a loop waited 5 ms for 8 MiB. */
#define PIECE_BYTES ((size_t)512 << 10)
/* With a rate limit, one call reads what the limit allows in this fraction of a second, so that
 * progress is reported and cancelling noticed soon. */
#define PIECES_PER_S 10

#define NS_PER_S 1000000000
/* The maximum time until a reader that waits for the rate limit notices that loading was cancelled.
 */
#define MAX_NAP_NS (NS_PER_S / 20)

/* ---- tiles ----------------------------------------------------------------------------------- */

/* The division of a file's elements into tiles, which readers take one after the other. */
struct tiling {
    size_t elements; /* number in each column of a tile */
    size_t columns;  /* in a tile */
    size_t down;     /* tiles along a column */
    size_t count;    /* number of tiles */
    size_t bytes;    /* size of the largest tile */
};

static size_t within(size_t value, size_t low, size_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* Returns the tiles of a file with at least one element. */
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

/* Returns how many elements of a row follow each other in the file. */
static size_t run_of_row(const struct bag_npy *npy)
{
    return npy->fortran_order ? 1 : npy->row_elements;
}

/* Returns tiles of whole rows, at most `max_rows` in each. */
static struct tiling row_tiling_of(const struct bag_npy *npy, size_t max_rows)
{
    struct tiling tiling = {.columns = npy->num_columns};
    size_t row_bytes = npy->row_elements * bag_dtypes[npy->dtype].bytes;
    size_t rows = within(TILE_BYTES / row_bytes, 1, within(max_rows, 1, (size_t)npy->shape[0]));
    tiling.elements = rows * run_of_row(npy);
    tiling.down = tiling.count = (npy->column_elements + tiling.elements - 1) / tiling.elements;
    tiling.bytes = rows * row_bytes;
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

/* On the stack of the calling thread, which outlives the readers. */
struct reading {
    /* Set before the readers start. */
    int fd;
    const struct bag_npy *npy;
    struct tiling tiling;
    size_t piece_bytes;  /* maximum of one call */
    unsigned char *rows; /* the destination; NULL: the sink */
    const struct bag_rows_sink *sink;
    const struct bag_load_options *options;
    uint32_t crc32;  /* CRC-32 of the elements: the XOR of its parts; atomic */
    bool has_crc32;  /* crc32 is computed */
    bool gives_back; /* pages of the page cache, after they were read */

    struct bag_thread_team team; /* counts bytes; its lock guards the members below */
    size_t next_tile;
    uint64_t next_ns; /* monotonic time when the next piece may be read */
};

static bool is_cancelled(const struct reading *reading)
{
    const atomic_bool *cancelled = reading->options->cancelled;
    return cancelled && atomic_load_explicit(cancelled, memory_order_relaxed);
}

/* Returns the maximum size of one call of pread(). */
static size_t piece_bytes_of(const struct bag_load_options *options)
{
    if (!options->bytes_per_second)
        return PIECE_BYTES;
    return within(options->bytes_per_second / PIECES_PER_S, RUN_BYTES, PIECE_BYTES);
}

/* Takes the next tile. Returns false if there is none, or another reader has failed. */
static bool next_tile(struct reading *reading, struct bag_npy_tile *tile)
{
    pthread_mutex_lock(&reading->team.lock);
    bool more = !reading->team.failed && reading->next_tile < reading->tiling.count;
    if (more)
        *tile = tile_at(reading->npy, &reading->tiling, reading->next_tile++);
    pthread_mutex_unlock(&reading->team.lock);
    return more;
}

/* ---- the page cache -------------------------------------------------------------------------- */

/* The number of places at which a file is examined before it is read. */
#define PLACES 64

/* Returns whether most of a file's elements must be read from the disk. Returns false if the file
 * system does not say. */
static bool is_on_disk(int fd, const struct bag_npy *npy)
{
    size_t missing = 0;
    char byte;
    struct iovec piece = {&byte, 1};
    for (size_t i = 0; i < PLACES; i++) {
        off_t at = (off_t)(npy->data_offset + npy->data_bytes / PLACES * i);
        missing += preadv2(fd, &piece, 1, at, RWF_NOWAIT) < 0 && errno == EAGAIN;
    }
    return missing > PLACES / 2;
}

/* Drops pages of the file that this process brought into the page cache. The table is in memory
 * already, and a second copy would push out pages of other files, such as mapped tables. The next
 * piece gets the memory that this one gives back. It is faster than memory that nobody had before,
 * above all on a virtual machine. This is advice, and may fail. */
static void give_back(int fd, off_t at, size_t bytes)
{
    posix_fadvise(fd, at, (off_t)bytes, POSIX_FADV_DONTNEED);
}

/* ---- one reader ------------------------------------------------------------------------------ */

/* Reads elements from number `first` on, in the file's order. */
static bool read_run(struct reading *reading, size_t first, size_t elements, unsigned char *out,
                     struct bag_problem *problem)
{
    const unsigned char *start = out;
    size_t bytes = elements * bag_dtypes[reading->npy->dtype].bytes;
    off_t begin =
        (off_t)(reading->npy->data_offset + first * bag_dtypes[reading->npy->dtype].bytes);
    off_t at = begin;
    while (bytes > 0) {
        size_t piece = within(bytes, 1, reading->piece_bytes);
        /* Wait until the rate limit of all readers together allows this many bytes. */
        double rate = (double)reading->options->bytes_per_second;
        uint64_t at_ns = 0, now_ns = uv_hrtime();
        if (reading->options->bytes_per_second) {
            pthread_mutex_lock(&reading->team.lock);
            at_ns = reading->next_ns > now_ns ? reading->next_ns : now_ns;
            reading->next_ns = at_ns + (uint64_t)((double)piece / rate * NS_PER_S);
            pthread_mutex_unlock(&reading->team.lock);
        }
        /* Sleep in short naps, so that cancelling takes effect soon. */
        for (uint64_t now; (now = uv_hrtime()) < at_ns && !is_cancelled(reading);) {
            uint64_t nap_ns = at_ns - now < MAX_NAP_NS ? at_ns - now : MAX_NAP_NS;
            nanosleep(&(struct timespec){.tv_nsec = (long)nap_ns}, NULL);
        }
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
        bag_thread_team_did(&reading->team, (size_t)got);
    }
    if (reading->gives_back)
        give_back(reading->fd, begin, elements * bag_dtypes[reading->npy->dtype].bytes);
    /* Add elements to the CRC-32 of all. Readers finish in any order, so each part is combined by
     * the number of bytes that follow it. */
    size_t element_bytes = bag_dtypes[reading->npy->dtype].bytes;
    size_t behind = reading->npy->data_bytes - (first + elements) * element_bytes;
    if (reading->has_crc32)
        __atomic_fetch_xor(&reading->crc32,
                           bag_npz_crc32_part(start, elements * element_bytes, behind),
                           __ATOMIC_RELAXED);
    return true;
}

/* Reads a tile column after column, or in one run if it has whole columns. */
static bool read_tile(struct reading *reading, struct bag_npy_tile tile, unsigned char *out,
                      struct bag_problem *problem)
{
    size_t column_elements = reading->npy->column_elements;
    size_t stride = reading->npy->column_stride;
    size_t first = tile.first_column * stride + tile.first;
    if (tile.count == column_elements && stride == column_elements)
        return read_run(reading, first, tile.num_columns * tile.count, out, problem);
    size_t run_bytes = tile.count * bag_dtypes[reading->npy->dtype].bytes;
    for (size_t i = 0; i < tile.num_columns; i++)
        if (!read_run(reading, first + i * stride, tile.count, out + i * run_bytes, problem))
            return false;
    return true;
}

/* Reads tiles of a file in the table's order directly into the table. */
static bool read_into_place(struct reading *reading, struct bag_problem *problem)
{
    struct bag_npy_tile tile;
    size_t element_bytes = bag_dtypes[reading->npy->dtype].bytes;
    while (next_tile(reading, &tile))
        if (!read_tile(reading, tile, reading->rows + tile.first * element_bytes, problem))
            return false;
    return true;
}

/* Reads tiles of a file in another order into a block, and places their elements in the table. */
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

/* Passes the rows of a tile to the sink in the table's order, by way of `rows` if the file has
 * another order. */
static bool sink_tile(struct reading *reading, struct bag_npy_tile tile, const unsigned char *block,
                      unsigned char *rows, struct bag_problem *problem)
{
    const struct bag_rows_sink *sink = reading->sink;
    size_t run = run_of_row(reading->npy), first_row = tile.first / run;
    if (bag_npy_is_plain(reading->npy))
        return sink->put(sink->context, first_row, tile.count / run, block, problem);
    tile.first = 0;
    bag_npy_place(reading->npy, tile, block, rows);
    return sink->put(sink->context, first_row, tile.count / run, rows, problem);
}

/* Reads tiles of whole rows and passes them to the sink. */
static bool read_and_sink(struct reading *reading, struct bag_problem *problem)
{
    struct bag_npy_tile tile;
    size_t bytes = reading->tiling.bytes;
    unsigned char *block = bag_memory_map(bytes, problem), *rows = NULL;
    bool ok = block && (bag_npy_is_plain(reading->npy) || (rows = bag_memory_map(bytes, problem)));
    while (ok && next_tile(reading, &tile))
        ok = read_tile(reading, tile, block, problem) &&
             sink_tile(reading, tile, block, rows, problem);
    if (block)
        bag_memory_unmap(block, bytes);
    if (rows)
        bag_memory_unmap(rows, bytes);
    return ok;
}

static bool run_reader(void *context, struct bag_problem *problem)
{
    struct reading *reading = context;
    if (reading->sink)
        return read_and_sink(reading, problem);
    return bag_npy_is_plain(reading->npy) ? read_into_place(reading, problem)
                                          : read_and_place(reading, problem);
}

/* Runs on the thread that waits for the readers. */
static void report_progress(void *context, size_t bytes)
{
    bag_load_progress(((const struct reading *)context)->options, bytes);
}

/* Sets *crc32 if the file states one. */
static bool read_elements(int fd, const struct bag_table_file *file,
                          const struct bag_load_options *options, void *rows,
                          const struct bag_rows_sink *sink, uint32_t *crc32,
                          struct bag_problem *problem)
{
    const struct bag_npy *npy = &file->npy;
    if (npy->count == 0)
        return true;
    struct reading reading = {.fd = fd,
                              .npy = npy,
                              .tiling = sink ? row_tiling_of(npy, sink->max_rows) : tiling_of(npy),
                              .piece_bytes = piece_bytes_of(options),
                              .rows = rows,
                              .sink = sink,
                              .options = options,
                              .has_crc32 = file->has_crc32,
                              .gives_back = is_on_disk(fd, npy)};
    /* More is read ahead. This is advice, too. */
    if (!npy->fortran_order)
        posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    unsigned wanted = (unsigned)within(options->threads, 1, reading.tiling.count);
    bag_thread_team_init(&reading.team);
    bool ok =
        bag_thread_team_run(&reading.team, wanted, run_reader, report_progress, &reading, problem);
    bag_thread_team_free(&reading.team);
    *crc32 = reading.crc32;
    return ok;
}

bool bag_file_load(const struct bag_table_file *file, const struct bag_load_options *options,
                   void *rows, const struct bag_rows_sink *sink, struct bag_problem *problem)
{
    int fd = bag_file_reopen(file, problem);
    if (fd < 0)
        return false;
    uint32_t crc32 = 0;
    bool ok = ((read_elements(fd, file, options, rows, sink, &crc32, problem) &&
                bag_file_check_crc32(file, fd, crc32, problem)) ||
               bag_file_reject(file->path, problem)) &&
              bag_file_check_unchanged(file, fd, problem);
    close(fd);
    return ok;
}
