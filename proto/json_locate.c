/* From a node of a tree back to its place in the text. cJSON keeps no positions, but the nodes
 * stand in the same order in both, so that counting them is enough.
 *
 * Must not see a text that the scanner has not passed: nothing is checked here. */
#include "json_scan.h"

#include <string.h>

struct bag_json_position bag_json_position_of(const char *text, const char *at)
{
    struct bag_json_position position = {1, 1};
    for (; text < at; text++) {
        position.column = *text == '\n' ? 1 : position.column + 1;
        position.line += *text == '\n';
    }
    return position;
}

/* Adds to *count the nodes before `wanted`, parents before children; false where it is not among
 * them. Recursion is bounded by BAG_JSON_MAX_DEPTH. */
static bool count_before(const cJSON *item, const cJSON *wanted, size_t *count)
{
    for (; item; item = item->next) {
        if (item == wanted)
            return true;
        ++*count;
        if (count_before(item->child, wanted, count))
            return true;
    }
    return false;
}

static bool is_one_of(char byte, const char *set)
{
    return byte && strchr(set, byte);
}

static const char *skip_space(const char *at, const char *end)
{
    while (at < end && is_one_of(*at, " \n\r\t"))
        at++;
    return at;
}

/* The end of the string, number, word or opening bracket that starts at `at`. */
static const char *skip_token(const char *at, const char *end)
{
    if (*at == '{' || *at == '[')
        return at + 1;
    if (*at == '"') {
        for (at++; at < end && *at != '"'; at++)
            at += *at == '\\';
        return at + 1;
    }
    while (at < end && !is_one_of(*at, ",]} \n\r\t"))
        at++;
    return at;
}

/* Where node number `index` starts, or the key in front of it. */
static const char *find_node(const char *at, const char *end, size_t index)
{
    const char *key = NULL;
    for (;;) {
        while (at < end && is_one_of(*at, ",:]} \n\r\t"))
            at++;
        if (at >= end)
            return end;
        const char *token = at;
        at = skip_token(at, end);
        const char *next = *token == '"' ? skip_space(at, end) : end;
        if (next < end && *next == ':') {
            key = token;
            continue;
        }
        if (index-- == 0)
            return key ? key : token;
        key = NULL;
    }
}

struct bag_json_position bag_json_locate(const char *text, size_t text_bytes, const cJSON *tree,
                                         const cJSON *item)
{
    size_t index = 0;
    count_before(tree, item, &index);
    return bag_json_position_of(text, find_node(text, text + text_bytes, index));
}
