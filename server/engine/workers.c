/* Worker threads; see engine.h. */
#include "engine.h"

#include "server/system/crew.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* ---- threads --------------------------------------------------------------------------------- */

static void list_init(struct bag_work_list *list)
{
    list->first = NULL;
    list->last = &list->first;
}

static struct bag_work *list_take(struct bag_work_list *list)
{
    struct bag_work *work = list->first;
    if (work)
        list->first = work->next;
    if (!list->first)
        list->last = &list->first;
    return work;
}

/* The next work, NULL where none may begin. Under the lock. */
static struct bag_work *take(struct bag_workers *workers, bool *is_document)
{
    *is_document = workers->documents.first && !workers->makes_document &&
                   (workers->document_is_next || !workers->waiting.first);
    workers->makes_document |= *is_document;
    workers->document_is_next = !*is_document;
    return list_take(*is_document ? &workers->documents : &workers->waiting);
}

/* The next work, or NULL where the pool ends and all is done, or being done. */
static struct bag_work *wait_for_work(struct bag_workers *workers, bool *is_document)
{
    struct bag_work *work;
    uv_mutex_lock(&workers->lock);
    while (!(work = take(workers, is_document)) && !workers->ending)
        uv_cond_wait(&workers->changed, &workers->lock);
    uv_mutex_unlock(&workers->lock);
    return work;
}

static void end_document(struct bag_workers *workers)
{
    uv_mutex_lock(&workers->lock);
    workers->makes_document = false;
    uv_mutex_unlock(&workers->lock);
}

static void *run_worker(void *context)
{
    struct bag_workers *workers = context;
    struct bag_work *work;
    bool is_document;
    /* On Linux PRIO_PROCESS and 0 mean the calling thread. */
    if (workers->nice)
        setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + workers->nice);
    while ((work = wait_for_work(workers, &is_document)) != NULL) {
        work->run(work);
        if (is_document)
            end_document(workers);
        atomic_fetch_sub_explicit(&workers->busy, 1, memory_order_relaxed);
    }
    return NULL;
}

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
    list_init(&workers->waiting);
    list_init(&workers->documents);
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

/* Where a document goes: behind one of each other client for every one that its own client has
 * there. Under the lock. */
static struct bag_work **find_turn(struct bag_work_list *documents, struct bag_work *work)
{
    struct bag_work **place = &documents->first;
    work->turn = *place ? (*place)->turn : 0;
    for (const struct bag_work *other = *place; other; other = other->next) {
        if (other->client == work->client)
            work->turn = other->turn + 1;
    }
    while (*place && (*place)->turn <= work->turn)
        place = &(*place)->next;
    return place;
}

void bag_workers_push(struct bag_workers *workers, struct bag_work *work, enum bag_work_order order)
{
    atomic_fetch_add_explicit(&workers->busy, 1, memory_order_relaxed);
    uv_mutex_lock(&workers->lock);
    struct bag_work_list *list =
        order == BAG_WORK_DOCUMENT ? &workers->documents : &workers->waiting;
    struct bag_work **place = order == BAG_WORK_DOCUMENT ? find_turn(list, work)
                              : order == BAG_WORK_URGENT ? &list->first
                                                         : list->last;
    work->next = *place;
    *place = work;
    if (!work->next)
        list->last = &work->next;
    uv_mutex_unlock(&workers->lock);
    uv_cond_signal(&workers->changed);
}

unsigned bag_workers_idle(struct bag_workers *workers)
{
    unsigned busy = atomic_load_explicit(&workers->busy, memory_order_relaxed);
    return busy < workers->count ? workers->count - busy : 0;
}
