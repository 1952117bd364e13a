/* From decimals to floats, quickly; see decimal.h.
 *
 * The digits times the first 128 bits of the power of ten give the first 128 bits of the value, and
 * how far it can be above them. Nearly always both ends round to the same float. Where they do not
 * (a tie, or more digits than are kept, close to one), bag_decimal_settle must be asked. */
#ifndef BAG_DECIMAL_ROUND_H
#define BAG_DECIMAL_ROUND_H

#include "decimal.h"

/* The first bits of digits * 10^exponent: its value is from `high` and `low` (64 bits of fraction
 * below `high`) to less than 2 above `low`, times 2^exponent. Bit 61 or 62 of `high` is the first
 * that is set. */
struct bag_value_bits {
    uint64_t high, low;
    int exponent;
};

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

/* The bits of the float nearest to digits * 10^exponent, ties to even; those of infinity where it
 * is out of range. `digits` are not 0, and the exponent is in the table of powers. With `more`, up
 * to one is to be added to the digits, which then are at least 10^18. False where that leaves two
 * floats to choose from. */
static inline __attribute__((always_inline)) bool bag_decimal_round(uint64_t digits, int exponent,
                                                                    bool more,
                                                                    struct bag_float_format format,
                                                                    uint64_t *bits)
{
    struct bag_value_bits value = bag_decimal_product(digits, exponent);
    int first_bit = 61 + (int)(value.high >> 62);
    int cut = first_bit - format.fraction_bits; /* bits below the last that is kept */
    int excess = first_bit + value.exponent - format.least_exponent;
    if (__builtin_expect(excess < 0, 0)) { /* subnormal: the last bit kept stays where it is */
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

#endif
