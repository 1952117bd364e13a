/* A model's keys -> struct bag_model_config, from an entry of "models" and from the config.json of
 * a model's own folder; see model_options.h for the keys. */
#include "model_json.h"

#include "model_options.h"
#include "suggest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the lists of keys ----------------------------------------------------------------------- */

static const char *const identity[] = {
#define BAG_X(key, sentence) key,
    BAG_MODEL_IDENTITY(BAG_X)
#undef BAG_X
};

/* Tables hold numbers, so that the other types have no word. */
#define BAG_TABLE_SIGNED(name)   name
#define BAG_TABLE_UNSIGNED(name) name
#define BAG_TABLE_FLOAT(name)    name
#define BAG_TABLE_OTHER(name)    NULL
static const char *const dtypes[] = {
#define BAG_X(id, name, bytes, kind) BAG_TABLE_##kind(name),
    BAG_DTYPES(BAG_X)
#undef BAG_X
};

#define BAG_X(id, name) name,
static const char *const reductions[] = {BAG_REDUCTIONS(BAG_X)};
static const char *const row_formats[] = {BAG_ROW_FORMATS(BAG_X)};
static const char *const out_of_range[] = {BAG_OUT_OF_RANGE(BAG_X)};
#undef BAG_X

#define BAG_TYPE_CHOICE_DTYPE        BAG_TYPE_CHOICE(dtypes)
#define BAG_TYPE_CHOICE_REDUCTION    BAG_TYPE_CHOICE(reductions)
#define BAG_TYPE_CHOICE_ROW_FORMAT   BAG_TYPE_CHOICE(row_formats)
#define BAG_TYPE_EITHER_OUT_OF_RANGE BAG_TYPE_EITHER(out_of_range)

static const struct bag_setting settings[] = {
#define BAG_X(member, key_, TYPE, minimum_, maximum_, sentence) \
    {.key = (key_),                                             \
     .offset = offsetof(struct bag_model_config, member),       \
     .minimum = (minimum_),                                     \
     .maximum = (maximum_),                                     \
     .unit = "",                                                \
     BAG_TYPE_##TYPE},
    BAG_MODEL_KEYS(BAG_X)
#undef BAG_X
};

#define NUM_IDENTITY (sizeof identity / sizeof *identity)
#define NUM_SETTINGS (sizeof settings / sizeof *settings)

static bool is_identity(const char *key)
{
    for (size_t i = 0; i < NUM_IDENTITY; i++) {
        if (strcmp(identity[i], key) == 0)
            return true;
    }
    return false;
}

static const struct bag_setting *find_setting(const char *key)
{
    for (size_t i = 0; i < NUM_SETTINGS; i++) {
        if (strcmp(settings[i].key, key) == 0)
            return &settings[i];
    }
    return NULL;
}

/* ---- one model's object ---------------------------------------------------------------------- */

/* An object with a model's keys, and its name in messages: " in model 'items'". */
struct entry {
    const struct bag_config_json *json;
    const cJSON *object;
    char where[160];
};

static bool refuse_unknown(const struct entry *entry, const cJSON *item, bool with_identity)
{
    struct bag_suggestion suggestion = {.written = item->string};
    for (size_t i = 0; with_identity && i < NUM_IDENTITY; i++)
        bag_suggest_offer(&suggestion, identity[i]);
    for (size_t i = 0; i < NUM_SETTINGS; i++)
        bag_suggest_offer(&suggestion, settings[i].key);
    return bag_config_json_unknown(entry->json, item, entry->where, suggestion.nearest);
}

/* Before any value is looked at: a missing key is most often a misspelt one. */
static bool check_keys(const struct entry *entry)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, entry->object)
    {
        if (!is_identity(item->string) && !find_setting(item->string))
            return refuse_unknown(entry, item, true);
    }
    return true;
}

static bool apply_settings(const struct entry *entry, struct bag_model_config *model)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, entry->object)
    {
        const struct bag_setting *setting = find_setting(item->string);
        if (!setting)
            continue;
        if (!bag_config_json_apply(entry->json, item, entry->where, setting, model))
            return false;
        /* Every index can be the padding one, so that no value of the member means "none". */
        if (setting->offset == offsetof(struct bag_model_config, rules.padding_idx))
            model->rules.has_padding_idx = true;
    }
    return true;
}

