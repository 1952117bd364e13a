/* Converts decimal numbers to floats and back with exact integer arithmetic; see numbers.h. */
#include "numbers.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- powers of ten --------------------------------------------------------------------------- */

struct bag_power bag_powers[BAG_POWER_MOST - BAG_POWER_LEAST + 1];

uint64_t bag_tens[20] = {1};

/* A number has 1,024 bits, the lowest word first: 5^324 takes 753 bits, and 2^1023 / 5^342 leaves
 * 229. */
#define WORDS 32

/* Returns the 64 bits of the words at `index` and below it. Words before the first one are 0. */
static uint64_t pair(const uint32_t *words, int index)
{
    uint64_t high = index >= 0 ? words[index] : 0, low = index >= 1 ? words[index - 1] : 0;
    return high << 32 | low;
}

/* Returns the 128 bits from the first one that is set. A power of two as a factor does not change
 * them, so 10^q and 5^q have the same ones. */
static struct bag_power first_bits(const uint32_t *words)
{
    int top = WORDS - 1;
    while (words[top] == 0)
        top--;
    int zeros = __builtin_clz(words[top]);
    uint64_t high = pair(words, top), low = pair(words, top - 2), rest = pair(words, top - 4);
    if (zeros == 0)
        return (struct bag_power){high, low};
    return (struct bag_power){high << zeros | low >> (64 - zeros),
                              low << zeros | rest >> (64 - zeros)};
}

static void multiply_by_5(uint32_t *words)
{
    uint64_t carry = 0;
    for (int i = 0; i < WORDS; i++) {
        carry += (uint64_t)words[i] * 5;
        words[i] = (uint32_t)carry;
        carry >>= 32;
    }
}

/* Divides by 5, rounding down. A chain of these divisions is exact, because the whole part of x / 5
 * / 5 is that of x / 25. */
static void divide_by_5(uint32_t *words)
{
    uint64_t rest = 0;
    for (int i = WORDS - 1; i >= 0; i--) {
        rest = rest << 32 | words[i];
        words[i] = (uint32_t)(rest / 5);
        rest %= 5;
    }
}

/* Fills the tables before main begins, so that readers need no lock and no check. It takes about 50
 * us. */
__attribute__((constructor)) static void fill_powers(void)
{
    uint32_t up[WORDS] = {1}, down[WORDS] = {[WORDS - 1] = UINT32_C(1) << 31};
    for (int n = 1; n < 20; n++)
        bag_tens[n] = 10 * bag_tens[n - 1];
    for (int q = 0; q <= BAG_POWER_MOST; q++, multiply_by_5(up))
        bag_powers[q - BAG_POWER_LEAST] = first_bits(up);
    for (int q = -1; q >= BAG_POWER_LEAST; q--) {
        divide_by_5(down);
        bag_powers[q - BAG_POWER_LEAST] = first_bits(down);
    }
}

/* ---- from text to floats --------------------------------------------------------------------- */

/* The number of digits that a struct decimal keeps: the most that always fit into 64 bits. */
#define KEPT_DIGITS 19

/* A number as its text spells it: digits * 10^exponent. If it has more than KEPT_DIGITS digits,
 * `digits` has the first of them, and `more` says if any of the others is not 0. */
struct decimal {
    uint64_t digits;
    int64_t exponent;
    bool more;
    const char *text; /* digits, which may contain a '.'; borrowed; read only if `more` */
    size_t text_bytes;
};

/* If the 128-bit product does not decide, the C library's exact conversion does. Its input must end
 * with a NUL and depends on the locale's point, so the decimal is written again, with as many
 * digits as can matter. */

/* No halfway point between doubles has more than 767 digits. */
#define SETTLING_DIGITS 800

/* Writes the decimal as text without a point, which the C library reads in any locale. */
static void spell(const struct decimal *decimal, char *out, size_t room)
{
    if (decimal->more) {
        /* Copy at most SETTLING_DIGITS digits after leading zeros. If any further digit is not 0,
         * append a 1 in their place. */
        int count = 0;
        bool more = false;
        for (size_t i = 0; i < decimal->text_bytes; i++) {
            char c = decimal->text[i];
            if (c == '.' || (c == '0' && count == 0))
                continue;
            if (count < SETTLING_DIGITS)
                out[count++] = c;
            else
                more |= c != '0';
        }
        if (more)
            out[count++] = '1';
        snprintf(out + count, room - (size_t)count, "e%d",
                 (int)decimal->exponent - (count - KEPT_DIGITS));
    } else {
        snprintf(out, room, "%llue%d", (unsigned long long)decimal->digits, (int)decimal->exponent);
    }
}

/* Returns the bits of the float nearest to a decimal, ties to even. The exponent must be in the
 * table of powers. Takes some hundred nanoseconds. */
