/* The grammar of JSON (RFC 8259) as a recursive scanner; see json_scan.h. */
#include "json_scan.h"
#include "decimal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* cJSON reads numbers through a buffer of 63 characters; longer ones are written anew. */
#define LONGEST_NUMBER 60

/* No token but strings and numbers is longer. */
#define LONGEST_TOKEN 12

void bag_json_scan_init(struct bag_json_scan *scan, const char *text, size_t text_bytes,
                        const struct bag_json_limits *limits)
{
    size_t bytes = text_bytes < limits->max_bytes ? text_bytes : limits->max_bytes;
    *scan = (struct bag_json_scan){.text = text,
                                   .at = text,
                                   .end = text + bytes,
                                   .text_end = text + text_bytes,
                                   .copying = true,
                                   .limits = limits};
}

size_t bag_json_copy_bytes(const struct bag_json_scan *scan)
{
    /* Data is cut out. Two things grow: a dropped "":0 becomes "":null, and "data":[] gets a number
     * of an input for its brackets. Neither doubles. */
    return 2 * (size_t)(scan->end - scan->text) + 32;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Notes that something has more than `limit` units; returns false. */
static bool fail_limit(struct bag_json_scan *scan, const char *wrong, size_t limit,
                       const char *unit)
{
    if (!scan->fault.wrong)
        scan->fault = (struct bag_json_fault){wrong, limit, unit};
    return false;
}

/* Notes what is wrong, keeping the first finding; returns false. Where the text goes on behind what
 * may be read, it is the limit that cut the token. */
static bool fail(struct bag_json_scan *scan, const char *wrong)
{
    if (scan->end < scan->text_end && scan->end - scan->at < LONGEST_TOKEN)
        return fail_limit(scan, "more than", scan->limits->max_bytes, "bytes outside of \"data\"");
    return fail_limit(scan, wrong, 0, NULL);
}

/* Copies bytes, where the scan is copying. */
static void put(struct bag_json_scan *scan, const char *bytes, size_t count)
{
    if (!scan->copying)
        return;
    memcpy(scan->copy, bytes, count);
    scan->copy += count;
}

static bool next_is(const struct bag_json_scan *scan, char byte)
{
    return scan->at < scan->end && *scan->at == byte;
}

/* Takes `byte`, or fails with `wrong`. */
static bool expect(struct bag_json_scan *scan, char byte, const char *wrong)
{
    if (!next_is(scan, byte))
        return fail(scan, scan->at == scan->end ? "the text ends too early" : wrong);
    put(scan, scan->at++, 1);
    return true;
}

static void skip_space(struct bag_json_scan *scan)
{
    while (scan->at < scan->end &&
           (*scan->at == ' ' || *scan->at == '\n' || *scan->at == '\r' || *scan->at == '\t'))
        scan->at++;
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
        return fail(scan, "\\u must be followed by four hexadecimal digits");
    scan->at += 6;
    if (unit >= 0xDC00 && unit <= 0xDFFF)
        return fail(scan, "a low surrogate without a high one before it");
    if (unit >= 0xD800 && unit <= 0xDBFF) {
        int low = scan->end - scan->at >= 6 && scan->at[0] == '\\' && scan->at[1] == 'u'
                      ? hex4(scan->at + 2, scan->end)
                      : -1;
        if (low < 0xDC00 || low > 0xDFFF)
            return fail(scan, "a high surrogate must be followed by a low one");
        scan->at += 6;
    }
    /* cJSON ends strings at a NUL: let it see a character that no name of ours has. */
    put(scan, unit == 0 ? "\\ufffd" : start, (size_t)(scan->at - start));
    return true;
}

static bool scan_escape(struct bag_json_scan *scan)
{
    if (scan->end - scan->at < 2)
        return fail(scan, "the text ends too early");
    if (scan->at[1] == 'u')
        return scan_unicode_escape(scan);
    if (!scan->at[1] || !strchr("\"\\/bfnrt", scan->at[1]))
        return fail(scan, "unknown escape in a string");
    put(scan, scan->at, 2);
    scan->at += 2;
    return true;
}

static bool scan_string(struct bag_json_scan *scan)
{
    if (!expect(scan, '"', "expected a string in double quotes"))
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
            return fail(scan, "control characters in strings must be escaped");
        if (byte >= 0x80 && !(bytes = bag_utf8_bytes(scan->at, scan->end)))
            return fail(scan, "invalid UTF-8");
        put(scan, scan->at, bytes);
        scan->at += bytes;
    }
    return expect(scan, '"', "a string must end with a double quote");
}

