/* What a kernel is handed, and the tables of kernels.
 *
 * A block is a run of bags whose bounds are written out, so that a kernel needs to know neither
 * offsets nor segment ids. */
#ifndef BAG_POOL_BLOCK_H
#define BAG_POOL_BLOCK_H

#include "keys.h"
#include "pool_entries.h"

/* What becomes a part of each instance of the loop, or of none: not every type needs it all. */
#define BAG_LANE static inline __attribute__((always_inline, unused))

/* The most bags of one block: bounds fit a small array on the stack. */
#define BAG_BLOCK_BAGS 256

struct bag_block {
    const struct bag_pool_args *args;
    size_t num_bags;
    const size_t *bounds; /* num_bags + 1; bag i has entries [bounds[i], bounds[i + 1]) */
    size_t first_column, end_column;
    char *out; /* row of the block's first bag in the result, from column 0 */

    /* While an entry before this one is summed, the row of the one walk.ahead behind it is
     * prefetched; 0: none. Out-of-order execution hides the latency of the
     * nearest caches by itself, and prefetching only costs there. */
    size_t fetch_end;
};

/* A bag_block_fn pools a block: it writes the columns [first_column, end_column) of every bag. A
 * bag_singles_fn does so only where all bags have one entry, and returns false where they do not. A
 * bag_near_fn prefetches nothing, and pools up to the first bag without an entry, whose number it
 * returns. */

/* The kernels for these columns, of the instruction set in use; of `args` it asks what a plan has.
 */
struct bag_kernel_choice bag_choose_kernels(const struct bag_pool_args *args, size_t first_column,
                                            size_t end_column);

/* The plain C kernel, for any table: it defines every result. */
void bag_ref_block(const struct bag_block *block);

/* Writes bag number `bag` of the block, in which no entry is left: the default row, or zeros. */
void bag_ref_empty(const struct bag_block *block, size_t bag);

/* Whether no id is above `high`, which is at least -1, and none negative unless that is allowed. */
typedef bool bag_in_range_fn(const void *ids, size_t count, bool wide, int64_t high,
                             bool any_negative);

/* Whether no id is negative, and none less than the one before it; there are some. */
typedef bool bag_ascend_fn(const void *ids, size_t count, bool wide);

bag_in_range_fn bag_ref_ids_in_range;
bag_ascend_fn bag_ref_ids_ascend;

/* As bag_keys_find. */
typedef size_t bag_keys_fn(const struct bag_keys *keys, const struct bag_ids *ids, int64_t *rows);

bag_keys_fn bag_ref_keys_find;

/* ---- kernels by instruction set -------------------------------------------------------------- */

struct bag_tile_set;

struct bag_kernels {
    const struct bag_tile_set *sets[BAG_ROW_KIND_COUNT]; /* NULL: the plain C kernel */
    bag_in_range_fn *ids_in_range;
    bag_ascend_fn *ids_ascend;
    bag_keys_fn *find_keys;
    const struct bag_kernels *below; /* for rows narrower than a vector; NULL: plain C */
    size_t far; /* how far ahead the rows of large tables are prefetched: as many times as those of
                   near ones */
};

/* Those of other processor families are not linked in. */
extern const struct bag_kernels bag_generic_kernels, bag_neon_kernels, bag_avx2_kernels,
    bag_avx512_kernels;

/* Those in use. Written before there are threads. */
extern const struct bag_kernels *bag_kernels_used;

/* Bytes of the first cache for data, the second and the third, the same where there is no third; by
 * these it is decided which tables' rows are prefetched, and how. */
struct bag_caches {
    size_t first, second, third;
};

/* Where the processor does not say. */
#define BAG_CACHES_USUAL                                    \
    {                                                       \
        (size_t)32 << 10, (size_t)1 << 20, (size_t)32 << 20 \
    }

/* As the processor says. */
struct bag_caches bag_caches_of_processor(void);

/* Those of this machine, from when an instruction set was chosen on. */
extern struct bag_caches bag_caches;

/* Whether all ids are within the bounds. */
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

/* Splitting a block's columns into tiles and choosing the instance of the loop that pools them is
 * what every instruction set does alike. A tile is a run of columns whose sums stay in registers
 * over a whole bag. */

/* The most vectors of a tile. */
#define BAG_TILE_VECTORS 16

/* What each row needs, of a block and its args, as a kernel's own copy: its address does not
 * escape, so that writing results cannot change it and it stays in registers. What each bag needs
 * is read where it is. */
struct bag_rows {
    const struct bag_block *block;
    const struct bag_pool_args *args;
    const char *ids;       /* of entry 0 */
    size_t id_bytes;       /* from one id to the next */
    size_t ahead_bytes;    /* to that of the entry that is prefetched meanwhile */
    const char *fetch_end; /* ids before this one have another one so far behind them */
    const char *rows;      /* the codes of the first row: after what precedes them */
    size_t row_bytes;      /* from one row to the next */
    size_t bytes_before;   /* of what precedes the codes */
    size_t last_byte;      /* of a row that is read: of the last column, or of what follows it */
    ptrdiff_t params_at;   /* scale and bias, counted from the row's codes */
    bool has_params;       /* there are any */
    bool half_params;      /* they are f16 */
    bool straddles;        /* a row may lie in one more line than its bytes fill */
    bool to_first;         /* rows are prefetched into the first cache, not the second */
};

