/* From floats to the shortest decimals; see decimal.h.
 *
 * All decimals between the halfway points to the neighbouring floats read back to the float. That
 * interval is at least one and less than ten units of some power of ten wide: at most one multiple
 * of ten units lies in it, which is then the shortest, and otherwise one of the two whole numbers
 * of units around the float is, or both are. */
#include "decimal.h"

typedef unsigned __int128 wide;

/* A multiplier of 128 bits and the shift that goes with it. */
struct scale {
    uint64_t high, low;
    int shift;
};

/* For x * 2^exponent / 10^unit. A power that is cut is taken one too large, so that a quotient that
 * is whole never comes out below itself. */
static inline struct scale make_scale(int exponent, int unit)
{
    const struct bag_power *power = &bag_powers[-unit - BAG_POWER_LEAST];
    uint64_t cut = unit > 0 || unit < -BAG_POWER_EXACT_MOST, low;
    uint64_t carry = __builtin_add_overflow(power->low, cut, &low);
    return (struct scale){power->high + carry, low, exponent + bag_power_log2(-unit) + 5};
}

/* The whole part of x * 2^exponent / 10^unit, with the lowest bit set where a fraction was cut off,
 * which leaves comparisons with even numbers right. Here x < 2^55, the shift is from 5 to 8, and 68
 * bits of fraction are seen. The scale's error is less than the last of them, and no quotient of a
 * float is nearer to a whole number than 2^-65.5 above or 2^-63.5 below without being one
 * (tests/numbers/nearest_whole computes these). */
static inline uint64_t divide(uint64_t x, const struct scale *scale)
{
    x <<= scale->shift;
    wide sum = (wide)x * scale->high + (uint64_t)(((wide)x * scale->low) >> 64);
    bool fraction = (sum & (((wide)1 << 68) - 1)) != 0;
    return (uint64_t)(sum >> 68) | fraction;
}

/* floor(log10(2^exponent)), or of 3/4 of that; right for all exponents of doubles. */
static inline int decimal_unit(int exponent, bool three_quarters)
{
    return (exponent * 1262611 - (three_quarters ? 524031 : 0)) >> 22;
}

struct bag_shortest bag_shortest_decimal(uint64_t significand, int exponent, bool half_below)
{
    int unit = decimal_unit(exponent, half_below);
    struct scale scale = make_scale(exponent, unit);
    /* All in quarters of a unit. Halfway points belong to the even significand. */
    uint64_t odd = significand & 1;
    uint64_t value = divide(4 * significand, &scale);
    uint64_t low = divide(4 * significand - (half_below ? 1 : 2), &scale) + odd;
    uint64_t high = divide(4 * significand + 2, &scale) - odd;

    uint64_t below = value / 4, tens = below / 10 * 10;
    bool below_fits = 4 * below >= low, above_fits = 4 * below + 4 <= high;
    bool above_nearer = value > 4 * below + 2 - (below & 1);
    /* Added up without branches: which it will be cannot be foretold. */
    bool up_fits = 4 * tens + 40 <= high, down_fits = 4 * tens >= low;
    uint64_t nearest = below + (above_fits & (!below_fits | above_nearer));
    uint64_t keep_nearest = (uint64_t)(up_fits | down_fits) - 1; /* all ones or none */
    return (struct bag_shortest){(nearest & keep_nearest) | ((tens + 10 * up_fits) & ~keep_nearest),
                                 unit};
}
