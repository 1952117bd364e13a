/* The "features" of a model -> struct bag_feature_config; see model_options.h for the keys. */
#include "features_json.h"

#include "entry.h"
#include "model_words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const identity[] = {
#define BAG_X(key, sentence) key,
    BAG_FEATURE_IDENTITY(BAG_X)
#undef BAG_X
};

static const struct bag_setting settings[] = {
#define BAG_X(member, key, TYPE, minimum, maximum, sentence) \
    BAG_MODEL_SETTING(bag_feature_config, member, key, TYPE, minimum, maximum),
    BAG_POOLING_KEYS(BAG_X) BAG_PROJECTION_KEYS(BAG_X)
#undef BAG_X
};

_Static_assert(sizeof settings / sizeof *settings <= 32, "a bit for each is all there is");

static const struct bag_entry_keys keys = {identity, sizeof identity / sizeof *identity, settings,
                                           sizeof settings / sizeof *settings};

/* The name of the concatenation of all features. */
#define CONCATENATION "embeddings"

static bool check_name(const struct bag_entry *entry, const char *name,
                       const struct bag_model_config *model)
{
    const cJSON *item = bag_entry_member(entry, "name");
    if (!bag_model_name_valid(name))
        return bag_config_json_reject(entry->json, item,
                                      "name '%s'%s must be 1 to 128 of A-Z a-z 0-9 . _ - with no "
                                      "dot in front",
                                      bag_quote(name, strlen(name)).text, entry->where);
    if (strcmp(name, CONCATENATION) == 0)
        return bag_config_json_reject(entry->json, item,
                                      "name '" CONCATENATION "'%s is taken: it is the output that "
                                      "holds all features side by side",
                                      entry->where);
    for (size_t i = 0; i < model->num_features; i++) {
        if (strcmp(model->features[i].name, name) == 0)
            return bag_config_json_reject(entry->json, item, "name '%s'%s stands twice", name,
                                          entry->where);
    }
    return true;
}

/* Bit i: the object has the i-th of the settings. */
static uint32_t find_set(const struct bag_entry *entry)
{
    uint32_t set = 0;
    for (size_t i = 0; i < keys.num_settings; i++) {
        if (bag_entry_member(entry, settings[i].key))
            set |= UINT32_C(1) << i;
    }
    return set;
}

/* Names as copies; the model owns them from here on. */
static bool add_feature(const struct bag_entry *entry, const char *name, const char *table,
                        struct bag_model_config *model)
{
    struct bag_feature_config feature = {
        .name = strdup(name), .model = strdup(table), .set = find_set(entry)};
    struct bag_feature_config *features =
        reallocarray(model->features, model->num_features + 1, sizeof *features);
    if (features)
        model->features = features;
    if (!features || !feature.name || !feature.model) {
        free(feature.name);
        free(feature.model);
        return bag_problem_set(entry->json->problem, BAG_ERROR_NO_MEMORY,
                               "not enough memory for model '%s'", model->name);
    }
    model->features[model->num_features] = feature;
    struct bag_feature_config *added = &model->features[model->num_features++];
    return bag_entry_apply(entry, added, &added->rules);
}

static bool apply_feature(const struct bag_config_json *json, const cJSON *object,
                          struct bag_model_config *model)
{
    struct bag_entry entry = {.json = json, .object = object, .keys = &keys};
    const char *name = cJSON_GetStringValue(bag_entry_member(&entry, "name"));
    if (!cJSON_IsObject(object))
        return bag_config_json_reject(json, object,
                                      "features[%zu] in model '%s' must be an object: {\"name\": "
                                      "..., \"model\": ...}",
                                      model->num_features, model->name);
    if (name && bag_model_name_valid(name))
        snprintf(entry.where, sizeof entry.where, " in feature '%s' of model '%s'", name,
                 model->name);
    else
        snprintf(entry.where, sizeof entry.where, " in features[%zu] of model '%s'",
                 model->num_features, model->name);
    if (!bag_entry_check_keys(&entry))
        return false;
    name = bag_entry_required(&entry, "name");
    const char *table = name ? bag_entry_required(&entry, "model") : NULL;
    return table && check_name(&entry, name, model) && add_feature(&entry, name, table, model);
}

bool bag_config_json_features(const struct bag_config_json *json, const cJSON *features,
                              struct bag_model_config *model)
{
    const cJSON *object;
    if (!cJSON_IsArray(features) || !features->child)
        return bag_config_json_reject(json, features,
                                      "features in model '%s' must be an array of at least one "
                                      "object: [{\"name\": ..., \"model\": ...}]",
                                      model->name);
    cJSON_ArrayForEach(object, features)
    {
        if (!apply_feature(json, object, model))
            return false;
    }
    return true;
}