/* The last byte of a row that is read, counted from its codes. */
BAG_LANE size_t bag_last_byte(const struct bag_block *block, size_t bits)
{
    const struct bag_row_walk *walk = block->args->walk;
    if (walk->has_params && walk->params_at > 0)
        return walk->row_bytes - 1;
    return block->end_column * bits / 8 - 1;
}

BAG_LANE struct bag_rows bag_rows_of(const struct bag_block *block, size_t bits)
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
        .last_byte = bag_last_byte(block, bits),
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

/* Prefetches the line of a byte into the first cache or the second. An address outside the table
 * does no harm: these are hints. */
BAG_LANE void bag_fetch_line(int cache, const char *at)
{
    if (cache == 1)
        __builtin_prefetch(at, 0, 3);
    else
        __builtin_prefetch(at, 0, 2);
}

/* Prefetches `bytes` from `from` on; `cache` is a constant. */
BAG_LANE void bag_fetch_lines(int cache, const char *from, size_t bytes)
{
#pragma GCC unroll 16
    for (size_t i = 0; i < bytes; i += 64)
        bag_fetch_line(cache, from + i);
}

/* From 1 to 8 bytes; what is above them is zero. */
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

/* What is rounded to bf16: anything; sums of bf16 numbers, whose NaNs stay ones as their lower
 * halves are zero; or such a number itself. */
enum bag_bf16_of { BAG_BF16_OF_ANY, BAG_BF16_OF_SUMS, BAG_BF16_OF_ONE };

/* The instances for one kind of rows. */
struct bag_tile_set {
    /* Rows of one tile, by its vectors, 0 where they are narrower than one; NULL: see below. */
    bag_block_fn *whole[BAG_MODE_COUNT][BAG_TILE_VECTORS + 1];
    /* Likewise, but only where wide tiles pay; NULL: such rows are split. */
    bag_block_fn *wide[BAG_MODE_COUNT][BAG_TILE_VECTORS + 1];
    /* Rows of several tiles of so many vectors each; NULL: those of the next larger are taken. */
    bag_block_fn *split[BAG_MODE_COUNT][BAG_TILE_VECTORS + 1];
    /* Rows of one tile in bags of one entry that nothing divides; NULL: there is none. */
    bag_singles_fn *singles[BAG_MODE_COUNT][BAG_TILE_VECTORS + 1];
    /* Rows of one tile of which none is prefetched; NULL: there is none. */
    bag_near_fn *near[BAG_MODE_COUNT][BAG_TILE_VECTORS + 1];
    size_t largest_tile; /* vectors of the largest of them */
    size_t bits;         /* of an element */
    size_t lanes;        /* of a vector */
};

/* Which columns a vector has: those from one on, or every other one of twice as many: some kinds
 * are widened with fewer instructions by these. Columns are put in order once per bag. */
enum bag_parity { BAG_PARITY_BOTH, BAG_PARITY_EVEN, BAG_PARITY_ODD };

BAG_LANE unsigned bag_kind_bits(enum bag_row_kind kind)
{
    static const unsigned bits_of[BAG_ROW_KIND_COUNT] = {
#define BAG_X(id, bits, vector) [BAG_KIND_OF_##id] = bits,
        BAG_ROW_KINDS(BAG_X)
#undef BAG_X
    };
    return bits_of[kind];
}

/* Returns whether all rows of a kind have a scale. */
BAG_LANE bool bag_kind_has_params(enum bag_row_kind kind)
{
    return kind == BAG_KIND_OF_INT8 || kind == BAG_KIND_OF_SINT8 || kind == BAG_KIND_OF_INT4 ||
           kind == BAG_KIND_OF_INT2;
}

/* Whether rows of that kind may have scale and bias. */
static inline __attribute__((always_inline)) bool bag_kind_quantised(enum bag_row_kind kind)
{
    return kind == BAG_KIND_OF_E4M3 || kind == BAG_KIND_OF_E5M2 || bag_kind_has_params(kind);
}

/* Whether elements are f16 or bf16, which are summed wider than they are stored. */
BAG_LANE bool bag_kind_halves(enum bag_row_kind kind)
{
    return kind == BAG_KIND_OF_F16 || kind == BAG_KIND_OF_BF16;
}

/* The type beside FP32 that results of a bag_near_fn may have. */
BAG_LANE enum bag_dtype bag_near_result(enum bag_row_kind kind)
{
    return kind == BAG_KIND_OF_F32 ? BAG_F32 : kind == BAG_KIND_OF_BF16 ? BAG_BF16 : BAG_F16;
}

/* Whether elements are not summed as they are. */
BAG_LANE bool bag_kind_converts(enum bag_row_kind kind)
{
    return kind != BAG_KIND_OF_F32 && kind != BAG_KIND_OF_F64;
}

/* A checked id: it is not negative, and tables of more than 2^32 rows are pooled in
 * the general mode. So the lower half of an int64 id is enough, and its width is not tested per
 * row. */
BAG_LANE int64_t bag_checked_id(const char *at)
{
    uint32_t id;
    memcpy(&id, at, sizeof id);
    return id;
}

#endif
