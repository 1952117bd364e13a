/* The process's worker threads and the work that waits for one of them.
 *
 * One pool serves the engines of all loops. Work is started in the order in which it was pushed;
 * ranges of a split request go to the front, because the request is already being worked on.
 *
 * Two workers that the system puts on one processor halve the speed: where the operator names
 * processors, each worker keeps to one of them. A loop that waits for a processor delays every
 * client, a worker only those whose turn it is: so workers may have a higher nice value. */
#ifndef BAG_WORKERS_H
#define BAG_WORKERS_H

#include "proto/problem.h"

#include <sched.h>
#include <stdatomic.h>
#include <uv.h>

/* Embedded in what is to be done. `run` is called once on a worker, and may free the work. */
struct bag_work {
    struct bag_work *next;
    void (*run)(struct bag_work *work);
};

struct bag_workers {
    unsigned count;
    uv_thread_t *threads; /* owned */
    cpu_set_t processors; /* empty: workers run where the system puts them */
    int nice;             /* added to the nice value that workers begin with */
    atomic_uint busy;     /* work that was pushed and has not ended */
    atomic_uint started;  /* threads that have begun */
    uv_mutex_t lock;      /* of all below */
    uv_cond_t changed;
    struct bag_work *first, **last;
    bool ending;
};

/* Reads a list such as "2,4-7". The empty text is the empty set. False with *problem where it is no
 * such list, or names a processor that the process may not use. */
bool bag_workers_parse_cpus(const char *text, cpu_set_t *processors, struct bag_problem *problem);

/* Starts `count` (>= 1) threads; `cpus` is a text that bag_workers_parse_cpus accepts. The struct
 * must not move until bag_workers_stop, which is not due where this fails. */
bool bag_workers_start(struct bag_workers *workers, unsigned count, const char *cpus, int nice,
                       struct bag_problem *problem);

/* Lets all pushed work run to its end, and ends the threads. Nothing is pushed by others any more.
 */
void bag_workers_stop(struct bag_workers *workers);

/* Any thread. `urgent` work is started before all that waits. */
void bag_workers_push(struct bag_workers *workers, struct bag_work *work, bool urgent);

/* How many workers have nothing to do. Any thread; out of date as soon as it is known. */
unsigned bag_workers_idle(struct bag_workers *workers);

#endif
