/* Mapped tables; see load.h.
 *
 * Holes are private pages of zeros over the file's. Beyond the file's end one range of them reaches
 * to the end of the mapping, so that a cut file takes few mappings; within the file, where the disk
 * fails, a hole is a page.
 *
 * Why a job that read zeros always knows: who looks waits until nobody is between putting zeros
 * somewhere, or taking them away, and counting that. So either the epoch is another one afterwards,
 * or the hole is marked. A handler may be late, and put a hole where the file has grown again:
 * whoever looks next fills it. */
#include "load.h"

#include "server/memory/memory.h"
#include "server/system/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <uv.h>

/* After so many jobs in a row for which nothing was read the pages are no longer asked for. */
#define QUIET_JOBS 16

/* A page that the disk could not give is tried again after this. */
#define RETRY_NS UINT64_C(1000000000)

/* What is read at a time to warm a table. */
#define WARM_BYTES ((size_t)16 << 20)

#define WORD_BITS (8 * sizeof(unsigned long))

struct bag_map {
    /* Set before the table is published. */
    char *path; /* owned */
    int fd;
    enum bag_map_residence residence;
    char *start; /* of the mapping, whole pages */
    size_t bytes;
    uint64_t file_offset; /* of `start` */
    size_t data_offset;   /* of the first row, from `start` */
    size_t data_bytes;
    size_t row_bytes;
    size_t locked_bytes; /* that are counted as taken */

    atomic_uint quiet;       /* jobs in a row for which nothing was read */
    atomic_size_t there;     /* bytes from `start` on that the file had when last looked at */
    _Atomic uint64_t state;  /* of the file then, see state_of */
    atomic_size_t num_holes; /* marked below */
    atomic_uint changers;    /* who make holes, or fill them, at this moment */
    atomic_bool was_cut;     /* a hole beyond the file's end was made since it was last looked at */
    atomic_ulong *holes;     /* owned; a bit for each page */
    pthread_mutex_t lock;    /* held to look, and by who puts pages back */
    uint64_t tried_ns;       /* when pages within the file were last tried again */
};

/* ---- all mappings, for the handler of SIGBUS --------------------------------------------------
 */

/* Places are never freed, so that a handler may walk them at any time: `end` is 0 where a place is
 * free. Only of the mapping that it touched, which therefore is in use, does it read more. */
struct place {
    _Atomic uintptr_t begin, end;
    _Atomic(struct bag_map *) map;
    struct place *next;
};

static _Atomic(struct place *) places;
static struct sigaction previous; /* of SIGBUS; written before ours is there */
static size_t page_bytes;         /* likewise */
static int self = -1;             /* a pidfd of this process; likewise. -1: none can be had */
static _Atomic uint64_t hole_epoch, state_epoch;

struct bag_map_epoch bag_map_epoch(void)
{
    return (struct bag_map_epoch){atomic_load(&hole_epoch), atomic_load(&state_epoch)};
}

