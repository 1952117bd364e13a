/* The loop of all SIMD kernels. It is included once per element width, after
 *
 *   #define BODY       f32v or f64v, the prefix of the vector operations
 *   #define BODY_REAL  float or double
 *   #define BODY_DTYPE BAG_F32 or BAG_F64
 *   #define BODY_DIVISOR  the function that finds a bag's divisor
 *   #define BODY_ROOT  the square root
 *
 * and what pool_instances.h defines about prefetching, and defines BODY_pool_bags. The
 * number of a tile's vectors is a constant of each instance. The last vector of a tile ends where
 * the tile ends, overlapping the one before it where the columns do not divide evenly: columns are
 * independent, so what is computed twice has the same bits. */
#define BODY_JOIN_(a, b) a##_##b
#define BODY_JOIN(a, b)  BODY_JOIN_(a, b)
#define V(name)          BODY_JOIN(BODY, name)

/* All but the last vector of a tile are at constant offsets from its start, so that their addresses
 * need no registers. */
struct V(tile) {
    const char *rows;    /* its part of the table's first row */
    char *out;           /* its part of the result of the block's first bag */
    size_t column;       /* its first column; the rest is counted from there: */
    size_t last_vector;  /* the column where its last vector starts */
    size_t last_byte;    /* the last byte that is prefetched */
    size_t bytes_before; /* as many in front of it are prefetched, too */
    ptrdiff_t params_at; /* the byte where scale and bias of a quantised row start */
    bool fetches_params; /* of several tiles the first: prefetches scale and bias for all */
#if BAG_NARROW_ROWS
    struct V(some) some; /* the lanes of a tile that is narrower than a vector */
#endif
};

/* How many sums a tile has; one of 0 vectors is narrower than a vector. */
BAG_LANE int V(sums_of)(int vectors)
{
    return vectors > 0 ? vectors : 1;
}

/* The tile that starts at `column`. */
BAG_LANE struct V(tile) V(tile_from)(const struct bag_rows *rows, enum bag_row_kind kind,
                                     size_t column, size_t last_vector)
{
    const size_t bits = bag_kind_bits(kind), first_byte = column * bits / 8;
    size_t last_byte = (last_vector + V(lanes)) * bits / 8 - 1;
    if (bag_kind_quantised(kind) && column + last_vector + V(lanes) == rows->end_column)
        last_byte = rows->last_byte - first_byte;
    return (struct V(tile)){.rows = rows->rows + first_byte,
                            .out = rows->out + column * rows->result_bytes,
                            .column = column,
                            .last_vector = last_vector,
                            .last_byte = last_byte,
                            .bytes_before = column == 0 ? rows->bytes_before : 0,
                            .params_at = rows->params_at - (ptrdiff_t)first_byte};
}

/* The tile that has all columns, which need so many vectors. */
BAG_LANE struct V(tile)
    V(only_tile)(const struct bag_rows *rows, enum bag_row_kind kind, int vectors)
{
    const size_t first_byte = rows->first_column * bag_kind_bits(kind) / 8;
    size_t columns = rows->end_column - rows->first_column;
    if (vectors > 0)
        return V(tile_from)(rows, kind, rows->first_column, columns - V(lanes));
    return (struct V(tile))
    {
        .rows = rows->rows + first_byte, .out = rows->out + rows->first_column * rows->result_bytes,
        .last_byte = rows->last_byte - first_byte, .bytes_before = rows->bytes_before,
        .params_at = rows->params_at - (ptrdiff_t)first_byte,
#if BAG_NARROW_ROWS
        .some = V(some_of)(columns),
#endif
    };
}

/* One of several, all of which are full; the last starts earlier where it must. */
BAG_LANE struct V(tile)
    V(tile_at)(const struct bag_rows *rows, enum bag_row_kind kind, int vectors, size_t number)
{
    const size_t width = (size_t)vectors * V(lanes);
    size_t column = rows->first_column + number * width, latest = rows->end_column - width;
    struct V(tile) tile =
        V(tile_from)(rows, kind, column < latest ? column : latest, width - V(lanes));
    tile.fetches_params = bag_kind_quantised(kind) && rows->has_params && number == 0;
    return tile;
}

/* As many vectors from the first on are summed in pairs, one with the even and one with the odd
 * columns of both. A tile of two vectors may have fewer columns than these. */
