/* The loops that pool, and the tables of them for each instruction set. */
#pragma once

#include "keys.h"
#include "pool_entries.h"

/* Marks functions that are inlined into each instance of the loop. Not every type needs all of
 * them. */
#define BAG_LANE static inline __attribute__((always_inline, unused))

/* Returns the tiles of the selected instruction set for these columns. Reads only the members of
 * `args` that a plan sets. */
struct bag_tiles bag_choose_tiles(const struct bag_pool_args *args, enum bag_mode mode,
                                  size_t first_column, size_t end_column);

/* Returns the mode in which a call is pooled. */
enum bag_mode bag_mode_of(const struct bag_pool_args *args);

/* The least average number of entries of bags that are compared with the one before them: see
 * pool_run.c. */
#define BAG_EQUAL_LEAST_ENTRIES 10

/* Prefetches the rows of the entries [first, end) into L2. Rows outside the table do no harm,
 * because these are hints. */
void bag_fetch_rows(const struct bag_pool_args *args, size_t first, size_t end);

/* Pools all columns of a table in memory by tiles->loop, and prefetches the first rows before,
 * which the loop does not do. */
bag_loop_fn bag_pool_far;

/* Pools a range in plain C. It supports any table and defines every result. */
bag_loop_fn bag_ref_loop;

/* Writes these columns of a bag in which no entry is left: the default row, or zeros. `out` is the
 * bag's part of the result. */
void bag_ref_empty(const struct bag_pool_args *args, const struct bag_tiles *tiles, char *out);

/* Returns whether no id is above `high`, which is at least -1, and none is negative unless that is
 * allowed. */
typedef bool bag_in_range_fn(const void *ids, size_t count, bool wide, int64_t high,
                             bool any_negative);

/* Returns whether no id is negative or less than the one before it. There must be at least one
 * id. */
typedef bool bag_ascend_fn(const void *ids, size_t count, bool wide);

/* Checks usual calls in plain C. */
bag_check_fn bag_ref_check;

bag_in_range_fn bag_ref_ids_in_range;
bag_ascend_fn bag_ref_ids_ascend;

/* Finds keys, with the arguments and results of bag_keys_find. */
typedef size_t bag_keys_fn(const struct bag_keys *keys, const struct bag_ids *ids, int64_t *rows);

bag_keys_fn bag_ref_keys_find;

/* ---- kernels by instruction set -------------------------------------------------------------- */

/* The maximum number of vectors of a tile. */
#define BAG_TILE_VECTORS 16

/* The instances of the loop for one kind of rows. The sums of a tile stay in registers over a whole
 * bag. */
struct bag_tile_set {
    /* Indexed by the vectors of the tile; 0 for rows narrower than a vector. NULL: none. */
    bag_loop_fn *loops[BAG_MODE_COUNT][BAG_TILE_VECTORS + 1];
    size_t lanes;        /* number of lanes of a vector */
    size_t wide_vectors; /* number of vectors of the tiles of wide rows in memory; 0: as others */
};

struct bag_kernels {
    const struct bag_tile_set *sets[BAG_ROW_KIND_COUNT]; /* NULL: use the plain C loop */
    bag_check_fn *check;
    bag_in_range_fn *ids_in_range;
    bag_ascend_fn *ids_ascend;
    bag_keys_fn *find_keys;
    const struct bag_kernels *below; /* kernels for rows narrower than a vector; NULL: plain C */
    size_t far; /* factor by which the rows of large tables are prefetched further ahead than those
                   of near ones */
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

/* ---- what the instances share ---------------------------------------------------------------- */

/* Returns whether rows of this kind may have scale and bias. */
static inline __attribute__((always_inline)) bool bag_kind_quantised(enum bag_row_kind kind)
{
    return kind == BAG_KIND_OF_E4M3 || kind == BAG_KIND_OF_E5M2 || bag_kind_has_params(kind);
}

/* Returns the bytes of so many elements or codes of a kind. */
BAG_LANE size_t bag_kind_bytes(enum bag_row_kind kind, size_t count)
{
    const size_t bits = bag_kind_bits(kind);
    return bits < 8 ? count * bits / 8 : count * (bits / 8);
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

/* The least number of indices of a short call. The processor loads fewer rows than that at the same
 * time without prefetching. */
#define BAG_SHORT_LEAST 32

/* Sets how far ahead a short call prefetches: a quarter of its indices, so that most of its rows
 * are prefetched. Calls for 32 rows of f16 or bf16 in L3 take 0.9 of the time. */
BAG_LANE void bag_set_ahead(const struct bag_row_walk *walk, size_t count,
                            struct bag_pool_args *args)
{
    if (count >= BAG_SHORT_LEAST && walk->shortens && count / 4 < walk->ahead)
        args->ahead = count / 4;
}

/* Returns the end of the entries, of those before `end`, at which the row that is args->ahead
 * entries later is prefetched. 0: none. */
BAG_LANE size_t bag_fetch_end(const struct bag_pool_args *args, size_t end)
{
    return end > args->ahead ? end - args->ahead : 0;
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

/* The columns of a vector: consecutive ones, or every other one of twice as many. Some kinds are
 * widened with fewer instructions in the latter way. The columns are reordered once for each
 * bag. */
enum bag_parity { BAG_PARITY_BOTH, BAG_PARITY_EVEN, BAG_PARITY_ODD };

/* Returns the type of results, besides FP32, that is usual for a kind. */
BAG_LANE enum bag_dtype bag_usual_result(enum bag_row_kind kind)
{
    return kind == BAG_KIND_OF_F32 ? BAG_F32 : kind == BAG_KIND_OF_BF16 ? BAG_BF16 : BAG_F16;
}

/* Returns whether elements are converted before they are summed. */
BAG_LANE bool bag_kind_converts(enum bag_row_kind kind)
{
    return kind != BAG_KIND_OF_F32 && kind != BAG_KIND_OF_F64;
}

/* Returns whether few tables have rows of this kind: their loops are few, too. */
BAG_LANE bool bag_kind_is_rare(enum bag_row_kind kind)
{
    return kind == BAG_KIND_OF_SINT8 || kind == BAG_KIND_OF_INT2 || kind == BAG_KIND_OF_E4M3 ||
           kind == BAG_KIND_OF_E5M2;
}

/* Returns the distance from one id to the next, which the compiler keeps in a register. It would
 * otherwise find out for each bag which of the two it is. */
BAG_LANE size_t bag_id_bytes(const struct bag_ids *ids)
{
    size_t bytes = sizeof(int32_t) + sizeof(int32_t) * ids->wide;
    __asm__("" : "+r"(bytes));
    return bytes;
}

/* Returns the number of ids in so many bytes. */
BAG_LANE size_t bag_count_ids(size_t bytes, size_t id_bytes)
{
    return bytes / sizeof(int32_t) >> (id_bytes == sizeof(int64_t));
}

/* Loads a checked id or offset. It is not negative. Tables of more than 2^32 rows are pooled in the
 * general mode, and calls of more indices in plain C. The lower half of an int64 is therefore
 * enough, and its width is not tested. */
BAG_LANE uint32_t bag_load_id(const char *at)
{
    uint32_t id;
    memcpy(&id, at, sizeof id);
    return id;
}
