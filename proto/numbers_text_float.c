/* The text of floats: where the point stands and when there is an exponent; see numbers_text.h. */
#include "numbers_text.h"

#define LONGEST 17 /* digits of a double */

/* Decimals from 0.00001 to below 10^16 are written without an exponent. */
#define FIXED_LEAST (-5)
#define FIXED_MOST  15

/* The digits of d.ddd * 10^exponent as text. */
struct spelling {
    char first;
    uint64_t middle, last; /* eight each, the first in the lowest byte; zeros at the end */
    int exponent;
    int count; /* of digits up to the last that is not 0 */
};

/* How many of eight spread digits there are up to the last that is not 0; not all are. */
static inline int used_digits(uint64_t digits)
{
    return 8 - __builtin_clzll(digits) / 8;
}

static inline __attribute__((always_inline)) struct spelling spell(struct bag_shortest shortest)
{
    int bits = 64 - __builtin_clzll(shortest.digits);
    int digits = bits * 1233 >> 12; /* 1233 / 4096 is log10(2): right, or one too few */
    digits += shortest.digits >= bag_tens[digits];
    uint64_t aligned = shortest.digits * bag_tens[LONGEST - digits];
    uint32_t front = (uint32_t)(aligned / 100000000);
    uint64_t middle = bag_digits_spread(front % 100000000);
    uint64_t last = bag_digits_spread((uint32_t)(aligned % 100000000));
    return (struct spelling){.first = (char)('0' + front / 100000000),
                             .middle = bag_number_ascii(middle),
                             .last = bag_number_ascii(last),
                             .exponent = shortest.exponent + digits - 1,
                             .count = last     ? 9 + used_digits(last)
                                      : middle ? 1 + used_digits(middle)
                                               : 1};
}

static inline void put_rest(char *out, const struct spelling *s)
{
    memcpy(out, &s->middle, 8);
    memcpy(out + 8, &s->last, 8);
}

/* 0.000ddd */
static inline char *put_below_one(char *out, const struct spelling *s)
{
    memcpy(out, "0.000000", 8);
    out += 1 - s->exponent;
    *out = s->first;
    put_rest(out + 1, s);
    return out + s->count;
}

/* ddd.ddd, with a zero where nothing follows the point */
static inline char *put_above_one(char *out, const struct spelling *s)
{
    char digits[2 * LONGEST] = {s->first};
    int whole = s->exponent + 1;
    put_rest(digits + 1, s);
    memcpy(out, digits, 16);
    out[whole] = '.';
    memcpy(out + whole + 1, digits + whole, 16);
    return out + (s->count > whole ? s->count : whole + 1) + 1;
}

/* d, d.ddd and, after either, e-12 */
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
    return bag_number_put_short(out, (uint32_t)(exponent < 0 ? -exponent : exponent));
}

static inline __attribute__((always_inline)) char *put_finite(char *out, uint64_t magnitude,
                                                              int fraction_bits, int least_exponent)
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
        spell(bag_shortest_decimal(significand, field - 1 + least_exponent, half_below));
    if (s.exponent < FIXED_LEAST || s.exponent > FIXED_MOST)
        return put_scientific(out, &s);
    return s.exponent < 0 ? put_below_one(out, &s) : put_above_one(out, &s);
}

/* Zero, the infinities and NaN. */
static char *put_special(char *out, bool zero, bool nan)
{
    const char *text = zero ? "0.0" : nan ? "NaN" : "Infinity";
    size_t bytes = strlen(text);
    memcpy(out, text, bytes);
    return out + bytes;
}

char *bag_number_put_f32(char *out, uint32_t bits)
{
    uint32_t magnitude = bits & UINT32_C(0x7FFFFFFF), infinity = UINT32_C(0x7F800000);
    *out = '-';
    out += bits >> 31 && magnitude <= infinity;
    if (magnitude == 0 || magnitude >= infinity)
        return put_special(out, magnitude == 0, magnitude > infinity);
    return put_finite(out, magnitude, 23, -149);
}

char *bag_number_put_f64(char *out, uint64_t bits)
{
    uint64_t magnitude = bits & (UINT64_MAX >> 1), infinity = UINT64_C(0x7FF0000000000000);
    *out = '-';
    out += bits >> 63 && magnitude <= infinity;
    if (magnitude == 0 || magnitude >= infinity)
        return put_special(out, magnitude == 0, magnitude > infinity);
    return put_finite(out, magnitude, 52, -1074);
}
