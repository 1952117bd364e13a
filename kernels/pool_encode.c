/* Results as rows of a row format; see pool_encode.h. */
#include "pool_encode.h"

#include "rowformat.h"

/* Rows are pooled here before they are encoded, in the near caches. */
#define STAGE_ELEMENTS BAG_ENCODE_ELEMENTS

void bag_rows_encode(const float *values, size_t count, size_t row_elements,
                     enum bag_row_format format, void *out)
{
    const struct bag_table table = {
        .dtype = BAG_F32, .row_elements = row_elements, .row_format = format};
    const size_t row_bytes = bag_row_bytes(&table);
    for (size_t i = 0; i < count; i++)
        bag_row_encode_fast(&table, values + i * row_elements,
                            (unsigned char *)out + i * row_bytes);
}

void bag_pool_encode(const struct bag_pool_args *args, enum bag_row_format format,
                     const struct bag_range *range, void *out)
{
    float stage[STAGE_ELEMENTS] BAG_UNSET;
    const size_t columns = args->table.row_elements;
    const size_t row_bytes = bag_encoded_row_bytes(format, columns);
    const size_t most = columns ? STAGE_ELEMENTS / columns : STAGE_ELEMENTS;
    struct bag_range part = {.end_column = columns};
    for (size_t bag = range->first_bag; bag < range->end_bag; bag = part.end_bag) {
        const size_t left = range->end_bag - bag, count = left < most ? left : most;
        part.first_bag = bag;
        part.end_bag = bag + count;
        /* The kernels count from the first bag of the whole result. */
        bag_pool_range(args, &part, (void *)((uintptr_t)stage - bag * args->bag_stride));
        bag_rows_encode(stage, count, columns, format, (char *)out + bag * row_bytes);
    }
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
