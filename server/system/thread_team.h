/* Threads with stacks of one size, and thread teams. A team is a group of threads that share one
 * piece of work, while the thread that started them waits.
 *
 * Each thread of a team calls `work` once. It takes part after part until none is left or a thread
 * has failed: the first failure ends the whole work. The owner of the work hands out parts under
 * the team's lock. All threads have been joined when bag_thread_team_run returns. */
#pragma once

#include "proto/problem.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

/* Stack size of every thread, including main's, whatever the limit of stacks is (ulimit -s). The
 * largest frame has 64 KiB, and JSON is read to a depth of 1,000. Pages that are not touched take
 * no memory. */
#define BAG_STACK_BYTES ((size_t)1 << 20)

/* Starts a thread. Returns 0, or an error number. */
int bag_thread_start(pthread_t *thread, void *(*run)(void *context), void *context);

struct bag_thread_team {
    pthread_mutex_t lock; /* guards the members below, and the owner's parts */
    pthread_cond_t changed;
    size_t done;      /* parts done, as the owner counts them */
    unsigned running; /* threads that have not finished */
    bool failed;      /* `problem` is set, and no further part is handed out */
    struct bag_problem problem;
};

/* Initialises a team, which must not move until bag_thread_team_free. */
void bag_thread_team_init(struct bag_thread_team *team);
void bag_thread_team_free(struct bag_thread_team *team);

/* Adds `parts` to the parts that are done. May be called on any thread of the team. */
void bag_thread_team_did(struct bag_thread_team *team, size_t parts);

/* Runs `work` on `threads` (>= 1) threads. If fewer can be started, they do all of the work; if
 * none can, the run fails. `tell` may be NULL. It is called on the calling thread, without the
 * lock, with the number of parts that were done since its last call. Returns false and sets
 * *problem, which may be team->problem, if a thread failed. */
bool bag_thread_team_run(struct bag_thread_team *team, unsigned threads,
                         bool (*work)(void *context, struct bag_problem *problem),
                         void (*tell)(void *context, size_t parts), void *context,
                         struct bag_problem *problem);
