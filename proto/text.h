/* Text as bytes: parts of it, UTF-8, percent-encoding, hexadecimal and decimal digits. */
#ifndef BAG_TEXT_H
#define BAG_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* A part of a text, borrowed and not NUL-terminated. */
struct bag_text {
    const char *data; /* NULL: none */
    size_t bytes;
};

/* Whether the text is exactly `name`. */
bool bag_text_is(struct bag_text text, const char *name);

bool bag_text_equal(struct bag_text a, struct bag_text b);

/* Bytes (2 to 4) of the multi-byte UTF-8 character that starts at `at` < `end`; 0 where it is
 * invalid, truncated by `end`, overlong, a surrogate or beyond U+10FFFF, or where the byte starts
 * none. */
size_t bag_utf8_bytes(const char *at, const char *end);

/* Decodes `count` bytes of a path segment with percent-encoding (RFC 3986) into `out`, which has
 * room for `out_bytes` with the NUL that ends it. False where a '%' is not followed by two
 * hexadecimal digits, where a NUL byte would come out, or where there is too little room. */
bool bag_url_decode(const char *segment, size_t count, char *out, size_t out_bytes);

/* The value of a hexadecimal digit, or -1. */
static inline int bag_hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* Digits of the largest count. */
#define BAG_DIGITS_BYTES 20

/* Writes the decimal digits of `value`; returns their end. No NUL is added. For headers and small
 * replies, where printf's formatting would cost more than the rest. */
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
