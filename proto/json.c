/* Parses strict JSON: scans the grammar, builds cJSON's tree and checks the tree; see json.h. */
#include "json.h"

#include <stdlib.h>
#include <string.h>

/* ---- positions -------------------------------------------------------------------------------
 *
 * cJSON stores no positions. The nodes have the same order in the tree and in its text, so the text
 * is scanned once more, up to the limit of as many values as precede the node. */

/* Returns the line and column of a byte of the text. */
static struct bag_json_position position_of(const char *text, const char *at)
{
    struct bag_json_position position = {1, 1};
    for (; text < at; text++) {
        position.column = *text == '\n' ? 1 : position.column + 1;
        position.line += *text == '\n';
    }
    return position;
}

/* Adds to *count the number of nodes before `target`, parents before children. Returns false if
 * `target` is not among them. BAG_JSON_MAX_DEPTH limits the recursion. */
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

/* The limits of a configuration or a reply. Only the depth is limited, to bound the recursion. */
static const struct bag_json_limits document_limits = {
    SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX, BAG_JSON_MAX_DEPTH,
};

struct bag_json_position bag_json_locate(const char *text, size_t text_bytes, const cJSON *tree,
                                         const cJSON *item)
{
    struct bag_json_limits limits = document_limits;
    struct bag_json_scan scan;
    limits.max_values = 0;
    count_before(tree, item, &limits.max_values);
    bag_json_scan_init(&scan, text, text_bytes, &limits);
    char *copy = scan.copy = malloc(bag_json_copy_bytes(&scan));
    if (copy)
        bag_json_scan_document(&scan, BAG_JSON_PLAIN);
    free(copy);
    return position_of(text, scan.key ? scan.key : scan.at);
}

/* ---- duplicate keys -------------------------------------------------------------------------- */

static int compare_keys(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Returns a duplicate key among few members, which are compared pairwise, or NULL. */
static const char *find_among_few(const cJSON *object)
{
    for (const cJSON *a = object->child; a; a = a->next) {
        for (const cJSON *b = a->next; b; b = b->next) {
            if (strcmp(a->string, b->string) == 0)
                return b->string;
        }
    }
    return NULL;
}

/* Finds a duplicate key among many members. They are sorted, so that a hostile object costs no more
 * than its size. Returns false if there is not enough memory. */
static bool find_among_many(const cJSON *object, size_t count, const char **duplicate)
{
    size_t i = 0;
    const char **keys = malloc(count * sizeof *keys);
    if (!keys)
        return false;
    for (const cJSON *a = object->child; a; a = a->next)
        keys[i++] = a->string;
    qsort(keys, count, sizeof *keys, compare_keys);
    for (i = 1; i < count && !*duplicate; i++) {
        if (strcmp(keys[i - 1], keys[i]) == 0)
            *duplicate = keys[i];
    }
    free(keys);
    return true;
}

/* Sets *problem (NO_MEMORY) and returns false. */
static bool reject_memory(struct bag_problem *problem)
{
    return bag_problem_set(problem, BAG_ERROR_NO_MEMORY, "not enough memory to read the JSON text");
}

/* Checks one object. On failure sets *fault to the member with the duplicate key. */
static bool check_keys(const cJSON *object, size_t count, const cJSON **fault,
                       struct bag_problem *problem)
{
    const char *duplicate = NULL;
    if (count <= 16)
        duplicate = find_among_few(object);
    else if (!find_among_many(object, count, &duplicate))
        return reject_memory(problem);
    if (!duplicate)
        return true;
    *fault = object->child;
    while ((*fault)->string != duplicate)
        *fault = (*fault)->next;
    return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "key \"%s\" is duplicated in one object",
                           bag_quote(duplicate, strlen(duplicate)).text);
}

/* Checks all objects of a tree. The scanner's limit of depth limits the recursion. */
static bool check_tree(const cJSON *item, const cJSON **fault, struct bag_problem *problem)
{
    size_t children = 0;
    for (const cJSON *child = item->child; child; child = child->next, children++) {
        if (!check_tree(child, fault, problem))
            return false;
    }
    return !cJSON_IsObject(item) || check_keys(item, children, fault, problem);
}

/* Builds the tree of a text that the scanner has accepted. `original` is the document that `text`
 * is an exact copy of, for the position of a fault, or NULL if parts were cut out. */
