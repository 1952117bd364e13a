/* Attaches loaded tables: applies the updates of the journal and of delta folders to them; see
 * updates.h. */
#include "server/system/log.h"
#include "updates.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* While the unread part of the journal is larger than this, it is applied without holding the
 * lock. */
#define CATCH_UP_BYTES ((uint64_t)1 << 20)

/* ---- streams --------------------------------------------------------------------------------- */

/* Prints which rows of the whole table this part holds. Updates of other rows are ignored. */
static void write_part(const struct bag_table_memory *memory, char *text, size_t text_bytes)
{
    const struct bag_part *part = &memory->part;
    bool by_keys = part->by == BAG_PART_KEYS;
    uint64_t first = part->by == BAG_PART_ROWS ? memory->first_row : memory->first_column;
    uint64_t count =
        part->by == BAG_PART_ROWS ? (uint64_t)memory->shape[0] : memory->table.row_elements;
    if (!bag_table_is_part(memory))
        return;
    snprintf(text, text_bytes, "%s %" PRIu32 " of %" PRIu32 ", ", bag_part_way_names[part->by],
             part->index, part->of);
    if (by_keys)
        bag_text_add(text, text_bytes, "hash_rows %" PRId64, memory->kept_rows);
    else
        bag_text_add(text, text_bytes, "%" PRIu64 " to %" PRIu64, first, first + count);
    if (memory->keeps_default)
        bag_text_add(text, text_bytes, ", default_index %" PRId64, memory->kept_default);
}

/* Describes the table for the header of a journal: its model, part and row format. */
static struct bag_journal_header header_of(const struct bag_updates_table *table)
{
    const struct bag_table *rows = &table->memory->table;
    struct bag_journal_header header = {.row_elements = rows->row_elements,
                                        .row_bytes = bag_row_bytes(rows),
                                        .dtype = rows->dtype,
                                        .row_format = rows->row_format,
                                        .keyed = bag_table_is_keyed(table->memory)};
    strncpy(header.name, table->name, sizeof header.name - 1);
    write_part(table->memory, header.part, sizeof header.part);
    return header;
}

/* Opens the journal of a stream. Returns false and sets *problem if that fails; the stream is SHUT
 * if the folder could not be made or locked, otherwise NEW. The next table tries again in either
 * case. The caller holds the stream's lock. */
static bool open_journal(struct bag_updates *updates, struct bag_updates_stream *stream,
                         const struct bag_updates_table *table, struct bag_problem *problem)
{
    struct bag_journal_header header = header_of(table);
    if (!bag_journal_open(&stream->journal, updates->settings.disk, updates->settings.journal_dir,
                          &header, problem)) {
        stream->state = stream->journal.lock < 0 ? BAG_STREAM_SHUT : BAG_STREAM_NEW;
        bag_journal_close(&stream->journal);
        return false;
    }
    stream->journal.file_bytes = updates->settings.journal_file_bytes;
    if (stream->journal.torn_bytes)
        bag_log(BAG_LOG_LEVEL_WARNING, "the end of a journal was cut off",
                BAG_LOG_TEXT("model", stream->name), BAG_LOG_TEXT("folder", stream->journal.folder),
                BAG_LOG_NUMBER("bytes", stream->journal.torn_bytes),
                BAG_LOG_NUMBER("last_sequence", stream->journal.last_sequence));
    atomic_store_explicit(&stream->journal_bytes, bag_journal_bytes(&stream->journal),
                          memory_order_relaxed);
    return true;
}

/* Checks that the table is of the same part as the stream's other tables, and that its rows match
 * those in the journal. If no table is attached and nothing is kept, the table determines the part.
 */
