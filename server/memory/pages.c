/* Maps large blocks of memory, and the memory of tables; see memory.h. */
#include "memory.h"
#include "server/system/log.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <linux/mman.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- large blocks ---------------------------------------------------------------------------- */

/* The size of a huge page. With small pages, almost every access to a random row of a large table
 * misses the TLB. A huge page must begin at a multiple of its size, but mmap aligns only to 4
 * KiB. */
#define HUGE_PAGE_BYTES ((size_t)2 << 20)

/* The amount that is unmapped at a time, which takes about a millisecond. */
#define SLICE_BYTES ((size_t)16 << 20)

static void *map_anonymous(size_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static size_t round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* Maps one huge page more than needed and unmaps the excess on both sides. */
static void *map_aligned(size_t bytes)
{
    size_t whole = round_up(bytes, (size_t)sysconf(_SC_PAGESIZE));
    char *start = map_anonymous(whole + HUGE_PAGE_BYTES);
    if (!start)
        return NULL;
    size_t before = -(uintptr_t)start % HUGE_PAGE_BYTES;
    if (before)
        munmap(start, before);
    munmap(start + before + whole, HUGE_PAGE_BYTES - before);
    return start + before;
}

static bool fits_address_space(size_t bytes)
{
    errno = ENOMEM;
    return bytes <= PTRDIFF_MAX - 2 * HUGE_PAGE_BYTES;
}

static void *reject(size_t bytes, struct bag_problem *problem)
{
    bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "%s of memory cannot be had: %s",
                    bag_format_bytes(bytes).text, strerror(errno));
    return NULL;
}

void *bag_memory_map_small(size_t bytes)
{
    return fits_address_space(bytes) ? map_aligned(bytes) : NULL;
}

void *bag_memory_map(size_t bytes, struct bag_problem *problem)
{
    bool is_huge = bytes >= HUGE_PAGE_BYTES;
    void *memory = NULL;
    if (fits_address_space(bytes))
        memory = is_huge ? map_aligned(bytes) : map_anonymous(bytes);
    /* A kernel without huge pages rejects the advice; the memory is then only slower. */
    if (memory && is_huge)
        madvise(memory, bytes, MADV_HUGEPAGE);
    return memory ? memory : reject(bytes, problem);
}

/* Unmaps in slices, because other threads that map memory or touch a new page wait for each
 * call. */
void bag_memory_unmap(void *memory, size_t bytes)
{
    char *rest = memory;
    if (!memory)
        return;
    for (; bytes > SLICE_BYTES; rest += SLICE_BYTES, bytes -= SLICE_BYTES)
        munmap(rest, SLICE_BYTES);
    munmap(rest, bytes);
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* The configuration, set before the first table is loaded. */
static enum bag_hugepages hugepages = BAG_HUGEPAGES_TRANSPARENT;
static uint64_t interleaved_nodes; /* 0: the system chooses the node */
static size_t max_table_bytes;     /* 0: no limit */

static atomic_size_t used;
static _Atomic uint64_t huge_refusals, node_refusals;

uint64_t bag_pages_parse_nodes(const char *list)
{
    uint64_t nodes = 0;
    for (char *end; *list >= '0' && *list <= '9'; list = *end == ',' ? end + 1 : end) {
        unsigned long first = strtoul(list, &end, 10), last = first;
        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        for (unsigned long node = first; node <= last && node < 64; node++)
            nodes |= UINT64_C(1) << node;
    }
    return nodes;
}

/* Returns the nodes that have memory, or 0 if the system does not report them. */
static uint64_t find_nodes(void)
{
    char list[256] = "";
    FILE *file = fopen("/sys/devices/system/node/has_memory", "re");
    if (!file)
        return 0;
    bool ok = fgets(list, sizeof list, file) != NULL;
    fclose(file);
    return ok ? bag_pages_parse_nodes(list) : 0;
}

size_t bag_pages_nodes(void)
{
    uint64_t nodes = find_nodes();
    return nodes ? (size_t)__builtin_popcountll(nodes) : 1;
}

void bag_pages_configure(const struct bag_option_values *options)
{
    hugepages = options->hugepages;
    max_table_bytes = (size_t)options->max_table_bytes;
    bag_pages_interleave(
        options->numa == BAG_NUMA_INTERLEAVE && bag_pages_nodes() > 1 ? find_nodes() : 0);
}

void bag_pages_interleave(uint64_t nodes)
{
    interleaved_nodes = nodes;
}

/* Logs that memory could not be allocated as configured. The memory works but is slower, and the
 * operator should know. */
static void tell_refused(const char *option, const char *instead, size_t bytes,
                         _Atomic uint64_t *refusals)
{
    atomic_fetch_add_explicit(refusals, 1, memory_order_relaxed);
    bag_log(BAG_LOG_LEVEL_WARNING, "memory is not as configured", BAG_LOG_TEXT("option", option),
            BAG_LOG_TEXT("reason", strerror(errno)), BAG_LOG_TEXT("instead", instead),
            BAG_LOG_NUMBER("bytes", bytes));
}

uint64_t bag_pages_huge_refusals(void)
{
    return atomic_load_explicit(&huge_refusals, memory_order_relaxed);
}

uint64_t bag_pages_node_refusals(void)
{
    return atomic_load_explicit(&node_refusals, memory_order_relaxed);
}

/* Maps memory from the system's pool of huge pages. Returns NULL if the pool has too few. */
static void *map_explicit(size_t whole)
{
    void *memory = mmap(NULL, whole, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_HUGE_2MB, -1, 0);
    if (memory != MAP_FAILED)
        return memory;
    tell_refused("hugepages", "transparent huge pages", whole, &huge_refusals);
    return NULL;
}

/* Maps memory with transparent huge pages, or without them if they are switched off. */
static void *map_transparent(size_t whole)
{
    void *memory = map_aligned(whole);
    int advice = hugepages == BAG_HUGEPAGES_OFF ? MADV_NOHUGEPAGE : MADV_HUGEPAGE;
    if (memory && madvise(memory, whole, advice) != 0 && advice == MADV_HUGEPAGE)
        tell_refused("hugepages", "small pages", whole, &huge_refusals);
    return memory;
}

/* Maps memory as configured. If the kernel does not support an option, the memory is only
 * slower. */
static void *map_large(size_t whole)
{
    static atomic_uint number;
    char name[32];
    void *memory = hugepages == BAG_HUGEPAGES_EXPLICIT ? map_explicit(whole) : NULL;
    if (!memory)
        memory = map_transparent(whole);
    if (!memory)
        return NULL;
    if (interleaved_nodes && syscall(SYS_mbind, memory, whole, MPOL_INTERLEAVE, &interleaved_nodes,
                                     8 * sizeof interleaved_nodes + 1, 0) != 0)
        tell_refused("numa", "memory of any node", whole, &node_refusals);
    /* The name keeps the block apart from its neighbours in /proc/self/smaps. */
    snprintf(name, sizeof name, "bagserve table %u", atomic_fetch_add(&number, 1));
    prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, memory, whole, name);
    return memory;
}

