/* JSON texts that change as trees; see trees.h. */
#include "trees.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define MAX_NODES 1024 /* nodes of a text; later nodes are changed only with their parents */
#define MAX_DEPTH 200

/* A value, and the name before it if it is a member. */
struct node {
    size_t begin, value, end; /* `begin` is `value` for elements of arrays */
    size_t parent;            /* index of the parent; the root is its own parent */
};

struct tree {
    char *text;
    size_t bytes, capacity, at;
    struct node nodes[MAX_NODES];
    size_t count;
    uint64_t random;
};

/* ---- words ----------------------------------------------------------------------------------- */

/* Names of members, each behind a bar. */
static const char names[] =
    "|inputs|outputs|parameters|id|model_name|model_version|name|shape|datatype|data"
    "|binary_data_size|binary_data|binary_data_output|shared_memory_region|reduction|padding_idx"
    "|include_last_offset|output_datatype|missing|out_of_range|timeout|explain|table_versions|"
    "partial|part|by"
    "|index|of|delete|sequence|first_sequence|version|wait|models|unload|unload_dependents|ready"
    "|config|file:1/model|priority||x|Inputs|name ";

/* Values, each behind a bar. */
static const char values[] =
    "|null|true|false|0|-0|1|-1|2|3|7|64|1.5|1e2|1E400|-1e-400|01|+1|127|128|255|256|32768|65504"
    "|65536|2147483647|2147483648|-2147483648|-2147483649|4294967296|9007199254740991"
    "|9007199254740992|9007199254740993|9223372036854775807|9223372036854775808"
    "|-9223372036854775808|-9223372036854775809|18446744073709551615|18446744073709551616|1e308"
    "|NaN|Infinity|-Infinity|[]|{}|[1]|[[]]|[{}]|[null]|[1, 2]|[0]|[-1]|[2, 0]|[true]|[1e0]"
    "|[0, 9223372036854775807]|[3037000500, 3037000500]|[4294967296, 4294967296]|[1, \"a\"]"
    "|[[1, 2], 3]|{\"\": null}|{\"binary_data\": true}|{\"binary_data_size\": 8}"
    "|{\"name\": \"embeddings\"}|{\"by\": \"rows\", \"index\": 0, \"of\": 1}"
    "|{\"by\": \"keys\", \"index\": 0, \"of\": 4096}|{\"by\": \"columns\", \"index\": 1, \"of\": 2}"
    "|{\"name\": \"num_segments\", \"shape\": [], \"datatype\": \"INT64\", \"data\": [1000000000]}"
    "|{\"name\": \"default_index\", \"shape\": [1], \"datatype\": \"INT32\", \"data\": [-1]}"
    "|{\"name\": \"indices\", \"shape\": [1, 1], \"datatype\": \"INT64\", \"data\": [0]}"
    "|\"\"|\"0\"|\"1\"|\"-1\"|\"none\"|\"text\"|\"\\u0000\"|\"\\ud800\"|\"\\ud83d\\ude00\""
    "|\"a\xff\"|\"a\xc3\"|\"\\\"\"|\"18446744073709551615\"|\"9223372036854775808\"|\"1e3\""
    "|\"sum\"|\"mean\"|\"max\"|\"sqrtn\"|\"error\"|\"skip\"|\"default\"|\"hash\"|\"rows\"|\"keys\""
    "|\"BOOL\"|\"INT8\"|\"INT32\"|\"INT64\"|\"UINT8\"|\"UINT64\"|\"FP16\"|\"BF16\"|\"FP32\"|"
    "\"FP64\""
    "|\"BYTES\"|\"indices\"|\"offsets\"|\"segment_ids\"|\"num_segments\"|\"per_sample_weights\""
    "|\"default_index\"|\"values\"|\"lengths\"|\"weights\"|\"embeddings\"|\"counts\"|\"weight_"
    "sums\""
    "|\"f0\"|\"f0.indices\"|\"f0.counts\"|\"f1\"";

struct word {
    char text[128];
};

/* Returns a number below `limit`, which is not 0. */
static size_t pick(struct tree *tree, size_t limit)
{
    tree->random = tree->random * 6364136223846793005u + 1442695040888963407u;
    return (size_t)(tree->random >> 33) % limit;
}

static struct word pick_word(struct tree *tree, const char *words)
{
    struct word word;
    size_t count = 0;
    for (const char *at = words; (at = strchr(at, '|')); at++)
        count++;
    for (size_t before = pick(tree, count) + 1; before > 0; before--)
        words = strchr(words, '|') + 1;
    snprintf(word.text, sizeof word.text, "%.*s", (int)strcspn(words, "|"), words);
    return word;
}

