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

/* Prefetches the result of a later bag. A store that waits for its cache line would delay those
 * after it. */
BAG_LANE void K(fetch_result)(int vectors, const char *out)
{
    if (!bag_kind_converts(KIND))
        bag_fetch_lines(1, out, (size_t)K(sums_of)(vectors) * V(lanes) * sizeof(V(real)));
}

/* The bags of a call, and a position in them. */
struct K(bags) {
    const char *offset, *last; /* offsets of this bag and of the last one */
    size_t offset_bytes;       /* from one offset to the next */
    size_t entry, end;         /* the first entry of this bag and of the next one */
    size_t last_end;           /* end of the last bag */
    size_t fetch_end;          /* entries before this one have a row to prefetch */
    size_t ahead_bytes;        /* distance to the id of that row */
    char *out;                 /* result of this bag */
};

/* Finds the end of the bag. */
BAG_LANE void K(find_end)(struct K(bags) * bags)
{
    bags->end = bags->offset == bags->last ? bags->last_end
                                           : bag_load_id(bags->offset + bags->offset_bytes);
}

/* Moves to the next bag. Returns false if there is none. */
BAG_LANE bool K(next_bag)(const struct bag_pool_args *args, struct K(bags) * bags)
{
    if (bags->offset == bags->last)
        return false;
    bags->offset += bags->offset_bytes;
    bags->entry = bags->end;
    bags->out += args->bag_stride;
    K(find_end)(bags);
    return true;
}

/* Pools this bag, which has one entry. A mean of one row is the row. */
BAG_LANE void K(pool_single)(const struct K(tile) * tile, enum bag_mode mode, int vectors,
                             struct K(walk) * walk, const struct K(bags) * bags)
{
    BODY sums[BAG_TILE_VECTORS] BAG_UNSET;
    K(clear)(sums, vectors);
    if (__builtin_expect(bags->entry < bags->fetch_end, 0))
        K(fetch)(tile, vectors, bag_load_id(walk->id + bags->ahead_bytes));
    K(fetch_result)(vectors, bags->out + tile->args->bag_stride * (vectors <= 4 ? 8 : 2));
    K(take_next)(tile, mode, vectors, walk, sums);
    K(store_result)(tile, mode, vectors, true, bags->out, sums);
}

/* Pools this bag, which has entries: first those that have a row to prefetch, then the rest. Rows
 * of one cache line that need no conversion are added four at a time, which takes fewer
 * instructions. Bags of 20 entries in L2 take 0.83 of the time. */
BAG_LANE void K(pool_bag)(const struct K(tile) * tile, enum bag_mode mode, int vectors,
                          struct K(walk) * walk, const struct K(bags) * bags)
{
    const struct bag_pool_args *args = tile->args;
    const size_t entry = bags->entry, end = bags->end, fetch_end = bags->fetch_end;
    const char *const end_id = walk->id + (end - entry) * walk->id_bytes;
    const bool is_short = !bag_kind_converts(KIND) && vectors > 0 &&
                          (size_t)vectors * V(lanes) * sizeof(V(real)) <= 64;
    BODY sums[BAG_TILE_VECTORS] BAG_UNSET;
    K(clear)(sums, vectors);
    if (__builtin_expect(entry < fetch_end, 0)) {
        const size_t fetched = end < fetch_end ? end - entry : fetch_end - entry;
        const char *const fetched_id = walk->id + fetched * walk->id_bytes;
        K(fetch_result)(vectors, bags->out + args->bag_stride);
        do {
            K(fetch)(tile, vectors, bag_load_id(walk->id + bags->ahead_bytes));
            K(take_next)(tile, mode, vectors, walk, sums);
        } while (walk->id != fetched_id);
    }
    while (is_short && (size_t)(end_id - walk->id) >= 4 * walk->id_bytes) {
        K(take_next)(tile, mode, vectors, walk, sums);
        K(take_next)(tile, mode, vectors, walk, sums);
        K(take_next)(tile, mode, vectors, walk, sums);
        K(take_next)(tile, mode, vectors, walk, sums);
    }
    while (walk->id != end_id)
        K(take_next)(tile, mode, vectors, walk, sums);
    if (args->divides)
        K(divide_sums)(args, mode, vectors, entry, end, end - entry, sums);
    K(store_result)(tile, mode, vectors, false, bags->out, sums);
}

/* Pools the bags of a range, whose entries all stay. Offsets, ids and weights are not copied
 * first. Bags of one entry have so few instructions of their own that many rows are loaded at the
 * same time: in L2 they take two thirds of the time. */
