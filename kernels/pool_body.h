/* The loop of all SIMD kernels. Included once for each kind of rows, after
 *
 *   #define BODY_KIND  the kind: F32 of BAG_KIND_OF_F32
 *   #define BODY       f32v or f64v, the prefix of the operations on its vectors
 *
 * and the definitions of pool_instances.h about prefetching. It defines KIND_pool_bags,
 * KIND_pool_singles and KIND_pool_near. The number of vectors of a tile is a constant in each
 * instance. The kind is a constant of each inclusion instead of a parameter. A compiler inlines a
 * whole function before it drops the code that a constant argument excludes, so the other kinds
 * would double its time. */
#define BODY_JOIN_(a, b) a##_##b
#define BODY_JOIN(a, b)  BODY_JOIN_(a, b)
#define V(name)          BODY_JOIN(BODY, name)
#define K(name)          BODY_JOIN(BODY_KIND, name)
#define KIND             BODY_JOIN(BAG_KIND_OF, BODY_KIND)

#include "pool_tile.h"

/* The position of a loop over entries: an entry, which only weights need, and its id. */
struct K(place) {
    size_t entry;
    const char *id;
};

/* Adds `count` rows and moves to the entry after them. */
BAG_LANE void K(take_some)(const struct bag_rows *rows, bool half, enum bag_mode mode, int vectors,
                           const struct K(tile) * tile, struct K(place) * place, size_t count,
                           BODY *sums)
{
#pragma GCC unroll 4
    for (size_t i = 0; i < count; i++) {
        int64_t id = bag_checked_id(place->id + i * rows->id_bytes);
        K(take_row)(rows, half, mode, vectors, tile, place->entry + i, id, false, sums);
    }
    place->entry += count;
    place->id += count * rows->id_bytes;
}

/* Adds the rows from `place` up to the id at `end` to the sums. First the rows that have a row to
 * prefetch, then the rest. Rows of one cache line are added several at a time, which takes fewer
 * instructions. Elements that take long to widen, or are rare, have one loop for all rows. */
BAG_LANE void K(take_rows)(const struct bag_rows *rows, bool half, enum bag_mode mode, int vectors,
                           const struct K(tile) * tile, bool fetches, struct K(place) * place,
                           const char *end, BODY *sums)
{
    const bool one_loop = KIND == BAG_KIND_OF_E4M3 || KIND == BAG_KIND_OF_E5M2 ||
                          KIND == BAG_KIND_OF_SINT8 || KIND == BAG_KIND_OF_INT2;
    const bool short_rows = (size_t)vectors * V(lanes) * bag_kind_bits(KIND) <= 512;
    const size_t turn = short_rows && !bag_kind_converts(KIND) && vectors > 0 ? 4 : 1;
    const char *fetch_end = rows->fetch_end < end ? rows->fetch_end : end;
    while ((fetches || one_loop) && place->id < (one_loop ? end : fetch_end)) {
        if (fetches && (!one_loop || place->id < fetch_end))
            K(fetch)(rows, vectors, tile, bag_checked_id(place->id + rows->ahead_bytes));
        K(take_some)(rows, half, mode, vectors, tile, place, 1, sums);
    }
    while (turn > 1 && (size_t)(end - place->id) >= turn * rows->id_bytes)
        K(take_some)(rows, half, mode, vectors, tile, place, turn, sums);
    while (!one_loop && place->id < end)
        K(take_some)(rows, half, mode, vectors, tile, place, 1, sums);
}

/* Adds the rows of the general mode, which tests which entries stay. Ids may be outside the
 * table. */
BAG_LANE void K(take_kept)(const struct bag_rows *rows, int vectors, const struct K(tile) * tile,
                           size_t entry, size_t end, BODY *sums)
{
    const struct bag_ids *ids = &rows->args->indices;
    bool is_first = true;
    for (; entry < end; entry++) {
        int64_t id = bag_id_at(ids, entry);
        if (entry < rows->block->fetch_end)
            K(fetch)
        (rows, vectors, tile, bag_id_at(ids, entry + rows->args->walk->ahead));
        if (!bag_keeps(rows->args, entry, id))
            continue;
        K(take_row)
        (rows, rows->half_params, BAG_MODE_GENERAL, vectors, tile, entry, id, is_first, sums);
        is_first = false;
    }
}

