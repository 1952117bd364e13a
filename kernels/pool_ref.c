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
    const struct bag_pool_args *args = piece->args;
    union bag_tile values BAG_UNSET;
    bool first = true;
    memset(result, 0, sizeof *result);
    for (size_t entry = piece->first_entry; entry < piece->end_entry; entry++) {
        int64_t row = bag_id_at(&args->indices, entry);
        if (!bag_keeps(args, entry, row))
            continue;
        bool is_max = args->reduction == BAG_MAX;
        kind->load(args, row, piece->column, piece->num_columns,
                   is_max && first ? result : &values);
        if (is_max && !first)
            kind->max(args, result, &values, piece->num_columns);
        else if (!is_max && args->weights)
            kind->add_weighted(args, entry, result, &values, piece->num_columns);
        else if (!is_max)
            kind->add(result, &values, piece->num_columns);
        first = false;
    }
}

static void pool_tile(const struct bag_ref_kind *kind, const struct bag_piece *piece, void *out)
{
    union bag_tile result BAG_UNSET;
    bool divides = piece->args->reduction == BAG_MEAN || piece->args->reduction == BAG_SQRTN;
    if (bag_ref_needs_exact(piece)) {
        bag_ref_exact_mean(piece, &result);
    } else {
        combine(kind, piece, &result);
        if (divides)
            kind->divide(piece, &result);
    }
    kind->store(piece->args, &result, piece->num_columns, out);
}

/* The default row's very bits where no conversion is asked for. */
static void copy_default(const struct bag_pool_args *args, size_t column, size_t count, char *out)
{
    const struct bag_table *table = &args->table;
    const struct bag_ref_kind *kind = kind_of(table->dtype);
    size_t bytes = bag_dtypes[args->output_dtype].bytes;
    union bag_tile values BAG_UNSET;
    if (table->row_format == BAG_ROWS_PLAIN && args->output_dtype == table->dtype) {
        size_t element = (size_t)args->default_row * table->row_elements + column;
        memcpy(out, (const char *)table->rows + element * bytes, count * bytes);
        return;
    }
    for (size_t done = 0; done < count; done += BAG_REF_TILE) {
        size_t now = count - done < BAG_REF_TILE ? count - done : BAG_REF_TILE;
        kind->load(args, args->default_row, column + done, now, &values);
        kind->store(args, &values, now, out + done * bytes);
    }
}

void bag_ref_empty(const struct bag_block *block, size_t bag)
{
    const struct bag_pool_args *args = block->args;
    size_t bytes = bag_dtypes[args->output_dtype].bytes;
    size_t count = block->end_column - block->first_column;
    char *out = block->out + bag * args->bag_stride + block->first_column * bytes;
    if (args->default_row < 0)
        memset(out, 0, count * bytes);
    else
        copy_default(args, block->first_column, count, out);
}

static void pool_bag(const struct bag_block *block, size_t bag)
{
    const struct bag_pool_args *args = block->args;
    const struct bag_ref_kind *kind = kind_of(args->table.dtype);
    size_t bytes = bag_dtypes[args->output_dtype].bytes;
    char *out = block->out + bag * args->bag_stride;
    struct bag_piece piece = {
        .args = args, .first_entry = block->bounds[bag], .end_entry = block->bounds[bag + 1]};
    piece.num_kept = bag_count_kept(args, piece.first_entry, piece.end_entry);
    if (piece.num_kept == 0) {
        bag_ref_empty(block, bag);
        return;
    }
    for (size_t column = block->first_column; column < block->end_column;) {
        size_t left = block->end_column - column;
        piece.column = column;
        piece.num_columns = left < BAG_REF_TILE ? left : BAG_REF_TILE;
        pool_tile(kind, &piece, out + column * bytes);
        column += piece.num_columns;
    }
}

void bag_ref_block(const struct bag_block *block)
{
    for (size_t bag = 0; bag < block->num_bags; bag++)
        pool_bag(block, bag);
}
