/* Scans the tokens of JSON: strings, numbers, words and keys; see json.h. */
#include "json.h"

#include "numbers.h"

#include <stdio.h>
#include <string.h>

/* cJSON copies numbers into a buffer of 63 characters; longer ones are written again. */
#define LONGEST_NUMBER 60

/* The maximum length of a token that is neither a string nor a number. */
#define LONGEST_TOKEN 12

/* ---- bytes ----------------------------------------------------------------------------------- */

bool bag_json_fail_limit(struct bag_json_scan *scan, const char *wrong, size_t limit,
                         const char *unit)
{
    /* The first fault counts: faults that follow from it are less exact. */
    if (!scan->fault.wrong)
        scan->fault = (struct bag_json_fault){wrong, limit, unit};
    return false;
}

/* Records a fault. If the text continues after the readable bytes, the limit of bytes truncated the
 * token and is reported instead. */
bool bag_json_fail(struct bag_json_scan *scan, const char *wrong)
{
    if (scan->end < scan->text_end && scan->end - scan->at < LONGEST_TOKEN)
        return bag_json_fail_limit(scan, "more than", scan->limits->max_bytes,
                                   "bytes outside of \"data\"");
    return bag_json_fail_limit(scan, wrong, 0, NULL);
}

bool bag_json_expect(struct bag_json_scan *scan, char byte, const char *wrong)
{
    if (!bag_json_next_is(scan, byte))
        return bag_json_fail(scan, scan->at == scan->end ? "the text ends too early" : wrong);
    bag_json_put(scan, scan->at++, 1);
    return true;
}

/* ---- strings --------------------------------------------------------------------------------- */

/* Returns the value of the four digits of \uXXXX at `at`, or -1 if they are not hexadecimal
 * digits. */
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

/* Scans a backslash and what follows it. */
static bool scan_escape(struct bag_json_scan *scan)
{
    if (scan->end - scan->at < 2)
        return bag_json_fail(scan, "the text ends too early");
    if (scan->at[1] == 'u') {
        /* Scan \uXXXX, or two of them for a character beyond the first plane. */
        const char *start = scan->at;
        int unit = hex4(start + 2, scan->end);
        if (unit < 0)
            return bag_json_fail(scan, "\\u must be followed by four hexadecimal digits");
        scan->at += 6;
        if (unit >= 0xDC00 && unit <= 0xDFFF)
            return bag_json_fail(scan, "a low surrogate without a high one before it");
        if (unit >= 0xD800 && unit <= 0xDBFF) {
            int low = scan->end - scan->at >= 6 && scan->at[0] == '\\' && scan->at[1] == 'u'
                          ? hex4(scan->at + 2, scan->end)
                          : -1;
            if (low < 0xDC00 || low > 0xDFFF)
                return bag_json_fail(scan, "a high surrogate must be followed by a low one");
            scan->at += 6;
        }
        /* cJSON ends strings at a NUL, so it gets a character that no known name contains. */
        bag_json_put(scan, unit == 0 ? "\\ufffd" : start, (size_t)(scan->at - start));
        return true;
    }
    if (!scan->at[1] || !strchr("\"\\/bfnrt", scan->at[1]))
        return bag_json_fail(scan, "unknown escape in a string");
    bag_json_put(scan, scan->at, 2);
    scan->at += 2;
    return true;
}

/* Scans the ASCII bytes of a string up to its end, an escape or a control character. */
static void scan_plain_run(struct bag_json_scan *scan)
{
    const char *start = scan->at, *at = start;
    while (at < scan->end && (signed char)*at >= 0x20 && *at != '"' && *at != '\\')
        at++;
    scan->at = at;
    bag_json_put(scan, start, (size_t)(at - start));
}

