/* Bringing a loaded table up to date, from its journal and from folders; see updates.h. */
#include "server/system/log.h"
#include "updates.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What a table still lacks of the journal is applied to it without the lock while it is more. */
#define CATCH_UP_BYTES ((uint64_t)1 << 20)

/* ---- streams --------------------------------------------------------------------------------- */

static struct bag_journal_header header_of(const struct bag_updates_table *table)
{
    const struct bag_table *rows = &table->memory->table;
    struct bag_journal_header header = {.row_elements = rows->row_elements,
                                        .row_bytes = bag_row_bytes(rows),
                                        .dtype = rows->dtype,
                                        .row_format = rows->row_format,
                                        .keyed = bag_table_is_keyed(table->memory)};
    strncpy(header.name, table->name, sizeof header.name - 1);
    return header;
}

static bool open_journal(struct bag_updates *updates, struct bag_updates_stream *stream,
                         const struct bag_updates_table *table, struct bag_problem *problem)
{
    struct bag_journal_header header = header_of(table);
    const char *dir = updates->settings.journal_dir;
    if (!dir)
        return true;
    if (!bag_journal_open(&stream->journal, updates->settings.disk, dir, &header, problem)) {
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

/* Of other rows than the journal has. */
static bool check_stream(const struct bag_updates_stream *stream,
                         const struct bag_updates_table *table, struct bag_problem *problem)
{
    const struct bag_journal_header *header = &stream->journal.header;
    bool keyed = bag_table_is_keyed(table->memory);
    if (!stream->journal.folder[0] ||
        (header->keyed == keyed && header->row_elements == table->memory->table.row_elements))
        return true;
    return bag_problem_set(problem, BAG_ERROR_FILE,
                           "the journal in %s is of a %s table with rows of %" PRIu64
                           " elements, and this one is %s with %zu; move it away and restart",
                           stream->journal.folder, header->keyed ? "keyed" : "dense",
                           header->row_elements, keyed ? "keyed" : "dense",
                           table->memory->table.row_elements);
}

/* The stream of a model's name; NULL with *problem. */
static struct bag_updates_stream *find_stream(struct bag_updates *updates,
                                              const struct bag_updates_table *table,
                                              struct bag_problem *problem)
{
    struct bag_updates_stream *stream = updates->streams;
    while (stream && strcmp(stream->name, table->name) != 0)
        stream = stream->next;
    if (stream)
        return check_stream(stream, table, problem) ? stream : NULL;
    stream = calloc(1, sizeof *stream);
    if (!stream) {
        bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "not enough memory");
        return NULL;
    }
    stream->journal.file = -1;
    stream->updates = updates;
    strncpy(stream->name, table->name, sizeof stream->name - 1);
    if (!open_journal(updates, stream, table, problem)) {
        free(stream);
        return NULL;
    }
    stream->next = updates->streams;
    updates->streams = stream;
    return stream;
}

/* ---- catching up ----------------------------------------------------------------------------- */

/* A table on its way. */
struct catching_up {
    struct bag_updates *updates;
    struct bag_updates_stream *stream;
    const struct bag_updates_table *table;
    struct bag_live_rows *live;
    struct bag_journal_reader reader;
    uint64_t done_bytes, applied;
    uint64_t through; /* when it was up to date; from then on updates may raise the table's */
};

static bool reject_gap(const struct catching_up *up, uint64_t next, struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_FILE,
                           "journal %s: the table includes updates through %" PRIu64
                           " (updates_through), and the journal goes on with %" PRIu64
                           ": those between are missing",
                           up->stream->journal.folder, up->live->through, next);
}

static bool apply_record(struct catching_up *up, const struct bag_journal_record *record,
                         struct bag_problem *problem)
{
    const struct bag_journal_header *header = &up->reader.header;
    struct bag_table from = {.dtype = header->dtype,
                             .row_elements = header->row_elements,
                             .row_format = header->row_format};
    bool ok = record->count <= SIZE_MAX / sizeof(uint64_t);
    uint64_t *ids = ok ? malloc(record->count * sizeof *ids + 1) : NULL;
    if (!ids)
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "no memory for an update");
    memcpy(ids, record->ids, record->count * sizeof *ids);
    struct bag_rows_batch batch = {.deletes = record->kind == BAG_JOURNAL_DELETE,
                                   .count = record->count,
                                   .ids = ids,
                                   .rows = record->rows};
    ok = bag_updates_apply(up->live, record->sequence, &from, &batch, problem);
    free(ids);
    if (!ok)
        bag_problem_prefix(problem, "update %" PRIu64 " of the journal in %s", record->sequence,
                           up->stream->journal.folder);
    up->applied += ok;
    return ok;
}

