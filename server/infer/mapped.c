/* Inference over mapped tables: prefetches rows before pooling and detects missing rows after it;
 * see infer.h and server/tables/map.h. */
#include "infer.h"
#include "kernels/pool_entries.h"
#include "server/tables/map.h"

/* The number of entries whose rows are prefetched at a time. It is large enough to keep a disk busy
 * and small enough that no row is evicted before it is used. */
#define WINDOW_ENTRIES ((size_t)4096)

/* A job that took less than this did not wait for a disk. It is not asked from the system, which
 * would cost a tenth of a small request. */
#define QUICK_NS 20000

/* The maximum number of times that a request is pooled again because a file changed meanwhile. */
#define MAX_TRIES 8

/* Adds the name of the table's model to *problem. Returns false. */
static bool reject_op(const struct bag_infer *infer, const struct bag_op *op,
                      struct bag_problem *problem)
{
    const struct bag_model *table = infer->input.model->features[op->feature].model;
    return bag_problem_prefix(problem, "model '%s'", (table ? table : infer->input.model)->name);
}

/* ---- prefetching ----------------------------------------------------------------------------- */

/* Prefetches the rows of a range of entries. Does nothing if recent jobs found all their rows in
 * memory. */
static void prefetch_rows(const struct bag_op *op, size_t first, size_t end)
{
    const struct bag_pool_args *args = &op->args;
    struct bag_map_prefetch prefetch BAG_UNSET;
    if (first >= end || !bag_map_prefetch_begin(&prefetch, op->memory->map))
        return;
    for (size_t entry = first; entry < end; entry++) {
        int64_t row = bag_id_at(&args->indices, entry);
        if (row >= 0 && row < args->table.num_rows && row != args->padding_row)
            bag_map_prefetch_row(&prefetch, row);
    }
    bag_map_prefetch_end(&prefetch);
}

void bag_infer_prefetch(struct bag_infer *infer)
{
    size_t remaining = WINDOW_ENTRIES;
    for (size_t i = 0; i < infer->plan.num_ops && remaining; i++) {
        struct bag_op *op = &infer->plan.ops[i];
        size_t count = op->args.indices.count;
        if (op->kind != BAG_OP_MAPPED)
            continue;
        op->num_prefetched = count < remaining ? count : remaining;
        prefetch_rows(op, 0, op->num_prefetched);
        remaining -= op->num_prefetched;
    }
}

/* ---- pooling --------------------------------------------------------------------------------- */

/* Returns the end of the window that begins with `bag`: the last bag boundary within WINDOW_ENTRIES
 * entries, but at least one bag. */
