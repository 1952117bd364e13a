/* Mapping tables and prefetching their rows; see map.h. */
#include "map.h"

#include "server/memory/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Read at a time to warm a table. */
#define WARM_BYTES ((size_t)16 << 20)

/* A pidfd of this process, for process_madvise(); -1: none can be had. */
static int self = -1;

/* ---- prefetching ----------------------------------------------------------------------------- */

bool bag_map_prefetch_begin(struct bag_map_prefetch *prefetch, struct bag_map *map)
{
    prefetch->map = map;
    prefetch->count = 0;
    return atomic_load_explicit(&map->quiet_jobs, memory_order_relaxed) < BAG_MAP_QUIET_JOBS;
}

/* One call for all ranges needs Linux 5.10, and up to 6.12 a capability. */
void bag_map_prefetch_end(struct bag_map_prefetch *prefetch)
{
    size_t count = prefetch->count;
    prefetch->count = 0;
    if (count == 0 || (self >= 0 && syscall(SYS_process_madvise, self, prefetch->ranges, count,
                                            MADV_WILLNEED, 0) >= 0))
        return;
    for (size_t i = 0; i < count; i++)
        madvise(prefetch->ranges[i].iov_base, prefetch->ranges[i].iov_len, MADV_WILLNEED);
}

void bag_map_prefetch_row(struct bag_map_prefetch *prefetch, int64_t row)
{
    const struct bag_map *map = prefetch->map;
    size_t begin = map->data_offset + (size_t)row * map->row_bytes;
    size_t first = begin / map->page_bytes * map->page_bytes;
    char *at = map->start + first;
    struct iovec *last = &prefetch->ranges[prefetch->count - (prefetch->count > 0)];
    if (prefetch->count && at >= (char *)last->iov_base &&
        begin + map->row_bytes <= (size_t)((char *)last->iov_base - map->start) + last->iov_len)
        return;
    if (prefetch->count == BAG_MAP_PREFETCH_RANGES)
        bag_map_prefetch_end(prefetch);
    prefetch->ranges[prefetch->count++] =
        (struct iovec){at, bag_map_pages(map, begin + map->row_bytes - first) * map->page_bytes};
}

/* ---- mapping --------------------------------------------------------------------------------- */

static bool check_mappable(const struct bag_npy *npy, struct bag_problem *problem)
{
    if (npy->count == 0)
        return true;
    if (npy->swap)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "its elements are big-endian, which load map cannot turn; say load "
                               "copy, or convert the file");
    if (!bag_npy_is_plain(npy))
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "it is column-major, which load map cannot turn; say load copy, or "
                               "convert the file");
    return true;
}

bool bag_table_can_map(const struct bag_table_file *file, struct bag_problem *problem)
{
    return check_mappable(&file->npy, problem) || bag_file_reject(file->path, problem);
}

/* Reads it all by the file's descriptor, ahead of the pages that are then only entered. */
static bool warm(const struct bag_map *map, const struct bag_load_options *options,
                 struct bag_problem *problem)
{
    posix_fadvise(map->fd, (off_t)map->file_offset, (off_t)WARM_BYTES, POSIX_FADV_WILLNEED);
    for (size_t done = 0, told = 0; done < map->bytes;) {
        size_t bytes = map->bytes - done < WARM_BYTES ? map->bytes - done : WARM_BYTES;
        posix_fadvise(map->fd, (off_t)(map->file_offset + done + bytes), (off_t)WARM_BYTES,
                      POSIX_FADV_WILLNEED);
        if (madvise(map->start + done, bytes, MADV_POPULATE_READ) != 0 && errno == EFAULT)
            return bag_problem_set(problem, BAG_ERROR_FILE,
                                   "it could not be read, or shrank meanwhile; publish a table by "
                                   "renaming a complete file");
        done += bytes;
        size_t read = done < map->bytes ? done - map->data_offset : map->data_bytes;
        bag_load_tell(options, read - told);
        told = read;
    }
    return true;
}

