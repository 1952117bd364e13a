/* Mapped files; see map.h.
 *
 * Holes are private pages of zeros over the file's. After the file's end one range of them reaches
 * to the end of the mapping, so that a truncated file needs few mappings. Within the file, if the
 * disk fails, a hole is one page.
 *
 * A job that read zeros always finds out: a refresh waits until no thread is between making or
 * filling a hole and counting that. Afterwards either the epoch differs or the hole is marked. A
 * handler may be late and make a hole where the file has grown again: the next refresh fills it. */
#include "map.h"

#include "server/memory/memory.h"
#include "server/system/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <uv.h>

/* The bytes read at a time to warm a table. */
#define WARM_BYTES ((size_t)16 << 20)

/* A pidfd of this process, for process_madvise(); -1: there is none. */
static int self = -1;

/* After this many jobs in a row without a read from the disk nothing is prefetched. */
#define QUIET_JOBS 16

/* A page that could not be read is tried again after this time. */
#define RETRY_NS UINT64_C(1000000000)

/* A page that was touched is taken to be in memory for this time, and only while some row of its
 * file was touched within the second one. In units of bag_map_time(). */
#define KEPT_TIME    40
#define WATCHED_TIME 4

/* Bits in a word of the bitmap of holes. */
#define WORD_BITS (8 * sizeof(unsigned long))

struct bag_map {
    /* Set before the table is published. */
    char *path; /* owned */
    int fd;
    enum bag_map_residence residence;
    char *start; /* first page of the mapping */
    size_t bytes;
    size_t page_bytes;
    unsigned page_shift;  /* page_bytes is 2 to this power */
    uint64_t file_offset; /* position of `start` in the file */
    size_t data_offset;   /* distance of the first row from `start` */
    size_t data_bytes;
    size_t row_bytes;
    size_t locked_bytes; /* counted as memory of tables */

    atomic_bool is_locked;         /* all pages are in memory, and stay there */
    _Atomic uint32_t *touched;     /* owned; time when each page was last touched, 0: never */
    _Atomic uint32_t last_touched; /* the latest of these */
    _Atomic uint32_t last_read;    /* time when a job last read from the disk */

    atomic_uint quiet_jobs;   /* consecutive jobs without a read from the disk */
    atomic_size_t file_bytes; /* after `start`, that the file had at the last refresh */
    _Atomic uint64_t changed; /* the file's change_time then */
    atomic_size_t num_holes;  /* marked in `holes` */
    atomic_uint changers;     /* threads that make or fill holes now */
    atomic_bool was_cut;      /* a hole beyond the file's end was made since the last refresh */
    atomic_ulong *holes;      /* owned; one bit for each page */
    pthread_mutex_t lock;     /* held by a refresh */
    uint64_t tried_ns;        /* time when holes were last filled; monotonic */
};

/* Returns the pages that this many bytes take. */
static size_t pages_of(const struct bag_map *map, size_t bytes)
{
    return (bytes + map->page_bytes - 1) / map->page_bytes;
}

struct pages {
    size_t first, last;
};

/* Returns the first and the last page of a row. */
static struct pages pages_of_row(const struct bag_map *map, int64_t row)
{
    size_t begin = map->data_offset + (size_t)row * map->row_bytes;
    return (struct pages){begin >> map->page_shift,
                          (begin + map->row_bytes - 1) >> map->page_shift};
}

/* Returns the time of a file's last change. It differs after a write or a truncation. */
static uint64_t change_time(const struct stat *state)
{
    return (uint64_t)state->st_ctim.tv_sec * 1000000000 + (uint64_t)state->st_ctim.tv_nsec;
}

/* ---- all mappings, for the handler of SIGBUS ------------------------------------------------- */

/* A registered mapping. Elements are never freed, so that the handler may walk the list at any
 * time; a free one has `end` 0. The handler reads *map only if the address is in its mapping, which
 * is then in use. */
struct place {
    _Atomic uintptr_t begin, end;
    _Atomic(struct bag_map *) map;
    struct place *next;
};

static _Atomic(struct place *) places;
static bool catches_sigbus;
static struct sigaction previous; /* action of SIGBUS; written before ours is set */
static _Atomic uint64_t hole_epoch, state_epoch;