void *bag_pages_map(size_t bytes, struct bag_problem *problem)
{
    void *memory = NULL;
    if (fits_address_space(bytes))
        memory = bytes < HUGE_PAGE_BYTES ? map_anonymous(bytes)
                                         : map_large(round_up(bytes, HUGE_PAGE_BYTES));
    if (!memory)
        return reject(bytes, problem);
    bag_pages_count(bytes);
    return memory;
}

void bag_pages_unmap(void *memory, size_t bytes)
{
    if (!memory)
        return;
    bag_memory_unmap(memory, bytes < HUGE_PAGE_BYTES ? bytes : round_up(bytes, HUGE_PAGE_BYTES));
    bag_pages_uncount(bytes);
}

/* ---- how much it is -------------------------------------------------------------------------- */

void bag_pages_count(size_t bytes)
{
    atomic_fetch_add(&used, bytes);
}

void bag_pages_uncount(size_t bytes)
{
    atomic_fetch_sub(&used, bytes);
}

size_t bag_pages_used(void)
{
    return atomic_load(&used);
}

size_t bag_pages_limit(void)
{
    return max_table_bytes;
}

bool bag_pages_check(size_t new_bytes, size_t freed_bytes, struct bag_problem *problem)
{
    size_t old_bytes = bag_pages_used(), all;
    old_bytes -= freed_bytes < old_bytes ? freed_bytes : old_bytes;
    bool overflow = __builtin_add_overflow(old_bytes, new_bytes, &all);
    if (max_table_bytes == 0 || (!overflow && all <= max_table_bytes))
        return true;
    return bag_problem_set(problem, BAG_ERROR_NO_MEMORY,
                           "the tables to be loaded take %s beside %s of those that are there; "
                           "max_table_bytes is %s",
                           bag_format_bytes(new_bytes).text, bag_format_bytes(old_bytes).text,
                           bag_format_bytes(max_table_bytes).text);
}

/* Returns the block's share of a mapping's huge pages, in proportion to the part of the mapping
 * that the block covers. */
static size_t share_of(size_t huge_bytes, uintptr_t begin, uintptr_t end, const void *memory,
                       size_t bytes)
{
    uintptr_t first = (uintptr_t)memory, last = first + bytes;
    if (last <= begin || end <= first)
        return 0;
    uintptr_t common = (last < end ? last : end) - (first > begin ? first : begin);
    if (huge_bytes == end - begin)
        return common;
    return (size_t)((double)huge_bytes * (double)common / (double)(end - begin));
}

size_t bag_pages_huge(const void *memory, size_t bytes)
{
    char line[512];
    unsigned long begin = 0, end = 0, from, to, kib;
    size_t huge_bytes = 0;
    FILE *file = fopen("/proc/self/smaps", "re");
    if (!file)
        return 0;
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "AnonHugePages: %lu kB", &kib) == 1 ||
            sscanf(line, "Private_Hugetlb: %lu kB", &kib) == 1)
            huge_bytes += share_of((size_t)kib << 10, begin, end, memory, bytes);
        else if (strchr(line, '-') && sscanf(line, "%lx-%lx ", &from, &to) == 2)
            begin = from, end = to;
    }
    fclose(file);
    return huge_bytes;
}
