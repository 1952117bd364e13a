/* Tiles: adding the columns of a row to a bag's sums, and what becomes of these at its end. Part of
 * pool_body.h.
 *
 * The last vector of a tile ends where the tile ends, overlapping the one before it where the
 * columns do not divide evenly: columns are independent, so what is computed twice has the same
 * bits. */

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
    if (bag_kind_quantised(kind) && column + last_vector + V(lanes) == rows->block->end_column)
        last_byte = rows->last_byte - first_byte;
    return (struct V(tile)){.rows = rows->rows + first_byte,
                            .out = rows->block->out + column * rows->args->element_bytes,
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
    const size_t first_column = rows->block->first_column;
    const size_t first_byte = first_column * bag_kind_bits(kind) / 8;
    size_t columns = rows->block->end_column - first_column;
    if (vectors > 0)
        return V(tile_from)(rows, kind, first_column, columns - V(lanes));
    return (struct V(tile))
    {
        .rows = rows->rows + first_byte,
        .out = rows->block->out + first_column * rows->args->element_bytes,
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
    size_t column = rows->block->first_column + number * width;
    size_t latest = rows->block->end_column - width;
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

/* Prefetches a tile of the row of an id. Rows with scale and bias hardly ever begin at cache lines:
 * that of their last byte is prefetched without a test. */
BAG_LANE void V(fetch)(const struct bag_rows *rows, enum bag_row_kind kind, int vectors,
                       const struct V(tile) * tile, int64_t id)
{
    const size_t tile_bytes = (size_t)V(sums_of)(vectors) * V(lanes) * bag_kind_bits(kind) / 8;
    uintptr_t row = (uintptr_t)tile->rows + (uintptr_t)id * rows->row_bytes;
    uintptr_t from = bag_kind_quantised(kind) ? row - tile->bytes_before : row;
    bag_fetch_lines(2, (const char *)from, tile_bytes);
    if (bag_kind_has_bias(kind) || rows->straddles)
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
    if (kind == BAG_KIND_OF_E5M2 && mode != BAG_MODE_GENERAL && !rows->has_params) {
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
BAG_LANE void V(order)(enum bag_row_kind kind, const struct V(tile) * tile, BODY *sums, int vectors)
{
#if BAG_NARROW_ROWS
    if (vectors == 0)
        sums[0] = V(narrow_in_parts)(kind, sums[0], &tile->some);
#endif
    (void)tile;
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
    if (mode == BAG_MODE_PLAIN && rows->args->reduction == BAG_MEAN) {
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
BAG_LANE void V(store_of)(enum bag_dtype dtype, enum bag_bf16_of of, int vectors,
                          const struct V(tile) * tile, char *out, size_t column, BODY values)
{
#if BAG_NARROW_ROWS
    if (vectors == 0) {
        V(store_some)(dtype, of, out, &tile->some, values);
        return;
    }
#endif
    (void)tile;
    (void)vectors;
    V(store)(dtype, of, out, column, values);
}

/* Writes a bag's part of the result, which begins at `out`; `dtype` and `of` are constants. */
BAG_LANE void V(store_all)(const struct V(tile) * tile, enum bag_row_kind kind, int vectors,
                           enum bag_dtype dtype, enum bag_bf16_of of, char *out, const BODY *sums)
{
#pragma GCC unroll 16
    for (int i = 0; i < V(sums_of)(vectors); i++) {
        size_t column = V(column)(tile, V(paired)(kind, vectors), vectors, i);
        V(store_of)(dtype, of, vectors, tile, out, column, sums[i]);
    }
}

/* Likewise as bf16, from sums of bf16 numbers that are not in order yet. */
BAG_LANE void V(store_unordered)(const struct V(tile) * tile, int vectors, enum bag_bf16_of of,
                                 char *out, const BODY *sums)
{
    const int paired = V(paired)(BAG_KIND_OF_BF16, vectors);
#pragma GCC unroll 16
    for (int i = 0; i < paired; i += 2)
        V(store_pair)(of, out, V(column)(tile, paired, vectors, i), sums[i], sums[i + 1]);
#pragma GCC unroll 16
    for (int i = paired; i < vectors; i++)
        V(store)(BAG_BF16, of, out, V(column)(tile, paired, vectors, i), sums[i]);
}

/* Writes sums as elements of `result`: those of one row where `single`. Weights may bring a NaN
 * of any payload. */
BAG_LANE void V(store_result)(enum bag_row_kind kind, enum bag_mode mode, int vectors,
                              const struct V(tile) * tile, enum bag_dtype result, bool single,
                              char *out, BODY *sums)
{
    const bool of_bf16 = kind == BAG_KIND_OF_BF16 && mode == BAG_MODE_PLAIN;
    const enum bag_bf16_of of = !of_bf16 ? BAG_BF16_OF_ANY
                                : single ? BAG_BF16_OF_ONE
                                         : BAG_BF16_OF_SUMS;
    if (of_bf16 && V(paired)(kind, vectors) > 0 && result == BAG_BF16) {
        V(store_unordered)(tile, vectors, of, out, sums);
        return;
    }
    V(order)(kind, tile, sums, vectors);
    if (BODY_DTYPE == BAG_F64 || result == BODY_DTYPE)
        V(store_all)(tile, kind, vectors, BODY_DTYPE, of, out, sums);
    else if (result == BAG_F16)
        V(store_all)(tile, kind, vectors, BAG_F16, of, out, sums);
    else
        V(store_all)(tile, kind, vectors, BAG_BF16, of, out, sums);
}
