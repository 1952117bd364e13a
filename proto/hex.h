/* Hexadecimal digits, for the escapes of JSON and of URLs. */
#ifndef BAG_HEX_H
#define BAG_HEX_H

/* The value of a digit, or -1. */
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

#endif
