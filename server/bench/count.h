/* Counters of one run: replies, errors and latencies, from which its figures in the report follow.
 *
 * A request belongs to the run in which it was due, and to the window of its due time. Rates count
 * the replies that arrived during the run. If requests counted in the window of their replies, a
 * pause of the server would show in the windows after it. One thread uses the counters. */
#pragma once

#include "latency.h"
#include "proto/bench_report.h"

struct bag_bench_count {
    double rate, seconds; /* requests per second; duration, which is less if the run ended early */
    uint64_t start_ns, end_ns;
    uint64_t sent, answered;      /* requests that left; replies 200 */
    uint64_t arrived, bags, rows; /* counts for replies 200 that arrived during the run */
    double bytes;                 /* bytes of the rows that these replies pooled */
    struct bag_bench_error errors[BAG_BENCH_MAX_ERRORS];
    size_t num_errors;
    struct bag_bench_latency times, late; /* latencies of replies 200 from their due times; delays
                                             of the generator */
    struct bag_bench_latency windows[BAG_BENCH_WINDOWS];
    uint64_t window_errors[BAG_BENCH_WINDOWS];
};

/* Resets the counters for a run that begins at `start_ns`. */
void bag_bench_count_begin(struct bag_bench_count *count, double rate, double seconds,
                           uint64_t start_ns);

/* Counts a reply 200 to a request that was due at due_ns and took `ns`. */
void bag_bench_count_answer(struct bag_bench_count *count, uint64_t due_ns, uint64_t ns);

/* Counts a reply of another status, with the beginning of its body; or a request without a reply
 * if `status` is 0, with the reason. */
void bag_bench_count_error(struct bag_bench_count *count, uint64_t due_ns, int status,
                           const char *text, size_t bytes);

/* Counts a request that was due but never left, with the reason. */
void bag_bench_count_unsent(struct bag_bench_count *count, uint64_t due_ns, const char *text,
                            size_t bytes);

/* Sets *run to the figures; `generator_cpu` as in struct bag_bench_run. */
void bag_bench_count_finish(const struct bag_bench_count *count, double generator_cpu,
                            struct bag_bench_run *run);
