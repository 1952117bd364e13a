/* Numbers in JSON text: parses and prints arrays of numbers. For files of proto/ only, it also
 * converts decimal numbers to floats and back, with tables of powers of ten and eight digits at a
 * time. Numbers in memory are little-endian, like tensors. */
#pragma once

#include "problem.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* ---- arrays of numbers <-> JSON text --------------------------------------------------------- */

/* The data of tensors, exact in both directions. Nothing is allocated, and all functions are
 * thread-safe. */

/* Reads the JSON array at text[0], which must be '[', up to its matching ']'. The elements are
 * flattened in order into `count` elements of `dtype` at `out`, at any alignment. The array may be
 * nested up to BAG_MAX_RANK deep. Nothing at or after `text + text_bytes` is read.
 *
 * The JSON is strict: 01, +1, .5, 1., trailing commas and the like are rejected.
 *
 *   integers     JSON integers without fraction or exponent, in the range of the dtype, exact to
 *                64 bits
 *   FP32, FP64   any JSON number, rounded once to nearest even, and the bare tokens NaN, Infinity
 *                and -Infinity; a finite number that would round to an infinity is rejected
 *   BOOL         true and false, stored as one byte with 1 or 0
 *
 * FP16, BF16 and BYTES have no JSON form; the caller rejects them.
 *
 * On success *end is just after the ']'. Returns false and sets *problem (BAD_REQUEST) if an
 * element is invalid or there are not exactly `count`. The sentence has the flat position of the
 * element, its value and what is allowed, or the number of elements. *error_at is then the byte in
 * `text`. For a wrong count it is the first excess element, or the last ']'. `out` is never written
 * beyond `count` elements. */
bool bag_numbers_parse(const char *text, size_t text_bytes, enum bag_dtype dtype, size_t count,
                       void *out, const char **end, const char **error_at,
                       struct bag_problem *problem);

/* Returns the maximum length of one element of `dtype` as text, with a comma. Returns 0 if the
 * dtype has no JSON form. */
size_t bag_numbers_max_text(enum bag_dtype dtype);

/* Writes `count` elements of `dtype` at `data` (any alignment) as a flat JSON array with brackets
 * and without spaces or a NUL. Returns the end of the text. `out` has a capacity of count *
 * bag_numbers_max_text(dtype) + 2 bytes.
 *
 * A float is written as the shortest decimal that reads back to the same value of its type; of
 * several, as the one nearest to the value. It always has a '.' or an exponent, so that readers see
 * a float (1.5, 2.0, 1e-7, -0.0). From 0.00001 to below 10^16 it has no exponent. Other values are
 * NaN, Infinity and -Infinity. */
char *bag_numbers_print(const void *data, size_t count, enum bag_dtype dtype, char *out);

/* ---- powers of ten --------------------------------------------------------------------------- */

#define BAG_POWER_LEAST (-342)
#define BAG_POWER_MOST  324

/* Powers from 0 to this one are exact; the others are truncated. */
#define BAG_POWER_EXACT_MOST 55

/* The first 128 bits of a power of ten: 10^q is (high * 2^64 + low) * 2^(bag_power_log2(q) - 127).
 */
struct bag_power {
    uint64_t high, low;
};

/* 10^q at [q - BAG_POWER_LEAST]. Filled before main begins and constant afterwards. */
extern struct bag_power bag_powers[BAG_POWER_MOST - BAG_POWER_LEAST + 1];

/* 10^n at [n], for all powers that fit in 64 bits. Filled before main begins. */
extern uint64_t bag_tens[20];

/* Returns floor(log2(10^q)) for every q in the table. */
static inline int bag_power_log2(int q)
{
    return (q * 217706) >> 16;
}

/* ---- digits ---------------------------------------------------------------------------------- */

/* Returns the next eight bytes, the first in the lowest byte. If the text is shorter, zero bytes
 * follow. */
static inline uint64_t bag_digits_load(const char *at, const char *end)
{
    uint64_t bytes = 0;
    if (end - at >= 8)
        memcpy(&bytes, at, 8);
    else
        memcpy(&bytes, at, (size_t)(end - at));
    return bytes;
}

/* Marks the bytes that are not digits with their highest bit; all other bits are 0. */
static inline uint64_t bag_digits_beyond(uint64_t bytes)
{
    const uint64_t ones = UINT64_C(0x0101010101010101);
    uint64_t values = bytes ^ ('0' * ones); /* 0 to 9 for digits alone */
    return (((values & (0x7F * ones)) + 0x76 * ones) | values) & (0x80 * ones);
}

/* Returns the number of leading digits among the eight bytes. */
static inline unsigned bag_digits_run(uint64_t bytes)
{
    uint64_t beyond = bag_digits_beyond(bytes);
    return beyond ? (unsigned)__builtin_ctzll(beyond) / 8 : 8;
}

