/* Cutting a block into tiles, and choosing the instance of the loop that pools each; what every
 * instruction set does alike.
 *
 * Must not know: instruction sets. */
#ifndef BAG_POOL_TILES_H
#define BAG_POOL_TILES_H

#include "dispatch.h"
#include "pool_fetch.h"
#include "pool_ref.h"

/* What the rows of a bag are put through. GENERAL also asks which entries stay, and knows max. */
enum bag_mode { BAG_MODE_PLAIN, BAG_MODE_WEIGHTED, BAG_MODE_GENERAL, BAG_MODE_COUNT };

/* The most vectors of a tile. */
#define BAG_TILE_VECTORS 8

/* A block with what every row asks for at hand, and how its columns are cut into tiles. Where there
 * are several, all are as wide as the instance says, and the last one overlaps the one before where
 * it must. */
struct bag_tile_task {
    const struct bag_block *block;
    const struct bag_pool_args *args;
    const char *ids;       /* of entry 0, */
    const char *ids_ahead; /* of the entry that is fetched while entry 0 is added, */
    size_t id_bytes;       /* and from one to the next */
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
    bag_tile_fn *pool[BAG_MODE_COUNT][BAG_TILE_VECTORS]; /* one vector first */
    size_t bits;                                         /* of an element */
    size_t lanes;                                        /* of a vector */
    size_t whole_vectors;                                /* rows of up to so many are one tile */
    size_t tile_vectors; /* longer rows are cut into tiles of at most so many */
    size_t far_bytes;    /* how far ahead the rows of large tables are fetched, */
    int far_cache;       /* and into which cache: 1 or 2 */
    bag_block_fn *below; /* pools what is narrower than one vector */
};

static inline __attribute__((always_inline)) unsigned bag_kind_bits(enum bag_row_kind kind)
{
    static const unsigned bits_of[BAG_ROW_KIND_COUNT] = {
#define BAG_X(id, bits, vocabulary) [BAG_KIND_OF_##id] = bits,
        BAG_ROW_KINDS(BAG_X)
#undef BAG_X
    };
    return bits_of[kind];
}

/* The id of an entry whose id was checked: it is not negative, and a table of more rows than four
 * bytes can number is pooled in the general mode. So the lower half of a wide one says it all, and
 * nobody asks for every row how wide they are. */
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