static bool check_stream(struct bag_updates_stream *stream, const struct bag_updates_table *table,
                         struct bag_problem *problem)
{
    struct bag_journal_header own = header_of(table), *header = &stream->journal.header;
    const bool has_journal = bag_journal_is_open(&stream->journal);
    if (!has_journal && SLIST_EMPTY(&stream->tables) && !stream->first_kept)
        *header = own;
    if (!bag_journal_check_part(header, &own, problem))
        return bag_problem_prefix(problem, "%s%s", has_journal ? "journal " : "updates in memory",
                                  stream->journal.folder);
    if (!has_journal || (header->keyed == own.keyed && header->row_elements == own.row_elements))
        return true;
    return bag_problem_set(problem, BAG_ERROR_FILE,
                           "the journal in %s is of a %s table with rows of %" PRIu64
                           " elements, and this one is %s with %" PRIu64
                           "; move it away and restart",
                           stream->journal.folder, header->keyed ? "keyed" : "dense",
                           header->row_elements, own.keyed ? "keyed" : "dense", own.row_elements);
}

/* Returns whether a table needs the journal. A mapped table writes no journal, so it only needs one
 * that exists. */
static bool needs_journal(const struct bag_updates *updates, const struct bag_updates_table *table)
{
    char folder[BAG_JOURNAL_PATH_BYTES];
    const char *dir = updates->settings.journal_dir;
    if (!dir || !table->memory->map)
        return dir;
    int length = snprintf(folder, sizeof folder, "%s/%s", dir, table->name);
    return length < 0 || (size_t)length >= sizeof folder || bag_file_exists(folder);
}

/* Returns the stream of a model name with its journal opened. Returns NULL and sets *problem if
 * that fails. */
static struct bag_updates_stream *open_stream(struct bag_updates *updates,
                                              const struct bag_updates_table *table,
                                              struct bag_problem *problem)
{
    struct bag_updates_stream *stream = bag_updates_find(updates, table->name);
    if (!stream && !(stream = bag_updates_make_stream(updates, table->name))) {
        bag_problem_no_memory(problem);
        return NULL;
    }
    pthread_mutex_lock(&stream->lock);
    bool ok = bag_journal_is_open(&stream->journal) || !needs_journal(updates, table) ||
              open_journal(updates, stream, table, problem);
    if (ok && stream->state < BAG_STREAM_OPEN)
        stream->state = BAG_STREAM_OPEN;
    ok = ok && check_stream(stream, table, problem);
    pthread_mutex_unlock(&stream->lock);
    return ok ? stream : NULL;
}

bool bag_updates_is_shut(struct bag_updates *updates, const char *name)
{
    struct bag_updates_stream *stream = bag_updates_find(updates, name);
    if (!stream)
        return false;
    pthread_mutex_lock(&stream->lock);
    bool is_shut = stream->state == BAG_STREAM_SHUT;
    pthread_mutex_unlock(&stream->lock);
    return is_shut;
}

/* ---- catching up ----------------------------------------------------------------------------- */

/* A table that is being attached. */
struct catching_up {
    struct bag_updates_stream *stream;
    const struct bag_updates_table *table;
    struct bag_live_rows *live;
    struct bag_journal_reader reader;
    uint64_t done_bytes, applied;
    uint64_t
        through; /* last update when the table caught up; later ones may be applied concurrently */
};

/* Applies deltas until the table has all updates before `first`. Returns false and sets *problem if
 * one is missing or cannot be applied. */
static bool reach(struct catching_up *up, uint64_t first, struct bag_problem *problem)
{
    struct bag_live_rows *live = up->live;
    const struct bag_journal *journal = &up->stream->journal;
    if (first <= live->through + 1)
        return true;
    if (!bag_updates_apply_deltas(live, up->table->deltas, first, &up->applied, problem))
        return false;
    if (first <= live->through + 1)
        return true;
    if (bag_journal_is_open(journal))
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "journal %s: the table includes updates through %" PRIu64
                               " (updates_through), and the journal goes on with %" PRIu64
                               ": those between are missing",
                               journal->folder, live->through, first);
    return bag_problem_set(problem, BAG_ERROR_FILE,
                           "the table includes updates through %" PRIu64
                           " (updates_through) and lacks updates %" PRIu64 " to %" PRIu64
                           ", which are not in memory (updates_memory), and there is no journal "
                           "(journal_dir)",
                           live->snapshot_through, live->through + 1, first - 1);
}

