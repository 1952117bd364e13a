/* Blocks into tiles: the decisions that are taken once per block, not once per row.
 *
 * Must not know: instruction sets. */
#include "pool_tiles.h"

/* What is right for a table of that size; measured with tests/bench/kernels. */
#define FETCH_NONE_BYTES       ((size_t)1 << 20)
#define FETCH_NEAR_BYTES       ((size_t)24 << 20)
#define FETCH_NEAR_AHEAD_BYTES 8192
#define LINE_BYTES             64

static size_t clamp(size_t value, size_t low, size_t high)
{
    return value < low ? low : value > high ? high : value;
}

struct bag_fetch bag_fetch_for(const struct bag_block *block, size_t far_bytes)
{
    const struct bag_table *table = &block->pool->table;
    size_t row_bytes = bag_row_bytes(table);
    size_t table_bytes = (size_t)table->num_rows * row_bytes;
    struct bag_fetch fetch = {
        .near = table_bytes <= FETCH_NEAR_BYTES,
        .straddles = row_bytes % LINE_BYTES || (uintptr_t)table->rows % LINE_BYTES,
        .row_bytes = row_bytes,
    };
    if (table_bytes <= FETCH_NONE_BYTES)
        return fetch;
    fetch.ahead = clamp((fetch.near ? FETCH_NEAR_AHEAD_BYTES : far_bytes) / row_bytes, 8, 64);
    fetch.end = block->end_entry > fetch.ahead ? block->end_entry - fetch.ahead : 0;
    return fetch;
}

static enum bag_mode mode_of(const struct bag_pool *pool)
{
    if (pool->reduction == BAG_MAX || !bag_keeps_all(pool))
        return BAG_MODE_GENERAL;
    return pool->weights ? BAG_MODE_WEIGHTED : BAG_MODE_PLAIN;
}

/* One row divided by the number of its entries, or by the root of that, is itself. Two-byte
 * elements are summed wider than they are stored. */
static bool singles_pass(const struct bag_pool *pool)
{
    return pool->output_dtype == pool->table.dtype && bag_dtypes[pool->table.dtype].bytes > 2 &&
           (pool->reduction == BAG_SUM || !pool->weights);
}

/* Pools the columns [first, end) of the task's bags. */
static void pool_tile(struct bag_tile_task *task, const struct bag_tile_set *set, size_t first,
                      size_t end)
{
    size_t vectors = (end - first + set->lanes - 1) / set->lanes;
    const struct bag_table *table = &task->pool->table;
    task->column = first;
    task->last_column = end - set->lanes;
    task->is_first = first == task->block->first_column;
    task->fetch.first = (uintptr_t)task->rows + first * set->bits / 8;
    task->fetch.last = (end - first) * set->bits / 8 - 1;
    if (table->row_format == BAG_ROWS_INT8 || table->row_format == BAG_ROWS_INT4)
        task->fetch.last = task->row_bytes - 1 - first * set->bits / 8;
    set->pool[mode_of(task->pool)][vectors - 1](task);
}

/* Long rows: every tile of a bag before the next bag, while its pages are at hand. */
static void pool_in_tiles(struct bag_tile_task *task, const struct bag_tile_set *set)
{
    const struct bag_block *block = task->block;
    size_t width = set->tile_vectors * set->lanes;
    for (size_t bag = 0; bag < block->num_bags; bag++) {
        task->first_bag = bag;
        task->end_bag = bag + 1;
        for (size_t column = block->first_column; column < block->end_column; column += width) {
            size_t left = block->end_column - column;
            pool_tile(task, set, column, column + (left < width ? left : width));
        }
    }
}

void bag_tiles_pool(const struct bag_block *block, const struct bag_tile_set *set)
{
    const struct bag_pool *pool = block->pool;
    size_t columns = block->end_column - block->first_column;
    bool splits_byte = set->bits < 8 && (block->first_column % 2 || block->end_column % 2);
    if (columns < set->lanes || splits_byte) {
        set->below(block);
        return;
    }
    struct bag_tile_task task = {
        .block = block,
        .pool = pool,
        .rows = pool->table.rows,
        .row_bytes = bag_row_bytes(&pool->table),
        .out_bytes = pool->bag_stride,
        .first_bag = 0,
        .end_bag = block->num_bags,
        .singles_pass = singles_pass(pool),
        .fetch = bag_fetch_for(block, set->far_bytes),
    };
    if (columns <= set->whole_vectors * set->lanes)
        pool_tile(&task, set, block->first_column, block->end_column);
    else
        pool_in_tiles(&task, set);
}