static size_t window_end(const struct bag_pool_args *args, size_t bag, size_t end_bag)
{
    size_t most = bag_pool_first_entry(args, bag) + WINDOW_ENTRIES;
    size_t low = bag + 1, high = end_bag;
    while (low < high) {
        size_t middle = low + (high - low + 1) / 2;
        if (bag_pool_first_entry(args, middle) <= most)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Prefetches the rows of the bags that were not prefetched yet. */
static void prefetch_bags(const struct bag_op *op, size_t first_bag, size_t end_bag)
{
    if (first_bag >= end_bag)
        return;
    size_t first = bag_pool_first_entry(&op->args, first_bag);
    prefetch_rows(op, first < op->num_prefetched ? op->num_prefetched : first,
                  bag_pool_first_entry(&op->args, end_bag));
}

void bag_mapped_pool(const struct bag_op *op, struct bag_range range)
{
    const struct bag_pool_args *args = &op->args;
    size_t end_bag = range.end_bag;
    range.end_bag = range.first_bag;
    if (range.first_bag >= end_bag)
        return;
    size_t next = window_end(args, range.first_bag, end_bag);
    prefetch_bags(op, range.first_bag, next);
    while (next > range.end_bag) {
        range.first_bag = range.end_bag;
        range.end_bag = next;
        next = next < end_bag ? window_end(args, next, end_bag) : next;
        prefetch_bags(op, range.end_bag, next);
        bag_op_pool(op, range);
    }
}

/* ---- rows that are touched ------------------------------------------------------------------- */

/* A test of one row of a mapped table. */
typedef bool (*row_test)(struct bag_map *map, int64_t row, void *context);

/* Returns whether a test holds for the rows of a range of entries, and adds their number to *kept.
 * Inline for each test, because a small request notices the calls. */
static inline __attribute__((always_inline)) bool test_entries(const struct bag_op *op,
                                                               size_t first, size_t end,
                                                               row_test test, void *context,
                                                               size_t *kept)
{
    const struct bag_pool_args *args = &op->args;
    bool keeps_all = bag_keeps_all(args);
    for (size_t entry = first; entry < end; entry++) {
        int64_t row = bag_id_at(&args->indices, entry);
        if (!keeps_all && !bag_keeps(args, entry, row))
            continue;
        ++*kept;
        if (!test(op->memory->map, row, context))
            return false;
    }
    return true;
}

/* Returns whether a test holds for all rows that a mapped op touches: those of its entries, and the
 * default row if a bag has none. */
static inline __attribute__((always_inline)) bool test_op(const struct bag_op *op, row_test test,
                                                          void *context)
{
    const struct bag_pool_args *args = &op->args;
    size_t first = bag_pool_first_entry(args, 0), num_bags = args->num_bags, kept = 0;
    if (args->default_row < 0)
        return test_entries(op, first, bag_pool_first_entry(args, num_bags), test, context, &kept);
    for (size_t bag = 0; bag < num_bags; bag++, kept = 0) {
        size_t end = bag_pool_first_entry(args, bag + 1);
        if (!test_entries(op, first, end, test, context, &kept) ||
            (kept == 0 && !test(op->memory->map, args->default_row, context)))
            return false;
        first = end;
    }
    return true;
}

/* ---- rows in memory -------------------------------------------------------------------------- */

static bool keeps_row(struct bag_map *map, int64_t row, void *now)
{
    return bag_map_keeps_row(map, row, *(const uint32_t *)now);
}

static bool record_row(struct bag_map *map, int64_t row, void *now)
{
    bag_map_record_row(map, row, *(const uint32_t *)now);
    return true;
}

bool bag_infer_is_in_memory(struct bag_infer *infer)
{
    uint32_t now = bag_map_time();
    for (size_t i = 0; i < infer->plan.num_ops; i++) {
        const struct bag_op *op = &infer->plan.ops[i];
        /* The bags of segments that are not sorted yet are not known yet. */
        if (op->kind == BAG_OP_MAPPED &&
            (!bag_map_is_watched(op->memory->map, now) || bag_pool_scratch_bytes(&op->args) ||
             !test_op(op, keeps_row, &now)))
            return false;
    }
    return infer->scratch.is_recorded = true;
}

/* Records the rows that all mapped ops touched. */
static void record_rows(const struct bag_infer *infer)
{
    uint32_t now = bag_map_time();
    for (size_t i = 0; i < infer->plan.num_ops; i++) {
        const struct bag_op *op = &infer->plan.ops[i];
        if (op->kind == BAG_OP_MAPPED)
            test_op(op, record_row, &now);
    }
}

/* ---- missing rows ---------------------------------------------------------------------------- */

/* Returns whether the row could be read. Sets *problem if it could not. */
static bool has_row(struct bag_map *map, int64_t row, void *problem)
{
    return bag_map_has_row(map, row) || bag_map_reject_row(map, row, problem);
}

/* Checks the rows of a mapped op, unless its file is whole. */
static bool check_op(const struct bag_infer *infer, const struct bag_op *op,
                     struct bag_problem *problem)
{
    if (op->kind != BAG_OP_MAPPED || bag_map_is_whole(op->memory->map))
        return true;
    return test_op(op, has_row, problem) || reject_op(infer, op, problem);
}

/* Checks the state of the files of all mapped ops, which were pooled since `began_ns`. Ops of one
 * table usually follow each other, so most files are checked once. */
static void refresh(const struct bag_infer *infer, uint64_t began_ns)
{
    bool has_read = bag_map_epoch().time_ns - began_ns >= QUICK_NS && bag_map_has_read();
    struct bag_map *before = NULL;
    for (size_t i = 0; i < infer->plan.num_ops; i++) {
        const struct bag_op *op = &infer->plan.ops[i];
        struct bag_map *map = op->kind == BAG_OP_MAPPED ? op->memory->map : NULL;
        if (map && map != before)
            bag_map_refresh(map, has_read);
        before = map;
    }
}

/* Pools until no file changes meanwhile. A file that is written continuously never stays unchanged;
 * for such a file it is enough that no hole was made or filled. */
static bool settle(struct bag_infer *infer)
{
    struct bag_map_epoch before = infer->scratch.epoch, now;
    refresh(infer, before.time_ns);
    now = bag_map_epoch();
    for (int tries = 0; tries < MAX_TRIES; tries++) {
        if (now.holes == before.holes && now.states == before.states)
            return true;
        before = now;
        for (size_t i = 0; i < infer->plan.num_ops; i++) {
            const struct bag_op *op = &infer->plan.ops[i];
            if (op->kind == BAG_OP_MAPPED)
                bag_mapped_pool(op, bag_range_all(&op->args));
        }
        refresh(infer, before.time_ns);
        now = bag_map_epoch();
    }
    return now.holes == before.holes;
}

bool bag_mapped_check(struct bag_infer *infer, struct bag_problem *problem)
{
    size_t mapped = 0; /* index of the first op of a mapped table */
    while (mapped < infer->plan.num_ops && infer->plan.ops[mapped].kind != BAG_OP_MAPPED)
        mapped++;
    if (mapped == infer->plan.num_ops)
        return true;
    if (!settle(infer)) {
        bag_map_reject_changing(problem);
        return reject_op(infer, &infer->plan.ops[mapped], problem);
    }
    for (size_t i = 0; i < infer->plan.num_ops; i++) {
        if (!check_op(infer, &infer->plan.ops[i], problem))
            return false;
    }
    if (!infer->scratch.is_recorded)
        record_rows(infer);
    return true;
}
