/* JSON documents of the V2 protocol about a model, by cJSON: its metadata and configuration; see
 * v2_documents.h. */
#include "kernels/pool_encode.h"
#include "v2_documents.h"

#include "text.h"
#include "v2_request.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- the tensors of a model ------------------------------------------------------------------ */

/* A tensor that a model takes or makes; -1 is a dimension of any size. */
struct tensor {
    const char *name;
    enum bag_dtype dtype;
    bool optional;
    int64_t first;       /* dimension */
    const int64_t *rest; /* dimensions; borrowed from the model */
    uint32_t rest_rank;
    int64_t columns; /* what `rest` points to where it is one number of our own */
};

#define COUNT_OF(list) (sizeof(list) / sizeof(list)[0])

/* Whether a table pools with weights by its own rules; a request may ask for another reduction. */
static bool takes_weights(const struct bag_rules *rules)
{
    return rules->reduction != BAG_MAX && rules->reduction != BAG_NONE &&
           (rules->reduction != BAG_MEAN || rules->weighted_mean);
}

/* The type of weights that a client is shown: of 16 bits none can make, and FP32 goes, too. */
static enum bag_dtype shown_weights(enum bag_dtype dtype)
{
    return dtype == BAG_F16 || dtype == BAG_BF16 ? BAG_F32 : dtype;
}

/* Whether metadata shows an optional input. */
static bool shows(const struct bag_v2_model *model, enum bag_input input)
{
    enum bag_v2_optional_inputs shown = model->shown.optional_inputs;
    if (input == BAG_PER_SAMPLE_WEIGHTS && !takes_weights(model->features->rules))
        return false;
    return shown == BAG_V2_OPTIONAL_ALL ||
           (shown == BAG_V2_OPTIONAL_WEIGHTS && input == BAG_PER_SAMPLE_WEIGHTS);
}

#define EVERY_FORM ((1u << BAG_FORM_COUNT) - 1)

/* Each input with the forms that have it, one bit for each. */
static const struct {
    enum bag_input input;
    unsigned forms;
    bool optional, scalar;
} table_inputs[] = {{BAG_INDICES, EVERY_FORM, false, false},
                    {BAG_OFFSETS, 1u << BAG_FORM_OFFSETS, false, false},
                    {BAG_SEGMENT_IDS, 1u << BAG_FORM_SEGMENTS, false, false},
                    {BAG_NUM_SEGMENTS, 1u << BAG_FORM_SEGMENTS, true, true},
                    {BAG_PER_SAMPLE_WEIGHTS, EVERY_FORM, true, false},
                    {BAG_DEFAULT_INDEX, EVERY_FORM, true, true}};

/* Returns the form whose inputs the model shows. Rows that are not pooled have only indices. */
static unsigned shown_forms(const struct bag_v2_model *model)
{
    return model->features->rules->reduction == BAG_NONE ? 0 : 1u << model->shown.form;
}

/* The inputs of the form that the model shows. */
static bool table_input(const struct bag_v2_model *model, size_t position, struct tensor *tensor)
{
    static const int64_t any = -1;
    size_t i = 0;
    for (; i < COUNT_OF(table_inputs); i++) {
        bool shown = (table_inputs[i].forms == EVERY_FORM ||
                      (table_inputs[i].forms & shown_forms(model)) != 0) &&
                     (!table_inputs[i].optional || shows(model, table_inputs[i].input));
        if (shown && position-- == 0)
            break;
    }
    if (i == COUNT_OF(table_inputs))
        return false;
    bool is_weights = table_inputs[i].input == BAG_PER_SAMPLE_WEIGHTS;
    bool is_matrix = shown_forms(model) == 1u << BAG_FORM_PACKED && !table_inputs[i].scalar;
    *tensor =
        (struct tensor){.name = bag_input_names[table_inputs[i].input],
                        .dtype = is_weights ? shown_weights(model->features->rows->dtype) : BAG_I64,
                        .optional = table_inputs[i].optional,
                        .first = table_inputs[i].scalar ? 1 : -1,
                        .rest = &any,
                        .rest_rank = is_matrix};
    return true;
}

