/* Memory: how much the machine has left, large blocks, the memory of tables, and the budget of
 * requests. All functions may be called on any thread. */
#pragma once

#include "config/options.h"
#include "proto/arena.h"
#include "proto/problem.h"

#include <stdatomic.h>
#include <stddef.h>
#include <uv.h>

/* A number of bytes as text: "512 bytes", "1.50 MiB", "2.00 GiB". It is returned by value, so that
 * it can be used as an argument: bag_format_bytes(n).text */
struct bag_format_bytes {
    char text[24];
};
struct bag_format_bytes bag_format_bytes(size_t bytes);

/* Maps `bytes` (at least 1) of zeroed memory, aligned to a page. From 2 MiB on the block is aligned
 * to 2 MiB and advised to use huge pages. It uses physical memory only as it is written. Returns
 * NULL and sets *problem if the system has no memory. The caller owns the block. */
void *bag_memory_map(size_t bytes, struct bag_problem *problem);

/* Maps memory as bag_memory_map does, but without huge pages. Returns NULL if the system has no
 * memory. For threads that must not wait: the first write to a huge page makes the kernel find and
 * clear 2 MiB, which may take 5 ms. */
void *bag_memory_map_small(size_t bytes);

/* Unmaps memory of the functions above. NULL is allowed. */
void bag_memory_unmap(void *memory, size_t bytes);

/* Returns the memory that is left to this process, as bag_memory_check_in determines it, or
 * SIZE_MAX if no limit is known. */
size_t bag_memory_left(void);

/* Returns false and sets *problem if `needed_bytes` exceed the available memory. The available
 * memory is the minimum of
 *
 *   MemAvailable in `proc`/meminfo
 *   what the control groups (version 1 or 2) in `proc`/self/cgroup and the groups around them have
 * left, as found under `sys`/fs/cgroup
 *
 * A missing file is no limit. The page cache of a group counts as available, because the kernel
 * reclaims it when memory is short. */
bool bag_memory_check_in(const char *proc, const char *sys, size_t needed_bytes,
                         struct bag_problem *problem);

/* Calls bag_memory_check_in for the running system. */
bool bag_memory_check(size_t needed_bytes, struct bag_problem *problem);

/* ---- memory of tables (pages.c) -------------------------------------------------------------- */

/* Sets how tables are stored: the options hugepages, numa and max_table_bytes. Called before the
 * first table is loaded. */
void bag_pages_configure(const struct bag_option_values *options);

/* Interleaves the tables that are loaded from now on over these memory nodes, a bit for each. 0: no
 * interleaving. */
void bag_pages_interleave(uint64_t nodes);

/* Return how often memory could not be allocated as configured, in huge pages or interleaved over
 * nodes. Each case is logged. */
uint64_t bag_pages_huge_refusals(void);
uint64_t bag_pages_node_refusals(void);

/* Maps memory for a table. Uses explicit huge pages if they are configured and the system has
 * enough of them. Otherwise the memory is as from bag_memory_map(). */
void *bag_pages_map(size_t bytes, struct bag_problem *problem);
void bag_pages_unmap(void *memory, size_t bytes);

/* Count and uncount memory of a table that was allocated elsewhere. */
void bag_pages_count(size_t bytes);
void bag_pages_uncount(size_t bytes);

/* Return the memory of all tables, and its maximum (max_table_bytes; 0: no limit). */
size_t bag_pages_used(void);
size_t bag_pages_limit(void);

/* Returns whether tables of `new_bytes` may be loaded if `freed_bytes` of the current tables are
 * released before. Otherwise returns false and sets *problem with the sizes that exceed the
 * limit. */
bool bag_pages_check(size_t new_bytes, size_t freed_bytes, struct bag_problem *problem);

/* Returns how much of a block from bag_pages_map is in huge pages now. Reads /proc/self/smaps,
 * which covers all memory of the process and takes some milliseconds for each 10 GiB. */
size_t bag_pages_huge(const void *memory, size_t bytes);

/* Returns the number of the machine's memory nodes, at least 1. */
size_t bag_pages_nodes(void);

/* Returns the nodes in a list such as "0-1,3", as a bit for each of up to 64 nodes. */
uint64_t bag_pages_parse_nodes(const char *list);

/* ---- the budget of requests ------------------------------------------------------------------ */

/* The limit of all memory that requests hold at a time. It covers bodies while they arrive,
 * decompressed bodies, decoded requests, results, and replies until they are sent. It also covers
 * the buffers that pools keep for later requests. Memory is taken from the budget before it is
 * allocated. */
