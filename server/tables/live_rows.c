/* Tables whose rows change; see live_rows.h. */
#include "live_rows.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

/* ---- the lock -------------------------------------------------------------------------------- */

/* A writer writes, or has waited long enough: no reader may enter. */
#define WRITES (1u << 31)
/* A writer waits, and lets readers pass. */
#define WAITS (1u << 30)

/* The bits of the state that count readers. */
#define READERS (WAITS - 1)

/* How long a writer lets readers pass. With 0 every update would make short requests wait for a
 * long one before them. */
#define PATIENCE_NS 5000000

/* Locks the table for reading unless a writer keeps readers out. */
static bool try_read(struct bag_live_rows *live)
{
    unsigned state = atomic_load_explicit(&live->state, memory_order_relaxed);
    while (!(state & WRITES)) {
        if (atomic_compare_exchange_weak_explicit(&live->state, &state, state + 1,
                                                  memory_order_acquire, memory_order_relaxed))
            return true;
    }
    return false;
}

/* Unlocks the table, and wakes a waiting writer if this was the last reader. */
static void read_end(struct bag_live_rows *live)
{
    unsigned before = atomic_fetch_sub_explicit(&live->state, 1, memory_order_release);
    if ((before & READERS) > 1 || !(before & (WRITES | WAITS)))
        return;
    bag_monitor_lock(&live->monitor);
    bag_monitor_wake_all(&live->monitor);
    bag_monitor_unlock(&live->monitor);
}

/* Locks the table for reading, and waits for that if necessary. The last of the admitted readers
 * wakes the next writer. */
static void read_one(struct bag_live_rows *live)
{
    if (try_read(live))
        return;
    bag_monitor_lock(&live->monitor);
    live->waiting++;
    while (!try_read(live))
        bag_monitor_wait(&live->monitor, UINT64_MAX);
    live->waiting--;
    if (live->admitted > 0 && --live->admitted == 0)
        bag_monitor_wake_all(&live->monitor);
    bag_monitor_unlock(&live->monitor);
}

bool bag_live_rows_try_read(struct bag_live_rows *const *live, size_t count)
{
    size_t locked = 0;
    while (locked < count && try_read(live[locked]))
        locked++;
    if (locked < count)
        bag_live_rows_read_end(live, locked);
    return locked == count;
}

/* Takes the locks in the order of their addresses, as all threads do, so there is no deadlock. */
void bag_live_rows_read(struct bag_live_rows *const *live, size_t count)
{
    for (size_t i = 0; i < count; i++)
        read_one(live[i]);
}

void bag_live_rows_read_end(struct bag_live_rows *const *live, size_t count)
{
    for (size_t i = 0; i < count; i++)
        read_end(live[i]);
}

/* Takes the lock if there is no reader: if the state has only these bits of the writer. */
static bool try_write(struct bag_live_rows *live, unsigned bits)
{
    return atomic_compare_exchange_strong_explicit(&live->state, &bits, WRITES,
                                                   memory_order_acquire, memory_order_relaxed);
}

/* Locks the table for writing. First lets those readers in that waited for the last writer, then
 * all readers until PATIENCE_NS after it was called. Then keeps new ones out until the earlier ones
 * have gone. */
static void write_begin(struct bag_live_rows *live)
{
    uint64_t until_ns = uv_hrtime() + PATIENCE_NS;
    bag_monitor_lock(&live->monitor);
    while (live->admitted > 0)
        bag_monitor_wait(&live->monitor, UINT64_MAX);
    atomic_fetch_or_explicit(&live->state, WAITS, memory_order_relaxed);
    unsigned bits = WAITS;
    while (!try_write(live, bits)) {
        if (!bag_monitor_wait(&live->monitor, bits & WRITES ? UINT64_MAX : until_ns)) {
            atomic_fetch_or_explicit(&live->state, WRITES, memory_order_relaxed);
            bits |= WRITES;
        }
    }
    bag_monitor_unlock(&live->monitor);
}

/* Unlocks the table. Readers that wait now are admitted before the next writer. */
static void write_end(struct bag_live_rows *live)
{
    bag_monitor_lock(&live->monitor);
    live->admitted = live->waiting;
    atomic_fetch_and_explicit(&live->state, ~WRITES, memory_order_release);
    bag_monitor_wake_all(&live->monitor);
    bag_monitor_unlock(&live->monitor);
}