struct bag_map_epoch bag_map_epoch(void)
{
    return (struct bag_map_epoch){atomic_load(&hole_epoch), atomic_load(&state_epoch), uv_hrtime()};
}

/* Makes the handler put a hole in place of any page of the mapping that cannot be read, until
 * unregister_map. Returns false without memory. */
static bool register_map(struct bag_map *map)
{
    map->holes = calloc(map->bytes / map->page_bytes / WORD_BITS + 1, sizeof *map->holes);
    map->touched = calloc(map->bytes / map->page_bytes, sizeof *map->touched);
    if (!map->holes || !map->touched)
        return false;
    struct place *place = atomic_load(&places);
    while (place && atomic_load(&place->end))
        place = place->next;
    if (!place) {
        place = calloc(1, sizeof *place);
        if (!place)
            return false;
        place->next = atomic_load(&places);
        atomic_store(&places, place);
    }
    atomic_store(&place->map, map);
    atomic_store(&place->begin, (uintptr_t)map->start);
    atomic_store(&place->end, (uintptr_t)map->start + map->bytes);
    return true;
}

static struct bag_map *find(uintptr_t address)
{
    for (struct place *place = atomic_load(&places); place; place = place->next) {
        if (address < atomic_load(&place->end) && address >= atomic_load(&place->begin))
            return atomic_load(&place->map);
    }
    return NULL;
}

/* ---- holes ----------------------------------------------------------------------------------- */

/* Replaces a part of a mapping. Calls the system directly instead of mmap(), because a signal
 * handler calls this, over memory that other threads read. */
static bool map_over(void *at, size_t bytes, int flags, int fd, uint64_t offset)
{
    long result = syscall(SYS_mmap, at, bytes, PROT_READ, flags | MAP_FIXED, fd, (long)offset);
    return result != -1;
}

/* Returns whether the page is marked as a hole. */
static bool is_hole(const struct bag_map *map, size_t page)
{
    return atomic_load(&map->holes[page / WORD_BITS]) >> page % WORD_BITS & 1;
}

/* Marks a page as a hole or removes the mark, and counts the holes. */
static void mark(struct bag_map *map, size_t page, bool hole)
{
    atomic_ulong *word = &map->holes[page / WORD_BITS];
    unsigned long bit = 1ul << page % WORD_BITS;
    unsigned long before = hole ? atomic_fetch_or(word, bit) : atomic_fetch_and(word, ~bit);
    if (hole && !(before & bit))
        atomic_fetch_add(&map->num_holes, 1);
    if (!hole && before & bit)
        atomic_fetch_sub(&map->num_holes, 1);
}

/* Returns the bytes of the mapping that a file in this state has. */
static size_t file_bytes_of(const struct bag_map *map, const struct stat *state)
{
    uint64_t size = (uint64_t)state->st_size;
    uint64_t bytes = size < map->file_offset ? 0 : size - map->file_offset;
    return bytes < map->bytes ? (size_t)bytes : map->bytes;
}