static bool lock_pages(struct bag_map *map, struct bag_problem *problem)
{
    struct rlimit limit;
    if (mlock(map->start, map->bytes) == 0) {
        map->locked_bytes = map->bytes;
        bag_pages_count(map->locked_bytes);
        return true;
    }
    int error = errno;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur < map->bytes)
        return bag_problem_set(problem, BAG_ERROR_SYSTEM,
                               "%s cannot be locked in memory: %s; the limit of locked memory "
                               "(ulimit -l, LimitMEMLOCK=) is %s",
                               bag_format_bytes(map->bytes).text, strerror(error),
                               bag_format_bytes((size_t)limit.rlim_cur).text);
    return bag_problem_set(problem, BAG_ERROR_SYSTEM, "%s cannot be locked in memory: %s",
                           bag_format_bytes(map->bytes).text, strerror(error));
}

/* The file is open; what it holds is where *npy says. */
static bool map_file(struct bag_map *map, const struct bag_npy *npy,
                     const struct bag_load_options *options, struct bag_problem *problem)
{
    struct stat state;
    map->file_offset = npy->data_offset / map->page_bytes * map->page_bytes;
    map->data_offset = npy->data_offset - map->file_offset;
    map->data_bytes = npy->data_bytes;
    map->row_bytes = npy->data_bytes / (size_t)npy->shape[0];
    map->bytes = bag_map_pages(map, map->data_offset + map->data_bytes) * map->page_bytes;
    void *start = mmap(NULL, map->bytes, PROT_READ, MAP_SHARED, map->fd, (off_t)map->file_offset);
    if (start == MAP_FAILED)
        return bag_problem_set(problem, BAG_ERROR_SYSTEM, "it cannot be mapped: %s",
                               strerror(errno));
    map->start = start;
    if (!bag_map_register(map))
        return bag_problem_no_memory(problem);
    if (fstat(map->fd, &state) != 0)
        return bag_problem_set(problem, BAG_ERROR_FILE, "cannot be read: %s", strerror(errno));
    atomic_store(&map->file_bytes, bag_map_file_bytes(map, &state));
    atomic_store(&map->state, bag_map_state(&state));
    if (map->residence != BAG_MAP_ON_DEMAND && !warm(map, options, problem))
        return false;
    madvise(map->start, map->bytes, MADV_RANDOM);
    return map->residence != BAG_MAP_LOCKED || lock_pages(map, problem);
}

/* Before the first table is published; later calls do nothing. */
static void open_self(void)
{
    static bool is_tried;
    if (!is_tried)
        self = (int)syscall(SYS_pidfd_open, getpid(), 0);
    is_tried = true;
}

/* Of the open descriptor `fd`, which is the map's from then on; NULL without memory. */
static struct bag_map *create(const char *path, int fd, enum bag_map_residence residence)
{
    struct bag_map *map = calloc(1, sizeof *map);
    char *copy = strdup(path);
    if (!map || !copy) {
        free(map);
        free(copy);
        close(fd);
        return NULL;
    }
    map->path = copy;
    map->fd = fd;
    map->page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    map->residence = residence;
    pthread_mutex_init(&map->lock, NULL);
    return map;
}

bool bag_table_map(const struct bag_table_file *file, enum bag_map_residence residence,
                   const struct bag_load_options *options, struct bag_table_memory *memory,
                   struct bag_problem *problem)
{
    const struct bag_npy *npy = &file->npy;
    if (npy->count == 0)
        return bag_table_load(file, 1, 0, options, memory, problem);
    if (!bag_table_can_map(file, problem))
        return false;
    if (!bag_map_catch_sigbus(problem))
        return bag_file_reject(file->path, problem);
    open_self();
    int fd = bag_file_reopen(file, problem);
    if (fd < 0)
        return false;
    struct bag_map *map = create(file->path, fd, residence);
    if (!map)
        bag_problem_no_memory(problem);
    if (!map || !map_file(map, npy, options, problem)) {
        bag_map_free(map);
        return bag_file_reject(file->path, problem);
    }
    bag_table_describe(npy->dtype, npy->rank, npy->shape, npy->row_elements,
                       map->start + map->data_offset, memory);
    memory->map = map;
    return true;
}

void bag_map_free(struct bag_map *map)
{
    if (!map)
        return;
    bag_map_unregister(map);
    if (map->start)
        munmap(map->start, map->bytes);
    bag_pages_uncount(map->locked_bytes);
    pthread_mutex_destroy(&map->lock);
    close(map->fd);
    free(map->path);
    free(map);
}