/* Prefetches the result of a later bag. A store that waits for its cache line would delay those
 * after it. */
BAG_LANE void K(fetch_result)(int vectors, const char *out)
{
    if (!bag_kind_converts(KIND))
        bag_fetch_lines(1, out, (size_t)K(sums_of)(vectors) * V(lanes) * sizeof(V(real)));
}

/* Pools all tiles of each bag before the next bag, while its pages are in the TLB. `only` is the
 * tile of all columns, or NULL if there are several. */
BAG_LANE void K(pool_each)(const struct bag_rows *rows, bool half, enum bag_mode mode, int vectors,
                           const struct K(tile) * only, bool fetches)
{
    const size_t *bounds = rows->block->bounds, out_bytes = rows->args->bag_stride;
    const size_t columns = rows->block->end_column - rows->block->first_column;
    const size_t width = (size_t)vectors * V(lanes);
    const size_t num_tiles = only ? 1 : (columns + width - 1) / width;
    for (size_t bag = 0; bag < rows->block->num_bags; bag++, bounds++) {
        const char *first = rows->ids + bounds[0] * rows->id_bytes;
        const char *end = rows->ids + bounds[1] * rows->id_bytes;
        size_t kept = bounds[1] - bounds[0];
        if (mode == BAG_MODE_GENERAL)
            kept = bag_count_kept(rows->args, bounds[0], bounds[1]);
        if (kept == 0) {
            bag_ref_empty(rows->block, bag);
            continue;
        }
        for (size_t number = 0; number < num_tiles; number++) {
            const struct K(tile) tile = only ? *only : K(tile_at)(rows, vectors, number);
            BODY sums[BAG_TILE_VECTORS] BAG_UNSET;
            struct K(place) place = {bounds[0], first};
            char *out = tile.out + bag * out_bytes;
            K(clear)(sums, vectors);
            if (fetches && rows->fetch_end > rows->ids)
                K(fetch_result)(vectors, out + out_bytes);
            if (mode == BAG_MODE_GENERAL)
                K(take_kept)(rows, vectors, &tile, bounds[0], bounds[1], sums);
            else
                K(take_rows)(rows, half, mode, vectors, &tile, fetches, &place, end, sums);
            if (rows->args->divides)
                K(divide_sums)(rows, mode, vectors, bounds, kept, sums);
            K(store_result)(mode, vectors, &tile, rows->args->output_dtype, false, out, sums);
        }
    }
}

/* Pools bags of one tile whose entries all stay, from `bag` on, until one is empty. Returns the
 * index of that bag. It calls no functions, so that the data for each bag stays in registers. */
BAG_LANE size_t K(pool_full)(const struct bag_rows *rows, bool half, enum bag_mode mode,
                             int vectors, const struct K(tile) * tile, size_t bag)
{
    const size_t *bounds = rows->block->bounds + bag;
    const size_t *last = rows->block->bounds + rows->block->num_bags;
    const size_t out_bytes = rows->args->bag_stride;
    struct K(place) place = {*bounds, rows->ids + *bounds * rows->id_bytes};
    char *out = tile->out + bag * out_bytes;
    for (; bounds < last; bounds++, out += out_bytes) {
        BODY sums[BAG_TILE_VECTORS] BAG_UNSET;
        const char *end = rows->ids + bounds[1] * rows->id_bytes;
        if (end == place.id)
            break;
        K(clear)(sums, vectors);
        if (rows->fetch_end > rows->ids)
            K(fetch_result)(vectors, out + out_bytes);
        K(take_rows)(rows, half, mode, vectors, tile, true, &place, end, sums);
        if (rows->args->divides)
            K(divide_sums)(rows, mode, vectors, bounds, bounds[1] - bounds[0], sums);
        K(store_result)(mode, vectors, tile, rows->args->output_dtype, false, out, sums);
    }
    return (size_t)(bounds - rows->block->bounds);
}

