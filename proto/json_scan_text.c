/* The leaves of JSON's grammar: strings, numbers, words and keys; see json_scan.h. */
#include "hex.h"
#include "json_scan.h"
#include "utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* cJSON reads numbers through a buffer of 63 characters; longer ones are written anew. */
#define LONGEST_NUMBER 60

bool bag_json_fail(struct bag_json_scan *scan, const char *wrong)
{
    if (!scan->wrong)
        scan->wrong = wrong;
    return false;
}

void bag_json_put(struct bag_json_scan *scan, const char *bytes, size_t count)
{
    if (!scan->copying)
        return;
    memcpy(scan->copy, bytes, count);
    scan->copy += count;
}

bool bag_json_next_is(const struct bag_json_scan *scan, char byte)
{
    return scan->at < scan->end && *scan->at == byte;
}

bool bag_json_expect(struct bag_json_scan *scan, char byte, const char *wrong)
{
    if (!bag_json_next_is(scan, byte))
        return bag_json_fail(scan, scan->at == scan->end ? "the text ends too early" : wrong);
    bag_json_put(scan, scan->at++, 1);
    return true;
}

/* ---- strings --------------------------------------------------------------------------------- */

/* The four digits of \uXXXX that start `at`; -1 where they are not that. */
static int hex4(const char *at, const char *end)
{
    int value = 0;
    if (end - at < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        int digit = bag_hex_digit(at[i]);
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* \uXXXX, or two of them for a character beyond the first plane. */
static bool scan_unicode_escape(struct bag_json_scan *scan)
{
    const char *start = scan->at;
    int unit = hex4(start + 2, scan->end);
    if (unit < 0)
        return bag_json_fail(scan, "\\u must be followed by four hexadecimal digits");
    scan->at += 6;
    if (unit >= 0xDC00 && unit <= 0xDFFF)
        return bag_json_fail(scan, "a low surrogate stands without a high one before it");
    if (unit >= 0xD800 && unit <= 0xDBFF) {
        int low = scan->end - scan->at >= 6 && scan->at[0] == '\\' && scan->at[1] == 'u'
                      ? hex4(scan->at + 2, scan->end)
                      : -1;
        if (low < 0xDC00 || low > 0xDFFF)
            return bag_json_fail(scan, "a high surrogate must be followed by a low one");
        scan->at += 6;
    }
    /* cJSON ends strings at a NUL: let it see a character that no name of ours has. */
    bag_json_put(scan, unit == 0 ? "\\ufffd" : start, (size_t)(scan->at - start));
    return true;
}

static bool scan_escape(struct bag_json_scan *scan)
{
    if (scan->end - scan->at < 2)
        return bag_json_fail(scan, "the text ends too early");
    if (scan->at[1] == 'u')
        return scan_unicode_escape(scan);
    if (!scan->at[1] || !strchr("\"\\/bfnrt", scan->at[1]))
        return bag_json_fail(scan, "unknown escape in a string");
    bag_json_put(scan, scan->at, 2);
    scan->at += 2;
    return true;
}

bool bag_json_scan_string(struct bag_json_scan *scan)
{
    if (!bag_json_expect(scan, '"', "a string in double quotes must stand here"))
        return false;
    while (scan->at < scan->end && *scan->at != '"') {
        unsigned char byte = (unsigned char)*scan->at;
        size_t bytes = 1;
        if (byte == '\\') {
            if (!scan_escape(scan))
                return false;
            continue;
        }
        if (byte < 0x20)
            return bag_json_fail(scan, "control characters in strings must be escaped");
        if (byte >= 0x80 && !(bytes = bag_utf8_bytes(scan->at, scan->end)))
            return bag_json_fail(scan, "invalid UTF-8");
        bag_json_put(scan, scan->at, bytes);
        scan->at += bytes;
    }
    return bag_json_expect(scan, '"', "a string must end with a double quote");
}

/* ---- numbers and words ----------------------------------------------------------------------- */

static size_t scan_digits(struct bag_json_scan *scan)
{
    const char *start = scan->at;
    while (scan->at < scan->end && *scan->at >= '0' && *scan->at <= '9')
        scan->at++;
    return (size_t)(scan->at - start);
}

static void put_number(struct bag_json_scan *scan, const char *start)
{
    size_t bytes = (size_t)(scan->at - start);
    if (bytes <= LONGEST_NUMBER) {
        bag_json_put(scan, start, bytes);
        return;
    }
    /* The byte after a number is never part of one, and strtod stops there: the text goes on with
     * at least the container's end, since a bare number is no document that anybody asks for. */
    char text[32];
    bag_json_put(scan, text, (size_t)snprintf(text, sizeof text, "%.17g", strtod(start, NULL)));
}

bool bag_json_scan_number(struct bag_json_scan *scan)
{
    const char *start = scan->at;
    if (bag_json_next_is(scan, '-'))
        scan->at++;
    if (bag_json_next_is(scan, '0'))
        scan->at++;
    else if (!scan_digits(scan))
        return bag_json_fail(scan, "a value must stand here");
    if (bag_json_next_is(scan, '.')) {
        scan->at++;
        if (!scan_digits(scan))
            return bag_json_fail(scan, "a digit must follow the decimal point");
    }
    if (bag_json_next_is(scan, 'e') || bag_json_next_is(scan, 'E')) {
        scan->at++;
        if (bag_json_next_is(scan, '+') || bag_json_next_is(scan, '-'))
            scan->at++;
        if (!scan_digits(scan))
            return bag_json_fail(scan, "a digit must follow the exponent sign");
    }
    if (scan->at < scan->end && *scan->at >= '0' && *scan->at <= '9')
        return bag_json_fail(scan, "a number must not start with a superfluous 0");
    if (scan->at == scan->end && scan->at - start > LONGEST_NUMBER)
        return bag_json_fail(scan, "the text ends too early");
    put_number(scan, start);
    return true;
}

bool bag_json_scan_word(struct bag_json_scan *scan, const char *word)
{
    size_t bytes = strlen(word);
    if ((size_t)(scan->end - scan->at) < bytes || memcmp(scan->at, word, bytes) != 0)
        return bag_json_fail(scan, "a value must stand here");
    bag_json_put(scan, scan->at, bytes);
    scan->at += bytes;
    return true;
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* Whether the key between the quotes is `name`, escapes included. */
bool bag_json_key_is(const char *key, const char *end, const char *name)
{
    for (; key < end && *name; name++) {
        int c = (unsigned char)*key;
        if (c == '\\' && key[1] == 'u') {
            c = hex4(key + 2, end);
            key += 5;
        } else if (c == '\\') {
            return false; /* no name here holds a character with a short escape */
        }
        if (c != (unsigned char)*name)
            return false;
        key++;
    }
    return key == end && !*name;
}
