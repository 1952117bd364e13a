/* Counts as decimal text, for headers: printf's formatting costs more than a small answer may. */
#ifndef BAG_DIGITS_H
#define BAG_DIGITS_H

#include <stdint.h>
#include <string.h>

/* Digits of the largest count. */
#define BAG_DIGITS_BYTES 20

/* Writes the digits of `value`; returns their end. No NUL is added. */
static inline char *bag_digits_put(char *out, uint64_t value)
{
    char digits[BAG_DIGITS_BYTES], *at = digits + sizeof digits;
    do {
        *--at = (char)('0' + value % 10);
        value /= 10;
    } while (value);
    size_t bytes = (size_t)(digits + sizeof digits - at);
    memcpy(out, at, bytes);
    return out + bytes;
}

#endif
