/* Mapped files that change while they are served; see map.h.
 *
 * Holes are private pages of zeros over the file's. Beyond the file's end one range of them reaches
 * to the end of the mapping, so that a truncated file takes few mappings; within the file, where
 * the disk fails, a hole is a page.
 *
 * Why a job that read zeros always knows: a refresh waits until no thread is between putting zeros
 * somewhere, or taking them away, and counting that. So either the epoch is another one afterwards,
 * or the hole is marked. A handler may be late, and put a hole where the file has grown again: the
 * next refresh fills it. */
#include "map.h"

#include "server/system/log.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <uv.h>

/* A page that the disk could not give is tried again after this. */
#define RETRY_NS UINT64_C(1000000000)

/* Of the bitmap of holes. */
#define WORD_BITS (8 * sizeof(unsigned long))

/* ---- all mappings, for the handler of SIGBUS ------------------------------------------------- */

/* Places are never freed, so that a handler may walk them at any time: `end` is 0 where a place is
 * free. Only of the mapping that it touched, which therefore is in use, does it read more. */
struct place {
    _Atomic uintptr_t begin, end;
    _Atomic(struct bag_map *) map;
    struct place *next;
};

static _Atomic(struct place *) places;
static bool catches_sigbus;
static struct sigaction previous; /* of SIGBUS; written before ours is set */
static _Atomic uint64_t hole_epoch, state_epoch;

struct bag_map_epoch bag_map_epoch(void)
{
    return (struct bag_map_epoch){atomic_load(&hole_epoch), atomic_load(&state_epoch)};
}

