/* Tiles: adds the columns of a row to a bag's sums, and finishes the sums at the end of the bag.
 * Part of pool_body.h.
 *
 * The last vector of a tile ends where the tile ends. It overlaps the vector before it if the
 * columns do not divide evenly. Columns are independent, so columns that are computed twice have
 * the same bits. */

/* A tile. All but the last vector of a tile are at constant offsets from its start, so that their
 * addresses need no registers. */
struct K(tile) {
    const char *rows;    /* the tile's part of the table's first row */
    char *out;           /* the tile's part of the result of the block's first bag */
    size_t column;       /* first column; the members below are relative to it */
    size_t last_vector;  /* column at which the last vector starts */
    size_t last_byte;    /* last byte that is prefetched */
    size_t bytes_before; /* number of bytes before the tile that are prefetched, too */
    ptrdiff_t params_at; /* position of scale and bias of a quantised row */
    bool fetches_params; /* the first of several tiles: prefetches scale and bias for all */
#if BAG_NARROW_ROWS
    struct V(some) some; /* lanes of a tile that is narrower than a vector */
#endif
};

/* Returns the number of sums of a tile. A tile of 0 vectors is narrower than a vector. */
BAG_LANE int K(sums_of)(int vectors)
{
    return vectors > 0 ? vectors : 1;
}

/* Returns the tile that starts at `column`. */
BAG_LANE struct K(tile) K(tile_from)(const struct bag_rows *rows, size_t column, size_t last_vector)
{
    const size_t bits = bag_kind_bits(KIND), first_byte = column * bits / 8;
    size_t last_byte = (last_vector + V(lanes)) * bits / 8 - 1;
    if (bag_kind_quantised(KIND) && column + last_vector + V(lanes) == rows->block->end_column)
        last_byte = rows->last_byte - first_byte;
    return (struct K(tile)){.rows = bag_in_register(rows->rows + first_byte),
                            .out = rows->block->out + column * rows->args->element_bytes,
                            .column = column,
                            .last_vector = last_vector,
                            .last_byte = last_byte,
                            .bytes_before = column == 0 ? rows->bytes_before : 0,
                            .params_at = rows->params_at - (ptrdiff_t)first_byte};
}

/* Returns the tile with all columns, which need `vectors` vectors. */
BAG_LANE struct K(tile) K(only_tile)(const struct bag_rows *rows, int vectors)
{
    const size_t first_column = rows->block->first_column;
    const size_t first_byte = first_column * bag_kind_bits(KIND) / 8;
    size_t columns = rows->block->end_column - first_column;
    if (vectors > 0)
        return K(tile_from)(rows, first_column, columns - V(lanes));
    return (struct K(tile))
    {
        .rows = bag_in_register(rows->rows + first_byte),
        .out = rows->block->out + first_column * rows->args->element_bytes,
        .last_byte = rows->last_byte - first_byte, .bytes_before = rows->bytes_before,
        .params_at = rows->params_at - (ptrdiff_t)first_byte,
#if BAG_NARROW_ROWS
        .some = V(some_of)(columns),
#endif
    };
}

/* Returns one of several full tiles. The last one starts earlier if necessary. */
BAG_LANE struct K(tile) K(tile_at)(const struct bag_rows *rows, int vectors, size_t number)
{
    const size_t width = (size_t)vectors * V(lanes);
    size_t column = rows->block->first_column + number * width;
    size_t latest = rows->block->end_column - width;
    struct K(tile) tile = K(tile_from)(rows, column < latest ? column : latest, width - V(lanes));
    tile.fetches_params = bag_kind_quantised(KIND) && rows->has_params && number == 0;
    return tile;
}

/* Returns the number of leading vectors that are summed in pairs. One vector of a pair has the even
 * columns of both, the other one the odd columns. A tile of two vectors may have fewer columns than
 * a pair. */
BAG_LANE int K(paired)(int vectors)
{
    return BAG_PAIRED(KIND) && vectors > 2 ? vectors / 2 * 2 : 0;
}

/* Returns the start of vector `i` relative to its tile's first column. The first `paired` vectors
 * are in pairs. Both vectors of the last pair end with the tile. */
BAG_LANE size_t K(column)(const struct K(tile) * tile, int paired, int vectors, int i)
{
    if (i == vectors - 1)
        return vectors > 1 ? tile->last_vector : 0;
    if (i == vectors - 2 && paired == vectors)
        return tile->last_vector - V(lanes);
    return (size_t)i * V(lanes);
}

/* Prefetches a tile of an id's row into `cache`. Rows with scale and bias hardly ever begin at
 * cache lines, so the line of their last byte is prefetched without a test. */