/* ---- a table --------------------------------------------------------------------------------- */

int64_t bag_live_rows_kept_by(const struct bag_rules *rules)
{
    return rules->keyed && rules->missing == BAG_MISSING_HASH ? rules->hash_rows : 0;
}

bool bag_live_rows_make(struct bag_table_memory *memory, int64_t kept_rows)
{
    struct bag_live_rows *live = aligned_alloc(_Alignof(struct bag_live_rows), sizeof *live);
    if (!live)
        return false;
    memset(live, 0, sizeof *live);
    if (!bag_monitor_init(&live->monitor)) {
        free(live);
        return false;
    }
    live->memory = memory;
    memory->live = live;
    if (!bag_table_is_keyed(memory))
        return true;
    live->next_spare = memory->shape[0];
    live->end_spare = memory->shape[0] + memory->spare_rows;
    memory->table.num_rows = live->end_spare;
    live->kept_rows = kept_rows;
    live->first_reused = INT64_MAX;
    live->num_keys = memory->shape[0];
    live->num_spare = (int64_t)memory->spare_rows;
    return true;
}

/* Adds to the number of keys, and counts the spare rows again. */
static void count_rows(struct bag_live_rows *live, int64_t added_keys)
{
    live->num_keys += added_keys;
    live->num_spare = live->end_spare - live->next_spare + (int64_t)live->num_freed;
}

bool bag_live_rows_keep(struct bag_live_rows *live, int64_t kept_rows)
{
    size_t left = 0;
    if (kept_rows > live->first_reused)
        return false;
    if (kept_rows <= live->kept_rows)
        return true;
    for (size_t i = 0; i < live->num_freed; i++) {
        if (live->freed[i] >= kept_rows)
            live->freed[left++] = live->freed[i];
    }
    live->num_freed = left;
    live->kept_rows = kept_rows;
    count_rows(live, 0);
    return true;
}

void bag_live_rows_free(struct bag_live_rows *live)
{
    if (!live)
        return;
    bag_monitor_free(&live->monitor);
    free(live->freed);
    free(live->found);
    free(live);
}

int64_t bag_table_rows_now(const struct bag_table_memory *memory)
{
    return memory->live && bag_table_is_keyed(memory) ? memory->live->num_keys : memory->shape[0];
}

int64_t bag_table_spare_rows_now(const struct bag_table_memory *memory)
{
    return memory->live ? memory->live->num_spare : (int64_t)memory->spare_rows;
}

/* ---- checking -------------------------------------------------------------------------------- */

/* Sets a problem with one key of the batch, printed as a number of its file's type. Returns false.
 */
static bool reject_key(const struct bag_live_rows *live, const struct bag_rows_batch *batch,
                       size_t place, const char *why, struct bag_problem *problem)
{
    size_t position = batch->positions ? batch->positions[place] : place;
    uint64_t key = batch->ids[place];
    bool is_signed = live->memory->keys_dtype == BAG_I64;
    if (is_signed)
        bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                        "'keys' has %" PRId64 " at position %zu: %s", (int64_t)key, position, why);
    else
        bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                        "'keys' has %" PRIu64 " at position %zu: %s", key, position, why);
    return bag_problem_at(problem, "keys", position);
}

/* Returns the row of this memory that holds a row of a dense table; -1 if it is not here. */
static int64_t find_local(const struct bag_live_rows *live, uint64_t row)
{
    const struct bag_table_memory *memory = live->memory;
    if (bag_table_is_part(memory))
        return bag_table_local_row(memory, row);
    return row < (uint64_t)memory->table.num_rows ? (int64_t)row : -1;
}

/* Grows one of the writer's lists to `needed` rows. */
static bool reserve(int64_t **rows, size_t *room, size_t needed, struct bag_problem *problem)
{
    if (needed <= *room)
        return true;
    size_t more = 2 * *room > needed ? 2 * *room : needed;
    int64_t *grown = reallocarray(*rows, more, sizeof *grown);
    if (!grown)
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "no memory for %zu keys", needed);
    *rows = grown;
    *room = more;
    return true;
}

