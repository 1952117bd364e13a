/* The loop of all SIMD kernels. Included once for each kind of rows, after
 *
 *   #define BODY_KIND  the kind: F32 of BAG_KIND_OF_F32
 *   #define BODY       f32v or f64v, the prefix of the operations on its vectors
 *
 * It defines KIND_pool. Mode and number of vectors are constants in each instance. The kind is a
 * constant of each inclusion instead of a parameter. A compiler inlines a whole function before it
 * drops the code that a constant argument excludes, so the other kinds would double its time. */
#define BODY_JOIN_(a, b) a##_##b
#define BODY_JOIN(a, b)  BODY_JOIN_(a, b)
#define V(name)          BODY_JOIN(BODY, name)
#define K(name)          BODY_JOIN(BODY_KIND, name)
#define KIND             BODY_JOIN(BAG_KIND_OF, BODY_KIND)

#include "pool_tile_tmpl.h"

/* The number of vectors of the tiles of wide rows in memory; 0: such rows have the tiles of others.
 * Tiles of f16, bf16 and int8 have 128 bytes. If they are wider, too few rows are loaded at the
 * same time, and bags of 20 entries and more take up to twice the time. */
enum {
    K(wide_vectors) = KIND == BAG_KIND_OF_F32                               ? V(lanes)
                      : KIND == BAG_KIND_OF_F64                             ? 4
                      : KIND == BAG_KIND_OF_INT8                            ? 128 / V(lanes)
                      : KIND == BAG_KIND_OF_F16 || KIND == BAG_KIND_OF_BF16 ? 64 / V(lanes)
                                                                            : 0
};

/* Returns how many bytes after a tile's part of a row are prefetched with it: 0 except for wide
 * rows in memory. It is the constant 0 in most instances, which such rows do not use. In the
 * general mode they have tiles of four vectors. */
BAG_LANE size_t K(beyond)(enum bag_mode mode, int vectors, const struct K(tile) * tile)
{
    const int wide = mode == BAG_MODE_GENERAL && K(wide_vectors) > 4 ? 4 : K(wide_vectors);
    const size_t further = bag_kind_bytes(KIND, tile->all->further);
    const size_t left = further - (size_t)(tile->rows - tile->all->rows);
    if (vectors == 0 || vectors != wide)
        return 0;
    return tile->all->fetched_beyond < left ? tile->all->fetched_beyond : left;
}

/* Returns whether a tile is so small that a test at each row takes up to a tenth of the time, and
 * of single rows a fifth. Then there is a loop for each outcome: whether rows are prefetched into
 * L1, and whether the results of single rows are narrower. */
BAG_LANE bool K(is_small)(int vectors)
{
    return vectors == 1 || vectors == 2;
}

/* A position in the ids of a call, and in its weights if there are any. */
struct K(walk) {
    const char *id, *weight; /* id and weight of the next entry */
    size_t id_bytes;         /* from one id to the next */
};

/* Adds the next row. */
BAG_LANE void K(take_next)(const struct K(tile) * tile, enum bag_mode mode, int vectors,
                           struct K(walk) * walk, BODY *sums)
{
    const BODY weight = mode == BAG_MODE_WEIGHTED ? V(all)(V(load_one)(walk->weight)) : V(zero)();
    K(take_row)(tile, mode, vectors, bag_load_id(walk->id), weight, false, false, sums);
    walk->id += walk->id_bytes;
    if (mode == BAG_MODE_WEIGHTED)
        walk->weight += sizeof(V(real));
}

/* Adds the rows up to the id at `end_id`. INT8 rows whose scale and bias are f32 have
 * a loop of their own: a test at each row takes a fifth of the instructions for a vector. */
BAG_LANE void K(take_rest)(const struct K(tile) * tile, enum bag_mode mode, int vectors,
                           struct K(walk) * walk, const char *end_id, BODY *sums)
{
    struct K(tile) full = *tile;
    full.half_params = false;
    if (KIND == BAG_KIND_OF_INT8 && !tile->half_params)
        while (walk->id != end_id)
            K(take_next)(&full, mode, vectors, walk, sums);
    else
        while (walk->id != end_id)
            K(take_next)(tile, mode, vectors, walk, sums);
}

/* Prefetches the result of a later bag. A store that waits for its cache line would delay those
 * after it. */
BAG_LANE void K(fetch_result)(int vectors, const char *out)
{
    const size_t bytes = (size_t)K(sums_of)(vectors) * V(lanes) * sizeof(V(real));
    if (!bag_kind_converts(KIND))
        bag_fetch_lines(1, bytes > 64 ? bag_in_register(out) : out, bytes);
}

