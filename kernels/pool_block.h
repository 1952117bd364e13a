/* The arguments of a kernel, and the tables of kernels.
 *
 * A block is a run of bags with explicit bounds, so that a kernel needs to know neither offsets nor
 * segment ids. */
#pragma once

#include "keys.h"
#include "pool_entries.h"

/* Marks functions that are inlined into each instance of the loop. Not every type needs all of
 * them. */
#define BAG_LANE static inline __attribute__((always_inline, unused))

/* The maximum number of bags in a block, whose bounds fit into a small array on the stack. */
#define BAG_BLOCK_BAGS 256

struct bag_block {
    const struct bag_pool_args *args;
    size_t num_bags;
    const size_t *bounds; /* num_bags + 1; bag i has entries [bounds[i], bounds[i + 1]) */
    size_t first_column, end_column;
    bool fetches_params; /* scale and bias after a row's codes are prefetched with the columns */
    char *out;           /* row of the block's first bag in the result, at column 0 */

    /* While an entry before this one is summed, the kernel prefetches the row of the entry that is
     * walk.ahead later. 0: no prefetching. Out-of-order execution hides the latency of the nearest
     * caches, where prefetching only costs time. */
    size_t fetch_end;
};

/* A bag_block_fn pools a block: it writes the columns [first_column, end_column) of every bag. A
 * bag_singles_fn does that only if all bags have one entry, and returns false otherwise. A
 * bag_near_fn pools all columns of bags whose bounds are like a block's, without prefetching, up to
 * the first bag without an entry. It returns the number of bags that are left. */

/* Returns the kernels of the selected instruction set for these columns. Reads only the members of
 * `args` that a plan sets. */
struct bag_kernel_choice bag_choose_kernels(const struct bag_pool_args *args, size_t first_column,
                                            size_t end_column);

/* Pools a block in plain C. It supports any table and defines every result. */
void bag_ref_block(const struct bag_block *block);

/* Writes the result of a bag of the block in which no entry is left: the default row, or zeros. */
void bag_ref_empty(const struct bag_block *block, size_t bag);

/* Returns whether no id is above `high`, which is at least -1, and none is negative unless that is
 * allowed. */
typedef bool bag_in_range_fn(const void *ids, size_t count, bool wide, int64_t high,
                             bool any_negative);

/* Returns whether no id is negative or less than the one before it. There must be at least one
 * id. */
typedef bool bag_ascend_fn(const void *ids, size_t count, bool wide);

bag_in_range_fn bag_ref_ids_in_range;
bag_ascend_fn bag_ref_ids_ascend;

/* Finds keys, with the arguments and results of bag_keys_find. */
typedef size_t bag_keys_fn(const struct bag_keys *keys, const struct bag_ids *ids, int64_t *rows);

bag_keys_fn bag_ref_keys_find;

/* ---- kernels by instruction set -------------------------------------------------------------- */

struct bag_tile_set;

struct bag_kernels {
    const struct bag_tile_set *sets[BAG_ROW_KIND_COUNT]; /* NULL: use the plain C kernel */
    bag_in_range_fn *ids_in_range;
    bag_ascend_fn *ids_ascend;
    bag_keys_fn *find_keys;
    const struct bag_kernels *below; /* kernels for rows narrower than a vector; NULL: plain C */
    size_t far; /* factor by which the rows of large tables are prefetched further ahead than those
                   of near ones */
    bool fetches_second; /* some rows of f32 in L2 are prefetched, see pool_plan.c */
};

/* The tables of all instruction sets. The tables of other processor families are not linked. */
extern const struct bag_kernels bag_generic_kernels, bag_neon_kernels, bag_avx2_kernels,
    bag_avx512_kernels;

/* The table in use. Written before threads start. */
extern const struct bag_kernels *bag_kernels_used;

/* The sizes of the L1 data cache, L2 and L3. If there is no L3, `third` equals `second`. They
 * determine which tables' rows are prefetched, and how. */
struct bag_caches {
    size_t first, second, third;
};

/* The sizes if the processor does not report them. */
#define BAG_CACHES_USUAL                                    \
    {                                                       \
        (size_t)32 << 10, (size_t)1 << 20, (size_t)32 << 20 \
    }

/* Returns the sizes that the processor reports. */
struct bag_caches bag_caches_of_processor(void);

/* The sizes of this machine; set when an instruction set is selected. */
extern struct bag_caches bag_caches;

