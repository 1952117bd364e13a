/* The grammar of JSON (RFC 8259) as a recursive scanner; see json_scan.h. */
#include "json_scan.h"
#include "decimal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t bag_json_copy_bytes(size_t text_bytes)
{
    /* Two things grow: a dropped "":0 becomes "":null, and "data":[] gets a number of an input for
     * its brackets. Neither doubles. */
    return 2 * text_bytes + 32;
}

static void skip_space(struct bag_json_scan *scan)
{
    while (scan->at < scan->end &&
           (*scan->at == ' ' || *scan->at == '\n' || *scan->at == '\r' || *scan->at == '\t'))
        scan->at++;
}

/* ---- containers ------------------------------------------------------------------------------ */

static bool scan_value(struct bag_json_scan *scan, enum bag_json_place place);

static enum bag_json_place place_of_member(enum bag_json_place place, const char *key,
                                           const char *end)
{
    if (place == BAG_JSON_INPUT)
        return bag_json_key_is(key, end, "data") ? BAG_JSON_DATA : BAG_JSON_PLAIN;
    if (place != BAG_JSON_ROOT)
        return BAG_JSON_PLAIN;
    if (bag_json_key_is(key, end, "id"))
        return BAG_JSON_ID;
    if (bag_json_key_is(key, end, "inputs"))
        return BAG_JSON_INPUTS;
    return bag_json_key_is(key, end, "outputs") || bag_json_key_is(key, end, "parameters")
               ? BAG_JSON_PLAIN
               : BAG_JSON_DROPPED;
}

static bool open_container(struct bag_json_scan *scan)
{
    if (++scan->depth > BAG_JSON_MAX_DEPTH)
        return bag_json_fail(scan, "arrays and objects are nested more than 128 deep");
    bag_json_put(scan, scan->at++, 1);
    skip_space(scan);
    return true;
}

static bool close_container(struct bag_json_scan *scan)
{
    scan->depth--;
    bag_json_put(scan, scan->at++, 1);
    return true;
}

static bool scan_member(struct bag_json_scan *scan, enum bag_json_place place)
{
    const char *key = scan->at + 1;
    if (!bag_json_scan_string(scan))
        return false;
    const char *key_end = scan->at - 1;
    skip_space(scan);
    if (!bag_json_expect(scan, ':', "':' must follow the key"))
        return false;
    return scan_value(scan, place_of_member(place, key, key_end));
}

static bool scan_object(struct bag_json_scan *scan, enum bag_json_place place)
{
    if (!open_container(scan))
        return false;
    if (bag_json_next_is(scan, '}'))
        return close_container(scan);
    for (;;) {
        if (!scan_member(scan, place))
            return false;
        if (bag_json_next_is(scan, '}'))
            return close_container(scan);
        if (!bag_json_expect(scan, ',', "',' or '}' must stand here"))
            return false;
        skip_space(scan);
    }
}

static bool scan_array(struct bag_json_scan *scan, enum bag_json_place place)
{
    enum bag_json_place inner = place == BAG_JSON_INPUTS ? BAG_JSON_INPUT : BAG_JSON_PLAIN;
    if (!open_container(scan))
        return false;
    if (bag_json_next_is(scan, ']'))
        return close_container(scan);
    for (;;) {
        if (!scan_value(scan, inner))
            return false;
        if (bag_json_next_is(scan, ']'))
            return close_container(scan);
        if (!bag_json_expect(scan, ',', "',' or ']' must stand here"))
            return false;
    }
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
            if (!bag_json_scan_string(scan))
                return false;
            scan->at--;
        }
    }
    return bag_json_fail(scan, "the text ends too early");
}

static bool remember_data(struct bag_json_scan *scan, const char *start)
{
    if (scan->num_data == scan->max_data) {
        size_t more = scan->max_data ? 2 * scan->max_data : 8;
        struct bag_json_span *data = bag_arena_array(scan->arena, more, sizeof *data);
        if (!data)
            return bag_json_fail(scan, "the request is too large to be decoded");
        if (scan->num_data)
            memcpy(data, scan->data, scan->num_data * sizeof *data);
        scan->data = data;
        scan->max_data = more;
    }
    scan->data[scan->num_data].text = start;
    scan->data[scan->num_data].bytes = (size_t)(scan->at - start);
    return true;
}

static bool cut_data(struct bag_json_scan *scan)
{
    const char *start = scan->at;
    char text[24];
    bool copying = scan->copying;
    scan->copying = false;
    if (!skip_balanced(scan) || !remember_data(scan, start))
        return false;
    scan->copying = copying;
    bag_json_put(scan, text, (size_t)snprintf(text, sizeof text, "%zu", scan->num_data++));
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
    bag_json_put(scan, instead, strlen(instead));
    return true;
}

static bool scan_id(struct bag_json_scan *scan)
{
    const char *start = scan->at;
    if (bag_json_next_is(scan, '"')) {
        if (!bag_json_scan_string(scan))
            return false;
        scan->id.text = start;
        scan->id.bytes = (size_t)(scan->at - start);
        return true;
    }
    return bag_json_next_is(scan, 'n') ? bag_json_scan_word(scan, "null")
                                       : bag_json_fail(scan, "\"id\" must be a string");
}

/* An array is cut out. Anything else but null is wrong, which the copy's false tells the reader of
 * inputs, who knows the tensor's name. */
static bool scan_data(struct bag_json_scan *scan)
{
    if (bag_json_next_is(scan, '['))
        return cut_data(scan);
    return drop_value(scan, bag_json_next_is(scan, 'n') ? "null" : "false");
}

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

/* Any value with the white space around it. */
static bool scan_value(struct bag_json_scan *scan, enum bag_json_place place)
{
    bool ok;
    skip_space(scan);
    if (place == BAG_JSON_DROPPED)
        ok = drop_value(scan, "null");
    else if (place == BAG_JSON_ID)
        ok = scan_id(scan);
    else if (place == BAG_JSON_DATA)
        ok = scan_data(scan);
    else
        ok = scan_plain(scan, place);
    skip_space(scan);
    return ok;
}

bool bag_json_scan_document(struct bag_json_scan *scan, enum bag_json_place place)
{
    if (!scan_value(scan, place))
        return false;
    if (scan->at != scan->end)
        return bag_json_fail(scan, place == BAG_JSON_ROOT
                                       ? "nothing may follow the document; where binary tensors "
                                         "do, Inference-Header-Content-Length must say where it "
                                         "ends"
                                       : "nothing may follow the document");
    return true;
}
