/* Parses replies for a client of the V2 protocol; see v2_client.h. */
#include "v2_client.h"

#include "json.h"
#include "kernels/rowformat.h"
#include "v2_reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- members --------------------------------------------------------------------------------- */

/* Returns an integer from 0 to 2^53 - 1, or -1 for anything else. */
static int64_t number_of(const cJSON *item)
{
    int64_t value;
    return bag_v2_integer(item, 0, BAG_V2_LARGEST_EXACT, &value) ? value : -1;
}

/* Sets *problem (BAD_REQUEST) to "the answer is" and `what`. Returns false. */
static bool reject(struct bag_problem *problem, const char *what)
{
    return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "the answer is %s", what);
}

/* ---- the models ------------------------------------------------------------------------------ */

/* Adds a copy of a name unless the list contains it: an index has an entry for each version. `room`
 * is the capacity of the list. */
static bool add_name(struct bag_client_names *names, const char *name, size_t room,
                     struct bag_problem *problem)
{
    for (size_t i = 0; i < names->count; i++) {
        if (strcmp(names->names[i], name) == 0)
            return true;
    }
    if (names->count == room || !(names->names[names->count] = strdup(name)))
        return bag_problem_no_memory(problem);
    names->count++;
    return true;
}

/* Reads a list of names, or the entries of an index that are READY. An entry without a state counts
 * as not READY. */
static bool read_names(const cJSON *list, bool is_index, struct bag_client_names *names,
                       struct bag_problem *problem)
{
    size_t room = (size_t)cJSON_GetArraySize(list);
    const cJSON *item;
    if (!cJSON_IsArray(list))
        return reject(problem, "no list of models");
    if (!(names->names = calloc(room + 1, sizeof *names->names)))
        return bag_problem_no_memory(problem);
    cJSON_ArrayForEach(item, list)
    {
        const char *name = is_index ? bag_json_text(item, "name") : cJSON_GetStringValue(item);
        const char *state = is_index ? bag_json_text(item, "state") : "READY";
        if (!name)
            return reject(problem, "no list of models: a name is missing");
        if (state && strcmp(state, "READY") == 0 && !add_name(names, name, room, problem))
            return false;
    }
    return true;
}

bool bag_client_read_names(const char *text, size_t bytes, struct bag_client_names *names,
                           struct bag_problem *problem)
{
    cJSON *tree = bag_json_parse(text, bytes, problem);
    *names = (struct bag_client_names){NULL, 0};
    bool is_index = cJSON_IsArray(tree);
    bool ok = tree && read_names(is_index ? tree : bag_json_member(tree, "models"), is_index, names,
                                 problem);
    bag_json_free(tree);
    if (!ok)
        bag_client_names_free(names);
    return ok;
}

void bag_client_names_free(struct bag_client_names *names)
{
    for (size_t i = 0; i < names->count; i++)
        free(names->names[i]);
    free(names->names);
    *names = (struct bag_client_names){NULL, 0};
}

/* ---- one model ------------------------------------------------------------------------------- */

/* Returns the elements of a bag's row: a * b for the shape [-1, a, b]. Returns 0 if they are
 * unknown. */
static size_t output_elements(const cJSON *output)
{
    const cJSON *shape = bag_json_member(output, "shape"), *size;
    size_t elements = 1, axis = 0;
    cJSON_ArrayForEach(size, shape)
    {
        int64_t number = number_of(size);
        if (axis++ > 0 &&
            (number <= 0 || __builtin_mul_overflow(elements, (size_t)number, &elements)))
            return 0;
    }
    return axis > 0 ? elements : 0;
}

/* Reads the part. An invalid part counts as none. */
static void read_part(const cJSON *facts, struct bag_client_table *table)
{
    const cJSON *object = bag_json_member(facts, "part");
    int64_t rows = number_of(bag_json_member(object, "rows"));
    struct bag_part part;
    if (!bag_v2_read_part(object, &part))
        return;
    table->part = part;
    if (part.by == BAG_PART_ROWS && rows > 0)
        table->first_row = (int64_t)bag_part_begin((uint64_t)rows, part.index, part.of);
}

/* Reads a table from the parameters that describe it and from the output with its name. Members
 * that are missing or wrong become "unknown", because other servers than bagserve do not have them.
 */
