/* See memory.h. Random rows of a large table miss the TLB with almost every access unless its pages
 * are huge; a huge page must begin at a multiple of its size, and mmap alone promises only 4 KiB.
 */
#include "memory.h"
#include "format_bytes.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_PAGE_BYTES ((size_t)2 << 20)

static void *map_anonymous(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

/* Maps a huge page more than needed and gives back what stands out on both sides. */
static void *map_huge(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t whole = (bytes + page - 1) / page * page;
    char *start = map_anonymous(whole + HUGE_PAGE_BYTES);
    if (!start)
        return NULL;
    size_t before = -(uintptr_t)start % HUGE_PAGE_BYTES;
    if (before)
        munmap(start, before);
    munmap(start + before + whole, HUGE_PAGE_BYTES - before);
    /* A kernel without huge pages says no; the memory is as good, only slower. */
    madvise(start + before, whole, MADV_HUGEPAGE);
    return start + before;
}

void *bag_memory_map(size_t bytes, struct bag_problem *problem)
{
    void *memory = NULL;
    errno = ENOMEM;
    if (bytes <= PTRDIFF_MAX - 2 * HUGE_PAGE_BYTES)
        memory = bytes < HUGE_PAGE_BYTES ? map_anonymous(bytes) : map_huge(bytes);
    if (!memory)
        bag_problem_set(problem, 500, "%s of memory cannot be had: %s",
                        bag_format_bytes(bytes).text, strerror(errno));
    return memory;
}

void bag_memory_unmap(void *memory, size_t bytes)
{
    if (memory)
        munmap(memory, bytes);
}