static uint64_t settle(const struct decimal *decimal, struct bag_float_format format)
{
    char text[SETTLING_DIGITS + 32];
    spell(decimal, text, sizeof text);
    if (format.fraction_bits == BAG_F32_FORMAT.fraction_bits) {
        float f32 = strtof(text, NULL);
        uint32_t bits;
        memcpy(&bits, &f32, sizeof bits);
        return bits;
    }
    double f64 = strtod(text, NULL);
    uint64_t bits;
    memcpy(&bits, &f64, sizeof bits);
    return bits;
}

/* A number with a larger exponent is out of range, however many digits precede it, because no text
 * has that many bytes. */
#define EXPONENT_LIMIT INT64_C(100000000000000000)

/* Appends the digits at `at` to *digits, which wraps around if there are many. Returns their
 * end. */
static const char *take_digits(const char *at, const char *end, uint64_t *digits)
{
    unsigned count;
    do {
        uint64_t bytes = bag_digits_load(at, end);
        count = bag_digits_run(bytes);
        *digits = *digits * bag_tens[count] + bag_digits_value(bytes, count);
        at += count;
    } while (count == 8);
    return at;
}

/* Reads "e-12" at `at`. Returns its end, or NULL if it is malformed. */
static const char *read_exponent(const char *at, const char *end, int64_t *exponent)
{
    int64_t value = 0;
    at++;
    bool negative = at < end && *at == '-';
    at += negative || (at < end && *at == '+');
    const char *start = at;
    for (; at < end && *at >= '0' && *at <= '9'; at++) {
        if (value < EXPONENT_LIMIT)
            value = 10 * value + (*at - '0');
    }
    *exponent += negative ? -value : value;
    return at > start ? at : NULL;
}

/* Keeps the first digits of a number that has too many. */
static struct decimal cut_digits(struct decimal decimal)
{
    unsigned kept = 0;
    decimal.digits = 0;
    for (size_t i = 0; i < decimal.text_bytes; i++) {
        unsigned digit = (unsigned)decimal.text[i] - '0';
        if (decimal.text[i] == '.' || (digit == 0 && kept == 0))
            continue;
        if (kept < KEPT_DIGITS) {
            decimal.digits = 10 * decimal.digits + digit;
            kept++;
        } else {
            decimal.more |= digit != 0;
            decimal.exponent++;
        }
    }
    return decimal;
}

/* Reads a JSON number without a sign. Returns its end, or NULL if there is none. */
static const char *read_decimal(const char *at, const char *end, struct decimal *decimal)
{
    struct decimal read = {.text = at};
    at = take_digits(at, end, &read.digits);
    size_t count = (size_t)(at - read.text);
    if (count == 0 || (*read.text == '0' && count > 1))
        return NULL;
    if (at < end && *at == '.') {
        const char *fraction = ++at;
        at = take_digits(at, end, &read.digits);
        if (at == fraction)
            return NULL;
        read.exponent = fraction - at;
        count += (size_t)(at - fraction);
    }
    read.text_bytes = (size_t)(at - read.text);
    if (at < end && (*at == 'e' || *at == 'E')) {
        at = read_exponent(at, end, &read.exponent);
        if (!at)
            return NULL;
    }
    *decimal = count > KEPT_DIGITS ? cut_digits(read) : read;
    return at;
}

/* Returns the bits of the float nearest to a decimal of any exponent. The fast way is tried first,
 * and settle() decides the few cases in which it cannot. */
static uint64_t round_decimal(const struct decimal *decimal, struct bag_float_format format)
{
    uint64_t bits;
    if (decimal->digits == 0 || decimal->exponent < BAG_POWER_LEAST)
        return 0; /* less than half of the smallest subnormal */
    if (decimal->exponent > 308)
        return format.infinity;
    if (bag_decimal_round(decimal->digits, (int)decimal->exponent, decimal->more, format, &bits))
        return bits;
    return settle(decimal, format);
}

const char *bag_decimal_read(const char *at, const char *end, struct bag_float_format format,
                             uint64_t *bits)
{
    struct decimal decimal;
    const char *after = read_decimal(at, end, &decimal);
    if (after)
        *bits = round_decimal(&decimal, format);
    return after;
}

/* ---- from floats to the shortest decimals ----------------------------------------------------
 *
 * All decimals between the halfway points to the neighbouring floats read back to the float. This
 * interval is at least one and less than ten units of some power of ten wide. At most one multiple
 * of ten units lies in it. If there is one, it is the shortest decimal. Otherwise one or both of
 * the whole numbers of units around the float are in the interval. */

typedef unsigned __int128 wide;

/* A multiplier of 128 bits, and the number of bits by which the other factor is shifted to the left
 * before the product. */
struct scale {
    uint64_t high, low;
    int shift;
};

