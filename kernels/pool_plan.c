/* Makes plans: everything about a call that a table and its rules determine, including the
 * kernels. */
#include "pool_block.h"

#define LINE_BYTES 64

/* How far ahead rows are prefetched, measured with tests/bench/kernels. */
#define FETCH_NEAR_AHEAD_BYTES 4096
#define FETCH_NEAR_AHEAD_CODES 1536 /* elements of quantised rows, */
#define FETCH_NEAR_AHEAD_ROWS  32   /* and the maximum number of such rows */
#define FETCH_LEAST_ROWS       12   /* limits for all rows */
#define FETCH_MOST_ROWS        64
#define FETCH_FAR_LEAST_BYTES  8192 /* rows of far tables: at least so many bytes, */
#define FETCH_FAR_LEAST_ROWS   24   /* or this number of rows */

/* The least number of columns of long rows of f16 and bf16: see wide_pays. */
#define LONG_ROW_COLUMNS 128

static size_t clamp(size_t value, size_t low, size_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* The sizes of f32 rows that AVX2 prefetches in L2, too, if bags have so many entries at the mean.
 * Such rows are one tile of so many loads that only few rows are loaded at the same time. On a Zen
 * 3 bags of 20 and more entries take 0.79 to 0.98 of the time. Bags of one or two become slower. */
#define FETCH_SECOND_LEAST_BYTES 256
#define FETCH_SECOND_MOST_BYTES  384
#define FETCH_SECOND_BAG         8

/* Returns whether the rows are prefetched in L2 for the sake of long bags. */
static bool fetches_second(const struct bag_table *table, size_t row_bytes)
{
    return bag_kernels_used->fetches_second && table->row_format == BAG_ROWS_PLAIN &&
           table->dtype == BAG_F32 && row_bytes >= FETCH_SECOND_LEAST_BYTES &&
           row_bytes <= FETCH_SECOND_MOST_BYTES;
}

/* Returns the size of the largest table whose rows are not prefetched. Widening takes so many
 * instructions that only few rows are loaded at the same time, except for short ones. */
static size_t unfetched_bytes(const struct bag_table *table, size_t row_bytes)
{
    bool is_plain = table->row_format == BAG_ROWS_PLAIN;
    if (is_plain && bag_dtypes[table->dtype].bytes > 2 && !fetches_second(table, row_bytes))
        return 2 * bag_caches.second;
    bool is_shortest = (is_plain && row_bytes <= LINE_BYTES / 2) ||
                       (table->row_format == BAG_ROWS_INT8 && row_bytes <= LINE_BYTES / 4);
    bool is_short = (is_plain && table->dtype == BAG_F16 && row_bytes <= LINE_BYTES) ||
                    (table->row_format == BAG_ROWS_INT8 && row_bytes <= LINE_BYTES / 8 * 3);
    return is_shortest ? bag_caches.second : bag_caches.second / (is_short ? 2 : 4);
}

/* Returns the size of the largest table that stays in L3 beside other data. */
static size_t near_bytes(void)
{
    return bag_caches.third / 4 * 3;
}

/* The smallest L1 into which rows are prefetched, if the caches hold their table and the
 * instruction set has a loop for it. On a Zen 5 with 48 KiB that is 1.2 to 1.7 times as fast for
 * f32 of 16 to 64 columns. AVX2 on a Zen 3 with 32 KiB becomes slower. Rows in memory are
 * prefetched so far ahead that they would leave L1 again. */
#define FETCH_LEAST_FIRST ((size_t)48 << 10)

/* Returns whether a row may touch one more cache line than its size needs. */
static bool straddles(const struct bag_table *table, size_t row_bytes)
{
    bool divides = row_bytes > 0 && (row_bytes % LINE_BYTES == 0 || LINE_BYTES % row_bytes == 0);
    return !divides || (uintptr_t)table->rows % LINE_BYTES;
}

/* Returns how many rows are summed while one is loaded. The time for a code does not depend on its
 * width. The rows of far tables are prefetched earlier. */
static size_t rows_ahead(const struct bag_table *table, size_t row_bytes, bool is_near)
{
    size_t elements = table->row_elements ? table->row_elements : 1;
    size_t codes = clamp(FETCH_NEAR_AHEAD_CODES / elements, 1, FETCH_NEAR_AHEAD_ROWS);
    bool quantised = table->row_format != BAG_ROWS_PLAIN;
    size_t ahead = FETCH_NEAR_AHEAD_BYTES / (row_bytes ? row_bytes : 1);
    if (is_near)
        return clamp(quantised ? codes : ahead, FETCH_LEAST_ROWS, FETCH_MOST_ROWS);
    size_t least = clamp(FETCH_FAR_LEAST_BYTES / (row_bytes ? row_bytes : 1), FETCH_LEAST_ROWS,
                         FETCH_FAR_LEAST_ROWS);
    return clamp(ahead * bag_kernels_used->far, least, FETCH_MOST_ROWS);
}

/* Limits for prefetching the rows of a call before it runs: the number of its indices and the size
 * of a row. Larger calls gain nothing. A call that is alone gains if the table is as large as this
 * number of L2 caches. It loses beyond this number of bytes, unless the table has this number of
 * rows. */
#define EARLY_INDICES      32
#define EARLY_ROW_BYTES    512
#define EARLY_ALONE_BYTES  3072
#define EARLY_ALONE_ROWS   (1 << 16)
#define EARLY_ALONE_CACHES 2

/* Sets how many indices a call may have to be pooled without prefetching, and to have its rows
 * prefetched before it runs. */
static void set_limits(const struct bag_table *table, struct bag_row_walk *walk)
{
    const size_t table_bytes = (size_t)table->num_rows * walk->row_bytes;
    walk->unfetched = SIZE_MAX;
    if (!walk->is_far)
        return;
    if (table_bytes <= 2 * bag_caches.second && fetches_second(table, walk->row_bytes))
        walk->fetched_bag = FETCH_SECOND_BAG;
    else if (walk->row_bytes <= EARLY_ROW_BYTES)
        walk->early = EARLY_INDICES;
    if (table->num_rows >= EARLY_ALONE_ROWS)
        walk->early_alone = walk->early;
    else if (walk->early)
        walk->early_alone = clamp(EARLY_ALONE_BYTES / walk->row_bytes, 0, walk->early);
    if (table_bytes <= EARLY_ALONE_CACHES * bag_caches.second)
        walk->early_alone = 0;
    walk->unfetched = walk->is_near ? walk->ahead : clamp(walk->ahead, 0, walk->early);
}

static struct bag_row_walk walk_of(const struct bag_table *table)
{
    const struct bag_row_layout *layout = &bag_row_layouts[table->row_format];
    const struct bag_row_places places = bag_row_places(table);
    size_t table_bytes = (size_t)table->num_rows * places.bytes;
    bool is_far = table_bytes > unfetched_bytes(table, places.bytes);
    bool is_near = table_bytes <= near_bytes();
    struct bag_row_walk walk = {
        .row_bytes = places.bytes,
        .codes_at = places.codes_at,
        .params_at = places.params_at,
        .ahead = is_far ? rows_ahead(table, places.bytes, is_near) : SIZE_MAX,
        .kind = (uint8_t)bag_row_kind(table),
        .is_far = is_far,
        .is_near = is_near,
        .to_first = is_near && bag_caches.first >= FETCH_LEAST_FIRST,
        .straddles = straddles(table, places.bytes),
        .has_params = layout->num_params > 0,
        .half_params = layout->param_dtype == BAG_F16,
    };
    set_limits(table, &walk);
    return walk;
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* Returns the instances of the loop for these columns, or NULL if only the plain C kernel supports
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
        if (set && (!narrow || set->whole[BAG_MODE_PLAIN][0]) && !splits_byte)
            return set;
    }
    return NULL;
}

