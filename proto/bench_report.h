/* The report of `bagserve bench`: the workload, the server and the measurements.
 *
 * A report is a list of runs. A run is a period with one rate of requests, and has its rates, its
 * latencies and its errors. The workload describes the content of each request. Two reports can be
 * compared if their workloads are equal.
 *
 * `bagserve bench --report FILE` writes a report as JSON, `--compare FILE` reads it again, and the
 * page of `--html` shows the same JSON. The functions are pure, and threads share nothing. */
#pragma once

#include "problem.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BAG_BENCH_MAX_ERRORS 8 /* kinds of errors of a run; further ones count as the last */
#define BAG_BENCH_MAX_RUNS   1024
#define BAG_BENCH_MAX_NOTES  8
#define BAG_BENCH_NOTE_BYTES 480
#define BAG_BENCH_WINDOWS    50 /* equal periods of a run, by which it is shown over time */
#define BAG_BENCH_CURVE      40 /* points of the curve of percentiles */

/* The percentiles of latencies. X(member, "key", share) */
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

/* Replies of one status other than 200, or requests without a reply. */
struct bag_bench_error {
    char kind[8]; /* "503", "lost" */
    uint64_t count;
    char first[200]; /* sentence of the first of them */
};

/* Requests by when they were due, within one window of a run. */
struct bag_bench_window {
    uint64_t answered, errors;
    double p50_ms, p99_ms;
};

struct bag_bench_run {
    double rate; /* requests due in a second; 0: each request was sent after the previous reply */
    double seconds;
    uint64_t sent, answered; /* answered: replies with status 200 */
    struct bag_bench_error errors[BAG_BENCH_MAX_ERRORS];
    size_t num_errors;
    double requests_per_s, bags_per_s, rows_per_s, bytes_gathered_per_s;
    struct bag_bench_times latency_ms;
    double late_p50_ms, late_p99_ms; /* delay of the generator itself */
    double generator_cpu;            /* processors that the generator used */
    double window_s;                 /* length of a window; 0: windows and curve_ms are not known */
    struct bag_bench_window windows[BAG_BENCH_WINDOWS];
    double curve_ms[BAG_BENCH_CURVE]; /* element i: latency of all requests but 10^(-i / 8) */
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

/* The content of every request. An empty text stands for null. */
struct bag_bench_workload {
    uint64_t bags; /* number of bags of each feature */
    char ids[256]; /* ids of a bag, as --ids has them */
    double zipf;   /* exponent; 0: all ids equally often */
    bool weights;
    char reduction[16]; /* empty: the model's own */
    char body[8];       /* "binary" or "json" */
    uint64_t connections;
    uint64_t tables, table_bytes; /* tables of the model and their bytes; table_bytes 0: unknown */
    char get[256];                /* path of a GET that replaced inference */
};

struct bag_bench_report {
    char *url, *model; /* owned */
    struct bag_bench_workload workload;
    char date[32];                 /* UTC, such as "2026-11-27T08:30:00Z" */
    char host[72], processor[128]; /* host and processor of the generator's machine */
    uint64_t seed;
    enum bag_bench_mode mode;
    double highest_rate; /* the verdict of a sweep: the highest rate that holds; -1: no verdict */
    char hindered_by[BAG_BENCH_NOTE_BYTES]; /* why a sweep has no verdict, and what to do about it;
                                               empty if it has one, or was no sweep */
    double slo_ms;
    bool generator_limited;
    struct bag_bench_run *runs; /* owned; of a sweep by rate, otherwise by time */
    size_t num_runs;
    size_t deciding_run; /* index of the run with the highest rate of a sweep that holds; SIZE_MAX:
                            none */
    char notes[BAG_BENCH_MAX_NOTES][BAG_BENCH_NOTE_BYTES]; /* sentences for the reader */
    size_t num_notes;
};

/* Adds a sentence to the notes. Drops it if there are BAG_BENCH_MAX_NOTES already. */
__attribute__((format(printf, 2, 3))) void bag_bench_report_note(struct bag_bench_report *report,
                                                                 const char *format, ...);

/* Writes the members in which two workloads differ, such as "bags 1 and 64, zipf 0 and 1.1", into
 * `text`, which has `capacity` bytes. The text is empty if they are equal. Returns false if memory
 * is exhausted. */
bool bag_bench_workload_compare(const struct bag_bench_workload *before,
                                const struct bag_bench_workload *now, char *text, size_t capacity);

/* Returns the JSON, which the caller frees. Returns NULL if memory is exhausted. */
char *bag_bench_report_print(const struct bag_bench_report *report);

/* Parses the JSON, except for the notes, the windows and the curve, which a comparison does not
 * show. Returns false and sets *problem (FILE, or NO_MEMORY) if it is not a report; nothing needs
 * to be freed then. */
bool bag_bench_report_parse(const char *text, size_t bytes, struct bag_bench_report *report,
                            struct bag_problem *problem);

/* Frees the members of a report and zeroes it. A zeroed report is allowed. */
void bag_bench_report_free(struct bag_bench_report *report);