/* Pools all bags of one tile. */
BAG_LANE void K(pool_tiles)(const struct bag_rows *rows, bool half, enum bag_mode mode, int vectors,
                            const struct K(tile) * tile)
{
    size_t bag = 0;
    while ((bag = K(pool_full)(rows, half, mode, vectors, tile, bag)) < rows->block->num_bags)
        bag_ref_empty(rows->block, bag++);
}

BAG_LANE void K(pool_all)(const struct bag_rows *rows, bool half, enum bag_mode mode, int vectors,
                          const struct K(tile) * only)
{
    if (mode != BAG_MODE_GENERAL && !only && !bag_kind_converts(KIND) &&
        rows->block->fetch_end == 0) {
        K(pool_each)(rows, half, mode, vectors, only, false);
        return;
    }
    if (mode == BAG_MODE_GENERAL || !only) {
        K(pool_each)(rows, half, mode, vectors, only, true);
        return;
    }
#if BAG_NARROW_ROWS
    /* The work for a row of a few columns is so small that a separate loop for each width is
     * faster. */
    if (vectors == 0 && (mode == BAG_MODE_PLAIN || !bag_kind_converts(KIND))) {
        const size_t part = only->some.part;
        struct K(tile) narrow = *only;
        narrow.some.part = 4;
        if (part == 4)
            K(pool_tiles)(rows, half, mode, vectors, &narrow);
        narrow.some.part = 2;
        if (part == 2)
            K(pool_tiles)(rows, half, mode, vectors, &narrow);
        narrow.some.part = 1;
        if (part == 1)
            K(pool_tiles)(rows, half, mode, vectors, &narrow);
        return;
    }
#endif
    K(pool_tiles)(rows, half, mode, vectors, only);
}

/* Returns whether rows with scale and bias of f16 have a loop of their own. Testing for them at
 * each row costs little beside many columns or a weight. */
BAG_LANE bool K(has_own_loop_for_half)(enum bag_mode mode, int vectors)
{
    return KIND == BAG_KIND_OF_INT8 && mode == BAG_MODE_PLAIN && vectors <= 8;
}

BAG_LANE void K(pool_bags)(const struct bag_block *block, enum bag_mode mode, int vectors,
                           bool is_split)
{
    const struct bag_rows copy = bag_rows_of(block, KIND), *rows = &copy;
    const struct K(tile) whole = K(only_tile)(rows, vectors), *only = is_split ? NULL : &whole;
    const bool apart = K(has_own_loop_for_half)(mode, vectors);
    if (apart && rows->half_params)
        K(pool_all)(rows, true, mode, vectors, only);
    else
        K(pool_all)(rows, !apart && rows->half_params, mode, vectors, only);
}

/* Pools bags of one tile whose entries all stay, without prefetching, until one is empty. Returns
 * the number of bags that are left. The remaining work for a bag is so small that everything stays
 * in registers. */
BAG_LANE size_t K(take_near)(const struct bag_rows *rows, enum bag_mode mode, int vectors,
                             const struct K(tile) * tile)
{
    const size_t *bounds = rows->block->bounds;
    const size_t out_bytes = rows->args->bag_stride;
    size_t left = rows->block->num_bags;
    struct K(place) place = {*bounds, rows->ids + *bounds * rows->id_bytes};
    for (char *out = tile->out; left > 0 && bounds[0] < bounds[1]; bounds++, left--) {
        BODY sums[BAG_TILE_VECTORS] BAG_UNSET;
        const char *end = place.id + (bounds[1] - bounds[0]) * rows->id_bytes;
        K(clear)(sums, vectors);
        K(take_rows)(rows, false, mode, vectors, tile, false, &place, end, sums);
        if (mode == BAG_MODE_PLAIN && rows->args->divides)
            K(average)(sums, vectors, bounds[1] - bounds[0]);
        if (KIND == BAG_KIND_OF_F32 || rows->args->output_dtype == BAG_F32)
            K(store_result)(mode, vectors, tile, BAG_F32, false, out, sums);
        else
            K(store_result)(mode, vectors, tile, bag_near_result(KIND), false, out, sums);
        out += out_bytes;
    }
    return left;
}

