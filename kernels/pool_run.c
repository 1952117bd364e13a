/* Pools a range of the result. Splits it into blocks of bags and calls a kernel for each block. */
#include "pool_block.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#define LINE_BYTES 64

/* The size of the buffer in L1 in which results are pooled before they are streamed. */
#define STAGE_BYTES 16384

/* ---- prefetching ----------------------------------------------------------------------------- */

/* Prefetches the rows of the entries [first, end). Rows outside the table do no harm, because these
 * are hints. Inlined, because GCC drops calls of a function that only prefetches. */
BAG_LANE void prefetch_rows(const struct bag_pool_args *args, size_t first, size_t end)
{
    const size_t row_bytes = args->walk->row_bytes;
    for (; first < end; first++) {
        uintptr_t id = (uintptr_t)bag_id_at(&args->indices, first);
        uintptr_t row = (uintptr_t)args->table.rows + id * row_bytes;
        bag_fetch_lines(2, (const char *)row, row_bytes);
        if (args->walk->straddles)
            bag_fetch_line(2, (const char *)(row + row_bytes - 1));
    }
}

void bag_pool_prefetch_rows(const struct bag_pool_args *args)
{
    prefetch_rows(args, 0, args->indices.count);
}

/* ---- results past the caches ----------------------------------------------------------------- */

/* Writes a cache line past the caches if the processor supports that. `to` is aligned to a line. */
static void stream_line(char *to, const char *from)
{
#if defined(__x86_64__)
    const __m128i *parts = (const __m128i *)(const void *)from;
    for (int i = 0; i < 4; i++)
        _mm_stream_si128((__m128i *)(void *)to + i, _mm_loadu_si128(parts + i));
#else
    memcpy(to, from, LINE_BYTES);
#endif
}