/* Returns eight bits, the lowest for the first byte. A bit is 1 if its byte is not a digit. */
static inline uint64_t bag_digits_others(uint64_t bytes)
{
    return (bag_digits_beyond(bytes) >> 7) * UINT64_C(0x0102040810204080) >> 56;
}

/* Returns the value of eight digits. Zero bytes are zeros. */
static inline uint64_t bag_digits_join(uint64_t x)
{
    x &= UINT64_C(0x0F0F0F0F0F0F0F0F);
    x = (x * (10 * (1 << 8) + 1)) >> 8 & UINT64_C(0x00FF00FF00FF00FF);
    x = (x * (100 * (1 << 16) + 1)) >> 16 & UINT64_C(0x0000FFFF0000FFFF);
    return (x * (10000 * (UINT64_C(1) << 32) + 1)) >> 32;
}

/* Returns the value of the first `count` bytes, which are digits. Returns 0 if `count` is 0. */
static inline uint64_t bag_digits_value(uint64_t bytes, unsigned count)
{
    unsigned half = 32 - 4 * count;                /* in two steps: 64 is too much for one */
    return bag_digits_join(bytes << half << half); /* zeros in front */
}

/* Returns the eight digits of a number below 10^8 as values from 0 to 9, the first in the lowest
 * byte. */
static inline uint64_t bag_digits_spread(uint32_t number)
{
    uint64_t x = number / 10000 | (uint64_t)(number % 10000) << 32;
    uint64_t hundreds = (x * 10486) >> 20 & UINT64_C(0x0000007F0000007F);
    x = hundreds + ((x - 100 * hundreds) << 16);
    uint64_t tens = (x * 103) >> 10 & UINT64_C(0x000F000F000F000F);
    return tens + ((x - 10 * tens) << 8);
}

/* Eight digits as text, the first in the lowest byte. */
static inline uint64_t bag_digits_ascii(uint64_t digits)
{
    return digits | UINT64_C(0x3030303030303030);
}

/* Writes all eight digits of a number below 10^8. */
static inline char *bag_digits_put_eight(char *out, uint32_t number)
{
    uint64_t text = bag_digits_ascii(bag_digits_spread(number));
    memcpy(out, &text, 8);
    return out + 8;
}

/* Writes a number below 10^8 without leading zeros. */
static inline char *bag_digits_put_short(char *out, uint32_t number)
{
    uint64_t digits = bag_digits_spread(number);
    int zeros = number ? __builtin_ctzll(digits) / 8 : 7;
    uint64_t text = bag_digits_ascii(digits) >> (8 * zeros);
    memcpy(out, &text, 8);
    return out + 8 - zeros;
}

/* ---- floats ---------------------------------------------------------------------------------- */

/* The layout of a float type. */
struct bag_float_format {
    int fraction_bits;
    int min_exponent;  /* smallest exponent of a normal number */
    uint64_t infinity; /* bits of infinity */
};

#define BAG_F32_FORMAT ((struct bag_float_format){23, -126, UINT64_C(0x7F800000)})
#define BAG_F64_FORMAT ((struct bag_float_format){52, -1022, UINT64_C(0x7FF0000000000000)})

/* Returns the shortest digits * 10^exponent that reads back to `significand` * 2^`exponent`; of
 * several, the nearest one. `significand` is not 0 and includes the hidden bit of IEEE 754.
 * `half_below`: the float below is only half as far away as the one above. Digits may end in zeros.
 */
struct bag_shortest {
    uint64_t digits;
    int exponent;
};
struct bag_shortest bag_shortest_decimal(uint64_t significand, int exponent, bool half_below);

/* Returns floor(log10(2^exponent)), or that of 3/4 of 2^exponent. Exact for all exponents of
 * doubles. */
static inline int bag_decimal_unit(int exponent, bool three_quarters)
{
    return (exponent * 1262611 - (three_quarters ? 524031 : 0)) >> 22;
}

/* ---- FP32 in batches (print_f32.h) ----------------------------------------------------------- */

#define BAG_F32_BATCH         32 /* floats that are converted at once */
#define BAG_F32_FRACTION_BITS 28 /* fraction bits of bag_f32_scales */
#define BAG_F32_LEAST_EXPONENT \
    (-5) /* exponent of a decimal d.ddd * 10^exponent that a batch can print */
#define BAG_F32_MOST_EXPONENT 7
#define BAG_F32_LAYOUTS       ((BAG_F32_MOST_EXPONENT - BAG_F32_LEAST_EXPONENT + 1) * 3 * 2)

/* 2^e / 10^bag_decimal_unit(e, false) in units of 2^-BAG_F32_FRACTION_BITS, at [e + 150], which is
 * the exponent field of the floats from 2^(e + 23) to below 2^(e + 24). The entry is 0 for floats
 * that are not printed in a batch. Filled before main begins, like bag_f32_layouts. */