bool bag_map_register(struct bag_map *map)
{
    map->holes = calloc(map->bytes / map->page_bytes / WORD_BITS + 1, sizeof *map->holes);
    if (!map->holes)
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

void bag_map_unregister(struct bag_map *map)
{
    for (struct place *place = atomic_load(&places); place; place = place->next) {
        if (atomic_load(&place->map) == map)
            atomic_store(&place->end, 0);
    }
    free(map->holes);
    map->holes = NULL;
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

size_t bag_map_file_bytes(const struct bag_map *map, const struct stat *state)
{
    uint64_t size = (uint64_t)state->st_size;
    uint64_t bytes = size < map->file_offset ? 0 : size - map->file_offset;
    return bytes < map->bytes ? (size_t)bytes : map->bytes;
}

static bool put_zeros(const struct bag_map *map, size_t page, size_t count)
{
    return map_over(map->start + page * map->page_bytes, count * map->page_bytes,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/* Puts zeros in place of a page that cannot be had, and of all behind it where the file ends before
 * it. Async-signal-safe. */
static bool make_hole(struct bag_map *map, size_t page)
{
    static _Thread_local const char *tried;
    struct stat state;
    size_t end = map->bytes / map->page_bytes;
    atomic_fetch_add(&map->changers, 1);
    bool within =
        fstat(map->fd, &state) == 0 && page < bag_map_pages(map, bag_map_file_bytes(map, &state));
    size_t count = within ? 1 : end - page;
    /* The file may have been restored since: the page is touched once more. */
    if (within && tried != map->start + page * map->page_bytes) {
        tried = map->start + page * map->page_bytes;
        atomic_fetch_sub(&map->changers, 1);
        return true;
    }
    /* At the process's limit of mappings there is no room for one in the middle. A hole to the end
     * needs no room: it joins those behind it. */
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
    if (!map || !make_hole(map, (address - (uintptr_t)map->start) / map->page_bytes)) {
        sigaction(number, &previous, NULL);
        if (info->si_code <= 0)
            raise(number);
    }
    errno = error;
}

bool bag_map_catch_sigbus(struct bag_problem *problem)
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

/* ---- files that change ----------------------------------------------------------------------- */

uint64_t bag_map_state(const struct stat *state)
{
    return (uint64_t)state->st_ctim.tv_sec * 1000000000 + (uint64_t)state->st_ctim.tv_nsec;
}

/* Maps a run of pages as bag_table_map did. */
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
    /* Advice only: where it fails, pooling is slower, and its results are the same. */
    madvise(at, bytes, MADV_RANDOM);
    if (map->residence == BAG_MAP_LOCKED)
        mlock(at, bytes);
    return true;
}

/* Puts back the holes that the file has pages for. The lock is held. */
static void fill_holes(struct bag_map *map, size_t file_bytes)
{
    size_t pages = bag_map_pages(map, file_bytes);
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
        atomic_store_explicit(&map->quiet_jobs, 0, memory_order_relaxed);
    else if (atomic_load_explicit(&map->quiet_jobs, memory_order_relaxed) < BAG_MAP_QUIET_JOBS)
        atomic_fetch_add_explicit(&map->quiet_jobs, 1, memory_order_relaxed);
}

/* The log names the file; clients are told of the row alone. */
static void log_size(const struct bag_map *map, size_t file_bytes)
{
    size_t end = map->data_offset + map->data_bytes, before = atomic_load(&map->file_bytes);
    if (file_bytes < end && file_bytes != before)
        bag_log(BAG_LOG_LEVEL_ERROR, "a mapped file was truncated", BAG_LOG_TEXT("file", map->path),
                BAG_LOG_NUMBER("bytes", map->file_offset + file_bytes),
                BAG_LOG_NUMBER("of_bytes", map->file_offset + end));
    else if (file_bytes >= end && before < end)
        bag_log(BAG_LOG_LEVEL_INFO, "a mapped file is whole again",
                BAG_LOG_TEXT("file", map->path));
}

/* Asks for the file's state again under the lock: another thread may have refreshed meanwhile. */
static void refresh(struct bag_map *map)
{
    struct stat state;
    pthread_mutex_lock(&map->lock);
    bool ok = fstat(map->fd, &state) == 0;
    size_t file_bytes = ok ? bag_map_file_bytes(map, &state) : 0;
    bool changed = !ok || file_bytes != atomic_load(&map->file_bytes) ||
                   bag_map_state(&state) != atomic_load(&map->state);
    if (changed) {
        log_size(map, file_bytes);
        atomic_store(&map->file_bytes, file_bytes);
        atomic_store(&map->state, ok ? bag_map_state(&state) : 0);
        atomic_fetch_add(&state_epoch, 1);
    }
    if (atomic_exchange(&map->was_cut, false) || changed || uv_hrtime() - map->tried_ns > RETRY_NS)
        fill_holes(map, file_bytes);
    pthread_mutex_unlock(&map->lock);
}

/* Waits for them briefly: they wait for no lock. */
static void await_changers(const struct bag_map *map)
{
    while (atomic_load(&map->changers))
        sched_yield();
}

void bag_map_refresh(struct bag_map *map, bool has_read)
{
    struct stat state;
    count_quiet(map, has_read);
    await_changers(map);
    if (fstat(map->fd, &state) != 0 || bag_map_state(&state) != atomic_load(&map->state) ||
        bag_map_file_bytes(map, &state) != atomic_load(&map->file_bytes) ||
        atomic_load(&map->num_holes))
        refresh(map);
}

bool bag_map_has_file(const struct bag_map *map)
{
    struct stat state;
    return fstat(map->fd, &state) == 0 &&
           bag_map_file_bytes(map, &state) >= map->data_offset + map->data_bytes;
}

bool bag_map_is_whole(const struct bag_map *map)
{
    return atomic_load(&map->file_bytes) >= map->data_offset + map->data_bytes &&
           atomic_load(&map->num_holes) == 0;
}

bool bag_map_has_row(const struct bag_map *map, int64_t row)
{
    size_t begin = map->data_offset + (size_t)row * map->row_bytes, end = begin + map->row_bytes;
    if (end > atomic_load(&map->file_bytes))
        return false;
    for (size_t page = begin / map->page_bytes; page * map->page_bytes < end; page++) {
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
