/* Strict documents: the scanner's grammar, cJSON's tree, and a last look at the tree. */
#include "json.h"

#include "json_scan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- duplicate keys and numbers beyond a double ---------------------------------------------- */

static int compare_keys(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A key that stands twice among the `count` members, or NULL. Few members are compared pairwise;
 * many are sorted, so that a hostile object costs no more than its size. */
static const char *duplicate_key(const cJSON *object, size_t count)
{
    if (count <= 16) {
        for (const cJSON *a = object->child; a; a = a->next) {
            for (const cJSON *b = a->next; b; b = b->next) {
                if (strcmp(a->string, b->string) == 0)
                    return a->string;
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

/* Recursion is bounded by BAG_JSON_MAX_DEPTH, which the scanner has checked. */
static bool check_tree(const cJSON *item, struct bag_problem *problem)
{
    size_t children = 0;
    if (cJSON_IsNumber(item) && !isfinite(item->valuedouble))
        return bag_problem_set(problem, 400, "a number is too large to be represented");
    for (const cJSON *child = item->child; child; child = child->next, children++) {
        if (!check_tree(child, problem))
            return false;
    }
    const char *twice = cJSON_IsObject(item) ? duplicate_key(item, children) : NULL;
    if (twice)
        return bag_problem_set(problem, 400, "key \"%s\" stands twice in one object",
                               bag_quote(twice, strlen(twice)).text);
    return true;
}

/* The tree of a text that the scanner has passed. */
static cJSON *build_tree(const char *text, size_t bytes, struct bag_problem *problem)
{
    cJSON *tree = cJSON_ParseWithLengthOpts(text, bytes, NULL, false);
    if (!tree) {
        bag_problem_set(problem, 500, "not enough memory to read the JSON document");
    } else if (!check_tree(tree, problem)) {
        cJSON_Delete(tree);
        tree = NULL;
    }
    return tree;
}

/* ---- documents ------------------------------------------------------------------------------- */

static void describe_line(const struct bag_json_scan *scan, struct bag_problem *problem)
{
    size_t line = 1, column = 1;
    for (const char *at = scan->text; at < scan->at; at++) {
        column = *at == '\n' ? 1 : column + 1;
        line += *at == '\n';
    }
    bag_problem_set(problem, 400, "line %zu, column %zu: %s", line, column, scan->wrong);
}

cJSON *bag_json_parse(const char *text, size_t text_bytes, struct bag_problem *problem)
{
    struct bag_json_scan scan = {.text = text, .at = text, .end = text + text_bytes};
    cJSON *tree = NULL;
    char *copy = malloc(bag_json_copy_bytes(text_bytes));
    if (!copy) {
        bag_problem_set(problem, 500, "not enough memory to read the JSON document");
        return NULL;
    }
    scan.copy = copy;
    scan.copying = true;
    if (bag_json_scan_document(&scan, BAG_JSON_PLAIN))
        tree = build_tree(copy, (size_t)(scan.copy - copy), problem);
    else
        describe_line(&scan, problem);
    free(copy);
    return tree;
}

void bag_json_free(cJSON *tree)
{
    cJSON_Delete(tree);
}

bool bag_json_parse_envelope(const char *text, size_t text_bytes, struct bag_arena *arena,
                             struct bag_json_envelope *envelope, struct bag_problem *problem)
{
    struct bag_json_scan scan = {
        .text = text, .at = text, .end = text + text_bytes, .arena = arena, .copying = true};
    char *copy = bag_arena_alloc(arena, bag_json_copy_bytes(text_bytes));
    if (!copy)
        return bag_problem_set(problem, 503, "not enough memory to decode the request");
    scan.copy = copy;
    if (!bag_json_scan_document(&scan, BAG_JSON_ROOT))
        return bag_problem_set(problem, 400, "malformed JSON at byte %zu: %s",
                               (size_t)(scan.at - text), scan.wrong);
    envelope->tree = build_tree(copy, (size_t)(scan.copy - copy), problem);
    envelope->data = scan.data;
    envelope->num_data = scan.num_data;
    envelope->id = scan.id;
    return envelope->tree != NULL;
}
