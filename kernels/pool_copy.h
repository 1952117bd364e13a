/* Blocks whose bags have one entry each, of rows that are summed as they are stored: their results
 * are rows, or rows times a weight. Part of pool_body.h, included once per element width. */

/* Adds to zero the columns of a row from `column` on, and writes them. */
BAG_LANE void V(copy_columns)(enum bag_row_kind kind, enum bag_mode mode, const struct V(row) * row,
                              BODY weight, size_t column, char *out)
{
    BODY values = V(columns)(kind, true, BAG_PART_WHOLE, row, column);
    values =
        mode == BAG_MODE_PLAIN ? V(add)(V(zero)(), values) : V(fused)(weight, values, V(zero)());
    V(store)(BODY_DTYPE, out, column, values);
}

/* Those of a whole row, which take so many vectors. */
BAG_LANE void V(copy_row)(enum bag_row_kind kind, enum bag_mode mode, const struct V(row) * row,
                          BODY weight, size_t vectors, size_t last_vector, char *out)
{
#pragma GCC unroll 8
    for (size_t column = 0; column < (vectors - 1) * V(lanes); column += V(lanes))
        V(copy_columns)(kind, mode, row, weight, column, out);
    V(copy_columns)(kind, mode, row, weight, last_vector, out);
}

/* Returns whether each bag had one entry; stops where one has not. */
BAG_LANE bool V(copy_rows)(const struct bag_rows *rows, enum bag_row_kind kind, enum bag_mode mode,
                           size_t vectors, const struct V(tile) * tile)
{
    /* A store that waits for its line holds up those behind it: results are prefetched, too. */
    const size_t bytes = vectors * V(lanes) * sizeof(BODY_REAL);
    const size_t ahead = rows->out_bytes * (vectors <= 4 ? 8 : 2);
    /* Rows in the near caches are loaded many at once, as none waits for another. */
    const size_t fetch_end = rows->fetch.near ? 0 : rows->fetch.end;
    const size_t *bounds = rows->bounds, *last_bound = bounds + rows->num_bags;
    size_t entry = *bounds;
    for (char *out = tile->out; bounds < last_bound; entry++, out += rows->out_bytes) {
        if (*++bounds != entry + 1)
            return false;
        size_t id = (size_t)bag_checked_id(rows->ids, rows->id_bytes, entry);
        struct V(row) row = {.codes = tile->rows + id * rows->row_bytes};
        BODY weight = mode == BAG_MODE_PLAIN ? V(zero)() : V(weight)(kind, rows->args, entry);
        if (entry < fetch_end)
            V(fetch)(rows, kind, BAG_MODE_PLAIN, (int)vectors, tile, entry);
        bag_fetch_lines(1, out + ahead, bytes);
        V(copy_row)(kind, mode, &row, weight, vectors, tile->last_vector, out);
    }
    return true;
}

/* With a constant number of vectors where rows are short or of usual widths. */
BAG_LANE bool V(copy_bags)(const struct bag_rows *rows, enum bag_row_kind kind, enum bag_mode mode)
{
    const struct V(tile) tile = V(only_tile)(rows, kind);
    const size_t vectors = (tile.last_vector + 2 * V(lanes) - 1) / V(lanes);
    switch (vectors) {
    case 1:
        return V(copy_rows)(rows, kind, mode, 1, &tile);
    case 2:
        return V(copy_rows)(rows, kind, mode, 2, &tile);
    case 3:
        return V(copy_rows)(rows, kind, mode, 3, &tile);
    case 4:
        return V(copy_rows)(rows, kind, mode, 4, &tile);
    case 8:
        return V(copy_rows)(rows, kind, mode, 8, &tile);
    default:
        return V(copy_rows)(rows, kind, mode, vectors, &tile);
    }
}

/* Pools a block of bags of one entry each: so few instructions let many rows be loaded at once. */
static bool V(copy_block)(const struct bag_block *block)
{
    const enum bag_row_kind kind = BODY_DTYPE == BAG_F32 ? BAG_KIND_OF_F32 : BAG_KIND_OF_F64;
    const struct bag_rows copy = bag_rows_of(block, bag_kind_bits(kind)), *rows = &copy;
    if (rows->args->weights)
        return V(copy_bags)(rows, kind, BAG_MODE_WEIGHTED);
    return V(copy_bags)(rows, kind, BAG_MODE_PLAIN);
}