/* Returns whether wide tiles are faster. Long rows of f16 and bf16 in memory become slower if bags
 * are long. Rows of int4 in memory gain most: they have so few cache lines that prefetching them
 * tile by tile costs as much as summing them. */
static bool wide_pays(const struct bag_row_walk *walk, size_t columns)
{
    return walk->is_near || columns < LONG_ROW_COLUMNS ||
           (walk->kind != BAG_KIND_OF_F16 && walk->kind != BAG_KIND_OF_BF16);
}

/* Returns the instance for rows of this number of vectors. It has as few and as narrow tiles as
 * possible. With `wide`, it has the widest tiles if all of them are full. */
static bag_block_fn *instance_of(const struct bag_tile_set *set, enum bag_mode mode, size_t vectors,
                                 bool wide)
{
    if (vectors <= BAG_TILE_VECTORS && set->whole[mode][vectors])
        return set->whole[mode][vectors];
    if (vectors <= BAG_TILE_VECTORS && wide && set->wide[mode][vectors])
        return set->wide[mode][vectors];
    if (wide && vectors % BAG_TILE_VECTORS == 0 && set->split[mode][BAG_TILE_VECTORS])
        return set->split[mode][BAG_TILE_VECTORS];
    size_t num_tiles = (vectors + set->largest_tile - 1) / set->largest_tile;
    size_t tile_vectors = (vectors + num_tiles - 1) / num_tiles;
    while (!set->split[mode][tile_vectors])
        tile_vectors++;
    return set->split[mode][tile_vectors];
}

