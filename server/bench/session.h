/* One measurement by `bagserve bench`, from the command line to the report.
 *
 *   options.h      reads the command line
 *   target.h       finds the server and its model
 *   query.h        makes requests for this model, of random ids
 *   check.h        compares replies with the tables' files, if --check asks for it
 *   load.h         sends the requests over many connections and counts the replies (count.h)
 *   measure.c      chooses the rates of the runs: a closed loop, given rates, or a sweep
 *   judge.h        decides whether a run of a sweep held its rate, or decides nothing
 *   print.c        prints progress on standard error, and the table of all runs
 *   page.c         writes the page, which shows the report by page.js and Chart.js
 *
 * Life of a measurement. The options are read, and the target's metadata decides about the tensors
 * of a request. All requests are made before the first one is sent, so that drawing ids takes no
 * time from sending. --check compares some replies with the files. Then measure.c executes plans: a
 * plan is a list of steps with a rate and a duration, and every step becomes one run of the report.
 * The report is printed, and written as JSON or as a page.
 *
 * Due times. In an open loop, every request has a time at which it is due, whatever the server
 * does. Its latency counts from this time, and not from the time of sending. A generator that waits
 * for replies before it sends more would pause with the server. It would hide the delays of the
 * requests that it did not send meanwhile (coordinated omission). The generator's own delay is
 * reported beside the latency, so that a reader sees if the generator was the limit.
 *
 * A sweep looks for the highest rate at which p99 meets the objective. It starts from the
 * throughput of a closed loop, finds a rate that holds and one that does not, and halves between
 * them. Runs near the limit are repeated, because one pause of the machine can spoil a run. A sweep
 * has a verdict only if the runs on both sides of the limit decide; otherwise it says what hindered
 * one.
 *
 * The same seed gives the same requests and the same due times. Everything happens on one
 * thread. The report (proto/bench_report.h) is all that remains at the end. */
#pragma once

#include "load.h"
#include "options.h"
#include "target.h"

struct bag_bench_session {
    const struct bag_bench_options *options; /* borrowed */
    const struct bag_bench_target *target;   /* borrowed */
    struct bag_bench_load *load;             /* valid while measure.c runs */
    struct bag_bench_report report;          /* owned */
    struct bag_bench_report before;          /* owned; of --compare */
    bool has_before;                         /* `before` was read */
};

/* ---- measuring (measure.c) ------------------------------------------------------------------- */

/* Measures what the options ask for. The report has what was measured, even after a failure.
 * Returns false and sets *problem if the measurement ended early, or no request was answered. */
bool bag_bench_measure(struct bag_bench_session *session, struct bag_problem *problem);

/* Adds what a reader of the report must know to its notes: a generator that was the limit, a model
 * that changed, a comparison with another workload. */
void bag_bench_note_limits(struct bag_bench_session *session);

/* ---- text for people (print.c) --------------------------------------------------------------- */

/* Print on standard error while the measurement runs: its workload, the progress of a run about
 * once a second, and the outcome of each run of a sweep. */
void bag_bench_print_start(const struct bag_bench_session *session, size_t num_requests,
                           const struct bag_bench_request *request);
void bag_bench_print_progress(const struct bag_bench_progress *progress);
void bag_bench_print_run(const struct bag_bench_run *run, const char *outcome);

/* Prints the table of all runs, errors, the comparison and the notes. */
void bag_bench_print_report(const struct bag_bench_session *session, FILE *stream);

/* ---- the page (page.c) ----------------------------------------------------------------------- */

/* Writes the page of the report. Returns false without memory or randomness. */
bool bag_bench_write_page(const struct bag_bench_session *session, FILE *stream);
