/* Splitting a block's columns into tiles and choosing the instance of the loop that pools them:
 * what every instruction set does alike. A tile is a run of columns whose sums stay in registers
 * over a whole bag. */
#ifndef BAG_POOL_TILES_H
#define BAG_POOL_TILES_H

#include "pool_block.h"

/* What is done with the rows of a bag. GENERAL also tests which entries stay, and does max. */
enum bag_mode { BAG_MODE_PLAIN, BAG_MODE_WEIGHTED, BAG_MODE_GENERAL, BAG_MODE_COUNT };

/* The most vectors of a tile. */
#define BAG_TILE_VECTORS 8

/* Prefetching rows: how far ahead, and into which cache. Out-of-order execution hides the latency
 * of the nearest caches by itself, and prefetching only costs there; beyond, the rows of the next
 * bags are prefetched while this one is summed. */
struct bag_fetch {
    size_t ahead;   /* entries */
    size_t end;     /* entries before this one have another one `ahead` of them */
    bool near;      /* into the first cache; else into the second where that is better */
    bool straddles; /* rows do not begin at cache lines: the last byte may be in one more */
};

/* Prefetches `bytes` from `from` on, and the byte at `last`, into the first cache or the second.
 * An address outside the table does no harm: these are hints. */
static inline __attribute__((always_inline)) void bag_fetch_lines(const struct bag_fetch *fetch,
                                                                  bool near, const char *from,
                                                                  size_t bytes, const char *last)
{
    if (near) {
#pragma GCC unroll 8
        for (size_t i = 0; i < bytes; i += 64)
            __builtin_prefetch(from + i, 0, 3);
    } else {
#pragma GCC unroll 8
        for (size_t i = 0; i < bytes; i += 64)
            __builtin_prefetch(from + i, 0, 2);
    }
    if (fetch->straddles)
        __builtin_prefetch(last, 0, 2);
}

/* A block, with everything that each row needs, and its tiles. Several tiles are all as wide as the
 * instance says; the last one overlaps the one before it where the columns do not divide evenly. */
struct bag_tile_task {
    const struct bag_block *block;
    const struct bag_pool_args *args;
    const char *ids;       /* of entry 0 */
    const char *ids_ahead; /* of the entry that is prefetched while entry 0 is added */
    size_t id_bytes;       /* from one id to the next */
    const size_t *bounds;
    size_t num_bags;
    const char *rows;
    size_t row_elements;
    size_t row_bytes, out_bytes; /* from one row, or bag of the result, to the next */
    size_t result_bytes;         /* of one element of the result */
    size_t first_column, end_column;
    size_t num_tiles;
    size_t last_byte;  /* of a row that is read: of the last column, or of what follows it */
    bool singles_pass; /* a bag of one entry is that row: nothing divides or converts it */
    bool sums_pass;    /* sums are results: nothing divides or converts them */
    struct bag_fetch fetch;
};

typedef void bag_tile_fn(const struct bag_tile_task *task);

/* The instances for one kind of rows. */
struct bag_tile_set {
    /* Rows of one tile, of one vector first; NULL: such rows are split. */
    bag_tile_fn *whole[BAG_MODE_COUNT][BAG_TILE_VECTORS];
    /* Rows of several tiles of so many vectors each; NULL: those of the next larger are taken. */
    bag_tile_fn *split[BAG_MODE_COUNT][BAG_TILE_VECTORS];
    size_t largest_tile; /* vectors of the largest of them */
    size_t bits;         /* of an element */
    size_t lanes;        /* of a vector */
    size_t far_bytes;    /* how far ahead the rows of large tables are prefetched */
    int far_cache;       /* into which cache they are: 1 or 2 */
    bag_block_fn *below; /* pools what is narrower than one vector */
};

/* How a loop prefetches: with no entry, with those before fetch.end, or with all. */
enum bag_prefetching { BAG_PREFETCH_NONE, BAG_PREFETCH_SOME, BAG_PREFETCH };

static inline __attribute__((always_inline)) unsigned bag_kind_bits(enum bag_row_kind kind)
{
    static const unsigned bits_of[BAG_ROW_KIND_COUNT] = {
#define BAG_X(id, bits, vector) [BAG_KIND_OF_##id] = bits,
        BAG_ROW_KINDS(BAG_X)
#undef BAG_X
    };
    return bits_of[kind];
}

/* The checked id of an entry: it is not negative, and tables of more than 2^32 rows are pooled in
 * the general mode. So the lower half of an int64 id is enough, and its width is not tested per
 * row. */
static inline __attribute__((always_inline)) int64_t bag_checked_id(const char *ids,
                                                                    size_t id_bytes, size_t entry)
{
    uint32_t id;
    memcpy(&id, ids + entry * id_bytes, sizeof id);
    return id;
}

/* Pools a block with the instances of `set`. */
void bag_tiles_pool(const struct bag_block *block, const struct bag_tile_set *set);

#endif
