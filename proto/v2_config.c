/* A model's configuration under the names of Triton's ModelConfig; see v2_describe.h.
 *
 * perf_analyzer wants `max_batch_size`, `input` with `optional`, and `output`; the other keys are
 * those that hold for a model of ours. `max_batch_size` is 0: the first dimensions of indices and
 * offsets differ, so that no common one can be left out of the shapes. */
#include "v2_describe.h"
#include "v2_document.h"

#include <inttypes.h>
#include <stdio.h>

/* Adds {"name", "data_type", "dims": [dimensions...]}; NULL without memory. */
static cJSON *add_tensor(cJSON *list, const struct bag_v2_tensor *tensor)
{
    char type[16];
    snprintf(type, sizeof type, "TYPE_%s", bag_dtypes[tensor->dtype].name);
    cJSON *item = bag_v2_add_item(list);
    bool whole = item && cJSON_AddStringToObject(item, "name", tensor->name) &&
                 cJSON_AddStringToObject(item, "data_type", type) &&
                 bag_v2_add_dimensions(item, "dims", tensor);
    return whole ? item : NULL;
}

static bool add_inputs(cJSON *tree, const struct bag_v2_model *model)
{
    struct bag_v2_tensor tensor;
    cJSON *list = cJSON_AddArrayToObject(tree, "input");
    bool whole = list != NULL;
    for (size_t i = 0; whole && bag_v2_model_input(model, i, &tensor); i++) {
        cJSON *item = add_tensor(list, &tensor);
        whole = item && cJSON_AddBoolToObject(item, "optional", tensor.optional);
    }
    return whole;
}

static bool add_outputs(cJSON *tree, const struct bag_v2_model *model)
{
    struct bag_v2_tensor tensor;
    cJSON *list = cJSON_AddArrayToObject(tree, "output");
    bool whole = list != NULL;
    for (size_t i = 0; whole && bag_v2_model_output(model, i, &tensor); i++)
        whole = add_tensor(list, &tensor) != NULL;
    return whole;
}

/* All versions that the server has are served. */
static bool add_policy(cJSON *tree)
{
    cJSON *policy = cJSON_AddObjectToObject(tree, "version_policy");
    cJSON *transaction = cJSON_AddObjectToObject(tree, "model_transaction_policy");
    return policy && cJSON_AddObjectToObject(policy, "all") && transaction &&
           cJSON_AddBoolToObject(transaction, "decoupled", false);
}

/* ModelConfig's parameters, which are objects with a string each. Those of a collection's feature
 * have its name in front. */
struct parameters {
    cJSON *object;
    const char *feature; /* NULL: the model's own */
};

static bool add_parameter(const struct parameters *parameters, const char *key, const char *value)
{
    char full[192];
    snprintf(full, sizeof full, "%s%s%s", parameters->feature ? parameters->feature : "",
             parameters->feature ? "." : "", key);
    cJSON *parameter = cJSON_AddObjectToObject(parameters->object, full);
    return parameter && cJSON_AddStringToObject(parameter, "string_value", value);
}

static bool add_number(const struct parameters *parameters, const char *key, int64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, value);
    return add_parameter(parameters, key, text);
}

static bool add_flag(const struct parameters *parameters, const char *key, bool value)
{
    return add_parameter(parameters, key, value ? "true" : "false");
}

/* How bags are pooled, under the keys of the configuration. */
static bool add_rules(const struct parameters *to, const struct bag_rules *rules)
{
    return add_parameter(to, "reduction", bag_reduction_names[rules->reduction]) &&
           add_number(to, "default_index", rules->default_index) &&
           (!rules->has_padding_idx || add_number(to, "padding_idx", rules->padding_idx)) &&
           add_flag(to, "include_last_offset", rules->include_last_offset) &&
           add_flag(to, "weighted_mean", rules->weighted_mean) &&
           add_flag(to, "prune_invalid", rules->prune_invalid) &&
           add_flag(to, "unsorted_segments", rules->unsorted_segments) &&
           add_flag(to, "require_zero_first_offset", rules->require_zero_first_offset) &&
           add_flag(to, "require_matching_index_types", rules->require_matching_index_types) &&
           add_parameter(to, "out_of_range", rules->skip_out_of_range ? "skip" : "error");
}

static bool add_parameters(cJSON *tree, const struct bag_v2_model *model)
{
    struct parameters to = {.object = cJSON_AddObjectToObject(tree, "parameters")};
    bool whole = to.object != NULL;
    for (size_t i = 0; whole && i < model->num_features; i++) {
        const struct bag_v2_feature *feature = &model->features[i];
        if (model->is_collection)
            to.feature = feature->name;
        whole = (!model->is_collection || add_parameter(&to, "model", feature->table)) &&
                add_rules(&to, feature->rules);
    }
    return whole;
}

char *bag_v2_describe_config(const struct bag_v2_model *model)
{
    cJSON *tree = cJSON_CreateObject();
    bool whole = cJSON_AddStringToObject(tree, "name", model->name) &&
                 cJSON_AddStringToObject(tree, "platform", "bagserve") &&
                 cJSON_AddStringToObject(tree, "backend", "bagserve") && add_policy(tree) &&
                 cJSON_AddNumberToObject(tree, "max_batch_size", 0) && add_inputs(tree, model) &&
                 add_outputs(tree, model) && add_parameters(tree, model);
    return bag_v2_print(tree, whole);
}