/* ---- numbers and words ----------------------------------------------------------------------- */

static size_t scan_digits(struct bag_json_scan *scan)
{
    const char *start = scan->at;
    while (scan->at < scan->end && *scan->at >= '0' && *scan->at <= '9')
        scan->at++;
    return (size_t)(scan->at - start);
}

/* Copies the number from `start` on. One that cJSON's buffer or a double could not hold is read. */
static bool put_number(struct bag_json_scan *scan, const char *start, bool has_exponent)
{
    size_t bytes = (size_t)(scan->at - start);
    uint64_t bits = 0;
    if (bytes > LONGEST_NUMBER || has_exponent)
        bag_decimal_read(start + (*start == '-'), scan->at, BAG_F64_FORMAT, &bits);
    if (bits >= BAG_F64_FORMAT.infinity) {
        scan->at = start;
        return fail(scan, "the number is too large to be represented");
    }
    if (bytes <= LONGEST_NUMBER) {
        put(scan, start, bytes);
    } else {
        char text[32];
        double number;
        memcpy(&number, &bits, sizeof number);
        put(scan, text,
            (size_t)snprintf(text, sizeof text, "%.17g", *start == '-' ? -number : number));
    }
    return true;
}

static bool scan_number(struct bag_json_scan *scan)
{
    const char *start = scan->at;
    if (next_is(scan, '-'))
        scan->at++;
    if (next_is(scan, '0'))
        scan->at++;
    else if (!scan_digits(scan))
        return fail(scan, "expected a value");
    if (next_is(scan, '.')) {
        scan->at++;
        if (!scan_digits(scan))
            return fail(scan, "a digit must follow the decimal point");
    }
    bool has_exponent = next_is(scan, 'e') || next_is(scan, 'E');
    if (has_exponent) {
        scan->at++;
        if (next_is(scan, '+') || next_is(scan, '-'))
            scan->at++;
        if (!scan_digits(scan))
            return fail(scan, "a digit must follow the exponent sign");
    }
    if (scan->at < scan->end && *scan->at >= '0' && *scan->at <= '9')
        return fail(scan, "a number must not start with a superfluous 0");
    return put_number(scan, start, has_exponent);
}

static bool scan_word(struct bag_json_scan *scan, const char *word)
{
    size_t bytes = strlen(word);
    if ((size_t)(scan->end - scan->at) < bytes || memcmp(scan->at, word, bytes) != 0)
        return fail(scan, "expected a value");
    put(scan, scan->at, bytes);
    scan->at += bytes;
    return true;
}

/* ---- containers ------------------------------------------------------------------------------ */

static bool scan_value(struct bag_json_scan *scan, enum bag_json_place place);

/* Whether the key between the quotes is `name`, escapes included. */
static bool key_is(const char *key, const char *end, const char *name)
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

/* The members that matter. Others are plain, but for the header's own, which are dropped. */
static const struct {
    enum bag_json_place object;
    const char *key;
    enum bag_json_place value;
} members[] = {
    {BAG_JSON_ROOT, "id", BAG_JSON_ID},
    {BAG_JSON_ROOT, "inputs", BAG_JSON_INPUTS},
    {BAG_JSON_ROOT, "outputs", BAG_JSON_OUTPUTS},
    {BAG_JSON_ROOT, "parameters", BAG_JSON_PARAMETERS},
    {BAG_JSON_INPUT, "name", BAG_JSON_NAME},
    {BAG_JSON_INPUT, "shape", BAG_JSON_SHAPE},
    {BAG_JSON_INPUT, "parameters", BAG_JSON_PARAMETERS},
    {BAG_JSON_INPUT, "data", BAG_JSON_DATA},
    {BAG_JSON_OUTPUT, "name", BAG_JSON_NAME},
    {BAG_JSON_OUTPUT, "parameters", BAG_JSON_PARAMETERS},
};

static enum bag_json_place place_of_member(enum bag_json_place object, const char *key,
                                           const char *end)
{
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        if (members[i].object == object && key_is(key, end, members[i].key))
            return members[i].value;
    }
    return object == BAG_JSON_ROOT ? BAG_JSON_DROPPED : BAG_JSON_PLAIN;
}

static bool open_container(struct bag_json_scan *scan)
{
    if (++scan->depth > scan->limits->max_depth)
        return fail_limit(scan, "arrays and objects are nested more than", scan->limits->max_depth,
                          "deep");
    put(scan, scan->at++, 1);
    skip_space(scan);
    return true;
}