/* Puts private pages of zeros over pages of the file. */
static bool put_zeros(const struct bag_map *map, size_t page, size_t count)
{
    return map_over(map->start + page * map->page_bytes, count * map->page_bytes,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/* Puts zeros in place of a page that cannot be read, and if the file ends before it in place of all
 * later pages. Async-signal-safe. */
static bool make_hole(struct bag_map *map, size_t page)
{
    static _Thread_local const char *tried;
    struct stat state;
    size_t end = map->bytes / map->page_bytes;
    atomic_fetch_add(&map->changers, 1);
    bool within = fstat(map->fd, &state) == 0 && page < pages_of(map, file_bytes_of(map, &state));
    size_t count = within ? 1 : end - page;
    /* The file may have been restored since: touch the page once more. */
    if (within && tried != map->start + page * map->page_bytes) {
        tried = map->start + page * map->page_bytes;
        atomic_fetch_sub(&map->changers, 1);
        return true;
    }
    /* At the process's limit of mappings a hole in the middle is not possible. One up to the end
     * needs no further mapping: it joins those after it. */
    if (within && !put_zeros(map, page, 1))
        count = end - page;
    bool made = (within && count == 1) || put_zeros(map, page, count);
    for (size_t i = page; made && i < page + count; i++)
        mark(map, i, true);
    if (!within)
        atomic_store(&map->was_cut, true);
    atomic_fetch_add(&hole_epoch, 1);
    atomic_fetch_sub(&map->changers, 1);
    return made;
}

/* Runs on the thread that touched the page. For an address outside all mapped tables, or a signal
 * that was sent by a process, restores the previous action. */
static void on_sigbus(int number, siginfo_t *info, void *context)
{
    int error = errno;
    uintptr_t address = (uintptr_t)info->si_addr;
    struct bag_map *map = info->si_code > 0 ? find(address) : NULL;
    (void)context;
    if (!map || !make_hole(map, (address - (uintptr_t)map->start) / map->page_bytes)) {
        sigaction(number, &previous, NULL);
        if (info->si_code <= 0)
            raise(number);
    }
    errno = error;
}

/* Sets the handler of SIGBUS. Later calls do nothing. */
static bool catch_sigbus(struct bag_problem *problem)
{
    struct sigaction action = {.sa_sigaction = on_sigbus,
                               .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK};
    sigemptyset(&action.sa_mask);
    if (!catches_sigbus)
        catches_sigbus =
            sigaction(SIGBUS, NULL, &previous) == 0 && sigaction(SIGBUS, &action, NULL) == 0;
    return catches_sigbus || bag_problem_set(problem, BAG_ERROR_SYSTEM,
                                             "SIGBUS cannot be caught: %s", strerror(errno));
}

/* ---- prefetching ----------------------------------------------------------------------------- */

bool bag_map_prefetch_begin(struct bag_map_prefetch *prefetch, struct bag_map *map)
{
    prefetch->map = map;
    prefetch->count = 0;
    return atomic_load_explicit(&map->quiet_jobs, memory_order_relaxed) < QUIET_JOBS;
}

/* Asks for all ranges in one call if possible. That needs Linux 5.10, and a capability up to Linux
 * 6.12. */
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
        (struct iovec){at, pages_of(map, begin + map->row_bytes - first) * map->page_bytes};
}

/* ---- mapping --------------------------------------------------------------------------------- */

bool bag_table_can_map(const struct bag_table_file *file, struct bag_problem *problem)
{
    const struct bag_npy *npy = &file->npy;
    if (npy->count == 0 || (!npy->swap && bag_npy_is_plain(npy)))
        return true;
    return bag_problem_set(problem, BAG_ERROR_FILE,
                           "%s: %s, which load map cannot turn; say load copy, or convert the file",
                           file->path,
                           npy->swap ? "its elements are big-endian" : "it is column-major");
}

/* Reads the whole file ahead by its descriptor, and enters its pages. */
static bool warm(const struct bag_map *map, const struct bag_load_options *options,
                 struct bag_problem *problem)
{
    posix_fadvise(map->fd, (off_t)map->file_offset, (off_t)WARM_BYTES, POSIX_FADV_WILLNEED);
    for (size_t done = 0, reported = 0; done < map->bytes;) {
        size_t bytes = map->bytes - done < WARM_BYTES ? map->bytes - done : WARM_BYTES;
        posix_fadvise(map->fd, (off_t)(map->file_offset + done + bytes), (off_t)WARM_BYTES,
                      POSIX_FADV_WILLNEED);
        if (madvise(map->start + done, bytes, MADV_POPULATE_READ) != 0 && errno == EFAULT)
            return bag_problem_set(problem, BAG_ERROR_FILE,
                                   "it could not be read, or shrank meanwhile; publish a table by "
                                   "renaming a complete file");
        done += bytes;
        size_t read = done < map->bytes ? done - map->data_offset : map->data_bytes;
        bag_load_progress(options, read - reported);
        reported = read;
    }
    return true;
}

/* Locks all pages in memory, and counts them as memory of tables. Returns false and sets *problem,
 * with the limit, if the system refuses. */
static bool lock_pages(struct bag_map *map, struct bag_problem *problem)
{
    struct rlimit limit;
    if (mlock(map->start, map->bytes) == 0) {
        map->locked_bytes = map->bytes;
        atomic_store(&map->is_locked, true);
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

/* Maps the open file, whose elements *npy describes. */
static bool map_file(struct bag_map *map, const struct bag_npy *npy,
                     const struct bag_load_options *options, struct bag_problem *problem)
{
    struct stat state;
    map->file_offset = npy->data_offset / map->page_bytes * map->page_bytes;
    map->data_offset = npy->data_offset - map->file_offset;
    map->data_bytes = npy->data_bytes;
    map->row_bytes = npy->data_bytes / (size_t)npy->shape[0];
    map->bytes = pages_of(map, map->data_offset + map->data_bytes) * map->page_bytes;
    void *start = mmap(NULL, map->bytes, PROT_READ, MAP_SHARED, map->fd, (off_t)map->file_offset);
    if (start == MAP_FAILED)
        return bag_problem_set(problem, BAG_ERROR_SYSTEM, "it cannot be mapped: %s",
                               strerror(errno));
    map->start = start;
    if (!register_map(map))
        return bag_problem_no_memory(problem);
    if (fstat(map->fd, &state) != 0)
        return bag_problem_set(problem, BAG_ERROR_FILE, "cannot be read: %s", strerror(errno));
    atomic_store(&map->file_bytes, file_bytes_of(map, &state));
    atomic_store(&map->changed, change_time(&state));
    if (map->residence != BAG_MAP_ON_DEMAND && !warm(map, options, problem))
        return false;
    madvise(map->start, map->bytes, MADV_RANDOM);
    return map->residence != BAG_MAP_LOCKED || lock_pages(map, problem);
}

/* Makes a map of an open file. Takes over `fd`, and closes it on failure. Returns NULL without
 * memory. */
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
    map->page_shift = (unsigned)__builtin_ctzl(map->page_bytes);
    map->residence = residence;
    pthread_mutex_init(&map->lock, NULL);
    return map;
}

struct bag_map *bag_map_open(const struct bag_table_file *file, enum bag_map_residence residence,
                             const struct bag_load_options *options, struct bag_problem *problem)
{
    if (!bag_table_can_map(file, problem))
        return NULL;
    if (!catch_sigbus(problem)) {
        bag_file_reject(file->path, problem);
        return NULL;
    }
    /* Open the pidfd before the first table is published. */
    static bool is_tried;
    if (!is_tried)
        self = (int)syscall(SYS_pidfd_open, getpid(), 0);
    is_tried = true;
    int fd = bag_file_reopen(file, problem);
    if (fd < 0)
        return NULL;
    struct bag_map *map = create(file->path, fd, residence);
    if (!map)
        bag_problem_no_memory(problem);
    if (map && map_file(map, &file->npy, options, problem))
        return map;
    bag_map_free(map);
    bag_file_reject(file->path, problem);
    return NULL;
}

const void *bag_map_rows(const struct bag_map *map)
{
    return map->start + map->data_offset;
}

void bag_map_free(struct bag_map *map)
{
    if (!map)
        return;
    for (struct place *place = atomic_load(&places); place; place = place->next) {
        if (atomic_load(&place->map) == map)
            atomic_store(&place->end, 0);
    }
    free(map->holes);
    free(map->touched);
    if (map->start)
        munmap(map->start, map->bytes);
    bag_pages_uncount(map->locked_bytes);
    pthread_mutex_destroy(&map->lock);
    close(map->fd);
    free(map->path);
    free(map);
}

/* ---- files that change ----------------------------------------------------------------------- */

/* Maps a run of pages of the file again. */
static bool put_back(struct bag_map *map, size_t first, size_t end)
{
    char *at = map->start + first * map->page_bytes;
    size_t bytes = (end - first) * map->page_bytes;
    for (size_t page = first; page < end; page++)
        mark(map, page, false);
    if (!map_over(at, bytes, MAP_SHARED, map->fd, map->file_offset + first * map->page_bytes)) {
        for (size_t page = first; page < end; page++)
            mark(map, page, true);
        return false;
    }
    /* Advice only: if it fails, pooling is slower, with the same results. Other threads wait
     * meanwhile, so pages are locked as they are touched, and not read here. */
    madvise(at, bytes, MADV_RANDOM);
    if (map->residence == BAG_MAP_LOCKED)
        mlock2(at, bytes, MLOCK_ONFAULT);
    return true;
}

/* Forgets which pages are in memory, because the file has others now. */
static void forget_pages(struct bag_map *map)
{
    atomic_store_explicit(&map->is_locked, false, memory_order_relaxed);
    atomic_store_explicit(&map->last_read, bag_map_time(), memory_order_relaxed);
}

/* Fills the holes that the file has pages for. The caller holds the lock. */
static void fill_holes(struct bag_map *map, size_t file_bytes)
{
    size_t pages = pages_of(map, file_bytes);
    bool filled = false;
    atomic_fetch_add(&map->changers, 1);
    for (size_t first = 0; first < pages && atomic_load(&map->num_holes);) {
        size_t end = first;
        while (end < pages && is_hole(map, end))
            end++;
        filled |= end > first && put_back(map, first, end);
        first = end + 1;
    }
    map->tried_ns = uv_hrtime();
    if (filled) {
        forget_pages(map);
        atomic_fetch_add(&hole_epoch, 1);
    }
    atomic_fetch_sub(&map->changers, 1);
}

bool bag_map_has_read(void)
{
    static _Thread_local long before;
    struct rusage usage;
    long now = before;
    if (getrusage(RUSAGE_THREAD, &usage) == 0)
        now = usage.ru_majflt + usage.ru_inblock;
    bool has_read = now != before;
    before = now;
    return has_read;
}

/* Reads the file's state under the lock, as another thread may have refreshed meanwhile, and fills
 * holes if pages may be there again. */
static void refresh(struct bag_map *map)
{
    struct stat state;
    pthread_mutex_lock(&map->lock);
    bool ok = fstat(map->fd, &state) == 0;
    size_t file_bytes = ok ? file_bytes_of(map, &state) : 0;
    bool changed = !ok || file_bytes != atomic_load(&map->file_bytes) ||
                   change_time(&state) != atomic_load(&map->changed);
    if (changed) {
        /* Log a truncation, or that the file is whole again. Clients get the number of a row
         * only. */
        size_t end = map->data_offset + map->data_bytes, before = atomic_load(&map->file_bytes);
        if (file_bytes < end && file_bytes != before)
            bag_log(BAG_LOG_LEVEL_ERROR, "a mapped file was truncated",
                    BAG_LOG_TEXT("file", map->path),
                    BAG_LOG_NUMBER("bytes", map->file_offset + file_bytes),
                    BAG_LOG_NUMBER("of_bytes", map->file_offset + end));
        else if (file_bytes >= end && before < end)
            bag_log(BAG_LOG_LEVEL_INFO, "a mapped file is whole again",
                    BAG_LOG_TEXT("file", map->path));
        atomic_store(&map->file_bytes, file_bytes);
        atomic_store(&map->changed, ok ? change_time(&state) : 0);
        forget_pages(map);
        atomic_fetch_add(&state_epoch, 1);
    }
    if (atomic_exchange(&map->was_cut, false) || changed || uv_hrtime() - map->tried_ns > RETRY_NS)
        fill_holes(map, file_bytes);
    pthread_mutex_unlock(&map->lock);
}

void bag_map_refresh(struct bag_map *map, bool has_read)
{
    struct stat state;
    if (has_read) {
        atomic_store_explicit(&map->quiet_jobs, 0, memory_order_relaxed);
        atomic_store_explicit(&map->last_read, bag_map_time(), memory_order_relaxed);
    } else if (atomic_load_explicit(&map->quiet_jobs, memory_order_relaxed) < QUIET_JOBS) {
        atomic_fetch_add_explicit(&map->quiet_jobs, 1, memory_order_relaxed);
    }
    /* Wait until no thread makes or fills a hole. They take no lock, so this is short. */
    while (atomic_load(&map->changers))
        sched_yield();
    if (fstat(map->fd, &state) != 0 || change_time(&state) != atomic_load(&map->changed) ||
        file_bytes_of(map, &state) != atomic_load(&map->file_bytes) || atomic_load(&map->num_holes))
        refresh(map);
}

bool bag_map_has_file(const struct bag_map *map)
{
    struct stat state;
    return fstat(map->fd, &state) == 0 &&
           file_bytes_of(map, &state) >= map->data_offset + map->data_bytes;
}

/* ---- rows in memory -------------------------------------------------------------------------- */

uint32_t bag_map_time(void)
{
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (uint32_t)((uint64_t)now.tv_sec * 4 + (uint64_t)now.tv_nsec / 250000000) + 1;
}

bool bag_map_is_watched(const struct bag_map *map, uint32_t now)
{
    return bag_map_is_whole(map) && atomic_load(&map->changers) == 0 &&
           (atomic_load_explicit(&map->is_locked, memory_order_relaxed) ||
            now - atomic_load_explicit(&map->last_touched, memory_order_relaxed) <= WATCHED_TIME);
}

/* Records that a page is touched. Writes only what changes, since all loops read it. */
static void record_page(struct bag_map *map, size_t page, uint32_t now)
{
    if (atomic_load_explicit(&map->touched[page], memory_order_relaxed) != now)
        atomic_store_explicit(&map->touched[page], now, memory_order_relaxed);
    if (atomic_load_explicit(&map->last_touched, memory_order_relaxed) != now)
        atomic_store_explicit(&map->last_touched, now, memory_order_relaxed);
}

bool bag_map_keeps_row(struct bag_map *map, int64_t row, uint32_t now)
{
    if (atomic_load_explicit(&map->is_locked, memory_order_relaxed))
        return true;
    uint32_t last_read = atomic_load_explicit(&map->last_read, memory_order_relaxed);
    struct pages pages = pages_of_row(map, row);
    for (size_t page = pages.first; page <= pages.last; page++) {
        uint32_t touched = atomic_load_explicit(&map->touched[page], memory_order_relaxed);
        if (touched <= last_read || now - touched > KEPT_TIME)
            return false;
        record_page(map, page, now);
    }
    return true;
}

void bag_map_record_row(struct bag_map *map, int64_t row, uint32_t now)
{
    struct pages pages = pages_of_row(map, row);
    for (size_t page = pages.first; page <= pages.last; page++)
        record_page(map, page, now);
}

/* ---- missing rows ---------------------------------------------------------------------------- */

bool bag_map_is_whole(const struct bag_map *map)
{
    return atomic_load(&map->file_bytes) >= map->data_offset + map->data_bytes &&
           atomic_load(&map->num_holes) == 0;
}

bool bag_map_has_row(const struct bag_map *map, int64_t row)
{
    struct pages pages = pages_of_row(map, row);
    if (map->data_offset + ((size_t)row + 1) * map->row_bytes > atomic_load(&map->file_bytes))
        return false;
    for (size_t page = pages.first; page <= pages.last; page++) {
        if (is_hole(map, page))
            return false;
    }
    return true;
}

bool bag_map_reject_row(const struct bag_map *map, int64_t row, struct bag_problem *problem)
{
    size_t end = map->data_offset + ((size_t)row + 1) * map->row_bytes;
    size_t file_bytes = atomic_load(&map->file_bytes);
    if (end > file_bytes)
        return bag_problem_set(
            problem, BAG_ERROR_FILE,
            "row %lld is missing: the table's file was truncated while it was served, "
            "to %llu bytes; publish a table by renaming a complete file",
            (long long)row, (unsigned long long)(map->file_offset + file_bytes));
    bag_log(BAG_LOG_LEVEL_ERROR, "a mapped row cannot be read", BAG_LOG_TEXT("file", map->path),
            BAG_LOG_NUMBER("row", (uint64_t)row));
    return bag_problem_set(problem, BAG_ERROR_FILE, "row %lld could not be read", (long long)row);
}

bool bag_map_reject_changing(struct bag_problem *problem)
{
    return bag_problem_set(
        problem, BAG_ERROR_FILE,
        "the table's file is truncated and restored all the time; publish a table by "
        "renaming a complete file");
}