static bool enter(struct bag_map *map)
{
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

static void leave(const struct bag_map *map)
{
    for (struct place *place = atomic_load(&places); place; place = place->next) {
        if (atomic_load(&place->map) == map)
            atomic_store(&place->end, 0);
    }
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

/* Not mmap(): the call is made by a signal handler, and over memory that other threads read. */
static bool map_over(void *at, size_t bytes, int flags, int fd, uint64_t offset)
{
    long result = syscall(SYS_mmap, at, bytes, PROT_READ, flags | MAP_FIXED, fd, (long)offset);
    return result != -1;
}

static bool is_hole(const struct bag_map *map, size_t page)
{
    return atomic_load(&map->holes[page / WORD_BITS]) >> page % WORD_BITS & 1;
}

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

/* Bytes of the mapping that the file has; 0 where it cannot be asked. */
static size_t bytes_there(const struct bag_map *map, const struct stat *state)
{
    uint64_t size = (uint64_t)state->st_size;
    uint64_t there = size < map->file_offset ? 0 : size - map->file_offset;
    return there < map->bytes ? (size_t)there : map->bytes;
}

static size_t pages_of(size_t bytes)
{
    return (bytes + page_bytes - 1) / page_bytes;
}

static bool put_zeros(const struct bag_map *map, size_t page, size_t count)
{
    return map_over(map->start + page * page_bytes, count * page_bytes, MAP_PRIVATE | MAP_ANONYMOUS,
                    -1, 0);
}

/* Puts zeros in place of a page that cannot be had, and of all behind it where the file ends before
 * it. Async-signal-safe. */
static bool make_hole(struct bag_map *map, size_t page)
{
    static _Thread_local const char *tried;
    struct stat state;
    size_t end = map->bytes / page_bytes;
    atomic_fetch_add(&map->changers, 1);
    bool within = fstat(map->fd, &state) == 0 && page < pages_of(bytes_there(map, &state));
    size_t count = within ? 1 : end - page;
    /* The file may have been restored since: the page is touched once more. */
    if (within && tried != map->start + page * page_bytes) {
        tried = map->start + page * page_bytes;
        atomic_fetch_sub(&map->changers, 1);
        return true;
    }
    /* One more mapping may be one too many; a hole to the end never is, as it joins others. */
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

/* Runs on the thread that touched the page. Of an address that is no mapped table's, or a signal
 * that was sent, the process ends as it would have without us. */
static void on_sigbus(int number, siginfo_t *info, void *context)
{
    int error = errno;
    uintptr_t address = (uintptr_t)info->si_addr;
    struct bag_map *map = info->si_code > 0 ? find(address) : NULL;
    (void)context;
    if (!map || !make_hole(map, (address - (uintptr_t)map->start) / page_bytes)) {
        sigaction(number, &previous, NULL);
        if (info->si_code <= 0)
            raise(number);
    }
    errno = error;
}

static bool catch_sigbus(struct bag_problem *problem)
{
    struct sigaction action = {.sa_sigaction = on_sigbus,
                               .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK};
    if (page_bytes)
        return true;
    page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    self = (int)syscall(SYS_pidfd_open, getpid(), 0);
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGBUS, NULL, &previous) == 0 && sigaction(SIGBUS, &action, NULL) == 0)
        return true;
    return bag_problem_set(problem, BAG_ERROR_SYSTEM, "SIGBUS cannot be caught: %s",
                           strerror(errno));
}

/* ---- files that change ----------------------------------------------------------------------- */

/* Two states are equal where nobody wrote to the file, or cut it, in between. */
static uint64_t state_of(const struct stat *state)
{
    return (uint64_t)state->st_ctim.tv_sec * 1000000000 + (uint64_t)state->st_ctim.tv_nsec;
}

/* Maps a run of pages as bag_table_map did. */
static bool put_back(struct bag_map *map, size_t first, size_t end)
{
    char *at = map->start + first * page_bytes;
    size_t bytes = (end - first) * page_bytes;
    for (size_t page = first; page < end; page++)
        mark(map, page, false);
    if (!map_over(at, bytes, MAP_SHARED, map->fd, map->file_offset + first * page_bytes)) {
        for (size_t page = first; page < end; page++)
            mark(map, page, true);
        return false;
    }
    /* Without these it is as right, only slower. */
    madvise(at, bytes, MADV_RANDOM);
    if (map->residence == BAG_MAP_LOCKED)
        mlock(at, bytes);
    return true;
}

/* Puts back the holes that the file has pages for. The lock is held. */
static void fill_holes(struct bag_map *map, size_t there)
{
    size_t pages = pages_of(there);
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
    if (filled)
        atomic_fetch_add(&hole_epoch, 1);
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

static void count_quiet(struct bag_map *map, bool has_read)
{
    if (has_read)
        atomic_store_explicit(&map->quiet, 0, memory_order_relaxed);
    else if (atomic_load_explicit(&map->quiet, memory_order_relaxed) < QUIET_JOBS)
        atomic_fetch_add_explicit(&map->quiet, 1, memory_order_relaxed);
}

/* Clients are told of the row alone. */
static void tell_size(const struct bag_map *map, size_t there)
{
    size_t end = map->data_offset + map->data_bytes, before = atomic_load(&map->there);
    if (there < end && there != before)
        bag_log(BAG_LOG_LEVEL_ERROR, "a mapped file was cut", BAG_LOG_TEXT("file", map->path),
                BAG_LOG_NUMBER("bytes", map->file_offset + there),
                BAG_LOG_NUMBER("of_bytes", map->file_offset + end));
    else if (there >= end && before < end)
        bag_log(BAG_LOG_LEVEL_INFO, "a mapped file is whole again",
                BAG_LOG_TEXT("file", map->path));
}

/* Under the lock the file is asked once more: whoever held it may have looked meanwhile. */
static void look_again(struct bag_map *map)
{
    struct stat state;
    pthread_mutex_lock(&map->lock);
    bool ok = fstat(map->fd, &state) == 0;
    size_t there = ok ? bytes_there(map, &state) : 0;
    bool changed =
        !ok || there != atomic_load(&map->there) || state_of(&state) != atomic_load(&map->state);
    if (changed) {
        tell_size(map, there);
        atomic_store(&map->there, there);
        atomic_store(&map->state, ok ? state_of(&state) : 0);
        atomic_fetch_add(&state_epoch, 1);
    }
    if (atomic_exchange(&map->was_cut, false) || changed || uv_hrtime() - map->tried_ns > RETRY_NS)
        fill_holes(map, there);
    pthread_mutex_unlock(&map->lock);
}

/* They wait for nobody. */
static void await_changers(const struct bag_map *map)
{
    while (atomic_load(&map->changers))
        sched_yield();
}

void bag_map_look(struct bag_map *map, bool has_read)
{
    struct stat state;
    count_quiet(map, has_read);
    await_changers(map);
    if (fstat(map->fd, &state) != 0 || state_of(&state) != atomic_load(&map->state) ||
        bytes_there(map, &state) != atomic_load(&map->there) || atomic_load(&map->num_holes))
        look_again(map);
}

bool bag_map_is_whole(const struct bag_map *map)
{
    return atomic_load(&map->there) >= map->data_offset + map->data_bytes &&
           atomic_load(&map->num_holes) == 0;
}

bool bag_map_has_row(const struct bag_map *map, int64_t row)
{
    size_t begin = map->data_offset + (size_t)row * map->row_bytes, end = begin + map->row_bytes;
    if (end > atomic_load(&map->there))
        return false;
    for (size_t page = begin / page_bytes; page * page_bytes < end; page++) {
        if (is_hole(map, page))
            return false;
    }
    return true;
}

bool bag_map_reject_row(const struct bag_map *map, int64_t row, struct bag_problem *problem)
{
    size_t end = map->data_offset + ((size_t)row + 1) * map->row_bytes;
    size_t there = atomic_load(&map->there);
    if (end > there)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "row %lld is missing: the table's file was cut while it was served, "
                               "to %llu bytes; publish a table by renaming a complete file",
                               (long long)row, (unsigned long long)(map->file_offset + there));
    bag_log(BAG_LOG_LEVEL_ERROR, "a mapped row cannot be read", BAG_LOG_TEXT("file", map->path),
            BAG_LOG_NUMBER("row", (uint64_t)row));
    return bag_problem_set(problem, BAG_ERROR_FILE, "row %lld could not be read", (long long)row);
}

bool bag_map_reject_changing(struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_FILE,
                           "the table's file is cut and restored all the time; publish a table by "
                           "renaming a complete file");
}