/* Applies the deltas before `first`, and then the updates from `first` to `sequence`, which were
 * taken together before. The rows are in the format of `from`. */
static bool replay(struct catching_up *up, uint64_t first, uint64_t sequence, bool has_keys,
                   const struct bag_table *from, const struct bag_rows_batch *batch,
                   struct bag_problem *problem)
{
    if (!reach(up, first, problem))
        return false;
    if (bag_updates_check_ids(up->live, has_keys, problem) &&
        bag_updates_apply(up->live, sequence, from, batch, problem)) {
        up->applied++;
        return true;
    }
    const struct bag_journal *journal = &up->stream->journal;
    if (bag_journal_is_open(journal))
        return bag_problem_prefix(problem, "update %" PRIu64 " of the journal in %s", sequence,
                                  journal->folder);
    return bag_problem_prefix(problem, "update %" PRIu64 " that was taken before", sequence);
}

/* Replays the records that were read from the journal. */
static bool replay_records(struct catching_up *up, struct bag_problem *problem)
{
    struct bag_journal_record record;
    const struct bag_journal_header *header = &up->reader.header;
    bool damaged, ok = true;
    while (ok &&
           bag_journal_next(&up->reader, up->stream->journal.folder, &record, &damaged, problem)) {
        if (record.sequence <= up->live->through)
            continue;
        struct bag_table from = {.dtype = header->dtype,
                                 .row_elements = header->row_elements,
                                 .row_format = header->row_format};
        bool fits = record.count <= SIZE_MAX / sizeof(uint64_t);
        uint64_t *ids = fits ? malloc(record.count * sizeof *ids + 1) : NULL;
        if (!ids)
            return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "no memory for an update");
        memcpy(ids, record.ids, record.count * sizeof *ids);
        struct bag_rows_batch batch = {.deletes = record.kind == BAG_JOURNAL_DELETE,
                                       .count = record.count,
                                       .ids = ids,
                                       .rows = record.rows};
        ok = replay(up, up->reader.first_sequence, record.sequence, header->keyed, &from, &batch,
                    problem);
        free(ids);
    }
    return ok && !damaged;
}

/* Replays the updates that are kept in memory. The caller holds the stream's lock. */
static bool replay_kept(struct catching_up *up, struct bag_problem *problem)
{
    struct bag_kept_update *kept = NULL;
    uint64_t first;
    bool ok;
    do {
        kept = bag_updates_next_kept(up->stream, kept, up->live->through, &first);
        ok = kept ? replay(up, first, kept->sequence, kept->has_keys, &kept->from, &kept->batch,
                           problem)
                  : reach(up, first, problem);
    } while (ok && kept);
    if (kept)
        bag_updates_release_kept(up->stream, kept);
    return ok;
}

/* Reads a file of the journal, or the part that was appended since it was last read, and applies
 * its records. Logs the progress. */
static bool read_and_apply(struct catching_up *up, const struct bag_journal_file *file,
                           struct bag_problem *problem)
{
    uint64_t before =
        file->first_sequence == up->reader.file.first_sequence ? up->reader.file.bytes : 0;
    if (!bag_journal_read_file(&up->reader, up->stream->journal.disk, up->stream->journal.folder,
                               file, problem) ||
        !replay_records(up, problem))
        return false;
    up->done_bytes += file->bytes - before;
    bag_log(BAG_LOG_LEVEL_INFO, "replaying", BAG_LOG_TEXT("model", up->stream->name),
            BAG_LOG_NUMBER("bytes", up->done_bytes),
            BAG_LOG_NUMBER("of_bytes", up->stream->journal_bytes),
            BAG_LOG_NUMBER("sequence", up->live->through));
    return true;
}

/* Applies the rest of the journal. The caller holds the lock. */
static bool read_rest(struct catching_up *up, struct bag_problem *problem)
{
    struct bag_journal_file file;
    const struct bag_journal *journal = &up->stream->journal;
    if (!bag_journal_is_open(journal))
        return replay_kept(up, problem);
    while (bag_journal_next_file(journal, &up->reader, up->live->through, &file)) {
        if (!read_and_apply(up, &file, problem))
            return false;
    }
    return reach(up, journal->last_sequence + 1, problem);
}

