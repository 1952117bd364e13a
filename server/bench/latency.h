/* A histogram of times: 64 steps per doubling, so that every time is right within 1.6 %. Allocates
 * nothing. */
#ifndef BAG_BENCH_LATENCY_H
#define BAG_BENCH_LATENCY_H

#include <stdint.h>

#define BAG_BENCH_LATENCY_STEP_BITS 6
#define BAG_BENCH_LATENCY_BUCKETS \
    ((65 - BAG_BENCH_LATENCY_STEP_BITS) << BAG_BENCH_LATENCY_STEP_BITS)

/* Zeroed, it is empty. */
struct bag_bench_latency {
    uint32_t counts[BAG_BENCH_LATENCY_BUCKETS];
    uint64_t total, max_ns;
};

void bag_bench_latency_add(struct bag_bench_latency *latency, uint64_t ns);

/* The time that `share` (0 to 1) of all stay within, in milliseconds; 0 where there are none. */
double bag_bench_latency_ms(const struct bag_bench_latency *latency, double share);

#endif
