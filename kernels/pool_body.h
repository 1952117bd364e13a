/* The loop of all SIMD kernels. It is included once per element width, after
 *
 *   #define BODY       f32v or f64v, the prefix of the vector operations
 *   #define BODY_REAL  float or double
 *   #define BODY_DTYPE BAG_F32 or BAG_F64
 *   #define BODY_DIVISOR  the function that finds a bag's divisor
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
};

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

/* The tile that has all columns. */
BAG_LANE struct V(tile) V(only_tile)(const struct bag_rows *rows, enum bag_row_kind kind)
{
    size_t columns = rows->end_column - rows->first_column;
    struct V(tile) tile = V(tile_from)(rows, kind, rows->first_column, columns - V(lanes));
    return tile;
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
        return tile->last_vector;
    if (i == vectors - 2 && paired == vectors)
        return tile->last_vector - V(lanes);
    return (size_t)i * V(lanes);
}

/* The row of an entry. In the general mode it may be no row at all. */
BAG_LANE int64_t V(id)(const struct bag_rows *rows, enum bag_mode mode, size_t entry)
{
    if (mode == BAG_MODE_GENERAL)
        return bag_id_at(&rows->args->indices, entry);
    return bag_checked_id(rows->ids, rows->id_bytes, entry);
}

/* The row that is prefetched while that of an entry is added. */
BAG_LANE int64_t V(id_ahead)(const struct bag_rows *rows, enum bag_mode mode, size_t entry)
{
    if (mode == BAG_MODE_GENERAL)
        return bag_id_at(&rows->args->indices, entry + rows->fetch.ahead);
    return bag_checked_id(rows->ids_ahead, rows->id_bytes, entry);
}

/* Prefetches a tile of the row `ahead` of an entry. Rows with scale and bias hardly ever begin at
 * cache lines: that of their last byte is prefetched without a test. */
BAG_LANE void V(fetch)(const struct bag_rows *rows, enum bag_row_kind kind, enum bag_mode mode,
                       int vectors, const struct V(tile) * tile, size_t entry)
{
    const size_t tile_bytes = (size_t)vectors * V(lanes) * bag_kind_bits(kind) / 8;
    uintptr_t row =
        (uintptr_t)tile->rows + (uintptr_t)V(id_ahead)(rows, mode, entry) * rows->row_bytes;
    uintptr_t from = bag_kind_quantised(kind) ? row - tile->bytes_before : row;
    bag_fetch_lines(2, (const char *)from, tile_bytes);
    if (bag_kind_has_bias(kind) || rows->fetch.straddles)
        bag_fetch_line(2, (const char *)(row + tile->last_byte));
    if (tile->fetches_params)
        bag_fetch_line(2, (const char *)(row + (uintptr_t)tile->params_at));
}

