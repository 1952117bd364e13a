/* Tiles: adds the columns of a row to a bag's sums, and finishes the sums at the end of the bag.
 * Part of pool_body_tmpl.h.
 *
 * The last vector of a tile ends where the tile ends. It overlaps the vector before it if the
 * columns do not divide evenly. Columns are independent, so columns that are computed twice have
 * the same bits. */

/* The tile that an instance of the loop pools. It is a copy, so that the compiler knows that no
 * result changes it, and keeps it in registers. */
struct K(tile) {
    const struct bag_pool_args *args;
    const struct bag_row_walk *walk; /* the plan's */
    const struct bag_tiles *all;     /* the tile and those after it */
    const char *rows;                /* the tile's part of the table's first row */
    ptrdiff_t params_at;             /* relative to the tile's part of a row */
    size_t row_bytes, last_vector;
    bool half_params;
#if BAG_NARROW_ROWS
    struct V(some) some; /* lanes of a tile that is narrower than a vector */
#endif
};

/* Returns the number of sums of a tile. A tile of 0 vectors is narrower than a vector. */
BAG_LANE int K(sums_of)(int vectors)
{
    return vectors > 0 ? vectors : 1;
}

/* Returns the first tile. */
BAG_LANE struct K(tile)
    K(tile_of)(const struct bag_pool_args *args, const struct bag_tiles *all, int vectors)
{
    struct K(tile) tile = {
        .args = args,
        .walk = args->walk,
        .all = all,
        .rows = all->rows,
        .params_at = all->params_at,
        .row_bytes = all->row_bytes,
        .last_vector = all->last_vector,
        .half_params = args->walk->half_params,
    };
#if BAG_NARROW_ROWS
    if (vectors == 0)
        tile.some = V(some_of)(all->end_column - all->first_column);
#endif
    (void)vectors;
    return tile;
}

/* Moves to the next tile, and from its part of the result to the next one's, or back to the first
 * ones. Returns whether there is a next tile. */
BAG_LANE bool K(move)(struct K(tile) * tile, int vectors, char **out)
{
    const size_t width = (size_t)vectors * V(lanes);
    const size_t before = (size_t)(tile->rows - tile->all->rows) * 8 / bag_kind_bits(KIND);
    const size_t further = tile->all->further - before;
    const size_t step = further < width ? further : width;
    const size_t bytes = bag_kind_bytes(KIND, step);
    if (further == 0) {
        tile->rows = tile->all->rows;
        tile->params_at = tile->all->params_at;
        *out -= before * tile->args->element_bytes;
        return false;
    }
    tile->rows += bytes;
    tile->params_at -= (ptrdiff_t)bytes;
    *out += step * tile->args->element_bytes;
    return true;
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

/* How the plan prefetches rows, in registers. */
struct K(way) {
    size_t ahead; /* number of rows by which prefetching is ahead */
    bool straddles, to_first;
};

BAG_LANE struct K(way) K(way_of)(const struct K(tile) * tile)
{
    const struct bag_row_walk *walk = tile->walk;
    return (struct K(way)){tile->args->ahead, walk->straddles,
                           BAG_TO_FIRST && walk->fetch == BAG_FETCH_FIRST};
}

/* Prefetches the tile's part of a row into `cache`. Rows with scale and bias hardly ever begin at
 * cache lines, so the line of their last byte is prefetched without a test. */
BAG_LANE void K(fetch_into)(int cache, bool straddles, const struct K(tile) * tile, int vectors,
                            int64_t id)
{
    const size_t tile_bytes = (size_t)K(sums_of)(vectors) * V(lanes) * bag_kind_bits(KIND) / 8;
    const char *const row =
        bag_in_register((const char *)((uintptr_t)tile->rows + (uintptr_t)id * tile->row_bytes));
    bag_fetch_lines(cache, bag_kind_quantised(KIND) ? row - tile->all->bytes_before : row,
                    tile_bytes);
    if (bag_kind_has_params(KIND) || straddles)
        bag_fetch_line(cache, row + tile->all->last_byte);
    if (bag_kind_quantised(KIND) && tile->all->fetches_params && tile->rows == tile->all->rows)
        bag_fetch_line(cache, row + tile->params_at);
}

/* Prefetches the tile's part of a row into the cache that the plan chose. */
BAG_LANE void K(fetch)(struct K(way) way, const struct K(tile) * tile, int vectors, int64_t id)
{
    if (way.to_first)
        K(fetch_into)(1, way.straddles, tile, vectors, id);
    else
        K(fetch_into)(2, way.straddles, tile, vectors, id);
}

/* Prefetches the tile's part of a row, and so many bytes after it, into L2. */
BAG_LANE void K(fetch_wide)(struct K(way) way, size_t beyond, const struct K(tile) * tile,
                            int vectors, int64_t id)
{
    const size_t tile_bytes = (size_t)K(sums_of)(vectors) * V(lanes) * bag_kind_bits(KIND) / 8;
    const char *const end =
        (const char *)((uintptr_t)tile->rows + (uintptr_t)id * tile->row_bytes + tile_bytes);
    K(fetch_into)(2, way.straddles, tile, vectors, id);
    for (size_t at = 0; at < beyond; at += 64)
        bag_fetch_line(2, end + at);
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

/* Adds the columns of a row to the sums, or replaces sums by larger values. With BAG_ADDS_FUSED,
 * every other vector of a kind that is converted is added by a fused multiplication with 1. This
 * gives the same bits. On a Zen 4, bags of 5 rows and more in L2 take 0.88 (int4) to 0.98 (f16) of
 * the time, presumably because some vector units multiply but neither add nor convert. */
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
        else if (mode == BAG_MODE_PLAIN && BAG_ADDS_FUSED && bag_kind_converts(KIND) && i % 2)
            sums[i] = V(fused)(V(all)(1), values, sums[i]);
        else if (mode == BAG_MODE_PLAIN)
            sums[i] = V(add)(sums[i], values);
        else
            sums[i] = V(fused)(weight, values, sums[i]);
    }
}