BAG_LANE void K(pool_all)(const struct K(tile) * tile, const struct bag_range *range,
                          enum bag_mode mode, int vectors, char *out)
{
    const struct bag_pool_args *args = tile->args;
    const size_t offset_bytes = bag_id_bytes(&args->groups),
                 id_bytes = bag_id_bytes(&args->indices);
    const char *const offsets = args->groups.data;
    const char *const offset = offsets + range->first_bag * offset_bytes;
    const char *const end_offset = offsets + range->end_bag * offset_bytes;
    const size_t entry = bag_load_id(offset);
    struct K(bags) bags = {
        .offset = offset,
        .last = end_offset - offset_bytes,
        .offset_bytes = offset_bytes,
        .entry = entry,
        .last_end =
            range->end_bag < args->groups.count ? bag_load_id(end_offset) : args->indices.count,
        .fetch_end = bag_fetch_end(args, args->indices.count),
        .ahead_bytes = args->walk->ahead * id_bytes,
        .out = out,
    };
    struct K(walk) walk = {
        .id = (const char *)args->indices.data + entry * id_bytes,
        .weight = mode == BAG_MODE_WEIGHTED ? (const char *)args->weights + entry * sizeof(V(real))
                                            : NULL,
        .id_bytes = id_bytes,
    };
    K(find_end)(&bags);
    do {
        const bool has_singles = mode == BAG_MODE_PLAIN || !args->divides;
        while (bags.end - bags.entry == 1 && has_singles) {
            K(pool_single)(tile, mode, vectors, &walk, &bags);
            if (!K(next_bag)(args, &bags))
                return;
        }
        if (__builtin_expect(bags.end == bags.entry, 0))
            bag_ref_empty(args, range, bags.out);
        else
            K(pool_bag)(tile, mode, vectors, &walk, &bags);
    } while (K(next_bag)(args, &bags));
}

/* Pools a bag of the general mode, which tests which entries stay, and takes weights of every type.
 * Ids may be outside the table. Returns false if no entry stays. */
BAG_LANE bool K(pool_kept)(const struct K(tile) * tile, int vectors, size_t entry, size_t end,
                           char *out)
{
    const struct bag_pool_args *args = tile->args;
    const size_t first = entry, kept = bag_count_kept(args, first, end);
    const size_t fetch_end = bag_fetch_end(args, args->indices.count);
    const bool takes_larger = args->reduction == BAG_MAX;
    BODY sums[BAG_TILE_VECTORS] BAG_UNSET;
    bool is_first = true;
    if (kept == 0)
        return false;
    K(clear)(sums, vectors);
    for (; entry < end; entry++) {
        const int64_t id = bag_id_at(&args->indices, entry);
        if (entry < fetch_end)
            K(fetch)(tile, vectors, bag_id_at(&args->indices, entry + args->walk->ahead));
        if (!bag_keeps(args, entry, id))
            continue;
        const BODY weight = args->weights ? V(weight)(KIND, args, entry) : V(all)(1);
        K(take_row)
        (tile, BAG_MODE_GENERAL, vectors, id, weight, takes_larger, is_first, sums);
        is_first = false;
    }
    if (args->divides)
        K(divide_sums)(args, BAG_MODE_GENERAL, vectors, first, end, kept, sums);
    K(store_result)(tile, BAG_MODE_GENERAL, vectors, false, out, sums);
    return true;
}

/* Pools the bags of a range, which has the columns of the tile. */
BAG_LANE void K(pool_tile)(const struct K(tile) * tile, const struct bag_range *range,
                           enum bag_mode mode, int vectors, char *out)
{
    const struct bag_pool_args *args = tile->args;
    const size_t out_bytes = args->bag_stride;
    out += range->first_bag * out_bytes + range->first_column * args->element_bytes;
    if (mode != BAG_MODE_GENERAL) {
        K(pool_all)(tile, range, mode, vectors, out);
        return;
    }
    for (size_t bag = range->first_bag; bag < range->end_bag; bag++, out += out_bytes) {
        if (!K(pool_kept)(tile, vectors, bag_offset_at(args, bag), bag_offset_at(args, bag + 1),
                          out))
            bag_ref_empty(args, range, out);
    }
}

BAG_LANE void K(pool)(const struct bag_pool_args *args, const struct bag_range *range, char *out,
                      enum bag_mode mode, int vectors)
{
    if (args->walk->fetch == BAG_FETCH_FAR)
        bag_fetch_first(args, range);
    const struct K(tile) tile = K(tile_of)(args, range, vectors);
#if BAG_NARROW_ROWS
    /* The work for a row of a few columns is so small that a separate loop for each width is
     * faster. */
    if (vectors == 0 && mode != BAG_MODE_GENERAL && !bag_kind_is_rare(KIND)) {
        struct K(tile) narrow = tile;
        narrow.some.part = 4;
        if (tile.some.part == 4)
            K(pool_tile)(&narrow, range, mode, vectors, out);
        narrow.some.part = 2;
        if (tile.some.part == 2)
            K(pool_tile)(&narrow, range, mode, vectors, out);
        narrow.some.part = 1;
        if (tile.some.part == 1)
            K(pool_tile)(&narrow, range, mode, vectors, out);
        return;
    }
#endif
    K(pool_tile)(&tile, range, mode, vectors, out);
}

#undef KIND
#undef K
#undef V
#undef BODY_JOIN
#undef BODY_JOIN_
#undef BODY
#undef BODY_KIND
