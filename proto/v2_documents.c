/* JSON documents of the V2 protocol about the server, by cJSON; see v2_documents.h. */
#include "v2_documents.h"

#include "v2_request.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>

/* ---- parts of trees -------------------------------------------------------------------------- */

char *bag_v2_print_tree(cJSON *tree, bool ok)
{
    char *text = ok ? cJSON_PrintUnformatted(tree) : NULL;
    cJSON_Delete(tree);
    return text;
}

bool bag_v2_add_strings(cJSON *tree, const char *key, const char *const *strings, size_t count)
{
    cJSON *list = cJSON_CreateStringArray(strings, (int)count);
    if (cJSON_AddItemToObject(tree, key, list))
        return true;
    cJSON_Delete(list);
    return false;
}

bool bag_v2_add_numbers(cJSON *tree, const char *key, const int64_t *numbers, size_t count)
{
    cJSON *list = cJSON_AddArrayToObject(tree, key);
    bool ok = list != NULL;
    for (size_t i = 0; ok && i < count; i++)
        ok = cJSON_AddItemToArray(list, cJSON_CreateNumber((double)numbers[i]));
    return ok;
}

cJSON *bag_v2_add_item(cJSON *list)
{
    cJSON *item = cJSON_CreateObject();
    if (cJSON_AddItemToArray(list, item))
        return item;
    cJSON_Delete(item);
    return NULL;
}

bool bag_v2_add_integer(cJSON *tree, const char *key, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, value);
    return cJSON_AddRawToObject(tree, key, text) != NULL;
}

bool bag_v2_add_signed(cJSON *tree, const char *key, int64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, value);
    return cJSON_AddRawToObject(tree, key, text) != NULL;
}

/* ---- errors, health and the server ----------------------------------------------------------- */

char *bag_v2_describe_error(const char *text)
{
    cJSON *tree = cJSON_CreateObject();
    return bag_v2_print_tree(tree, cJSON_AddStringToObject(tree, "error", text));
}

char *bag_v2_describe_root(const char *version, const char *isa, bool statistics, bool console)
{
    static const char *const links[][2] = {
        {"server", "/v2"},        {"live", "/v2/health/live"},  {"ready", "/v2/health/ready"},
        {"models", "/v2/models"}, {"openapi", "/openapi.json"}, {"stats", "/v2/models/stats"},
        {"metrics", "/metrics"},
    };
    cJSON *tree = cJSON_CreateObject();
    bool ok = cJSON_AddStringToObject(tree, "name", "bagserve") &&
              cJSON_AddStringToObject(tree, "version", version) &&
              cJSON_AddStringToObject(tree, "isa", isa);
    cJSON *object = cJSON_AddObjectToObject(tree, "links");
    size_t count = sizeof links / sizeof links[0] - (statistics ? 0 : 2);
    for (size_t i = 0; i < count; i++)
        ok = ok && cJSON_AddStringToObject(object, links[i][0], links[i][1]);
    ok = ok && (!console || cJSON_AddStringToObject(object, "console", "/console"));
    return bag_v2_print_tree(tree, ok);
}

char *bag_v2_describe_server(const char *version, const char *instance, uint64_t generation,
                             bool statistics, bool control)
{
    const char *extensions[5] = {"binary_tensor_data", "model_configuration"};
    size_t count = 2;
    if (statistics)
        extensions[count++] = "statistics";
    if (control) {
        extensions[count++] = "model_repository";
        extensions[count++] = "model_repository(unload_dependents)";
    }
    cJSON *tree = cJSON_CreateObject();
    bool ok = cJSON_AddStringToObject(tree, "name", "bagserve") &&
              cJSON_AddStringToObject(tree, "version", version) &&
              bag_v2_add_strings(tree, "extensions", extensions, count) &&
              cJSON_AddStringToObject(tree, "instance", instance) &&
              cJSON_AddNumberToObject(tree, "generation", (double)generation);
    return bag_v2_print_tree(tree, ok);
}

char *bag_v2_describe_health(const char *key, bool yes, const char *error)
{
    cJSON *tree = cJSON_CreateObject();
    bool ok = cJSON_AddBoolToObject(tree, key, yes) &&
              (!error || cJSON_AddStringToObject(tree, "error", error));
    return bag_v2_print_tree(tree, ok);
}

