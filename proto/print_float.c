/* Prints floats one by one as JSON text, and has the tables by which FP32 are printed in batches;
 * see numbers.h. */
#include "numbers.h"

#include <string.h>

/* ---- floats: the place of the point, and when there is an exponent --------------------------- */

/* The maximum number of digits of a shortest decimal. */
#define F32_DIGITS 9
#define F64_DIGITS 17

/* Decimals from 0.00001 to below 10^16 are written without an exponent. */
#define FIXED_LEAST (-5)
#define FIXED_MOST  15

/* The digits of d.ddd * 10^exponent as text. */
struct spelling {
    char first;
    uint64_t middle, last; /* eight digits each, the first in the lowest byte, padded with zeros */
    int exponent;
    int count; /* number of digits up to the last that is not 0 */
};

/* Returns the number of the eight spread digits up to the last that is not 0. At least one must not
 * be 0. */
static inline int used_digits(uint64_t digits)
{
    return 8 - __builtin_clzll(digits) / 8;
}

/* Splits a decimal into its digits. `most` is F32_DIGITS, for which `last` is empty, or
 * F64_DIGITS. */
static inline __attribute__((always_inline)) struct spelling spell(struct bag_shortest shortest,
                                                                   int most)
{
    const uint64_t block = 100000000;
    int bits = 64 - __builtin_clzll(shortest.digits);
    int digits = bits * 1233 >> 12; /* 1233 / 4096 approximates log10(2): exact, or one too few */
    digits += shortest.digits >= bag_tens[digits];
    uint64_t aligned = shortest.digits * bag_tens[most - digits];
    uint32_t front = (uint32_t)(most == F64_DIGITS ? aligned / block : aligned);
    uint64_t middle = bag_digits_spread(front % block);
    uint64_t last = most == F64_DIGITS ? bag_digits_spread((uint32_t)(aligned % block)) : 0;
    return (struct spelling){.first = (char)('0' + front / block),
                             .middle = bag_digits_ascii(middle),
                             .last = bag_digits_ascii(last),
                             .exponent = shortest.exponent + digits - 1,
                             .count = last     ? 9 + used_digits(last)
                                      : middle ? 1 + used_digits(middle)
                                               : 1};
}

/* Writes all digits after the first, with the zeros that pad them. */
static inline void put_rest(char *out, const struct spelling *s)
{
    memcpy(out, &s->middle, 8);
    memcpy(out + 8, &s->last, 8);
}

/* Writes 0.000ddd. */
static inline char *put_below_one(char *out, const struct spelling *s)
{
    memcpy(out, "0.000000", 8);
    out += 1 - s->exponent;
    *out = s->first;
    put_rest(out + 1, s);
    return out + s->count;
}

/* Writes ddd.ddd, with a zero if no digit follows the point. */
static inline char *put_above_one(char *out, const struct spelling *s)
{
    char digits[2 * F64_DIGITS] = {s->first};
    int whole = s->exponent + 1;
    put_rest(digits + 1, s);
    memcpy(out, digits, 16);
    out[whole] = '.';
    memcpy(out + whole + 1, digits + whole, 16);
    return out + (s->count > whole ? s->count : whole + 1) + 1;
}

/* Writes d or d.ddd, followed by an exponent such as e-12. */
static char *put_scientific(char *out, const struct spelling *s)
{
    int exponent = s->exponent;
    out[0] = s->first;
    out[1] = '.';
    put_rest(out + 2, s);
    out += s->count > 1 ? s->count + 1 : 1;
    *out++ = 'e';
    *out = '-';
    out += exponent < 0;
    return bag_digits_put_short(out, (uint32_t)(exponent < 0 ? -exponent : exponent));
}

/* Writes a float that is neither zero, infinite nor NaN. `magnitude` are its bits without the sign,
 * and `min_exponent` is the exponent of the last bit of the smallest float. */