/* Applies what was read of the journal. */
static bool apply_records(struct catching_up *up, struct bag_problem *problem)
{
    struct bag_journal_record record;
    bool damaged;
    const char *folder = up->stream->journal.folder;
    while (bag_journal_next(&up->reader, folder, &record, &damaged, problem)) {
        if (record.sequence <= up->live->through)
            continue;
        if (record.sequence > up->live->through + 1 &&
            !bag_updates_apply_deltas(up->live, up->table->deltas, record.sequence, &up->applied,
                                      problem))
            return false;
        if (record.sequence > up->live->through + 1)
            return reject_gap(up, record.sequence, problem);
        if (!apply_record(up, &record, problem))
            return false;
    }
    return !damaged;
}

static bool read_and_apply(struct catching_up *up, const struct bag_journal_file *file,
                           struct bag_problem *problem)
{
    uint64_t before =
        file->first_sequence == up->reader.file.first_sequence ? up->reader.file.bytes : 0;
    if (!bag_journal_read_file(&up->reader, up->updates->settings.disk, up->stream->journal.folder,
                               file, problem) ||
        !apply_records(up, problem))
        return false;
    up->done_bytes += file->bytes - before;
    bag_log(BAG_LOG_LEVEL_INFO, "replaying", BAG_LOG_TEXT("model", up->stream->name),
            BAG_LOG_NUMBER("bytes", up->done_bytes),
            BAG_LOG_NUMBER("of_bytes", up->stream->journal_bytes),
            BAG_LOG_NUMBER("sequence", up->live->through));
    return true;
}

/* Applies all but the end of the journal, to which updates are appended meanwhile. */
static bool read_most(struct catching_up *up, struct bag_problem *problem)
{
    struct bag_journal_file file;
    bool more, ok = true;
    do {
        pthread_mutex_lock(&up->updates->lock);
        more = bag_journal_next_file(&up->stream->journal, &up->reader, up->live->through, &file);
        pthread_mutex_unlock(&up->updates->lock);
        more = more && (file.first_sequence != up->reader.file.first_sequence ||
                        file.bytes - up->reader.file.bytes > CATCH_UP_BYTES);
        ok = !more || read_and_apply(up, &file, problem);
    } while (ok && more);
    return ok;
}

/* Applies the rest, with the lock held. */
static bool read_rest(struct catching_up *up, struct bag_problem *problem)
{
    struct bag_journal_file file;
    while (bag_journal_next_file(&up->stream->journal, &up->reader, up->live->through, &file)) {
        if (!read_and_apply(up, &file, problem))
            return false;
    }
    if (!bag_updates_apply_deltas(up->live, up->table->deltas, UINT64_MAX, &up->applied, problem))
        return false;
    bool lacks =
        up->stream->journal.folder[0] && up->live->through < up->stream->journal.last_sequence;
    return !lacks || reject_gap(up, up->stream->journal.last_sequence + 1, problem);
}

/* ---- attaching ------------------------------------------------------------------------------- */

/* From here on the table gets what others get. */
static void join(struct catching_up *up)
{
    struct bag_updates_stream *stream = up->stream;
    uint64_t sequence = atomic_load_explicit(&stream->sequence, memory_order_relaxed);
    if (up->live->through < sequence)
        bag_log(BAG_LOG_LEVEL_WARNING, "updates are lost: there is no journal",
                BAG_LOG_TEXT("model", stream->name),
                BAG_LOG_NUMBER("first_sequence", up->live->through + 1),
                BAG_LOG_NUMBER("last_sequence", sequence));
    if (stream->tables)
        stream->journal.begins = true;
    atomic_store_explicit(&stream->sequence, up->live->through, memory_order_relaxed);
    stream->taken = up->live->through;
    stream->stopped = false;
    up->live->next = stream->tables;
    stream->tables = up->live;
    bag_updates_remove_files(stream);
}

static bool catch_up(struct catching_up *up, struct bag_problem *problem)
{
    struct bag_updates *updates = up->updates;
    pthread_mutex_lock(&updates->lock);
    up->stream = find_stream(updates, up->table, problem);
    pthread_mutex_unlock(&updates->lock);
    if (!up->stream)
        return false;
    up->live->stream = up->stream;
    bool ok = read_most(up, problem);
    pthread_mutex_lock(&updates->lock);
    ok = ok && read_rest(up, problem);
    up->through = up->live->through;
    if (ok)
        join(up);
    pthread_mutex_unlock(&updates->lock);
    bag_journal_reader_free(&up->reader);
    return ok;
}

