/* Scans JSON (RFC 8259): tokens first, then the values that contain each other, recursively; see
 * json.h. */
#include "json.h"

#include "numbers.h"

#include <stdio.h>
#include <string.h>

/* cJSON copies numbers into a buffer of 63 characters; longer ones are written again. */
#define LONGEST_NUMBER 60

/* The maximum length of a token that is neither a string nor a number. */
#define LONGEST_TOKEN 12

/* ---- bytes ----------------------------------------------------------------------------------- */

/* Appends bytes to the copy, if the scan is copying. */
static inline void put(struct bag_json_scan *scan, const char *bytes, size_t count)
{
    if (!scan->copying)
        return;
    memcpy(scan->copy, bytes, count);
    scan->copy += count;
}

/* Returns whether the next readable byte is this one. */
static inline bool next_is(const struct bag_json_scan *scan, char byte)
{
    return scan->at < scan->end && *scan->at == byte;
}

/* Skips white space. */
static inline void skip_space(struct bag_json_scan *scan)
{
    scan->at = bag_space_skip(scan->at, scan->end);
}

/* Records that something has more than `limit` units, unless there is a fault already. Returns
 * false. */
static bool fail_limit(struct bag_json_scan *scan, const char *wrong, size_t limit,
                       const char *unit)
{
    /* The first fault counts: faults that follow from it are less exact. */
    if (!scan->fault.wrong)
        scan->fault = (struct bag_json_fault){wrong, limit, unit};
    return false;
}

/* Records a fault and returns false. If the text continues after the readable bytes, the limit of
 * bytes truncated the token and is reported instead. */
static bool fail(struct bag_json_scan *scan, const char *wrong)
{
    if (scan->end < scan->text_end && scan->end - scan->at < LONGEST_TOKEN)
        return fail_limit(scan, "more than", scan->limits->max_bytes, "bytes outside of \"data\"");
    return fail_limit(scan, wrong, 0, NULL);
}

/* Takes `byte`, or fails with `wrong`. */
static bool expect(struct bag_json_scan *scan, char byte, const char *wrong)
{
    if (!next_is(scan, byte))
        return fail(scan, scan->at == scan->end ? "the text ends too early" : wrong);
    put(scan, scan->at++, 1);
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
        return fail(scan, "the text ends too early");
    if (scan->at[1] == 'u') {
        /* Scan \uXXXX, or two of them for a character beyond the first plane. */
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
        /* cJSON ends strings at a NUL, so it gets a character that no known name contains. */
        put(scan, unit == 0 ? "\\ufffd" : start, (size_t)(scan->at - start));
        return true;
    }
    if (!scan->at[1] || !strchr("\"\\/bfnrt", scan->at[1]))
        return fail(scan, "unknown escape in a string");
    put(scan, scan->at, 2);
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
    put(scan, start, (size_t)(at - start));
}

