/* What loadgen counts, and how it is printed. */
#ifndef BENCH_LOADGEN_REPORT_H
#define BENCH_LOADGEN_REPORT_H

#include "latency.h"

#include <stdbool.h>
#include <stddef.h>

/* Recovery is judged in windows of this length. */
#define BENCH_WINDOW_NS UINT64_C(100000000)

struct bench_window {
    uint32_t due, normal;
};

/* A stretch of time with one rate of arrivals; a closed loop has a single one, of rate 0. Requests
 * belong to the phase in which they were due. */
struct bench_phase {
    double rate, seconds;
    uint64_t start_ns, end_ns;
    uint64_t due;                      /* requests that were to be sent */
    uint64_t unsent;                   /* of them: not sent, since every connection was busy */
    uint64_t lost;                     /* closed or reset before the answer */
    uint64_t other;                    /* answers that are neither 200 nor 503, or not HTTP */
    uint64_t answered;                 /* 200s that came during the phase, whenever they were due */
    uint64_t normal;                   /* 200s within normal_ms of when they were due */
    struct bench_latency ok, rejected; /* times of 200 and 503, from when the request was due */
    struct bench_latency rejected_once_sent; /* the 503s' times without the generator's lateness */
    struct bench_latency late;               /* how long after it was due a request was sent */
    struct bench_window *windows;            /* owned; NULL in a closed loop */
    size_t num_windows;
};

struct bench_report {
    bool open;
    unsigned connections; /* opened at the most */
    double cpu_seconds;   /* the generator's own */
    double normal_ms;     /* an answer within this is a normal one */
    const struct bench_phase *phases;
    size_t num_phases;
};

/* A table for people on standard error, one line of JSON on standard output. */
void bench_report_print(const struct bench_report *report);

#endif
