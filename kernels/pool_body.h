/* The one loop of all SIMD kernels. It is included once per element width, after
 *
 *   #define BODY       f32v or f64v, the prefix of the vocabulary
 *   #define BODY_REAL  float or double
 *   #define BODY_DTYPE BAG_F32 or BAG_F64
 *   #define BODY_DIVISOR  the function that finds a bag's divisor
 *
 * and leaves BODY_pool_bags behind. A tile is a run of columns whose sums stay
 * in registers over a whole bag; the number of its vectors is a constant of each instance. The last
 * vector of a tile ends where the tile ends, overlapping the one before where it must: columns are
 * independent, so what is computed twice has the same bits.
 *
 * Must not know: instruction sets. */
#define BODY_JOIN_(a, b) a##_##b
#define BODY_JOIN(a, b)  BODY_JOIN_(a, b)
#define V(name)          BODY_JOIN(BODY, name)

/* Adds one row to the sums, or takes the larger. */
BAG_LANE void V(take_row)(const struct bag_tile_task *task, enum bag_row_kind kind,
                          enum bag_mode mode, int vectors, size_t entry, int64_t id, bool is_first,
                          BODY *sums)
{
    const struct bag_pool *pool = task->pool;
    struct V(row) row =
        V(open)(kind, task->rows + (size_t)id * task->row_bytes, pool->table.row_elements);
    bool weighted = mode == BAG_MODE_WEIGHTED || (mode == BAG_MODE_GENERAL && pool->weights);
    BODY weight = weighted ? V(all)(V(weight)(kind, pool, entry)) : V(zero)();
#pragma GCC unroll 8
    for (int i = 0; i < vectors; i++) {
        bool is_last = i == vectors - 1;
        size_t column = is_last ? task->last_column : task->column + (size_t)i * V(lanes);
        BODY values = V(columns)(kind, &row, column);
        if (mode == BAG_MODE_GENERAL && pool->reduction == BAG_MAX)
            sums[i] = is_first ? values : V(larger)(sums[i], values);
        else if (weighted)
            sums[i] = V(fused)(weight, values, sums[i]);
        else
            sums[i] = V(add)(sums[i], values);
    }
}

/* Pools the entries [first, end). Which entries stay is asked in the general mode only. */
BAG_LANE void V(take_rows)(const struct bag_tile_task *task, enum bag_row_kind kind,
                           enum bag_mode mode, int vectors, size_t first, size_t end, BODY *sums)
{
    const struct bag_fetch fetch = task->fetch;
    const struct bag_ids ids = task->pool->indices;
    const size_t tile_bytes = (size_t)vectors * V(lanes) * bag_kind_bits(kind) / 8;
    size_t fetch_end = fetch.end < end ? fetch.end : end;
    bool is_first = true;
    for (size_t entry = first; entry < end; entry++) {
        int64_t id = bag_id_at(&ids, entry);
        if (entry < fetch_end)
            bag_fetch_row(&fetch, bag_id_at(&ids, entry + fetch.ahead), tile_bytes);
        if (mode == BAG_MODE_GENERAL && !bag_keeps(task->pool, entry, id))
            continue;
        V(take_row)(task, kind, mode, vectors, entry, id, is_first, sums);
        is_first = false;
    }
}

/* Once per bag: not worth a copy in every instance. */
static __attribute__((noinline)) BODY_REAL V(divisor)(const struct bag_pool *pool, size_t first,
                                                      size_t end, size_t kept)
{
    return BODY_DIVISOR(pool, first, end, kept);
}

/* Results of another type than the sums, once per bag and tile. */
static __attribute__((noinline)) void V(store_narrow)(const BODY *sums, size_t vectors,
                                                      enum bag_dtype dtype, char *out,
                                                      size_t column, size_t last_column)
{
    for (size_t i = 0; i < vectors; i++)
        V(store)(dtype, out, i == vectors - 1 ? last_column : column + i * V(lanes), sums[i]);
}

BAG_LANE void V(divide_all)(BODY *sums, int vectors, BODY_REAL divisor)
{
    BODY by = V(all)(divisor);
#pragma GCC unroll 8
    for (int i = 0; i < vectors; i++)
        sums[i] = divisor == 0 ? V(zero)() : V(divide)(sums[i], by);
}

