/* From decimals to floats, quickly; see decimal.h.
 *
 * The digits times the first 128 bits of the power of ten give the first 128 bits of the value, and
 * how far it can be above them. Nearly always both ends round to the same float. Where they do not
 * (a tie, or more digits than are kept, close to one), exact arithmetic settles it. */
#ifndef BAG_DECIMAL_ROUND_H
#define BAG_DECIMAL_ROUND_H

#include "decimal.h"

/* The first bits of a value: it is from `high` and `low` (64 bits of fraction below `high`) to less
 * than `error` above `high` and 2 above `low`, times 2^exponent. Bit 61 or 62 of `high` is the
 * first that is set. */
struct bag_value_bits {
    uint64_t high, low, error;
    int exponent;
};

/* decimal->digits is not 0, and its exponent is in the table. */
static inline struct bag_value_bits bag_decimal_product(const struct bag_decimal *decimal)
{
    int q = (int)decimal->exponent, zeros = __builtin_clzll(decimal->digits);
    const struct bag_power *power = &bag_powers[q - BAG_POWER_LEAST];
    uint64_t digits = decimal->digits << zeros;
    unsigned __int128 product = (unsigned __int128)digits * power->high;
    uint64_t rest = (uint64_t)(((unsigned __int128)digits * power->low) >> 64), low;
    uint64_t carry = __builtin_add_overflow((uint64_t)product, rest, &low);
    uint64_t high = (uint64_t)(product >> 64) + carry;
    return (struct bag_value_bits){.high = high >> 1, /* so that rounding up has room */
                                   .low = high << 63 | low >> 1,
                                   .error = decimal->more ? (UINT64_C(1) << zeros) + 1 : 0,
                                   .exponent = bag_power_log2(q) - zeros + 2};
}

/* The bits of the float nearest to a decimal, ties to even; those of infinity where it is out of
 * range. */
static inline __attribute__((always_inline)) uint64_t
bag_decimal_round(const struct bag_decimal *decimal, struct bag_float_format format)
{
    if (decimal->digits == 0 || decimal->exponent < BAG_POWER_LEAST)
        return 0; /* less than half of the least subnormal */
    if (decimal->exponent > 308)
        return format.infinity;
    struct bag_value_bits value = bag_decimal_product(decimal);
    int first_bit = 61 + (int)(value.high >> 62);
    int cut = first_bit - format.fraction_bits; /* bits below the last that is kept */
    int excess = first_bit + value.exponent - format.least_exponent;
    if (excess < 0) { /* subnormal: the last bit kept stays where it is */
        cut -= excess;
        excess = 0;
    }
    if (cut > 62)
        return cut > 64 ? 0 : bag_decimal_settle(*decimal, format);
    uint64_t rounded = value.high + (UINT64_C(1) << (cut - 1)), ones = (UINT64_C(1) << cut) - 1;
    uint64_t rest = rounded & ones;
    bool tie = rest == 0 && (value.low == 0 || value.error);
    bool carry = rest + value.error > ones || (rest == ones && value.low >= UINT64_MAX - 1);
    if (__builtin_expect(tie || carry, 0))
        return bag_decimal_settle(*decimal, format);
    /* The hidden bit, and a carry out of the fraction, add one to the exponent's field. */
    uint64_t bits = ((uint64_t)excess << format.fraction_bits) + (rounded >> cut);
    return bits < format.infinity ? bits : format.infinity;
}

#endif
