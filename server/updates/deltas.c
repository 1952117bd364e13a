/* Applies the updates in delta folders beside a table; see updates.h.
 *
 * DELTAS/NUMBER/ holds update NUMBER. It contains indices.npy or keys.npy together with rows.npy,
 * or only deleted_keys.npy with the keys to remove. A folder with keys but without rows is
 * incomplete. */
#include "config/model_options.h"
#include "proto/arena.h"
#include "proto/text.h"
#include "server/system/log.h"
#include "updates.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define INDICES "indices.npy"
#define KEYS    "keys.npy"
#define ROWS    "rows.npy"
#define DELETED "deleted_keys.npy"

/* ---- one folder ------------------------------------------------------------------------------ */

/* The maximum length of a folder's path, and of the path of a file in it. */
#define DELTA_FOLDER_BYTES 1024
#define DELTA_PATH_BYTES   (DELTA_FOLDER_BYTES + 256)

/* The update in one delta folder. */
struct delta {
    char folder[DELTA_FOLDER_BYTES];
    struct bag_table_memory ids, rows;
    struct bag_arena arena;
};

/* Reads a file of the folder. */
static bool load(const struct delta *delta, const char *name, struct bag_table_memory *memory,
                 struct bag_problem *problem)
{
    const struct bag_load_options options = {.threads = 1};
    struct bag_table_file file;
    char path[DELTA_PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", delta->folder, name);
    return bag_table_file_open(path, BAG_DTYPE_COUNT, &file, problem) &&
           bag_table_load(&file, 1, &options, memory, problem);
}

/* Returns whether the folder has a file of this name. */
static bool has_file(const struct delta *delta, const char *name)
{
    char path[DELTA_PATH_BYTES];
    snprintf(path, sizeof path, "%s/%s", delta->folder, name);
    return bag_file_exists(path);
}

/* Describes an array in memory as a tensor, as if a request had sent it. */
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

/* Checks that the files of the update are complete and consistent. */
static bool check_files(const struct delta *delta, bool deletes, const char *ids,
                        struct bag_problem *problem)
{
    if (!deletes && has_file(delta, ids) && !has_file(delta, ROWS))
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               "there is no " ROWS " in it yet; keys to remove are named " DELETED);
    if (deletes && (has_file(delta, ROWS) || has_file(delta, KEYS) || has_file(delta, INDICES)))
        return bag_problem_set(problem, BAG_ERROR_FILE,
                               DELETED " must be alone, without " KEYS ", " INDICES " or " ROWS);
    return true;
}

/* Reads the folder's files and makes the batch. The caller must call free_delta() in either
 * case. */
static bool load_delta(struct delta *delta, const struct bag_table_memory *memory,
                       struct bag_rows_batch *batch, struct bag_problem *problem)
{
    bool deletes = has_file(delta, DELETED);
    const char *name = deletes ? DELETED : bag_table_is_keyed(memory) ? KEYS : INDICES;
    struct bag_tensor rows = {.rank = 0};
    bag_arena_init(&delta->arena, SIZE_MAX);
    if (!check_files(delta, deletes, name, problem) || !load(delta, name, &delta->ids, problem) ||
        (!deletes && !load(delta, ROWS, &delta->rows, problem)))
        return false;
    struct bag_tensor ids = tensor_of(&delta->ids);
    if (!deletes)
        rows = tensor_of(&delta->rows);
    bool ok = bag_rows_batch_make(memory, &ids, deletes ? NULL : &rows, false, &delta->arena, batch,
                                  problem);
    batch->may_be_gone = deletes; /* trainers also report keys that they never exported */
    return ok;
}

/* Frees what load_delta() allocated, also after it failed. */
static void free_delta(struct delta *delta)
{
    bag_arena_free(&delta->arena);
    bag_table_unload(&delta->ids);
    bag_table_unload(&delta->rows);
}

/* Prefixes the problem with the folder. Returns false. */
static bool reject_delta(const struct delta *delta, struct bag_problem *problem)
{
    problem->kind = BAG_ERROR_FILE;
    return bag_problem_prefix(problem, "delta %s", delta->folder);
}

/* Sets the delta's folder. Returns false if the path is too long. */
static bool name_delta(struct delta *delta, const char *folder, uint64_t number)
{
    *delta = (struct delta){.folder = ""};
    int length = snprintf(delta->folder, sizeof delta->folder, "%s/%" PRIu64, folder, number);
    return length > 0 && (size_t)length < sizeof delta->folder;
}

bool bag_updates_has_delta(const char *folder, uint64_t number)
{
    struct delta delta;
    return folder && name_delta(&delta, folder, number) && bag_file_exists(delta.folder);
}

/* ---- while a table is loaded ----------------------------------------------------------------- */

