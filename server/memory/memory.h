/* Memory of the machine: what is left of it, large blocks of it, and the bound of what requests
 * hold. Safe on any thread. */
#ifndef BAG_MEMORY_H
#define BAG_MEMORY_H

#include "config/options.h"
#include "proto/arena.h"
#include "proto/problem.h"

#include <stdatomic.h>
#include <stddef.h>
#include <uv.h>

/* A number of bytes for people: "512 bytes", "1.50 MiB", "2.00 GiB". Returned by value so that it
 * can stand in an argument list: bag_format_bytes(n).text */
struct bag_format_bytes {
    char text[24];
};
struct bag_format_bytes bag_format_bytes(size_t bytes);

/* `bytes` (at least 1) of zeroed memory, aligned to a page; from 2 MiB on aligned to that, with
 * huge pages asked for. It takes physical memory as it is written. NULL, with the problem set,
 * where the machine has no more. The caller owns it. */
void *bag_memory_map(size_t bytes, struct bag_problem *problem);

/* The same without asking for huge pages; NULL where the machine has no more. For a thread that
 * must not wait: the first byte written to a huge page has the kernel find and clear all of it,
 * which may take 5 ms. */
void *bag_memory_map_small(size_t bytes);

/* Gives back what one of these returned. NULL is allowed. */
void bag_memory_unmap(void *memory, size_t bytes);

/* What is left of the machine's memory and of the control groups' limits, by the files below;
 * SIZE_MAX where no limit is known. */
size_t bag_memory_left(void);

/* Rejects where `needed_bytes` pass what `proc`/meminfo calls available, or what is left to one of
 * the control groups (version 1 or 2) that `proc`/self/cgroup names, or to a group around it, as
 * found under `sys`/fs/cgroup. A file that is missing limits nothing. Page cache that a group
 * holds counts as free: the kernel takes it back when memory is short. */
bool bag_memory_check_in(const char *proc, const char *sys, size_t needed_bytes,
                         struct bag_problem *problem);

/* The same against the running system. */
bool bag_memory_check(size_t needed_bytes, struct bag_problem *problem);

/* ---- memory of tables (pages.c) -------------------------------------------------------------- */

/* How tables are kept: hugepages, numa and max_table_bytes of the options. Before the first one. */
void bag_pages_configure(const struct bag_option_values *options);

/* Spreads the tables that follow over these nodes, a bit for each; 0: over none in particular. */
void bag_pages_interleave(uint64_t nodes);

/* How often memory could not be had as configured, in huge pages or over the nodes. Each is said in
 * the log. */
uint64_t bag_pages_huge_refusals(void);
uint64_t bag_pages_node_refusals(void);

/* As bag_memory_map, for a table or what belongs to one. With explicit huge pages where those of
 * the system suffice, otherwise with transparent ones. */
void *bag_pages_map(size_t bytes, struct bag_problem *problem);
void bag_pages_unmap(void *memory, size_t bytes);

/* Counts memory of a table that was taken otherwise; gives it back. */
void bag_pages_count(size_t bytes);
void bag_pages_uncount(size_t bytes);

/* What all tables take at present, and the most that they may (max_table_bytes; 0: any). */
size_t bag_pages_used(void);
size_t bag_pages_limit(void);

/* Whether tables of `new_bytes` may be loaded beside those that are there, of which `freed_bytes`
 * go first; otherwise *problem says which numbers pass the limit. */
bool bag_pages_check(size_t new_bytes, size_t freed_bytes, struct bag_problem *problem);

/* How much of a block, which bag_pages_map returned, is in huge pages now. Looks through all of the
 * process's memory: some milliseconds for each 10 GiB. */
size_t bag_pages_huge(const void *memory, size_t bytes);

/* The machine's memory nodes, at least 1. */
size_t bag_pages_nodes(void);

/* The nodes that a list such as "0-1,3" names, a bit for each, up to 64. */
uint64_t bag_pages_parse_nodes(const char *list);