/* Returns whether all ids are within the bounds. */
static inline bool bag_ids_valid(const struct bag_ids *ids, const struct bag_id_bounds *bounds)
{
    if (!bounds->ascending)
        return bag_kernels_used->ids_in_range(ids->data, ids->count, ids->wide, bounds->high,
                                              bounds->any_negative);
    if (ids->count == 0)
        return true;
    int64_t last = bag_id_at(ids, ids->count - 1);
    if (last < 0 || last > bounds->high)
        return false;
    return ids->count == 1 || bag_kernels_used->ids_ascend(ids->data, ids->count, ids->wide);
}

/* ---- tiles ----------------------------------------------------------------------------------- */

/* Tiles. All instruction sets split the columns of a block into tiles and choose the instance of
 * the loop in the same way. A tile is a run of columns whose sums stay in registers over a whole
 * bag. */

/* The maximum number of vectors in a tile. */
#define BAG_TILE_VECTORS 16

/* The data that a kernel needs for each row, as the kernel's own copy. Its address does not escape,
 * so that the compiler knows that writing results cannot change it, and keeps it in registers. The
 * data for each bag is read from the block. */
struct bag_rows {
    const struct bag_block *block;
    const struct bag_pool_args *args;
    const char *ids;       /* ids from entry 0 on */
    size_t id_bytes;       /* from one id to the next */
    size_t ahead_bytes;    /* distance to the id of the entry that is prefetched */
    const char *fetch_end; /* ids before this one have an id to prefetch */
    const char *rows;      /* codes of the first row */
    size_t row_bytes;      /* from one row to the next */
    size_t bytes_before;   /* size of the parameters before the codes */
    size_t last_byte; /* last byte of a row that is read: of its last column, or of the parameters
                         after it */
    ptrdiff_t params_at; /* position of scale and bias, relative to the row's codes */
    bool has_params;     /* rows have a scale, or scale and bias */
    bool half_params;    /* scale and bias are f16 */
    bool straddles;      /* a row may touch one more cache line than its size needs */
    bool to_first;       /* prefetch into L1 instead of L2 */
};

/* Returns whether rows of this kind may have scale and bias. */
static inline __attribute__((always_inline)) bool bag_kind_quantised(enum bag_row_kind kind)
{
    return kind == BAG_KIND_OF_E4M3 || kind == BAG_KIND_OF_E5M2 || bag_kind_has_params(kind);
}

/* Returns the position of the last byte of a row that is read, relative to its codes. */
BAG_LANE size_t bag_last_byte(const struct bag_block *block, enum bag_row_kind kind)
{
    const struct bag_row_walk *walk = block->args->walk;
    if (bag_kind_quantised(kind) && walk->has_params && walk->params_at > 0 &&
        block->fetches_params)
        return walk->row_bytes - 1;
    return block->end_column * bag_kind_bits(kind) / 8 - 1;
}

BAG_LANE struct bag_rows bag_rows_of(const struct bag_block *block, enum bag_row_kind kind)
{
    const struct bag_pool_args *args = block->args;
    const struct bag_row_walk *walk = args->walk;
    const unsigned id_shift = 2 + args->indices.wide;
    const char *ids = args->indices.data;
    return (struct bag_rows){
        .block = block,
        .args = args,
        .ids = ids,
        .id_bytes = (size_t)1 << id_shift,
        .ahead_bytes = walk->ahead << id_shift,
        .fetch_end = ids + (block->fetch_end << id_shift),
        .rows = (const char *)args->table.rows + walk->codes_at,
        .row_bytes = walk->row_bytes,
        .bytes_before = walk->codes_at,
        .last_byte = bag_last_byte(block, kind),
        .params_at = (ptrdiff_t)walk->params_at - (ptrdiff_t)walk->codes_at,
        .has_params = walk->has_params,
        .half_params = walk->half_params,
        .straddles = walk->straddles,
        .to_first = walk->to_first,
    };
}

/* Returns an address as one number that the compiler keeps in a register. It would otherwise add up
 * the address's parts in every load. */
BAG_LANE const char *bag_in_register(const char *at)
{
    __asm__("" : "+r"(at));
    return at;
}

/* Prefetches the cache line of a byte into L1 or L2. An address outside the table does no harm,
 * because this is only a hint. */
BAG_LANE void bag_fetch_line(int cache, const char *at)
{
    if (cache == 1)
        __builtin_prefetch(at, 0, 3);
    else
        __builtin_prefetch(at, 0, 2);
}

/* Prefetches `bytes` from `from` on. `cache` must be a constant. */
BAG_LANE void bag_fetch_lines(int cache, const char *from, size_t bytes)
{
#pragma GCC unroll 16
    for (size_t i = 0; i < bytes; i += 64)
        bag_fetch_line(cache, from + i);
}