/* Adds one row with its weight, which may be 1 in the general mode: that gives the bits of a plain
 * addition. */
BAG_LANE void K(take_row)(const struct K(tile) * tile, enum bag_mode mode, int vectors, int64_t id,
                          BODY weight, bool takes_larger, bool is_first, BODY *sums)
{
    const char *at = tile->rows + (size_t)id * tile->row_bytes;
    /* Only rows that are read at several places gain by one number. */
    if (vectors > 2 || bag_kind_quantised(KIND))
        at = bag_in_register(at);
    struct V(row) row =
        V(open)(KIND, tile->half_params, tile->walk->has_params, at, at + tile->params_at);
    /* Multiplying by 1 would make e5m2 without a scale a fifth slower. */
    if (KIND == BAG_KIND_OF_E5M2 && mode == BAG_MODE_PLAIN && !tile->walk->has_params) {
        K(take_columns)(false, mode, vectors, tile, &row, weight, takes_larger, is_first, sums);
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
    if (count == 1)
        return;
    if ((count & (count - 1)) == 0)
        K(scale_all)(sums, vectors, 1 / (V(real))(int64_t)count);
    else
        K(divide_all)(sums, vectors, (V(real))(int64_t)count);
}

/* Copies sums for a function that is called: they would leave their registers if it got them. */
BAG_LANE void K(copy)(BODY *to, const BODY *sums, int vectors)
{
#pragma GCC unroll 16
    for (int i = 0; i < K(sums_of)(vectors); i++)
        to[i] = sums[i];
}

/* Divides the sums of the bag with the entries [first, end), of which `kept` stay. */
BAG_LANE void K(divide_sums)(const struct bag_pool_args *args, enum bag_mode mode, int vectors,
                             size_t first, size_t end, size_t kept, BODY *sums)
{
    BODY copies[BAG_TILE_VECTORS] BAG_UNSET;
    if (mode == BAG_MODE_PLAIN && args->reduction == BAG_MEAN) {
        K(average)(sums, vectors, kept);
        return;
    }
    K(copy)(copies, sums, vectors);
    V(divide_rarely)(args, first, end, kept, copies, K(sums_of)(vectors));
    K(copy)(sums, copies, vectors);
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
BAG_LANE void K(store_bf16)(const struct K(tile) * tile, int vectors, enum bag_bf16_of of,
                            char *out, BODY *sums)
{
    const int paired = K(paired)(vectors);
    if (paired == 0) {
        K(order)(tile, sums, vectors);
        K(store_all)(tile, vectors, BAG_BF16, of, out, sums);
        return;
    }
#pragma GCC unroll 16
    for (int i = 0; i < paired; i += 2)
        V(store_pair)(of, out, K(column)(tile, paired, vectors, i), sums[i], sums[i + 1]);
#pragma GCC unroll 16
    for (int i = paired; i < vectors; i++)
        V(store)(BAG_BF16, of, out, K(column)(tile, paired, vectors, i), sums[i]);
}

/* Writes ordered sums as elements of a type that is rare for the kind. */
BAG_LANE void K(store_rarely)(const struct K(tile) * tile, int vectors, enum bag_dtype result,
                              char *out, const BODY *sums)
{
#if BAG_NARROW_ROWS
    if (vectors == 0) {
        V(store_some)(result, BAG_BF16_OF_ANY, out, &tile->some, sums[0]);
        return;
    }
#endif
    BODY copies[BAG_TILE_VECTORS] BAG_UNSET;
    const int paired = K(paired)(vectors);
    K(copy)(copies, sums, vectors);
    V(store_rarely)
    (result, out, copies, vectors, tile->last_vector, vectors > 1 && paired == vectors);
}

/* Writes sums as elements of another type than theirs. `single`: they are of one row. Weights may
 * produce a NaN with any payload. */
BAG_LANE void K(store_narrower)(const struct K(tile) * tile, enum bag_mode mode, int vectors,
                                bool single, char *out, BODY *sums)
{
    const enum bag_dtype result = tile->args->output_dtype, usual = bag_usual_result(KIND);
    if (KIND == BAG_KIND_OF_BF16 && mode == BAG_MODE_PLAIN && result == BAG_BF16) {
        if (single)
            K(store_bf16)(tile, vectors, BAG_BF16_OF_ONE, out, sums);
        else
            K(store_bf16)(tile, vectors, BAG_BF16_OF_SUMS, out, sums);
        return;
    }
    K(order)(tile, sums, vectors);
    if (usual != BAG_F32 && result == usual)
        K(store_all)(tile, vectors, usual, BAG_BF16_OF_ANY, out, sums);
    else
        K(store_rarely)(tile, vectors, result, out, sums);
}

/* Writes sums as elements of their own type. */
BAG_LANE void K(store_sums)(const struct K(tile) * tile, int vectors, char *out, BODY *sums)
{
    K(order)(tile, sums, vectors);
    K(store_all)(tile, vectors, V(dtype), BAG_BF16_OF_ANY, out, sums);
}

/* Returns whether results are narrower than sums. */
BAG_LANE bool K(narrows)(const struct bag_pool_args *args)
{
    return V(dtype) == BAG_F32 && args->output_dtype != BAG_F32;
}