static bool pools_all(const struct bag_v2_model *model)
{
    bool all = true;
    for (size_t i = 0; i < model->num_features; i++)
        all &= model->features[i].rules->reduction != BAG_NONE;
    return all;
}

/* Those of KeyedJaggedTensor's layout; weights only where every feature is pooled. */
static bool collection_input(const struct bag_v2_model *model, size_t position,
                             struct tensor *tensor)
{
    static const enum bag_kjt_input inputs[] = {BAG_KJT_VALUES, BAG_KJT_LENGTHS, BAG_KJT_STRIDES,
                                                BAG_KJT_WEIGHTS};
    if (position >= COUNT_OF(inputs) || (inputs[position] == BAG_KJT_WEIGHTS && !pools_all(model)))
        return false;
    bool is_weights = inputs[position] == BAG_KJT_WEIGHTS;
    bool is_strides = inputs[position] == BAG_KJT_STRIDES;
    *tensor = (struct tensor){.name = bag_kjt_input_names[inputs[position]],
                              .dtype = is_weights ? BAG_F32 : BAG_I64,
                              .optional = is_weights || is_strides,
                              .first = is_strides ? (int64_t)model->num_features : -1};
    return true;
}

/* A model's inputs one by one; false where there is no such one. */
static bool model_input(const struct bag_v2_model *model, size_t position, struct tensor *tensor)
{
    if (model->is_collection)
        return collection_input(model, position, tensor);
    if (!table_input(model, position, tensor))
        return false;
    bool is_key = strcmp(tensor->name, bag_input_names[BAG_INDICES]) == 0 ||
                  strcmp(tensor->name, bag_input_names[BAG_DEFAULT_INDEX]) == 0;
    if (is_key && model->features->rules->keyed)
        tensor->dtype = model->features->keys_dtype;
    return true;
}

/* Makes the last dimension the bytes of a row in a row format. */
static void encode_rows(enum bag_row_format format, size_t row_elements, struct tensor *tensor)
{
    if (format == BAG_ROWS_PLAIN)
        return;
    tensor->dtype = BAG_U8;
    tensor->rest = NULL;
    tensor->rest_rank = 1;
    tensor->columns = (int64_t)bag_encoded_row_bytes(format, row_elements);
}

/* All features side by side, where they are pooled and have one type. */
static bool concatenation(const struct bag_v2_model *model, struct tensor *tensor)
{
    const struct bag_v2_feature *first = &model->features[0];
    const enum bag_row_format format = first->output_row_format;
    size_t columns = 0;
    if (!pools_all(model))
        return false;
    for (size_t i = 0; i < model->num_features; i++) {
        const struct bag_v2_feature *feature = &model->features[i];
        if (feature->output_row_format != format ||
            (format == BAG_ROWS_PLAIN && feature->output_dtype != first->output_dtype))
            return false;
        columns += feature->row_elements;
    }
    *tensor = (struct tensor){.name = "embeddings",
                              .dtype = first->output_dtype,
                              .first = -1,
                              .rest_rank = 1,
                              .columns = (int64_t)columns};
    encode_rows(format, columns, tensor);
    return true;
}

/* Its outputs likewise. */
static bool model_output(const struct bag_v2_model *model, size_t position, struct tensor *tensor)
{
    if (position == model->num_features && model->is_collection)
        return concatenation(model, tensor);
    if (position >= model->num_features)
        return false;
    const struct bag_v2_feature *feature = &model->features[position];
    *tensor = (struct tensor){.name = feature->name,
                              .dtype = feature->output_dtype,
                              .first = -1,
                              .rest = feature->row_shape,
                              .rest_rank = feature->row_rank};
    encode_rows(feature->output_row_format, feature->row_elements, tensor);
    return true;
}