/* Reserves memory to keep the rows of `count` more removed keys. */
static bool reserve_freed(struct bag_live_rows *live, size_t count, struct bag_problem *problem)
{
    return reserve(&live->freed, &live->freed_room, live->num_freed + count, problem);
}

bool bag_live_rows_check_readers(const struct bag_live_rows *live,
                                 const struct bag_rows_batch *batch, struct bag_problem *problem)
{
    const struct bag_live_reader *reader;
    for (size_t at = 0; at < batch->count; at++) {
        SLIST_FOREACH(reader, &live->readers, next)
        {
            char why[400];
            if (!reader->rules->has_default_index ||
                (uint64_t)reader->rules->default_index != batch->ids[at])
                continue;
            snprintf(why, sizeof why,
                     "it is the default_index of %s%s%smodel '%s' and cannot be removed",
                     reader->feature ? "feature '" : "", reader->feature ? reader->feature : "",
                     reader->feature ? "' of " : "", reader->model);
            return reject_key(live, batch, at, why, problem);
        }
    }
    return true;
}

/* Sets live->found to the rows of the batch's keys, -1 for new ones, and *num_new. Returns false
 * and sets *problem if there is no room for the new ones. */
static bool find_rows(struct bag_live_rows *live, const struct bag_rows_batch *batch,
                      size_t *num_new, struct bag_problem *problem)
{
    struct bag_ids ids = {batch->ids, batch->count, true};
    if (!reserve(&live->found, &live->found_room, batch->count, problem))
        return false;
    *num_new = bag_keys_find(&live->memory->index.keys, &ids, live->found);
    if (*num_new <= (size_t)live->num_spare)
        return reserve_freed(live, *num_new, problem);
    size_t first = 0;
    while (live->found[first] >= 0)
        first++;
    if (live->memory->spare_rows == 0)
        return reject_key(live, batch, first,
                          "the table does not have it, and has no room for new keys (spare_rows)",
                          problem);
    return bag_problem_set(problem, BAG_ERROR_TABLE_FULL,
                           "%zu of the keys are new, and the table has room for %zu (spare_rows)",
                           *num_new, (size_t)live->num_spare);
}

bool bag_live_rows_check(struct bag_live_rows *live, struct bag_rows_batch *batch,
                         bool *changes_keys, struct bag_problem *problem)
{
    bag_rows_batch_decide(live->memory, batch);
    *changes_keys = batch->deletes;
    if (!bag_table_is_keyed(live->memory)) {
        /* Check that the memory has the row of each index of the batch. */
        uint64_t num_rows = (uint64_t)live->memory->table.num_rows;
        if (num_rows == 0 && batch->count)
            return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                                   "'indices' has %" PRId64 " at position 0; the table has no rows",
                                   (int64_t)batch->ids[0]);
        for (size_t i = 0; i < batch->count; i++) {
            if (find_local(live, batch->ids[i]) < 0)
                return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                                       "'indices' has %" PRId64
                                       " at position %zu; the table has rows "
                                       "0 to %" PRId64,
                                       (int64_t)batch->ids[i], i, (int64_t)num_rows - 1);
        }
        return true;
    }
    if (batch->deletes) {
        /* Check that all keys can be removed, and reserve memory for their rows. */
        for (size_t i = 0; i < batch->count; i++) {
            if (!batch->may_be_gone &&
                bag_keys_find_one(&live->memory->index.keys, batch->ids[i]) < 0)
                return reject_key(live, batch, i, "the table does not have it", problem);
        }
        return bag_live_rows_check_readers(live, batch, problem) &&
               reserve_freed(live, batch->count, problem);
    }
    size_t num_new = 0;
    bool ok = find_rows(live, batch, &num_new, problem);
    *changes_keys = num_new > 0;
    return ok;
}

/* ---- applying -------------------------------------------------------------------------------- */

/* Returns the bytes of a row in memory. */
static char *row_at(const struct bag_live_rows *live, uint64_t row)
{
    return (char *)live->memory->mapping + row * bag_row_bytes(&live->memory->table);
}

/* Takes a row for a new key. Returns -1 if there is none. */
static int64_t take_row(struct bag_live_rows *live)
{
    if (!live->num_freed)
        return live->next_spare < live->end_spare ? live->next_spare++ : -1;
    int64_t row = live->freed[--live->num_freed];
    if (row < live->first_reused)
        live->first_reused = row;
    return row;
}

