/* Applies configuration files (JSON): sections of options, models with their features, and the
 * config.json of a model's own folder.
 *
 * Each function takes a node of the document and the struct that it describes. It returns false and
 * sets the problem with the position of the node if the node is wrong. */
#include "config.h"
#include "json.h"
#include "names.h"
#include "shards.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- versions -------------------------------------------------------------------------------- */

/* Reads "version", which may be a number or a string of digits. It is 1 if absent. Returns NULL and
 * sets the problem if it is neither. */
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

/* ---- "features" of a model ------------------------------------------------------------------- */

/* The name of the concatenation of all features. */
#define CONCATENATION "embeddings"

/* Checks that the name of a feature is valid, not reserved, and not that of an earlier feature in
 * `names`. */
static bool check_feature_name(const struct bag_entry *entry, const char *name,
                               const struct bag_names *names)
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
    return !bag_names_find(names, name, NULL) ||
           bag_config_json_reject(entry->json, item, "name '%s'%s is duplicated", name,
                                  entry->where);
}

/* Returns the settings of bag_feature_keys that the object has: bit i is set if it has setting i.
 */
static uint32_t find_set(const struct bag_entry *entry)
{
    uint32_t set = 0;
    for (size_t i = 0; i < bag_feature_keys.num_settings; i++) {
        if (bag_entry_member(entry, bag_feature_keys.settings[i].key))
            set |= UINT32_C(1) << i;
    }
    return set;
}

/* Sets *version to the version of its table that a feature is pinned to, or to 0 if it has none. */
static bool read_pin(const struct bag_entry *entry, uint64_t *version)
{
    const cJSON *item = bag_entry_member(entry, "version");
    char buffer[32];
    const char *text = item ? read_version(entry, buffer, sizeof buffer) : NULL;
    *version = 0;
    if (!text)
        return !item;
    return bag_model_version_parse(text, version) ||
           bag_config_json_reject(
               entry->json, item, "version '%s'%s must be a whole number from 1 to %lld",
               bag_quote(text, strlen(text)).text, entry->where, (long long)BAG_LARGEST_EXACT);
}

/* Adds a feature with copies of its names, which the model owns. */
static bool add_feature(const struct bag_entry *entry, const char *name, const char *table,
                        uint64_t version, struct bag_model_config *model, struct bag_names *names)
{
    struct bag_feature_config feature = {
        .name = strdup(name), .model = strdup(table), .version = version, .set = find_set(entry)};
    if (!BAG_GROW(model->features, model->num_features) || !feature.name || !feature.model ||
        !bag_names_reserve(names, 1)) {
        free(feature.name);
        free(feature.model);
        return bag_problem_set(entry->json->problem, BAG_ERROR_NO_MEMORY,
                               "not enough memory for model '%s'", model->name);
    }
    bag_names_put(names, feature.name, NULL, model->num_features);
    model->features[model->num_features] = feature;
    struct bag_feature_config *added = &model->features[model->num_features++];
    return bag_entry_apply(entry, added, &added->rules);
}

/* Adds the feature that an object describes to the model. */
static bool apply_feature(const struct bag_config_json *json, const cJSON *object,
                          struct bag_model_config *model, struct bag_names *names)
{
    struct bag_entry entry = {.json = json, .object = object, .keys = &bag_feature_keys};
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
    uint64_t version;
    return table && read_pin(&entry, &version) && check_feature_name(&entry, name, names) &&
           add_feature(&entry, name, table, version, model, names);
}

/* Adds all features of a collection. The index of their names lives only here, to find duplicates.
 */
static bool apply_feature_list(const struct bag_config_json *json, const cJSON *features,
                               struct bag_model_config *model)
{
    struct bag_names names = {0};
    const cJSON *object;
    bool ok = true;
    if (!cJSON_IsArray(features) || !features->child)
        return bag_config_json_reject(json, features,
                                      "features in model '%s' must be an array of at least one "
                                      "object: [{\"name\": ..., \"model\": ...}]",
                                      model->name);
    for (object = features->child; ok && object; object = object->next)
        ok = apply_feature(json, object, model, &names);
    bag_names_free(&names);
    return ok;
}

/* ---- entries of "models" --------------------------------------------------------------------- */

/* Applies the features of a collection and how it is served. A collection may have no other keys,
 * because each feature has its own. */
