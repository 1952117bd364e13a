/* Updates that are kept in memory for versions that are loaded later, if there is no journal; see
 * updates.h. */
#include "updates.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct bag_kept_update {
    struct bag_kept_update *next;
    size_t holders; /* number of references: the stream's, and one for each table that is being
                       brought up to date */
    uint64_t first, sequence;
    size_t bytes;                /* size of the whole allocation */
    bool has_keys;               /* the ids are keys */
    struct bag_table from;       /* format of the rows */
    struct bag_rows_batch batch; /* ids, positions and rows; stored after this struct */
};

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

/* Checks that the table has all updates up to `last`, and applies deltas if some are missing. */
static bool reach(struct bag_live_rows *live, uint64_t last, const char *deltas, uint64_t *applied,
                  struct bag_problem *problem)
{
    if (live->through >= last)
        return true;
    if (!bag_updates_apply_deltas(live, deltas, last + 1, applied, problem))
        return false;
    return live->through >= last ||
           bag_problem_set(problem, BAG_ERROR_FILE,
                           "the table includes updates through %" PRIu64
                           " (updates_through) and lacks updates %" PRIu64 " to %" PRIu64
                           ", which are not in memory (updates_memory), and there is no journal "
                           "(journal_dir)",
                           live->snapshot_through, live->through + 1, last);
}

/* Releases `kept` unless it is NULL, and returns the next update that the table lacks, with a
 * reference for the caller, or NULL if there is none. Sets *before to the last update that must be
 * applied before it. */
static struct bag_kept_update *take_next(const struct bag_live_rows *live,
                                         struct bag_kept_update *kept, uint64_t *before)
{
    struct bag_updates_stream *stream = live->stream;
    pthread_mutex_lock(&stream->updates->lock);
    bool is_listed = kept && kept->sequence > stream->forgotten;
    struct bag_kept_update *next = is_listed ? kept->next : stream->first_kept;
    while (next && next->sequence <= live->through)
        next = next->next;
    if (next)
        next->holders++;
    if (kept)
        release(kept);
    *before = next ? next->first - 1 : stream->forgotten;
    pthread_mutex_unlock(&stream->updates->lock);
    return next;
}

/* Applies one kept update to the table. */
static bool apply_one(struct bag_live_rows *live, const struct bag_kept_update *kept,
                      struct bag_problem *problem)
{
    if (bag_updates_check_ids(live, kept->has_keys, problem) &&
        bag_updates_apply(live, kept->sequence, &kept->from, &kept->batch, problem))
        return true;
    return bag_problem_prefix(problem, "update %" PRIu64 " that was taken before", kept->sequence);
}

bool bag_updates_apply_kept(struct bag_live_rows *live, const char *deltas, uint64_t *applied,
                            struct bag_problem *problem)
{
    struct bag_kept_update *kept = NULL;
    uint64_t before;
    bool ok;
    do {
        kept = take_next(live, kept, &before);
        ok = reach(live, before, deltas, applied, problem) &&
             (!kept || apply_one(live, kept, problem));
        *applied += ok && kept;
    } while (ok && kept);
    if (kept) {
        pthread_mutex_lock(&live->stream->updates->lock);
        release(kept);
        pthread_mutex_unlock(&live->stream->updates->lock);
    }
    return ok;
}
