/* Results as rows of a row format; see pool_encode.h. */
#include "pool_encode.h"

#include "pool_loop.h"

/* Elements that are pooled before they are encoded: they fit the first cache. Or one longer row. */
#define STAGE_ELEMENTS 4096

/* The most rows that are prefetched meanwhile. */
#define FETCHED_ROWS 64

void bag_rows_encode(const float *values, size_t count, size_t row_elements,
                     enum bag_row_format format, void *out)
{
    const struct bag_table table = {
        .dtype = BAG_F32, .row_elements = row_elements, .row_format = format};
    const size_t row_bytes = bag_row_bytes(&table);
    for (size_t i = 0; i < count; i++)
        bag_row_encode_fast(&table, BAG_F32, values + i * row_elements,
                            (unsigned char *)out + i * row_bytes);
}

void bag_rows_clear_unused(enum bag_row_format format, size_t row_elements, size_t count,
                           void *rows)
{
    const struct bag_table table = {.row_format = format, .row_elements = row_elements};
    const struct bag_row_places places = bag_row_places(&table);
    const size_t per_byte = bag_codes_per_byte(bag_row_kind(&table)),
                 used = row_elements % per_byte;
    unsigned char *last = (unsigned char *)rows + places.codes_at + row_elements / per_byte;
    for (size_t i = 0; used && i < count; i++, last += places.bytes)
        *last &= (unsigned char)((1u << used * 8 / per_byte) - 1);
}

/* Prefetches the first rows of some bags, while those before them are encoded. */
static void fetch_bags(const struct bag_pool_args *args, size_t first_bag, size_t end_bag)
{
    if (args->walk->fetch == BAG_FETCH_NONE || first_bag >= end_bag)
        return;
    size_t first = bag_pool_first_entry(args, first_bag);
    size_t end = bag_pool_first_entry(args, end_bag);
    bag_fetch_rows(args, first, end - first < FETCHED_ROWS ? end : first + FETCHED_ROWS);
}

/* Returns whether the encoder reads stored rows directly, without an FP32 copy of them. */
static bool encodes_stored(const struct bag_pool_args *args, enum bag_row_format format)
{
    const struct bag_table *table = &args->table;
    return args->reduction == BAG_NONE && bag_kind_has_params(bag_row_layouts[format].kind) &&
           table->row_format == BAG_ROWS_PLAIN &&
           (table->dtype == BAG_F16 || table->dtype == BAG_F32);
}

/* Encodes the stored row of each entry, and zeros for those that do not count. */
static void encode_stored(const struct bag_pool_args *args, enum bag_row_format format,
                          const struct bag_range *range, unsigned char *out)
{
    const struct bag_table to = {
        .dtype = BAG_F32, .row_elements = args->table.row_elements, .row_format = format};
    /* A row of FP32 or, in its first half, of FP16. */
    static const float zeros[BAG_ENCODE_ELEMENTS];
    const size_t ahead = args->ahead, row_bytes = args->walk->row_bytes;
    const size_t to_bytes = bag_row_bytes(&to);
    const char *rows = args->table.rows;
    const size_t fetch_end = bag_fetch_end(args, range->end_bag);
    const bool keeps_all = bag_keeps_all(args);
    for (size_t entry = range->first_bag; entry < range->end_bag; entry++) {
        const int64_t row = bag_id_at(&args->indices, entry);
        const void *from = zeros;
        if (keeps_all || bag_keeps(args, entry, row))
            from = rows + (size_t)row * row_bytes;
        if (entry < fetch_end)
            bag_fetch_row(args, entry + ahead, rows, row_bytes, row_bytes);
        bag_row_encode_fast(&to, args->table.dtype, from, out + entry * to_bytes);
    }
}

/* Returns the call that pools the rows to encode. A row alone is the sum of that row, which takes
 * less than copying it, but for the sign of a zero: integers' codes have none. */
static struct bag_pool_args pooled_as(const struct bag_pool_args *args, enum bag_row_format format)
{
    struct bag_pool_args own = *args;
    if (args->reduction == BAG_NONE && bag_keeps_all(args) &&
        bag_kind_has_params(bag_row_layouts[format].kind))
        own.reduction = BAG_SUM;
    return own;
}

/* Pools bags in pieces that stay in the first cache, and encodes each. */
static void encode_pooled(const struct bag_pool_args *args, enum bag_row_format format,
                          const struct bag_range *range, char *out)
{
    float stage[BAG_ENCODE_ELEMENTS] BAG_UNSET;
    const struct bag_pool_args own = pooled_as(args, format);
    const size_t columns = args->table.row_elements;
    const size_t row_bytes = bag_encoded_row_bytes(format, columns);
    const size_t most = columns < STAGE_ELEMENTS ? STAGE_ELEMENTS / (columns ? columns : 1) : 1;
    struct bag_range part = {.end_column = columns};
    for (size_t bag = range->first_bag; bag < range->end_bag; bag = part.end_bag) {
        const size_t left = range->end_bag - bag, count = left < most ? left : most;
        part.first_bag = bag;
        part.end_bag = bag + count;
        /* The kernels count from the first bag of the whole result. */
        bag_pool_range(&own, &part, (void *)((uintptr_t)stage - bag * args->bag_stride));
        fetch_bags(&own, part.end_bag, part.end_bag + (left - count < most ? left - count : most));
        bag_rows_encode(stage, count, columns, format, out + bag * row_bytes);
    }
}

void bag_pool_encode(const struct bag_pool_args *args, enum bag_row_format format,
                     const struct bag_range *range, void *out)
{
    if (encodes_stored(args, format))
        encode_stored(args, format, range, out);
    else
        encode_pooled(args, format, range, out);
}

void bag_pool_copy_stored(struct bag_pool_args *args)
{
    const size_t row_bytes = bag_row_bytes(&args->table);
    args->table.dtype = args->output_dtype = BAG_U8;
    args->table.row_format = BAG_ROWS_PLAIN;
    args->table.row_elements = args->bag_stride = row_bytes;
    args->element_bytes = 1;
    args->result_bytes = args->num_bags * row_bytes;
}
