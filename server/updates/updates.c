/* Processes the updates of a stream; see updates.h. */
#include "updates.h"

#include "server/system/log.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

/* Sets a counter that other threads read. */
static void set(_Atomic uint64_t *counter, uint64_t value)
{
    atomic_store_explicit(counter, value, memory_order_relaxed);
}

/* Adds to a counter that other threads read. */
static void count(_Atomic uint64_t *counter, uint64_t value)
{
    atomic_fetch_add_explicit(counter, value, memory_order_relaxed);
}

/* ---- applying -------------------------------------------------------------------------------- */

/* Converts the batch from the format of table `from` to that of `to`. The caller must free
 * *converted. `part_of_rows`: both tables hold the same part of the columns. */
static bool convert(const struct bag_table *from, const struct bag_table *to, bool part_of_rows,
                    struct bag_rows_batch *batch, char **converted, struct bag_problem *problem)
{
    size_t position, bytes;
    *converted = NULL;
    if (batch->deletes || bag_live_rows_same(from, to))
        return true;
    if (!bag_live_rows_converts(from, to))
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "rows of %zu elements of %s cannot become rows of %zu of %s",
                               from->row_elements, bag_dtypes[from->dtype].name, to->row_elements,
                               bag_dtypes[to->dtype].name);
    if (part_of_rows && to->row_format != BAG_ROWS_PLAIN)
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "columns of a row cannot become rows of format %s, whose scale is "
                               "the whole row's",
                               bag_row_format_names[to->row_format]);
    if (__builtin_mul_overflow(batch->count, bag_row_bytes(to), &bytes) ||
        !(*converted = malloc(bytes + 1)))
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "no memory to convert %zu rows",
                               batch->count);
    if (!bag_live_rows_convert(from, batch->rows, batch->count, to, *converted, &position))
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "row %zu of the batch has a value that the table cannot hold",
                               position);
    batch->rows = *converted;
    return true;
}

bool bag_updates_apply(struct bag_live_rows *live, uint64_t sequence, const struct bag_table *from,
                       const struct bag_rows_batch *batch, struct bag_problem *problem)
{
    struct bag_rows_batch own = *batch;
    char *converted;
    bool part_of_rows =
        bag_table_is_part(live->memory) && live->memory->part.by == BAG_PART_COLUMNS;
    bool ok = convert(from, &live->memory->table, part_of_rows, &own, &converted, problem) &&
              bag_live_rows_apply(live, &own, problem);
    free(converted);
    if (ok)
        live->through = sequence;
    return ok;
}

/* Checks that the version has all updates before this one. */
static bool check_before(const struct bag_live_rows *live, uint64_t sequence,
                         struct bag_problem *problem)
{
    return live->through + 1 >= sequence ||
           bag_problem_set(problem, BAG_ERROR_CONFLICT,
                           "version %" PRIu64 " of model '%s' gets no more updates: it lacks "
                           "updates %" PRIu64 " to %" PRIu64 ", which a version beside it includes",
                           live->version, live->stream->name, live->through + 1, sequence - 1);
}

bool bag_updates_check_ids(const struct bag_live_rows *live, bool has_keys,
                           struct bag_problem *problem)
{
    bool is_keyed = bag_table_is_keyed(live->memory);
    return has_keys == is_keyed ||
           bag_problem_set(problem, BAG_ERROR_FILE, "it is of a %s table, and this one is %s",
                           has_keys ? "keyed" : "dense", is_keyed ? "keyed" : "dense");
}

/* Applies an update unless the table's file already includes it. */
static bool apply_once(struct bag_live_rows *live, uint64_t sequence, const struct bag_table *from,
                       const struct bag_rows_batch *batch, struct bag_problem *problem)
{
    return live->through >= sequence || bag_updates_apply(live, sequence, from, batch, problem);
}