char *bag_v2_describe_readiness(const char *model, bool ready, const char *error)
{
    cJSON *tree = cJSON_CreateObject();
    bool ok = cJSON_AddStringToObject(tree, "name", model) &&
              cJSON_AddBoolToObject(tree, "ready", ready) &&
              (!error || cJSON_AddStringToObject(tree, "error", error));
    return bag_v2_print_tree(tree, ok);
}

char *bag_v2_describe_models(const char *const *names, size_t count)
{
    cJSON *tree = cJSON_CreateObject();
    return bag_v2_print_tree(tree, bag_v2_add_strings(tree, "models", names, count));
}

/* ---- the repository's index ------------------------------------------------------------------ */

char *bag_v2_describe_index(const struct bag_v2_index_entry *entries, size_t count)
{
    cJSON *tree = cJSON_CreateArray();
    bool ok = tree != NULL;
    for (size_t i = 0; ok && i < count; i++) {
        cJSON *entry = bag_v2_add_item(tree);
        ok = entry && cJSON_AddStringToObject(entry, "name", entries[i].name) &&
             cJSON_AddStringToObject(entry, "version", entries[i].version) &&
             cJSON_AddStringToObject(entry, "state", entries[i].state) &&
             cJSON_AddStringToObject(entry, "reason", entries[i].reason);
    }
    return bag_v2_print_tree(tree, ok);
}

/* ---- statistics ------------------------------------------------------------------------------ */

static bool add_duration(cJSON *tree, const char *key, struct bag_v2_duration duration)
{
    cJSON *object = cJSON_AddObjectToObject(tree, key);
    return object && bag_v2_add_integer(object, "count", duration.count) &&
           bag_v2_add_integer(object, "ns", duration.ns);
}

/* A model whose max_batch_size is 0 has one size of batches, 1, and all its executions are of it.
 */
static bool add_batches(cJSON *tree, const struct bag_v2_statistics *model)
{
    cJSON *list = cJSON_AddArrayToObject(tree, "batch_stats");
    if (!list || model->execution_count == 0)
        return list;
    cJSON *batch = bag_v2_add_item(list);
    uint64_t count = model->execution_count;
    return batch && bag_v2_add_integer(batch, "batch_size", 1) &&
           add_duration(batch, "compute_input",
                        (struct bag_v2_duration){count, model->compute_input.ns}) &&
           add_duration(batch, "compute_infer",
                        (struct bag_v2_duration){count, model->compute_infer.ns}) &&
           add_duration(batch, "compute_output",
                        (struct bag_v2_duration){count, model->compute_output.ns});
}

static bool add_statistics(cJSON *list, const struct bag_v2_statistics *model)
{
    cJSON *tree = bag_v2_add_item(list);
    bool ok =
        tree && cJSON_AddStringToObject(tree, "name", model->name) &&
        cJSON_AddStringToObject(tree, "version", model->version) &&
        bag_v2_add_integer(tree, "last_inference", model->last_inference_ms) &&
        bag_v2_add_integer(tree, "inference_count", model->inference_count) &&
        bag_v2_add_integer(tree, "execution_count", model->execution_count) &&
        (!model->keyed || bag_v2_add_integer(tree, "missing_key_count", model->missing_key_count));
    cJSON *durations = cJSON_AddObjectToObject(tree, "inference_stats");
    ok = ok && durations;
#define BAG_X(member) ok = ok && add_duration(durations, #member, model->member);
    BAG_V2_DURATIONS(BAG_X)
#undef BAG_X
    return ok && add_batches(tree, model);
}

char *bag_v2_describe_statistics(const struct bag_v2_statistics *models, size_t count)
{
    cJSON *tree = cJSON_CreateObject();
    cJSON *list = cJSON_AddArrayToObject(tree, "model_stats");
    bool ok = list != NULL;
    for (size_t i = 0; ok && i < count; i++)
        ok = add_statistics(list, &models[i]);
    return bag_v2_print_tree(tree, ok);
}
