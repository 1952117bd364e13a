/* Rows of every kind as vectors, on top of an instruction set's operations (simd_*.h, included
 * first). */
#ifndef BAG_SIMD_H
#define BAG_SIMD_H

#include "pool_block.h"

/* A row that is being read. `kind` is a constant wherever these are inlined, so that the switches
 * disappear. */
struct f32v_row {
    const char *codes;
    f32v scale, bias;  /* of INT8 rows */
    struct f32v_u4 u4; /* of INT4 rows */
};

/* The row whose first column to read is at `at`; scale and bias of a quantised row are `trailer`
 * bytes after that. */
BAG_LANE struct f32v_row f32v_open(enum bag_row_kind kind, const char *at, size_t trailer)
{
    struct f32v_row row = {.codes = at};
    if (kind == BAG_KIND_OF_INT8) {
        row.scale = f32v_all(bag_load_f32(at + trailer, 0));
        row.bias = f32v_all(bag_load_f32(at + trailer, 1));
    } else if (kind == BAG_KIND_OF_INT4) {
        f32v scale = f32v_all_f16(at + trailer);
        row.u4 = f32v_u4_open(scale, f32v_all_f16(at + trailer + sizeof(uint16_t)));
    }
    return row;
}

/* The values from `column` on, counted from where the row was opened; even for four-bit codes. */
BAG_LANE f32v f32v_columns(enum bag_row_kind kind, const struct f32v_row *row, size_t column)
{
    switch (kind) {
    case BAG_KIND_OF_F16:
        return f32v_load_f16(row->codes + column * sizeof(uint16_t));
    case BAG_KIND_OF_BF16:
        return f32v_load_bf16(row->codes + column * sizeof(uint16_t));
    case BAG_KIND_OF_INT8:
        return f32v_fused(f32v_load_u8(row->codes + column), row->scale, row->bias);
    case BAG_KIND_OF_INT4:
        return f32v_u4_columns(&row->u4, row->codes + column / 2);
    case BAG_KIND_OF_E4M3:
        return f32v_load_e4m3(row->codes + column);
    case BAG_KIND_OF_E5M2:
        return f32v_load_e5m2(row->codes + column);
    default:
        return f32v_load_f32(row->codes + column * sizeof(float));
    }
}

/* Puts the columns of sums in order, where f32v_columns does not. */
BAG_LANE f32v f32v_in_order(enum bag_row_kind kind, f32v sums)
{
    return kind == BAG_KIND_OF_INT4 ? f32v_u4_in_order(sums) : sums;
}

/* The weight of an entry in every lane. */
BAG_LANE f32v f32v_weight(enum bag_row_kind kind, const struct bag_pool_args *args, size_t entry)
{
    if (kind == BAG_KIND_OF_F16 || kind == BAG_KIND_OF_BF16)
        return f32v_all(bag_weight_f32(args, entry));
    return f32v_all(bag_load_f32(args->weights, entry));
}

BAG_LANE void f32v_store(enum bag_dtype dtype, char *row, size_t column, f32v values)
{
    if (dtype == BAG_F32)
        f32v_store_f32(row + column * sizeof(float), values);
    else if (dtype == BAG_F16)
        f32v_store_f16(row + column * sizeof(uint16_t), values);
    else
        f32v_store_bf16(row + column * sizeof(uint16_t), values);
}

/* ---- f64 ------------------------------------------------------------------------------------- */

struct f64v_row {
    const char *codes;
};

BAG_LANE struct f64v_row f64v_open(enum bag_row_kind kind, const char *at, size_t trailer)
{
    (void)kind;
    (void)trailer;
    return (struct f64v_row){at};
}

BAG_LANE f64v f64v_columns(enum bag_row_kind kind, const struct f64v_row *row, size_t column)
{
    (void)kind;
    return f64v_load_f64(row->codes + column * sizeof(double));
}

BAG_LANE f64v f64v_in_order(enum bag_row_kind kind, f64v sums)
{
    (void)kind;
    return sums;
}

BAG_LANE f64v f64v_weight(enum bag_row_kind kind, const struct bag_pool_args *args, size_t entry)
{
    (void)kind;
    return f64v_all(bag_weight_f64(args, entry));
}

BAG_LANE void f64v_store(enum bag_dtype dtype, char *row, size_t column, f64v values)
{
    (void)dtype;
    f64v_store_f64(row + column * sizeof(double), values);
}

#endif