/* ---- attaching ------------------------------------------------------------------------------- */

/* Adds a reader to the table. The caller holds the stream's lock. */
static void enter(struct bag_live_rows *live, struct bag_live_reader *reader)
{
    reader->live = live;
    SLIST_INSERT_HEAD(&live->readers, reader, next);
}

bool bag_updates_enter(struct bag_live_rows *live, struct bag_live_reader *reader,
                       struct bag_problem *problem)
{
    pthread_mutex_t *lock = &live->stream->lock;
    int64_t kept_rows = bag_live_rows_kept_by(reader->rules);
    pthread_mutex_lock(lock);
    bool ok = bag_live_rows_keep(live, kept_rows);
    if (ok)
        enter(live, reader);
    int64_t reused = live->first_reused;
    pthread_mutex_unlock(lock);
    return ok || bag_problem_set(problem, BAG_ERROR_CONFLICT,
                                 "row %" PRId64 " is one of its hash_rows (%" PRId64
                                 "), and was given to a new key since the table was loaded; "
                                 "unload the table, and load it together with this model",
                                 reused, kept_rows);
}

void bag_updates_leave(struct bag_live_reader *reader)
{
    if (!reader->live)
        return;
    pthread_mutex_t *lock = &reader->live->stream->lock;
    pthread_mutex_lock(lock);
    SLIST_REMOVE(&reader->live->readers, reader, bag_live_reader, next);
    reader->live = NULL;
    pthread_mutex_unlock(lock);
}

/* Applies all updates that the table lacks and adds it to its stream. Most of the journal is read
 * without the lock, so that updates of the tables that are served go on. Only the rest is read with
 * the lock, so that no update comes between. Returns false and sets *problem if the table cannot be
 * brought up to date. */
static bool catch_up(struct bag_updates *updates, struct catching_up *up,
                     struct bag_problem *problem)
{
    up->stream = open_stream(updates, up->table, problem);
    if (!up->stream)
        return false;
    up->live->stream = up->stream;
    /* Apply all but the end of the journal, while other threads append to it. */
    struct bag_journal_file file;
    bool more, ok = true;
    do {
        pthread_mutex_lock(&up->stream->lock);
        more = bag_journal_next_file(&up->stream->journal, &up->reader, up->live->through, &file);
        pthread_mutex_unlock(&up->stream->lock);
        more = more && (file.first_sequence != up->reader.file.first_sequence ||
                        file.bytes - up->reader.file.bytes > CATCH_UP_BYTES);
        ok = !more || read_and_apply(up, &file, problem);
    } while (ok && more);
    pthread_mutex_lock(&up->stream->lock);
    ok = ok && read_rest(up, problem);
    up->through = up->live->through;
    if (ok) {
        /* Add the table to the stream, so that it gets new updates from now on. If the table has
         * later updates than the other tables, the stream only moves to them when the table is
         * served, because loading it may still fail. */
        struct bag_updates_stream *stream = up->stream;
        assert(stream->state >= BAG_STREAM_OPEN);
        bool is_first = SLIST_EMPTY(&stream->tables);
        if (!is_first)
            bag_journal_begin_file(&stream->journal);
        if (is_first || up->live->through <= stream->sequence)
            bag_updates_go_on(stream, up->live->through);
        up->live->detach = bag_updates_detach;
        SLIST_INSERT_HEAD(&stream->tables, up->live, next);
        stream->oldest_through = up->table->oldest_through;
        if (up->table->reader)
            enter(up->live, up->table->reader);
        bag_updates_remove_files(stream);
    }
    pthread_mutex_unlock(&up->stream->lock);
    bag_journal_reader_free(&up->reader);
    return ok;
}