/* Returns the number of vectors of the tiles in which bags of one entry are pooled, for rows of
 * more vectors than one tile has. It is the largest one with which narrower tiles would be more.
 * Returns 0 if there are no instances for such bags. */
static size_t long_singles_vectors(const struct bag_tile_set *set, enum bag_mode mode,
                                   size_t vectors)
{
    for (size_t width = BAG_TILE_VECTORS; width > 0; width--) {
        size_t num_tiles = (vectors + width - 1) / width;
        bool is_even = (vectors + num_tiles - 1) / num_tiles == width;
        if (is_even && set->singles[mode][width])
            return width;
    }
    return 0;
}

/* Chooses the kernel for bags of one entry. */
static void choose_singles(const struct bag_tile_set *set, enum bag_mode mode, size_t columns,
                           size_t vectors, struct bag_kernel_choice *choice)
{
    if (vectors <= BAG_TILE_VECTORS && (set->whole[mode][vectors] || set->wide[mode][vectors])) {
        choice->singles[mode] = set->singles[mode][vectors];
        choice->singles_columns[mode] = columns;
        return;
    }
    size_t tile_vectors = long_singles_vectors(set, mode, vectors);
    choice->singles[mode] = tile_vectors ? set->singles[mode][tile_vectors] : NULL;
    choice->singles_columns[mode] = tile_vectors * set->lanes;
}

/* Returns whether a bag_near_fn supports the call. */
static bool is_near_call(const struct bag_pool_args *args)
{
    const struct bag_row_walk *walk = args->walk;
    const enum bag_row_kind kind = (enum bag_row_kind)walk->kind;
    bool stores = args->output_dtype == BAG_F32 || args->output_dtype == bag_near_result(kind);
    bool apart = kind == BAG_KIND_OF_INT8 && walk->half_params;
    return stores && !apart && args->reduction != BAG_SQRTN;
}

struct bag_kernel_choice bag_choose_kernels(const struct bag_pool_args *args, size_t first_column,
                                            size_t end_column)
{
    const struct bag_row_walk *walk = args->walk;
    struct bag_kernel_choice choice = {.pool = {bag_ref_block, bag_ref_block, bag_ref_block}};
    const struct bag_tile_set *set =
        set_for((enum bag_row_kind)walk->kind, first_column, end_column);
    if (!set)
        return choice;
    size_t columns = end_column - first_column;
    size_t vectors = columns < set->lanes ? 0 : (columns + set->lanes - 1) / set->lanes;
    for (int mode = 0; mode < BAG_MODE_COUNT; mode++)
        choice.pool[mode] =
            instance_of(set, (enum bag_mode)mode, vectors, wide_pays(walk, columns));
    const bool has_near =
        columns == args->table.row_elements && vectors <= BAG_TILE_VECTORS && is_near_call(args);
    for (int mode = 0; mode < BAG_MODE_COUNT; mode++) {
        if (mode != BAG_MODE_PLAIN && args->divides)
            continue;
        choose_singles(set, (enum bag_mode)mode, columns, vectors, &choice);
        choice.near[mode] = has_near ? set->near[mode][vectors] : NULL;
    }
    return choice;
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

void bag_pool_prepare(const struct bag_table *table, const struct bag_rules *rules,
                      struct bag_pool_plan *plan)
{
    plan->rules = *rules;
    plan->walk = walk_of(table);
    plan->args = (struct bag_pool_args){
        .table = *table,
        .walk = &plan->walk,
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
    plan->walk.whole = bag_choose_kernels(&plan->args, 0, table->row_elements);
    plan->is_usual = !rules->keyed && rules->missing == BAG_MISSING_ERROR &&
                     !rules->prune_invalid && !rules->require_zero_first_offset &&
                     !rules->require_matching_index_types && rules->reduction != BAG_NONE &&
                     !__builtin_mul_overflow(table->row_elements, plan->args.element_bytes,
                                             &plan->args.bag_stride);
    plan->takes_weights = bag_dtypes[table->dtype].kind == BAG_KIND_FLOAT &&
                          (rules->reduction == BAG_SUM || rules->reduction == BAG_SQRTN ||
                           (rules->reduction == BAG_MEAN && rules->weighted_mean));
    plan->needs_rows = rules->keyed || rules->missing == BAG_MISSING_DEFAULT;
    set_padding(plan);
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
