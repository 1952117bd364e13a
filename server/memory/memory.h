/* Memory of the machine: what is left of it, large blocks of it, and the bound of what requests
 * hold. Safe on any thread. */
#ifndef BAG_MEMORY_H
#define BAG_MEMORY_H

#include "proto/problem.h"

#include <stdatomic.h>
#include <stddef.h>

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

/* Gives back what bag_memory_map(bytes) returned. NULL is allowed. */
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

#endif