/* Adds the columns of a row to the sums, or takes the larger. */
BAG_LANE void V(take_columns)(enum bag_row_kind kind, bool scaled, enum bag_mode mode, int vectors,
                              const struct V(tile) * tile, const struct V(row) * row, BODY weight,
                              bool takes_larger, bool is_first, BODY *sums)
{
    const int paired = V(paired)(kind, vectors);
#pragma GCC unroll 16
    for (int i = 0; i < vectors; i++) {
        enum bag_part part = i >= paired ? BAG_PART_WHOLE : i % 2 ? BAG_PART_ODD : BAG_PART_EVEN;
        int first = part == BAG_PART_ODD ? i - 1 : i;
        size_t column = V(column)(tile, paired, vectors, first);
        BODY values = V(columns)(kind, scaled, part, row, column);
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
    for (int i = 0; i < vectors; i++)
        sums[i] = V(zero)();
}

BAG_LANE void V(copy)(BODY *to, const BODY *from, int vectors)
{
#pragma GCC unroll 16
    for (int i = 0; i < vectors; i++)
        to[i] = from[i];
}

/* Puts the columns of all sums in order. */
BAG_LANE void V(order)(enum bag_row_kind kind, BODY *sums, int vectors)
{
#pragma GCC unroll 16
    for (int i = 0; i < vectors; i++)
        sums[i] = V(in_order)(kind, sums[i]);
#pragma GCC unroll 16
    for (int i = 0; i < V(paired)(kind, vectors); i += 2)
        V(interleave)(&sums[i], &sums[i + 1]);
}

BAG_LANE void V(scale_all)(BODY *sums, int vectors, BODY_REAL factor)
{
#pragma GCC unroll 16
    for (int i = 0; i < vectors; i++)
        sums[i] = V(multiply)(sums[i], V(all)(factor));
}

BAG_LANE void V(divide_all)(BODY *sums, int vectors, BODY_REAL divisor)
{
#pragma GCC unroll 16
    for (int i = 0; i < vectors; i++)
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

/* What sums become, divided where `divides`, as elements of any type. The bag has the entries
 * [bounds[0], bounds[1]). Not worth a copy in every instance: see store_result. */
static __attribute__((noinline)) void V(finish_other)(const struct bag_pool_args *args, BODY *sums,
                                                      int paired, int vectors, const size_t *bounds,
                                                      size_t kept, bool divides, char *out,
                                                      size_t last_vector)
{
    BODY_REAL divisor = divides ? BODY_DIVISOR(args, bounds[0], bounds[1], kept) : 1;
    BODY by = V(all)(divisor);
    const struct V(tile) tile = {.last_vector = last_vector};
    for (int i = 0; i < vectors; i++) {
        BODY result = sums[i];
        if (divisor != 1)
            result = divisor == 0 ? V(zero)() : V(divide)(result, by);
        V(store)(args->output_dtype, out, V(column)(&tile, paired, vectors, i), result);
    }
}

/* Writes a bag's part of the result, which begins at `out`; `dtype` is a constant. */
BAG_LANE void V(store_all)(const struct V(tile) * tile, enum bag_row_kind kind, int vectors,
                           enum bag_dtype dtype, char *out, const BODY *sums)
{
#pragma GCC unroll 16
    for (int i = 0; i < vectors; i++)
        V(store)(dtype, out, V(column)(tile, V(paired)(kind, vectors), vectors, i), sums[i]);
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

/* Turns the sums of one bag, divided where `divides`, into its result and writes it: sums without
 * weights at once, where they are usual results of the kind or means. */
BAG_LANE void V(store_result)(const struct bag_rows *rows, enum bag_row_kind kind,
                              enum bag_mode mode, int vectors, const struct V(tile) * tile,
                              size_t bag, size_t kept, bool divides, char *out, BODY *sums)
{
    const bool is_plain = mode == BAG_MODE_PLAIN;
    if (is_plain && divides && rows->args->reduction == BAG_MEAN) {
        V(average)(sums, vectors, kept);
        divides = false;
    }
    /* Weights may bring a NaN of any payload. */
    if (kind == BAG_KIND_OF_BF16 && is_plain && !divides && rows->result == BAG_BF16) {
        V(store_unordered)(tile, vectors, out, sums);
        return;
    }
    V(order)(kind, sums, vectors);
    if (!divides && rows->result == BODY_DTYPE) {
        V(store_all)(tile, kind, vectors, BODY_DTYPE, out, sums);
    } else if (!divides && (kind == BAG_KIND_OF_F16 || (is_plain && bag_kind_converts(kind))) &&
               rows->result == BAG_F16) {
        V(store_all)(tile, kind, vectors, BAG_F16, out, sums);
    } else if (!divides && kind == BAG_KIND_OF_BF16 && !is_plain && rows->result == BAG_BF16) {
        V(store_all)(tile, kind, vectors, BAG_BF16, out, sums);
    } else {
        BODY spilled[BAG_TILE_VECTORS] BAG_UNSET;
        V(copy)(spilled, sums, vectors);
        V(finish_other)
        (rows->args, spilled, V(paired)(kind, vectors), vectors, rows->bounds + bag, kept, divides,
         out, tile->last_vector);
    }
}

/* Adds the entries [entry, end) to the sums: those that have a row to prefetch, then the rest.
 * Elements that take long to widen have one loop for all. */
BAG_LANE void V(take_rows)(const struct bag_rows *rows, enum bag_row_kind kind, bool half,
                           enum bag_mode mode, int vectors, const struct V(tile) * tile,
                           size_t entry, size_t end, BODY *sums)
{
    const bool one_loop = kind == BAG_KIND_OF_E4M3 || kind == BAG_KIND_OF_E5M2;
    const size_t fetch_end = rows->fetch.end < end ? rows->fetch.end : end;
    for (; entry < (one_loop ? end : fetch_end); entry++) {
        if (!one_loop || entry < fetch_end)
            V(fetch)(rows, kind, mode, vectors, tile, entry);
        V(take_row)
        (rows, kind, half, mode, vectors, tile, entry, V(id)(rows, mode, entry), false, sums);
    }
    for (; !one_loop && entry < end; entry++)
        V(take_row)
    (rows, kind, half, mode, vectors, tile, entry, V(id)(rows, mode, entry), false, sums);
}

/* Likewise in the general mode, which tests which entries stay. */
BAG_LANE void V(take_kept)(const struct bag_rows *rows, enum bag_row_kind kind, int vectors,
                           const struct V(tile) * tile, size_t entry, size_t end, BODY *sums)
{
    const enum bag_mode mode = BAG_MODE_GENERAL;
    bool is_first = true;
    for (; entry < end; entry++) {
        int64_t id = V(id)(rows, mode, entry);
        if (entry < rows->fetch.end)
            V(fetch)(rows, kind, mode, vectors, tile, entry);
        if (!bag_keeps(rows->args, entry, id))
            continue;
        V(take_row)
        (rows, kind, rows->half_params, mode, vectors, tile, entry, id, is_first, sums);
        is_first = false;
    }
}

/* A tile of a bag. */
BAG_LANE void V(pool_tile)(const struct bag_rows *rows, enum bag_row_kind kind, bool half,
                           enum bag_mode mode, int vectors, const struct V(tile) * tile, size_t bag,
                           size_t first, size_t end, size_t kept, char *out)
{
    BODY sums[BAG_TILE_VECTORS] BAG_UNSET;
    V(clear)(sums, vectors);
    /* The next bag's result: a store that waits for its line holds up those behind it. */
    if (!bag_kind_converts(kind) && rows->fetch.end > 0)
        bag_fetch_lines(1, out + rows->out_bytes, (size_t)vectors * V(lanes) * sizeof(BODY_REAL));
    if (mode == BAG_MODE_GENERAL)
        V(take_kept)(rows, kind, vectors, tile, first, end, sums);
    else
        V(take_rows)(rows, kind, half, mode, vectors, tile, first, end, sums);
    V(store_result)(rows, kind, mode, vectors, tile, bag, kept, rows->divides, out, sums);
}

/* Every tile of a bag before the next bag, while its pages are in the TLB. */
BAG_LANE void V(pool_bag)(const struct bag_rows *rows, enum bag_row_kind kind, bool half,
                          enum bag_mode mode, int vectors, const struct V(tile) * only, size_t bag)
{
    size_t first = rows->bounds[bag], end = rows->bounds[bag + 1], out_at = bag * rows->out_bytes;
    size_t kept = mode == BAG_MODE_GENERAL ? bag_count_kept(rows->args, first, end) : end - first;
    if (kept == 0) {
        bag_ref_empty(rows->block, bag);
        return;
    }
    if (only)
        V(pool_tile)
    (rows, kind, half, mode, vectors, only, bag, first, end, kept, only->out + out_at);
    for (size_t number = 0; !only && number < rows->num_tiles; number++) {
        struct V(tile) tile = V(tile_at)(rows, kind, vectors, number);
        V(pool_tile)
        (rows, kind, half, mode, vectors, &tile, bag, first, end, kept, tile.out + out_at);
    }
}

/* Writes the row of a bag of one entry. */
BAG_LANE void V(pass)(const struct bag_rows *rows, enum bag_row_kind kind, bool half,
                      enum bag_mode mode, int vectors, const struct V(tile) * tile, size_t bag,
                      size_t entry)
{
    BODY sums[BAG_TILE_VECTORS] BAG_UNSET;
    V(clear)(sums, vectors);
    if (entry < rows->fetch.end)
        V(fetch)(rows, kind, mode, vectors, tile, entry);
    V(take_row)
    (rows, kind, half, mode, vectors, tile, entry, V(id)(rows, mode, entry), true, sums);
    V(store_result)
    (rows, kind, mode, vectors, tile, bag, 1, false, tile->out + bag * rows->out_bytes, sums);
}

/* Bags of one entry from `bag` on: nothing is divided, and few instructions let many rows be loaded
 * at once. Returns the first bag of another length. */
BAG_LANE size_t V(pool_singles)(const struct bag_rows *rows, enum bag_row_kind kind, bool half,
                                enum bag_mode mode, int vectors, const struct V(tile) * tile,
                                size_t bag)
{
    for (; bag < rows->num_bags && rows->bounds[bag + 1] - rows->bounds[bag] == 1; bag++)
        V(pass)(rows, kind, half, mode, vectors, tile, bag, rows->bounds[bag]);
    return bag;
}

/* Adds `count` rows from `entry` on, whose ids begin at `ids`. */
BAG_LANE void V(add_rows)(const struct bag_rows *rows, enum bag_row_kind kind, enum bag_mode mode,
                          int vectors, const struct V(tile) * tile, size_t entry, const char *ids,
                          size_t count, BODY *sums)
{
#pragma GCC unroll 4
    for (size_t i = 0; i < count; i++)
        V(take_row)
    (rows, kind, false, mode, vectors, tile, entry + i, bag_checked_id(ids, rows->id_bytes, i),
     false, sums);
}

/* Pools a block whose rows are not prefetched and whose results are sums or, where `is_mean`, these
 * divided by the number of entries: so little is done for each bag that short rows are added as
 * fast as they can be loaded. */
BAG_LANE void V(pool_cached)(const struct bag_rows *rows, enum bag_row_kind kind,
                             enum bag_mode mode, int vectors, const struct V(tile) * tile,
                             bool is_mean)
{
    /* Rows of one cache line take fewer instructions than the loop does. */
    const size_t turn = (size_t)vectors * V(lanes) * bag_kind_bits(kind) <= 512 ? 4 : 1;
    BODY sums[BAG_TILE_VECTORS] BAG_UNSET;
    char *out = tile->out;
    size_t entry = rows->bounds[0];
    const char *ids = rows->ids + entry * rows->id_bytes;
    for (size_t bag = 0; bag < rows->num_bags; bag++, out += rows->out_bytes) {
        size_t end = rows->bounds[bag + 1], count = end - entry;
        if (count == 0) {
            bag_ref_empty(rows->block, bag);
            continue;
        }
        V(clear)(sums, vectors);
        for (; turn > 1 && end - entry >= turn; entry += turn, ids += turn * rows->id_bytes)
            V(add_rows)(rows, kind, mode, vectors, tile, entry, ids, turn, sums);
        for (; entry < end; entry++, ids += rows->id_bytes)
            V(add_rows)(rows, kind, mode, vectors, tile, entry, ids, 1, sums);
        if (is_mean)
            V(average)(sums, vectors, count);
        V(store_all)(tile, kind, vectors, BODY_DTYPE, out, sums);
    }
}

BAG_LANE void V(pool_all)(const struct bag_rows *rows, enum bag_row_kind kind, bool half,
                          enum bag_mode mode, int vectors, const struct V(tile) * only)
{
    const bool singles_pass =
        mode != BAG_MODE_GENERAL && bag_kind_converts(kind) && only && rows->args->singles_pass;
    const bool is_mean = mode == BAG_MODE_PLAIN && rows->args->reduction == BAG_MEAN;
    const bool cached = mode != BAG_MODE_GENERAL && kind == BAG_KIND_OF_F32 && only &&
                        (!rows->divides || is_mean) && rows->result == BODY_DTYPE &&
                        rows->fetch.end == 0;
    if (cached) {
        V(pool_cached)(rows, kind, mode, vectors, only, is_mean);
        return;
    }
    for (size_t bag = 0; bag < rows->num_bags;) {
        if (singles_pass && rows->bounds[bag + 1] - rows->bounds[bag] == 1)
            bag = V(pool_singles)(rows, kind, half, mode, vectors, only, bag);
        else
            V(pool_bag)(rows, kind, half, mode, vectors, only, bag++);
    }
}

BAG_LANE void V(pool_bags)(const struct bag_block *block, enum bag_row_kind kind,
                           enum bag_mode mode, int vectors, bool is_split)
{
    const struct bag_rows copy = bag_rows_of(block, bag_kind_bits(kind)), *rows = &copy;
    const struct V(tile) whole = V(only_tile)(rows, kind), *only = is_split ? NULL : &whole;
    const bool apart = kind == BAG_KIND_OF_INT8 && mode != BAG_MODE_GENERAL;
    if (apart && rows->half_params)
        V(pool_all)(rows, kind, true, mode, vectors, only);
    else
        V(pool_all)(rows, kind, !apart && rows->half_params, mode, vectors, only);
}

#include "pool_copy.h"
#if BAG_NARROW_ROWS
#include "pool_narrow.h"
#endif

#undef V
#undef BODY_JOIN
#undef BODY_JOIN_
#undef BODY
#undef BODY_REAL
#undef BODY_DTYPE
#undef BODY_DIVISOR