/* Applies an update to the table that it was checked against, then to the other versions. */
static bool apply(struct bag_update *update)
{
    struct bag_updates_stream *stream = update->live->stream;
    const struct bag_table *from = &update->live->memory->table;
    struct bag_problem problem;
    uint64_t sequence = update->sequence, first = update->first;
    if (!apply_once(update->live, sequence, from, &update->batch, &update->problem))
        return false;
    struct bag_live_rows *at;
    SLIST_FOREACH(at, &stream->tables, next)
    {
        if (at != update->live && !at->fell_behind &&
            (!bag_updates_check_ids(at, bag_table_is_keyed(update->live->memory), &problem) ||
             !check_before(at, first, &problem) ||
             !apply_once(at, sequence, from, &update->batch, &problem))) {
            /* Exclude a version from further updates because it cannot store one that another
             * version took. It is still served. */
            char version[24];
            snprintf(version, sizeof version, "%" PRIu64, at->version);
            at->fell_behind = true;
            bag_log(BAG_LOG_LEVEL_WARNING, "a version gets no more updates",
                    BAG_LOG_TEXT("model", at->stream->name), BAG_LOG_TEXT("version", version),
                    BAG_LOG_NUMBER("sequence", sequence), BAG_LOG_TEXT("reason", problem.text));
        }
    }
    return true;
}

/* ---- taking ---------------------------------------------------------------------------------- */

/* Updates of a stream that were numbered and written, and wait to be synced and applied. */
struct group {
    struct bag_updates_stream *stream;
    struct bag_update **waiting;
    size_t count;
    bool is_unsynced; /* the sync of the updates failed with stream->problem */
};

/* Syncs the stream's journal and counts the time. The caller holds the stream's lock. With
 * `takes_back` see bag_journal_sync(). */
static bool sync_stream(struct bag_updates_stream *stream, bool takes_back,
                        struct bag_problem *problem)
{
    uint64_t started_ns = uv_hrtime();
    if (!bag_journal_is_dirty(&stream->journal))
        return true;
    bool ok = bag_journal_sync(&stream->journal, takes_back, problem);
    count(&stream->syncs, 1);
    count(&stream->sync_ns, uv_hrtime() - started_ns);
    count(&stream->journal_errors, !ok);
    return ok;
}

/* Handles an update that failed to apply after it was checked. This happens only if an index has no
 * space for a new key, and only to the last update of a group. Its record is therefore taken back
 * from the journal. If that fails, the stream stops. */
static void fail_to_apply(struct bag_update *update)
{
    struct bag_updates_stream *stream = update->live->stream;
    update->failed = true;
    if (!bag_journal_is_open(&stream->journal) ||
        bag_journal_take_back(&stream->journal, update->sequence))
        return;
    stream->state = BAG_STREAM_STOPPED;
    bag_problem_prefix(&update->problem,
                       "updates of model '%s' stop here, until it is loaded again; this one may be "
                       "applied then",
                       stream->name);
    stream->problem = update->problem;
}

/* Applies one update of a group after its sync, and sets its outcome. */
static void finish(const struct group *group, struct bag_update *update)
{
    struct bag_updates_stream *stream = group->stream;
    /* Updates in earlier files were synced when the next file began. */
    bool lost = group->is_unsynced && update->sequence > stream->journal.synced_sequence;
    if (lost || stream->state == BAG_STREAM_STOPPED) {
        update->failed = true;
        update->problem = stream->problem;
        return;
    }
    if (!apply(update)) {
        fail_to_apply(update);
        return;
    }
    update->applied = true;
    bag_updates_keep(stream, update);
    uint64_t steps = update->sequence - stream->sequence;
    set(&stream->sequence, update->sequence);
    set(&stream->last_update_ms, bag_epoch_ms());
    set(&stream->lag, stream->lag > steps ? stream->lag - steps : 0);
    count(&stream->applied, 1);
    count(&stream->rows, update->batch.count);
    count(&stream->left_out, update->batch.left_out);
}

void bag_updates_remove_files(struct bag_updates_stream *stream)
{
    uint64_t through = UINT64_MAX;
    const struct bag_live_rows *at;
    SLIST_FOREACH(at, &stream->tables, next)
    {
        through = at->snapshot_through < through ? at->snapshot_through : through;
    }
    if (!bag_journal_is_open(&stream->journal) || SLIST_EMPTY(&stream->tables))
        return;
    uint64_t wanted = stream->oldest_through < through ? stream->oldest_through : through;
    bag_journal_remove(&stream->journal, through, wanted,
                       stream->updates->settings.journal_kept_bytes);
    set(&stream->journal_bytes, bag_journal_bytes(&stream->journal));
}