static bool read_table(const cJSON *facts, const char *name, const cJSON *outputs,
                       struct bag_client_table *table, struct bag_problem *problem)
{
    const cJSON *output = bag_v2_find_tensor(outputs, name);
    const char *owner = bag_json_text(facts, "model"), *format = bag_json_text(facts, "row_format");
    const char *type = bag_json_text(output, "datatype");
    int64_t bytes = number_of(bag_json_member(facts, "bytes"));
    int64_t elements = number_of(bag_json_member(facts, "row_elements"));
    table->name = strdup(name);
    table->model = owner ? strdup(owner) : NULL;
    if (!table->name || (owner && !table->model))
        return bag_problem_no_memory(problem);
    table->rows = number_of(bag_json_member(facts, "rows"));
    table->row_elements = elements > 0 ? (size_t)elements : 0;
    table->bytes = bytes > 0 ? (uint64_t)bytes : 0;
    table->keyed = cJSON_IsTrue(bag_json_member(facts, "keyed"));
    read_part(facts, table);
    table->row_format = format ? bag_row_format_find(format, strlen(format)) : BAG_ROWS_PLAIN;
    table->output_elements = output_elements(output);
    table->output_dtype = type ? bag_dtype_find(type, strlen(type)) : BAG_DTYPE_COUNT;
    return true;
}

/* Reads the tables of a collection. model->num_tables includes the table that failed, so that
 * bag_client_model_free frees its texts. */
static bool read_features(const cJSON *list, const cJSON *outputs, struct bag_client_model *model,
                          struct bag_problem *problem)
{
    int count = cJSON_GetArraySize(list);
    const cJSON *item;
    if (!cJSON_IsArray(list) || count < 1 || count > BAG_CLIENT_MAX_TABLES)
        return reject(problem, "no collection with a list of features");
    if (!(model->tables = calloc((size_t)count, sizeof *model->tables)))
        return bag_problem_no_memory(problem);
    cJSON_ArrayForEach(item, list)
    {
        const char *name = bag_json_text(item, "name");
        if (!name)
            return reject(problem, "no collection: a feature has no name");
        if (!read_table(item, name, outputs, &model->tables[model->num_tables++], problem))
            return false;
    }
    return true;
}

/* Lists the names of a model's inputs for a message. */
static void list_inputs(const cJSON *inputs, char *text, size_t room)
{
    const cJSON *item;
    *text = 0;
    cJSON_ArrayForEach(item, inputs)
    {
        const char *name = bag_json_text(item, "name");
        if (name)
            bag_text_add(text, room, "%s'%s'", *text ? ", " : "",
                         bag_quote(name, strlen(name)).text);
    }
}

/* Reads the inputs. A model of bagserve accepts every form, regardless of the form that its
 * metadata lists. */
static bool read_inputs(const cJSON *tree, struct bag_client_model *model,
                        struct bag_problem *problem)
{
    const cJSON *inputs = bag_json_member(tree, "inputs"),
                *facts = bag_json_member(tree, "parameters");
    bool takes_forms = cJSON_IsArray(bag_json_member(facts, "forms"));
    const cJSON *ids = bag_v2_find_tensor(inputs, "values");
    model->is_collection = ids && bag_v2_find_tensor(inputs, "lengths");
    if (!model->is_collection) {
        ids = bag_v2_find_tensor(inputs, "indices");
        if (!ids || (!takes_forms && !bag_v2_find_tensor(inputs, "offsets"))) {
            /* Reject a model whose inputs are not bags. */
            char names[256];
            list_inputs(inputs, names, sizeof names);
            return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                                   "it takes %s; bags are 'indices' and 'offsets', or 'values' and "
                                   "'lengths'",
                                   *names ? names : "no inputs");
        }
    }
    const char *type = bag_json_text(ids, "datatype");
    model->ids_dtype = type && strcmp(type, "UINT64") == 0 ? BAG_U64 : BAG_I64;
    model->pools = model->is_collection ? bag_v2_find_tensor(inputs, "weights") != NULL
                                        : cJSON_GetArraySize(inputs) > 1;
    model->takes_weights =
        takes_forms ||
        bag_v2_find_tensor(inputs, model->is_collection ? "weights" : "per_sample_weights");
    return true;
}

