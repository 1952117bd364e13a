/* Threads that share one piece of work; see thread_team.h. */
#include "thread_team.h"

#include <stdlib.h>
#include <string.h>

int bag_thread_start(pthread_t *thread, void *(*run)(void *context), void *context)
{
    pthread_attr_t attributes;
    int error = pthread_attr_init(&attributes);
    if (error)
        return error;
    error = pthread_attr_setstacksize(&attributes, BAG_STACK_BYTES);
    if (!error)
        error = pthread_create(thread, &attributes, run, context);
    pthread_attr_destroy(&attributes);
    return error;
}

/* One run of a team. Lives on the stack of the thread that waits. */
struct run {
    struct bag_thread_team *team;
    bool (*work)(void *context, struct bag_problem *problem);
    void *context;
};

void bag_thread_team_init(struct bag_thread_team *team)
{
    *team = (struct bag_thread_team){.done = 0};
    pthread_mutex_init(&team->lock, NULL);
    pthread_cond_init(&team->changed, NULL);
}

void bag_thread_team_free(struct bag_thread_team *team)
{
    pthread_cond_destroy(&team->changed);
    pthread_mutex_destroy(&team->lock);
}

void bag_thread_team_did(struct bag_thread_team *team, size_t parts)
{
    pthread_mutex_lock(&team->lock);
    team->done += parts;
    pthread_cond_signal(&team->changed);
    pthread_mutex_unlock(&team->lock);
}

static void *run_thread(void *argument)
{
    struct run *run = argument;
    struct bag_thread_team *team = run->team;
    struct bag_problem problem;
    bool ok = run->work(run->context, &problem);
    pthread_mutex_lock(&team->lock);
    if (!ok && !team->failed) {
        team->failed = true;
        team->problem = problem;
    }
    team->running--;
    pthread_cond_signal(&team->changed);
    pthread_mutex_unlock(&team->lock);
    return NULL;
}

/* Starts the threads and returns their number. */
static unsigned start(struct run *run, pthread_t *threads, unsigned wanted)
{
    struct bag_thread_team *team = run->team;
    unsigned started = 0;
    int error = 0;
    team->running = wanted;
    while (started < wanted && (error = bag_thread_start(&threads[started], run_thread, run)) == 0)
        started++;
    pthread_mutex_lock(&team->lock);
    team->running -= wanted - started;
    if (started == 0) {
        team->failed = true;
        bag_problem_set(&team->problem, BAG_ERROR_SYSTEM, "no thread can be started: %s",
                        strerror(error));
    }
    pthread_mutex_unlock(&team->lock);
    return started;
}

/* Waits until all threads have finished, and reports their parts. */
static void wait_for_all(struct bag_thread_team *team, void (*tell)(void *context, size_t parts),
                         void *context)
{
    size_t told = 0;
    pthread_mutex_lock(&team->lock);
    for (;;) {
        size_t done = team->done;
        if (tell && done != told) {
            pthread_mutex_unlock(&team->lock);
            tell(context, done - told);
            pthread_mutex_lock(&team->lock);
            told = done;
        } else if (team->running > 0) {
            pthread_cond_wait(&team->changed, &team->lock);
        } else {
            break;
        }
    }
    pthread_mutex_unlock(&team->lock);
}

bool bag_thread_team_run(struct bag_thread_team *team, unsigned threads,
                         bool (*work)(void *context, struct bag_problem *problem),
                         void (*tell)(void *context, size_t parts), void *context,
                         struct bag_problem *problem)
{
    struct run run = {team, work, context};
    pthread_t *started = calloc(threads, sizeof *started);
    if (!started)
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "no memory for %u threads", threads);
    unsigned count = start(&run, started, threads);
    wait_for_all(team, tell, context);
    for (unsigned i = 0; i < count; i++)
        pthread_join(started[i], NULL);
    free(started);
    if (team->failed)
        *problem = team->problem;
    return !team->failed;
}