/* ---- asking for pages ------------------------------------------------------------------------ */

bool bag_map_ask_begin(struct bag_map_asking *asking, struct bag_map *map)
{
    asking->map = map;
    asking->count = 0;
    return atomic_load_explicit(&map->quiet, memory_order_relaxed) < QUIET_JOBS;
}

/* One call for all ranges needs Linux 5.10, and up to 6.12 a capability. */
void bag_map_ask_end(struct bag_map_asking *asking)
{
    size_t count = asking->count;
    asking->count = 0;
    if (count == 0 || (self >= 0 && syscall(SYS_process_madvise, self, asking->ranges, count,
                                            MADV_WILLNEED, 0) >= 0))
        return;
    for (size_t i = 0; i < count; i++)
        madvise(asking->ranges[i].iov_base, asking->ranges[i].iov_len, MADV_WILLNEED);
}

void bag_map_ask_row(struct bag_map_asking *asking, int64_t row)
{
    const struct bag_map *map = asking->map;
    size_t begin = map->data_offset + (size_t)row * map->row_bytes;
    size_t first = begin / page_bytes * page_bytes;
    char *at = map->start + first;
    struct iovec *last = &asking->ranges[asking->count - (asking->count > 0)];
    if (asking->count && at >= (char *)last->iov_base &&
        begin + map->row_bytes <= (size_t)((char *)last->iov_base - map->start) + last->iov_len)
        return;
    if (asking->count == BAG_MAP_ASKED_RANGES)
        bag_map_ask_end(asking);
    asking->ranges[asking->count++] =
        (struct iovec){at, pages_of(begin + map->row_bytes - first) * page_bytes};
}

/* ---- mapping --------------------------------------------------------------------------------- */