/* Checks that a mapped table has all updates, since it is served unchanged. */
static bool check_mapped(struct bag_updates *updates, const struct bag_updates_table *table,
                         struct bag_problem *problem)
{
    struct bag_updates_stream *stream = open_stream(updates, table, problem);
    if (!stream)
        return false;
    pthread_mutex_lock(&stream->lock);
    uint64_t last = bag_updates_last_taken(stream);
    const char *journal = bag_journal_is_open(&stream->journal) ? stream->journal.folder : "memory";
    bool ok = true;
    if (last > table->through)
        ok = bag_problem_set(problem, BAG_ERROR_FILE,
                             "the table is mapped from its file, which includes updates through "
                             "%" PRIu64 " (updates_through), and cannot take those through %" PRIu64
                             " that are in %s; load it with load copy, or a file with them",
                             table->through, last, journal);
    pthread_mutex_unlock(&stream->lock);
    if (ok && bag_updates_has_delta(table->deltas, table->through + 1))
        ok = bag_problem_set(problem, BAG_ERROR_FILE,
                             "the table is mapped from its file, and cannot take the update in "
                             "%s/%" PRIu64 "; load it with load copy",
                             table->deltas, table->through + 1);
    return ok;
}

/* Attaches the table, or checks it if it is mapped. If that fails, the rows are not live. */
static bool attach(struct bag_updates *updates, const struct bag_updates_table *table,
                   struct bag_problem *problem)
{
    struct catching_up up = {.table = table};
    if (table->memory->map)
        return check_mapped(updates, table, problem);
    if (!bag_live_rows_make(table->memory, table->kept_rows))
        return bag_problem_no_memory(problem);
    up.live = table->memory->live;
    up.live->version = table->version;
    up.live->through = up.live->snapshot_through = table->through;
    if (!catch_up(updates, &up, problem)) {
        bag_live_rows_free(table->memory->live);
        table->memory->live = NULL;
        return false;
    }
    if (up.applied)
        bag_log(BAG_LOG_LEVEL_INFO, "updates were applied", BAG_LOG_TEXT("model", table->name),
                BAG_LOG_NUMBER("updates", up.applied), BAG_LOG_NUMBER("last_sequence", up.through));
    return true;
}

bool bag_updates_attach(struct bag_updates *updates, const struct bag_updates_table *table,
                        struct bag_problem *problem)
{
    return attach(updates, table, problem) ||
           bag_problem_prefix(problem, "model '%s' version %" PRIu64, table->name, table->version);
}

void bag_updates_close(struct bag_live_rows *live, const char *closed_by)
{
    if (!live)
        return;
    pthread_mutex_lock(&live->stream->lock);
    live->closed_by = closed_by;
    pthread_mutex_unlock(&live->stream->lock);
}

bool bag_updates_is_next(const struct bag_live_rows *live)
{
    if (!live)
        return true;
    pthread_mutex_lock(&live->stream->lock);
    bool is_next = live->through <= live->stream->sequence;
    pthread_mutex_unlock(&live->stream->lock);
    return is_next;
}

bool bag_updates_lacks(struct bag_updates *updates, const struct bag_updates_table *table)
{
    const struct bag_live_rows *live = table->memory->live;
    struct bag_problem ignored;
    if (!live)
        return table->memory->map && !check_mapped(updates, table, &ignored);
    pthread_mutex_lock(&live->stream->lock);
    bool fell_behind = live->fell_behind;
    pthread_mutex_unlock(&live->stream->lock);
    return fell_behind;
}

void bag_updates_detach(struct bag_live_rows *live)
{
    struct bag_updates_stream *stream = live->stream;
    pthread_mutex_lock(&stream->lock);
    SLIST_REMOVE(&stream->tables, live, bag_live_rows, next);
    /* One of the remaining tables was served in place of the detached ones: move the stream to the
     * updates that all of them include. */
    uint64_t through = UINT64_MAX;
    const struct bag_live_rows *at;
    SLIST_FOREACH(at, &stream->tables, next)
    {
        through = at->through < through ? at->through : through;
    }
    if (!SLIST_EMPTY(&stream->tables) && through > stream->sequence)
        bag_updates_go_on(stream, through);
    bag_updates_remove_files(stream);
    pthread_mutex_unlock(&stream->lock);
    bag_live_rows_free(live);
}