bool bag_updates_attach(struct bag_updates *updates, const struct bag_updates_table *table,
                        struct bag_problem *problem)
{
    struct catching_up up = {.updates = updates, .table = table};
    if (table->memory->map) /* nobody may write to it; its updates are rejected */
        return true;
    if (!bag_live_rows_make(table->memory, table->rules))
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "not enough memory");
    up.live = table->memory->live;
    up.live->through = up.live->snapshot_through = table->through;
    if (!catch_up(&up, problem)) {
        bag_live_rows_free(table->memory->live);
        table->memory->live = NULL;
        return false;
    }
    if (up.applied)
        bag_log(BAG_LOG_LEVEL_INFO, "updates were applied", BAG_LOG_TEXT("model", table->name),
                BAG_LOG_NUMBER("updates", up.applied), BAG_LOG_NUMBER("last_sequence", up.through));
    return true;
}

void bag_updates_detach(struct bag_live_rows *live)
{
    struct bag_updates_stream *stream = live->stream;
    pthread_mutex_lock(&stream->updates->lock);
    struct bag_live_rows **link = &stream->tables;
    while (*link != live)
        link = &(*link)->next;
    *link = live->next;
    bag_updates_remove_files(stream);
    pthread_mutex_unlock(&stream->updates->lock);
    bag_live_rows_free(live);
}

/* ---- updates from folders beside a table ----------------------------------------------------- */

/* DELTAS/NUMBER/ holds update NUMBER: indices.npy or keys.npy, and rows.npy. Keys without rows are
 * removed. */

struct delta {
    char folder[1024];
    struct bag_table_memory ids, rows;
    bool has_rows;
    struct bag_arena arena;
};

static bool exists(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0;
}

/* Reads a file of the folder. */
static bool load(const struct delta *delta, const char *name, struct bag_table_memory *memory,
                 struct bag_problem *problem)
{
    struct bag_table_file file;
    char path[1100];
    snprintf(path, sizeof path, "%s/%s", delta->folder, name);
    return bag_table_file_open(path, BAG_DTYPE_COUNT, &file, problem) &&
           bag_table_load(&file, 1, NULL, NULL, memory, problem);
}

static bool has_file(const struct delta *delta, const char *name)
{
    char path[1100];
    snprintf(path, sizeof path, "%s/%s", delta->folder, name);
    return exists(path);
}

static struct bag_tensor tensor_of(const struct bag_table_memory *memory)
{
    struct bag_tensor tensor = {.dtype = memory->table.dtype,
                                .rank = memory->rank,
                                .count =
                                    (size_t)memory->table.num_rows * memory->table.row_elements,
                                .data = memory->table.rows};
    memcpy(tensor.shape, memory->shape, sizeof tensor.shape);
    return tensor;
}

static bool apply(struct delta *delta, struct bag_live_rows *live, uint64_t sequence,
                  struct bag_problem *problem)
{
    struct bag_tensor ids = tensor_of(&delta->ids), rows = {.rank = 0};
    struct bag_rows_batch batch;
    bool changes_keys;
    if (delta->has_rows)
        rows = tensor_of(&delta->rows);
    bag_arena_init(&delta->arena, SIZE_MAX);
    return bag_rows_batch_make(live->memory, &ids, delta->has_rows ? &rows : NULL, &delta->arena,
                               &batch, problem) &&
           bag_live_rows_check(live, &batch, &changes_keys, problem) &&
           bag_updates_apply(live, sequence, &live->memory->table, &batch, problem);
}

static bool load_and_apply(struct delta *delta, struct bag_live_rows *live, uint64_t sequence,
                           struct bag_problem *problem)
{
    const char *ids = bag_table_is_keyed(live->memory) ? "keys.npy" : "indices.npy";
    delta->has_rows = has_file(delta, "rows.npy");
    bool ok = load(delta, ids, &delta->ids, problem) &&
              (!delta->has_rows || load(delta, "rows.npy", &delta->rows, problem)) &&
              apply(delta, live, sequence, problem);
    bag_arena_free(&delta->arena);
    bag_table_unload(&delta->ids);
    bag_table_unload(&delta->rows);
    if (!ok) {
        problem->kind = BAG_ERROR_FILE;
        bag_problem_prefix(problem, "delta %s", delta->folder);
    }
    return ok;
}

bool bag_updates_apply_deltas(struct bag_live_rows *live, const char *folder, uint64_t end,
                              uint64_t *applied, struct bag_problem *problem)
{
    while (folder && live->through + 1 < end) {
        struct delta delta = {.has_rows = false};
        int length =
            snprintf(delta.folder, sizeof delta.folder, "%s/%" PRIu64, folder, live->through + 1);
        if (length < 0 || (size_t)length >= sizeof delta.folder || !exists(delta.folder))
            break;
        if (!load_and_apply(&delta, live, live->through + 1, problem))
            return false;
        ++*applied;
    }
    return true;
}