/* ---- reading --------------------------------------------------------------------------------- */

static void skip_blanks(struct tree *tree)
{
    while (tree->at < tree->bytes && memchr(" \t\r\n", tree->text[tree->at], 4))
        tree->at++;
}

static bool skip(struct tree *tree, char expected)
{
    skip_blanks(tree);
    if (tree->at >= tree->bytes || tree->text[tree->at] != expected)
        return false;
    tree->at++;
    return true;
}

static bool skip_text(struct tree *tree)
{
    if (!skip(tree, '"'))
        return false;
    for (; tree->at < tree->bytes && tree->text[tree->at] != '"'; tree->at++)
        tree->at += tree->text[tree->at] == '\\';
    return skip(tree, '"');
}

/* Reads a value into nodes. Returns false if there is none. */
static bool read_value(struct tree *tree, size_t parent, size_t depth)
{
    skip_blanks(tree);
    size_t own = tree->count < MAX_NODES ? tree->count++ : MAX_NODES - 1;
    struct node node = {.begin = tree->at, .value = tree->at, .parent = parent};
    bool in_object = depth > 0 && tree->text[tree->nodes[parent].value] == '{';
    if (in_object) {
        if (!skip_text(tree) || !skip(tree, ':'))
            return false;
        skip_blanks(tree);
        node.value = tree->at;
    }
    tree->nodes[own] = node;
    char first = tree->at < tree->bytes ? tree->text[tree->at] : 0;
    if (first == '"') {
        if (!skip_text(tree))
            return false;
    } else if (first == '{' || first == '[') {
        if (own == MAX_NODES - 1 || depth == MAX_DEPTH)
            return false;
        char last = first == '{' ? '}' : ']';
        tree->at++;
        if (!skip(tree, last)) {
            do {
                if (!read_value(tree, own, depth + 1))
                    return false;
            } while (skip(tree, ','));
            if (!skip(tree, last))
                return false;
        }
    } else {
        while (tree->at < tree->bytes && !memchr(" \t\r\n,]}", tree->text[tree->at], 7))
            tree->at++;
        if (tree->at == node.value)
            return false;
    }
    tree->nodes[own].end = tree->at;
    return true;
}

static bool read_tree(struct tree *tree)
{
    tree->at = tree->count = 0;
    return read_value(tree, 0, 0);
}

size_t bag_tree_bytes(char *text, size_t bytes)
{
    static struct tree tree;
    tree.text = text;
    tree.bytes = bytes;
    return read_tree(&tree) ? tree.at : 0;
}

/* ---- changes --------------------------------------------------------------------------------- */

/* Puts other bytes, which may be of the text itself, into the place of some. */
static void replace(struct tree *tree, size_t begin, size_t end, const char *bytes, size_t count)
{
    char copy[4096];
    if (count > sizeof copy || tree->bytes - (end - begin) + count > tree->capacity)
        return;
    memcpy(copy, bytes, count);
    memmove(tree->text + begin + count, tree->text + end, tree->bytes - end);
    memcpy(tree->text + begin, copy, count);
    tree->bytes += count - (end - begin);
}

static void insert(struct tree *tree, size_t at, const char *bytes)
{
    replace(tree, at, at, bytes, strlen(bytes));
}

/* Takes a value or member out, with the comma before or after it. */
static void drop(struct tree *tree, const struct node *node)
{
    size_t begin = node->begin;
    tree->at = node->end;
    if (skip(tree, ',')) {
        replace(tree, begin, tree->at, "", 0);
        return;
    }
    while (begin > 0 && memchr(" \t\r\n", tree->text[begin - 1], 4))
        begin--;
    begin -= begin > 0 && tree->text[begin - 1] == ',';
    replace(tree, begin, node->end, "", 0);
}

/* A value or member is there once more. */
static void repeat(struct tree *tree, const struct node *node)
{
    insert(tree, node->end, ",");
    replace(tree, node->end + 1, node->end + 1, tree->text + node->begin, node->end - node->begin);
}

/* Puts a member or element first into an object or array; instead of other values. */
static void add(struct tree *tree, const struct node *node, const char *name, const char *value)
{
    char member[2 * sizeof(struct word) + 8];
    bool is_object = tree->text[node->value] == '{';
    if (!is_object && tree->text[node->value] != '[') {
        replace(tree, node->value, node->end, value, strlen(value));
        return;
    }
    tree->at = node->value + 1;
    const char *comma = skip(tree, is_object ? '}' : ']') ? "" : ", ";
    snprintf(member, sizeof member, is_object ? "\"%s\": %s%s" : "%.0s%s%s", name, value, comma);
    insert(tree, node->value + 1, member);
}