bool bag_updates_apply_deltas(struct bag_live_rows *live, const char *folder, uint64_t end,
                              uint64_t *applied, struct bag_problem *problem)
{
    while (folder && live->through + 1 < end) {
        struct delta delta;
        struct bag_rows_batch batch;
        bool changes_keys;
        uint64_t next = live->through + 1;
        if (!name_delta(&delta, folder, next) || !bag_file_exists(delta.folder))
            break;
        bool ok = load_delta(&delta, live->memory, &batch, problem) &&
                  bag_live_rows_check(live, &batch, &changes_keys, problem) &&
                  bag_updates_apply(live, next, &live->memory->table, &batch, problem);
        free_delta(&delta);
        if (!ok)
            return reject_delta(&delta, problem);
        ++*applied;
    }
    return true;
}

/* ---- which there are ------------------------------------------------------------------------- */

/* The deltas after the last update that a poll found, in ascending order. */
struct listing {
    struct bag_delta_state *found; /* owned */
    size_t count;
};

/* Returns the number that is a folder's name, or 0 if it is none of an update. */
static uint64_t number_of(const char *name)
{
    int64_t number;
    bool is_update = bag_integer_parse(name, &number) && number > 0 && number <= BAG_LARGEST_EXACT;
    return is_update ? (uint64_t)number : 0;
}

/* Orders deltas by number. */
static int compare(const void *a, const void *b)
{
    const struct bag_delta_state *x = a, *y = b;
    return (x->number > y->number) - (x->number < y->number);
}

/* Lists the deltas in the folder, which may be absent. Deltas that do not fit into memory are left
 * to the next poll. */
static bool list_deltas(struct listing *listing, const char *folder, uint64_t after,
                        struct bag_problem *problem)
{
    DIR *directory = opendir(folder);
    const struct dirent *entry;
    *listing = (struct listing){.count = 0};
    if (!directory && errno != ENOENT && errno != ENOMEM)
        return bag_problem_set(problem, BAG_ERROR_FILE, "deltas %s: the folder cannot be read: %s",
                               folder, strerror(errno));
    while (directory && (entry = readdir(directory))) {
        uint64_t number = number_of(entry->d_name);
        if (number <= after)
            continue;
        if (!BAG_GROW(listing->found, listing->count))
            break;
        listing->found[listing->count++] = (struct bag_delta_state){.number = number};
    }
    if (directory)
        closedir(directory);
    if (listing->count)
        qsort(listing->found, listing->count, sizeof *listing->found, compare);
    return true;
}

/* ---- whole or not ---------------------------------------------------------------------------- */

/* Returns a hash that differs if the folder or a file in it has changed. */
static uint64_t hash_delta(const struct delta *delta)
{
    static const char *const names[] = {"", INDICES, KEYS, ROWS, DELETED};
    uint64_t hash = BAG_HASH_START;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[DELTA_PATH_BYTES];
        struct stat state;
        snprintf(path, sizeof path, "%s/%s", delta->folder, names[i]);
        if (stat(path, &state) != 0)
            state = (struct stat){.st_size = -1};
        const uint64_t words[] = {(uint64_t)state.st_ino, (uint64_t)state.st_size,
                                  (uint64_t)state.st_mtim.tv_sec, (uint64_t)state.st_mtim.tv_nsec};
        hash = bag_hash_bytes(hash, words, sizeof words);
    }
    return hash;
}

/* Returns whether the last poll found the same delta with the same files. */
static bool was_seen(const struct bag_seen_deltas *seen, const struct bag_delta_state *state)
{
    const struct bag_delta_state *before =
        seen->count ? bsearch(state, seen->waiting, seen->count, sizeof *seen->waiting, compare)
                    : NULL;
    return before && before->fingerprint == state->fingerprint;
}

/* ---- while it is served ---------------------------------------------------------------------- */

/* Returns the last update before the next delta of the table. */
static uint64_t last_update(const struct bag_live_rows *live)
{
    pthread_mutex_lock(&live->stream->lock);
    uint64_t last = bag_updates_last_before(live);
    pthread_mutex_unlock(&live->stream->lock);
    return last;
}

/* The state of one pass over the deltas of a table. */
struct taking {
    struct bag_updates_stream *stream;
    const struct bag_updates_table *table;
    bool polls;
};

/* Does nothing: the caller of bag_updates_run() reads the outcome itself. */
static void ignore_done(struct bag_update *update)
{
    (void)update;
}

/* Numbers the delta, writes it to the journal and applies it like any other update. */
static bool submit(const struct taking *taking, struct delta *delta, uint64_t number,
                   struct bag_problem *problem)
{
    struct bag_update update = {
        .live = taking->table->memory->live, .sequence = number, .done = ignore_done};
    bool ok = load_delta(delta, taking->table->memory, &update.batch, problem);
    if (ok)
        bag_updates_run(&update);
    free_delta(delta);
    if (ok && update.failed)
        *problem = update.problem;
    if (ok && update.applied)
        atomic_fetch_add_explicit(&taking->stream->deltas, 1, memory_order_relaxed);
    return (ok && !update.failed) || reject_delta(delta, problem);
}