/* Syncs and applies the waiting updates. */
static void commit(struct group *group)
{
    struct bag_updates_stream *stream = group->stream;
    if (!group->count)
        return;
    if (stream->updates->settings.sync == BAG_JOURNAL_SYNC_ALWAYS)
        group->is_unsynced = !sync_stream(stream, true, &stream->problem);
    for (size_t i = 0; i < group->count; i++)
        finish(group, group->waiting[i]);
    stream->taken = atomic_load_explicit(&stream->sequence, memory_order_relaxed);
    group->is_unsynced = stream->waits_for_keys = false;
    bag_updates_remove_files(stream);
    group->count = 0;
}

void bag_updates_raise_lag(struct bag_updates_stream *stream, uint64_t sequence)
{
    uint64_t last = atomic_load_explicit(&stream->sequence, memory_order_relaxed);
    if (sequence > last && sequence - last > stream->lag)
        set(&stream->lag, sequence - last);
}

/* Returns the first update of the range that this one stands for. */
static uint64_t first_of(const struct bag_update *update)
{
    return update->first_sequence ? update->first_sequence : update->sequence;
}

/* Sets the update's problem: its number does not follow the last one. Returns false. */
static bool reject_gap(struct bag_update *update, uint64_t expected)
{
    struct bag_updates_stream *stream = update->live->stream;
    bag_updates_raise_lag(stream, update->sequence);
    return bag_problem_set(&update->problem, BAG_ERROR_CONFLICT,
                           "parameter %s is %" PRIu64 "; the next update of model '%s' is %" PRIu64,
                           update->first_sequence ? "first_sequence" : "sequence", first_of(update),
                           stream->name, expected);
}

/* Writes the update to the journal if there is one. Returns false and sets the update's problem if
 * that fails. */
static bool append(struct bag_updates_stream *stream, struct bag_update *update)
{
    struct bag_journal_record record = {.sequence = update->sequence,
                                        .kind = update->batch.deletes ? BAG_JOURNAL_DELETE
                                                                      : BAG_JOURNAL_UPSERT,
                                        .count = update->batch.count,
                                        .ids = update->batch.ids,
                                        .rows = update->batch.rows};
    const struct bag_table *table = &update->live->memory->table;
    struct bag_journal_header *header = &stream->journal.header;
    if (!bag_journal_is_open(&stream->journal))
        return true;
    header->dtype = table->dtype;
    header->row_format = table->row_format;
    header->row_bytes = bag_row_bytes(table);
    bool ok = bag_journal_append(&stream->journal, &record, update->first, &update->problem);
    count(&stream->journal_errors, !ok);
    return ok;
}

void bag_updates_go_on(struct bag_updates_stream *stream, uint64_t through)
{
    assert(stream->state >= BAG_STREAM_OPEN);
    set(&stream->sequence, through);
    stream->taken = through;
    stream->state = BAG_STREAM_OPEN;
}

uint64_t bag_updates_last_before(const struct bag_live_rows *live)
{
    const struct bag_updates_stream *stream = live->stream;
    if (live->through == stream->sequence || live->through >= bag_updates_last_taken(stream))
        return live->through;
    return stream->sequence;
}

/* Returns whether the update's number was used before, so that there is nothing to do. */
static bool is_repeated(struct group *group, struct bag_update *update)
{
    struct bag_updates_stream *stream = update->live->stream;
    if (!update->sequence || update->sequence > stream->taken)
        return false;
    /* The outcome of the earlier update must be known first. */
    if (update->sequence > stream->sequence)
        commit(group);
    if (update->sequence > stream->sequence)
        return false;
    update->sequence = stream->sequence;
    count(&stream->ignored, 1);
    return true;
}

/* Checks that the table can store the update, and that it removes no key that readers of other
 * versions need. Versions that get no more updates keep their keys. */
static bool check(struct bag_update *update, bool *changes_keys)
{
    const struct bag_updates_stream *stream = update->live->stream;
    if (!bag_live_rows_check(update->live, &update->batch, changes_keys, &update->problem))
        return false;
    if (!update->batch.deletes)
        return true;
    const struct bag_live_rows *at;
    SLIST_FOREACH(at, &stream->tables, next)
    {
        if (!at->fell_behind && !bag_live_rows_check_readers(at, &update->batch, &update->problem))
            return false;
    }
    return true;
}

