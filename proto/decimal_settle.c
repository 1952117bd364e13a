/* From decimals to floats where a product of 128 bits does not decide; see decimal.h.
 *
 * The C library's exact arithmetic does. Its text must have an end and no locale's point, so the
 * decimal is spelled anew, with as many digits as can matter. */
#include "decimal.h"

#include <stdio.h>
#include <stdlib.h>

/* No halfway point between doubles has more digits than 767. */
#define SETTLING_DIGITS 800

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

uint64_t bag_decimal_settle(const struct bag_decimal *decimal, struct bag_float_format format)
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
