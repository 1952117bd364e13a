/* The generator of load: one thread, one epoll, many connections.
 *
 * Closed loop: each connection sends its next request when it has the answer to the last. Open
 * loop: requests are due at a rate, whatever became of those before, and go out on whichever
 * connection is free; one that finds all of them busy waits. Times count from when a request was
 * due, so that a server which falls behind cannot slow its clients down and look well. */
#ifndef BAG_BENCH_LOAD_H
#define BAG_BENCH_LOAD_H

#include "count.h"
#include "options.h"

#include <stdio.h>

struct bag_bench_load;

/* Told about once a second, of the step that is under way. */
struct bag_bench_progress {
    double rate, elapsed_s, requests_per_s; /* of the last second */
    double p99_ms;                          /* of the step so far */
    uint64_t errors;
};
typedef void bag_bench_tell(const struct bag_bench_progress *progress);

struct bag_bench_plan {
    bool open; /* otherwise one step, of rate 0 */
    const struct bag_bench_step *steps;
    size_t num_steps;
    double warmup_s;      /* at the first rate, and not counted */
    double drain_s;       /* open: how long last answers are waited for */
    uint64_t requests;    /* closed: no more than these */
    bag_bench_tell *tell; /* NULL: nobody wants to know */
};

/* The requests are borrowed, the log (NULL: none) too. NULL with *problem. */
struct bag_bench_load *bag_bench_load_make(const struct bag_bench_options *options,
                                           const struct bag_bench_address *address,
                                           const struct bag_bench_request *requests,
                                           size_t num_requests, FILE *log,
                                           struct bag_problem *problem);

void bag_bench_load_free(struct bag_bench_load *load);

/* Runs the steps, one after the other without a pause. *ran are those that were begun, whose
 * figures are in measured[]. False with *problem where it ended before its time: the server has
 * gone, or a signal came. */
bool bag_bench_load_run(struct bag_bench_load *load, const struct bag_bench_plan *plan,
                        struct bag_bench_measured *measured, size_t *ran,
                        struct bag_problem *problem);

#endif