/* The bags of a call, and a position in them. */
struct K(bags) {
    const char *ids;         /* the call's */
    const char *next;        /* offset of the bag after this one */
    const char *next_end;    /* offset of the bag after the last one to pool */
    const char *offsets_end; /* end of the call's offsets: without one, a bag ends with the ids */
    size_t offset_bytes;     /* from one offset to the next */
    const char *end_id;      /* end of the ids of this bag */
    const char *fetch_end;   /* ids before this one have a row to prefetch */
    char *out;               /* result of this bag */
    bool finishes;           /* sums are divided, or results are narrower */
    bool is_several;         /* a row has several tiles */
};

/* Returns the first entry of this bag. */
BAG_LANE size_t K(first_entry)(const struct K(bags) * bags)
{
    return bag_load_id(bags->next - bags->offset_bytes);
}

/* Moves to the first entry of a bag. */
BAG_LANE void K(begin)(const struct bag_pool_args *args, enum bag_mode mode, size_t entry,
                       struct K(walk) * walk)
{
    walk->id = (const char *)args->indices.data + entry * walk->id_bytes;
    if (mode == BAG_MODE_WEIGHTED)
        walk->weight = (const char *)args->weights + entry * sizeof(V(real));
}

/* Moves by `count` bags. Does not set the end of the bag's ids. */
BAG_LANE void K(skip)(const struct bag_pool_args *args, struct K(bags) * bags, size_t count)
{
    bags->next += count * bags->offset_bytes;
    bags->out += count * args->bag_stride;
}

/* The maximum number of bags of one entry whose first tile is pooled before the next one: their
 * rows stay in L1. */
#define TURN_BAGS 16

/* Pools this bag, which has one entry, and those after it that have one, too; moves to the last of
 * them. Their offsets are read before their rows: many rows are loaded at the same time if the loop
 * has few instructions of its own. A mean of one row is the row. `narrows`: see K(narrows). */
BAG_LANE void K(pool_singles)(struct K(tile) * tile, enum bag_mode mode, int vectors, bool narrows,
                              struct K(walk) * walk, struct K(bags) * bags)
{
    const bool is_last = bags->next == bags->next_end;
    const size_t count =
        is_last ? 1
                : count_singles(tile->args, bags->next - bags->offset_bytes, bags->next_end,
                                bags->is_several ? TURN_BAGS : SIZE_MAX);
    const char *const end_id = walk->id + count * walk->id_bytes;
    const struct K(way) way = K(way_of)(tile);
    const size_t ahead_bytes = way.ahead * walk->id_bytes;
    size_t stride = tile->args->bag_stride;
    char *out = bags->out;
    size_t beyond = K(beyond)(mode, vectors, tile);
    /* The compiler would compute multiples of the stride for calls without such bags, too. */
    __asm__("" : "+r"(stride));
    for (;;) {
        BODY sums[BAG_TILE_VECTORS] BAG_UNSET;
        K(clear)(sums, vectors);
        if (__builtin_expect(walk->id < bags->fetch_end, 0)) {
            if (beyond > 0)
                K(fetch_wide)(way, beyond, tile, vectors, bag_load_id(walk->id + ahead_bytes));
            else
                K(fetch)(way, tile, vectors, bag_load_id(walk->id + ahead_bytes));
        }
        K(fetch_result)(vectors, out + stride * (vectors <= 4 ? 8 : 2));
        K(take_next)(tile, mode, vectors, walk, sums);
        if (__builtin_expect(narrows, 0))
            K(store_narrower)(tile, mode, vectors, true, out, sums);
        else
            K(store_sums)(tile, vectors, out, sums);
        out += stride;
        if (walk->id != end_id)
            continue;
        if (__builtin_expect(!bags->is_several, 1) || !K(move)(tile, vectors, &bags->out))
            break;
        K(begin)(tile->args, mode, K(first_entry)(bags), walk);
        beyond = K(beyond)(mode, vectors, tile);
        out = bags->out;
    }
    K(skip)(tile->args, bags, count - 1);
}

/* Pools a tile of this bag, which has entries: first those that have a row to prefetch, then the
 * rest. Rows of one cache line that need no conversion are added four at a time, which takes fewer
 * instructions. Bags of 20 entries in L2 take 0.83 of the time. */
