/* A configuration file's document -> configuration: sections of options, and models. */
#include "json.h"
#include "model_json.h"
#include "option_list.h"
#include "proto/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_section(const char *key)
{
    for (size_t i = 0; *key && i < bag_num_options; i++) {
        if (strcmp(bag_options[i].section, key) == 0)
            return true;
    }
    return false;
}

/* ---- sections -------------------------------------------------------------------------------- */

static bool reject_in_section(const struct bag_config_json *json, const cJSON *item,
                              const char *section, const char *where)
{
    struct bag_suggestion suggestion = {.written = item->string};
    for (size_t i = 0; i < bag_num_options; i++) {
        if (strcmp(bag_options[i].section, section) == 0)
            bag_suggest_offer(&suggestion, bag_options[i].setting.key);
    }
    return bag_config_json_unknown(json, item, where, suggestion.nearest);
}

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
        const struct bag_option *option = bag_option_find(item->string);
        if (!option || strcmp(option->section, section->string) != 0)
            return reject_in_section(json, item, section->string, where);
        if (!bag_config_json_apply(json, item, where, &option->setting, config))
            return false;
    }
    return true;
}

/* ---- the document ---------------------------------------------------------------------------- */

static bool apply_models_dir(const struct bag_config_json *json, const cJSON *item,
                             struct bag_config *config)
{
    const struct bag_setting *setting = &bag_option_find("models")->setting;
    if (!bag_config_json_apply(json, item, "", setting, config))
        return false;
    return bag_config_json_join(json, &config->models_dir);
}

static bool reject_at_top(const struct bag_config_json *json, const cJSON *item)
{
    struct bag_suggestion suggestion = {.written = item->string};
    const struct bag_option *option = bag_option_find(item->string);
    if (option && option->section[0])
        return bag_config_json_reject(json, item,
                                      "key '%s' belongs into '%s': {\"%s\": {\"%s\": "
                                      "...}}",
                                      item->string, option->section, option->section, item->string);
    bag_suggest_offer(&suggestion, "models");
    bag_suggest_offer(&suggestion, "models_dir");
    for (size_t i = 0; i < bag_num_options; i++) {
        if (bag_options[i].section[0])
            bag_suggest_offer(&suggestion, bag_options[i].section);
    }
    return bag_config_json_unknown(json, item, "", suggestion.nearest);
}

static bool apply_document(const struct bag_config_json *json, struct bag_config *config)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, json->tree)
    {
        bool applied;
        if (strcmp(item->string, "models") == 0)
            applied = bag_config_json_models(json, item, config);
        else if (strcmp(item->string, "models_dir") == 0)
            applied = apply_models_dir(json, item, config);
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
