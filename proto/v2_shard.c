/* Parses what shards report about themselves; see v2_shard.h. */
#include "v2_shard.h"

#include "json.h"
#include "v2_reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns the text of a member, or "" if it has none. */
static const char *text_of(const cJSON *object, const char *key)
{
    const char *text = bag_json_text(object, key);
    return text ? text : "";
}

/* Sets *problem (BAD_REQUEST) to a sentence about the shard. Returns false. */
static bool reject(struct bag_problem *problem, const char *why)
{
    return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "%s", why);
}

/* Parses a reply. Returns NULL and sets *problem if it is not JSON. */
static cJSON *parse(const char *text, size_t bytes, struct bag_problem *problem)
{
    cJSON *tree = bag_json_parse(text, bytes, problem);
    if (!tree)
        bag_problem_prefix(problem, "its answer is no JSON");
    return tree;
}

/* ---- the server ------------------------------------------------------------------------------ */

bool bag_shard_read_generation(const char *text, size_t bytes, struct bag_shard_generation *report,
                               struct bag_problem *problem)
{
    int64_t generation = 0;
    cJSON *tree = parse(text, bytes, problem);
    if (!tree)
        return false;
    const char *found = text_of(tree, "instance");
    bool ok = strcmp(text_of(tree, "name"), "bagserve") == 0 &&
              strlen(found) == BAG_INSTANCE_BYTES - 1 &&
              strspn(found, "0123456789abcdef") == BAG_INSTANCE_BYTES - 1;
    if (ok)
        memcpy(report->instance, found, BAG_INSTANCE_BYTES);
    if (!bag_v2_integer(bag_json_member(tree, "generation"), 1, 0x1p53, &generation))
        generation = 0;
    report->generation = (uint64_t)generation;
    bag_json_free(tree);
    return ok || reject(problem, "it is no bagserve, or one of a version that has no parts");
}

/* ---- versions -------------------------------------------------------------------------------- */

/* Adds a number to the ascending list. If the list is full, drops the lowest one. */
static void add_version(struct bag_shard_versions *versions, uint64_t number)
{
    size_t i = versions->count;
    while (i > 0 && versions->numbers[i - 1] > number)
        i--;
    if (i > 0 && versions->numbers[i - 1] == number)
        return;
    if (versions->count < BAG_SHARD_MAX_VERSIONS) {
        memmove(&versions->numbers[i + 1], &versions->numbers[i],
                (versions->count - i) * sizeof *versions->numbers);
        versions->numbers[i] = number;
        versions->count++;
    } else if (i > 0) {
        memmove(&versions->numbers[0], &versions->numbers[1], (i - 1) * sizeof *versions->numbers);
        versions->numbers[i - 1] = number;
    }
}

bool bag_shard_read_versions(const char *text, size_t bytes, struct bag_shard_versions *versions,
                             struct bag_problem *problem)
{
    cJSON *tree = parse(text, bytes, problem);
    const cJSON *list = bag_json_member(tree, "versions"), *item;
    bool ok = cJSON_IsArray(list);
    int64_t number;
    versions->count = 0;
    if (!tree)
        return false;
    cJSON_ArrayForEach(item, list)
    {
        const char *version = cJSON_GetStringValue(item);
        ok = ok && version && bag_integer_parse(version, &number) && number > 0;
        if (ok)
            add_version(versions, (uint64_t)number);
    }
    bag_json_free(tree);
    return ok || reject(problem, "its answer is no metadata of a model");
}

/* ---- one version ----------------------------------------------------------------------------- */

/* Reads the part, and the rows and elements of the whole table. */
static bool read_part(const cJSON *facts, struct bag_shard_table *table)
{
    const cJSON *part = bag_json_member(facts, "part"), *whole = part ? part : facts;
    const double most = 0x1p52;
    int64_t elements;
    if (!bag_v2_integer(bag_json_member(whole, "rows"), 0, most, &table->shape[0]) ||
        !bag_v2_integer(bag_json_member(whole, "row_elements"), 0, most, &elements))
        return false;
    table->row_elements = (uint64_t)elements;
    table->part = (struct bag_part){
        .by = table->is_keyed ? BAG_PART_KEYS : BAG_PART_ROWS, .index = 0, .of = 1};
    return !part ||
           (bag_v2_read_part(part, &table->part) && bag_v2_read_digest(part, &table->digest));
}