BAG_LANE void K(fetch_into)(int cache, const struct bag_rows *rows, int vectors,
                            const struct K(tile) * tile, int64_t id)
{
    const size_t tile_bytes = (size_t)K(sums_of)(vectors) * V(lanes) * bag_kind_bits(KIND) / 8;
    uintptr_t row = (uintptr_t)tile->rows + (uintptr_t)id * rows->row_bytes;
    uintptr_t from = bag_kind_quantised(KIND) ? row - tile->bytes_before : row;
    bag_fetch_lines(cache, (const char *)from, tile_bytes);
    if (bag_kind_has_params(KIND) || rows->straddles)
        bag_fetch_line(cache, (const char *)(row + tile->last_byte));
    if (tile->fetches_params)
        bag_fetch_line(cache, (const char *)(row + (uintptr_t)tile->params_at));
}

/* Prefetches a tile of an id's row into the cache that the plan chose. */
BAG_LANE void K(fetch)(const struct bag_rows *rows, int vectors, const struct K(tile) * tile,
                       int64_t id)
{
    if (BAG_TO_FIRST && rows->to_first)
        K(fetch_into)(1, rows, vectors, tile, id);
    else
        K(fetch_into)(2, rows, vectors, tile, id);
}

/* Returns a vector of a row, from `column` on. */
BAG_LANE BODY K(columns_of)(bool scaled, enum bag_parity part, int vectors,
                            const struct K(tile) * tile, const struct V(row) * row, size_t column)
{
#if BAG_NARROW_ROWS
    if (vectors == 0)
        return V(narrow_columns)(KIND, scaled, row, &tile->some);
#endif
    (void)tile;
    (void)vectors;
    return V(columns)(KIND, scaled, part, row, column);
}

/* Adds the columns of a row to the sums, or replaces sums by larger values. */
BAG_LANE void K(take_columns)(bool scaled, enum bag_mode mode, int vectors,
                              const struct K(tile) * tile, const struct V(row) * row, BODY weight,
                              bool takes_larger, bool is_first, BODY *sums)
{
    const int paired = K(paired)(vectors);
#pragma GCC unroll 16
    for (int i = 0; i < K(sums_of)(vectors); i++) {
        enum bag_parity part = i >= paired ? BAG_PARITY_BOTH
                               : i % 2     ? BAG_PARITY_ODD
                                           : BAG_PARITY_EVEN;
        int first = part == BAG_PARITY_ODD ? i - 1 : i;
        size_t column = K(column)(tile, paired, vectors, first);
        BODY values = K(columns_of)(scaled, part, vectors, tile, row, column);
        if (takes_larger)
            sums[i] = is_first ? values : V(larger)(sums[i], values);
        else if (mode == BAG_MODE_PLAIN)
            sums[i] = V(add)(sums[i], values);
        else
            sums[i] = V(fused)(weight, values, sums[i]);
    }
}

/* Adds one row. `half`: its scale and bias are f16. In the general mode the weight may be 1, which
 * gives the bits of a plain addition. */
BAG_LANE void K(take_row)(const struct bag_rows *rows, bool half, enum bag_mode mode, int vectors,
                          const struct K(tile) * tile, size_t entry, int64_t id, bool is_first,
                          BODY *sums)
{
    const struct bag_pool_args *args = rows->args;
    const char *at = bag_in_register(tile->rows + (size_t)id * rows->row_bytes);
    struct V(row) row = V(open)(KIND, half, rows, at, at + tile->params_at);
    bool weighted = mode == BAG_MODE_WEIGHTED || (mode == BAG_MODE_GENERAL && args->weights);
    BODY weight = weighted ? V(weight)(KIND, args, entry) : V(all)(1);
    bool takes_larger = mode == BAG_MODE_GENERAL && args->reduction == BAG_MAX;
    /* Multiplying by 1 would make e5m2 without a scale a fifth slower. */
    if (KIND == BAG_KIND_OF_E5M2 && mode != BAG_MODE_GENERAL && !rows->has_params) {
        K(take_columns)
        (false, mode, vectors, tile, &row, weight, takes_larger, is_first, sums);
        return;
    }
    K(take_columns)(true, mode, vectors, tile, &row, weight, takes_larger, is_first, sums);
}

BAG_LANE void K(clear)(BODY *sums, int vectors)
{
#pragma GCC unroll 16
    for (int i = 0; i < K(sums_of)(vectors); i++)
        sums[i] = V(zero)();
}