/* Adds the dimensions as an array; false without memory. */
static bool add_dimensions(cJSON *item, const char *key, const struct tensor *tensor)
{
    const int64_t *rest = tensor->rest ? tensor->rest : &tensor->columns;
    cJSON *list = cJSON_AddArrayToObject(item, key);
    bool ok = list && cJSON_AddItemToArray(list, cJSON_CreateNumber((double)tensor->first));
    for (uint32_t i = 0; ok && i < tensor->rest_rank; i++)
        ok = cJSON_AddItemToArray(list, cJSON_CreateNumber((double)rest[i]));
    return ok;
}

/* ---- metadata -------------------------------------------------------------------------------- */

/* Adds {"name", "datatype", "shape": [dimensions...]}. */
static bool add_tensor(cJSON *list, const struct tensor *tensor)
{
    cJSON *item = bag_v2_add_item(list);
    return item && cJSON_AddStringToObject(item, "name", tensor->name) &&
           cJSON_AddStringToObject(item, "datatype", bag_dtypes[tensor->dtype].name) &&
           add_dimensions(item, "shape", tensor);
}

/* What the table of a feature is. */
static bool add_table(cJSON *object, const struct bag_v2_feature *feature)
{
    return bag_v2_add_integer(object, "rows", (uint64_t)feature->num_rows) &&
           bag_v2_add_integer(object, "row_elements", feature->rows->row_elements) &&
           cJSON_AddStringToObject(object, "datatype", bag_dtypes[feature->rows->dtype].name) &&
           cJSON_AddStringToObject(object, "row_format",
                                   bag_row_format_names[feature->rows->row_format]) &&
           bag_v2_add_integer(object, "bytes", feature->table_bytes) &&
           cJSON_AddBoolToObject(object, "keyed", feature->rules->keyed) &&
           (feature->num_shards == 0 || bag_v2_add_integer(object, "shards", feature->num_shards));
}

/* Which part of which table it is. */
static bool add_part(cJSON *object, const struct bag_v2_feature *feature)
{
    char digest[BAG_DIGEST_BYTES];
    if (!feature->part.of)
        return true;
    bag_digest_put(digest, feature->digest);
    cJSON *part = cJSON_AddObjectToObject(object, "part");
    return part && cJSON_AddStringToObject(part, "by", bag_part_way_names[feature->part.by]) &&
           bag_v2_add_integer(part, "index", feature->part.index) &&
           bag_v2_add_integer(part, "of", feature->part.of) &&
           bag_v2_add_integer(part, "rows", feature->whole_rows) &&
           bag_v2_add_integer(part, "row_elements", feature->whole_elements) &&
           cJSON_AddStringToObject(part, "digest", digest);
}

/* The features in their order, which is that of KeyedJaggedTensor's bags. */
static bool add_features(cJSON *parameters, const struct bag_v2_model *model)
{
    cJSON *list = cJSON_AddArrayToObject(parameters, "features");
    bool ok = list != NULL;
    for (size_t i = 0; ok && i < model->num_features; i++) {
        const struct bag_v2_feature *feature = &model->features[i];
        cJSON *item = bag_v2_add_item(list);
        ok = item && cJSON_AddStringToObject(item, "name", feature->name) &&
             cJSON_AddStringToObject(item, "model", feature->table) && add_table(item, feature) &&
             add_part(item, feature) &&
             bag_v2_add_integer(item, "updates_through", feature->updates_through);
    }
    return ok;
}

/* "<feature>.keyed" where a table of a collection has keys, and their type, which `values` does not
 * say. */
