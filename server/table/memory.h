/* Large private memory, straight from the kernel.
 *
 * Must not know: what is kept in it. Safe on any thread. */
#ifndef BAG_TABLE_MEMORY_H
#define BAG_TABLE_MEMORY_H

#include "proto/problem.h"

/* `bytes` (at least 1) of zeroed memory, aligned to a page; from 2 MiB on aligned to that, with
 * huge pages asked for. It takes physical memory as it is written. NULL, with the problem set,
 * where the machine rejects. The caller owns it. */
void *bag_memory_map(size_t bytes, struct bag_problem *problem);

/* Gives back what bag_memory_map(bytes) returned. NULL is allowed. */
void bag_memory_unmap(void *memory, size_t bytes);

#endif
