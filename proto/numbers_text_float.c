/* The text of floats: where the point stands and when there is an exponent; see numbers_text.h. */
#include "numbers_text.h"

#define LONGEST 17 /* digits of a double */

/* Decimals from 0.00001 to below 10^16 are written without an exponent. */
#define FIXED_LEAST (-5)
#define FIXED_MOST  15

/* Digits with the first one's place, as in d.ddd * 10^exponent. */
struct spelling {
    uint32_t first, middle, last; /* 1, 8 and 8 digits, zeros at the end */
    int exponent;
    int count; /* up to the last that is not 0 */
};

/* 10^n for n up to 19. */
static inline uint64_t ten_to(int n)
{
    return bag_powers[n - BAG_POWER_LEAST].high >> (63 - bag_power_log2(n));
}

/* How many of eight digits there are up to the last that is not 0; not all are. */
static inline int used_digits(uint32_t number)
{
    return 8 - __builtin_clzll(bag_digits_spread(number)) / 8;
}

static inline struct spelling spell(struct bag_shortest shortest)
{
    int bits = 64 - __builtin_clzll(shortest.digits);
    int digits = bits * 1233 >> 12; /* 1233 / 4096 is log10(2): right, or one too few */
    digits += shortest.digits >= ten_to(digits);
    uint64_t aligned = shortest.digits * ten_to(LONGEST - digits);
    uint32_t front = (uint32_t)(aligned / 100000000);
    struct spelling s = {.first = front / 100000000,
                         .middle = front % 100000000,
                         .last = (uint32_t)(aligned % 100000000),
                         .exponent = shortest.exponent + digits - 1};
    s.count = s.last ? 9 + used_digits(s.last) : s.middle ? 1 + used_digits(s.middle) : 1;
    return s;
}

static inline void put_rest(char *out, const struct spelling *s)
{
    bag_number_put_eight(out, s->middle);
    bag_number_put_eight(out + 8, s->last);
}

/* 0.000ddd */
static char *put_below_one(char *out, const struct spelling *s)
{
    memcpy(out, "0.000000", 8);
    out += 1 - s->exponent;
    *out = (char)('0' + s->first);
    put_rest(out + 1, s);
    return out + s->count;
}

/* ddd.ddd, with a zero where nothing follows the point */
static char *put_above_one(char *out, const struct spelling *s)
{
    char digits[2 * LONGEST] = {(char)('0' + s->first)};
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
    out[0] = (char)('0' + s->first);
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
