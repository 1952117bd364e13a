/* See latency.h. A time's bucket is its exponent and the six bits after its leading one. */
#include "latency.h"

#define STEPS (1u << BENCH_LATENCY_STEP_BITS)

static unsigned bucket_of(uint64_t ns)
{
    if (ns < STEPS)
        return (unsigned)ns;
    unsigned exponent = 63 - (unsigned)__builtin_clzll(ns) - BENCH_LATENCY_STEP_BITS;
    return (exponent << BENCH_LATENCY_STEP_BITS) + (unsigned)(ns >> exponent);
}

/* The middle of what the bucket holds. */
static double bucket_ns(unsigned bucket)
{
    if (bucket < STEPS)
        return bucket;
    unsigned exponent = (bucket >> BENCH_LATENCY_STEP_BITS) - 1;
    double low = (double)((uint64_t)(bucket - (exponent << BENCH_LATENCY_STEP_BITS)) << exponent);
    return low + (double)(UINT64_C(1) << exponent) / 2;
}

void bench_latency_add(struct bench_latency *latency, uint64_t ns)
{
    latency->counts[bucket_of(ns)]++;
    latency->total++;
    if (ns > latency->max_ns)
        latency->max_ns = ns;
}

double bench_latency_us(const struct bench_latency *latency, double share)
{
    double rank = share * (double)latency->total, seen = 0;
    if (!latency->total)
        return 0;
    if (share >= 1)
        return (double)latency->max_ns / 1e3;
    for (unsigned bucket = 0; bucket < BENCH_LATENCY_BUCKETS; bucket++) {
        seen += (double)latency->counts[bucket];
        if (seen >= rank && latency->counts[bucket])
            return bucket_ns(bucket) / 1e3;
    }
    return (double)latency->max_ns / 1e3;
}
