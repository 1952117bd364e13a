/* The update threads and the set of streams; see updates.h. */
#include "updates.h"

#include "server/system/thread_team.h"

#include <assert.h>
#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

/* ---- streams --------------------------------------------------------------------------------- */

bool bag_updates_init(struct bag_updates *updates, const struct bag_updates_settings *settings)
{
    *updates = (struct bag_updates){.settings = *settings, .next_sync_ns = UINT64_MAX};
    STAILQ_INIT(&updates->ready);
    return bag_monitor_init(&updates->queue) && pthread_mutex_init(&updates->lock, NULL) == 0;
}

/* Compares two names. A stream begins with its name, so either pointer may be a stream. */
static int compare_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

void bag_updates_free(struct bag_updates *updates)
{
    for (struct bag_updates_stream *at = updates->streams, *next; at; at = next) {
        next = at->next;
        tdelete(at, &updates->by_name, compare_names);
        bag_journal_close(&at->journal);
        bag_updates_free_kept(at);
        pthread_mutex_destroy(&at->lock);
        free(at);
    }
    updates->streams = NULL;
    bag_monitor_free(&updates->queue);
    pthread_mutex_destroy(&updates->lock);
}

/* Returns the newest stream. The others follow it in the list, and none is ever removed. */
static struct bag_updates_stream *all_streams(struct bag_updates *updates)
{
    pthread_mutex_lock(&updates->lock);
    struct bag_updates_stream *first = updates->streams;
    pthread_mutex_unlock(&updates->lock);
    return first;
}

struct bag_updates_stream *bag_updates_find(const struct bag_updates *updates, const char *name)
{
    struct bag_updates_stream **found = tfind(name, &updates->by_name, compare_names);
    return found ? *found : NULL;
}

struct bag_updates_stream *bag_updates_make_stream(struct bag_updates *updates, const char *name)
{
    struct bag_updates_stream *stream = calloc(1, sizeof *stream);
    if (!stream || pthread_mutex_init(&stream->lock, NULL) != 0) {
        free(stream);
        return NULL;
    }
    stream->updates = updates;
    STAILQ_INIT(&stream->waiting);
    strncpy(stream->name, name, sizeof stream->name - 1);
    if (!tsearch(stream, &updates->by_name, compare_names)) {
        pthread_mutex_destroy(&stream->lock);
        free(stream);
        return NULL;
    }
    pthread_mutex_lock(&updates->lock);
    stream->next = updates->streams;
    updates->streams = stream;
    pthread_mutex_unlock(&updates->lock);
    return stream;
}

void bag_updates_sync(struct bag_updates *updates)
{
    for (struct bag_updates_stream *at = all_streams(updates); at; at = at->next)
        bag_updates_sync_stream(at);
}

/* ---- the queue ------------------------------------------------------------------------------- */

/* The caller of these functions holds the queue's lock. */

/* Queues the stream for a thread, unless it is queued or running. One thread at a time runs a
 * stream, so that its updates stay in order. */
static void make_ready(struct bag_updates_stream *stream)
{
    struct bag_updates *updates = stream->updates;
    if (stream->turn != BAG_STREAM_IDLE)
        return;
    stream->turn = BAG_STREAM_READY;
    STAILQ_INSERT_TAIL(&updates->ready, stream, next_ready);
    bag_monitor_wake(&updates->queue);
}

/* Processes the updates of the stream. Releases the queue's lock meanwhile. */
static void run_stream(struct bag_updates_stream *stream)
{
    struct bag_updates *updates = stream->updates;
    struct bag_update *first = STAILQ_FIRST(&stream->waiting);
    bool syncs = stream->waits_for_sync;
    assert(stream->turn == BAG_STREAM_RUNNING);
    STAILQ_INIT(&stream->waiting);
    stream->waits_for_sync = false;
    bag_monitor_unlock(&updates->queue);
    if (first)
        bag_updates_run(first);
    if (syncs)
        bag_updates_sync_stream(stream);
    bag_monitor_lock(&updates->queue);
    stream->turn = BAG_STREAM_IDLE;
    if (!STAILQ_EMPTY(&stream->waiting) || stream->waits_for_sync)
        make_ready(stream);
}

/* ---- the threads ----------------------------------------------------------------------------- */

/* Runs an update thread: processes streams and requests syncs until the threads are stopped and no
 * stream waits. */
static void *run_thread(void *argument)
{
    struct bag_updates *updates = argument;
    bag_monitor_lock(&updates->queue);
    for (;;) {
        if (!updates->stop && uv_hrtime() >= updates->next_sync_ns) {
            /* Request a sync of all journals and set the time of the next one. */
            updates->next_sync_ns = uv_hrtime() + updates->settings.sync_interval_ms * 1000000;
            for (struct bag_updates_stream *at = all_streams(updates); at; at = at->next) {
                at->waits_for_sync = true;
                make_ready(at);
            }
        }
        struct bag_updates_stream *stream = STAILQ_FIRST(&updates->ready);
        if (stream) {
            STAILQ_REMOVE_HEAD(&updates->ready, next_ready);
            assert(stream->turn == BAG_STREAM_READY);
            stream->turn = BAG_STREAM_RUNNING;
            run_stream(stream);
        } else if (updates->stop) {
            break;
        } else {
            bag_monitor_wait(&updates->queue, updates->next_sync_ns);
        }
    }
    bag_monitor_unlock(&updates->queue);
    return NULL;
}

bool bag_updates_start(struct bag_updates *updates, struct bag_problem *problem)
{
    int error = 0;
    if (updates->settings.sync == BAG_JOURNAL_SYNC_INTERVAL)
        updates->next_sync_ns = uv_hrtime() + updates->settings.sync_interval_ms * 1000000;
    while (!error && updates->num_threads < BAG_UPDATES_THREADS) {
        error = bag_thread_start(&updates->threads[updates->num_threads], run_thread, updates);
        updates->num_threads += !error;
    }
    /* One thread is enough. */
    return updates->num_threads ||
           bag_problem_set(problem, BAG_ERROR_SYSTEM, "no thread can be started for updates: %s",
                           strerror(error));
}

void bag_updates_stop(struct bag_updates *updates)
{
    bag_monitor_lock(&updates->queue);
    updates->stop = true;
    bag_monitor_wake_all(&updates->queue);
    bag_monitor_unlock(&updates->queue);
    while (updates->num_threads)
        pthread_join(updates->threads[--updates->num_threads], NULL);
    bag_updates_sync(updates);
}

void bag_updates_submit(struct bag_update *update)
{
    struct bag_updates_stream *stream = update->live->stream;
    bag_monitor_lock(&stream->updates->queue);
    STAILQ_INSERT_TAIL(&stream->waiting, update, next);
    make_ready(stream);
    bag_monitor_unlock(&stream->updates->queue);
}