static bool apply_features(const struct bag_entry *entry, const cJSON *features,
                           struct bag_model_config *model)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, entry->object)
    {
        if (bag_setting_is_of_table(bag_entry_setting(entry, item->string)))
            return bag_config_json_reject(
                entry->json, item,
                "key '%s'%s cannot be combined with 'features'; each feature "
                "says it for itself",
                item->string, entry->where);
    }
    return apply_feature_list(entry->json, features, model) &&
           bag_entry_apply(entry, model, &model->rules);
}

/* Applies all keys of a model except its identity. Rejects keys that do not suit a model with
 * shards, or one without. */
static bool apply_model(const struct bag_entry *entry, struct bag_model_config *model)
{
    const cJSON *features = bag_entry_member(entry, "features"), *item;
    cJSON_ArrayForEach(item, entry->object)
    {
        const char *why = bag_setting_misfit(bag_entry_setting(entry, item->string), model);
        if (why && !features)
            return bag_config_json_reject(entry->json, item, "key '%s'%s %s", item->string,
                                          entry->where, why);
    }
    model->set |= find_set(entry);
    return features ? apply_features(entry, features, model)
                    : bag_entry_apply(entry, model, &model->rules);
}

/* Returns the first of the keys "path", "features" and "shards" other than `key` that the entry
 * has, or NULL. */
static const cJSON *find_other(const struct bag_entry *entry, const char *key)
{
    static const char *const keys[] = {"path", "features", "shards"};
    const cJSON *found = NULL;
    for (size_t i = 0; !found && i < sizeof keys / sizeof *keys; i++)
        found = strcmp(keys[i], key) == 0 ? NULL : bag_entry_member(entry, keys[i]);
    return found;
}

/* Sets *path to the addresses of shards (shards.h). bag_shards_check checks their form later. */
static bool read_shards(const struct bag_entry *entry, const cJSON *shards, char **path)
{
    const cJSON *item = NULL;
    bool ok = cJSON_IsArray(shards) && shards->child;
    if (bag_entry_member(entry, "version"))
        return bag_config_json_reject(entry->json, bag_entry_member(entry, "version"),
                                      "key 'version'%s cannot be combined with 'shards', which say "
                                      "their versions",
                                      entry->where);
    if (ok)
        cJSON_ArrayForEach(item, shards) ok =
            ok && cJSON_IsString(item) && *item->valuestring && !strchr(item->valuestring, ' ');
    if (!ok)
        return bag_config_json_reject(entry->json, shards,
                                      "shards%s must be an array of addresses without blanks: "
                                      "[\"http://HOST:PORT\", \"unix:PATH\"]",
                                      entry->where);
    *path = bag_shards_path(shards);
    return *path || bag_problem_no_memory(entry->json->problem);
}

/* Sets *path to the table's path relative to the configuration file's folder, or to NULL for a
 * collection. Returns false and sets the problem if it is wrong. */
static bool read_path(const struct bag_entry *entry, const char *name, char **path)
{
    const cJSON *features = bag_entry_member(entry, "features");
    const cJSON *shards = bag_entry_member(entry, "shards");
    const char *key = features ? "features" : "shards";
    const cJSON *other = features || shards ? find_other(entry, key) : NULL;
    *path = NULL;
    if (other)
        return bag_config_json_reject(entry->json, other,
                                      "key '%s'%s cannot be combined with '%s': a model is a "
                                      "table, a collection, or what its shards have",
                                      other->string, entry->where, key);
    if (features)
        return true;
    if (shards)
        return read_shards(entry, shards, path);
    const char *text = bag_entry_required(entry, "path");
    if (!text)
        return false;
    *path = bag_config_json_path(entry->json, text);
    return *path || bag_problem_set(entry->json->problem, BAG_ERROR_NO_MEMORY,
                                    "not enough memory for model '%s'", name);
}

/* Adds the model that an entry describes, and applies its keys. */
static bool add_model(const struct bag_entry *entry, struct bag_config *config)
{
    char buffer[32], *path = NULL;
    struct bag_problem reason;
    const char *version = NULL, *name = bag_entry_required(entry, "name");
    if (name && read_path(entry, name, &path))
        version = read_version(entry, buffer, sizeof buffer);
    /* The reason has no position yet; the entry's position is added to it. */
    bool added = version && bag_config_add_model(config, name, path, version, &reason);
    if (version && !added)
        bag_config_json_reject(entry->json, entry->object, "%s", reason.text);
    free(path);
    return added && apply_model(entry, &config->models[config->num_models - 1]);
}