/* Orders the columns of all sums. */
BAG_LANE void K(order)(const struct K(tile) * tile, BODY *sums, int vectors)
{
#if BAG_NARROW_ROWS
    if (vectors == 0)
        sums[0] = V(narrow_in_parts)(KIND, sums[0], &tile->some);
#endif
    (void)tile;
#pragma GCC unroll 16
    for (int i = 0; i < K(sums_of)(vectors); i++)
        sums[i] = V(in_order)(KIND, sums[i]);
#pragma GCC unroll 16
    for (int i = 0; i < K(paired)(vectors); i += 2)
        V(interleave)(&sums[i], &sums[i + 1]);
}

BAG_LANE void K(scale_all)(BODY *sums, int vectors, V(real) factor)
{
#pragma GCC unroll 16
    for (int i = 0; i < K(sums_of)(vectors); i++)
        sums[i] = V(multiply)(sums[i], V(all)(factor));
}

BAG_LANE void K(divide_all)(BODY *sums, int vectors, V(real) divisor)
{
#pragma GCC unroll 16
    for (int i = 0; i < K(sums_of)(vectors); i++)
        sums[i] = V(divide)(sums[i], V(all)(divisor));
}

/* Divides by a number of entries. For a power of two it multiplies by the inverse, which is exact
 * and faster. */
BAG_LANE void K(average)(BODY *sums, int vectors, size_t count)
{
    if ((count & (count - 1)) == 0)
        K(scale_all)(sums, vectors, 1 / (V(real))count);
    else
        K(divide_all)(sums, vectors, (V(real))count);
}

/* Divides the sums of a bag with `kept` entries. */
BAG_LANE void K(divide_sums)(const struct bag_rows *rows, enum bag_mode mode, int vectors,
                             const size_t *bounds, size_t kept, BODY *sums)
{
    if (mode == BAG_MODE_PLAIN && rows->args->reduction == BAG_MEAN) {
        K(average)(sums, vectors, kept);
        return;
    }
    V(real)
    divisor =
        mode == BAG_MODE_PLAIN ? V(root)((V(real))kept) : V(divisor)(rows->args, bounds, kept);
    if (divisor == 0)
        K(clear)(sums, vectors);
    else
        K(divide_all)(sums, vectors, divisor);
}

/* Stores a vector of the result, from `column` on. */
BAG_LANE void K(store_of)(enum bag_dtype dtype, enum bag_bf16_of of, int vectors,
                          const struct K(tile) * tile, char *out, size_t column, BODY values)
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

/* Writes a bag's part of the result, which begins at `out`. `dtype` and `of` must be constants. */
BAG_LANE void K(store_all)(const struct K(tile) * tile, int vectors, enum bag_dtype dtype,
                           enum bag_bf16_of of, char *out, const BODY *sums)
{
#pragma GCC unroll 16
    for (int i = 0; i < K(sums_of)(vectors); i++) {
        size_t column = K(column)(tile, K(paired)(vectors), vectors, i);
        K(store_of)(dtype, of, vectors, tile, out, column, sums[i]);
    }
}

/* Writes sums of bf16 numbers, which are not in order yet, as bf16. */
BAG_LANE void K(store_unordered)(const struct K(tile) * tile, int vectors, enum bag_bf16_of of,
                                 char *out, const BODY *sums)
{
    const int paired = K(paired)(vectors);
#pragma GCC unroll 16
    for (int i = 0; i < paired; i += 2)
        V(store_pair)(of, out, K(column)(tile, paired, vectors, i), sums[i], sums[i + 1]);
#pragma GCC unroll 16
    for (int i = paired; i < vectors; i++)
        V(store)(BAG_BF16, of, out, K(column)(tile, paired, vectors, i), sums[i]);
}

/* Writes sums as elements of `result`. `single`: they are of one row. Weights may produce a NaN
 * with any payload. */
BAG_LANE void K(store_result)(enum bag_mode mode, int vectors, const struct K(tile) * tile,
                              enum bag_dtype result, bool single, char *out, BODY *sums)
{
    const bool of_bf16 = KIND == BAG_KIND_OF_BF16 && mode == BAG_MODE_PLAIN;
    const enum bag_bf16_of of = !of_bf16 ? BAG_BF16_OF_ANY
                                : single ? BAG_BF16_OF_ONE
                                         : BAG_BF16_OF_SUMS;
    if (of_bf16 && K(paired)(vectors) > 0 && result == BAG_BF16) {
        K(store_unordered)(tile, vectors, of, out, sums);
        return;
    }
    K(order)(tile, sums, vectors);
    if (V(dtype) == BAG_F64 || result == V(dtype))
        K(store_all)(tile, vectors, V(dtype), of, out, sums);
    else if (result == BAG_F16)
        K(store_all)(tile, vectors, BAG_F16, of, out, sums);
    else
        K(store_all)(tile, vectors, BAG_BF16, of, out, sums);
}
