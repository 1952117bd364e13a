/* Strict documents: the scanner's grammar, cJSON's tree, and a last look at the tree. */
#include "json.h"

#include "json_scan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- positions -------------------------------------------------------------------------------
 *
 * cJSON keeps none, but the nodes have the same order in the tree and in its text, so that
 * counting them is enough. The scanner has passed the text: nothing is checked here. */

/* The line and column of a byte of the text. */
static struct bag_json_position position_of(const char *text, const char *at)
{
    struct bag_json_position position = {1, 1};
    for (; text < at; text++) {
        position.column = *text == '\n' ? 1 : position.column + 1;
        position.line += *text == '\n';
    }
    return position;
}

/* Adds to *count the nodes before `target`, parents before children; false where it is not among
 * them. Recursion is bounded by BAG_JSON_MAX_DEPTH. */
static bool count_before(const cJSON *item, const cJSON *target, size_t *count)
{
    for (; item; item = item->next) {
        if (item == target)
            return true;
        ++*count;
        if (count_before(item->child, target, count))
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
    return position_of(text, find_node(text, text + text_bytes, index));
}

/* ---- duplicate keys and numbers beyond a double ---------------------------------------------- */

static int compare_keys(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A key that is duplicated among the `count` members, or NULL. Few members are compared pairwise;
 * many are sorted, so that a hostile object costs no more than its size. */
static const char *duplicate_key(const cJSON *object, size_t count)
{
    if (count <= 16) {
        for (const cJSON *a = object->child; a; a = a->next) {
            for (const cJSON *b = a->next; b; b = b->next) {
                if (strcmp(a->string, b->string) == 0)
                    return b->string;
            }
        }
        return NULL;
    }
    const char **keys = malloc(count * sizeof *keys);
    const char *found = keys ? NULL : "";
    size_t i = 0;
    for (const cJSON *a = object->child; keys && a; a = a->next)
        keys[i++] = a->string;
    if (keys)
        qsort(keys, count, sizeof *keys, compare_keys);
    for (i = 1; keys && !found && i < count; i++) {
        if (strcmp(keys[i - 1], keys[i]) == 0)
            found = keys[i];
    }
    free(keys);
    return found;
}

/* The node at fault, with the problem set, or NULL. Recursion is bounded by BAG_JSON_MAX_DEPTH,
 * which the scanner has checked. */
static const cJSON *find_fault(const cJSON *item, struct bag_problem *problem)
{
    size_t children = 0;
    if (cJSON_IsNumber(item) && !isfinite(item->valuedouble)) {
        bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "a number is too large to be represented");
        return item;
    }
    for (const cJSON *child = item->child; child; child = child->next, children++) {
        const cJSON *fault = find_fault(child, problem);
        if (fault)
            return fault;
    }
    const char *twice = cJSON_IsObject(item) ? duplicate_key(item, children) : NULL;
    if (!twice)
        return NULL;
    bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "key \"%s\" is duplicated in one object",
                    bag_quote(twice, strlen(twice)).text);
    for (const cJSON *child = item->child; child; child = child->next) {
        if (child->string == twice)
            return child;
    }
    return item;
}

/* The tree of a text that the scanner has passed. `original` is the document that `text` is a
 * faithful copy of, for the position of a fault; NULL where parts were cut out. */
static cJSON *build_tree(const char *text, size_t bytes, const struct bag_text *original,
                         struct bag_problem *problem)
{
    cJSON *tree = cJSON_ParseWithLengthOpts(text, bytes, NULL, false);
    if (!tree) {
        bag_problem_set(problem, BAG_ERROR_NO_MEMORY,
                        "not enough memory to read the JSON document");
        return NULL;
    }
    const cJSON *fault = find_fault(tree, problem);
    if (!fault)
        return tree;
    if (original) {
        struct bag_json_position at = bag_json_locate(original->data, original->bytes, tree, fault);
        bag_problem_prefix(problem, "line %zu, column %zu", at.line, at.column);
    }
    cJSON_Delete(tree);
    return NULL;
}

/* ---- documents ------------------------------------------------------------------------------- */

static void describe_line(const struct bag_json_scan *scan, struct bag_problem *problem)
{
    struct bag_json_position at = position_of(scan->text, scan->at);
    bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "line %zu, column %zu: %s", at.line, at.column,
                    scan->wrong);
}

cJSON *bag_json_parse(const char *text, size_t text_bytes, struct bag_problem *problem)
{
    struct bag_json_scan scan = {.text = text, .at = text, .end = text + text_bytes};
    struct bag_text original = {text, text_bytes};
    cJSON *tree = NULL;
    char *copy = malloc(bag_json_copy_bytes(text_bytes));
    if (!copy) {
        bag_problem_set(problem, BAG_ERROR_NO_MEMORY,
                        "not enough memory to read the JSON document");
        return NULL;
    }
    scan.copy = copy;
    scan.copying = true;
    if (bag_json_scan_document(&scan, BAG_JSON_PLAIN))
        tree = build_tree(copy, (size_t)(scan.copy - copy), &original, problem);
    else
        describe_line(&scan, problem);
    free(copy);
    return tree;
}

void bag_json_free(cJSON *tree)
{
    cJSON_Delete(tree);
}

bool bag_json_parse_header(const char *text, size_t text_bytes, struct bag_arena *arena,
                           struct bag_json_header *header, struct bag_problem *problem)
{
    struct bag_json_scan scan = {
        .text = text, .at = text, .end = text + text_bytes, .arena = arena, .copying = true};
    char *copy = bag_arena_alloc(arena, bag_json_copy_bytes(text_bytes));
    if (!copy)
        return bag_problem_set(problem, BAG_ERROR_NO_MEMORY,
                               "not enough memory to decode the request");
    scan.copy = copy;
    if (!bag_json_scan_document(&scan, BAG_JSON_ROOT))
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "malformed JSON at byte %zu: %s",
                               (size_t)(scan.at - text), scan.wrong);
    header->tree = build_tree(copy, (size_t)(scan.copy - copy), NULL, problem);
    header->data = scan.data;
    header->num_data = scan.num_data;
    header->id = scan.id;
    return header->tree != NULL;
}
