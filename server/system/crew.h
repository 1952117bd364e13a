/* Threads, each with a stack of one size, and those that share one piece of work with the one that
 * waits for them.
 *
 * Each of them runs `work` once, which takes part after part until there is none left, or one of
 * them has failed: the first failure ends all. Parts are handed out under the crew's lock, by
 * whoever owns the work. All threads have been joined when bag_crew_run returns. */
#ifndef BAG_CREW_H
#define BAG_CREW_H

#include "proto/problem.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

/* Of each thread, main's included, whatever the limit of stacks is (ulimit -s). The largest frame
 * has 64 KiB, and JSON is read to a depth of 1,000. Pages that are not touched take no memory. */
#define BAG_STACK_BYTES ((size_t)1 << 20)

/* Starts a thread. Returns 0, or what errno would say. */
int bag_thread_start(pthread_t *thread, void *(*run)(void *context), void *context);

struct bag_crew {
    pthread_mutex_t lock; /* guards what follows, and what the owner says */
    pthread_cond_t changed;
    size_t done;      /* parts, as the owner counts them */
    unsigned running; /* threads that have not ended */
    bool failed;      /* as `problem` says: no part is handed out any more */
    struct bag_problem problem;
};

/* Must not move until bag_crew_free. */
void bag_crew_init(struct bag_crew *crew);
void bag_crew_free(struct bag_crew *crew);

/* Counts so many parts more as done. Any thread of the crew. */
void bag_crew_did(struct bag_crew *crew, size_t parts);

/* Runs `work` on `threads` (>= 1) threads. Fewer are enough; none is a failure. `tell` (may be
 * NULL) is called on the calling thread, while the lock is free, with the parts that were done
 * since it was called last, of all that were. False with *problem, which may be crew->problem,
 * where one has failed. */
bool bag_crew_run(struct bag_crew *crew, unsigned threads,
                  bool (*work)(void *context, struct bag_problem *problem),
                  void (*tell)(void *context, size_t parts), void *context,
                  struct bag_problem *problem);

#endif