extern uint32_t bag_f32_scales[256];

/* The order of the characters of a text. The index is computed from the decimal exponent, the
 * number of digits (seven, eight or nine) and the sign. 0 to 7 are the last eight digits, 8 is the
 * digit before them, 9 is '.', 10 is '0' and 11 is '-'. */
extern uint8_t bag_f32_layouts[BAG_F32_LAYOUTS][16];

/* Writes the text of one FP32 without a comma. Returns its end. Up to 16 bytes after the end may be
 * overwritten. */
char *bag_f32_put(char *out, uint32_t bits);

/* Writes the texts of `count` FP64 as the functions below write those of FP32. */
char *bag_f64_print(const char *data, size_t count, char *out);

/* Write the texts of `count` FP32 at `data` (any alignment), with a comma after each. Return the
 * end of them; up to 16 bytes after the end may be overwritten. The text is the same with every
 * instruction set, and that of bag_f32_put. */
char *bag_f32_print_generic(const char *data, size_t count, char *out);
char *bag_f32_print_avx2(const char *data, size_t count, char *out);
char *bag_f32_print_avx512(const char *data, size_t count, char *out);

/* ---- from decimals to floats -----------------------------------------------------------------
 *
 * The product of the digits and the first 128 bits of the power of ten is a lower bound of the
 * value, with a known maximum error. Nearly always both ends of that interval round to the same
 * float. If they do not (at a tie, or close to one with more digits than are kept),
 * bag_decimal_read computes exactly. */

/* The first bits of digits * 10^exponent. `low` has 64 bits of fraction below `high`. The value is
 * at least (high, low) * 2^exponent, and less than that plus 2 units of `low`. The highest bit set
 * in `high` is bit 61 or 62. */
struct bag_value_bits {
    uint64_t high, low;
    int exponent;
};

/* Returns the first bits of digits * 10^exponent. `digits` is not 0, and the exponent is in the
 * table of powers. */
static inline struct bag_value_bits bag_decimal_product(uint64_t digits, int exponent)
{
    const struct bag_power *power = &bag_powers[exponent - BAG_POWER_LEAST];
    int zeros = __builtin_clzll(digits);
    digits <<= zeros;
    unsigned __int128 product = (unsigned __int128)digits * power->high;
    uint64_t rest = (uint64_t)(((unsigned __int128)digits * power->low) >> 64), low;
    uint64_t carry = __builtin_add_overflow((uint64_t)product, rest, &low);
    uint64_t high = (uint64_t)(product >> 64) + carry;
    return (struct bag_value_bits){.high = high >> 1, /* so that rounding up has room */
                                   .low = high << 63 | low >> 1,
                                   .exponent = bag_power_log2(exponent) - zeros + 2};
}

/* Sets *bits to the float nearest to digits * 10^exponent, ties to even, or to infinity if the
 * value is out of range. `digits` is not 0, and the exponent is in the table of powers. `more`:
 * digits were cut off, so that the true value has up to 1 more than `digits`, which is then at
 * least 10^18. Returns false if two floats remain possible. */
static inline __attribute__((always_inline)) bool bag_decimal_round(uint64_t digits, int exponent,
                                                                    bool more,
                                                                    struct bag_float_format format,
                                                                    uint64_t *bits)
{
    struct bag_value_bits value = bag_decimal_product(digits, exponent);
    int first_bit = 61 + (int)(value.high >> 62);
    int cut = first_bit - format.fraction_bits; /* bits below the last that is kept */
    int excess = first_bit + value.exponent - format.min_exponent;
    if (__builtin_expect(excess < 0,
                         0)) { /* subnormal: the position of the last bit that is kept is fixed */
        cut -= excess;
        excess = 0;
        *bits = 0;
        if (cut > 62)
            return cut > 64;
    }
    uint64_t rounded = value.high + (UINT64_C(1) << (cut - 1)), ones = (UINT64_C(1) << cut) - 1;
    uint64_t rest = rounded & ones, error = more ? 16 : 0;
    bool tie = rest == 0 && (value.low == 0 || more);
    bool carry = rest + error > ones || (rest == ones && value.low >= UINT64_MAX - 1);
    /* The hidden bit, and a carry out of the fraction, add one to the exponent's field. */
    uint64_t joined = ((uint64_t)excess << format.fraction_bits) + (rounded >> cut);
    *bits = joined < format.infinity ? joined : format.infinity;
    return !tie && !carry;
}

/* Reads a JSON number without a sign, of any length, and rounds it to the nearest float, ties to
 * even. *bits is infinity if the number is out of range. Returns the end of the number, or NULL if
 * there is none. */
const char *bag_decimal_read(const char *at, const char *end, struct bag_float_format format,
                             uint64_t *bits);