BAG_LANE int V(paired)(enum bag_row_kind kind, int vectors)
{
    return BAG_PAIRED(kind) && vectors > 2 ? vectors / 2 * 2 : 0;
}

/* Where vector `i` begins, counted from its tile's first column; `paired` of them are in pairs. Of
 * a last pair both end with the tile. */
BAG_LANE size_t V(column)(const struct V(tile) * tile, int paired, int vectors, int i)
{
    if (i == vectors - 1)
        return vectors > 1 ? tile->last_vector : 0;
    if (i == vectors - 2 && paired == vectors)
        return tile->last_vector - V(lanes);
    return (size_t)i * V(lanes);
}

/* The row of the entry whose id is at `ids`; in the general mode it may be no row at all, and is
 * asked for by its number. */
BAG_LANE int64_t V(id)(const struct bag_rows *rows, enum bag_mode mode, const char *ids,
                       size_t entry)
{
    return mode == BAG_MODE_GENERAL ? bag_id_at(&rows->args->indices, entry) : bag_checked_id(ids);
}

/* Prefetches a tile of the row `ahead` of an entry. Rows with scale and bias hardly ever begin at
 * cache lines: that of their last byte is prefetched without a test. */
BAG_LANE void V(fetch)(const struct bag_rows *rows, enum bag_row_kind kind, enum bag_mode mode,
                       int vectors, const struct V(tile) * tile, const char *ids, size_t entry)
{
    const size_t tile_bytes = (size_t)V(sums_of)(vectors) * V(lanes) * bag_kind_bits(kind) / 8;
    int64_t id = V(id)(rows, mode, ids + rows->ahead_bytes, entry + rows->fetch.ahead);
    uintptr_t row = (uintptr_t)tile->rows + (uintptr_t)id * rows->row_bytes;
    uintptr_t from = bag_kind_quantised(kind) ? row - tile->bytes_before : row;
    bag_fetch_lines(2, (const char *)from, tile_bytes);
    if (bag_kind_has_bias(kind) || rows->fetch.straddles)
        bag_fetch_line(2, (const char *)(row + tile->last_byte));
    if (tile->fetches_params)
        bag_fetch_line(2, (const char *)(row + (uintptr_t)tile->params_at));
}

/* A vector of a row, from `column` on. */
BAG_LANE BODY V(columns_of)(enum bag_row_kind kind, bool scaled, enum bag_parity part, int vectors,
                            const struct V(tile) * tile, const struct V(row) * row, size_t column)
{
#if BAG_NARROW_ROWS
    if (vectors == 0)
        return V(narrow_columns)(kind, scaled, row, &tile->some);
#endif
    (void)tile;
    (void)vectors;
    return V(columns)(kind, scaled, part, row, column);
}

/* Adds the columns of a row to the sums, or takes the larger. */
BAG_LANE void V(take_columns)(enum bag_row_kind kind, bool scaled, enum bag_mode mode, int vectors,
                              const struct V(tile) * tile, const struct V(row) * row, BODY weight,
                              bool takes_larger, bool is_first, BODY *sums)
{
    const int paired = V(paired)(kind, vectors);
#pragma GCC unroll 16
    for (int i = 0; i < V(sums_of)(vectors); i++) {
        enum bag_parity part = i >= paired ? BAG_PARITY_BOTH
                               : i % 2     ? BAG_PARITY_ODD
                                           : BAG_PARITY_EVEN;
        int first = part == BAG_PARITY_ODD ? i - 1 : i;
        size_t column = V(column)(tile, paired, vectors, first);
        BODY values = V(columns_of)(kind, scaled, part, vectors, tile, row, column);
        if (takes_larger)
            sums[i] = is_first ? values : V(larger)(sums[i], values);
        else if (mode == BAG_MODE_PLAIN)
            sums[i] = V(add)(sums[i], values);
        else
            sums[i] = V(fused)(weight, values, sums[i]);
    }
}

/* Adds one row, whose scale and bias are f16 where `half`. In the general mode the weight may be 1,
 * which gives the bits of a plain addition. */