static void rename_member(struct tree *tree, const struct node *node)
{
    char name[sizeof(struct word) + 8];
    if (node->begin == node->value)
        return;
    snprintf(name, sizeof name, "\"%s\": ", pick_word(tree, names).text);
    replace(tree, node->begin, node->value, name, strlen(name));
}

static void wrap(struct tree *tree, const struct node *node)
{
    static const char *const around[][2] = {{"[", "]"},    {"{\"x\": ", "}"}, {"\"", "\""},
                                            {"[1, ", "]"}, {"-", ""},         {"", "0"}};
    size_t kind = pick(tree, sizeof around / sizeof *around);
    insert(tree, node->end, around[kind][1]);
    insert(tree, node->value, around[kind][0]);
}

static void nest(struct tree *tree, const struct node *node)
{
    size_t depth = pick(tree, 2) ? pick(tree, 140) : pick(tree, 4);
    for (size_t i = 0; i < depth; i++) {
        insert(tree, node->end, "]");
        insert(tree, node->value, "[");
    }
}

/* Puts a value into the place of another; names stay. */
static void copy(struct tree *tree, const struct node *to, const struct node *from)
{
    replace(tree, to->value, to->end, tree->text + from->value, from->end - from->value);
}

static void swap(struct tree *tree, const struct node *one, const struct node *other)
{
    const struct node first = one->begin < other->begin ? *one : *other,
                      last = one->begin < other->begin ? *other : *one;
    char held[4096];
    size_t count = last.end - last.begin;
    if (first.end > last.begin || count > sizeof held || first.end - first.begin > sizeof held ||
        tree->bytes + sizeof held > tree->capacity)
        return;
    memcpy(held, tree->text + last.begin, count);
    replace(tree, last.begin, last.end, tree->text + first.begin, first.end - first.begin);
    replace(tree, first.begin, first.end, held, count);
}

/* Returns a node; rarely one of the many numbers of data. */
static const struct node *pick_node(struct tree *tree)
{
    const struct node *node = &tree->nodes[pick(tree, tree->count)];
    for (int tries = 0;
         tries < 3 && node->begin == node->value && strchr("-0123456789", tree->text[node->value]);
         tries++)
        node = &tree->nodes[pick(tree, tree->count)];
    return node;
}

static void change_any(struct tree *tree)
{
    const struct node *node = pick_node(tree), *other = pick_node(tree);
    const struct word value = pick_word(tree, values);
    switch (pick(tree, 10)) {
    case 0:
        drop(tree, node);
        break;
    case 1:
        repeat(tree, node);
        break;
    case 2:
        rename_member(tree, node);
        break;
    case 3:
        wrap(tree, node);
        break;
    case 4:
        nest(tree, node);
        break;
    case 5:
        copy(tree, node, other);
        break;
    case 6:
        swap(tree, node, other);
        break;
    case 7:
        add(tree, node, pick_word(tree, names).text, value.text);
        break;
    default:
        replace(tree, node->value, node->end, value.text, strlen(value.text));
        break;
    }
}

static void change_harmless(struct tree *tree)
{
    static const char *const blanks[] = {" ", "\n", "\t", "\r\n  "};
    const struct node *node = pick_node(tree), *other = pick_node(tree);
    bool are_members = node->begin != node->value && other->begin != other->value;
    char name[32];
    snprintf(name, sizeof name, "unknown%zu", pick(tree, 1000000)); /* must not be there twice */
    if (are_members && node->parent == other->parent)
        swap(tree, node, other);
    else if (tree->text[node->value] == '{' && pick(tree, 2))
        add(tree, node, name, "{\"a\": [1, null, \"b\"]}");
    else
        insert(tree, node->value, blanks[pick(tree, sizeof blanks / sizeof *blanks)]);
}

size_t bag_tree_change(char *text, size_t bytes, size_t capacity, enum bag_tree_change kind,
                       uint64_t seed)
{
    static struct tree tree;
    tree.text = text;
    tree.bytes = bytes;
    tree.capacity = capacity;
    tree.random = seed * 0x9e3779b97f4a7c15u + 1;
    if (!read_tree(&tree))
        return bytes;
    (kind == BAG_TREE_HARMLESS ? change_harmless : change_any)(&tree);
    return tree.bytes;
}