/* Applies one entry of "models". Messages name the model, or its position if it has no valid name.
 */
static bool apply_model_entry(const struct bag_config_json *json, const cJSON *object,
                              size_t position, struct bag_config *config)
{
    struct bag_entry entry = {.json = json, .object = object, .keys = &bag_model_keys};
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

/* Applies all entries of "models". An entry that is wrong ends the loop. */
static bool apply_models(const struct bag_config_json *json, const cJSON *models,
                         struct bag_config *config)
{
    const cJSON *object;
    size_t position = 0;
    if (!cJSON_IsArray(models))
        return bag_config_json_reject(json, models, "models must be an array of objects: [{...}]");
    cJSON_ArrayForEach(object, models)
    {
        if (!apply_model_entry(json, object, position++, config))
            return false;
    }
    return true;
}

bool bag_config_set_model_key(struct bag_config *config, size_t index, const char *key,
                              const char *value, struct bag_problem *problem)
{
    struct bag_model_config *model = &config->models[index];
    struct bag_entry entry = {.keys = &bag_model_keys};
    const struct bag_setting *setting = bag_entry_setting(&entry, key);
    struct bag_suggestion suggestion = {.written = key};
    struct bag_reason reason;
    for (size_t i = 0; !setting && i < bag_model_keys.num_settings; i++)
        bag_suggest_offer(&suggestion, bag_model_keys.settings[i].key);
    if (!setting)
        return bag_problem_set(problem, BAG_ERROR_USAGE, "unknown key '%s'%s",
                               bag_quote(key, strlen(key)).text,
                               bag_suggestion_question(&suggestion, "'").text);
    const char *misfit = bag_setting_misfit(setting, model);
    if (misfit)
        return bag_problem_set(problem, BAG_ERROR_USAGE, "key '%s' %s", key, misfit);
    if (!bag_setting_apply(setting, model, value, &reason))
        return bag_problem_set(problem, BAG_ERROR_USAGE, "%s %s: %s", key,
                               bag_quote(value, strlen(value)).text, reason.text);
    for (size_t i = 0; i < bag_feature_keys.num_settings; i++) {
        if (strcmp(bag_feature_keys.settings[i].key, key) == 0)
            model->set |= UINT32_C(1) << i;
    }
    /* bag_entry_apply does the same for documents. */
    model->rules.has_padding_idx |= strcmp(key, "padding_idx") == 0;
    model->rules.has_default_index |= strcmp(key, "default_index") == 0;
    return true;
}

/* ---- the config.json of a model's folder ----------------------------------------------------- */

/* Rejects keys that the folder determines. Only "features" is allowed, for a folder without a
 * table. */
static bool reject_identity(const struct bag_entry *entry)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, entry->object)
    {
        if (strcmp(item->string, "features") == 0)
            continue;
        if (strcmp(item->string, "shards") == 0)
            return bag_config_json_reject(
                entry->json, item,
                "key 'shards'%s does not belong here: a model of shards "
                "has no folder; list it in 'models' of a configuration file",
                entry->where);
        if (bag_entry_is_identity(entry, item->string))
            return bag_config_json_reject(entry->json, item,
                                          "key '%s'%s does not belong here: the folder says it",
                                          item->string, entry->where);
        if (!bag_entry_setting(entry, item->string))
            return bag_entry_unknown(entry, item, false);
    }
    return true;
}

/* Checks that the folder of a version has either a table or features, and that the folder around
 * the versions has no features. */
static bool check_parts(const struct bag_entry *entry, const struct bag_model_config *model,
                        bool is_shared)
{
    const cJSON *features = bag_entry_member(entry, "features");
    if (is_shared)
        return !features ||
               bag_config_json_reject(entry->json, features,
                                      "key 'features'%s belongs in the folder of a version",
                                      entry->where);
    if (features && model->path)
        return bag_config_json_reject(
            entry->json, features,
            "key 'features'%s cannot be combined with the table in its folder, "
            "'%s'",
            entry->where, model->path);
    return features || model->path ||
           bag_config_json_reject(entry->json, entry->object,
                                  "the folder%s has no table, so that 'features' must be here",
                                  entry->where);
}