BAG_LANE void V(take_row)(const struct bag_rows *rows, enum bag_row_kind kind, bool half,
                          enum bag_mode mode, int vectors, const struct V(tile) * tile,
                          size_t entry, int64_t id, bool is_first, BODY *sums)
{
    const struct bag_pool_args *args = rows->args;
    const char *at = tile->rows + (size_t)id * rows->row_bytes;
    struct V(row) row = V(open)(kind, half, rows, at, at + tile->params_at);
    bool weighted = mode == BAG_MODE_WEIGHTED || (mode == BAG_MODE_GENERAL && args->weights);
    BODY weight = weighted ? V(weight)(kind, args, entry) : V(all)(1);
    bool takes_larger = mode == BAG_MODE_GENERAL && args->reduction == BAG_MAX;
    /* Multiplying by 1 would cost e5m2 without a scale a fifth. */
    if (kind == BAG_KIND_OF_E5M2 && !rows->has_params) {
        V(take_columns)
        (kind, false, mode, vectors, tile, &row, weight, takes_larger, is_first, sums);
        return;
    }
    V(take_columns)(kind, true, mode, vectors, tile, &row, weight, takes_larger, is_first, sums);
}

BAG_LANE void V(clear)(BODY *sums, int vectors)
{
#pragma GCC unroll 16
    for (int i = 0; i < V(sums_of)(vectors); i++)
        sums[i] = V(zero)();
}

/* Puts the columns of all sums in order. */
BAG_LANE void V(order)(enum bag_row_kind kind, BODY *sums, int vectors)
{
#pragma GCC unroll 16
    for (int i = 0; i < V(sums_of)(vectors); i++)
        sums[i] = V(in_order)(kind, sums[i]);
#pragma GCC unroll 16
    for (int i = 0; i < V(paired)(kind, vectors); i += 2)
        V(interleave)(&sums[i], &sums[i + 1]);
}

BAG_LANE void V(scale_all)(BODY *sums, int vectors, BODY_REAL factor)
{
#pragma GCC unroll 16
    for (int i = 0; i < V(sums_of)(vectors); i++)
        sums[i] = V(multiply)(sums[i], V(all)(factor));
}

BAG_LANE void V(divide_all)(BODY *sums, int vectors, BODY_REAL divisor)
{
#pragma GCC unroll 16
    for (int i = 0; i < V(sums_of)(vectors); i++)
        sums[i] = V(divide)(sums[i], V(all)(divisor));
}

/* Divides by a number of entries. The inverse of a power of two is exact, and multiplying is
 * faster.
 */
BAG_LANE void V(average)(BODY *sums, int vectors, size_t count)
{
    if ((count & (count - 1)) == 0)
        V(scale_all)(sums, vectors, 1 / (BODY_REAL)count);
    else
        V(divide_all)(sums, vectors, (BODY_REAL)count);
}

/* What a bag with weights or without entries that left it is divided by: not worth a copy in every
 * instance. */
static __attribute__((noinline)) BODY_REAL V(divisor)(const struct bag_pool_args *args,
                                                      const size_t *bounds, size_t kept)
{
    return BODY_DIVISOR(args, bounds[0], bounds[1], kept);
}

/* Divides the sums of a bag, of whose entries so many stayed. */
BAG_LANE void V(divide_sums)(const struct bag_rows *rows, enum bag_mode mode, int vectors,
                             const size_t *bounds, size_t kept, BODY *sums)
{
    if (mode == BAG_MODE_PLAIN && rows->is_mean) {
        V(average)(sums, vectors, kept);
        return;
    }
    BODY_REAL divisor =
        mode == BAG_MODE_PLAIN ? BODY_ROOT((BODY_REAL)kept) : V(divisor)(rows->args, bounds, kept);
    if (divisor == 0)
        V(clear)(sums, vectors);
    else
        V(divide_all)(sums, vectors, divisor);
}

/* A vector of the result, from `column` on. */
BAG_LANE void V(store_of)(enum bag_dtype dtype, int vectors, const struct V(tile) * tile, char *out,
                          size_t column, BODY values)
{
#if BAG_NARROW_ROWS
    if (vectors == 0) {
        V(store_some)(dtype, out, &tile->some, values);
        return;
    }
#endif
    (void)tile;
    (void)vectors;
    V(store)(dtype, out, column, values);
}

/* Writes a bag's part of the result, which begins at `out`; `dtype` is a constant. */
BAG_LANE void V(store_all)(const struct V(tile) * tile, enum bag_row_kind kind, int vectors,
                           enum bag_dtype dtype, char *out, const BODY *sums)
{
#pragma GCC unroll 16
    for (int i = 0; i < V(sums_of)(vectors); i++) {
        size_t column = V(column)(tile, V(paired)(kind, vectors), vectors, i);
        V(store_of)(dtype, vectors, tile, out, column, sums[i]);
    }
}