/* Takes and copies a string. */
static bool scan_string(struct bag_json_scan *scan)
{
    if (next_is(scan, '}')) /* keys are read after '{' only if the object is not empty */
        return fail(scan, "no comma may precede '}'");
    if (!expect(scan, '"', "expected a string in double quotes"))
        return false;
    for (scan_plain_run(scan); scan->at < scan->end && *scan->at != '"'; scan_plain_run(scan)) {
        unsigned char byte = (unsigned char)*scan->at;
        if (byte == '\\') {
            if (!scan_escape(scan))
                return false;
            continue;
        }
        if (byte < 0x20)
            return fail(scan, "control characters in strings must be escaped");
        size_t bytes = bag_utf8_bytes(scan->at, scan->end);
        if (bytes == 0)
            return fail(scan, "invalid UTF-8");
        put(scan, scan->at, bytes);
        scan->at += bytes;
    }
    return expect(scan, '"', "a string must end with a double quote");
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

/* Takes and copies a number. */
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
    /* Copy the number from `start` on. Convert it if cJSON's buffer or a double might not hold
     * it. */
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

/* Takes and copies a word. */
static bool scan_word(struct bag_json_scan *scan, const char *word)
{
    size_t bytes = strlen(word);
    if ((size_t)(scan->end - scan->at) < bytes || memcmp(scan->at, word, bytes) != 0)
        return fail(scan, "expected a value");
    put(scan, scan->at, bytes);
    scan->at += bytes;
    return true;
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* Returns whether the key between its quotes is `name`. Escapes in the key are decoded. */
static bool key_is(const char *key, const char *end, const char *name)
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

/* ---- containers ------------------------------------------------------------------------------ */

static bool scan_value(struct bag_json_scan *scan, enum bag_json_place place);

/* The members that are treated specially. Other members of the header are dropped; all others are
 * plain. */
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

/* Returns the place of the value under a key of an object. */
static enum bag_json_place place_of_member(enum bag_json_place object, const char *key,
                                           const char *end)
{
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        if (members[i].object == object && key_is(key, end, members[i].key))
            return members[i].value;
    }
    return object == BAG_JSON_ROOT ? BAG_JSON_DROPPED : BAG_JSON_PLAIN;
}

/* Takes an opening bracket and the white space after it. Fails if arrays and objects are nested too
 * deep. */
static bool open_container(struct bag_json_scan *scan)
{
    if (++scan->depth > scan->limits->max_depth)
        return fail_limit(scan, "arrays and objects are nested more than", scan->limits->max_depth,
                          "deep");
    put(scan, scan->at++, 1);
    skip_space(scan);
    return true;
}

/* Takes a closing bracket. Always returns true, so that callers can return its result. */
static bool close_container(struct bag_json_scan *scan)
{
    scan->depth--;
    put(scan, scan->at++, 1);
    return true;
}

/* Checks the number of elements of an array, including the one that begins, and stores the index of
 * the current tensor. */
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

static bool scan_object(struct bag_json_scan *scan, enum bag_json_place place)
{
    size_t count = 0;
    if (!open_container(scan))
        return false;
    if (next_is(scan, '}'))
        return close_container(scan);
    for (;;) {
        if (place == BAG_JSON_PARAMETERS && ++count > scan->limits->max_parameters)
            return fail_limit(scan, "\"parameters\" has more than", scan->limits->max_parameters,
                              "members");
        /* Scan a key, the colon and the value in an object at `place`. */
        const char *key = scan->at + 1;
        scan->key = scan->at;
        if (!scan_string(scan))
            return false;
        const char *key_end = scan->at - 1;
        skip_space(scan);
        if (!expect(scan, ':', "':' must follow the key"))
            return false;
        if (!scan_value(scan, place_of_member(place, key, key_end)))
            return false;
        if (next_is(scan, '}'))
            return close_container(scan);
        if (!expect(scan, ',', "expected ',' or '}'"))
            return false;
        skip_space(scan);
    }
}

static bool scan_array(struct bag_json_scan *scan, enum bag_json_place place)
{
    const enum bag_json_place element = place == BAG_JSON_INPUTS    ? BAG_JSON_INPUT
                                        : place == BAG_JSON_OUTPUTS ? BAG_JSON_OUTPUT
                                                                    : BAG_JSON_PLAIN;
    size_t count = 0;
    if (!open_container(scan))
        return false;
    while (!next_is(scan, ']')) {
        if (count && !expect(scan, ',', "expected ',' or ']'"))
            return false;
        skip_space(scan);
        if (count && next_is(scan, ']'))
            return fail(scan, "no comma may precede ']'");
        scan->key = NULL;
        if (!check_elements(scan, place, ++count) || !scan_value(scan, element))
            return false;
    }
    if (place == BAG_JSON_INPUTS || place == BAG_JSON_OUTPUTS)
        scan->tensor_kind = NULL;
    return close_container(scan);
}

/* Skips bytes that are neither brackets nor quotes, eight at a time. Only bytes from '@' on have
 * bit 6, and all brackets do. It also stops at letters. */
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

/* Finds the end of a data array without reading its elements. Only strings can hide a bracket. */
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

/* Cuts out a data array. It may have any length, because only the bytes around it are limited. */
static bool cut_data(struct bag_json_scan *scan)
{
    /* The array may extend beyond the readable bytes. Afterwards as many bytes as it has are added
     * to them, because the limit applies only to the rest of the text. */
    const char *start = scan->at, *end = scan->end;
    char text[24];
    bool copying = scan->copying;
    scan->copying = false;
    scan->end = scan->text_end;
    if (!skip_balanced(scan))
        return false;
    /* Append the data array from `start` to scan->at to the list of arrays. The list doubles in the
     * arena, which cannot free the shorter lists; all of them together take at most 64 bytes for
     * each array, or 128. */
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
    size_t bytes = (size_t)(scan->at - start);
    if ((size_t)(scan->text_end - end) > bytes)
        scan->end = end + bytes;
    scan->copying = copying;
    put(scan, text, (size_t)snprintf(text, sizeof text, "%zu", scan->num_data++));
    return true;
}

/* Checks a value and copies `instead` in its place. */
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

/* Scans a value by its first byte. */
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

/* Scans the value of "id", which must be a string or null. Stores a string in its original form,
 * with quotes and escapes. */
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

/* Scans a tensor's name and stores it for messages. A value that is not a string is rejected later,
 * when the tree is read. */
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

/* Scans a value in the way of its place. */
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
        /* An array is cut out. Any other value than null is copied as false, which makes the reader
         * of inputs reject it with the tensor's name. */
        if (next_is(scan, '['))
            return cut_data(scan);
        return drop_value(scan, next_is(scan, 'n') ? "null" : "false");
    default:
        return scan_plain(scan, place);
    }
}

/* Scans any value with the white space around it. */
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

/* ---- the document ---------------------------------------------------------------------------- */

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
    /* Data arrays are cut out. Two things grow: a dropped "":0 becomes "":null, and the brackets of
     * "data":[] are replaced by an input's number. Neither doubles. */
    return 2 * (size_t)(scan->end - scan->text) + 32;
}

bool bag_json_scan_document(struct bag_json_scan *scan, enum bag_json_place place)
{
    /* Skip a byte order mark, with which editors and PowerShell on Windows begin UTF-8. */
    static const char mark[] = {'\xef', '\xbb', '\xbf'};
    if (scan->end - scan->at >= (ptrdiff_t)sizeof mark && memcmp(scan->at, mark, sizeof mark) == 0)
        scan->at += sizeof mark;
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