static bool close_container(struct bag_json_scan *scan)
{
    scan->depth--;
    put(scan, scan->at++, 1);
    return true;
}

/* Checks how many members an object has so far; only parameters have a limit of their own. */
static bool check_members(struct bag_json_scan *scan, enum bag_json_place place, size_t count)
{
    return place != BAG_JSON_PARAMETERS || count <= scan->limits->max_parameters ||
           fail_limit(scan, "\"parameters\" has more than", scan->limits->max_parameters,
                      "members");
}

/* Checks how many elements an array has with the one that begins, and notes which tensor it is. */
static bool check_elements(struct bag_json_scan *scan, enum bag_json_place place, size_t count)
{
    const struct bag_json_limits *limits = scan->limits;
    bool is_input = place == BAG_JSON_INPUTS;
    if (place == BAG_JSON_SHAPE)
        return count <= limits->max_dimensions ||
               fail_limit(scan, "\"shape\" has more than", limits->max_dimensions, "dimensions");
    if (!is_input && place != BAG_JSON_OUTPUTS)
        return true;
    scan->tensor_kind = NULL;
    if (count > limits->max_tensors)
        return fail_limit(scan, is_input ? "\"inputs\" has more than" : "\"outputs\" has more than",
                          limits->max_tensors, "tensors");
    scan->tensor_kind = is_input ? "input" : "output";
    scan->tensor = count - 1;
    scan->name = (struct bag_text){0};
    return true;
}

static bool scan_member(struct bag_json_scan *scan, enum bag_json_place place)
{
    const char *key = scan->at + 1;
    if (!scan_string(scan))
        return false;
    const char *key_end = scan->at - 1;
    skip_space(scan);
    if (!expect(scan, ':', "':' must follow the key"))
        return false;
    return scan_value(scan, place_of_member(place, key, key_end));
}

static bool scan_object(struct bag_json_scan *scan, enum bag_json_place place)
{
    size_t count = 0;
    if (!open_container(scan))
        return false;
    if (next_is(scan, '}'))
        return close_container(scan);
    for (;;) {
        if (!check_members(scan, place, ++count) || !scan_member(scan, place))
            return false;
        if (next_is(scan, '}'))
            return close_container(scan);
        if (!expect(scan, ',', "expected ',' or '}'"))
            return false;
        skip_space(scan);
    }
}

static enum bag_json_place place_of_element(enum bag_json_place array)
{
    return array == BAG_JSON_INPUTS    ? BAG_JSON_INPUT
           : array == BAG_JSON_OUTPUTS ? BAG_JSON_OUTPUT
                                       : BAG_JSON_PLAIN;
}

static bool scan_array(struct bag_json_scan *scan, enum bag_json_place place)
{
    size_t count = 0;
    if (!open_container(scan))
        return false;
    while (!next_is(scan, ']')) {
        if (count && !expect(scan, ',', "expected ',' or ']'"))
            return false;
        skip_space(scan);
        if (!check_elements(scan, place, ++count) || !scan_value(scan, place_of_element(place)))
            return false;
    }
    if (place == BAG_JSON_INPUTS || place == BAG_JSON_OUTPUTS)
        scan->tensor_kind = NULL;
    return close_container(scan);
}

/* Skips what can be neither a bracket nor a quote, eight bytes at a time: of all bytes only those
 * from '@' on have bit 6, and so do all brackets. A letter is stopped at, too. */
static const char *skip_numbers(const char *at, const char *end)
{
    const uint64_t ones = UINT64_C(0x0101010101010101);
    uint64_t found = 0;
    while (end - at >= 8 && !found) {
        uint64_t bytes = bag_digits_load(at, end), quotes = bytes ^ (ones * '"');
        found = (bytes & (ones * 0x40)) | ((quotes - ones) & ~quotes & (ones * 0x80));
        at += found ? __builtin_ctzll(found) / 8 : 8;
    }
    return at;
}

/* Finds the end of a data array without reading what is in it: only strings can hide a bracket. */
static bool skip_balanced(struct bag_json_scan *scan)
{
    size_t depth = 0;
    for (; scan->at < scan->end; scan->at++) {
        scan->at = skip_numbers(scan->at, scan->end);
        if (scan->at == scan->end)
            break;
        char byte = *scan->at;
        if (byte == '[' || byte == '{') {
            depth++;
        } else if (byte == ']' || byte == '}') {
            if (--depth == 0) {
                scan->at++;
                return true;
            }
        } else if (byte == '"') {
            if (!scan_string(scan))
                return false;
            scan->at--;
        }
    }
    return fail(scan, "the text ends too early");
}

