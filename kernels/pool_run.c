/* Plans, and pooling a range of the result. It is split into blocks of bags, one kernel call each;
 * a block's columns are split into tiles by what is decided once per block, not once per row. */
#include "pool_block.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#define LINE_BYTES 64

/* Results that are streamed are first pooled here, in the nearest cache. */
#define STAGE_BYTES 16384

/* ---- plans ----------------------------------------------------------------------------------- */

/* How far ahead rows are prefetched; measured with tests/bench/kernels. */
#define FETCH_NEAR_AHEAD_BYTES 4096
#define FETCH_NEAR_AHEAD_CODES 1536 /* of quantised rows, */
#define FETCH_NEAR_AHEAD_ROWS  32   /* and the most of them */

static size_t clamp(size_t value, size_t low, size_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* The largest table whose rows are not prefetched. Widening takes so many instructions that few
 * rows are loaded at once, but for the shortest. */
static size_t unfetched_bytes(const struct bag_table *table, size_t row_bytes)
{
    bool is_plain = table->row_format == BAG_ROWS_PLAIN;
    if (is_plain && bag_dtypes[table->dtype].bytes > 2)
        return 2 * bag_caches.second;
    return is_plain && row_bytes <= LINE_BYTES / 2 ? bag_caches.second : bag_caches.second / 4;
}

/* The largest one that other rows leave in the third cache. */
static size_t near_bytes(void)
{
    return bag_caches.third / 4 * 3;
}

/* Whether a row may lie in one more line than its bytes fill. */
static bool straddles(const struct bag_table *table, size_t row_bytes)
{
    bool divides = row_bytes > 0 && (row_bytes % LINE_BYTES == 0 || LINE_BYTES % row_bytes == 0);
    return !divides || (uintptr_t)table->rows % LINE_BYTES;
}

/* As many rows as are summed while one is loaded: codes take as long whatever their width. */
static size_t rows_ahead(const struct bag_table *table, size_t row_bytes, bool is_near)
{
    size_t elements = table->row_elements ? table->row_elements : 1;
    size_t codes = clamp(FETCH_NEAR_AHEAD_CODES / elements, 1, FETCH_NEAR_AHEAD_ROWS);
    bool quantised = table->row_format != BAG_ROWS_PLAIN;
    return is_near && quantised ? codes : FETCH_NEAR_AHEAD_BYTES / (row_bytes ? row_bytes : 1);
}

static struct bag_row_walk walk_of(const struct bag_table *table)
{
    const struct bag_row_layout *layout = &bag_row_layouts[table->row_format];
    const struct bag_row_places places = bag_row_places(table);
    size_t table_bytes = (size_t)table->num_rows * places.bytes;
    return (struct bag_row_walk){
        .row_bytes = places.bytes,
        .codes_at = places.codes_at,
        .params_at = places.params_at,
        .ahead = rows_ahead(table, places.bytes, table_bytes <= near_bytes()),
        .kind = (uint8_t)bag_row_kind(table),
        .is_far = table_bytes > unfetched_bytes(table, places.bytes),
        .is_near = table_bytes <= near_bytes(),
        .straddles = straddles(table, places.bytes),
        .has_params = layout->num_params > 0,
        .half_params = layout->param_dtype == BAG_F16,
    };
}

void bag_pool_prepare(const struct bag_table *table, const struct bag_rules *rules,
                      struct bag_pool_plan *plan)
{
    plan->rules = *rules;
    plan->args = (struct bag_pool_args){
        .table = *table,
        .walk = walk_of(table),
        .reduction = rules->reduction,
        .output_dtype = rules->output_dtype,
        .weights_dtype = table->dtype,
        .default_row = rules->keyed ? -1 : rules->default_index,
        .padding_row = -1,
        .skip_outside =
            !rules->keyed && (rules->missing == BAG_MISSING_SKIP || rules->prune_invalid),
        .prunes = rules->prune_invalid,
        .keyed = rules->keyed,
        .element_bytes = bag_dtypes[rules->output_dtype].bytes,
        .divides = rules->reduction == BAG_MEAN || rules->reduction == BAG_SQRTN,
    };
    if (rules->has_padding_idx && !rules->keyed)
        plan->args.padding_row =
            rules->padding_idx < 0 ? rules->padding_idx + table->num_rows : rules->padding_idx;
}

void bag_pool_widen(struct bag_pool_args *args)
{
    args->output_dtype = BAG_F32;
    args->element_bytes = bag_dtypes[BAG_F32].bytes;
    args->bag_stride = args->table.row_elements * args->element_bytes;
    args->result_bytes = args->num_bags * args->bag_stride;
}

/* ---- prefetching ----------------------------------------------------------------------------- */

/* The most indices of a call whose rows are prefetched before it runs, and the longest rows: more
 * of them gain nothing. A call that is alone gains where the table is as large as so many
 * second caches, and loses by more bytes than these, unless the table has so many rows. */
#define EARLY_INDICES      32
#define EARLY_ROW_BYTES    512
#define EARLY_ALONE_BYTES  3072
#define EARLY_ALONE_ROWS   (1 << 16)
#define EARLY_ALONE_CACHES 2

static bool prefetched_early(const struct bag_pool_args *args)
{
    return args->indices.count <= EARLY_INDICES && args->walk.row_bytes <= EARLY_ROW_BYTES;
}

static bool gains_alone(const struct bag_pool_args *args)
{
    size_t row_bytes = args->walk.row_bytes;
    return (size_t)args->table.num_rows * row_bytes > EARLY_ALONE_CACHES * bag_caches.second &&
           (args->indices.count * row_bytes <= EARLY_ALONE_BYTES ||
            args->table.num_rows >= EARLY_ALONE_ROWS);
}

/* Other rows than those of the table do no harm: these are hints. */
void bag_pool_prefetch(const struct bag_pool_args *args, bool alone)
{
    const size_t row_bytes = args->walk.row_bytes;
    if (!args->walk.is_far || !prefetched_early(args) || (alone && !gains_alone(args)))
        return;
    for (size_t i = 0; i < args->indices.count; i++) {
        uintptr_t id = (uintptr_t)bag_id_at(&args->indices, i);
        uintptr_t row = (uintptr_t)args->table.rows + id * row_bytes;
        bag_fetch_lines(2, (const char *)row, row_bytes);
        if (args->walk.straddles)
            bag_fetch_line(2, (const char *)(row + row_bytes - 1));
    }
}

/* `far` is how many times as far ahead as for near tables the rows of others are prefetched. */
BAG_LANE struct bag_fetch fetch_for(const struct bag_block *block, size_t far)
{
    const struct bag_row_walk *walk = &block->args->walk;
    struct bag_fetch fetch = {.near = walk->is_near, .straddles = walk->straddles};
    if (!walk->is_far)
        return fetch;
    fetch.ahead = clamp(walk->is_near ? walk->ahead : walk->ahead * far, 12, 64);
    fetch.end = block->end_entry > fetch.ahead ? block->end_entry - fetch.ahead : 0;
    return fetch;
}

/* ---- blocks into tiles ----------------------------------------------------------------------- */

BAG_LANE enum bag_mode mode_of(const struct bag_pool_args *args)
{
    if (args->reduction == BAG_MAX || !bag_keeps_all(args) || args->table.num_rows > UINT32_MAX)
        return BAG_MODE_GENERAL;
    return args->weights ? BAG_MODE_WEIGHTED : BAG_MODE_PLAIN;
}

/* Rows of f16 and bf16 in memory lose by wide tiles where bags are long. */
BAG_LANE bool wide_pays(const struct bag_block *block)
{
    const uint8_t kind = block->args->walk.kind;
    return block->fetch.near || kind == BAG_KIND_OF_F32 || kind == BAG_KIND_OF_INT8;
}

/* Chooses the instances and splits the columns into tiles, as few and as narrow as can be. */
BAG_LANE bag_block_fn *choose(struct bag_block *block, const struct bag_tile_set *set,
                              bag_singles_fn **singles)
{
    enum bag_mode mode = mode_of(block->args);
    size_t columns = block->end_column - block->first_column;
    size_t vectors = columns < set->lanes ? 0 : (columns + set->lanes - 1) >> set->lane_shift;
    block->num_tiles = 1;
    if (vectors <= BAG_TILE_VECTORS) {
        if (mode == BAG_MODE_PLAIN || !block->args->divides)
            *singles = set->singles[mode][vectors];
        if (set->whole[mode][vectors])
            return set->whole[mode][vectors];
        if (wide_pays(block) && set->wide[mode][vectors])
            return set->wide[mode][vectors];
    }
    block->num_tiles = (vectors + set->largest_tile - 1) / set->largest_tile;
    size_t tile_vectors = (vectors + block->num_tiles - 1) / block->num_tiles;
    while (!set->split[mode][tile_vectors])
        tile_vectors++;
    return set->split[mode][tile_vectors];
}

/* Prefetches the first rows of a range, which no earlier entry has prefetched; for tables beyond
 * the near caches only, where it gains. Inlined, as GCC drops calls of a function that only
 * prefetches: it takes it for one without effects. */
BAG_LANE void prefetch_first_rows(const struct bag_block *block, const struct bag_tile_set *set)
{
    const struct bag_row_walk *walk = &block->args->walk;
    size_t entry = block->bounds[0], left = block->end_entry - entry;
    size_t end = entry + (left < block->fetch.ahead ? left : block->fetch.ahead);
    size_t last_byte = walk->codes_at + bag_last_byte(block, set->bits);
    for (; entry < end; entry++) {
        uintptr_t id = (uintptr_t)bag_id_at(&block->args->indices, entry);
        uintptr_t row = (uintptr_t)block->args->table.rows + id * walk->row_bytes;
        uintptr_t from = row + block->first_column * set->bits / 8, last = row + last_byte;
        bag_fetch_lines(2, (const char *)from, last - from + 1);
        if (block->fetch.straddles)
            bag_fetch_line(2, (const char *)last);
    }
}

/* The instances of the loop that take the block's columns; NULL: the plain C kernel does. */
BAG_LANE const struct bag_tile_set *set_for(const struct bag_block *block)
{
    const struct bag_kernels *kernels = bag_kernels_used;
    size_t columns = block->end_column - block->first_column;
    for (; kernels; kernels = kernels->below) {
        const struct bag_tile_set *set = kernels->sets[block->args->walk.kind];
        bool narrow = set && columns < set->lanes;
        bool splits_byte =
            set && set->bits < 8 && (block->first_column % 2 || (block->end_column % 2 && !narrow));
        if (set && (!narrow || set->whole[BAG_MODE_PLAIN][0]) && !splits_byte)
            return set;
    }
    return NULL;
}

/* Prepares what all blocks of a range share, and finds the kernel that pools them, and the one for
 * bags of one entry alone; NULL: there is none. */
BAG_LANE bag_block_fn *begin(struct bag_block *block, bag_singles_fn **singles)
{
    const struct bag_tile_set *set = set_for(block);
    if (!set)
        return bag_ref_block;
    block->fetch = fetch_for(block, set->far);
    if (!block->fetch.near && !prefetched_early(block->args))
        prefetch_first_rows(block, set);
    return choose(block, set, singles);
}

/* ---- results past the caches ----------------------------------------------------------------- */

/* Past the caches where the processor can. `to` is aligned to a line. */
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

/* Orders what was streamed before what the thread writes next. */
static void end_streaming(void)
{
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

/* Writes `bytes` past the caches, but for the ends that are not whole lines. */
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

/* A user's features come once for each candidate: bags that are like the one before them are pooled
 * once, and their results copied. It is tried where bags have so many entries, and bytes of rows
 * where these are in the near caches, and where most of the first bags of a block repeat: for less,
 * copying takes as long as pooling. */
#define EQUAL_LEAST_ENTRIES 10
#define EQUAL_LEAST_BYTES   2048
#define EQUAL_FIRST_BAGS    8
#define EQUAL_FETCHED_ROWS  32

/* Whether a bag of the block has the entries of the one before it, with their weights. */
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
    const struct bag_row_walk *walk = &block->args->walk;
    size_t last = block->num_bags <= EQUAL_FIRST_BAGS ? block->num_bags - 1 : EQUAL_FIRST_BAGS;
    size_t entries = block->bounds[block->num_bags] - block->bounds[0], equal = 0;
    if (entries < block->num_bags * EQUAL_LEAST_ENTRIES ||
        (!walk->is_far && entries * walk->row_bytes < block->num_bags * EQUAL_LEAST_BYTES))
        return false;
    for (size_t bag = 1; bag <= last; bag++)
        equal += repeats(block, bag);
    return equal > last / 2;
}

/* Prefetches the first rows of a bag that comes after repeated ones: loops have prefetched those.
 */
BAG_LANE void fetch_bag(const struct bag_block *block, size_t bag)
{
    const struct bag_row_walk *walk = &block->args->walk;
    if (bag >= block->num_bags || !walk->is_far)
        return;
    size_t entry = block->bounds[bag], end = block->bounds[bag + 1];
    for (size_t left = EQUAL_FETCHED_ROWS; entry < end && left > 0; entry++, left--) {
        uintptr_t id = (uintptr_t)bag_id_at(&block->args->indices, entry);
        uintptr_t row = (uintptr_t)block->args->table.rows + id * walk->row_bytes;
        bag_fetch_lines(2, (const char *)row, walk->row_bytes);
    }
}

/* Copies the result of the bag before `first` to those of [first, end). */
static void copy_result(const struct bag_block *block, size_t first, size_t end)
{
    const struct bag_pool_args *args = block->args;
    size_t bytes = (block->end_column - block->first_column) * args->element_bytes;
    char *to = block->out + first * args->bag_stride + block->first_column * args->element_bytes;
    const char *from = to - args->bag_stride;
    for (size_t bag = first; bag < end; bag++, to += args->bag_stride)
        memcpy(to, from, bytes);
}

/* Pools runs of bags that differ from the one before them, and copies the results of others. */
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
        struct bag_block part = *block;
        part.num_bags = end - bag;
        part.bounds += bag;
        part.out += bag * block->args->bag_stride;
        if (next > end)
            fetch_bag(block, next);
        pool_block(&part);
        copy_result(block, end, next);
        bag = next;
    }
}