/* ---- entries of "models" --------------------------------------------------------------------- */

static const char *string_of(const struct entry *entry, const char *key)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry->object, key));
}

/* A key that must be there, as a text that is not empty. */
static const char *required(const struct entry *entry, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(entry->object, key);
    const char *text = cJSON_GetStringValue(item);
    if (text && *text)
        return text;
    if (item)
        bag_config_json_refuse(entry->json, item, "%s%s must be a text that is not empty", key,
                               entry->where);
    else
        bag_config_json_refuse(entry->json, entry->object, "key '%s' is missing%s", key,
                               entry->where);
    return NULL;
}

/* "version" may be a number or a string of digits; absent it is 1. NULL where it is neither. */
static const char *read_version(const struct entry *entry, char *buffer, size_t buffer_bytes)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(entry->object, "version");
    if (!item)
        return "1";
    if (cJSON_IsString(item))
        return item->valuestring;
    if (cJSON_IsNumber(item)) {
        snprintf(buffer, buffer_bytes, "%.17g", item->valuedouble);
        return buffer;
    }
    bag_config_json_refuse(entry->json, item, "version%s must be a whole number from 1",
                           entry->where);
    return NULL;
}

static bool add_model(const struct entry *entry, struct bag_config *config)
{
    char buffer[32];
    struct bag_problem reason;
    const char *name = required(entry, "name");
    const char *path = name ? required(entry, "path") : NULL;
    const char *version = path ? read_version(entry, buffer, sizeof buffer) : NULL;
    if (!version)
        return false;
    char *joined = bag_config_json_path(entry->json, path);
    bool added = joined && bag_config_add_model(config, name, joined, version, &reason);
    if (!joined)
        bag_problem_set(entry->json->problem, 500, "not enough memory for model '%s'", name);
    else if (!added)
        bag_config_json_refuse(entry->json, entry->object, "%s", reason.text);
    free(joined);
    return added && apply_settings(entry, &config->models[config->num_models - 1]);
}

static bool apply_entry(const struct bag_config_json *json, const cJSON *object, size_t position,
                        struct bag_config *config)
{
    struct entry entry = {.json = json, .object = object};
    const char *name = string_of(&entry, "name");
    if (name && bag_model_name_valid(name))
        snprintf(entry.where, sizeof entry.where, " in model '%s'", name);
    else
        snprintf(entry.where, sizeof entry.where, " in models[%zu]", position);
    if (!cJSON_IsObject(object))
        return bag_config_json_refuse(json, object,
                                      "models[%zu] must be an object: {\"name\": "
                                      "..., \"path\": ...}",
                                      position);
    return check_keys(&entry) && add_model(&entry, config);
}

bool bag_config_json_models(const struct bag_config_json *json, const cJSON *models,
                            struct bag_config *config)
{
    const cJSON *object;
    size_t position = 0;
    if (!cJSON_IsArray(models))
        return bag_config_json_refuse(json, models, "models must be an array of objects: [{...}]");
    cJSON_ArrayForEach(object, models)
    {
        if (!apply_entry(json, object, position++, config))
            return false;
    }
    return true;
}

/* ---- config.json of a model's own folder ----------------------------------------------------- */

static bool refuse_identity(const struct entry *entry)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, entry->object)
    {
        if (is_identity(item->string))
            return bag_config_json_refuse(entry->json, item,
                                          "key '%s'%s does not belong here: the folder says it",
                                          item->string, entry->where);
        if (!find_setting(item->string))
            return refuse_unknown(entry, item, false);
    }
    return true;
}

bool bag_config_apply_model_file(struct bag_config *config, size_t index, const char *file_name,
                                 const char *text, size_t text_bytes, struct bag_problem *problem)
{
    struct bag_config_json json;
    struct bag_model_config *model = &config->models[index];
    if (!bag_config_json_parse(&json, file_name, text, text_bytes, problem))
        return false;
    struct entry entry = {.json = &json, .object = json.tree};
    snprintf(entry.where, sizeof entry.where, " in model '%s'", model->name);
    bool applied = refuse_identity(&entry) && apply_settings(&entry, model);
    bag_json_free(json.tree);
    return applied;
}
