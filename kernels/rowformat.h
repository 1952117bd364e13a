/* Conversion between stored rows and f32 values, in plain C. It defines the results of all
 * instruction sets.
 *
 * Widening is exact. Narrowing rounds once, to nearest even. A value that is too large becomes an
 * infinity, or a NaN if the format has no infinity. A NaN stays a NaN; its payload is not
 * specified. There are no branches, so that loops are vectorised. */
#pragma once

#include "table.h"

#include <string.h>

/* ---- rows ------------------------------------------------------------------------------------ */

/* The kinds of stored elements. Each has a decoder and kernels. X(ID, bits of an element, vector
 * type that sums it) */
#define BAG_ROW_KINDS(X) \
    X(F32, 32, f32v)     \
    X(F16, 16, f32v)     \
    X(BF16, 16, f32v)    \
    X(INT8, 8, f32v)     \
    X(SINT8, 8, f32v)    \
    X(INT4, 4, f32v)     \
    X(INT2, 2, f32v)     \
    X(E4M3, 8, f32v)     \
    X(E5M2, 8, f32v)     \
    X(F64, 64, f64v)

enum bag_row_kind {
#define BAG_X(id, bits, vector) BAG_KIND_OF_##id,
    BAG_ROW_KINDS(BAG_X)
#undef BAG_X
        BAG_KIND_OF_INTEGERS,
    BAG_ROW_KIND_COUNT,
    BAG_KIND_BY_DTYPE = BAG_ROW_KIND_COUNT /* for plain rows: bag_row_kind determines the kind */
};

/* The contents of a row of a format, from a line of BAG_ROW_FORMATS. */
struct bag_row_layout {
    enum bag_row_kind kind;     /* kind of the codes */
    enum bag_dtype param_dtype; /* type of scale and bias: F32 or F16 */
    unsigned num_params;        /* 0: neither; 1: scale; 2: scale, bias */
    bool params_first;          /* scale and bias precede the codes; false: they follow them */
};

extern const struct bag_row_layout bag_row_layouts[BAG_ROW_FORMAT_COUNT];

/* Returns whether the codes of a kind are integers, whose rows all have a scale. */
static inline __attribute__((always_inline)) bool bag_kind_has_params(enum bag_row_kind kind)
{
    return kind == BAG_KIND_OF_INT8 || kind == BAG_KIND_OF_SINT8 || kind == BAG_KIND_OF_INT4 ||
           kind == BAG_KIND_OF_INT2;
}

/* Returns the bits of an element or code of a kind, or 0 for kinds that are not in BAG_ROW_KINDS.
 */
static inline __attribute__((always_inline)) unsigned bag_kind_bits(enum bag_row_kind kind)
{
    static const unsigned bits_of[BAG_ROW_KIND_COUNT + 1] = {
#define BAG_X(id, bits, vector) [BAG_KIND_OF_##id] = bits,
        BAG_ROW_KINDS(BAG_X)
#undef BAG_X
    };
    return bits_of[kind];
}

/* Returns how many elements or codes of a kind share a byte; 1 for those of whole bytes. */
static inline size_t bag_codes_per_byte(enum bag_row_kind kind)
{
    const unsigned bits = bag_kind_bits(kind);
    return bits % 8 ? 8 / bits : 1;
}

/* Returns the kind of the table's elements, or of its rows' codes. */
enum bag_row_kind bag_row_kind(const struct bag_table *table);

/* The size of a row, and the positions of its elements or codes and of its scale. */
struct bag_row_places {
    size_t bytes, codes_at, params_at;
};

struct bag_row_places bag_row_places(const struct bag_table *table);

/* Returns the size of a row's scale and bias. */
size_t bag_row_params_bytes(enum bag_row_format format);

/* Returns the scale (number 0) or the bias (1) of a row whose scale begins at `params`. */
float bag_row_param(const struct bag_row_layout *layout, const char *params, size_t number);

/* Returns the bytes of a row of so many f32 elements in a row format. */
static inline size_t bag_encoded_row_bytes(enum bag_row_format format, size_t row_elements)
{
    const struct bag_table table = {
        .dtype = BAG_F32, .row_elements = row_elements, .row_format = format};
    return bag_row_bytes(&table);
}

/* Decodes columns of a row to f32 values. The table must not be of f64 or integers. */
void bag_row_decode(const struct bag_table *table, int64_t row, size_t column, size_t count,
                    float *values);

/* Encodes the `row_elements` f32 values of a row in the table's format: bag_row_bytes, at any
 * alignment. Does not read the table's rows. The table must not be of f64 or integers. Elements are
 * rounded once, to nearest even.
 *
 * int8 takes scale and bias from the smallest and the largest value, as FBGEMM does. If scale and
 * bias are f16, both are refined until the sum of squared errors no longer falls; int4 and int2
 * start from the result of FBGEMM's greedy search. A symmetric row maps its largest magnitude to
 * 127, and a scaled f8 row to that of the format. The bytes are the same on every machine.
 *
 * Returns false and leaves `out` unspecified if the format cannot represent a value: a finite value
 * that would become infinite, an infinity in e4m3, or with a scale an infinity or a NaN. An int8
 * row also needs a finite range. */
bool bag_row_encode(const struct bag_table *table, const float *values, unsigned char *out);

/* Encodes a row for a reply, without a search: scale and bias are those of FBGEMM's quantisers
 * without one. A row that bag_row_encode rejects becomes one of NaNs if the format has a scale;
 * otherwise each element is rounded by itself. The values are of `dtype`: F32, or also F16 at any
 * alignment if the format's codes are integers. */
void bag_row_encode_fast(const struct bag_table *table, enum bag_dtype dtype, const void *values,
                         unsigned char *out);

