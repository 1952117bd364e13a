/* What is counted of a stretch of time: answers, errors and times. */
#ifndef BAG_BENCH_COUNT_H
#define BAG_BENCH_COUNT_H

#include "connection.h"
#include "latency.h"
#include "proto/bench_report.h"

/* A step is shown over time in so many windows. */
#define BAG_BENCH_WINDOWS 50

struct bag_bench_window {
    uint64_t answered, errors;
    double p50_ms, p99_ms, max_ms;
};

/* The shares of the curve of percentiles. */
#define BAG_BENCH_CURVE 40

/* What was measured in a step; `run` is what the report has of it. */
struct bag_bench_measured {
    struct bag_bench_run run;
    double window_s;
    struct bag_bench_window windows[BAG_BENCH_WINDOWS];
    double curve_ms[BAG_BENCH_CURVE]; /* the i-th: of all but 10^(-i / 8) */
    double cpu_share;                 /* of a processor, that the generator took */
};

/* Requests belong to the step in which they were due. */
struct bag_bench_count {
    double rate, seconds;
    uint64_t start_ns, end_ns;
    uint64_t sent, answered;
    uint64_t arrived, bags, rows, bytes; /* of 200s that came during the step, whenever due */
    struct bag_bench_error errors[BAG_BENCH_MAX_ERRORS];
    size_t num_errors;
    struct bag_bench_latency times, late;
    struct bag_bench_latency windows[BAG_BENCH_WINDOWS];
    uint64_t window_errors[BAG_BENCH_WINDOWS];
};

void bag_bench_count_begin(struct bag_bench_count *count, double rate, double seconds,
                           uint64_t start_ns);

/* A 200 for a request that was due then. */
void bag_bench_count_answer(struct bag_bench_count *count, uint64_t due_ns, uint64_t ns);

/* Another answer, with the beginning of its body; or none, where `status` is 0, and why. */
void bag_bench_count_error(struct bag_bench_count *count, uint64_t due_ns, int status,
                           const char *text, size_t bytes);

/* A request that was due but never left, and why. */
void bag_bench_count_unsent(struct bag_bench_count *count, uint64_t due_ns, const char *text,
                            size_t bytes);

void bag_bench_count_finish(const struct bag_bench_count *count, double cpu_share,
                            struct bag_bench_measured *measured);

#endif