/* Likewise as bf16, from sums that are not in order yet. */
BAG_LANE void V(store_unordered)(const struct V(tile) * tile, int vectors, char *out,
                                 const BODY *sums)
{
    const int paired = V(paired)(BAG_KIND_OF_BF16, vectors);
#pragma GCC unroll 16
    for (int i = 0; i < paired; i += 2)
        V(store_pair)(out, V(column)(tile, paired, vectors, i), sums[i], sums[i + 1]);
#pragma GCC unroll 16
    for (int i = paired; i < vectors; i++)
        V(store)(BAG_BF16, out, V(column)(tile, paired, vectors, i), sums[i]);
}

/* Writes sums as elements of the result. Weights may bring a NaN of any payload. */
BAG_LANE void V(store_result)(const struct bag_rows *rows, enum bag_row_kind kind,
                              enum bag_mode mode, int vectors, const struct V(tile) * tile,
                              char *out, BODY *sums)
{
    const bool may_pair =
        kind == BAG_KIND_OF_BF16 && mode == BAG_MODE_PLAIN && V(paired)(kind, vectors) > 0;
    if (may_pair && rows->result == BAG_BF16) {
        V(store_unordered)(tile, vectors, out, sums);
        return;
    }
    V(order)(kind, sums, vectors);
    if (BODY_DTYPE == BAG_F64 || rows->result == BODY_DTYPE)
        V(store_all)(tile, kind, vectors, BODY_DTYPE, out, sums);
    else if (rows->result == BAG_F16)
        V(store_all)(tile, kind, vectors, BAG_F16, out, sums);
    else
        V(store_all)(tile, kind, vectors, BAG_BF16, out, sums);
}

/* Where a loop over entries has come to. */
struct V(place) {
    size_t entry;
    const char *id;
};

/* Adds `count` rows and goes on to the one behind them. */
BAG_LANE void V(take_some)(const struct bag_rows *rows, enum bag_row_kind kind, bool half,
                           enum bag_mode mode, int vectors, const struct V(tile) * tile,
                           struct V(place) * place, size_t count, BODY *sums)
{
#pragma GCC unroll 4
    for (size_t i = 0; i < count; i++) {
        int64_t id = bag_checked_id(place->id + i * rows->id_bytes);
        V(take_row)(rows, kind, half, mode, vectors, tile, place->entry + i, id, false, sums);
    }
    place->entry += count;
    place->id += count * rows->id_bytes;
}

/* Adds the rows of `place` and those after it up to `end` to the sums: those that have a row to
 * prefetch, then the rest, of one line each several in a turn, which takes fewer instructions.
 * Elements that take long to widen have one loop for all. */
BAG_LANE void V(take_rows)(const struct bag_rows *rows, enum bag_row_kind kind, bool half,
                           enum bag_mode mode, int vectors, const struct V(tile) * tile,
                           bool fetches, struct V(place) * place, size_t end, BODY *sums)
{
    const bool one_loop = kind == BAG_KIND_OF_E4M3 || kind == BAG_KIND_OF_E5M2;
    const bool short_rows = (size_t)vectors * V(lanes) * bag_kind_bits(kind) <= 512;
    const size_t turn = short_rows && !bag_kind_converts(kind) && vectors > 0 ? 4 : 1;
    const size_t fetch_end = rows->fetch.end < end ? rows->fetch.end : end;
    while ((fetches || one_loop) && place->entry < (one_loop ? end : fetch_end)) {
        if (fetches && (!one_loop || place->entry < fetch_end))
            V(fetch)(rows, kind, mode, vectors, tile, place->id, place->entry);
        V(take_some)(rows, kind, half, mode, vectors, tile, place, 1, sums);
    }
    while (turn > 1 && end - place->entry >= turn)
        V(take_some)(rows, kind, half, mode, vectors, tile, place, turn, sums);
    while (!one_loop && place->entry < end)
        V(take_some)(rows, kind, half, mode, vectors, tile, place, 1, sums);
}

