/* Prints FP32 in batches. The loops are plain C, from which the compiler makes vector code. This
 * file is therefore included once for each instruction set. The including source file defines
 * BAG_PRINT_F32, the name of the function, and is compiled with that set's flags.
 *
 * A float is m * 2^e with m < 2^24. From 10^-5 to below 2^25 its exponent e is between -40 and 1.
 * There 2^e is p * 10^unit with unit = floor(log10(2^e)) and 1 <= p < 10, and p is a multiple of
 * 2^-27. With 28 bits of fraction, p, m * p and half a step between floats are therefore whole
 * numbers. One product of 24 by 32 bits then replaces the 128-bit product of bag_shortest_decimal,
 * with the same digits. Zeros are handled in the same way. All other floats (is_outside) are
 * printed by bag_f32_put, one at a time. */
#include "numbers.h"

#if defined(__SSSE3__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#define BATCH       BAG_F32_BATCH
#define LEAST_FIXED UINT32_C(0x3727C5AC) /* 0.00001 */
#define END_FIXED   UINT32_C(0x4C000000) /* 2^25 */

#define ONE (UINT32_C(1) << BAG_F32_FRACTION_BITS)

/* The pieces of the texts of a batch of floats. Digits are values from 0 to 9. */
struct batch {
    uint32_t scale[BATCH];      /* p, with BAG_F32_FRACTION_BITS bits of fraction */
    uint16_t fours[2 * BATCH];  /* last eight digits, as two numbers of four digits */
    uint16_t pairs[4 * BATCH];  /* last eight digits, as four numbers of two digits */
    uint16_t digits[4 * BATCH]; /* last eight digits, a byte each, the first in the lowest byte */
    uint32_t others[BATCH];     /* bytes: the digit before the eight, '.', '0', '-' */
    int32_t layout[BATCH];      /* index into bag_f32_layouts */
    int32_t longest[BATCH];     /* bytes of the text if none of its digits is a trailing zero */
    int32_t shortest[BATCH];    /* bytes of the text that are written in any case */
};

/* Returns whether a batch cannot print the float: its magnitude is at least 2^25, below 10^-5 but
 * not 0, or not finite. */
static inline bool is_outside(uint32_t bits)
{
    uint32_t magnitude = bits & UINT32_C(0x7FFFFFFF);
    return (magnitude - LEAST_FIXED >= END_FIXED - LEAST_FIXED) & (magnitude != 0);
}

/* Computes the digits and layouts of BATCH floats. Returns whether any of them is outside the
 * range; what is computed for such a float is meaningless. */
static __attribute__((noinline)) bool convert(const uint32_t *bits, struct batch *batch)
{
    uint32_t any_outside = 0;
    for (unsigned i = 0; i < BATCH; i++)
        batch->scale[i] = bag_f32_scales[(uint8_t)(bits[i] >> 23)];
    for (unsigned i = 0; i < BATCH; i++) {
        uint32_t magnitude = bits[i] & UINT32_C(0x7FFFFFFF), scale = batch->scale[i];
        uint32_t m = (magnitude & 0x7FFFFF) | 0x800000;
        uint64_t value = (uint64_t)m * scale;
        uint32_t low = (uint32_t)value, units = (uint32_t)(value >> BAG_F32_FRACTION_BITS);
        /* Everything closer than half a step between floats reads back, and for an even m the
         * halfway point itself. If a multiple of ten units is as close, it is the shortest decimal;
         * otherwise the nearest whole unit is. */
        uint32_t reach = (scale >> 1) + (~m & 1);
        uint32_t tens = units / 10 * 10, above_tens = low - tens * ONE;
        uint32_t down = above_tens < reach, up = 10 * ONE - above_tens < reach;
        uint32_t nearest =
            units + (((low & (ONE - 1)) + ONE / 2 - 1 + (units & 1)) >> BAG_F32_FRACTION_BITS);
        uint32_t digits = down | up ? tens + (up ? 10 : 0) : nearest;

        /* From seven to nine digits. The ninth, if there is one, is 1. */
        uint32_t nine = digits >= 100000000, eight = digits >= 10000000;
        digits -= nine ? 100000000 : 0;
        uint32_t upper = digits / 10000;
        batch->fours[2 * i] = (uint16_t)upper;
        batch->fours[2 * i + 1] = (uint16_t)(digits - upper * 10000);
        batch->others[i] = ((uint32_t)'-' << 24 | '0' << 16 | '.' << 8) + nine;

        int32_t negative = (int32_t)(bits[i] >> 31), count = (int32_t)(7 + nine + eight);
        int32_t unit = magnitude ? bag_decimal_unit((int32_t)(magnitude >> 23) - 150, false)
                                 : -6; /* zero: 0.0 */
        int32_t exponent = unit + count - 1, leading = exponent < 0 ? -exponent : 0;
        batch->longest[i] = negative + leading + count + 1;
        batch->shortest[i] = negative + exponent + 3;
        batch->layout[i] = ((exponent - BAG_F32_LEAST_EXPONENT) * 3 + count - 7) * 2 + negative;
        any_outside |= is_outside(bits[i]);
    }
    for (unsigned i = 0; i < 2 * BATCH; i++) {
        uint16_t upper = batch->fours[i] / 100;
        batch->pairs[2 * i] = upper;
        batch->pairs[2 * i + 1] = (uint16_t)(batch->fours[i] - 100 * upper);
    }
    for (unsigned i = 0; i < 4 * BATCH; i++) {
        uint16_t tens = batch->pairs[i] / 10;
        batch->digits[i] = (uint16_t)(tens | (batch->pairs[i] - 10 * tens) << 8);
    }
    return any_outside;
}

