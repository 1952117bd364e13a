/* The plain C kernel's one loop: bag by bag, tile of columns by tile, entry by entry.
 *
 * Must not know: how elements look; a struct bag_ref_kind knows. */
#include "pool_ref.h"

static const struct bag_ref_kind *kind_of(enum bag_dtype dtype)
{
    if (dtype == BAG_F64)
        return &bag_ref_f64;
    return bag_dtypes[dtype].kind == BAG_KIND_FLOAT ? &bag_ref_f32 : &bag_ref_integer;
}

/* Sums, or largest values, of the columns over the entries that stay. Sums start from +0, so that
 * a sum of -0 is +0. */
static void combine(const struct bag_ref_kind *kind, const struct bag_piece *piece,
                    union bag_tile *result)
{
    const struct bag_pool *pool = piece->pool;
    union bag_tile values;
    bool first = true;
    memset(result, 0, sizeof *result);
    for (size_t entry = piece->first_entry; entry < piece->end_entry; entry++) {
        int64_t row = bag_id_at(&pool->indices, entry);
        if (!bag_keeps(pool, entry, row))
            continue;
        bool is_max = pool->reduction == BAG_MAX;
        kind->load(pool, row, piece->column, piece->num_columns,
                   is_max && first ? result : &values);
        if (is_max && !first)
            kind->max(pool, result, &values, piece->num_columns);
        else if (!is_max && pool->weights)
            kind->add_weighted(pool, entry, result, &values, piece->num_columns);
        else if (!is_max)
            kind->add(result, &values, piece->num_columns);
        first = false;
    }
}

static void pool_tile(const struct bag_ref_kind *kind, const struct bag_piece *piece, void *out)
{
    union bag_tile result;
    bool divides = piece->pool->reduction == BAG_MEAN || piece->pool->reduction == BAG_SQRTN;
    if (bag_ref_needs_exact(piece)) {
        bag_ref_exact_mean(piece, &result);
    } else {
        combine(kind, piece, &result);
        if (divides)
            kind->divide(piece, &result);
    }
    kind->store(piece->pool, &result, piece->num_columns, out);
}

/* An empty bag is the default row as it is: its very bits where no conversion is asked for. */
static void copy_default(const struct bag_ref_kind *kind, const struct bag_piece *piece, void *out)
{
    const struct bag_pool *pool = piece->pool;
    size_t bytes = bag_dtypes[pool->output_dtype].bytes;
    if (pool->default_row < 0) {
        memset(out, 0, piece->num_columns * bytes);
        return;
    }
    if (pool->output_dtype == pool->table.dtype) {
        size_t element = (size_t)pool->default_row * pool->table.row_elements + piece->column;
        memcpy(out, (const char *)pool->table.rows + element * bytes, piece->num_columns * bytes);
        return;
    }
    union bag_tile values;
    kind->load(pool, pool->default_row, piece->column, piece->num_columns, &values);
    kind->store(pool, &values, piece->num_columns, out);
}

static void pool_bag(const struct bag_block *block, size_t bag, char *out)
{
    const struct bag_pool *pool = block->pool;
    const struct bag_ref_kind *kind = kind_of(pool->table.dtype);
    size_t bytes = bag_dtypes[pool->output_dtype].bytes;
    struct bag_piece piece = {
        .pool = pool, .first_entry = block->borders[bag], .end_entry = block->borders[bag + 1]};
    piece.num_kept = bag_count_kept(pool, piece.first_entry, piece.end_entry);
    for (size_t column = block->first_column; column < block->end_column;) {
        size_t left = block->end_column - column;
        piece.column = column;
        piece.num_columns = left < BAG_REF_TILE ? left : BAG_REF_TILE;
        if (piece.num_kept == 0)
            copy_default(kind, &piece, out + column * bytes);
        else
            pool_tile(kind, &piece, out + column * bytes);
        column += piece.num_columns;
    }
}

void bag_ref_block(const struct bag_block *block)
{
    const struct bag_pool *pool = block->pool;
    size_t bag_bytes = pool->table.row_elements * bag_dtypes[pool->output_dtype].bytes;
    for (size_t bag = 0; bag < block->num_bags; bag++)
        pool_bag(block, bag, block->out + bag * bag_bytes);
}