/* Returns the scale for x * 2^exponent / 10^unit. A truncated power is incremented, so that a whole
 * quotient is never computed too small. */
static inline struct scale make_scale(int exponent, int unit)
{
    const struct bag_power *power = &bag_powers[-unit - BAG_POWER_LEAST];
    uint64_t cut = unit > 0 || unit < -BAG_POWER_EXACT_MOST, low;
    uint64_t carry = __builtin_add_overflow(power->low, cut, &low);
    return (struct scale){power->high + carry, low, exponent + bag_power_log2(-unit) + 5};
}

/* Returns the whole part of x * 2^exponent / 10^unit. Sets its lowest bit if a fraction was cut
 * off, which keeps comparisons with even numbers right.
 *
 * Here x < 2^55, the shift is from 5 to 8, and 68 bits of fraction are computed. The scale's error
 * is less than the last of them. No quotient of a float that is not whole is nearer to a whole
 * number than 2^-65.5 above or 2^-63.5 below it (tests/numbers/nearest_whole computes these). */
static inline uint64_t divide(uint64_t x, const struct scale *scale)
{
    x <<= scale->shift;
    wide sum = (wide)x * scale->high + (uint64_t)(((wide)x * scale->low) >> 64);
    bool fraction = (sum & (((wide)1 << 68) - 1)) != 0;
    return (uint64_t)(sum >> 68) | fraction;
}

/* Does what bag_shortest_decimal() does, for all floats. */
static __attribute__((noinline)) struct bag_shortest decide_exactly(uint64_t significand,
                                                                    int exponent, bool half_below)
{
    int unit = bag_decimal_unit(exponent, half_below);
    struct scale scale = make_scale(exponent, unit);
    /* All values are in quarters of a unit. Halfway points belong to the even significand. */
    uint64_t odd = significand & 1;
    uint64_t value = divide(4 * significand, &scale);
    uint64_t low = divide(4 * significand - (half_below ? 1 : 2), &scale) + odd;
    uint64_t high = divide(4 * significand + 2, &scale) - odd;

    uint64_t below = value / 4, tens = below / 10 * 10;
    bool below_fits = 4 * below >= low, above_fits = 4 * below + 4 <= high;
    bool above_nearer = value > 4 * below + 2 - (below & 1);
    if (4 * tens >= low)
        return (struct bag_shortest){tens, unit};
    if (4 * tens + 40 <= high)
        return (struct bag_shortest){tens + 10, unit};
    return (struct bag_shortest){below + (above_fits && (!below_fits || above_nearer)), unit};
}

/* For nearly all floats, one product with 59 bits of fraction decides. It is computed with 11 bits
 * more. */
#define FRACTION_BITS 59
#define CUT_BITS      11
#define UNIT          (INT64_C(1) << FRACTION_BITS)

/* Returns 1 if a difference is so small that it may be 0 or have the other sign, and 0 otherwise.
 * The bits that were cut off change it by less than 3. */
static inline unsigned is_close(int64_t difference)
{
    return (uint64_t)difference + 4 <= 8;
}

struct bag_shortest bag_shortest_decimal(uint64_t significand, int exponent, bool half_below)
{
    int unit = bag_decimal_unit(exponent, half_below);
    const struct bag_power *power = &bag_powers[-unit - BAG_POWER_LEAST];
    int shift = exponent + bag_power_log2(-unit) + 7; /* from 7 to 10 */
    uint64_t x = significand << shift;
    wide value = (wide)x * power->high + (uint64_t)(((wide)x * power->low) >> 64);
    int64_t half = (int64_t)(power->high >> (12 - shift)); /* half a step to the float above */

    uint64_t tens = (uint64_t)(value >> (FRACTION_BITS + CUT_BITS)) / 10 * 10;
    int64_t above_tens = (int64_t)((uint64_t)(value >> CUT_BITS) - (tens << FRACTION_BITS));
    int64_t down = (half >> half_below) - above_tens, up = half - (10 * UNIT - above_tens);
    int64_t rounded = above_tens + UNIT / 2;
    int64_t from_tie = (int64_t)((uint64_t)rounded << (64 - FRACTION_BITS)) >> (64 - FRACTION_BITS);
    bool down_fits = down > 0, up_fits = up > 0, tens_fit = down_fits | up_fits;
    unsigned unsure = is_close(down) | is_close(up) | is_close(from_tie) | (half_below & !tens_fit);
    if (__builtin_expect(unsure, 0))
        return decide_exactly(significand, exponent, half_below);
    /* Computed without branches, which could not be predicted. */
    uint64_t digits = tens + (uint64_t)(rounded >> FRACTION_BITS);
    digits = down_fits ? tens : digits;
    digits = up_fits ? tens + 10 : digits;
    return (struct bag_shortest){digits, unit};
}
