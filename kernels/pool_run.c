/* Pooling a range of the result. It is split into blocks of bags, one kernel call each; a block's
 * columns are split into tiles by what is decided once per block, not once per row. */
#include "pool_block.h"

/* ---- ranges into blocks ---------------------------------------------------------------------- */

struct bag_range bag_range_all(const struct bag_pool_args *args)
{
    return (struct bag_range){0, args->num_bags, 0, args->table.row_elements};
}

void bag_pool_run(const struct bag_pool_args *args, struct bag_range range, void *out)
{
    bag_block_fn *pool_block = bag_kernel_for(&args->table);
    size_t bounds[BAG_BLOCK_BAGS + 1] BAG_UNSET;
    size_t end_entry = 0, hint = 0;
    if (range.first_column >= range.end_column || range.first_bag >= range.end_bag)
        return;
    if (range.end_bag - range.first_bag > BAG_BLOCK_BAGS)
        end_entry = bag_pool_first_entry(args, range.end_bag);
    for (size_t bag = range.first_bag; bag < range.end_bag;) {
        size_t left = range.end_bag - bag;
        size_t count = left < BAG_BLOCK_BAGS ? left : BAG_BLOCK_BAGS;
        bag_pool_bounds(args, bag, bag + count, &hint, bounds);
        if (left <= BAG_BLOCK_BAGS)
            end_entry = bounds[count];
        struct bag_block block = {.args = args,
                                  .num_bags = count,
                                  .bounds = bounds,
                                  .end_entry = end_entry,
                                  .is_first = bag == range.first_bag,
                                  .first_column = range.first_column,
                                  .end_column = range.end_column,
                                  .out = (char *)out + bag * args->bag_stride};
        pool_block(&block);
        bag += count;
    }
}

/* ---- blocks into tiles ----------------------------------------------------------------------- */

/* Table sizes at which prefetching changes, and how far ahead; measured with tests/bench/kernels.
 */
#define FETCH_NONE_BYTES       ((size_t)2 << 20)
#define FETCH_NONE_NARROW      ((size_t)256 << 10) /* where elements are widened as they are loaded */
#define FETCH_NEAR_BYTES       ((size_t)24 << 20)
#define FETCH_NEAR_AHEAD_BYTES 4096
#define LINE_BYTES             64