static cJSON *build_tree(const char *text, size_t bytes, const struct bag_text *original,
                         struct bag_problem *problem)
{
    const cJSON *fault = NULL;
    cJSON *tree = cJSON_ParseWithLengthOpts(text, bytes, NULL, false);
    if (!tree) {
        reject_memory(problem);
        return NULL;
    }
    if (check_tree(tree, &fault, problem))
        return tree;
    if (original && fault) {
        struct bag_json_position at = bag_json_locate(original->data, original->bytes, tree, fault);
        bag_problem_prefix(problem, "line %zu, column %zu", at.line, at.column);
    }
    cJSON_Delete(tree);
    return NULL;
}

/* ---- what the scanner finds wrong ------------------------------------------------------------ */

/* Writes the fault as a sentence without its position. */
static void describe_fault(const struct bag_json_fault *fault, struct bag_problem *problem)
{
    if (fault->unit)
        bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "%s %zu %s", fault->wrong, fault->limit,
                        fault->unit);
    else
        bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "%s", fault->wrong);
}

/* ---- documents ------------------------------------------------------------------------------- */

const struct bag_json_limits bag_json_default_limits = {
    .max_tensors = BAG_JSON_MAX_TENSORS,
    .max_dimensions = BAG_MAX_RANK,
    .max_parameters = BAG_JSON_MAX_PARAMETERS,
    .max_values = BAG_JSON_MAX_VALUES,
    .max_bytes = BAG_JSON_MAX_BYTES,
    .max_depth = BAG_JSON_MAX_DEPTH,
};

cJSON *bag_json_parse(const char *text, size_t text_bytes, struct bag_problem *problem)
{
    struct bag_json_scan scan;
    struct bag_text original = {text, text_bytes};
    cJSON *tree = NULL;
    bag_json_scan_init(&scan, text, text_bytes, &document_limits);
    char *copy = malloc(bag_json_copy_bytes(&scan));
    if (!copy) {
        reject_memory(problem);
        return NULL;
    }
    scan.copy = copy;
    if (bag_json_scan_document(&scan, BAG_JSON_PLAIN)) {
        tree = build_tree(copy, (size_t)(scan.copy - copy), &original, problem);
    } else {
        struct bag_json_position at = position_of(text, scan.at);
        describe_fault(&scan.fault, problem);
        bag_problem_prefix(problem, "line %zu, column %zu", at.line, at.column);
    }
    free(copy);
    return tree;
}

void bag_json_free(cJSON *tree)
{
    cJSON_Delete(tree);
}

bool bag_json_parse_header(const char *text, size_t text_bytes,
                           const struct bag_json_limits *limits, struct bag_arena *arena,
                           struct bag_json_header *header, struct bag_problem *problem)
{
    struct bag_json_scan scan;
    bag_json_scan_init(&scan, text, text_bytes, limits);
    scan.arena = arena;
    char *copy = bag_arena_alloc(arena, bag_json_copy_bytes(&scan));
    if (!copy)
        return reject_memory(problem);
    scan.copy = copy;
    if (!bag_json_scan_document(&scan, BAG_JSON_ROOT)) {
        if (scan.no_memory)
            return reject_memory(problem);
        /* Describe a fault. If a limit was exceeded, the JSON is not malformed, so the message
         * names the tensor. */
        size_t at = (size_t)(scan.at - scan.text);
        describe_fault(&scan.fault, problem);
        if (!scan.fault.unit)
            bag_problem_prefix(problem, "malformed JSON at byte %zu", at);
        else if (!scan.tensor_kind)
            bag_problem_prefix(problem, "JSON header, at byte %zu", at);
        else if (!scan.name.data)
            bag_problem_prefix(problem, "%ss[%zu], at byte %zu", scan.tensor_kind, scan.tensor, at);
        else
            bag_problem_prefix(problem, "%s '%s', at byte %zu", scan.tensor_kind,
                               bag_quote(scan.name.data, scan.name.bytes).text, at);
        return false;
    }
    header->tree = build_tree(copy, (size_t)(scan.copy - copy), NULL, problem);
    header->data = scan.data;
    header->num_data = scan.num_data;
    header->id = scan.id;
    return header->tree != NULL;
}
