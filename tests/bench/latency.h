/* A histogram of times: 64 steps per doubling, so that every time is right within 1.6 %. Allocates
 * nothing. */
#ifndef BENCH_LATENCY_H
#define BENCH_LATENCY_H

#include <stdint.h>

#define BENCH_LATENCY_STEP_BITS 6
#define BENCH_LATENCY_BUCKETS   ((65 - BENCH_LATENCY_STEP_BITS) << BENCH_LATENCY_STEP_BITS)

/* Zeroed, it is empty. */
struct bench_latency {
    uint64_t counts[BENCH_LATENCY_BUCKETS];
    uint64_t total, max_ns;
};

void bench_latency_add(struct bench_latency *latency, uint64_t ns);

/* The time that `share` (0 to 1) of all stay within, in microseconds; 0 where there are none. */
double bench_latency_us(const struct bench_latency *latency, double share);

#endif
