/* Recent times of replies; see shards.h. */
#include "shards.h"

/* Number of times after which all counters are halved. */
#define MANY_TIMES 1024

/* Minimum number of times for a percentile. */
#define FEW_TIMES 40

/* Returns the lower bound of the i-th counter in ns. Bounds between two powers of two are 1.25, 1.5
 * and 1.75 times the lower one. */
static uint64_t time_ns(size_t i)
{
    return (4 + (i & 3)) << (i / 4) << 8; /* 1024 ns at first */
}

/* Returns the last counter whose lower bound is not above the time; 0 if none is. */
static size_t counter_of(uint64_t ns)
{
    unsigned exponent = 63 - (unsigned)__builtin_clzll(ns | 1);
    size_t i = exponent < 10 ? 0 : (exponent - 10) * 4 + (ns >> (exponent - 2) & 3);
    return i < BAG_SHARD_TIMES ? i : BAG_SHARD_TIMES - 1;
}

void bag_shard_latency_add(struct bag_shard_latency *latency, uint64_t ns)
{
    size_t i = counter_of(ns);
    atomic_fetch_add_explicit(&latency->counts[i], 1, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&latency->total, 1, memory_order_relaxed) + 1 < MANY_TIMES)
        return;
    unsigned total = 0;
    for (i = 0; i < BAG_SHARD_TIMES; i++) {
        unsigned half = atomic_load_explicit(&latency->counts[i], memory_order_relaxed) / 2;
        atomic_store_explicit(&latency->counts[i], half, memory_order_relaxed);
        total += half;
    }
    atomic_store_explicit(&latency->total, total, memory_order_relaxed);
}

uint64_t bag_shard_latency_p95_ns(const struct bag_shard_latency *latency)
{
    unsigned total = atomic_load_explicit(&latency->total, memory_order_relaxed), seen = 0;
    if (total < FEW_TIMES)
        return UINT64_MAX;
    for (size_t i = 0; i + 1 < BAG_SHARD_TIMES; i++) {
        seen += atomic_load_explicit(&latency->counts[i], memory_order_relaxed);
        if (seen >= total - total / 20)
            return time_ns(i + 1);
    }
    return UINT64_MAX;
}
