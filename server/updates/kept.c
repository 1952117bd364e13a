/* Updates that are kept in memory for versions that are loaded later, if there is no journal; see
 * updates.h.
 *
 * They are no journal on a disk in memory. All streams share one limit, so that an update of one
 * stream evicts those of another, one by one, whose lock its thread does not hold. And an update
 * for which there is no memory is applied all the same, while a journal would reject it. attach.c
 * replays both in the same way. */
#include "updates.h"

#include <stdlib.h>
#include <string.h>

/* Adds to and subtracts from the bytes of the stream and of all streams. The caller holds the lock
 * of all streams. */
static void count_bytes(struct bag_updates_stream *stream, size_t more, size_t less)
{
    size_t bytes = atomic_load_explicit(&stream->kept_bytes, memory_order_relaxed);
    atomic_store_explicit(&stream->kept_bytes, bytes + more - less, memory_order_relaxed);
    stream->updates->kept_bytes += more - less;
}

/* Releases a reference. The caller holds the lock of all streams. */
static void release(struct bag_kept_update *kept)
{
    if (--kept->holders == 0)
        free(kept);
}

/* Evicts the oldest kept update. A table that lacks it can then only be attached if a delta folder
 * has it. The caller holds the lock of all streams. */
static void forget_first(struct bag_updates_stream *stream)
{
    struct bag_kept_update *first = stream->first_kept;
    stream->first_kept = first->next;
    if (!first->next)
        stream->last_kept = NULL;
    stream->forgotten = first->sequence;
    count_bytes(stream, 0, first->bytes);
    release(first);
}

void bag_updates_free_kept(struct bag_updates_stream *stream)
{
    while (stream->first_kept)
        forget_first(stream);
}

/* Returns the stream that keeps the most bytes. */
static struct bag_updates_stream *find_largest(struct bag_updates *updates)
{
    struct bag_updates_stream *largest = updates->streams;
    for (struct bag_updates_stream *at = updates->streams; at; at = at->next) {
        if (at->kept_bytes > largest->kept_bytes)
            largest = at;
    }
    return largest;
}

/* Returns a copy of the update, or NULL if it is larger than `most` or there is not enough
 * memory. */
static struct bag_kept_update *copy(const struct bag_update *update, size_t most)
{
    const struct bag_table *from = &update->live->memory->table;
    const struct bag_rows_batch *batch = &update->batch;
    struct bag_kept_update *kept = NULL;
    size_t ids_bytes, positions_bytes = 0, rows_bytes = 0, bytes;
    if (__builtin_mul_overflow(batch->count, sizeof *batch->ids, &ids_bytes) ||
        (batch->positions &&
         __builtin_mul_overflow(batch->count, sizeof *batch->positions, &positions_bytes)) ||
        (!batch->deletes &&
         __builtin_mul_overflow(batch->count, bag_row_bytes(from), &rows_bytes)) ||
        __builtin_add_overflow(ids_bytes, positions_bytes, &bytes) ||
        __builtin_add_overflow(bytes, rows_bytes, &bytes) ||
        __builtin_add_overflow(bytes, sizeof *kept, &bytes) || bytes > most ||
        !(kept = malloc(bytes)))
        return NULL;
    uint64_t *ids = (uint64_t *)(kept + 1);
    size_t *positions = (size_t *)(ids + batch->count);
    char *rows = (char *)positions + positions_bytes;
    memcpy(ids, batch->ids, ids_bytes);
    if (positions_bytes)
        memcpy(positions, batch->positions, positions_bytes);
    if (rows_bytes)
        memcpy(rows, batch->rows, rows_bytes);
    *kept = (struct bag_kept_update){.holders = 1,
                                     .first = update->first,
                                     .sequence = update->sequence,
                                     .bytes = bytes,
                                     .has_keys = bag_table_is_keyed(update->live->memory),
                                     .from = *from,
                                     .batch = {.deletes = batch->deletes,
                                               .count = batch->count,
                                               .ids = ids,
                                               .may_be_gone = batch->may_be_gone,
                                               .rows = rows_bytes ? rows : NULL,
                                               .positions = positions_bytes ? positions : NULL}};
    kept->from.rows = NULL;
    return kept;
}

/* Adds a kept update and evicts the oldest ones of the largest streams. The caller holds the lock
 * of all streams. */
static void add(struct bag_updates_stream *stream, struct bag_kept_update *kept)
{
    struct bag_updates *updates = stream->updates;
    while (updates->kept_bytes > updates->settings.kept_bytes - kept->bytes)
        forget_first(find_largest(updates));
    if (stream->last_kept)
        stream->last_kept->next = kept;
    else
        stream->first_kept = kept;
    stream->last_kept = kept;
    count_bytes(stream, kept->bytes, 0);
}

void bag_updates_keep(struct bag_updates_stream *stream, const struct bag_update *update)
{
    struct bag_updates *updates = stream->updates;
    if (bag_journal_is_open(&stream->journal))
        return;
    struct bag_kept_update *kept = copy(update, updates->settings.kept_bytes);
    pthread_mutex_lock(&updates->lock);
    if (kept) {
        add(stream, kept);
    } else {
        bag_updates_free_kept(stream);
        stream->forgotten = update->sequence;
    }
    pthread_mutex_unlock(&updates->lock);
}

uint64_t bag_updates_last_taken(const struct bag_updates_stream *stream)
{
    if (bag_journal_is_open(&stream->journal))
        return stream->journal.last_sequence;
    pthread_mutex_lock(&stream->updates->lock);
    uint64_t last = stream->last_kept ? stream->last_kept->sequence : stream->forgotten;
    pthread_mutex_unlock(&stream->updates->lock);
    return last;
}

struct bag_kept_update *bag_updates_next_kept(struct bag_updates_stream *stream,
                                              struct bag_kept_update *kept, uint64_t through,
                                              uint64_t *first)
{
    pthread_mutex_lock(&stream->updates->lock);
    bool is_listed = kept && kept->sequence > stream->forgotten;
    struct bag_kept_update *next = is_listed ? kept->next : stream->first_kept;
    while (next && next->sequence <= through)
        next = next->next;
    if (next)
        next->holders++;
    if (kept)
        release(kept);
    *first = next ? next->first : stream->forgotten + 1;
    pthread_mutex_unlock(&stream->updates->lock);
    return next;
}

void bag_updates_release_kept(struct bag_updates_stream *stream, struct bag_kept_update *kept)
{
    pthread_mutex_lock(&stream->updates->lock);
    release(kept);
    pthread_mutex_unlock(&stream->updates->lock);
}
