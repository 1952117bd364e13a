/* What `bagserve bench` measured, and its file: JSON that it writes, and reads again to compare. */
#ifndef BAG_BENCH_REPORT_H
#define BAG_BENCH_REPORT_H

#include "problem.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BAG_BENCH_MAX_ERRORS 8 /* kinds of a run; more are counted with the last */
#define BAG_BENCH_MAX_RUNS   1024

/* The percentiles of times. X(member, "key", share) */
#define BAG_BENCH_PERCENTILES(X) \
    X(p50, "p50", 0.5)           \
    X(p90, "p90", 0.9)           \
    X(p99, "p99", 0.99)          \
    X(p999, "p99.9", 0.999)      \
    X(max, "max", 1)

struct bag_bench_times {
#define BAG_X(member, key, share) double member;
    BAG_BENCH_PERCENTILES(BAG_X)
#undef BAG_X
};

/* Answers of one status other than 200, or requests that were lost. */
struct bag_bench_error {
    char kind[8]; /* "503", "lost" */
    uint64_t count;
    char first[200]; /* what the first of them said */
};

struct bag_bench_run {
    double rate; /* wanted; 0: as fast as the answers came */
    double seconds;
    uint64_t sent, answered; /* 200s */
    struct bag_bench_error errors[BAG_BENCH_MAX_ERRORS];
    size_t num_errors;
    double requests_per_s, bags_per_s, rows_per_s, bytes_gathered_per_s;
    struct bag_bench_times latency_ms;
    double late_p50_ms, late_p99_ms; /* of the generator itself */
};

/* X(ID, "name") */
#define BAG_BENCH_MODES(X) \
    X(OPEN, "open")        \
    X(CLOSED, "closed")    \
    X(SWEEP, "sweep")

enum bag_bench_mode {
#define BAG_X(id, name) BAG_BENCH_##id,
    BAG_BENCH_MODES(BAG_X)
#undef BAG_X
        BAG_BENCH_MODE_COUNT
};

extern const char *const bag_bench_modes[BAG_BENCH_MODE_COUNT];

struct bag_bench_report {
    char *url, *model; /* owned */
    uint64_t seed;
    enum bag_bench_mode mode;
    double highest_rate; /* of a sweep; -1: none holds, or there was none */
    double slo_ms;
    bool generator_limited;
    struct bag_bench_run *runs; /* owned */
    size_t num_runs;
};

/* The JSON, for the caller to free; NULL without memory. */
char *bag_bench_report_print(const struct bag_bench_report *report);

/* Reads it. On failure there is nothing to free. */
bool bag_bench_report_parse(const char *text, size_t bytes, struct bag_bench_report *report,
                            struct bag_problem *problem);

void bag_bench_report_free(struct bag_bench_report *report);

#endif