/* Marks a row as just given to a new key, or removes the mark. */
static int64_t mark_new(int64_t row)
{
    return -2 - row;
}

/* Gives a marked row to each key that has none (-1). Returns false if the index has no place for
 * one of them: the keys that were added are removed again, and their rows are freed. */
static bool add_keys(struct bag_live_rows *live, const struct bag_rows_batch *batch, int64_t *rows)
{
    for (size_t i = 0; i < batch->count; i++) {
        int64_t other;
        if (rows[i] >= 0)
            continue;
        int64_t row = take_row(live);
        if (bag_keys_insert(&live->memory->index.keys, batch->ids[i], row, &other) !=
            BAG_KEYS_ADDED) {
            live->freed[live->num_freed++] = row;
            for (size_t j = 0; j < i; j++) {
                if (rows[j] < -1) {
                    bag_keys_remove(&live->memory->index.keys, batch->ids[j]);
                    live->freed[live->num_freed++] = mark_new(rows[j]);
                }
            }
            return false;
        }
        rows[i] = mark_new(row);
    }
    return true;
}

/* Writes the rows of a keyed table, and adds the keys that it does not have. */
static bool put_keys(struct bag_live_rows *live, const struct bag_rows_batch *batch,
                     struct bag_problem *problem)
{
    size_t row_bytes = bag_row_bytes(&live->memory->table), num_new;
    if (!find_rows(live, batch, &num_new, problem))
        return false;
    write_begin(live);
    bool ok = add_keys(live, batch, live->found);
    for (size_t i = 0; ok && i < batch->count; i++) {
        int64_t row = live->found[i] < 0 ? mark_new(live->found[i]) : live->found[i];
        memcpy(row_at(live, (uint64_t)row), batch->rows + i * row_bytes, row_bytes);
    }
    count_rows(live, ok ? (int64_t)num_new : 0);
    write_end(live);
    return ok || bag_problem_set(problem, BAG_ERROR_INTERNAL,
                                 "the index has no place for a new key; are the keys chosen?");
}

/* Removes keys and frees their rows, except for rows that stand in for missing keys: these keep
 * their contents and get no other key. */
static bool remove_keys(struct bag_live_rows *live, const struct bag_rows_batch *batch,
                        struct bag_problem *problem)
{
    if (!reserve_freed(live, batch->count, problem))
        return false;
    int64_t num_removed = 0;
    write_begin(live);
    for (size_t i = 0; i < batch->count; i++) {
        int64_t row = bag_keys_remove(&live->memory->index.keys, batch->ids[i]);
        num_removed += row >= 0;
        if (row >= live->kept_rows)
            live->freed[live->num_freed++] = row;
    }
    count_rows(live, -num_removed);
    write_end(live);
    return true;
}

bool bag_live_rows_apply(struct bag_live_rows *live, const struct bag_rows_batch *batch,
                         struct bag_problem *problem)
{
    if (!bag_table_is_keyed(live->memory)) {
        /* Check the rows again, as the batch may have been checked with another version of the
         * table. */
        uint64_t num_rows = (uint64_t)live->memory->table.num_rows;
        size_t row_bytes = bag_row_bytes(&live->memory->table);
        for (size_t i = 0; i < batch->count; i++) {
            if (num_rows == 0)
                return bag_problem_set(problem, BAG_ERROR_FILE,
                                       "it is of row %" PRIu64
                                       ", and the table has no rows; it needs a "
                                       "table with all rows, or one that includes the update "
                                       "(updates_through)",
                                       batch->ids[i]);
            if (find_local(live, batch->ids[i]) < 0)
                return bag_problem_set(problem, BAG_ERROR_FILE,
                                       "it is of row %" PRIu64
                                       ", and the table has rows 0 to %" PRId64
                                       "; it needs a table with all rows, or one that includes the "
                                       "update (updates_through)",
                                       batch->ids[i], (int64_t)num_rows - 1);
        }
        write_begin(live);
        for (size_t i = 0; i < batch->count; i++)
            memcpy(row_at(live, (uint64_t)find_local(live, batch->ids[i])),
                   batch->rows + i * row_bytes, row_bytes);
        write_end(live);
        return true;
    }
    return batch->deletes ? remove_keys(live, batch, problem) : put_keys(live, batch, problem);
}
