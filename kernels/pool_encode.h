/* Results as rows of a row format: pooled or gathered, then encoded. */
#pragma once

#include "pool.h"

/* The longest rows that bag_pool_encode takes, in elements. */
#define BAG_ENCODE_ELEMENTS 8192

/* Returns whether results of the table can be encoded: sums of f32. */
static inline bool bag_table_can_be_encoded(const struct bag_table *table)
{
    return table->dtype == BAG_F32 || table->dtype == BAG_F16 || table->dtype == BAG_BF16;
}

/* Encodes `count` rows of f32 values, one every `row_elements`, as bag_row_encode_fast does. */
void bag_rows_encode(const float *values, size_t count, size_t row_elements,
                     enum bag_row_format format, void *out);

/* Clears the bits of rows that stand for no element: those behind the last code of int4 and int2
 * rows. Rows that are copied as they are stored may have any. */
void bag_rows_clear_unused(enum bag_row_format format, size_t row_elements, size_t count,
                           void *rows);

/* Pools a range of bags with all their columns, of at most BAG_ENCODE_ELEMENTS, and encodes each.
 * The call's output type is f32 and its bag_stride that of such rows. `out` is the start of the
 * whole result, whose rows follow each other without gaps. */
void bag_pool_encode(const struct bag_pool_args *args, enum bag_row_format format,
                     const struct bag_range *range, void *out);

/* Returns whether the rows of a checked call, in this format, are the stored ones: they are not
 * pooled, and the table has that format. */
static inline bool bag_pool_gives_stored(const struct bag_pool_args *args,
                                         enum bag_row_format format)
{
    return args->reduction == BAG_NONE && args->table.row_format == format;
}

/* Makes a checked call copy rows as they are stored: its result has a UINT8 element for each byte.
 * The call does not reduce. */
void bag_pool_copy_stored(struct bag_pool_args *args);