struct bag_budget {
    size_t max_bytes;
    atomic_size_t used_bytes;
    atomic_size_t most_bytes; /* maximum of used_bytes since bag_budget_forget_most */
    atomic_uint num_pools;    /* pools of buffers that share it */
};

/* The buffers that all pools of a budget keep for later requests have at most this part of it. A
 * pool frees its own before it rejects a request, and not those of other threads. */
#define BAG_BUDGET_KEPT_PART 16

/* Initialises a budget of `max_bytes`. 0 stands for half of the memory that the machine and the
 * control groups have left after `other_bytes`, because the kernel's socket buffers need memory,
 * too. */
void bag_budget_init(struct bag_budget *budget, size_t max_bytes, size_t other_bytes);

/* Takes bytes from the budget. Returns false and takes nothing if it has less than `bytes` left. An
 * eighth of the budget is reserved for allocations below 1 MiB, so that large requests cannot lock
 * out small ones. A budget of NULL has no limit. May be called on any thread. */
bool bag_budget_take(struct bag_budget *budget, size_t bytes);

/* Returns bytes to the budget. */
void bag_budget_give(struct bag_budget *budget, size_t bytes);

/* Begins a new maximum, most_bytes, at the bytes that are used now. */
void bag_budget_forget_most(struct bag_budget *budget);

/* Sets *problem to "not enough memory for WHAT of BYTES bytes", and says what holds the budget.
 * Returns false. */
bool bag_budget_reject(const struct bag_budget *budget, const char *what, size_t bytes,
                       struct bag_problem *problem);

/* ---- buffers (buffers.c) --------------------------------------------------------------------- */

/* Recycled memory for bodies and replies.
 *
 * Fresh memory costs a page fault for every 4 KiB; recycled memory costs nothing. Sizes are rounded
 * up to powers of two, and above 16 MiB to quarters of them. Pages of the rounding are never
 * touched and use no physical memory. A pool belongs to one thread, or is shared between threads
 * and uses a lock. Memory always returns to the pool that allocated it. All memory of a pool,
 * whether in use or kept, is taken from a budget. */

#define BAG_BUFFER_CLASSES 23 /* 1 KiB to 64 MiB; larger buffers are not kept */

struct bag_buffers {
    struct bag_budget *budget; /* borrowed; NULL: no limit */
    struct bag_buffer *free[BAG_BUFFER_CLASSES];
    unsigned num_free[BAG_BUFFER_CLASSES];
    unsigned min_free[BAG_BUFFER_CLASSES]; /* minimum since the last bag_buffers_trim */
    size_t kept_bytes;
    _Atomic(struct bag_buffer *) leaving; /* buffers to free in bag_buffers_free_some */
    bool shared;
    uv_mutex_t lock;                 /* used if the pool is shared */
    struct bag_memory_source source; /* this pool as a source for arenas and decompression */
};

/* Initialises a pool, which must not move afterwards. Returns false if a lock cannot be made. */
bool bag_buffers_init(struct bag_buffers *buffers, bool shared, struct bag_budget *budget);

/* Frees the pool's memory. All buffers must have been returned. */
void bag_buffers_free(struct bag_buffers *buffers);

/* Releases the buffers that were not needed since the last call. Called about once a second: the
 * process shrinks after a burst, and a steady load keeps its buffers. */
void bag_buffers_trim(struct bag_buffers *buffers);

/* Frees some megabytes of the released buffers and returns them to the budget. The loop's thread
 * calls this in each iteration. Returns false if there was nothing to free. */
bool bag_buffers_free_some(struct bag_buffers *buffers);

/* Returns at least `bytes` of memory, aligned to 64 bytes and not cleared. Returns NULL if the
 * budget or the system has no memory. */
void *bag_buffers_get(struct bag_buffers *buffers, size_t bytes);

/* Returns memory to its pool. NULL is ignored. */
void bag_buffers_put(void *memory);

/* An object that stays attached to a buffer while the pool keeps it. The next user of the buffer
 * may reuse the object if its keys match. `drop` frees it together with the buffer, on any
 * thread. */
struct bag_attachment {
    void *object; /* NULL: none */
    void (*drop)(void *object);
    uint32_t keys[4];
};

/* Returns the attachment of memory from bag_buffers_get. */
struct bag_attachment *bag_buffers_attachment(void *memory);
