/* A model's keys -> struct bag_model_config, from an entry of "models" and from the config.json of
 * a model's own folder; see model_options.h for the keys. */
#include "model_json.h"

#include "entry.h"
#include "features_json.h"
#include "model_words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const identity[] = {
#define BAG_X(key, sentence) key,
    BAG_MODEL_IDENTITY(BAG_X)
#undef BAG_X
};

static const struct bag_setting settings[] = {
#define BAG_X(member, key, TYPE, minimum, maximum, sentence) \
    BAG_MODEL_SETTING(bag_model_config, member, key, TYPE, minimum, maximum),
    BAG_MODEL_KEYS(BAG_X)
#undef BAG_X
};

static const struct bag_entry_keys keys = {identity, sizeof identity / sizeof *identity, settings,
                                           sizeof settings / sizeof *settings};

/* A collection says nothing but its features, which say the rest each for itself. */
static bool apply_features(const struct bag_entry *entry, const cJSON *features,
                           struct bag_model_config *model)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, entry->object)
    {
        if (bag_entry_setting(entry, item->string))
            return bag_config_json_reject(entry->json, item,
                                          "key '%s'%s does not go with 'features'; each feature "
                                          "says it for itself",
                                          item->string, entry->where);
    }
    return bag_config_json_features(entry->json, features, model);
}

static bool apply_model(const struct bag_entry *entry, struct bag_model_config *model)
{
    const cJSON *features = bag_entry_member(entry, "features");
    return features ? apply_features(entry, features, model)
                    : bag_entry_apply(entry, model, &model->rules);
}

/* ---- entries of "models" --------------------------------------------------------------------- */

/* "version" may be a number or a string of digits; absent it is 1. NULL where it is neither. */
static const char *read_version(const struct bag_entry *entry, char *buffer, size_t buffer_bytes)
{
    const cJSON *item = bag_entry_member(entry, "version");
    if (!item)
        return "1";
    if (cJSON_IsString(item))
        return item->valuestring;
    if (cJSON_IsNumber(item)) {
        snprintf(buffer, buffer_bytes, "%.17g", item->valuedouble);
        return buffer;
    }
    bag_config_json_reject(entry->json, item, "version%s must be a whole number from 1",
                           entry->where);
    return NULL;
}

/* The table's path from the configuration file's folder; NULL for a collection. False where it is
 * rejected. */
static bool read_path(const struct bag_entry *entry, const char *name, char **path)
{
    const cJSON *item = bag_entry_member(entry, "path");
    *path = NULL;
    if (bag_entry_member(entry, "features"))
        return !item || bag_config_json_reject(entry->json, item,
                                               "key 'path'%s does not go with 'features': a model "
                                               "is a table or a collection",
                                               entry->where);
    const char *text = bag_entry_required(entry, "path");
    if (!text)
        return false;
    *path = bag_config_json_path(entry->json, text);
    return *path || bag_problem_set(entry->json->problem, BAG_ERROR_NO_MEMORY,
                                    "not enough memory for model '%s'", name);
}

static bool add_model(const struct bag_entry *entry, struct bag_config *config)
{
    char buffer[32], *path = NULL;
    struct bag_problem reason;
    const char *version = NULL, *name = bag_entry_required(entry, "name");
    if (name && read_path(entry, name, &path))
        version = read_version(entry, buffer, sizeof buffer);
    bool added = version && bag_config_add_model(config, name, path, version, &reason);
    if (version && !added)
        bag_config_json_reject(entry->json, entry->object, "%s", reason.text);
    free(path);
    return added && apply_model(entry, &config->models[config->num_models - 1]);
}

static bool apply_entry(const struct bag_config_json *json, const cJSON *object, size_t position,
                        struct bag_config *config)
{
    struct bag_entry entry = {.json = json, .object = object, .keys = &keys};
    const char *name = cJSON_GetStringValue(bag_entry_member(&entry, "name"));
    if (name && bag_model_name_valid(name))
        snprintf(entry.where, sizeof entry.where, " in model '%s'", name);
    else
        snprintf(entry.where, sizeof entry.where, " in models[%zu]", position);
    if (!cJSON_IsObject(object))
        return bag_config_json_reject(json, object,
                                      "models[%zu] must be an object: {\"name\": "
                                      "..., \"path\": ...}",
                                      position);
    return bag_entry_check_keys(&entry) && add_model(&entry, config);
}

bool bag_config_json_models(const struct bag_config_json *json, const cJSON *models,
                            struct bag_config *config)
{
    const cJSON *object;
    size_t position = 0;
    if (!cJSON_IsArray(models))
        return bag_config_json_reject(json, models, "models must be an array of objects: [{...}]");
    cJSON_ArrayForEach(object, models)
    {
        if (!apply_entry(json, object, position++, config))
            return false;
    }
    return true;
}

/* ---- config.json of a model's own folder ----------------------------------------------------- */

/* All but features, which only a folder without a table has. */
static bool reject_identity(const struct bag_entry *entry)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, entry->object)
    {
        if (strcmp(item->string, "features") == 0)
            continue;
        if (bag_entry_is_identity(entry, item->string))
            return bag_config_json_reject(entry->json, item,
                                          "key '%s'%s does not belong here: the folder says it",
                                          item->string, entry->where);
        if (!bag_entry_setting(entry, item->string))
            return bag_entry_unknown(entry, item, false);
    }
    return true;
}

/* A folder holds a table or says features. */
static bool check_parts(const struct bag_entry *entry, const struct bag_model_config *model)
{
    const cJSON *features = bag_entry_member(entry, "features");
    if (features && model->path)
        return bag_config_json_reject(entry->json, features,
                                      "key 'features'%s does not go with the table in its folder, "
                                      "'%s'",
                                      entry->where, model->path);
    return features || model->path ||
           bag_config_json_reject(entry->json, entry->object,
                                  "the folder%s has no table, so that 'features' must be here",
                                  entry->where);
}

bool bag_config_apply_model_file(struct bag_config *config, size_t index, const char *file_name,
                                 const char *text, size_t text_bytes, struct bag_problem *problem)
{
    struct bag_config_json json;
    struct bag_model_config *model = &config->models[index];
    if (!bag_config_json_parse(&json, file_name, text, text_bytes, problem))
        return false;
    struct bag_entry entry = {.json = &json, .object = json.tree, .keys = &keys};
    snprintf(entry.where, sizeof entry.where, " in model '%s'", model->name);
    bool applied =
        reject_identity(&entry) && check_parts(&entry, model) && apply_model(&entry, model);
    bag_json_free(json.tree);
    return applied;
}