/* Numbers, checks and writes one update. Returns false and sets its problem if that fails. */
static bool take(struct group *group, struct bag_update *update)
{
    struct bag_updates_stream *stream = update->live->stream;
    bool changes_keys;
    if (stream->state == BAG_STREAM_STOPPED) {
        update->problem = stream->problem;
        return false;
    }
    if (update->live->fell_behind)
        return bag_problem_set(&update->problem, BAG_ERROR_CONFLICT,
                               "this version of model '%s' gets no more updates", stream->name);
    if (update->live->closed_by)
        return bag_problem_set(&update->problem, BAG_ERROR_CONFLICT,
                               "the rows of this model cannot be changed: %s has taken the place "
                               "of this one",
                               update->live->closed_by);
    uint64_t next = stream->taken + 1;
    if (!check_before(update->live, stream->sequence + 1, &update->problem))
        return false;
    if (update->sequence && first_of(update) > next)
        return reject_gap(update, next);
    update->batch.may_be_gone |= update->sequence && first_of(update) < next;
    update->sequence = update->sequence ? update->sequence : next;
    update->first = next;
    if (!check(update, &changes_keys) || !append(stream, update))
        return false;
    stream->taken = update->sequence;
    stream->waits_for_keys |= changes_keys;
    group->waiting[group->count++] = update;
    return true;
}

/* Applies the waiting updates first if they or this one add or remove keys, because the check of
 * this update depends on the keys. */
static void take_alone(struct group *group, struct bag_update *update)
{
    bool changes_keys = update->batch.deletes;
    struct bag_problem ignored;
    struct bag_updates_stream *stream = update->live->stream;
    if (stream->taken == stream->sequence)
        return;
    if (!stream->waits_for_keys && !changes_keys)
        bag_live_rows_check(update->live, &update->batch, &changes_keys, &ignored);
    if (stream->waits_for_keys || changes_keys)
        commit(group);
}

/* Takes an update into the group, or sets its outcome at once if it was used before or is rejected.
 */
static void run_one(struct group *group, struct bag_update *update)
{
    struct bag_live_rows *live = update->live;
    struct bag_updates_stream *stream = live->stream;
    update->failed = update->applied = false;
    if (bag_updates_last_before(live) != stream->sequence) {
        commit(group); /* the table may lack the updates that wait */
        uint64_t last = bag_updates_last_before(live);
        if (last != stream->sequence)
            bag_updates_go_on(stream, last);
    }
    if (is_repeated(group, update))
        return;
    take_alone(group, update);
    update->failed = !take(group, update);
    if (update->failed)
        count(&stream->rejected, 1);
}

void bag_updates_run(struct bag_update *first)
{
    struct group group = {.stream = first->live->stream};
    struct bag_update *one;
    size_t total = 0;
    for (struct bag_update *at = first; at; at = STAILQ_NEXT(at, next))
        total++;
    group.waiting = total > 1 ? calloc(total, sizeof(struct bag_update *)) : NULL;
    bool together = group.waiting != NULL;
    if (!together)
        group.waiting = &one;
    pthread_mutex_lock(&group.stream->lock);
    assert(group.stream->state >= BAG_STREAM_OPEN);
    for (struct bag_update *at = first; at; at = STAILQ_NEXT(at, next)) {
        run_one(&group, at);
        if (!together || !STAILQ_NEXT(at, next))
            commit(&group);
    }
    pthread_mutex_unlock(&group.stream->lock);
    if (together)
        free(group.waiting);
    for (struct bag_update *at = first, *next; at; at = next) {
        next = STAILQ_NEXT(at, next);
        at->done(at);
    }
}

void bag_updates_sync_stream(struct bag_updates_stream *stream)
{
    struct bag_problem problem;
    pthread_mutex_lock(&stream->lock);
    /* Log only the first of repeated failures. */
    bool said = stream->journal.state == BAG_JOURNAL_SYNC_FAILED;
    if (!sync_stream(stream, false, &problem) && !said)
        bag_log(BAG_LOG_LEVEL_ERROR, "a journal is not synced", BAG_LOG_TEXT("model", stream->name),
                BAG_LOG_TEXT("reason", problem.text));
    pthread_mutex_unlock(&stream->lock);
}
