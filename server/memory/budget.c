/* One bound for the memory of requests; see budget.h. */
#include "budget.h"

#include "memory.h"

#define SMALL_BYTES ((size_t)1 << 20)

/* Less is never the default: a server that can answer nothing is of no use. */
#define LEAST_DEFAULT_BYTES ((size_t)64 << 20)

void bag_budget_init(struct bag_budget *budget, size_t max_bytes, size_t other_bytes)
{
    budget->max_bytes = max_bytes;
    atomic_init(&budget->used_bytes, 0);
    if (max_bytes)
        return;
    size_t left = bag_memory_left();
    budget->max_bytes = left > other_bytes ? (left - other_bytes) / 2 : 0;
    if (budget->max_bytes < LEAST_DEFAULT_BYTES)
        budget->max_bytes = LEAST_DEFAULT_BYTES;
}

bool bag_budget_take(struct bag_budget *budget, size_t bytes)
{
    if (!budget)
        return true;
    size_t max_bytes = budget->max_bytes;
    if (bytes >= SMALL_BYTES)
        max_bytes -= max_bytes / 8;
    size_t used = atomic_load_explicit(&budget->used_bytes, memory_order_relaxed);
    do {
        if (used > max_bytes || bytes > max_bytes - used)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&budget->used_bytes, &used, used + bytes,
                                                    memory_order_relaxed, memory_order_relaxed));
    return true;
}

void bag_budget_give(struct bag_budget *budget, size_t bytes)
{
    if (budget)
        atomic_fetch_sub_explicit(&budget->used_bytes, bytes, memory_order_relaxed);
}

bool bag_budget_reject(const struct bag_budget *budget, const char *what, size_t bytes,
                       struct bag_problem *problem)
{
    if (!budget)
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY,
                               "not enough memory for %s of %zu bytes", what, bytes);
    return bag_problem_set(problem, BAG_ERROR_NO_MEMORY,
                           "not enough memory for %s of %zu bytes: requests hold %zu bytes; the "
                           "limit (max_memory) is %zu",
                           what, bytes, atomic_load(&budget->used_bytes), budget->max_bytes);
}