static bool add_keyed(cJSON *parameters, const struct bag_v2_model *model)
{
    for (size_t i = 0; i < model->num_features; i++) {
        const struct bag_v2_feature *feature = &model->features[i];
        const char *dtype = bag_dtypes[feature->keys_dtype].name;
        char keyed[192], keys_datatype[192];
        if (!feature->rules->keyed)
            continue;
        snprintf(keyed, sizeof keyed, "%s.keyed", feature->name);
        snprintf(keys_datatype, sizeof keys_datatype, "%s.keys_datatype", feature->name);
        if (!cJSON_AddTrueToObject(parameters, keyed) ||
            !cJSON_AddStringToObject(parameters, keys_datatype, dtype))
            return false;
    }
    return true;
}

/* The layouts of a collection: those of KeyedJaggedTensor, and inputs by feature. */
static const char *const collection_forms[] = {"lengths", "offsets", "features"};

static bool add_facts(cJSON *tree, const struct bag_v2_model *model)
{
    cJSON *parameters = cJSON_AddObjectToObject(tree, "parameters");
    if (!parameters)
        return false;
    if (!model->is_collection)
        return add_table(parameters, model->features) && add_part(parameters, model->features) &&
               bag_v2_add_integer(parameters, "updates_through",
                                  model->features->updates_through) &&
               bag_v2_add_strings(parameters, "forms", bag_form_names, BAG_FORM_COUNT);
    return add_features(parameters, model) && add_keyed(parameters, model) &&
           bag_v2_add_strings(parameters, "forms", collection_forms, COUNT_OF(collection_forms));
}

char *bag_v2_describe_model(const struct bag_v2_model *model)
{
    struct tensor tensor;
    cJSON *tree = cJSON_CreateObject();
    bool ok = cJSON_AddStringToObject(tree, "name", model->name) &&
              bag_v2_add_strings(tree, "versions", model->versions, model->num_versions) &&
              cJSON_AddStringToObject(tree, "platform", "bagserve");
    cJSON *inputs = cJSON_AddArrayToObject(tree, "inputs");
    cJSON *outputs = cJSON_AddArrayToObject(tree, "outputs");
    ok = ok && inputs && outputs;
    for (size_t i = 0; ok && model_input(model, i, &tensor); i++)
        ok = add_tensor(inputs, &tensor);
    for (size_t i = 0; ok && model_output(model, i, &tensor); i++)
        ok = add_tensor(outputs, &tensor);
    ok = ok && add_facts(tree, model);
    return bag_v2_print_tree(tree, ok);
}

/* ---- configuration ---------------------------------------------------------------------------
 *
 * perf_analyzer wants `max_batch_size`, `input` with `optional`, and `output`; the other keys are
 * those that hold for a model of ours. `max_batch_size` is 0: the first dimensions of indices and
 * offsets differ, so that no common one can be left out of the shapes. */

/* Adds {"name", "data_type", "dims": [dimensions...]}; NULL without memory. */
static cJSON *add_config_tensor(cJSON *list, const struct tensor *tensor)
{
    char type[16];
    snprintf(type, sizeof type, "TYPE_%s", bag_dtypes[tensor->dtype].name);
    cJSON *item = bag_v2_add_item(list);
    bool ok = item && cJSON_AddStringToObject(item, "name", tensor->name) &&
              cJSON_AddStringToObject(item, "data_type", type) &&
              add_dimensions(item, "dims", tensor);
    return ok ? item : NULL;
}

static bool add_inputs_and_outputs(cJSON *tree, const struct bag_v2_model *model)
{
    struct tensor tensor;
    cJSON *inputs = cJSON_AddArrayToObject(tree, "input");
    cJSON *outputs = cJSON_AddArrayToObject(tree, "output");
    bool ok = inputs && outputs;
    for (size_t i = 0; ok && model_input(model, i, &tensor); i++) {
        cJSON *item = add_config_tensor(inputs, &tensor);
        ok = item && cJSON_AddBoolToObject(item, "optional", tensor.optional);
    }
    for (size_t i = 0; ok && model_output(model, i, &tensor); i++)
        ok = add_config_tensor(outputs, &tensor) != NULL;
    return ok;
}