/* Likewise in the general mode, which tests which entries stay. */
BAG_LANE void V(take_kept)(const struct bag_rows *rows, enum bag_row_kind kind, int vectors,
                           const struct V(tile) * tile, size_t entry, size_t end, BODY *sums)
{
    const enum bag_mode mode = BAG_MODE_GENERAL;
    bool is_first = true;
    for (; entry < end; entry++) {
        int64_t id = V(id)(rows, mode, NULL, entry);
        if (entry < rows->fetch.end)
            V(fetch)(rows, kind, mode, vectors, tile, NULL, entry);
        if (!bag_keeps(rows->args, entry, id))
            continue;
        V(take_row)
        (rows, kind, rows->half_params, mode, vectors, tile, entry, id, is_first, sums);
        is_first = false;
    }
}

/* Prefetches the result of a later bag: a store that waits for its line holds up those behind it.
 */
BAG_LANE void V(fetch_result)(enum bag_row_kind kind, int vectors, const char *out)
{
    if (!bag_kind_converts(kind))
        bag_fetch_lines(1, out, (size_t)V(sums_of)(vectors) * V(lanes) * sizeof(BODY_REAL));
}

/* A tile of a bag, which has the entries [bounds[0], bounds[1]). */
BAG_LANE void V(pool_tile)(const struct bag_rows *rows, enum bag_row_kind kind, bool half,
                           enum bag_mode mode, int vectors, const struct V(tile) * tile,
                           const size_t *bounds, size_t kept, char *out)
{
    BODY sums[BAG_TILE_VECTORS] BAG_UNSET;
    V(clear)(sums, vectors);
    if (rows->fetch.end > 0)
        V(fetch_result)(kind, vectors, out + rows->out_bytes);
    struct V(place) place = {bounds[0], rows->ids + bounds[0] * rows->id_bytes};
    if (mode == BAG_MODE_GENERAL)
        V(take_kept)(rows, kind, vectors, tile, bounds[0], bounds[1], sums);
    else
        V(take_rows)(rows, kind, half, mode, vectors, tile, true, &place, bounds[1], sums);
    if (rows->divides)
        V(divide_sums)(rows, mode, vectors, bounds, kept, sums);
    V(store_result)(rows, kind, mode, vectors, tile, out, sums);
}

/* Every tile of a bag before the next bag, while its pages are in the TLB. */
BAG_LANE void V(pool_bag)(const struct bag_rows *rows, enum bag_row_kind kind, bool half,
                          enum bag_mode mode, int vectors, const struct V(tile) * only, size_t bag)
{
    const size_t *bounds = rows->bounds + bag, out_at = bag * rows->out_bytes;
    size_t kept = bounds[1] - bounds[0];
    if (mode == BAG_MODE_GENERAL)
        kept = bag_count_kept(rows->args, bounds[0], bounds[1]);
    if (kept == 0) {
        bag_ref_empty(rows->block, bag);
        return;
    }
    if (only)
        V(pool_tile)(rows, kind, half, mode, vectors, only, bounds, kept, only->out + out_at);
    for (size_t number = 0; !only && number < rows->num_tiles; number++) {
        struct V(tile) tile = V(tile_at)(rows, kind, vectors, number);
        V(pool_tile)(rows, kind, half, mode, vectors, &tile, bounds, kept, tile.out + out_at);
    }
}

/* Pools bags of one tile whose entries all stay, from `bag` on, until one is empty; returns that
 * bag. As nothing is called, what each bag needs stays in registers. Prefetches where `fetches` and
 * there are rows to prefetch. */
BAG_LANE size_t V(pool_full)(const struct bag_rows *rows, enum bag_row_kind kind, bool half,
                             enum bag_mode mode, int vectors, const struct V(tile) * tile,
                             bool fetches, size_t bag)
{
    const size_t *bounds = rows->bounds + bag, *last = rows->bounds + rows->num_bags;
    struct V(place) place = {*bounds, rows->ids + *bounds * rows->id_bytes};
    char *out = tile->out + bag * rows->out_bytes;
    for (; bounds < last; bounds++, out += rows->out_bytes) {
        BODY sums[BAG_TILE_VECTORS] BAG_UNSET;
        if (bounds[1] == place.entry)
            break;
        V(clear)(sums, vectors);
        if (fetches && rows->fetch.end > 0)
            V(fetch_result)(kind, vectors, out + rows->out_bytes);
        V(take_rows)(rows, kind, half, mode, vectors, tile, fetches, &place, bounds[1], sums);
        if (rows->divides)
            V(divide_sums)(rows, mode, vectors, bounds, bounds[1] - bounds[0], sums);
        V(store_result)(rows, kind, mode, vectors, tile, out, sums);
    }
    return (size_t)(bounds - rows->bounds);
}

