/* Runs of columns: decoding every row format to f32, and writing results. */
#include "rowformat.h"

/* Results are rounded through a small array, so that the loops may ignore its alignment. */
#define RUN_COLUMNS 64

size_t bag_row_bytes(const struct bag_table *table)
{
    size_t codes = bag_row_code_bytes(table->row_format, table->row_elements);
    switch (table->row_format) {
    case BAG_ROWS_INT8:
        return codes + 2 * sizeof(float);
    case BAG_ROWS_INT4:
        return codes + 2 * sizeof(uint16_t);
    case BAG_ROWS_F8_E4M3:
    case BAG_ROWS_F8_E5M2:
        return codes;
    case BAG_ROWS_PLAIN:
    case BAG_ROW_FORMAT_COUNT:
        break;
    }
    return table->row_elements * bag_dtypes[table->dtype].bytes;
}

size_t bag_row_elements(enum bag_row_format format, size_t row_bytes)
{
    size_t trailer = format == BAG_ROWS_INT8   ? 2 * sizeof(float)
                     : format == BAG_ROWS_INT4 ? 2 * sizeof(uint16_t)
                                               : 0;
    size_t codes = row_bytes > trailer ? row_bytes - trailer : 0;
    return format == BAG_ROWS_INT4 ? 2 * codes : codes;
}

static void decode_plain(enum bag_dtype dtype, const char *from, size_t count, float *values)
{
    if (dtype == BAG_F32)
        memcpy(values, from, count * sizeof *values);
    else if (dtype == BAG_F16)
        for (size_t i = 0; i < count; i++)
            values[i] = bag_f32_from_f16(bag_load_u16(from, i));
    else
        for (size_t i = 0; i < count; i++)
            values[i] = bag_f32_from_bf16(bag_load_u16(from, i));
}

static void decode_int8(const char *row, const char *trailer, size_t column, size_t count,
                        float *values)
{
    float scale = bag_load_f32(trailer, 0), bias = bag_load_f32(trailer, 1);
    for (size_t i = 0; i < count; i++)
        values[i] = __builtin_fmaf((uint8_t)row[column + i], scale, bias);
}

static void decode_int4(const char *row, const char *trailer, size_t column, size_t count,
                        float *values)
{
    float scale = bag_f32_from_f16(bag_load_u16(trailer, 0));
    float bias = bag_f32_from_f16(bag_load_u16(trailer, 1));
    for (size_t i = 0; i < count; i++) {
        unsigned pair = (uint8_t)row[(column + i) / 2];
        unsigned code = (column + i) % 2 ? pair >> 4 : pair & 15;
        values[i] = __builtin_fmaf((float)code, scale, bias);
    }
}

void bag_row_decode(const struct bag_table *table, int64_t row, size_t column, size_t count,
                    float *values)
{
    const char *from = (const char *)table->rows + (size_t)row * bag_row_bytes(table);
    const char *trailer = from + bag_row_code_bytes(table->row_format, table->row_elements);
    switch (table->row_format) {
    case BAG_ROWS_INT8:
        decode_int8(from, trailer, column, count, values);
        break;
    case BAG_ROWS_INT4:
        decode_int4(from, trailer, column, count, values);
        break;
    case BAG_ROWS_F8_E4M3:
        for (size_t i = 0; i < count; i++)
            values[i] = bag_f32_from_e4m3((uint8_t)from[column + i]);
        break;
    case BAG_ROWS_F8_E5M2:
        for (size_t i = 0; i < count; i++)
            values[i] = bag_f32_from_e5m2((uint8_t)from[column + i]);
        break;
    case BAG_ROWS_PLAIN:
    case BAG_ROW_FORMAT_COUNT:
        from += column * bag_dtypes[table->dtype].bytes;
        decode_plain(table->dtype, from, count, values);
        break;
    }
}

static void encode_halves(const float *values, size_t count, enum bag_dtype dtype, char *out)
{
    uint16_t halves[RUN_COLUMNS] BAG_UNSET;
    if (dtype == BAG_F16)
        for (size_t i = 0; i < count; i++)
            halves[i] = bag_f16_from_f32(values[i]);
    else
        for (size_t i = 0; i < count; i++)
            halves[i] = bag_bf16_from_f32(values[i]);
    memcpy(out, halves, count * sizeof *halves);
}

void bag_row_encode(const float *values, size_t count, enum bag_dtype dtype, void *out)
{
    if (dtype == BAG_F32) {
        memcpy(out, values, count * sizeof *values);
        return;
    }
    for (size_t done = 0; done < count; done += RUN_COLUMNS) {
        size_t now = count - done < RUN_COLUMNS ? count - done : RUN_COLUMNS;
        encode_halves(values + done, now, dtype, (char *)out + done * sizeof(uint16_t));
    }
}
