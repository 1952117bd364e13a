/* The small JSON documents of the V2 protocol, by cJSON; see v2_describe.h. */
#include "v2_describe.h"

#include "v2_document.h"

char *bag_v2_describe_error(const char *text)
{
    cJSON *tree = cJSON_CreateObject();
    return bag_v2_print(tree, cJSON_AddStringToObject(tree, "error", text));
}

char *bag_v2_describe_root(const char *version, const char *isa, bool statistics)
{
    static const char *const links[][2] = {
        {"server", "/v2"},        {"live", "/v2/health/live"},  {"ready", "/v2/health/ready"},
        {"models", "/v2/models"}, {"openapi", "/openapi.json"}, {"stats", "/v2/models/stats"},
        {"metrics", "/metrics"},
    };
    cJSON *tree = cJSON_CreateObject();
    bool whole = cJSON_AddStringToObject(tree, "name", "bagserve") &&
                 cJSON_AddStringToObject(tree, "version", version) &&
                 cJSON_AddStringToObject(tree, "isa", isa);
    cJSON *object = cJSON_AddObjectToObject(tree, "links");
    size_t count = sizeof links / sizeof links[0] - (statistics ? 0 : 2);
    for (size_t i = 0; i < count; i++)
        whole = whole && cJSON_AddStringToObject(object, links[i][0], links[i][1]);
    return bag_v2_print(tree, whole);
}

char *bag_v2_describe_server(const char *version, bool statistics)
{
    static const char *const extensions[] = {"binary_tensor_data", "model_configuration",
                                             "statistics"};
    cJSON *tree = cJSON_CreateObject();
    bool whole = cJSON_AddStringToObject(tree, "name", "bagserve") &&
                 cJSON_AddStringToObject(tree, "version", version) &&
                 bag_v2_add_strings(tree, "extensions", extensions, statistics ? 3 : 2);
    return bag_v2_print(tree, whole);
}

char *bag_v2_describe_health(const char *key, bool yes, const char *error)
{
    cJSON *tree = cJSON_CreateObject();
    bool whole = cJSON_AddBoolToObject(tree, key, yes) &&
                 (!error || cJSON_AddStringToObject(tree, "error", error));
    return bag_v2_print(tree, whole);
}

char *bag_v2_describe_readiness(const char *model, bool ready, const char *error)
{
    cJSON *tree = cJSON_CreateObject();
    bool whole = cJSON_AddStringToObject(tree, "name", model) &&
                 cJSON_AddBoolToObject(tree, "ready", ready) &&
                 (!error || cJSON_AddStringToObject(tree, "error", error));
    return bag_v2_print(tree, whole);
}

char *bag_v2_describe_models(const char *const *names, size_t count)
{
    cJSON *tree = cJSON_CreateObject();
    return bag_v2_print(tree, bag_v2_add_strings(tree, "models", names, count));
}

/* Adds {"name", "datatype", "shape": [dimensions...]}. */
static bool add_tensor(cJSON *list, const struct bag_v2_tensor *tensor)
{
    cJSON *item = bag_v2_add_item(list);
    return item && cJSON_AddStringToObject(item, "name", tensor->name) &&
           cJSON_AddStringToObject(item, "datatype", bag_dtypes[tensor->dtype].name) &&
           bag_v2_add_dimensions(item, "shape", tensor);
}

char *bag_v2_describe_model(const struct bag_v2_model *model)
{
    struct bag_v2_tensor tensor;
    cJSON *tree = cJSON_CreateObject();
    bool whole = cJSON_AddStringToObject(tree, "name", model->name) &&
                 bag_v2_add_strings(tree, "versions", model->versions, model->num_versions) &&
                 cJSON_AddStringToObject(tree, "platform", "bagserve");
    cJSON *inputs = cJSON_AddArrayToObject(tree, "inputs");
    cJSON *outputs = cJSON_AddArrayToObject(tree, "outputs");
    whole = whole && inputs && outputs;
    for (size_t i = 0; whole && bag_v2_model_input(model, i, &tensor); i++)
        whole = add_tensor(inputs, &tensor);
    for (size_t i = 0; whole && bag_v2_model_output(model, i, &tensor); i++)
        whole = add_tensor(outputs, &tensor);
    return bag_v2_print(tree, whole);
}

char *bag_v2_describe_index(const struct bag_v2_index_entry *entries, size_t count)
{
    cJSON *tree = cJSON_CreateArray();
    bool whole = tree != NULL;
    for (size_t i = 0; whole && i < count; i++) {
        cJSON *entry = bag_v2_add_item(tree);
        whole = entry && cJSON_AddStringToObject(entry, "name", entries[i].name) &&
                cJSON_AddStringToObject(entry, "version", entries[i].version) &&
                cJSON_AddStringToObject(entry, "state", entries[i].state) &&
                cJSON_AddStringToObject(entry, "reason", entries[i].reason);
    }
    return bag_v2_print(tree, whole);
}
