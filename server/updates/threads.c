/* The threads that take updates, and the streams; see updates.h. */
#include "updates.h"

#include "server/system/crew.h"

#include <assert.h>
#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <uv.h>

/* ---- streams --------------------------------------------------------------------------------- */

bool bag_updates_init(struct bag_updates *updates, const struct bag_updates_settings *settings)
{
    pthread_condattr_t attributes;
    *updates = (struct bag_updates){.settings = *settings, .next_sync_ns = UINT64_MAX};
    updates->last_ready = &updates->first_ready;
    if (pthread_condattr_init(&attributes) != 0)
        return false;
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    bool ok = pthread_cond_init(&updates->changed, &attributes) == 0;
    pthread_condattr_destroy(&attributes);
    return ok && pthread_mutex_init(&updates->lock, NULL) == 0 &&
           pthread_mutex_init(&updates->queue_lock, NULL) == 0;
}

/* Compares two names, or a name with a stream, which begins with its own. */
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
        free(at->sightings);
        free(at);
    }
    updates->streams = NULL;
    pthread_cond_destroy(&updates->changed);
    pthread_mutex_destroy(&updates->lock);
    pthread_mutex_destroy(&updates->queue_lock);
}

/* The newest; those before it follow, and none is ever taken out. */
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
    stream->last = &stream->first;
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

/* ---- the queue: with its lock ---------------------------------------------------------------- */

/* Some thread will take what the stream has: one at a time, so that its updates stay in order. */
static void make_ready(struct bag_updates_stream *stream)
{
    struct bag_updates *updates = stream->updates;
    if (stream->turn != BAG_STREAM_IDLE)
        return;
    stream->turn = BAG_STREAM_READY;
    stream->next_ready = NULL;
    *updates->last_ready = stream;
    updates->last_ready = &stream->next_ready;
    pthread_cond_signal(&updates->changed);
}

static struct bag_updates_stream *take_ready(struct bag_updates *updates)
{
    struct bag_updates_stream *stream = updates->first_ready;
    if (!stream)
        return NULL;
    updates->first_ready = stream->next_ready;
    if (!updates->first_ready)
        updates->last_ready = &updates->first_ready;
    assert(stream->turn == BAG_STREAM_READY);
    stream->turn = BAG_STREAM_RUNNING;
    return stream;
}

/* Takes what the stream has, without the lock. */
static void run_stream(struct bag_updates_stream *stream)
{
    struct bag_updates *updates = stream->updates;
    struct bag_update *first = stream->first;
    bool syncs = stream->waits_for_sync;
    assert(stream->turn == BAG_STREAM_RUNNING);
    stream->first = NULL;
    stream->last = &stream->first;
    stream->waits_for_sync = false;
    pthread_mutex_unlock(&updates->queue_lock);
    if (first)
        bag_updates_run(first);
    if (syncs)
        bag_updates_sync_stream(stream);
    pthread_mutex_lock(&updates->queue_lock);
    stream->turn = BAG_STREAM_IDLE;
    if (stream->first || stream->waits_for_sync)
        make_ready(stream);
}

/* It is time to sync all journals. */
static void begin_syncs(struct bag_updates *updates)
{
    updates->next_sync_ns = uv_hrtime() + updates->settings.sync_interval_ms * 1000000;
    for (struct bag_updates_stream *at = all_streams(updates); at; at = at->next) {
        at->waits_for_sync = true;
        make_ready(at);
    }
}

/* ---- the threads ----------------------------------------------------------------------------- */

static void wait_for_work(struct bag_updates *updates)
{
    uint64_t until_ns = updates->next_sync_ns;
    struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000),
                             .tv_nsec = (long)(until_ns % 1000000000)};
    if (until_ns == UINT64_MAX)
        pthread_cond_wait(&updates->changed, &updates->queue_lock);
    else
        pthread_cond_timedwait(&updates->changed, &updates->queue_lock, &until);
}

static void *run_thread(void *argument)
{
    struct bag_updates *updates = argument;
    pthread_mutex_lock(&updates->queue_lock);
    for (;;) {
        if (!updates->stop && uv_hrtime() >= updates->next_sync_ns)
            begin_syncs(updates);
        struct bag_updates_stream *stream = take_ready(updates);
        if (stream)
            run_stream(stream);
        else if (updates->stop)
            break;
        else
            wait_for_work(updates);
    }
    pthread_mutex_unlock(&updates->queue_lock);
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
    /* Any number will do. */
    return updates->num_threads ||
           bag_problem_set(problem, BAG_ERROR_SYSTEM, "no thread can be started for updates: %s",
                           strerror(error));
}

void bag_updates_stop(struct bag_updates *updates)
{
    pthread_mutex_lock(&updates->queue_lock);
    updates->stop = true;
    pthread_cond_broadcast(&updates->changed);
    pthread_mutex_unlock(&updates->queue_lock);
    while (updates->num_threads)
        pthread_join(updates->threads[--updates->num_threads], NULL);
    bag_updates_sync(updates);
}

void bag_updates_submit(struct bag_update *update)
{
    struct bag_updates_stream *stream = update->live->stream;
    update->next = NULL;
    pthread_mutex_lock(&stream->updates->queue_lock);
    *stream->last = update;
    stream->last = &update->next;
    make_ready(stream);
    pthread_mutex_unlock(&stream->updates->queue_lock);
}
