/* From decimals to floats; see decimal.h.
 *
 * The digits times the first 128 bits of the power of ten give the first bits of the value, and
 * how far it can be above them. Nearly always both ends round to the same float. Where they do not
 * (a tie, or more digits than 64 bits hold, close to one) the C library's exact arithmetic decides.
 */
#include "decimal.h"

#include <stdio.h>
#include <stdlib.h>

typedef unsigned __int128 wide;

/* How a float type keeps numbers. */
struct format {
    int fraction_bits;
    int least_exponent; /* of a normal number */
    uint64_t infinity;  /* its bits */
};

static const struct format f32_format = {23, -126, UINT64_C(0x7F800000)};
static const struct format f64_format = {52, -1022, UINT64_C(0x7FF0000000000000)};

/* No halfway point between doubles has more digits than 767. */
#define SETTLING_DIGITS 800

/* ---- the rare way ---------------------------------------------------------------------------- */

/* Copies the digits after leading zeros, at most SETTLING_DIGITS; one more, a 1, stands for all
 * that follow if any of these is not 0. Returns how many were written. */
static int copy_digits(const struct bag_decimal *decimal, char *out)
{
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
    return count;
}

/* Writes the decimal as text that the C library reads without a locale's point. */
static void spell(const struct bag_decimal *decimal, char *out, size_t room)
{
    if (decimal->more) {
        int count = copy_digits(decimal, out);
        snprintf(out + count, room - (size_t)count, "e%d",
                 (int)decimal->exponent - (count - BAG_DECIMAL_DIGITS));
    } else {
        snprintf(out, room, "%llue%d", (unsigned long long)decimal->digits, (int)decimal->exponent);
    }
}

static __attribute__((noinline)) uint64_t convert_exactly(const struct bag_decimal *decimal,
                                                          bool narrow)
{
    char text[SETTLING_DIGITS + 32];
    spell(decimal, text, sizeof text);
    if (narrow) {
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

/* ---- the common way -------------------------------------------------------------------------- */

/* The bits of the value but for its sign, or UINT64_MAX where the interval does not decide.
 * decimal->digits is not 0, and the exponent is in the table. */
static inline __attribute__((always_inline)) uint64_t
round_product(const struct bag_decimal *decimal, const struct format *format)
{
    int q = (int)decimal->exponent;
    const struct bag_power *power = &bag_powers[q - BAG_POWER_LEAST];
    int zeros = __builtin_clzll(decimal->digits);
    uint64_t digits = decimal->digits << zeros;
    wide low = (wide)digits * power->low;
    wide sum = (wide)digits * power->high + (uint64_t)(low >> 64);
    bool exact = q >= 0 && q <= BAG_POWER_EXACT_MOST && !decimal->more;

    /* The value is from `product` to below `product + error`, times 2^(log2(10^q) - zeros - 62).
     * Its first bit is bit 125 or 126, so that rounding up cannot overflow. */
    wide product = sum >> 1;
    wide error = decimal->more ? ((wide)1 << (63 + zeros)) + 2 : 2;
    if (exact)
        product |= (uint64_t)low != 0 || (sum & 1);

    int first_bit = 125 + (int)(product >> 126);
    int exponent = first_bit + bag_power_log2(q) - zeros - 62;
    int excess = exponent - format->least_exponent;
    int cut = first_bit - format->fraction_bits; /* bits below the last that is kept */
    if (excess < 0) { /* subnormal: the last bit kept stays where it is */
        cut -= excess;
        excess = 0;
    }
    if (cut > 126)
        return cut > 128 ? 0 : UINT64_MAX;
    wide rounded = product + ((wide)1 << (cut - 1));
    wide rest = rounded & (((wide)1 << cut) - 1);
    uint64_t significand = (uint64_t)(rounded >> cut);
    if (exact)
        significand -= rest == 0 && (significand & 1); /* a tie: to even */
    else if (rest == 0 || rest + error > (wide)1 << cut)
        return UINT64_MAX;
    /* The hidden bit, and a carry out of the fraction, add one to the exponent's field. */
    uint64_t bits = ((uint64_t)excess << format->fraction_bits) + significand;
    return bits < format->infinity ? bits : format->infinity;
}

static inline __attribute__((always_inline)) uint64_t
convert(const struct bag_decimal *decimal, const struct format *format, bool narrow)
{
    if (decimal->digits == 0 || decimal->exponent < BAG_POWER_LEAST)
        return 0; /* less than half of the least subnormal */
    if (decimal->exponent > 308)
        return format->infinity;
    uint64_t bits = round_product(decimal, format);
    return bits != UINT64_MAX ? bits : convert_exactly(decimal, narrow);
}

uint32_t bag_decimal_to_f32(const struct bag_decimal *decimal)
{
    return (uint32_t)convert(decimal, &f32_format, true) | (uint32_t)decimal->negative << 31;
}

uint64_t bag_decimal_to_f64(const struct bag_decimal *decimal)
{
    return convert(decimal, &f64_format, false) | (uint64_t)decimal->negative << 63;
}
