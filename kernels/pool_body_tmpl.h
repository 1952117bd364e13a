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
    const char *end_offset;    /* end of all offsets of the call */
    const char *ids;           /* the call's */
    const char *end_id;        /* end of the ids of this bag */
    const char *fetch_end;     /* ids before this one have a row to prefetch */
    char *out;                 /* result of this bag */
};

/* Returns the entry at which the bag ends. After the last offset it is the end of all. */
BAG_LANE size_t K(end_of)(const struct bag_pool_args *args, const struct K(bags) * bags)
{
    const char *const next = bags->offset + bags->offset_bytes;
    return next == bags->end_offset ? args->indices.count : bag_load_id(next);
}

/* Moves to the next bag. Returns false if there is none. */
BAG_LANE bool K(next_bag)(const struct bag_pool_args *args, size_t id_bytes, struct K(bags) * bags)
{
    if (bags->offset == bags->last)
        return false;
    bags->offset += bags->offset_bytes;
    bags->out += args->bag_stride;
    bags->end_id = bags->ids + K(end_of)(args, bags) * id_bytes;
    return true;
}

/* Counts the bags from this one on that have one entry each, as this one has, and moves to the last
 * of them. */
BAG_LANE size_t K(skip_singles)(const struct bag_pool_args *args, struct K(bags) * bags)
{
    const size_t first = bag_load_id(bags->offset);
    size_t count = 1;
    while (bags->offset != bags->last &&
           bag_load_id(bags->offset + bags->offset_bytes) == first + count) {
        bags->offset += bags->offset_bytes;
        count++;
    }
    if (K(end_of)(args, bags) == first + count)
        return count;
    bags->offset -= bags->offset_bytes;
    return count - 1;
}

/* Pools this bag, which has one entry, and those after it that have one, too. Their offsets are
 * read before their rows: many rows are loaded at the same time if the loop has few instructions of
 * its own. A mean of one row is the row. */
BAG_LANE void K(pool_singles)(const struct K(tile) * tile, enum bag_mode mode, int vectors,
                              struct K(walk) * walk, struct K(bags) * bags)
{
    /* The compiler keeps copies in registers, because no result can change them. */
    const struct bag_tile own = *tile->own;
    const struct bag_row_walk table = *tile->walk;
    struct K(tile) copy = *tile;
    const size_t stride = tile->args->bag_stride;
    const char *const end_id = walk->id + K(skip_singles)(tile->args, bags) * walk->id_bytes;
    const size_t ahead_bytes = table.ahead * walk->id_bytes;
    copy.own = &own;
    copy.walk = &table;
    for (;;) {
        BODY sums[BAG_TILE_VECTORS] BAG_UNSET;
        K(clear)(sums, vectors);
        if (__builtin_expect(walk->id < bags->fetch_end, 0))
            K(fetch)(&copy, vectors, bag_load_id(walk->id + ahead_bytes));
        K(fetch_result)(vectors, bags->out + stride * (vectors <= 4 ? 8 : 2));
        K(take_next)(&copy, mode, vectors, walk, sums);
        K(store_result)(&copy, mode, vectors, true, bags->out, sums);
        if (walk->id == end_id)
            return;
        bags->out += stride;
    }
}

/* Pools this bag, which has entries: first those that have a row to prefetch, then the rest. Rows
 * of one cache line that need no conversion are added four at a time, which takes fewer
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
        const size_t ahead_bytes = tile->walk->ahead * walk->id_bytes;
        K(fetch_result)(vectors, bags->out + args->bag_stride);
        do {
            K(fetch)(tile, vectors, bag_load_id(walk->id + ahead_bytes));
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
    if (args->divides) {
        const size_t entry = bag_load_id(bags->offset), end = K(end_of)(args, bags);
        K(divide_sums)(args, mode, vectors, entry, end, end - entry, sums);
    }
    K(store_result)(tile, mode, vectors, false, bags->out, sums);
}

/* Pools bags whose entries all stay. Offsets, ids and weights are not copied first. Bags of one
 * entry have so few instructions of their own that many rows are loaded at the same time: in L2
 * they take two thirds of the time. */
BAG_LANE void K(pool_all)(const struct K(tile) * tile, size_t first_bag, size_t end_bag,
                          enum bag_mode mode, int vectors, char *out)
{
    const struct bag_pool_args *args = tile->args;
    const size_t offset_bytes = bag_id_bytes(&args->groups);
    const size_t id_bytes = bag_id_bytes(&args->indices);
    const char *const ids = args->indices.data;
    const char *const offsets = args->groups.data;
    const char *const offset = offsets + first_bag * offset_bytes;
    const size_t entry = bag_load_id(offset);
    struct K(bags) bags = {
        .offset = offset,
        .last = offsets + (end_bag - 1) * offset_bytes,
        .offset_bytes = offset_bytes,
        .end_offset = offsets + args->groups.count * offset_bytes,
        .ids = ids,
        .fetch_end = ids + bag_fetch_end(args, args->indices.count) * id_bytes,
        .out = out,
    };
    struct K(walk) walk = {
        .id = ids + entry * id_bytes,
        .weight = mode == BAG_MODE_WEIGHTED ? (const char *)args->weights + entry * sizeof(V(real))
                                            : NULL,
        .id_bytes = id_bytes,
    };
    bags.end_id = ids + K(end_of)(args, &bags) * id_bytes;
    do {
        const bool has_singles =
            mode == BAG_MODE_PLAIN || (!bag_kind_is_rare(KIND) && !args->divides);
        if (has_singles && (size_t)(bags.end_id - walk.id) == id_bytes)
            K(pool_singles)(tile, mode, vectors, &walk, &bags);
        else if (__builtin_expect(bags.end_id == walk.id, 0))
            bag_ref_empty(args, tile->own, bags.out);
        else
            K(pool_bag)(tile, mode, vectors, &walk, &bags);
    } while (K(next_bag)(args, id_bytes, &bags));
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

/* Pools the tile of some bags. */
BAG_LANE void K(pool_tile)(const struct K(tile) * tile, size_t first_bag, size_t end_bag,
                           enum bag_mode mode, int vectors, char *out)
{
    const struct bag_pool_args *args = tile->args;
    if (mode != BAG_MODE_GENERAL) {
        K(pool_all)(tile, first_bag, end_bag, mode, vectors, out);
        return;
    }
    for (size_t bag = first_bag; bag < end_bag; bag++, out += args->bag_stride) {
        if (!K(pool_kept)(tile, vectors, bag_offset_at(args, bag), bag_offset_at(args, bag + 1),
                          out))
            bag_ref_empty(args, tile->own, out);
    }
}

BAG_LANE void K(pool)(const struct bag_pool_args *args, const struct bag_tile *own,
                      size_t first_bag, size_t end_bag, char *out, enum bag_mode mode, int vectors)
{
    const size_t columns = own->end_column - own->first_column;
    if (args->walk->fetch == BAG_FETCH_FAR && columns == args->table.row_elements)
        bag_fetch_first(args, first_bag, end_bag);
    const struct K(tile) tile = K(tile_of)(args, own, vectors);
#if BAG_NARROW_ROWS
    /* The work for a row of a few columns is so small that a separate loop for each width is
     * faster. */
    if (vectors == 0 && mode != BAG_MODE_GENERAL && !bag_kind_is_rare(KIND)) {
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

#undef KIND
#undef K
#undef V
#undef BODY_JOIN
#undef BODY_JOIN_
#undef BODY
#undef BODY_KIND
