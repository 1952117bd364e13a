/* A model's configuration under the names of Triton's ModelConfig; see v2_describe.h.
 *
 * perf_analyzer wants `max_batch_size`, `input` with `optional`, and `output`; the other keys are
 * those that hold for a model of ours. `max_batch_size` is 0: the first dimensions of indices and
 * offsets differ, so that no common one can be left out of the shapes. */
#include "v2_describe.h"
#include "v2_document.h"

#include <inttypes.h>
#include <stdio.h>

/* Adds {"name", "data_type", "dims": [first, rest...]}; NULL without memory. */
static cJSON *add_tensor(cJSON *list, const char *name, enum bag_dtype dtype, int64_t first,
                         const int64_t *rest, uint32_t rest_rank)
{
    char type[16];
    snprintf(type, sizeof type, "TYPE_%s", bag_dtypes[dtype].name);
    cJSON *tensor = bag_v2_add_item(list);
    bool whole = tensor && cJSON_AddStringToObject(tensor, "name", name) &&
                 cJSON_AddStringToObject(tensor, "data_type", type);
    cJSON *dims = whole ? cJSON_AddArrayToObject(tensor, "dims") : NULL;
    whole = dims && cJSON_AddItemToArray(dims, cJSON_CreateNumber((double)first));
    for (uint32_t i = 0; whole && i < rest_rank; i++)
        whole = cJSON_AddItemToArray(dims, cJSON_CreateNumber((double)rest[i]));
    return whole ? tensor : NULL;
}

/* The offsets form's inputs, of which indices and offsets must be there. */
static bool add_inputs(cJSON *tree, const struct bag_v2_model *model)
{
    const struct {
        enum bag_input input;
        enum bag_dtype dtype;
        int64_t first;
        bool optional;
    } inputs[] = {
        {BAG_INDICES, BAG_I64, -1, false},
        {BAG_OFFSETS, BAG_I64, -1, false},
        {BAG_PER_SAMPLE_WEIGHTS, model->weights_dtype, -1, true},
        {BAG_DEFAULT_INDEX, BAG_I64, 1, true},
    };
    cJSON *list = cJSON_AddArrayToObject(tree, "input");
    bool whole = list != NULL;
    for (size_t i = 0; whole && i < sizeof inputs / sizeof inputs[0]; i++) {
        cJSON *tensor = add_tensor(list, bag_input_names[inputs[i].input], inputs[i].dtype,
                                   inputs[i].first, NULL, 0);
        whole = tensor && cJSON_AddBoolToObject(tensor, "optional", inputs[i].optional);
    }
    return whole;
}

static bool add_output(cJSON *tree, const struct bag_v2_model *model)
{
    cJSON *list = cJSON_AddArrayToObject(tree, "output");
    return list && add_tensor(list, "embeddings", model->output_dtype, -1, model->row_shape,
                              model->row_rank);
}

/* All versions that the server has are served. */
static bool add_policy(cJSON *tree)
{
    cJSON *policy = cJSON_AddObjectToObject(tree, "version_policy");
    cJSON *transaction = cJSON_AddObjectToObject(tree, "model_transaction_policy");
    return policy && cJSON_AddObjectToObject(policy, "all") && transaction &&
           cJSON_AddBoolToObject(transaction, "decoupled", false);
}

/* ModelConfig's parameters are objects with a string each. */
static bool add_parameter(cJSON *parameters, const char *key, const char *value)
{
    cJSON *parameter = cJSON_AddObjectToObject(parameters, key);
    return parameter && cJSON_AddStringToObject(parameter, "string_value", value);
}

static bool add_number(cJSON *parameters, const char *key, int64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, value);
    return add_parameter(parameters, key, text);
}

static bool add_flag(cJSON *parameters, const char *key, bool value)
{
    return add_parameter(parameters, key, value ? "true" : "false");
}

/* How the model pools, under the keys of its configuration. */
static bool add_rules(cJSON *tree, const struct bag_rules *rules)
{
    cJSON *parameters = cJSON_AddObjectToObject(tree, "parameters");
    return parameters &&
           add_parameter(parameters, "reduction", bag_reduction_names[rules->reduction]) &&
           add_number(parameters, "default_index", rules->default_index) &&
           (!rules->has_padding_idx || add_number(parameters, "padding_idx", rules->padding_idx)) &&
           add_flag(parameters, "include_last_offset", rules->include_last_offset) &&
           add_flag(parameters, "weighted_mean", rules->weighted_mean) &&
           add_flag(parameters, "prune_invalid", rules->prune_invalid) &&
           add_flag(parameters, "unsorted_segments", rules->unsorted_segments) &&
           add_flag(parameters, "require_zero_first_offset", rules->require_zero_first_offset) &&
           add_flag(parameters, "require_matching_index_types",
                    rules->require_matching_index_types) &&
           add_parameter(parameters, "out_of_range", rules->skip_out_of_range ? "skip" : "error");
}

char *bag_v2_describe_config(const struct bag_v2_model *model)
{
    cJSON *tree = cJSON_CreateObject();
    bool whole = cJSON_AddStringToObject(tree, "name", model->name) &&
                 cJSON_AddStringToObject(tree, "platform", "bagserve") &&
                 cJSON_AddStringToObject(tree, "backend", "bagserve") && add_policy(tree) &&
                 cJSON_AddNumberToObject(tree, "max_batch_size", 0) && add_inputs(tree, model) &&
                 add_output(tree, model) && add_rules(tree, model->rules);
    return bag_v2_print(tree, whole);
}