static bool remember_data(struct bag_json_scan *scan, const char *start)
{
    if (scan->num_data == scan->max_data) {
        size_t more = scan->max_data ? 2 * scan->max_data : 8;
        struct bag_text *data = bag_arena_array(scan->arena, more, sizeof *data);
        if (!data) {
            scan->no_memory = true;
            return false;
        }
        if (scan->num_data)
            memcpy(data, scan->data, scan->num_data * sizeof *data);
        scan->data = data;
        scan->max_data = more;
    }
    scan->data[scan->num_data].data = start;
    scan->data[scan->num_data].bytes = (size_t)(scan->at - start);
    return true;
}

/* Data may be of any length: only the bytes around it are limited. */
static bool cut_data(struct bag_json_scan *scan)
{
    const char *start = scan->at, *end = scan->end;
    char text[24];
    bool copying = scan->copying;
    scan->copying = false;
    scan->end = scan->text_end;
    if (!skip_balanced(scan) || !remember_data(scan, start))
        return false;
    size_t bytes = (size_t)(scan->at - start);
    if ((size_t)(scan->text_end - end) > bytes)
        scan->end = end + bytes;
    scan->copying = copying;
    put(scan, text, (size_t)snprintf(text, sizeof text, "%zu", scan->num_data++));
    return true;
}

/* Checks a value and copies `instead`. */
static bool drop_value(struct bag_json_scan *scan, const char *instead)
{
    bool copying = scan->copying;
    scan->copying = false;
    if (!scan_value(scan, BAG_JSON_PLAIN))
        return false;
    scan->copying = copying;
    put(scan, instead, strlen(instead));
    return true;
}

static bool scan_plain(struct bag_json_scan *scan, enum bag_json_place place)
{
    if (scan->at == scan->end)
        return fail(scan, "the text ends too early");
    switch (*scan->at) {
    case '{':
        return scan_object(scan, place);
    case '[':
        return scan_array(scan, place);
    case '"':
        return scan_string(scan);
    case 't':
        return scan_word(scan, "true");
    case 'f':
        return scan_word(scan, "false");
    case 'n':
        return scan_word(scan, "null");
    default:
        return scan_number(scan);
    }
}

static bool scan_id(struct bag_json_scan *scan)
{
    const char *start = scan->at;
    if (next_is(scan, '"')) {
        if (!scan_string(scan))
            return false;
        scan->id.data = start;
        scan->id.bytes = (size_t)(scan->at - start);
        return true;
    }
    return next_is(scan, 'n') ? scan_word(scan, "null") : fail(scan, "\"id\" must be a string");
}

static bool scan_name(struct bag_json_scan *scan)
{
    const char *start = scan->at;
    if (!next_is(scan, '"'))
        return scan_plain(scan, BAG_JSON_PLAIN);
    if (!scan_string(scan))
        return false;
    scan->name = (struct bag_text){start + 1, (size_t)(scan->at - start) - 2};
    return true;
}

/* An array is cut out. Anything else but null is wrong, which the copy's false tells the reader of
 * inputs, who knows the tensor's name. */
static bool scan_data(struct bag_json_scan *scan)
{
    if (next_is(scan, '['))
        return cut_data(scan);
    return drop_value(scan, next_is(scan, 'n') ? "null" : "false");
}

static bool scan_in_place(struct bag_json_scan *scan, enum bag_json_place place)
{
    switch (place) {
    case BAG_JSON_DROPPED:
        return drop_value(scan, "null");
    case BAG_JSON_ID:
        return scan_id(scan);
    case BAG_JSON_NAME:
        return scan_name(scan);
    case BAG_JSON_DATA:
        return scan_data(scan);
    default:
        return scan_plain(scan, place);
    }
}

/* Any value with the white space around it. */
static bool scan_value(struct bag_json_scan *scan, enum bag_json_place place)
{
    skip_space(scan);
    if (scan->copying && ++scan->num_values > scan->limits->max_values)
        return fail_limit(scan, "more than", scan->limits->max_values,
                          "values outside of \"data\"");
    if (!scan_in_place(scan, place))
        return false;
    skip_space(scan);
    return true;
}

bool bag_json_scan_document(struct bag_json_scan *scan, enum bag_json_place place)
{
    if (!scan_value(scan, place))
        return false;
    if (scan->at != scan->text_end)
        return fail(scan, place == BAG_JSON_ROOT
                              ? "nothing may follow the document; where binary tensors "
                                "do, Inference-Header-Content-Length must say where it "
                                "ends"
                              : "nothing may follow the document");
    return true;
}