/* Writes f32 values as F16, BF16 or F32 elements. */
void bag_elements_encode(const float *values, size_t count, enum bag_dtype dtype, void *out);

/* ---- unaligned loads ------------------------------------------------------------------------- */

static inline uint16_t bag_load_u16(const void *data, size_t position)
{
    uint16_t value;
    memcpy(&value, (const char *)data + position * sizeof value, sizeof value);
    return value;
}

static inline float bag_load_f32(const void *data, size_t position)
{
    float value;
    memcpy(&value, (const char *)data + position * sizeof value, sizeof value);
    return value;
}

static inline double bag_load_f64(const void *data, size_t position)
{
    double value;
    memcpy(&value, (const char *)data + position * sizeof value, sizeof value);
    return value;
}

/* ---- single numbers -------------------------------------------------------------------------- */

static inline uint32_t bag_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float bag_f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Converts an f16 number: sign, 5 bits of exponent (bias 15), 10 bits of fraction. */
static inline float bag_f32_from_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t magnitude = half & 0x7fff;
    /* Moves the fraction into place, and changes the bias from 15 to 127. For an infinity or a NaN,
     * the exponent becomes 255. */
    uint32_t normal = (magnitude << 13) + (112u << 23);
    uint32_t special = normal + (112u << 23);
    uint32_t subnormal = bag_f32_bits((float)(int32_t)magnitude * 0x1p-24f);
    uint32_t bits = magnitude < 0x0400 ? subnormal : magnitude < 0x7c00 ? normal : special;
    return bag_f32_from_bits(sign | bits);
}

static inline uint16_t bag_f16_from_f32(float value)
{
    uint32_t bits = bag_f32_bits(value);
    uint32_t sign = (bits >> 16) & 0x8000;
    uint32_t magnitude = bits & 0x7fffffff;
    /* Adds half a unit of the last place, or slightly less if the result is even. The carry may run
     * into the exponent, up to infinity, which is correct. */
    uint32_t rebiased = magnitude - (112u << 23);
    uint32_t normal = (rebiased + 0x0fff + ((rebiased >> 13) & 1)) >> 13;
    /* The last place of 0.5f is that of a subnormal f16, so the addition rounds. */
    uint32_t subnormal = bag_f32_bits(bag_f32_from_bits(magnitude) + 0.5f) - bag_f32_bits(0.5f);
    uint32_t small = magnitude < 0x38800000 ? subnormal : normal;
    uint32_t finite = magnitude < 0x47800000 ? small : 0x7c00;
    return (uint16_t)(sign | (magnitude > 0x7f800000 ? 0x7e00 : finite));
}

/* Converts a bf16 number, which is the upper half of an f32. */
static inline float bag_f32_from_bf16(uint16_t half)
{
    return bag_f32_from_bits((uint32_t)half << 16);
}

static inline uint16_t bag_bf16_from_f32(float value)
{
    uint32_t bits = bag_f32_bits(value);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    uint32_t nan = (bits >> 16) | 0x0040;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

/* Converts an e5m2 number, which is the upper half of an f16. */
static inline float bag_f32_from_e5m2(uint8_t byte)
{
    return bag_f32_from_f16((uint16_t)(byte << 8));
}

/* Rounds directly from f32, because rounding by way of f16 would round twice. Works like
 * bag_f16_from_f32. */
static inline uint8_t bag_e5m2_from_f32(float value)
{
    uint32_t bits = bag_f32_bits(value);
    uint32_t sign = (bits >> 24) & 0x80;
    uint32_t magnitude = bits & 0x7fffffff;
    uint32_t rebiased = magnitude - (112u << 23);
    uint32_t normal = (rebiased + 0xfffff + ((rebiased >> 21) & 1)) >> 21;
    uint32_t subnormal = bag_f32_bits(bag_f32_from_bits(magnitude) + 128.0f) - bag_f32_bits(128.0f);
    uint32_t small = magnitude < 0x38800000 ? subnormal : normal;
    uint32_t finite = magnitude < 0x47800000 ? small : 0x7c;
    return (uint8_t)(sign | (magnitude > 0x7f800000 ? 0x7e : finite));
}

/* Converts an e4m3 number (bias 7). Its bits fit into an f16, which is 2^8 too small. Only the
 * number with all bits but the sign set is a NaN. `scale` is 256 times the factor of the number. */
static inline float bag_f32_from_e4m3(uint8_t byte, float scale)
{
    uint16_t half = (uint16_t)((byte & 0x80) << 8 | (byte & 0x7f) << 7);
    float value = bag_f32_from_f16(half) * scale;
    return (byte & 0x7f) == 0x7f ? bag_f32_from_bits(0x7fc00000) : value;
}

/* Converts to e4m3. A value that rounds beyond 448, including infinity, becomes a NaN, whose bits
 * follow those of 448. */
static inline uint8_t bag_e4m3_from_f32(float value)
{
    uint32_t bits = bag_f32_bits(value);
    uint32_t sign = (bits >> 24) & 0x80;
    uint32_t magnitude = bits & 0x7fffffff;
    uint32_t rebiased = magnitude - (120u << 23);
    uint32_t normal = (rebiased + 0x7ffff + ((rebiased >> 20) & 1)) >> 20;
    uint32_t subnormal =
        bag_f32_bits(bag_f32_from_bits(magnitude) + 16384.0f) - bag_f32_bits(16384.0f);
    uint32_t small = magnitude < 0x3c800000 ? subnormal : normal;
    uint32_t finite = magnitude < 0x43f00000 ? small : 0x7f;
    return (uint8_t)(sign | finite);
}
