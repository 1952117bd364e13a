/* What is measured, run by run, and what becomes of it: a table, a page, a report. */
#ifndef BAG_BENCH_SESSION_H
#define BAG_BENCH_SESSION_H

#include "load.h"
#include "options.h"
#include "target.h"

struct bag_bench_session {
    const struct bag_bench_options *options;
    const struct bag_bench_target *target;
    struct bag_bench_load *load;
    struct bag_bench_report report;      /* owned */
    struct bag_bench_measured *measured; /* owned; of each run of the report */
    struct bag_bench_report before;      /* of --compare */
    bool has_before;
    bool changed; /* the model's metadata did, while it was asked */
};

/* Measures what the options say; what was measured is in the report, whatever comes of it. False
 * with *problem where it ended before its time, or nothing was answered. */
bool bag_bench_measure(struct bag_bench_session *session, struct bag_problem *problem);

/* Whether the generator, not the server, kept a run from its rate. */
bool bag_bench_generator_limits(const struct bag_bench_measured *measured);

/* Whether a run held its rate: p99 within the objective, and 99 % of all answered with 200. */
bool bag_bench_holds(const struct bag_bench_run *run, double slo_ms);

/* ---- for people (tell.c) --------------------------------------------------------------------- */

/* On standard error, while it runs. */
void bag_bench_tell_start(const struct bag_bench_session *session, size_t num_requests,
                          const struct bag_bench_request *request);
void bag_bench_tell_progress(const struct bag_bench_progress *progress);
void bag_bench_tell_run(const struct bag_bench_run *run, const char *what);

/* The table at the end, on `stream`. */
void bag_bench_tell_end(const struct bag_bench_session *session, FILE *stream);

/* A number in as few digits as say enough, with the prefix of its unit: "41.2k". By
 * value, to stand in an argument list. */
struct bag_bench_text {
    char text[32];
};
struct bag_bench_text bag_bench_digits(double value);

/* ---- one page (page.c) ----------------------------------------------------------------------- */

/* The page with plots, of a report with at least one run. False without memory. */
bool bag_bench_write_page(const struct bag_bench_session *session, FILE *stream);

#endif
