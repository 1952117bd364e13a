/* Worker threads; see engine.h. */
#include "engine.h"

#include "server/system/thread_team.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* ---- threads --------------------------------------------------------------------------------- */

/* Takes the next item. Returns NULL if none may start. Called with the lock held. */
static struct bag_work *take(struct bag_workers *workers, bool *is_metadata)
{
    *is_metadata = !TAILQ_EMPTY(&workers->metadata) && !workers->makes_metadata &&
                   (workers->metadata_is_next || TAILQ_EMPTY(&workers->waiting));
    workers->makes_metadata |= *is_metadata;
    workers->metadata_is_next = !*is_metadata;
    struct bag_work_list *list = *is_metadata ? &workers->metadata : &workers->waiting;
    struct bag_work *work = TAILQ_FIRST(list);
    if (work)
        TAILQ_REMOVE(list, work, link);
    return work;
}

/* Returns the next item, or NULL if the workers stop and no item may start any more. */
static struct bag_work *wait_for_work(struct bag_workers *workers, bool *is_metadata)
{
    struct bag_work *work;
    uv_mutex_lock(&workers->lock);
    while (!(work = take(workers, is_metadata)) && !workers->ending)
        uv_cond_wait(&workers->changed, &workers->lock);
    uv_mutex_unlock(&workers->lock);
    return work;
}

static void *run_worker(void *context)
{
    struct bag_workers *workers = context;
    struct bag_work *work;
    bool is_metadata;
    /* On Linux PRIO_PROCESS and 0 mean the calling thread. */
    if (workers->nice)
        setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + workers->nice);
    while ((work = wait_for_work(workers, &is_metadata)) != NULL) {
        work->run(work);
        if (is_metadata) {
            uv_mutex_lock(&workers->lock);
            workers->makes_metadata = false;
            uv_mutex_unlock(&workers->lock);
        }
        atomic_fetch_sub_explicit(&workers->busy, 1, memory_order_relaxed);
    }
    return NULL;
}

/* Starts the threads. Returns false if the system allows fewer; workers->count is their number. */
static bool start_threads(struct bag_workers *workers, unsigned count)
{
    workers->threads = calloc(count, sizeof *workers->threads);
    while (workers->threads && workers->count < count &&
           bag_thread_start(&workers->threads[workers->count], run_worker, workers) == 0)
        workers->count++;
    return workers->count == count;
}

bool bag_workers_start(struct bag_workers *workers, unsigned count, int nice,
                       struct bag_problem *problem)
{
    memset(workers, 0, sizeof *workers);
    TAILQ_INIT(&workers->waiting);
    TAILQ_INIT(&workers->metadata);
    workers->nice = nice;
    if (uv_mutex_init(&workers->lock) != 0)
        return bag_problem_set(problem, BAG_ERROR_SYSTEM, "not enough memory for worker threads");
    if (uv_cond_init(&workers->changed) != 0) {
        uv_mutex_destroy(&workers->lock);
        return bag_problem_set(problem, BAG_ERROR_SYSTEM, "not enough memory for worker threads");
    }
    if (start_threads(workers, count))
        return true;
    unsigned started = workers->count;
    bag_workers_stop(workers);
    return bag_problem_set(problem, BAG_ERROR_SYSTEM,
                           "the system allows %u of %u worker threads (workers)", started, count);
}

void bag_workers_stop(struct bag_workers *workers)
{
    uv_mutex_lock(&workers->lock);
    workers->ending = true;
    uv_cond_broadcast(&workers->changed);
    uv_mutex_unlock(&workers->lock);
    for (unsigned i = 0; i < workers->count; i++)
        uv_thread_join(&workers->threads[i]);
    free(workers->threads);
    uv_cond_destroy(&workers->changed);
    uv_mutex_destroy(&workers->lock);
}

void bag_workers_push(struct bag_workers *workers, struct bag_work *work, enum bag_work_order order)
{
    atomic_fetch_add_explicit(&workers->busy, 1, memory_order_relaxed);
    uv_mutex_lock(&workers->lock);
    if (order == BAG_WORK_METADATA) {
        /* Add a metadata response to the first round in which its client has none. Called with the
         * lock held. */
        struct bag_work_list *metadata = &workers->metadata;
        struct bag_work *other = TAILQ_FIRST(metadata);
        work->round = other ? other->round : 0;
        TAILQ_FOREACH(other, metadata, link)
        {
            if (other->client == work->client)
                work->round = other->round + 1;
        }
        TAILQ_FOREACH(other, metadata, link)
        {
            if (other->round > work->round)
                break;
        }
        if (other)
            TAILQ_INSERT_BEFORE(other, work, link);
        else
            TAILQ_INSERT_TAIL(metadata, work, link);
    } else if (order == BAG_WORK_URGENT)
        TAILQ_INSERT_HEAD(&workers->waiting, work, link);
    else
        TAILQ_INSERT_TAIL(&workers->waiting, work, link);
    uv_mutex_unlock(&workers->lock);
    uv_cond_signal(&workers->changed);
}

unsigned bag_workers_idle(struct bag_workers *workers)
{
    unsigned busy = atomic_load_explicit(&workers->busy, memory_order_relaxed);
    return busy < workers->count ? workers->count - busy : 0;
}