/* Fills *model, which is zeroed. On failure the caller frees it. */
static bool read_model(const cJSON *tree, struct bag_client_model *model,
                       struct bag_problem *problem)
{
    const cJSON *facts = bag_json_member(tree, "parameters"),
                *outputs = bag_json_member(tree, "outputs");
    const char *name = bag_json_text(tree, "name");
    const char *version =
        cJSON_GetStringValue(cJSON_GetArrayItem(bag_json_member(tree, "versions"), 0));
    if (!name)
        return reject(problem, "no metadata of a model");
    model->name = strdup(name);
    model->version = strdup(version ? version : "");
    if (!model->name || !model->version)
        return bag_problem_no_memory(problem);
    if (!read_inputs(tree, model, problem))
        return false;
    if (model->is_collection)
        return read_features(bag_json_member(facts, "features"), outputs, model, problem);
    if (!(model->tables = calloc(1, sizeof *model->tables)))
        return bag_problem_no_memory(problem);
    model->num_tables = 1;
    return read_table(facts, "embeddings", outputs, model->tables, problem);
}

bool bag_client_read_model(const char *text, size_t bytes, struct bag_client_model *model,
                           struct bag_problem *problem)
{
    cJSON *tree = bag_json_parse(text, bytes, problem);
    memset(model, 0, sizeof *model);
    bool ok = tree && read_model(tree, model, problem);
    bag_json_free(tree);
    if (!ok)
        bag_client_model_free(model);
    return ok;
}

void bag_client_model_free(struct bag_client_model *model)
{
    for (size_t i = 0; i < model->num_tables; i++) {
        free(model->tables[i].name);
        free(model->tables[i].model);
    }
    free(model->tables);
    free(model->name);
    free(model->version);
    memset(model, 0, sizeof *model);
}

/* ---- how it pools ---------------------------------------------------------------------------- */

/* Reads a key or a row number. A negative row number counts from the end with `from_end`; otherwise
 * it means none. Returns false if there is none. */
static bool read_id(const char *text, const struct bag_client_table *table, bool from_end,
                    int64_t *id)
{
    if (!text || !bag_key_parse(text, id))
        return false;
    if (!table->keyed && *id < 0 && from_end)
        *id += table->rows;
    return table->keyed || *id >= 0;
}

/* Returns the text of {"string_value": text} under "KEY", or in a collection under
 * "FEATURE.KEY". */
static const char *rule_of(const cJSON *parameters, const struct bag_client_model *model,
                           const struct bag_client_table *table, const char *key)
{
    char name[256];
    snprintf(name, sizeof name, "%s%s%s", model->is_collection ? table->name : "",
             model->is_collection ? "." : "", key);
    return bag_json_text(bag_json_member(parameters, name), "string_value");
}

bool bag_client_read_rules(const char *text, size_t bytes, struct bag_client_model *model,
                           struct bag_problem *problem)
{
    cJSON *tree = bag_json_parse(text, bytes, problem);
    const cJSON *parameters = bag_json_member(tree, "parameters");
    bool ok = tree != NULL;
    for (size_t i = 0; ok && i < model->num_tables; i++) {
        struct bag_client_table *table = &model->tables[i];
        const char *reduction = rule_of(parameters, model, table, "reduction");
        const char *padding = rule_of(parameters, model, table, "padding_idx");
        const char *instead = rule_of(parameters, model, table, "default_index");
        const char *weighted = rule_of(parameters, model, table, "weighted_mean");
        table->reduction =
            reduction ? bag_reduction_find(reduction, strlen(reduction)) : BAG_REDUCTION_COUNT;
        if (table->reduction == BAG_REDUCTION_COUNT)
            ok = reject(problem, "no configuration that names a reduction");
        table->projected = rule_of(parameters, model, table, "projected") != NULL;
        table->weighted_mean = weighted && strcmp(weighted, "true") == 0;
        table->has_padding = read_id(padding, table, true, &table->padding);
        table->has_default = read_id(instead, table, false, &table->default_id);
    }
    bag_json_free(tree);
    return ok;
}

/* ---- numbers and errors ---------------------------------------------------------------------- */