/* Returns the datatype that an object names, or BAG_DTYPE_COUNT if it is unknown or no type of
 * rows. */
static enum bag_dtype dtype_of(const cJSON *object)
{
    const char *name = text_of(object, "datatype");
    enum bag_dtype dtype = bag_dtype_find(name, strlen(name));
    return dtype == BAG_BOOL || dtype == BAG_BYTES ? BAG_DTYPE_COUNT : dtype;
}

/* Reads the dimensions of a row. They are those of the output, unless the part has only some of the
 * columns; then a row has one dimension, the number of elements. */
static bool read_shape(const cJSON *output, struct bag_shard_table *table, const char **why)
{
    static const char projected[] =
        "its rows are projected there; the coordinator has 'projection'";
    const cJSON *shape = bag_json_member(output, "shape"), *size;
    uint64_t elements = 1;
    table->rank = 0;
    cJSON_ArrayForEach(size, shape)
    {
        int64_t number;
        if (table->rank == BAG_MAX_RANK)
            return false;
        if (table->rank > 0 && (!bag_v2_integer(size, 0, BAG_V2_LARGEST_EXACT, &number) ||
                                __builtin_mul_overflow(elements, (uint64_t)number, &elements)))
            return false;
        if (table->rank > 0)
            table->shape[table->rank] = number;
        table->rank++;
    }
    if (table->rank == 0)
        return false;
    uint64_t columns = table->row_elements;
    if (table->part.by == BAG_PART_COLUMNS) {
        columns = bag_part_begin(table->row_elements, table->part.index + 1, table->part.of) -
                  bag_part_begin(table->row_elements, table->part.index, table->part.of);
        table->rank = 2;
        table->shape[1] = (int64_t)table->row_elements;
    }
    *why = elements == columns ? *why : projected;
    return elements == columns;
}

/* Reads the table. Returns false if the model is not one. Sets *why if there is a more specific
 * reason. */
static bool read_table(const cJSON *tree, struct bag_shard_table *table, const char **why)
{
    const cJSON *facts = bag_json_member(tree, "parameters");
    const cJSON *output = bag_v2_find_tensor(bag_json_member(tree, "outputs"), "embeddings");
    const cJSON *ids = bag_v2_find_tensor(bag_json_member(tree, "inputs"), "indices");
    const char *format = text_of(facts, "row_format");
    table->is_keyed = cJSON_IsTrue(bag_json_member(facts, "keyed"));
    table->row_format = bag_row_format_find(format, strlen(format));
    table->dtype = dtype_of(facts);
    table->output_dtype = dtype_of(output);
    table->keys_dtype = dtype_of(ids);
    if (table->output_dtype == BAG_U8 && table->dtype != BAG_U8) {
        *why = "its replies are encoded there; the coordinator has 'output_row_format'";
        return false;
    }
    return table->row_format != BAG_ROW_FORMAT_COUNT && table->dtype != BAG_DTYPE_COUNT &&
           table->output_dtype != BAG_DTYPE_COUNT &&
           (table->keys_dtype == BAG_I64 || table->keys_dtype == BAG_U64) &&
           read_part(facts, table) && read_shape(output, table, why);
}

bool bag_shard_read_table(const char *text, size_t bytes, struct bag_shard_table *table,
                          struct bag_problem *problem)
{
    cJSON *tree = parse(text, bytes, problem);
    memset(table, 0, sizeof *table);
    if (!tree)
        return false;
    const cJSON *facts = bag_json_member(tree, "parameters");
    const char *why = "its answer is no metadata of a table, or of a part of one", *other = NULL;
    bool ok = read_table(tree, table, &why);
    if (bag_json_member(facts, "shards"))
        other = "its table is on shards of its own: name those here";
    if (bag_json_member(facts, "features"))
        other = "its model is a collection: a model of shards is one table";
    if (other)
        ok = reject(problem, other);
    else if (!ok)
        reject(problem, why);
    bag_json_free(tree);
    return ok;
}
