/* The generator of load: one thread with one epoll and many connections.
 *
 * In a closed loop every connection sends its next request when it has the reply to the one before.
 * In an open loop requests are due at a rate, whatever became of earlier ones. A request that is
 * due takes a free connection, or waits for one. Latencies count from due times. Therefore a server
 * that falls behind cannot slow down its clients and look fast.
 *
 * bag_bench_load_run executes a plan: steps that follow each other without a pause, each with a
 * rate and a duration, after a warm-up that is not counted. Every step gives one run of the report.
 * SIGINT and SIGTERM end a run early.
 *
 * Connections. A connection is opened when a request needs it and no idle one exists, up to
 * --connections. It carries one request at a time. When the server closes it, the next request
 * opens it again. In a closed loop a connection over which nothing was ever received is not used
 * again: it would fail at once, and the loop would only count refused connections.
 *
 * The end of a run. An open loop waits for the last replies (drain_s) and counts the requests that
 * are still unanswered as errors. A closed loop drops them uncounted, because their connections are
 * always busy when the time is over. A server is gone if all
 * requests of a closed loop ended before its time. In an open loop, it is gone after eight failures
 * in a row without a reply for a second. */
#pragma once

#include "connection.h"
#include "count.h"
#include "options.h"

#include <stdio.h>

struct bag_bench_load;

/* The state of the current step. */
struct bag_bench_progress {
    /* `rate`: requests per second that are due; 0: a closed loop. `elapsed_s`: since the first step
     * that is counted began. `requests_per_s`: replies since the last progress. */
    double rate, elapsed_s, requests_per_s;
    double p99_ms;   /* p99 of the replies 200 since the last progress; 0: there were none */
    uint64_t errors; /* errors of the step so far */
};
typedef void bag_bench_on_progress(const struct bag_bench_progress *progress);

/* Arguments of bag_bench_load_run. All pointers are borrowed. */
struct bag_bench_plan {
    bool open; /* an open loop; false: a closed loop of one step with rate 0 */
    const struct bag_bench_step *steps;
    size_t num_steps;
    double warmup_s;   /* seconds at the rate of the first step; not counted */
    double drain_s;    /* open loop: maximum wait for the last replies, in seconds */
    uint64_t requests; /* closed loop: maximum number of requests */
    bag_bench_on_progress *on_progress; /* called about once a second; NULL: not wanted */
};

/* Makes a generator, and catches SIGINT and SIGTERM from then on. Borrows the requests and the log,
 * which may be NULL. Returns NULL and sets *problem if the process may not have enough descriptors,
 * or without memory. */
struct bag_bench_load *bag_bench_load_make(const struct bag_bench_options *options,
                                           const struct bag_address *address,
                                           const struct bag_bench_request *requests,
                                           size_t num_requests, FILE *log,
                                           struct bag_problem *problem);

/* Closes all connections and frees the generator. NULL is ignored. */
void bag_bench_load_free(struct bag_bench_load *load);

/* Executes the steps. Sets *ran to the number of steps that were started, and runs[] to their
 * figures. Returns false and sets *problem if the plan ended early: the server is gone, a signal
 * was received, or there is not enough memory. */
bool bag_bench_load_run(struct bag_bench_load *load, const struct bag_bench_plan *plan,
                        struct bag_bench_run *runs, size_t *ran, struct bag_problem *problem);