static inline __attribute__((always_inline)) char *
put_finite(char *out, uint64_t magnitude, int fraction_bits, int min_exponent, int most_digits)
{
    uint64_t hidden = UINT64_C(1) << fraction_bits;
    uint64_t significand = magnitude & (hidden - 1);
    int field = (int)(magnitude >> fraction_bits);
    bool half_below = significand == 0 && field > 1;
    if (field)
        significand |= hidden;
    else
        field = 1; /* subnormal */
    struct spelling s =
        spell(bag_shortest_decimal(significand, field - 1 + min_exponent, half_below), most_digits);
    if (s.exponent < FIXED_LEAST || s.exponent > FIXED_MOST)
        return put_scientific(out, &s);
    return s.exponent < 0 ? put_below_one(out, &s) : put_above_one(out, &s);
}

/* Writes zero, infinity or NaN. */
static char *put_special(char *out, bool zero, bool nan)
{
    const char *text = zero ? "0.0" : nan ? "NaN" : "Infinity";
    size_t bytes = strlen(text);
    memcpy(out, text, bytes);
    return out + bytes;
}

char *bag_f32_put(char *out, uint32_t bits)
{
    uint32_t magnitude = bits & UINT32_C(0x7FFFFFFF), infinity = UINT32_C(0x7F800000);
    *out = '-';
    out += bits >> 31 && magnitude <= infinity;
    if (magnitude == 0 || magnitude >= infinity)
        return put_special(out, magnitude == 0, magnitude > infinity);
    return put_finite(out, magnitude, 23, -149, F32_DIGITS);
}

/* Writes a double, like bag_f32_put writes a float. */
static char *put_f64(char *out, uint64_t bits)
{
    uint64_t magnitude = bits & (UINT64_MAX >> 1), infinity = UINT64_C(0x7FF0000000000000);
    *out = '-';
    out += bits >> 63 && magnitude <= infinity;
    if (magnitude == 0 || magnitude >= infinity)
        return put_special(out, magnitude == 0, magnitude > infinity);
    return put_finite(out, magnitude, 52, -1074, F64_DIGITS);
}

char *bag_f64_print(const char *data, size_t count, char *out)
{
    for (size_t i = 0; i < count; i++, data += sizeof(uint64_t), *out++ = ',') {
        uint64_t bits;
        memcpy(&bits, data, sizeof bits);
        out = put_f64(out, bits);
    }
    return out;
}

/* ---- tables of printing FP32 in batches ------------------------------------------------------ */

uint32_t bag_f32_scales[256];
uint8_t bag_f32_layouts[BAG_F32_LAYOUTS][16] __attribute__((aligned(16)));

/* Fills the order of characters for d.ddd * 10^exponent with `count` digits. */
static void fill_layout(uint8_t *layout, int exponent, int count, bool negative)
{
    enum { FIRST_OF_NINE = 8, POINT, ZERO, MINUS };
    int bytes = 0, point = exponent < 0 ? 1 : exponent + 1;
    /* Digits from the left: zeros before the first digit of a number below one, its digits, zeros.
     */
    int digit = exponent < 0 ? exponent : 0;
    if (negative)
        layout[bytes++] = MINUS;
    for (int i = 0; bytes < 16; i++) {
        if (i == point) {
            layout[bytes++] = POINT;
            continue;
        }
        int in_nine = digit + 9 - count;
        layout[bytes++] = (uint8_t)(digit < 0 || digit >= count ? ZERO
                                    : in_nine == 0              ? FIRST_OF_NINE
                                                                : in_nine - 1);
        digit++;
    }
}

__attribute__((constructor)) static void fill_f32_tables(void)
{
    for (int e = -40; e <= 1; e++) {
        int unit = bag_decimal_unit(e, false);
        uint64_t power = 1; /* 5^-unit; 2^e / 10^unit is this times 2^(e - unit) */
        for (int i = unit; i < 0; i++)
            power *= 5;
        bag_f32_scales[e + 150] = (uint32_t)(power << (BAG_F32_FRACTION_BITS + e - unit));
    }
    for (int i = 0; i < BAG_F32_LAYOUTS; i++)
        fill_layout(bag_f32_layouts[i], i / 6 + BAG_F32_LEAST_EXPONENT, i / 2 % 3 + 7, i % 2);
}