static size_t clamp(size_t value, size_t low, size_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* Widening takes so many instructions that few rows are loaded at once. */
static size_t fetch_none_bytes(const struct bag_table *table)
{
    bool narrow = table->row_format != BAG_ROWS_PLAIN || bag_dtypes[table->dtype].bytes <= 2;
    return narrow ? FETCH_NONE_NARROW : FETCH_NONE_BYTES;
}

/* Whether rows do not begin at cache lines. */
static bool straddles(const struct bag_table *table, size_t row_bytes)
{
    return row_bytes % LINE_BYTES || (uintptr_t)table->rows % LINE_BYTES;
}

/* The most indices of a call whose rows are prefetched before it runs, and the longest rows: more
 * of them gain nothing. A call that is alone loses by more bytes than these, unless the table has
 * so many rows. */
#define EARLY_INDICES     32
#define EARLY_ROW_BYTES   512
#define EARLY_ALONE_BYTES 3072
#define EARLY_ALONE_ROWS  (1 << 16)

static bool prefetched_early(const struct bag_pool_args *args, size_t row_bytes)
{
    return args->indices.count <= EARLY_INDICES && row_bytes <= EARLY_ROW_BYTES;
}

static bool gains_alone(const struct bag_pool_args *args, size_t row_bytes)
{
    return args->indices.count * row_bytes <= EARLY_ALONE_BYTES ||
           args->table.num_rows >= EARLY_ALONE_ROWS;
}

/* Other rows than those of the table do no harm: these are hints. */
void bag_pool_prefetch(const struct bag_pool_args *args, bool alone)
{
    size_t row_bytes = bag_row_bytes(&args->table);
    if (!prefetched_early(args, row_bytes) || (alone && !gains_alone(args, row_bytes)) ||
        (size_t)args->table.num_rows * row_bytes <= fetch_none_bytes(&args->table))
        return;
    bool straddle = straddles(&args->table, row_bytes);
    for (size_t i = 0; i < args->indices.count; i++) {
        uintptr_t id = (uintptr_t)bag_id_at(&args->indices, i);
        uintptr_t row = (uintptr_t)args->table.rows + id * row_bytes;
        bag_fetch_lines(false, (const char *)row, row_bytes);
        if (straddle)
            bag_fetch_line(false, (const char *)(row + row_bytes - 1));
    }
}

static struct bag_fetch fetch_for(const struct bag_block *block, size_t row_bytes, size_t far_bytes)
{
    const struct bag_table *table = &block->args->table;
    size_t table_bytes = (size_t)table->num_rows * row_bytes;
    struct bag_fetch fetch = {
        .near = table_bytes <= FETCH_NEAR_BYTES,
        .straddles = straddles(table, row_bytes),
    };
    if (table_bytes <= fetch_none_bytes(table))
        return fetch;
    size_t ahead_bytes = table_bytes <= FETCH_NEAR_BYTES ? FETCH_NEAR_AHEAD_BYTES : far_bytes;
    fetch.ahead = clamp(ahead_bytes / row_bytes, 8, 64);
    fetch.end = block->end_entry > fetch.ahead ? block->end_entry - fetch.ahead : 0;
    return fetch;
}

/* The last byte of a row that is read, counted from its codes. */
static size_t last_byte(const struct bag_block *block, const struct bag_row_places *places,
                        size_t bits)
{
    if (places->bytes > places->params_at && places->params_at > 0)
        return places->bytes - 1;
    return block->end_column * bits / 8 - 1;
}

static enum bag_mode mode_of(const struct bag_pool_args *args)
{
    if (args->reduction == BAG_MAX || !bag_keeps_all(args) || args->table.num_rows > UINT32_MAX)
        return BAG_MODE_GENERAL;
    return args->weights ? BAG_MODE_WEIGHTED : BAG_MODE_PLAIN;
}

/* A single row divided by 1 is itself. Two-byte elements are summed wider than they are stored. */
static bool singles_pass(const struct bag_pool_args *args)
{
    return args->output_dtype == args->table.dtype && bag_dtypes[args->table.dtype].bytes > 2 &&
           (args->reduction == BAG_SUM || !args->weights);
}

/* Sums of that type are results where nothing divides them. */
static bool sums_pass(const struct bag_pool_args *args)
{
    return args->output_dtype == (args->table.dtype == BAG_F64 ? BAG_F64 : BAG_F32);
}

/* Chooses the instance and splits the columns into its tiles, as few and as narrow as can be. */
static bag_tile_fn *choose(struct bag_tile_task *task, const struct bag_tile_set *set)
{
    enum bag_mode mode = mode_of(task->args);
    size_t columns = task->end_column - task->first_column;
    size_t vectors = (columns + set->lanes - 1) >> set->lane_shift;
    task->num_tiles = 1;
    if (vectors <= BAG_TILE_VECTORS && set->whole[mode][vectors - 1])
        return set->whole[mode][vectors - 1];
    if (vectors <= BAG_TILE_VECTORS && task->fetch.near && set->wide[mode][vectors - 1])
        return set->wide[mode][vectors - 1];
    task->num_tiles = (vectors + set->largest_tile - 1) / set->largest_tile;
    size_t tile_vectors = (vectors + task->num_tiles - 1) / task->num_tiles;
    while (!set->split[mode][tile_vectors - 1])
        tile_vectors++;
    return set->split[mode][tile_vectors - 1];
}

/* Prefetches the first rows of a range, which no earlier entry has prefetched; for tables beyond
 * the near caches only, where it gains. Inlined, as GCC drops calls of a function that only
 * prefetches: it takes it for one without effects. */
BAG_LANE void prefetch_first_rows(const struct bag_tile_task *task, const struct bag_tile_set *set)
{
    size_t entry = task->bounds[0], left = task->block->end_entry - entry;
    size_t end = entry + (left < task->fetch.ahead ? left : task->fetch.ahead);
    for (; entry < end; entry++) {
        uintptr_t id = (uintptr_t)bag_id_at(&task->args->indices, entry);
        uintptr_t row = (uintptr_t)task->rows + id * task->row_bytes;
        uintptr_t from = row + task->first_column * set->bits / 8 - task->bytes_before;
        uintptr_t last = row + task->last_byte;
        bag_fetch_lines(set->far_cache == 1, (const char *)from, last - from + 1);
        if (task->fetch.straddles)
            bag_fetch_line(false, (const char *)last);
    }
}

/* All but the tiles. Every field is set: what an initialiser leaves out would be cleared first, for
 * each block. */
BAG_LANE void describe(const struct bag_block *block, const struct bag_tile_set *set,
                       struct bag_tile_task *task)
{
    const struct bag_pool_args *args = block->args;
    const struct bag_row_layout *layout = &bag_row_layouts[args->table.row_format];
    const struct bag_row_places places = bag_row_places(&args->table);
    bool divides = args->reduction == BAG_MEAN || args->reduction == BAG_SQRTN;
    task->block = block;
    task->args = args;
    task->fetch = fetch_for(block, places.bytes, set->far_bytes);
    task->id_bytes = args->indices.wide ? sizeof(int64_t) : sizeof(int32_t);
    task->ids = task->ids_ahead = args->indices.data;
    if (task->fetch.end > 0)
        task->ids_ahead += task->fetch.ahead * task->id_bytes;
    task->bounds = block->bounds;
    task->num_bags = block->num_bags;
    task->rows = (const char *)args->table.rows + places.codes_at;
    task->row_bytes = places.bytes;
    task->out_bytes = args->bag_stride;
    task->result_bytes = bag_dtypes[args->output_dtype].bytes;
    task->first_column = block->first_column;
    task->end_column = block->end_column;
    task->bytes_before = places.codes_at;
    task->last_byte = last_byte(block, &places, set->bits);
    task->params_at = (ptrdiff_t)places.params_at - (ptrdiff_t)places.codes_at;
    task->has_params = layout->num_params > 0;
    task->half_params = layout->param_dtype == BAG_F16;
    task->singles_pass = singles_pass(args);
    task->sums_pass = !divides && sums_pass(args);
    task->halves_pass = !divides && args->output_dtype == args->table.dtype;
}

void bag_tiles_pool(const struct bag_block *block, const struct bag_tile_set *set)
{
    const struct bag_pool_args *args = block->args;
    size_t columns = block->end_column - block->first_column;
    bool splits_byte = set->bits < 8 && (block->first_column % 2 || block->end_column % 2);
    if (columns < set->lanes || splits_byte) {
        set->below(block);
        return;
    }
    struct bag_tile_task task BAG_UNSET;
    describe(block, set, &task);
    bag_tile_fn *pool = choose(&task, set);
    if (block->is_first && !task.fetch.near && !prefetched_early(args, task.row_bytes))
        prefetch_first_rows(&task, set);
    pool(&task);
}

/* ---- projection ------------------------------------------------------------------------------ */

void bag_project(const struct bag_projection *projection, const float *pooled, size_t count,
                 float *product)
{
    size_t columns = projection->columns;
    if (count == 0 || columns == 0)
        return;
    if (!projection->bias)
        memset(product, 0, count * columns * sizeof *product);
    for (size_t i = 0; projection->bias && i < count; i++)
        memcpy(product + i * columns, projection->bias, columns * sizeof *product);
    if (projection->rows > 0)
        projection->gemm(count, columns, projection->rows, pooled, projection->matrix, product);
}

void bag_project_store(const float *product, size_t count, size_t columns, enum bag_dtype dtype,
                       char *out, size_t stride)
{
    for (size_t i = 0; i < count; i++)
        bag_elements_encode(product + i * columns, columns, dtype, out + i * stride);
}
