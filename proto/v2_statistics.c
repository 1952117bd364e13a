/* The document of model statistics; see v2_describe.h. */
#include "v2_describe.h"
#include "v2_document.h"

#include <inttypes.h>
#include <stdio.h>

/* cJSON's numbers are doubles, and large ones print with an exponent. */
static bool add_integer(cJSON *tree, const char *key, uint64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64, value);
    return cJSON_AddRawToObject(tree, key, text);
}

static bool add_duration(cJSON *tree, const char *key, struct bag_v2_duration duration)
{
    cJSON *object = cJSON_AddObjectToObject(tree, key);
    return object && add_integer(object, "count", duration.count) &&
           add_integer(object, "ns", duration.ns);
}

static bool add_statistics(cJSON *list, const struct bag_v2_statistics *model)
{
    cJSON *tree = bag_v2_add_item(list);
    bool whole = tree && cJSON_AddStringToObject(tree, "name", model->name) &&
                 cJSON_AddStringToObject(tree, "version", model->version) &&
                 add_integer(tree, "last_inference", model->last_inference_ms) &&
                 add_integer(tree, "inference_count", model->inference_count) &&
                 add_integer(tree, "execution_count", model->execution_count);
    cJSON *durations = cJSON_AddObjectToObject(tree, "inference_stats");
    whole = whole && durations;
#define BAG_X(member) whole = whole && add_duration(durations, #member, model->member);
    BAG_V2_DURATIONS(BAG_X)
#undef BAG_X
    return whole && cJSON_AddArrayToObject(tree, "batch_stats");
}

char *bag_v2_describe_statistics(const struct bag_v2_statistics *models, size_t count)
{
    cJSON *tree = cJSON_CreateObject();
    cJSON *list = cJSON_AddArrayToObject(tree, "model_stats");
    bool whole = list != NULL;
    for (size_t i = 0; whole && i < count; i++)
        whole = add_statistics(list, &models[i]);
    return bag_v2_print(tree, whole);
}