/* Logs a problem unless it was the last one that was logged of the table's deltas. */
static void tell(const struct taking *taking, const struct bag_problem *problem)
{
    struct bag_seen_deltas *seen = &taking->table->memory->seen;
    uint64_t hash = bag_hash_bytes(BAG_HASH_START, problem->text, strlen(problem->text));
    if (seen->logged != hash)
        bag_log(BAG_LOG_LEVEL_WARNING, "a delta is not applied",
                BAG_LOG_TEXT("model", taking->stream->name), BAG_LOG_TEXT("reason", problem->text));
    seen->logged = hash;
}

/* Returns whether the folder is taken to be complete. Updates the folder's fingerprint. */
static bool is_whole(const struct taking *taking, const struct delta *delta,
                     struct bag_delta_state *state)
{
    const char *ready_file = taking->stream->updates->settings.ready_file;
    struct bag_problem problem;
    state->fingerprint = hash_delta(delta);
    if (!ready_file)
        return !taking->polls || was_seen(&taking->table->memory->seen, state);
    if (has_file(delta, ready_file))
        return true;
    bag_problem_set(&problem, BAG_ERROR_FILE, "delta %s: there is no %s in it yet", delta->folder,
                    ready_file);
    tell(taking, &problem);
    return false;
}

/* Applies the listed deltas in order. Returns how many were applied or skipped as older. */
static size_t take_listed(const struct taking *taking, struct listing *listing, bool *ok,
                          struct bag_problem *problem)
{
    struct bag_seen_deltas *seen = &taking->table->memory->seen;
    size_t at = 0;
    for (; at < listing->count; at++) {
        struct bag_delta_state *state = &listing->found[at];
        uint64_t sequence = last_update(taking->table->memory->live);
        struct delta delta;
        if (state->number <= sequence)
            continue;
        if (state->number > sequence + 1) {
            if (seen->awaited != sequence + 1)
                bag_log(BAG_LOG_LEVEL_WARNING, "waits for a delta",
                        BAG_LOG_TEXT("model", taking->stream->name),
                        BAG_LOG_NUMBER("next", sequence + 1),
                        BAG_LOG_NUMBER("found", state->number));
            seen->awaited = sequence + 1;
            break;
        }
        if (!name_delta(&delta, taking->table->deltas, state->number) ||
            !is_whole(taking, &delta, state))
            break;
        *ok = submit(taking, &delta, state->number, problem);
        if (!*ok) {
            tell(taking, problem);
            break;
        }
        seen->awaited = seen->logged = 0;
    }
    return at;
}

/* Rejects deltas of a mapped table, whose file must not be written to. */
static bool check_mapped(const struct taking *taking, const struct listing *listing,
                         struct bag_problem *problem)
{
    struct delta delta;
    if (!listing->count || !name_delta(&delta, taking->table->deltas, listing->found[0].number))
        return true;
    bag_problem_set(problem, BAG_ERROR_FILE,
                    "the table is mapped from its file, and takes no updates");
    reject_delta(&delta, problem);
    tell(taking, problem);
    return false;
}

bool bag_updates_take_deltas(struct bag_updates *updates, const struct bag_updates_table *table,
                             bool polls, struct bag_problem *problem)
{
    struct taking taking = {
        .stream = bag_updates_find(updates, table->name), .table = table, .polls = polls};
    const struct bag_live_rows *live = table->memory->live;
    struct listing listing;
    bool ok = true;
    if (!taking.stream || !table->deltas)
        return true;
    uint64_t last = live ? last_update(live) : table->through;
    if (!list_deltas(&listing, table->deltas, last, problem)) {
        tell(&taking, problem);
        return false;
    }
    if (!live) {
        ok = check_mapped(&taking, &listing, problem);
        free(listing.found);
        return ok;
    }
    size_t first = take_listed(&taking, &listing, &ok, problem);
    /* Store the state of the remaining deltas for the next poll, and count those of all versions.
     */
    struct bag_updates_stream *stream = taking.stream;
    struct bag_seen_deltas *seen = &table->memory->seen;
    size_t left = listing.count - first;
    for (size_t i = 0; i < left; i++) {
        struct delta delta;
        listing.found[i] = listing.found[first + i];
        if (name_delta(&delta, taking.table->deltas, listing.found[i].number))
            listing.found[i].fingerprint = hash_delta(&delta);
    }
    free(seen->waiting);
    seen->waiting = listing.found;
    seen->count = left;
    uint64_t waiting = 0;
    const struct bag_live_rows *at;
    pthread_mutex_lock(&stream->lock);
    SLIST_FOREACH(at, &stream->tables, next)
    {
        seen = &at->memory->seen;
        for (size_t i = 0; i < seen->count; i++)
            waiting += seen->waiting[i].number > bag_updates_last_before(at);
    }
    atomic_store_explicit(&stream->deltas_waiting, waiting, memory_order_relaxed);
    if (left)
        bag_updates_raise_lag(stream, listing.found[left - 1].number);
    pthread_mutex_unlock(&stream->lock);
    return ok;
}