/* ---- the budget of requests ------------------------------------------------------------------ */

/* One bound for all memory that requests hold at a time: bodies as they arrive, decompressed
 * bodies, what decoding takes, results, replies until they are sent, and what pools keep for the
 * next ones. Memory is taken from the budget before it is asked from the system. */
struct bag_budget {
    size_t max_bytes;
    atomic_size_t used_bytes;
};

/* A bound of `max_bytes`; 0 stands for half of what the machine and the control group have left
 * when `other_bytes` are taken for other things: the kernel's buffers of sockets need memory, too.
 */
void bag_budget_init(struct bag_budget *budget, size_t max_bytes, size_t other_bytes);

/* False, and nothing is taken, where that many bytes are not left. An eighth is left to pieces of
 * less than 1 MiB: large requests cannot lock out small ones. A budget of NULL has no bound. Any
 * thread. */
bool bag_budget_take(struct bag_budget *budget, size_t bytes);

/* Gives back what was taken. */
void bag_budget_give(struct bag_budget *budget, size_t bytes);

/* Says that a client's request finds no room: "not enough memory for WHAT of BYTES bytes". False.
 */
bool bag_budget_reject(const struct bag_budget *budget, const char *what, size_t bytes,
                       struct bag_problem *problem);

/* ---- buffers (buffers.c) --------------------------------------------------------------------- */

/* Recycled memory for bodies and replies.
 *
 * Fresh memory costs a page fault for every 4 KiB; recycled memory costs nothing. Sizes are rounded
 * up to powers of two, above 16 MiB to quarters of them; only the touched pages are real. A pool
 * belongs to one thread, or is shared between several and takes a lock. Memory goes back to the
 * pool it came from. All that a pool has, in use or kept, is taken from a budget. */

#define BAG_BUFFER_CLASSES 23 /* 1 KiB to 64 MiB; larger ones are not kept */

struct bag_buffers {
    struct bag_budget *budget; /* borrowed; NULL: without a bound */
    struct bag_buffer *free[BAG_BUFFER_CLASSES];
    unsigned num_free[BAG_BUFFER_CLASSES];
    unsigned min_free[BAG_BUFFER_CLASSES]; /* since the last bag_buffers_trim */
    size_t kept_bytes;
    _Atomic(struct bag_buffer *) leaving; /* until bag_buffers_free_some */
    bool shared;
    uv_mutex_t lock;                 /* of a shared pool */
    struct bag_memory_source source; /* this pool, for arenas and decompression */
};

/* Once initialised the pool must not move. */
bool bag_buffers_init(struct bag_buffers *buffers, bool shared, struct bag_budget *budget);

/* Frees what the pool has. All its memory has come back. */
void bag_buffers_free(struct bag_buffers *buffers);

/* Lets go of what was not needed since the last call. To be called about once a second: after a
 * burst the process becomes small again, and a steady load keeps what it uses. */
void bag_buffers_trim(struct bag_buffers *buffers);

/* What a pool does not keep goes back to the system, and to the budget, some megabytes at a time:
 * the loop's thread calls this in each of its turns. False where there was nothing. */
bool bag_buffers_free_some(struct bag_buffers *buffers);

/* At least `bytes` of memory, aligned to 64, not cleared; NULL where the budget or the system has
 * no more. */
void *bag_buffers_get(struct bag_buffers *buffers, size_t bytes);

/* Gives memory back to its pool; NULL is ignored. */
void bag_buffers_put(void *memory);

/* An object that stays with a piece of memory while the pool keeps it, for the next user who finds
 * it fitting by its keys. `drop` frees it with the memory, on any thread. */
struct bag_attachment {
    void *object; /* NULL: none */
    void (*drop)(void *object);
    uint32_t keys[4];
};

/* That of memory from bag_buffers_get. */
struct bag_attachment *bag_buffers_attachment(void *memory);

#endif
