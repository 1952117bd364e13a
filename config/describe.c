/* The options as a document: their values, and where each comes from. */
#include "config.h"
#include "proto/json.h"

#include <stdlib.h>
#include <string.h>

static const char *const origins[] = {
#define BAG_X(id, word) word,
    BAG_ORIGINS(BAG_X)
#undef BAG_X
};

/* Whether its values are paths, of files or of sockets. */
static bool is_path(const struct bag_setting *setting)
{
    return setting->is_path || strcmp(setting->unit, "path") == 0;
}

/* Keeps the last part of a path, with the slashes at its end. */
static void keep_name(char *path)
{
    size_t from = strlen(path);
    while (from && path[from - 1] == '/')
        from--;
    while (from && path[from - 1] != '/')
        from--;
    memmove(path, path + from, strlen(path + from) + 1);
}

static cJSON *describe_text(const struct bag_setting *setting, const char *text, bool shows_folders)
{
    cJSON *node = text ? cJSON_CreateString(text) : cJSON_CreateNull();
    if (node && text && !shows_folders && is_path(setting))
        keep_name(node->valuestring);
    return node;
}

static cJSON *describe_value(const struct bag_option *option, const struct bag_config *config,
                             bool shows_folders)
{
    const struct bag_setting *setting = &option->setting;
    const char *member = (const char *)config + setting->offset;
    if (setting->type == BAG_SETTING_TEXT)
        return describe_text(setting, *(char *const *)member, shows_folders);
    if (setting->type == BAG_SETTING_CHOICE)
        return cJSON_CreateString(setting->words.names[*(const unsigned *)member]);
    const double value = (double)*(const int64_t *)member;
    return cJSON_CreateNumber(setting->type == BAG_SETTING_SECONDS ? value / 1000 : value);
}

/* Adds a node that may be NULL; false without memory. */
static bool add(cJSON *object, const char *key, cJSON *node)
{
    if (node && cJSON_AddItemToObject(object, key, node))
        return true;
    cJSON_Delete(node);
    return false;
}

static bool add_option(cJSON *list, const struct bag_config *config,
                       const struct bag_config *defaults, size_t i, bool shows_folders)
{
    const struct bag_option *option = &bag_options[i];
    cJSON *object = bag_v2_add_item(list);
    return object && add(object, "key", cJSON_CreateString(option->setting.key)) &&
           add(object, "section", cJSON_CreateString(option->section)) &&
           add(object, "value", describe_value(option, config, shows_folders)) &&
           add(object, "default", describe_value(option, defaults, true)) &&
           add(object, "source", cJSON_CreateString(origins[config->origins[i]])) &&
           add(object, "unit", cJSON_CreateString(option->setting.unit)) &&
           add(object, "about", cJSON_CreateString(option->sentence));
}

char *bag_config_describe_options(const struct bag_config *config, bool shows_folders)
{
    struct bag_config defaults;
    cJSON *list = cJSON_CreateArray();
    bool ok = bag_config_init(&defaults) && list;
    for (size_t i = 0; ok && i < bag_num_options; i++)
        ok = add_option(list, config, &defaults, i, shows_folders);
    bag_config_free(&defaults);
    return bag_v2_print_tree(list, ok);
}