/* {"latest": {"num_versions": 1}}, {"specific": {"versions": [1, 3]}} or {"all": {}} */
static bool add_versions(cJSON *policy, const struct bag_v2_model *model)
{
    const char *kind = model->latest ? "latest" : model->num_specific ? "specific" : "all";
    cJSON *object = cJSON_AddObjectToObject(policy, kind);
    if (model->num_specific)
        return bag_v2_add_numbers(object, "versions", model->specific, model->num_specific);
    return object && (!model->latest ||
                      cJSON_AddNumberToObject(object, "num_versions", (double)model->latest));
}

static bool add_policy(cJSON *tree, const struct bag_v2_model *model)
{
    cJSON *policy = cJSON_AddObjectToObject(tree, "version_policy");
    cJSON *transaction = cJSON_AddObjectToObject(tree, "model_transaction_policy");
    return policy && add_versions(policy, model) && transaction &&
           cJSON_AddBoolToObject(transaction, "decoupled", false);
}

/* A row, or a key: of UINT64 ones the upper half has no sign. */
static bool add_index(cJSON *facts, const char *key, const struct bag_v2_feature *feature,
                      int64_t index)
{
    return feature->rules->keyed && feature->keys_dtype == BAG_U64
               ? bag_v2_add_integer(facts, key, (uint64_t)index)
               : bag_v2_add_signed(facts, key, index);
}

static bool add_missing(cJSON *facts, const struct bag_rules *rules)
{
    const char *policy = bag_missing_names[rules->missing];
    return cJSON_AddStringToObject(facts, rules->keyed ? "missing" : "out_of_range", policy) &&
           (!rules->keyed || rules->missing != BAG_MISSING_HASH ||
            bag_v2_add_signed(facts, "hash_rows", rules->hash_rows));
}

/* How bags are pooled, under the keys of the configuration. A keyed table has a default key, or
 * none; a dense one a row, or -1. */
static bool add_rules(cJSON *facts, const struct bag_v2_feature *feature)
{
    const struct bag_rules *rules = feature->rules;
    return cJSON_AddStringToObject(facts, "reduction", bag_reduction_names[rules->reduction]) &&
           ((rules->keyed && !rules->has_default_index) ||
            add_index(facts, "default_index", feature, rules->default_index)) &&
           (!rules->has_padding_idx ||
            add_index(facts, "padding_idx", feature, rules->padding_idx)) &&
           cJSON_AddBoolToObject(facts, "include_last_offset", rules->include_last_offset) &&
           cJSON_AddBoolToObject(facts, "weighted_mean", rules->weighted_mean) &&
           (!feature->projected || cJSON_AddTrueToObject(facts, "projected")) &&
           (feature->output_row_format == BAG_ROWS_PLAIN ||
            cJSON_AddStringToObject(facts, "output_row_format",
                                    bag_row_format_names[feature->output_row_format])) &&
           cJSON_AddBoolToObject(facts, "prune_invalid", rules->prune_invalid) &&
           cJSON_AddBoolToObject(facts, "unsorted_segments", rules->unsorted_segments) &&
           cJSON_AddBoolToObject(facts, "require_zero_first_offset",
                                 rules->require_zero_first_offset) &&
           cJSON_AddBoolToObject(facts, "require_matching_index_types",
                                 rules->require_matching_index_types) &&
           add_missing(facts, rules);
}

/* Words as one string with spaces between them. */
static bool add_words(cJSON *facts, const char *key, const char *const *words, size_t count)
{
    char text[64];
    size_t used = 0;
    for (size_t i = 0; i < count && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i ? " " : "", words[i]);
    return cJSON_AddStringToObject(facts, key, text);
}