/* Writes 16 bytes, which begin with the text of one float. */
static inline __attribute__((always_inline)) void put_text(uint64_t digits, uint32_t others,
                                                           int layout, char *out)
{
    digits |= UINT64_C(0x3030303030303030);
    others |= '0';
#if defined(__SSSE3__)
    __m128i characters = _mm_set_epi64x(others, (long long)digits);
    __m128i order = _mm_load_si128((const __m128i *)bag_f32_layouts[layout]);
    _mm_storeu_si128((__m128i *)out, _mm_shuffle_epi8(characters, order));
#elif defined(__aarch64__)
    uint8x16_t characters = vcombine_u8(vcreate_u8(digits), vcreate_u8(others));
    vst1q_u8((uint8_t *)out, vqtbl1q_u8(characters, vld1q_u8(bag_f32_layouts[layout])));
#else
    /* Without an instruction that permutes bytes, writes the sign, the zeros and point of a number
     * below one, and the digits. For a number above one, overwrites them with the point and the
     * digits after it. */
    int exponent = layout / 6 + BAG_F32_LEAST_EXPONENT;
    int cut_bits = 8 * (2 - layout / 2 % 3); /* leading zeros among nine digits, in bits */
    uint64_t ninth = digits >> 56;
    digits = digits << 8 | (uint8_t)others; /* the first eight of nine */
    if (cut_bits) {
        digits = digits >> cut_bits | ninth << (64 - cut_bits);
        ninth = '0';
    }
    if (cut_bits == 16) /* the digit before the last moved, too, and left a gap */
        digits |= (uint64_t)'0' << 56;
    *out = '-';
    out += layout & 1;
    int whole = exponent < 0 ? 0 : exponent + 1; /* digits before the point */
    int start = exponent < 0 ? 1 - exponent : 0;
    memcpy(out, "0.000000", 8);
    memcpy(out + start, &digits, 8);
    if (exponent < 0) {
        out[start + 8] = (char)ninth;
        return;
    }
    uint64_t after = whole == 8 ? ninth : digits >> 8 * whole | ninth << 8 * (8 - whole);
    out[whole] = '.';
    memcpy(out + whole + 1, &after, 8);
#endif
}

/* Writes the text of float `i` of a converted batch and a comma. Returns the end of them. */
static inline __attribute__((always_inline)) char *put_converted(const struct batch *batch,
                                                                 unsigned i, char *out)
{
    uint64_t digits;
    memcpy(&digits, batch->digits + 4 * i, sizeof digits);
    put_text(digits, batch->others[i], batch->layout[i], out);
    int trailing_zeros = digits ? __builtin_clzll(digits) / 8 : 8;
    int bytes = batch->longest[i] - trailing_zeros;
    out += bytes > batch->shortest[i] ? bytes : batch->shortest[i];
    *out = ',';
    return out + 1;
}

/* Writes a batch in which some floats are outside the range. */
static __attribute__((noinline)) char *put_mixed(const struct batch *batch, const uint32_t *bits,
                                                 unsigned count, char *out)
{
    for (unsigned i = 0; i < count; i++) {
        if (is_outside(bits[i])) {
            out = bag_f32_put(out, bits[i]);
            *out++ = ',';
        } else {
            out = put_converted(batch, i, out);
        }
    }
    return out;
}

/* The function of this instruction set; see bag_f32_print_generic in numbers.h. */
char *BAG_PRINT_F32(const char *data, size_t count, char *out)
{
    struct batch batch;
    uint32_t bits[BATCH] = {0};
    while (count) {
        unsigned n = count < BATCH ? (unsigned)count : BATCH;
        memcpy(bits, data, n * sizeof *bits);
        if (__builtin_expect(convert(bits, &batch), 0)) {
            out = put_mixed(&batch, bits, n, out);
        } else {
            for (unsigned i = 0; i < n; i++)
                out = put_converted(&batch, i, out);
        }
        data += n * sizeof *bits;
        count -= n;
    }
    return out;
}