/* Every bag of one tile. */
BAG_LANE void V(pool_tiles)(const struct bag_rows *rows, enum bag_row_kind kind, bool half,
                            enum bag_mode mode, int vectors, const struct V(tile) * tile,
                            bool fetches)
{
    size_t bag = 0;
    while ((bag = V(pool_full)(rows, kind, half, mode, vectors, tile, fetches, bag)) <
           rows->num_bags)
        bag_ref_empty(rows->block, bag++);
}

BAG_LANE void V(pool_all)(const struct bag_rows *rows, enum bag_row_kind kind, bool half,
                          enum bag_mode mode, int vectors, const struct V(tile) * only)
{
    if (mode == BAG_MODE_GENERAL || !only) {
        for (size_t bag = 0; bag < rows->num_bags; bag++)
            V(pool_bag)(rows, kind, half, mode, vectors, only, bag);
        return;
    }
#if BAG_NARROW_ROWS
    /* What is done for a row of a few columns is so little that a loop for each width pays. */
    struct V(tile) narrow = *only;
    if (vectors == 0 && mode == BAG_MODE_PLAIN && only->some.part > 1) {
        narrow.some.part = 4;
        if (only->some.part == 4)
            V(pool_tiles)(rows, kind, half, mode, vectors, &narrow, true);
        narrow.some.part = 2;
        if (only->some.part == 2)
            V(pool_tiles)(rows, kind, half, mode, vectors, &narrow, true);
        return;
    }
#endif
    /* So does one for short rows that are not widened, in the nearest caches. */
    if (!bag_kind_converts(kind) && vectors <= 2 && mode == BAG_MODE_PLAIN && rows->fetch.end == 0)
        V(pool_tiles)(rows, kind, half, mode, vectors, only, false);
    else
        V(pool_tiles)(rows, kind, half, mode, vectors, only, true);
}

BAG_LANE void V(pool_bags)(const struct bag_block *block, enum bag_row_kind kind,
                           enum bag_mode mode, int vectors, bool is_split)
{
    const struct bag_rows copy = bag_rows_of(block, bag_kind_bits(kind)), *rows = &copy;
    const struct V(tile) whole = V(only_tile)(rows, kind, vectors),
                         *only = is_split ? NULL : &whole;
    const bool apart = kind == BAG_KIND_OF_INT8 && mode != BAG_MODE_GENERAL;
    if (apart && rows->half_params)
        V(pool_all)(rows, kind, true, mode, vectors, only);
    else
        V(pool_all)(rows, kind, !apart && rows->half_params, mode, vectors, only);
}

/* Pools a block of bags of one tile and one entry each, that nothing divides; returns false at one
 * of another length. So few instructions let many rows be loaded at once. */
BAG_LANE bool V(pool_singles)(const struct bag_block *block, enum bag_row_kind kind,
                              enum bag_mode mode, int vectors)
{
    const struct bag_rows copy = bag_rows_of(block, bag_kind_bits(kind)), *rows = &copy;
    const struct V(tile) tile = V(only_tile)(rows, kind, vectors);
    const size_t ahead = rows->out_bytes * (vectors <= 4 ? 8 : 2);
    const size_t *bounds = rows->bounds, *last = bounds + rows->num_bags;
    size_t entry = *bounds;
    const char *ids = rows->ids + entry * rows->id_bytes;
    for (char *out = tile.out; bounds < last; out += rows->out_bytes, ids += rows->id_bytes) {
        BODY sums[BAG_TILE_VECTORS] BAG_UNSET;
        if (*++bounds != entry + 1)
            return false;
        V(clear)(sums, vectors);
        if (entry < rows->fetch.end)
            V(fetch)(rows, kind, mode, vectors, &tile, ids, entry);
        V(fetch_result)(kind, vectors, out + ahead);
        V(take_row)
        (rows, kind, rows->half_params, mode, vectors, &tile, entry, bag_checked_id(ids), false,
         sums);
        V(store_result)(rows, kind, mode, vectors, &tile, out, sums);
        entry++;
    }
    return true;
}

#undef V
#undef BODY_JOIN
#undef BODY_JOIN_
#undef BODY
#undef BODY_REAL
#undef BODY_DTYPE
#undef BODY_DIVISOR
#undef BODY_ROOT