static bool add_forms(cJSON *facts, const struct bag_v2_model *model)
{
    if (!model->is_collection)
        return add_words(facts, "forms", bag_form_names, BAG_FORM_COUNT) &&
               cJSON_AddStringToObject(facts, "form", bag_form_names[model->shown.form]);
    bool ok = add_words(facts, "forms", collection_forms, COUNT_OF(collection_forms));
    for (size_t i = 0; ok && i < model->num_features; i++) { /* their order */
        char key[32];
        snprintf(key, sizeof key, "features[%zu]", i);
        ok = cJSON_AddStringToObject(facts, key, model->features[i].name);
    }
    return ok;
}

/* As a configuration says it in a text, "rows 0 of 3", and the sizes of the whole table. */
static bool add_part_as_text(cJSON *facts, const struct bag_v2_feature *feature)
{
    const struct bag_part *part = &feature->part;
    char text[64];
    snprintf(text, sizeof text, "%s %" PRIu32 " of %" PRIu32, bag_part_way_names[part->by],
             part->index, part->of);
    return !part->of || (cJSON_AddStringToObject(facts, "part", text) &&
                         bag_v2_add_integer(facts, "part.rows", feature->whole_rows) &&
                         bag_v2_add_integer(facts, "part.row_elements", feature->whole_elements));
}

/* Of a table's own model the inputs have the type of its keys. */
static bool add_feature(cJSON *facts, const struct bag_v2_model *model,
                        const struct bag_v2_feature *feature)
{
    const char *keys = bag_dtypes[feature->keys_dtype].name;
    return (!model->is_collection || cJSON_AddStringToObject(facts, "model", feature->table)) &&
           add_table(facts, feature) && add_part_as_text(facts, feature) &&
           (!model->is_collection || !feature->rules->keyed ||
            cJSON_AddStringToObject(facts, "keys_datatype", keys)) &&
           add_rules(facts, feature);
}

/* Adds the facts as ModelConfig has parameters: objects with a string each. Those of a collection's
 * feature have its name in front; NULL: the model's own. */
static bool add_as_strings(cJSON *parameters, const char *feature, const cJSON *facts)
{
    bool ok = true;
    for (const cJSON *fact = facts->child; ok && fact; fact = fact->next) {
        char key[192];
        const char *flag = cJSON_IsTrue(fact) ? "true" : "false";
        snprintf(key, sizeof key, "%s%s%s", feature ? feature : "", feature ? "." : "",
                 fact->string);
        cJSON *parameter = cJSON_AddObjectToObject(parameters, key);
        ok = parameter && cJSON_AddStringToObject(parameter, "string_value",
                                                  cJSON_IsBool(fact) ? flag : fact->valuestring);
    }
    return ok;
}

static bool add_parameters(cJSON *tree, const struct bag_v2_model *model)
{
    cJSON *parameters = cJSON_AddObjectToObject(tree, "parameters"), *facts = cJSON_CreateObject();
    bool ok = parameters && add_forms(facts, model) && add_as_strings(parameters, NULL, facts);
    cJSON_Delete(facts);
    for (size_t i = 0; ok && i < model->num_features; i++) {
        const struct bag_v2_feature *feature = &model->features[i];
        facts = cJSON_CreateObject();
        ok = add_feature(facts, model, feature) &&
             add_as_strings(parameters, model->is_collection ? feature->name : NULL, facts);
        cJSON_Delete(facts);
    }
    return ok;
}

char *bag_v2_describe_config(const struct bag_v2_model *model)
{
    cJSON *tree = cJSON_CreateObject();
    bool ok = cJSON_AddStringToObject(tree, "name", model->name) &&
              cJSON_AddStringToObject(tree, "platform", "bagserve") &&
              cJSON_AddStringToObject(tree, "backend", "bagserve") && add_policy(tree, model) &&
              cJSON_AddNumberToObject(tree, "max_batch_size", 0) &&
              add_inputs_and_outputs(tree, model) && add_parameters(tree, model);
    return bag_v2_print_tree(tree, ok);
}
