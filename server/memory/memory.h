/* Memory of the machine: what is left of it, and large blocks of it. Safe on any thread. */
#ifndef BAG_MEMORY_H
#define BAG_MEMORY_H

#include "proto/problem.h"

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

#endif
