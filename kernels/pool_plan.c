/* Makes plans: everything about a call that a table and its rules determine, including the loop.
 * The cache that holds the table determines where its rows are prefetched to, and how far ahead.
 * The figures were measured with tests/bench/kernels. */
#include "pool_loop.h"

#define LINE_BYTES 64

static size_t clamp(size_t value, size_t low, size_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* ---- prefetching ----------------------------------------------------------------------------- */

/* The smallest L1 into which rows of wide elements are prefetched, if the caches hold their table
 * and the instruction set has a loop for it. Rows that are widened are prefetched into every L1.
 * Rows in memory are prefetched so far ahead that they would leave L1 again. */
#define FETCH_LEAST_FIRST ((size_t)48 << 10)

/* Returns where rows are prefetched to. Out-of-order execution hides the latency of the nearest
 * caches, where prefetching only costs time. Widening takes so many instructions that only few rows
 * are loaded at the same time, except for short ones. */
static enum bag_fetch fetch_of(const struct bag_table *table, size_t row_bytes)
{
    const size_t table_bytes = (size_t)table->num_rows * row_bytes;
    const bool is_plain = table->row_format == BAG_ROWS_PLAIN;
    const bool is_wide = is_plain && bag_dtypes[table->dtype].bytes > 2;
    const size_t second = bag_caches.second;
    const size_t unfetched = is_wide                   ? 2 * second
                             : row_bytes <= LINE_BYTES ? second / 2
                                                       : second / 4;
    if (table_bytes <= unfetched)
        return BAG_FETCH_NONE;
    if (table_bytes > bag_caches.third / 4 * 3)
        return BAG_FETCH_FAR;
    return !is_wide || bag_caches.first >= FETCH_LEAST_FIRST ? BAG_FETCH_FIRST : BAG_FETCH_SECOND;
}

/* How far ahead rows are prefetched. The time for a code does not depend on its width. */
#define AHEAD_BYTES     4096
#define AHEAD_CODES     3072 /* elements of quantised rows, */
#define AHEAD_MOST_CODE 32   /* and the maximum number of such rows */
#define AHEAD_LEAST     12   /* limits for all rows */
#define AHEAD_MOST      64
#define AHEAD_FAR_BYTES 8192 /* rows of far tables: at least so many bytes, */
#define AHEAD_FAR_ROWS  24   /* or this number of rows, */
#define AHEAD_FAR_MOST  40   /* but fewer than the lines that an L2 may wait for, about 48 */

/* Returns how many rows are summed while one is loaded. */
static size_t rows_ahead(const struct bag_table *table, size_t row_bytes, enum bag_fetch fetch)
{
    const size_t bytes = row_bytes ? row_bytes : 1;
    const size_t elements = table->row_elements ? table->row_elements : 1;
    const size_t ahead = AHEAD_BYTES / bytes;
    if (fetch == BAG_FETCH_NONE)
        return SIZE_MAX;
    if (fetch == BAG_FETCH_FAR)
        return clamp(ahead * bag_kernels_used->far,
                     clamp(AHEAD_FAR_BYTES / bytes, AHEAD_LEAST, AHEAD_FAR_ROWS), AHEAD_FAR_MOST);
    if (table->row_format != BAG_ROWS_PLAIN)
        return clamp(AHEAD_CODES / elements, AHEAD_LEAST, AHEAD_MOST_CODE);
    return clamp(ahead, AHEAD_LEAST, AHEAD_MOST);
}

/* Limits for prefetching the rows of a call before it runs: the number of its indices, and the size
 * of a row. Others gain nothing. In the caches only rows of codes gain, because summing them takes
 * so many instructions that few are loaded at the same time. Calls for 10 and 32 other rows in L3
 * take 0.76 to 1.0 of the time without it. */
#define EARLY_INDICES   32
#define EARLY_ROW_BYTES 512

static size_t early_indices(const struct bag_table *table, size_t row_bytes, enum bag_fetch fetch)
{
    const size_t table_bytes = (size_t)table->num_rows * row_bytes;
    const bool has_codes = table->row_format != BAG_ROWS_PLAIN;
    const bool gains = fetch == BAG_FETCH_FAR || (has_codes && table_bytes > 2 * bag_caches.second);
    return gains && row_bytes <= EARLY_ROW_BYTES ? EARLY_INDICES : 0;
}

/* The least number of elements of rows whose short calls are prefetched less far ahead. Narrower
 * rows are summed too fast: calls for 32 of 16 columns in L3 would take up to 1.1 of the time. */
#define SHORT_LEAST_ELEMENTS 32

/* Returns whether short calls prefetch less far ahead. Rows in memory are as far away for them, and
 * rows of codes gain nothing. */
static bool shortens(const struct bag_table *table, enum bag_fetch fetch)
{
    const bool is_near = fetch == BAG_FETCH_FIRST || fetch == BAG_FETCH_SECOND;
    return is_near && table->row_format == BAG_ROWS_PLAIN &&
           table->row_elements >= SHORT_LEAST_ELEMENTS;
}

static struct bag_row_walk walk_of(const struct bag_table *table)
{
    const struct bag_row_layout *layout = &bag_row_layouts[table->row_format];
    const struct bag_row_places places = bag_row_places(table);
    const size_t bytes = places.bytes;
    const enum bag_fetch fetch = fetch_of(table, bytes);
    const bool divides = bytes > 0 && (bytes % LINE_BYTES == 0 || LINE_BYTES % bytes == 0);
    return (struct bag_row_walk){
        .row_bytes = bytes,
        .codes_at = places.codes_at,
        .params_at = places.params_at,
        .ahead = rows_ahead(table, bytes, fetch),
        .shortens = shortens(table, fetch),
        .early = early_indices(table, bytes, fetch),
        .kind = (uint8_t)bag_row_kind(table),
        .fetch = (uint8_t)fetch,
        .straddles = !divides || (uintptr_t)table->rows % LINE_BYTES,
        .has_params = layout->num_params > 0,
        .half_params = layout->param_dtype == BAG_F16,
    };
}

/* ---- loops ----------------------------------------------------------------------------------- */

/* Returns the instances of the loop for these columns, or NULL if only the plain C loop supports
 * them. */
static const struct bag_tile_set *set_for(enum bag_row_kind kind, size_t first_column,
                                          size_t end_column)
{
    size_t columns = end_column - first_column;
    for (const struct bag_kernels *at = bag_kernels_used; at; at = at->below) {
        const struct bag_tile_set *set = at->sets[kind];
        bool narrow = set && columns < set->lanes;
        size_t per_byte = bag_codes_per_byte(kind);
        bool splits_byte = first_column % per_byte != 0 || (end_column % per_byte != 0 && !narrow);
        if (set && (!narrow || set->loops[BAG_MODE_PLAIN][0]) && !splits_byte)
            return set;
    }
    return NULL;
}

/* The cost of a tile beside that of its vectors, in vectors. */
#define TILE_COST 2

/* Wide rows: those of so many columns and more. In memory they are prefetched by three tiles at a
 * time, though at most by so many bytes. Neighbouring lines come from memory together, and the next
 * tile finds its lines in L2. Bags of 400 entries of 512 columns take 0.49 (f64) to 0.88 (f32) of
 * the time, and bags of 5 mostly 0.87 to 1.0. Narrower rows gain nothing. */
#define WIDE_COLUMNS 256
#define WIDE_TILES   3
#define WIDE_BYTES   2048

static bool is_wide(const struct bag_row_walk *walk, size_t columns)
{
    return walk->fetch == BAG_FETCH_FAR && columns >= WIDE_COLUMNS;
}

/* Long rows of f16 and bf16 in memory have the tiles of wide ones: those of so many tiles. */
#define LONG_HALF_TILES 2

/* Returns the number of vectors of the tiles of rows of `columns` columns: those of wide rows, or
 * those that cost the least. The last tile starts earlier if necessary. */
static size_t tile_vectors(const struct bag_row_walk *walk, const struct bag_tile_set *set,
                           bag_loop_fn *const *loops, size_t columns)
{
    const size_t vectors = (columns + set->lanes - 1) / set->lanes;
    const bool is_half = walk->kind == BAG_KIND_OF_F16 || walk->kind == BAG_KIND_OF_BF16;
    const bool is_long_half =
        is_half && walk->fetch == BAG_FETCH_FAR && vectors >= LONG_HALF_TILES * set->wide_vectors;
    const size_t most = is_long_half ? set->wide_vectors : BAG_TILE_VECTORS;
    size_t best = 0, least = SIZE_MAX;
    if (is_wide(walk, columns) && set->wide_vectors > 0 && loops[set->wide_vectors])
        return set->wide_vectors;
    for (size_t width = 1; width <= most && width <= vectors; width++) {
        const size_t cost = (vectors + width - 1) / width * (width + TILE_COST);
        if (loops[width] && cost <= least) {
            least = cost;
            best = width;
        }
    }
    return best;
}

/* Returns how many bytes after a tile of `width` columns are prefetched with it. */
static size_t bytes_beyond(const struct bag_row_walk *walk, size_t width)
{
    const size_t bytes = bag_kind_bytes((enum bag_row_kind)walk->kind, width);
    return clamp(WIDE_TILES * bytes, bytes, WIDE_BYTES) - bytes;
}

/* Sets the positions in a row, relative to the first of these tiles of `width` columns. */
static void set_positions(const struct bag_pool_args *args, size_t width, struct bag_tiles *tiles)
{
    const struct bag_row_walk *walk = args->walk;
    const enum bag_row_kind kind = (enum bag_row_kind)walk->kind;
    const size_t first_byte = walk->codes_at + bag_kind_bytes(kind, tiles->first_column);
    const bool is_behind = walk->params_at > 0;
    const bool has_near_params = is_behind ? tiles->first_column + width == args->table.row_elements
                                           : tiles->first_column == 0;
    tiles->rows = (const char *)args->table.rows + first_byte;
    tiles->params_at = (ptrdiff_t)walk->params_at - (ptrdiff_t)first_byte;
    tiles->last_byte =
        (walk->has_params && is_behind && has_near_params ? walk->row_bytes - first_byte
                                                          : bag_kind_bytes(kind, width)) -
        1;
    tiles->bytes_before = tiles->first_column == 0 ? walk->codes_at : 0;
    tiles->fetches_params = walk->has_params && !has_near_params;
}

struct bag_tiles bag_choose_tiles(const struct bag_pool_args *args, enum bag_mode mode,
                                  size_t first_column, size_t end_column)
{
    const struct bag_row_walk *walk = args->walk;
    const struct bag_tile_set *set =
        set_for((enum bag_row_kind)walk->kind, first_column, end_column);
    struct bag_tiles tiles = {.loop = bag_ref_loop,
                              .row_bytes = walk->row_bytes,
                              .first_column = first_column,
                              .end_column = end_column};
    const size_t columns = end_column - first_column;
    size_t width = columns;
    if (set && columns < set->lanes) {
        tiles.loop = set->loops[mode][0];
    } else if (set) {
        const size_t most = tile_vectors(walk, set, set->loops[mode], columns);
        tiles.loop = set->loops[mode][most];
        if (most * set->lanes < columns)
            width = most * set->lanes;
        tiles.last_vector = width - set->lanes;
    }
    tiles.pool = tiles.loop;
    if (set && walk->fetch == BAG_FETCH_FAR && columns == args->table.row_elements)
        tiles.pool = bag_pool_far;
    tiles.further = columns - width;
    tiles.fetched_beyond = is_wide(walk, columns) ? bytes_beyond(walk, width) : 0;
    set_positions(args, width, &tiles);
    return tiles;
}

/* Returns the type of the weights that the loops for them read. */
static enum bag_dtype usual_weights(const struct bag_pool_args *args)
{
    return args->table.dtype == BAG_F64 ? BAG_F64 : BAG_F32;
}

enum bag_mode bag_mode_of(const struct bag_pool_args *args)
{
    if (args->is_general || !bag_keeps_all(args) ||
        (args->weights && args->weights_dtype != usual_weights(args)))
        return BAG_MODE_GENERAL;
    return args->weights ? BAG_MODE_WEIGHTED : BAG_MODE_PLAIN;
}

/* Chooses the tiles for all columns, and those of usual calls. */
static void set_tiles(struct bag_pool_plan *plan)
{
    const size_t columns = plan->args.table.row_elements;
    struct bag_tiles *whole = plan->walk.whole;
    for (int mode = 0; mode < BAG_MODE_COUNT; mode++)
        whole[mode] = bag_choose_tiles(&plan->args, (enum bag_mode)mode, 0, columns);
    for (int weighted = 0; weighted < 2; weighted++) {
        struct bag_pool_args args = plan->args;
        args.weights = weighted ? &args : NULL; /* not read */
        args.weights_dtype = BAG_F32;
        plan->tiles[weighted] = columns > 0 ? &whole[bag_mode_of(&args)] : NULL;
    }
}

/* ---- plans ----------------------------------------------------------------------------------- */

static void set_padding(struct bag_pool_plan *plan)
{
    const struct bag_rules *rules = &plan->rules;
    if (rules->has_padding_idx && !rules->keyed)
        plan->args.padding_row = rules->padding_idx < 0
                                     ? rules->padding_idx + plan->args.table.num_rows
                                     : rules->padding_idx;
}

/* Returns whether the rules are usual, and sets the size of a result, which does not overflow
 * then. */
static bool is_usual(struct bag_pool_plan *plan)
{
    const struct bag_rules *rules = &plan->rules;
    struct bag_pool_args *args = &plan->args;
    return !rules->keyed && rules->missing == BAG_MISSING_ERROR && !rules->prune_invalid &&
           !rules->require_zero_first_offset && !rules->require_matching_index_types &&
           rules->reduction != BAG_NONE &&
           !__builtin_mul_overflow(args->table.row_elements, args->element_bytes,
                                   &args->bag_stride) &&
           args->bag_stride <= UINT32_MAX;
}

void bag_pool_prepare(const struct bag_table *table, const struct bag_rules *rules,
                      struct bag_pool_plan *plan)
{
    plan->rules = *rules;
    plan->walk = walk_of(table);
    plan->args = (struct bag_pool_args){
        .table = *table,
        .walk = &plan->walk,
        .ahead = plan->walk.ahead,
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
        .is_general = rules->reduction == BAG_MAX || table->num_rows > UINT32_MAX,
    };
    plan->check = is_usual(plan) ? bag_kernels_used->check : NULL;
    plan->takes_weights = bag_dtypes[table->dtype].kind == BAG_KIND_FLOAT &&
                          (rules->reduction == BAG_SUM || rules->reduction == BAG_SQRTN ||
                           (rules->reduction == BAG_MEAN && rules->weighted_mean));
    plan->needs_rows = rules->keyed || rules->missing == BAG_MISSING_DEFAULT;
    set_padding(plan);
    set_tiles(plan);
}

void bag_pool_prepare_part(struct bag_pool_plan *plan, int64_t whole_rows)
{
    plan->args.table.num_rows = whole_rows;
    plan->needs_rows = true;
    set_padding(plan);
}

void bag_pool_widen(struct bag_pool_args *args)
{
    args->output_dtype = BAG_F32;
    args->element_bytes = bag_dtypes[BAG_F32].bytes;
    args->bag_stride = args->table.row_elements * args->element_bytes;
    args->result_bytes = args->num_bags * args->bag_stride;
}