bool bag_config_apply_model_file(struct bag_config *config, size_t index, const char *file_name,
                                 const char *text, size_t text_bytes, bool is_shared,
                                 struct bag_problem *problem)
{
    struct bag_config_json json;
    struct bag_model_config *model = &config->models[index];
    if (!bag_config_json_parse(&json, file_name, text, text_bytes, problem))
        return false;
    struct bag_entry entry = {.json = &json, .object = json.tree, .keys = &bag_model_keys};
    snprintf(entry.where, sizeof entry.where, " in model '%s'", model->name);
    bool applied = reject_identity(&entry) && check_parts(&entry, model, is_shared) &&
                   apply_model(&entry, model);
    bag_json_free(json.tree);
    return applied;
}

/* ---- sections of options, and the whole document --------------------------------------------- */

static const struct bag_option *find_option(const char *key)
{
    return bag_option_find((struct bag_text){key, strlen(key)}, bag_key_of);
}

/* Returns whether an option belongs to a section with this name. */
static bool is_section(const char *key)
{
    for (size_t i = 0; *key && i < bag_num_options; i++) {
        if (strcmp(bag_options[i].section, key) == 0)
            return true;
    }
    return false;
}

/* Rejects a key that its section does not have, with the nearest key of this section. Returns
 * false. */
static bool reject_in_section(const struct bag_config_json *json, const cJSON *item,
                              const char *section, const char *where)
{
    struct bag_suggestion suggestion = {.written = item->string};
    for (size_t i = 0; i < bag_num_options; i++) {
        if (strcmp(bag_options[i].section, section) == 0)
            bag_suggest_offer(&suggestion, bag_options[i].setting.key);
    }
    return bag_config_json_unknown(json, item, where, &suggestion);
}

/* Applies an option, and stores that the file has set it. */
static bool apply_option(const struct bag_config_json *json, const cJSON *item, const char *where,
                         const struct bag_option *option, struct bag_config *config)
{
    bag_config_note_origin(config, option, BAG_ORIGIN_FILE);
    return bag_config_json_apply(json, item, where, &option->setting, config);
}

/* Applies the options of a section, such as "http". */
static bool apply_section(const struct bag_config_json *json, const cJSON *section,
                          struct bag_config *config)
{
    char where[64];
    const cJSON *item;
    if (!cJSON_IsObject(section))
        return bag_config_json_reject(json, section, "%s must be an object: {...}",
                                      section->string);
    snprintf(where, sizeof where, " in '%s'", section->string);
    cJSON_ArrayForEach(item, section)
    {
        const struct bag_option *option = find_option(item->string);
        if (!option || strcmp(option->section, section->string) != 0)
            return reject_in_section(json, item, section->string, where);
        if (!apply_option(json, item, where, option, config))
            return false;
    }
    return true;
}

/* Rejects an unknown key of the document. For an option outside its section, the message names that
 * section. Returns false. */
static bool reject_at_top(const struct bag_config_json *json, const cJSON *item)
{
    struct bag_suggestion suggestion = {.written = item->string};
    const struct bag_option *option = find_option(item->string);
    if (option && option->section[0])
        return bag_config_json_reject(json, item,
                                      "key '%s' belongs in '%s': {\"%s\": {\"%s\": "
                                      "...}}",
                                      item->string, option->section, option->section, item->string);
    bag_suggest_offer(&suggestion, "models");
    bag_suggest_offer(&suggestion, "models_dir");
    for (size_t i = 0; i < bag_num_options; i++) {
        if (bag_options[i].section[0])
            bag_suggest_offer(&suggestion, bag_options[i].section);
    }
    return bag_config_json_unknown(json, item, "", &suggestion);
}

/* Applies the members of the document in their order. "models_dir" is the key of the option
 * `models` in a file, where "models" is the list. */
static bool apply_document(const struct bag_config_json *json, struct bag_config *config)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, json->tree)
    {
        bool applied;
        if (strcmp(item->string, "models") == 0)
            applied = apply_models(json, item, config);
        else if (strcmp(item->string, "models_dir") == 0)
            applied = apply_option(json, item, "", find_option("models"), config);
        else if (is_section(item->string))
            applied = apply_section(json, item, config);
        else
            applied = reject_at_top(json, item);
        if (!applied)
            return false;
    }
    return true;
}

bool bag_config_apply_file(struct bag_config *config, const char *file_name, const char *text,
                           size_t text_bytes, struct bag_problem *problem)
{
    struct bag_config_json json;
    if (!bag_config_json_parse(&json, file_name, text, text_bytes, problem))
        return false;
    bool applied = apply_document(&json, config);
    bag_json_free(json.tree);
    return applied;
}