/* Returns the end of the entries, of those before `end`, whose loop prefetches the row that is
 * walk->ahead entries after each. Each entry is a bag. Returns 0 for tables that need no
 * prefetching, or only for longer bags. */
BAG_LANE size_t bag_fetch_end(const struct bag_pool_args *args, size_t end)
{
    const size_t ahead = args->walk->ahead;
    return end > ahead && args->walk->fetched_bag <= 1 ? end - ahead : 0;
}

/* Prefetches `bytes` of an entry's row, of rows that begin at `rows`. The id may be of no row. The
 * loop keeps `rows` and `row_bytes` in registers, which takes a sixth less than reading the call.
 */
BAG_LANE void bag_fetch_row(const struct bag_pool_args *args, size_t entry, const char *rows,
                            size_t row_bytes, size_t bytes)
{
    uintptr_t id = (uintptr_t)bag_id_at(&args->indices, entry);
    bag_fetch_lines(1, (const char *)((uintptr_t)rows + id * row_bytes), bytes);
}

/* Loads 1 to 8 bytes into the low bytes of the result; the others are zero. */
BAG_LANE uint64_t bag_load_some(const char *from, size_t bytes)
{
    uint64_t all;
    uint32_t low, high;
    if (bytes == 8) {
        memcpy(&all, from, sizeof all);
        return all;
    }
    if (bytes >= sizeof low) {
        memcpy(&low, from, sizeof low);
        memcpy(&high, from + bytes - sizeof high, sizeof high);
        return low | (uint64_t)high << 8 * (bytes - sizeof high);
    }
    uint64_t first = (uint8_t)from[0], middle = (uint8_t)from[bytes / 2];
    return first | middle << 8 * (bytes / 2) |
           (uint64_t)(uint8_t)from[bytes - 1] << 8 * (bytes - 1);
}

/* The numbers that are rounded to bf16: any numbers; sums of bf16 numbers, whose NaNs stay NaNs
 * because their lower halves are zero; or single bf16 numbers. */
enum bag_bf16_of { BAG_BF16_OF_ANY, BAG_BF16_OF_SUMS, BAG_BF16_OF_ONE };

/* The instances of the loop for one kind of rows. */
struct bag_tile_set {
    /* Rows of one tile, indexed by its vectors; 0 for rows narrower than a vector. NULL: see the
     * members below. */
    bag_block_fn *whole[BAG_MODE_COUNT][BAG_TILE_VECTORS + 1];
    /* Rows of one tile, used only if wide tiles are faster. NULL: such rows are split. */
    bag_block_fn *wide[BAG_MODE_COUNT][BAG_TILE_VECTORS + 1];
    /* Rows of several tiles, indexed by the vectors of each. NULL: use the next larger one. */
    bag_block_fn *split[BAG_MODE_COUNT][BAG_TILE_VECTORS + 1];
    /* A tile of bags of one entry without division. NULL: none. */
    bag_singles_fn *singles[BAG_MODE_COUNT][BAG_TILE_VECTORS + 1];
    /* Rows of one tile, without prefetching. NULL: none. */
    bag_near_fn *near[BAG_MODE_COUNT][BAG_TILE_VECTORS + 1];
    size_t largest_tile; /* vectors of the largest tile */
    size_t bits;         /* size of an element, in bits */
    size_t lanes;        /* number of lanes of a vector */
};

/* The columns of a vector: consecutive ones, or every other one of twice as many. Some kinds are
 * widened with fewer instructions in the latter way. The columns are reordered once for each
 * bag. */
enum bag_parity { BAG_PARITY_BOTH, BAG_PARITY_EVEN, BAG_PARITY_ODD };

/* Returns the type of results, besides FP32, that a bag_near_fn may write. */
BAG_LANE enum bag_dtype bag_near_result(enum bag_row_kind kind)
{
    return kind == BAG_KIND_OF_F32 ? BAG_F32 : kind == BAG_KIND_OF_BF16 ? BAG_BF16 : BAG_F16;
}

/* Returns whether elements are converted before they are summed. */
BAG_LANE bool bag_kind_converts(enum bag_row_kind kind)
{
    return kind != BAG_KIND_OF_F32 && kind != BAG_KIND_OF_F64;
}

/* Loads a checked id. It is not negative, and tables of more than 2^32 rows are pooled in the
 * general mode. The lower half of an int64 id is therefore enough, and its width is not tested for
 * each row. */
BAG_LANE int64_t bag_checked_id(const char *at)
{
    uint32_t id;
    memcpy(&id, at, sizeof id);
    return id;
}
