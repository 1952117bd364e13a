/* One number as text, written in blocks. Private to proto/numbers_*.c.
 *
 * Each function returns the end of the number; up to BAG_NUMBER_REACH bytes after it are scribbled
 * on. */
#ifndef BAG_NUMBERS_TEXT_H
#define BAG_NUMBERS_TEXT_H

#include "decimal.h"

#define BAG_NUMBER_REACH 16

/* Eight digits as text, the first in the lowest byte. */
static inline uint64_t bag_number_ascii(uint64_t digits)
{
    return digits | UINT64_C(0x3030303030303030);
}

/* Writes all eight digits of a number below 10^8. */
static inline char *bag_number_put_eight(char *out, uint32_t number)
{
    uint64_t text = bag_number_ascii(bag_digits_spread(number));
    memcpy(out, &text, 8);
    return out + 8;
}

/* Writes a number below 10^8 without leading zeros. */
static inline char *bag_number_put_short(char *out, uint32_t number)
{
    uint64_t digits = bag_digits_spread(number);
    int zeros = number ? __builtin_ctzll(digits) / 8 : 7;
    uint64_t text = bag_number_ascii(digits) >> (8 * zeros);
    memcpy(out, &text, 8);
    return out + 8 - zeros;
}

/* Write floats, given by their bits. */
char *bag_number_put_f32(char *out, uint32_t bits);
char *bag_number_put_f64(char *out, uint64_t bits);

#endif