BAG_LANE size_t K(pool_near)(const struct bag_pool_args *args, const size_t *bounds,
                             size_t num_bags, char *out, enum bag_mode mode, int vectors)
{
    /* Only the compiler sees this block: all of it is in registers. */
    const struct bag_block block = {.args = args,
                                    .num_bags = num_bags,
                                    .bounds = bounds,
                                    .end_column = args->table.row_elements,
                                    .out = out};
    struct bag_rows copy = bag_rows_of(&block, KIND);
    const struct bag_rows *rows = &copy;
    /* Not a power of two, for which the compiler would keep the exponent in another register. */
    copy.id_bytes = args->indices.wide ? sizeof(int64_t) : sizeof(int32_t);
    const struct K(tile) tile = K(only_tile)(rows, vectors);
#if BAG_NARROW_ROWS
    if (vectors == 0) {
        struct K(tile) narrow = tile;
        narrow.some.part = 4;
        if (tile.some.part == 4)
            return K(take_near)(rows, mode, vectors, &narrow);
        narrow.some.part = 2;
        if (tile.some.part == 2)
            return K(take_near)(rows, mode, vectors, &narrow);
        narrow.some.part = 1;
        return K(take_near)(rows, mode, vectors, &narrow);
    }
#endif
    return K(take_near)(rows, mode, vectors, &tile);
}

/* Pools a block of bags of one tile and one entry each, without division. Returns false at a bag of
 * another length. With so few instructions, many rows are loaded at the same time. */
BAG_LANE bool K(take_singles)(const struct bag_rows *rows, bool half, enum bag_mode mode,
                              int vectors, const struct K(tile) * tile)
{
    const size_t out_bytes = rows->args->bag_stride, ahead = out_bytes * (vectors <= 4 ? 8 : 2);
    const size_t *bounds = rows->block->bounds, *last = bounds + rows->block->num_bags;
    size_t entry = *bounds;
    const char *id = rows->ids + entry * rows->id_bytes;
    for (char *out = tile->out; bounds < last; out += out_bytes, id += rows->id_bytes) {
        BODY sums[BAG_TILE_VECTORS] BAG_UNSET;
        if (*++bounds != entry + 1)
            return false;
        K(clear)(sums, vectors);
        if (id < rows->fetch_end)
            K(fetch)(rows, vectors, tile, bag_checked_id(id + rows->ahead_bytes));
        K(fetch_result)(vectors, out + ahead);
        K(take_row)
        (rows, half, mode, vectors, tile, entry, bag_checked_id(id), false, sums);
        K(store_result)(mode, vectors, tile, rows->args->output_dtype, true, out, sums);
        entry++;
    }
    return true;
}

/* Calls take_singles with a separate loop for each width of narrow rows. */
BAG_LANE bool K(take_all_singles)(const struct bag_rows *rows, bool half, enum bag_mode mode,
                                  int vectors, const struct K(tile) * tile)
{
#if BAG_NARROW_ROWS
    if (vectors == 0) {
        struct K(tile) narrow = *tile;
        narrow.some.part = 4;
        if (tile->some.part == 4)
            return K(take_singles)(rows, half, mode, vectors, &narrow);
        narrow.some.part = 2;
        if (tile->some.part == 2)
            return K(take_singles)(rows, half, mode, vectors, &narrow);
        narrow.some.part = 1;
        return K(take_singles)(rows, half, mode, vectors, &narrow);
    }
#endif
    return K(take_singles)(rows, half, mode, vectors, tile);
}

BAG_LANE bool K(pool_singles)(const struct bag_block *block, enum bag_mode mode, int vectors)
{
    const struct bag_rows copy = bag_rows_of(block, KIND), *rows = &copy;
    const struct K(tile) tile = K(only_tile)(rows, vectors);
    const bool apart = K(has_own_loop_for_half)(mode, vectors);
    if (apart && rows->half_params)
        return K(take_all_singles)(rows, true, mode, vectors, &tile);
    return K(take_all_singles)(rows, !apart && rows->half_params, mode, vectors, &tile);
}

#undef KIND
#undef K
#undef V
#undef BODY_JOIN
#undef BODY_JOIN_
#undef BODY
#undef BODY_KIND
