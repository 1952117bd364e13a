/* Updates from folders beside a table; see updates.h.
 *
 * DELTAS/NUMBER/ holds update NUMBER: indices.npy or keys.npy, and rows.npy. Keys without rows are
 * removed. */
#include "updates.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
