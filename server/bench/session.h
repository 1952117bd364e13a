/* One measurement by `bagserve bench`, from the command line to the report.
 *
 *   options.h      reads the command line
 *   target.h       finds the server and asks it which model it has
 *   query.h        makes requests for this model, of random ids
 *   check.h        compares replies with the tables' files, if --check asks for it
 *   load.h         sends the requests over many connections and counts the replies (count.h)
 *   measure.c      chooses the rates of the runs: a closed loop, given rates, or a sweep
 *   print.c        prints progress on standard error, and the table of all runs
 *   page.c         writes the page, which shows the report by page.js and Chart.js
 *
 * Everything happens on one thread. The report (proto/bench_report.h) is what is left. */
#ifndef BAG_BENCH_SESSION_H
#define BAG_BENCH_SESSION_H

#include "load.h"
#include "options.h"
#include "target.h"

struct bag_bench_session {
    const struct bag_bench_options *options;
    const struct bag_bench_target *target;
    struct bag_bench_load *load;
    struct bag_bench_report report; /* owned */
    struct bag_bench_report before; /* owned; of --compare */
    bool has_before;
};

/* ---- measuring (measure.c) ------------------------------------------------------------------- */

/* Measures what the options ask for. The report has what was measured, even after a failure.
 * Returns false and sets *problem if the measurement ended early, or no request was answered. */
bool bag_bench_measure(struct bag_bench_session *session, struct bag_problem *problem);

/* Adds what a reader of the report must know to its notes: a generator that was the limit, a sweep
 * without result, a comparison with another workload. */
void bag_bench_note_limits(struct bag_bench_session *session);

/* ---- text for people (print.c) --------------------------------------------------------------- */

/* Print on standard error while the measurement runs. */
void bag_bench_print_start(const struct bag_bench_session *session, size_t num_requests,
                           const struct bag_bench_request *request);
void bag_bench_print_progress(const struct bag_bench_progress *progress);
void bag_bench_print_run(const struct bag_bench_run *run, const char *outcome);

/* Prints the table of all runs, errors, the comparison and the notes. */
void bag_bench_print_report(const struct bag_bench_session *session, FILE *stream);

/* ---- the page (page.c) ----------------------------------------------------------------------- */

/* Writes the page of the report. Returns false without memory or randomness. */
bool bag_bench_write_page(const struct bag_bench_session *session, FILE *stream);

#endif