BAG_LANE void K(pool_bag)(const struct K(tile) * tile, enum bag_mode mode, int vectors,
                          struct K(walk) * walk, const struct K(bags) * bags)
{
    const struct bag_pool_args *args = tile->args;
    const char *const end_id = bags->end_id;
    const bool is_short = !bag_kind_converts(KIND) && vectors > 0 &&
                          (size_t)vectors * V(lanes) * sizeof(V(real)) <= 64;
    BODY sums[BAG_TILE_VECTORS] BAG_UNSET;
    K(clear)(sums, vectors);
    if (__builtin_expect(walk->id < bags->fetch_end, 0)) {
        const char *const fetched_id = end_id < bags->fetch_end ? end_id : bags->fetch_end;
        const struct K(way) way = K(way_of)(tile);
        const size_t ahead_bytes = way.ahead * walk->id_bytes;
        const size_t beyond = K(beyond)(mode, vectors, tile);
        K(fetch_result)(vectors, bags->out + args->bag_stride);
        /* Wide rows have a loop of their own. With one for all, bags of 5 rows of one f16 tile of
         * 64 columns take 1.15 of the time. */
        if (__builtin_expect(beyond > 0, 0))
            do {
                K(fetch_wide)(way, beyond, tile, vectors, bag_load_id(walk->id + ahead_bytes));
                K(take_next)(tile, mode, vectors, walk, sums);
            } while (walk->id != fetched_id);
        else if (K(is_small)(vectors) && way.to_first)
            do {
                K(fetch_into)(1, way.straddles, tile, vectors, bag_load_id(walk->id + ahead_bytes));
                K(take_next)(tile, mode, vectors, walk, sums);
            } while (walk->id != fetched_id);
        else
            do {
                K(fetch)(way, tile, vectors, bag_load_id(walk->id + ahead_bytes));
                K(take_next)(tile, mode, vectors, walk, sums);
            } while (walk->id != fetched_id);
    }
    while (is_short && (size_t)(end_id - walk->id) >= 4 * walk->id_bytes) {
        K(take_next)(tile, mode, vectors, walk, sums);
        K(take_next)(tile, mode, vectors, walk, sums);
        K(take_next)(tile, mode, vectors, walk, sums);
        K(take_next)(tile, mode, vectors, walk, sums);
    }
    K(take_rest)(tile, mode, vectors, walk, end_id, sums);
    if (__builtin_expect(bags->finishes, 0)) {
        if (args->divides) {
            const size_t first = K(first_entry)(bags);
            const size_t end = bag_count_ids((size_t)(end_id - bags->ids), walk->id_bytes);
            K(divide_sums)(args, mode, vectors, first, end, end - first, sums);
        }
        if (K(narrows)(args)) {
            K(store_narrower)(tile, mode, vectors, false, bags->out, sums);
            return;
        }
    }
    K(store_sums)(tile, vectors, bags->out, sums);
}

/* Pools bags whose entries all stay, and all tiles of a bag while its rows are in the nearest
 * caches. Offsets, ids and weights are not copied first. Bags of one entry have so few instructions
 * of their own that many rows are loaded at the same time: in L2 they take two thirds of the
 * time. */
BAG_LANE void K(pool_all)(const struct K(tile) * first, size_t first_bag, size_t end_bag,
                          enum bag_mode mode, int vectors, char *out)
{
    const struct bag_pool_args *args = first->args;
    const size_t offset_bytes = bag_id_bytes(&args->groups);
    const size_t id_bytes = bag_id_bytes(&args->indices);
    const char *const ids = args->indices.data;
    const char *const offsets = args->groups.data;
    const char *const offset = offsets + first_bag * offset_bytes;
    struct K(bags) bags = {
        .ids = ids,
        .next = offset + offset_bytes,
        .next_end = offsets + end_bag * offset_bytes,
        .offsets_end = offsets + args->groups.count * offset_bytes,
        .offset_bytes = offset_bytes,
        .fetch_end = ids + bag_fetch_end(args, args->indices.count) * id_bytes,
        .out = out,
        .finishes = args->divides | K(narrows)(args),
        /* A tile of one vector is a row's only one: two vectors cost less than two tiles. */
        .is_several = vectors > 1 && first->all->further > 0,
    };
    struct K(walk) walk = {.id_bytes = id_bytes};
    struct K(tile) tile = *first;
    const bool has_singles = !bag_kind_is_rare(KIND) && (mode == BAG_MODE_PLAIN || !args->divides);
    const bool has_narrow_singles = bag_kind_converts(KIND) && K(is_small)(vectors);
    K(begin)(args, mode, bag_load_id(offset), &walk);
    for (;;) {
        const bool is_last = __builtin_expect(bags.next == bags.offsets_end, 0);
        bags.end_id = ids + (is_last ? args->indices.count : bag_load_id(bags.next)) * id_bytes;
        const size_t bytes = (size_t)(bags.end_id - walk.id);
        if (__builtin_expect(bytes > id_bytes, 1) || (bytes != 0 && !has_singles)) {
            K(pool_bag)(&tile, mode, vectors, &walk, &bags);
            if (__builtin_expect(bags.is_several, 0) && K(move)(&tile, vectors, &bags.out)) {
                K(begin)(args, mode, K(first_entry)(&bags), &walk);
                continue;
            }
        } else if (bytes != 0) {
            const bool narrows = K(narrows)(args);
            if (has_narrow_singles && narrows)
                K(pool_singles)(&tile, mode, vectors, true, &walk, &bags);
            else
                K(pool_singles)(&tile, mode, vectors, narrows, &walk, &bags);
        } else {
            bag_ref_empty(args, tile.all, bags.out);
        }
        if (bags.next == bags.next_end)
            return;
        K(skip)(args, &bags, 1);
    }
}

