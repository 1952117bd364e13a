/* How much memory may still be taken: of the machine's and of the control groups around us.
 *
 * Must not know: tables. Safe on any thread. load.h has the check against the running system. */
#ifndef BAG_TABLE_MEMLIMIT_H
#define BAG_TABLE_MEMLIMIT_H

#include "proto/problem.h"

/* Rejects where `needed_bytes` pass what `proc`/meminfo calls available, or what is left to one of
 * the control groups (version 1 or 2) that `proc`/self/cgroup names, or to a group around it, as
 * found under `sys`/fs/cgroup. A file that is missing limits nothing. Page cache that a group
 * holds counts as free: the kernel takes it back when memory is short. */
bool bag_memory_check_in(const char *proc, const char *sys, size_t needed_bytes,
                         struct bag_problem *problem);

#endif
