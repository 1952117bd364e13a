/* Threads that share one piece of work; see crew.h. */
#include "crew.h"

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

/* One run of a crew. Lives on the stack of the thread that waits. */
struct run {
    struct bag_crew *crew;
    bool (*work)(void *context, struct bag_problem *problem);
    void *context;
};

void bag_crew_init(struct bag_crew *crew)
{
    *crew = (struct bag_crew){.done = 0};
    pthread_mutex_init(&crew->lock, NULL);
    pthread_cond_init(&crew->changed, NULL);
}

void bag_crew_free(struct bag_crew *crew)
{
    pthread_cond_destroy(&crew->changed);
    pthread_mutex_destroy(&crew->lock);
}

void bag_crew_did(struct bag_crew *crew, size_t parts)
{
    pthread_mutex_lock(&crew->lock);
    crew->done += parts;
    pthread_cond_signal(&crew->changed);
    pthread_mutex_unlock(&crew->lock);
}

static void *run_thread(void *argument)
{
    struct run *run = argument;
    struct bag_crew *crew = run->crew;
    struct bag_problem problem;
    bool ok = run->work(run->context, &problem);
    pthread_mutex_lock(&crew->lock);
    if (!ok && !crew->failed) {
        crew->failed = true;
        crew->problem = problem;
    }
    crew->running--;
    pthread_cond_signal(&crew->changed);
    pthread_mutex_unlock(&crew->lock);
    return NULL;
}

/* Returns how many there are. */
static unsigned start(struct run *run, pthread_t *threads, unsigned wanted)
{
    struct bag_crew *crew = run->crew;
    unsigned started = 0;
    int error = 0;
    crew->running = wanted;
    while (started < wanted && (error = bag_thread_start(&threads[started], run_thread, run)) == 0)
        started++;
    pthread_mutex_lock(&crew->lock);
    crew->running -= wanted - started;
    if (started == 0) {
        crew->failed = true;
        bag_problem_set(&crew->problem, BAG_ERROR_SYSTEM, "no thread can be started: %s",
                        strerror(error));
    }
    pthread_mutex_unlock(&crew->lock);
    return started;
}

/* Returns when all have ended and their last parts were told of. */
static void wait_for_all(struct bag_crew *crew, void (*tell)(void *context, size_t parts),
                         void *context)
{
    size_t told = 0;
    pthread_mutex_lock(&crew->lock);
    for (;;) {
        size_t done = crew->done;
        if (tell && done != told) {
            pthread_mutex_unlock(&crew->lock);
            tell(context, done - told);
            pthread_mutex_lock(&crew->lock);
            told = done;
        } else if (crew->running > 0) {
            pthread_cond_wait(&crew->changed, &crew->lock);
        } else {
            break;
        }
    }
    pthread_mutex_unlock(&crew->lock);
}

bool bag_crew_run(struct bag_crew *crew, unsigned threads,
                  bool (*work)(void *context, struct bag_problem *problem),
                  void (*tell)(void *context, size_t parts), void *context,
                  struct bag_problem *problem)
{
    struct run run = {crew, work, context};
    pthread_t *started = calloc(threads, sizeof *started);
    if (!started)
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "no memory for %u threads", threads);
    unsigned count = start(&run, started, threads);
    wait_for_all(crew, tell, context);
    for (unsigned i = 0; i < count; i++)
        pthread_join(started[i], NULL);
    free(started);
    if (crew->failed)
        *problem = crew->problem;
    return !crew->failed;
}
