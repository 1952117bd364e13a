/* Scans the grammar of JSON (RFC 8259) recursively; see json.h. */
#include "json.h"
#include "numbers.h"

#include <stdio.h>
#include <string.h>

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
        if (members[i].object == object && bag_json_key_is(key, end, members[i].key))
            return members[i].value;
    }
    return object == BAG_JSON_ROOT ? BAG_JSON_DROPPED : BAG_JSON_PLAIN;
}

/* Takes an opening bracket and the white space after it. Fails if arrays and objects are nested too
 * deep. */
static bool open_container(struct bag_json_scan *scan)
{
    if (++scan->depth > scan->limits->max_depth)
        return bag_json_fail_limit(scan, "arrays and objects are nested more than",
                                   scan->limits->max_depth, "deep");
    bag_json_put(scan, scan->at++, 1);
    bag_json_skip_space(scan);
    return true;
}

/* Takes a closing bracket. Always returns true, so that callers can return its result. */
static bool close_container(struct bag_json_scan *scan)
{
    scan->depth--;
    bag_json_put(scan, scan->at++, 1);
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
               bag_json_fail_limit(scan, "\"shape\" has more than", limits->max_dimensions,
                                   "dimensions");
    if (!is_input && place != BAG_JSON_OUTPUTS)
        return true;
    scan->tensor_kind = NULL;
    if (count > limits->max_tensors)
        return bag_json_fail_limit(
            scan, is_input ? "\"inputs\" has more than" : "\"outputs\" has more than",
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
    if (bag_json_next_is(scan, '}'))
        return close_container(scan);
    for (;;) {
        if (place == BAG_JSON_PARAMETERS && ++count > scan->limits->max_parameters)
            return bag_json_fail_limit(scan, "\"parameters\" has more than",
                                       scan->limits->max_parameters, "members");
        /* Scan a key, the colon and the value in an object at `place`. */
        const char *key = scan->at + 1;
        scan->key = scan->at;
        if (!bag_json_scan_string(scan))
            return false;
        const char *key_end = scan->at - 1;
        bag_json_skip_space(scan);
        if (!bag_json_expect(scan, ':', "':' must follow the key"))
            return false;
        if (!scan_value(scan, place_of_member(place, key, key_end)))
            return false;
        if (bag_json_next_is(scan, '}'))
            return close_container(scan);
        if (!bag_json_expect(scan, ',', "expected ',' or '}'"))
            return false;
        bag_json_skip_space(scan);
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
    while (!bag_json_next_is(scan, ']')) {
        if (count && !bag_json_expect(scan, ',', "expected ',' or ']'"))
            return false;
        bag_json_skip_space(scan);
        if (count && bag_json_next_is(scan, ']'))
            return bag_json_fail(scan, "no comma may precede ']'");
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
            if (!bag_json_scan_string(scan))
                return false;
            scan->at--;
        }
    }
    return bag_json_fail(scan, "the text ends too early");
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
    bag_json_put(scan, text, (size_t)snprintf(text, sizeof text, "%zu", scan->num_data++));
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
    bag_json_put(scan, instead, strlen(instead));
    return true;
}

/* Scans a value by its first byte. */
static bool scan_plain(struct bag_json_scan *scan, enum bag_json_place place)
{
    if (scan->at == scan->end)
        return bag_json_fail(scan, "the text ends too early");
    switch (*scan->at) {
    case '{':
        return scan_object(scan, place);
    case '[':
        return scan_array(scan, place);
    case '"':
        return bag_json_scan_string(scan);
    case 't':
        return bag_json_scan_word(scan, "true");
    case 'f':
        return bag_json_scan_word(scan, "false");
    case 'n':
        return bag_json_scan_word(scan, "null");
    default:
        return bag_json_scan_number(scan);
    }
}

/* Scans the value of "id", which must be a string or null. Stores a string in its original form,
 * with quotes and escapes. */
static bool scan_id(struct bag_json_scan *scan)
{
    const char *start = scan->at;
    if (bag_json_next_is(scan, '"')) {
        if (!bag_json_scan_string(scan))
            return false;
        scan->id.data = start;
        scan->id.bytes = (size_t)(scan->at - start);
        return true;
    }
    return bag_json_next_is(scan, 'n') ? bag_json_scan_word(scan, "null")
                                       : bag_json_fail(scan, "\"id\" must be a string");
}

/* Scans a tensor's name and stores it for messages. A value that is not a string is rejected later,
 * when the tree is read. */
static bool scan_name(struct bag_json_scan *scan)
{
    const char *start = scan->at;
    if (!bag_json_next_is(scan, '"'))
        return scan_plain(scan, BAG_JSON_PLAIN);
    if (!bag_json_scan_string(scan))
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
        if (bag_json_next_is(scan, '['))
            return cut_data(scan);
        return drop_value(scan, bag_json_next_is(scan, 'n') ? "null" : "false");
    default:
        return scan_plain(scan, place);
    }
}

/* Scans any value with the white space around it. */
static bool scan_value(struct bag_json_scan *scan, enum bag_json_place place)
{
    bag_json_skip_space(scan);
    if (scan->copying && ++scan->num_values > scan->limits->max_values)
        return bag_json_fail_limit(scan, "more than", scan->limits->max_values,
                                   "values outside of \"data\"");
    if (!scan_in_place(scan, place))
        return false;
    bag_json_skip_space(scan);
    return true;
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
        return bag_json_fail(scan, place == BAG_JSON_ROOT
                                       ? "nothing may follow the document; where binary tensors "
                                         "do, Inference-Header-Content-Length must say where it "
                                         "ends"
                                       : "nothing may follow the document");
    return true;
}