BAG_LANE void V(store_all)(const struct bag_tile_task *task, int vectors, char *out,
                           const BODY *sums)
{
#pragma GCC unroll 8
    for (int i = 0; i < vectors; i++) {
        bool is_last = i == vectors - 1;
        size_t column = is_last ? task->last_column : task->column + (size_t)i * V(lanes);
        V(store)(BODY_DTYPE, out, column, sums[i]);
    }
}

/* Makes a result of the sums of one bag and writes it. */
BAG_LANE void V(finish)(const struct bag_tile_task *task, int vectors, size_t first, size_t end,
                        size_t kept, char *out, BODY *sums)
{
    const struct bag_pool *pool = task->pool;
    if (pool->reduction == BAG_MEAN || pool->reduction == BAG_SQRTN) {
        BODY_REAL divisor = V(divisor)(pool, first, end, kept);
        if (divisor != 1)
            V(divide_all)(sums, vectors, divisor);
    }
    if (pool->output_dtype != BODY_DTYPE) {
        BODY spilled[BAG_TILE_VECTORS] BAG_UNSET;
#pragma GCC unroll 8
        for (int i = 0; i < vectors; i++)
            spilled[i] = sums[i];
        V(store_narrow)
        (spilled, (size_t)vectors, pool->output_dtype, out, task->column, task->last_column);
        return;
    }
    V(store_all)(task, vectors, out, sums);
}

/* Bags of one entry are rows on their way through: nothing is summed, divided or converted, and
 * few instructions let many rows be under way at once. Returns the first bag that is another. */
BAG_LANE size_t V(pool_singles)(const struct bag_tile_task *task, enum bag_row_kind kind,
                                enum bag_mode mode, int vectors, size_t bag)
{
    const struct bag_pool *pool = task->pool;
    const struct bag_fetch fetch = task->fetch;
    const struct bag_ids ids = pool->indices;
    const size_t *borders = task->block->borders, end_bag = task->end_bag;
    const size_t tile_bytes = (size_t)vectors * V(lanes) * bag_kind_bits(kind) / 8;
    char *out = task->block->out + bag * task->out_bytes;
    for (; bag < end_bag && borders[bag + 1] - borders[bag] == 1; bag++) {
        size_t entry = borders[bag];
        BODY sums[BAG_TILE_VECTORS] BAG_UNSET;
        if (entry < fetch.end)
            bag_fetch_row(&fetch, bag_id_at(&ids, entry + fetch.ahead), tile_bytes);
#pragma GCC unroll 8
        for (int i = 0; i < vectors; i++)
            sums[i] = V(zero)();
        V(take_row)(task, kind, mode, vectors, entry, bag_id_at(&ids, entry), true, sums);
        V(store_all)(task, vectors, out, sums);
        out += task->out_bytes;
    }
    return bag;
}

BAG_LANE void V(pool_bags)(const struct bag_tile_task *given, enum bag_row_kind kind,
                           enum bag_mode mode, int vectors)
{
    /* A copy that nobody else sees: writing results cannot change it, so it stays in registers. */
    const struct bag_tile_task copy = *given, *task = &copy;
    const struct bag_block *block = task->block;
    const size_t *borders = block->borders;
    for (size_t bag = task->first_bag; bag < task->end_bag; bag++) {
        if (mode != BAG_MODE_GENERAL && task->singles_pass)
            bag = V(pool_singles)(task, kind, mode, vectors, bag);
        if (bag == task->end_bag)
            return;
        size_t first = borders[bag], end = borders[bag + 1];
        size_t kept = end - first;
        if (mode == BAG_MODE_GENERAL)
            kept = bag_count_kept(task->pool, first, end);
        if (kept == 0) {
            if (task->is_first)
                bag_ref_empty(block, bag);
            continue;
        }
        BODY sums[BAG_TILE_VECTORS] BAG_UNSET;
#pragma GCC unroll 8
        for (int i = 0; i < vectors; i++)
            sums[i] = V(zero)();
        V(take_rows)(task, kind, mode, vectors, first, end, sums);
        V(finish)(task, vectors, first, end, kept, block->out + bag * task->out_bytes, sums);
    }
}

#undef V
#undef BODY_JOIN
#undef BODY_JOIN_
#undef BODY
#undef BODY_REAL
#undef BODY_DTYPE
#undef BODY_DIVISOR
