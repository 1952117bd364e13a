/* Decodes runs of columns of every row format to f32, and writes results. */
#include "rowformat.h"

/* Results are rounded through a small array, so that the loops need not consider its alignment. */
#define RUN_COLUMNS 64

const struct bag_row_layout bag_row_layouts[BAG_ROW_FORMAT_COUNT] = {
#define BAG_X(id, name, kind, param_dtype, num_params, params_first) \
    [BAG_ROWS_##id] = {BAG_KIND_##kind, BAG_##param_dtype, num_params, params_first},
    BAG_ROW_FORMATS(BAG_X)
#undef BAG_X
};

/* ---- sizes ----------------------------------------------------------------------------------- */

enum bag_row_kind bag_row_kind(const struct bag_table *table)
{
    if (table->row_format != BAG_ROWS_PLAIN)
        return bag_row_layouts[table->row_format].kind;
    switch (table->dtype) {
    case BAG_F32:
        return BAG_KIND_OF_F32;
    case BAG_F16:
        return BAG_KIND_OF_F16;
    case BAG_BF16:
        return BAG_KIND_OF_BF16;
    case BAG_F64:
        return BAG_KIND_OF_F64;
    default:
        return BAG_KIND_OF_INTEGERS;
    }
}

size_t bag_row_params_bytes(enum bag_row_format format)
{
    const struct bag_row_layout *layout = &bag_row_layouts[format];
    return layout->num_params * bag_dtypes[layout->param_dtype].bytes;
}

/* Returns the size of a row without scale and bias. */
static size_t codes_bytes(const struct bag_table *table)
{
    if (table->row_format == BAG_ROWS_PLAIN)
        return table->row_elements * bag_dtypes[table->dtype].bytes;
    size_t per_byte = bag_codes_per_byte(bag_row_layouts[table->row_format].kind);
    return table->row_elements / per_byte + (table->row_elements % per_byte != 0);
}

struct bag_row_places bag_row_places(const struct bag_table *table)
{
    size_t codes = codes_bytes(table), params = bag_row_params_bytes(table->row_format);
    bool params_first = bag_row_layouts[table->row_format].params_first;
    return (struct bag_row_places){.bytes = codes + params,
                                   .codes_at = params_first ? params : 0,
                                   .params_at = params_first ? 0 : codes};
}

size_t bag_row_bytes(const struct bag_table *table)
{
    return bag_row_places(table).bytes;
}

size_t bag_row_elements(enum bag_row_format format, size_t row_bytes)
{
    size_t params = bag_row_params_bytes(format);
    size_t codes = row_bytes > params ? row_bytes - params : 0;
    return codes * bag_codes_per_byte(bag_row_layouts[format].kind);
}

/* ---- decoding -------------------------------------------------------------------------------- */

float bag_row_param(const struct bag_row_layout *layout, const char *params, size_t number)
{
    if (layout->param_dtype == BAG_F16)
        return bag_f32_from_f16(bag_load_u16(params, number));
    return bag_load_f32(params, number);
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

static void decode_int8(const char *codes, float scale, float bias, size_t count, float *values)
{
    for (size_t i = 0; i < count; i++)
        values[i] = __builtin_fmaf((uint8_t)codes[i], scale, bias);
}

static void decode_sint8(const char *codes, float scale, size_t count, float *values)
{
    for (size_t i = 0; i < count; i++)
        values[i] = (float)(int8_t)codes[i] * scale;
}

/* Decodes codes of `bits` bits, a constant. */
static inline __attribute__((always_inline)) void decode_packed(unsigned bits, const char *codes,
                                                                size_t column, float scale,
                                                                float bias, size_t count,
                                                                float *values)
{
    const size_t per_byte = 8 / bits;
    for (size_t i = 0; i < count; i++) {
        unsigned byte = (uint8_t)codes[(column + i) / per_byte];
        unsigned code = byte >> (column + i) % per_byte * bits & ((1u << bits) - 1);
        values[i] = __builtin_fmaf((float)code, scale, bias);
    }
}

static void decode_e4m3(const char *codes, float scale, size_t count, float *values)
{
    for (size_t i = 0; i < count; i++)
        values[i] = bag_f32_from_e4m3((uint8_t)codes[i], scale * 256);
}

static void decode_e5m2(const char *codes, float scale, size_t count, float *values)
{
    for (size_t i = 0; i < count; i++)
        values[i] = bag_f32_from_e5m2((uint8_t)codes[i]) * scale;
}

void bag_row_decode(const struct bag_table *table, int64_t row, size_t column, size_t count,
                    float *values)
{
    const struct bag_row_layout *layout = &bag_row_layouts[table->row_format];
    struct bag_row_places places = bag_row_places(table);
    const char *from = (const char *)table->rows + (size_t)row * places.bytes;
    const char *codes = from + places.codes_at, *params = from + places.params_at;
    float scale = layout->num_params > 0 ? bag_row_param(layout, params, 0) : 1;
    float bias = layout->num_params > 1 ? bag_row_param(layout, params, 1) : 0;
    switch (bag_row_kind(table)) {
    case BAG_KIND_OF_INT8:
        decode_int8(codes + column, scale, bias, count, values);
        break;
    case BAG_KIND_OF_SINT8:
        decode_sint8(codes + column, scale, count, values);
        break;
    case BAG_KIND_OF_INT4:
        decode_packed(4, codes, column, scale, bias, count, values);
        break;
    case BAG_KIND_OF_INT2:
        decode_packed(2, codes, column, scale, bias, count, values);
        break;
    case BAG_KIND_OF_E4M3:
        decode_e4m3(codes + column, scale, count, values);
        break;
    case BAG_KIND_OF_E5M2:
        decode_e5m2(codes + column, scale, count, values);
        break;
    default:
        codes += column * bag_dtypes[table->dtype].bytes;
        decode_plain(table->dtype, codes, count, values);
        break;
    }
}

/* ---- results --------------------------------------------------------------------------------- */

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

void bag_elements_encode(const float *values, size_t count, enum bag_dtype dtype, void *out)
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
