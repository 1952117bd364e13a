/* One bound for all memory that requests hold at a time: bodies as they arrive, decompressed
 * bodies, what decoding takes, results, replies until they are sent, and what pools keep for the
 * next ones. Memory is taken from the budget before it is asked from the system. */
#ifndef BAG_BUDGET_H
#define BAG_BUDGET_H

#include "proto/problem.h"

#include <stdatomic.h>
#include <stddef.h>

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