/* ---- ranges into blocks ---------------------------------------------------------------------- */

/* Pools blocks of up to `most_bags`. With a `stage` they are pooled there, and streamed from it. */
BAG_LANE void run_blocks(const struct bag_pool_args *args, const struct bag_range *range,
                         size_t most_bags, char *stage, char *out)
{
    size_t bounds[BAG_BLOCK_BAGS + 1] BAG_UNSET;
    struct bag_block block BAG_UNSET;
    bag_block_fn *pool_block = NULL;
    bag_singles_fn *singles = NULL;
    size_t hint = 0;
    if (range->first_column >= range->end_column)
        return;
    block.args = args;
    block.bounds = bounds;
    block.first_column = range->first_column;
    block.end_column = range->end_column;
    for (size_t bag = range->first_bag; bag < range->end_bag; bag += block.num_bags) {
        size_t left = range->end_bag - bag;
        char *to = out + bag * args->bag_stride;
        block.num_bags = left < most_bags ? left : most_bags;
        block.out = stage ? stage : to;
        bag_pool_bounds(args, bag, bag + block.num_bags, &hint, bounds);
        if (!pool_block) {
            block.end_entry =
                left <= most_bags ? bounds[left] : bag_pool_first_entry(args, range->end_bag);
            pool_block = begin(&block, &singles);
        }
        bool are_single = singles && bounds[block.num_bags] - bounds[0] == block.num_bags;
        if (has_equal_bags(&block))
            pool_differing(&block, pool_block);
        else if (!are_single || !singles(&block))
            pool_block(&block);
        if (stage)
            stream(to, stage, block.num_bags * args->bag_stride);
    }
}

/* Whether the range is one piece of memory, of bags that fit the stage. */
static bool can_stream(const struct bag_pool_args *args, const struct bag_range *range)
{
    size_t bag_bytes = args->table.row_elements * args->element_bytes;
    return args->bag_stride == bag_bytes && bag_bytes > 0 && bag_bytes <= STAGE_BYTES &&
           range->first_column == 0 && range->end_column == args->table.row_elements;
}

static __attribute__((noinline)) void run_streamed(const struct bag_pool_args *args,
                                                   const struct bag_range *range, char *out)
{
    _Alignas(LINE_BYTES) char stage[STAGE_BYTES] BAG_UNSET;
    size_t most_bags = STAGE_BYTES / args->bag_stride;
    run_blocks(args, range, most_bags < BAG_BLOCK_BAGS ? most_bags : BAG_BLOCK_BAGS, stage, out);
    end_streaming();
}

void bag_pool_range(const struct bag_pool_args *args, const struct bag_range *range, void *out)
{
    if (args->streams && can_stream(args, range))
        run_streamed(args, range, out);
    else
        run_blocks(args, range, BAG_BLOCK_BAGS, NULL, out);
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
