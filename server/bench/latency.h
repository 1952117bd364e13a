/* A histogram of latencies with 64 buckets for each power of two, so that every percentile is right
 * within 1.6 %. Allocates nothing. */
#pragma once

#include <stdint.h>

#define BAG_BENCH_LATENCY_STEP_BITS 6
#define BAG_BENCH_LATENCY_BUCKETS \
    ((65 - BAG_BENCH_LATENCY_STEP_BITS) << BAG_BENCH_LATENCY_STEP_BITS)

/* An empty histogram is all zeros. */
struct bag_bench_latency {
    uint32_t counts[BAG_BENCH_LATENCY_BUCKETS];
    uint64_t total, max_ns;
};

/* Counts a latency. */
void bag_bench_latency_add(struct bag_bench_latency *latency, uint64_t ns);

/* Returns the latency that a share of all, 0 to 1, does not exceed, in milliseconds; 0 if the
 * histogram is empty. */
double bag_bench_latency_ms(const struct bag_bench_latency *latency, double share);