bool bag_json_scan_string(struct bag_json_scan *scan)
{
    if (bag_json_next_is(scan, '}')) /* keys are read after '{' only if the object is not empty */
        return bag_json_fail(scan, "no comma may precede '}'");
    if (!bag_json_expect(scan, '"', "expected a string in double quotes"))
        return false;
    for (scan_plain_run(scan); scan->at < scan->end && *scan->at != '"'; scan_plain_run(scan)) {
        unsigned char byte = (unsigned char)*scan->at;
        if (byte == '\\') {
            if (!scan_escape(scan))
                return false;
            continue;
        }
        if (byte < 0x20)
            return bag_json_fail(scan, "control characters in strings must be escaped");
        size_t bytes = bag_utf8_bytes(scan->at, scan->end);
        if (bytes == 0)
            return bag_json_fail(scan, "invalid UTF-8");
        bag_json_put(scan, scan->at, bytes);
        scan->at += bytes;
    }
    return bag_json_expect(scan, '"', "a string must end with a double quote");
}

/* ---- numbers and words ----------------------------------------------------------------------- */

/* Takes digits and returns their number. */
static size_t scan_digits(struct bag_json_scan *scan)
{
    const char *start = scan->at;
    while (scan->at < scan->end && *scan->at >= '0' && *scan->at <= '9')
        scan->at++;
    return (size_t)(scan->at - start);
}

bool bag_json_scan_number(struct bag_json_scan *scan)
{
    const char *start = scan->at;
    if (bag_json_next_is(scan, '-'))
        scan->at++;
    if (bag_json_next_is(scan, '0'))
        scan->at++;
    else if (!scan_digits(scan))
        return bag_json_fail(scan, "expected a value");
    if (bag_json_next_is(scan, '.')) {
        scan->at++;
        if (!scan_digits(scan))
            return bag_json_fail(scan, "a digit must follow the decimal point");
    }
    bool has_exponent = bag_json_next_is(scan, 'e') || bag_json_next_is(scan, 'E');
    if (has_exponent) {
        scan->at++;
        if (bag_json_next_is(scan, '+') || bag_json_next_is(scan, '-'))
            scan->at++;
        if (!scan_digits(scan))
            return bag_json_fail(scan, "a digit must follow the exponent sign");
    }
    if (scan->at < scan->end && *scan->at >= '0' && *scan->at <= '9')
        return bag_json_fail(scan, "a number must not start with a superfluous 0");
    /* Copy the number from `start` on. Convert it if cJSON's buffer or a double might not hold
     * it. */
    size_t bytes = (size_t)(scan->at - start);
    uint64_t bits = 0;
    if (bytes > LONGEST_NUMBER || has_exponent)
        bag_decimal_read(start + (*start == '-'), scan->at, BAG_F64_FORMAT, &bits);
    if (bits >= BAG_F64_FORMAT.infinity) {
        scan->at = start;
        return bag_json_fail(scan, "the number is too large to be represented");
    }
    if (bytes <= LONGEST_NUMBER) {
        bag_json_put(scan, start, bytes);
    } else {
        char text[32];
        double number;
        memcpy(&number, &bits, sizeof number);
        bag_json_put(
            scan, text,
            (size_t)snprintf(text, sizeof text, "%.17g", *start == '-' ? -number : number));
    }
    return true;
}

bool bag_json_scan_word(struct bag_json_scan *scan, const char *word)
{
    size_t bytes = strlen(word);
    if ((size_t)(scan->end - scan->at) < bytes || memcmp(scan->at, word, bytes) != 0)
        return bag_json_fail(scan, "expected a value");
    bag_json_put(scan, scan->at, bytes);
    scan->at += bytes;
    return true;
}

/* ---- keys ------------------------------------------------------------------------------------ */

bool bag_json_key_is(const char *key, const char *end, const char *name)
{
    for (; key < end && *name; name++) {
        int c = (unsigned char)*key;
        if (c == '\\' && key[1] == 'u') {
            c = hex4(key + 2, end);
            key += 5;
        } else if (c == '\\') {
            return false; /* no known name contains a character with a short escape */
        }
        if (c != (unsigned char)*name)
            return false;
        key++;
    }
    return key == end && !*name;
}
