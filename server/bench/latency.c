/* The histogram of latencies; see latency.h. The bucket of a time is its exponent and the six bits
 * after its leading one. */
#include "latency.h"

#include <math.h>

#define STEPS (1u << BAG_BENCH_LATENCY_STEP_BITS)

/* Returns the bucket of a time. Times below STEPS ns have a bucket each. */
static unsigned bucket_of(uint64_t ns)
{
    if (ns < STEPS)
        return (unsigned)ns;
    unsigned exponent = 63 - (unsigned)__builtin_clzll(ns) - BAG_BENCH_LATENCY_STEP_BITS;
    return (exponent << BAG_BENCH_LATENCY_STEP_BITS) + (unsigned)(ns >> exponent);
}

/* Returns the middle of the times of a bucket. */
static double bucket_ns(unsigned bucket)
{
    if (bucket < STEPS)
        return bucket;
    unsigned exponent = (bucket >> BAG_BENCH_LATENCY_STEP_BITS) - 1;
    double low =
        (double)((uint64_t)(bucket - (exponent << BAG_BENCH_LATENCY_STEP_BITS)) << exponent);
    return low + (double)(UINT64_C(1) << exponent) / 2;
}

void bag_bench_latency_add(struct bag_bench_latency *latency, uint64_t ns)
{
    latency->counts[bucket_of(ns)]++;
    latency->total++;
    if (ns > latency->max_ns)
        latency->max_ns = ns;
}

double bag_bench_latency_ms(const struct bag_bench_latency *latency, double share)
{
    /* The bucket in which the count from the fastest reaches the share. */
    double rank = share * (double)latency->total, seen = 0;
    if (!latency->total)
        return 0;
    if (share >= 1)
        return (double)latency->max_ns / 1e6;
    for (unsigned bucket = 0; bucket < BAG_BENCH_LATENCY_BUCKETS; bucket++) {
        seen += (double)latency->counts[bucket];
        if (seen >= rank && latency->counts[bucket])
            return fmin(bucket_ns(bucket), (double)latency->max_ns) / 1e6;
    }
    return (double)latency->max_ns / 1e6;
}
