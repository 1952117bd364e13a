/* Rows of fewer columns than a vector has: one vector whose upper lanes are not
 * used. Their loop asks for each row whether it is prefetched, as these take no
 * time beside the latency of an addition. Part of pool_body.h, included once
 * per element width. */

/* A row in the lower lanes. */
BAG_LANE BODY V(narrow_row)(const struct bag_rows *rows, enum bag_row_kind kind,
                            const struct V(tile) * tile, const struct V(some) * some, int64_t id)
{
    const char *at = tile->rows + (size_t)id * rows->row_bytes;
    struct V(row) row = V(open)(kind, rows->half_params, rows, at, at + tile->params_at);
    return V(narrow_columns)(kind, rows->has_params, &row, some);
}

/* The sums of the entries [entry, end), or the largest values. */
BAG_LANE BODY V(narrow_sums)(const struct bag_rows *rows, enum bag_row_kind kind,
                             enum bag_mode mode, const struct V(tile) * tile,
                             const struct V(some) * some, size_t entry, size_t end)
{
    const struct bag_pool_args *args = rows->args;
    const bool weighted = mode == BAG_MODE_WEIGHTED || (mode == BAG_MODE_GENERAL && args->weights);
    const bool takes_larger = mode == BAG_MODE_GENERAL && args->reduction == BAG_MAX;
    BODY sums = V(zero)();
    bool is_first = true;
    for (; entry < end; entry++) {
        int64_t id = V(id)(rows, mode, entry);
        if (entry < rows->fetch.end)
            V(fetch)(rows, kind, mode, 1, tile, entry);
        if (mode == BAG_MODE_GENERAL && !bag_keeps(args, entry, id))
            continue;
        BODY values = V(narrow_row)(rows, kind, tile, some, id);
        if (takes_larger)
            sums = is_first ? values : V(larger)(sums, values);
        else if (weighted)
            sums = V(fused)(V(weight)(kind, args, entry), values, sums);
        else
            sums = V(add)(sums, values);
        is_first = false;
    }
    return sums;
}

/* The lower lanes as elements of the result. */
BAG_LANE void V(narrow_store)(const struct bag_rows *rows, const struct V(some) * some, BODY sums,
                              char *out)
{
    _Alignas(sizeof(BODY)) char elements[sizeof(BODY)] BAG_UNSET;
    V(store)(rows->result, elements, 0, sums);
    bag_copy_some(out, elements, some->count * rows->result_bytes);
}

/* What a bag is divided by; not worth a copy in every instance. */
static __attribute__((noinline)) BODY_REAL V(narrow_divisor)(const struct bag_pool_args *args,
                                                             const size_t *bounds, size_t kept)
{
    return BODY_DIVISOR(args, bounds[0], bounds[1], kept);
}

BAG_LANE void V(pool_narrow)(const struct bag_block *block, enum bag_row_kind kind,
                             enum bag_mode mode)
{
    const struct bag_rows copy = bag_rows_of(block, bag_kind_bits(kind)), *rows = &copy;
    const size_t first_byte = rows->first_column * bag_kind_bits(kind) / 8;
    const struct V(some) some = V(some_of)(rows->end_column - rows->first_column);
    const struct V(tile) tile = {.rows = rows->rows + first_byte,
                                 .last_byte = rows->last_byte - first_byte,
                                 .bytes_before = rows->bytes_before,
                                 .params_at = rows->params_at - (ptrdiff_t)first_byte};
    char *out = rows->out + rows->first_column * rows->result_bytes;
    for (size_t bag = 0; bag < rows->num_bags; bag++, out += rows->out_bytes) {
        size_t first = rows->bounds[bag], end = rows->bounds[bag + 1];
        size_t kept =
            mode == BAG_MODE_GENERAL ? bag_count_kept(rows->args, first, end) : end - first;
        if (kept == 0) {
            bag_ref_empty(block, bag);
            continue;
        }
        BODY sums = V(narrow_sums)(rows, kind, mode, &tile, &some, first, end);
        if (rows->divides) {
            bool is_mean = mode == BAG_MODE_PLAIN && rows->args->reduction == BAG_MEAN;
            BODY_REAL divisor =
                is_mean ? (BODY_REAL)kept : V(narrow_divisor)(rows->args, rows->bounds + bag, kept);
            sums = divisor == 0 ? V(zero)() : V(divide)(sums, V(all)(divisor));
        }
        V(narrow_store)(rows, &some, sums, out);
    }
}