static bool check_mappable(const struct bag_npy *npy, struct bag_problem *problem)
{
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

/* Reads it all by the file's descriptor, ahead of the pages that are then only entered. */
static bool warm(const struct bag_map *map, bag_load_progress *progress, void *context,
                 struct bag_problem *problem)
{
    posix_fadvise(map->fd, (off_t)map->file_offset, (off_t)WARM_BYTES, POSIX_FADV_WILLNEED);
    for (size_t done = 0; done < map->bytes;) {
        size_t bytes = map->bytes - done < WARM_BYTES ? map->bytes - done : WARM_BYTES;
        posix_fadvise(map->fd, (off_t)(map->file_offset + done + bytes), (off_t)WARM_BYTES,
                      POSIX_FADV_WILLNEED);
        if (madvise(map->start + done, bytes, MADV_POPULATE_READ) != 0 && errno == EFAULT)
            return bag_problem_set(problem, BAG_ERROR_FILE,
                                   "it could not be read, or shrank meanwhile; publish a table by "
                                   "renaming a complete file");
        done += bytes;
        if (progress && done > map->data_offset)
            progress(context, done < map->bytes ? done - map->data_offset : map->data_bytes,
                     map->data_bytes);
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

static bool map_pages(struct bag_map *map, struct bag_problem *problem)
{
    void *start = mmap(NULL, map->bytes, PROT_READ, MAP_SHARED, map->fd, (off_t)map->file_offset);
    if (start == MAP_FAILED)
        return bag_problem_set(problem, BAG_ERROR_SYSTEM, "it cannot be mapped: %s",
                               strerror(errno));
    map->start = start;
    map->holes = calloc(map->bytes / page_bytes / WORD_BITS + 1, sizeof *map->holes);
    return (map->holes && enter(map)) ||
           bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "not enough memory");
}

/* The file is open; what it holds is where *npy says. */
static bool map_file(struct bag_map *map, const struct bag_npy *npy, bag_load_progress *progress,
                     void *context, struct bag_problem *problem)
{
    struct stat state;
    map->file_offset = npy->data_offset / page_bytes * page_bytes;
    map->data_offset = npy->data_offset - map->file_offset;
    map->data_bytes = npy->data_bytes;
    map->row_bytes = npy->data_bytes / (size_t)npy->shape[0];
    map->bytes = pages_of(map->data_offset + map->data_bytes) * page_bytes;
    if (!map_pages(map, problem))
        return false;
    if (fstat(map->fd, &state) != 0)
        return bag_problem_set(problem, BAG_ERROR_FILE, "cannot be read: %s", strerror(errno));
    atomic_store(&map->there, bytes_there(map, &state));
    atomic_store(&map->state, state_of(&state));
    if (map->residence != BAG_MAP_ON_DEMAND && !warm(map, progress, context, problem))
        return false;
    madvise(map->start, map->bytes, MADV_RANDOM);
    return map->residence != BAG_MAP_LOCKED || lock_pages(map, problem);
}

bool bag_table_map(const struct bag_table_file *file, enum bag_map_residence residence,
                   bag_load_progress *progress, void *context, struct bag_table_memory *memory,
                   struct bag_problem *problem)
{
    struct bag_map *map;
    if (file->npy.count == 0)
        return bag_table_load(file, 1, progress, context, memory, problem);
    if (!check_mappable(&file->npy, problem) || !catch_sigbus(problem))
        return bag_file_reject(file->path, problem);
    int fd = bag_file_reopen(file, problem);
    if (fd < 0)
        return false;
    map = calloc(1, sizeof *map);
    char *path = strdup(file->path);
    if (!map || !path) {
        free(map);
        free(path);
        close(fd);
        bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "not enough memory");
        return bag_file_reject(file->path, problem);
    }
    map->path = path;
    map->fd = fd;
    map->residence = residence;
    pthread_mutex_init(&map->lock, NULL);
    if (!map_file(map, &file->npy, progress, context, problem)) {
        bag_map_free(map);
        return bag_file_reject(file->path, problem);
    }
    bag_table_describe(file->npy.dtype, file->npy.rank, file->npy.shape, file->npy.row_elements,
                       map->start + map->data_offset, memory);
    memory->map = map;
    return true;
}

void bag_map_free(struct bag_map *map)
{
    if (!map)
        return;
    leave(map);
    if (map->start)
        munmap(map->start, map->bytes);
    bag_pages_uncount(map->locked_bytes);
    pthread_mutex_destroy(&map->lock);
    free(map->holes);
    close(map->fd);
    free(map->path);
    free(map);
}