/* Pools a tile of a bag of the general mode, which tests which entries stay, and takes weights of
 * every type. Ids may be outside the table. `kept` entries stay, at least one. All rows are
 * prefetched into L2: in this mode L1 gains nothing. */
BAG_LANE void K(pool_kept)(const struct K(tile) * tile, int vectors, size_t first, size_t end,
                           size_t kept, char *out)
{
    const struct bag_pool_args *args = tile->args;
    const size_t fetch_end = bag_fetch_end(args, args->indices.count);
    const bool takes_larger = args->reduction == BAG_MAX;
    const struct K(way) way = K(way_of)(tile);
    const size_t beyond = K(beyond)(BAG_MODE_GENERAL, vectors, tile);
    BODY sums[BAG_TILE_VECTORS] BAG_UNSET;
    bool is_first = true;
    K(clear)(sums, vectors);
    for (size_t entry = first; entry < end; entry++) {
        const int64_t id = bag_id_at(&args->indices, entry);
        if (entry < fetch_end)
            K(fetch_wide)(way, beyond, tile, vectors, bag_id_at(&args->indices, entry + way.ahead));
        if (!bag_keeps(args, entry, id))
            continue;
        const BODY weight = args->weights ? V(weight)(KIND, args, entry) : V(all)(1);
        K(take_row)
        (tile, BAG_MODE_GENERAL, vectors, id, weight, takes_larger, is_first, sums);
        is_first = false;
    }
    if (args->divides)
        K(divide_sums)(args, BAG_MODE_GENERAL, vectors, first, end, kept, sums);
    if (K(narrows)(args))
        K(store_narrower)(tile, BAG_MODE_GENERAL, vectors, false, out, sums);
    else
        K(store_sums)(tile, vectors, out, sums);
}

/* Pools bags of the general mode. */
BAG_LANE void K(pool_some)(const struct K(tile) * first, size_t first_bag, size_t end_bag,
                           int vectors, char *out)
{
    const struct bag_pool_args *args = first->args;
    for (size_t bag = first_bag; bag < end_bag; bag++, out += args->bag_stride) {
        const size_t entry = bag_offset_at(args, bag), end = bag_offset_at(args, bag + 1);
        const size_t kept = bag_count_kept(args, entry, end);
        struct K(tile) tile = *first;
        char *to = out;
        if (kept == 0) {
            bag_ref_empty(args, first->all, out);
            continue;
        }
        do
            K(pool_kept)(&tile, vectors, entry, end, kept, to);
        while (vectors > 0 && K(move)(&tile, vectors, &to));
    }
}

/* Pools bags. */
BAG_LANE void K(pool_tile)(const struct K(tile) * tile, size_t first_bag, size_t end_bag,
                           enum bag_mode mode, int vectors, char *out)
{
    if (mode == BAG_MODE_GENERAL)
        K(pool_some)(tile, first_bag, end_bag, vectors, out);
    else
        K(pool_all)(tile, first_bag, end_bag, mode, vectors, out);
}

BAG_LANE void K(pool)(const struct bag_pool_args *args, const struct bag_tiles *tiles,
                      size_t first_bag, size_t end_bag, char *out, enum bag_mode mode, int vectors)
{
    const struct K(tile) tile = K(tile_of)(args, tiles, vectors);
#if BAG_NARROW_ROWS
    /* The work for a row of a few columns is so small that a separate loop for each width is
     * faster. */
    if (vectors == 0 && !bag_kind_is_rare(KIND) &&
        (mode == BAG_MODE_PLAIN || (mode == BAG_MODE_WEIGHTED && KIND == BAG_KIND_OF_F32))) {
        struct K(tile) narrow = tile;
        narrow.some.part = 4;
        if (tile.some.part == 4)
            K(pool_tile)(&narrow, first_bag, end_bag, mode, vectors, out);
        narrow.some.part = 2;
        if (tile.some.part == 2)
            K(pool_tile)(&narrow, first_bag, end_bag, mode, vectors, out);
        narrow.some.part = 1;
        if (tile.some.part == 1)
            K(pool_tile)(&narrow, first_bag, end_bag, mode, vectors, out);
        return;
    }
#endif
    K(pool_tile)(&tile, first_bag, end_bag, mode, vectors, out);
}

#undef TURN_BAGS
#undef KIND
#undef K
#undef V
#undef BODY_JOIN
#undef BODY_JOIN_
#undef BODY
#undef BODY_KIND