bool bag_client_read_number(const char *text, size_t bytes, const char *within, const char *name,
                            uint64_t *number)
{
    struct bag_problem problem;
    cJSON *tree = bag_json_parse(text, bytes, &problem);
    int64_t value = number_of(bag_json_member(within ? bag_json_member(tree, within) : tree, name));
    if (value >= 0)
        *number = (uint64_t)value;
    bag_json_free(tree);
    return value >= 0;
}

void bag_client_read_error(const char *text, size_t bytes, char *sentence, size_t room)
{
    struct bag_problem problem;
    cJSON *tree = bag_json_parse(text, bytes, &problem);
    const char *error = bag_json_text(tree, "error");
    size_t used = 0;
    if (error)
        bytes = strlen(error);
    else
        error = text;
    for (size_t i = 0; i < bytes && used + 1 < room; i++) {
        unsigned char byte = (unsigned char)error[i];
        sentence[used++] = byte >= ' ' && byte < 127 ? (char)byte : '?';
    }
    sentence[used] = 0;
    bag_json_free(tree);
}

bool bag_client_read_code(const char *text, size_t bytes, struct bag_client_error *error)
{
    struct bag_problem problem;
    cJSON *tree = bag_json_parse(text, bytes, &problem);
    const char *code = bag_json_text(tree, "code"), *input = bag_json_text(tree, "input");
    const int64_t position = number_of(bag_json_member(tree, "position"));
    snprintf(error->code, sizeof error->code, "%s", code ? code : "");
    snprintf(error->input, sizeof error->input, "%s", input ? input : "");
    error->position = position < 0 ? BAG_PROBLEM_NOWHERE : (size_t)position;
    bag_json_free(tree);
    return code != NULL;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Finds the tensor's bytes after the JSON. All binary tensors before it come first. */
static bool place_output(const cJSON *outputs, const char *name, struct bag_client_output *output,
                         size_t *at, size_t *bytes)
{
    const cJSON *item;
    *at = 0;
    cJSON_ArrayForEach(item, outputs)
    {
        const cJSON *parameters = bag_json_member(item, "parameters");
        const char *text = bag_json_text(item, "name"), *type = bag_json_text(item, "datatype");
        const char *format = bag_json_text(parameters, "row_format");
        int64_t size = number_of(bag_json_member(parameters, "binary_data_size"));
        output->dtype = type ? bag_dtype_find(type, strlen(type)) : BAG_DTYPE_COUNT;
        output->row_format = format ? bag_row_format_find(format, strlen(format)) : BAG_ROWS_PLAIN;
        *bytes = (size_t)size;
        if (text && strcmp(text, name) == 0)
            return size >= 0;
        if (size > 0 && __builtin_add_overflow(*at, (size_t)size, at))
            return false;
    }
    return false;
}

bool bag_client_find_output(const char *body, size_t bytes, size_t json_bytes, const char *name,
                            size_t num_rows, size_t row_elements, struct bag_client_output *output,
                            struct bag_problem *problem)
{
    size_t at, size;
    cJSON *tree = json_bytes <= bytes ? bag_json_parse(body, json_bytes, problem) : NULL;
    bool found = place_output(bag_json_member(tree, "outputs"), name, output, &at, &size);
    bag_json_free(tree);
    if (!found)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "the answer has no binary output '%s'", name);
    const bool is_encoded = output->row_format != BAG_ROWS_PLAIN;
    if (output->dtype == BAG_DTYPE_COUNT || output->dtype == BAG_BOOL ||
        output->dtype == BAG_BYTES || output->row_format == BAG_ROW_FORMAT_COUNT ||
        (is_encoded && output->dtype != BAG_U8))
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST, "the output '%s' is not of numbers",
                               name);
    const size_t count =
        num_rows *
        (is_encoded ? bag_encoded_row_bytes(output->row_format, row_elements) : row_elements);
    if (at > bytes - json_bytes || size > bytes - json_bytes - at ||
        size != count * bag_dtypes[output->dtype].bytes)
        return bag_problem_set(problem, BAG_ERROR_BAD_REQUEST,
                               "the output '%s' has %zu bytes; %zu elements were expected", name,
                               size, count);
    output->data = body + json_bytes + at;
    return true;
}