/* Orders the streamed bytes before later writes of the thread. */
static void end_streaming(void)
{
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

/* Writes `bytes` past the caches, except for partial lines at both ends. */
static void stream(char *to, const char *from, size_t bytes)
{
    size_t first = -(uintptr_t)to % LINE_BYTES;
    first = first < bytes ? first : bytes;
    memcpy(to, from, first);
    size_t end = first + (bytes - first) / LINE_BYTES * LINE_BYTES;
    for (size_t i = first; i < end; i += LINE_BYTES)
        stream_line(to + i, from + i);
    memcpy(to + end, from + end, bytes - end);
}

/* ---- equal bags ------------------------------------------------------------------------------ */

/* Equal bags. A user's features are repeated for each candidate. A bag that equals the one before
 * it is not pooled again; the result is copied. This is tried for bags with at least this number of
 * entries, and of bytes if the rows are in the near caches, and only if most of the first bags of a
 * block repeat. Otherwise copying takes as long as pooling. */
#define EQUAL_LEAST_ENTRIES 10
#define EQUAL_LEAST_BYTES   2048
#define EQUAL_FIRST_BAGS    8
#define EQUAL_FETCHED_ROWS  32

/* Returns whether a bag of the block has the entries and weights of the one before it. */
static bool repeats(const struct bag_block *block, size_t bag)
{
    const struct bag_pool_args *args = block->args;
    const size_t *bounds = block->bounds + bag;
    size_t count = bounds[0] - bounds[-1];
    if (bounds[1] - bounds[0] != count || count < EQUAL_LEAST_ENTRIES ||
        bag_id_at(&args->indices, bounds[0]) != bag_id_at(&args->indices, bounds[-1]))
        return false;
    size_t id_bytes = args->indices.wide ? sizeof(int64_t) : sizeof(int32_t);
    const char *ids = args->indices.data, *weights = args->weights;
    size_t weight_bytes = bag_dtypes[args->weights_dtype].bytes;
    return memcmp(ids + bounds[0] * id_bytes, ids + bounds[-1] * id_bytes, count * id_bytes) == 0 &&
           (!weights || memcmp(weights + bounds[0] * weight_bytes,
                               weights + bounds[-1] * weight_bytes, count * weight_bytes) == 0);
}

static bool has_equal_bags(const struct bag_block *block)
{
    const struct bag_row_walk *walk = block->args->walk;
    size_t last = block->num_bags <= EQUAL_FIRST_BAGS ? block->num_bags - 1 : EQUAL_FIRST_BAGS;
    size_t entries = block->bounds[block->num_bags] - block->bounds[0], equal = 0;
    if (entries < block->num_bags * EQUAL_LEAST_ENTRIES ||
        (!walk->is_far && entries * walk->row_bytes < block->num_bags * EQUAL_LEAST_BYTES))
        return false;
    for (size_t bag = 1; bag <= last; bag++)
        equal += repeats(block, bag);
    return equal > last / 2;
}

/* Prefetches the first rows of a bag after repeated ones. The loops prefetched the rows of the
 * latter. */
BAG_LANE void fetch_bag(const struct bag_block *block, size_t bag)
{
    const struct bag_row_walk *walk = block->args->walk;
    if (bag >= block->num_bags || !walk->is_far)
        return;
    size_t first = block->bounds[bag], count = block->bounds[bag + 1] - first;
    prefetch_rows(block->args, first,
                  first + (count < EQUAL_FETCHED_ROWS ? count : EQUAL_FETCHED_ROWS));
}

/* Copies the result of the bag before `first` to the bags [first, end). */
static void copy_result(const struct bag_block *block, size_t first, size_t end)
{
    const struct bag_pool_args *args = block->args;
    size_t bytes = (block->end_column - block->first_column) * args->element_bytes;
    char *to = block->out + first * args->bag_stride + block->first_column * args->element_bytes;
    const char *from = to - args->bag_stride;
    for (size_t bag = first; bag < end; bag++, to += args->bag_stride)
        memcpy(to, from, bytes);
}

/* Returns the block's bags from `bag` on. */
static struct bag_block bags_from(const struct bag_block *block, size_t bag)
{
    struct bag_block rest = *block;
    rest.num_bags -= bag;
    rest.bounds += bag;
    rest.out += bag * block->args->bag_stride;
    return rest;
}

/* Pools runs of bags that differ from the one before them, and copies the results of the others. */
static __attribute__((noinline)) void pool_differing(const struct bag_block *block,
                                                     bag_block_fn *pool_block)
{
    for (size_t bag = 0; bag < block->num_bags;) {
        size_t end = bag + 1;
        while (end < block->num_bags && !repeats(block, end))
            end++;
        size_t next = end;
        while (next < block->num_bags && repeats(block, next))
            next++;
        struct bag_block part = bags_from(block, bag);
        part.num_bags = end - bag;
        if (next > end)
            fetch_bag(block, next);
        pool_block(&part);
        copy_result(block, end, next);
        bag = next;
    }
}

/* ---- blocks without prefetching ------------------------------------------------------------- */

static void pool_near_block(const struct bag_block *block, bag_near_fn *pool_near)
{
    const struct bag_pool_args *args = block->args;
    size_t bag = 0;
    for (;;) {
        const size_t left = pool_near(args, block->bounds + bag, block->num_bags - bag,
                                      block->out + bag * args->bag_stride);
        if (left == 0)
            return;
        bag = block->num_bags - left;
        bag_ref_empty(block, bag++);
    }
}

/* ---- bags of one entry ----------------------------------------------------------------------- */

/* The size of the rows of which some columns are pooled before the others. It amortises the setup
 * of a call, and the rows stay in L1. */
#define TURN_BYTES 16384

/* Pools bags of one entry, `columns` at a time. It begins with the columns beside scale and bias,
 * which are then prefetched, too. Returns false at a bag of another length. */
static bool pool_in_turns(const struct bag_block *block, bag_singles_fn *pool, size_t columns)
{
    const struct bag_row_walk *walk = block->args->walk;
    const size_t num_turns = (block->end_column - block->first_column + columns - 1) / columns;
    const bool forward = walk->has_params && walk->params_at == 0;
    struct bag_block part = *block;
    for (size_t turn = 0; turn < num_turns; turn++) {
        size_t first = block->first_column + columns * (forward ? turn : num_turns - 1 - turn);
        size_t latest = block->end_column - columns;
        part.first_column = first < latest ? first : latest;
        part.end_column = part.first_column + columns;
        part.fetches_params = block->fetches_params && turn == 0;
        if (!pool(&part))
            return false;
    }
    return true;
}

/* Pools bags of one entry and of several tiles, as many at once as TURN_BYTES allows. Returns false
 * at a bag of another length. */
static __attribute__((noinline)) bool pool_long_singles(const struct bag_block *block,
                                                        bag_singles_fn *pool, size_t columns)
{
    const size_t most_bags = 1 + TURN_BYTES / block->args->walk->row_bytes;
    for (size_t bag = 0; bag < block->num_bags; bag += most_bags) {
        struct bag_block some = bags_from(block, bag);
        some.num_bags = some.num_bags < most_bags ? some.num_bags : most_bags;
        if (!pool_in_turns(&some, pool, columns))
            return false;
    }
    return true;
}

/* Pools a block if all bags have one entry and there are kernels for them. Returns false
 * otherwise. */
BAG_LANE bool pool_singles(const struct bag_block *block, const struct bag_kernel_choice *choice,
                           enum bag_mode mode)
{
    const size_t columns = choice->singles_columns[mode];
    if (!choice->singles[mode] ||
        block->bounds[block->num_bags] - block->bounds[0] != block->num_bags)
        return false;
    if (columns == block->end_column - block->first_column)
        return choice->singles[mode](block);
    return pool_long_singles(block, choice->singles[mode], columns);
}

/* ---- ranges into blocks ---------------------------------------------------------------------- */

BAG_LANE enum bag_mode mode_of(const struct bag_pool_args *args)
{
    if (args->is_general || !bag_keeps_all(args))
        return BAG_MODE_GENERAL;
    return args->weights ? BAG_MODE_WEIGHTED : BAG_MODE_PLAIN;
}

BAG_LANE bool has_all_columns(const struct bag_pool_args *args, const struct bag_range *range)
{
    return range->first_column == 0 && range->end_column == args->table.row_elements;
}

/* Returns the entry of a range of a far table up to which there is a row to prefetch. The loop does
 * not prefetch the first rows, so those of tables beyond the near caches are prefetched here. */
static __attribute__((noinline)) size_t begin_fetching(const struct bag_pool_args *args,
                                                       const struct bag_range *range)
{
    const size_t ahead = args->walk->ahead;
    bool are_prefetched = args->walk->is_near || args->indices.count <= args->walk->early;
    if (args->indices.count <= args->walk->unfetched ||
        args->indices.count < args->walk->fetched_bag * args->num_bags)
        return 0;
    size_t first = bag_pool_first_entry(args, range->first_bag);
    size_t end = bag_pool_first_entry(args, range->end_bag);
    if (!are_prefetched && has_all_columns(args, range))
        prefetch_rows(args, first, end - first < ahead ? end : first + ahead);
    return end > ahead ? end - ahead : 0;
}

/* Pools blocks of up to `most_bags`. With a `stage`, pools them there and streams the results from
 * it. */
BAG_LANE void run_blocks(const struct bag_pool_args *args, const struct bag_range *range,
                         size_t most_bags, char *stage, char *out)
{
    size_t bounds[BAG_BLOCK_BAGS + 1] BAG_UNSET;
    struct bag_block block BAG_UNSET;
    struct bag_kernel_choice part BAG_UNSET;
    const struct bag_kernel_choice *choice = &args->walk->whole;
    const enum bag_mode mode = mode_of(args);
    size_t hint = 0;
    if (range->first_bag >= range->end_bag || range->first_column >= range->end_column)
        return;
    if (!has_all_columns(args, range)) {
        part = bag_choose_kernels(args, range->first_column, range->end_column);
        choice = &part;
    }
    block.args = args;
    block.bounds = bounds;
    block.first_column = range->first_column;
    block.end_column = range->end_column;
    block.fetches_params = true;
    block.fetch_end = args->walk->is_far ? begin_fetching(args, range) : 0;
    size_t bag = range->first_bag;
    do {
        size_t left = range->end_bag - bag;
        char *to = out + bag * args->bag_stride;
        block.num_bags = left < most_bags ? left : most_bags;
        block.out = stage ? stage : to;
        bag_pool_bounds(args, bag, bag + block.num_bags, &hint, bounds);
        if (block.num_bags > 1 && has_equal_bags(&block))
            pool_differing(&block, choice->pool[mode]);
        else if (pool_singles(&block, choice, mode))
            ;
        else if (block.fetch_end == 0 && choice->near[mode])
            pool_near_block(&block, choice->near[mode]);
        else
            choice->pool[mode](&block);
        if (stage)
            stream(to, stage, block.num_bags * args->bag_stride);
        bag += block.num_bags;
    } while (bag < range->end_bag);
}

/* Returns whether the range is contiguous and its bags fit into the stage. */
static bool can_stream(const struct bag_pool_args *args, const struct bag_range *range)
{
    size_t bag_bytes = args->table.row_elements * args->element_bytes;
    return args->bag_stride == bag_bytes && bag_bytes > 0 && bag_bytes <= STAGE_BYTES &&
           has_all_columns(args, range);
}

static __attribute__((noinline)) void run_streamed(const struct bag_pool_args *args,
                                                   const struct bag_range *range, char *out)
{
    _Alignas(LINE_BYTES) char stage[STAGE_BYTES] BAG_UNSET;
    size_t most_bags = STAGE_BYTES / args->bag_stride;
    run_blocks(args, range, most_bags < BAG_BLOCK_BAGS ? most_bags : BAG_BLOCK_BAGS, stage, out);
    end_streaming();
}

static __attribute__((noinline)) void run_range(const struct bag_pool_args *args,
                                                const struct bag_range *range, char *out)
{
    if (args->streams && can_stream(args, range))
        run_streamed(args, range, out);
    else
        run_blocks(args, range, BAG_BLOCK_BAGS, NULL, out);
}

/* Pools one bag of all columns without prefetching, with the kernel for any bag. */
static __attribute__((noinline)) void
run_any_bag(const struct bag_pool_args *args, const size_t *bounds, enum bag_mode mode, char *out)
{
    const struct bag_block block = {.args = args,
                                    .num_bags = 1,
                                    .bounds = bounds,
                                    .end_column = args->table.row_elements,
                                    .fetches_params = true,
                                    .out = out};
    args->walk->whole.pool[mode](&block);
}

/* Pools one bag of all columns without prefetching. The setup for many bags would take longer than
 * the bag. */
BAG_LANE void run_one_bag(const struct bag_pool_args *args, size_t bag, enum bag_mode mode,
                          char *out)
{
    bag_near_fn *const pool_near = args->walk->whole.near[mode];
    size_t bounds[2] BAG_UNSET;
    bounds[0] = bag_offset_at(args, bag);
    bounds[1] = bag_offset_at(args, bag + 1);
    out += bag * args->bag_stride;
    if (pool_near && bounds[0] < bounds[1])
        pool_near(args, bounds, 1, out);
    else
        run_any_bag(args, bounds, mode, out);
}

/* ---- rows that are not pooled ---------------------------------------------------------------- */

/* Returns whether the result has the elements of the table as they are stored. */
static bool copies_rows(const struct bag_pool_args *args)
{
    return args->table.row_format == BAG_ROWS_PLAIN && args->output_dtype == args->table.dtype;
}

/* Copies the row of every entry, and writes zeros for entries that do not count. */
static void copy_rows(const struct bag_pool_args *args, const struct bag_range *range, char *out)
{
    const size_t bytes = (range->end_column - range->first_column) * args->element_bytes;
    const size_t at = range->first_column * args->element_bytes;
    const size_t ahead = args->walk->ahead, row_bytes = args->walk->row_bytes;
    const bool streams = args->streams && can_stream(args, range);
    const bool keeps_all = bag_keeps_all(args);
    const char *rows = (const char *)args->table.rows + at;
    const size_t fetch_end = bag_fetch_end(args, range->end_bag);
    for (size_t entry = range->first_bag; entry < range->end_bag; entry++) {
        const int64_t row = bag_id_at(&args->indices, entry);
        char *to = out + entry * args->bag_stride + at;
        if (entry < fetch_end)
            bag_fetch_row(args, entry + ahead, rows, row_bytes, bytes);
        if (!keeps_all && !bag_keeps(args, entry, row))
            memset(to, 0, bytes);
        else if (streams)
            stream(to, rows + (size_t)row * row_bytes, bytes);
        else
            memcpy(to, rows + (size_t)row * row_bytes, bytes);
    }
    if (streams)
        end_streaming();
}

/* Decodes or rounds the row of every entry. It computes the maximum of one value, which is that
 * value with its sign. */
static void convert_rows(const struct bag_pool_args *args, const struct bag_range *range, char *out)
{
    struct bag_pool_args largest = *args;
    largest.reduction = BAG_MAX;
    largest.is_general = true;
    run_range(&largest, range, out);
}

void bag_pool_range(const struct bag_pool_args *args, const struct bag_range *range, void *out)
{
    if (args->reduction == BAG_NONE)
        (copies_rows(args) ? copy_rows : convert_rows)(args, range, out);
    else if (range->first_bag + 1 == range->end_bag && args->form == BAG_FORM_OFFSETS &&
             range->end_column > 0 && has_all_columns(args, range) && !args->streams &&
             args->indices.count <= args->walk->unfetched)
        run_one_bag(args, range->first_bag, mode_of(args), out);
    else
        run_range(args, range, out);
}
